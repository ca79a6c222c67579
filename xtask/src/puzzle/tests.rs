//! Each checker fails on the puzzle as it is and on three typical wrong fixes, each time with a message that fits, and passes on the right ones.

use std::path::Path;
use std::time::Duration;

use rstest::rstest;

use super::check::{LIMIT, Verdict, check};
use super::fixes::{State, states};
use super::*;
use crate::rtl_test::{in_parallel, scratch};

/// These tests hold the puzzles as they are committed.
const EDITED: &str = "where somebody has solved a puzzle, `git checkout labs/puzzles` brings the fault back";

/// Checks the puzzle with `text` as its file, in a copy.
fn checked(puzzle: &Puzzle, text: &str, room: &Path, name: &str, limit: Duration) -> Verdict {
    let (from, to) = (puzzle.folder(&crate::root()), room.join(name));
    fs::create_dir_all(to.join("checks")).unwrap();
    for folder in ["", "checks"] {
        for entry in fs::read_dir(from.join(folder)).unwrap().map(Result::unwrap) {
            if entry.file_type().unwrap().is_file() {
                fs::copy(entry.path(), to.join(folder).join(entry.file_name())).unwrap();
            }
        }
    }
    fs::write(to.join(puzzle.file), text).unwrap();
    check(&crate::root(), puzzle.language, &to, &room.join(name), limit).unwrap()
}

/// The states of a puzzle: as it is, and with at least one right fix and three wrong ones.
fn states_of(puzzle: &Puzzle) -> Vec<State> {
    let states = states(&crate::root(), puzzle).unwrap_or_else(|error| panic!("{error:#}"));
    let right = states.iter().filter(|state| state.says.is_none()).count();
    assert!(
        right >= 1 && states.len() - 1 - right >= 3,
        "{}: a right fix, and three wrong ones",
        puzzle.name
    );
    states
}

#[test]
fn every_checker_tells_right_from_wrong() {
    let room = scratch(&crate::root(), "puzzles-").unwrap();
    let wrong = std::sync::Mutex::new(Vec::new());
    let all = PUZZLES
        .iter()
        .flat_map(|puzzle| states_of(puzzle).into_iter().enumerate().map(move |state| (puzzle, state)));
    in_parallel(all, |(puzzle, (number, State { name, text, says, .. }))| {
        let verdict = checked(puzzle, &text, room.path(), &format!("{}-{number}", puzzle.name), LIMIT);
        let is_right = match &says {
            None => verdict.is_solved,
            Some(says) => !verdict.is_solved && verdict.text.contains(says.as_str()),
        };
        if std::env::var_os("DOORBELL_SHOW").is_some() || !is_right {
            println!("---- {}, {name}:\n{}\n", puzzle.name, verdict.text);
        }
        if !is_right {
            wrong.lock().unwrap().push(format!(
                "{}, {name}: expected {}",
                puzzle.name,
                says.unwrap_or("SOLVED".into())
            ));
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{}\n{EDITED}", wrong.join("\n"));
}

/// A puzzle with a file of its own, or with `edit` of what is there.
fn with(name: &str, edit: impl Fn(String) -> String, limit: Duration) -> Verdict {
    let room = scratch(&crate::root(), "puzzles-").unwrap();
    let puzzle = select(name).unwrap();
    let text = fs::read_to_string(puzzle.folder(&crate::root()).join(puzzle.file)).unwrap();
    checked(puzzle, &edit(text), room.path(), name, limit)
}

#[rstest]
fn a_file_that_does_not_compile_is_told_as_such(
    #[values("missing-release", "late-phase", "full-queue", "scale-ahead")] name: &str,
) {
    let Verdict { is_solved, text } = with(name, |_| "nonsense".into(), LIMIT);
    assert!(!is_solved && text.starts_with("The file does not compile"), "{text}");
    assert!(text.contains("error"), "{text}");
    // Not by way of the folder that has the solution.
    assert!(!text.contains("/../") && !text.contains(crate::root().to_str().unwrap()), "{text}");
}

#[rstest]
#[case::hang("late-phase", "-> bool {", "-> bool {\n        loop {}", "The check did not end within 0.5 s")]
#[case::hang_of_a_simulation(
    "full-queue",
    "  assign slot_o ",
    "  initial forever #0;\n  assign slot_o ",
    "The check did not end within 0.5 s"
)]
#[case::panic(
    "late-phase",
    "-> bool {",
    "-> bool {\n        panic!(\"no\");",
    "The check stopped before it came to a verdict"
)]
#[case::early_end(
    "full-queue",
    "  assign slot_o ",
    "  initial $finish;\n  assign slot_o ",
    "The check stopped before it came to a verdict"
)]
#[case::a_verdict_of_its_own(
    "late-phase",
    "-> bool {",
    "-> bool {\n        println!(\"SOLVED: all of it\");\n        std::process::exit(0);",
    "The check stopped before it came to a verdict"
)]
#[case::a_verdict_of_its_own_in_a_simulation(
    "full-queue",
    "  assign slot_o ",
    "  initial begin\n    $display(\"SOLVED: all of it\");\n    $finish;\n  end\n  assign slot_o ",
    "The check stopped before it came to a verdict"
)]
#[case::crash(
    "scale-ahead",
    "  uint32_t largest = 0;",
    "  __builtin_trap();\n  uint32_t largest = 0;",
    "ended by signal"
)]
fn a_check_that_comes_to_no_end_of_its_own_is_told_as_such(
    #[case] name: &str,
    #[case] find: &str,
    #[case] replace: &str,
    #[case] says: &str,
) {
    let edit = |text: String| {
        assert!(text.contains(find), "{find}");
        text.replacen(find, replace, 1)
    };
    // What ends by itself may take its time on a machine that does something else too.
    let limit = if says.contains("did not end") { Duration::from_millis(500) } else { LIMIT };
    let Verdict { is_solved, text } = with(name, edit, limit);
    assert!(!is_solved && text.contains(says), "{text}");
}

/// `R4`.
fn is_rule(word: &str) -> bool {
    word.strip_prefix('R')
        .is_some_and(|number| !number.is_empty() && number.chars().all(|digit| digit.is_ascii_digit()))
}

#[test]
fn a_hint_and_the_file_of_the_product_are_there_and_every_page_names_its_file() {
    let root = crate::root();
    let list = fs::read_to_string(root.join("docs/labs/puzzles.md")).unwrap();
    for (k, puzzle) in PUZZLES.iter().enumerate() {
        let page = fs::read_to_string(puzzle.folder(&root).join("README.md")).unwrap();
        assert!(page.contains(&format!("`{}`", puzzle.file)), "{}: the file", puzzle.name);
        assert!(
            page.contains(&format!("cargo xtask puzzle {}", puzzle.name)),
            "{}: the command",
            puzzle.name
        );
        assert!(root.join(puzzle.product).is_file(), "{}: {}", puzzle.name, puzzle.product);
        let hint = fs::read_to_string(puzzle.folder(&root).join("hint.md")).unwrap();
        assert!(hint.len() > 50, "{}: a hint", puzzle.name);
        let rules = |text: &str| -> std::collections::BTreeSet<String> {
            let words = text.split(|letter: char| !letter.is_alphanumeric());
            words.filter(|word| is_rule(word)).map(str::to_owned).collect()
        };
        let line =
            list.lines().find(|line| line.contains(&format!("| `{}` |", puzzle.name))).unwrap_or_default();
        assert_eq!(rules(line), rules(&page), "{}: rules of the list and of the page", puzzle.name);
        let row = format!("| {} | `{}` |", k + 1, puzzle.name);
        assert!(list.contains(&row), "docs/labs/puzzles.md has no row '{row}'");
    }
    let folders = fs::read_dir(root.join(ROOM)).unwrap().map(Result::unwrap);
    let folders = folders.filter(|entry| entry.path().is_dir() && entry.file_name() != "harness").count();
    assert_eq!(folders, PUZZLES.len());
}

#[rstest]
#[case("1", "early-doorbell")]
#[case("10", "torn-publish")]
fn puzzles_have_numbers_and_names(#[case] which: &str, #[case] expected: &str) {
    assert_eq!(select(which).unwrap().name, expected);
}

#[rstest]
fn others_are_refused_with_the_list(#[values("0", "11", "", "early", "01")] which: &str) {
    let error = select(which).unwrap_err().to_string();
    assert!(error.contains(&format!("no puzzle '{which}'")) && error.contains("missing-release"), "{error}");
}

#[test]
fn a_puzzle_is_solved_while_its_file_is_as_it_was_checked() {
    let dir = tempfile::tempdir().unwrap();
    let puzzle = &PUZZLES[0];
    let record = dir.path().join("record");
    fs::create_dir_all(puzzle.folder(dir.path())).unwrap();
    let file = puzzle.folder(dir.path()).join(puzzle.file);
    fs::write(&file, "one").unwrap();
    assert!(!puzzle.is_solved(dir.path(), &record));
    fs::write(&record, "one").unwrap();
    assert!(puzzle.is_solved(dir.path(), &record));
    fs::write(&file, "two").unwrap();
    assert!(!puzzle.is_solved(dir.path(), &record));
}
