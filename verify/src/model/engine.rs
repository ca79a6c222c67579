//! What a descriptor means: the checks (R2, R10), and how a DECODE goes and ends (R8, R9) whichever engine runs it.

use doorbell_contract::{
    CHECKPOINT_NEVER, CompletionFlags, DESC_FLAGS_MASK, DescFlags, ErrorCode, HwCompletion, HwDesc,
    LENGTH_LIMIT_MAX, Opcode, PREFIX_NONE, Status,
};
use doorbell_engine::{Decoder, Digest, Engine, RewardModel, Step};
use doorbell_host::memory::BusFault;
use doorbell_host::registers::Session;

/// Checks the descriptor found in the slot of `index` in the order of docs/contract.md, "Which error"; the first
/// violation decides. (Number 1 there, DMA_FAULT, is for slots that could not be read.)
#[inline(always)]
pub(super) fn check(desc: &HwDesc, index: u32, session: &Session) -> Result<Opcode, ErrorCode> {
    let flags = DescFlags::from_bits_retain(desc.flags);
    let require = |holds: bool, code: ErrorCode| if holds { Ok(()) } else { Err(code) };

    // 2. R2: torn, stale or corrupt slots are never executed.
    require(desc.verify(&session.sq_key, index), ErrorCode::BadCheck)?;

    // 3. The model's CAPABILITY has PREFILL and RESIDENT, not REWARD.
    let opcode = match Opcode::try_from(desc.opcode) {
        Ok(Opcode::Reward) | Err(_) => return Err(ErrorCode::BadOpcode),
        Ok(opcode) => opcode,
    };

    // 4.
    require(desc.flags & !DESC_FLAGS_MASK == 0 && desc.reserved == 0, ErrorCode::ReservedSet)?;

    let decode = opcode == Opcode::Decode;
    let prefill = opcode == Opcode::Prefill;
    if !(decode || prefill) {
        return Ok(opcode);
    }

    // 5.
    let scored = decode && flags.contains(DescFlags::RESIDENT);
    let unscored = scored && RewardModel::of(desc.reward_model_id).is_none();
    require(Engine::of(desc.model_id).is_some() && !unscored, ErrorCode::BadModel)?;

    // 6. A PREFILL adds nothing. In 64 bits the sum does not wrap.
    let added = if decode { u64::from(desc.max_tokens) } else { 0 };
    let fits = u64::from(desc.seq_len) + added <= u64::from(session.length_limit);
    require(fits && !(decode && added == 0), ErrorCode::BadLength)?;

    // 7.
    if decode {
        let aligned = desc.delta_offset.is_multiple_of(4);
        let end = desc.delta_offset.checked_add(4 * added);
        require(aligned && end.is_some_and(|end| end <= session.token_size), ErrorCode::BadRegion)?;
    }
    require(desc.kv_offset == 0 || desc.kv_offset < session.kv_size, ErrorCode::BadRegion)?;

    // 8. Prefix 0 is a prefix like any other.
    let needs_prefix = prefill || flags.contains(DescFlags::COW_PREFIX);
    require(!(needs_prefix && desc.prefix_id == PREFIX_NONE), ErrorCode::BadPrefix)?;
    Ok(opcode)
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
    /// Tokens so far.
    pub produced: u32,
    digest: Digest,
    seen_eos: bool,
    /// Tokens between checkpoints. "Never" needs no case of its own: a budget of as many tokens ends first.
    period: u32,
    /// Tokens at the next checkpoint.
    checkpoint: u32,
}

impl Decode {
    #[inline]
    pub fn new(engine: Engine, desc: &HwDesc, session: &Session) -> Self {
        let period = match (desc.checkpoint, session.checkpoint_default) {
            (0, 0) => CHECKPOINT_NEVER,
            (0, default) => default,
            (own, _) => own,
        };
        let decoder = engine.begin(desc, session.eos_threshold);
        Self { decoder, produced: 0, digest: Digest::EMPTY, seen_eos: false, period, checkpoint: period }
    }

    /// Produces up to `budget` tokens of `desc`; `None` if it has not ended by then. `stop_waits` says whether the
    /// device has come to a STOP of this rollout (R8); `write` stores a token at its offset in the token region.
    #[inline(always)]
    pub fn run(
        &mut self,
        desc: &HwDesc,
        budget: u32,
        stop_waits: bool,
        session: &Session,
        mut write: impl FnMut(u64, u32) -> Result<(), BusFault>,
    ) -> Option<Outcome> {
        let flags = DescFlags::from_bits_retain(desc.flags);
        for _ in 0..budget {
            let Step { token, eos } = self.decoder.step();
            if write(desc.delta_offset + 4 * u64::from(self.produced), token).is_err() {
                return Some(Outcome { error: ErrorCode::DmaFault, ..self.end(Status::Error) });
            }
            self.digest.push(token);
            self.produced += 1;

            // "What ends a DECODE": the first that applies decides.
            self.seen_eos |= eos;
            if eos && flags.contains(DescFlags::EOS_STOPS) || self.produced == desc.max_tokens {
                return Some(self.end(Status::Done));
            }
            if stop_waits {
                return Some(self.end(Status::Stopped));
            }
            if self.produced == self.checkpoint {
                if !flags.contains(DescFlags::RESIDENT) {
                    return Some(self.end(Status::RewardNeeded));
                }
                let reward = RewardModel::of(desc.reward_model_id);
                if reward.is_some_and(|reward| reward.score(self.digest) < session.reward_threshold) {
                    let done = self.end(Status::Done);
                    return Some(Outcome { flags: done.flags | CompletionFlags::REJECTED, ..done });
                }
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
