//! `doorbell run` from end to end.
#![cfg(feature = "runtime")]

mod common;

use std::path::Path;

use common::{Run, doorbell};
use rstest::rstest;
use serde_json::Value;

/// Runs, and returns the exit code, the JSON, and standard error.
fn run(directory: &Path, args: &str) -> (i32, Value, String) {
    let Run { code, stdout, stderr } = doorbell(directory, &format!("run --json - {args}"));
    (code, serde_json::from_str(&stdout).unwrap_or(Value::Null), stderr)
}

/// What the log `name` holds, without what depends on timing: the order of records and the slots.
fn trajectories(directory: &Path, name: &str) -> Vec<String> {
    let shown = doorbell(directory, &format!("trajectories show --limit 100000 --tokens 8 {name}"));
    assert_eq!(shown.code, 0, "{}", shown.stderr);
    let row = |line: &str| line.split('|').skip(3).map(str::trim).collect::<Vec<_>>().join("|");
    let mut rows: Vec<String> = shown.stdout.lines().filter(|line| line.starts_with('|')).map(row).collect();
    rows.sort();
    rows
}

#[rstest]
#[case::plain("", 256)]
#[case::groups("--group 4 --policy prefix-sharing", 1024)]
#[case::checkpoints("--checkpoint 16 --policy shortest-remaining --judges 2", 256)]
#[case::on_the_hot_thread("--checkpoint 16 --judges 0 --no-events", 256)]
#[case::queues("--checkpoint 16 --queues 4 --functions 2", 256)]
#[case::resident("--checkpoint 16 --reward resident --policy longest-expected", 256)]
#[case::device("--reward device", 256)]
#[case::device_checkpoints("--reward device --checkpoint 16 --group 4 --judge-group --queues 3", 1024)]
#[case::reward_queue("--reward device --reward-queue --reward-model ranges --reward-ranges 0..65535", 256)]
#[case::reward_queues(
    "--reward device --reward-queue --group 4 --judge-group --queues 4 --functions 2",
    1024
)]
#[case::judged_groups("--group 4 --judge-group --checkpoint 16 --judges 2", 1024)]
#[case::log_probabilities("--group 2 --logprobs", 512)]
#[case::device_times("--group 2 --device-times --queues 4 --functions 2", 512)]
#[case::tight("--slots 8 --group 4 --credits 4 --depth 4 --checkpoint 8", 1024)]
fn every_rollout_comes_to_its_trajectory(#[case] args: &str, #[case] rollouts: u64) {
    let directory = tempfile::tempdir().unwrap();
    let (code, json, errors) = run(directory.path(), &format!("--store log {args}"));
    assert_eq!(code, 0, "{errors}");
    assert_eq!(json["counters"]["rollouts_admitted"], rollouts);
    assert_eq!(json["counters"]["rollouts_completed"], rollouts);
    assert_eq!(json["trajectories"]["stored"], rollouts);
    let verified = doorbell(directory.path(), "trajectories verify log").stdout;
    assert!(verified.starts_with(&format!("{rollouts} of {rollouts} records whole")), "{verified}");
}

/// R6, seen from the end: which device, which policy and how many judges change no trajectory.
#[rstest]
#[case::policy("--policy longest-expected --slots 16")]
#[case::queues("--queues 4")]
#[case::functions("--queues 16 --functions 4")]
#[case::judges("--judges 3 --window 1")]
#[case::sleeping("--wait sleep")]
#[case::sleeping_on_several("--wait sleep --coalesce 8:1000 --queues 3")]
#[cfg_attr(feature = "rtl", case::rtl("--device rtl"))]
#[cfg_attr(feature = "rtl", case::rtl_sleeping("--device rtl --wait sleep --coalesce 4:200"))]
fn r6_trajectories_depend_on_the_trace_alone(#[case] other: &str) {
    let directory = tempfile::tempdir().unwrap();
    let stored = |name: &str, args: &str| {
        let common = "--group 2 --checkpoint 24 --reward-threshold 0.1 --eos 0.003 --limit 100";
        let (code, _, errors) = run(directory.path(), &format!("--store {name} {common} {args}"));
        assert_eq!(code, 0, "{errors}");
        trajectories(directory.path(), name)
    };
    let reference = stored("reference", "");
    assert!(reference.len() > 200, "{}", reference.len());
    let other = stored("other", other);
    assert_eq!(other.len(), reference.len());
    for (other, reference) in other.iter().zip(&reference) {
        assert_eq!(other, reference);
    }
}

/// Whoever scores, and wherever: the same trajectories, but for who that was.
#[rstest]
#[case::digest("--reward-threshold 0.3 --eos 0.003", false)]
#[case::ranges("--reward-model ranges --reward-ranges 0..9999+120000..131071 --reward-threshold 4", false)]
#[case::groups("--group 4 --judge-group", true)]
fn host_and_device_score_alike(#[case] args: &str, #[case] groups: bool) {
    let directory = tempfile::tempdir().unwrap();
    let stored = |name: &str, more: &str| {
        let common = "--checkpoint 24 --limit 80 --no-sync";
        let (code, json, errors) = run(directory.path(), &format!("--store {name} {common} {args} {more}"));
        assert_eq!(code, 0, "{errors}");
        let count = |name: &str| json["counters"][name].as_u64().unwrap();
        let all = count("rollouts_completed");
        let by = if more.is_empty() { "scored_host" } else { "scored_device" };
        assert_eq!((count(by), count("scored_host") + count("scored_device")), (all, all));
        let info = doorbell(directory.path(), &format!("trajectories info {name} --json")).stdout;
        let info: Value = serde_json::from_str(&info).unwrap();
        let who = if more.is_empty() { "host" } else { "device" };
        assert_eq!(info["scored_by"][who].as_u64(), Some(all), "{info}");
        assert_eq!(info["with_advantages"].as_u64(), Some(if groups { all } else { 0 }));
        let mean = json["mean_score"].as_f64().unwrap();
        assert!((info["score_mean"].as_f64().unwrap() - mean).abs() < 1e-9);
        let text =
            if more.is_empty() { "scored by judges of the host" } else { "scored by the device (REWARD)" };
        assert!(errors.contains(text) && errors.contains(&format!("{mean:.4}")), "{errors}");
        let mut rows = trajectories(directory.path(), name);
        // The rule below the head is as wide as the columns.
        rows.retain(|row| !row.starts_with('-'));
        rows
    };
    let host = stored("host", "");
    let scores: std::collections::HashSet<_> = host.iter().filter_map(|row| row.rsplit('|').nth(4)).collect();
    assert!(scores.len() > 5, "{scores:?}");
    let mut runs = vec![
        ("own", "--reward device"),
        ("own4", "--reward device --queues 4 --functions 2"),
        ("beside", "--reward device --reward-queue"),
        ("beside4", "--reward device --reward-queue --queues 4 --functions 2"),
    ];
    if cfg!(feature = "rtl") {
        runs.push(("rtl", "--reward device --device rtl"));
    }
    if cfg!(feature = "cosim") {
        runs.push(("rtl-beside", "--reward device --reward-queue --device rtl"));
        runs.push(("rtl-beside4", "--reward device --reward-queue --device rtl --queues 4 --functions 2"));
    }
    for (name, more) in runs {
        let device: Vec<String> = stored(name, more);
        let host: Vec<String> = host.iter().map(|row| row.replace("|host|", "|device|")).collect();
        assert_eq!(device, host, "{name}");
    }
}

/// Engine 1: each trajectory is held to the oracle, however its prompt is cut, its blocks are shared, moved and found too few, and whichever weights come.
#[rstest]
#[case::plain("", 256)]
#[case::groups("--group 4 --checkpoint 16 --prefill-tokens 40 --limit 60", 240)]
#[case::few_blocks(
    "--group 2 --checkpoint 8 --kv-blocks 24 --swap-blocks 200 --slots 32 --judges 2 --limit 64",
    128
)]
#[case::functions("--group 2 --queues 3 --functions 3 --reward device --checkpoint 20 --eos 1", 512)]
#[case::versions(
    "--group 2 --checkpoint 16 --publish-every 20 --slots 64 --prefill-tokens 50 --limit 64",
    128
)]
fn trajectories_of_a_language_model_are_the_oracles(#[case] args: &str, #[case] rollouts: u64) {
    let directory = tempfile::tempdir().unwrap();
    let (code, json, errors) = run(directory.path(), &format!("--model micro --check --store log {args}"));
    assert_eq!(code, 0, "{errors}");
    assert_eq!(json["oracle"], serde_json::json!({ "checked": rollouts, "different": 0, "first": null }));
    assert_eq!(json["counters"]["rollouts_completed"], rollouts);
    assert_eq!(json["kv"]["preempted"].as_u64() > Some(0), args.contains("--swap-blocks"), "{errors}");
    assert!(errors.contains(&format!("held to the oracle: {rollouts} trajectories")), "{errors}");
    let exported = doorbell(directory.path(), "trajectories export log --parquet log.parquet");
    assert_eq!(exported.code, 0, "{}", exported.stderr);
}

/// What a language model cannot do is told before anything runs.
#[rstest]
#[case::queues("--queues 2", "give --functions 2")]
#[case::functions("--queues 4 --functions 3", "give --functions 4")]
#[case::rewards("--reward device --reward-queue", "cannot be used with")]
#[case::unknown("--model none", "there is no model none")]
#[case::few("--kv-blocks 1", "give at least")]
fn what_a_language_model_cannot_do_is_told(#[case] args: &str, #[case] what: &str) {
    let directory = tempfile::tempdir().unwrap();
    let model = if args.contains("--model") { "" } else { "--model micro" };
    let (code, _, errors) = run(directory.path(), &format!("{model} {args}"));
    assert_eq!(code, 2, "{errors}");
    assert!(errors.contains(what), "{errors}");
}

/// The same tokens on every machine.
#[test]
fn a_language_models_trajectories_are_shown() {
    let directory = tempfile::tempdir().unwrap();
    let (code, _, errors) = run(directory.path(), "--model micro --limit 3 --group 2 --store log");
    assert_eq!(code, 0, "{errors}");
    insta::assert_snapshot!(trajectories(directory.path(), "log").join("\n"));
}

/// Four prompts for micro, and rules that it can satisfy now and then.
fn arithmetic(directory: &Path) {
    let prompts = r#"{"prompt":"2 + 2 =","answer":"4","max_tokens":9}
{"prompt":"3 - 8 =","answer":"-5"}
{"prompt":"a half is","answer":"0.50"}
{"prompt":"7?","answer":"7","max_tokens":2000}
"#;
    let rules = r#"
        rule = [
            { name = "right", weight = 2, check = "equals-answer" },
            { name = "a digit", check = "matches", pattern = "[0-9]" },
            { name = "an end", check = "end-of-sequence" },
        ]
    "#;
    std::fs::write(directory.join("prompts.jsonl"), prompts).unwrap();
    std::fs::write(directory.join("rules.toml"), rules).unwrap();
}

/// A whole step: groups of answers to prompts of a file, judged by their text as one, with log-probabilities, spans and advantages.
#[test]
fn answers_to_prompts_are_judged_by_their_text() {
    let directory = tempfile::tempdir().unwrap();
    arithmetic(directory.path());
    let step =
        "--model micro --prompts prompts.jsonl --max-tokens 24 --group 8 --judge-group --rules rules.toml";
    let (code, json, errors) = run(directory.path(), &format!("{step} --check --store log"));
    assert_eq!(code, 0, "{errors}");
    // The last one may have more tokens than the model takes.
    let cut = "prompts.jsonl: answers to 1 of 4 prompts end where the model's context of 1024 is full";
    assert!(errors.contains(cut), "{errors}");
    assert_eq!(json["oracle"], serde_json::json!({ "checked": 32, "different": 0, "first": null }));
    assert_eq!(json["counters"]["scored_host"], 32);
    let info = doorbell(directory.path(), "trajectories info log --json").stdout;
    let info: Value = serde_json::from_str(&info).unwrap();
    assert_eq!((&info["with_logprobs"], &info["with_advantages"]), (&32.into(), &32.into()), "{info}");
    assert_eq!((&info["requests"], &info["versions"]), (&4.into(), &1.into()), "{info}");
    let shown = doorbell(directory.path(), "trajectories show --model micro --tokens 40 --limit 99 log");
    assert_eq!(shown.code, 0, "{}", shown.stderr);
    let mut rows: Vec<String> = shown
        .stdout
        .lines()
        .filter(|line| line.starts_with('|'))
        .map(|line| {
            // Without number and slot, which depend on timing; the text may hold a '|'.
            line.splitn(13, '|').skip(3).map(str::trim).collect::<Vec<_>>().join("|")
        })
        .collect();
    rows.sort();
    insta::assert_snapshot!(rows.join("\n"));
    // Twice over, and some of them: the same prompts and the same references.
    let (code, json, errors) = run(directory.path(), &format!("{step} --check --limit 3 --repeat 2"));
    assert_eq!(code, 0, "{errors}");
    assert_eq!(
        (&json["oracle"]["different"], &json["counters"]["rollouts_completed"]),
        (&0.into(), &48.into())
    );
}

/// The prompts and rules that the book runs fit each other, for a model that has no template of a chat too.
#[test]
fn the_example_runs() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../runtime/examples/arithmetic");
    let step =
        "--model micro --prompts prompts.jsonl --rules rules.toml --max-tokens 4 --group 8 --judge-group";
    let (code, json, errors) = run(&example, step);
    assert_eq!(code, 0, "{errors}");
    assert_eq!((&json["requests"], &json["counters"]["scored_host"]), (&16.into(), &128.into()));
}

/// What is wrong with prompts, or with rules for them, is told before anything runs.
#[test]
fn bad_prompts_are_told() {
    let directory = tempfile::tempdir().unwrap();
    arithmetic(directory.path());
    let long = format!(r#"{{"prompt":"{}"}}"#, "a".repeat(1024));
    for (name, text) in [
        ("none", "\n"),
        ("malformed", "{\"prompt\":\"a\"}\n{\"prompt\":\"b\",\"answer\":4}"),
        ("long", long.as_str()),
        ("blank", "{\"prompt\":\"a\"}\n{\"prompt\":\"\"}"),
        ("unanswered", "{\"prompt\":\"a\",\"answer\":\"4\"}\n{\"prompt\":\"b\"}"),
        ("wordy", "{\"prompt\":\"a\",\"answer\":\"four\"}"),
    ] {
        std::fs::write(directory.path().join(name), text).unwrap();
    }
    let arguments = [
        "--prompts prompts.jsonl",
        "--model micro --prompts prompts.jsonl --trace trace.jsonl",
        "--model micro --max-tokens 9",
        "--model micro --prompts nowhere",
        "--model micro --prompts none",
        "--model micro --prompts malformed",
        "--model micro --prompts long",
        "--model micro --prompts blank",
        "--model micro --prompts unanswered --rules rules.toml",
        "--model micro --prompts wordy --rules rules.toml",
        "--model micro --prompts prompts.jsonl --limit 0",
        "--model micro --prompts prompts.jsonl --max-tokens 0",
        "--model micro --prompts prompts.jsonl --group 8 --kv-blocks 4",
        "--model micro --rules rules.toml",
        "--rules rules.toml",
    ];
    let told = arguments.map(|arguments| {
        let (code, _, errors) = run(directory.path(), arguments);
        format!("$ {arguments}\n{errors}exit {code}\n")
    });
    insta::assert_snapshot!(told.join("\n"));
}

/// Versions come while rollouts run, in each mode: none is refused, and what each mode says becomes of the rollouts does.
#[rstest]
fn versions_are_published_while_rollouts_run(#[values("wait", "keep", "abort")] mode: &str) {
    let directory = tempfile::tempdir().unwrap();
    let publish = format!("--publish-every 40 --publish-mode {mode} --judge-group");
    let load = "--group 4 --queues 4 --functions 2 --checkpoint 16 --slots 128 --judge-delay 20 --repeat 2";
    let (code, json, errors) = run(directory.path(), &format!("--store log {load} {publish}"));
    assert_eq!(code, 0, "{errors}");
    let count = |name: &str| json["counters"][name].as_u64().unwrap();
    assert!(count("publishes") > 1 && count("publishes") == count("policy_version"), "{json}");
    assert_eq!(count("groups_done"), count("prefills"), "R17");
    assert_eq!(count("rollouts_completed") + count("rollouts_aborted"), 2048, "{json}");
    assert_eq!(count("rollouts_aborted") > 0, mode == "abort", "{json}");
    assert!(errors.contains(&format!("versions published, up to {}", count("policy_version"))), "{errors}");
    assert_eq!(json["publish_mode"], mode);
    let info = doorbell(directory.path(), "trajectories info log --json").stdout;
    let info: Value = serde_json::from_str(&info).unwrap();
    assert_eq!(info["records"].as_u64(), Some(count("rollouts_completed")));
    let versions = info["versions"].as_u64().unwrap();
    assert!((2..=count("publishes") + 1).contains(&versions), "{info}");
}

#[test]
fn a_strict_run_is_clean_or_says_what_could_not_be_watched() {
    let directory = tempfile::tempdir().unwrap();
    let (code, json, errors) =
        run(directory.path(), "--strict --checkpoint 8 --slots 64 --warm-up 0.5 --store log");
    let facts = &json["strict"]["facts"];
    let unmeasured = facts["unmeasured"].as_array().unwrap();
    if unmeasured.is_empty() {
        assert_eq!((code, &json["strict"]["clean"]), (0, &Value::Bool(true)), "{errors}");
    } else {
        // Where the kernel lets nobody watch, that is no success.
        assert_eq!(code, 1, "{errors}");
        eprintln!("skipped in part: {unmeasured:?}");
    }
    for fact in ["allocations", "frees", "minor_faults", "major_faults", "voluntary_switches", "system_calls"]
    {
        assert_eq!(facts[fact], 0, "{fact}: {errors}");
    }
}

/// Huge pages by the kernel's own account, or an error that says what the machine lacks; and nothing else changes.
#[test]
#[cfg(target_os = "linux")]
fn placed_memory_is_what_was_asked_for_or_the_run_does_not_start() {
    let directory = tempfile::tempdir().unwrap();
    let args = "--strict --checkpoint 8 --slots 64 --warm-up 0.5";
    let (plain, json, _) = run(directory.path(), &format!("{args} --store plain"));
    assert!(json["memory"].is_null(), "{}", json["memory"]);
    for (words, kinds) in [("transparent+near", &["AnonHugePages"][..]), ("reserved", &["Private_Hugetlb"])] {
        let (code, json, errors) = run(directory.path(), &format!("{args} --memory {words} --store {words}"));
        if json.is_null() {
            let told =
                ["vm.nr_hugepages=", "huge pages were had", "node"].iter().any(|what| errors.contains(what));
            assert!(code != 0 && told, "{errors}");
            eprintln!("skipped: {words}: {errors}");
            continue;
        }
        assert_eq!(code, plain, "{errors}");
        let (bytes, huge) = (&json["memory"]["bytes"], &json["memory"]["huge"]);
        assert!(bytes.as_u64() > Some(100_000) && bytes == huge, "{}", json["memory"]);
        let names: Vec<&String> = json["memory"]["by_name"].as_object().unwrap().keys().collect();
        assert_eq!(names, kinds);
        assert_eq!(json["strict"]["facts"]["minor_faults"], 0, "{errors}");
        assert_eq!(trajectories(directory.path(), words), trajectories(directory.path(), "plain"), "R6");
    }
}

/// Aborts are served while judges take their time, and leave no trajectory.
#[test]
fn aborted_rollouts_leave_no_trajectory() {
    let directory = tempfile::tempdir().unwrap();
    let (code, json, errors) =
        run(directory.path(), "--abort-every 4 --checkpoint 8 --judge-delay 50 --slots 32 --store log");
    assert_eq!(code, 0, "{errors}");
    let counters = &json["counters"];
    let count = |name: &str| counters[name].as_u64().unwrap();
    assert!(count("rollouts_aborted") > 0);
    assert_eq!(count("rollouts_aborted") + count("rollouts_completed"), 256);
    assert_eq!(json["trajectories"]["stored"].as_u64(), Some(count("rollouts_completed")));
}

/// Judges that panic at some rollouts, one that hangs: the others end, and the run with code 0 and the failures counted.
#[test]
fn what_judges_fail_of_is_counted_and_the_run_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let faults = "--judges 4 --judge-deadline 3000 --inject-judge panic:3% --inject-judge hang:1";
    let (code, json, errors) = run(directory.path(), &format!("--group 2 --store log {faults}"));
    assert_eq!(code, 0, "{errors}");
    let count = |name: &str| json["counters"][name].as_u64().unwrap();
    let failed = count("rollouts_failed");
    assert!((1..60).contains(&failed), "{failed}");
    assert_eq!(count("rollouts_completed"), 512 - failed);
    assert_eq!(json["trajectories"]["stored"].as_u64(), Some(512 - failed));
    assert_eq!(json["failures"].as_array().unwrap().len() as u64, failed.min(64));
    assert!(json["failures"][0]["reason"].as_str().unwrap().contains("its judge panicked"), "{json}");
    assert!(errors.contains(&format!("rollouts that failed: {failed}")), "{errors}");
    assert!(errors.contains("judge 1 was at an answer for more than 3s"), "{errors}");
    // The same ones fail whoever judges, and no more may than are said to.
    let limit = failed - 1;
    let again = format!("--group 2 --judges 1 --inject-judge panic:3% --max-failures {limit}");
    let (code, json, errors) = run(directory.path(), &again);
    assert_eq!(code, 1, "{errors}");
    assert!(json["errors"][0].as_str().unwrap().contains(&format!("at most {limit} may")), "{json}");
    let (code, json, _) = run(directory.path(), "--limit 20 --inject-judge error:1");
    assert_eq!((code, json["counters"]["rollouts_failed"].as_u64()), (1, Some(20)), "not one is left");
}

/// The least that `--kv-blocks` says to be enough is enough.
#[test]
fn the_least_kv_blocks_that_are_enough_are_told() {
    let directory = tempfile::tempdir().unwrap();
    for group in ["", "--group 3"] {
        let (code, _, errors) = run(directory.path(), &format!("{group} --kv-blocks 1"));
        assert_eq!(code, 2, "{errors}");
        let least: u32 = errors.trim().rsplit(' ').next().unwrap().parse().unwrap();
        let (code, _, errors) = run(directory.path(), &format!("{group} --kv-blocks {}", least - 1));
        assert_eq!(code, 2, "{errors}");
        let (code, _, errors) = run(directory.path(), &format!("{group} --kv-blocks {least}"));
        assert_eq!(code, 0, "{errors}");
    }
}

/// The trace some times over: each request has a number of its own.
#[test]
fn a_trace_can_be_run_again_and_again() {
    let directory = tempfile::tempdir().unwrap();
    let (code, json, errors) = run(directory.path(), "--limit 10 --repeat 50 --store log");
    assert_eq!(code, 0, "{errors}");
    assert_eq!(json["counters"]["rollouts_completed"], 500);
    let rows = trajectories(directory.path(), "log");
    let requests: std::collections::HashSet<&str> =
        rows.iter().filter_map(|row| row.split('|').next()).collect();
    assert!(requests.len() >= 500, "{}", requests.len());
}

#[test]
fn a_perfetto_trace_is_json() {
    let directory = tempfile::tempdir().unwrap();
    let (code, json, errors) = run(directory.path(), "--perfetto trace.json");
    assert_eq!(code, 0, "{errors}");
    let text = std::fs::read(directory.path().join("trace.json")).unwrap();
    let events: Vec<Value> = serde_json::from_slice(&text).unwrap();
    assert!(events.len() as u64 > json["counters"]["segments"].as_u64().unwrap());
}

#[rstest]
#[case("--device tpu", 2, "unknown device 'tpu'")]
#[case("--policy best", 2, "no policy is called 'best'")]
#[case("--limit 0", 2, "no requests to run")]
#[case("--group 4 --credits 3", 2, "credits is 3")]
#[case("--reward resident", 2, "checkpoint is 0")]
#[case("--kv-blocks 8", 2, "give at least ")]
#[case("--group 4096 --slots 4096 --kv-blocks 64", 2, "give at least ")]
#[case("--inject-judge mood:1%", 2, "there are panic:SHARE, error:SHARE and hang:JUDGE")]
#[case("--judges 0 --judge-deadline 5", 2, "give at least 1 judge")]
#[case("--kv-blocks 0", 2, "0 is not in 1..=16777216")]
#[case("--kv-blocks 4294967295", 2, "4294967295 is not in 1..=16777216")]
#[case("--model micro --swap-blocks 4294967295", 2, "4294967295 is not in 0..=16777216")]
#[case("--rules /nowhere/rules.toml", 2, "/nowhere/rules.toml")]
#[case("--store /proc/nowhere", 2, "/proc/nowhere")]
#[case("--depth 3", 2, "sq_depth")]
#[case("--functions 2", 2, "functions is 2")]
#[case("--gpus 0", 2, "--gpus is for --device gpu")]
#[case("--sms 8", 2, "--sms is for --device gpu")]
#[case(
    "--judge-group --reward resident --checkpoint 8",
    2,
    "--judge-group cannot be used with --reward resident"
)]
#[case("--reward tpu", 2, "[possible values: host, resident, device]")]
#[case(
    "--reward-queue",
    2,
    "--reward-queue cannot be used with --reward host: judges of the host need no queue pair"
)]
#[case("--reward resident --checkpoint 8 --reward-queue", 2, "the device scores where it decodes")]
#[case("--reward resident --checkpoint 8 --reward-model ranges --reward-ranges 1..2", 2, "by the digest")]
#[case("--reward device --rules rules.toml", 2, "--rules cannot be used with --reward device")]
#[case("--reward device --inject-judge hang:0", 2, "--inject-judge cannot be used with --reward device")]
#[case("--reward device --reward-ranges 1..2", 2, "and the model is digest")]
#[case("--reward device --reward-model ranges", 2, "give --reward-ranges, as 0..999")]
#[case("--reward device --reward-model ranges --reward-ranges 7", 2, "'7' is no range of tokens")]
#[case(
    "--reward-model ranges --reward-ranges 0..9+5..2",
    2,
    "'5..2' holds no token: the last is below the first"
)]
#[case("--rules r.toml --reward-model ranges --reward-ranges 1..2", 2, "give one of them")]
#[case("--reward device --reward-queue --queues 9", 2, "give at most --queues 8")]
#[case("--reward-threshold 40000", 2, "below 32768")]
#[case("--publish-mode wait", 2, "--publish-every")]
#[case("--max-staleness 32768", 2, "32768")]
#[case("--listen nowhere", 2, "nowhere")]
#[case("--wait sleep --strict", 2, "cannot be used with")]
#[case("--model micro --strict", 2, "the golden model computes on that thread")]
#[case("--memory huge", 2, "'huge' says nothing of memory; there are transparent, reserved")]
#[case("--memory node=1023", 2, "there is no node 1023; nodes here: 0")]
#[case("--wait sleep --coalesce x", 2, "expected a number of completions")]
#[case("--wait sleep --coalesce 65536", 2, "at most 65535")]
#[case("--wait sleep --coalesce 8:", 2, "expected ticks after the colon")]
#[case("--coalesce 8:1000", 2, "--coalesce is for --wait sleep")]
#[case("--device gpu --wait sleep --coalesce 8", 2, "on model or rtl, which interrupt")]
fn bad_usage_is_told(#[case] args: &str, #[case] code: i32, #[case] expected: &str) {
    let directory = tempfile::tempdir().unwrap();
    let (found, json, errors) = run(directory.path(), args);
    let told = format!("{errors}{json}");
    assert!(told.contains(expected), "{told}");
    assert_eq!(found, code, "{errors}");
}

/// A run that is refused leaves an old trace for Perfetto as it was, and its log without a run.
#[rstest]
#[case::address("--listen TAKEN", "cannot serve metrics at ")]
#[case::collector("--nic 127.0.0.1:1", "no collector at 127.0.0.1:1")]
#[case::credits("--credits 0", "credits is 0")]
fn a_run_that_does_not_begin_leaves_nothing(#[case] args: &str, #[case] what: &str) {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let args = args.replace("TAKEN", &taken.local_addr().unwrap().to_string());
    std::fs::write(at("old.json"), "old").unwrap();
    for (trace, log) in [("old.json", "log"), ("new.json", "log2")] {
        let outputs = format!("--limit 2 --store {log} --perfetto {trace}");
        let (code, _, errors) = run(directory.path(), &format!("{outputs} {args}"));
        assert_eq!(code, 2, "{errors}");
        assert!(errors.contains(what), "{errors}");
        assert!(!at(log).join("runs.jsonl").exists(), "{args}: a run is noted");
    }
    assert_eq!(std::fs::read_to_string(at("old.json")).unwrap(), "old");
    assert!(!at("new.json").exists());
}

/// Damage in the table of runs hides no damage of the records, and is damage itself.
#[test]
fn a_damaged_table_of_runs_hides_no_damaged_record() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log");
    assert_eq!(run(directory.path(), "--limit 2 --no-sync --store log").0, 0);
    let files = std::fs::read_dir(&log).unwrap().map(|entry| entry.unwrap().path());
    let records = files.max_by_key(|path| path.metadata().unwrap().len()).unwrap();
    let mut bytes = std::fs::read(&records).unwrap();
    // A token of the last record.
    let at = bytes.len() - 40;
    bytes[at] ^= 1;
    std::fs::write(&records, bytes).unwrap();
    let table = log.join("runs.jsonl");
    let noted = std::fs::read_to_string(&table).unwrap();
    std::fs::write(&table, noted.replacen('{', "[", 1)).unwrap();
    let verified = doorbell(directory.path(), "trajectories verify log");
    assert_eq!(verified.code, 1, "{}", verified.stderr);
    assert!(verified.stdout.starts_with("1 of 2 records whole"), "{}", verified.stdout);
    for part in ["damaged: ", "runs.jsonl line 1 is no run"] {
        assert!(verified.stderr.contains(part), "{part} in {}", verified.stderr);
    }
    let verified = doorbell(directory.path(), "trajectories verify log --json");
    let json: Value = serde_json::from_str(&verified.stdout).unwrap();
    assert_eq!((verified.code, &json["damaged"]), (1, &1.into()), "{json}");
    assert!(json["runs_problem"].as_str().is_some_and(|problem| problem.contains("line 1")), "{json}");
    for command in ["info log", "export log --parquet log.parquet"] {
        let refused = doorbell(directory.path(), &format!("trajectories {command}"));
        assert!(cfg!(not(feature = "parquet")) || refused.code == 1, "{command}: {}", refused.stderr);
    }
}

/// Runs into one log have seeds and names of their own, and store their prompts.
#[test]
fn runs_into_one_log_are_told_apart() {
    use std::collections::{BTreeMap, HashSet};

    use doorbell_runtime::trajectory::log::{Piece, Reader, run_of, runs};

    let directory = tempfile::tempdir().unwrap();
    arithmetic(directory.path());
    let step = "--model micro --prompts prompts.jsonl --max-tokens 8 --group 2 --store log";
    for (given, seed, is_told) in [("", 1, false), ("", 2, false), ("--seed 2", 2, true)] {
        let (code, json, errors) = run(directory.path(), &format!("{step} {given}"));
        assert_eq!((code, &json["seed"]), (0, &seed.into()), "{errors}");
        assert_eq!(errors.contains("had the seed 2 too"), is_told, "{errors}");
    }
    let log = directory.path().join("log");
    let runs = runs(&log).unwrap();
    assert_eq!(runs.iter().map(|run| (run.run, run.seed)).collect::<Vec<_>>(), [(1, 1), (2, 2), (3, 2)]);
    assert_eq!(runs.iter().map(|run| &run.id).collect::<HashSet<_>>().len(), 3);
    assert!(runs[2].arguments.ends_with(&["--seed".into(), "2".into()]), "{:?}", runs[2].arguments);
    let (mut answers, mut hashes) = (vec![BTreeMap::new(); 4], HashSet::new());
    for piece in Reader::open(&log).unwrap() {
        let Piece::Record(trajectory) = piece.unwrap() else { panic!("the log is whole") };
        let number = run_of(&runs, trajectory.number).unwrap().run;
        let prompt = trajectory.prompt.unwrap();
        let texts = ["2 + 2 =", "3 - 8 =", "a half is", "7?"];
        assert_eq!(prompt.text.as_deref(), Some(texts[trajectory.finished.request as usize]));
        assert_eq!(prompt.tokens.len(), trajectory.finished.prompt_tokens as usize);
        hashes.insert(trajectory.finished.prefix_hash);
        let key = (trajectory.finished.request, trajectory.finished.member);
        assert!(answers[number as usize].insert(key, trajectory.tokens).is_none(), "a key is there once");
    }
    assert_eq!((answers[1].len(), hashes.len()), (8, 4));
    assert_ne!(answers[1], answers[2], "another seed draws others");
    assert_eq!(answers[2], answers[3], "the same one the same");
}

/// The report and the other outputs come whatever becomes of one.
#[rstest]
#[case("--perfetto full --json r.json")]
#[case("--json full")]
fn a_side_output_that_fails_leaves_the_report(#[case] args: &str) {
    let directory = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink("/dev/full", directory.path().join("full")).unwrap();
    let Run { code, stdout, stderr } = doorbell(directory.path(), &format!("run --limit 9 {args}"));
    assert_eq!(code, 2, "{stderr}");
    assert!(stdout.contains("rollouts") && stderr.contains("No space left on device"), "{stdout}{stderr}");
    if args.contains("r.json") {
        let json = std::fs::read(directory.path().join("r.json")).unwrap();
        assert_eq!(serde_json::from_slice::<Value>(&json).unwrap()["succeeded"], true);
    }
    assert!(directory.path().join("full").symlink_metadata().unwrap().is_symlink());
}

/// What a device has taken is told by each queue's own `sq_head`.
#[rstest]
fn what_a_device_consumed_is_seen_on_each_queue(#[values(1, 2, 3)] queues: u32) {
    let directory = tempfile::tempdir().unwrap();
    let args = format!("--limit 60 --checkpoint 16 --group 2 --queues {queues}");
    let (code, json, errors) = run(directory.path(), &args);
    assert_eq!(code, 0, "{errors}");
    let count = |name: &str| {
        let pairs = json["events"]["pairs"].as_array().unwrap();
        pairs.iter().find(|pair| pair["name"] == name).unwrap()["count"].as_u64().unwrap()
    };
    let posted = count("DESC_POSTED→COMPLETION_POLLED");
    assert!(posted >= 120);
    assert_eq!(count("DESC_POSTED→DESC_CONSUMED"), posted);
    assert_eq!(count("DESC_CONSUMED→COMPLETION_POLLED"), posted);
}

/// Two outputs into one file would leave half of each.
#[test]
fn two_outputs_into_one_file_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink("x", directory.path().join("y")).unwrap();
    let run = doorbell(directory.path(), "run --limit 2 --json x --perfetto y");
    assert_eq!((run.code, run.stdout.as_str()), (2, ""), "{}", run.stderr);
    assert!(run.stderr.contains("another output of this command goes to the same file"), "{}", run.stderr);
    assert!(!directory.path().join("x").exists(), "nothing is left behind");
}

/// What a command reads is not what it writes, by whatever name.
#[test]
fn an_output_that_is_an_input_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let made = doorbell(directory.path(), "trace generate --requests 4 --output t");
    assert_eq!(made.code, 0, "{}", made.stderr);
    std::fs::write(at("p"), "{\"prompt\": \"a\"}\n").unwrap();
    std::fs::write(at("r"), "[[rule]]\nname = \"a\"\ncheck = \"length\"\nmax = 4\n").unwrap();
    std::os::unix::fs::symlink("t", at("link")).unwrap();
    std::fs::hard_link(at("t"), at("hard")).unwrap();
    assert_eq!(doorbell(directory.path(), "run --limit 1 --no-sync --store log").code, 0);
    let mut log = std::fs::read_dir(at("log")).unwrap().map(|entry| entry.unwrap().path());
    let file = log.find(|path| path.extension().is_some_and(|is| is == "trajectories")).unwrap();
    let file = format!("log/{}", file.file_name().unwrap().to_str().unwrap());
    for (command, input) in [
        ("run --trace t --limit 1 --json t", "t"),
        ("run --trace t --limit 1 --json link", "t"),
        ("run --trace link --limit 1 --perfetto hard", "t"),
        ("run --model micro --prompts p --limit 1 --perfetto p", "p"),
        ("run --rules r --limit 1 --json r", "r"),
        ("run --limit 1 --store log --json log/runs.jsonl", "log/runs.jsonl"),
        (&*format!("run --limit 1 --store log --perfetto {file}"), &*file),
        (&*format!("trajectories export log --parquet {file}"), &*file),
        ("compare --devices model --trace t --limit 1 --json t", "t"),
        ("trace convert t ./t", "t"),
    ] {
        let before = std::fs::read(at(input)).unwrap();
        let run = doorbell(directory.path(), command);
        assert_eq!(run.code, 2, "{command}: {}", run.stderr);
        assert!(
            run.stderr.contains("this command reads that file; give another"),
            "{command}: {}",
            run.stderr
        );
        assert!(std::fs::read(at(input)).unwrap() == before, "{command}: the input has changed");
    }
    // Another file beside them is none.
    for _ in 0..2 {
        let run = doorbell(directory.path(), "run --trace t --limit 1 --store log --json log/report.json");
        assert_eq!(run.code, 0, "{}", run.stderr);
    }
}

/// A device may never end, and is no file that somebody meant.
#[test]
fn inputs_that_are_devices_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    for arguments in ["--trace /dev/zero", "--rules /dev/zero", "--model micro --prompts /dev/zero"] {
        let run = doorbell(directory.path(), &format!("run --limit 1 {arguments}"));
        assert_eq!(run.code, 2, "{arguments}: {}", run.stderr);
        assert!(run.stderr.contains("it is a device; give a file or a pipe"), "{arguments}: {}", run.stderr);
    }
    let run = doorbell(directory.path(), "run --limit 1 --judges 1000000");
    assert!(run.code == 2 && run.stderr.contains("4096"), "{}", run.stderr);
}

/// Whatever is wrong with the rules, their file is named.
#[rstest]
#[case::missing(None, "cannot read")]
#[case::not_toml(Some("rule = ["), "TOML")]
#[case::unknown(Some("rule = [{ name = 'a', check = 'nonsense' }]"), "nonsense")]
#[case::impossible(Some("rule = [{ name = 'a', check = 'length', min = 3, max = 2 }]"), "3")]
#[case::of_text(Some("rule = [{ name = 'a', check = 'matches', pattern = 'x' }]"), "text")]
fn what_is_wrong_with_rules_names_their_file(#[case] rules: Option<&str>, #[case] what: &str) {
    let directory = tempfile::tempdir().unwrap();
    if let Some(rules) = rules {
        std::fs::write(directory.path().join("my.rules"), rules).unwrap();
    }
    let run = doorbell(directory.path(), "run --limit 2 --rules my.rules");
    assert_eq!((run.code, run.stdout.as_str()), (2, ""), "{}", run.stderr);
    assert!(run.stderr.contains("my.rules") && run.stderr.contains(what), "{}", run.stderr);
}

/// The times of a device without a clock are ticks, and no key says that they are nanoseconds.
#[test]
fn ticks_are_not_called_nanoseconds() {
    let directory = tempfile::tempdir().unwrap();
    let (code, json, errors) = run(directory.path(), "--limit 20 --device-times");
    assert_eq!(code, 0, "{errors}");
    let device = &json["events"]["device"];
    assert_eq!(device["unit"], "ticks");
    assert!(device["spans"][2]["p50"].as_u64() > Some(0) && !device.to_string().contains("_ns"), "{device}");
    assert!(json["events"]["pairs"][0]["p50_ns"].is_u64());
}

/// A log of an older program in which nothing was stored has no draws that could be repeated.
#[test]
fn an_empty_log_of_an_older_program_takes_no_seed_away() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log");
    std::fs::create_dir(&log).unwrap();
    // The head of a file of version 2.
    let head = b"DBTRAJEC\x02\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x10\x0C\x20\x87";
    std::fs::write(log.join("00000000000000000000.trajectories"), head).unwrap();
    for seed in [1, 2] {
        let (code, json, errors) = run(directory.path(), "--limit 3 --store log");
        assert_eq!((code, &json["seed"]), (0, &seed.into()), "{errors}");
    }
}

/// Prefixes that fill no block cost more than they save; that is told as a number of blocks, and not as a negative share.
#[test]
fn sharing_that_costs_is_told_as_blocks() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("prompts.jsonl"), "{\"prompt\":\"2 + 2 =\"}\n").unwrap();
    let run =
        doorbell(directory.path(), "run --model micro --prompts prompts.jsonl --group 4 --max-tokens 4");
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert!(
        run.stdout.contains(" without sharing: 1 more, as a prefix's unfinished block"),
        "{}",
        run.stdout
    );
}
