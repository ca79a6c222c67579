//! A full disk under a file that is mapped is a SIGBUS, which ends the program. While a [`FullDisk`] lives, the fault is noted instead, and the page
//! that the disk has no room for becomes memory of the process: whoever wrote to it goes on, and what it has written is lost.
//!
//! The recorder of waveforms is C++ of others, and maps its files. All `unsafe` of this program is here.

use std::io;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// How many live; the handler is in place from the first to the last.
static WATCHING: Mutex<usize> = Mutex::new(0);
/// Whether a page was lost since the first of those that live began.
static LOST: AtomicBool = AtomicBool::new(false);
/// The action before, for faults that are no full disk; never freed, as a handler on another thread may still read it.
static BEFORE: AtomicPtr<libc::sigaction> = AtomicPtr::new(std::ptr::null_mut());
static PAGE: AtomicUsize = AtomicUsize::new(4096);

/// Keeps SIGBUS off. It counts for the whole process.
#[derive(Debug)]
pub struct FullDisk(());

impl FullDisk {
    /// From here on, until it is dropped. Where the system refuses a handler, a SIGBUS ends the program as before.
    pub fn watch() -> FullDisk {
        let mut watching = WATCHING.lock().unwrap_or_else(PoisonError::into_inner);
        *watching += 1;
        if *watching == 1 {
            LOST.store(false, Ordering::SeqCst);
            // Best effort: see above.
            let _ = install();
        }
        FullDisk(())
    }

    /// Whether a disk was full under a mapped file since then.
    #[expect(clippy::unused_self, reason = "without one nothing is noted")]
    pub fn was_full(&self) -> bool {
        LOST.load(Ordering::SeqCst)
    }
}

impl Drop for FullDisk {
    fn drop(&mut self) {
        let mut watching = WATCHING.lock().unwrap_or_else(PoisonError::into_inner);
        *watching -= 1;
        if *watching == 0 {
            restore();
        }
    }
}

fn install() -> io::Result<()> {
    // SAFETY: the argument is a name that the system knows.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    PAGE.store(usize::try_from(page).unwrap_or(4096), Ordering::SeqCst);
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    let mut before = Box::new(MaybeUninit::<libc::sigaction>::zeroed());
    // SAFETY: zero is a valid `sigaction`; the handler has the type that SA_SIGINFO asks for, and calls what a handler may.
    let result = unsafe {
        let action = action.assume_init_mut();
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = on_sigbus;
        action.sa_sigaction = handler as libc::sighandler_t;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigaction(libc::SIGBUS, action, before.as_mut_ptr())
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    BEFORE.store(Box::into_raw(before).cast(), Ordering::SeqCst);
    Ok(())
}

/// Puts the action before back.
fn restore() {
    let before = BEFORE.load(Ordering::SeqCst);
    if !before.is_null() {
        // SAFETY: it is what `sigaction` wrote, and is never freed.
        unsafe { libc::sigaction(libc::SIGBUS, before, std::ptr::null_mut()) };
    }
}

/// Replaces the page by an empty one of the process, so that the access, repeated, succeeds.
extern "C" fn on_sigbus(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: with SA_SIGINFO the system hands a valid `siginfo_t`, and each thread has an errno.
    let (code, address, errno) =
        unsafe { ((*info).si_code, (*info).si_addr() as usize, libc::__errno_location()) };
    if code == libc::BUS_ADRERR {
        let page = PAGE.load(Ordering::SeqCst);
        // SAFETY: the page is one of a mapping of this process whose file has no bytes for it, so nothing that is there is lost.
        let (mapped, told) = unsafe {
            let told = *errno;
            let mapped = libc::mmap(
                (address & !(page - 1)) as *mut libc::c_void,
                page,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
                -1,
                0,
            );
            (mapped, told)
        };
        // SAFETY: as above.
        unsafe { *errno = told };
        if mapped != libc::MAP_FAILED {
            LOST.store(true, Ordering::SeqCst);
            return;
        }
    }
    // Another fault, which comes again and finds the action before.
    restore();
}

/// Tests of what counts for the whole process run one after the other.
#[cfg(test)]
pub static ONE: Mutex<()> = Mutex::new(());

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    /// What a full disk does to a mapped file, without a disk to fill: the file ends before its mapping does.
    #[test]
    fn a_mapped_file_without_bytes_ends_no_program() {
        let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let file = tempfile::tempfile().unwrap();
        file.set_len(2 * 4096).unwrap();
        // SAFETY: a new mapping of an open file.
        let bytes = unsafe {
            let mapped = libc::mmap(
                std::ptr::null_mut(),
                2 * 4096,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            );
            assert_ne!(mapped, libc::MAP_FAILED);
            mapped.cast::<u8>()
        };
        let disk = FullDisk::watch();
        // SAFETY: both pages are mapped, and nobody else has them.
        unsafe { bytes.write_volatile(1) };
        assert!(!disk.was_full(), "a page that is there is no fault");
        file.set_len(4096).unwrap();
        // SAFETY: as above; the handler gives the second page memory.
        unsafe { bytes.add(4096 + 7).write_volatile(9) };
        assert!(disk.was_full());
        // SAFETY: as above.
        unsafe { assert_eq!((bytes.read_volatile(), bytes.add(4096 + 7).read_volatile()), (1, 9)) };
        // SAFETY: nothing refers to the mapping.
        unsafe { libc::munmap(bytes.cast(), 2 * 4096) };
    }
}
