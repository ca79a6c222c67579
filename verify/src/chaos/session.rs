//! One life of a queue pair, from its ENABLE to its end: what was published, what came back, and what the rules say of it.

use std::collections::{BTreeSet, HashMap};

use bytemuck::{cast, cast_mut};

use doorbell_contract::{
    CompletionFlags, DescFlags, DeviceFault, ErrorCode, HwCompletion, HwDesc, HwPolicy, MEMBER_NONE, Opcode,
    PREFIX_NONE, SqKey, Status,
};
use doorbell_host::memory::SharedMemory;
use doorbell_host::queue::{COMPLETION_WORDS, DESC_WORDS, Depth, SubmissionQueue, between, is_fresh};

use super::draw::Draw;
use super::layout::{self, AREA_WORDS, AREAS, CQ, LOGPS, POISON, SQ, TOKEN_BYTES, TOKENS};
use super::tally::Tally;
use super::violation::{Violation, violated};
use crate::groups::GroupJudge;
use crate::model::Injected;
use crate::oracle::Oracle;

/// What the queue pairs of a function share.
#[derive(Clone, Debug)]
pub(super) struct Tenant {
    /// Whether anything is done to it.
    pub disturbed: bool,
    /// The version that was published last, as far as is known.
    pub current: u16,
    /// Nobody knows whether a POLICY that was cancelled has run: the device is to be asked.
    pub is_current_unknown: bool,
    /// The next version to be published.
    pub next: u16,
    /// Rises with everything that may change what is resident.
    pub changes: u64,
    /// Whether a POLICY is under way.
    pub publishing: bool,
    pub seed: u64,
    pub function: u8,
}

impl Tenant {
    /// The salt of a version, which is published once at most.
    pub fn salt(&self, version: u16) -> u32 {
        let mixed =
            doorbell_contract::mix(self.seed as u32 ^ doorbell_contract::mix(u32::from(version) << 8));
        if version == 0 { 0 } else { mixed ^ u32::from(self.function) }
    }

    pub fn header(&self, version: u16) -> HwPolicy {
        HwPolicy::new(version, 0, self.salt(version), 0)
    }
}

/// A descriptor that was published.
#[derive(Clone, Debug)]
struct Entry {
    desc: HwDesc,
    /// Whether its slot holds it: else it is to be found corrupt.
    sealed: bool,
    area: Option<u32>,
    completed: bool,
    /// The read of its slot was answered with an error.
    unreadable: bool,
    /// A write of its tokens was.
    spoilt: bool,
    /// What has completed before it though it should not have, unless its own completion never comes, or excuses that.
    overtaken: Option<(Order, u32)>,
    /// A STOP or an ABORT may end it.
    stoppable: bool,
    /// What the function's versions were at, where nothing was under way then.
    changes: Option<u64>,
    /// It is of a DECODE's area, whose tokens it reads.
    reads_area: bool,
}

/// Why one must complete before another one, the weightier last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Order {
    /// They are of one rollout (R5), unless nobody knows whose the slot was.
    Rollout,
    /// It is a fence (R7), unless it is rejected.
    IsFence,
    /// The other is a fence (R7).
    BeforeFence,
}

/// How a life ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// All that was published has completed.
    Whole,
    /// By a disable, or a reset of its function.
    Disabled { sq_head: u32, cq_tail: u32 },
    /// By the reset pin.
    Reset,
}

/// One life.
pub(super) struct Session {
    memory: SharedMemory,
    pub sq: SubmissionQueue,
    pub sq_depth: Depth,
    pub cq_depth: Depth,
    sq_start: u32,
    cq_start: u32,
    /// The last `sq_head` of a completion.
    sq_told: u32,
    /// What the host has seen, and what it has released.
    pub cq_seen: u32,
    pub cq_released: u32,
    /// Which life: the upper half of its descriptors' `user_data`.
    life: u32,
    entries: Vec<Entry>,
    /// By position in `entries`.
    open: BTreeSet<u32>,
    /// Completions whose write was answered with an error.
    lost: BTreeSet<u32>,
    lost_passed: u32,
    /// Of each area, how many descriptors use it.
    areas: Vec<u8>,
    owners: HashMap<u32, u32>,
    groups: Option<GroupJudge>,
    /// Faults that were injected.
    pub faults: DeviceFault,
    readbacks_failed: bool,
    /// What the function's versions were at when it began, where nothing was under way.
    changes: Option<u64>,
    pub refused: u32,
    pub errors_seen: u64,
    pub tokens_seen: u64,
    oracle: Oracle,
}

impl Session {
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        memory: &SharedMemory,
        sq: SubmissionQueue,
        depths: (Depth, Depth),
        starts: (u32, u32),
        life: u32,
        oracle: Oracle,
        tenant: &Tenant,
    ) -> Self {
        Self {
            memory: memory.clone(),
            sq,
            sq_depth: depths.0,
            cq_depth: depths.1,
            sq_start: starts.0,
            cq_start: starts.1,
            sq_told: starts.0,
            cq_seen: starts.1,
            cq_released: starts.1,
            life,
            entries: Vec::new(),
            open: BTreeSet::new(),
            lost: BTreeSet::new(),
            lost_passed: 0,
            areas: vec![0; AREAS as usize],
            owners: HashMap::new(),
            groups: Some(GroupJudge::default()),
            faults: DeviceFault::empty(),
            readbacks_failed: false,
            changes: (!tenant.publishing).then_some(tenant.changes),
            refused: 0,
            errors_seen: 0,
            tokens_seen: 0,
            oracle,
        }
    }

    /// Descriptors published.
    pub fn published(&self) -> u32 {
        self.entries.len() as u32
    }

    /// Completions that the host has come past, lost ones included.
    pub fn seen(&self) -> u32 {
        self.cq_seen.wrapping_sub(self.cq_start)
    }

    /// Whether somebody's tokens are not known from its completion.
    pub fn tokens_uncertain(&self) -> bool {
        self.faults.contains(DeviceFault::DMA_WRITE)
    }

    /// The rollout of something that has not completed.
    pub fn some_rollout(&self, draw: &mut Draw) -> Option<u32> {
        let open: Vec<u32> = self.open.iter().copied().collect();
        (!open.is_empty()).then(|| self.entries[draw.pick(&open) as usize].desc.rollout_id)
    }

    /// Completions that never came because their write was answered with an error.
    pub fn lost(&self) -> u32 {
        self.lost.len() as u32
    }

    /// Groups that are open, as far as the host knows; a life whose completions got lost cannot tell.
    pub fn open_groups(&self) -> Option<usize> {
        self.groups.as_ref().map(GroupJudge::open)
    }

    /// An area that nobody uses, poisoned.
    pub fn take_area(&mut self) -> Option<u32> {
        let area = (0..AREAS).find(|&area| self.areas[area as usize] == 0)?;
        let poison = [POISON; AREA_WORDS as usize];
        for region in [TOKENS, LOGPS] {
            self.memory.store_u32s(region + layout::area(area) as usize, &poison).ok()?;
        }
        self.areas[area as usize] = 1;
        Some(area)
    }

    /// One more descriptor uses it.
    pub fn share_area(&mut self, area: u32) {
        self.areas[area as usize] += 1;
    }

    /// The area of the youngest descriptor of a rollout that is a DECODE.
    pub fn area_of(&self, rollout: u32) -> Option<(u32, HwDesc)> {
        let last = self.entries.iter().rev().take(32).find(|entry| entry.desc.rollout_id == rollout)?;
        let decode = last.desc.opcode == Opcode::Decode as u8 && last.sealed && !last.completed;
        last.area.filter(|_| decode).map(|area| (area, last.desc))
    }

    /// Publishes one descriptor, which the doorbell has yet to tell; the queue has room. Unsealed, it is to be found corrupt.
    pub fn publish(
        &mut self,
        desc: HwDesc,
        sealed: bool,
        area: Option<u32>,
        tenant: &Tenant,
    ) -> Result<(), Violation> {
        let position = self.published();
        let user_data = u64::from(self.life) << 32 | u64::from(position);
        let desc = if sealed { desc.with_user_data(user_data) } else { desc };
        let pushed = if sealed { self.sq.push(&[desc]) } else { self.sq.push_unsealed(&[desc]) };
        if pushed.map_err(Violation::failure)? != 1 {
            return Err(violated("host", "the submission queue had no room".into()));
        }
        self.enter(desc, sealed, area, tenant);
        Ok(())
    }

    /// Leaves in a free slot what no driver leaves there; says what. Nobody has published it, and no device may act on it: where the
    /// check word publishes (R1), it does not match.
    pub fn litter(&self, draw: &mut Draw, key: u32) -> Result<Option<&'static str>, Violation> {
        let (free, key) = (self.sq.free() as u32, SqKey::new(key));
        if free == 0 {
            return Ok(None);
        }
        let index = self.sq.tail().wrapping_add(draw.below(free));
        let rollout = self.some_rollout(draw).unwrap_or(draw.below(64));
        let good =
            HwDesc::decode(rollout, 5, 6).with_delta_offset(layout::area(0)).with_user_data(draw.wide());
        let sealed = good.seal(&key, index);
        let (desc, kind) = match draw.below(4) {
            0 => (cast(std::array::from_fn::<u64, 8, _>(|_| draw.wide())), "random words above the tail"),
            1 => {
                let passed = index.wrapping_sub(self.sq_depth.slots());
                (good.seal(&key, passed), "a descriptor of another pass above the tail")
            }
            2 => (
                HwDesc { check: draw.bits(), ..sealed },
                "a descriptor without its check word above the tail",
            ),
            _ => {
                let torn = HwDesc { user_data: draw.wide(), max_tokens: 1 + draw.below(40), ..sealed };
                (torn, "a torn descriptor above the tail")
            }
        };
        if desc.verify(&key, index) {
            return Ok(None);
        }
        let slots = self.memory.slots::<DESC_WORDS>(SQ, self.sq_depth.slots());
        slots.map_err(Violation::failure)?.store(index, cast(desc));
        Ok(Some(kind))
    }

    fn enter(&mut self, desc: HwDesc, sealed: bool, area: Option<u32>, tenant: &Tenant) {
        let position = self.published();
        if sealed {
            self.note_stop(&desc);
            if let Some(groups) = &mut self.groups {
                groups.submitted(&desc);
            }
        }
        let quiet = !tenant.publishing && desc.policy_version == tenant.current;
        if let Some(area) = area
            && desc.opcode == Opcode::Decode as u8
        {
            self.owners.insert(area, position);
        }
        self.entries.push(Entry {
            reads_area: area.is_some() && desc.opcode == Opcode::Reward as u8,
            desc,
            sealed,
            area,
            completed: false,
            unreadable: false,
            spoilt: false,
            overtaken: None,
            stoppable: false,
            changes: quiet.then_some(tenant.changes),
        });
        self.open.insert(position);
    }

    /// What a STOP may end stands before it.
    fn note_stop(&mut self, stop: &HwDesc) {
        let (entries, open) = (&mut self.entries, &self.open);
        if stop.opcode != Opcode::Stop as u8 {
            return;
        }
        let of_group = stop.flags & DescFlags::COW_PREFIX.bits() != 0 && stop.member == MEMBER_NONE;
        for &position in open {
            let entry = &mut entries[position as usize];
            let member = entry.desc.flags & DescFlags::COW_PREFIX.bits() != 0
                && entry.desc.prefix_id == stop.prefix_id
                && stop.prefix_id != PREFIX_NONE;
            entry.stoppable |= entry.desc.rollout_id == stop.rollout_id || of_group && member;
        }
    }

    /// ABORT was taken for a rollout.
    pub fn aborted(&mut self, rollout: u32) {
        for &position in &self.open {
            let entry = &mut self.entries[position as usize];
            entry.stoppable |= entry.desc.rollout_id == rollout;
        }
    }

    /// An access of this queue pair's memory, at `offset` in it, was answered with an error. False if it is none of what the
    /// device may access.
    pub fn injected(&mut self, offset: usize, access: &Injected) -> bool {
        // What follows from a lost completion, or a member that nobody knows, is not told from here.
        self.groups = None;
        let bytes = access.bytes as usize;
        let sq = SQ..SQ + 64 * self.sq_depth.slots() as usize;
        let cq = CQ..CQ + 32 * self.cq_depth.slots() as usize;
        let tokens = TOKENS..TOKENS + TOKEN_BYTES as usize;
        let logps = LOGPS..LOGPS + TOKEN_BYTES as usize;
        if !access.is_write && sq.contains(&offset) {
            self.faults |= DeviceFault::DMA_READ;
            for slot in (offset - SQ) / 64..(offset - SQ + bytes).div_ceil(64) {
                // The youngest index of that slot.
                let back = self.sq_depth.slot(self.sq.tail().wrapping_sub(1).wrapping_sub(slot as u32));
                let index = self.sq.tail().wrapping_sub(1).wrapping_sub(back);
                if let Some(entry) = self.entries.get_mut(index.wrapping_sub(self.sq_start) as usize) {
                    entry.unreadable = true;
                }
            }
        } else if access.is_write && cq.contains(&offset) {
            self.faults |= DeviceFault::COMPLETION_WRITE;
            for slot in (offset - CQ) / 32..(offset - CQ + bytes).div_ceil(32) {
                // The index of that slot among those that the host has not seen.
                let ahead = self.cq_depth.slot((slot as u32).wrapping_sub(self.cq_seen));
                self.lost.insert(self.cq_seen.wrapping_add(ahead).wrapping_sub(self.cq_start));
            }
        } else if access.is_write && (tokens.contains(&offset) || logps.contains(&offset)) {
            self.faults |= DeviceFault::DMA_WRITE;
            let start = if tokens.contains(&offset) { TOKENS } else { LOGPS };
            let Some(first) = (offset - start).checked_sub(layout::FIRST_AREA as usize) else { return false };
            let stride = 4 * AREA_WORDS as usize;
            for area in first / stride..(first + bytes).div_ceil(stride) {
                if let Some(&position) = self.owners.get(&(area as u32)) {
                    self.entries[position as usize].spoilt = true;
                }
            }
        } else if !access.is_write && tokens.contains(&offset) {
            self.faults |= DeviceFault::DMA_READ;
            self.readbacks_failed = true;
        } else {
            return false;
        }
        true
    }

    /// Takes what is visible, at most so many, and judges it.
    pub fn reap(&mut self, most: u32, tenant: &mut Tenant, tally: &mut Tally) -> Result<u32, Violation> {
        for taken in 0..most {
            let place = self.cq_seen.wrapping_sub(self.cq_start);
            let fresh = {
                let slots = self.memory.slots::<COMPLETION_WORDS>(CQ, self.cq_depth.slots());
                let slots = slots.map_err(Violation::failure)?;
                let fresh = is_fresh(&slots, self.cq_depth, self.cq_seen);
                let mut completion = HwCompletion::default();
                if fresh {
                    slots.load(self.cq_seen, cast_mut(&mut completion));
                }
                fresh.then_some(completion.with_phase(false))
            };
            match fresh {
                Some(completion) => {
                    if self.lost.contains(&place) {
                        return Err(violated(
                            "R4",
                            format!(
                                "completion {place} is visible though its write was answered with an error"
                            ),
                        ));
                    }
                    self.cq_seen = self.cq_seen.wrapping_add(1);
                    self.judge(&completion, tenant, tally).map_err(|violation| {
                        violation.at(format!("completion {place} of life {}: {completion:x?}", self.life))
                    })?;
                }
                None if self.lost.contains(&place) && self.lost_passed < self.lost() => {
                    // What it still holds would look fresh on the next pass.
                    let phase = self.cq_depth.phase(self.cq_seen);
                    let slots = self.memory.slots::<COMPLETION_WORDS>(CQ, self.cq_depth.slots());
                    let passed = cast(HwCompletion::default().with_phase(phase));
                    slots.map_err(Violation::failure)?.store(self.cq_seen, passed);
                    self.lost_passed += 1;
                    self.cq_seen = self.cq_seen.wrapping_add(1);
                    tally.lost += 1;
                }
                None => return Ok(taken),
            }
        }
        Ok(most)
    }

    fn judge(
        &mut self,
        completion: &HwCompletion,
        tenant: &mut Tenant,
        tally: &mut Tally,
    ) -> Result<(), Violation> {
        let no_echo = completion.has(CompletionFlags::NO_ECHO);
        let position = if no_echo {
            completion.result.wrapping_sub(self.sq_start)
        } else {
            if completion.user_data >> 32 != u64::from(self.life) {
                return Err(violated("R3", "it answers nothing of this life".into()));
            }
            completion.user_data as u32
        };
        let Some(entry) = self.entries.get(position as usize) else {
            return Err(violated("R3", format!("it answers descriptor {position}, which was not published")));
        };
        let entry = entry.clone();
        if entry.completed {
            return Err(violated("R3", format!("it answers descriptor {position} again: {:x?}", entry.desc)));
        }
        self.order(position, &entry, completion, no_echo)?;
        // R3, R13: the host takes the slots below it for free.
        let consumed = position.wrapping_add(self.sq_start);
        let sq_head = completion.sq_head;
        if !between(self.sq_told, sq_head, self.sq.tail()) || sq_head.wrapping_sub(consumed) as i32 <= 0 {
            return Err(violated("R13", format!("sq_head {sq_head:#x} cannot be")));
        }
        self.sq_told = sq_head;
        // Or SQ_HEAD has told more.
        self.sq.consumed_to(self.sq.head(), sq_head);
        let found = completion.without_timing();
        if no_echo {
            self.no_echo(&entry, &found)?;
        } else if !entry.sealed {
            return Err(violated("R2", format!("a corrupt slot was executed, {position}")));
        } else if entry.unreadable {
            return Err(violated("R10", "its slot was read with an error, and it was executed".into()));
        } else {
            self.echoed(&entry, &found, tenant)
                .map_err(|violation| violation.at(format!("{:x?}", entry.desc)))?;
            if let Some(groups) = &mut self.groups {
                groups.completed(&entry.desc, completion).map_err(|what| violated("R17", what))?;
            }
        }
        self.settle(position, &entry, completion, tenant, tally);
        Ok(())
    }

    fn settle(
        &mut self,
        position: u32,
        entry: &Entry,
        completion: &HwCompletion,
        tenant: &mut Tenant,
        tally: &mut Tally,
    ) {
        self.entries[position as usize].completed = true;
        self.open.remove(&position);
        if let Some(area) = entry.area {
            self.areas[area as usize] -= 1;
        }
        if entry.desc.opcode == Opcode::Policy as u8 && entry.sealed {
            self.published_version(entry, completion, tenant);
        }
        if completion.status == Status::Error as u8 {
            self.errors_seen += 1;
        } else if entry.desc.opcode == Opcode::Decode as u8 {
            self.tokens_seen += u64::from(completion.final_seq_len - entry.desc.seq_len);
        }
        tally.completed(completion);
    }

    fn published_version(&self, entry: &Entry, completion: &HwCompletion, tenant: &mut Tenant) {
        if self.oracle.error(&entry.desc).is_none() {
            tenant.publishing = false;
            tenant.changes += 1;
            if completion.status == Status::Done as u8 {
                tenant.current = entry.desc.policy_version;
            }
        }
    }

    /// R5 and R7: what this completion must not have passed did not come before it, and does not come behind it.
    fn order(
        &mut self,
        position: u32,
        entry: &Entry,
        completion: &HwCompletion,
        no_echo: bool,
    ) -> Result<(), Violation> {
        // The flags of what is rejected have no effect, and nobody knows those of a slot that could not be read.
        let dma_fault = completion.error == ErrorCode::DmaFault as u8;
        let rejected = no_echo || completion.status == Status::Error as u8 && !dma_fault;
        if let Some((order, by)) = entry.overtaken {
            let (rule, excused) = match order {
                Order::Rollout => ("R5", no_echo),
                Order::IsFence => ("R7", rejected),
                Order::BeforeFence => ("R7", false),
            };
            if !excused {
                let what = format!("descriptor {by} has completed before descriptor {position}");
                return Err(violated(rule, what));
            }
        }
        let fences = |entry: &Entry| entry.sealed && entry.desc.flags & DescFlags::FENCE.bits() != 0;
        let is_fence = fences(entry) && !rejected;
        for &other in self.open.range(..position) {
            let other = &mut self.entries[other as usize];
            let order = if is_fence {
                Order::BeforeFence
            } else if fences(other) {
                Order::IsFence
            } else if other.desc.rollout_id == entry.desc.rollout_id && other.sealed && !no_echo {
                Order::Rollout
            } else {
                continue;
            };
            other.overtaken = other.overtaken.max(Some((order, position)));
        }
        Ok(())
    }

    fn no_echo(&self, entry: &Entry, found: &HwCompletion) -> Result<(), Violation> {
        let expected = if entry.unreadable { ErrorCode::DmaFault } else { ErrorCode::BadCheck };
        let blank = HwCompletion {
            status: Status::Error as u8,
            error: expected as u8,
            flags: CompletionFlags::NO_ECHO.bits(),
            result: found.result,
            ..HwCompletion::default()
        };
        if *found != blank {
            return Err(violated("R10", format!("of a slot that cannot be trusted, expected {blank:x?}")));
        }
        if entry.sealed && !entry.unreadable {
            return Err(violated("R2", format!("a good slot was found corrupt: {:x?}", entry.desc)));
        }
        Ok(())
    }

    /// Of a descriptor whose slot was read.
    fn echoed(&self, entry: &Entry, found: &HwCompletion, tenant: &Tenant) -> Result<(), Violation> {
        let desc = &entry.desc;
        let known = desc.policy_version < tenant.next || desc.policy_version == 0;
        let mut oracle = self.oracle.clone();
        if known {
            oracle = oracle.with_version(desc.policy_version, tenant.salt(desc.policy_version));
        }
        let is = |opcode: Opcode| desc.opcode == opcode as u8;
        let malformed = oracle.error(desc);
        let error = ErrorCode::try_from(found.error);
        let status = Status::try_from(found.status);
        let expect = |expected: HwCompletion, rule: &'static str| {
            let expected = HwCompletion { flags: expected.flags | found.flags & GROUP_DONE, ..expected };
            if *found == expected { Ok(()) } else { Err(violated(rule, format!("expected {expected:x?}"))) }
        };
        if let Some(code) = malformed {
            expect(oracle.answer(desc).completion, "R10")
                .map_err(|violation| violation.at(format!("{code:?}")))?;
            return self.untouched(entry);
        }
        let blank = |error: ErrorCode| HwCompletion {
            user_data: desc.user_data,
            rollout_id: desc.rollout_id,
            final_seq_len: desc.seq_len & doorbell_contract::LENGTH_LIMIT_MAX,
            reward_model_id: desc.reward_model_id,
            status: Status::Error as u8,
            error: error as u8,
            ..HwCompletion::default()
        };
        // Whether the version that it names was resident all the time.
        let settled = entry.changes == Some(tenant.changes);
        if status == Ok(Status::Error) {
            let allowed = match error {
                Ok(ErrorCode::DmaFault) => {
                    let read = self.readbacks_failed && (is(Opcode::Reward) || is(Opcode::Policy));
                    entry.spoilt || read
                }
                Ok(ErrorCode::BadVersion) => !settled && (is(Opcode::Decode) || is(Opcode::Prefill)),
                Ok(ErrorCode::StalePrefix) => {
                    // A prefix turns stale by a publish since the life began.
                    self.changes != Some(tenant.changes)
                        && is(Opcode::Decode)
                        && desc.flags & DescFlags::COW_PREFIX.bits() != 0
                }
                Ok(ErrorCode::PolicyBusy) => is(Opcode::Policy),
                Ok(ErrorCode::BadPolicy) => is(Opcode::Policy) && self.is_bad_policy(desc, tenant),
                _ => false,
            };
            if !allowed {
                return Err(violated("R10", format!("nothing is wrong with it: {error:?}")));
            }
            if error == Ok(ErrorCode::DmaFault) {
                // Its length and digest are those that it reached.
                if is(Opcode::Decode) {
                    let added = found.final_seq_len.wrapping_sub(desc.seq_len);
                    let cut = oracle.cut(desc, added, Status::Stopped);
                    let reached = HwCompletion {
                        status: Status::Error as u8,
                        error: ErrorCode::DmaFault as u8,
                        ..cut.completion
                    };
                    if added > desc.max_tokens {
                        return Err(violated("R10", "it says more tokens than it may add".into()));
                    }
                    let flags = found.flags;
                    return expect(HwCompletion { flags, ..reached }, "R10");
                }
                return expect(HwCompletion { flags: found.flags, ..blank(ErrorCode::DmaFault) }, "R10");
            }
            expect(blank(error.unwrap_or(ErrorCode::None)), "R10")?;
            return self.untouched(entry);
        }
        if entry.spoilt {
            return Err(violated(
                "R10",
                "a write of its tokens was answered with an error, and it says so not".into(),
            ));
        }
        if is(Opcode::Policy) && self.is_bad_policy(desc, tenant) {
            return Err(violated("R19", "a policy that does not belong to it was published".into()));
        }
        if is(Opcode::Reward) {
            let mut tokens = vec![0; desc.max_tokens as usize];
            let at = TOKENS + desc.delta_offset as usize;
            self.memory.load_u32s(at, &mut tokens).map_err(Violation::failure)?;
            return expect(oracle.scored(desc, &tokens).completion, "R6");
        }
        if !is(Opcode::Decode) {
            return expect(oracle.answer(desc).completion, "R6");
        }
        let added = found.final_seq_len.wrapping_sub(desc.seq_len);
        let answer = match status {
            Ok(Status::Stopped) if entry.stoppable || !settled => oracle.cut(desc, added, Status::Stopped),
            Ok(Status::Superseded) if !settled => oracle.cut(desc, added, Status::Superseded),
            _ => oracle.answer(desc),
        };
        expect(answer.completion, "R6")?;
        self.tokens(entry, &answer.tokens, &answer.logps)
    }

    /// Whether a POLICY, which is well formed, is to be refused for its mode or the header that it names.
    fn is_bad_policy(&self, desc: &HwDesc, tenant: &Tenant) -> bool {
        let mut words = [0; 4];
        let at = TOKENS + desc.delta_offset as usize;
        if desc.checkpoint > 2 || self.memory.load_u32s(at, &mut words).is_err() {
            return true;
        }
        words != bytemuck::cast::<HwPolicy, [u32; 4]>(tenant.header(desc.policy_version))
    }

    /// R11: the area of what writes nothing.
    fn untouched(&self, entry: &Entry) -> Result<(), Violation> {
        if entry.desc.opcode == Opcode::Decode as u8 { self.tokens(entry, &[], &[]) } else { Ok(()) }
    }

    /// Holds the area of a DECODE to these tokens and log-probabilities, and to the poison around them.
    fn tokens(&self, entry: &Entry, tokens: &[u32], logps: &[i32]) -> Result<(), Violation> {
        let Some(area) = entry.area.filter(|_| !entry.spoilt) else { return Ok(()) };
        let start = (entry.desc.delta_offset - layout::area(area)) as usize / 4;
        let logps: Vec<u32> = logps.iter().map(|&logp| logp as u32).collect();
        for (region, name, expected) in [(TOKENS, "token", tokens), (LOGPS, "log-probability", &logps)] {
            let words = self.area_words(region, area)?;
            for (k, &word) in words.iter().enumerate() {
                let at = k.checked_sub(start).and_then(|at| expected.get(at));
                match at {
                    Some(&expected) if word != expected => {
                        let number = k - start;
                        let what = format!("{name} {number} is {word:#x} instead of {expected:#x}");
                        return Err(violated("R6", what));
                    }
                    None if word != POISON => {
                        let what = format!("{name} word {k} of area {area} holds {word:#x}, and is not its");
                        return Err(violated("R11", what));
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    fn area_words(&self, region: usize, area: u32) -> Result<[u32; AREA_WORDS as usize], Violation> {
        let mut words = [0; AREA_WORDS as usize];
        let at = region + layout::area(area) as usize;
        self.memory.load_u32s(at, &mut words).map_err(Violation::failure)?;
        Ok(words)
    }

    /// Judges what is left at the end of the life, when nothing more may come.
    pub fn end(
        &mut self,
        ended: Ended,
        error: u32,
        tenant: &mut Tenant,
        tally: &mut Tally,
    ) -> Result<(), Violation> {
        self.reap(u32::MAX, tenant, tally)?;
        let seen = self.cq_seen.wrapping_sub(self.cq_start);
        let missing = self.open.len() as u32;
        let never_read = match ended {
            Ended::Whole => {
                if seen != self.published() {
                    let what =
                        format!("{seen} of {} completions came, and the queue is idle", self.published());
                    return Err(violated("R3", what));
                }
                if missing != self.lost() {
                    let what = format!(
                        "{missing} descriptors have no completion, of which {} got lost",
                        self.lost()
                    );
                    return Err(violated("R3", what));
                }
                self.published()
            }
            Ended::Disabled { sq_head, cq_tail } => {
                let (consumed, written) =
                    (sq_head.wrapping_sub(self.sq_start), cq_tail.wrapping_sub(self.cq_start));
                if written != seen {
                    let what = format!("CQ_TAIL says {written} completions, and {seen} are there");
                    return Err(violated("R12", what));
                }
                if consumed > self.published() || written > consumed {
                    let what = format!(
                        "SQ_HEAD says {consumed} of {} descriptors, CQ_TAIL {written} completions",
                        self.published()
                    );
                    return Err(violated("R12", what));
                }
                consumed
            }
            Ended::Reset => self.published(),
        };
        for (position, entry) in (0..).zip(&self.entries) {
            if entry.completed && position >= never_read {
                return Err(violated(
                    "R12",
                    format!("descriptor {position} has completed above SQ_HEAD {never_read}"),
                ));
            }
            if !entry.completed {
                self.unfinished(entry, position >= never_read, tenant)?;
            }
        }
        let cancelled = missing - self.lost().min(missing);
        tally.cancelled += u64::from(cancelled);
        // The end may come before the device has heard of the last errors.
        let (expected, found) = (self.faults, DeviceFault::from_bits_retain(error));
        let missing = if ended == Ended::Whole { expected - found } else { DeviceFault::empty() };
        if ended != Ended::Reset && (!expected.contains(found) || !missing.is_empty()) {
            let what = format!("ERROR is {found:?}, and the faults were {expected:?}");
            return Err(violated("ERROR", what));
        }
        let policy = |entry: &Entry| entry.sealed && entry.desc.opcode == Opcode::Policy as u8;
        let mut cut = self.entries.iter().filter(|entry| !entry.completed && policy(entry));
        if cut.any(|entry| self.oracle.error(&entry.desc).is_none()) {
            // It may have run.
            tenant.publishing = false;
            tenant.changes += 1;
            tenant.is_current_unknown = true;
        }
        Ok(())
    }

    /// R11, R12: a DECODE without a completion left nothing but tokens of its own, and one that was never read nothing at all.
    fn unfinished(&self, entry: &Entry, never_read: bool, tenant: &Tenant) -> Result<(), Violation> {
        let Some(area) = entry.area.filter(|_| !entry.spoilt && !entry.reads_area && entry.sealed) else {
            return Ok(());
        };
        let version = entry.desc.policy_version;
        let oracle = self.oracle.clone().with_version(version, tenant.salt(version));
        let answer = oracle.answer(&entry.desc);
        let (tokens, logps) = if never_read || entry.unreadable {
            (Vec::new(), Vec::new())
        } else {
            (answer.tokens, answer.logps.iter().map(|&logp| logp as u32).collect())
        };
        let start = (entry.desc.delta_offset - layout::area(area)) as usize / 4;
        for (region, expected) in [(TOKENS, &tokens), (LOGPS, &logps)] {
            for (k, word) in self.area_words(region, area)?.into_iter().enumerate() {
                let own = k.checked_sub(start).and_then(|at| expected.get(at));
                if word != POISON && own != Some(&word) {
                    let what = format!("word {k} of area {area} holds {word:#x}, of {:x?}", entry.desc);
                    return Err(violated("R12", what));
                }
            }
        }
        Ok(())
    }
}

const GROUP_DONE: u8 = CompletionFlags::GROUP_DONE.bits();
