//! Several models as one device.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use delegate::delegate;
use proptest::prelude::*;
use rstest::rstest;

use doorbell_contract::{
    CompletionFlags, Counter, ErrorCode, HwCompletion, HwDesc, HwEvent, Opcode, PREFIX_NONE, Status,
};
use doorbell_engine::{Ranges, RewardModel};
use doorbell_host::queue::COMPLETION_WORDS;
use doorbell_host::*;
use doorbell_host::{Driver, QueueConfig};
use doorbell_trace::Generator;
use doorbell_verify::ModelPlatform;
use doorbell_verify::compare::{Outcome, compare};
use doorbell_verify::model::Mutation;
use doorbell_verify::replay::{ReplayOptions, ReplayPlan};

mod common;
use common::Tampered;

/// What a shard was asked to do.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Event {
    Submit(Vec<HwDesc>),
    /// A poll that may have given it time.
    Poll,
}

type Log = Arc<Mutex<Vec<(usize, Event)>>>;

/// A model that logs.
struct Spy {
    model: Driver<ModelPlatform>,
    shard: usize,
    log: Log,
}

impl Spy {
    fn log(&self, event: Event) {
        self.log.lock().unwrap().push((self.shard, event));
    }
}

impl Device for Spy {
    fn submit(&mut self, batch: &[HwDesc]) -> Result<usize, DeviceError> {
        self.log(Event::Submit(batch.to_vec()));
        self.model.submit(batch)
    }

    fn poll(&mut self, out: &mut [HwCompletion]) -> Result<usize, DeviceError> {
        self.log(Event::Poll);
        self.model.poll(out)
    }

    delegate! {
        to self.model {
            fn name(&self) -> &str;
            fn collect(&mut self, out: &mut [HwCompletion]) -> Result<usize, DeviceError>;
            fn features(&self) -> Features;
            fn in_flight(&self) -> usize;
            fn capacity(&self) -> usize;
            fn room(&self) -> usize;
            fn tokens(&self, delta_offset: u64, out: &mut [u32]) -> Result<(), DeviceError>;
            fn token_regions(&self) -> Vec<TokenRegion>;
            fn token_shard(&self, delta_offset: u64) -> usize;
            fn counters(&mut self) -> Result<Counters, DeviceError>;
            fn disable(&mut self) -> Result<(), DeviceError>;
            fn enable(&mut self) -> Result<(), DeviceError>;
        }
    }
}

fn small() -> QueueConfig {
    QueueConfig { sq_depth: 16, cq_depth: 16, patience: 20, ..Default::default() }
}

fn model(config: &QueueConfig) -> Box<dyn Device> {
    Box::new(Driver::new(ModelPlatform::new(), config.clone()).unwrap())
}

fn models(count: usize, config: &QueueConfig) -> Sharded {
    Sharded::new("models", (0..count).map(|_| model(config)).collect()).unwrap()
}

fn spies(count: usize, config: &QueueConfig) -> (Sharded, Log) {
    let log = Log::default();
    let spy = |shard| -> Box<dyn Device> {
        let model = Driver::new(ModelPlatform::new(), config.clone()).unwrap();
        Box::new(Spy { model, shard, log: log.clone() })
    };
    (Sharded::new("spies", (0..count).map(spy).collect()).unwrap(), log)
}

/// A model with a fault, and one without.
fn half_broken(fault: &str) -> Sharded {
    let mutation: Mutation = fault.parse().unwrap();
    let broken = Driver::new(ModelPlatform::new().with_mutation(mutation), small()).unwrap();
    Sharded::new("half", vec![Box::new(broken), model(&small())]).unwrap()
}

/// A rollout, or a prefix, that falls to `shard` of `count`.
fn id_at(shard: usize, count: usize) -> u32 {
    (0..).find(|&id| models(count, &small()).shard_of(&HwDesc::stop(id)) == shard).unwrap()
}

fn drain(device: &mut dyn Device) -> Vec<HwCompletion> {
    let mut out = [HwCompletion::default(); 8];
    let mut all = Vec::new();
    while device.in_flight() > 0 {
        let taken = device.poll(&mut out).unwrap();
        all.extend_from_slice(&out[..taken]);
    }
    all
}

fn tokens(device: &dyn Device, delta_offset: u64, count: usize) -> Vec<u32> {
    let mut tokens = vec![0; count];
    device.tokens(delta_offset, &mut tokens).unwrap();
    tokens
}

#[test]
fn no_shards_are_no_device() {
    let error = Sharded::new("none", vec![]).err().unwrap();
    assert_eq!(error.to_string(), "shards is 0: it must be at least 1");
}

#[test]
fn r08_a_prefix_and_a_rollout_stay_together_and_runs_keep_their_order() {
    let (mut device, log) = spies(4, &QueueConfig::default());
    let members = |prefix: u32| (0..4).map(move |member| 100 * prefix + member);
    let decodes = (0..20)
        .flat_map(|prefix| members(prefix).map(move |id| HwDesc::decode(id, 0, 1).with_prefix(prefix)));
    // A STOP carries no prefix; without its DECODE in flight it would go by its rollout.
    let stops = (0..20).flat_map(|prefix| members(prefix).map(HwDesc::stop));
    let lone = (5000..5100).map(|id| HwDesc::decode(id, 0, 1));
    let batch: Vec<HwDesc> =
        decodes.chain(stops).chain(lone).zip(0..).map(|(desc, k)| desc.with_user_data(k)).collect();
    assert_eq!(device.submit(&batch).unwrap(), batch.len());

    let (mut prefixes, mut rollouts, mut used) = (HashMap::new(), HashMap::new(), HashSet::new());
    let log = log.lock().unwrap();
    for (shard, event) in &*log {
        let Event::Submit(run) = event else { continue };
        assert!(used.insert(*shard), "one doorbell for each shard");
        assert!(run.is_sorted_by_key(|desc| desc.user_data));
        for desc in run {
            assert_eq!(rollouts.entry(desc.rollout_id).or_insert(*shard), shard);
            if desc.prefix_id != PREFIX_NONE {
                assert_eq!(prefixes.entry(desc.prefix_id).or_insert(*shard), shard);
            }
        }
    }
    assert_eq!((used.len(), rollouts.len()), (4, 180), "every shard has its part");
}

#[test]
fn a_full_shard_ends_what_is_taken() {
    let (mut device, log) = spies(2, &QueueConfig { sq_depth: 2, ..small() });
    let (here, there) = (id_at(0, 2), id_at(1, 2));
    let batch = [here, here, there, here, there].map(HwDesc::stop);
    assert_eq!((device.capacity(), device.room()), (4, 2));
    assert_eq!(device.submit(&batch).unwrap(), 3, "the fourth has no room, and the fifth waits after it");
    assert_eq!((device.in_flight(), device.room()), (3, 0));
    assert_eq!(
        *log.lock().unwrap(),
        [(0, Event::Submit(batch[..2].to_vec())), (1, Event::Submit(batch[2..3].to_vec()))]
    );
    assert_eq!(device.submit(&batch[3..]).unwrap(), 0);
    assert_eq!(drain(&mut device).len(), 3);
    assert_eq!(device.submit(&batch[3..]).unwrap(), 2);
}

#[test]
fn completions_that_are_there_come_before_time_is_given() {
    let (mut device, log) = spies(3, &small());
    let (long, short) = (id_at(0, 3), id_at(1, 3));
    let mut batch = vec![HwDesc::decode(long, 0, 100_000).with_user_data(99)];
    batch.extend([HwDesc::stop(short); 8]);
    device.submit(&batch).unwrap();
    let mut out = [HwCompletion::default()];
    // Given time, the second completes a quarter of what it has.
    while device.poll(&mut out).unwrap() == 0 {}
    log.lock().unwrap().clear();
    assert_eq!(device.poll(&mut out).unwrap(), 1);
    assert_eq!((out[0].rollout_id, log.lock().unwrap().len()), (short, 0), "it was there");
    assert_eq!(drain(&mut device).len(), 7);
    let log = log.lock().unwrap();
    let polls = |shard| log.iter().filter(|entry| **entry == (shard, Event::Poll)).count();
    assert!(polls(0) > 0 && polls(1) > 0, "who has work gets time");
    assert_eq!(polls(2), 0, "who has none is not waited for");
}

#[test]
fn no_shard_starves_another() {
    let mut device = models(2, &QueueConfig { sq_depth: 64, cq_depth: 64, ..small() });
    let ids = [id_at(0, 2), id_at(1, 2)];
    device.submit(&ids.map(|id| [HwDesc::stop(id); 64]).concat()).unwrap();
    let mut out = [HwCompletion::default()];
    // Given time, each completes 16.
    for shard in 0..2 {
        assert_eq!(device.shard_mut(shard).poll(&mut out).unwrap(), 1);
    }
    for k in 0..30 {
        assert_eq!(device.poll(&mut out).unwrap(), 1);
        assert_eq!(out[0].rollout_id, ids[k % 2]);
    }
}

#[test]
fn a_rollout_that_has_completed_may_go_elsewhere() {
    let mut device = models(2, &small());
    let decode = |prefix| HwDesc::decode(7, 0, 1).with_prefix(prefix);
    for shard in [0, 1, 0] {
        assert_eq!(device.submit(&[decode(id_at(shard, 2))]).unwrap(), 1);
        assert_eq!(device.shard_mut(shard).in_flight(), 1);
        if shard == 1 {
            device.disable().unwrap();
            device.enable().unwrap();
        }
        drain(&mut device);
    }
}

#[test]
fn r15_a_shard_that_never_answers_is_named() {
    let mut device = half_broken("hang:0");
    device.submit(&[HwDesc::stop(id_at(0, 2)), HwDesc::stop(id_at(1, 2))]).unwrap();
    let mut out = [HwCompletion::default(); 4];
    let mut completed = 0;
    let error = (0..1000)
        .find_map(|_| device.poll(&mut out).map(|taken| completed += taken).err())
        .expect("R15: poll gives up at some time");
    assert_eq!(completed, 1);
    let text = error.to_string();
    assert!(text.starts_with("shard 0 (of 0 to 1): model: a completion did not happen within 20"), "{text}");
    // It can be started anew, and hangs again.
    device.disable().unwrap();
    assert_eq!(device.in_flight(), 0);
    assert!(device.poll(&mut out).unwrap_err().to_string().contains("is disabled"));
    device.enable().unwrap();
    assert_eq!(device.submit(&[HwDesc::stop(id_at(1, 2))]).unwrap(), 1);
    assert_eq!(drain(&mut device).len(), 1);
}

#[test]
fn a_failure_behind_completions_is_told_after_them() {
    let mut device = half_broken("completion:2:sq_head");
    // After this, it is the other shard's turn.
    device.submit(&[HwDesc::stop(id_at(0, 2))]).unwrap();
    drain(&mut device);
    device.submit(&[[HwDesc::stop(id_at(0, 2)); 12], [HwDesc::stop(id_at(1, 2)); 12]].concat()).unwrap();
    // Given time, each completes three.
    for shard in 0..2 {
        assert_eq!(device.shard_mut(shard).poll(&mut [HwCompletion::default()]).unwrap(), 1);
    }
    let mut out = [HwCompletion::default(); 4];
    assert_eq!(device.poll(&mut out).unwrap(), 2);
    let error = device.poll(&mut out).unwrap_err().to_string();
    assert!(error.starts_with("shard 0 (of 0 to 1): model broke R13"), "{error}");
}

#[test]
fn tokens_come_from_where_they_were_written() {
    let (mut device, mut single) = (models(3, &small()), model(&small()));
    let batch: Vec<HwDesc> =
        (0..8).map(|id| HwDesc::decode(id, 5, 10).with_delta_offset(40 * u64::from(id))).collect();
    for device in [&mut device as &mut dyn Device, &mut *single] {
        device.submit(&batch).unwrap();
        drain(device);
    }
    for (offset, count) in [(0, 80), (36, 2), (44, 30), (320, 10), (0, 0)] {
        assert_eq!(tokens(&device, offset, count), tokens(&*single, offset, count));
    }
    // Another shard writes over a part.
    let again = HwDesc::decode(id_at(2, 3), 90, 7).with_delta_offset(16);
    let again = [again, HwDesc { rollout_id: id_at(1, 3), delta_offset: 36, ..again }];
    for device in [&mut device as &mut dyn Device, &mut *single] {
        for desc in again {
            device.submit(&[desc]).unwrap();
            drain(device);
        }
    }
    assert_eq!(tokens(&device, 0, 90), tokens(&*single, 0, 90));
}

#[test]
fn other_threads_find_the_tokens_in_the_shard_that_wrote_them() {
    // A shard may be several, too.
    let inner = models(2, &small());
    let mut device = Sharded::new("nested", vec![model(&small()), Box::new(inner), model(&small())]).unwrap();
    let regions = device.token_regions();
    assert_eq!(regions.len(), 4);
    let batch: Vec<HwDesc> =
        (0..16).map(|id| HwDesc::decode(id, 5, 10).with_delta_offset(40 * u64::from(id))).collect();
    device.submit(&batch[..8]).unwrap();
    drain(&mut device);
    device.submit(&batch[8..]).unwrap();
    drain(&mut device);
    let mut used = HashSet::new();
    for desc in &batch {
        let shard = device.token_shard(desc.delta_offset + 36);
        assert_eq!(shard, device.token_shard(desc.delta_offset));
        used.insert(shard);
        let mut found = [0; 10];
        regions[shard].read(desc.delta_offset, &mut found).unwrap();
        assert_eq!(found.to_vec(), tokens(&device, desc.delta_offset, 10));
        assert!(found.iter().any(|&token| token != 0));
    }
    assert_eq!(used.len(), 4, "every region is used");
}

#[rstest]
#[case::misaligned(2, 1)]
#[case::beyond(1 << 20, 1)]
#[case::across_the_end((1 << 20) - 4, 2)]
#[case::wrapping(u64::MAX - 3, 4)]
fn tokens_outside_the_region_are_refused(#[case] offset: u64, #[case] count: usize) {
    let mut device = models(2, &small());
    // Descriptors that nobody executes leave no trace in what is read.
    let odd = [2, (1 << 20) - 4, u64::MAX - 3]
        .map(|offset| HwDesc::decode(id_at(1, 2), 0, 9).with_delta_offset(offset));
    assert_eq!(device.submit(&odd).unwrap(), 3);
    assert!(drain(&mut device).iter().all(|completion| completion.status == Status::Error as u8));
    assert!(matches!(device.tokens(offset, &mut vec![0; count]), Err(DeviceError::OutOfBounds { .. })));
    assert_eq!(tokens(&device, 0, 1 << 18), vec![0; 1 << 18]);
}

#[test]
fn counters_are_sums() {
    let mut device = models(3, &QueueConfig::default());
    device.submit(&(0..50).map(|id| HwDesc::decode(id, 0, 4)).collect::<Vec<_>>()).unwrap();
    drain(&mut device);
    let counters = device.counters().unwrap();
    assert_eq!((counters.get(Counter::Completions), counters.get(Counter::Tokens)), (50, 200));
}

#[rstest]
#[case::plain(ReplayOptions::default())]
#[case::groups(ReplayOptions { group: 4, checkpoint: 32, ..Default::default() })]
#[case::resident(ReplayOptions { checkpoint: 16, resident: true, reward_threshold: 20_000, ..Default::default() })]
#[case::stops(ReplayOptions { group: 2, checkpoint: 8, stop_every: 3, eos_threshold: 300, ..Default::default() })]
fn r06_sharded_models_agree_with_one(
    #[case] options: ReplayOptions,
    #[values(1, 2, 5)] count: usize,
    #[values(2, 64)] depth: u32,
) {
    let trace =
        Generator { output_median: 30, output_max: 200, ..Generator::new(60, 5, 3) }.generate().unwrap();
    let plan = ReplayPlan::new(&trace, options).unwrap();
    let config = QueueConfig { sq_depth: depth, cq_depth: depth, ..plan.queue_config() };
    let mut devices: Vec<Box<dyn Device>> = vec![model(&config), Box::new(models(count, &config))];
    let outcomes = compare(&plan, &mut devices, &|_, _| ControlFlow::Continue(()));
    assert!(outcomes.iter().all(Outcome::agrees), "{outcomes:#?}");
    assert_eq!(outcomes[0].completions, outcomes[1].completions);
}

/// Descriptors with token space and `user_data` of their own.
fn descriptors() -> impl Strategy<Value = Vec<HwDesc>> {
    let opcode = prop_oneof![
        4 => Just(Opcode::Decode as u8), 1 => Just(Opcode::Nop as u8), 1 => Just(Opcode::Prefill as u8),
        1 => Just(Opcode::Stop as u8), 1 => any::<u8>(),
    ];
    let prefix = prop_oneof![Just(PREFIX_NONE), 0u32..3];
    let desc = (opcode, 0u8..33, 0u32..12, prefix, 0u32..2000, 0u32..40, prop_oneof![Just(0u32), 1u32..40])
        .prop_map(|(opcode, flags, rollout_id, prefix_id, seq_len, max_tokens, checkpoint)| HwDesc {
            opcode,
            flags,
            prefix_id,
            checkpoint,
            ..HwDesc::decode(rollout_id, seq_len, max_tokens)
        });
    prop::collection::vec(desc, 1..150).prop_map(|descs| {
        // Whether a prefix is open, and what lies in memory, depends on what shares a queue pair: neither groups nor REWARD.
        let place = |(k, desc): (u64, HwDesc)| {
            let max_tokens = if desc.opcode == Opcode::Prefill as u8 { 0 } else { desc.max_tokens };
            let opcode = if desc.opcode == Opcode::Reward as u8 { Opcode::Nop as u8 } else { desc.opcode };
            // And no STOP of a whole group, which goes to its prefix whatever its rollout.
            HwDesc { max_tokens, opcode, member: 0, ..desc }.with_user_data(k).with_delta_offset(160 * k)
        };
        (0..).zip(descs).map(place).collect()
    })
}

proptest! {
    #[test]
    fn r06_any_descriptors_have_the_answers_of_one_device(
        descs in descriptors(),
        count in 1usize..6,
        (sq_log2, cq_log2) in (1u32..6, 1u32..6),
        batches in prop::collection::vec(1usize..40, 1..8),
        polls in prop::collection::vec(1usize..40, 1..8),
        eos_threshold in 0u32..2000,
    ) {
        let config = QueueConfig {
            sq_depth: 1 << sq_log2, cq_depth: 1 << cq_log2, eos_threshold, reward_threshold: 1 << 14, ..small()
        };
        let run = |device: &mut dyn Device| {
            let mut completions: Vec<HwCompletion> = Vec::new();
            let mut out = [HwCompletion::default(); 40];
            let mut left = &descs[..];
            for turn in 0.. {
                if completions.len() >= descs.len() {
                    break;
                }
                let batch = left.len().min(batches[turn % batches.len()]);
                left = &left[device.submit(&left[..batch]).unwrap()..];
                let taken = device.poll(&mut out[..polls[turn % polls.len()]]).unwrap();
                completions.extend_from_slice(&out[..taken]);
            }
            completions
        };
        let (mut single, mut sharded) = (model(&config), models(count, &config));
        let mut expected = run(&mut *single);
        let mut found = run(&mut sharded);
        prop_assert_eq!(sharded.in_flight(), 0);
        prop_assert!(sharded.rollouts_in_flight() == 0, "what has completed is forgotten");

        // R5: a rollout's completions come in its order.
        for id in 0..12 {
            let own = found.iter().filter(|completion| completion.rollout_id == id);
            prop_assert!(own.is_sorted_by_key(|completion| completion.user_data));
        }
        // R3: each exactly once.
        expected.sort_by_key(|completion| completion.user_data);
        found.sort_by_key(|completion| completion.user_data);
        let user_data: Vec<u64> = found.iter().map(|completion| completion.user_data).collect();
        prop_assert_eq!(user_data, (0..descs.len() as u64).collect::<Vec<_>>());

        let (all_expected, all_found) = (tokens(&*single, 0, 40 * descs.len()), tokens(&sharded, 0, 40 * descs.len()));
        for (k, desc) in descs.iter().enumerate() {
            // R8: a STOP may find a DECODE at another length.
            let cut = [&expected[k], &found[k]].iter().any(|end| end.status == Status::Stopped as u8);
            if !cut || desc.opcode != Opcode::Decode as u8 {
                prop_assert_eq!(found[k].without_timing(), expected[k].without_timing());
            }
            let produced = (expected[k].final_seq_len.min(found[k].final_seq_len) - desc.seq_len) as usize;
            let same = 40 * k..40 * k + if cut { produced } else { 40 };
            prop_assert_eq!(&all_found[same.clone()], &all_expected[same]);
        }
    }
}

const UNREAD: u64 = 0xDEAD;

/// Reports descriptors of `user_data` [`UNREAD`] as slots that the device could not read.
fn lose_unread(memory: &SharedMemory) {
    let slots = memory.slots::<COMPLETION_WORDS>(4096, 16).unwrap();
    for slot in 0..16 {
        let mut completion = HwCompletion::default();
        slots.load(slot, bytemuck::cast_mut(&mut completion));
        if completion.user_data == UNREAD {
            let unread = HwCompletion {
                result: completion.sq_head - 1,
                sq_head: completion.sq_head,
                status: Status::Error as u8,
                error: ErrorCode::DmaFault as u8,
                flags: CompletionFlags::NO_ECHO.bits(),
                ..HwCompletion::default()
            }
            .with_phase(completion.phase != 0);
            slots.store(slot, bytemuck::cast(unread));
        }
    }
}

/// Puts a completion in the queue that nobody asked for.
fn forge(memory: &SharedMemory) {
    let unasked = HwCompletion { sq_head: 1, ..HwCompletion::default() }.with_phase(true);
    memory.slots::<COMPLETION_WORDS>(4096, 16).unwrap().store(1, bytemuck::cast(unasked));
}

/// A model whose memory is tampered with, and one without.
fn half_tampered(scribble: fn(&SharedMemory)) -> Sharded {
    let first = Driver::new(Tampered { scribble: Some(scribble), ..Default::default() }, small()).unwrap();
    Sharded::new("half", vec![Box::new(first), model(&small())]).unwrap()
}

#[test]
fn r05_a_slot_that_could_not_be_read_ends_its_own_rollout_and_not_rollout_0() {
    let mut device = half_tampered(lose_unread);
    let other = (1..).find(|&id| device.shard_of(&HwDesc::stop(id)) == 0).unwrap();
    // A prefix of the other shard.
    let elsewhere = (0..)
        .find(|&id| device.shard_of(&HwDesc { rollout_id: other, ..HwDesc::prefill(id, 1) }) == 1)
        .unwrap();
    let long = HwDesc::decode(0, 0, 40_000);
    let lost = HwDesc::decode(other, 0, 3).with_user_data(UNREAD);
    assert_eq!((device.shard_of(&long), device.submit(&[lost, long]).unwrap()), (0, 2));
    let mut out = [HwCompletion::default(); 4];
    assert_eq!(device.poll(&mut out).unwrap(), 1);
    assert_eq!((out[0].error, out[0].result, out[0].rollout_id), (ErrorCode::DmaFault as u8, 0, 0));
    assert_eq!(device.unread(&out[0]).map(|desc| (desc.rollout_id, desc.user_data)), Some((other, UNREAD)));
    // Rollout 0 still runs, so that its STOP follows it; the other has ended.
    assert_eq!(device.rollouts_in_flight(), 1);
    assert_eq!(device.shard_of(&HwDesc::decode(0, 0, 1).with_prefix(elsewhere)), 0);
    assert_eq!(device.shard_of(&HwDesc::decode(other, 0, 1).with_prefix(elsewhere)), 1);
    drain(&mut device);
    assert_eq!(device.rollouts_in_flight(), 0);
}

#[test]
fn r03_a_shard_that_answers_too_much_is_told_behind_what_the_others_have_and_no_count_is_lost() {
    let mut device = half_tampered(forge);
    let (here, there) = (id_at(0, 2), id_at(1, 2));
    device
        .submit(&[
            HwDesc { rollout_id: here, ..HwDesc::nop() },
            HwDesc { rollout_id: there, ..HwDesc::nop() },
        ])
        .unwrap();
    let mut out = [HwCompletion::default(); 8];
    let (mut taken, mut failure) = (0, None);
    while failure.is_none() {
        match device.poll(&mut out) {
            Ok(more) => taken += more,
            Err(error) => failure = Some(error.to_string()),
        }
        assert!(device.in_flight() <= 2, "{} in flight", device.in_flight());
    }
    assert!(failure.is_some_and(|failure| failure.contains("2 completions for 1 descriptors")));
    assert!((1..=2).contains(&taken));
}

#[test]
fn waiting_ends_when_any_shard_has_something() {
    let soon = || Instant::now() + Duration::from_secs(60);
    let mut device = models(3, &QueueConfig { token_bytes: 4 << 20, ..small() });
    assert!(!device.wait(soon()).unwrap(), "nothing is in flight");
    let mut out = [HwCompletion::default(); 4];
    for shard in 0..3 {
        let id = id_at(shard, 3);
        device.submit(&[HwDesc::decode(id, 0, 100_000)]).unwrap();
        while !device.wait(soon()).unwrap() {}
        assert_eq!(device.collect(&mut out).unwrap(), 1);
        assert_eq!(out[0].rollout_id, id);
    }
    device.submit(&[HwDesc::decode(id_at(0, 3), 0, 100_000)]).unwrap();
    assert!(!device.wait(Instant::now()).unwrap(), "the deadline has passed");
    drain(&mut device);
}

#[test]
fn r15_waiting_for_a_shard_that_never_answers_is_a_timeout_that_names_it() {
    let mut device = half_broken("hang:0");
    device.submit(&[HwDesc { rollout_id: id_at(0, 2), ..HwDesc::nop() }]).unwrap();
    let error = device.wait(Instant::now() + Duration::from_secs(600)).unwrap_err();
    assert!(
        error.to_string().starts_with("shard 0 (of 0 to 1): model: a completion did not happen"),
        "{error}"
    );
}

/// R23: whose life an event tells, among queue pairs of one device that share a ring, and of devices that have each their own.
#[test]
fn r23_events_name_the_shard_whose_they_are() {
    let config = QueueConfig {
        event_slots: 64,
        life_events: true,
        sq_depth: 16,
        cq_depth: 16,
        ..QueueConfig::default()
    };
    let bytes = config.shared_bytes().unwrap();
    let division = Division { queues: 2, bytes, ..Division::default() };
    let ports = Ports::divide(ModelPlatform::with_queues(2, 1).unwrap(), &division).unwrap();
    let mut shards: Vec<Box<dyn Device>> =
        vec![Box::new(Driver::new(ModelPlatform::new(), config.clone()).unwrap())];
    for port in ports.take_all().unwrap() {
        shards.push(Box::new(Driver::new(port, config.clone()).unwrap()));
    }
    let mut device = Sharded::new("models", shards).unwrap();
    // So many that each has some, and the first shards' completions are long gone when their events are read.
    let mut shard_of = HashMap::new();
    let mut out = [HwCompletion::default(); 16];
    for user_data in 0..24u64 {
        let desc = HwDesc::decode(user_data as u32, 0, 2).with_user_data(user_data);
        shard_of.insert(user_data, device.shard_of(&desc));
        assert_eq!(device.submit(&[desc]).unwrap(), 1);
        while device.in_flight() > 0 {
            device.poll(&mut out).unwrap();
        }
    }
    let mut events = [HwEvent::default(); 64];
    let taken = device.events(&mut events).unwrap();
    let told: HashMap<u64, usize> = events[..taken]
        .iter()
        .map(|event| (device.answered(event).unwrap(), usize::from(event.queue_id)))
        .collect();
    assert_eq!(told, shard_of);
    assert_eq!(shard_of.values().collect::<HashSet<_>>().len(), 3, "each shard has some");
    assert_eq!(device.events(&mut events).unwrap(), 0);
    let nobody = HwEvent { queue_id: u8::MAX, ..events[0] };
    assert_eq!(device.answered(&nobody), None);
}

/// A shard that breaks the contract hides nothing of the other: its completions come once each and in order, and the error too.
#[test]
fn a_lost_shard_hides_no_completion_of_another() {
    let first = Driver::new(ModelPlatform::new(), small()).unwrap();
    let (memory, layout) = (first.memory().clone(), first.layout());
    let mut device = Sharded::new("two", vec![Box::new(first), model(&small())]).unwrap();
    let whole: Vec<u32> = (0..).filter(|&id| device.shard_of(&HwDesc::stop(id)) == 1).take(8).collect();
    let mut descs = vec![HwDesc::stop(id_at(0, 2))];
    descs.extend(whole.iter().map(|&id| HwDesc::stop(id)));
    assert_eq!(device.submit(&descs).unwrap(), 9);
    // Shard 0 answers what nobody asked (R3).
    let unasked = HwCompletion { sq_head: 7, ..HwCompletion::default() }.with_phase(true);
    memory.slots::<COMPLETION_WORDS>(layout.cq, 16).unwrap().store(0, bytemuck::cast(unasked));
    let (mut found, mut errors) = (vec![], 0);
    let mut out = [HwCompletion::default(); 3];
    for _ in 0..200 {
        match device.poll(&mut out) {
            Ok(taken) => found.extend(out[..taken].iter().map(|completion| completion.rollout_id)),
            Err(error) => {
                assert!(error.to_string().starts_with("shard 0"), "{error}");
                errors += 1;
            }
        }
    }
    assert_eq!(found, whole);
    assert!(errors > 0);
}

/// A REWARD scores the tokens that its range holds, wherever these were made: under another rollout, by another prefix, or by a rollout that went from
/// shard to shard.
#[test]
fn r06_a_reward_scores_the_tokens_of_its_range() {
    let mut device = models(2, &small());
    let (here, there) = (id_at(0, 2), id_at(1, 2));
    let mut out = [HwCompletion::default()];
    let mut run = |device: &mut Sharded, desc: HwDesc| {
        assert_eq!(device.submit(&[desc]).unwrap(), 1);
        while device.poll(&mut out).unwrap() == 0 {}
        assert_eq!(out[0].error, 0, "{desc:x?}");
        out[0]
    };
    let score = |device: &Sharded, from: u64, count: usize| {
        RewardModel::ALL[0].score(tokens(device, from, count), &Ranges::default())
    };
    let decode = |id: u32, from: u32, count: u32| {
        HwDesc::decode(id, from, count).with_delta_offset(256 + 4 * u64::from(from))
    };
    let reward = |id: u32, count: u32| HwDesc::reward(id, 0, count).with_delta_offset(256);
    run(&mut device, decode(there, 0, 20));
    let expected = score(&device, 256, 20);
    // Of another rollout; with a prefix of either shard; and of its own.
    for desc in [
        reward(here, 20),
        reward(there, 20).with_prefix(here),
        reward(here, 20).with_prefix(there),
        reward(there, 20),
    ] {
        assert_eq!(run(&mut device, desc).result, expected as u32, "{desc:x?}");
    }
    // It goes on on the other shard: what is scored lies on both.
    run(&mut device, decode(there, 20, 9).with_prefix(here));
    let expected = score(&device, 256, 29);
    for desc in [reward(here, 29), reward(there, 29), reward(here, 29).with_prefix(there)] {
        assert_eq!(run(&mut device, desc).result, expected as u32, "{desc:x?}");
    }
    // Its rollout is in flight on the shard that has not the tokens: R5 keeps it there.
    let long = HwDesc::decode(here, 0, 3000).with_delta_offset(4096);
    assert_eq!(device.submit(&[long, reward(here, 29)]).unwrap(), 2);
    let ends = drain(&mut device);
    assert_eq!((ends[0].final_seq_len, ends[1].result), (3000, expected as u32), "R5: {ends:?}");
    assert_eq!(device.rollouts_in_flight(), 0);
    // What no DECODE made, the host wrote where it is to be read: a REWARD goes where its prefix or its rollout leads, and nothing is copied over it.
    let words: Vec<u32> = (0..8).map(|k| 7 * k).collect();
    let expected = RewardModel::ALL[0].score(words.iter().copied(), &Ranges::default());
    device.token_regions()[1].write(1 << 16, &words).unwrap();
    let written = |id: u32| HwDesc::reward(id, 0, 8).with_delta_offset(1 << 16);
    for desc in [written(there), written(here).with_prefix(there)] {
        assert_eq!(run(&mut device, desc).result, expected as u32, "{desc:x?}");
    }
    let long = HwDesc::decode(there, 0, 3000).with_delta_offset(4096);
    assert_eq!(device.submit(&[long, written(there)]).unwrap(), 2);
    let ends = drain(&mut device);
    assert_eq!(ends[1].result, expected as u32, "{ends:?}");
    // A range that is rejected is not copied: the words behind it stay.
    let whole = HwDesc::reward(there, 0, u32::MAX).with_delta_offset(256);
    assert_eq!(device.submit(&[long, whole]).unwrap(), 2);
    assert_ne!(drain(&mut device)[1].error, 0);
    let mut kept = [0; 8];
    device.token_regions()[1].read(1 << 16, &mut kept).unwrap();
    assert_eq!(kept[..], words[..]);
    // What lies in no region is rejected as ever.
    device.submit(&[HwDesc::reward(here, 0, 8).with_delta_offset((1 << 20) - 4)]).unwrap();
    assert_eq!(drain(&mut device)[0].error, ErrorCode::BadRegion as u8);
}

/// A model whose event ring cannot be read.
struct NoEvents(Driver<ModelPlatform>);

impl Device for NoEvents {
    fn events(&mut self, _: &mut [HwEvent]) -> Result<usize, DeviceError> {
        Err(DeviceError::Failed { device: "no events".to_owned(), what: "its bus is gone".to_owned() })
    }

    delegate! {
        to self.0 {
            fn name(&self) -> &str;
            fn submit(&mut self, batch: &[HwDesc]) -> Result<usize, DeviceError>;
            fn poll(&mut self, out: &mut [HwCompletion]) -> Result<usize, DeviceError>;
            fn collect(&mut self, out: &mut [HwCompletion]) -> Result<usize, DeviceError>;
            fn features(&self) -> Features;
            fn in_flight(&self) -> usize;
            fn capacity(&self) -> usize;
            fn room(&self) -> usize;
            fn tokens(&self, delta_offset: u64, out: &mut [u32]) -> Result<(), DeviceError>;
            fn token_regions(&self) -> Vec<TokenRegion>;
            fn token_shard(&self, delta_offset: u64) -> usize;
            fn counters(&mut self) -> Result<Counters, DeviceError>;
            fn disable(&mut self) -> Result<(), DeviceError>;
            fn enable(&mut self) -> Result<(), DeviceError>;
        }
    }
}

/// R23: a shard that has failed hides no event of another.
#[test]
fn r23_a_lost_shard_hides_no_event_of_another() {
    let config = QueueConfig { event_slots: 64, life_events: true, ..small() };
    let first = NoEvents(Driver::new(ModelPlatform::new(), config.clone()).unwrap());
    let mut device = Sharded::new("two", vec![Box::new(first), model(&config)]).unwrap();
    device.submit(&[HwDesc::decode(id_at(1, 2), 0, 2)]).unwrap();
    drain(&mut device);
    let mut events = [HwEvent::default(); 8];
    assert_eq!(device.events(&mut events).unwrap(), 1);
    assert_eq!(events[0].queue_id, 1);
    // With nothing of the others it is told.
    let error = device.events(&mut events).unwrap_err();
    assert!(error.to_string().starts_with("shard 0"), "{error}");
}
