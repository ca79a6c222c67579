//! Chaos: everything that can go wrong around a device is made to go wrong, by a seed, and the rules still hold.
//!
//! A *round* is a device after reset whose queue pairs have hosts that submit descriptors of every kind, good and bad, while
//! the memory storms and answers with errors, queue pairs are disabled, drained and reset in the middle of it, and hosts write
//! nonsense. Each life of a queue pair is judged by itself; functions that are left alone must not
//! notice. At the end everything comes to rest within a bound (R15), and a driver finds the device as good as new.
//! `docs/chaos.md` says what is drawn and what must hold.
//!
//! ```
//! use doorbell_verify::chaos::{Options, run};
//! use doorbell_verify::ModelPlatform;
//!
//! let options = Options { rounds: 2, descriptors: 200, ..Options::new(7) };
//! let mut make = |_| Ok(Box::new(ModelPlatform::with_queues(4, 2)?) as _);
//! let tally = run(&options, &mut make).unwrap();
//! assert!(tally.descriptors >= 400 && tally.cancelled > 0);
//! ```

mod device;
mod draw;
mod drivers;
mod interrupts;
mod layout;
mod nonsense;
mod plan;
mod session;
mod tally;
#[cfg(test)]
mod tests;
mod violation;
mod world;

use std::fmt;

use doorbell_host::error::DeviceError;

pub use crate::model::{BusFaults, FaultyRange, Injected};
pub use device::{Disturbed, OwnClock, ResetPins, Weather};
use draw::Draw;
use drivers::Shared;
pub use tally::Tally;
pub use violation::Violation;
use world::World;

/// Which of the draws of a round says what kind it is.
const STREAM_OF_ROUNDS: u64 = 99;

/// Bytes of shared memory that each queue pair has.
pub const BYTES_OF_A_QUEUE_PAIR: usize = layout::BYTES;

/// How much is drawn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Of all draws.
    pub seed: u64,
    /// Rounds, each with a device made anew.
    pub rounds: u32,
    /// The first of them, counted from 0: to repeat one alone.
    pub first_round: u32,
    /// Descriptors of a round, about.
    pub descriptors: u64,
}

impl Options {
    /// One seed's usual share.
    pub fn new(seed: u64) -> Self {
        Self { seed, rounds: 4, first_round: 0, descriptors: 500 }
    }
}

/// A round that broke a rule.
#[derive(Clone, Debug)]
pub struct Broken {
    /// Its seed.
    pub seed: u64,
    /// Its number.
    pub round: u32,
    /// What was broken first.
    pub violation: Violation,
    /// What was drawn until then, all rounds together.
    pub tally: Tally,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {}, round {}: {}", self.seed, self.round, self.violation)
    }
}

impl std::error::Error for Broken {}

/// Makes a device after reset; it is given the seed of the round.
pub type Make<'a> = &'a mut dyn FnMut(u64) -> Result<Box<dyn Disturbed>, DeviceError>;

/// Runs the rounds of a seed.
///
/// # Errors
/// The first rule that was broken, in the first round that broke one.
pub fn run(options: &Options, make: Make<'_>) -> Result<Tally, Box<Broken>> {
    let mut tally = Tally::default();
    for round in (0..options.rounds).map_while(|round| options.first_round.checked_add(round)) {
        // Rounds of neighbouring seeds are not each other's.
        let seed =
            doorbell_contract::mix(options.seed as u32) as u64 ^ options.seed << 32 ^ u64::from(round) << 48;
        let mut drawn = Tally::default();
        let result = one_round(seed, options.descriptors, make, &mut drawn);
        tally += &drawn;
        if let Err(violation) = result {
            return Err(Box::new(Broken { seed: options.seed, round, violation, tally }));
        }
    }
    Ok(tally)
}

fn one_round(seed: u64, descriptors: u64, make: Make<'_>, drawn: &mut Tally) -> Result<(), Violation> {
    // Once in so many rounds with a driver on each queue pair, in place of a host that does what it likes.
    let result;
    let mut world;
    if Draw::new(seed, STREAM_OF_ROUNDS).once_in(4) {
        let shared = Shared::new(make(seed)?);
        world = World::new(Box::new(shared.clone()), seed)?;
        world.tally.disturbed("rounds of drivers");
        result = world.run_drivers(&shared, descriptors);
    } else {
        world = World::new(make(seed)?, seed)?;
        result = world.run(descriptors);
    }
    *drawn = world.tally.clone();
    result?;
    world.clean_run().map(drop)
}
