//! `doorbell why`, on planted faults.

use std::time::{Duration, Instant};

use rstest::rstest;

mod common;
use common::doorbell;

/// Planted faults with what must be named of each, within ten seconds.
#[rstest]
#[case::hang("--devices model,model --inject hang:100", &["why: model#2: the device has not read slots 0x64 to 0x100", "see host/src/registers/queue.rs", "slot 0x64 (DECODE of rollout 100)"])]
#[case::rtl_hang("--devices model,rtl --inject hang", &["why: rtl: ", "see rtl/", "slot 0x98 (DECODE of rollout 152)", "rtl: it has no completion"])]
#[case::token("--devices model,model --inject token:1000", &["token 17 of the descriptor", "the life of DECODE of rollout 12, part 0", "final_seq_len"])]
#[case::completion("--devices model,model --inject completion:100:status", &["status", "the life of DECODE of rollout 100, part 0"])]
#[case::version("--devices model,model --sq-depth 16 --publish-every 8 --inject policy:swapped-slot", &["different: model#2", "the life of DECODE of rollout 20, part 1"])]
#[case::sharded("--devices model:queues=2,model:queues=2 --inject hang:100", &["why: ", "queue pair ", "is published and not read"])]
// Events of completions that the host has not taken, as one before them is lost.
#[case::lost_of_four("--devices model,rtl:queues=4 --inject completion-error:3", &["why: rtl (4 queues), queue pair ", "ERROR COMPLETION_WRITE", "(R3)", "see rtl/completion_ring.sv"])]
#[case::lost_and_full("--devices model,rtl --cq-depth 16 --inject completion-error:9", &["why: rtl: the device has written completions", "ERROR COMPLETION_WRITE", "(R3)", "see rtl/completion_ring.sv"])]
#[case::phase("--devices model,model --cq-depth 16 --inject completion:40:phase", &["why: model#2: completion 0x28 is in its slot", "phase", "(R4)", "see verify/src/model/execution.rs"])]
fn a_planted_fault_is_explained(#[case] arguments: &str, #[case] named: &[&str]) {
    let directory = tempfile::tempdir().unwrap();
    let begun = Instant::now();
    let run = doorbell(directory.path(), &format!("why {arguments}"));
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    assert_eq!(run.code, 1, "{}", run.stderr);
    for &part in named {
        assert!(run.stdout.contains(part), "{part} is not in:\n{}", run.stdout);
    }
    // A terminal has 80 columns, and what is a table fits.
    let wide = run.stdout.lines().find(|line| line.starts_with('|') && line.chars().count() > 80);
    assert_eq!(wide, None);
}

#[test]
fn the_life_of_a_descriptor_is_told_on_each_device_with_what_held_it() {
    let directory = tempfile::tempdir().unwrap();
    let ask = |arguments: &str| doorbell(directory.path(), &format!("why {arguments}"));
    let run = ask("12:0 --devices model,rtl --group 4 --checkpoint 16 --limit 20");
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert!(run.stdout.contains("| a worker began"), "{}", run.stdout);
    assert!(run.stdout.contains("rtl: began"), "{}", run.stdout);
    assert!(run.stdout.contains("DECODE of rollout 11, part 0, the one before it in its queue pair, which had not begun (R16, rtl/dispatcher.sv)"), "{}", run.stdout);
    // One device is enough, and a part that is not there is named with those that are.
    let run = ask("12:9 --devices model --group 4 --checkpoint 16 --limit 20");
    assert_eq!(run.code, 2);
    assert!(run.stderr.contains("no descriptor 12:9 was submitted; of rollout 12: 12:0"), "{}", run.stderr);
    let run = ask("999 --devices model --limit 20");
    assert_eq!(run.code, 2);
    assert!(run.stderr.contains("this plan has rollouts 0 to 19"), "{}", run.stderr);
}

/// What held a descriptor is named only if it did, and what does not show is said.
#[test]
fn a_full_completion_queue_and_what_did_not_wait_are_told_apart() {
    let directory = tempfile::tempdir().unwrap();
    for rollout in [12, 20] {
        let run = doorbell(directory.path(), &format!("why {rollout} --devices rtl --cq-depth 2 --limit 30"));
        assert!(
            run.stdout.contains("rtl: began") && run.stdout.contains("(R4, rtl/completion_ring.sv)"),
            "{}",
            run.stdout
        );
    }
    // The next begins before the write of the completion is answered.
    for latency in ["0..0", "20..20"] {
        let run = doorbell(
            directory.path(),
            &format!("why 5:stop --devices rtl --limit 20 --stop-every 3 --latency {latency}"),
        );
        assert!(run.stdout.contains("the one before it in its rollout (R5, "), "{}", run.stdout);
    }
    let run = doorbell(
        directory.path(),
        "why 8:stop --devices rtl --limit 20 --group 4 --checkpoint 16 --stop-every 3",
    );
    assert!(run.code == 0 && !run.stdout.contains("it waited for"), "{}", run.stdout);
    let run = doorbell(directory.path(), "why 5 --devices rtl --limit 20 --patience 1 --wait-states 60000");
    assert!(run.code == 1 && run.stdout.contains("a worker is in wait states"), "{}", run.stdout);
}

#[test]
fn a_fault_that_was_never_planted_is_a_failure() {
    let directory = tempfile::tempdir().unwrap();
    let run = doorbell(directory.path(), "why --limit 60 --devices model,model --inject completion");
    assert!(run.code == 1 && run.stdout.contains("not found: the fault 'completion'"), "{}", run.stdout);
}

#[test]
fn a_run_that_went_well_needs_no_explanation() {
    let directory = tempfile::tempdir().unwrap();
    let run = doorbell(directory.path(), "why --devices model,model");
    assert_eq!(
        (run.code, run.stdout.as_str()),
        (0, "no device differs from the first or stopped answering: model, model#2\n")
    );
    let run = doorbell(directory.path(), "why --hang --devices model,model --inject token:5");
    assert_eq!((run.code, run.stdout.as_str()), (0, "no device stopped answering: model, model#2\n"));
}

#[test]
fn compare_explains_by_itself_and_records_the_cycles_that_are_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    let run = doorbell(directory.path(), "compare --devices model,model --inject hang:100");
    assert!(run.code == 1 && run.stdout.contains("why: the life of DECODE of rollout 100"), "{}", run.stdout);
    let asked =
        "compare --devices model,rtl --limit 20 --trace-from 100 --trace-to 300 --trace-scope u_dispatcher";
    let run = doorbell(directory.path(), asked);
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert!(run.stdout.contains("waveform: trace.fst (cycles 100 to 300 of rtl"), "{}", run.stdout);
    let save = std::fs::read_to_string(directory.path().join("trace.gtkw")).unwrap();
    assert!(save.contains("top.rl_runtime_top.u_dispatcher.") && !save.contains("u_desc_ring"), "{save}");
    let run = doorbell(
        directory.path(),
        "compare --devices model,rtl --limit 20 --trace-from 5 --trace-scope u_no",
    );
    assert!(run.stdout.contains("the RTL has no instance u_no; it has "), "{}", run.stdout);
    assert_eq!(run.code, 2, "what was asked for is not there");
    let run =
        doorbell(directory.path(), "compare --devices model,rtl --limit 20 --trace-from 9 --trace-to 9");
    assert_eq!(run.code, 2);
}
