//! The vectors of a function's MSI-X: the table that its host sees, and the eventfds that stand for messages.
//!
//! What holds a vector back here masks it in the device's own table, which keeps what is pending (R14). So a message that comes goes to
//! its eventfd. Only one that was on its way while its eventfd was taken back is kept here, until there is another.

use std::os::fd::OwnedFd;

use rustix::fs::OFlags;

use crate::refusal::Refusal;

/// Words of an entry: address, low and high, data, control.
const WORDS: usize = 4;
const CONTROL: usize = 3;
const MASK: u32 = 1;

#[derive(Debug)]
struct Vector {
    entry: [u32; WORDS],
    /// A message has come and has gone to no eventfd.
    pending: bool,
    trigger: Option<OwnedFd>,
    /// Whether the host has written the mask, so that it owns it. Else the host traps the table, and says by triggers what it wants.
    by_table: bool,
}

impl Default for Vector {
    fn default() -> Self {
        Self { entry: [0, 0, 0, MASK], pending: false, trigger: None, by_table: false }
    }
}

/// All vectors of a function.
#[derive(Debug)]
pub struct Vectors(Vec<Vector>);

impl Vectors {
    /// So many, masked, without triggers.
    pub fn new(count: u8) -> Self {
        Self((0..count).map(|_| Vector::default()).collect())
    }

    /// How many.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// As after a reset of the function, which leaves its host the triggers. A host that traps the table has not masked them by that.
    pub fn reset(&mut self) {
        for vector in &mut self.0 {
            (vector.entry, vector.pending) = (Vector::default().entry, false);
            if vector.trigger.is_some() && !vector.by_table {
                vector.entry[CONTROL] = 0;
            }
        }
    }

    /// The host has gone.
    pub fn forget(&mut self) {
        *self = Self::new(self.0.len() as u8);
    }

    /// Word `at` of the table; `None` past its end.
    pub fn read(&self, at: usize) -> Option<u32> {
        Some(self.0.get(at / WORDS)?.entry[at % WORDS])
    }

    /// Writes it; false past the end.
    pub fn write(&mut self, at: usize, value: u32) -> bool {
        let Some(vector) = self.0.get_mut(at / WORDS) else { return false };
        // Of the control word the mask alone is there.
        let is_control = at % WORDS == CONTROL;
        vector.entry[at % WORDS] = if is_control { value & MASK } else { value };
        vector.by_table |= is_control;
        true
    }

    /// Whether the host wants messages of a vector: it has an eventfd, and is not masked.
    pub fn wants(&self, vector: usize) -> bool {
        self.0[vector].trigger.is_some() && self.0[vector].entry[CONTROL] & MASK == 0
    }

    /// Messages that have come and have gone to no eventfd, a bit each.
    pub fn pending(&self) -> u32 {
        (0..).zip(&self.0).map(|(place, vector)| u32::from(vector.pending) << place).sum()
    }

    /// A message has come from the device.
    pub fn fire(&mut self, vector: usize) {
        self.0[vector].pending = true;
    }

    /// Sends what has come and has an eventfd; to how many.
    pub fn send(&mut self) -> u32 {
        let mut sent = 0;
        for vector in self.0.iter_mut().filter(|vector| vector.pending) {
            let Some(trigger) = &vector.trigger else { continue };
            // A host that has made its eventfd one that blocks, or has filled it, is awake or wants to sleep.
            if rings(trigger) {
                vector.pending = false;
                sent += 1;
            }
        }
        sent
    }

    /// From here on the messages of the vectors from `start` on go to these eventfds, and the vectors are not masked: a host that
    /// traps the table says in this way which it wants.
    ///
    /// # Errors
    /// `NotAnEventfd`; then nothing has changed.
    pub fn set_triggers(&mut self, start: usize, triggers: Vec<OwnedFd>) -> Result<(), Refusal> {
        if !triggers.iter().all(is_eventfd) {
            return Err(Refusal::NotAnEventfd);
        }
        for (vector, trigger) in self.0.iter_mut().skip(start).zip(triggers) {
            vector.trigger = Some(trigger);
            vector.entry[CONTROL] = 0;
        }
        Ok(())
    }

    /// Takes back the eventfds of `count` vectors from `start` on; what fires is pending from here on.
    pub fn take_triggers(&mut self, start: usize, count: usize) {
        self.0.iter_mut().skip(start).take(count).for_each(|vector| vector.trigger = None);
    }

    /// Masks or unmasks `count` vectors from `start` on.
    pub fn mask(&mut self, start: usize, count: usize, mask: bool) {
        self.0.iter_mut().skip(start).take(count).for_each(|vector| vector.entry[CONTROL] = mask.into());
    }
}

/// Whether it is an eventfd that no write to it can block.
fn is_eventfd(fd: &OwnedFd) -> bool {
    is_any_eventfd(fd) && never_blocks(fd)
}

/// Whether it is an eventfd.
pub(crate) fn is_any_eventfd(fd: &OwnedFd) -> bool {
    let link = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(fd));
    let kind = rustix::fs::readlink(link, vec![]);
    kind.is_ok_and(|kind| kind.as_bytes().starts_with(b"anon_inode:[eventfd"))
}

fn never_blocks(fd: &OwnedFd) -> bool {
    rustix::fs::fcntl_getfl(fd).is_ok_and(|flags| flags.contains(OFlags::NONBLOCK))
}

/// Adds 1 to an eventfd. One that is full has woken its host, whatever is added.
fn rings(trigger: &OwnedFd) -> bool {
    // The host has the same open file, and may have changed its flags.
    if !never_blocks(trigger) {
        return false;
    }
    matches!(rustix::io::write(trigger, &1u64.to_ne_bytes()), Ok(8) | Err(rustix::io::Errno::AGAIN))
}

#[cfg(test)]
mod tests {
    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    fn trigger(flags: EventfdFlags) -> (OwnedFd, OwnedFd) {
        let ours = eventfd(0, flags).unwrap();
        let theirs = ours.try_clone().unwrap();
        (ours, theirs)
    }

    fn count(fd: &OwnedFd) -> u64 {
        let mut bytes = [0; 8];
        rustix::io::read(fd, &mut bytes[..]).map_or(0, |_| u64::from_ne_bytes(bytes))
    }

    #[test]
    fn a_message_goes_to_its_eventfd_or_waits_for_one() {
        let (ours, theirs) = trigger(EventfdFlags::NONBLOCK);
        let mut vectors = Vectors::new(2);
        vectors.fire(1);
        assert_eq!(
            (vectors.send(), vectors.pending(), vectors.wants(1)),
            (0, 0b10, false),
            "without an eventfd"
        );
        vectors.set_triggers(1, vec![theirs]).unwrap();
        assert_eq!((vectors.send(), vectors.pending(), count(&ours), vectors.wants(1)), (1, 0, 1, true));
        // By the table: the device holds messages back then, but for one that was on its way.
        assert!(vectors.write(7, u32::MAX));
        assert_eq!(
            (vectors.read(7), vectors.wants(1)),
            (Some(1), false),
            "of the control word the mask alone is kept"
        );
        vectors.fire(1);
        vectors.fire(1);
        assert_eq!((vectors.send(), vectors.send(), count(&ours)), (1, 0, 1));
        vectors.take_triggers(1, 1);
        vectors.fire(1);
        assert_eq!((vectors.send(), vectors.pending()), (0, 0b10));
        vectors.reset();
        assert_eq!((vectors.pending(), vectors.read(7)), (0, Some(1)));
        // Whoever traps the table does not write it, and its triggers stay good.
        let (_ours, theirs) = trigger(EventfdFlags::NONBLOCK);
        vectors.set_triggers(0, vec![theirs]).unwrap();
        vectors.reset();
        assert!(vectors.wants(0));
        assert!(!vectors.write(8, 0) && vectors.read(8).is_none(), "past the end");
    }

    #[test]
    fn what_could_block_the_server_is_no_trigger() {
        let mut vectors = Vectors::new(1);
        let (blocks, theirs) = trigger(EventfdFlags::empty());
        assert_eq!(vectors.set_triggers(0, vec![theirs]), Err(Refusal::NotAnEventfd));
        drop(blocks);
        let (_reads, writes) = std::io::pipe().unwrap();
        assert_eq!(vectors.set_triggers(0, vec![writes.into()]), Err(Refusal::NotAnEventfd));
        // A full one, and one whose host makes it block later.
        let (ours, theirs) = trigger(EventfdFlags::NONBLOCK);
        vectors.set_triggers(0, vec![theirs]).unwrap();
        rustix::io::write(&ours, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        vectors.fire(0);
        assert_eq!((vectors.send(), vectors.pending()), (1, 0), "a full one wakes its host anyway");
        rustix::fs::fcntl_setfl(&ours, OFlags::empty()).unwrap();
        vectors.fire(0);
        assert_eq!((vectors.send(), vectors.pending()), (0, 1), "one that blocks is not written");
    }
}
