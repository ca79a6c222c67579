//! What a replay submits: every descriptor, as a pure function of trace and options.

use std::ops::Range;
use std::sync::Arc;

use doorbell_contract::{
    CHECKPOINT_NEVER, DescFlags, HwCompletion, HwDesc, HwPolicy, MEMBER_NONE, MEMBERS_MAX, Opcode,
    PolicyMode, Status, mix,
};
use doorbell_host::config::QueueConfig;
use doorbell_trace::{Request, Trace};

use super::language::{Extent, LEAD, Language, Places};

/// How a trace becomes descriptors. The default is one uncut rollout per request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayOptions {
    /// Rollouts per request, at least 1. With more than one, a PREFILL registers the prompt first and its rollouts
    /// carry COW_PREFIX; up to [`MEMBERS_MAX`] it opens their group (R17), on devices that have groups.
    pub group: u32,
    /// Tokens between checkpoints (R9); 0 is never.
    pub checkpoint: u32,
    /// Whether the device scores checkpoints itself (flag RESIDENT).
    pub resident: bool,
    /// `REWARD_THRESHOLD` of the devices, Q16.16: the score below which a RESIDENT rollout ends.
    pub reward_threshold: i32,
    /// `EOS_THRESHOLD` of the devices, in 1/32768 per token; above 0, DECODEs carry EOS_STOPS.
    pub eos_threshold: u16,
    /// Every how many rollouts one gets a STOP (R8); 0 is none.
    pub stop_every: u32,
    /// Every how many requests one gets a STOP of its whole group behind the first DECODEs of its rollouts; 0 is none.
    pub stop_group_every: u32,
    /// After how many completions, but for SUPERSEDED ones, the next version of the policy is published (R19); 0 is never.
    pub publish_every: u64,
    /// What becomes of the version before (R20). With groups, KEEP alone: with the others their prefixes turn stale (R21).
    pub publish_mode: PolicyMode,
    /// Requests to take from the start of the trace.
    pub limit: usize,
    /// Seed of the sampling policy.
    pub seed: u32,
    /// `LENGTH_LIMIT` of the devices, in tokens.
    pub length_limit: u32,
}

impl Default for ReplayOptions {
    fn default() -> Self {
        Self {
            group: 1,
            checkpoint: 0,
            resident: false,
            reward_threshold: 0,
            eos_threshold: 0,
            stop_every: 0,
            stop_group_every: 0,
            publish_every: 0,
            publish_mode: PolicyMode::Keep,
            limit: usize::MAX,
            seed: 0,
            length_limit: 1 << 20,
        }
    }
}

/// Why a trace cannot be replayed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// Nothing to do.
    #[error("the trace has no requests to replay; use one with requests and a limit of at least 1")]
    Empty,
    /// A group of no rollouts.
    #[error("the group size is 0; it must be at least 1")]
    EmptyGroup,
    /// Rollout ids are `u32`.
    #[error(
        "{requests} requests in groups of {group} need more rollout ids than there are (2^32); lower the limit \
             or the group size"
    )]
    TooManyRollouts {
        /// Requests to replay.
        requests: usize,
        /// Rollouts per request.
        group: u32,
    },
    /// A request that every device would reject with BAD_LENGTH.
    #[error(
        "request {index} needs {prompt_tokens} + {output_tokens} tokens, and a sequence has at most {limit} here; \
             shorten it"
    )]
    TooLong {
        /// Position in the trace, from 0.
        index: usize,
        /// Its prompt, in tokens.
        prompt_tokens: u32,
        /// Its answer, in tokens.
        output_tokens: u32,
        /// The limit, in tokens.
        limit: u32,
    },
    /// A STOP of a group needs one.
    #[error("groups are to be stopped, and there are none; give a group size of 2 to 64")]
    StopWithoutGroup,
    /// Groups do not outlive the version that they were opened under.
    #[error(
        "with groups, versions are published with the mode keep alone: their prefixes turn stale with another (R21)"
    )]
    StalePrefixes,
    /// Versions of engine 1 are not published while a plan runs.
    #[error("a language model is published once, before the plan; give no interval of publishes with it")]
    PublishedLanguage,
    /// A rollout of engine 1 goes on from a token.
    #[error("request {index} has no prompt, and a language model goes on from one; give it a token at least")]
    NoPrompt {
        /// Position in the trace, from 0.
        index: usize,
    },
    /// Blocks of all rollouts lie apart.
    #[error(
        "the rollouts need more blocks of keys and values than there are numbers (2^32); lower the limit"
    )]
    TooManyBlocks,
    /// RESIDENT does nothing without checkpoints.
    #[error("resident scoring happens at checkpoints, and there are none; give a checkpoint interval")]
    ResidentWithoutCheckpoint,
}

/// Bit of `user_data` that tells a STOP from the DECODE that it ends.
const STOP_TAG: u64 = 1 << 31;

/// Token areas begin at multiples of this many bytes, the width of a device's write.
const AREA_ALIGN: u64 = 64;

/// Everything that one replay submits, computed once and shared by all devices.
///
/// Rollout ids are running numbers. With groups, each request takes `1 + group` of them: its PREFILL, then its
/// rollouts. The tokens of a rollout lie in one area of the token region, in order.
#[derive(Clone, Debug)]
pub struct ReplayPlan {
    options: ReplayOptions,
    requests: Vec<Area>,
    token_bytes: u64,
    token_budget: u64,
    /// Whether the PREFILLs open groups (R17).
    opens_groups: bool,
    /// Of engine 1, and where its sequences lie.
    language: Option<(Arc<Language>, Places)>,
}

/// One request, and where the tokens of its first rollout go; those of the others follow.
#[derive(Clone, Copy, Debug)]
struct Area {
    offset: u64,
    prompt_tokens: u32,
    max_tokens: u32,
    /// Bytes ahead of each rollout's tokens.
    lead: u64,
}

impl Area {
    /// Bytes of one rollout's tokens, padding included.
    fn tokens(self) -> u64 {
        (4 * u64::from(self.max_tokens)).next_multiple_of(AREA_ALIGN)
    }

    /// Bytes from one rollout's to the next one's.
    fn stride(self) -> u64 {
        self.lead + self.tokens()
    }

    /// Bytes of the prompt, where it lies in memory.
    fn prompt(self) -> u64 {
        if self.lead > 0 { (4 * u64::from(self.prompt_tokens)).next_multiple_of(AREA_ALIGN) } else { 0 }
    }
}

impl ReplayPlan {
    /// Lays out the replay of `trace`.
    ///
    /// # Errors
    /// There is nothing to replay, or it does not fit the contract's limits.
    pub fn new(trace: &Trace, options: ReplayOptions) -> Result<ReplayPlan, PlanError> {
        Self::lay(trace, options, None)
    }

    /// The same with rollouts of a language model (engine 1), each request with a PREFILL. `seed` decides the prompts too; a token that ends
    /// a sequence does so where `eos_threshold` is above 0.
    ///
    /// # Errors
    /// As [`new`](Self::new), and where a language model cannot do what the options want.
    pub fn with_language(
        trace: &Trace,
        options: ReplayOptions,
        language: Arc<Language>,
    ) -> Result<ReplayPlan, PlanError> {
        if options.publish_every > 0 {
            return Err(PlanError::PublishedLanguage);
        }
        let context = language.version.model.shape.context as u32;
        let options = ReplayOptions { length_limit: options.length_limit.min(context), ..options };
        Self::lay(trace, options, Some(language))
    }

    fn lay(
        trace: &Trace,
        options: ReplayOptions,
        language: Option<Arc<Language>>,
    ) -> Result<ReplayPlan, PlanError> {
        if options.group == 0 {
            return Err(PlanError::EmptyGroup);
        }
        if options.resident && options.checkpoint == 0 {
            return Err(PlanError::ResidentWithoutCheckpoint);
        }
        let opens_groups = (2..=MEMBERS_MAX).contains(&options.group);
        if options.stop_group_every > 0 && !opens_groups {
            return Err(PlanError::StopWithoutGroup);
        }
        if options.publish_every > 0 && options.group > 1 && options.publish_mode != PolicyMode::Keep {
            return Err(PlanError::StalePrefixes);
        }
        let requests = &trace.requests[..trace.requests.len().min(options.limit)];
        if requests.is_empty() {
            return Err(PlanError::Empty);
        }
        let lead = if language.is_some() { LEAD } else { 0 };
        let ids_each = u128::from(options.group) + u128::from(options.group > 1 || language.is_some());
        if requests.len() as u128 * ids_each > u128::from(u32::MAX) {
            return Err(PlanError::TooManyRollouts { requests: requests.len(), group: options.group });
        }
        let mut token_bytes = 0;
        let mut token_budget = 0;
        let mut areas = Vec::with_capacity(requests.len());
        for (index, request) in requests.iter().enumerate() {
            let &Request { prompt_tokens, output_tokens, .. } = request;
            let limit = options.length_limit;
            if prompt_tokens.checked_add(output_tokens).is_none_or(|length| length > limit) {
                return Err(PlanError::TooLong { index, prompt_tokens, output_tokens, limit });
            }
            if language.is_some() && prompt_tokens == 0 {
                return Err(PlanError::NoPrompt { index });
            }
            let area = Area { offset: token_bytes, prompt_tokens, max_tokens: output_tokens, lead };
            token_bytes += area.prompt() + area.stride() * u64::from(options.group);
            token_budget += u64::from(output_tokens) * u64::from(options.group);
            areas.push(area);
        }
        let language = match language {
            Some(language) => {
                let extents = areas.iter().map(|area| Extent {
                    prompt: area.prompt_tokens,
                    most: area.max_tokens,
                    rollouts: options.group,
                });
                Some((language, Places::new(extents).ok_or(PlanError::TooManyBlocks)?))
            }
            None => None,
        };
        Ok(ReplayPlan { options, requests: areas, token_bytes, token_budget, opens_groups, language })
    }

    /// The same plan for devices that have no groups.
    #[must_use]
    pub fn without_groups(mut self) -> ReplayPlan {
        self.opens_groups = false;
        self.options.stop_group_every = 0;
        self
    }

    /// Whether the PREFILLs open groups (R17).
    pub fn opens_groups(&self) -> bool {
        self.opens_groups
    }

    /// The request that `id` belongs to, which is its `prefix_id` too.
    pub fn request_of(&self, id: u32) -> u32 {
        id / self.ids_per_request()
    }

    /// Whether the whole group of a request is stopped (R8).
    pub fn stops_group(&self, request: u32) -> bool {
        let every = self.options.stop_group_every;
        every > 0 && request % every == every - 1
    }

    /// The STOP of the whole group of a request; it is its PREFILL's id that goes on with it.
    pub fn stop_group(&self, request: u32) -> HwDesc {
        let id = request * self.ids_per_request();
        let stop = HwDesc { rollout_id: id, ..HwDesc::stop_group(request) };
        stop.with_user_data(u64::from(id) << 32 | STOP_TAG)
    }

    /// The options that the plan was made with.
    pub fn options(&self) -> &ReplayOptions {
        &self.options
    }

    /// Requests in the plan.
    pub fn requests(&self) -> usize {
        self.requests.len()
    }

    /// Rollouts in the plan, PREFILLs not counted.
    pub fn rollouts(&self) -> u32 {
        self.requests.len() as u32 * self.options.group
    }

    /// Rollout ids in the plan, those of PREFILLs included: they are `0..ids()`.
    pub fn ids(&self) -> u32 {
        self.requests.len() as u32 * self.ids_per_request()
    }

    /// A configuration of a queue pair in which the plan runs; depths and the like can be changed.
    pub fn queue_config(&self) -> QueueConfig {
        let ReplayOptions { length_limit, eos_threshold, reward_threshold, .. } = self.options;
        let mut config = QueueConfig::default();
        if let Some((language, places)) = &self.language {
            config.logp_bytes = self.token_bytes();
            config.kv_bytes = places.sequence_bytes(self.ids());
            config.model_bytes = language.published.memory.len() as u64;
            config.arena_bytes[0] = u64::from(places.blocks()) * language.published.at(0).block_bytes();
        }
        QueueConfig {
            token_bytes: self.token_bytes(),
            length_limit,
            eos_threshold: eos_threshold.into(),
            reward_threshold,
            ..config
        }
    }

    /// The language model that the rollouts run, if they are of engine 1.
    pub fn language(&self) -> Option<&Language> {
        self.language.as_ref().map(|(language, _)| &**language)
    }

    pub(super) fn places(&self) -> Option<&Places> {
        self.language.as_ref().map(|(_, places)| places)
    }

    /// Where the policy of a language model lies: behind all tokens.
    pub(super) fn policy_offset(&self) -> u64 {
        self.token_bytes
    }

    /// What of a request decides where its blocks lie.
    pub(super) fn extent(&self, request: u32) -> Extent {
        let area = self.requests[request as usize];
        Extent { prompt: area.prompt_tokens, most: area.max_tokens, rollouts: self.options.group }
    }

    /// The prompt of a request, of engine 1.
    pub fn prompt(&self, request: u32) -> Vec<u32> {
        let length = self.requests[request as usize].prompt_tokens;
        self.language().map_or(vec![], |language| language.prompt(self.options.seed, request, length))
    }

    /// Where the prompt of a request lies in the token region, and how many bytes it has.
    pub(super) fn prompt_area(&self, request: u32) -> (u64, u64) {
        let area = self.requests[request as usize];
        (area.offset, area.prompt())
    }

    /// Bytes of token region that the plan needs.
    pub fn token_bytes(&self) -> u64 {
        let policies = if self.language.is_some() { 2 * AREA_ALIGN } else { AREA_ALIGN };
        self.token_bytes + if self.publishes() || self.language.is_some() { policies } else { 0 }
    }

    /// Whether versions of the policy are published.
    pub fn publishes(&self) -> bool {
        self.options.publish_every > 0
    }

    /// The header of a version.
    pub fn header(&self, version: u16) -> HwPolicy {
        HwPolicy::new(version, 0, self.salt(version), 0)
    }

    /// The salt of a version; of 0, which is there after a reset, 0.
    pub fn salt(&self, version: u16) -> u32 {
        if version == 0 { 0 } else { mix(self.options.seed ^ mix(version.into())) }
    }

    /// The POLICY that publishes a version; its header lies behind all tokens.
    pub fn policy(&self, version: u16) -> HwDesc {
        let desc = HwDesc::policy(version, self.options.publish_mode).with_delta_offset(self.token_bytes);
        HwDesc { rollout_id: u32::MAX, ..desc }.with_user_data(u64::from(u32::MAX) << 32 | u64::from(version))
    }

    /// Tokens that all rollouts together may produce; fewer when some end early.
    pub fn token_budget(&self) -> u64 {
        self.token_budget
    }

    /// Ids that one request takes.
    pub fn ids_per_request(&self) -> u32 {
        self.options.group + u32::from(self.has_prefills())
    }

    /// Whether each request begins with a PREFILL.
    pub fn has_prefills(&self) -> bool {
        self.options.group > 1 || self.language.is_some()
    }

    /// Whether `id` is that of a PREFILL.
    pub fn is_prefill(&self, id: u32) -> bool {
        self.has_prefills() && id.is_multiple_of(self.ids_per_request())
    }

    /// The first descriptor of `id`.
    ///
    /// # Panics
    /// `id` is not in the plan.
    pub fn first(&self, id: u32) -> HwDesc {
        if self.is_prefill(id) {
            let request = id / self.ids_per_request();
            let prompt_tokens = self.requests[request as usize].prompt_tokens;
            let members = if self.opens_groups { self.options.group } else { 0 };
            let prefill = HwDesc::open_group(request, prompt_tokens, members);
            return self.of_engine(HwDesc { rollout_id: id, ..prefill }).with_user_data(u64::from(id) << 32);
        }
        self.decode(id, 0, self.place(id).0.prompt_tokens)
    }

    /// The same descriptor of a rollout, for the engine that the plan is of.
    fn of_engine(&self, desc: HwDesc) -> HwDesc {
        match self.places() {
            Some(places) => HwDesc { model_id: 1, kv_offset: places.sequence(desc.rollout_id), ..desc },
            None => desc,
        }
    }

    /// The DECODE that is segment `segment` of rollout `id`, which stands at `seq_len`.
    ///
    /// # Panics
    /// `id` is not that of a rollout, or `seq_len` is not within it.
    pub fn decode(&self, id: u32, segment: u32, seq_len: u32) -> HwDesc {
        let (area, offset) = self.place(id);
        let options = &self.options;
        let produced = seq_len - area.prompt_tokens;
        let mut flags = DescFlags::empty();
        flags.set(DescFlags::EOS_STOPS, options.eos_threshold > 0);
        flags.set(DescFlags::RESIDENT, options.resident);
        flags.set(DescFlags::COW_PREFIX, self.has_prefills());
        flags.set(DescFlags::LOGP, self.language.is_some());
        let desc = self
            .of_engine(HwDesc::decode(id, seq_len, area.max_tokens - produced))
            .with_user_data(u64::from(id) << 32 | u64::from(segment))
            .with_flags(flags)
            .with_delta_offset(offset + 4 * u64::from(produced))
            .with_checkpoint(if options.checkpoint == 0 { CHECKPOINT_NEVER } else { options.checkpoint })
            .with_seed(options.seed);
        if self.has_prefills() { desc.with_member(self.request_of(id), self.member(id)) } else { desc }
    }

    /// The number of rollout `id` in the group of its request.
    fn member(&self, id: u32) -> u16 {
        if self.opens_groups { (id % self.ids_per_request() - 1) as u16 } else { MEMBER_NONE }
    }

    /// Whether `desc` is a DECODE behind which a STOP comes, so that it may end early (R8).
    pub fn may_be_stopped(&self, desc: &HwDesc) -> bool {
        desc.opcode == Opcode::Decode as u8 && self.stop_after(desc.rollout_id) == Some(desc.user_data as u32)
    }

    /// The descriptor that a rollout goes on with after `desc` completed like this: the STOP that comes behind it, or the
    /// continuation of a DECODE at a checkpoint (R9). `None` if it has ended.
    ///
    /// Nothing in `completion` is trusted: without progress, or beyond the budget, nothing goes on.
    pub fn next(&self, desc: &HwDesc, completion: &HwCompletion) -> Option<HwDesc> {
        if desc.opcode == Opcode::Prefill as u8 {
            let (request, opened) = (desc.prefix_id, completion.status == Status::Done as u8);
            return (opened && self.stops_group(request)).then(|| self.stop_group(request));
        }
        if desc.opcode != Opcode::Decode as u8 || self.stops_group(self.request_of(desc.rollout_id)) {
            return None;
        }
        let (id, segment) = (desc.rollout_id, desc.user_data as u32);
        if self.may_be_stopped(desc) {
            return Some(self.stop(id, segment));
        }
        let added = completion.final_seq_len.checked_sub(desc.seq_len)?;
        // R20: one that has not started goes on from where it stands.
        let least = match Status::try_from(completion.status) {
            Ok(Status::RewardNeeded) => 1,
            Ok(Status::Superseded) if self.publishes() => 0,
            _ => return None,
        };
        let goes_on = (least..desc.max_tokens).contains(&added);
        goes_on.then(|| self.decode(id, segment + 1, completion.final_seq_len))
    }

    /// The STOP that follows segment `segment` of rollout `id`.
    pub fn stop(&self, id: u32, segment: u32) -> HwDesc {
        let stop = HwDesc::stop(id).with_user_data(u64::from(id) << 32 | STOP_TAG | u64::from(segment));
        if self.opens_groups { stop.with_member(self.request_of(id), self.member(id)) } else { stop }
    }

    /// The segment of `id` behind which a STOP, of it or of its group, comes, if one does. A rollout that ends earlier is not
    /// stopped.
    pub fn stop_after(&self, id: u32) -> Option<u32> {
        let ReplayOptions { stop_every, checkpoint, resident, .. } = self.options;
        if self.stops_group(self.request_of(id)) && !self.is_prefill(id) {
            return Some(0);
        }
        if stop_every == 0 || id % stop_every != stop_every - 1 || self.is_prefill(id) {
            return None;
        }
        if checkpoint == 0 || resident {
            return Some(0);
        }
        let segments = self.place(id).0.max_tokens.div_ceil(checkpoint);
        Some((id / stop_every) % segments)
    }

    /// The bytes of the token region in which the tokens of rollout `id` lie, padding to the next area included;
    /// none for a PREFILL.
    pub fn area(&self, id: u32) -> Option<Range<u64>> {
        (!self.is_prefill(id)).then(|| {
            let (area, offset) = self.place(id);
            offset..offset + area.tokens()
        })
    }

    /// The descriptor of the plan with this `user_data`, a DECODE of which stands at `seq_len`; POLICYs are none.
    pub(crate) fn named(&self, user_data: u64, seq_len: u32) -> HwDesc {
        let id = (user_data >> 32) as u32;
        let segment = (user_data & (STOP_TAG - 1)) as u32;
        match (self.is_prefill(id), user_data & STOP_TAG != 0) {
            (true, false) => self.first(id),
            (true, true) => self.stop_group(self.request_of(id)),
            (false, false) => self.decode(id, segment, seq_len),
            (false, true) => self.stop(id, segment),
        }
    }

    /// The request of a rollout, and the offset of the rollout's own tokens.
    fn place(&self, id: u32) -> (Area, u64) {
        let ids = self.ids_per_request();
        let area = self.requests[(id / ids) as usize];
        let member = id % ids - u32::from(self.has_prefills());
        (area, area.offset + area.prompt() + u64::from(member) * area.stride() + area.lead)
    }
}
