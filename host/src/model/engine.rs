//! What a descriptor means: the checks (R2, R10), and the DECODE engine (R8, R9).

use crate::contract::{
    CHECKPOINT_NEVER, CompletionFlags, DESC_FLAGS_MASK, DIGEST_INIT, DescFlags, ErrorCode, HwCompletion,
    HwDesc, Opcode, PREFIX_NONE, Status,
};
use crate::model::registers::Session;
use crate::policy::{self, Stream};

/// Checks the descriptor found in the slot of `index` in the order of docs/contract.md, "Which error"; the first
/// violation decides. (Number 1 there, DMA_FAULT, is for slots that could not be read.)
#[inline]
pub(super) fn check(desc: &HwDesc, index: u32, session: &Session) -> Result<Opcode, ErrorCode> {
    let flags = DescFlags::from_bits_retain(desc.flags);
    let require = |holds: bool, code: ErrorCode| if holds { Ok(()) } else { Err(code) };

    // 2. R2: torn, stale or corrupt slots are never executed.
    require(desc.verify(index), ErrorCode::BadCheck)?;

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
    require(desc.model_id == 0 && !(scored && desc.reward_model_id != 0), ErrorCode::BadModel)?;

    // 6. A PREFILL adds nothing. In 64 bits the sum does not wrap.
    let added = if decode { u64::from(desc.max_tokens) } else { 0 };
    let fits = u64::from(desc.seq_len) + added <= u64::from(session.length_limit);
    require(fits && !(decode && added == 0), ErrorCode::BadLength)?;

    // 7.
    if decode {
        let aligned = desc.delta_offset % 4 == 0;
        let end = desc.delta_offset.checked_add(4 * added);
        require(aligned && end.is_some_and(|end| end <= session.token_size), ErrorCode::BadRegion)?;
    }
    require(desc.kv_offset == 0 || desc.kv_offset < session.kv_size, ErrorCode::BadRegion)?;

    // 8. Prefix 0 is a prefix like any other.
    let needs_prefix = prefill || flags.contains(DescFlags::COW_PREFIX);
    require(!(needs_prefix && desc.prefix_id == PREFIX_NONE), ErrorCode::BadPrefix)?;
    Ok(opcode)
}

/// The completion of `desc` without tokens. The ring fills in `sq_head` and `phase`; `worker_id` is 0, the only one.
#[inline]
pub(super) fn complete(desc: &HwDesc, status: Status, error: ErrorCode) -> HwCompletion {
    HwCompletion {
        user_data: desc.user_data,
        rollout_id: desc.rollout_id,
        final_seq_len: desc.seq_len,
        reward_model_id: desc.reward_model_id,
        error: error as u8,
        status: status as u8,
        ..HwCompletion::default()
    }
}

/// Where the tokens go.
pub(super) trait TokenSink {
    /// Writes one token at `offset` bytes into the token region; `false` if the memory answers with an error.
    fn write(&mut self, offset: u64, token: u32) -> bool;
}

/// A DECODE that runs.
#[derive(Debug)]
pub(super) struct Decode {
    pub desc: HwDesc,
    stream: Stream,
    /// Tokens so far.
    pub produced: u32,
    digest: u32,
    seen_eos: bool,
    /// Tokens between checkpoints. "Never" needs no case of its own: a budget of as many tokens ends first.
    period: u32,
    /// Tokens at the next checkpoint.
    checkpoint: u32,
}

impl Decode {
    #[inline]
    pub fn new(desc: HwDesc, session: &Session) -> Self {
        let period = match (desc.checkpoint, session.checkpoint_default) {
            (0, 0) => CHECKPOINT_NEVER,
            (0, default) => default,
            (own, _) => own,
        };
        let stream = Stream::new(desc.seed, desc.rollout_id);
        Self { desc, stream, produced: 0, digest: DIGEST_INIT, seen_eos: false, period, checkpoint: period }
    }

    /// Produces up to `budget` tokens; returns the completion if the descriptor has ended. `stop_waits` says whether
    /// the device has come to a STOP of this rollout (R8).
    #[inline]
    pub fn run(
        &mut self,
        budget: u32,
        stop_waits: bool,
        session: &Session,
        sink: &mut impl TokenSink,
    ) -> Option<HwCompletion> {
        let flags = DescFlags::from_bits_retain(self.desc.flags);
        for _ in 0..budget {
            let draw = self.stream.at(self.desc.seq_len + self.produced);
            let token = draw.token();
            if !sink.write(self.desc.delta_offset + 4 * u64::from(self.produced), token) {
                return Some(self.end(Status::Error, ErrorCode::DmaFault, false));
            }
            self.digest = policy::fold(self.digest, token);
            self.produced += 1;

            // "What ends a DECODE": the first that applies decides.
            let eos = draw.is_eos(session.eos_threshold);
            self.seen_eos |= eos;
            if eos && flags.contains(DescFlags::EOS_STOPS) || self.produced == self.desc.max_tokens {
                return Some(self.end(Status::Done, ErrorCode::None, false));
            }
            if stop_waits {
                return Some(self.end(Status::Stopped, ErrorCode::None, false));
            }
            if self.produced == self.checkpoint {
                if !flags.contains(DescFlags::RESIDENT) {
                    return Some(self.end(Status::RewardNeeded, ErrorCode::None, false));
                }
                if policy::score(self.digest) < session.reward_threshold {
                    return Some(self.end(Status::Done, ErrorCode::None, true));
                }
                self.checkpoint = self.checkpoint.saturating_add(self.period);
            }
        }
        None
    }

    #[inline]
    fn end(&self, status: Status, error: ErrorCode, rejected: bool) -> HwCompletion {
        let mut flags = CompletionFlags::empty();
        flags.set(CompletionFlags::EOS, self.seen_eos);
        flags.set(CompletionFlags::REJECTED, rejected);
        HwCompletion {
            final_seq_len: self.desc.seq_len + self.produced,
            result: self.digest,
            flags: flags.bits(),
            ..complete(&self.desc, status, error)
        }
    }
}
