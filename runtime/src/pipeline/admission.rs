//! From requests to rollouts that are ready to decode.

use std::fmt;

use doorbell_contract::MEMBERS_MAX;
use doorbell_trace::Request;

use super::rollout::{Group, OnDevice, Prefill};
use super::{Next, Pipeline, RuntimeError, Source, Terms};
use crate::kv::{self, KvError, Sharing};
use crate::rollout::State;

/// What came of a look at the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Admission {
    /// Requests were admitted.
    pub admitted: bool,
    /// No request will come any more.
    pub ended: bool,
}

/// Why a request is not admitted now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// There are not enough free slots.
    Slots,
    /// A stage holds as many rollouts as it has credits.
    Stage(State),
    /// The arena cannot promise the blocks that the group may need.
    Blocks,
    /// The queue pair that it would go to has as many groups as it may (R17).
    Groups,
    /// No version of the language model is published yet.
    Version,
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Held::Slots => f.write_str("free slots"),
            Held::Stage(stage) => write!(f, "credits of {stage}"),
            Held::Blocks => f.write_str("KV blocks"),
            Held::Groups => f.write_str("groups of the device"),
            Held::Version => f.write_str("a version of the language model"),
        }
    }
}

impl Pipeline {
    /// Admits as many requests of `source` as fit now.
    ///
    /// # Errors
    /// `Request` if one can never run.
    pub(super) fn admit_from(
        &mut self,
        source: &mut (impl Source + ?Sized),
    ) -> Result<Admission, RuntimeError> {
        let mut admitted = false;
        loop {
            let (request, terms) = match source.next() {
                Next::Request(request) => (request, Terms::of(&self.options)),
                Next::Asks(request, terms) => (request, terms),
                next @ (Next::Nothing | Next::End) => {
                    // The request that waited, if one did, was withdrawn.
                    self.held = None;
                    return Ok(Admission { admitted, ended: matches!(next, Next::End) });
                }
            };
            if let Some(held) = self.admit(request, terms)? {
                if self.held != Some(held) {
                    self.held = Some(held);
                    self.count_stall(held);
                }
                return Ok(Admission { admitted, ended: false });
            }
            self.held = None;
            admitted = true;
            source.admitted(self.next_request);
            self.next_request += 1;
        }
    }

    /// Admits a request as a group of rollouts, or says what it waits for: it is to be offered again.
    ///
    /// # Errors
    /// `Request` if it can never run.
    fn admit(&mut self, request: &Request, terms: Terms) -> Result<Option<Held>, RuntimeError> {
        let number = self.next_request;
        let members = terms.members;
        terms.check(number, &self.options)?;
        if let Some(held) = self.stage_held(members) {
            return Ok(Some(held));
        }
        self.check(number, request)?;
        if self.language.is_some() && !self.versions.has_language() {
            return Ok(Some(Held::Version));
        }
        if self.free_groups.is_empty() {
            return Ok(Some(Held::Groups));
        }
        // Which ids are next depends on the requests alone, so that those which are held back keep theirs.
        let wire_id = match self.next_wire_id {
            Some((wire_id, room)) if room == members => wire_id,
            _ => {
                let wire_id = self.take_wire_ids(members);
                self.next_wire_id = Some((wire_id, members));
                wire_id
            }
        };
        let takes_part = self.features.groups > 0 && (2..=MEMBERS_MAX).contains(&members);
        let queue = if takes_part { self.entry_for(wire_id) } else { None };
        if takes_part && queue.is_none() {
            return Ok(Some(Held::Groups));
        }
        // Keys and values of one version, in the arena of one function.
        let region = self.language.as_ref().map(|_| self.queue_for(wire_id));
        let version = if self.mixes_versions { 0 } else { self.versions.weights() };
        let domain = region.map_or(0, |region| version << 8 | region as u64);
        let by_tokens = self.kv.config().sharing == Sharing::Tokens;
        // Those that gave their blocks back come first.
        if self.has_returning() {
            return Ok(Some(Held::Blocks));
        }
        if let Some(sequences) = self.language.as_mut().filter(|_| by_tokens) {
            sequences.take_prompt(number, request);
        }
        let prompt_tokens = self.kv_prompt(request.prompt_tokens);
        let mut from = 0;
        let prefix = loop {
            let prefix = match &self.language {
                // A prompt that is scored is made from its first token on.
                _ if terms.scored => &[],
                Some(sequences) if by_tokens => &sequences.prompt(request)[..prompt_tokens as usize],
                _ => &request.prefix[..],
            };
            let (salt, answer_tokens) = (terms.salt, request.output_tokens);
            let group = kv::Group { prefix, prompt_tokens, domain, salt, members, answer_tokens };
            match self.kv.admit(&group) {
                Ok(prefix) => break prefix,
                Err(KvError::Full { what, need, available }) => {
                    // Nobody gives blocks back for a request that would not fit all the same.
                    let lacks = if what == "blocks" { need - available } else { 0 };
                    if from == 0 && !self.may_preempt(lacks)? {
                        return Ok(Some(Held::Blocks));
                    }
                    match self.preempt(from)? {
                        Some(next) => from = next,
                        None => return Ok(Some(Held::Blocks)),
                    }
                }
                Err(error @ KvError::TooLarge { .. }) => {
                    return Err(RuntimeError::Request { request: number, reason: error.to_string() });
                }
                Err(error) => return Err(error.into()),
            }
        };
        let Some(index) = self.free_groups.pop() else { return Ok(Some(Held::Slots)) };
        self.next_wire_id = None;
        if let Some(queue) = queue {
            self.entries[queue] += 1;
            self.open_groups += 1;
            self.metrics.counters.hot.groups_open.set(self.open_groups.into());
        }
        let has_prefill = self.options.has_prefills();
        self.prompts.write(index, &request.prefix);
        self.groups[index as usize] = Group {
            request: number,
            wire_id: Some(wire_id),
            prompt_tokens: request.prompt_tokens,
            prompt_ids: request.prefix.len() as u32,
            output_tokens: request.output_tokens,
            prefix_hash: hash(&request.prefix),
            prefill: if has_prefill { Prefill::Due } else { Prefill::Done },
            prefix: Some(prefix),
            region: region.unwrap_or(0),
            terms,
            device: OnDevice { takes_part, queue, ..OnDevice::default() },
            left: members,
            open: members,
            ..Group::none()
        };
        self.requests_by_group[index as usize] = number;
        for member in 0..members {
            let Some(id) = self.queues.free.pop() else {
                return Err(RuntimeError::Overflow { queue: "free" });
            };
            let branch = self.kv.branch(prefix)?;
            let own = self.wire_rollout(wire_id, member);
            self.advance(id, State::Free, State::PrefillReady)?.begin(index, member, own, branch);
            self.link(id)?;
            self.queues.prefill.push(id)?;
        }
        if !has_prefill {
            self.end_prefill(index)?;
        }
        if let Some(sequences) = &mut self.language {
            if !by_tokens {
                sequences.take_prompt(number, request);
            }
            let offset = self.options.prompt_offset(index);
            let words = sequences.write_prompt(&self.regions[region.unwrap_or(0)], offset, request)?;
            // A prompt without ids is named by its tokens.
            if request.prefix.is_empty() {
                self.groups[index as usize].prefix_hash = hash(words);
            }
            // What it shares is of this version.
            self.bind(index);
        }
        self.metrics.counters.hot.rollouts_admitted.add(members.into());
        Ok(None)
    }

    /// Ids on the device for one request: for its PREFILL, if it has one, and for its members.
    #[inline]
    fn take_wire_ids(&mut self, members: u32) -> u32 {
        let options = &self.options;
        let living = || {
            let living = self.groups.iter().filter_map(|group| Some((group.wire_id?, group.terms.members)));
            living.map(|(wire_id, members)| wire_id..wire_id + options.ids_of(members))
        };
        self.wire_ids.take(options.ids_of(members), living)
    }

    /// The first thing that a group lacks, apart from blocks.
    #[inline]
    fn stage_held(&self, members: u32) -> Option<Held> {
        if self.occupancy.of(State::Free) < members {
            return Some(Held::Slots);
        }
        let full = |&stage: &State| {
            let coming = if stage == State::PrefillReady { members } else { 1 };
            stage != State::Free && self.occupancy.of(stage) + coming > self.options.credits.limit(stage)
        };
        State::ALL.into_iter().find(full).map(Held::Stage)
    }

    /// Whether the request fits the contract and this pipeline.
    fn check(&self, number: u64, request: &Request) -> Result<(), RuntimeError> {
        let refused = |reason| Err(RuntimeError::Request { request: number, reason });
        let &Request { prompt_tokens, output_tokens, .. } = request;
        let (longest, limit) = (self.options.max_output_tokens, self.options.length_limit);
        if output_tokens == 0 || output_tokens > longest {
            return refused(format!(
                "its answer may have {output_tokens} tokens, and a slot has room for 1 to {longest}; raise \
                 max_output_tokens"
            ));
        }
        if prompt_tokens.checked_add(output_tokens).is_none_or(|length| length > limit) {
            return refused(format!(
                "{prompt_tokens} + {output_tokens} tokens are more than the length limit of {limit}; shorten it or \
                 raise the limit"
            ));
        }
        if let Some(language) = &self.options.language {
            let (positions, longest) = (language.positions, language.max_prompt_tokens);
            if prompt_tokens == 0 {
                return refused(
                    "it has no prompt, and a language model goes on from one; give it a token at least"
                        .into(),
                );
            }
            if prompt_tokens + output_tokens > positions {
                return refused(format!(
                    "{prompt_tokens} + {output_tokens} tokens are more than the model's {positions} positions; shorten it. There is no \
                     window that slides: positions are absolute, and each token attends to all before it (R26, R27)"
                ));
            }
            if prompt_tokens > longest {
                return refused(format!(
                    "its prompt has {prompt_tokens} tokens, and there is room for {longest}; raise max_prompt_tokens"
                ));
            }
        }
        let (ids, room) = (request.prefix.len(), self.prompts.longest());
        if ids > room {
            return refused(format!(
                "its prompt has {ids} block ids, and judges have room for {room}; make Prompts with more"
            ));
        }
        Ok(())
    }

    /// Takes rollouts whose prefix is registered on to the decode queue, and makes the PREFILLs that are due.
    pub(super) fn take_prefills(&mut self) -> Result<bool, RuntimeError> {
        let mut moved = self.take_parts()?;
        while self.batch.len() < self.batch_limit() {
            let Some(id) = self.queues.prefill.front() else { break };
            let index = self.lives.get(id)?.group;
            let due = self.groups[index as usize].prefill == Prefill::Due;
            if due && (self.versions.holds_prefills() || !self.may_prefill(index)?) {
                break;
            }
            self.queues.prefill.pop();
            moved = true;
            if due {
                self.post_prefill(index)?;
            }
            let group = &self.groups[index as usize];
            match group.prefill {
                // The device holds DECODEs of a group until its PREFILL is through (R17).
                Prefill::Due | Prefill::Running | Prefill::Parted if !group.device.opened => {
                    self.lives.get_mut(id)?.waits = true;
                }
                Prefill::Due | Prefill::Running | Prefill::Parted | Prefill::Done => {
                    self.queues.decode.push(id)?;
                }
                Prefill::Failed => self.fail_unstarted(id)?,
                Prefill::Never => self.end_waiting(id)?,
            }
        }
        Ok(moved)
    }
}

/// FNV-1a over the ids of a prompt's pieces: equal prompts have equal hashes, on every machine.
fn hash(prefix: &[u32]) -> u64 {
    prefix.iter().fold(0xCBF2_9CE4_8422_2325, |hash: u64, &id| {
        id.to_le_bytes()
            .iter()
            .fold(hash, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3))
    })
}
