//! Where random draws begin: at a committed seed, so that a red run means a fault of the change and not of the draw.

use std::time::{SystemTime, UNIX_EPOCH};

/// The seed of every run that names none. `.cargo/config.toml` gives the same to proptest.
pub const COMMITTED: u32 = 1;
/// Seeds of a long draw, from [`COMMITTED`] on.
pub const LONG: u32 = 200;
/// What proptest reads its seed from.
pub const PROPTEST: &str = "PROPTEST_RNG_SEED";

/// Which seed a run starts with.
#[derive(clap::Args, Default)]
pub struct Start {
    /// First seed; the committed seed 1 when not given
    #[arg(long)]
    seed: Option<u32>,
    /// Draw a new first seed, and print it
    #[arg(long, conflicts_with = "seed")]
    fresh: bool,
}

impl Start {
    /// This one.
    pub fn at(seed: u32) -> Start {
        Start { seed: Some(seed), fresh: false }
    }

    /// Whether one was asked for.
    pub fn is_given(&self) -> bool {
        self.fresh || self.seed.is_some()
    }

    /// The first seed; a fresh one is printed, once.
    pub fn first(&self) -> u32 {
        if self.fresh {
            let seed = fresh();
            println!("fresh seed {seed}");
            return seed;
        }
        self.seed.unwrap_or(COMMITTED)
    }
}

/// Differs from call to call; fits a signed 32-bit integer, as $value$plusargs reads one.
fn fresh() -> u32 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (now.as_nanos() as u32 ^ std::process::id()) & 0x7FFF_FFFF
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_committed_named_or_fresh() {
        assert_eq!(Start::default().first(), COMMITTED);
        assert_eq!(Start { seed: Some(7), fresh: false }.first(), 7);
        let fresh = Start { seed: None, fresh: true }.first();
        assert!(i32::try_from(fresh).is_ok(), "{fresh}");
    }

    #[test]
    fn proptest_starts_with_the_committed_seed() {
        let config = include_str!("../../.cargo/config.toml");
        let line = format!("{PROPTEST} = \"{COMMITTED}\"");
        assert!(config.lines().any(|found| found == line), "{config}");
    }
}
