//! From `begin` to `end`: everything that the calling thread did.

use std::fmt;
use std::io;
use std::marker::PhantomData;

use serde::Serialize;

use super::allocator::{self, AllocationCounts};
use super::faults::Usage;
use super::seccomp::{SystemCallError, SystemCallGuard, Violation};

/// A stretch of the calling thread that is watched; ends with [`end`](Self::end).
///
/// ```no_run
/// use doorbell_guard::{SystemCallGuard, Watch};
///
/// let mut guard = SystemCallGuard::install();
/// let watch = Watch::begin(&mut guard)?;
/// // … the hot loop …
/// let facts = watch.end();
/// assert!(facts.clean(), "{facts}");
/// # Ok::<(), std::io::Error>(())
/// ```
#[must_use = "a watch says what it saw when it ends"]
pub struct Watch<'a> {
    system_calls: &'a mut Result<SystemCallGuard, SystemCallError>,
    counts_allocations: bool,
    before: Sample,
    /// The counts are those of the thread that began.
    _not_send: PhantomData<*const ()>,
}

/// The thread's counts at one moment.
#[derive(Clone, Copy)]
struct Sample {
    allocations: AllocationCounts,
    usage: Usage,
}

impl Sample {
    fn take() -> io::Result<Self> {
        Ok(Self { allocations: allocator::thread_counts(), usage: Usage::of_this_thread()? })
    }
}

impl<'a> Watch<'a> {
    /// Watches the calling thread from here on. `system_calls` is the thread's guard, or why there is none: what was
    /// not watched is told in the facts.
    ///
    /// # Errors
    /// The kernel's, if it does not tell the thread's usage.
    pub fn begin(system_calls: &'a mut Result<SystemCallGuard, SystemCallError>) -> io::Result<Self> {
        // Once without a result: the code and the stack of the end are then no first touch in the real one.
        Watch::open(system_calls)?.end();
        let watch = Self::open(system_calls)?;
        if let Ok(guard) = &*watch.system_calls {
            guard.arm();
        }
        Ok(watch)
    }

    #[inline(never)]
    fn open(system_calls: &'a mut Result<SystemCallGuard, SystemCallError>) -> io::Result<Self> {
        let counts_allocations = allocator::is_installed();
        if let Ok(guard) = &*system_calls {
            guard.forget();
        }
        Ok(Self { system_calls, counts_allocations, before: Sample::take()?, _not_send: PhantomData })
    }

    /// Ends the watch, and says what the thread did since it began.
    #[inline(never)]
    pub fn end(self) -> Facts {
        let after = Sample::take();
        if let Ok(guard) = &*self.system_calls {
            guard.disarm();
        }
        let mut unmeasured = vec![];
        let mut missing = |what, why: String| unmeasured.push(Unmeasured { what, why });
        let usage =
            after.map(|after| (after.usage - self.before.usage, after.allocations - self.before.allocations));
        let (usage, allocations) = usage.unwrap_or_else(|error| {
            missing("page faults, context switches, allocations", format!("getrusage failed: {error}"));
            Default::default()
        });
        if !self.counts_allocations {
            missing(
                "allocations",
                "this program's #[global_allocator] is not doorbell_guard::CountingAllocator".into(),
            );
        }
        let (system_calls, violations) = match &*self.system_calls {
            Ok(guard) => guard.seen(),
            Err(error) => {
                missing("system calls", error.to_string());
                Default::default()
            }
        };
        Facts {
            allocations: allocations.allocations,
            frees: allocations.frees,
            bytes: allocations.bytes,
            minor_faults: usage.minor_faults,
            major_faults: usage.major_faults,
            voluntary_switches: usage.voluntary_switches,
            involuntary_switches: usage.involuntary_switches,
            system_calls,
            violations,
            unmeasured,
        }
    }
}

impl Drop for Watch<'_> {
    /// A hot loop that panics is not watched while it unwinds.
    fn drop(&mut self) {
        if let Ok(guard) = &*self.system_calls {
            guard.disarm();
        }
    }
}

/// What a thread did while it was watched.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Facts {
    /// Calls that asked the allocator for memory.
    pub allocations: u64,
    /// Calls that gave memory back.
    pub frees: u64,
    /// Bytes asked for.
    pub bytes: u64,
    /// Page faults without input or output.
    pub minor_faults: u64,
    /// Page faults that waited for a disk.
    pub major_faults: u64,
    /// Times that the thread waited or slept.
    pub voluntary_switches: u64,
    /// Times that the scheduler took the processor away: its choice, so reported and not judged.
    pub involuntary_switches: u64,
    /// System calls.
    pub system_calls: u64,
    /// The first of them, up to [`VIOLATIONS_KEPT`](super::VIOLATIONS_KEPT).
    pub violations: Vec<Violation>,
    /// What is not known, and so 0 above without being proved.
    pub unmeasured: Vec<Unmeasured>,
}

/// A fact that could not be had.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unmeasured {
    /// The fact.
    pub what: &'static str,
    /// Why, and what to do.
    pub why: String,
}

impl Facts {
    /// Whether it is proved that the thread did nothing that a hot path must not do: everything was measured, and
    /// everything but [`involuntary_switches`](Self::involuntary_switches) is 0.
    pub fn clean(&self) -> bool {
        self.unmeasured.is_empty() && self.offences().next().is_none()
    }

    /// What the thread did and must not, by name, with its count. Empty also where nothing was measured: see
    /// [`unmeasured`](Self::unmeasured).
    pub fn offences(&self) -> impl Iterator<Item = (&'static str, u64)> {
        [
            ("allocations", self.allocations),
            ("frees", self.frees),
            ("minor page faults", self.minor_faults),
            ("major page faults", self.major_faults),
            ("voluntary context switches", self.voluntary_switches),
            ("system calls", self.system_calls),
        ]
        .into_iter()
        .filter(|(_, count)| *count != 0)
    }
}

impl fmt::Display for Facts {
    /// A line on what was found, then one for each kept system call and for each thing that was not measured.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.offences().next().is_none() {
            f.write_str("no offence")?;
        }
        for (k, (what, count)) in self.offences().enumerate() {
            write!(f, "{}{count} {what}", if k == 0 { "" } else { ", " })?;
            if what == "allocations" {
                write!(f, " ({} bytes)", self.bytes)?;
            }
        }
        write!(f, "; {} involuntary context switches", self.involuntary_switches)?;
        for violation in &self.violations {
            write!(f, "\n  system call: {violation}")?;
        }
        for Unmeasured { what, why } in &self.unmeasured {
            write!(f, "\n  not measured: {what}: {why}")?;
        }
        Ok(())
    }
}
