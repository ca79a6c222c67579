//! When a queue pair of a device in software interrupts its host (R14).

/// What fires besides completions that ask: fixed while a queue pair is active.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coalescing {
    /// So many visible completions at or above ARM; 0: no number of them.
    pub count: u32,
    /// So many ticks behind the first of them; 0: no time.
    pub time: u32,
}

/// The interrupt of one queue pair. Indices run freely, and are compared as such (R13); times are in ticks of the device.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Interrupt {
    /// What ARM was written with last.
    index: u32,
    armed: bool,
    /// It has fired, and its message is not sent.
    pending: bool,
    /// The newest completion that asked.
    asked: Option<u32>,
    /// When COALESCE_TIME is over; there while a completion at or above ARM is visible and that time runs.
    deadline: Option<u64>,
}

/// The completions of a queue pair that are visible.
#[derive(Clone, Copy, Debug)]
pub(super) struct Visible {
    /// Those below this index, …
    pub below: u32,
    /// … so many since the queue pair was enabled.
    pub count: u64,
}

impl Interrupt {
    /// ARM is written.
    pub fn arm(&mut self, index: u32, visible: Visible, coalescing: Coalescing, now: u64) {
        (self.index, self.armed, self.deadline) = (index, true, None);
        self.look(visible, coalescing, now);
    }

    /// Notes that completion `index` asks.
    pub fn ask(&mut self, index: u32) {
        self.asked = Some(index);
    }

    /// Fires if it is time to.
    pub fn look(&mut self, visible: Visible, coalescing: Coalescing, now: u64) {
        let ahead = visible.below.wrapping_sub(self.index);
        // None at or above ARM is visible; indices before the first completion are nobody's.
        if !self.armed || ahead as i32 <= 0 || visible.count == 0 {
            return;
        }
        let above = visible.count.min(ahead.into());
        if coalescing.time != 0 && self.deadline.is_none() {
            self.deadline = Some(now + u64::from(coalescing.time));
        }
        let asks = self.asked.is_some_and(|asked| asked.wrapping_sub(self.index) < ahead);
        let enough = coalescing.count != 0 && above >= u64::from(coalescing.count);
        if asks || enough || self.deadline.is_some_and(|deadline| now >= deadline) {
            (self.armed, self.pending, self.deadline) = (false, true, None);
        }
    }

    /// Fires if any completion at or above ARM is visible: no other one will come.
    pub fn fire_last(&mut self, visible: Visible) {
        let ahead = visible.below.wrapping_sub(self.index);
        if self.armed && ahead as i32 > 0 && visible.count > 0 {
            (self.armed, self.pending, self.deadline) = (false, true, None);
        }
    }

    /// Disarms, and drops what is pending (R12).
    pub fn forget(&mut self) {
        *self = Self { index: self.index, ..Self::default() };
    }

    /// What ARM reads.
    pub fn index(&self) -> u32 {
        self.index
    }

    pub fn is_armed(&self) -> bool {
        self.armed
    }

    pub fn is_pending(&self) -> bool {
        self.pending
    }

    /// Takes what is pending.
    pub fn take(&mut self) -> bool {
        std::mem::take(&mut self.pending)
    }

    pub fn deadline(&self) -> Option<u64> {
        self.deadline
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const NONE: Coalescing = Coalescing { count: 0, time: 0 };

    /// As if the queue pair had had as many completions as can be.
    fn below(below: u32) -> Visible {
        Visible { below, count: u64::MAX }
    }

    fn armed(index: u32, visible: u32, coalescing: Coalescing) -> Interrupt {
        let mut interrupt = Interrupt::default();
        interrupt.arm(index, below(visible), coalescing, 100);
        interrupt
    }

    /// R13, R14: by which completions of those that are visible it fires.
    #[rstest]
    #[case::none_visible(5, 5, Some(4), NONE, false)]
    #[case::it_asks(5, 6, Some(5), NONE, true)]
    #[case::the_one_below_asks(5, 6, Some(4), NONE, false)]
    #[case::a_later_one_asks(5, 9, Some(8), NONE, true)]
    #[case::nobody_asks(5, 9, None, NONE, false)]
    #[case::across_the_wrap(u32::MAX, 2, Some(0), NONE, true)]
    #[case::below_across_the_wrap(1, 2, Some(u32::MAX), NONE, false)]
    #[case::half_a_circle_ahead(0x8000_0005, 5, Some(4), NONE, false)]
    #[case::all_but_half_a_circle_ahead(5, 0x8000_0004, Some(5), NONE, true)]
    #[case::enough(5, 8, None, Coalescing { count: 3, time: 0 }, true)]
    #[case::one_too_few(5, 7, None, Coalescing { count: 3, time: 0 }, false)]
    #[case::a_count_of_16_bits(0, 0xFFFF, None, Coalescing { count: 0xFFFF, time: 0 }, true)]
    #[case::one_below_it(0, 0xFFFE, None, Coalescing { count: 0xFFFF, time: 0 }, false)]
    fn r14_fires(
        #[case] index: u32,
        #[case] visible: u32,
        #[case] asked: Option<u32>,
        #[case] coalescing: Coalescing,
        #[case] fires: bool,
    ) {
        // The same whether they are visible before it is armed …
        let mut interrupt = Interrupt { asked, ..Interrupt::default() };
        interrupt.arm(index, below(visible), coalescing, 100);
        assert_eq!((interrupt.is_pending(), interrupt.is_armed()), (fires, !fires));
        // … or behind.
        let mut interrupt = armed(index, index, coalescing);
        assert!(interrupt.is_armed());
        asked.into_iter().for_each(|asked| interrupt.ask(asked));
        interrupt.look(below(visible), coalescing, 100);
        assert_eq!((interrupt.is_pending(), interrupt.is_armed()), (fires, !fires));
    }

    /// What lies before the first completion of the queue pair is none.
    #[rstest]
    #[case::none_yet(0, false)]
    #[case::one_too_few(2, false)]
    #[case::enough(3, true)]
    fn r14_counts_completions_since_the_start(#[case] count: u64, #[case] fires: bool) {
        let mut interrupt = Interrupt::default();
        let coalescing = Coalescing { count: 3, time: 0 };
        interrupt.arm(10, Visible { below: 20, count }, coalescing, 0);
        assert_eq!(interrupt.is_pending(), fires);
        // Nor does a time run.
        let mut interrupt = Interrupt::default();
        interrupt.arm(10, Visible { below: 20, count }, Coalescing { count: 0, time: 5 }, 0);
        assert_eq!(interrupt.deadline().is_some(), count > 0);
    }

    #[test]
    fn r14_time_runs_from_the_first_that_is_visible() {
        let coalescing = Coalescing { count: 0, time: 10 };
        let mut interrupt = armed(5, 5, coalescing);
        interrupt.look(below(5), coalescing, 1000);
        assert_eq!(interrupt.deadline(), None, "none is visible");
        interrupt.look(below(6), coalescing, 1000);
        interrupt.look(below(9), coalescing, 1009);
        assert!(!interrupt.is_pending());
        interrupt.look(below(9), coalescing, 1010);
        assert!(interrupt.is_pending());
        // Visible before the arming: from then on.
        let mut interrupt = armed(5, 6, coalescing);
        assert_eq!(interrupt.deadline(), Some(110));
        // Arming anew begins anew.
        interrupt.arm(6, below(6), coalescing, 105);
        interrupt.look(below(6), coalescing, 110);
        assert!(interrupt.is_armed() && interrupt.deadline().is_none());
    }

    #[rstest]
    #[case::at_the_last(5, 6, 1, true)]
    #[case::below_it(4, 6, 2, true)]
    #[case::above_it(6, 6, 1, false)]
    #[case::before_the_first(4, 6, 0, false)]
    #[case::across_the_wrap(u32::MAX, 1, 2, true)]
    fn r14_the_end_of_a_drain_tells_of_the_last(
        #[case] index: u32,
        #[case] below: u32,
        #[case] count: u64,
        #[case] fires: bool,
    ) {
        let coalescing = Coalescing { count: 100, time: 100 };
        let visible = Visible { below, count };
        let mut interrupt = Interrupt::default();
        interrupt.fire_last(visible);
        assert!(!interrupt.is_pending(), "it is not armed");
        interrupt.arm(index, visible, coalescing, 0);
        interrupt.fire_last(visible);
        assert_eq!((interrupt.is_pending(), interrupt.is_armed()), (fires, !fires));
    }

    #[test]
    fn r14_an_arming_fires_once_and_a_disable_takes_it_back() {
        let mut interrupt = armed(5, 5, NONE);
        interrupt.ask(5);
        interrupt.look(below(6), NONE, 0);
        assert!(interrupt.take());
        interrupt.ask(6);
        interrupt.look(below(7), NONE, 0);
        assert!(!interrupt.take());
        interrupt.arm(5, below(7), NONE, 0);
        interrupt.forget();
        assert!(!interrupt.is_pending() && interrupt.index() == 5);
        interrupt.arm(5, below(7), NONE, 0);
        assert!(interrupt.is_armed(), "what asked has been forgotten");
    }
}
