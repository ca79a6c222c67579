//! What the KV engine does: a stored query against blocks of 32 stored tokens, joined by two bins.

use std::ops::Range;

use doorbell_lm::number::{clamp, round_divide, round_shift};
use doorbell_lm::weight_of;

use super::Speed;
use crate::layout::{Block, u16_at};

/// A query in the engine's registers.
#[derive(Clone, Copy, Debug)]
pub struct Query<'a> {
    /// A byte with a sign for each channel.
    pub mantissas: &'a [u8],
    /// With 4 fraction bits.
    pub scale: u16,
    /// log2(e) / √width, 16 fraction bits.
    pub factor: u32,
}

impl Query<'_> {
    /// A power of 2 with 8 fraction bits: 32 bits with a sign, whatever the bytes.
    fn score(&self, key: &[u8], scale: u16) -> i64 {
        let products = self.mantissas.iter().zip(key).map(|(&q, &k)| i32::from(q as i8) * i32::from(k as i8));
        let dot = i64::from(products.sum::<i32>());
        let product = round_shift(dot * i64::from(self.scale) * i64::from(scale), 4);
        round_shift(product.wrapping_mul(self.factor.into()), 32)
    }
}

/// What is known of the tokens attended to so far: two bins of blocks, by 16 powers of 2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joined {
    /// Sums of the highest bin, and of the one below it: of weights, and of weighted values by channel.
    bins: [(i64, Vec<i64>); 2],
    highest: Option<i64>,
}

impl Joined {
    /// Nothing yet, of heads of `width` channels.
    pub fn new(width: usize) -> Self {
        Self { bins: [(0, vec![0; width]), (0, vec![0; width])], highest: None }
    }

    /// Adds some tokens of a block of what is kept of one head: 0 to 32 of it, those that are seen. Whether they count yet: not where they are
    /// below both bins.
    pub fn add(&mut self, query: &Query<'_>, block: &[u8], tokens: Range<u64>, speed: Speed) -> bool {
        let width = self.bins[0].1.len();
        let place = Block { width: width as u64 };
        let scale = |part, token| u16_at(block, place.scale(part, token) as usize);
        let mantissas = |part, token| &block[place.mantissas(part, token) as usize..][..width];
        let scores: Vec<i64> =
            tokens.clone().map(|token| query.score(mantissas(0, token), scale(0, token))).collect();
        let Some(&largest) = scores.iter().max() else { return true };
        let ceiling = (largest + 255) >> 8;
        let Some((weight, values)) = self.bin(ceiling >> 4) else { return false };
        let up = ceiling & 15;
        for (token, &score) in tokens.zip(&scores) {
            let p = weight_of((ceiling << 8) - score);
            *weight += p << up;
            // 8 + 16 + 15 bits: with a mantissa 47 at most, so 2^16 tokens leave 63.
            let scaled = (p * i64::from(scale(1, token))) << up;
            match speed {
                Speed::Fast if p == 0 => {}
                _ => accumulate(values, mantissas(1, token), scaled),
            }
        }
        true
    }

    /// The bin of this number, if it counts yet.
    fn bin(&mut self, number: i64) -> Option<&mut (i64, Vec<i64>)> {
        let empty = |bin: &mut (i64, Vec<i64>)| {
            bin.0 = 0;
            bin.1.fill(0);
        };
        let highest = *self.highest.get_or_insert(number);
        if number > highest {
            // What was highest is one below now, or counts no more.
            self.bins.swap(0, 1);
            if number - 1 != highest {
                empty(&mut self.bins[1]);
            }
            empty(&mut self.bins[0]);
            self.highest = Some(number);
        }
        self.bins.get_mut(usize::try_from(self.highest? - number).ok()?)
    }

    /// The mean of the values, with 10 fraction bits; zeros if there were none.
    pub fn mean(&self) -> impl Iterator<Item = i32> + '_ {
        let [(high, highs), (low, lows)] = &self.bins;
        // The scales of values have 4 fraction bits.
        let weight = (high + (low >> 16)).max(1) << 4;
        highs
            .iter()
            .zip(lows)
            .map(move |(&high, &low)| clamp(round_divide(high.wrapping_add(low >> 16), weight)))
    }
}

fn accumulate(values: &mut [i64], mantissas: &[u8], scaled: i64) {
    for (sum, &mantissa) in values.iter_mut().zip(mantissas) {
        *sum = sum.wrapping_add(scaled * i64::from(mantissa as i8));
    }
}
