//! Page faults and context switches of the calling thread, as the kernel counts them.

use std::io;
use std::mem::MaybeUninit;
use std::ops::Sub;

use serde::Serialize;

/// Third argument of this module's `getrusage`, which takes two: by it the system-call guard's filter tells the call
/// that measures from one of the hot path's.
pub(super) const COOKIE: u64 = 0x6472_6265_6c6c_5541;

/// What the kernel has counted for the calling thread since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// Page faults that needed no input or output: the first touch of a page, a copy on write.
    pub minor_faults: u64,
    /// Page faults that waited for a disk.
    pub major_faults: u64,
    /// Times that the thread gave up its processor: it waited or slept.
    pub voluntary_switches: u64,
    /// Times that the scheduler took the processor away.
    pub involuntary_switches: u64,
}

impl Usage {
    /// The counts of the calling thread; one system call.
    ///
    /// # Errors
    /// The kernel's, if it does not know `RUSAGE_THREAD` (before Linux 2.6.26).
    pub fn of_this_thread() -> io::Result<Self> {
        let mut usage = MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: the kernel writes one `rusage` to the pointer, and ignores the third argument.
        let result =
            unsafe { libc::syscall(libc::SYS_getrusage, libc::RUSAGE_THREAD, usage.as_mut_ptr(), COOKIE) };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: zeroed, then written by the kernel: integers either way.
        let usage = unsafe { usage.assume_init() };
        let count = |value: libc::c_long| u64::try_from(value).unwrap_or(0);
        Ok(Self {
            minor_faults: count(usage.ru_minflt),
            major_faults: count(usage.ru_majflt),
            voluntary_switches: count(usage.ru_nvcsw),
            involuntary_switches: count(usage.ru_nivcsw),
        })
    }
}

impl Sub for Usage {
    type Output = Self;

    /// What was counted between `earlier` and `self`.
    fn sub(self, earlier: Self) -> Self {
        Self {
            minor_faults: self.minor_faults - earlier.minor_faults,
            major_faults: self.major_faults - earlier.major_faults,
            voluntary_switches: self.voluntary_switches - earlier.voluntary_switches,
            involuntary_switches: self.involuntary_switches - earlier.involuntary_switches,
        }
    }
}
