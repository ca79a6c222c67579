//! What a descriptor means: the checks (R2, R10), and how a DECODE goes and ends (R8, R9) whichever engine runs it.

use doorbell_contract::{
    ARENAS, CHECKPOINT_NEVER, CompletionFlags, DESC_FLAGS_MASK, DescFlags, DeviceFault, ErrorCode,
    HwCompletion, HwDesc, HwImage, HwPolicy, LENGTH_LIMIT_MAX, MEMBERS_MAX, Opcode, PREFIX_NONE, Status,
};
use doorbell_engine::{Decoder, Digest, Engine, RewardModel, Step};
use doorbell_host::memory::BusFault;
use doorbell_host::registers::Session;

use super::bus::Bus;
use super::language::{Sequence, Trouble};

/// Checks the descriptor found in the slot of `index` in the order of docs/contract.md, "Which error"; the first
/// violation decides. (Number 1 there, DMA_FAULT, is for slots that could not be read; those from 9 on need to know more than the
/// descriptor.)
#[inline(always)]
pub(super) fn check(desc: &HwDesc, index: u32, session: &Session) -> Result<Opcode, ErrorCode> {
    let flags = DescFlags::from_bits_retain(desc.flags);
    let require = |holds: bool, code: ErrorCode| if holds { Ok(()) } else { Err(code) };

    // 2. R2: torn, stale or corrupt slots are never executed.
    require(desc.verify(&session.sq_key, index), ErrorCode::BadCheck)?;

    // 3. The model's CAPABILITY has them all.
    let opcode = Opcode::try_from(desc.opcode).map_err(|_| ErrorCode::BadOpcode)?;

    // 4.
    require(desc.flags & !DESC_FLAGS_MASK == 0, ErrorCode::ReservedSet)?;

    // From `delta_offset` on, so many bytes within a region. No sum wraps.
    let lies = |bytes: u64, align: u64, size: u64| {
        let end = desc.delta_offset.checked_add(bytes);
        desc.delta_offset.is_multiple_of(align) && end.is_some_and(|end| end <= size)
    };
    let tokens = u64::from(desc.max_tokens);
    let engine = Engine::of(desc.model_id);
    let language = engine == Some(Engine::Language);
    // Of engine 1 it holds a sequence, of engine 0 nothing (7).
    let kv = || {
        let end = desc.kv_offset.checked_add(64);
        let lies = desc.kv_offset.is_multiple_of(64) && end.is_some_and(|end| end <= session.kv_size);
        let holds = if language {
            lies && u32::from(desc.kv_arena_id) < ARENAS
        } else {
            desc.kv_offset == 0 || desc.kv_offset < session.kv_size
        };
        require(holds, ErrorCode::BadRegion)
    };
    match opcode {
        Opcode::Decode => {
            let unscored = flags.contains(DescFlags::RESIDENT)
                && !RewardModel::of(desc.reward_model_id).is_some_and(RewardModel::is_resident);
            require(engine.is_some() && !unscored, ErrorCode::BadModel)?;
            // In 64 bits the sum does not wrap.
            let fits = u64::from(desc.seq_len) + tokens <= u64::from(session.length_limit);
            require(fits && tokens > 0 && !(language && desc.seq_len == 0), ErrorCode::BadLength)?;
            let mut size = session.token_size;
            if flags.contains(DescFlags::LOGP) {
                size = size.min(session.logp_size);
            }
            let before = !language || desc.delta_offset >= 4;
            require(lies(4 * tokens, 4, size) && before, ErrorCode::BadRegion)?;
            if language || desc.kv_offset != 0 {
                kv()?;
            }
        }
        Opcode::Prefill => {
            require(engine.is_some(), ErrorCode::BadModel)?;
            let fits = desc.seq_len <= session.length_limit && desc.max_tokens <= MEMBERS_MAX;
            require(fits && !(language && desc.seq_len == 0), ErrorCode::BadLength)?;
            kv()?;
        }
        Opcode::Reward => {
            require(RewardModel::of(desc.reward_model_id).is_some(), ErrorCode::BadModel)?;
            let fits = (1..=session.length_limit).contains(&desc.max_tokens);
            require(fits, ErrorCode::BadLength)?;
            require(lies(4 * tokens, 4, session.token_size), ErrorCode::BadRegion)?;
        }
        Opcode::Policy => {
            require(engine.is_some(), ErrorCode::BadModel)?;
            let block = if language { 128 } else { 64 };
            require(lies(block, 64, session.token_size), ErrorCode::BadRegion)?;
        }
        Opcode::Nop | Opcode::Stop => {}
    }

    // 8. Prefix 0 is a prefix like any other.
    let continues = matches!(opcode, Opcode::Decode | Opcode::Stop) && flags.contains(DescFlags::COW_PREFIX);
    let needs_prefix = opcode == Opcode::Prefill || continues;
    require(!(needs_prefix && desc.prefix_id == PREFIX_NONE), ErrorCode::BadPrefix)?;
    Ok(opcode)
}

/// Whether a header in memory is that of the version which `desc`, a POLICY, publishes (R19).
pub(super) fn fits(header: &HwPolicy, desc: &HwDesc) -> bool {
    // Engine 0 has no weights.
    let length = if desc.model_id == 0 { 0 } else { size_of::<HwImage>() as u32 };
    header.verify()
        && header.version == desc.policy_version
        && header.model_id == desc.model_id
        && header.length == length
}

/// How a descriptor ended; with the descriptor this makes its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Outcome {
    pub status: Status,
    pub error: ErrorCode,
    pub flags: CompletionFlags,
    /// Tokens added.
    pub added: u32,
    pub result: u32,
}

impl Outcome {
    /// The end of a descriptor without tokens.
    pub const fn plain(status: Status) -> Self {
        Self { status, error: ErrorCode::None, flags: CompletionFlags::empty(), added: 0, result: 0 }
    }

    /// The end of a DECODE that adds nothing, as it was stopped or superseded before it began (R8, R20).
    pub const fn unstarted(status: Status) -> Self {
        Self { result: Digest::EMPTY.value(), ..Self::plain(status) }
    }

    /// The end of a DECODE of engine 1 that has come to run, and to no token ("Which error", 13).
    pub const fn stranded(error: ErrorCode) -> Self {
        Self { error, ..Self::unstarted(Status::Error) }
    }

    /// The end of a descriptor that was not executed (R10).
    pub const fn rejected(error: ErrorCode) -> Self {
        Self { error, ..Self::plain(Status::Error) }
    }

    /// The same of one of whose slot, at running index `index`, nothing can be trusted.
    pub const fn no_echo(error: ErrorCode, index: u32) -> Self {
        Self { flags: CompletionFlags::NO_ECHO, result: index, ..Self::rejected(error) }
    }

    /// The completion of `desc`, without what the completion ring adds; the only worker is 0.
    #[inline(always)]
    pub fn of(self, desc: &HwDesc) -> HwCompletion {
        HwCompletion {
            user_data: desc.user_data,
            rollout_id: desc.rollout_id,
            final_seq_len: desc.seq_len.wrapping_add(self.added) & LENGTH_LIMIT_MAX,
            result: self.result,
            sq_head: 0,
            reward_model_id: desc.reward_model_id,
            worker_id: 0,
            error: self.error as u8,
            flags: self.flags.bits(),
            status: self.status as u8,
            phase: 0,
        }
    }
}

/// What a DECODE takes its tokens from.
#[derive(Debug)]
pub(super) enum Source {
    Hash(Decoder),
    Language(Box<Sequence>),
}

/// State of a DECODE that runs.
#[derive(Debug)]
pub(super) struct Decode {
    /// Absent while it runs.
    source: Option<Source>,
    /// What ERROR is to tell of, if it ended as an error.
    pub fault: DeviceFault,
    /// The policy slot of its version.
    pub slot: usize,
    /// Tokens so far.
    pub produced: u32,
    digest: Digest,
    /// RESIDENT: of the tokens since the last checkpoint (R9).
    since: Digest,
    seen_eos: bool,
    /// Tokens between checkpoints. "Never" needs no case of its own: a budget of as many tokens ends first.
    period: u32,
    /// Tokens at the next checkpoint.
    checkpoint: u32,
}

impl Decode {
    #[inline]
    pub fn new(desc: &HwDesc, session: &Session, slot: usize) -> Self {
        let period = match (desc.checkpoint, session.checkpoint_default) {
            (0, 0) => CHECKPOINT_NEVER,
            (0, default) => default,
            (own, _) => own,
        };
        let digest = Digest::EMPTY;
        Self {
            source: None,
            fault: DeviceFault::empty(),
            slot,
            produced: 0,
            digest,
            since: digest,
            seen_eos: false,
            period,
            checkpoint: period,
        }
    }

    /// The same with what it takes its tokens from.
    #[inline]
    pub fn with(self, source: Source) -> Self {
        Self { source: Some(source), ..self }
    }

    /// The sequence, of engine 1.
    pub fn sequence(&mut self) -> Option<&mut Sequence> {
        match &mut self.source {
            Some(Source::Language(sequence)) => Some(sequence),
            _ => None,
        }
    }

    /// Produces up to `budget` tokens of `desc`; `None` if it has not ended by then. `cut` is how it ends early: as STOPPED if the
    /// device has come to a STOP of it (R8), as what becomes of a version that was retired (R20); `write` stores a token and its
    /// log-probability at their offset.
    #[inline(always)]
    pub fn run(
        &mut self,
        desc: &HwDesc,
        budget: u32,
        cut: Option<Status>,
        session: &Session,
        bus: &Bus,
        write: impl FnMut(u64, u32, i32) -> Result<(), BusFault>,
    ) -> Option<Outcome> {
        match self.source.take()? {
            Source::Hash(mut decoder) => {
                let outcome = self.produce(desc, budget, cut, session, || Ok(decoder.step()), write);
                self.source = Some(Source::Hash(decoder));
                outcome
            }
            Source::Language(sequence) => self.run_language(sequence, desc, budget, cut, session, bus, write),
        }
    }

    /// The same of engine 1, apart from the loop over engine 0's tokens.
    #[cold]
    #[inline(never)]
    #[expect(clippy::too_many_arguments, reason = "those of `run`, and the sequence")]
    fn run_language(
        &mut self,
        mut sequence: Box<Sequence>,
        desc: &HwDesc,
        budget: u32,
        cut: Option<Status>,
        session: &Session,
        bus: &Bus,
        write: impl FnMut(u64, u32, i32) -> Result<(), BusFault>,
    ) -> Option<Outcome> {
        let outcome = self.produce(desc, budget, cut, session, || sequence.step(bus), write);
        self.source = Some(Source::Language(sequence));
        outcome
    }

    /// The same with the engine's `step`.
    #[inline(always)]
    pub fn produce(
        &mut self,
        desc: &HwDesc,
        budget: u32,
        cut: Option<Status>,
        session: &Session,
        mut step: impl FnMut() -> Result<Step, Trouble>,
        mut write: impl FnMut(u64, u32, i32) -> Result<(), BusFault>,
    ) -> Option<Outcome> {
        let flags = DescFlags::from_bits_retain(desc.flags);
        let resident = flags.contains(DescFlags::RESIDENT);
        let superseded = cut == Some(Status::Superseded);
        for _ in 0..budget {
            let Step { token, eos, logp } = match step() {
                Ok(step) => step,
                Err(trouble) => return Some(self.fail(trouble)),
            };
            if write(desc.delta_offset + 4 * u64::from(self.produced), token, logp).is_err() {
                return Some(self.fail(Trouble::Write));
            }
            self.digest.push(token);
            if resident {
                self.since.push(token);
            }
            self.produced += 1;

            // "What ends a DECODE": the first that applies decides.
            self.seen_eos |= eos;
            if eos && flags.contains(DescFlags::EOS_STOPS) || self.produced == desc.max_tokens {
                return Some(self.end(Status::Done));
            }
            if let Some(status) = cut.filter(|_| !(superseded && resident)) {
                return Some(self.end(status));
            }
            if self.produced == self.checkpoint {
                if !resident {
                    return Some(self.end(Status::RewardNeeded));
                }
                if self.since.score() < session.reward_threshold {
                    let done = self.end(Status::Done);
                    return Some(Outcome { flags: done.flags | CompletionFlags::REJECTED, ..done });
                }
                if superseded {
                    return Some(self.end(Status::Superseded));
                }
                self.since = Digest::EMPTY;
                self.checkpoint = self.checkpoint.saturating_add(self.period);
            }
        }
        None
    }

    /// What keeps it from going on ends it, with what it has.
    #[cold]
    fn fail(&mut self, trouble: Trouble) -> Outcome {
        self.fault = trouble.fault();
        Outcome { error: trouble.code(), ..self.end(Status::Error) }
    }

    #[inline(always)]
    fn end(&self, status: Status) -> Outcome {
        let flags = if self.seen_eos { CompletionFlags::EOS } else { CompletionFlags::empty() };
        Outcome { status, error: ErrorCode::None, flags, added: self.produced, result: self.digest.value() }
    }
}
