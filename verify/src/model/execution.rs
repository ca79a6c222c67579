//! What one queue pair does with the descriptors that are published to it, in SQ order.

use std::collections::HashMap;
use std::sync::Arc;

use bytemuck::{cast, cast_mut};

use super::bus::Bus;
use super::engine::{Decode, Outcome, Source, check, fits};
use super::groups::{Groups, Part};
use super::language::{Loading, Sequence, Trouble, Weights};
use super::mutation::{LanguageFault, Mutator, PolicyFault};
use doorbell_contract::{
    CompletionFlags, Counter, DescFlags, DeviceFault, ErrorCode, HwCompletion, HwDesc, HwEvent, HwPolicy,
    MEMBER_NONE, Opcode, PolicyMode, QueueCounter, SlotState, Status,
};
use doorbell_engine::{Engine, RewardModel, Scoring};
use doorbell_host::memory::BusFault;
use doorbell_host::queue::{COMPLETION_WORDS, DESC_WORDS};
use doorbell_host::registers::{EventWrite, Life, Message, Registers, Session};

/// How far the model looks for the STOP of a DECODE that runs.
const STOP_LOOKAHEAD: u32 = 16;

/// What a queue pair executes.
#[derive(Debug, Default)]
pub(super) struct Lane {
    /// The descriptor fetched last.
    pub(super) desc: HwDesc,
    /// Present while `desc` is a DECODE, or a PREFILL of engine 1, that has not ended.
    pub(super) running: Option<Running>,
    /// What of a group `desc` belongs to.
    pub(super) part: Option<Part>,
    /// An access that is not answered.
    pub(super) awaited: Option<Awaited>,
    /// When `desc`, a DECODE, began, where its function has LIFE events (R23).
    pub(super) life: Option<Life>,
}

/// What runs in more than one step.
#[derive(Debug)]
pub(super) enum Running {
    Decode(Decode),
    /// A PREFILL of engine 1, and the policy slot of its version.
    Prefill(Box<Sequence>, usize),
    /// A REWARD, and how many tokens it has read.
    Reward(Scoring, u32),
    /// A POLICY of engine 1.
    Policy(Box<Loading>),
}

impl Running {
    /// The policy slot of its version, if it has one.
    pub(super) fn slot(&self) -> Option<usize> {
        match self {
            Self::Decode(decode) => Some(decode.slot),
            Self::Prefill(_, slot) => Some(*slot),
            Self::Reward(..) | Self::Policy(_) => None,
        }
    }
}

/// An access that is not answered, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Awaited {
    /// Where the queue pair has its rings and its tokens.
    pub(super) places: [u64; 3],
    pub(super) age: u32,
    /// BUS_TIMEOUT.
    pub(super) timeout: u32,
}

/// What queue pairs look at of each other's.
#[derive(Debug)]
pub(super) struct Tables {
    /// By queue pair.
    pub(super) groups: Vec<Groups>,
    /// DECODEs that run under the version in each policy slot, by function.
    pub(super) users: Vec<[u32; 2]>,
    /// What each policy slot holds of engine 1, by function.
    pub(super) weights: Vec<[Option<Arc<Weights>>; 2]>,
    /// Beats of 64 bytes that REWARD and POLICY have read.
    pub(super) read_beats: u64,
    /// Where DECODEs, by their `user_data`, are to end early, and as what.
    pub(super) cuts: HashMap<u64, (u32, Status)>,
}

/// One queue pair of the model while it has time.
pub(super) struct Execution<'a> {
    pub(super) bus: &'a Bus,
    pub(super) registers: &'a mut Registers,
    pub(super) queue: u8,
    pub(super) lane: &'a mut Lane,
    pub(super) tables: &'a mut Tables,
    pub(super) mutator: &'a mut Option<Mutator>,
}

impl Execution<'_> {
    /// Runs as the only queue pair, behind [`run_plain`](Self::run_plain), which may have ended a descriptor as `outcome` that is to be
    /// posted.
    pub(super) fn run(&mut self, want: usize, mut budget: u32, mut outcome: Option<Outcome>) {
        // A STOP is looked for once per advance: it can only have been published in between.
        let mut stop_waits = self.lane.running.is_some() && self.stop_waits();
        let mut left = want;
        loop {
            if let Some(outcome) = outcome {
                left -= 1;
                if self.post(outcome) {
                    return;
                }
            }
            if left == 0 {
                return;
            }
            left -= 1;
            let Some(session) = &self.registers.queue(self.queue).session else { return };
            let nothing = self.lane.running.is_none() && session.sq.fill() == 0;
            if nothing
                || budget == 0
                || self.lane.awaited.is_some()
                || self.registers.queue(self.queue).is_dead()
            {
                return;
            }
            // R4: without a free slot for its completion no descriptor is even fetched.
            if session.cq.is_full() {
                return self.registers.count_of(self.queue, QueueCounter::StallCq, 1);
            }
            if self.mutator.as_ref().is_some_and(Mutator::hangs) {
                return;
            }
            match self.step(&mut budget, std::mem::take(&mut stop_waits)) {
                Some(outcome) if self.post(outcome) => return,
                Some(_) => {}
                None => return,
            }
            if left == 0 {
                return;
            }
            let completed;
            (completed, outcome) = self.run_plain_again(left, &mut budget);
            left -= completed;
        }
    }

    /// Goes on with what runs, or begins with the next; `None` if it needs more than `budget`. `stop_waits` says whether the
    /// device has come to a STOP of what runs.
    #[inline(always)]
    pub(super) fn step(&mut self, budget: &mut u32, stop_waits: bool) -> Option<Outcome> {
        match self.lane.running.take() {
            Some(Running::Decode(decode)) => self.decode(decode, budget, stop_waits),
            Some(Running::Prefill(sequence, slot)) => self.fill(sequence, slot, budget),
            Some(Running::Reward(scoring, read)) => self.score(scoring, read, budget),
            Some(Running::Policy(loading)) => self.load(loading, budget),
            None => self.next(budget),
        }
    }

    /// Fetches the oldest published descriptor and executes it; `None` if it needs more time than there is.
    #[inline(always)]
    fn next(&mut self, budget: &mut u32) -> Option<Outcome> {
        *budget -= 1;
        self.registers.count_of(self.queue, QueueCounter::Descriptors, 1);
        let session = self.registers.queue_mut(self.queue).session.as_mut()?;
        let index = session.sq.head;
        session.sq.head = index.wrapping_add(1);
        self.lane.part = None;
        if self.bus.read(slot(session, index), cast_desc(&mut self.lane.desc)).is_err() {
            self.fault(DeviceFault::DMA_READ);
            self.lane.desc = HwDesc::default();
            return Some(Outcome::no_echo(ErrorCode::DmaFault, index));
        }
        Some(match check(&self.lane.desc, index, session) {
            Err(ErrorCode::BadCheck) => {
                self.lane.desc = HwDesc::default();
                Outcome::no_echo(ErrorCode::BadCheck, index)
            }
            Err(code) => Outcome::rejected(code),
            Ok(Opcode::Decode) => match self.begin(index) {
                Ok(decode) => return self.decode(decode, budget, false),
                Err(outcome) => outcome,
            },
            Ok(Opcode::Prefill) => return self.prefill(budget),
            // R8: whatever this STOP could have stopped has completed before it, or was stopped by `stop_waits`.
            Ok(Opcode::Stop) => {
                let groups = &self.tables.groups[usize::from(self.queue)];
                self.lane.part = groups.part(&self.lane.desc, Opcode::Stop);
                Outcome::plain(Status::Stopped)
            }
            Ok(Opcode::Nop) => Outcome::plain(Status::Done),
            Ok(Opcode::Reward) => return self.reward(budget),
            Ok(Opcode::Policy) => return self.publish(budget),
        })
    }

    /// Begins the DECODE, found at `index`; or how it ends without a token.
    #[inline(always)]
    fn begin(&mut self, index: u32) -> Result<Decode, Outcome> {
        let desc = &self.lane.desc;
        let rejected = Outcome::rejected;
        let session = self.registers.queue(self.queue).session.as_ref().ok_or(rejected(ErrorCode::None))?;
        let policies = self.registers.policies(session.function);
        let number = policies.find(desc.policy_version).ok_or(rejected(ErrorCode::BadVersion))?;
        let slot = policies.slot(number);
        let weights = self.weights(session.function, number)?;
        let groups = &self.tables.groups[usize::from(self.queue)];
        self.lane.part = groups.part(desc, Opcode::Decode);
        let has = |fault| self.mutator.as_ref().is_some_and(|mutator| mutator.has(fault));
        match slot.state {
            _ if has(PolicyFault::LateStop) => {}
            SlotState::Kept => return Err(Outcome::unstarted(Status::Superseded)),
            SlotState::Aborted => return Err(Outcome::unstarted(Status::Stopped)),
            SlotState::Resident | SlotState::Empty => {}
        }
        let stale = self.lane.part.is_some() && groups.is_stale(desc.prefix_id, number);
        if stale && !has(PolicyFault::StalePrefix) {
            return Err(rejected(ErrorCode::StalePrefix));
        }
        if let Some(&(0, status)) = self.tables.cuts.get(&desc.user_data) {
            return Err(Outcome::unstarted(status));
        }
        let mut salt = slot.salt;
        if let Some(mutator) = self.mutator {
            salt = mutator.salt(slot.version, salt, policies.slot(1 - number).salt);
        }
        let engine = Engine::of(desc.model_id).ok_or(rejected(ErrorCode::BadModel))?;
        let source = engine.begin(desc, salt, session.eos_threshold).map(Source::Hash);
        let (function, rollout) = (session.function, desc.rollout_id);
        if let Some(abort) = self.registers.queue(self.queue).abort() {
            if abort.ends(rollout, index) {
                return Err(Outcome::unstarted(Status::Stopped));
            }
            self.registers.queue_mut(self.queue).come_to(index);
        }
        let source = match (source, weights) {
            (Some(source), _) => source,
            (None, Some(weights)) => {
                let sequence = self.sequence(weights);
                Source::Language(sequence.map_err(|trouble| Outcome::stranded(trouble.code()))?)
            }
            (None, None) => return Err(rejected(ErrorCode::BadModel)),
        };
        let session = self.registers.queue(self.queue).session.as_ref().ok_or(rejected(ErrorCode::None))?;
        self.tables.users[usize::from(function)][number] += 1;
        Ok(Decode::new(&self.lane.desc, session, number).with(source))
    }

    /// Of a descriptor of engine 1 what the version in slot `number` holds, if it is of that engine and long enough for it
    /// (R25, and "Which error", 9); of engine 0 nothing.
    #[inline(always)]
    fn weights(&self, function: u8, number: usize) -> Result<Option<Arc<Weights>>, Outcome> {
        let desc = &self.lane.desc;
        if self.registers.policies(function).slot(number).engine != desc.model_id {
            return Err(Outcome::rejected(ErrorCode::BadModel));
        }
        if desc.model_id == 0 {
            return Ok(None);
        }
        let weights = &self.tables.weights[usize::from(function)][number];
        let added = if desc.opcode == Opcode::Decode as u8 { desc.max_tokens } else { 0 };
        let end = u64::from(desc.seq_len) + u64::from(added);
        match weights {
            Some(weights) if end > weights.image.positions.into() => {
                Err(Outcome::rejected(ErrorCode::BadLength))
            }
            weights => Ok(weights.clone()),
        }
    }

    /// Comes to the sequence of the descriptor, of engine 1.
    #[cold]
    fn sequence(&mut self, weights: Arc<Weights>) -> Result<Box<Sequence>, Trouble> {
        let fault = self.mutator.as_ref().and_then(Mutator::language);
        let Some(session) = &self.registers.queue(self.queue).session else { return Err(Trouble::Read) };
        let begun = Sequence::begin(self.bus, session, &self.lane.desc, weights, fault);
        begun.map(Box::new).inspect_err(|trouble| self.fault(trouble.fault()))
    }

    fn prefill(&mut self, budget: &mut u32) -> Option<Outcome> {
        let desc = &self.lane.desc;
        let session = self.registers.queue(self.queue).session.as_ref()?;
        let (function, policies) = (session.function, self.registers.policies(session.function));
        let slot = policies.find(desc.policy_version);
        let Some(slot) = slot.filter(|_| policies.is_resident(desc.policy_version)) else {
            return Some(Outcome::rejected(ErrorCode::BadVersion));
        };
        let weights = match self.weights(function, slot) {
            Ok(weights) => weights,
            Err(outcome) => return Some(outcome),
        };
        if let Err(code) = self.tables.groups[usize::from(self.queue)].open(desc, slot) {
            return Some(Outcome::rejected(code));
        }
        let prefix_id = desc.prefix_id;
        self.registers.count(Counter::Prefixes, 1);
        let skips = self.mutator.as_mut().is_some_and(|mutator| mutator.skips(prefix_id));
        let Some(weights) = weights.filter(|_| !skips) else { return Some(Outcome::plain(Status::Done)) };
        match self.sequence(weights) {
            Ok(sequence) => {
                self.tables.users[usize::from(function)][slot] += 1;
                self.fill(sequence, slot, budget)
            }
            Err(trouble) => Some(Outcome::rejected(trouble.code())),
        }
    }

    /// Runs the PREFILL of engine 1 as far as `budget` allows; `None` if it has not ended.
    #[cold]
    fn fill(&mut self, mut sequence: Box<Sequence>, slot: usize, budget: &mut u32) -> Option<Outcome> {
        let cost = sequence.cost();
        let mut outcome = sequence.is_prefilled().then_some(Outcome::plain(Status::Done));
        while outcome.is_none() && *budget > 0 {
            match sequence.prefill(self.bus, *budget / cost) {
                Ok(made) => {
                    *budget = budget.saturating_sub(made.saturating_mul(cost));
                    outcome = sequence.is_prefilled().then_some(Outcome::plain(Status::Done));
                }
                Err(trouble) => {
                    self.fault(trouble.fault());
                    outcome = Some(Outcome::rejected(trouble.code()));
                }
            }
        }
        if outcome.is_none() {
            self.lane.running = Some(Running::Prefill(sequence, slot));
        } else if let Some(session) = &self.registers.queue(self.queue).session {
            self.tables.users[usize::from(session.function)][slot] -= 1;
        }
        outcome
    }

    /// Scores tokens that lie in memory.
    fn reward(&mut self, budget: &mut u32) -> Option<Outcome> {
        let desc = &self.lane.desc;
        let Some(model) = RewardModel::of(desc.reward_model_id) else {
            return Some(Outcome::rejected(ErrorCode::BadModel));
        };
        self.tables.read_beats += lines(desc.delta_offset, 0, desc.max_tokens);
        self.score(model.begin(), 0, budget)
    }

    /// Goes on with a REWARD that has `read` so many tokens, as far as `budget` allows; `None` if it has not ended.
    fn score(&mut self, mut scoring: Scoring, mut read: u32, budget: &mut u32) -> Option<Outcome> {
        let session = self.registers.queue(self.queue).session.as_ref()?;
        let desc = &self.lane.desc;
        let start = session.token_base.wrapping_add(desc.delta_offset);
        let most = (desc.max_tokens - read).min((*budget).max(1));
        // One by one: whoever counts the allocations of his thread gives the model its time there.
        for _ in 0..most {
            match self.bus.read_u32(start.wrapping_add(4 * u64::from(read))) {
                Ok(token) => scoring.push(token, &session.ranges),
                Err(BusFault) => return Some(self.unreadable()),
            }
            read += 1;
        }
        *budget = budget.saturating_sub(most);
        if read < desc.max_tokens {
            self.lane.running = Some(Running::Reward(scoring, read));
            return None;
        }
        Some(Outcome { result: scoring.score() as u32, ..Outcome::plain(Status::Scored) })
    }

    /// What a descriptor wants to read is not there.
    #[cold]
    fn unreadable(&mut self) -> Outcome {
        self.fault(DeviceFault::DMA_READ);
        Outcome::rejected(ErrorCode::DmaFault)
    }

    /// Sets bits of ERROR, and tells of those that were not set (R23).
    #[cold]
    pub(super) fn fault(&mut self, fault: DeviceFault) {
        self.registers.queue_mut(self.queue).raise(fault);
        tell_faults(self.bus, self.registers, self.queue);
    }

    /// Publishes a version of the policy (R19); `None` if it needs more than `budget`.
    fn publish(&mut self, budget: &mut u32) -> Option<Outcome> {
        let desc = self.lane.desc;
        if let Err(outcome) = self.may_publish() {
            return Some(outcome);
        }
        let session = self.registers.queue(self.queue).session.as_ref()?;
        let start = session.token_base.wrapping_add(desc.delta_offset);
        let mut words = [0u32; 4];
        self.tables.read_beats += 1;
        for (word, k) in words.iter_mut().zip(0..) {
            match self.bus.read_u32(start.wrapping_add(4 * k)) {
                Ok(value) => *word = value,
                Err(_) => return Some(self.unreadable()),
            }
        }
        let header: HwPolicy = cast(words);
        if !fits(&header, &desc) {
            return Some(Outcome::rejected(ErrorCode::BadPolicy));
        }
        if desc.model_id == 0 {
            return Some(self.make_resident(header.salt, None));
        }
        // The line behind that of the header.
        match Loading::begin(self.bus, session, start.wrapping_add(64), header.salt) {
            Ok(loading) => self.load(Box::new(loading), budget),
            Err(trouble) => Some(self.unloadable(trouble)),
        }
    }

    /// Goes on with a POLICY of engine 1, whose image is read as far as `budget` allows; `None` if it has not ended.
    #[cold]
    fn load(&mut self, mut loading: Box<Loading>, budget: &mut u32) -> Option<Outcome> {
        match loading.read(self.bus, (*budget).max(1)) {
            Ok(beats) => *budget = budget.saturating_sub(beats),
            Err(trouble) => return Some(self.unloadable(trouble)),
        }
        if !loading.is_read() {
            self.lane.running = Some(Running::Policy(loading));
            return None;
        }
        let salt = loading.salt;
        Some(match loading.weights() {
            // Others may have gone on meanwhile.
            Ok(weights) => match self.may_publish() {
                Ok(()) => self.make_resident(salt, Some(Arc::new(weights))),
                Err(outcome) => outcome,
            },
            Err(trouble) => self.unloadable(trouble),
        })
    }

    /// What keeps a POLICY of engine 1 from going on.
    #[cold]
    fn unloadable(&mut self, trouble: Trouble) -> Outcome {
        self.fault(trouble.fault());
        Outcome::rejected(trouble.code())
    }

    /// Whether the version may be published now; else how the POLICY ends.
    fn may_publish(&self) -> Result<(), Outcome> {
        let desc = &self.lane.desc;
        let Some(session) = &self.registers.queue(self.queue).session else {
            return Err(Outcome::plain(Status::Done));
        };
        let policies = self.registers.policies(session.function);
        if mode(desc).is_none() || policies.is_resident(desc.policy_version) {
            return Err(Outcome::rejected(ErrorCode::BadPolicy));
        }
        if self.tables.users[usize::from(session.function)][policies.target()] > 0 {
            return Err(Outcome::rejected(ErrorCode::PolicyBusy));
        }
        Ok(())
    }

    /// Makes a version of the policy resident (R19), and retires the one before (R20).
    fn make_resident(&mut self, salt: u32, weights: Option<Arc<Weights>>) -> Outcome {
        let desc = self.lane.desc;
        let (Some(session), Some(mode)) = (&self.registers.queue(self.queue).session, mode(&desc)) else {
            return Outcome::plain(Status::Done);
        };
        let function = session.function;
        let new = self.registers.policies(function).target();
        let old = 1 - new;
        if let Some(mutator) = self.mutator {
            mutator.published(desc.policy_version, self.registers.policies(function).slot(new).salt);
        }
        self.registers.policies_mut(function).publish(desc.policy_version, desc.model_id, salt, mode);
        self.tables.weights[usize::from(function)][new] = weights;
        for (queue, groups) in (0..).zip(&mut self.tables.groups) {
            let session = &self.registers.queue(queue).session;
            if session.as_ref().is_some_and(|session| session.function == function) {
                groups.spoil(new);
                match mode {
                    PolicyMode::Wait => {}
                    PolicyMode::Keep => groups.pass(old, new),
                    PolicyMode::Abort => groups.spoil(old),
                }
            }
        }
        Outcome::plain(Status::Done)
    }

    /// Runs the DECODE as far as `budget` allows; `None` if it has not ended.
    #[inline(always)]
    fn decode(&mut self, mut decode: Decode, budget: &mut u32, stop_waits: bool) -> Option<Outcome> {
        let before = decode.produced;
        let mut cut = self.cut(&decode, stop_waits);
        // What a token of engine 1 counts for, of which at least one is made.
        let mut cost = 1;
        if let Some(sequence) = decode.sequence() {
            cost = sequence.cost();
            if cut == Some(Status::Superseded)
                && self.mutator.as_ref().and_then(Mutator::language) == Some(LanguageFault::MidStep)
            {
                let session = self.registers.queue(self.queue).session.as_ref()?;
                let other = &self.tables.weights[usize::from(session.function)][1 - decode.slot];
                if let (Some(other), Some(sequence)) = (other, decode.sequence()) {
                    sequence.mix(other);
                }
            }
        }
        let mut most = (*budget / cost).max(1);
        if !self.tables.cuts.is_empty()
            && let Some(&(length, status)) = self.tables.cuts.get(&self.lane.desc.user_data)
        {
            // The token with which it ends on its own.
            (most, cut) = match length.saturating_sub(before) {
                0 | 1 => (most.min(1), Some(status)),
                left => (most.min(left - 1), None),
            };
        }
        let session = self.registers.queue(self.queue).session.as_ref()?;
        let (bus, mutator) = (self.bus, &mut *self.mutator);
        let logps = self.lane.desc.flags & DescFlags::LOGP.bits() != 0;
        let write = |offset: u64, mut token: u32, logp: i32| {
            if let Some(mutator) = mutator {
                token = mutator.token(token);
            }
            // R11: within the region by the checks of the descriptor, and within the memory by those of the bus.
            debug_assert!(offset + 4 <= session.token_size, "R11: token at {offset:#x}");
            bus.write_u32(session.token_base.wrapping_add(offset), token)?;
            if logps {
                debug_assert!(offset + 4 <= session.logp_size, "R11: log-probability at {offset:#x}");
                bus.write_u32(session.logp_base.wrapping_add(offset), logp as u32)?;
            }
            Ok(())
        };
        let outcome = decode.run(&self.lane.desc, most, cut, session, bus, write);
        let (function, wait_states) = (session.function, session.wait_states);

        let produced = decode.produced - before;
        *budget = budget.saturating_sub(produced.saturating_mul(cost));
        let waited = u64::from(produced) * u64::from(wait_states);
        if session.life {
            self.note_life(before, produced, wait_states);
        }
        self.registers.count_of(self.queue, QueueCounter::Tokens, produced.into());
        self.registers.count(Counter::Wait, waited);
        let beats = lines(self.lane.desc.delta_offset, before, decode.produced);
        self.registers.count(Counter::WriteBeats, if logps { 2 * beats } else { beats });

        match outcome {
            None => self.lane.running = Some(Running::Decode(decode)),
            Some(_) => {
                self.tables.users[usize::from(function)][decode.slot] -= 1;
                if !decode.fault.is_empty() {
                    self.fault(decode.fault);
                }
            }
        }
        outcome
    }

    /// How the DECODE that runs is to end early, if it is.
    #[inline(always)]
    fn cut(&self, decode: &Decode, stop_waits: bool) -> Option<Status> {
        let queue = self.registers.queue(self.queue);
        let session = queue.session.as_ref()?;
        // The descriptor that runs is the one fetched last.
        let index = session.sq.head.wrapping_sub(1);
        let aborted = queue.abort().is_some_and(|abort| abort.ends(self.lane.desc.rollout_id, index));
        match self.registers.policies(session.function).slot(decode.slot).state {
            SlotState::Aborted => Some(Status::Stopped),
            _ if stop_waits || aborted => Some(Status::Stopped),
            SlotState::Kept => Some(Status::Superseded),
            SlotState::Resident | SlotState::Empty => None,
        }
    }

    /// Makes the completion of `desc` visible; the caller has made sure that its slot is released (R4). Whether that has
    /// interrupted the host.
    #[inline(always)]
    pub(super) fn post(&mut self, outcome: Outcome) -> bool {
        let Some(session) = &mut self.registers.queue_mut(self.queue).session else { return false };
        let (index, life) = (session.cq.tail, session.life);
        session.cq.tail = index.wrapping_add(1);
        let mut completion = HwCompletion { sq_head: session.sq.head, ..outcome.of(&self.lane.desc) };
        let closes = self.lane.part.is_some() && self.end_part(outcome.status);
        if closes {
            completion.flags |= CompletionFlags::GROUP_DONE.bits();
        }
        let Some(session) = &mut self.registers.queue_mut(self.queue).session else { return false };
        let mut words: [u64; COMPLETION_WORDS] = cast(completion.with_phase(session.cq.depth.phase(index)));
        if let Some(mutator) = self.mutator {
            words = mutator.completion(words);
        }
        let address = session.cq.address(index, size_of::<HwCompletion>() as u64);
        // One that is lost is not counted, and all else goes on as if it had become visible.
        let lost = self.bus.write(address, words).is_err();
        if lost {
            self.fault(DeviceFault::COMPLETION_WRITE);
        } else {
            self.registers.count_of(self.queue, QueueCounter::Completions, 1);
        }
        self.registers.count(Counter::WriteBeats, 1);
        if outcome.status == Status::Error {
            self.registers.count_of(self.queue, QueueCounter::Errors, 1);
        }
        if life {
            self.tell_life(index, lost);
        }
        // R14: an ERROR asks as well, and the end of a group.
        let asks = self.lane.desc.flags & DescFlags::INTERRUPT.bits() != 0;
        self.registers.note_visible(self.queue, asks || closes || outcome.status == Status::Error);
        send(self.bus, self.registers, self.queue)
    }

    /// Notes the moments of a DECODE that has produced as many tokens as it had `before`, and so many more, which are not counted yet.
    fn note_life(&mut self, before: u32, produced: u32, wait_states: u32) {
        let now = self.registers.ticks();
        let life = self.lane.life.get_or_insert(Life { fetched: now, started: now, ..Life::default() });
        if before == 0 && produced > 0 {
            life.first_token = now + 1 + u64::from(wait_states);
        }
    }

    /// Tells of the descriptor with whose completion `index` a tick has passed, unless that is `lost` (R23).
    fn tell_life(&mut self, index: u32, lost: bool) {
        let visible = self.registers.ticks();
        let ended = visible - 1;
        let mut life =
            self.lane.life.take().unwrap_or(Life { fetched: ended, started: ended, ..Life::default() });
        if life.first_token == 0 {
            life.first_token = ended;
        }
        let event = Life { ended, visible, ..life }.event(self.queue, 0, index);
        if !lost {
            let event = self.mutator.as_mut().map_or(event, |mutator| mutator.event(event));
            let urgent = self.mutator.as_ref().is_some_and(Mutator::fills_rings);
            write_event(self.bus, self.registers, self.queue, event, urgent);
        }
    }

    /// R17: ends the part of a group to which the descriptor belongs, if its status does; whether that was the last.
    fn end_part(&mut self, status: Status) -> bool {
        let Some(part) = self.lane.part.filter(|_| matches!(status, Status::Done | Status::Stopped)) else {
            return false;
        };
        self.tables.groups[usize::from(self.queue)].end(self.lane.desc.prefix_id, part)
    }

    /// Whether the device has come to a STOP of the rollout that runs (R8): it comes past descriptors of other
    /// rollouts, but not past a fence (R7) nor past another descriptor of this rollout (R5).
    pub(super) fn stop_waits(&self) -> bool {
        let Some(session) = &self.registers.queue(self.queue).session else { return false };
        if self.lane.running.is_none() || self.lane.desc.flags & DescFlags::FENCE.bits() != 0 {
            return false;
        }
        let mut desc = HwDesc::default();
        let running = &self.lane.desc;
        let prefix = (running.flags & DescFlags::COW_PREFIX.bits() != 0).then_some(running.prefix_id);
        // R1: never at or beyond the published tail.
        for k in 0..session.sq.fill().min(STOP_LOOKAHEAD) {
            let index = session.sq.head.wrapping_add(k);
            if self.bus.peek(slot(session, index), cast_desc(&mut desc)).is_err() {
                return false;
            }
            match check(&desc, index, session) {
                Err(_) => {}
                Ok(_) if desc.flags & DescFlags::FENCE.bits() != 0 => return false,
                Ok(Opcode::Stop) if stops_group(&desc) => {
                    if prefix == Some(desc.prefix_id) {
                        return true;
                    }
                }
                Ok(opcode) if desc.rollout_id == running.rollout_id => return opcode == Opcode::Stop,
                Ok(_) => {}
            }
        }
        false
    }
}

/// Sends the message of the queue pair's interrupt, if it is pending and not masked; whether it was.
#[inline]
pub(super) fn send(bus: &Bus, registers: &mut Registers, queue: u8) -> bool {
    registers.queue(queue).is_pending() && send_pending(bus, registers, queue)
}

#[cold]
fn send_pending(bus: &Bus, registers: &mut Registers, queue: u8) -> bool {
    let Some(Message { address, data }) = registers.take_message(queue) else { return false };
    bus.serve(registers, queue);
    if bus.send(address, data).is_err() {
        registers.queue_mut(queue).raise(DeviceFault::MESSAGE_WRITE);
        tell_faults(bus, registers, queue);
    }
    true
}

/// What becomes of the version before, by a POLICY; none if that is no mode.
fn mode(desc: &HwDesc) -> Option<PolicyMode> {
    PolicyMode::try_from(u8::try_from(desc.checkpoint).ok()?).ok()
}

/// Writes the event of the faults of `queue` that none has told of (R23).
#[cold]
pub(super) fn tell_faults(bus: &Bus, registers: &mut Registers, queue: u8) {
    if let Some(event) = registers.take_fault_event(queue) {
        bus.serve(registers, queue);
        write_event(bus, registers, queue, event, true);
    }
}

fn write_event(bus: &Bus, registers: &mut Registers, queue: u8, event: HwEvent, urgent: bool) {
    if let Some(EventWrite { address, words }) = registers.place_event(queue, event, urgent)
        && bus.write(address, words).is_err()
    {
        registers.lose_event(queue);
    }
}

/// Whether `desc`, a STOP, is one of a whole group.
fn stops_group(desc: &HwDesc) -> bool {
    desc.flags & DescFlags::COW_PREFIX.bits() != 0 && desc.member == MEMBER_NONE
}

/// Bus address of the slot of `index`.
#[inline]
pub(super) fn slot(session: &Session, index: u32) -> u64 {
    session.sq.address(index, size_of::<HwDesc>() as u64)
}

#[inline]
pub(super) fn cast_desc(desc: &mut HwDesc) -> &mut [u64; DESC_WORDS] {
    cast_mut(desc)
}

/// 64-byte lines that tokens number `from` up to, not including, `to` touch, number 0 being at `delta_offset`.
#[inline]
pub(super) fn lines(delta_offset: u64, from: u32, to: u32) -> u64 {
    let offset = |token: u32| delta_offset + 4 * u64::from(token);
    if from == to { 0 } else { offset(to - 1) / 64 - offset(from) / 64 + 1 }
}
