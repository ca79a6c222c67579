use proptest::prelude::*;

use super::*;
use crate::{Oracle, micro, micro_gemma};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// However a sequence is cut, and whatever multiplies: logits and caches are the oracle's.
    #[test]
    fn a_pass_with_many_tokens_is_the_oracle(tokens in prop::collection::vec(0..64u32, 1..120), cuts in prop::collection::vec(1..40usize, 1..5), gemma in any::<bool>()) {
        let model = if gemma { micro_gemma() } else { micro() }.model;
        let oracle = Oracle::new(&model);
        let mut plain = Cache::new(&model);
        let expected: Vec<Vec<i32>> = tokens.iter().map(|&token| oracle.logits(&oracle.step(&mut plain, token))).collect();
        for instructions in Instructions::available() {
            let runner = Runner::with(&model, instructions);
            let mut cache = Cache::new(&model);
            let (mut logits, mut rest, mut cuts) = (vec![], &tokens[..], cuts.iter().cycle());
            while !rest.is_empty() {
                let (now, later) = rest.split_at((*cuts.next().unwrap()).min(rest.len()));
                logits.extend(runner.logits(&runner.extend(&mut cache, now)));
                rest = later;
            }
            prop_assert_eq!(&logits, &expected, "{:?}", instructions);
            prop_assert_eq!(&cache, &plain);
        }
    }

    /// Nothing of a token depends on those behind it: no logit, no key, no value, no scale.
    #[test]
    fn what_comes_later_changes_nothing(tokens in prop::collection::vec(0..64u32, 2..60), other in prop::collection::vec(0..64u32, 60), from in 1..59usize, gemma in any::<bool>()) {
        let model = if gemma { micro_gemma() } else { micro() }.model;
        let from = from.min(tokens.len() - 1);
        let changed: Vec<u32> = tokens[..from].iter().chain(&other[from..tokens.len()]).copied().collect();
        let run = |tokens: &[u32]| {
            let (runner, mut cache) = (Runner::new(&model), Cache::new(&model));
            let logits = runner.logits(&runner.extend(&mut cache, tokens));
            (logits, cache)
        };
        let ((logits, cache), (others, changed)) = (run(&tokens), run(&changed));
        prop_assert_eq!(&logits[..from], &others[..from]);
        for layer in 0..model.shape.kv_layers() {
            for position in 0..from {
                prop_assert_eq!(cache.stored(layer, 0, position), changed.stored(layer, 0, position));
            }
        }
    }
}

/// Safe code cannot run what the processor does not have.
#[test]
fn instructions_that_are_not_there_are_refused() {
    let model = micro().model;
    for instructions in [Instructions::Plain, Instructions::Avx2, Instructions::Avx512] {
        let made = std::panic::catch_unwind(|| Runner::with(&model, instructions).logits(&[]));
        assert_eq!(made.is_ok(), Instructions::available().contains(&instructions), "{instructions:?}");
    }
}
