//! Each guard sees an offence that is planted, and names it; a clean loop is clean. In a binary of its own, because
//! there is one global allocator per program.

use std::hint::black_box;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use doorbell_guard::{
    CountingAllocator, Facts, SystemCallError, SystemCallGuard, VIOLATIONS_KEPT, Watch, thread_counts,
};
use rstest::rstest;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

const PAGE: usize = 4096;
/// After this something hangs: a bound, and not a measurement.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs on a thread of its own, which takes its filter with it, and which `--test-threads=1` does not give.
fn on_a_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match thread::spawn(work).join() {
        Ok(value) => value,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// The thread's guard; where the kernel allows none, the rest is tested, and this says what is not.
fn install() -> Result<SystemCallGuard, SystemCallError> {
    let guard = SystemCallGuard::install();
    match &guard {
        Ok(_) => {}
        Err(error @ (SystemCallError::Refused { .. } | SystemCallError::Unsupported(_))) => {
            eprintln!("skipped: system calls: {error}");
        }
        Err(error) => panic!("{error}"),
    }
    guard
}

/// Watches `hot` on this thread, which has been made resident first.
fn watched(guard: &mut Result<SystemCallGuard, SystemCallError>, hot: impl FnOnce()) -> Facts {
    let watch = Watch::begin(guard).unwrap();
    hot();
    watch.end()
}

fn offences(facts: &Facts) -> Vec<(&'static str, u64)> {
    facts.offences().collect()
}

fn not_asked() -> Result<SystemCallGuard, SystemCallError> {
    Err(SystemCallError::NotAsked)
}

fn call_getppid() {
    // SAFETY: the call has no preconditions.
    black_box(unsafe { libc::getppid() });
}

/// A page that nobody has touched, somewhere in fresh memory.
struct Fresh(*mut u8);

impl Fresh {
    fn map() -> Self {
        // SAFETY: a new private mapping; checked below.
        let page = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                PAGE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(page, libc::MAP_FAILED, "{}", io::Error::last_os_error());
        Self(page.cast())
    }

    fn touch(&self) {
        // SAFETY: the page is mapped, writable and this value's own.
        unsafe { self.0.write_volatile(1) };
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, and nobody keeps the pointer.
        unsafe { libc::munmap(self.0.cast(), PAGE) };
    }
}

#[derive(Clone, Copy, Debug)]
enum Offence {
    Allocation,
    Free,
    Reallocation,
    FirstTouch,
    SystemCall,
    Sleep,
}

const SWITCHES: &str = "voluntary context switches";

/// Flaw 17: a guard of the hot path that counts nothing. Each offence is seen, under its name, and nothing else is.
#[rstest]
#[case(Offence::Allocation, &["allocations"], 32)]
#[case(Offence::Free, &["frees"], 0)]
#[case(Offence::Reallocation, &["allocations", "frees"], 24)]
#[case(Offence::FirstTouch, &["minor page faults"], 0)]
#[case(Offence::SystemCall, &["system calls"], 0)]
#[case(Offence::Sleep, &[SWITCHES, "system calls"], 0)]
fn flaw_17_the_guard_counts_what_the_hot_path_does(
    #[case] offence: Offence,
    #[case] expected: &'static [&'static str],
    #[case] bytes: u64,
) {
    on_a_thread(move || {
        let mut guard = install();
        let (fresh, mut boxed, mut vec) = (Fresh::map(), Some(Box::new(1_u64)), Vec::<u8>::with_capacity(8));
        let mut kept = None;
        let facts = watched(&mut guard, || match offence {
            Offence::Allocation => kept = Some(black_box(Box::new([0_u64; 4]))),
            Offence::Free => drop(black_box(boxed.take())),
            Offence::Reallocation => black_box(&mut vec).reserve_exact(24),
            Offence::FirstTouch => fresh.touch(),
            Offence::SystemCall => call_getppid(),
            Offence::Sleep => thread::sleep(Duration::from_millis(1)),
        });
        // A thread that is stopped for its supervisor mostly, but not always, gives up its processor; one that faults does
        // where it waits for the lock of its address space, which other tests' threads share.
        let stopped = (facts.system_calls > 0 || facts.minor_faults > 0) && !expected.contains(&SWITCHES);
        let seen: Vec<_> = facts.offences().filter(|(name, _)| !(stopped && *name == SWITCHES)).collect();
        let expected = expected.iter().copied().filter(|name| guard.is_ok() || *name != "system calls");
        assert_eq!(
            seen.iter().map(|(name, _)| *name).collect::<Vec<_>>(),
            expected.collect::<Vec<_>>(),
            "{facts}"
        );
        assert!(seen.iter().all(|(name, count)| *count == 1 || *name == SWITCHES), "{facts}");
        assert_eq!(facts.bytes, bytes, "{facts}");
        assert!(!facts.clean());

        // The same thread, under the same guard, is clean again.
        let mut sum = 0_u64;
        let facts = watched(&mut guard, || (0..10_000).for_each(|k| sum = black_box(sum.wrapping_add(k))));
        assert_eq!(offences(&facts), [], "{facts}");
        assert_eq!(facts.clean(), guard.is_ok(), "{facts}");
    });
}

#[test]
fn a_system_call_is_named_with_its_place() {
    on_a_thread(|| {
        let mut guard = install();
        let facts = watched(&mut guard, call_getppid);
        if guard.is_err() {
            assert_eq!(facts.unmeasured[0].what, "system calls");
            return;
        }
        let [violation] = &facts.violations[..] else { panic!("{facts}") };
        assert_eq!((i64::from(violation.number), violation.name), (libc::SYS_getppid, Some("getppid")));
        let symbol = violation.symbol.as_deref().expect("the C library exports its functions");
        assert!(symbol.starts_with("getppid+0x"), "{symbol}");
        assert!(facts.to_string().contains("system call: getppid (110) at 0x"), "{facts}");
    });
}

#[test]
fn all_violations_are_counted_and_the_first_are_kept() {
    on_a_thread(|| {
        let mut guard = install();
        let calls = VIOLATIONS_KEPT as u64 + 9;
        let facts = watched(&mut guard, || (0..calls).for_each(|_| call_getppid()));
        if guard.is_ok() {
            assert_eq!((facts.system_calls, facts.violations.len()), (calls, VIOLATIONS_KEPT));
        }
    });
}

/// The measuring call passes the filter; the same call without the measurer's mark is one like any other.
#[test]
fn reading_the_usage_is_no_loophole() {
    on_a_thread(|| {
        let mut guard = install();
        // SAFETY: the call writes one `rusage`, integers that may be 0 before.
        let usage = || unsafe {
            let mut usage = std::mem::zeroed();
            libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage)
        };
        let facts = watched(&mut guard, || assert_eq!(usage(), 0));
        assert!(guard.is_err() || facts.system_calls == 1, "{facts}");
    });
}

#[test]
fn a_clock_of_the_vdso_is_no_system_call() {
    on_a_thread(|| {
        // The clock's page is mapped when it is first read.
        black_box(Instant::now());
        let mut guard = install();
        let facts = watched(&mut guard, || {
            for _ in 0..1000 {
                black_box(Instant::now());
            }
        });
        // Where the kernel cannot use the time stamp counter, the vDSO calls it after all.
        if facts.system_calls == 0 {
            assert_eq!(offences(&facts), [], "{facts}");
        } else {
            assert!(facts.violations.iter().all(|call| call.name == Some("clock_gettime")), "{facts}");
        }
    });
}

/// The thread of another is not judged, and neither is one that the hot thread starts and that inherits its filter.
#[test]
fn other_threads_are_not_judged() {
    let other = Arc::new(AtomicBool::new(true));
    let theirs = other.clone();
    let noisy = thread::spawn(move || {
        while theirs.load(Ordering::Relaxed) {
            call_getppid();
            drop(black_box(Box::new(1)));
        }
    });
    on_a_thread(move || {
        let mut guard = install();
        let flags = Arc::new([const { AtomicBool::new(false) }; 2]);
        let theirs = flags.clone();
        let child = thread::spawn(move || {
            while !theirs[0].load(Ordering::Acquire) {
                std::hint::spin_loop();
            }
            (0..100).for_each(|_| call_getppid());
            drop(black_box(vec![1_u8; 100]));
            theirs[1].store(true, Ordering::Release);
        });
        let facts = watched(&mut guard, || {
            flags[0].store(true, Ordering::Release);
            while !flags[1].load(Ordering::Acquire) {
                std::hint::spin_loop();
            }
        });
        child.join().unwrap();
        assert_eq!(offences(&facts), [], "{facts}");
    });
    other.store(false, Ordering::Relaxed);
    noisy.join().unwrap();
}

#[test]
fn a_hot_loop_that_panics_is_disarmed_and_its_thread_ends() {
    on_a_thread(|| {
        let mut guard = install();
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let watch = Watch::begin(&mut guard).unwrap();
            if black_box(true) {
                std::panic::resume_unwind(Box::new("planted"));
            }
            watch.end()
        }));
        assert!(caught.is_err());
        let Ok(guard) = guard else { return };
        guard.forget();
        call_getppid();
        assert_eq!(guard.seen().0, 0, "still armed");
    });
}

/// A thread ends under its filter, armed or not, and its supervisor follows it.
#[rstest]
fn a_supervisor_ends_with_its_thread(#[values(false, true)] armed: bool) {
    let supervisor_of = |hot: i32| {
        let comms = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        comms
            .map(|task| std::fs::read_to_string(task.path().join("comm")).unwrap_or_default())
            .any(|comm| comm.trim() == format!("guard {hot}"))
    };
    let hot = on_a_thread(move || {
        let guard = install().ok()?;
        // SAFETY: the call has no preconditions; it is also one that the supervisor has answered.
        let hot = unsafe { libc::gettid() };
        assert!(supervisor_of(hot), "nobody supervises");
        if armed {
            guard.arm();
            std::mem::forget(guard);
        }
        Some(hot)
    });
    let Some(hot) = hot else { return };
    let patience = Instant::now() + PATIENCE;
    while supervisor_of(hot) {
        assert!(Instant::now() < patience, "the supervisor outlives its thread");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_thread_has_one_guard_and_can_use_it_again() {
    on_a_thread(|| {
        let mut guard = install();
        if guard.is_err() {
            return;
        }
        let second = SystemCallGuard::install().unwrap_err();
        assert!(matches!(second, SystemCallError::AlreadyInstalled), "{second}");
        assert_eq!(watched(&mut guard, call_getppid).system_calls, 1);
        assert_eq!(watched(&mut guard, || {}).system_calls, 0);
        assert_eq!(watched(&mut guard, call_getppid).system_calls, 1);
    });
}

#[test]
fn what_was_not_measured_is_told_and_not_clean() {
    on_a_thread(|| {
        let facts = watched(&mut not_asked(), || {});
        assert_eq!(offences(&facts), []);
        assert!(!facts.clean(), "nobody watched the system calls");
        assert_eq!(facts.unmeasured.len(), 1, "{facts}");
        assert!(facts.to_string().contains("not measured: system calls: nobody asked for it"), "{facts}");
    });
}

#[test]
fn a_page_is_touched_for_the_first_time_once() {
    on_a_thread(|| {
        let fresh: Vec<Fresh> = (0..8).map(|_| Fresh::map()).collect();
        let first = watched(&mut not_asked(), || fresh.iter().for_each(Fresh::touch));
        let again = watched(&mut not_asked(), || fresh.iter().for_each(Fresh::touch));
        assert_eq!((first.minor_faults, again.minor_faults), (8, 0));
    });
}

#[test]
fn counts_are_of_the_thread() {
    on_a_thread(|| {
        let before = thread_counts();
        // Starting a thread allocates here; what it does itself is its own.
        thread::spawn(|| drop(black_box(vec![0_u8; 1 << 20]))).join().unwrap();
        let seen = thread_counts() - before;
        assert!(seen.bytes < 1 << 20, "{seen:?} are another thread's");
    });
}
