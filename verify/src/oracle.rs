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
//! let stopped = oracle.cut(&desc, 5, Status::Stopped);
//! assert_eq!(stopped.completion.status, Status::Stopped as u8);
//! assert_eq!(stopped.tokens, full.tokens[..5]);
//! ```

use doorbell_contract::{
    ARENAS, CHECKPOINT_NEVER, Capability, CompletionFlags, DescFlags, ErrorCode, HwCompletion, HwDesc,
    LENGTH_LIMIT_MAX, MEMBERS_MAX, Opcode, PREFIX_NONE, Status,
};
use doorbell_engine::{Digest, Engine, RewardModel, Step};
use doorbell_host::config::QueueConfig;
use doorbell_host::device::Features;

/// What a device must answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The compared fields; the others are 0.
    pub completion: HwCompletion,
    /// The tokens, from `delta_offset` on.
    pub tokens: Vec<u32>,
    /// With LOGP, their log-probabilities, from there on in their region.
    pub logps: Vec<i32>,
}

/// Everything that the contract has.
const EVERYTHING: Features = Features {
    capability: Capability::all(),
    groups: 64,
    policy_slots: 2,
    engines: Engine::ALL.len() as u32,
    reward_models: RewardModel::ALL.len() as u32,
    tick_hz: 0,
};

/// Answers descriptors for one configuration, each as if no other were there: of groups it knows nothing but what one
/// descriptor alone gets wrong.
#[derive(Clone, Debug)]
pub struct Oracle {
    config: QueueConfig,
    features: Features,
    /// Those that are resident (R18).
    versions: Vec<Version>,
}

/// A version of the policy.
#[derive(Clone, Copy, Debug)]
struct Version {
    number: u16,
    /// The engine that it is of (R25).
    engine: u16,
    salt: u32,
    /// Of engine 1: its longest sequence.
    positions: u32,
}

impl Oracle {
    /// The oracle for devices that have everything and run under `config`, with version 0 alone.
    pub fn new(config: &QueueConfig) -> Self {
        Self {
            config: config.clone(),
            features: EVERYTHING,
            versions: vec![Version { number: 0, engine: 0, salt: 0, positions: 0 }],
        }
    }

    /// The same for devices that have no more than these.
    #[must_use]
    pub fn with_features(self, features: Features) -> Self {
        Self { features, ..self }
    }

    /// With another version resident.
    #[must_use]
    pub fn with_version(self, version: u16, salt: u32) -> Self {
        self.with(Version { number: version, engine: 0, salt, positions: 0 })
    }

    /// With another version of engine 1 resident, whose sequences have so many positions at most.
    #[must_use]
    pub fn with_language(self, version: u16, positions: u32) -> Self {
        self.with(Version { number: version, engine: 1, salt: 0, positions })
    }

    fn with(mut self, version: Version) -> Self {
        self.versions.retain(|other| other.number != version.number);
        self.versions.push(version);
        self
    }

    /// With no version resident, version 0 included.
    #[must_use]
    pub fn without_versions(self) -> Self {
        Self { versions: Vec::new(), ..self }
    }

    fn version(&self, number: u16) -> Option<&Version> {
        self.versions.iter().find(|version| version.number == number)
    }

    /// The answer to `desc`, sealed for its slot, when no STOP comes and its version stays. Of a REWARD, that of one whose tokens
    /// are 0; [`scored`](Self::scored) knows them. Of a DECODE of engine 1 that of one without tokens; [`stepped`](Self::stepped) knows them.
    pub fn answer(&self, desc: &HwDesc) -> Answer {
        self.answer_to(desc, None)
    }

    /// The answer to `desc`, sealed for its slot, when something ends it as `status` once `length` of its tokens are produced: a
    /// STOP (R8), or that its version is retired (R20). That of a DECODE that has ended by then is its full one.
    pub fn cut(&self, desc: &HwDesc, length: u32, status: Status) -> Answer {
        self.answer_to(desc, Some((length as usize, status)))
    }

    /// The answer to `desc`, a REWARD, sealed for its slot, when these are the tokens in memory.
    pub fn scored(&self, desc: &HwDesc, tokens: &[u32]) -> Answer {
        let answer = self.answer(desc);
        match RewardModel::of(desc.reward_model_id) {
            Some(model) if answer.completion.status == Status::Scored as u8 => {
                let result = model.score(tokens.iter().copied(), &self.config.ranges) as u32;
                Answer { completion: HwCompletion { result, ..answer.completion }, ..answer }
            }
            _ => answer,
        }
    }

    /// The answer to `desc`, a DECODE of engine 1, sealed for its slot, whose full answer is made in these steps; `cut` as
    /// [`cut`](Self::cut) has it.
    pub fn stepped(&self, desc: &HwDesc, steps: &[Step], cut: Option<(u32, Status)>) -> Answer {
        match self.error(desc) {
            Some(code) => plain(desc, Status::Error, code),
            None => self.decode(desc, steps, cut.map(|(length, status)| (length as usize, status))),
        }
    }

    fn answer_to(&self, desc: &HwDesc, cut: Option<(usize, Status)>) -> Answer {
        if let Some(code) = self.error(desc) {
            return plain(desc, Status::Error, code);
        }
        match (Opcode::try_from(desc.opcode), Engine::of(desc.model_id)) {
            (Ok(Opcode::Decode), Some(engine)) => {
                let salt = self.version(desc.policy_version).map_or(0, |version| version.salt);
                let steps = engine
                    .begin(desc, salt, self.config.eos_threshold)
                    .map_or(vec![], |mut decoder| (0..desc.max_tokens).map(|_| decoder.step()).collect());
                self.decode(desc, &steps, cut)
            }
            (Ok(Opcode::Stop), _) => plain(desc, Status::Stopped, ErrorCode::None),
            (Ok(Opcode::Reward), _) => {
                let zeros = std::iter::repeat_n(0, desc.max_tokens as usize);
                let score = RewardModel::of(desc.reward_model_id)
                    .map_or(0, |model| model.score(zeros, &self.config.ranges));
                let plain = plain(desc, Status::Scored, ErrorCode::None);
                Answer { completion: HwCompletion { result: score as u32, ..plain.completion }, ..plain }
            }
            _ => plain(desc, Status::Done, ErrorCode::None),
        }
    }

    /// "Which error": the first violation, from BAD_OPCODE to BAD_VERSION.
    pub fn error(&self, desc: &HwDesc) -> Option<ErrorCode> {
        let opcode = Opcode::try_from(desc.opcode);
        let is = |one: Opcode| opcode == Ok(one);
        let has = |feature: Capability| self.features.capability.contains(feature);
        let (decode, prefill, stop) = (is(Opcode::Decode), is(Opcode::Prefill), is(Opcode::Stop));
        let (reward, policy) = (is(Opcode::Reward), is(Opcode::Policy));
        let absent = reward && !has(Capability::REWARD) || policy && !has(Capability::POLICY);
        let flag = |flag: DescFlags| desc.flags & flag.bits() != 0;
        let engine = Engine::of(desc.model_id).filter(|_| u32::from(desc.model_id) < self.features.engines);
        let language = engine == Some(Engine::Language) && (decode || prefill);
        let version = self.version(desc.policy_version).filter(|_| decode || prefill);

        let resident = decode && flag(DescFlags::RESIDENT);
        let limit = u128::from(self.config.length_limit);
        let end = u128::from(desc.seq_len) + if decode { u128::from(desc.max_tokens) } else { 0 };
        let delta_end = u128::from(desc.delta_offset) + 4 * u128::from(desc.max_tokens);
        let violations = [
            (ErrorCode::BadOpcode, opcode.is_err() || absent),
            (ErrorCode::ReservedSet, desc.flags >= 0x40),
            (ErrorCode::ReservedSet, flag(DescFlags::RESIDENT) && !has(Capability::RESIDENT)),
            (ErrorCode::ReservedSet, flag(DescFlags::LOGP) && !has(Capability::LOGP)),
            (ErrorCode::BadModel, (decode || prefill || policy) && engine.is_none()),
            (ErrorCode::BadModel, resident && desc.reward_model_id != 0),
            (ErrorCode::BadModel, reward && u32::from(desc.reward_model_id) >= self.features.reward_models),
            (ErrorCode::BadLength, (decode || reward) && desc.max_tokens == 0),
            (ErrorCode::BadLength, (decode || prefill) && end > limit),
            (ErrorCode::BadLength, reward && u128::from(desc.max_tokens) > limit),
            (ErrorCode::BadLength, prefill && desc.max_tokens > MEMBERS_MAX),
            (ErrorCode::BadLength, language && desc.seq_len == 0),
            (ErrorCode::BadRegion, (decode || reward) && !desc.delta_offset.is_multiple_of(4)),
            (ErrorCode::BadRegion, (decode || reward) && delta_end > u128::from(self.config.token_bytes)),
            (
                ErrorCode::BadRegion,
                decode && flag(DescFlags::LOGP) && delta_end > u128::from(self.config.logp_bytes),
            ),
            (ErrorCode::BadRegion, policy && !desc.delta_offset.is_multiple_of(64)),
            (
                ErrorCode::BadRegion,
                policy
                    && u128::from(desc.delta_offset) + if desc.model_id == 1 { 128 } else { 64 }
                        > u128::from(self.config.token_bytes),
            ),
            (
                ErrorCode::BadRegion,
                (decode || prefill) && desc.kv_offset != 0 && desc.kv_offset >= self.config.kv_bytes,
            ),
            (ErrorCode::BadRegion, language && !desc.kv_offset.is_multiple_of(64)),
            (
                ErrorCode::BadRegion,
                language && u128::from(desc.kv_offset) + 64 > u128::from(self.config.kv_bytes),
            ),
            (ErrorCode::BadRegion, language && u32::from(desc.kv_arena_id) >= ARENAS),
            (ErrorCode::BadRegion, language && decode && desc.delta_offset == 0),
            (
                ErrorCode::BadPrefix,
                (prefill || (decode || stop) && flag(DescFlags::COW_PREFIX)) && desc.prefix_id == PREFIX_NONE,
            ),
            (ErrorCode::BadVersion, (decode || prefill) && version.is_none()),
            (ErrorCode::BadModel, version.is_some_and(|version| version.engine != desc.model_id)),
            (
                ErrorCode::BadLength,
                language && version.is_some_and(|version| end > u128::from(version.positions)),
            ),
            (ErrorCode::GroupFull, prefill && desc.max_tokens > 0 && self.features.groups == 0),
        ];
        violations.into_iter().find(|&(_, violated)| violated).map(|(code, _)| code)
    }

    fn decode(&self, desc: &HwDesc, steps: &[Step], cut: Option<(usize, Status)>) -> Answer {
        let flag = |flag: DescFlags| desc.flags & flag.bits() != 0;
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
        // Of the tokens since the checkpoint before (R9).
        let rejected = |length: usize, period: usize| {
            let since: Vec<u32> = steps[length - period..length].iter().map(|step| step.token).collect();
            Digest::of(&since).score() < self.config.reward_threshold
        };

        // Candidates in the order in which they decide at the same length; the smallest length ends the descriptor.
        let budget = steps.len();
        let eos = (0..budget).find(|&k| flag(DescFlags::EOS_STOPS) && is_eos(k)).map(|k| k + 1);
        let checkpoint = match period {
            Some(period) if resident => {
                (1..=budget / period).map(|n| n * period).find(|&length| rejected(length, period))
            }
            Some(period) if period <= budget => Some(period),
            _ => None,
        };
        // A RESIDENT one that has begun is superseded at a checkpoint at which its score lets it go on.
        let (mut stop, mut superseded, mut passed) = (None, None, None);
        match cut {
            Some((length, Status::Superseded)) if resident && length > 0 => {
                passed = period.filter(|period| length % period == 0).map(|_| length);
            }
            Some((length, Status::Superseded)) => superseded = Some(length),
            Some((length, _)) => stop = Some(length),
            None => {}
        }
        let ends = [
            (eos, Status::Done, false),
            (Some(budget), Status::Done, false),
            (stop, Status::Stopped, false),
            (superseded, Status::Superseded, false),
            (checkpoint, if resident { Status::Done } else { Status::RewardNeeded }, resident),
            (passed, Status::Superseded, false),
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
        let with_logps = if flag(DescFlags::LOGP) { length } else { 0 };
        let logps = steps[..with_logps].iter().map(|step| step.logp).collect();
        let completion = HwCompletion {
            final_seq_len: desc.seq_len + length as u32,
            result: digests[length].value(),
            flags: flags.bits(),
            ..plain(desc, status, ErrorCode::None).completion
        };
        Answer { completion, tokens, logps }
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
    Answer { completion, tokens: Vec::new(), logps: Vec::new() }
}
