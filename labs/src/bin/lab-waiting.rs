//! Lab 4: handing over by a system call, and by looking.
#![forbid(unsafe_code)]

use std::fs::File;
use std::io::{self, Read, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Barrier, Condvar, Mutex, OnceLock, PoisonError};
use std::thread::{self, Thread};
use std::time::Instant;

use clap::Parser;
use doorbell_guard::Usage;
use doorbell_labs::{Options, Pair, Report, Spin, median, nanoseconds_each, table};
use rustix::event::{EventfdFlags, eventfd};

#[derive(Parser)]
#[command(about = "Lab 4, system call against polling: what it costs to hand something over")]
struct Args {
    #[command(flatten)]
    options: Options,
}

/// One direction between two threads: what is signalled is waited for exactly once.
trait Signal: Sync {
    /// Called by the waiting thread, before anything else.
    fn register(&self) {}
    fn signal(&self) -> io::Result<()>;
    fn wait(&self) -> io::Result<()>;
}

struct EventFd(File);

impl EventFd {
    fn new() -> io::Result<Self> {
        Ok(Self(File::from(eventfd(0, EventfdFlags::CLOEXEC)?)))
    }
}

impl Signal for EventFd {
    fn signal(&self) -> io::Result<()> {
        (&self.0).write_all(&1_u64.to_ne_bytes())
    }
    fn wait(&self) -> io::Result<()> {
        (&self.0).read_exact(&mut [0; 8])
    }
}

struct Pipe(io::PipeReader, io::PipeWriter);

impl Signal for Pipe {
    fn signal(&self) -> io::Result<()> {
        (&self.1).write_all(&[1])
    }
    fn wait(&self) -> io::Result<()> {
        (&self.0).read_exact(&mut [0])
    }
}

#[derive(Default)]
struct Condition(Mutex<bool>, Condvar);

impl Signal for Condition {
    fn signal(&self) -> io::Result<()> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.1.notify_one();
        Ok(())
    }
    fn wait(&self) -> io::Result<()> {
        let mut set = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while !*set {
            set = self.1.wait(set).unwrap_or_else(PoisonError::into_inner);
        }
        *set = false;
        Ok(())
    }
}

/// A flag and a futex: `park` and `unpark` of the standard library are little else.
#[derive(Default)]
struct Futex {
    set: AtomicBool,
    waiter: OnceLock<Thread>,
}

impl Signal for Futex {
    fn register(&self) {
        let _ = self.waiter.set(thread::current());
    }
    fn signal(&self) -> io::Result<()> {
        self.set.store(true, Ordering::Release);
        if let Some(thread) = self.waiter.get() {
            thread.unpark();
        }
        Ok(())
    }
    fn wait(&self) -> io::Result<()> {
        while !self.set.swap(false, Ordering::Acquire) {
            thread::park();
        }
        Ok(())
    }
}

#[derive(Default)]
#[repr(align(128))]
struct Flag(AtomicU32);

impl Signal for Flag {
    fn signal(&self) -> io::Result<()> {
        self.0.store(1, Ordering::Release);
        Ok(())
    }
    fn wait(&self) -> io::Result<()> {
        Spin::until(|| self.0.load(Ordering::Acquire) != 0);
        self.0.store(0, Ordering::Relaxed);
        Ok(())
    }
}

/// What a run of round trips took.
struct Run {
    /// Nanoseconds for one hand-over, half a round trip.
    nanoseconds: f64,
    /// Context switches of both threads: they waited, or were made to.
    voluntary: u64,
    involuntary: u64,
}

fn run<S: Signal>(signals: [S; 2], rounds: u64, pair: &Pair) -> io::Result<Run> {
    let [there, back] = &signals;
    let barrier = Barrier::new(2);
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            pair.pin(1);
            there.register();
            barrier.wait();
            let before = Usage::of_this_thread()?;
            for _ in 0..rounds {
                there.wait()?;
                back.signal()?;
            }
            io::Result::Ok(Usage::of_this_thread()? - before)
        });
        pair.pin(0);
        back.register();
        barrier.wait();
        let before = Usage::of_this_thread()?;
        let start = Instant::now();
        for _ in 0..rounds {
            there.signal()?;
            back.wait()?;
        }
        let elapsed = start.elapsed();
        let own = Usage::of_this_thread()? - before;
        let other = other.join().map_err(|_| io::Error::other("the other thread panicked"))??;
        Ok(Run {
            nanoseconds: nanoseconds_each(elapsed, 2 * rounds),
            voluntary: own.voluntary_switches + other.voluntary_switches,
            involuntary: own.involuntary_switches + other.involuntary_switches,
        })
    })
}

type Way = (&'static str, &'static str, fn(u64, &Pair) -> io::Result<Run>);

const WAYS: [Way; 5] = [
    ("eventfd", "read + write", |rounds, pair| run([EventFd::new()?, EventFd::new()?], rounds, pair)),
    ("pipe", "read + write", |rounds, pair| {
        let pipe = || io::pipe().map(|(reader, writer)| Pipe(reader, writer));
        run([pipe()?, pipe()?], rounds, pair)
    }),
    ("mutex and condvar", "futex wait + wake", |rounds, pair| {
        run([Condition::default(), Condition::default()], rounds, pair)
    }),
    ("flag and park", "futex wait + wake", |rounds, pair| {
        run([Futex::default(), Futex::default()], rounds, pair)
    }),
    ("flag, polled", "none", |rounds, pair| run([Flag::default(), Flag::default()], rounds, pair)),
];

fn main() -> ExitCode {
    let Args { options } = Args::parse();
    let mut pair = Pair::find();
    let (rounds, repeats) = options.pick((200, 3), (1_000, 7));
    let mut runs: [Vec<Run>; WAYS.len()] = Default::default();
    for _ in 0..repeats {
        for ((name, _, way), runs) in WAYS.iter().zip(&mut runs) {
            match way(rounds, &pair) {
                Ok(run) => runs.push(run),
                Err(error) => {
                    eprintln!("error: {name}: {error}");
                    return ExitCode::FAILURE;
                }
            }
        }
    }
    let mut table = table(
        ["by", "system calls", "ns/hand-over", "of polled", "switches/hand-over: waited", "preempted"],
        2,
    );
    let per_handover = |count: fn(&Run) -> u64, runs: &[Run]| {
        runs.iter().map(count).sum::<u64>() as f64 / (2 * rounds * runs.len() as u64) as f64
    };
    let times: Vec<f64> =
        runs.iter().map(|runs| median(runs.iter().map(|run| run.nanoseconds).collect())).collect();
    for (((name, calls, _), runs), time) in WAYS.iter().zip(&runs).zip(&times) {
        table.add_row([
            (*name).to_owned(),
            (*calls).to_owned(),
            format!("{time:.0}"),
            format!("{:.1}", time / times[WAYS.len() - 1]),
            format!("{:.3}", per_handover(|run| run.voluntary, runs)),
            format!("{:.3}", per_handover(|run| run.involuntary, runs)),
        ]);
    }
    if !pair.is_parallel() {
        pair.unmeasured.push(
            "polling: on one processor each look in vain only keeps the other thread from running".into(),
        );
    }
    Report {
        heading: format!(
            "System call against polling: one thread hands over to another and back, median of {repeats} runs of {rounds} \
             round trips"
        ),
        table,
        look: "every way by the kernel pays for a context switch a hand-over: the waiter gives its processor away, and \
               must be woken. The polled flag moves one cache line and switches not at all, at the price of a processor \
               that does nothing else. A hot thread is worth that price; a judge that sleeps for milliseconds is not."
            .into(),
        unmeasured: pair.unmeasured,
    }
    .print();
    ExitCode::SUCCESS
}
