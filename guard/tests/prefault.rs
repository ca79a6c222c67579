//! What a process that was made resident does not fault on. In a binary of its own: a prefault reaches the memory of every
//! thread, so also that of tests which need some that is not resident.

use std::hint::black_box;
use std::sync::Mutex;
use std::thread;

use doorbell_guard::{PrefaultOptions, SystemCallError, Watch, prefault};

const PAGE: usize = 4096;
const MIB: usize = 1 << 20;

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Runs on a new stack, larger than those that the C library keeps for later threads.
fn on_a_new_stack(work: impl FnOnce() + Send + 'static) {
    let _alone = ONE_AT_A_TIME.lock();
    let thread = thread::Builder::new().stack_size(64 * MIB).spawn(work).unwrap();
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

/// Touches `bytes` of stack below the caller.
#[inline(never)]
fn descend(bytes: usize) {
    let mut page = [0_u8; PAGE];
    black_box(&mut page);
    if bytes > PAGE {
        descend(bytes - PAGE);
    }
    black_box(&mut page);
}

/// Page faults of this thread while it does `work`.
fn faults(work: impl FnOnce()) -> u64 {
    let mut unasked = Err(SystemCallError::NotAsked);
    let watch = Watch::begin(&mut unasked).unwrap();
    work();
    let facts = watch.end();
    facts.minor_faults + facts.major_faults
}

/// So far and no further.
fn options(stack_bytes: usize, limit_bytes: u64) -> PrefaultOptions {
    let mut options = PrefaultOptions::default();
    (options.stack_bytes, options.limit_bytes) = (stack_bytes, Some(limit_bytes));
    options
}

#[test]
fn memory_and_stack_are_resident_afterwards() {
    on_a_new_stack(|| {
        let mut early = vec![0_u8; 64 * MIB];
        let mut late = vec![0_u8; 64 * MIB];
        let touch = |memory: &mut [u8]| {
            for page in memory.chunks_mut(PAGE).take(256) {
                *black_box(&mut page[0]) = 1;
            }
        };
        // Not resident before, or the rest would prove nothing. Huge pages may make it fewer faults than pages.
        assert!(faults(|| touch(&mut early)) >= 1);
        assert!(faults(|| descend(MIB)) >= 1);
        // The stack alone, then the rest, which would make this thread's stack resident too.
        let done = prefault(options(8 * MIB, 0));
        assert_eq!((done.stack_bytes, done.mappings), (8 * MIB, 0), "{done}");
        let on_stack = faults(|| descend(4 * MIB));
        let done = prefault(options(MIB, 1 << 30));
        assert!(done.mappings > 10 && done.bytes > 128 * MIB as u64, "{done}");
        let seen = (faults(|| touch(&mut late)), on_stack);
        assert_eq!(seen, (0, 0), "faults in memory and on the stack; {done}");
    });
}

#[test]
fn what_could_not_be_done_is_told() {
    on_a_new_stack(|| {
        let done = prefault(options(1 << 40, 0));
        assert_eq!(done.mappings, 0);
        assert!(done.stack_bytes < 64 * MIB, "{done}");
        let text = done.to_string();
        assert!(text.contains("could not: touch 1099511627776 bytes of stack: only"), "{text}");
        assert!(
            text.contains("(anonymous memory): ") && text.contains("more than the 0 that are left"),
            "{text}"
        );
    });
}
