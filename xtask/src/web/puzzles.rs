//! Puzzles of `labs/puzzles` for the tab: of each one a module with its checker, verilated around the file in every state that can be chosen,
//! and the texts that the page shows.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use pulldown_cmark::{Event, Parser, Tag, TagEnd, html};
use serde_json::{Value, json};

use super::DEBIANS_NODE;
use crate::lint::verilator;
use crate::puzzle::check::{self, Verdict};
use crate::puzzle::fixes::{State, states};
use crate::puzzle::{Puzzle, ROOM, select};
use crate::rtl_test::scratch;
use doorbell_setup::{self as setup, shell};

/// Those of the tab: each has its counterpart in the RTL that the tab simulates.
const CHOSEN: [&str; 3] = ["full-queue", "leaked-credit", "hazard"];
/// Sections of a puzzle's page that the tab shows.
const SECTIONS: [&str; 4] = ["The situation", "What it should do", "What was seen", "What the check shows"];
/// How the module is compiled: C++ unwinds as on the page of the device.
const FLAGS: [&str; 6] = [
    "-std=c++20",
    "-Os",
    "-fwasm-exceptions",
    "-DVL_IGNORE_UNKNOWN_ARCH",
    "-DVM_TRACE=0",
    // web/puzzles/main.cpp has it.
    "-DVL_USER_FINISH",
];

/// Builds the modules and texts into `page`, the folder of the puzzles' page.
///
/// # Errors
/// If a puzzle was edited, or does not compile.
pub fn build(root: &Path, page: &Path) -> Result<()> {
    let room = setup::target(root).join("web-puzzles");
    let runtime = Runtime::new(&room)?;
    let mut list = vec![];
    for name in CHOSEN {
        let puzzle = select(name)?;
        let states = of_the_tab(root, puzzle)?;
        let place = room.join(name);
        compile(root, puzzle, &states, &place, &runtime)?;
        for file in ["js", "wasm"].map(|extension| format!("{name}.{extension}")) {
            fs::copy(place.join(&file), page.join(&file)).with_context(|| format!("cannot copy {file}"))?;
        }
        write(&page.join(format!("{name}.json")), &texts(root, puzzle, &states)?.to_string())?;
        list.push(json!({ "name": name, "what": puzzle.what }));
    }
    write(&page.join("puzzles.json"), &Value::from(list).to_string())
}

/// What the browsers must show: of each puzzle its states, with what `cargo xtask puzzle` says of each on this machine.
///
/// # Errors
/// If a check cannot be run.
pub fn expected(root: &Path) -> Result<Value> {
    let room = scratch(root, "web-puzzles-")?;
    let of_puzzle = |name| {
        let puzzle = select(name)?;
        let folder = room.path().join(name);
        fs::create_dir_all(folder.join("checks"))?;
        fs::copy(puzzle.folder(root).join("checks/bench.sv"), folder.join("checks/bench.sv"))?;
        let of_state = |state: State| {
            fs::write(folder.join(puzzle.file), &state.text)?;
            let Verdict { is_solved, text } =
                check::check(root, puzzle.language, &folder, &folder.join("out"), check::LIMIT)?;
            ensure!(is_solved == state.says.is_none(), "{name}, {}: {text}", state.name);
            // The tab has no file for a waveform.
            let text = text.split("\n\nThe waveform:").next().unwrap_or_default().trim_end();
            Ok(json!({ "name": state.name, "says": state.says, "text": text, "file": state.text }))
        };
        let states: Result<Vec<Value>> = of_the_tab(root, puzzle)?.into_iter().map(of_state).collect();
        let hint = read(&puzzle.folder(root).join("hint.md"))?;
        Ok(json!({ "name": name, "states": states?, "hint": hint, "product": puzzle.product }))
    };
    CHOSEN.into_iter().map(of_puzzle).collect()
}

/// The states that the tab has. Verilator knows 0 and 1 only, so it cannot show what is wrong with a register that has no value.
fn of_the_tab(root: &Path, puzzle: &Puzzle) -> Result<Vec<State>> {
    let mut states = states(root, puzzle)?;
    states.retain(|state| !state.says.as_ref().is_some_and(|says| says.contains("is unknown")));
    // Right and wrong ones mixed; the file as it is stays first.
    states[1..].sort_by(|one, other| one.name.cmp(&other.name));
    Ok(states)
}

/// Verilator's own part of every module, compiled once.
struct Runtime {
    include: PathBuf,
    objects: Vec<PathBuf>,
}

impl Runtime {
    fn new(room: &Path) -> Result<Self> {
        let output = verilator().args(["--getenv", "VERILATOR_ROOT"]).output();
        let output = output.context("cannot run Verilator: `cargo xtask setup` installs it")?;
        let include = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()).join("include");
        let place = room.join("runtime");
        let files = ["verilated", "verilated_threads", "verilated_timing"];
        let objects = files.map(|file| place.join(file).with_extension("o"));
        let sources = files.map(|file| include.join(file).with_extension("cpp"));
        let inputs = FLAGS.concat() + &sources.iter().map(|file| read(file)).collect::<Result<String>>()?;
        once(&place, &inputs, || {
            for (source, object) in sources.iter().zip(&objects) {
                shell::run(emscripten(&include).arg("-c").arg(source).arg("-o").arg(object))?;
            }
            Ok(())
        })?;
        Ok(Self { include, objects: objects.into() })
    }
}

/// Compiles the checker around all states into `place`.
fn compile(root: &Path, puzzle: &Puzzle, states: &[State], place: &Path, runtime: &Runtime) -> Result<()> {
    let sv = root.join(ROOM).join("harness/sv/puzzle_pkg.sv");
    let bench = puzzle.folder(root).join("checks/bench.sv");
    let main = root.join("web/puzzles/main.cpp");
    let device = switched(states).with_context(|| format!("{}: {}", puzzle.name, puzzle.file))?;
    let version = read(&runtime.include.join("verilated_config.h"))?;
    let inputs = [read(&sv)?, read(&bench)?, read(&main)?, device.clone(), version, FLAGS.concat()].concat();
    once(place, &inputs, || {
        let file = place.join("states.sv");
        write(&file, &device)?;
        let mut verilate = verilator();
        verilate.args([
            "--cc",
            "--timing",
            "--top-module",
            "bench",
            "--prefix",
            "Vbench",
            "-O3",
            "-Wno-fatal",
            "-Wno-lint",
        ]);
        // A bench is text above all: unrolled loops would make seven times as much of it.
        verilate.args(["--unroll-count", "1", "--Mdir"]).arg(place).arg(&sv).arg(&file).arg(&bench);
        shell::run(&mut verilate)?;
        let mut compile = emscripten(&runtime.include);
        compile.arg("-I").arg(place).arg(&main);
        for entry in fs::read_dir(place)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "cpp") {
                compile.arg(path);
            }
        }
        compile.args(&runtime.objects).args([
            "-sMODULARIZE=1",
            "-sEXPORT_NAME=puzzle",
            "-sENVIRONMENT=worker",
            "-o",
        ]);
        shell::run(compile.arg(place.join(puzzle.name).with_extension("js")))
    })
}

/// A module with the ports and parameters of the file, in which the file is in every state at once, and `+state=N` says whose outputs count.
fn switched(states: &[State]) -> Result<String> {
    let broken = &states[0].text;
    let begin = broken.find("\nmodule ").context("there is no module")? + 1;
    let head = &broken[begin..];
    let head = &head[..head.find("\n);\n").context("the list of ports does not end")? + 4];
    let name = head["module ".len()..].split_whitespace().next().unwrap_or_default();
    let declared = |what: &'static str| {
        head.lines().map(str::trim_start).filter_map(move |line| line.strip_prefix(what))
    };
    let named = |text: &str, end: &[char]| {
        let text = text.split(end).next().unwrap_or_default();
        text.split_whitespace().last().unwrap_or_default().to_owned()
    };
    let parameters: Vec<String> = declared("parameter").map(|text| named(text, &['='])).collect();
    // Type and name of each output.
    let outputs: Vec<(String, String)> = declared("output")
        .map(|text| {
            let text = text.split([',', '/']).next().unwrap_or_default().trim();
            let name = named(text, &[]);
            (text.strip_suffix(&name).unwrap_or_default().trim().to_owned(), name)
        })
        .collect();
    ensure!(!outputs.is_empty(), "there is no output");
    let passed: Vec<String> = parameters.iter().map(|name| format!(".{name}({name})")).collect();
    let mut all = String::new();
    let mut body =
        "  int state;\n  initial if (!$value$plusargs(\"state=%d\", state)) state = 0;\n".to_owned();
    let mut chosen = "  always_comb\n    case (state)\n".to_owned();
    for (number, state) in states.iter().enumerate() {
        let own = format!("{name}_{number}");
        ensure!(
            state.text.matches(&format!("\nmodule {name} ")).count() == 1,
            "{}: there is no module {name}",
            state.name
        );
        all += &state.text.replacen(&format!("\nmodule {name} "), &format!("\nmodule {own} "), 1);
        for (kind, output) in &outputs {
            body += &format!("  {kind} {output}_{number};\n");
        }
        let ports: String =
            outputs.iter().map(|(_, output)| format!(", .{output}({output}_{number})")).collect();
        body += &format!("  {own} #({}) u_{number} (.*{ports});\n", passed.join(", "));
        let label = if number == 0 { "default".to_owned() } else { number.to_string() };
        let assigned: String =
            outputs.iter().map(|(_, output)| format!(" {output} = {output}_{number};")).collect();
        chosen += &format!("      {label}: begin{assigned} end\n");
    }
    Ok(format!("{all}\n{head}{body}{chosen}    endcase\nendmodule\n"))
}

/// What the page shows of a puzzle.
fn texts(root: &Path, puzzle: &Puzzle, states: &[State]) -> Result<Value> {
    let folder = puzzle.folder(root);
    let page = read(&folder.join("README.md"))?;
    let title = page.lines().next().unwrap_or_default().trim_start_matches("# ");
    let sections = SECTIONS.map(|name| {
        let text = page.split("\n## ").find_map(|section| section.strip_prefix(name)?.strip_prefix('\n'));
        let text = text.with_context(|| format!("{}: README.md has no section '{name}'", puzzle.name))?;
        Ok(json!({ "name": name, "html": in_html(text) }))
    });
    let sections = sections.into_iter().collect::<Result<Vec<Value>>>()?;
    let parts =
        |state: &State| Ok(json!({ "name": state.name, "parts": difference(&states[0].text, &state.edits) }));
    Ok(json!({
        "name": puzzle.name, "title": title, "file": puzzle.file, "sections": sections,
        "hint": in_html(&read(&folder.join("hint.md"))?), "product": puzzle.product,
        "states": states.iter().map(parts).collect::<Result<Vec<Value>>>()?,
    }))
}

/// Markdown as HTML. Links lead to pages of the repository, which are not beside this one: of those the text stays.
fn in_html(text: &str) -> String {
    let events = Parser::new(text)
        .filter(|event| !matches!(event, Event::Start(Tag::Link { .. }) | Event::End(TagEnd::Link)));
    let mut out = String::new();
    html::push_html(&mut out, events);
    out
}

/// The changed file in parts, in its order: what stays, what goes and what is new.
fn difference(text: &str, edits: &[[String; 2]]) -> Vec<(&'static str, String)> {
    let mut places: Vec<(usize, &str, &str)> = edits
        .iter()
        .filter_map(|[find, replace]| Some((text.find(find)?, find.as_str(), replace.as_str())))
        .collect();
    places.sort_unstable();
    let (mut parts, mut from) = (vec![], 0);
    for (at, find, replace) in places {
        // What both begin and end with has not changed.
        let equal = |pair: &(char, char)| pair.0 == pair.1;
        let front: usize =
            find.chars().zip(replace.chars()).take_while(equal).map(|(letter, _)| letter.len_utf8()).sum();
        let (gone, new) = (&find[front..], &replace[front..]);
        let back: usize = gone
            .chars()
            .rev()
            .zip(new.chars().rev())
            .take_while(equal)
            .map(|(letter, _)| letter.len_utf8())
            .sum();
        let (gone, new) = (&gone[..gone.len() - back], &new[..new.len() - back]);
        parts.push(("same", text[from..at + front].to_owned()));
        parts.push(("gone", gone.to_owned()));
        parts.push(("new", new.to_owned()));
        from = at + front + gone.len();
    }
    parts.push(("same", text[from..].to_owned()));
    parts.retain(|(_, part)| !part.is_empty());
    parts
}

/// The compiler of C++ for a browser.
fn emscripten(include: &Path) -> Command {
    let mut command = Command::new("em++");
    command.args(FLAGS).arg("-w").arg("-I").arg(include).arg("-I").arg(include.join("vltstd"));
    if env::var_os("NODE_PATH").is_none() && Path::new(DEBIANS_NODE).is_dir() {
        command.env("NODE_PATH", DEBIANS_NODE);
    }
    command
}

/// Does `work` in the empty folder `place`, unless it was done there with the same inputs.
fn once(place: &Path, inputs: &str, work: impl FnOnce() -> Result<()>) -> Result<()> {
    let record = place.join("inputs");
    if fs::read_to_string(&record).is_ok_and(|done| done == inputs) {
        return Ok(());
    }
    let _ = fs::remove_dir_all(place);
    fs::create_dir_all(place).with_context(|| format!("cannot create {}", place.display()))?;
    work()?;
    write(&record, inputs)
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen() -> impl Iterator<Item = (&'static Puzzle, Vec<State>)> {
        CHOSEN.into_iter().map(|name| {
            let puzzle = select(name).unwrap();
            (puzzle, of_the_tab(&crate::root(), puzzle).unwrap())
        })
    }

    #[test]
    fn what_is_marked_is_what_was_changed() {
        for (puzzle, states) in chosen() {
            for state in &states {
                let parts = difference(&states[0].text, &state.edits);
                let without = |kind: &str| -> String {
                    parts.iter().filter(|(of, _)| *of != kind).map(|(_, text)| text.as_str()).collect()
                };
                assert_eq!(without("gone"), state.text, "{}, {}", puzzle.name, state.name);
                assert_eq!(without("new"), states[0].text, "{}, {}", puzzle.name, state.name);
            }
        }
    }

    #[test]
    fn each_puzzle_can_be_solved_and_missed() {
        for (puzzle, states) in chosen() {
            let right = states.iter().filter(|state| state.says.is_none()).count();
            assert!(right >= 1 && states.len() - right >= 4, "{}: {right} of {}", puzzle.name, states.len());
            let texts = texts(&crate::root(), puzzle, &states).unwrap();
            // Nothing tells the right ones but the check.
            assert!(
                texts["states"].as_array().unwrap().iter().all(|state| state.as_object().unwrap().len() == 2)
            );
            assert!(!texts.to_string().contains("](") && !texts.to_string().contains("href"), "{texts}");
        }
    }

    /// The module with all states, under the simulator that natively checks each of them alone.
    #[test]
    fn the_module_with_all_states_is_each_of_them() {
        let root = crate::root();
        for (puzzle, states) in chosen() {
            let room = scratch(&root, "web-puzzles-").unwrap();
            let (file, program) = (room.path().join("states.sv"), room.path().join("program"));
            fs::write(&file, switched(&states).unwrap()).unwrap();
            let mut compile = Command::new("iverilog");
            compile.args(["-g2012", "-s", "bench", "-o"]).arg(&program);
            compile.arg(root.join(ROOM).join("harness/sv/puzzle_pkg.sv")).arg(&file);
            let compiled = compile.arg(puzzle.folder(&root).join("checks/bench.sv")).output().unwrap();
            assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
            for (number, state) in states.iter().enumerate() {
                let output =
                    Command::new("vvp").arg("-n").arg(&program).arg(format!("+state={number}")).output();
                let said = String::from_utf8(output.unwrap().stdout).unwrap();
                let expected = state.says.as_deref().unwrap_or("SOLVED:");
                assert!(
                    said.contains(expected),
                    "{}, {}: expected {expected}\n{said}",
                    puzzle.name,
                    state.name
                );
            }
        }
    }

    #[test]
    fn a_file_without_a_module_is_refused() {
        let state = State { name: "broken".into(), text: "// nothing\n".into(), edits: vec![], says: None };
        let error = switched(&[state]).unwrap_err().to_string();
        assert!(error.contains("no module"), "{error}");
    }
}
