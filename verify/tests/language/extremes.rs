//! Images in which what can saturate does: `tiny` and `micro` never come near to it.

use doorbell_contract::{DescFlags, Status};
use doorbell_lm::{EXTREMES, Image, extreme, steep};

use crate::host::*;

/// A short rollout of an image.
fn run(image: &Image, temperatures: &[f64]) {
    let mut host = Host::of(crate::device(1, 1), image);
    for &temperature in temperatures {
        let prompt = Draws(3).prompt(4);
        let mut sequence = host.sequence(&prompt, 4 + 6, temperature);
        host.prefill(&mut sequence);
        let end = host.decode(&mut sequence, 6, DescFlags::LOGP);
        assert_eq!(ended(&end), Status::Done);
    }
}

/// `lm/src/micro.rs` says which other readings of docs/engine.md these tell apart.
#[test]
fn r06_what_saturates_does_so_as_the_oracles() {
    for number in EXTREMES {
        run(&extreme(number), &[0.01, 1.0]);
    }
}

/// 32 tokens two bins below the most likely one.
#[test]
fn r06_the_third_bin_counts() {
    run(&steep(), &[1.0]);
}
