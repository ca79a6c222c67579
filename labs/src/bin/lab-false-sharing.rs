//! Lab 1: two counters that nobody shares, on cache lines that somebody does.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use clap::Parser;
use doorbell_labs::{Options, Pair, Report, Spin, cpu_time, median, nanoseconds_each, needs_counters, table};

#[derive(Parser)]
#[command(about = "Lab 1, false sharing: what the distance of two counters costs")]
struct Args {
    #[command(flatten)]
    options: Options,
}

/// Room for two counters, up to three lines apart, at the start of a pair of lines.
#[repr(align(128))]
struct Arena([AtomicU64; 32]);

impl Arena {
    fn new() -> Self {
        Self([const { AtomicU64::new(0) }; 32])
    }

    fn counters(&self, words_apart: usize) -> [&AtomicU64; 2] {
        [&self.0[0], &self.0[words_apart]]
    }
}

/// Words between the two counters.
const LAYOUTS: [(&str, usize); 3] = [("same line", 1), ("own line", 8), ("own pair of lines", 16)];

/// How a counter is counted up, by the one thread that writes it.
#[derive(Clone, Copy)]
enum Way {
    LoadStore,
    FetchAdd,
}

const WAYS: [(&str, Way); 2] = [("load + store", Way::LoadStore), ("fetch_add", Way::FetchAdd)];

fn main() -> ExitCode {
    let Args { options } = Args::parse();
    let pair = Pair::find();
    let (count, repeats) = options.pick((100_000, 3), (200_000, 51));
    let cases = || LAYOUTS.into_iter().flat_map(|layout| WAYS.map(|way| (layout, way)));
    let mut times: Vec<[Vec<f64>; 2]> = cases().map(|_| Default::default()).collect();
    let mut lost = 0;
    for _ in 0..repeats {
        for (((_, apart), (_, way)), times) in cases().zip(&mut times) {
            for (threads, times) in [1, 2].into_iter().zip(times) {
                let arena = Arena::new();
                let elapsed = run(arena.counters(apart), way, threads, count, &pair);
                lost += 2 * count
                    - arena.counters(apart).map(|counter| counter.load(Relaxed)).iter().sum::<u64>();
                // Each thread of two counts one counter, and the one thread counts both, one after the other.
                times.push(nanoseconds_each(elapsed, 2 * count / threads));
            }
        }
    }
    let mut table = table(
        ["counters on", "bytes apart", "count by", "1 thread, ns", "2 threads, ns", "2 threads / 1 thread"],
        3,
    );
    for (((name, apart), (way, _)), times) in cases().zip(times) {
        let [one, two] = times.map(median);
        table.add_row([
            name.to_owned(),
            (apart * size_of::<u64>()).to_string(),
            way.to_owned(),
            format!("{one:.2}"),
            format!("{two:.2}"),
            format!("{:.1}", two / one),
        ]);
    }
    let mut unmeasured = pair.unmeasured;
    unmeasured.push(needs_counters(
        "lines that went from core to core",
        "cache-misses,cache-references` or `perf c2c record",
    ));
    Report {
        heading: format!(
            "False sharing: nanoseconds of CPU time for one thread to count one up, median of {repeats} runs of {count} a counter \
             ({lost} counts lost)"
        ),
        table,
        look: "the two threads never touch each other's counter, and yet on the same line each count of one takes the \
               line away from the other. With one thread the layouts cost the same, so the price is not the layout's \
               but that of moving the line. One line apart is mostly enough; a pair apart also keeps clear of \
               processors that fetch lines in pairs, which is why the rings here align their indices to 128 bytes."
            .into(),
        unmeasured,
    }
    .print();
    ExitCode::from(u8::from(lost != 0))
}

fn run(counters: [&AtomicU64; 2], way: Way, threads: u64, count: u64, pair: &Pair) -> Duration {
    let count_up = |counter: &AtomicU64| match way {
        Way::LoadStore => (0..count).for_each(|_| counter.store(counter.load(Relaxed) + 1, Relaxed)),
        Way::FetchAdd => (0..count).for_each(|_| {
            counter.fetch_add(1, Relaxed);
        }),
    };
    if threads == 1 {
        pair.pin(0);
        let start = cpu_time();
        counters.into_iter().for_each(count_up);
        return cpu_time() - start;
    }
    // The threads have to count at the same time, and a thread that sleeps at a barrier wakes up late.
    let ready = AtomicU64::new(0);
    let timed = |which: usize| {
        pair.pin(which);
        ready.fetch_add(1, Relaxed);
        Spin::until(|| ready.load(Relaxed) == 2);
        let start = cpu_time();
        count_up(counters[which]);
        cpu_time() - start
    };
    thread::scope(|scope| {
        let other = scope.spawn(|| timed(1));
        let own = timed(0);
        own.max(other.join().unwrap_or_default())
    })
}
