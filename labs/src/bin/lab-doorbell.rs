//! Lab 5: a driver and a device, and what the doorbell between them costs.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Instant;

use bytemuck::{cast, cast_mut};
use clap::Parser;
use doorbell_contract::{HwCompletion, HwDesc, SqKey, Status};
use doorbell_host::memory::Slots;
use doorbell_host::queue::{COMPLETION_WORDS, CompletionQueue, DESC_WORDS, Depth, SubmissionQueue};
use doorbell_host::{DeviceError, SharedMemory};
use doorbell_labs::{Options, Pair, Report, Spin, median, table};

#[derive(Parser)]
#[command(about = "Lab 5, a doorbell: a driver and a device thread over the real 64-byte descriptors")]
struct Args {
    #[command(flatten)]
    options: Options,
}

/// Slots of either ring.
const DEPTH: u32 = 1024;
/// Of the check words (R2).
const KEY: u32 = 1;
const SQ: usize = 0;
const CQ: usize = SQ + DEPTH as usize * size_of::<HwDesc>();
const BYTES: usize = CQ + DEPTH as usize * size_of::<HwCompletion>();

/// How the device learns of a descriptor.
#[derive(Clone, Copy, PartialEq)]
enum Publish {
    /// R1: from a tail register, written after each descriptor.
    TailEach,
    /// R1: from a tail register, written after each window.
    TailWindow,
    /// R2: from the check word of the slot itself.
    Slot,
}

impl Publish {
    fn name(self) -> &'static str {
        match self {
            Self::TailEach => "tail register, a doorbell each (R1)",
            Self::TailWindow => "tail register, a doorbell a window (R1)",
            Self::Slot => "self-verifying slot, no doorbell (R2)",
        }
    }
}

/// A register on a pair of lines of its own.
#[derive(Default)]
#[repr(align(128))]
struct Register(AtomicU32);

/// The registers, and the end of the run.
#[derive(Default)]
struct Registers {
    doorbell: Register,
    cq_head: Register,
    stop: AtomicBool,
}

impl Registers {
    /// Rings the doorbell. A real one is uncached: the processor first makes all earlier stores visible, and waits
    /// for them. The exchange does the same here; what the bus costs on top is not in it.
    fn ring(&self, tail: u32) {
        self.doorbell.0.swap(tail, Ordering::SeqCst);
    }
}

/// What the device saw.
#[derive(Default)]
struct Seen {
    /// Looks that found nothing new.
    empty_looks: u64,
    /// Descriptors below the tail whose check word was wrong.
    corrupt: u64,
}

struct Run {
    rate: f64,
    doorbells: u64,
    empty_looks: u64,
}

fn device(memory: &SharedMemory, registers: &Registers, publish: Publish) -> Result<Seen, DeviceError> {
    let sq: Slots<'_, DESC_WORDS> = memory.slots(SQ, DEPTH)?;
    let cq: Slots<'_, COMPLETION_WORDS> = memory.slots(CQ, DEPTH)?;
    let depth = Depth::new("depth", DEPTH)?;
    let (mut head, mut tail) = (0_u32, 0_u32);
    let mut seen = Seen::default();
    let mut spin = Spin::default();
    let mut desc = HwDesc::default();
    let key = SqKey::new(KEY);
    while !registers.stop.load(Ordering::Relaxed) {
        if publish != Publish::Slot && head == tail {
            // R1: no slot is looked at before the register says that it is there.
            tail = registers.doorbell.0.load(Ordering::Acquire);
            if head == tail {
                seen.empty_looks += 1;
                spin.wait();
                continue;
            }
        }
        sq.load(head, cast_mut(&mut desc));
        if !desc.verify(&key, head) {
            if publish == Publish::Slot {
                // R2: stale or half written, so not yet published.
                seen.empty_looks += 1;
                spin.wait();
                continue;
            }
            seen.corrupt += 1;
        }
        // R4: a slot of the completion queue is the host's until it has released it.
        Spin::until(|| head.wrapping_sub(registers.cq_head.0.load(Ordering::Acquire)) < DEPTH);
        let completion = HwCompletion {
            user_data: desc.user_data,
            rollout_id: desc.rollout_id,
            sq_head: head.wrapping_add(1),
            status: Status::Done as u8,
            ..HwCompletion::default()
        };
        cq.store(head, cast(completion.with_phase(depth.phase(head))));
        head = head.wrapping_add(1);
    }
    Ok(seen)
}

fn driver(
    queues: (SubmissionQueue, CompletionQueue),
    registers: &Registers,
    publish: Publish,
    window: usize,
    total: u64,
) -> Result<(u64, bool), DeviceError> {
    let (mut sq, mut cq) = queues;
    let mut batch = vec![HwDesc::decode(7, 100, 32); window];
    let mut out = vec![HwCompletion::default(); DEPTH as usize];
    let (mut submitted, mut completed, mut doorbells) = (0_u64, 0_u64, 0_u64);
    let mut in_turn = true;
    let mut spin = Spin::default();
    while completed < total {
        let mut idle = true;
        if submitted < total && sq.free() >= window {
            for (k, desc) in batch.iter_mut().enumerate() {
                desc.user_data = submitted + k as u64;
            }
            match publish {
                Publish::TailEach => {
                    for desc in batch.chunks(1) {
                        sq.push(desc)?;
                        registers.ring(sq.tail());
                        doorbells += 1;
                    }
                }
                Publish::TailWindow => {
                    sq.push(&batch)?;
                    registers.ring(sq.tail());
                    doorbells += 1;
                }
                Publish::Slot => {
                    sq.push(&batch)?;
                }
            }
            submitted += window as u64;
            idle = false;
        }
        let count = cq.pop(&mut out)?;
        for completion in &out[..count] {
            in_turn &= completion.user_data == completed;
            completed += 1;
        }
        if count > 0 {
            in_turn &= sq.consumed_to(sq.head(), out[count - 1].sq_head);
            registers.cq_head.0.store(cq.head(), Ordering::Release);
        } else if idle {
            spin.wait();
        }
    }
    Ok((doorbells, in_turn))
}

fn run(publish: Publish, window: usize, total: u64, pair: &Pair) -> Result<Run, String> {
    let told = |error: DeviceError| error.to_string();
    let memory = SharedMemory::allocate(BYTES, doorbell_host::memory::SIMULATED_BUS_ADDRESS).map_err(told)?;
    let depth = Depth::new("depth", DEPTH).map_err(told)?;
    let queues = (
        SubmissionQueue::new(&memory, SQ, depth, 0, KEY).map_err(told)?,
        CompletionQueue::new(&memory, CQ, depth, 0).map_err(told)?,
    );
    let registers = Registers::default();
    thread::scope(|scope| {
        let device = scope.spawn(|| {
            pair.pin(1);
            device(&memory, &registers, publish)
        });
        pair.pin(0);
        let start = Instant::now();
        let driven = driver(queues, &registers, publish, window, total);
        let elapsed = start.elapsed();
        registers.stop.store(true, Ordering::Relaxed);
        let seen = device.join().map_err(|_| "the device panicked".to_owned())?.map_err(told)?;
        let (doorbells, in_turn) = driven.map_err(told)?;
        if !in_turn || seen.corrupt > 0 {
            return Err(format!("{} corrupt descriptors; completions in turn: {in_turn}", seen.corrupt));
        }
        Ok(Run { rate: total as f64 / elapsed.as_secs_f64(), doorbells, empty_looks: seen.empty_looks })
    })
}

const WINDOWS: [usize; 4] = [1, 4, 32, 256];

fn main() -> ExitCode {
    let Args { options } = Args::parse();
    let mut pair = Pair::find();
    let (total, repeats) = options.pick((8_192, 3), (1 << 15, 15));
    let rows: Vec<(Publish, usize)> = [Publish::TailEach, Publish::TailWindow, Publish::Slot]
        .into_iter()
        .flat_map(|publish| WINDOWS.map(|window| (publish, window)))
        .collect();
    let mut runs: Vec<Vec<Run>> = rows.iter().map(|_| vec![]).collect();
    for _ in 0..repeats {
        for ((publish, window), runs) in rows.iter().zip(&mut runs) {
            match run(*publish, *window, total, &pair) {
                Ok(run) => runs.push(run),
                Err(error) => {
                    eprintln!("error: {}, window {window}: {error}", publish.name());
                    return ExitCode::FAILURE;
                }
            }
        }
    }
    let mut table = table(
        [
            "published by",
            "window",
            "doorbells",
            "M descriptors/s",
            "ns/descriptor",
            "best run, ns",
            "empty looks each",
        ],
        1,
    );
    for ((publish, window), runs) in rows.iter().zip(&runs) {
        let of = |figure: fn(&Run) -> f64| median(runs.iter().map(figure).collect());
        let rate = of(|run| run.rate);
        table.add_row([
            publish.name().to_owned(),
            window.to_string(),
            format!("{:.0}", of(|run| run.doorbells as f64)),
            format!("{:.1}", rate / 1e6),
            format!("{:.1}", 1e9 / rate),
            format!("{:.1}", 1e9 / runs.iter().map(|run| run.rate).fold(0.0, f64::max)),
            format!("{:.2}", of(|run| run.empty_looks as f64) / total as f64),
        ]);
    }
    pair.unmeasured.push(
        "the bus: a doorbell over PCIe is an uncached write, which costs the processor some hundred nanoseconds more \
         than this exchange"
            .into(),
    );
    Report {
        heading: format!(
            "A doorbell: {total} descriptors of 64 bytes from a driver to a device thread and back as completions of 32, \
             median of {repeats} runs; each came back once and in turn"
        ),
        table,
        look: "a doorbell for each descriptor stays dear however large the window is: each empties the store buffer, and moves \
               the register's line to the device and back. One for a window divides that by the window, which is why \
               Driver::submit rings once. The self-verifying \
               slot rings not at all, and saves the device the read of the register too: what it pays is a check of a \
               slot that may not be there yet. Over a bus each of these looks is a round trip."
            .into(),
        unmeasured: pair.unmeasured,
    }
    .print();
    ExitCode::SUCCESS
}
