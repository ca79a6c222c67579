//! A device under test with what cases need around it.

use std::sync::atomic::Ordering;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::Rng;

use super::{Failure, ensure, ensure_eq};
use crate::oracle::Oracle;
use doorbell_contract::{Counter, HwCompletion, HwDesc};
use doorbell_host::device::{Device, Features};
use doorbell_host::driver::Driver;
use doorbell_host::error::DeviceError;
use doorbell_host::platform::Platform;

/// A device under test.
pub struct Rig<P: Platform = Box<dyn Platform>> {
    /// The driver, for what the rig does not offer itself.
    pub driver: Driver<P>,
    /// What the device has.
    pub features: Features,
}

impl<P: Platform> Rig<P> {
    /// A rig around `driver`.
    pub fn new(driver: Driver<P>) -> Self {
        Self { features: driver.features(), driver }
    }

    /// The oracle for this device.
    pub fn oracle(&self) -> Oracle {
        Oracle::new(self.driver.config()).with_features(self.features)
    }

    /// Submits `descs`, sealed, polling where the queue is full, and returns every completion in order of arrival.
    pub fn run(&mut self, descs: &[HwDesc]) -> Result<Vec<HwCompletion>, Failure> {
        let mut left = descs;
        let mut completions = Vec::with_capacity(descs.len());
        while completions.len() < descs.len() {
            let taken = self.driver.submit(left)?;
            left = &left[taken..];
            self.poll_into(&mut completions)?;
        }
        self.settle()?;
        let surplus = self.drain()?;
        ensure!(surplus.is_empty(), "R3: {} completions too many", surplus.len());
        Ok(completions)
    }

    /// Polls until everything in flight has completed.
    pub fn drain(&mut self) -> Result<Vec<HwCompletion>, Failure> {
        let mut completions = Vec::new();
        while self.driver.in_flight() > 0 {
            self.poll_into(&mut completions)?;
        }
        self.poll_into(&mut completions)?;
        Ok(completions)
    }

    fn poll_into(&mut self, completions: &mut Vec<HwCompletion>) -> Result<(), Failure> {
        let mut out = [HwCompletion::default(); 7];
        let taken = self.driver.poll(&mut out)?;
        completions.extend_from_slice(&out[..taken]);
        Ok(())
    }

    /// Gives the device time until it makes no more progress.
    pub fn settle(&mut self) -> Result<(), Failure> {
        const QUIET: u32 = 4;
        let mut quiet = 0;
        let mut last = None;
        while quiet < QUIET {
            self.driver.platform_mut().advance(1)?;
            let now = Some([
                self.driver.counter(Counter::Descriptors)?,
                self.driver.counter(Counter::Completions)?,
                self.driver.counter(Counter::Tokens)?,
            ]);
            quiet = if now == last { quiet + 1 } else { 0 };
            last = now;
        }
        Ok(())
    }

    /// `count` tokens from `delta_offset` bytes into the token region.
    pub fn tokens(&self, delta_offset: u64, count: usize) -> Result<Vec<u32>, Failure> {
        let mut tokens = vec![0; count];
        self.driver.tokens(delta_offset, &mut tokens)?;
        Ok(tokens)
    }

    /// The whole shared memory, as words.
    pub fn snapshot(&self) -> Result<Vec<u32>, Failure> {
        let (memory, tokens) = (self.driver.memory(), self.driver.layout().tokens);
        let mut words = Vec::with_capacity(memory.len() / 4);
        // Each part in words of the size in which it is written.
        for offset in (0..tokens).step_by(8) {
            let word = memory.word64(offset)?.load(Ordering::Acquire);
            words.extend([word as u32, (word >> 32) as u32]);
        }
        words.resize(memory.len() / 4, 0);
        memory.load_u32s(tokens, &mut words[tokens / 4..])?;
        Ok(words)
    }

    /// Runs `descs` (which must be independent of each other, with their own token space and `user_data` = position)
    /// and compares each completion and each token with the oracle. Returns the completions by position.
    pub fn check(&mut self, descs: &[HwDesc]) -> Result<Vec<HwCompletion>, Failure> {
        let completions = by_position(&self.run(descs)?, descs.len())?;
        self.compare(descs, &completions)?;
        Ok(completions)
    }

    /// Compares `completions[k]` and the tokens in memory with what the oracle says of `descs[k]`.
    pub fn compare(&self, descs: &[HwDesc], completions: &[HwCompletion]) -> Result<(), Failure> {
        let oracle = self.oracle();
        for (desc, completion) in descs.iter().zip(completions) {
            let answer = oracle.answer(desc);
            for field in HwCompletion::COMPARED {
                let found = (field.get)(&completion.without_timing());
                let expected = (field.get)(&answer.completion);
                ensure_eq!(found, expected, "R6: {} of {desc:x?}", field.name);
            }
            let found = self
                .tokens(if answer.tokens.is_empty() { 0 } else { desc.delta_offset }, answer.tokens.len())?;
            if let Some(k) = (0..found.len()).find(|&k| found[k] != answer.tokens[k]) {
                ensure_eq!(found[k], answer.tokens[k], "R6: token {k} of {desc:x?}");
            }
        }
        Ok(())
    }
}

/// Completions ordered by `user_data`, which must be 0 to `count` - 1, once each (R3).
pub fn by_position(completions: &[HwCompletion], count: usize) -> Result<Vec<HwCompletion>, Failure> {
    let mut sorted = completions.to_vec();
    sorted.sort_by_key(|completion| completion.user_data);
    let seen: Vec<u64> = sorted.iter().map(|completion| completion.user_data).collect();
    let expected: Vec<u64> = (0..count as u64).collect();
    ensure!(
        seen == expected,
        "R3: user_data of the completions: {seen:?}, expected each of 0 to {count} once"
    );
    Ok(sorted)
}

/// Gives every descriptor its position as `user_data` and token space of its own, without gaps.
pub fn numbered(descs: impl IntoIterator<Item = HwDesc>) -> Vec<HwDesc> {
    let mut delta_offset = 0;
    let place = |(position, desc): (usize, HwDesc)| {
        let placed = desc.with_user_data(position as u64).with_delta_offset(delta_offset);
        delta_offset += 4 * u64::from(desc.max_tokens);
        placed
    };
    descs.into_iter().enumerate().map(place).collect()
}

/// A number below `bound`.
pub fn below(random: &mut ChaCha8Rng, bound: u32) -> u32 {
    ((u64::from(random.next_u32()) * u64::from(bound)) >> 32) as u32
}

/// Expects that a register write was refused.
pub fn refused(result: Result<(), DeviceError>, what: &str) -> Result<(), Failure> {
    match result {
        Err(DeviceError::WriteRefused { .. } | DeviceError::Refused { .. }) => Ok(()),
        Err(other) => Err(other.into()),
        Ok(()) => Err(Failure(format!("{what} was accepted"))),
    }
}
