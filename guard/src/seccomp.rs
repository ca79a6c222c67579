//! A thread that may make no system call while it is armed.
//!
//! A seccomp filter on that thread alone stops each of its system calls in the kernel and hands it to a supervisor
//! thread of the same process (`SECCOMP_RET_USER_NOTIF`). The supervisor looks at a flag that the hot thread sets and
//! clears with a plain store: while it is set the call is a violation and is recorded; in either case the call then
//! goes on as if nothing had been. Calls that the vDSO answers, such as reading a clock, never enter the kernel and are
//! none.
//!
//! A filter cannot be taken off a thread, so the thread pays a hand-over (some microseconds) for each system call until
//! it ends; so does each thread or process that it starts afterwards, which inherits the filter but is never judged.
//!
//! What keeps it from hanging:
//!
//! - The supervisor takes no lock and no memory while it serves: the hot thread may be stopped inside `malloc` or the
//!   dynamic linker, holding theirs. Names are looked up later, by whoever asks for them.
//! - `exit`, `exit_group`, `rt_sigreturn` and `restart_syscall` pass the filter: a thread can always end, and a signal
//!   that somebody else sent is not the hot path's doing.
//! - The supervisor alone owns the listener. Should it end, the kernel closes the listener, and a call of the hot
//!   thread then fails with `ENOSYS` instead of waiting for ever.
//! - It ends by itself when the last thread under the filter has ended (`POLLHUP`, Linux 5.8; before that it stays,
//!   asleep, until the process ends).

use std::fmt;
use std::io;
use std::marker::PhantomData;

use serde::Serialize;

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "seccomp/linux.rs"]
mod imp;
#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
#[path = "seccomp/unsupported.rs"]
mod imp;

/// Violations that are kept with their place; all are counted.
pub const VIOLATIONS_KEPT: usize = 64;

/// Why system calls cannot be watched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SystemCallError {
    /// The program did not ask for it.
    #[error("nobody asked for it: SystemCallGuard::install was not called on this thread")]
    NotAsked,
    /// The filter is written for another machine.
    #[error("the filter knows the system calls of Linux on x86-64 only, and this is {0}")]
    Unsupported(&'static str),
    /// The thread has such a guard, or a supervisor of another kind, and the kernel allows one.
    #[error(
        "this thread already has a seccomp listener, and the kernel allows one: keep the first guard and use it again, \
         or watch a new thread"
    )]
    AlreadyInstalled,
    /// The kernel lacks what is needed or does not allow it.
    #[error(
        "{step} failed: {source}; needed are Linux 5.5 with CONFIG_SECCOMP_FILTER, and a sandbox that allows it"
    )]
    Refused {
        /// What was tried.
        step: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// A system call that an armed thread made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// Number of the call.
    pub number: i32,
    /// Its name, if it is one of this architecture's.
    pub name: Option<&'static str>,
    /// Address of the instruction behind the call.
    pub instruction_pointer: u64,
    /// What lies there: the exported function and the file that it is in; mostly the C library's wrapper.
    pub symbol: Option<String>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name.unwrap_or("unknown"), self.number)?;
        write!(f, " at {:#x}", self.instruction_pointer)?;
        match &self.symbol {
            Some(symbol) => write!(f, ", in {symbol}"),
            None => Ok(()),
        }
    }
}

/// The calling thread's guard; lives on that thread. Dropping it disarms, and leaves the filter in place.
#[derive(Debug)]
pub struct SystemCallGuard {
    inner: imp::Guard,
    /// Armed and disarmed by the thread that it supervises.
    _not_send: PhantomData<*const ()>,
}

impl SystemCallGuard {
    /// Puts the calling thread under a filter, for the rest of its life, and starts its supervisor. The thread gains no
    /// privileges by `execve` from here on (`PR_SET_NO_NEW_PRIVS`).
    ///
    /// # Errors
    /// `Unsupported`, `AlreadyInstalled` and `Refused`; the thread has no filter then.
    pub fn install() -> Result<Self, SystemCallError> {
        Ok(Self { inner: imp::Guard::install()?, _not_send: PhantomData })
    }

    /// From here on a system call is a violation.
    #[inline]
    pub fn arm(&self) {
        self.inner.arm(true);
    }

    /// From here on a system call is none of our business.
    #[inline]
    pub fn disarm(&self) {
        self.inner.arm(false);
    }

    /// How many violations there were since [`forget`](Self::forget), and the first [`VIOLATIONS_KEPT`] of them.
    pub fn seen(&self) -> (u64, Vec<Violation>) {
        self.inner.seen()
    }

    /// Starts counting from 0. A call in between on an armed thread is lost: disarm first.
    pub fn forget(&self) {
        self.inner.forget();
    }
}

impl Drop for SystemCallGuard {
    fn drop(&mut self) {
        self.disarm();
    }
}
