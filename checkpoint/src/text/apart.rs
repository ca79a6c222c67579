//! Runs what strangers wrote in a process of its own, whose memory and time the kernel bounds.
//!
//! A Jinja template doubles a text with one step, and compares or prints a value that holds itself many times over within one. The
//! interpreter counts steps, and has no bound of memory or time for any of them.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::contained::contained;
use doorbell_lm::limits::{TEMPLATE_MEMORY, TEMPLATE_SECONDS};

/// One at a time: a child that was forked meanwhile would hold the pipe of this one open.
static GATE: Mutex<()> = Mutex::new(());
/// Children at most for one piece of work.
const ATTEMPTS: u32 = 2;

/// What the work gives, of at most `output` bytes. It runs in a copy of this process that has the calling thread and no other, so it must wait for no
/// other thread and no lock. Nothing that it prints is seen.
///
/// The standard library takes a lock when it reports a panic or a lack of memory. Where another thread had that lock as the copy was made, the copy waits for ever: it
/// is given up at the deadline, and the work runs once more.
///
/// # Errors
/// What the work says, a limit that it exceeded, or why there is no such process.
pub(super) fn apart(output: u64, work: impl Fn() -> Result<String, String>) -> Result<String, String> {
    let memory = TEMPLATE_MEMORY.value()?;
    let seconds = TEMPLATE_SECONDS.value()?;
    let _gate = GATE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    // The kernel counts the seconds in which the child runs. By the clock there are more, as other work may be in its way.
    let patience = Duration::from_secs(6 * seconds.min(1 << 20));
    for _ in 0..ATTEMPTS {
        if let Some(result) = attempt(output, memory, seconds, patience, &work)? {
            return result;
        }
    }
    Err(TEMPLATE_SECONDS.exceeded(seconds))
}

/// What came of the work in one child, or `None` if it had not come within `patience`. The error says why there is no child.
fn attempt(
    output: u64,
    memory: u64,
    seconds: u64,
    patience: Duration,
    work: impl Fn() -> Result<String, String>,
) -> Result<Option<Result<String, String>>, String> {
    let cannot = |error: io::Error| format!("no process could be started for it: {error}");
    let null = OpenOptions::new().write(true).open("/dev/null").map_err(cannot)?;
    let (mut reader, writer) = io::pipe().map_err(cannot)?;
    // SAFETY: the child has the calling thread alone. It takes no lock that another thread of the parent may hold: libc keeps its
    // allocator usable in the child, the work promises the rest, and a child that waits all the same is killed at the deadline.
    let child = unsafe { libc::fork() };
    match child {
        -1 => return Err(cannot(io::Error::last_os_error())),
        0 => {
            let confined = confine(memory, seconds, &null).map_err(cannot);
            let sent = send(writer, confined.and_then(|()| contained(work).and_then(|text| text)));
            // SAFETY: it ends the child, without what the parent does when it ends.
            unsafe { libc::_exit(i32::from(sent.is_err())) }
        }
        _ => drop(writer),
    }
    let deadline = Instant::now() + patience;
    let got = receive(&mut reader, output, deadline);
    // SAFETY: the child was not waited for, so the number is still its own.
    unsafe { libc::kill(child, libc::SIGKILL) };
    let mut status = 0;
    // SAFETY: `status` is an integer of this thread.
    while unsafe { libc::waitpid(child, &raw mut status, 0) } == -1
        && io::Error::last_os_error().kind() == ErrorKind::Interrupted
    {}
    Ok(match got {
        Ok(result) => Some(result),
        Err(error) if error.kind() == ErrorKind::TimedOut => None,
        Err(_) if libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGXCPU => {
            Some(Err(TEMPLATE_SECONDS.exceeded(seconds)))
        }
        // An allocation that fails, or a stack that ends, ends the process.
        Err(_) => Some(Err(TEMPLATE_MEMORY.exceeded(memory))),
    })
}

/// Bytes of address space that this process has.
fn mapped() -> io::Result<u64> {
    let text = fs::read_to_string("/proc/self/statm")?;
    let pages: Option<u64> = text.split(' ').next().and_then(|pages| pages.parse().ok());
    // SAFETY: it reads a constant of the system.
    let page = u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) });
    pages
        .zip(page.ok())
        .map(|(pages, page)| pages * page)
        .ok_or_else(|| io::Error::other("/proc/self/statm is not as expected"))
}

/// Bounds this process, to so much memory beyond what it has, and lets nothing of it be seen.
fn confine(memory: u64, seconds: u64, null: &File) -> io::Result<()> {
    // Counted here: in the parent, other threads may take more until the copy is made.
    let space = mapped()?.saturating_add(memory);
    for (resource, most) in [(libc::RLIMIT_CORE, 0), (libc::RLIMIT_AS, space), (libc::RLIMIT_CPU, seconds)] {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: `limit` is of this thread.
        if unsafe { libc::getrlimit(resource, &raw mut limit) } != 0 {
            return Err(io::Error::last_os_error());
        }
        limit.rlim_cur = most.min(limit.rlim_cur);
        // SAFETY: as above.
        if unsafe { libc::setrlimit(resource, &raw const limit) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    for output in [libc::STDOUT_FILENO, libc::STDERR_FILENO] {
        // SAFETY: it changes descriptors of the child alone.
        if unsafe { libc::dup2(null.as_raw_fd(), output) } == -1 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// A byte that tells a text from an error, the length, the bytes.
fn send(mut writer: impl Write, result: Result<String, String>) -> io::Result<()> {
    let (kind, text) = match &result {
        Ok(text) => (1, text),
        Err(text) => (0, text),
    };
    writer.write_all(&[kind])?;
    writer.write_all(&(text.len() as u64).to_le_bytes())?;
    writer.write_all(text.as_bytes())
}

/// What [`send`] sent, by the deadline.
fn receive(reader: &mut io::PipeReader, most: u64, deadline: Instant) -> io::Result<Result<String, String>> {
    let mut head = [0; 9];
    fill(reader, &mut head, deadline)?;
    let length = u64::from_le_bytes(std::array::from_fn(|byte| head[1 + byte]));
    // Errors quote templates, and are no longer than those and a line.
    if length > most.saturating_add(1 << 20) {
        return Err(io::Error::other("too long"));
    }
    let mut text = vec![0; length as usize];
    fill(reader, &mut text, deadline)?;
    let text = String::from_utf8(text).map_err(io::Error::other)?;
    Ok(if head[0] == 1 { Ok(text) } else { Err(text) })
}

fn fill(reader: &mut io::PipeReader, mut bytes: &mut [u8], deadline: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now()).as_millis();
        if left == 0 {
            return Err(ErrorKind::TimedOut.into());
        }
        let mut poll = libc::pollfd { fd: reader.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one record, of this thread.
        let ready = unsafe { libc::poll(&raw mut poll, 1, i32::try_from(left).unwrap_or(i32::MAX)) };
        if ready < 1 {
            continue;
        }
        match reader.read(bytes) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => bytes = &mut bytes[count..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn work_is_done_and_its_errors_are_told() {
        assert_eq!(apart(99, || Ok("é\n".into())), Ok("é\n".into()));
        assert_eq!(apart(99, || Err("no".into())), Err("no".into()));
        assert_eq!(apart(99, || panic!("it broke")), Err("it broke".into()));
        let long = "x".repeat(3 << 20);
        assert_eq!(apart(4 << 20, || Ok(long.clone())), Ok(long.clone()), "more than a pipe holds");
    }

    #[test]
    fn memory_is_bounded() {
        let told = apart(99, || Ok(black_box("x".repeat(1 << 30)).len().to_string())).unwrap_err();
        assert!(told.contains("DOORBELL_LIMIT_TEMPLATE_MEMORY=N raises"), "{told}");
        assert!(apart(99, || Ok(black_box("x".repeat(100 << 20)).len().to_string())).is_ok());
    }

    /// Memory that another thread takes while the copy is made is none of the work's.
    #[test]
    fn memory_of_other_threads_is_not_counted() {
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let taken = black_box(Vec::<u8>::with_capacity(1 << 30));
                    std::thread::sleep(Duration::from_micros(30));
                    drop(taken);
                    std::thread::sleep(Duration::from_micros(30));
                }
            });
            let work = || Ok(black_box(Vec::<u8>::with_capacity(100 << 20)).len().to_string());
            let all: Vec<_> = (0..200).map(|_| apart(99, work)).collect();
            done.store(true, Ordering::Relaxed);
            assert!(all.iter().all(|one| one.as_deref() == Ok("0")), "{all:?}");
        });
    }

    #[test]
    fn a_child_that_waits_for_ever_is_given_up() {
        let first = tempfile::NamedTempFile::new().unwrap();
        // The first child waits, as for a lock of a thread that it has not.
        let work = || {
            if fs::remove_file(first.path()).is_ok() {
                loop {
                    std::thread::park();
                }
            }
            Ok("there".into())
        };
        let patience = Duration::from_millis(500);
        assert_eq!(attempt(99, 64 << 20, 5, patience, work), Ok(None));
        assert_eq!(attempt(99, 64 << 20, 5, Duration::from_secs(30), work), Ok(Some(Ok("there".into()))));
    }

    #[test]
    fn a_process_that_ends_is_told() {
        // SAFETY: it ends the child.
        let told = apart(99, || unsafe { libc::_exit(0) }).unwrap_err();
        assert!(told.contains("memory"), "{told}");
    }
}
