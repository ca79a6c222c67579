//! One replay: keeps a device's submission queue full and follows every rollout to its end.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use bytemuck::Zeroable;

use super::ReplayPlan;
use crate::life::{Lives, Records};
use doorbell_contract::{ErrorCode, HwCompletion, HwDesc, Opcode, Status};
use doorbell_host::device::Device;
use doorbell_host::error::DeviceError;

/// Descriptors made at a time, before they are offered to the device.
const BATCH: usize = 1024;
/// A STOP follows its DECODE at once, or after this many other descriptors, so that it finds DECODEs that run and
/// DECODEs that have ended.
const STOP_DELAY: usize = 32;

/// How far a replay is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Completions received.
    pub completions: u64,
    /// Tokens that they account for.
    pub tokens: u64,
    /// Tokens of budget that will not be produced, because their rollouts have ended.
    pub saved: u64,
}

/// What one device did with a plan.
#[derive(Debug)]
pub struct Replay {
    /// Every completion, in the order in which the device posted them.
    pub completions: Vec<HwCompletion>,
    /// For each completion, the rollout id whose descriptor it answers.
    pub owners: Vec<u32>,
    /// For each completion, the version that its descriptor named.
    pub versions: Vec<u16>,
    /// Versions published.
    pub published: u16,
    /// Descriptors submitted.
    pub descriptors: u64,
    /// Tokens that the completions account for.
    pub tokens: u64,
    /// Time from the first submission to the end.
    pub wall: Duration,
    /// Why the replay ended early, if it did.
    pub failure: Option<ReplayFailure>,
}

/// Why a replay ended before its plan.
#[derive(Debug, thiserror::Error)]
pub enum ReplayFailure {
    /// The device failed, or stopped answering (R15).
    #[error("{error}{}", waiting.as_deref().map(describe_waiting).unwrap_or_default())]
    Device {
        /// What the driver said.
        error: DeviceError,
        /// The oldest descriptor that has no completion.
        waiting: Option<Box<HwDesc>>,
    },
    /// A completion that no outstanding descriptor asked for (R3).
    #[error(
        "completion {ordinal} (from 0) answers no outstanding descriptor (R3): user_data {:#x}, rollout_id {}, \
         status {:#04x}, sq_head {}", completion.user_data, completion.rollout_id, completion.status, completion.sq_head
    )]
    Unasked {
        /// How many completions came before it.
        ordinal: usize,
        /// The completion.
        completion: HwCompletion,
    },
    /// The caller asked to end.
    #[error("ended on request")]
    Ended,
}

fn describe_waiting(desc: &HwDesc) -> String {
    let opcode = Opcode::try_from(desc.opcode).map_or("?", Opcode::name);
    format!("; the oldest descriptor without a completion is {opcode} of rollout {}", desc.rollout_id)
}

/// Submits everything in `plan` to `device` and records every completion. `progress` is called after every poll that
/// brought some, and may end the replay.
///
/// Waits are bounded by the driver (R15), and so is the replay: a checkpoint that adds no token is not continued.
pub fn replay(
    plan: &ReplayPlan,
    device: &mut dyn Device,
    progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Replay {
    run(plan, device, None, &mut |at, _| progress(at))
}

/// The same, and keeps the life of each descriptor. The queue pairs of `device` tell LIFE events
/// ([`QueueConfig::life_events`](doorbell_host::QueueConfig::life_events)).
pub fn replay_lives(
    plan: &ReplayPlan,
    device: &mut dyn Device,
    progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> (Replay, Lives) {
    let mut lives = Lives::new(device);
    let replay = run(plan, device, Some(&mut lives), &mut |at, _| progress(at));
    (replay, lives)
}

/// The same, with a `progress` that sees what became of the descriptors so far.
pub fn watch_lives(
    plan: &ReplayPlan,
    device: &mut dyn Device,
    progress: &mut dyn FnMut(&Lives) -> ControlFlow<()>,
) -> (Replay, Lives) {
    let mut lives = Lives::new(device);
    let replay = run(plan, device, Some(&mut lives), &mut |_, watched| {
        let Some(Watched { lives, records, device }) = watched else { return ControlFlow::Continue(()) };
        // A device that has failed tells so at the next poll.
        let _ = lives.catch_up(device, records);
        progress(lives)
    });
    (replay, lives)
}

/// A replay that keeps lives.
struct Watched<'a> {
    lives: &'a mut Lives,
    records: Records<'a>,
    device: &'a mut dyn Device,
}

/// Called after every poll that brought completions.
type Told<'a> = dyn FnMut(Progress, Option<Watched<'_>>) -> ControlFlow<()> + 'a;

fn run(plan: &ReplayPlan, device: &mut dyn Device, lives: Option<&mut Lives>, progress: &mut Told) -> Replay {
    let mut run = Run::new(plan, device.capacity());
    run.lives = lives;
    let start = Instant::now();
    let outcome = run.drive(device, progress);
    let wall = start.elapsed();
    if let Some(Watched { lives, records, device }) = run.watched(device) {
        lives.finish(device, records);
    }
    let failure = outcome.err().map(|failure| match failure {
        ReplayFailure::Device { error, .. } => {
            ReplayFailure::Device { error, waiting: run.oldest().map(Box::new) }
        }
        other => other,
    });
    Replay {
        completions: run.completions,
        owners: run.owners,
        versions: run.versions,
        published: run.version,
        descriptors: run.submitted,
        tokens: run.progress.tokens,
        wall,
        failure,
    }
}

/// Where one rollout id stands.
#[derive(Clone, Copy, Default)]
struct State {
    /// Length at which its present segment began.
    seq_len: u32,
    segment: u32,
    /// Whether its PREFILL or DECODE is made and not completed.
    running: bool,
    /// Whether its STOP is made and not completed.
    stopping: bool,
    /// The versions that they name.
    version: u16,
    stop_version: u16,
}

struct Run<'a> {
    plan: &'a ReplayPlan,
    /// Where the life of each descriptor is kept, if it is.
    lives: Option<&'a mut Lives>,
    /// How many rollouts may be ready before further PREFILLs are made.
    ready_target: usize,
    states: Vec<State>,
    /// Next id that nothing was made for: a PREFILL, or without groups a rollout.
    fresh: u32,
    /// Rollouts to be continued.
    continued: VecDeque<u32>,
    /// Rollouts whose PREFILL is done.
    ready: VecDeque<u32>,
    prefills_running: usize,
    /// Groups that may be open in one queue pair (R17), and by queue pair those that are: not all that belongs to them has completed.
    most_groups: usize,
    open_groups: Vec<usize>,
    /// By request, the queue pair of its group, and what of the group has not ended: rollouts, its PREFILL, STOPs.
    homes: Vec<usize>,
    group_left: Vec<u32>,
    /// STOPs that wait, each with the count of made descriptors at which it is due.
    stops: VecDeque<(usize, u32)>,
    /// A STOP that follows at once.
    stop_now: Option<u32>,
    /// The request whose whole group is to be stopped at once.
    stop_group_now: Option<u32>,
    /// `user_data` of every descriptor made, in the order of submission.
    slots: Vec<u64>,
    submitted: u64,
    completions: Vec<HwCompletion>,
    owners: Vec<u32>,
    versions: Vec<u16>,
    progress: Progress,
    /// The newest version that is known to be resident.
    version: u16,
    /// Descriptors made and not completed that name it, and those that name an older one.
    naming: u64,
    naming_older: u64,
    /// Functions, by a queue pair of each, to which the next version's POLICY is yet to be sent.
    unsent: Vec<usize>,
    /// POLICYs of the next version that have no completion, those unsent included; 0 while none is published.
    publishing: usize,
    /// Completions that were not SUPERSEDED: else publishes could follow each other with nothing between them. And at how many of
    /// them the next one is due.
    ended: u64,
    publish_at: u64,
}

impl<'a> Run<'a> {
    fn new(plan: &'a ReplayPlan, capacity: usize) -> Self {
        let expected = plan.ids() as usize;
        Run {
            plan,
            lives: None,
            ready_target: 2 * capacity,
            states: vec![State::default(); expected],
            fresh: 0,
            continued: VecDeque::new(),
            ready: VecDeque::new(),
            prefills_running: 0,
            most_groups: usize::MAX,
            open_groups: Vec::new(),
            homes: Vec::new(),
            group_left: vec![0; if plan.opens_groups() { plan.requests() } else { 0 }],
            stops: VecDeque::new(),
            stop_now: None,
            stop_group_now: None,
            slots: Vec::with_capacity(expected),
            submitted: 0,
            completions: Vec::with_capacity(expected),
            owners: Vec::with_capacity(expected),
            versions: Vec::with_capacity(expected),
            progress: Progress::default(),
            version: 0,
            naming: 0,
            naming_older: 0,
            unsent: Vec::new(),
            publishing: 0,
            ended: 0,
            publish_at: plan.options().publish_every,
        }
    }

    fn drive(&mut self, device: &mut dyn Device, progress: &mut Told) -> Result<(), ReplayFailure> {
        let failed = |error| ReplayFailure::Device { error, waiting: None };
        let token_bytes = device.token_regions().iter().map(|region| region.bytes()).min().unwrap_or(0);
        if token_bytes < self.plan.token_bytes() {
            return Err(failed(DeviceError::Config {
                field: "token_bytes",
                value: token_bytes,
                expected: format!("at least {}, which the plan needs", self.plan.token_bytes()),
            }));
        }
        if self.plan.opens_groups() {
            self.most_groups = device.features().groups as usize;
            if self.most_groups == 0 {
                let expected = "a plan without groups, as the device has none".into();
                let value = self.plan.options().group.into();
                return Err(failed(DeviceError::Config { field: "group", value, expected }));
            }
            self.homes = (0..self.plan.requests() as u32)
                .map(|request| device.queue_of(&HwDesc::open_group(request, 0, 1)))
                .collect();
            self.open_groups = vec![0; self.homes.iter().max().map_or(0, |last| last + 1)];
        }
        if let Some(language) = self.plan.language() {
            self.plan.lay_out(device).map_err(failed)?;
            let policy = language.policy(self.plan.policy_offset());
            self.version = super::language::VERSION;
            self.publish_language(device, &policy)?;
        }
        let mut batch: Vec<HwDesc> = Vec::with_capacity(BATCH);
        let mut out = vec![HwCompletion::zeroed(); BATCH];
        loop {
            let mut taken = BATCH;
            self.publish(device).map_err(failed)?;
            while taken > 0 {
                batch.extend(std::iter::from_fn(|| self.make()).take(BATCH - batch.len()));
                taken = device.submit(&batch).map_err(failed)?;
                self.submitted += taken as u64;
                if let Some(lives) = &mut self.lives {
                    lives.submitted(taken);
                }
                batch.drain(..taken);
            }
            if !batch.is_empty() && device.in_flight() == 0 {
                return Err(failed(DeviceError::Protocol {
                    device: device.name().to_owned(),
                    rule: "R3",
                    what: "everything submitted has completed, and the submission queue is still full".into(),
                }));
            }
            if batch.is_empty() && device.in_flight() == 0 {
                return Ok(());
            }
            let count = device.poll(&mut out).map_err(failed)?;
            if let Some(lives) = &mut self.lives {
                lives.looked(device).map_err(failed)?;
            }
            for (place, completion) in out[..count].iter().enumerate() {
                let Err(failure) = self.take(completion, device) else { continue };
                // What came with it came all the same.
                if let Some(lives) = &mut self.lives {
                    let before = self.completions.len();
                    out[place..count].iter().for_each(|rest| lives.other(before, rest, device));
                }
                return Err(failure);
            }
            if count > 0 {
                self.progress.completions += count as u64;
                if progress(self.progress, self.watched(device)).is_break() {
                    return Err(ReplayFailure::Ended);
                }
            }
        }
    }

    /// This replay with the lives that it keeps, if it does.
    fn watched<'b>(&'b mut self, device: &'b mut dyn Device) -> Option<Watched<'b>> {
        let records = Records { plan: self.plan, names: &self.slots, completions: &self.completions };
        self.lives.as_deref_mut().map(|lives| Watched { lives, records, device })
    }

    /// The next descriptor to submit; `None` until completions bring more, or for good.
    fn make(&mut self) -> Option<HwDesc> {
        let stop = self.make_stop(false);
        // What names a version that is being retired would come back as it is.
        let desc = if stop.is_some() || self.publishing > 0 {
            stop
        } else {
            self.make_continuation().or_else(|| self.make_new())
        };
        // With nothing else to put between, a waiting STOP is due.
        let desc = desc.or_else(|| self.make_stop(true))?;
        self.slots.push(desc.user_data);
        let state = &mut self.states[desc.rollout_id as usize];
        let named =
            if desc.opcode == Opcode::Stop as u8 { &mut state.stop_version } else { &mut state.version };
        *named = self.version;
        if let Some(lives) = &mut self.lives {
            lives.made(state.seq_len, self.version);
        }
        self.naming += 1;
        Some(desc.with_version(self.version))
    }

    /// Whether the next version is due.
    fn publish_is_due(&self) -> bool {
        self.plan.publishes() && self.ended >= self.publish_at
    }

    /// Sends the POLICY of the next version to each function, once nothing names the version whose slot it takes, and no PREFILL
    /// the one that it retires (R19).
    fn publish(&mut self, device: &mut dyn Device) -> Result<(), DeviceError> {
        let free = self.naming_older == 0 && self.prefills_running == 0;
        if self.publishing == 0 && self.publish_is_due() && free && self.version < u16::MAX {
            self.unsent = device.functions();
            self.publishing = self.unsent.len();
            let header = self.plan.header(self.version + 1);
            let regions = device.token_regions();
            for &queue in &self.unsent {
                regions[queue].place_policy(self.plan.policy(0).delta_offset, &header)?;
            }
        }
        while let Some(&queue) = self.unsent.last() {
            let policy = self.plan.policy(self.version + 1);
            if !device.submit_to(queue, &policy)? {
                break;
            }
            if let Some(lives) = &mut self.lives {
                lives.policy(&policy);
            }
            self.submitted += 1;
            self.unsent.pop();
        }
        Ok(())
    }

    /// Publishes the language model to each function, before anything else.
    fn publish_language(&mut self, device: &mut dyn Device, policy: &HwDesc) -> Result<(), ReplayFailure> {
        let failed = |error| ReplayFailure::Device { error, waiting: Some(Box::new(*policy)) };
        let mut out = [HwCompletion::zeroed()];
        for queue in device.functions() {
            // Nothing else is under way.
            device.submit_to(queue, policy).map_err(failed)?;
            while device.poll(&mut out).map_err(failed)? == 0 {}
            if let Some(lives) = &mut self.lives {
                lives.policy(policy);
                lives.other(self.completions.len(), &out[0], device);
                lives.looked(device).map_err(failed)?;
            }
            if out[0].status != Status::Done as u8 {
                let code = ErrorCode::try_from(out[0].error).map_or("an unknown error", ErrorCode::name);
                return Err(failed(DeviceError::Protocol {
                    device: device.name().to_owned(),
                    rule: "R25",
                    what: format!("the POLICY of the language model ended with {code}"),
                }));
            }
        }
        Ok(())
    }

    /// Notes the completion of a POLICY.
    fn published(&mut self, completion: &HwCompletion, device: &dyn Device) -> Result<(), ReplayFailure> {
        if self.publishing == self.unsent.len() {
            return Err(ReplayFailure::Unasked { ordinal: self.completions.len(), completion: *completion });
        }
        if completion.status != Status::Done as u8 {
            let code = ErrorCode::try_from(completion.error).map_or("an unknown error", ErrorCode::name);
            let error = DeviceError::Protocol {
                device: device.name().to_owned(),
                rule: "R19",
                what: format!("the POLICY of version {} ended with {code}", self.version + 1),
            };
            return Err(ReplayFailure::Device { error, waiting: None });
        }
        self.publishing -= 1;
        if self.publishing == 0 {
            self.version += 1;
            self.naming_older += std::mem::take(&mut self.naming);
            self.publish_at = self.ended + self.plan.options().publish_every;
        }
        Ok(())
    }

    fn make_continuation(&mut self) -> Option<HwDesc> {
        let id = self.continued.pop_front()?;
        Some(self.make_decode(id))
    }

    /// A PREFILL if few rollouts are ready, so that none is waited for; else a rollout.
    fn make_new(&mut self) -> Option<HwDesc> {
        let plan = self.plan;
        let coming = self.ready.len() + self.prefills_running * plan.options().group as usize;
        let few = !plan.has_prefills() || coming < self.ready_target && !self.publish_is_due();
        if self.fresh < plan.ids() && few && self.may_open(plan.request_of(self.fresh)) {
            let id = self.fresh;
            self.fresh += plan.ids_per_request();
            if !plan.has_prefills() {
                return Some(self.begin(id));
            }
            if plan.opens_groups() {
                // R17: its members need not wait until it has completed.
                let request = plan.request_of(id);
                let stop = u32::from(plan.stops_group(request));
                self.group_left[request as usize] = 1 + plan.options().group + stop;
                self.open_groups[self.homes[request as usize]] += 1;
                self.ready.extend(id + 1..id + plan.ids_per_request());
            }
            self.states[id as usize].running = true;
            self.prefills_running += 1;
            return Some(plan.first(id));
        }
        let id = self.ready.pop_front()?;
        Some(self.begin(id))
    }

    /// Whether the group of a request can be opened (R17).
    fn may_open(&self, request: u32) -> bool {
        let home = self.homes.get(request as usize);
        home.is_none_or(|&home| self.open_groups[home] < self.most_groups)
    }

    /// So much of the group of a request has ended; once all of it has, another one may be opened.
    fn leave_group(&mut self, request: u32, count: u32) {
        let Some(left) = self.group_left.get_mut(request as usize).filter(|left| **left > 0) else { return };
        *left = left.saturating_sub(count);
        if *left == 0 {
            self.open_groups[self.homes[request as usize]] -= 1;
        }
    }

    fn begin(&mut self, id: u32) -> HwDesc {
        self.states[id as usize].seq_len = self.plan.first(id).seq_len;
        self.make_decode(id)
    }

    fn make_decode(&mut self, id: u32) -> HwDesc {
        let state = &mut self.states[id as usize];
        state.running = true;
        let request = self.plan.request_of(id);
        if self.plan.stops_group(request) {
            if (id + 1).is_multiple_of(self.plan.ids_per_request()) {
                self.stop_group_now = Some(request);
            }
        } else if self.plan.stop_after(id) == Some(state.segment) {
            if let Some(left) = self.group_left.get_mut(request as usize) {
                *left += 1;
            }
            if id.is_multiple_of(2) {
                self.stop_now = Some(id);
            } else {
                self.stops.push_back((self.slots.len() + STOP_DELAY, id));
            }
        }
        self.plan.decode(id, state.segment, state.seq_len)
    }

    /// A STOP that is due, or any that waits if `all` are.
    fn make_stop(&mut self, all: bool) -> Option<HwDesc> {
        if let Some(request) = self.stop_group_now.take() {
            let stop = self.plan.stop_group(request);
            self.states[stop.rollout_id as usize].stopping = true;
            return Some(stop);
        }
        let made = self.slots.len();
        let waits = self.stops.front().is_some_and(|&(due, _)| all || due <= made);
        let id = match self.stop_now.take() {
            Some(id) => id,
            None if waits => self.stops.pop_front()?.1,
            None => return None,
        };
        let state = &mut self.states[id as usize];
        state.stopping = true;
        Some(self.plan.stop(id, state.segment))
    }

    /// The DECODE or PREFILL of `id` that waits for its completion.
    fn running(&self, id: u32) -> Option<HwDesc> {
        let state = self.states.get(id as usize).filter(|state| state.running)?;
        let is_prefill = self.plan.is_prefill(id);
        let desc =
            if is_prefill { self.plan.first(id) } else { self.plan.decode(id, state.segment, state.seq_len) };
        Some(desc.with_version(state.version))
    }

    /// The STOP of `id` that waits for its completion.
    fn stopping(&self, id: u32) -> Option<HwDesc> {
        let state = self.states.get(id as usize).filter(|state| state.stopping)?;
        if self.plan.is_prefill(id) {
            return Some(self.plan.stop_group(self.plan.request_of(id)).with_version(state.stop_version));
        }
        Some(self.plan.stop(id, state.segment).with_version(state.stop_version))
    }

    /// The descriptor with this `user_data`, if it waits for its completion.
    fn waiting(&self, user_data: u64) -> Option<HwDesc> {
        let id = (user_data >> 32) as u32;
        let same = |desc: &HwDesc| desc.user_data == user_data;
        self.running(id).filter(same).or_else(|| self.stopping(id).filter(same))
    }

    /// The descriptor that has waited longest.
    fn oldest(&self) -> Option<HwDesc> {
        self.slots.iter().find_map(|&user_data| self.waiting(user_data))
    }

    /// The descriptor that a completion answers. Nothing in it is trusted: `user_data` finds the descriptor, or where
    /// that is wrong `rollout_id` does; a slot that could not be read has its own.
    fn asked(&self, completion: &HwCompletion, device: &dyn Device) -> Option<HwDesc> {
        let id = completion.rollout_id;
        let unread = device.unread(completion).map(|desc| desc.user_data);
        self.waiting(unread.unwrap_or(completion.user_data))
            .or_else(|| self.running(id))
            .or_else(|| self.stopping(id))
    }

    /// Records a completion under the rollout that it answers, and goes on from it. The comparison later shows which
    /// field is wrong.
    fn take(&mut self, completion: &HwCompletion, device: &dyn Device) -> Result<(), ReplayFailure> {
        if self.publishing > 0 && completion.user_data == self.plan.policy(self.version + 1).user_data {
            self.published(completion, device)?;
            if let Some(lives) = &mut self.lives {
                lives.other(self.completions.len(), completion, device);
            }
            return Ok(());
        }
        let Some(desc) = self.asked(completion, device) else {
            return Err(ReplayFailure::Unasked { ordinal: self.completions.len(), completion: *completion });
        };
        let id = desc.rollout_id;
        if let Some(lives) = self.lives.as_mut().filter(|_| desc.user_data != completion.user_data) {
            lives.renamed(self.completions.len(), desc.user_data);
        }
        self.completions.push(*completion);
        self.owners.push(id);
        self.versions.push(desc.policy_version);
        let naming =
            if desc.policy_version == self.version { &mut self.naming } else { &mut self.naming_older };
        *naming -= 1;
        self.ended += u64::from(completion.status != Status::Superseded as u8);
        let request = self.plan.request_of(id);
        if desc.opcode == Opcode::Stop as u8 {
            self.states[id as usize].stopping = false;
            self.leave_group(request, 1);
            return Ok(());
        }
        self.states[id as usize].running = false;
        let added = completion.final_seq_len.saturating_sub(desc.seq_len).min(desc.max_tokens);
        self.progress.tokens += u64::from(added);
        if desc.opcode == Opcode::Prefill as u8 {
            self.prefills_running -= 1;
            self.leave_group(request, 1);
            // Rollouts of a prefix that could not be registered have nothing to go on from.
            if completion.status == Status::Done as u8 && !self.plan.opens_groups() {
                self.ready.extend(id + 1..id + self.plan.ids_per_request());
            }
            return Ok(());
        }
        match self.plan.next(&desc, completion) {
            Some(next) if next.opcode == Opcode::Decode as u8 => {
                let state = &mut self.states[id as usize];
                state.seq_len = next.seq_len;
                state.segment += 1;
                self.continued.push_back(id);
            }
            _ => {
                self.progress.saved += u64::from(desc.max_tokens - added);
                self.leave_group(request, 1);
            }
        }
        Ok(())
    }
}
