use super::super::savings::{Mode, arithmetic, count};
use doorbell_host::trace::{Generator, Trace};
use rstest::rstest;

/// Groups of 8 over prompts that share their beginnings; `TRACE_SEED` gives another one.
fn trace() -> Trace {
    let seed = std::env::var("TRACE_SEED").map_or(7, |seed| seed.parse().expect("TRACE_SEED is a number"));
    println!("TRACE_SEED={seed}");
    Generator { output_median: 60, output_max: 900, prompt_median: 900, ..Generator::new(400, seed, 2) }
        .generate()
        .unwrap()
}

#[rstest]
fn the_tables_count_what_arithmetic_says(#[values(1, 16, 32, 512)] block_tokens: u32) {
    let trace = trace();
    for mode in Mode::ALL {
        let counts = count(&trace, mode, 8, block_tokens).unwrap();
        let want = arithmetic(&trace, mode, 8, block_tokens);
        assert_eq!(counts.arena.acquired, want, "{mode:?}, blocks of {block_tokens}");
        assert_eq!(counts.evicted, 0);
        assert_eq!((counts.committed, counts.branches, counts.prefixes), (0, 0, 0), "{mode:?}: a leak");
        assert_eq!(counts.arena.in_use, u64::from(counts.cold), "{mode:?}: a leak");
    }
}
