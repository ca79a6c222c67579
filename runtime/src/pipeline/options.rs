//! How a pipeline is set up.

use std::time::Duration;

use doorbell_contract::{BLOCK_TOKENS, HwImage, HwPolicy, VOCAB_BITS};
use doorbell_host::language::sequence_bytes;

use super::RuntimeError;
use super::language::Language;
use crate::rollout::State;

const _: () = assert!(VOCAB_BITS <= 32, "a token is one u32 in the token region");

/// Token areas begin at multiples of this many bytes, the width of a device's write.
const AREA_ALIGN: u64 = 64;
/// Where a policy's header lies in the token region is a multiple of this too, and so long is the block that a device may read.
const POLICY_BYTES: u64 = 64;
const _: () =
    assert!(size_of::<HwPolicy>() as u64 <= POLICY_BYTES && AREA_ALIGN.is_multiple_of(POLICY_BYTES));
/// Behind it, of engine 1, the record of an image.
const IMAGE_BYTES: u64 = size_of::<HwImage>() as u64;
/// With engine 1 an area begins with a line whose last word is the prompt's last token (R27).
const LEAD_BYTES: u64 = AREA_ALIGN;

/// Who scores answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scoring {
    /// The reward stage: at each checkpoint the DECODE ends as REWARD_NEEDED and the stage says how it goes on (R9), by judges
    /// of the host or by REWARD descriptors.
    Stage,
    /// The device by itself: descriptors are RESIDENT, and one completion ends the rollout. The score is that of the digest
    /// (reward model 0).
    Resident,
}

/// Rollouts that a stage may hold before admission waits. They limit only admission: an admitted rollout moves on,
/// whatever they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credits([u32; State::ALL.len()]);

impl Credits {
    /// `limit` for each stage.
    pub fn new(limit: u32) -> Credits {
        Credits([limit; State::ALL.len()])
    }

    /// With `limit` for the rollouts in `stage`. That of [`State::Free`] means nothing.
    #[must_use]
    pub fn with(mut self, stage: State, limit: u32) -> Credits {
        self.0[stage as usize] = limit;
        self
    }

    /// The limit of `stage`.
    #[inline]
    pub fn limit(&self, stage: State) -> u32 {
        self.0[stage as usize]
    }
}

/// How a [`Pipeline`](super::Pipeline) is set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Rollouts that are under way at a time, at least `group`.
    pub slots: u32,
    /// Rollouts per request, at least 1; a request may ask for fewer by its [`Terms`](super::Terms). With more than one, a PREFILL registers the prompt first.
    pub group: u32,
    /// Tokens between checkpoints; 0 is never.
    pub checkpoint: u32,
    /// Who scores.
    pub scoring: Scoring,
    /// Whether an end of sequence ends a rollout.
    pub eos_stops: bool,
    /// Seed of the sampling policy.
    pub seed: u32,
    /// Longest answer, in tokens: every slot has an area of the token region for one.
    pub max_output_tokens: u32,
    /// `LENGTH_LIMIT` of the device, in tokens.
    pub length_limit: u32,
    /// Rollouts that each stage may hold.
    pub credits: Credits,
    /// Descriptors in flight on the device at most; 0 is as many as its queue takes.
    pub in_flight: usize,
    /// Descriptors that must be ready before the doorbell is rung, while the device has enough to do.
    pub window: usize,
    /// Every how many rollouts one is aborted as soon as it decodes, to exercise aborts; 0 is none.
    pub abort_every: u32,
    /// Whether the final answers of a group are judged together, once the group has ended, by one judge in one call where judges do
    /// it, and trajectories tell what each is worth in it.
    pub judge_group: bool,
    /// Whether log-probabilities of the tokens are asked for, where the device gives them.
    pub logprobs: bool,
    /// Whether requests may have the tokens of their prompts scored: then the log-probability region has room beside the prompts
    /// too ([`Options::prompt_offset`]).
    pub scores_prompts: bool,
    /// How many versions of the policy the oldest token of a trajectory may lie back, below 2^15 (R22); `None` is any number.
    pub max_staleness: Option<u32>,
    /// Whether the hot thread sleeps until the device interrupts it, instead of looking, while nothing moves. For devices that run by themselves,
    /// and that are set to interrupt: for each completion, or a number of them (COALESCE_COUNT), or for those that ask.
    pub sleeps: bool,
    /// How often an answer is judged anew, by another judge where there is one, before its rollout fails.
    pub judge_retries: u32,
    /// Rollouts that may fail before the run ends with an error; `None` is any number.
    pub max_failures: Option<u64>,
    /// How long the run may go on without anything moving (R15): no submission, completion, verdict or stored answer, and on the device no
    /// token. While answers are with judges, [`RewardStage::deadline`](super::RewardStage::deadline) is added. A PREFILL moves once, at its end.
    pub patience: Duration,
    /// The language model that rollouts run; `None` is engine 0.
    pub language: Option<Language>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            slots: 1024,
            group: 1,
            checkpoint: 0,
            scoring: Scoring::Stage,
            eos_stops: false,
            seed: 0,
            max_output_tokens: 2048,
            length_limit: 1 << 20,
            credits: Credits::new(1024),
            in_flight: 0,
            window: 16,
            abort_every: 0,
            judge_group: false,
            logprobs: false,
            scores_prompts: false,
            max_staleness: None,
            sleeps: false,
            judge_retries: 1,
            max_failures: None,
            patience: Duration::from_secs(60),
            language: None,
        }
    }
}

impl Options {
    /// Bytes of one slot's area of the token region.
    pub fn area_bytes(&self) -> u64 {
        self.lead_bytes() + (4 * u64::from(self.max_output_tokens)).next_multiple_of(AREA_ALIGN)
    }

    fn lead_bytes(&self) -> u64 {
        if self.language.is_some() { LEAD_BYTES } else { 0 }
    }

    /// Where in the token region the answer of the rollout in `slot` begins.
    pub fn answer_offset(&self, slot: u32) -> u64 {
        u64::from(slot) * self.area_bytes() + self.lead_bytes()
    }

    /// Bytes of token region that the device needs: an area for each slot, behind them the header of a policy, and of engine 1 the
    /// prompts.
    pub fn token_bytes(&self) -> u64 {
        match self.language {
            None => self.policy_offset() + POLICY_BYTES,
            Some(_) => self.prompt_offset(self.slots),
        }
    }

    /// Bytes of KV region that the device needs: of engine 1 a record and a block table for each rollout and each group.
    pub fn kv_bytes(&self) -> u64 {
        if self.language.is_some() { self.sequence_offset(2 * self.slots) } else { 0 }
    }

    /// Where in the KV region the sequence of the rollout in `slot` lies (R26).
    pub fn sequence_offset(&self, slot: u32) -> u64 {
        u64::from(slot) * sequence_bytes(self.longest_table())
    }

    /// Blocks of the longest sequence.
    pub(super) fn longest_table(&self) -> u64 {
        let prompt = self.language.map_or(0, |language| language.max_prompt_tokens);
        (u64::from(prompt) + u64::from(self.max_output_tokens)).div_ceil(BLOCK_TOKENS.into())
    }

    /// Bytes of the keys and values of the longest sequence, of engine 1 ([`QueueConfig::sequence_bytes`](doorbell_host::QueueConfig::sequence_bytes)).
    pub fn sequence_bytes(&self) -> u64 {
        self.language.map_or(0, |language| {
            let most = u64::from(language.positions).div_ceil(BLOCK_TOKENS.into());
            self.longest_table().min(most) * language.block_bytes
        })
    }

    /// Where in the token region the prompt of a group lies, of engine 1. In the log-probability region the log-probability of each
    /// token but the first lies there, if the prompt was scored.
    pub fn prompt_offset(&self, group: u32) -> u64 {
        let longest = self.language.map_or(0, |language| language.max_prompt_tokens);
        let each = (4 * u64::from(longest)).next_multiple_of(AREA_ALIGN);
        self.policy_offset() + POLICY_BYTES + IMAGE_BYTES + u64::from(group) * each
    }

    /// Bytes of log-probability region that the device needs; 0 if none are asked for.
    pub fn logp_bytes(&self) -> u64 {
        match (self.logprobs, self.scores_prompts) {
            (_, true) => self.token_bytes(),
            (true, false) => self.policy_offset(),
            (false, false) => 0,
        }
    }

    /// Where in the token region the header of a policy lies, for the device to read.
    pub(super) fn policy_offset(&self) -> u64 {
        u64::from(self.slots) * self.area_bytes()
    }

    /// Device-side ids that a request takes with so many rollouts: theirs, and its PREFILL's if there is one.
    pub(super) fn ids_of(&self, members: u32) -> u32 {
        members.saturating_add(u32::from(self.has_prefills()))
    }

    /// Whether each request begins with a PREFILL.
    pub(super) fn has_prefills(&self) -> bool {
        self.group > 1 || self.language.is_some()
    }

    /// Checks every value, as [`Pipeline::new`](super::Pipeline::new) does.
    ///
    /// # Errors
    /// `Options` for an invalid value.
    pub fn check(&self) -> Result<(), RuntimeError> {
        let bad = |field, value: u64, expected: String| Err(RuntimeError::Options { field, value, expected });
        if self.group == 0 {
            return bad("group", 0, "at least 1".into());
        }
        if self.slots < self.group || self.slots > 1 << 24 {
            let expected = format!("at least {}, the size of a group, and at most 2^24", self.group);
            return bad("slots", self.slots.into(), expected);
        }
        if self.max_output_tokens == 0 {
            return bad("max_output_tokens", 0, "at least 1".into());
        }
        if self.scoring == Scoring::Resident && self.checkpoint == 0 {
            return bad(
                "checkpoint",
                0,
                "at least 1 if the device scores by itself (RESIDENT), which it does at checkpoints".into(),
            );
        }
        if self.scoring == Scoring::Resident && self.judge_group {
            return bad(
                "judge_group",
                1,
                "0 if the device scores by itself (RESIDENT): the reward stage does not have the answers"
                    .into(),
            );
        }
        if let Some(limit) = self.max_staleness.filter(|&limit| limit >= 1 << 15) {
            return bad("max_staleness", limit.into(), "below 2^15, as versions have 16 bits (R22)".into());
        }
        for stage in State::ALL.into_iter().filter(|&stage| stage != State::Free) {
            let limit = self.credits.limit(stage);
            if limit < self.group {
                let expected = format!("at least {}, or no group is ever admitted", self.group);
                return bad("credits", limit.into(), expected);
            }
        }
        Ok(())
    }
}
