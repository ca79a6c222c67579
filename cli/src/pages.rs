//! Every command of `doorbell` that README and guide print is one that the program takes.

#[path = "../../xtask/src/pages/shell.rs"]
pub mod shell;

use std::fs;
use std::path::{Path, PathBuf};

/// README and the pages of the guide.
fn guide() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut pages = vec![root.join("README.md"), root.join("docs/runtime.md"), root.join("docs/rewards.md")];
    for entry in fs::read_dir(root.join("docs/guide")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "md") {
            pages.push(path);
        }
    }
    pages
}

#[test]
fn every_command_of_the_guide_is_one_of_the_program() {
    let mut count = 0;
    for page in guide() {
        let text = fs::read_to_string(&page).unwrap();
        for words in shell::commands(&text, &["doorbell"]) {
            // An outline, and no command.
            if words.iter().any(|word| word.contains('[') || word == "…") {
                continue;
            }
            let command = crate::command_line();
            if let Err(error) = command.try_get_matches_from(["doorbell".to_owned()].iter().chain(&words)) {
                panic!("{}: doorbell {}: {error}", page.display(), words.join(" "));
            }
            count += 1;
        }
    }
    assert!(count > 20, "only {count} commands were found");
}

#[test]
fn every_command_of_the_mission_is_one_of_the_program() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let text = fs::read_to_string(root.join("docs/mission.md")).unwrap();
    let mut count = 0;
    for code in text.split('`').skip(1).step_by(2) {
        for words in shell::commands(&format!("    {code}\n"), &["doorbell"]) {
            let command = crate::command_line();
            if let Err(error) = command.try_get_matches_from(["doorbell".to_owned()].iter().chain(&words)) {
                panic!("docs/mission.md: {code}: {error}");
            }
            count += 1;
        }
    }
    assert!(count > 10, "only {count} commands were found");
}
