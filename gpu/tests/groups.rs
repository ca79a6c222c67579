//! Random groups on several queue pairs at once (R17): members that end, go on behind checkpoints, are stopped, fail, never
//! come or come late, and groups that are stopped as a whole. The host waits for nothing but what the rules ask it to. On the
//! kernel's own text on the CPU, calm and weak, and on a GPU, where there is one. `DOORBELL_GROUPS` sets how many groups in
//! all, `DOORBELL_QUEUES` on how many queue pairs of a GPU (default 16), `DOORBELL_SEED` the seed, `DOORBELL_GPU` the GPU.

use std::collections::HashMap;
use std::sync::Arc;
use std::thread;

use doorbell_contract::{
    CompletionFlags, DescFlags, HwCompletion, HwDesc, MEMBER_NONE, Opcode, Register, Status,
};
use doorbell_gpu::{Engine, GpuDevice, GpuOptions};
use doorbell_gpu_cpu::{CpuKernel, Options};
use doorbell_host::{Device, DeviceError, Division, Driver, Ports, QueueConfig, QueuePort};
use doorbell_verify::groups::GroupJudge;
use doorbell_verify::oracle::Oracle;
use libtest_mimic::{Arguments, Failed, Trial};

/// Groups of a run, if nobody asks for another number: on the CPU, and on a GPU.
const GROUPS: [u64; 2] = [150, 100_000];
/// Slots of the submission queue.
const DEPTH: u32 = 256;
/// Token space of a descriptor, in tokens: the longest has so many.
const SPACE: u32 = 64;

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a number"))
}

/// splitmix64 of S. Vigna (public domain).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((((z ^ z >> 31) & 0xFFFF_FFFF) * u64::from(bound)) >> 32) as u32
    }
}

/// A group as its host knows it.
struct Life {
    prefix: u32,
    members: u32,
    /// Its descriptors without a completion.
    pending: u32,
    /// GROUP_DONE has been seen.
    done: bool,
}

/// A host of one queue pair.
struct Host {
    random: Random,
    /// In the order in which they were opened. An entry is free again once a group is done and nothing of it is pending.
    lives: Vec<Life>,
    entries: usize,
    opened: u64,
    goal: u64,
    /// Prefixes of groups that are gone: one is opened anew now and then.
    gone: Vec<u32>,
    /// What goes on behind its checkpoint.
    due: Vec<HwDesc>,
}

impl Host {
    fn life(&mut self, prefix: u32) -> Option<&mut Life> {
        self.lives.iter_mut().find(|life| life.prefix == prefix)
    }

    /// The next descriptor, if there is one before completions come.
    fn draw(&mut self) -> Option<HwDesc> {
        if let Some(desc) = self.due.pop() {
            return Some(desc);
        }
        let kind = self.random.below(100);
        let wants = self.opened < self.goal && self.lives.len() < self.entries;
        if wants && (self.lives.is_empty() || kind < 12) {
            let members = match self.random.below(4) {
                0 => 1,
                1 if self.random.below(4) == 0 => 64,
                _ => 2 + self.random.below(7),
            };
            self.opened += 1;
            let prefix = match self.random.below(3) {
                0 => self.gone.pop(),
                _ => None,
            };
            let prefix = prefix.unwrap_or(self.opened as u32);
            self.lives.push(Life { prefix, members, pending: 0, done: false });
            return Some(HwDesc {
                rollout_id: prefix << 8 | 0xFF,
                ..HwDesc::open_group(prefix, 64, members)
            });
        }
        if self.lives.is_empty() {
            return None;
        }
        // The oldest more often than the others: groups are to close.
        let at = if kind.is_multiple_of(2) { 0 } else { self.random.below(self.lives.len() as u32) as usize };
        let (prefix, members) = (self.lives[at].prefix, self.lives[at].members);
        let k = match self.random.below(14) {
            0 => members as u16,
            1 => MEMBER_NONE,
            _ => self.random.below(members) as u16,
        };
        let length =
            if self.random.below(2) == 0 { 1 + self.random.below(4) } else { 1 + self.random.below(40) };
        let desc = HwDesc::decode(prefix << 8 | u32::from(k & 0xFF), 64, length).with_member(prefix, k);
        Some(match self.random.below(100) {
            0..50 => desc,
            50..64 => desc.with_checkpoint(1 + self.random.below(20)),
            64..70 => HwDesc { max_tokens: 0, ..desc },
            70..73 => HwDesc { flags: desc.flags | DescFlags::FENCE.bits(), ..desc },
            73..77 => HwDesc { flags: desc.flags | DescFlags::EOS_STOPS.bits(), ..desc },
            77..80 => HwDesc::nop(),
            80..96 => HwDesc::stop(desc.rollout_id).with_member(prefix, k),
            _ => HwDesc::stop_group(prefix),
        })
    }
}

fn grouped(desc: &HwDesc) -> bool {
    desc.flags & DescFlags::COW_PREFIX.bits() != 0 || desc.opcode == Opcode::Prefill as u8
}

/// So many groups on one queue pair, judged completion by completion.
fn run(driver: &mut Driver<QueuePort<GpuDevice>>, seed: u64, groups: u64) -> Result<(), String> {
    let failed = |error: DeviceError| error.to_string();
    let entries = driver.read(Register::CapGroups).map_err(failed)? as usize;
    let oracle = Oracle::new(driver.config());
    let mut host = Host {
        random: Random(seed),
        lives: Vec::new(),
        entries,
        opened: 0,
        goal: groups,
        gone: Vec::new(),
        due: Vec::new(),
    };
    let mut judge = GroupJudge::default();
    let mut flying: HashMap<u64, HwDesc> = HashMap::new();
    let mut next = 0u64;
    let mut batch: Vec<HwDesc> = Vec::new();
    let mut out = vec![HwCompletion::default(); 64];
    while judge.closed() < groups || !flying.is_empty() {
        let over = judge.closed() >= groups;
        if batch.is_empty() && !over && flying.len() < DEPTH as usize {
            for _ in 0..1 + host.random.below(50) {
                let Some(desc) = host.draw() else { break };
                let offset = 4 * u64::from(SPACE) * (next % u64::from(4 * DEPTH));
                let desc = HwDesc { delta_offset: offset, ..desc }.with_user_data(next);
                if grouped(&desc)
                    && let Some(life) = host.life(desc.prefix_id)
                {
                    life.pending += 1;
                }
                judge.submitted(&desc);
                flying.insert(next, desc);
                batch.push(desc);
                next += 1;
            }
        }
        let taken = driver.submit(&batch).map_err(failed)?;
        batch.drain(..taken);
        let mut fresh = driver.collect(&mut out).map_err(failed)?;
        if taken + fresh == 0 && !flying.is_empty() {
            fresh = driver.poll(&mut out).map_err(failed)?;
        }
        for completion in &out[..fresh] {
            let desc = flying.remove(&completion.user_data).ok_or_else(|| format!("R3: {completion:x?}"))?;
            judge.completed(&desc, completion)?;
            let length = completion.final_seq_len.wrapping_sub(desc.seq_len);
            let stopped = desc.opcode == Opcode::Decode as u8 && completion.status == Status::Stopped as u8;
            let expected =
                if stopped { oracle.cut(&desc, length, Status::Stopped) } else { oracle.answer(&desc) };
            if completion.without_timing() != expected.completion {
                return Err(format!("{desc:x?}: found {completion:x?}, expected {:x?}", expected.completion));
            }
            if completion.status == Status::RewardNeeded as u8 && host.random.below(3) != 0 {
                let left = desc.max_tokens - length;
                host.due.push(HwDesc { seq_len: completion.final_seq_len, max_tokens: left, ..desc });
            }
            if grouped(&desc)
                && let Some(life) = host.life(desc.prefix_id)
            {
                life.pending -= 1;
                life.done |= completion.has(CompletionFlags::GROUP_DONE);
            }
        }
        // What goes on belongs to a group that is gone, and is dropped with it.
        let is_over = |life: &Life| life.done && life.pending == 0;
        let over: Vec<u32> = host.lives.iter().filter(|life| is_over(life)).map(|life| life.prefix).collect();
        host.due.retain(|desc| !over.contains(&desc.prefix_id));
        host.lives.retain(|life| !is_over(life));
        host.gone.extend(over);
    }
    Ok(())
}

/// `groups` in all on these queue pairs, at once.
fn run_all(device: GpuDevice, queues: usize, seed: u64, groups: u64) -> Result<(), Failed> {
    let each = groups.div_ceil(queues as u64);
    let config = |queue: u32| QueueConfig {
        sq_depth: DEPTH,
        cq_depth: DEPTH >> (queue % 4),
        sq_start: u32::MAX - 1000 * queue,
        cq_start: u32::MAX - 777 * queue,
        eos_threshold: 500,
        token_bytes: 4 * u64::from(SPACE * 4 * DEPTH),
        patience: 20_000,
        ..QueueConfig::default()
    };
    // The functions share the queue pairs, so that some have one and some have several.
    let (queues, functions) = (queues as u8, queues.div_ceil(2) as u8);
    let bytes = config(0).shared_bytes()?;
    let ports = Ports::divide(device, &Division { queues, functions, bytes, ..Division::default() })?;
    let drivers: Vec<_> = (0..)
        .zip(ports.take_all()?)
        .map(|(queue, port)| Driver::new(port, config(queue)))
        .collect::<Result<_, _>>()?;
    let results: Vec<Result<(), String>> = thread::scope(|scope| {
        let running: Vec<_> = (seed..)
            .zip(drivers)
            .map(|(seed, mut driver)| scope.spawn(move || run(&mut driver, seed << 20, each)))
            .collect();
        running.into_iter().map(|thread| thread.join().expect("a host does not panic")).collect()
    });
    for (queue, result) in results.into_iter().enumerate() {
        result.map_err(|error| format!("queue pair {queue}: {error}"))?;
    }
    Ok(())
}

fn on_the_cpu(options: Options, groups: u64) -> Result<(), Failed> {
    let engine: Arc<dyn Engine> = Arc::new(CpuKernel::start(options)?);
    run_all(GpuDevice::new(engine)?, options.queues, options.seed, groups)
}

fn on_a_gpu(seed: u64, groups: u64) -> Result<(), Failed> {
    let queues = number("DOORBELL_QUEUES", 16) as usize;
    let options = GpuOptions {
        gpu: number("DOORBELL_GPU", 0) as usize,
        queues,
        bytes: 8 << 20,
        ..GpuOptions::default()
    };
    run_all(doorbell_gpu::open(options)?, queues, seed, groups)
}

fn main() {
    let seed = number("DOORBELL_SEED", 1);
    let [groups, on_gpu] = GROUPS.map(|default| number("DOORBELL_GROUPS", default));
    let cpu =
        move |weak| Options { queues: 3, worker_blocks: 1, seed, stress: weak, weak, ..Options::default() };
    let missing = doorbell_gpu::missing();
    if let Some(reason) = &missing {
        println!("skipping the groups on a GPU: {reason}");
    }
    let trials = vec![
        Trial::test("r17_random_groups_on_the_cpu, calm", move || on_the_cpu(cpu(false), groups)),
        Trial::test("r17_random_groups_on_the_cpu, weak", move || on_the_cpu(cpu(true), groups.div_ceil(10))),
        Trial::test("r17_random_groups_on_a_gpu", move || on_a_gpu(seed, on_gpu))
            .with_ignored_flag(missing.is_some()),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
