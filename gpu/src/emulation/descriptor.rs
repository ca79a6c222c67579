//! A descriptor in the hands of a fetch thread: `kernels/descriptor.cuh`, and the classification of
//! `kernels/front_end.cuh`.

use doorbell_contract::{
    CHECKPOINT_NEVER, CompletionFlags, DESC_FLAGS_MASK, DescFlags, ErrorCode, HwCompletion, HwDesc, Opcode,
    PREFIX_NONE, Status,
};
use doorbell_engine::{Digest, Engine, RewardModel, Step};

use super::state::BRIEF;
use crate::mailbox::SessionRegisters;

/// How a descriptor ended; with the descriptor this makes its completion.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outcome {
    pub status: Status,
    pub error: ErrorCode,
    pub flags: CompletionFlags,
    /// Tokens.
    pub added: u32,
    pub result: u32,
}

impl Outcome {
    pub fn ended(status: Status, error: ErrorCode) -> Self {
        Self { status, error, flags: CompletionFlags::empty(), added: 0, result: 0 }
    }

    /// The completion, but for sq_head and phase.
    pub fn completion(&self, desc: &HwDesc) -> HwCompletion {
        HwCompletion {
            user_data: desc.user_data,
            rollout_id: desc.rollout_id,
            final_seq_len: desc.seq_len.wrapping_add(self.added),
            result: self.result,
            reward_model_id: desc.reward_model_id,
            error: self.error as u8,
            flags: self.flags.bits(),
            status: self.status as u8,
            ..HwCompletion::default()
        }
    }
}

/// Whether a descriptor has a flag.
pub(super) fn has(desc: &HwDesc, flag: DescFlags) -> bool {
    desc.flags & flag.bits() != 0
}

/// Tokens between checkpoints. "Never" needs no case of its own: a budget of as many tokens ends first.
pub(super) fn period(checkpoint: u32, default: u32) -> u32 {
    match (checkpoint, default) {
        (0, 0) => CHECKPOINT_NEVER,
        (0, default) => default,
        (own, _) => own,
    }
}

/// 64-byte lines that `count` tokens (at least 1) from `offset` bytes on touch.
pub(super) fn lines_of(offset: u64, count: u32) -> u64 {
    (offset + 4 * u64::from(count) - 4) / 64 - offset / 64 + 1
}

/// The first error in the order of docs/contract.md, "Which error", but for BAD_CHECK.
fn error_of(desc: &HwDesc, config: &SessionRegisters) -> ErrorCode {
    let (decode, prefill) = match Opcode::try_from(desc.opcode) {
        Ok(opcode @ (Opcode::Nop | Opcode::Decode | Opcode::Prefill | Opcode::Stop)) => {
            (opcode == Opcode::Decode, opcode == Opcode::Prefill)
        }
        Ok(Opcode::Reward) | Err(_) => return ErrorCode::BadOpcode,
    };
    if desc.flags & !DESC_FLAGS_MASK != 0 || desc.reserved != 0 {
        return ErrorCode::ReservedSet;
    }
    if !decode && !prefill {
        return ErrorCode::None;
    }
    if desc.model_id != 0 || decode && has(desc, DescFlags::RESIDENT) && desc.reward_model_id != 0 {
        return ErrorCode::BadModel;
    }
    let added = if decode { u64::from(desc.max_tokens) } else { 0 };
    if decode && added == 0 || u64::from(desc.seq_len) + added > u64::from(config.length_limit) {
        return ErrorCode::BadLength;
    }
    if decode {
        let offset = desc.delta_offset;
        // Written so that nothing wraps.
        if !offset.is_multiple_of(4) || offset > config.token_size || 4 * added > config.token_size - offset {
            return ErrorCode::BadRegion;
        }
    }
    if desc.kv_offset != 0 && desc.kv_offset >= config.kv_size {
        return ErrorCode::BadRegion;
    }
    if (prefill || has(desc, DescFlags::COW_PREFIX)) && desc.prefix_id == PREFIX_NONE {
        return ErrorCode::BadPrefix;
    }
    ErrorCode::None
}

/// How a descriptor is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Ends on the spot, without tokens.
    Instant,
    /// STOP.
    Stop,
    /// Short DECODE, run in the turn.
    Brief,
    /// DECODE that goes to a worker.
    Long,
}

/// What a fetch thread has to admit.
#[derive(Clone, Debug)]
pub(super) struct Order {
    pub desc: HwDesc,
    pub kind: Kind,
    pub is_fence: bool,
    /// Of what ends on the spot.
    pub outcome: Outcome,
    /// Of a short DECODE.
    pub tokens: [u32; BRIEF as usize],
    /// Of a long one.
    pub place: u32,
}

impl Order {
    /// Checks the descriptor of slot `index` and decides how it is to be executed. Everything that needs no order
    /// happens here.
    pub fn new(desc: HwDesc, index: u32, config: &SessionRegisters) -> Self {
        let error = if desc.verify(index) { error_of(&desc, config) } else { ErrorCode::BadCheck };
        let mut order = Self {
            desc,
            kind: Kind::Instant,
            is_fence: error == ErrorCode::None && has(&desc, DescFlags::FENCE),
            outcome: Outcome::ended(Status::Error, error),
            tokens: [0; BRIEF as usize],
            place: 0,
        };
        if error != ErrorCode::None {
            return order;
        }
        order.outcome.status = Status::Done;
        if desc.opcode == Opcode::Stop as u8 {
            order.kind = Kind::Stop;
            order.outcome.status = Status::Stopped;
        } else if desc.opcode == Opcode::Decode as u8 {
            order.kind = Kind::Long;
            if desc.max_tokens <= BRIEF && config.wait_states == 0 {
                order.kind = Kind::Brief;
                order.run_brief(config);
            }
        }
        order
    }

    pub fn is_long(&self) -> bool {
        self.kind == Kind::Long
    }

    /// Whether it neither waits for others nor makes them wait.
    pub fn is_usual(&self) -> bool {
        matches!(self.kind, Kind::Instant | Kind::Brief) && !self.is_fence
    }

    /// Runs a short DECODE, but for writing its tokens.
    fn run_brief(&mut self, config: &SessionRegisters) {
        let desc = &self.desc;
        let mut decoder = Engine::Hash.begin(desc, config.eos_threshold);
        let period = period(desc.checkpoint, config.checkpoint_default);
        let (mut digest, mut checkpoint) = (Digest::EMPTY, period);
        let mut flags = CompletionFlags::empty();
        let mut added = 0;
        let status = loop {
            let Step { token, eos } = decoder.step();
            self.tokens[added as usize] = token;
            digest.push(token);
            added += 1;
            flags.set(CompletionFlags::EOS, flags.contains(CompletionFlags::EOS) || eos);
            // The contract's order; no STOP can wait, as nothing comes between.
            if eos && has(desc, DescFlags::EOS_STOPS) || added == desc.max_tokens {
                break Status::Done;
            }
            if added == checkpoint {
                if !has(desc, DescFlags::RESIDENT) {
                    break Status::RewardNeeded;
                }
                if RewardModel::Digest.score(digest) < config.reward_threshold {
                    flags |= CompletionFlags::REJECTED;
                    break Status::Done;
                }
                checkpoint += period;
            }
        };
        self.outcome = Outcome { status, error: ErrorCode::None, flags, added, result: digest.value() };
    }
}
