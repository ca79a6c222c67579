//! Scores by the device: REWARD descriptors in the place of judges.
//!
//! [`DeviceRewards`] makes them, and has the pipeline send each to the queue pair of its rollout, where it follows the DECODE
//! whose tokens it scores (R5). [`QueueRewards`] sends them itself, to queue pairs that lie over the same tokens and do nothing
//! else. See `docs/rewards.md`.

use std::collections::VecDeque;
use std::time::Duration;

use doorbell_contract::{Capability, CompletionFlags, HwCompletion, HwDesc, Status};
use doorbell_engine::{NO_RANGES, RewardModel};
use doorbell_host::{Device, Features};

use super::{
    GroupPostError, JudgeFailure, Judged, Moment, PostError, Request, Scorer, Shutdown, Ticket, Verdict,
};
use crate::pipeline::{RewardStage, RuntimeError};
use crate::rollout::RolloutId;

/// By what the device scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    /// The reward model. Its ranges, if it has any, are the queue pair's ([`QueueConfig`](doorbell_host::QueueConfig)).
    pub model: RewardModel,
    /// At a checkpoint, what is new since the last one must score this, Q16.16, or the rollout ends.
    pub threshold: i32,
}

/// Names of REWARDs: above the place the number of the ask, so that none is used twice in 2^36 of them.
const PLACE_BITS: u32 = 24;
/// Names end below this: what carries one has bits of its own above it.
pub(crate) const NAMES: u64 = 1 << 60;
/// Completions taken at a time.
const POLL: usize = 64;

/// What is being scored of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// At a checkpoint: what is new.
    Segment,
    /// All of it; whether what was new at its last checkpoint scored too little.
    Whole { rejected: bool },
}

/// An answer that was posted and not judged yet.
#[derive(Clone, Copy, Debug)]
struct Ask {
    request: Request,
    part: Part,
    name: u64,
    /// Its REWARD was handed out.
    sent: bool,
}

/// A [`RewardStage`] whose descriptors go the way of the rollout's own: the pipeline submits them and brings their completions.
#[derive(Debug)]
pub struct DeviceRewards {
    scale: Scale,
    asks: Box<[Option<Ask>]>,
    free: Vec<u32>,
    /// Places whose REWARD is to be sent.
    due: VecDeque<u32>,
    judged: VecDeque<Judged>,
    /// Asks that there were.
    count: u64,
    first_refused: Option<HwCompletion>,
}

impl DeviceRewards {
    /// For a device of this name that can do this, and `slots` slots.
    ///
    /// # Errors
    /// `Rewards` if it cannot score so, with what to do.
    pub fn new(name: &str, features: Features, slots: u32, scale: Scale) -> Result<Self, RuntimeError> {
        let refused = |reason: String| Err(RuntimeError::Rewards { device: name.to_owned(), reason });
        if !features.capability.contains(Capability::REWARD) {
            return refused("it has no REWARD (CAPABILITY.REWARD); let judges of the host score them".into());
        }
        if scale.model as u32 >= features.reward_models {
            let has = match features.reward_models {
                1 => "reward model 0 alone".to_owned(),
                count => format!("{count} reward models"),
            };
            return refused(format!(
                "it has {has} (CAP_REWARD_MODELS), and model {} is none of them; take another model, or let judges of the \
                 host score them",
                scale.model as u32
            ));
        }
        let slots = slots as usize;
        Ok(Self {
            scale,
            asks: vec![None; slots].into(),
            free: (0..slots as u32).rev().collect(),
            due: VecDeque::with_capacity(slots),
            judged: VecDeque::with_capacity(slots),
            count: 0,
            first_refused: None,
        })
    }

    fn ask(&mut self, request: Request) -> Result<(), Request> {
        if self.pending() >= self.asks.len() {
            return Err(request);
        }
        let Some(place) = self.free.pop() else { return Err(request) };
        let part = match request.moment {
            // What is new is all that there is.
            Moment::Checkpoint if request.segment_start > 0 => Part::Segment,
            _ => Part::Whole { rejected: false },
        };
        self.count += 1;
        let name = (self.count << PLACE_BITS | u64::from(place)) & (NAMES - 1);
        self.asks[place as usize] = Some(Ask { request, part, name, sent: false });
        self.due.push_back(place);
        Ok(())
    }

    /// The next REWARD that is to be sent, with its name as `user_data`, and the token region that it reads.
    fn next(&mut self) -> Option<(usize, HwDesc)> {
        while let Some(place) = self.due.pop_front() {
            let Some(ask) = &mut self.asks[place as usize] else { continue };
            let Request { offset, shard, answer_tokens, segment_start, .. } = ask.request;
            let start = if ask.part == Part::Segment { segment_start } else { 0 };
            let tokens = answer_tokens.saturating_sub(start);
            if tokens == 0 {
                // BAD_LENGTH: a device scores no empty answer, and what it is worth depends on no memory.
                let score = self.scale.model.score([], &NO_RANGES);
                self.score(place, score);
                continue;
            }
            ask.sent = true;
            let desc = HwDesc::reward(ask.request.device_rollout, self.scale.model as u16, tokens)
                .with_delta_offset(offset + 4 * u64::from(start))
                .with_user_data(ask.name);
            // It belongs to no group, and lies where its rollout does.
            return Some((shard as usize, HwDesc { prefix_id: ask.request.prefix_id, ..desc }));
        }
        None
    }

    /// The device has scored what is asked at `place`.
    fn score(&mut self, place: u32, score: i32) {
        let Some(ask) = &mut self.asks[place as usize] else { return };
        let passes = score >= self.scale.threshold;
        let checkpoint = ask.request.moment == Moment::Checkpoint;
        match ask.part {
            Part::Segment if !passes => {
                // It ends here, and its score is that of all of it.
                (ask.part, ask.sent) = (Part::Whole { rejected: true }, false);
                self.due.push_back(place);
            }
            Part::Segment => self.judge(place, Ok(Verdict { score, proceed: true })),
            Part::Whole { rejected } => {
                self.judge(place, Ok(Verdict { score, proceed: checkpoint && passes && !rejected }));
            }
        }
    }

    fn judge(&mut self, place: u32, verdict: Result<Verdict, JudgeFailure>) {
        let Some(Ask { request, .. }) = self.asks[place as usize].take() else { return };
        self.free.push(place);
        let Request { ticket, rollout, .. } = request;
        self.judged.push_back(Judged { ticket, rollout, judge: 0, verdict });
    }

    /// Takes the completion of the REWARD called `name`; whose it was.
    fn answered(
        &mut self,
        name: u64,
        completion: &HwCompletion,
    ) -> Result<(RolloutId, Ticket), &'static str> {
        let place = (name & ((1 << PLACE_BITS) - 1)) as u32;
        let ask = self.asks.get(place as usize).and_then(Option::as_ref);
        let Some(ask) = ask.filter(|ask| ask.sent && ask.name == name) else {
            return Err("no REWARD of that name is in flight");
        };
        let whose = (ask.request.rollout, ask.request.ticket);
        let model = self.scale.model as u16;
        let echoes =
            completion.rollout_id == ask.request.device_rollout && completion.reward_model_id == model;
        if !echoes && !completion.has(CompletionFlags::NO_ECHO) {
            return Err("it does not echo the REWARD that its user_data names");
        }
        match Status::try_from(completion.status) {
            Ok(Status::Scored) => self.score(place, completion.result as i32),
            Ok(Status::Error) => {
                self.first_refused.get_or_insert(*completion);
                self.judge(place, Err(JudgeFailure::Device { error: completion.error }));
            }
            _ => return Err("a REWARD does not end so"),
        }
        Ok(whose)
    }
}

impl RewardStage for DeviceRewards {
    fn post(&mut self, request: Request) -> Result<(), PostError> {
        self.ask(request).map_err(PostError::Full)
    }

    fn post_group(&mut self, requests: &[Request]) -> Result<(), GroupPostError> {
        if self.pending() + requests.len() > self.asks.len() {
            return Err(GroupPostError::Full);
        }
        for request in requests {
            self.ask(*request).map_err(|_| GroupPostError::Full)?;
        }
        Ok(())
    }

    fn collect(&mut self, out: &mut [Judged]) -> Result<usize, RuntimeError> {
        let count = out.len().min(self.judged.len());
        for (out, judged) in out.iter_mut().zip(self.judged.drain(..count)) {
            *out = judged;
        }
        Ok(count)
    }

    fn pending(&self) -> usize {
        self.asks.len() - self.free.len() + self.judged.len()
    }

    fn shutdown(self: Box<Self>, _: Duration) -> Shutdown {
        Shutdown { uncollected: self.judged.len(), ..Shutdown::default() }
    }

    fn scorer(&self) -> Scorer {
        Scorer::Device
    }

    fn descriptor(&mut self) -> Option<HwDesc> {
        self.next().map(|(_, desc)| desc)
    }

    fn completed(
        &mut self,
        name: u64,
        completion: &HwCompletion,
    ) -> Result<(RolloutId, Ticket), &'static str> {
        self.answered(name, completion)
    }

    /// R5: it reads what the DECODE before it has written.
    fn follows(&self) -> bool {
        true
    }

    fn first_refused(&self) -> Option<&HwCompletion> {
        self.first_refused.as_ref()
    }
}

/// A [`RewardStage`] with queue pairs of its own, one over each token region of the device: what it sends is in no queue of a
/// rollout, and takes none of their slots, credits or places in an order.
///
/// Between queue pairs there is no order (R5). What is posted here comes from a DECODE whose completion was seen.
pub struct QueueRewards {
    rewards: DeviceRewards,
    queues: Vec<Queue>,
    /// The queue pair that is looked at first.
    turn: usize,
    completions: Box<[HwCompletion]>,
}

struct Queue {
    device: Box<dyn Device>,
    /// What it has not taken yet.
    batch: Vec<HwDesc>,
}

impl QueueRewards {
    /// With `queues`, one over each of the device's token regions, in their order, and for `slots` slots.
    ///
    /// # Errors
    /// As [`DeviceRewards::new`].
    pub fn new(queues: Vec<Box<dyn Device>>, slots: u32, scale: Scale) -> Result<Self, RuntimeError> {
        let name = queues.first().map_or("the device", |queue| queue.name()).to_owned();
        let features = queues.iter().map(|queue| queue.features()).reduce(Features::and);
        let rewards = DeviceRewards::new(&name, features.unwrap_or_default(), slots, scale)?;
        let batch = || Vec::with_capacity(slots as usize);
        let queues = queues.into_iter().map(|device| Queue { device, batch: batch() }).collect();
        Ok(Self { rewards, queues, turn: 0, completions: vec![HwCompletion::default(); POLL].into() })
    }

    /// Hands on what is due, with one doorbell for each queue pair that gets some.
    fn submit(&mut self) -> Result<(), RuntimeError> {
        while let Some((region, desc)) = self.rewards.next() {
            match self.queues.get_mut(region) {
                Some(queue) => queue.batch.push(desc),
                // Nothing lies over those tokens.
                None => {
                    let place = (desc.user_data & ((1 << PLACE_BITS) - 1)) as u32;
                    self.rewards.judge(place, Err(JudgeFailure::Tokens));
                }
            }
        }
        for queue in self.queues.iter_mut().filter(|queue| !queue.batch.is_empty()) {
            let taken = queue.device.submit(&queue.batch)?;
            queue.batch.drain(..taken);
        }
        Ok(())
    }

    /// Takes what one queue pair has completed.
    fn take(&mut self, index: usize) -> Result<(), RuntimeError> {
        let Queue { device, .. } = &mut self.queues[index];
        if device.in_flight() == 0 {
            return Ok(());
        }
        let count = device.poll(&mut self.completions)?;
        for completion in &self.completions[..count] {
            let mut name = completion.user_data;
            if completion.has(CompletionFlags::NO_ECHO) {
                name = device.unread(completion).map_or(0, |desc| desc.user_data);
            }
            if let Err(what) = self.rewards.answered(name, completion) {
                let device = device.name().to_owned();
                return Err(RuntimeError::Unasked { device, what, completion: *completion });
            }
        }
        Ok(())
    }
}

impl RewardStage for QueueRewards {
    fn post(&mut self, request: Request) -> Result<(), PostError> {
        self.rewards.post(request)
    }

    fn post_group(&mut self, requests: &[Request]) -> Result<(), GroupPostError> {
        self.rewards.post_group(requests)
    }

    fn collect(&mut self, out: &mut [Judged]) -> Result<usize, RuntimeError> {
        self.submit()?;
        let queues = self.queues.len();
        self.turn = (self.turn + 1) % queues.max(1);
        for step in 0..queues {
            self.take((self.turn + step) % queues)?;
        }
        self.rewards.collect(out)
    }

    fn pending(&self) -> usize {
        self.rewards.pending()
    }

    fn shutdown(self: Box<Self>, patience: Duration) -> Shutdown {
        Box::new(self.rewards).shutdown(patience)
    }

    fn scorer(&self) -> Scorer {
        Scorer::Device
    }

    fn first_refused(&self) -> Option<&HwCompletion> {
        self.rewards.first_refused()
    }
}
