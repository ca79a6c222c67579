//! The interrupt of a driver's queue pair, where messages come as an eventfd.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use doorbell_host::platform::MESSAGE;
use doorbell_host::{DeviceError, SharedMemory};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

/// How long an advance waits for a device that runs by itself.
const LOOK: Duration = Duration::from_micros(50);

/// An eventfd, and the word in memory where the driver looks for its message.
pub(crate) struct Interrupt {
    eventfd: OwnedFd,
    word: Option<(SharedMemory, usize)>,
}

/// What ended a sleep; nothing of it after the deadline.
pub(crate) struct Woken {
    /// The eventfd has rung.
    pub rang: bool,
    /// The other file can be read, or has ended.
    pub other: bool,
}

impl Interrupt {
    /// One that nobody rings yet.
    ///
    /// # Errors
    /// The system's.
    pub fn new() -> io::Result<Self> {
        Ok(Self { eventfd: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?, word: None })
    }

    /// What is to be rung.
    pub fn eventfd(&self) -> BorrowedFd<'_> {
        self.eventfd.as_fd()
    }

    /// From now on the message goes to the word at byte `offset` of `memory`.
    pub fn route(&mut self, memory: &SharedMemory, offset: usize) {
        self.word = Some((memory.clone(), offset));
    }

    /// Writes the message's word if the eventfd has rung.
    ///
    /// # Errors
    /// `OutOfBounds` if the word does not lie in its memory.
    pub fn look(&self) -> Result<(), DeviceError> {
        let mut count = [0; 8];
        if rustix::io::read(&self.eventfd, &mut count[..]).is_ok()
            && let Some((memory, offset)) = &self.word
        {
            memory.word32(*offset)?.store(MESSAGE, Ordering::Release);
        }
        Ok(())
    }

    /// Lets a device that runs by itself have a moment, then looks.
    ///
    /// # Errors
    /// As [`look`](Self::look).
    pub fn pause(&self) -> Result<(), DeviceError> {
        std::thread::sleep(LOOK);
        self.look()
    }

    /// Sleeps until the eventfd rings, `other` can be read, or `deadline`.
    ///
    /// # Errors
    /// The system's.
    pub fn sleep(&self, deadline: Instant, other: Option<BorrowedFd<'_>>) -> io::Result<Woken> {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        let mut fds = vec![PollFd::new(&self.eventfd, PollFlags::IN)];
        fds.extend(other.map(|other| PollFd::from_borrowed_fd(other, PollFlags::IN)));
        match poll(&mut fds, Some(&left)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let happened = |fd: Option<&PollFd<'_>>| fd.is_some_and(|fd| !fd.revents().is_empty());
        Ok(Woken { rang: happened(fds.first()), other: happened(fds.get(1)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What rang before a sleep ends it, and is told once.
    #[test]
    fn a_ring_ends_a_sleep_and_is_seen_in_memory() {
        let memory = SharedMemory::allocate(1, 0x1000).unwrap();
        let mut interrupt = Interrupt::new().unwrap();
        interrupt.route(&memory, 8);
        let word = || memory.word32(8).unwrap().swap(0, Ordering::Relaxed);
        interrupt.look().unwrap();
        assert_eq!(word(), 0, "it has not rung");
        rustix::io::write(interrupt.eventfd(), &1u64.to_ne_bytes()).unwrap();
        let woken = interrupt.sleep(Instant::now() + Duration::from_secs(20), None).unwrap();
        assert!(woken.rang && !woken.other);
        interrupt.look().unwrap();
        assert_eq!(word(), MESSAGE);
        interrupt.pause().unwrap();
        let woken = interrupt.sleep(Instant::now(), None).unwrap();
        assert_eq!((woken.rang, word()), (false, 0), "it was told");
    }

    #[test]
    fn the_end_of_the_other_file_ends_a_sleep() {
        let interrupt = Interrupt::new().unwrap();
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        drop(theirs);
        let deadline = Instant::now() + Duration::from_secs(20);
        let woken = interrupt.sleep(deadline, Some(ours.as_fd())).unwrap();
        assert!(woken.other && !woken.rang);
    }
}
