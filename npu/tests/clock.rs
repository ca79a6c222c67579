//! The cycle model takes what the RTL takes: of each word the cycle in which its unit is started and the one in which it is done, with one gang and
//! with two.
//! `npu/tests/clock` keeps what the RTL says; `cargo run --release -p doorbell-npu --example clock -- --rtl` makes it anew.

#[path = "clock/steps.rs"]
mod steps;

use doorbell_npu::clock::trace::{keep, read};
use rstest::rstest;
use steps::{Bench, TRACES, both, read_trace, traces};

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

#[rstest]
fn with_two_gangs_each_word_takes_the_cycles_of_the_rtl(
    #[values("words", "micro", "micro-gemma", "tiny")] model: &str,
    #[values(0, 16, 64)] latency: u64,
) {
    let traced = both(model, &latency.to_string());
    assert_eq!(traced.len(), 12, "{model}, memory at {latency}");
    let timed = Bench::new(model).steps(&traced, latency);
    // A gang begins at once behind the other, or later, and both take longer than one of them alone.
    let behind: Vec<u64> = traced.chunks(2).map(|pair| pair[1].began - pair[0].began).collect();
    assert!(behind.iter().step_by(2).all(|&cycles| cycles == 2), "{behind:?}");
    assert!(behind.iter().skip(1).step_by(2).any(|&cycles| cycles > 30), "{behind:?}");
    for (traced, timed) in traced.iter().zip(&timed) {
        assert!(traced.words.len() >= 64 && traced.cycles > 0, "a whole step");
        if let Some(differs) = traced.differs(timed) {
            let word =
                timed.words.get(differs.at).map(|span| doorbell_npu::text::disassemble(span.issue.word));
            let (gang, position) = (traced.gang, traced.position);
            panic!("{model}, memory at {latency}, gang {gang}, position {position}: {differs}; {word:?}");
        }
    }
}

#[rstest]
fn memory_as_it_comes_takes_two_gangs_no_less_than_that_which_answers_at_once(
    #[values("words", "micro", "micro-gemma", "tiny")] model: &str,
) {
    let random = both(model, "random");
    assert_eq!(random.len(), 12);
    let least = Bench::new(model).steps(&random, 0);
    for (rtl, model_) in random.chunks(2).zip(least.chunks(2)) {
        let rtl_end = rtl.iter().map(|step| step.began + step.cycles).max();
        let end = model_.iter().map(|step| step.began + step.cycles).max();
        assert!(rtl_end >= end, "{model}, position {}: {rtl_end:?} < {end:?}", rtl[0].position);
    }
}

#[rstest]
fn what_is_kept_is_what_is_read(#[values("words", "tiny")] model: &str) {
    let path = format!("{TRACES}/{model}-both-64.txt");
    let kept = std::fs::read_to_string(path).expect("a trace");
    assert_eq!(keep(&read(&kept), true), kept);
}
