//! From requests to rollouts that are ready to decode.

use std::fmt;

use doorbell_trace::Request;

use super::rollout::{Group, Prefill};
use super::{Pipeline, RuntimeError};
use crate::kv::{self, KvError};
use crate::rollout::{RolloutId, State};

/// Requests in order, each admitted as a group of rollouts.
#[derive(Debug)]
pub struct Feed<'a> {
    requests: &'a [Request],
    next: usize,
}

impl<'a> Feed<'a> {
    /// All of `requests`, from the first.
    pub fn new(requests: &'a [Request]) -> Feed<'a> {
        Feed { requests, next: 0 }
    }

    /// Whether all have been admitted.
    pub fn is_empty(&self) -> bool {
        self.next == self.requests.len()
    }

    /// Requests admitted.
    pub fn admitted(&self) -> usize {
        self.next
    }
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
    /// Admits as many requests of `feed` as fit now; says whether any did.
    ///
    /// # Errors
    /// `Request` if one can never run.
    pub fn admit_from(&mut self, feed: &mut Feed<'_>) -> Result<bool, RuntimeError> {
        let before = feed.next;
        while let Some(request) = feed.requests.get(feed.next) {
            if let Some(held) = self.admit(feed.next as u64, request)? {
                if self.held != Some(held) {
                    self.held = Some(held);
                    self.count_stall(held);
                }
                break;
            }
            self.held = None;
            feed.next += 1;
        }
        Ok(feed.next > before)
    }

    /// Admits request number `number` as a group of rollouts, or says what it waits for: it is to be offered again.
    ///
    /// # Errors
    /// `Request` if it can never run.
    fn admit(&mut self, number: u64, request: &Request) -> Result<Option<Held>, RuntimeError> {
        let members = self.options.group;
        if let Some(held) = self.stage_held(members) {
            return Ok(Some(held));
        }
        let device_rollout = self.check(number, request)?;
        let prefix = match self.kv.admit(&kv::Group {
            prefix: &request.prefix,
            prompt_tokens: request.prompt_tokens,
            members,
            answer_tokens: request.output_tokens,
            prompt_writes: 0,
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
        self.groups[index as usize] = Group {
            request: number,
            device_rollout,
            device_prefix: number as u32,
            prompt_tokens: request.prompt_tokens,
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
            let own = device_rollout + u32::from(has_prefill) + member;
            self.advance(id, State::Free, State::PrefillReady)?.begin(index, member, own, branch);
            self.queues.prefill.push(id)?;
        }
        // The branches hold the prompt from here on.
        self.kv.release_prefix(prefix)?;
        self.metrics.counters.hot.rollouts_admitted.add(members.into());
        Ok(None)
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

    /// Whether the request fits the contract and this pipeline; the first of its ids on the device. These depend on the
    /// request alone, and with them its tokens (R6).
    fn check(&self, number: u64, request: &Request) -> Result<u32, RuntimeError> {
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
        let ids = u64::from(self.options.ids_per_request());
        match number.checked_mul(ids).filter(|first| first + ids <= u64::from(u32::MAX)) {
            Some(first) => Ok(first as u32),
            None => refused(
                "there are not enough rollout ids (2^32); give fewer requests or smaller groups".into(),
            ),
        }
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
                    self.wait_for_prefill(index, id);
                }
                Prefill::Running => self.wait_for_prefill(index, id),
                Prefill::Done => self.queues.decode.push(id)?,
                Prefill::Failed => self.fail_unstarted(id)?,
            }
        }
        Ok(moved)
    }

    fn wait_for_prefill(&mut self, index: u32, id: RolloutId) {
        let group = &mut self.groups[index as usize];
        group.waiting = match group.waiting {
            None => Some((id.slot(), id.slot())),
            Some((first, last)) => {
                let last = self.lives.states().current(last);
                if let Ok(life) = self.lives.get_mut(last) {
                    life.next = Some(id.slot());
                }
                Some((first, id.slot()))
            }
        };
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
