//! `cargo xtask puzzle`: the puzzles of `labs/puzzles`. Each is a small file with one fault, and a checker that shows what the fault does.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use doorbell_setup as setup;

pub mod check;
pub mod fixes;
#[cfg(test)]
mod tests;

use check::{Language, Verdict};

/// Where the puzzles lie, relative to the repository.
pub const ROOM: &str = "labs/puzzles";

/// One puzzle; its folder in [`ROOM`] has its name.
#[derive(Debug)]
pub struct Puzzle {
    pub name: &'static str,
    /// The file to edit, in the folder.
    pub file: &'static str,
    pub language: Language,
    /// The fault, as the title of the page says it.
    pub what: &'static str,
    /// The file of the product that is nearest to it.
    pub product: &'static str,
}

/// Each puzzle; its number is its place, from 1.
const PUZZLES: &[Puzzle] = &[
    Puzzle {
        name: "early-doorbell",
        file: "submission.rs",
        language: Language::Loom,
        what: "a doorbell before its slot",
        product: "host/src/driver.rs",
    },
    Puzzle {
        name: "missing-release",
        file: "ring.rs",
        language: Language::Loom,
        what: "a release that is missing",
        product: "gpu/kernels/front_end/completion_queue.cuh",
    },
    Puzzle {
        name: "full-queue",
        file: "completion_slots.sv",
        language: Language::Verilog,
        what: "a full completion queue that overwrites",
        product: "rtl/completion_ring.sv",
    },
    Puzzle {
        name: "late-phase",
        file: "completion_queue.rs",
        language: Language::Rust,
        what: "a phase bit one lap late",
        product: "host/src/queue.rs",
    },
    Puzzle {
        name: "head-of-line",
        file: "picker.sv",
        language: Language::Verilog,
        what: "one full queue that blocks the others",
        product: "rtl/dispatcher.sv",
    },
    Puzzle {
        name: "lost-wakeup",
        file: "vector.rs",
        language: Language::Rust,
        what: "a host that sleeps for ever",
        product: "host/src/registers/interrupt.rs",
    },
    Puzzle {
        name: "leaked-credit",
        file: "line_credits.sv",
        language: Language::Verilog,
        what: "a credit that a STOP leaks",
        product: "rtl/place_quota.sv",
    },
    Puzzle {
        name: "hazard",
        file: "hazards.sv",
        language: Language::Verilog,
        what: "a hazard that the scoreboard does not see",
        product: "rtl/npu/npu_scoreboard.sv",
    },
    Puzzle {
        name: "scale-ahead",
        file: "store.cuh",
        language: Language::Cuda,
        what: "a scale that looks ahead",
        product: "gpu/kernels/language_attention.cuh",
    },
    Puzzle {
        name: "torn-publish",
        file: "publish.cuh",
        language: Language::Cuda,
        what: "a publish that tears",
        product: "gpu/kernels/front_end/versions.cuh",
    },
];

impl Puzzle {
    /// Where its files lie.
    pub fn folder(&self, root: &Path) -> PathBuf {
        root.join(ROOM).join(self.name)
    }

    /// The text that was in the file when it was last found right.
    fn record(&self, root: &Path) -> PathBuf {
        setup::target(root).join("puzzles").join(format!("{}.solved", self.name))
    }

    /// Whether the file is as it was when its check passed, and `record` was written.
    fn is_solved(&self, root: &Path, record: &Path) -> bool {
        let file = fs::read(self.folder(root).join(self.file));
        matches!((file, fs::read(record)), (Ok(now), Ok(then)) if now == then)
    }

    fn shown(&self) -> String {
        format!("{ROOM}/{}/{}", self.name, self.file)
    }
}

/// Which puzzle, and what of it.
#[derive(clap::Args)]
pub struct Options {
    /// Number or name of a puzzle
    which: Option<String>,
    /// Print its hint and check nothing
    #[arg(long, requires = "which")]
    hint: bool,
}

/// Lists the puzzles, prints a hint, or checks what somebody made of a puzzle.
///
/// # Errors
/// When there is no such puzzle, or its checker cannot be built or run.
pub fn run(root: &Path, options: &Options) -> Result<ExitCode> {
    let Some(which) = &options.which else {
        print!("{}", list(root));
        return Ok(ExitCode::SUCCESS);
    };
    let puzzle = select(which)?;
    if options.hint {
        let path = puzzle.folder(root).join("hint.md");
        print!("{}", fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?);
        return Ok(ExitCode::SUCCESS);
    }
    let room = room(root)?;
    // The text before the check: whoever saves while it runs has another one.
    let path = puzzle.folder(root).join(puzzle.file);
    let text = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let Verdict { is_solved, text: told } =
        check::check(root, puzzle.language, &puzzle.folder(root), &room.join(puzzle.name), check::LIMIT)?;
    println!("{}\n", told.trim_end());
    if is_solved {
        let record = puzzle.record(root);
        fs::write(&record, text).with_context(|| format!("cannot write {}", record.display()))?;
        println!("{} is solved. Its counterpart in the product: {}", puzzle.name, puzzle.product);
        return Ok(ExitCode::SUCCESS);
    }
    println!("Edit {} and check again. A hint: cargo xtask puzzle {} --hint", puzzle.shown(), puzzle.name);
    Ok(ExitCode::FAILURE)
}

/// Where what is compiled and recorded goes.
fn room(root: &Path) -> Result<PathBuf> {
    let room = setup::target(root).join("puzzles");
    fs::create_dir_all(&room).with_context(|| format!("cannot create {}", room.display()))?;
    Ok(room)
}

fn list(root: &Path) -> String {
    let line = |(k, puzzle): (usize, &Puzzle)| {
        let state = if puzzle.is_solved(root, &puzzle.record(root)) { "solved" } else { "open" };
        format!("{:>2} {:<16} {state:<7} {:<8} {}\n", k + 1, puzzle.name, puzzle.language.name(), puzzle.what)
    };
    let lines: String = PUZZLES.iter().enumerate().map(line).collect();
    format!(
        "{lines}\nRead {ROOM}/NAME/README.md, edit the file that it names, check it by cargo xtask puzzle NAME.\n"
    )
}

/// The puzzle of this name or number.
///
/// # Errors
/// If there is none.
pub fn select(which: &str) -> Result<&'static Puzzle> {
    let is_named = |(k, puzzle): &(usize, &Puzzle)| which == puzzle.name || which == (k + 1).to_string();
    match PUZZLES.iter().enumerate().find(is_named) {
        Some((_, puzzle)) => Ok(puzzle),
        None => {
            let names: Vec<&str> = PUZZLES.iter().map(|puzzle| puzzle.name).collect();
            bail!("there is no puzzle '{which}'; there are {}", names.join(", "))
        }
    }
}
