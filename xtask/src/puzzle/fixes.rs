//! What `checks/fixes.toml` of a puzzle has: right and wrong fixes, as changes of its file.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

use super::Puzzle;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fixes {
    /// A part of what the check says of the puzzle as it is.
    broken: String,
    right: Vec<Fix>,
    wrong: Vec<Fix>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fix {
    /// What it does, in words.
    name: String,
    /// Pairs of a text that occurs once in the file, and what stands there instead.
    edits: Vec<[String; 2]>,
    /// For a wrong one: a part of what the check says of it.
    says: Option<String>,
}

/// The file of a puzzle in one of the states that its check must tell apart.
pub struct State {
    /// What was done to it, in words; `broken` as it is.
    pub name: String,
    /// The file.
    pub text: String,
    /// What was changed: a text that occurs once in the file as it is, and what stands there instead.
    pub edits: Vec<[String; 2]>,
    /// A part of what the check says; `None` if it is right.
    pub says: Option<String>,
}

/// The puzzle as it is, and then with each fix.
///
/// # Errors
/// If a file cannot be read, or a fix does not fit.
pub fn states(root: &Path, puzzle: &Puzzle) -> Result<Vec<State>> {
    let folder = puzzle.folder(root);
    let read = |name: &str| {
        let path = folder.join(name);
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    };
    let broken = read(puzzle.file)?;
    let fixes: Fixes = toml::from_str(&read("checks/fixes.toml")?)
        .with_context(|| format!("{}: checks/fixes.toml", puzzle.name))?;
    let as_it_is =
        State { name: "broken".into(), text: broken.clone(), edits: vec![], says: Some(fixes.broken) };
    let mut states = vec![as_it_is];
    for (is_right, fix) in fixes
        .right
        .into_iter()
        .map(|right| (true, right))
        .chain(fixes.wrong.into_iter().map(|wrong| (false, wrong)))
    {
        let Fix { name, edits, says } = fix;
        ensure!(
            is_right == says.is_none(),
            "{}, {name}: of a wrong fix, and only of one, `says` is given",
            puzzle.name
        );
        let mut text = broken.clone();
        for [find, replace] in &edits {
            ensure!(
                text.matches(find).count() == 1,
                "{}, {name}: '{find}' must occur once; where somebody has solved a puzzle, `git checkout labs/puzzles` brings the fault back",
                puzzle.name
            );
            text = text.replacen(find, replace, 1);
        }
        states.push(State { name, text, edits, says });
    }
    Ok(states)
}
