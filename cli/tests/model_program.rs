//! `doorbell model program`.
#![cfg(feature = "lm")]

mod common;

use std::path::Path;

use common::doorbell;
use doorbell_npu::text::assemble;

fn run(arguments: &str) -> common::Run {
    doorbell(Path::new("."), &format!("model program {arguments}"))
}

#[test]
fn a_program_is_printed_as_text_that_assembles() {
    let run = run("micro");
    assert_eq!((run.code, run.stderr.as_str()), (0, ""));
    // 49 words of a step, and the 16 of layer 0; all else is comment.
    let words = assemble(&run.stdout).unwrap();
    assert_eq!(words.len(), 49 + 16);
    assert!(run.stdout.contains("; words     0 to     7  residual\n"), "{}", run.stdout);
    assert!(run.stdout.contains("; layer 0 of 4, whose words stand at byte 0x"), "{}", run.stdout);
}

#[test]
fn json_has_the_same_words() {
    let text = assemble(&run("micro").stdout).unwrap();
    let value: serde_json::Value = serde_json::from_str(&run("micro --json").stdout).unwrap();
    let words = |value: &serde_json::Value| -> Vec<u64> {
        let hex = value.as_array().unwrap().iter();
        hex.map(|word| u64::from_str_radix(word.as_str().unwrap(), 16).unwrap()).collect()
    };
    assert_eq!([words(&value["words"]), words(&value["layers"][0])].concat(), text);
    assert_eq!(value["map"][0], serde_json::json!({"name": "residual", "word": 0, "words": 8}));
}

#[test]
fn a_model_that_is_not_there_is_bad_input() {
    let run = run("nowhere.image");
    assert_eq!(run.code, 2);
    assert!(run.stderr.contains("there is no model nowhere.image"), "{}", run.stderr);
}
