//! What a lossy network does to frames, drawn from a seed.
//!
//! TCP loses and reorders nothing. So the NIC draws it: a frame that is lost is not written, a frame that is held up is written
//! after some that were sent later, a frame that is doubled is written twice. The collector knows nothing of it.

use std::collections::VecDeque;

/// A generator of numbers (SplitMix64, by Sebastiano Vigna, public domain).
#[derive(Clone, Debug)]
pub struct Draw(u64);

impl Draw {
    /// From a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Whether what has this chance happens.
    pub fn happens(&mut self, chance: f64) -> bool {
        chance > 0.0 && ((self.bits() >> 11) as f64) < chance * (1u64 << 53) as f64
    }

    /// From 0 to `bound` - 1.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.bits() % bound.max(1)
    }
}

/// What happens to frames, each with a chance from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weather {
    /// A frame, or an ACK, is lost.
    pub loss: f64,
    /// A frame is held up, until up to [`HELD`] others have passed.
    pub reorder: f64,
    /// A frame is doubled.
    pub double: f64,
    /// Seed of the draws.
    pub seed: u64,
}

impl Weather {
    /// Nothing happens.
    pub const FAIR: Self = Self { loss: 0.0, reorder: 0.0, double: 0.0, seed: 0 };
}

/// Frames that may pass one that is held up.
pub const HELD: u64 = 16;

/// The network between the NIC and its connection.
#[derive(Debug)]
pub struct Link {
    weather: Weather,
    draw: Draw,
    /// Frames that are held up: how many have to pass, and the bytes.
    held: VecDeque<(u64, Vec<u8>)>,
    /// Frames lost, held up and doubled, and ACKs lost.
    pub counts: LinkCounts,
}

/// What a [`Link`] has drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounts {
    /// Frames lost.
    pub lost: u64,
    /// Frames held up.
    pub held: u64,
    /// Frames doubled.
    pub doubled: u64,
    /// ACKs lost.
    pub acks_lost: u64,
}

impl Link {
    /// With this weather.
    pub fn new(weather: Weather) -> Self {
        Self { weather, draw: Draw::new(weather.seed), held: VecDeque::new(), counts: LinkCounts::default() }
    }

    /// Appends to `out` what of a frame, which `write` appends, arrives now, and those held up that are due behind it.
    pub fn pass(&mut self, out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
        let start = out.len();
        write(out);
        let Weather { loss, reorder, double, .. } = self.weather;
        if self.draw.happens(loss) {
            self.counts.lost += 1;
            out.truncate(start);
        } else if self.draw.happens(reorder) {
            self.counts.held += 1;
            let passing = 1 + self.draw.below(HELD);
            self.held.push_back((passing, out.split_off(start)));
            // It is not passed by itself.
            return;
        } else if self.draw.happens(double) {
            self.counts.doubled += 1;
            out.extend_from_within(start..);
        }
        self.held.retain_mut(|(passing, bytes)| {
            *passing -= 1;
            if *passing == 0 {
                out.extend_from_slice(bytes);
            }
            *passing > 0
        });
    }

    /// Whether an ACK that came is lost.
    pub fn loses_ack(&mut self) -> bool {
        let lost = self.draw.happens(self.weather.loss);
        self.counts.acks_lost += u64::from(lost);
        lost
    }

    /// Appends what is held up to `out`: nothing is sent that could pass it.
    pub fn calm(&mut self, out: &mut Vec<u8>) {
        self.held.drain(..).for_each(|(_, bytes)| out.extend_from_slice(&bytes));
    }

    /// Loses what is held up, with the connection.
    pub fn cut(&mut self) {
        self.held.clear();
    }
}
