//! From requests to rollouts that are ready to decode.

use std::fmt;

use doorbell_trace::Request;

use super::rollout::{Group, Prefill};
use super::{Next, Pipeline, RuntimeError, Source};
use crate::kv::{self, KvError};
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
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Held::Slots => f.write_str("free slots"),
            Held::Stage(stage) => write!(f, "credits of {stage}"),
            Held::Blocks => f.write_str("KV blocks"),
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
            let request = match source.next() {
                Next::Request(request) => request,
                Next::Nothing => return Ok(Admission { admitted, ended: false }),
                Next::End => return Ok(Admission { admitted, ended: true }),
            };
            if let Some(held) = self.admit(request)? {
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
    fn admit(&mut self, request: &Request) -> Result<Option<Held>, RuntimeError> {
        let number = self.next_request;
        let members = self.options.group;
        if let Some(held) = self.stage_held(members) {
            return Ok(Some(held));
        }
        self.check(number, request)?;
        let prefix = match self.kv.admit(&kv::Group {
            prefix: &request.prefix,
            prompt_tokens: request.prompt_tokens,
            members,
            answer_tokens: request.output_tokens,
        }) {
            Ok(prefix) => prefix,
            Err(KvError::Full { .. }) => return Ok(Some(Held::Blocks)),
            Err(error @ KvError::TooLarge { .. }) => {
                return Err(RuntimeError::Request { request: number, reason: error.to_string() });
            }
            Err(error) => return Err(error.into()),
        };
        let Some(index) = self.free_groups.pop() else { return Ok(Some(Held::Slots)) };
        let has_prefill = self.options.has_prefills();
        let wire_id = self.take_wire_ids();
        self.prompts.write(index, &request.prefix);
        self.groups[index as usize] = Group {
            request: number,
            wire_id,
            prompt_tokens: request.prompt_tokens,
            prompt_ids: request.prefix.len() as u32,
            output_tokens: request.output_tokens,
            prefix_hash: hash(&request.prefix),
            prefill: if has_prefill { Prefill::Due } else { Prefill::Done },
            left: members,
            ..Group::none()
        };
        for member in 0..members {
            let Some(id) = self.queues.free.pop() else {
                return Err(RuntimeError::Overflow { queue: "free" });
            };
            let branch = self.kv.branch(prefix)?;
            let own = wire_id + u32::from(has_prefill) + member;
            self.advance(id, State::Free, State::PrefillReady)?.begin(index, member, own, branch);
            self.link(id)?;
            self.queues.prefill.push(id)?;
        }
        // The branches hold the prompt from here on.
        self.kv.release_prefix(prefix)?;
        self.metrics.counters.hot.rollouts_admitted.add(members.into());
        Ok(None)
    }

    /// Ids on the device for one request: for its PREFILL, if it has one, and for its members.
    #[inline]
    fn take_wire_ids(&mut self) -> u32 {
        let ids = self.options.ids_per_request();
        let living = || {
            let groups = self.groups.iter().filter(|group| group.left > 0);
            groups.map(|group| group.wire_id..group.wire_id + ids)
        };
        self.wire_ids.take(ids, living)
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
        let mut moved = false;
        while self.batch.len() < self.batch_limit() {
            let Some(id) = self.queues.prefill.pop() else { break };
            moved = true;
            let index = self.lives.get(id)?.group;
            match self.groups[index as usize].prefill {
                Prefill::Due => {
                    self.post_prefill(index);
                    self.lives.get_mut(id)?.waits = true;
                }
                Prefill::Running => self.lives.get_mut(id)?.waits = true,
                Prefill::Done => self.queues.decode.push(id)?,
                Prefill::Failed => self.fail_unstarted(id)?,
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
