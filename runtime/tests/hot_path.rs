//! What the hot thread does beside its work, counted: nothing. One test only, as the counts are the thread's.

use std::sync::Arc;

use doorbell_engine::RewardModel;
use doorbell_guard::{CountingAllocator, thread_counts};
use doorbell_host::{Device, Division, Driver, Ports, QueueConfig, Sharded};
use doorbell_runtime::events::{Clock, Collector};
use doorbell_runtime::kv::{PrefixConfig, Prefixes};
use doorbell_runtime::metrics::Metrics;
use doorbell_runtime::pipeline::{Discard, Feed, Inline, Options, Parts, Pipeline, RewardStage};
use doorbell_runtime::policy::PolicyKind;
use doorbell_runtime::reward::{AnswerMemory, DeviceRewards, DigestJudge, Prompts, QueueRewards, Scale};
use doorbell_runtime::trajectory::Spans;
use doorbell_trace::Generator;
use doorbell_verify::ModelPlatform;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

const SLOTS: u32 = 64;

/// Who scores.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Judges {
    Host,
    /// REWARDs on the rollouts' own queue pairs.
    Own,
    /// And on queue pairs beside them.
    Beside,
}

/// On one queue pair and on three that are one device, with every policy, groups, checkpoints, aborts and events, scored by the host
/// or by the device: once every slot has been used, nothing is allocated any more.
#[test]
fn after_the_warm_up_the_hot_thread_allocates_nothing() {
    let requests = Generator { output_median: 40, ..Generator::new(2000, 5, 1) }.generate().unwrap().requests;
    let longest = requests.iter().map(|request| request.output_tokens).max().unwrap();
    let policies =
        [1, 3].into_iter().flat_map(|shards| PolicyKind::ALL.map(|policy| (shards, policy, Judges::Host)));
    let scored = [(1, Judges::Own), (3, Judges::Own), (2, Judges::Beside), (3, Judges::Beside)];
    let scored = scored.map(|(shards, judges)| (shards, PolicyKind::Fifo, judges));
    for (shards, policy, judges) in policies.chain(scored) {
        let options = Options {
            slots: SLOTS,
            group: 4,
            checkpoint: 16,
            abort_every: 7,
            max_output_tokens: longest,
            ..Options::default()
        };
        let config = QueueConfig {
            token_bytes: options.token_bytes(),
            sq_depth: 64,
            cq_depth: 64,
            ..QueueConfig::default()
        };
        let (mut drivers, mut beside): (Vec<Box<dyn Device>>, Vec<_>) = (vec![], vec![]);
        for _ in 0..shards {
            let division =
                Division { queues: 2, row: 2, bytes: config.shared_bytes().unwrap(), ..Division::default() };
            let ports = Ports::divide(ModelPlatform::with_queues(2, 1).unwrap(), &division).unwrap();
            let driver = Driver::new(ports.take(0).unwrap(), config.clone()).unwrap();
            if judges == Judges::Beside {
                let tokens = driver.token_regions().remove(0);
                let reward = Driver::over(ports.take(1).unwrap(), config.clone(), tokens).unwrap();
                beside.push(Box::new(reward) as Box<dyn Device>);
            }
            drivers.push(match judges {
                Judges::Beside => Box::new(driver),
                _ => Box::new(Driver::new(ModelPlatform::new(), config.clone()).unwrap()),
            });
        }
        let device: Box<dyn Device> =
            if shards == 1 { drivers.remove(0) } else { Box::new(Sharded::new("models", drivers).unwrap()) };
        let kv = PrefixConfig {
            prefixes: SLOTS,
            branches: SLOTS,
            prompt_tokens: 1 << 17,
            answer_tokens: longest,
            blocks: 1 << 14,
            ..PrefixConfig::default()
        };
        let clock = Clock::new();
        let (_collector, recorder) = Collector::new(clock.clone(), SLOTS, 1024);
        let prompts = Prompts::new(SLOTS, 256);
        let memory = AnswerMemory { tokens: device.token_regions(), prompts: prompts.clone() };
        let scale = Scale { model: RewardModel::Digest, threshold: 3000 };
        let rewards: Box<dyn RewardStage> = match judges {
            Judges::Host => {
                Box::new(Inline::new(memory, SLOTS, longest, |_| DigestJudge { threshold: 3000 }))
            }
            Judges::Own => {
                Box::new(DeviceRewards::new(device.name(), device.features(), SLOTS, scale).unwrap())
            }
            Judges::Beside => Box::new(QueueRewards::new(beside, SLOTS, scale).unwrap()),
        };
        let parts = Parts {
            sq_start: (shards == 1).then_some(0),
            policy: policy.build(SLOTS),
            kv: Prefixes::new(kv).unwrap(),
            rewards,
            prompts,
            trajectories: Box::new(Discard::new(SLOTS)),
            spans: Spans::new(SLOTS, 1),
            language: None,
            recorder: Some(recorder),
            metrics: Arc::new(Metrics::new("test", clock, None)),
            device,
        };
        let mut pipeline = Pipeline::new(options, parts).unwrap();
        let mut feed = Feed::new(&requests);
        pipeline.run(&mut feed, |pipeline| pipeline.admitted() >= 500).unwrap();
        let before = thread_counts();
        pipeline.run(&mut feed, |_| false).unwrap();
        let counts = thread_counts() - before;
        assert_eq!((counts.allocations, counts.frees), (0, 0), "{shards} queue pairs, {policy}, {judges:?}");
        assert!(pipeline.is_idle());
    }
}
