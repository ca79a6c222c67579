use super::*;
use crate::{MICRO_GLOBAL_ROPE_BASE, MICRO_ROPE_BASE, micro, micro_gemma};

/// The definitions of docs/engine.md come close to the published equations; a wrong sign, table or exponent does not.
#[test]
fn micro_is_near_what_its_integers_stand_for() {
    let model = micro().model;
    let exact = published(&model, MICRO_ROPE_BASE, None);
    let tokens: Vec<u32> =
        (0..400u32).map(|k| doorbell_contract::mix(k) % model.shape.vocabulary as u32).collect();
    let judged = judge(&exact, &model, &tokens);
    println!("{judged:?}");
    assert_eq!((judged.positions, judged.followed), (400, 399));
    assert!(vouches(&model, &tokens[..50]));
    assert!(judged.mean_divergence() < 0.012, "{judged:?}");
    assert!(judged.agreement() > 0.88, "{judged:?}");
    let [exact, held] = judged.perplexities();
    assert!((held / exact - 1.0).abs() < 0.02, "{judged:?}");
}

/// The same of Gemma 3N's shape.
#[test]
fn micro_gemma_is_near_what_its_integers_stand_for() {
    let model = micro_gemma().model;
    let exact = published(&model, MICRO_ROPE_BASE, Some(MICRO_GLOBAL_ROPE_BASE));
    let tokens: Vec<u32> =
        (0..400u32).map(|k| doorbell_contract::mix(k) % model.shape.vocabulary as u32).collect();
    let judged = judge(&exact, &model, &tokens);
    println!("{judged:?}");
    assert_eq!((judged.positions, judged.followed), (400, 399));
    assert!(vouches(&model, &tokens[..50]));
    let [exact, held] = judged.perplexities();
    println!("{exact} {held} {}", judged.mean_divergence());
}

#[test]
fn what_is_judged_is_counted() {
    let exact = [0.0, 0.0];
    let judged = position(&exact, &[0, 1024], Some(0));
    let one = std::f64::consts::E;
    let logs = [0.5f64.ln(), (1.0 / (1.0 + one)).ln()];
    let divergence = 0.5 * (logs[0] - logs[1]) + 0.5 * (logs[0] - (one / (1.0 + one)).ln());
    assert!(
        (judged.divergence - divergence).abs() < 1e-12 && (judged.logs[1] - logs[1]).abs() < 1e-12,
        "{judged:?}"
    );
    assert_eq!((judged.positions, judged.followed, judged.agreed), (1, 1, 0));
    let mut both = judged.clone();
    both.add(&position(&exact, &[3, 0], None));
    assert_eq!((both.positions, both.followed, both.agreed), (2, 1, 1));
    assert!((both.perplexities()[0] - 2.0).abs() < 1e-12);
}
