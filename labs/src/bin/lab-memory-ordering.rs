//! Lab 6: a read of an old value, shown and then prevented.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::thread;
use std::time::{Duration, Instant};

use Ordering::{Acquire, Relaxed, Release, SeqCst};
use clap::Parser;
use doorbell_labs::{Options, Pair, Report, Spin, table};

#[derive(Parser)]
#[command(about = "Lab 6, memory ordering: a stale read, shown and then prevented")]
struct Args {
    #[command(flatten)]
    options: Options,
    /// Exit with 1 if no stale read was seen where the processor may show one
    #[arg(long)]
    expect_stale: bool,
}

/// One variable, on a pair of lines of its own.
#[derive(Default)]
#[repr(align(128))]
struct Cell(AtomicU32);

/// Variables, used in turn and each once in a block; all are 0 when a block starts.
const BLOCK: usize = 1024;

struct Field {
    x: Vec<Cell>,
    y: Vec<Cell>,
    /// Rounds that either thread is ready for.
    ready: [Ready; 2],
}

#[derive(Default)]
#[repr(align(128))]
struct Ready(AtomicU64);

/// What a thread does in a round, and what it reads.
type Side = fn(&AtomicU32, &AtomicU32) -> u32;

struct Litmus {
    test: &'static str,
    orders: &'static str,
    sides: [Side; 2],
    /// The outcome of the two sides that tells of a stale read.
    stale: (u32, u32),
    /// Whether the language forbids it.
    forbidden: bool,
    /// Whether an x86 processor can show it.
    on_x86: bool,
}

/// Store buffering (Dekker): each side sets its own variable and reads the other's. Both can read 0 only if either read
/// overtook the write before it.
const fn store_buffering(orders: &'static str, sides: [Side; 2], forbidden: bool) -> Litmus {
    Litmus { test: "store buffering", orders, sides, stale: (0, 0), forbidden, on_x86: !forbidden }
}

/// Message passing: one side writes the data, then the flag; the other reads the flag (bit 1 of what it returns), then
/// the data (bit 0). A flag without its data is a stale read.
const fn message_passing(orders: &'static str, sides: [Side; 2], forbidden: bool) -> Litmus {
    Litmus { test: "message passing", orders, sides, stale: (0, 2), forbidden, on_x86: false }
}

const TESTS: [Litmus; 6] = [
    store_buffering(
        "relaxed",
        [
            |x, y| {
                x.store(1, Relaxed);
                y.load(Relaxed)
            },
            |x, y| {
                y.store(1, Relaxed);
                x.load(Relaxed)
            },
        ],
        false,
    ),
    store_buffering(
        "release, acquire",
        [
            |x, y| {
                x.store(1, Release);
                y.load(Acquire)
            },
            |x, y| {
                y.store(1, Release);
                x.load(Acquire)
            },
        ],
        false,
    ),
    store_buffering(
        "relaxed, fence(SeqCst) between",
        [
            |x, y| {
                x.store(1, Relaxed);
                fence(SeqCst);
                y.load(Relaxed)
            },
            |x, y| {
                y.store(1, Relaxed);
                fence(SeqCst);
                x.load(Relaxed)
            },
        ],
        true,
    ),
    store_buffering(
        "SeqCst",
        [
            |x, y| {
                x.store(1, SeqCst);
                y.load(SeqCst)
            },
            |x, y| {
                y.store(1, SeqCst);
                x.load(SeqCst)
            },
        ],
        true,
    ),
    message_passing(
        "relaxed",
        [
            |x, y| {
                x.store(1, Relaxed);
                y.store(1, Relaxed);
                0
            },
            |x, y| {
                let flag = y.load(Relaxed);
                2 * flag + x.load(Relaxed)
            },
        ],
        false,
    ),
    message_passing(
        "release, acquire",
        [
            |x, y| {
                x.store(1, Relaxed);
                y.store(1, Release);
                0
            },
            |x, y| {
                let flag = y.load(Acquire);
                2 * flag + x.load(Relaxed)
            },
        ],
        true,
    ),
];

/// How often the two sides read what: first index the first side's, second the second's.
type Outcomes = [[u64; 4]; 4];

/// Runs a test until `rounds` or `patience` is spent.
fn run(test: &Litmus, rounds: u64, patience: Duration, pair: &Pair) -> Outcomes {
    let cells = || (0..BLOCK).map(|_| Cell::default()).collect();
    let field = Field { x: cells(), y: cells(), ready: Default::default() };
    let mut outcomes = Outcomes::default();
    let start = Instant::now();
    let mut block = 0;
    while block * (BLOCK as u64) < rounds && (block == 0 || start.elapsed() < patience) {
        for cell in field.x.iter().chain(&field.y) {
            cell.0.store(0, Relaxed);
        }
        let first = block * BLOCK as u64;
        let [mine, theirs] = thread::scope(|scope| {
            let theirs = scope.spawn(|| {
                pair.pin(1);
                side(&field, 1, test.sides[1], first)
            });
            pair.pin(0);
            let mine = side(&field, 0, test.sides[0], first);
            // A panic of the other side has been told, and leaves no outcome.
            [mine, theirs.join().unwrap_or_default()]
        });
        for (mine, theirs) in mine.into_iter().zip(theirs) {
            outcomes[mine as usize & 3][theirs as usize & 3] += 1;
        }
        block += 1;
    }
    outcomes
}

/// One side of a block of rounds.
fn side(field: &Field, which: usize, act: Side, first: u64) -> Vec<u32> {
    let mut seen = vec![0; BLOCK];
    for (k, seen) in seen.iter_mut().enumerate() {
        let (x, y) = (&field.x[k].0, &field.y[k].0);
        // What will be read is fetched before, and so answers at once, while a store has to wait for its line: the
        // widest window for a read to overtake a write.
        let _ = std::hint::black_box((x.load(Relaxed), y.load(Relaxed)));
        let round = first + k as u64 + 1;
        field.ready[which].0.store(round, Release);
        Spin::until(|| field.ready[1 - which].0.load(Acquire) >= round);
        *seen = act(x, y);
    }
    seen
}

fn main() -> ExitCode {
    let Args { options, expect_stale } = Args::parse();
    let pair = Pair::find();
    let (rounds, patience) =
        options.pick((20_000, Duration::from_millis(100)), (1_000_000, Duration::from_millis(600)));
    let mut table = table(
        ["test", "orders", "rounds", "first 0, second 0", "0, 1", "1, 0", "1, 1", "stale", "the language"],
        2,
    );
    let (mut broken, mut stale_seen) = (false, false);
    for test in &TESTS {
        let outcomes = run(test, rounds, patience, &pair);
        let stale = outcomes[test.stale.0 as usize][test.stale.1 as usize];
        broken |= test.forbidden && stale > 0;
        stale_seen |= test.on_x86 && stale > 0;
        // Of a message the one side reads both: first the flag, then the data.
        let counts = match test.test {
            "message passing" => [outcomes[0][0], outcomes[0][1], outcomes[0][2], outcomes[0][3]],
            _ => [outcomes[0][0], outcomes[0][1], outcomes[1][0], outcomes[1][1]],
        };
        let mut row = vec![test.test.to_owned(), test.orders.to_owned()];
        row.push(outcomes.as_flattened().iter().sum::<u64>().to_string());
        row.extend(counts.map(|count| count.to_string()));
        row.push(stale.to_string());
        row.push(if test.forbidden { "forbids it" } else { "allows it" }.to_owned());
        table.add_row(row);
    }
    let mut unmeasured = pair.unmeasured.clone();
    if !stale_seen {
        unmeasured.push(format!(
            "a stale read: none was seen in {rounds} rounds{}",
            if pair.is_parallel() {
                "; run it again, on an idle machine"
            } else {
                ": it needs two processors"
            }
        ));
    }
    unmeasured.push(
        match std::env::consts::ARCH {
            "x86_64" => {
                "message passing that fails: x86 keeps stores in order and loads in order, so relaxed suffices here by \
                 luck of the processor; an ARM core may make the flag visible before the data, or read the data before \
                 the flag, and shows the outcome 1, 0 until release and acquire forbid it"
            }
            _ => "nothing is left out: this processor may show every stale outcome that the language allows",
        }
        .into(),
    );
    Report {
        heading: "Memory ordering: two threads on two variables, X and Y, both 0 at first. Store buffering: X = 1, read Y \
                  beside Y = 1, read X. Message passing: X = 1, Y = 1 beside read Y, read X"
            .into(),
        table,
        look: "in store buffering `0, 0` says that each thread read the old value of what the other had already written: \
               either write still lay in its core's store buffer. Release and acquire do not forbid that, as each orders \
               against one side only; a fence between write and read does, and the count falls to exactly 0. Rings need \
               message passing alone (slots, then index), hence release and acquire; who sleeps only after a last look \
               needs the fence. In message passing the stale outcome is `1, 0`: the flag without its data."
            .into(),
        unmeasured,
    }
    .print();
    if broken {
        eprintln!("error: an outcome was seen that the language forbids: compiler or processor is broken");
        return ExitCode::FAILURE;
    }
    if expect_stale && !stale_seen {
        eprintln!("error: no stale read was seen, and --expect-stale asks for one");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
