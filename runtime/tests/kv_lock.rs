//! Memory that may not be locked. A process of its own, as the limit is of the whole of it.

use doorbell_runtime::kv::pages::{Granted, Region};
use doorbell_runtime::kv::{PageOptions, PageSize};

#[test]
fn memory_that_cannot_be_locked_works_and_says_so() {
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `none` is a limit.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &none) }, 0);
    let region = Region::new(1 << 20, PageOptions { largest: PageSize::Base, lock: true }).unwrap();
    // SAFETY: it reads no memory of ours.
    let root = unsafe { libc::geteuid() } == 0;
    match &region.report().locked {
        Granted::Refused(reason) => assert!(reason.contains("ulimit -l"), "{reason}"),
        // Limits do not bind whoever has CAP_IPC_LOCK.
        other => assert!(root && *other == Granted::Yes, "{other:?}"),
    }
    // SAFETY: the region is ours and longer than a byte.
    unsafe { region.base().write_volatile(7) };
}
