//! What a descriptor's answer must be: a second statement beside the model's, written to be compared with the contract's
//! prose line by line, not to be fast. The conformance suite holds devices to it, and so does the comparison where a STOP
//! lets two of them differ (R8).
//!
//! ```
//! use doorbell_contract::{HwDesc, Status};
//! use doorbell_host::QueueConfig;
//! use doorbell_verify::oracle::Oracle;
//!
//! let oracle = Oracle::new(&QueueConfig::default());
//! let desc = HwDesc::decode(7, 100, 32);
//! let full = oracle.answer(&desc);
//! assert_eq!((full.completion.final_seq_len, full.tokens.len()), (132, 32));
//! let stopped = oracle.stopped(&desc, 5);
//! assert_eq!(stopped.completion.status, Status::Stopped as u8);
//! assert_eq!(stopped.tokens, full.tokens[..5]);
//! ```

use doorbell_contract::{
    CHECKPOINT_NEVER, CompletionFlags, DescFlags, ErrorCode, HwCompletion, HwDesc, LENGTH_LIMIT_MAX, Opcode,
    PREFIX_NONE, Status,
};
use doorbell_engine::{Digest, Engine, RewardModel};
use doorbell_host::config::QueueConfig;

/// What a device must answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The compared fields; the others are 0.
    pub completion: HwCompletion,
    /// The tokens, from `delta_offset` on.
    pub tokens: Vec<u32>,
}

/// Answers descriptors for one configuration.
#[derive(Clone, Debug)]
pub struct Oracle {
    config: QueueConfig,
}

impl Oracle {
    /// The oracle for devices that run under `config`.
    pub fn new(config: &QueueConfig) -> Self {
        Self { config: config.clone() }
    }

    /// The answer to `desc`, sealed for its slot, when no STOP comes.
    pub fn answer(&self, desc: &HwDesc) -> Answer {
        self.answer_to(desc, None)
    }

    /// The answer to `desc`, sealed for its slot, when a STOP of its rollout takes effect once `length` of its tokens are
    /// produced: that of a DECODE that has ended by then is its full one (R8).
    pub fn stopped(&self, desc: &HwDesc, length: u32) -> Answer {
        self.answer_to(desc, Some(length as usize))
    }

    fn answer_to(&self, desc: &HwDesc, stop: Option<usize>) -> Answer {
        if let Some(code) = self.error(desc) {
            return plain(desc, Status::Error, code);
        }
        match (Opcode::try_from(desc.opcode), Engine::of(desc.model_id)) {
            (Ok(Opcode::Decode), Some(engine)) => self.decode(desc, engine, stop),
            (Ok(Opcode::Stop), _) => plain(desc, Status::Stopped, ErrorCode::None),
            _ => plain(desc, Status::Done, ErrorCode::None),
        }
    }

    /// "Which error": the first violation, from BAD_OPCODE on.
    pub fn error(&self, desc: &HwDesc) -> Option<ErrorCode> {
        let opcode = Opcode::try_from(desc.opcode);
        let known = matches!(opcode, Ok(Opcode::Nop | Opcode::Decode | Opcode::Prefill | Opcode::Stop));
        let (decode, prefill) = (opcode == Ok(Opcode::Decode), opcode == Ok(Opcode::Prefill));
        let flag = |flag: DescFlags| desc.flags & flag.bits() != 0;

        let reward = RewardModel::of(desc.reward_model_id);
        let end = u128::from(desc.seq_len) + if decode { u128::from(desc.max_tokens) } else { 0 };
        let delta_end = u128::from(desc.delta_offset) + 4 * u128::from(desc.max_tokens);
        let violations = [
            (ErrorCode::BadOpcode, !known),
            (ErrorCode::ReservedSet, desc.flags >= 0x20 || desc.reserved != 0),
            (ErrorCode::BadModel, (decode || prefill) && Engine::of(desc.model_id).is_none()),
            (ErrorCode::BadModel, decode && flag(DescFlags::RESIDENT) && reward.is_none()),
            (ErrorCode::BadLength, decode && desc.max_tokens == 0),
            (ErrorCode::BadLength, (decode || prefill) && end > u128::from(self.config.length_limit)),
            (ErrorCode::BadRegion, decode && !desc.delta_offset.is_multiple_of(4)),
            (ErrorCode::BadRegion, decode && delta_end > u128::from(self.config.token_bytes)),
            (
                ErrorCode::BadRegion,
                (decode || prefill) && desc.kv_offset != 0 && desc.kv_offset >= self.config.kv_bytes,
            ),
            (
                ErrorCode::BadPrefix,
                (prefill || decode && flag(DescFlags::COW_PREFIX)) && desc.prefix_id == PREFIX_NONE,
            ),
        ];
        violations.into_iter().find(|&(_, violated)| violated).map(|(code, _)| code)
    }

    fn decode(&self, desc: &HwDesc, engine: Engine, stop: Option<usize>) -> Answer {
        let flag = |flag: DescFlags| desc.flags & flag.bits() != 0;
        let mut decoder = engine.begin(desc, self.config.eos_threshold);
        let steps: Vec<_> = (0..desc.max_tokens).map(|_| decoder.step()).collect();
        let is_eos = |k: usize| steps[k].eos;
        // The digest of each length.
        let mut digests = vec![Digest::EMPTY];
        for (k, step) in steps.iter().enumerate() {
            let mut digest = digests[k];
            digest.push(step.token);
            digests.push(digest);
        }

        let period = match if desc.checkpoint == 0 { self.config.checkpoint_default } else { desc.checkpoint }
        {
            0 | CHECKPOINT_NEVER => None,
            period => Some(period as usize),
        };
        let resident = flag(DescFlags::RESIDENT);
        let reward = RewardModel::of(desc.reward_model_id);
        let rejected = |length: usize| {
            reward.is_some_and(|reward| reward.score(digests[length]) < self.config.reward_threshold)
        };

        // Candidates in the order in which they decide at the same length; the smallest length ends the descriptor.
        let budget = steps.len();
        let eos = (0..budget).find(|&k| flag(DescFlags::EOS_STOPS) && is_eos(k)).map(|k| k + 1);
        let checkpoint = match period {
            Some(period) if resident => {
                (1..=budget / period).map(|n| n * period).find(|&length| rejected(length))
            }
            Some(period) if period <= budget => Some(period),
            _ => None,
        };
        let ends = [
            (eos, Status::Done, false),
            (Some(budget), Status::Done, false),
            (stop, Status::Stopped, false),
            (checkpoint, if resident { Status::Done } else { Status::RewardNeeded }, resident),
        ];
        let (length, status, was_rejected) = ends
            .into_iter()
            .filter_map(|(length, status, rejected)| Some((length?, status, rejected)))
            .min_by_key(|&(length, ..)| length)
            .unwrap_or((budget, Status::Done, false));

        let mut flags = CompletionFlags::empty();
        flags.set(CompletionFlags::EOS, (0..length).any(is_eos));
        flags.set(CompletionFlags::REJECTED, was_rejected);
        let tokens = steps[..length].iter().map(|step| step.token).collect();
        let completion = HwCompletion {
            final_seq_len: desc.seq_len + length as u32,
            result: digests[length].value(),
            flags: flags.bits(),
            ..plain(desc, status, ErrorCode::None).completion
        };
        Answer { completion, tokens }
    }
}

fn plain(desc: &HwDesc, status: Status, error: ErrorCode) -> Answer {
    let completion = HwCompletion {
        user_data: desc.user_data,
        rollout_id: desc.rollout_id,
        final_seq_len: desc.seq_len & LENGTH_LIMIT_MAX,
        reward_model_id: desc.reward_model_id,
        status: status as u8,
        error: error as u8,
        ..HwCompletion::default()
    };
    Answer { completion, tokens: Vec::new() }
}
