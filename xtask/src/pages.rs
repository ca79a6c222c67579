//! What holds README and book to the repository and to the way we write: every page is in the summary, every link leads somewhere, every command
//! that is printed is one that there is, and pages that were made plain stay plain.

mod mission;
mod prose;
mod shell;

use std::collections::HashMap;
use std::fs;
use std::path::{Component, Path, PathBuf};

use clap::CommandFactory;
use serde::Deserialize;

/// Words of a sentence, at most.
const LONGEST: usize = 40;
/// Words of a sentence, on average over a page.
const MEAN: usize = 20;

/// Pages whose sentences are short, and that name no date. A page that is made plain is added here, and stays.
const PLAIN: &[&str] = &[
    "CONTRIBUTING.md",
    "README.md",
    "docs/architecture.md",
    "docs/chaos.md",
    "docs/commands.md",
    "docs/contract.md",
    "docs/dependencies.md",
    "docs/driver.md",
    "docs/embedding.md",
    "docs/engine-example.md",
    "docs/engine-measured.md",
    "docs/engine.md",
    "docs/extending.md",
    "docs/gpu-language.md",
    "docs/gpu-queues.md",
    "docs/gpu-sharing.md",
    "docs/gpu.md",
    "docs/grpo.md",
    "docs/guide/change-rtl.md",
    "docs/guide/embed-c.md",
    "docs/guide/from-gb300.md",
    "docs/guide/glossary.md",
    "docs/guide/install.md",
    "docs/guide/own-judge.md",
    "docs/guide/own-model.md",
    "docs/guide/questions.md",
    "docs/guide/rollouts.md",
    "docs/guide/ten-minutes.md",
    "docs/hardware.md",
    "docs/hot-path.md",
    "docs/integration.md",
    "docs/introduction.md",
    "docs/isa.md",
    "docs/kv.md",
    "docs/labs/1-false-sharing.md",
    "docs/labs/2-spsc-ring.md",
    "docs/labs/3-huge-pages.md",
    "docs/labs/4-waiting.md",
    "docs/labs/5-doorbell.md",
    "docs/labs/6-memory-ordering.md",
    "docs/labs/README.md",
    "docs/labs/puzzles.md",
    "docs/life.md",
    "docs/limits.md",
    "docs/measurements.md",
    "docs/metrics.md",
    "docs/mission.md",
    "docs/nic.md",
    "docs/npu.md",
    "docs/one-token.md",
    "docs/policies.md",
    "docs/primitives.md",
    "docs/releases.md",
    "docs/rewards.md",
    "docs/runtime.md",
    "docs/synthesis.md",
    "docs/testing-coverage.md",
    "docs/testing-flaws.md",
    "docs/testing.md",
    "docs/tiny.md",
    "docs/tracing.md",
    "docs/trajectories.md",
    "docs/tuning.md",
    "docs/web.md",
    "labs/puzzles/early-doorbell/README.md",
    "labs/puzzles/early-doorbell/hint.md",
    "labs/puzzles/full-queue/README.md",
    "labs/puzzles/full-queue/hint.md",
    "labs/puzzles/hazard/README.md",
    "labs/puzzles/hazard/hint.md",
    "labs/puzzles/head-of-line/README.md",
    "labs/puzzles/head-of-line/hint.md",
    "labs/puzzles/late-phase/README.md",
    "labs/puzzles/late-phase/hint.md",
    "labs/puzzles/leaked-credit/README.md",
    "labs/puzzles/leaked-credit/hint.md",
    "labs/puzzles/lost-wakeup/README.md",
    "labs/puzzles/lost-wakeup/hint.md",
    "labs/puzzles/missing-release/README.md",
    "labs/puzzles/missing-release/hint.md",
    "labs/puzzles/scale-ahead/README.md",
    "labs/puzzles/scale-ahead/hint.md",
    "labs/puzzles/torn-publish/README.md",
    "labs/puzzles/torn-publish/hint.md",
];

/// Pages and folders that show what was measured, and when.
const RESULTS: &[&str] =
    &["docs/engine-measured.md", "docs/labs/", "docs/measurements.md", "docs/synthesis.md", "docs/tiny.md"];

/// Every page of the repository but those that others wrote, as a path from its root.
fn pages() -> Vec<String> {
    let root = crate::root();
    let mut pages: Vec<String> = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(String::from).into();
    let mut folders = vec![PathBuf::from("docs")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root.join(&folder)).unwrap() {
            let path = folder.join(entry.unwrap().file_name());
            // What mdbook makes.
            if path == Path::new("docs/book") {
                continue;
            }
            if root.join(&path).is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                pages.push(path.to_str().unwrap().to_owned());
            }
        }
    }
    pages.sort();
    pages
}

fn read(page: &str) -> String {
    fs::read_to_string(crate::root().join(page)).unwrap_or_else(|error| panic!("{page}: {error}"))
}

/// Where `link` of `page` leads, as a path from the root: `..` goes up, `.` stays.
fn target(page: &str, link: &str) -> PathBuf {
    let mut out = PathBuf::new();
    for part in Path::new(page).parent().unwrap().join(link).components() {
        match part {
            Component::ParentDir => {
                out.pop();
            }
            Component::CurDir => {}
            part => out.push(part),
        }
    }
    out
}

/// The links of a page that stay in the repository, code left out.
fn links(text: &str) -> Vec<String> {
    let mut out = Vec::new();
    for line in prose::without_code(text) {
        let mut rest = line.as_str();
        while let Some(at) = rest.find("](") {
            rest = &rest[at + 2..];
            let Some(end) = rest.find(')') else { break };
            let link = &rest[..end];
            if !link.contains("://") && !link.starts_with("mailto:") {
                out.push(link.to_owned());
            }
        }
    }
    out
}

/// The anchor that a heading gets.
fn anchor(heading: &str) -> String {
    let lower = heading.to_lowercase();
    let kept = lower.chars().filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
    kept.map(|letter| if letter == ' ' { '-' } else { letter }).collect()
}

/// The anchors of a page: those that it sets itself, and those of its headings. The second heading of the same text gets `-1`, and so on.
fn anchors(text: &str) -> Vec<String> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let mut out = Vec::new();
    for line in text.lines() {
        let set = line.split("<a id=\"").skip(1);
        out.extend(set.filter_map(|rest| Some(rest.split_once("\"></a>")?.0.to_owned())));
        let Some(heading) = line.trim_start_matches('#').strip_prefix(' ').filter(|_| line.starts_with('#'))
        else {
            continue;
        };
        let name = anchor(&prose::plain(heading.trim()).replace('`', ""));
        let count = seen.entry(name.clone()).or_insert(0);
        out.push(if *count == 0 { name } else { format!("{name}-{count}") });
        *count += 1;
    }
    out
}

#[test]
fn every_page_of_the_book_is_in_its_summary() {
    let summary: Vec<PathBuf> =
        links(&read("docs/SUMMARY.md")).iter().map(|link| target("docs/SUMMARY.md", link)).collect();
    for page in pages().iter().filter(|page| page.starts_with("docs/") && *page != "docs/SUMMARY.md") {
        assert!(summary.contains(&PathBuf::from(page)), "docs/SUMMARY.md does not link {page}");
    }
}

#[test]
fn every_link_leads_to_a_file_and_to_a_heading_of_it() {
    let mut wrong = Vec::new();
    for page in pages() {
        for link in links(&read(&page)) {
            let (file, heading) = link.split_once('#').unwrap_or((&link, ""));
            let path = if file.is_empty() { PathBuf::from(&page) } else { target(&page, file) };
            if !crate::root().join(&path).exists() {
                wrong.push(format!("{page}: {link}: there is no such file"));
            } else if !heading.is_empty()
                && !anchors(&read(path.to_str().unwrap())).contains(&heading.to_owned())
            {
                wrong.push(format!("{page}: {link}: there is no such heading"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_rule_has_a_row_with_its_title_and_an_anchor() {
    let page = read("docs/contract.md");
    let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| [R")).collect();
    assert_eq!(rows.len(), 28);
    for (number, row) in (1..).zip(rows) {
        let title = row.split(" | ").nth(1).unwrap();
        assert!(row.starts_with(&format!("| [R{number}](#r{number}) |")), "{row}");
        assert!(page.contains(&format!("\n- <a id=\"r{number}\"></a>**R{number} {title}.**")), "{row}");
    }
}

#[test]
fn every_command_of_the_guide_is_one_of_xtask() {
    let guide =
        |page: &String| page == "README.md" || page == "CONTRIBUTING.md" || page.starts_with("docs/guide/");
    let mut count = 0;
    for page in pages().into_iter().filter(guide) {
        for words in shell::commands(&read(&page), &["cargo", "xtask"]) {
            let parsed =
                crate::Cli::command().try_get_matches_from(["xtask".to_owned()].iter().chain(&words));
            if let Err(error) = parsed {
                panic!("{page}: cargo xtask {}: {error}", words.join(" "));
            }
            count += 1;
        }
    }
    assert!(count > 5, "only {count} commands were found");
}

#[test]
fn questions_have_answers_with_a_page() {
    let text = read("docs/guide/questions.md");
    let questions: Vec<&str> = text.lines().filter(|line| line.starts_with("- **")).collect();
    assert!(questions.len() >= 20, "{} questions", questions.len());
    for question in questions {
        assert!(question.contains("?** ") && links(question).len() == 1, "{question}");
    }
}

/// A question that the book must answer, and where.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Question {
    ask: String,
    /// Under `docs/`.
    page: String,
    /// Its text, without stars and backticks.
    heading: String,
    /// Words that the section must have.
    answers: Vec<String>,
}

/// The file that lists them.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Questions {
    question: Vec<Question>,
}

/// The text from a heading to the next one, in one line; `None` if the page has no such heading.
fn section(text: &str, heading: &str) -> Option<String> {
    let title = |line: &str| {
        let name = line.trim_start_matches('#').strip_prefix(' ').filter(|_| line.starts_with('#'))?;
        Some(prose::plain(name.trim()).replace('`', ""))
    };
    let mut lines = text.lines().skip_while(|line| title(line).as_deref() != Some(heading));
    lines.next()?;
    let words: Vec<&str> =
        lines.take_while(|line| title(line).is_none()).flat_map(str::split_whitespace).collect();
    Some(words.join(" "))
}

#[test]
fn the_book_answers_what_engineers_ask() {
    let questions: Questions = toml::from_str(&read("docs/questions.toml")).unwrap();
    assert!(questions.question.len() >= 20, "{} questions", questions.question.len());
    let mut wrong = Vec::new();
    for Question { ask, page, heading, answers } in &questions.question {
        assert!(ask.ends_with('?') && !answers.is_empty(), "{ask}");
        let Some(text) = section(&read(&format!("docs/{page}")), heading) else {
            wrong.push(format!("{ask} docs/{page} has no heading '{heading}'"));
            continue;
        };
        let text = text.to_lowercase();
        let missing = answers.iter().filter(|answer| !text.contains(&answer.to_lowercase()));
        wrong.extend(missing.map(|answer| format!("{ask} docs/{page}, '{heading}', lacks '{answer}'")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_section_ends_at_the_next_heading() {
    let text = "# One\na b\n  c\n## `Two` and [three](x.md)\nd\n### Four\ne\n";
    assert_eq!(section(text, "One").unwrap(), "a b c");
    assert_eq!(section(text, "Two and three").unwrap(), "d");
    assert_eq!(section(text, "Four").unwrap(), "e");
    assert_eq!(section(text, "Five"), None);
}

#[test]
fn every_subcommand_that_a_page_names_is_there() {
    let cli = crate::Cli::command();
    for page in pages().iter().filter(|page| *page != "CHANGELOG.md" && !page.starts_with("docs/notebook/")) {
        let text = read(page);
        for behind in text.split("cargo xtask ").skip(1) {
            let name: String =
                behind.chars().take_while(|letter| letter.is_ascii_lowercase() || *letter == '-').collect();
            assert!(
                name.is_empty() || cli.find_subcommand(&name).is_some(),
                "{page}: cargo xtask {name}: there is none"
            );
        }
    }
}

#[test]
fn plain_pages_stay_plain() {
    let mut wrong = Vec::new();
    for page in PLAIN {
        let text = read(page);
        let sentences = prose::sentences(&text);
        for sentence in sentences.iter().filter(|sentence| sentence.words > LONGEST) {
            wrong.push(format!("{page}: {} words: {}", sentence.words, sentence.text));
        }
        let running: Vec<usize> =
            sentences.iter().filter(|sentence| !sentence.is_cell).map(|sentence| sentence.words).collect();
        let words: usize = running.iter().sum();
        if words > MEAN * running.len() {
            wrong.push(format!("{page}: {words} words in {} sentences: {MEAN} are the mean", running.len()));
        }
        if !RESULTS.iter().any(|results| page.starts_with(results)) {
            let dates = prose::dates(&text);
            wrong.extend(dates.iter().map(|date| format!("{page}: {date}: dates are for the notebook")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn anchors_are_those_that_readers_click() {
    let text = "# One\n## `make` and *all*\n## A queue pair's end, [linked](x.md)\n## One\n- <a id=\"r1\"></a>text\n";
    assert_eq!(anchors(text), ["one", "make-and-all", "a-queue-pairs-end-linked", "one-1", "r1"]);
    assert_eq!(target("docs/labs/README.md", "../life.md"), Path::new("docs/life.md"));
    assert_eq!(links("[a](b.md#c) `[d](e.md)` [f](https://g) [h](#i)\n\n    [j](k.md)\n"), ["b.md#c", "#i"]);
}
