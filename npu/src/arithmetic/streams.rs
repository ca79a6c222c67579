//! What the SFU makes of several residual streams, a group of 16 channels of all of them at a time: a group is read before it is written.

use doorbell_lm::number::{FRACTION, round_shift};
use doorbell_lm::ops::within;

/// Each of the streams, which stand one behind the other, and all of them by its row of coefficients. The sum of products wraps at 64 bits.
pub fn predict(streams: &[i32], coefficients: &[i32], count: usize) -> Vec<i32> {
    let width = streams.len() / count;
    let value = |place: usize| {
        let (stream, channel) = (place / width, place % width);
        let product = |other: usize| {
            i64::from(coefficients[stream * count + other]) * i64::from(streams[other * width + channel])
        };
        let sum = (0..count).fold(0i64, |sum, other| sum.wrapping_add(product(other)));
        within(i64::from(streams[place]) + round_shift(sum, FRACTION))
    };
    (0..streams.len()).map(value).collect()
}

/// Each of the streams, and what was found beyond the first of them, once and by the stream's coefficient. Nothing leaves 64 bits: what is new takes
/// 33 and a coefficient 32.
pub fn correct(streams: &[i32], found: &[i32], coefficients: &[i32]) -> Vec<i32> {
    let value = |(place, &x): (usize, &i32)| {
        let (stream, channel) = (place / found.len(), place % found.len());
        let news = i64::from(found[channel]) - i64::from(streams[channel]);
        within(i64::from(x) + news + round_shift(news * i64::from(coefficients[stream]), FRACTION))
    };
    streams.iter().enumerate().map(value).collect()
}
