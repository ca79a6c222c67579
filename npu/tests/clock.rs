//! The cycle model takes what the RTL takes: of each word the cycle in which its unit is started and the one in which it is done, with one rollout.
//! `npu/tests/clock` keeps what the RTL says; `cargo run --release -p doorbell-npu --example clock -- --rtl` makes it anew.

#[path = "clock/steps.rs"]
mod steps;

use rstest::rstest;
use steps::{Bench, read_trace, traces};

#[rstest]
fn each_word_takes_the_cycles_of_the_rtl(
    #[values("words", "micro", "micro-gemma", "tiny")] model: &str,
    #[values(0, 16, 64)] latency: u64,
) {
    let mut bench = Bench::new(model);
    let steps = traces(model, latency);
    assert_eq!(steps.len(), 6, "{model}, memory at {latency}");
    for traced in steps {
        assert!(traced.words.len() >= 64 && traced.cycles > 0, "a whole step");
        let timed = bench.step(&traced, latency);
        if let Some(differs) = traced.differs(&timed) {
            let word =
                timed.words.get(differs.at).map(|span| doorbell_npu::text::disassemble(span.issue.word));
            panic!("{model}, memory at {latency}, position {}: {differs}; {word:?}", traced.position);
        }
    }
}

#[rstest]
fn memory_as_it_comes_takes_no_step_below_that_which_answers_at_once(
    #[values("words", "micro", "micro-gemma", "tiny")] model: &str,
) {
    let mut bench = Bench::new(model);
    let random = read_trace(model, "random");
    assert_eq!(random.len(), 6);
    for traced in random {
        let least = bench.step(&traced, 0).cycles;
        assert!(traced.cycles >= least, "{model}, position {}: {} < {least}", traced.position, traced.cycles);
    }
}
