//! README and guide, run: the commands of `doorbell` that they print end as they should, and print what the pages say.
#![cfg(feature = "full")]

#[path = "../../xtask/src/pages/shell.rs"]
mod shell;

use std::fs;
use std::path::Path;
use std::process::Command;

use assert_cmd::cargo::CommandCargoExt;
use rstest::rstest;

/// What is in a line that another run prints otherwise: rates, and how the writer's batches fell.
const VARIES: [&str; 3] = ["…", " a second", " writes"];

/// A call of the program, and what the page says that it prints.
struct Call {
    line: String,
    words: Vec<String>,
    lines: Vec<String>,
}

/// The calls of a page that stand behind a prompt.
fn calls(page: &str) -> Vec<Call> {
    let mut out: Vec<Call> = Vec::new();
    // Whether the lines at hand are what the last call prints.
    let mut prints = false;
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        let Some(code) = line.strip_prefix("    ") else {
            prints &= line.trim().is_empty();
            continue;
        };
        if !code.starts_with("$ ") {
            if let Some(call) = out.last_mut().filter(|_| prints) {
                call.lines.push(code.trim().to_owned());
            }
            continue;
        }
        let mut whole = line.to_owned();
        while whole.ends_with('\\') {
            whole.push('\n');
            whole.push_str(lines.next().unwrap_or_default());
        }
        // `cargo xtask cosim` builds the program with one device, and hands it all that it is given.
        let words =
            shell::commands(&whole.replace("cargo xtask cosim", "doorbell cosim"), &["doorbell"]).pop();
        prints = words.is_some();
        out.extend(words.map(|words| Call { line: whole, words, lines: Vec::new() }));
    }
    out
}

/// The words of a text with one blank between them.
fn even(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The first two cells of each row of the tables in a text.
fn rows(text: &str) -> Vec<Vec<String>> {
    let is_row = |line: &&str| line.starts_with('|') && !line.starts_with("|-");
    let cells = |line: &str| line.trim_matches('|').split('|').take(2).map(even).collect();
    text.lines().filter(is_row).map(cells).collect()
}

#[rstest]
#[case::readme("README.md", 8)]
#[case::ten_minutes("docs/guide/ten-minutes.md", 7)]
#[case::change_rtl("docs/guide/change-rtl.md", 1)]
#[case::rollouts("docs/guide/rollouts.md", 4)]
fn a_page_prints_what_the_program_prints(#[case] page: &str, #[case] at_least: usize) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let directory = tempfile::tempdir().unwrap();
    for file in ["prompts.jsonl", "rules.toml"] {
        fs::copy(root.join("docs/guide/rollouts").join(file), directory.path().join(file)).unwrap();
    }
    let mut count = 0;
    for call in calls(&fs::read_to_string(root.join(page)).unwrap()) {
        // A GPU is not everywhere.
        if call.words.iter().any(|word| word.split(',').any(|name| name == "gpu")) {
            continue;
        }
        // The pages show what a machine without a GPU prints.
        let devices: &[&str] = if call.words[0] == "demo" { &["--devices", "model,rtl"] } else { &[] };
        let output = Command::cargo_bin("doorbell")
            .expect("the program is built")
            .args(&call.words)
            .args(devices)
            .current_dir(directory.path())
            .output()
            .expect("the program starts");
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        let expected = i32::from(call.words.iter().any(|word| word == "--inject"));
        assert_eq!(output.status.code(), Some(expected), "{page}: {}\n{text}", call.line);
        count += 1;
        // What another program makes of it is not looked at.
        if call.line.contains(" | ") {
            continue;
        }
        let (evened, rows) = (even(&text), rows(&text));
        for line in call.lines.iter().filter(|line| VARIES.iter().all(|what| !line.contains(what))) {
            let is_there = match self::rows(line).pop() {
                Some(row) => rows.contains(&row),
                None => evened.contains(&even(line)),
            };
            assert!(is_there, "{page}: {}\nshould print: {line}\nbut prints:\n{text}", call.line);
        }
    }
    assert!(count >= at_least, "{page}: only {count} commands were run");
}
