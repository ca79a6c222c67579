use rstest::rstest;

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

/// What the mean divergence of micro-gemma stays below, in nats.
const GEMMA_BAR: f64 = 0.045;

fn gemma_tokens() -> Vec<u32> {
    (0..400u32).map(|k| doorbell_contract::mix(k) % 64).collect()
}

/// The same of Gemma 3N's shape.
#[test]
fn micro_gemma_is_near_what_its_integers_stand_for() {
    let model = micro_gemma().model;
    let exact = published(&model, MICRO_ROPE_BASE, Some(MICRO_GLOBAL_ROPE_BASE));
    let tokens = gemma_tokens();
    let judged = judge(&exact, &model, &tokens);
    println!("{judged:?}");
    assert_eq!((judged.positions, judged.followed), (400, 399));
    assert!(vouches(&model, &tokens[..50]));
    assert!(judged.mean_divergence() < GEMMA_BAR, "{judged:?}");
    assert!(judged.agreement() > 0.85, "{judged:?}");
    let [exact, held] = judged.perplexities();
    assert!((held / exact - 1.0).abs() < 0.02, "{judged:?}");
}

/// The bar would tell: with any one of these operators left out or done otherwise, on one side, the divergence is beyond it.
#[rstest]
#[case::cut(|model: &mut float::Model| model.shape.gemma.as_mut().unwrap().cut = 0)]
#[case::cut_more(|model: &mut float::Model| model.shape.gemma.as_mut().unwrap().cut = 3)]
#[case::window(|model: &mut float::Model| model.shape.gemma.as_mut().unwrap().window = 400)]
#[case::narrow(|model: &mut float::Model| model.shape.gemma.as_mut().unwrap().window = 32)]
#[case::global_rope(|model: &mut float::Model| parts(model).global_rope_base = MICRO_ROPE_BASE)]
#[case::split(|model: &mut float::Model| parts(model).split.swap(0, 1))]
#[case::merge(|model: &mut float::Model| parts(model).merge.swap(0, 2))]
#[case::tokens(|model: &mut float::Model| model.tokens.iter_mut().for_each(|x| *x *= 32f32.sqrt()))]
#[case::last(|model: &mut float::Model| model.last_gain.iter_mut().for_each(|x| *x *= 2.0))]
#[case::router_gain(|model: &mut float::Model| layers(model, |layer| scale(&mut layer.router_gain, 1.0 / 32.0)))]
#[case::predict(|model: &mut float::Model| layers(model, |layer| transpose(&mut layer.predict)))]
#[case::no_predict(|model: &mut float::Model| layers(model, |layer| scale(&mut layer.predict, 0.0)))]
#[case::correct(|model: &mut float::Model| layers(model, |layer| scale(&mut layer.correct, 0.0)))]
#[case::query_gain(|model: &mut float::Model| layers(model, |layer| scale(&mut layer.query_gain, 32f32.sqrt())))]
#[case::key_gain(|model: &mut float::Model| gains(model, 0, |gain| scale(gain, 0.5)))]
#[case::value_gain(|model: &mut float::Model| gains(model, 1, |gain| gain.reverse()))]
#[case::output_gain(|model: &mut float::Model| layers(model, |layer| scale(&mut layer.output_gain, 0.5)))]
#[case::laurel(|model: &mut float::Model| layers(model, |layer| scale(&mut layer.laurel_gain, 0.0)))]
#[case::down_gain(|model: &mut float::Model| layers(model, |layer| scale(&mut layer.down_gain, 0.5)))]
#[case::embedding(|model: &mut float::Model| layers(model, |layer| scale(&mut layer.embedding, 0.0)))]
#[case::projection(|model: &mut float::Model| layers(model, |layer| scale(&mut layer.projection_gain, 0.0)))]
#[case::corrected(|model: &mut float::Model| layers(model, |layer| scale(&mut layer.corrected_scale[..16], 0.0)))]
#[case::embedding_gain(|model: &mut float::Model| layers(model, |layer| scale(&mut layer.embedding_gain, 0.5)))]
fn what_is_done_otherwise_is_seen(#[case] change: fn(&mut float::Model)) {
    let model = micro_gemma().model;
    let mut exact = published(&model, MICRO_ROPE_BASE, Some(MICRO_GLOBAL_ROPE_BASE));
    change(&mut exact);
    let judged = judge(&exact, &model, &gemma_tokens());
    assert!(judged.mean_divergence() > GEMMA_BAR, "{judged:?}");
}

fn parts(model: &mut float::Model) -> &mut float::GemmaParts {
    model.gemma.as_mut().unwrap()
}

fn layers(model: &mut float::Model, change: impl Fn(&mut float::GemmaLayer)) {
    model.layers.iter_mut().for_each(|layer| change(layer.gemma.as_mut().unwrap()));
}

fn gains(model: &mut float::Model, part: usize, change: impl Fn(&mut Vec<f32>)) {
    let own = model.layers.iter_mut().filter_map(|layer| layer.key_value.as_mut());
    own.for_each(|own| change(&mut own.gains.as_mut().unwrap()[part]));
}

fn scale(values: &mut [f32], factor: f32) {
    values.iter_mut().for_each(|value| *value *= factor);
}

fn transpose(coefficients: &mut [f32]) {
    let held = coefficients.to_vec();
    for (at, value) in coefficients.iter_mut().enumerate() {
        let (row, column) = (at / STREAMS, at % STREAMS);
        let (stream, other) = (row / STREAMS, row % STREAMS);
        *value = held[(other * STREAMS + stream) * STREAMS + column];
    }
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
