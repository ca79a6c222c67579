//! What the threads beside the hot one share: waiting for work that is pushed without waking anybody, and telling of a
//! panic.

use std::any::Any;
use std::hint;
use std::thread;
use std::time::Duration;

/// Waits longer the longer nothing comes: first it spins, then it lets other threads run, then it sleeps.
///
/// Who pushes need not wake anybody, which would be a system call; the price is that an idle thread notices up to
/// [`LONGEST`](Self::LONGEST) late.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    rounds: u32,
}

impl Backoff {
    /// The longest sleep.
    pub const LONGEST: Duration = Duration::from_micros(200);

    const SPINS: u32 = 64;
    const YIELDS: u32 = 16;
    const SHORTEST: Duration = Duration::from_micros(10);

    /// Work came.
    pub fn reset(&mut self) {
        self.rounds = 0;
    }

    /// Whether it would sleep for its longest: nothing has come for about two milliseconds.
    pub fn is_long(&self) -> bool {
        self.rounds > Self::SPINS + Self::YIELDS + 10
    }

    /// None came: waits.
    pub fn wait(&mut self) {
        match self.rounds.checked_sub(Self::SPINS) {
            None => (0..8).for_each(|_| hint::spin_loop()),
            Some(behind) if behind < Self::YIELDS => thread::yield_now(),
            Some(behind) => {
                let doubled = (behind - Self::YIELDS).min(10);
                thread::sleep((Self::SHORTEST * (1 << doubled)).min(Self::LONGEST));
            }
        }
        self.rounds = self.rounds.saturating_add(1);
    }
}

/// What a panic said.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref().map(String::as_str));
    text.unwrap_or("no message").to_owned()
}
