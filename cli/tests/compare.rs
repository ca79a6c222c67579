//! `doorbell compare` on the model: reports, exit codes, outputs.

mod common;

use std::fs;

use common::{Run, doorbell};
use rstest::rstest;
use serde_json::Value;
use tempfile::tempdir;

fn run(arguments: &str) -> Run {
    doorbell(tempdir().unwrap().path(), &format!("compare {arguments}"))
}

/// What a run prints, without its times and what depends on their width.
fn report(arguments: &str, code: i32) -> String {
    let run = run(arguments);
    assert_eq!((run.code, run.stderr.as_str()), (code, ""), "{}", run.stdout);
    run.stdout
}

fn with_filters(check: impl FnOnce()) {
    let mut settings = insta::Settings::clone_current();
    settings.add_filter(r"\d+\.\d{3} s", "[wall]");
    settings.add_filter(r"\d+\.\d+ [kM] ", "[rate] ");
    settings.add_filter(r"advances: .*; the oldest", "advances: [driver's view]; the oldest");
    settings.add_filter(r" {2,}", " ");
    settings.add_filter(r"-{3,}", "---");
    settings.bind(check);
}

#[rstest]
#[case("plain", "")]
#[case("groups", "--group 3 --checkpoint 32 --limit 20")]
#[case("resident", "--resident --checkpoint 16 --reward-threshold 0.1 --limit 20")]
#[case("stops", "--stop-every 4 --eos 0.01 --limit 20")]
fn identical(#[case] name: &str, #[case] arguments: &str) {
    let report = report(&format!("--devices model,model {arguments}"), 0);
    with_filters(|| insta::assert_snapshot!(format!("identical_{name}"), report, arguments));
}

/// One queue pair, several, and several functions do the same.
#[rstest]
#[case("")]
#[case("--group 3 --checkpoint 32")]
#[case("--resident --checkpoint 16 --reward-threshold 0.1")]
#[case("--stop-every 4 --eos 0.01")]
#[case("--wait-states 3 --sq-depth 4 --cq-depth 2 --limit 40")]
fn queue_pairs_and_functions_change_no_answer(#[case] arguments: &str) {
    let many = [(1, 1), (4, 1), (4, 4), (16, 1), (16, 4)];
    let devices: Vec<String> = many
        .iter()
        .map(|(queues, functions)| format!("model:queues={queues}:functions={functions}"))
        .collect();
    let report = report(&format!("--devices {} {arguments}", devices.join(",")), 0);
    let names = ["model", "model (4 queues)", "model (4 queues, 4 functions)", "model (16 queues)"];
    for name in names {
        assert!(report.contains(&format!("| {name} ")), "{name} in {report}");
    }
    assert!(report.contains("\nidentical: "), "{report}");
}

#[test]
fn queues_and_functions_are_for_every_device() {
    let report = report("--devices model,model:functions=1 --queues 4 --functions 2 --limit 20", 0);
    assert!(report.contains("| model (4 queues, 2 functions) ") && report.contains("| model (4 queues) "));
}

#[test]
fn a_fault_in_one_of_several_queue_pairs_is_found() {
    let report = report("--devices model,model:queues=4:functions=2 --inject token:500 --checkpoint 32", 1);
    assert!(!report.contains("identical"), "{report}");
}

#[rstest]
#[case("token", "token:500 --checkpoint 32")]
#[case("status", "completion:30:status --group 2")]
#[case("flags", "completion:3:flags --eos 0.01")]
#[case("hang", "hang:9 --limit 20")]
fn different(#[case] name: &str, #[case] fault: &str) {
    let report = report(&format!("--devices model,model,model --inject {fault}"), 1);
    with_filters(|| insta::assert_snapshot!(format!("different_{name}"), report, fault));
}

#[rstest]
#[case::short_token("token")]
#[case::short_completion("completion")]
#[case::short_hang("hang")]
fn a_fault_without_a_place_is_found(#[case] fault: &str) {
    let report = report(&format!("--devices model,model --inject {fault}"), 1);
    assert!(!report.contains("identical"), "{report}");
}

/// A fault that nobody sees is no success.
#[rstest]
#[case("--inject token:9999999")]
#[case("--limit 60 --inject completion")]
#[case("--limit 60 --inject hang")]
#[case("--inject completion:9999999:status")]
#[case("--inject hang:9999999")]
#[case("--limit 20 --stop-every 2 --inject token:9999999")]
#[case("--limit 20 --inject event:full")]
fn a_fault_that_is_never_planted_is_told(#[case] arguments: &str) {
    let report = report(&format!("--devices model,model {arguments}"), 1);
    let fault = arguments.rsplit(' ').next().unwrap();
    assert!(report.contains(&format!("not found: the fault '{fault}")), "{report}");
    assert!(report.contains("was never planted in model#2"), "{report}");
    assert!(!report.contains("identical"), "{report}");
    let directory = tempdir().unwrap();
    let json = doorbell(directory.path(), &format!("compare --devices model,model {arguments} --json -"));
    let json: Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(
        (json["fault"]["found"].as_bool(), json["fault"]["device"].as_str()),
        (Some(false), Some("model#2"))
    );
}

#[rstest]
#[case::unknown_device(
    "--devices model,tpu",
    2,
    "error: unknown device 'tpu'; known devices: model, rtl, gpu"
)]
#[case::one_device("--devices model", 2, "error: a comparison takes two devices or more; 'model' is one")]
#[case::sq_depth(
    "--sq-depth 1000",
    2,
    "error: sq_depth is 1000: a ring has a power of two of slots, from 2 to 65536"
)]
#[case::wait_states("--wait-states 65536", 2, "error: wait_states is 65536: it must be at most 65535")]
#[case::limit("--limit 0", 2, "error: the trace has no requests to replay")]
#[case::group("--group 0", 2, "error: the group size is 0; it must be at least 1")]
#[case::resident("--resident", 2, "error: resident scoring happens at checkpoints, and there are none")]
#[case::json_directory("--json .", 2, "error: --json .: it is a directory; give a file")]
#[case::json_nowhere("--json no/such/file", 2, "error: cannot write JSON no/such/file: ")]
#[case::wave_nowhere("--wave no/such/file", 2, "error: cannot write waveform no/such/file: ")]
#[case::fault(
    "--inject fire",
    2,
    "error: 'fire' is no fault of the model: expected token:NTH, completion:NTH:FIELD"
)]
#[case::field("--inject completion:1:colour", 2, "error: 'completion:1:colour' is no fault of the model")]
#[case::eos("--eos 2", 2, "error: invalid value '2' for '--eos <P>': expected a number from 0 to 1")]
#[case::stalls("--stalls 96", 2, "error: invalid value '96' for '--stalls <PERCENT>': 96 is not in 0..=95")]
#[case::gpu_word(
    "--gpus one",
    2,
    "error: invalid value 'one' for '--gpus <LIST>': expected numbers of GPUs, each once"
)]
#[case::queues("--queues 17", 2, "error: invalid value '17' for '--queues <N>': 17 is not in 1..=16")]
#[case::functions(
    "--queues 2 --functions 3",
    2,
    "error: functions is 3: it must be at most 2, the number of queue pairs"
)]
#[case::own_key("--devices model,model:depth=4", 2, "error: option 'depth=4': there is no such key; keys:")]
#[case::own_value("--devices model,model:queues=0", 2, "error: option 'queues=0': expected 1 to 16")]
#[case::no_such_gpu("--devices model,gpu --gpus 4294967295", 3, "error: gpu")]
#[case::memory("--random-memory --stalls 3", 2, "error: the argument '--random-memory' cannot be used with")]
#[case::argument("--nonsense", 2, "error: unexpected argument '--nonsense'")]
fn bad_usage(#[case] arguments: &str, #[case] code: i32, #[case] problem: &str) {
    let devices = if arguments.contains("--devices") { "" } else { "--devices model,model" };
    let run = run(&format!("{devices} {arguments}"));
    assert_eq!((run.code, run.stdout.as_str()), (code, ""), "{}", run.stderr);
    assert!(run.stderr.starts_with(problem), "{}", run.stderr);
}

/// Queue pairs of one function have one region for models: what to give is told, and works.
#[cfg(feature = "lm")]
#[rstest]
#[case("--queues 4 --functions 3", false)]
#[case("--queues 2", false)]
#[case("--devices model,model:queues=4:functions=2", false)]
#[case("--queues 4 --functions 4", true)]
fn queue_pairs_of_one_function_share_a_model(#[case] arguments: &str, #[case] fits: bool) {
    let run = run(&format!("--model micro --limit 2 {arguments}"));
    if fits {
        assert_eq!((run.code, run.stderr.as_str()), (0, ""));
        return;
    }
    assert_eq!((run.code, run.stdout.as_str()), (2, ""), "{}", run.stderr);
    assert!(run.stderr.starts_with("error: --model takes one queue pair in each function"), "{}", run.stderr);
    assert!(run.stderr.contains("give --queues ") && !run.stderr.contains("model_bytes"), "{}", run.stderr);
}

#[test]
fn a_comparison_of_all_devices_needs_the_gpus_that_it_names() {
    let run = run("--gpus 4294967295");
    assert_eq!((run.code, run.stdout.as_str()), (3, ""), "{}", run.stderr);
    assert!(run.stderr.starts_with("error: gpu"), "{}", run.stderr);
}

#[rstest]
#[case::agreeing("", 0)]
#[case::token("--inject token:5", 1)]
#[case::hang("--inject hang:5", 1)]
fn json_says_what_the_text_says(#[case] arguments: &str, #[case] code: i32) {
    let directory = tempdir().unwrap();
    let command = format!("compare --devices model,model --limit 30 {arguments} --json");
    let to_file = doorbell(directory.path(), &format!("{command} out.json"));
    let to_stdout = doorbell(directory.path(), &format!("{command} -"));
    assert_eq!((to_file.code, to_stdout.code), (code, code));
    assert!(to_stdout.stderr.contains("| model#2"), "the text moves to standard error: {}", to_stdout.stderr);
    for text in [fs::read_to_string(directory.path().join("out.json")).unwrap(), to_stdout.stdout] {
        let json: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(json["identical"], code == 0);
        assert_eq!(json["devices"][0]["agrees"], true);
        assert_eq!(json["devices"][1]["agrees"], code == 0);
        assert_eq!(json["devices"][0]["completions"], 30);
        assert!(to_file.stdout.contains(json["devices"][1]["digest"].as_str().unwrap()));
        assert_eq!(json["devices"][1]["divergence"].is_object(), arguments.contains("token"));
        assert_eq!(json["devices"][1]["failure"].is_string(), arguments.contains("hang"));
        if arguments.contains("token") {
            let divergence = &json["devices"][1]["divergence"];
            assert_eq!(
                (divergence["rollout_id"].as_u64(), divergence["token"]["index"].as_u64()),
                (Some(0), Some(5))
            );
            assert_eq!(divergence["descriptor"]["rollout_id"], 0);
        }
    }
}

/// What stood in the file stays when nothing new comes, and no empty file is left behind.
#[test]
fn outputs_are_touched_only_by_results() {
    let directory = tempdir().unwrap();
    let path = directory.path().join("old.json");
    fs::write(&path, "old and longer than any result, ".repeat(1000)).unwrap();
    let bad = "compare --devices model,model --sq-depth 3 --json";
    assert_eq!(doorbell(directory.path(), &format!("{bad} old.json")).code, 2);
    assert_eq!(doorbell(directory.path(), &format!("{bad} new.json")).code, 2);
    assert!(fs::read_to_string(&path).unwrap().starts_with("old"));
    assert!(!directory.path().join("new.json").exists());
    assert_eq!(doorbell(directory.path(), "compare --devices model,model --json old.json").code, 0);
    assert!(
        serde_json::from_str::<Value>(&fs::read_to_string(&path).unwrap()).is_ok(),
        "the old end is gone"
    );
}

/// One test for both, as a GPU has room for one at a time: whether there is one is the machine's business.
#[test]
fn devices_are_listed_with_the_reason_for_each_that_is_missing_and_a_gpu_agrees_or_is_missing() {
    let directory = tempdir().unwrap();
    let run = doorbell(directory.path(), "devices");
    assert_eq!(run.code, 0);
    let lines: Vec<&str> = run.stdout.lines().collect();
    assert_eq!(lines.len(), 3);
    assert!(lines[0].starts_with("model ") && lines[0].ends_with("; available"), "{}", lines[0]);
    assert!(lines[1].starts_with("rtl "));
    assert!(lines[2].starts_with("gpu "));
    let run = doorbell(directory.path(), "compare --devices model,gpu --group 4 --checkpoint 32");
    match lines[2].split_once("; not available: ") {
        Some((_, reason)) => {
            assert_eq!((run.code, run.stdout.as_str()), (3, ""));
            assert_eq!(run.stderr, format!("error: gpu is not available: {reason}\n"));
        }
        None => {
            assert!(lines[2].ends_with("; available"), "{}", lines[2]);
            assert_eq!(run.code, 0, "{}{}", run.stdout, run.stderr);
        }
    }
}

/// A full disk under the JSON is an error, and takes no verdict with it.
#[rstest]
#[case::agree("", 2, "identical: ")]
#[case::differ("--inject token:9", 1, "different: ")]
fn json_that_cannot_be_written_leaves_the_report(
    #[case] arguments: &str,
    #[case] code: i32,
    #[case] told: &str,
) {
    let run = run(&format!("--devices model,model --limit 20 --json /dev/full {arguments}"));
    assert_eq!(run.code, code, "{}", run.stderr);
    assert!(
        run.stderr.starts_with("error: cannot write /dev/full: No space left on device"),
        "{}",
        run.stderr
    );
    assert!(run.stdout.contains(told), "{}", run.stdout);
}
