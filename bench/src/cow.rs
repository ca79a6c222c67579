//! Blocks that sharing saves, and what a block of the arena costs.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::hint::black_box;
use std::sync::Mutex;

use crossbeam_queue::ArrayQueue;
use doorbell_runtime::kv::{AnswerStart, Arena, Sharing};
use doorbell_trace::{Request, Trace};
use serde_json::json;

use crate::BenchError;
use crate::savings::{Mode, arithmetic, count};
use crate::{Section, median, percent, table, timed, verdict};

/// Answers to each request.
const MEMBERS: u32 = 8;
const BLOCK_TOKENS: u32 = 32;
/// What `malloc` is asked for: as many tokens of one head of 128 values of fp16, K and V.
const BLOCK_BYTES: usize = 16_384;
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
        Mode::Shared(Sharing::Tokens, _) => "requests share by their tokens",
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

/// Blocks that are held at once in a burst.
const BURST: usize = 256;
/// Blocks that there are.
const BLOCKS: u32 = 4096;

/// Takes `burst` blocks and gives them back, the oldest first, `rounds` times.
fn bursts<T>(burst: usize, rounds: u64, acquire: impl Fn() -> T, release: impl Fn(T)) {
    let mut held = VecDeque::with_capacity(burst);
    for _ in 0..rounds {
        (0..burst).for_each(|_| held.push_back(black_box(acquire())));
        held.drain(..).for_each(|block| release(black_box(block)));
    }
}

/// Pairs of the other rows for one copy.
const COPIES: u64 = 64;
const COPY: &str = "a copy of a block";

/// Names of the rows that the bottleneck table takes up.
pub const ARENA: &str = "arena";
pub const MALLOC: &str = "malloc and free";

/// Acquire and release on one thread, beside other ways to keep free blocks, and what a reference costs beside a copy.
pub fn arena(quick: bool) -> Result<Section, BenchError> {
    let (pairs, repeats) = if quick { (1 << 19, 3) } else { (1 << 22, 9) };
    let arena = RefCell::new(Arena::new(BLOCKS).map_err(BenchError::input)?);
    let locked = Mutex::new((0..BLOCKS).collect::<Vec<_>>());
    let queue = ArrayQueue::new(BLOCKS as usize);
    (0..BLOCKS).for_each(|block| queue.push(block).expect("it has room for all"));
    const ENOUGH: &str = "there are more blocks than a burst takes";
    type Run<'a> = &'a dyn Fn(usize, u64);
    // A block that all references are to, and a copy of one.
    let shared = arena.borrow_mut().acquire().map_err(BenchError::input)?;
    let (bytes, copy) = (vec![1_u8; BLOCK_BYTES], RefCell::new(vec![0_u8; BLOCK_BYTES]));
    let ways: [(&str, Run<'_>); 6] = [
        (ARENA, &|burst, rounds| {
            let acquire = || arena.borrow_mut().acquire().expect(ENOUGH);
            bursts(burst, rounds, acquire, |block| {
                _ = arena.borrow_mut().release(block).expect("it is held")
            });
        }),
        (MALLOC, &|burst, rounds| {
            bursts(burst, rounds, || Vec::<u8>::with_capacity(BLOCK_BYTES), drop);
        }),
        ("Mutex<Vec<u32>>", &|burst, rounds| {
            let lock = || locked.lock().expect("nobody panics");
            bursts(burst, rounds, || lock().pop().expect(ENOUGH), |block| lock().push(block));
        }),
        ("crossbeam ArrayQueue<u32>", &|burst, rounds| {
            let release = |block| queue.push(block).expect("it came from there");
            bursts(burst, rounds, || queue.pop().expect(ENOUGH), release);
        }),
        ("a reference to a block", &|burst, rounds| {
            let retain = || arena.borrow_mut().retain(black_box(shared)).expect("it is held");
            bursts(burst, rounds, retain, |()| _ = arena.borrow_mut().release(shared).expect("it is held"));
        }),
        (COPY, &|burst, rounds| {
            // As many as pairs of the others would take minutes.
            let rounds = rounds.div_ceil(COPIES);
            bursts(burst, rounds, || copy.borrow_mut().copy_from_slice(black_box(&bytes)), |()| {});
        }),
    ];
    let sizes = [1, BURST];
    let mut times = vec![[vec![], vec![]]; ways.len()];
    for _ in 0..repeats {
        for ((name, run), times) in ways.iter().zip(&mut times) {
            for (burst, times) in sizes.into_iter().zip(times) {
                let ((), time) = timed(|| run(burst, pairs / burst as u64));
                let done = if *name == COPY { pairs.div_ceil(COPIES) } else { pairs };
                times.push(1e9 * time.cpu.as_secs_f64() / done as f64);
            }
        }
    }
    let columns = ["free blocks kept by", "ns of CPU a pair", "ns in bursts of 256", "bar", "bar is"];
    let mut table = table(columns, 1);
    let mut rows = vec![];
    for (row, ((name, _), [pair, burst])) in ways.iter().zip(times).enumerate() {
        let (pair, burst) = (median(pair), median(burst));
        let [bar, is] = match row {
            0 => [format!("{BAR_NS:.0}"), verdict(pair <= BAR_NS).to_owned()],
            _ => Default::default(),
        };
        table.add_row([(*name).to_owned(), format!("{pair:.1}"), format!("{burst:.1}"), bar, is]);
        rows.push(json!({ "allocator": name, "pair_cpu_ns": pair, "burst_cpu_ns": burst }));
    }
    Ok(Section {
        heading: format!(
            "Acquire and release of a KV block on one thread, median of {repeats} runs of {pairs}"
        ),
        table,
        notes: vec![
            "Only the arena finds a double release, counts, and keeps references; the queues keep bare numbers.".to_owned(),
            "A reference (one more holder, and one less) is what sharing a block costs; a copy is what it saves.".to_owned(),
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
