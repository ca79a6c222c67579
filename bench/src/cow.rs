//! Blocks that sharing saves, what a copy-on-write costs, and what a block of the arena costs.

use std::collections::VecDeque;
use std::hint::black_box;
use std::sync::Mutex;

use crossbeam_queue::ArrayQueue;
use doorbell_runtime::kv::{
    AnswerStart, Arena, ArenaConfig, Group, KvError, PrefixConfig, Prefixes, Sharing,
};
use doorbell_trace::{Request, Trace};
use serde_json::json;

use crate::BenchError;
use crate::layout::{BLOCK_BYTES, TOKENS};
use crate::savings::{Mode, arithmetic, count};
use crate::{Elapsed, Section, median, percent, table, timed};

/// Answers to each request.
const MEMBERS: u32 = 8;
const BLOCK_TOKENS: u32 = TOKENS as u32;
/// Acquire and release, in ns.
const BAR_NS: f64 = 20.0;

fn name(mode: Mode) -> &'static str {
    match mode {
        Mode::Nobody => "nobody shares",
        Mode::Shared(Sharing::Group, AnswerStart::SamePage) => "a group shares, the partial block is copied",
        Mode::Shared(Sharing::Group, AnswerStart::NewBlock) => "a group shares, answers in new blocks",
        Mode::Shared(Sharing::Requests, AnswerStart::SamePage) => {
            "requests share, the partial block is copied"
        }
        Mode::Shared(Sharing::Requests, AnswerStart::NewBlock) => "requests share, answers in new blocks",
    }
}

/// Blocks over the whole trace, as the tables counted them and as arithmetic has it.
pub fn savings(trace: &Trace) -> Result<Section, BenchError> {
    let mut table = table(["mode", "blocks acquired", "by arithmetic", "saved"], 1);
    let mut rows = vec![];
    let alone = arithmetic(trace, Mode::Nobody, MEMBERS, BLOCK_TOKENS);
    for mode in Mode::ALL {
        let counted = count(trace, mode, MEMBERS, BLOCK_TOKENS).map_err(BenchError::input)?.arena.acquired;
        let computed = arithmetic(trace, mode, MEMBERS, BLOCK_TOKENS);
        if counted != computed {
            return Err(BenchError::failed(format!(
                "{}: the tables acquired {counted} blocks, and arithmetic has {computed}",
                name(mode)
            )));
        }
        let saved = 1.0 - counted as f64 / alone as f64;
        table.add_row([name(mode).to_owned(), counted.to_string(), computed.to_string(), percent(saved)]);
        rows.push(json!({ "mode": name(mode), "acquired": counted, "computed": computed, "saved": saved }));
    }
    Ok(Section {
        heading: format!(
            "KV blocks of {BLOCK_TOKENS} tokens over {} requests, {MEMBERS} answers each",
            trace.requests.len()
        ),
        table,
        notes: vec!["Another count than the arithmetic's is an error.".to_owned()],
        json: rows.into(),
    })
}

/// A member with its first write into the prompt's last block, beside a member that gets the whole prompt copied.
pub fn first_write(trace: &Trace, quick: bool) -> Result<Section, BenchError> {
    let (samples, repeats) = if quick { (50, 3) } else { (400, 7) };
    let step = trace.requests.len().div_ceil(samples).max(1);
    let prompts: Vec<u32> = trace
        .requests
        .iter()
        .map(|request| request.prompt_tokens)
        .filter(|&prompt| prompt > 0)
        .step_by(step)
        .collect();
    let Some(&longest) = prompts.iter().max() else {
        return Err(BenchError::input("the trace has no prompt to copy"));
    };
    let longest_blocks = longest.div_ceil(BLOCK_TOKENS);
    let mut tables = Prefixes::new(PrefixConfig {
        blocks: longest_blocks + 2,
        block_bytes: BLOCK_BYTES,
        block_tokens: BLOCK_TOKENS,
        sharing: Sharing::Group,
        answer_start: AnswerStart::SamePage,
        prefixes: 1,
        branches: 1,
        prompt_tokens: longest,
        ..PrefixConfig::default()
    })
    .map_err(BenchError::input)?;
    // The rival has the same free list, and a source in one piece.
    let mut arena =
        Arena::new(ArenaConfig { blocks: longest_blocks, block_bytes: 64 }).map_err(BenchError::input)?;
    let from = vec![1u8; longest_blocks as usize * BLOCK_BYTES];
    let mut to = vec![2u8; from.len()];

    // Every block has been written, so that no figure is of pages that are made.
    let group = Group { prefix: &[], prompt_tokens: 0, members: 1, answer_tokens: 1, prompt_writes: 0 };
    for _ in 0..2 {
        let whole = Group { prompt_tokens: longest, prompt_writes: 1, ..group };
        let prefix = tables.admit(&whole).map_err(BenchError::input)?;
        let mut branch = tables.branch(prefix).map_err(BenchError::input)?;
        tables.release_prefix(prefix).map_err(BenchError::input)?;
        for position in (0..longest).step_by(BLOCK_TOKENS as usize) {
            tables.put(&mut branch, position, 0, &[1; BLOCK_BYTES]).map_err(BenchError::input)?;
        }
        tables.release(&mut branch).map_err(BenchError::input)?;
    }

    let (mut cow, mut full) = (vec![], vec![]);
    let (mut cow_blocks, mut full_blocks) = (0u64, 0u64);
    for _ in 0..repeats {
        (cow_blocks, full_blocks) = (0, 0);
        let (mut cow_time, mut full_time) = (Elapsed::default(), Elapsed::default());
        for &prompt_tokens in &prompts {
            let (copied, time) = copy_on_write(&mut tables, prompt_tokens).map_err(BenchError::input)?;
            cow_blocks += copied;
            cow_time += time;
            let blocks = prompt_tokens.div_ceil(BLOCK_TOKENS);
            let (copied, time) = timed(|| copy_all(&mut arena, blocks, &from, &mut to));
            full_blocks += copied.map_err(BenchError::input)?;
            full_time += time;
        }
        cow.push(cow_time.wall.as_secs_f64() / prompts.len() as f64);
        full.push(full_time.wall.as_secs_f64() / prompts.len() as f64);
    }
    let times = cow.iter().zip(&full).map(|(cow, full)| full / cow);
    let ratio = median(times);
    let (cow, full) = (median(cow), median(full));
    let mut table = table(["a new member gets", "blocks copied", "bytes copied", "mean time", "times"], 1);
    let mut rows = vec![];
    for (what, blocks, time, times) in [
        ("a branch, and its first write copies a block", cow_blocks, cow, 1.0),
        ("a copy of the whole prompt", full_blocks, full, ratio),
    ] {
        let bytes = blocks * BLOCK_BYTES as u64;
        table.add_row([
            what.to_owned(),
            blocks.to_string(),
            bytes.to_string(),
            format!("{:.2} µs", 1e6 * time),
            format!("{times:.1}"),
        ]);
        rows.push(json!({ "what": what, "blocks": blocks, "bytes": bytes, "seconds": time }));
    }
    Ok(Section {
        heading: format!(
            "Copy-on-write: {} prompts of the trace, blocks of {BLOCK_BYTES} bytes, median of {repeats} runs",
            prompts.len()
        ),
        table,
        notes: vec![],
        json: rows.into(),
    })
}

/// Blocks copied, and the time of the branch with its first write.
fn copy_on_write(tables: &mut Prefixes, prompt_tokens: u32) -> Result<(u64, Elapsed), KvError> {
    // The last block may be full, and then its copy is to be promised.
    let group = Group { prefix: &[], prompt_tokens, members: 1, answer_tokens: 1, prompt_writes: 1 };
    let prefix = tables.admit(&group)?;
    let before = tables.copies();
    let (branch, time) = timed(|| {
        let mut branch = tables.branch(prefix)?;
        black_box(tables.write(&mut branch, prompt_tokens - 1)?);
        Ok::<_, KvError>(branch)
    });
    tables.release(&mut branch?)?;
    tables.release_prefix(prefix)?;
    Ok((tables.copies() - before, time))
}

/// Blocks copied: all.
fn copy_all(arena: &mut Arena, blocks: u32, from: &[u8], to: &mut [u8]) -> Result<u64, KvError> {
    let mut held = Vec::with_capacity(blocks as usize);
    for source in from.chunks_exact(BLOCK_BYTES).take(blocks as usize) {
        let block = arena.acquire()?;
        let target = block.index() as usize * BLOCK_BYTES;
        to[target..target + BLOCK_BYTES].copy_from_slice(source);
        held.push(block);
    }
    black_box(&mut *to);
    for block in held {
        arena.release(block)?;
    }
    Ok(blocks.into())
}

/// Blocks that are held at once in a burst.
const BURST: usize = 256;
/// Blocks that there are.
const BLOCKS: u32 = 4096;

/// Takes `burst` blocks and gives them back, the oldest first, `rounds` times.
trait Allocator {
    fn name(&self) -> &'static str;
    fn run(&mut self, burst: usize, rounds: u64);
}

struct OfArena(Arena);

impl Allocator for OfArena {
    fn name(&self) -> &'static str {
        "arena"
    }

    fn run(&mut self, burst: usize, rounds: u64) {
        let mut held = VecDeque::with_capacity(burst);
        for _ in 0..rounds {
            for _ in 0..burst {
                held.push_back(self.0.acquire().expect("there are more blocks than a burst takes"));
            }
            for block in held.drain(..) {
                self.0.release(black_box(block)).expect("it is held");
            }
        }
    }
}

struct Malloc;

impl Allocator for Malloc {
    fn name(&self) -> &'static str {
        "malloc and free"
    }

    fn run(&mut self, burst: usize, rounds: u64) {
        let mut held = VecDeque::with_capacity(burst);
        for _ in 0..rounds {
            for _ in 0..burst {
                held.push_back(black_box(Vec::<u8>::with_capacity(BLOCK_BYTES)));
            }
            held.drain(..).for_each(|block| drop(black_box(block)));
        }
    }
}

struct Locked(Mutex<Vec<u32>>);

impl Allocator for Locked {
    fn name(&self) -> &'static str {
        "Mutex<Vec<u32>>"
    }

    fn run(&mut self, burst: usize, rounds: u64) {
        let this = black_box(&self.0);
        let mut held = VecDeque::with_capacity(burst);
        for _ in 0..rounds {
            for _ in 0..burst {
                held.push_back(this.lock().expect("nobody panics").pop().expect("as above"));
            }
            for block in held.drain(..) {
                this.lock().expect("nobody panics").push(black_box(block));
            }
        }
    }
}

struct Queue(ArrayQueue<u32>);

impl Allocator for Queue {
    fn name(&self) -> &'static str {
        "crossbeam ArrayQueue<u32>"
    }

    fn run(&mut self, burst: usize, rounds: u64) {
        let this = black_box(&self.0);
        let mut held = VecDeque::with_capacity(burst);
        for _ in 0..rounds {
            for _ in 0..burst {
                held.push_back(this.pop().expect("as above"));
            }
            for block in held.drain(..) {
                this.push(black_box(block)).expect("it came from there");
            }
        }
    }
}

/// Acquire and release on one thread, beside other ways to keep free blocks.
pub fn arena(quick: bool) -> Result<Section, BenchError> {
    let (pairs, repeats) = if quick { (1 << 19, 3) } else { (1 << 22, 9) };
    let arena =
        Arena::new(ArenaConfig { blocks: BLOCKS, block_bytes: BLOCK_BYTES }).map_err(BenchError::input)?;
    let queue = ArrayQueue::new(BLOCKS as usize);
    (0..BLOCKS).for_each(|block| queue.push(block).expect("it has room for all"));
    let mut allocators: Vec<Box<dyn Allocator>> = vec![
        Box::new(OfArena(arena)),
        Box::new(Malloc),
        Box::new(Locked(Mutex::new((0..BLOCKS).collect()))),
        Box::new(Queue(queue)),
    ];
    let bursts = [1, BURST];
    let mut times = vec![[vec![], vec![]]; allocators.len()];
    for _ in 0..repeats {
        for (allocator, times) in allocators.iter_mut().zip(&mut times) {
            for (burst, times) in bursts.into_iter().zip(times) {
                let ((), time) = timed(|| allocator.run(burst, pairs / burst as u64));
                times.push([time.wall, time.cpu].map(|time| 1e9 * time.as_secs_f64() / pairs as f64));
            }
        }
    }
    let mut table = table(
        [
            "free blocks kept by",
            "ns a pair, wall",
            "CPU",
            "ns in bursts of 256, wall",
            "CPU",
            "bar",
            "bar is",
        ],
        1,
    );
    let mut rows = vec![];
    for (row, (allocator, times)) in allocators.iter().zip(&times).enumerate() {
        let [pair, burst] = [0, 1].map(|of| {
            let times: &Vec<[f64; 2]> = &times[of];
            [0, 1].map(|clock| median(times.iter().map(|time| time[clock])))
        });
        let judged = if row > 0 {
            ["", ""].map(str::to_owned)
        } else {
            let verdict = match (pair[0] <= BAR_NS, pair[1] <= BAR_NS) {
                (true, _) => "met",
                (false, true) => "missed, met in CPU time",
                (false, false) => "missed",
            };
            [format!("{BAR_NS:.0}"), verdict.to_owned()]
        };
        let [bar, verdict] = judged;
        let ns = |time: f64| format!("{time:.1}");
        table.add_row([
            allocator.name().to_owned(),
            ns(pair[0]),
            ns(pair[1]),
            ns(burst[0]),
            ns(burst[1]),
            bar,
            verdict,
        ]);
        rows.push(json!({
            "allocator": allocator.name(), "pair_ns": pair[0], "pair_cpu_ns": pair[1],
            "burst_ns": burst[0], "burst_cpu_ns": burst[1],
        }));
    }
    Ok(Section {
        heading: format!(
            "Acquire and release of a block of {BLOCK_BYTES} bytes on one thread, median of {repeats} runs of {pairs}"
        ),
        table,
        notes: vec![
            "Only the arena finds a double release, counts, and keeps references; the queues keep bare numbers.".to_owned(),
        ],
        json: rows.into(),
    })
}

/// What of a trace the benches look at, so that `--quick` is quick.
pub fn part(trace: &Trace, quick: bool) -> Trace {
    let requests: Vec<Request> = match quick {
        true => trace.requests.iter().take(1000).cloned().collect(),
        false => trace.requests.clone(),
    };
    Trace { source: trace.source.clone(), requests }
}
