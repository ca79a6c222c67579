//! Programs give what the oracle says, to the byte.

mod common;

use common::{Beside, Draws, Logits, assert_same_kv, best, machine, program};
use doorbell_lm::micro;
use doorbell_npu::arithmetic::Speed;
use rstest::rstest;

/// Two blocks and some: bins, tables and a last block that is not full.
#[rstest]
#[case(Speed::Plain)]
#[case(Speed::Fast)]
fn micro_gives_the_logits_and_the_keys_and_values_of_the_oracle(#[case] speed: Speed) {
    let image = micro();
    let (program, memory) = program(&image);
    let mut machine = machine(&program, memory, 3, 4, speed, 7);
    let mut oracles: Vec<Beside> = (0..3).map(|_| Beside::new(&image)).collect();
    let mut draws = Draws(1);
    for position in 0..75 {
        // The contexts are not at the same position.
        let gang: Vec<usize> = if position < 10 { vec![0, 2] } else { vec![2, 0, 1] };
        for &context in &gang {
            machine.contexts[context].token = draws.below(64) as u32;
        }
        let mut logits = Logits::default();
        let outcomes = machine.step(&program.words, &gang, &mut logits);
        for (&context, outcome) in gang.iter().zip(outcomes) {
            let expected = oracles[context].step(machine.contexts[context].token);
            assert_eq!(logits.0[context], expected, "context {context} at {position}");
            assert_eq!(outcome.unwrap().sample.unwrap().token, best(&expected));
            machine.contexts[context].position += 1;
        }
    }
    for (number, oracle) in oracles.iter().enumerate() {
        assert_same_kv(&machine, &image, &program, number, &oracle.cache);
    }
}
