//! A place of a group that is used again while a call of the group before waits for a judge.
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use doorbell_host::{Device, Driver, QueueConfig};
use doorbell_runtime::events::Clock;
use doorbell_runtime::kv::{PrefixConfig, Prefixes};
use doorbell_runtime::metrics::Metrics;
use doorbell_runtime::pipeline::{
    AbortAnswer, Next, Options, Parts, Pipeline, RewardStage, RuntimeError, Source, TrajectoryStage,
};
use doorbell_runtime::policy::PolicyKind;
use doorbell_runtime::reward::{
    GroupPostError, Judged, PostError, Prompts, Request as Ask, Shutdown, Verdict,
};
use doorbell_runtime::rollout::{RolloutId, State};
use doorbell_runtime::trajectory::{Finished, PostError as StorePostError, Spans, Stored, WriterError};
use doorbell_trace::Request;
use doorbell_verify::ModelPlatform;

/// Of each call of a judge: the request and the sample of each member.
type Calls = Arc<Mutex<Vec<Vec<(u64, u32)>>>>;

/// Full while it is shut, as a pool is whose judges have as many as they may. The score is the number of answers in the call.
struct Gate {
    open: Arc<AtomicBool>,
    judged: Vec<Judged>,
    calls: Calls,
}
impl RewardStage for Gate {
    fn post(&mut self, ask: Ask) -> Result<(), PostError> {
        self.post_group(&[ask]).map_err(|_| PostError::Full(ask))
    }
    fn post_group(&mut self, asks: &[Ask]) -> Result<(), GroupPostError> {
        if !self.open.load(Ordering::Relaxed) {
            return Err(GroupPostError::Full);
        }
        self.calls.lock().unwrap().push(asks.iter().map(|ask| (ask.request, ask.member)).collect());
        let verdict = Ok(Verdict { score: (asks.len() as i32) << 16, proceed: false });
        self.judged.extend(asks.iter().map(|ask| Judged {
            ticket: ask.ticket,
            rollout: ask.rollout,
            judge: 0,
            verdict,
        }));
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
        self.judged.len()
    }
    fn shutdown(self: Box<Self>, _: Duration) -> Shutdown {
        Shutdown::default()
    }
}

#[derive(Default)]
struct Note {
    waiting: Vec<RolloutId>,
    all: Arc<Mutex<Vec<Finished>>>,
}
impl TrajectoryStage for Note {
    fn post(&mut self, finished: Finished) -> Result<(), StorePostError> {
        self.waiting.push(finished.rollout);
        self.all.lock().unwrap().push(finished);
        Ok(())
    }
    fn stored(&mut self, out: &mut [RolloutId]) -> usize {
        let count = out.len().min(self.waiting.len());
        for (out, id) in out.iter_mut().zip(self.waiting.drain(..count)) {
            *out = id;
        }
        count
    }
    fn has_failed(&self) -> bool {
        false
    }
    fn finish(self: Box<Self>) -> Result<Stored, WriterError> {
        Ok(Stored::default())
    }
}

struct Some2 {
    requests: Vec<Request>,
    next: usize,
    allowed: usize,
    ends: bool,
}
impl Source for Some2 {
    fn next(&mut self) -> Next<'_> {
        match self.requests.get(self.next) {
            Some(request) if self.next < self.allowed => Next::Request(request),
            _ if self.ends => Next::End,
            _ => Next::Nothing,
        }
    }
    fn admitted(&mut self, _: u64) {
        self.next += 1;
    }
}

/// Group 1 is aborted in the queue behind group 0; group 2, which gets its place, is judged in one call of its own.
#[test]
fn a_group_does_not_inherit_the_call_of_the_one_before() {
    let options = Options {
        slots: 8,
        group: 4,
        judge_group: true,
        eos_stops: true,
        max_output_tokens: 2000,
        patience: Duration::from_secs(10),
        ..Options::default()
    };
    let config =
        QueueConfig { token_bytes: options.token_bytes(), eos_threshold: 100, ..QueueConfig::default() };
    let device: Box<dyn Device> = Box::new(Driver::new(ModelPlatform::new(), config).unwrap());
    let (open, calls, all) = (Arc::new(AtomicBool::new(false)), Arc::default(), Arc::default());
    let kv = PrefixConfig { prefixes: 8, branches: 8, answer_tokens: 2000, ..PrefixConfig::default() };
    let parts = Parts {
        device,
        sq_start: Some(0),
        policy: PolicyKind::Fifo.build(8),
        kv: Prefixes::new(kv).unwrap(),
        rewards: Box::new(Gate { open: open.clone(), judged: vec![], calls: Arc::clone(&calls) }),
        prompts: Prompts::new(8, 0),
        trajectories: Box::new(Note { waiting: vec![], all: Arc::clone(&all) }),
        spans: Spans::new(8, 1),
        language: None,
        recorder: None,
        metrics: Arc::new(Metrics::new("repro", Clock::simulated(), None)),
    };
    let mut pipeline = Pipeline::new(options, parts).unwrap();
    let mut aborts = pipeline.abort_handle();
    let request = Request { arrival_ms: 0, prompt_tokens: 32, output_tokens: 2000, prefix: vec![] };
    let mut source = Some2 { requests: vec![request; 3], next: 0, allowed: 2, ends: false };
    // Groups 0 and 1 have ended, and wait for a judge, who is busy.
    pipeline.run(&mut source, |p| p.occupancy().of(State::RewardPending) == 8).unwrap();
    let mut turns = 0;
    pipeline
        .run(&mut source, |_| {
            turns += 1;
            turns > 50
        })
        .unwrap();
    // The user aborts request 1, which gives its place back; request 2 gets it.
    aborts.abort(1).unwrap();
    pipeline.run(&mut source, |p| p.occupancy().of(State::Free) == 4).unwrap();
    assert_eq!(aborts.answer(), Some((1, AbortAnswer::Aborted(4))));
    source.allowed = 3;
    // The first of group 2's four answers is there, the others are not; then the judge is free.
    pipeline.run(&mut source, |p| p.occupancy().of(State::RewardPending) == 5).unwrap();
    open.store(true, Ordering::Relaxed);
    source.ends = true;
    pipeline.run(&mut source, |_| false).unwrap();
    let whole = |request| (0..4).map(|member| (request, member)).collect::<Vec<_>>();
    assert_eq!(*calls.lock().unwrap(), [whole(0), whole(2)]);
    let stored = all.lock().unwrap();
    assert_eq!(stored.len(), 8);
    assert!(stored.iter().all(|finished| finished.score == 4 << 16), "each was judged among four");
}
