//! `cargo xtask wave`: a case of the conformance suite on the RTL in GTKWave, or as a picture.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf, absolute};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail, ensure};

use crate::doorbell;
use doorbell_setup::shell;

/// What is shown and how, of a case and of a token; their names of files are relative to the repository.
const SAVE_FILES: [&str; 2] = ["tb/wave/descriptor.gtkw", "tb/wave/token.gtkw"];

#[derive(clap::Args)]
pub struct Options {
    /// The case
    #[arg(default_value = "basic decode")]
    case: String,
    /// A token of this language model in place of a case, as `doorbell model list` has it
    #[arg(long, conflicts_with_all = ["case", "workers"])]
    model: Option<String>,
    /// Where the waveform goes; by default into target/wave
    #[arg(long, value_name = "FILE.fst")]
    out: Option<PathBuf>,
    /// Draw a picture instead of opening a window; needs no display
    #[arg(long, value_name = "FILE.png")]
    png: Option<PathBuf>,
    /// Draw only this span of time, in nanoseconds, as 2500..4000
    #[arg(long, value_name = "NS..NS", requires = "png", value_parser = span)]
    span: Option<Span>,
    /// Workers of the RTL, 4 without it
    #[arg(long, conflicts_with = "png")]
    workers: Option<u32>,
}

/// Times in ns, the first before the second.
#[derive(Clone, Debug)]
struct Span(u64, u64);

fn span(text: &str) -> Result<Span, String> {
    let parts = text.split_once("..").and_then(|(from, to)| Some((from.parse().ok()?, to.parse().ok()?)));
    let in_order = parts.filter(|(from, to)| from < to);
    in_order.map(|(from, to)| Span(from, to)).ok_or_else(|| "expected FROM..TO in ns, as 2500..4000".into())
}

/// Records the case and shows it; the exit code is that of `doorbell wave`.
///
/// # Errors
/// When a program is missing or fails, or a file cannot be written.
pub fn run(root: &Path, options: &Options) -> Result<ExitCode> {
    let path = shell::path();
    if options.png.is_none() {
        require(&["gtkwave"], &path)?;
    }
    ensure!(
        options.png.is_some() || ["DISPLAY", "WAYLAND_DISPLAY"].iter().any(|v| env::var_os(v).is_some()),
        "there is no display to open GTKWave on (DISPLAY is not set): give --png FILE for a picture"
    );

    let out = match &options.out {
        Some(out) => out.clone(),
        None => {
            let room = root.join("target/wave");
            std::fs::create_dir_all(&room).with_context(|| format!("cannot create {}", room.display()))?;
            let name = options.model.as_ref().unwrap_or(&options.case);
            room.join(name.replace(|c: char| !c.is_ascii_alphanumeric(), "-")).with_extension("fst")
        }
    };
    let Some(out_text) = out.to_str() else { bail!("{} is no path in UTF-8", out.display()) };
    let what = match &options.model {
        Some(model) => vec!["--model".to_owned(), model.clone()],
        None => vec![options.case.clone()],
    };
    let mut args = [what, vec!["--out".to_owned(), out_text.to_owned()]].concat();
    if let Some(png) = &options.png {
        let Some(png) = png.to_str() else { bail!("{} is no path in UTF-8", png.display()) };
        args.extend(["--png".to_owned(), png.to_owned()]);
    }
    args.extend(
        options.span.iter().flat_map(|Span(from, to)| ["--span".to_owned(), format!("{from}..{to}")]),
    );
    args.extend(options.workers.iter().flat_map(|workers| ["--workers".to_owned(), workers.to_string()]));
    let code = doorbell::forward(root, "wave", &args)?;
    // A case that fails (exit code 1) is recorded, and worth a look more than any other.
    if code != ExitCode::SUCCESS && code != ExitCode::FAILURE {
        return Ok(code);
    }

    if let Some(png) = &options.png {
        println!("wrote {}", png.display());
        return Ok(code);
    }
    let out = absolute(&out).with_context(|| format!("cannot find {}", out.display()))?;
    shell::run(&mut gtkwave(root, &out, SAVE_FILES[usize::from(options.model.is_some())]))?;
    Ok(code)
}

/// GTKWave with the waveform and the save file.
fn gtkwave(root: &Path, waveform: &Path, save_file: &str) -> Command {
    let mut command = Command::new("gtkwave");
    command.current_dir(root).arg("--dump").arg(waveform).args(["--save", save_file]);
    command
}

fn require(programs: &[&str], path: &OsStr) -> Result<()> {
    let missing: Vec<&str> =
        programs.iter().copied().filter(|program| shell::find(program, path).is_none()).collect();
    ensure!(
        missing.is_empty(),
        "not installed: {}; `cargo xtask setup --wave` installs what waves need",
        missing.join(", ")
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Span, span};

    #[test]
    fn a_span_goes_forward() {
        assert!(matches!(span("2500..4000"), Ok(Span(2500, 4000))));
        for text in ["", "5", "5..5", "6..5", "a..9", "-1..5"] {
            assert_eq!(span(text).unwrap_err(), "expected FROM..TO in ns, as 2500..4000", "{text}");
        }
    }
}
