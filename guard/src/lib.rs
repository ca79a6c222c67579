//! Facts that prove what a hot path does not do.
//!
//! The facts are the kernel's and the allocator's own counts for the whole thread, not those of a wrapper that the hot
//! path would have to call: whatever the thread does between [`Watch::begin`] and [`Watch::end`] is in them.
//!
//! | fact | counted by |
//! |---|---|
//! | allocations, frees, bytes | [`CountingAllocator`], the program's `#[global_allocator]` |
//! | page faults, context switches | the kernel, `getrusage(RUSAGE_THREAD)` |
//! | system calls | the kernel stops each one at a supervisor: [`SystemCallGuard`] |
//!
//! [`prefault`] makes the process resident first, so that a clean loop *can* be clean.

mod allocator;
mod faults;
mod prefault;
mod seccomp;
mod watch;

pub use allocator::{AllocationCounts, CountingAllocator, thread_counts};
pub use faults::Usage;
pub use prefault::{Prefault, PrefaultOptions, prefault};
pub use seccomp::{SystemCallError, SystemCallGuard, VIOLATIONS_KEPT, Violation};
pub use watch::{Facts, Unmeasured, Watch};
