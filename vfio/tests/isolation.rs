//! What a hostile client costs its neighbour, in cycles of the RTL that is served to both: never more than R28 says (docs/contract.md,
//! what carries the isolation).

mod common;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use doorbell_contract::{HwCompletion, HwDesc, Place, Register};
use doorbell_cosim::{RtlConfig, RtlPlatform};
use doorbell_host::{Device, DeviceError, FunctionMemory, Move, Pages, Platform, QueueConfig, SharedMemory};
use rstest::rstest;

use common::Served;
use common::rage::{Draw, rage};

/// BID of completions of queue pair 0, which is the neighbour's.
const NEIGHBOURS: u32 = 16;
/// Of NOPs, and of DECODEs by their tokens: nothing, one line, four lines.
const SIZES: [u32; 3] = [0, 16, 64];

/// When what the neighbour published came to its turn, and ended.
#[derive(Default)]
struct Log {
    published: Option<u64>,
    /// Cycles from the write of DOORBELL to the response of the completion, of the descriptor that is under way.
    span: Option<i64>,
}

/// The RTL, whose clock is read at both ends of what the neighbour publishes.
struct Clocked {
    device: RtlPlatform,
    log: Arc<Mutex<Log>>,
    /// Gives every function all workers, whatever the server wants.
    shares_workers: bool,
}

impl Clocked {
    fn look(&mut self) {
        let mut log = self.log.lock().unwrap();
        for moment in self.device.take_moments() {
            if moment.id == NEIGHBOURS
                && moment.count > 0
                && let Some(published) = log.published.take()
            {
                // The memory counts cycles from the end of the device's reset on: that is in every span alike.
                log.span = Some(moment.cycle as i64 - published as i64);
            }
        }
    }
}

impl Platform for Clocked {
    fn name(&self) -> &str {
        self.device.name()
    }

    fn map(&mut self, bytes: usize) -> Result<SharedMemory, DeviceError> {
        self.device.map(bytes)
    }

    fn write_register(&mut self, register: Register, value: u32) -> Result<(), DeviceError> {
        self.write_at(Place::FIRST, register, value)
    }

    fn read_register(&mut self, register: Register) -> Result<u32, DeviceError> {
        self.read_at(Place::FIRST, register)
    }

    fn advance(&mut self, want: usize) -> Result<(), DeviceError> {
        let advanced = self.device.advance(want);
        self.look();
        advanced
    }
}

impl Pages for Clocked {
    fn write_at(&mut self, place: Place, register: Register, value: u32) -> Result<(), DeviceError> {
        if (register, place.queue) == (Register::Doorbell, 0) {
            self.log.lock().unwrap().published = Some(self.device.cycles());
        }
        let all = register == Register::FnWorkers && self.shares_workers;
        let written = self.device.write_at(place, register, if all { 0xF } else { value });
        self.look();
        written
    }

    fn read_at(&mut self, place: Place, register: Register) -> Result<u32, DeviceError> {
        let read = self.device.read_at(place, register);
        self.look();
        read
    }
}

impl FunctionMemory for Clocked {
    fn map_range(&mut self, function: u8, memory: SharedMemory, writable: bool) {
        self.device.map_range(function, memory, writable);
    }

    fn unmap_range(&mut self, function: u8, address: u64, bytes: u64) {
        self.device.unmap_range(function, address, bytes);
    }

    fn set_bus_master(&mut self, function: u8, may: bool) {
        self.device.set_bus_master(function, may);
    }

    fn refused_accesses(&self, function: u8) -> u64 {
        self.device.refused_accesses(function)
    }

    fn messages(&self, queue: u8) -> u64 {
        FunctionMemory::messages(&self.device, queue)
    }

    fn take_moves(&mut self) -> Vec<Move> {
        self.device.take_moves()
    }
}

/// Two functions with two workers and two queue pairs each.
fn serve(shares_workers: bool) -> (Served, Arc<Mutex<Log>>) {
    let config = RtlConfig {
        workers: 4,
        queues: 4,
        functions: 2,
        by_function: true,
        moments: true,
        slice: common::SLICE,
        ..RtlConfig::default()
    };
    let log: Arc<Mutex<Log>> = Arc::default();
    let device = Clocked { device: RtlPlatform::new(&config).unwrap(), log: log.clone(), shares_workers };
    (Served::new(device, 2), log)
}

/// The neighbour sends one descriptor after the other until `over`; the longest span of each size, in cycles, and how many there were.
fn longest(served: &Served, log: &Mutex<Log>, over: &dyn Fn(u32) -> bool) -> (BTreeMap<u32, i64>, u32) {
    let mut driver = served.driver(0, QueueConfig { sq_depth: 8, cq_depth: 8, ..QueueConfig::default() });
    let mut out = [HwCompletion::default(); 8];
    let mut spans = BTreeMap::new();
    let mut count = 0;
    while !over(count) {
        let tokens = SIZES[count as usize % SIZES.len()];
        let desc = if tokens == 0 { HwDesc::nop() } else { HwDesc::decode(count, 0, tokens) };
        assert_eq!(driver.submit(&[desc]).unwrap(), 1);
        let deadline = Instant::now() + Duration::from_secs(20);
        while driver.poll(&mut out).unwrap() == 0 {
            assert!(Instant::now() < deadline, "descriptor {count} does not end");
        }
        // CQ_HEAD is posted: behind this answer the server has looked at the clock.
        driver.read(Register::State).unwrap();
        let span = log.lock().unwrap().span.take().expect("the clock at its end");
        let longest = spans.entry(tokens).or_insert(span);
        *longest = span.max(*longest);
        count += 1;
    }
    (spans, count)
}

/// What R28 allows the other function to cost a descriptor of so many tokens, in cycles, where the bus takes everything at once (K = 1).
/// The other has two queue pairs of weight 1 and two workers, and the fetch depth of 128 is divided among four queue pairs.
fn bound(tokens: u32) -> i64 {
    let (queues, workers, weights, k, p) = (2, 2, 2, 1, 128 / 4);
    let (u, eighths) = (11 * k, (queues + 7) / 8);
    let nop = (queues + 3 + 2 * eighths) * k + weights * (p / 8) + queues + workers + (workers + 5) * u + 32;
    // This memory answers reads in the order of their addresses.
    let reads = queues * p;
    nop + reads + i64::from(tokens.div_ceil(16)) * (workers + 1) * u
}

/// A client that keeps to everything, and sends as much as it can: NOPs and DECODEs of up to `most` tokens, each with an interrupt.
fn flood(served: &Served, most: u32, over: &AtomicBool) -> u32 {
    let mut driver = served.driver(1, QueueConfig { sq_depth: 256, cq_depth: 256, ..QueueConfig::default() });
    let mut out = [HwCompletion::default(); 64];
    let (mut sent, mut done) = (0, 0);
    while !over.load(Ordering::Acquire) {
        let descs: Vec<HwDesc> = (sent..sent + 64)
            .map(|k| if k % 2 == 0 { HwDesc::nop() } else { HwDesc::decode(k, 0, 1 + k % most) })
            .map(|desc| HwDesc { flags: 8, ..desc })
            .collect();
        sent += driver.submit(&descs).unwrap() as u32;
        done += driver.poll(&mut out).unwrap() as u32;
    }
    done
}

/// How much longer each size takes at most beside another client than alone, and what R28 allows.
fn extra(alone: &BTreeMap<u32, i64>, beside: &BTreeMap<u32, i64>) -> Vec<(u32, i64, i64)> {
    alone.iter().map(|(&tokens, &span)| (tokens, beside[&tokens] - span, bound(tokens))).collect()
}

#[rstest]
fn a_hostile_neighbour_costs_no_more_cycles_than_r28_allows(#[values("fuzz", "flood")] how: &str) {
    let writes: u64 = std::env::var("DOORBELL_HOSTILE").map_or(6_000, |text| text.parse().expect("a number"));
    let seed: u64 = std::env::var("DOORBELL_SEED").map_or(1, |text| text.parse().expect("a number"));
    println!("DOORBELL_SEED={seed} DOORBELL_HOSTILE={writes}");
    let (served, log) = serve(false);
    let (alone, _) = longest(&served, &log, &|count| count >= 60);
    let over = AtomicBool::new(false);
    let beside = std::thread::scope(|scope| {
        let (served, over) = (&served, &over);
        let hostile = scope.spawn(move || match how {
            "fuzz" => {
                // Its weights stay those of the bound.
                rage(served, writes, &mut Draw(seed), &[Register::Weight]);
                over.store(true, Ordering::Release);
                0
            }
            _ => flood(served, 16, over),
        });
        let enough = |count| match how {
            "fuzz" => count >= 60 && over.load(Ordering::Acquire) || hostile.is_finished(),
            _ => u64::from(count) >= writes.min(100_000),
        };
        let (spans, count) = longest(served, &log, &enough);
        over.store(true, Ordering::Release);
        let done = hostile.join().expect("the other client was served");
        println!("{how}: {count} descriptors of the neighbour, {done} of the other");
        spans
    });
    println!("{how}: alone {alone:?}, beside the other {beside:?}");
    for (tokens, extra, allowed) in extra(&alone, &beside) {
        println!("{how}: {tokens} tokens: {extra} cycles more, allowed {allowed}");
        assert!(
            extra <= allowed,
            "{tokens} tokens took {extra} cycles more than alone; R28 allows {allowed}"
        );
    }
    served.end();
}

/// The bound can be missed: with the other's workers shared, its DECODEs are waited for.
#[test]
fn functions_that_share_workers_cost_each_other_more() {
    let (served, log) = serve(true);
    let (alone, _) = longest(&served, &log, &|count| count >= 60);
    let over = AtomicBool::new(false);
    let beside = std::thread::scope(|scope| {
        scope.spawn(|| flood(&served, 1000, &over));
        let (spans, _) = longest(&served, &log, &|count| count >= 600);
        over.store(true, Ordering::Release);
        spans
    });
    let extra = extra(&alone, &beside);
    assert!(extra.iter().any(|&(_, extra, allowed)| extra > allowed), "{extra:?}");
    served.end();
}
