//! Where the time of a team's steps goes, told by kernels that were compiled with `DOORBELL_PHASES`.

use std::ops::Sub;

/// What the leaders of all teams have measured since the kernel was started ([`GpuOptions::phases`](crate::GpuOptions::phases)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Phases {
    /// Steps that teams have taken.
    pub steps: u64,
    /// The time of all these steps by the GPU's clock, in nanoseconds: from what the leader decides ahead of each to its end.
    pub nanoseconds: u64,
    /// Columns of all steps: a rollout each.
    pub columns: u64,
    /// Cycles of each part ([`NAMES`](Self::NAMES)) on one thread of the leader.
    pub cycles: [u64; Self::NAMES.len()],
}

impl Phases {
    /// Parts, in the order of `Lap` (gpu/kernels/language_model.cuh). The last one is not of a step.
    pub const NAMES: [&str; 13] = [
        "decide who steps",
        "embed",
        "activate",
        "multiply",
        "what becomes of sums",
        "store queries, keys",
        "attend",
        "join parts of heads",
        "activate for logits",
        "logits",
        "decide what ends",
        "wait for ranks",
        "between steps",
    ];
    /// Words that a leader tells.
    pub(crate) const WORDS: usize = 3 + Self::NAMES.len();

    /// Of the words of all leaders.
    pub(crate) fn of<'a>(leaders: impl Iterator<Item = &'a [u64]>) -> Self {
        let mut all = Self::default();
        for words in leaders {
            let [steps, nanoseconds, columns, cycles @ ..] = words else { continue };
            all.steps += steps;
            all.nanoseconds += nanoseconds;
            all.columns += columns;
            for (sum, more) in all.cycles.iter_mut().zip(cycles) {
                *sum = sum.wrapping_add(*more);
            }
        }
        all
    }

    /// Microseconds of each part in the mean of all steps. A cycle's length is that of the steps: their time over their cycles.
    pub fn us_per_step(&self) -> [f64; Self::NAMES.len()] {
        let within: u64 = self.cycles[..Self::NAMES.len() - 1].iter().sum();
        let us = self.nanoseconds as f64 / 1e3 / within.max(1) as f64 / self.steps.max(1) as f64;
        self.cycles.map(|cycles| cycles as f64 * us)
    }
}

impl Sub for Phases {
    type Output = Self;

    /// What was measured since `before`.
    fn sub(self, before: Self) -> Self {
        let mut cycles = self.cycles;
        for (cycles, before) in cycles.iter_mut().zip(before.cycles) {
            *cycles = cycles.wrapping_sub(before);
        }
        Self {
            steps: self.steps - before.steps,
            nanoseconds: self.nanoseconds - before.nanoseconds,
            columns: self.columns - before.columns,
            cycles,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_steps_are_their_time() {
        let leader = |steps: u64, cycles: u64| {
            let mut words = [cycles; Phases::WORDS];
            (words[0], words[1], words[2]) = (steps, 12_000 * steps, 8 * steps);
            words
        };
        let (one, other, before) = (leader(3, 100), leader(2, 50), leader(1, 30));
        let now = Phases::of([&one[..], &other].into_iter());
        assert_eq!((now.steps, now.columns, now.cycles[0]), (5, 40, 150));
        let since = now - Phases::of([&before[..]].into_iter());
        assert_eq!((since.steps, since.nanoseconds, since.cycles[12]), (4, 48_000, 120));
        // A step of 12 us has twelve parts of one; the last lies between steps.
        assert!(since.us_per_step().iter().all(|us| (us - 1.0).abs() < 1e-9), "{:?}", since.us_per_step());
        assert_eq!(Phases::default().us_per_step(), [0.0; 13]);
    }

    #[test]
    fn parts_are_those_of_the_kernel() {
        let text = include_str!("../kernels/language_model.cuh");
        let (_, laps) = text.split_once("enum Lap : uint32_t {").unwrap();
        let (laps, _) = laps.split_once("kLaps").unwrap();
        assert_eq!(laps.split(',').filter(|lap| !lap.trim().is_empty()).count(), Phases::NAMES.len());
        assert!(laps.trim_end().trim_end_matches(',').ends_with("kBetween"), "{laps}");
    }
}
