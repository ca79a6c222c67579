//! What other threads do keeps neither the hot thread nor the end of a run waiting.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use std::{fs, thread};

use doorbell_host::{Device, Driver, QueueConfig};
use doorbell_runtime::events::Clock;
use doorbell_runtime::kv::{PrefixConfig, Prefixes};
use doorbell_runtime::metrics::Metrics;
use doorbell_runtime::pipeline::{Discard, Feed, Inline, Options, Parts, Pipeline, RewardStage};
use doorbell_runtime::policy::PolicyKind;
use doorbell_runtime::reward::{
    Answer, AnswerMemory, DigestJudge, Judge, JudgeError, Pool, PoolError, PoolOptions, Prompts, Verdict,
};
use doorbell_runtime::trajectory::Spans;
use doorbell_trace::Request;
use doorbell_verify::ModelPlatform;

const SLOTS: u32 = 64;
/// Long enough for any machine: only a test that fails waits for it.
const PATIENCE: Duration = Duration::from_secs(30);

fn pipeline(rewards: impl FnOnce(AnswerMemory) -> Box<dyn RewardStage>) -> Pipeline {
    let options = Options { slots: SLOTS, max_output_tokens: 64, patience: PATIENCE, ..Options::default() };
    let config = QueueConfig { token_bytes: options.token_bytes(), ..QueueConfig::default() };
    let device: Box<dyn Device> = Box::new(Driver::new(ModelPlatform::new(), config).unwrap());
    let prompts = Prompts::new(SLOTS, 0);
    let kv = PrefixConfig { prefixes: SLOTS, branches: SLOTS, ..PrefixConfig::default() };
    let memory = AnswerMemory { tokens: device.token_regions(), prompts: prompts.clone() };
    let parts = Parts {
        device,
        sq_start: Some(0),
        policy: PolicyKind::Fifo.build(SLOTS),
        kv: Prefixes::new(kv).unwrap(),
        rewards: rewards(memory),
        prompts,
        trajectories: Box::new(Discard::new(SLOTS)),
        spans: Spans::new(SLOTS, 1),
        language: None,
        recorder: None,
        metrics: Arc::new(Metrics::new("test", Clock::simulated(), None)),
    };
    Pipeline::new(options, parts).unwrap()
}

fn requests(count: usize) -> Vec<Request> {
    vec![Request { arrival_ms: 0, prompt_tokens: 32, output_tokens: 64, prefix: vec![] }; count]
}

/// However many aborts are asked for, a turn answers a few, and the device gets its time.
#[test]
fn a_storm_of_aborts_does_not_stop_the_hot_thread() {
    let mut pipeline =
        pipeline(|memory| Box::new(Inline::new(memory, SLOTS, 64, |_| DigestJudge { threshold: 0 })));
    let mut handles = [pipeline.abort_handle(), pipeline.abort_handle()];
    let requests = requests(300);
    let (mut turns, mut answered) = (0, [0u64; 2]);
    pipeline
        .run(&mut Feed::new(&requests), |_| {
            turns += 1;
            assert!(turns < 100_000, "nothing else moves");
            let mut of_turn = 0;
            for (handle, answered) in handles.iter_mut().zip(&mut answered) {
                while handle.answer().is_some() {
                    of_turn += 1;
                    *answered += 1;
                }
                while handle.abort(1 << 40).is_ok() {}
            }
            assert!(of_turn <= 16, "{of_turn} in a turn");
            false
        })
        .unwrap();
    assert_eq!(pipeline.metrics().counters.values().rollouts_completed, 300);
    assert!(answered[0] > 16 && answered[0].abs_diff(answered[1]) <= 16, "in turn: {answered:?}");
}

/// The first judge hangs; so does, or panics, whoever makes another one, once `broken` says so.
struct Remote {
    hangs: Option<Arc<Mutex<Receiver<()>>>>,
}

impl Judge for Remote {
    fn score(&mut self, _: &Answer<'_>) -> Result<Verdict, JudgeError> {
        if let Some(gate) = &self.hangs {
            let _ = gate.lock().unwrap().recv();
        }
        Ok(Verdict { score: 0, proceed: false })
    }
}

fn hurried(judges: usize) -> PoolOptions {
    PoolOptions { judges, capacity: 64, deadline: Some(Duration::from_millis(250)), ..PoolOptions::default() }
}

/// The answers that a judge left behind go to the others, though no other judge can be made in its place.
#[test]
fn a_factory_that_hangs_or_panics_stops_nobody() {
    for panics in [false, true] {
        let broken = Arc::new(AtomicBool::new(false));
        let late = broken.clone();
        let (open, gate) = channel::<()>();
        let gate = Arc::new(Mutex::new(gate));
        let (open_factory, factory_gate) = channel::<()>();
        let mut pipeline = pipeline(move |memory| {
            let factory = move |number| {
                if late.load(Ordering::Relaxed) {
                    assert!(!panics, "its server is down");
                    let _ = factory_gate.recv();
                }
                Remote { hangs: (number == 0).then(|| gate.clone()) }
            };
            Box::new(Pool::start(hurried(4), &memory, factory).unwrap())
        });
        broken.store(true, Ordering::Relaxed);
        pipeline.run(&mut Feed::new(&requests(500)), |_| false).unwrap();
        assert_eq!(pipeline.metrics().counters.values().rollouts_completed, 500);
        let begun = Instant::now();
        pipeline.into_ends().rewards.shutdown(Duration::from_millis(100));
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        drop((open, open_factory));
    }
}

/// A pool whose judge cannot be made says so in time.
#[test]
fn a_factory_that_hangs_at_the_start_is_an_error() {
    let (open, gate) = channel::<()>();
    let memory = AnswerMemory { tokens: vec![], prompts: Prompts::new(1, 0) };
    let started = Pool::start(hurried(2), &memory, move |number| {
        if number == 1 {
            let _ = gate.recv();
        }
        Remote { hangs: None }
    });
    assert!(matches!(started, Err(PoolError::Making { judge: 1, .. })), "{started:?}");
    drop(open);
}

/// Voluntary context switches of threads of this process.
fn switches(threads: &HashSet<String>) -> u64 {
    let of = |thread: &String| {
        let status = fs::read_to_string(format!("/proc/{thread}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
        line.trim().parse::<u64>().unwrap()
    };
    threads.iter().map(of).sum()
}

/// Judges with nothing to do sleep until they are woken, however many there are.
#[test]
fn idle_judges_sleep() {
    let threads = Arc::new(Mutex::new(HashSet::new()));
    let note = threads.clone();
    let memory = AnswerMemory { tokens: vec![], prompts: Prompts::new(1, 0) };
    let options = PoolOptions { judges: 1000, capacity: 1, longest: 1, ..PoolOptions::default() };
    let pool = Pool::start(options, &memory, move |_| {
        let name = fs::read_link("/proc/thread-self").unwrap();
        note.lock().unwrap().insert(name.to_str().unwrap().to_owned());
        Remote { hangs: None }
    });
    let pool = pool.unwrap();
    let threads = threads.lock().unwrap().clone();
    assert_eq!(threads.len(), 1000);
    let begun = Instant::now();
    loop {
        let before = switches(&threads);
        thread::sleep(Duration::from_millis(50));
        if switches(&threads) == before {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "they wake all the time");
    }
    let end = Box::new(pool).shutdown(PATIENCE);
    assert!(end.faults.is_empty(), "{:?}", end.faults);
}

/// Sizes that do not fit each other are an error where they are set, and none of a run.
#[test]
fn sizes_are_checked_against_each_other() {
    let options = Options { slots: 64, max_output_tokens: 64, ..Options::default() };
    let parts = |token_bytes| {
        let config = QueueConfig { token_bytes, ..QueueConfig::default() };
        let device = Box::new(Driver::new(ModelPlatform::new(), config).unwrap());
        Parts::sized(&options, device, &requests(1), 4096, |memory| {
            Box::new(Inline::new(memory, 64, 64, |_| DigestJudge { threshold: 0 }))
        })
        .unwrap()
    };
    let fits = options.token_bytes();
    assert!(Pipeline::new(options.clone(), parts(fits)).is_ok());
    let refused = [
        ("token region", parts(fits / 2)),
        ("number of prompts", Parts { prompts: Prompts::new(4, 8), ..parts(fits) }),
        ("slots with spans", Parts { spans: Spans::new(4, 1), ..parts(fits) }),
    ];
    for (what, parts) in refused {
        let error = Pipeline::new(options.clone(), parts).err().expect(what).to_string();
        assert!(error.contains(what) && error.contains("at least"), "{error}");
    }
}
