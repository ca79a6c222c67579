//! A queue pair that uses nothing of what few use, as its device runs it.

use super::interrupt::Interrupt;
use super::{PolicySlots, Registers, Session};
use doorbell_contract::{Counter, QueueCounter};

/// A queue pair for which nothing needs to be looked at between two descriptors: its interrupt is not armed, no ABORT stands, its
/// function has no LIFE events, and the bus answers. Whoever holds it counts here, and the registers hold those counts once it is
/// [given back](Self::give_back).
#[derive(Debug)]
pub struct Plain<'a> {
    /// What is fixed, and the rings.
    pub session: &'a mut Session,
    /// The policy slots of its function.
    pub policies: &'a PolicySlots,
    /// What is to be counted.
    pub counts: Counts,
    interrupt: &'a mut Interrupt,
}

/// What a plain queue pair adds to the counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Descriptors fetched.
    pub descriptors: u64,
    /// Completions that are visible.
    pub completions: u64,
    /// Tokens.
    pub tokens: u64,
    /// Beats written.
    pub write_beats: u64,
}

impl Plain<'_> {
    /// The completion of running index `index` has become visible, and asks for an interrupt (R14).
    #[inline]
    pub fn ask(&mut self, index: u32) {
        self.interrupt.ask(index);
    }

    /// Ends the loan; what was counted is for [`Registers::count_plain`].
    #[inline]
    pub fn give_back(self) -> (Counts, u32) {
        (self.counts, self.session.wait_states)
    }
}

impl Registers {
    /// The queue pair, if it is plain.
    ///
    /// # Panics
    /// If the device has no such queue pair.
    #[inline]
    pub fn plain(&mut self, queue: u8) -> Option<Plain<'_>> {
        let own = &mut self.queues[usize::from(queue)];
        let rests = own.abort.is_none() && !own.dead;
        let interrupt = &mut own.interrupt;
        let session = own.session.as_mut()?;
        let policies = &self.policies[usize::from(session.function)];
        let plain = rests && !session.life && !interrupt.is_armed() && !interrupt.is_pending();
        plain.then_some(Plain { session, policies, counts: Counts::default(), interrupt })
    }

    /// Counts what a [plain](Self::plain) queue pair has done, with so many cycles before each token.
    ///
    /// # Panics
    /// If the device has no such queue pair.
    #[inline]
    pub fn count_plain(&mut self, queue: u8, (counts, wait_states): (Counts, u32)) {
        self.count_of(queue, QueueCounter::Descriptors, counts.descriptors);
        self.count_of(queue, QueueCounter::Completions, counts.completions);
        self.count_of(queue, QueueCounter::Tokens, counts.tokens);
        self.count(Counter::Wait, counts.tokens * u64::from(wait_states));
        self.count(Counter::WriteBeats, counts.write_beats);
        self.queue_mut(queue).posted += counts.completions;
    }
}
