//! What a descriptor means: the checks (R2, R10), and how a DECODE goes and ends (R8, R9) whichever engine runs it.

use doorbell_contract::{
    CHECKPOINT_NEVER, CompletionFlags, DESC_FLAGS_MASK, DescFlags, ErrorCode, HwCompletion, HwDesc, HwPolicy,
    LENGTH_LIMIT_MAX, MEMBERS_MAX, Opcode, PREFIX_NONE, Status,
};
use doorbell_engine::{Decoder, Digest, Engine, RewardModel, Step};
use doorbell_host::memory::BusFault;
use doorbell_host::registers::Session;

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
    match opcode {
        Opcode::Decode => {
            let unscored = flags.contains(DescFlags::RESIDENT)
                && !RewardModel::of(desc.reward_model_id).is_some_and(RewardModel::is_resident);
            require(Engine::of(desc.model_id).is_some() && !unscored, ErrorCode::BadModel)?;
            // In 64 bits the sum does not wrap.
            let fits = u64::from(desc.seq_len) + tokens <= u64::from(session.length_limit);
            require(fits && tokens > 0, ErrorCode::BadLength)?;
            let mut size = session.token_size;
            if flags.contains(DescFlags::LOGP) {
                size = size.min(session.logp_size);
            }
            require(lies(4 * tokens, 4, size), ErrorCode::BadRegion)?;
            require(desc.kv_offset == 0 || desc.kv_offset < session.kv_size, ErrorCode::BadRegion)?;
        }
        Opcode::Prefill => {
            require(Engine::of(desc.model_id).is_some(), ErrorCode::BadModel)?;
            let fits = desc.seq_len <= session.length_limit && desc.max_tokens <= MEMBERS_MAX;
            require(fits, ErrorCode::BadLength)?;
            require(desc.kv_offset == 0 || desc.kv_offset < session.kv_size, ErrorCode::BadRegion)?;
        }
        Opcode::Reward => {
            require(RewardModel::of(desc.reward_model_id).is_some(), ErrorCode::BadModel)?;
            let fits = (1..=session.length_limit).contains(&desc.max_tokens);
            require(fits, ErrorCode::BadLength)?;
            require(lies(4 * tokens, 4, session.token_size), ErrorCode::BadRegion)?;
        }
        Opcode::Policy => {
            require(Engine::of(desc.model_id).is_some(), ErrorCode::BadModel)?;
            require(lies(64, 64, session.token_size), ErrorCode::BadRegion)?;
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
    header.verify()
        && header.version == desc.policy_version
        && header.model_id == desc.model_id
        && header.length == 0
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

/// State of a DECODE that runs.
#[derive(Debug)]
pub(super) struct Decode {
    decoder: Decoder,
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
    pub fn new(engine: Engine, desc: &HwDesc, session: &Session, slot: usize, salt: u32) -> Self {
        let period = match (desc.checkpoint, session.checkpoint_default) {
            (0, 0) => CHECKPOINT_NEVER,
            (0, default) => default,
            (own, _) => own,
        };
        let decoder = engine.begin(desc, salt, session.eos_threshold);
        let digest = Digest::EMPTY;
        Self {
            decoder,
            slot,
            produced: 0,
            digest,
            since: digest,
            seen_eos: false,
            period,
            checkpoint: period,
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
        mut write: impl FnMut(u64, u32, i32) -> Result<(), BusFault>,
    ) -> Option<Outcome> {
        let flags = DescFlags::from_bits_retain(desc.flags);
        let resident = flags.contains(DescFlags::RESIDENT);
        let superseded = cut == Some(Status::Superseded);
        for _ in 0..budget {
            let Step { token, eos, logp } = self.decoder.step();
            if write(desc.delta_offset + 4 * u64::from(self.produced), token, logp).is_err() {
                return Some(Outcome { error: ErrorCode::DmaFault, ..self.end(Status::Error) });
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

    #[inline(always)]
    fn end(&self, status: Status) -> Outcome {
        let flags = if self.seen_eos { CompletionFlags::EOS } else { CompletionFlags::empty() };
        Outcome { status, error: ErrorCode::None, flags, added: self.produced, result: self.digest.value() }
    }
}
