//! How full the stages are.

use std::fmt;

use crate::rollout::State;

/// Rollouts in each state, at one moment, and what the device could take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Occupancy {
    counts: [u32; State::ALL.len()],
    /// Rollouts that wait to be submitted.
    pub ready: usize,
    /// Descriptors in flight on the device.
    pub in_flight: usize,
    /// Descriptors that the device would take now.
    pub room: usize,
}

impl Occupancy {
    pub(super) fn all_free(slots: u32) -> Occupancy {
        let mut occupancy = Occupancy::default();
        occupancy.counts[State::Free as usize] = slots;
        occupancy
    }

    /// Rollouts in `state`.
    #[inline]
    pub fn of(&self, state: State) -> u32 {
        self.counts[state as usize]
    }

    #[inline]
    pub(super) fn moved(&mut self, from: State, to: State) {
        self.counts[from as usize] -= 1;
        self.counts[to as usize] += 1;
    }

    /// How many descriptors to submit with the next doorbell. A device that runs dry gets whatever waits; one with
    /// enough to do is rung for a window of at least `window`, so that a doorbell is shared, unless the hot thread was
    /// `idle`: then nothing that would fill the window is on its way, and workers might be free.
    #[inline]
    pub fn suggested_window(&self, window: usize, idle: bool) -> usize {
        let fits = self.ready.min(self.room);
        if idle || self.in_flight < window || fits >= window { fits } else { 0 }
    }
}

impl fmt::Display for Occupancy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, state) in State::ALL.into_iter().enumerate() {
            let separator = if place == 0 { "" } else { ", " };
            write!(f, "{separator}{} {state}", self.of(state))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::dry(3, 0, 100, false, 3)]
    #[case::nearly_dry(3, 15, 100, false, 3)]
    #[case::busy_and_few(3, 16, 100, false, 0)]
    #[case::busy_and_few_but_idle(3, 16, 100, true, 3)]
    #[case::busy_and_enough(40, 500, 100, false, 40)]
    #[case::little_room(40, 500, 17, false, 17)]
    #[case::too_little_room(40, 500, 3, false, 0)]
    #[case::no_room(40, 8, 0, false, 0)]
    #[case::no_room_and_idle(40, 500, 0, true, 0)]
    #[case::nothing_waits(0, 0, 100, true, 0)]
    fn a_window_is_full_or_the_device_is_dry_or_nothing_comes(
        #[case] ready: usize,
        #[case] in_flight: usize,
        #[case] room: usize,
        #[case] idle: bool,
        #[case] expected: usize,
    ) {
        let occupancy = Occupancy { ready, in_flight, room, ..Occupancy::default() };
        assert_eq!(occupancy.suggested_window(16, idle), expected);
    }
}
