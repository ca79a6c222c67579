//! `doorbell demo`: every device tells the same, a fault parts the stories, and the README's picture is what the program prints.
#![cfg(all(feature = "lm", feature = "rtl"))]

mod common;

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use assert_cmd::cargo::CommandCargoExt;
use common::doorbell;
use serde_json::Value;
use tempfile::tempdir;

fn images() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("docs/images")
}

/// Runs the program under its plain name, as it is called when it is installed.
fn run(directory: &Path, arguments: &[&str]) -> (i32, String, String) {
    let mut command = Command::cargo_bin("doorbell").expect("the program is built");
    let output = command.arg0("doorbell").args(arguments).current_dir(directory).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

/// With `DOORBELL_PICTURES=1` in the environment, this draws the README's pictures anew.
#[test]
fn the_readmes_picture_is_what_the_program_prints() {
    let directory = tempdir().unwrap();
    // A machine with a GPU has told the same, at another time.
    fs::copy(images().join("demo-gpu.json"), directory.path().join("gpu.json")).unwrap();
    let arguments = [
        "demo",
        "--devices",
        "model,rtl",
        "--beside",
        "gpu.json",
        "--svg",
        "demo.svg",
        "--svg-dark",
        "demo-dark.svg",
        "--json",
        "told.json",
    ];
    let (code, text, errors) = run(directory.path(), &arguments);
    assert_eq!((code, errors.as_str()), (0, ""), "{text}");
    for name in ["demo.svg", "demo-dark.svg"] {
        let picture = fs::read_to_string(directory.path().join(name)).unwrap();
        if std::env::var_os("DOORBELL_PICTURES").is_some() {
            fs::write(images().join(name), &picture).unwrap();
        }
        let committed = fs::read_to_string(images().join(name)).unwrap();
        assert_eq!(committed, picture, "{name}: draw it anew with DOORBELL_PICTURES=1");
        assert!(picture.contains("sha256") && picture.contains("silly"), "{name} shows no story");
    }
    let json: Value =
        serde_json::from_str(&fs::read_to_string(directory.path().join("told.json")).unwrap()).unwrap();
    assert_eq!((&json["identical"], &json["json_version"]), (&Value::Bool(true), &1.into()), "{json}");
    let devices = json["devices"].as_array().unwrap();
    assert_eq!(devices.len(), 2);
    for device in devices {
        assert_eq!(device["sha256"], devices[0]["sha256"], "{device}");
        assert_eq!(device["tokens"].as_array().unwrap().len(), 64);
        assert_eq!(device["log_probabilities"].as_array().unwrap().len(), 64);
        // 67 positions, of which the last has none: the scale and 32 mantissas of a key and of a value, by layer and head.
        assert_eq!(device["key_value_bytes"].as_u64().unwrap() % (67 * 2), 0);
        assert!(device["key_value_bytes"].as_u64().unwrap() > 0);
    }
    assert!(devices[1]["cycles"].as_u64().unwrap() > 100_000, "{json}");
    let hash = devices[0]["sha256"].as_str().unwrap();
    assert!(text.contains(&format!("\nsha256    {hash}\n")), "{text}");
    // Plain lines: nothing steers a terminal, and all of it fits one.
    assert!(!text.contains('\u{1b}') && text.lines().all(|line| line.chars().count() <= 80), "{text}");
    // The story is that of `generate`, which goes another way.
    let (_, story, _) = run(directory.path(), &["generate", "--tokens", "64", "Once upon a time"]);
    assert_eq!(devices[0]["text"].as_str().unwrap(), story.trim_end_matches('\n'));
}

#[test]
fn a_fault_parts_the_stories() {
    let directory = tempdir().unwrap();
    let (code, text, _) =
        run(directory.path(), &["demo", "--devices", "model,model", "--tokens", "12", "--inject", "token:5"]);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("\ndifferent: model differs from model: token 5 is "), "{text}");
    let (code, _, errors) = run(directory.path(), &["demo", "--devices", "gpu", "--inject", "token"]);
    assert_eq!(code, 2);
    assert!(errors.contains("none of these devices takes a fault"), "{errors}");
}

/// What was recorded stands beside what runs, is compared with it, and must be of the same story.
#[test]
fn a_recording_stands_beside_the_devices() {
    let directory = tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let (code, ..) =
        run(directory.path(), &["demo", "--devices", "model", "--tokens", "12", "--json", "told.json"]);
    assert_eq!(code, 0);
    let mut told: Value = serde_json::from_str(&fs::read_to_string(at("told.json")).unwrap()).unwrap();
    told["recorded"] = "on another machine".into();
    told["devices"][0]["device"] = "other".into();
    fs::write(at("same.json"), told.to_string()).unwrap();
    told["devices"][0]["log_probabilities"][3] = 1.into();
    fs::write(at("different.json"), told.to_string()).unwrap();
    fs::write(at("none.json"), "{}").unwrap();
    let demo = |file: &str, tokens: &str| {
        run(directory.path(), &["demo", "--devices", "model", "--tokens", tokens, "--beside", file])
    };
    let (code, text, _) = demo("same.json", "12");
    assert_eq!(code, 0, "{text}");
    assert!(
        text.contains("on another machine")
            && text
                .contains("\nthe same: text, tokens, log-probabilities, keys and values recorded on other\n"),
        "{text}"
    );
    let (code, text, _) = demo("different.json", "12");
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("different: other differs from model: a log-probability is another"), "{text}");
    // Another number of tokens is another story, and one of the same number may end early.
    let (code, _, errors) = demo("same.json", "13");
    assert_eq!(code, 2, "{errors}");
    assert!(errors.contains("another story: model tiny, seed 0, temperature 0.7, 12 tokens"), "{errors}");
    told["most"] = 13.into();
    fs::write(at("short.json"), told.to_string()).unwrap();
    let (code, text, _) = demo("short.json", "13");
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("other differs from model: it ends after 12 tokens, and model after 13"), "{text}");
    let (code, _, errors) = demo("none.json", "12");
    assert_eq!(code, 2);
    assert!(errors.contains("not what `doorbell demo --json` wrote: missing field"), "{errors}");
    let other = ["demo", "--devices", "model", "--seed", "1", "--beside", "same.json"];
    let (code, _, errors) = run(directory.path(), &other);
    assert_eq!(code, 2);
    assert!(errors.contains("another story: model tiny, seed 0"), "{errors}");
}

/// A story without a token would be identical everywhere.
#[test]
fn a_story_has_a_token() {
    let directory = tempdir().unwrap();
    let (code, text, errors) = run(directory.path(), &["demo", "--devices", "model,model", "--tokens", "0"]);
    assert_eq!((code, text.as_str()), (2, ""));
    assert!(errors.contains("invalid value '0' for '--tokens <N>'"), "{errors}");
}

/// A device that failed is part of a recording.
#[test]
fn a_recording_of_a_device_that_failed_names_it() {
    let directory = tempdir().unwrap();
    let tell = ["demo", "--devices", "model,model", "--tokens", "4"];
    let (code, ..) =
        run(directory.path(), &[&tell[..], &["--inject", "hang:2", "--json", "told.json"]].concat());
    assert_eq!(code, 1);
    let (code, text, errors) = run(directory.path(), &[&tell[..], &["--beside", "told.json"]].concat());
    assert_eq!(code, 1, "{text}{errors}");
    assert!(text.contains("failed: model, recorded: "), "{text}");
    let (code, _, errors) = run(directory.path(), &["demo", "--devices", "vfio-user:/no/such/socket"]);
    assert_eq!(code, 1, "{errors}");
}

/// What a picture shows may have any white space.
#[test]
fn a_picture_of_a_text_with_tabs_is_drawn() {
    let directory = tempdir().unwrap();
    for (number, text) in
        ["Once\t\nupon a time", "Once \t\nupon", "Once\u{a0}\nupon", "Once\u{3000}\n\u{3000}"]
            .iter()
            .enumerate()
    {
        let picture = format!("{number}.svg");
        let tell = ["demo", "--devices", "model", "--tokens", "2", "--svg", &picture, text];
        let (code, out, errors) = run(directory.path(), &tell);
        assert_eq!(code, 0, "{text:?}: {out}{errors}");
        assert!(fs::read_to_string(directory.path().join(picture)).unwrap().ends_with("</svg>\n"));
    }
}

#[test]
fn colours_come_when_they_are_asked_for_and_quiet_leaves_notes_out() {
    let directory = tempdir().unwrap();
    let coloured = |set: &[(&str, &str)]| {
        let mut command = Command::cargo_bin("doorbell").unwrap();
        command.args(["demo", "--devices", "model,model", "--tokens", "4"]).envs(set.iter().copied());
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    assert!(coloured(&[("CLICOLOR_FORCE", "1")]).contains("\u{1b}[32midentical\u{1b}[0m"));
    assert!(!coloured(&[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")]).contains('\u{1b}'));
    let generate = doorbell(directory.path(), "generate --model micro --tokens 4 --quiet hello");
    assert_eq!((generate.code, generate.stderr.as_str()), (0, ""));
    let json = doorbell(directory.path(), "generate --model micro --tokens 4 --json hello");
    let json: Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(json["tokens"].as_array().unwrap().len(), json["log_probabilities"].as_array().unwrap().len());
}

#[test]
fn without_a_command_the_demo_is_pointed_to() {
    let run = doorbell(tempdir().unwrap().path(), "");
    assert_eq!((run.code, run.stdout.as_str()), (2, ""));
    assert!(run.stderr.contains("doorbell demo"), "{}", run.stderr);
}
