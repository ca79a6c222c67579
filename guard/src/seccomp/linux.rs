//! The filter and its supervisor.

use std::ffi::{CStr, c_int};
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use libc::{
    BPF_ABS, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W, SECCOMP_RET_ALLOW, SECCOMP_RET_USER_NOTIF,
    seccomp_data, seccomp_notif, seccomp_notif_resp, sock_filter,
};

use super::super::faults::COOKIE;
use super::{SystemCallError, VIOLATIONS_KEPT, Violation};

/// What hot thread and supervisor share. The hot thread writes `armed`; and, while it is not armed and so makes no
/// violation, `count`. The supervisor writes the rest.
#[derive(Debug)]
struct Shared {
    armed: AtomicBool,
    count: AtomicU64,
    kept: [Record; VIOLATIONS_KEPT],
    /// The listener, or one of the two values below.
    listener: AtomicI32,
}

const LISTENER_AWAITED: i32 = -1;
const LISTENER_REFUSED: i32 = -2;

#[derive(Debug, Default)]
struct Record {
    number: AtomicI64,
    instruction_pointer: AtomicU64,
}

#[derive(Debug)]
pub struct Guard {
    shared: Arc<Shared>,
}

impl Guard {
    pub fn install() -> Result<Self, SystemCallError> {
        let refused = |step| move |source| SystemCallError::Refused { step, source };
        notification_sizes().map_err(refused("seccomp(SECCOMP_GET_NOTIF_SIZES)"))?;
        let shared = Arc::new(Shared {
            armed: AtomicBool::new(false),
            count: AtomicU64::new(0),
            kept: [const { Record { number: AtomicI64::new(0), instruction_pointer: AtomicU64::new(0) } };
                VIOLATIONS_KEPT],
            listener: AtomicI32::new(LISTENER_AWAITED),
        });
        // Before the filter, which the thread would inherit.
        let theirs = shared.clone();
        // SAFETY: gettid has no preconditions.
        let hot = unsafe { libc::gettid() };
        thread::Builder::new()
            .name(format!("guard {hot}"))
            .spawn(move || supervise(&theirs, hot))
            .map_err(refused("starting the supervisor thread"))?;
        let listener = filter_this_thread();
        // From here on any system call waits for the supervisor, which waits for this store.
        shared.listener.store(*listener.as_ref().unwrap_or(&LISTENER_REFUSED), Ordering::Release);
        match listener {
            Ok(_) => Ok(Self { shared }),
            Err((_, source)) if source.raw_os_error() == Some(libc::EBUSY) => {
                Err(SystemCallError::AlreadyInstalled)
            }
            Err((step, source)) => Err(refused(step)(source)),
        }
    }

    /// The store is ordered before the supervisor's load: a system call lies between them, and the kernel's own
    /// locks on the way to the supervisor.
    #[inline]
    pub fn arm(&self, armed: bool) {
        self.shared.armed.store(armed, Ordering::Release);
    }

    pub fn seen(&self) -> (u64, Vec<Violation>) {
        let count = self.shared.count.load(Ordering::Acquire);
        let kept = self.shared.kept.iter().take(usize::try_from(count).unwrap_or(usize::MAX));
        let violations = kept.map(|record| {
            let number = record.number.load(Ordering::Relaxed) as i32;
            let instruction_pointer = record.instruction_pointer.load(Ordering::Relaxed);
            let name = usize::try_from(number).ok().and_then(syscalls::Sysno::new).map(|call| call.name());
            Violation { number, name, instruction_pointer, symbol: symbol(instruction_pointer) }
        });
        (count, violations.collect())
    }

    pub fn forget(&self) {
        self.shared.count.store(0, Ordering::Relaxed);
    }
}

/// Makes sure that the kernel's records fit into ours, as it writes and reads by its own sizes.
fn notification_sizes() -> io::Result<()> {
    let mut sizes = libc::seccomp_notif_sizes { seccomp_notif: 0, seccomp_notif_resp: 0, seccomp_data: 0 };
    // SAFETY: the kernel writes one `seccomp_notif_sizes` to the pointer.
    let result =
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_GET_NOTIF_SIZES, 0, &raw mut sizes) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    if usize::from(sizes.seccomp_notif) > size_of::<Notification>()
        || usize::from(sizes.seccomp_notif_resp) > size_of::<Response>()
    {
        return Err(io::Error::other("the kernel's notifications are larger than any that are known"));
    }
    Ok(())
}

/// A record with room for what later kernels may add to it.
#[repr(C)]
struct Padded<T>(T, [u64; 32]);
type Notification = Padded<seccomp_notif>;
type Response = Padded<seccomp_notif_resp>;
// The records of linux/seccomp.h, at the start of each.
static_assertions::assert_eq_size!(seccomp_notif, [u8; 80]);
static_assertions::assert_eq_size!(seccomp_notif_resp, [u8; 24]);
static_assertions::const_assert_eq!(std::mem::offset_of!(Notification, 0), 0);
static_assertions::const_assert_eq!(std::mem::offset_of!(Response, 0), 0);

const fn statement(code: u32, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

const fn load(offset: usize) -> sock_filter {
    statement(BPF_LD | BPF_W | BPF_ABS, offset as u32)
}

/// Skips `jt` instructions if the loaded word is `k`, else `jf`.
const fn equal(k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code: (BPF_JMP | BPF_JEQ | BPF_K) as u16, jt, jf, k }
}

/// `AUDIT_ARCH_X86_64` of linux/audit.h: the machine's number in ELF, 64 bits, little-endian.
const AUDIT_ARCH_X86_64: u32 = libc::EM_X86_64 as u32 | 0x8000_0000 | 0x4000_0000;

const ARGUMENT_2: usize = std::mem::offset_of!(seccomp_data, args) + 2 * size_of::<u64>();

static FILTER: [sock_filter; 14] = [
    load(std::mem::offset_of!(seccomp_data, arch)),
    // A 32-bit call has other numbers: the supervisor sees it, whatever it is.
    equal(AUDIT_ARCH_X86_64, 0, 11),
    load(std::mem::offset_of!(seccomp_data, nr)),
    equal(libc::SYS_exit as u32, 8, 0),
    equal(libc::SYS_exit_group as u32, 7, 0),
    equal(libc::SYS_rt_sigreturn as u32, 6, 0),
    equal(libc::SYS_restart_syscall as u32, 5, 0),
    // The call by which a watch begins and ends. One that stopped would count as a context switch.
    equal(libc::SYS_getrusage as u32, 0, 5),
    load(ARGUMENT_2),
    equal(COOKIE as u32, 0, 3),
    load(ARGUMENT_2 + size_of::<u32>()),
    equal((COOKIE >> 32) as u32, 0, 1),
    statement(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    statement(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
];

/// Puts the calling thread under the filter and returns the listener.
fn filter_this_thread() -> Result<c_int, (&'static str, io::Error)> {
    // SAFETY: the call takes integers alone.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
        return Err(("prctl(PR_SET_NO_NEW_PRIVS)", io::Error::last_os_error()));
    }
    let program =
        libc::sock_fprog { len: FILTER.len() as u16, filter: ptr::from_ref(&FILTER).cast_mut().cast() };
    let install = |flags: libc::c_ulong| {
        // SAFETY: the kernel copies the program, which is `len` instructions long and is not written to.
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program) }
    };
    // A signal would else interrupt a call that waits for the supervisor: it would start again, and count twice.
    let patient = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
    let mut result = install(patient);
    if result < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL) {
        // Before Linux 5.19.
        result = install(libc::SECCOMP_FILTER_FLAG_NEW_LISTENER);
    }
    match c_int::try_from(result) {
        Ok(listener) if listener >= 0 => Ok(listener),
        _ => Err(("seccomp(SECCOMP_FILTER_FLAG_NEW_LISTENER)", io::Error::last_os_error())),
    }
}

fn supervise(shared: &Shared, hot: libc::pid_t) {
    // A handler that ran here might wait for a lock that the hot thread holds.
    // SAFETY: the set is written by `sigfillset` before it is read, and blocking signals has no other precondition.
    unsafe {
        let mut all = MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), ptr::null_mut());
    }
    let Some(listener) = wait_for_listener(&shared.listener) else { return };
    serve(&listener, |call| {
        if call.pid != hot as u32 || !shared.armed.load(Ordering::Acquire) {
            return;
        }
        let count = shared.count.load(Ordering::Relaxed);
        if let Some(record) = shared.kept.get(usize::try_from(count).unwrap_or(usize::MAX)) {
            record.number.store(call.data.nr.into(), Ordering::Relaxed);
            record.instruction_pointer.store(call.data.instruction_pointer, Ordering::Relaxed);
        }
        shared.count.store(count + 1, Ordering::Release);
    });
}

/// The listener that the hot thread hands over, without a system call on its side.
fn wait_for_listener(handed: &AtomicI32) -> Option<File> {
    loop {
        match handed.load(Ordering::Acquire) {
            LISTENER_AWAITED => thread::sleep(Duration::from_micros(50)),
            LISTENER_REFUSED => return None,
            // SAFETY: the kernel has just made the descriptor, and nobody else closes it.
            listener => return Some(unsafe { File::from_raw_fd(listener) }),
        }
    }
}

/// Shows system calls to `see`, and lets them go on, until no thread is left that could make one. Takes no lock and no memory.
fn serve(listener: &File, mut see: impl FnMut(&seccomp_notif)) {
    let descriptor = listener.as_raw_fd();
    loop {
        let mut ready = libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 };
        // SAFETY: `ready` is one `pollfd`.
        if unsafe { libc::poll(&raw mut ready, 1, -1) } < 0 {
            continue; // A stop and continue of the process; every other error is one of the arguments.
        }
        if ready.revents & libc::POLLIN == 0 {
            return; // POLLHUP: the last thread under the filter has ended.
        }
        // SAFETY: integers and padding, all of which may be 0, as the kernel requires.
        let mut call: Notification = unsafe { MaybeUninit::zeroed().assume_init() };
        // SAFETY: the kernel writes no more than `notification_sizes` made sure fits.
        if unsafe { libc::ioctl(descriptor, libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut call) } != 0 {
            continue; // The thread was killed in the meantime.
        }
        // SAFETY: integers and padding, all of which may be 0.
        let mut response: Response = unsafe { MaybeUninit::zeroed().assume_init() };
        response.0.id = call.0.id;
        see(&call.0);
        response.0.flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32;
        // Fails only if the thread was killed in the meantime.
        // SAFETY: the kernel reads no more than `notification_sizes` made sure is there.
        unsafe { libc::ioctl(descriptor, libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut response) };
    }
}

/// The exported function that `address` lies in, and its file.
fn symbol(address: u64) -> Option<String> {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: `dladdr` takes any address, and writes one `Dl_info` if it returns other than 0.
    let found = unsafe { libc::dladdr(ptr::without_provenance(address as usize), info.as_mut_ptr()) };
    if found == 0 {
        return None;
    }
    // SAFETY: zeroed, then written by `dladdr`: pointers, which may be null.
    let info = unsafe { info.assume_init() };
    let text = |name: *const libc::c_char| {
        // SAFETY: what `dladdr` names are strings of the loaded file, which stays loaded: its code has just run.
        (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned())
    };
    let file = text(info.dli_fname)?;
    let offset = |from: *mut libc::c_void| address.wrapping_sub(from.addr() as u64);
    Some(match text(info.dli_sname) {
        Some(name) => format!("{name}+{:#x} of {file}", offset(info.dli_saddr)),
        None => format!("{file}+{:#x}", offset(info.dli_fbase)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A supervisor that dies with a call in its hands must not leave the hot thread waiting.
    #[test]
    fn without_its_supervisor_a_call_fails_and_the_thread_can_end() {
        let hot = thread::spawn(|| {
            let listener = Arc::new(AtomicI32::new(LISTENER_AWAITED));
            let theirs = listener.clone();
            let supervisor = thread::spawn(move || {
                if let Some(listener) = wait_for_listener(&theirs) {
                    serve(&listener, |_| std::panic::resume_unwind(Box::new("the supervisor dies")));
                }
            });
            let filtered = filter_this_thread();
            listener.store(*filtered.as_ref().unwrap_or(&LISTENER_REFUSED), Ordering::Release);
            if let Err((step, error)) = filtered {
                return Err(format!("{step}: {error}"));
            }
            // SAFETY: the call has no preconditions, and errno is this thread's.
            let failed = unsafe {
                libc::syscall(libc::SYS_getppid) == -1 && *libc::__errno_location() == libc::ENOSYS
            };
            // Joining would be a system call.
            std::mem::forget(supervisor);
            Ok(failed)
        });
        match hot.join().expect("the hot thread ends") {
            Ok(failed) => assert!(failed, "the call did not fail with ENOSYS"),
            Err(refused) => eprintln!("skipped: {refused}"),
        }
    }
}
