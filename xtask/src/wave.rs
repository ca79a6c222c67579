//! `cargo xtask wave`: a case of the conformance suite on the RTL in GTKWave, or as a picture.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf, absolute};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail, ensure};

use crate::doorbell;
use doorbell_setup::shell;

/// What is shown and how; its names of files are relative to the repository.
const SAVE_FILE: &str = "tb/wave/descriptor.gtkw";

#[derive(clap::Args)]
pub struct Options {
    /// The case
    #[arg(default_value = "basic decode")]
    case: String,
    /// Where the waveform goes; by default into target/wave
    #[arg(long, value_name = "FILE.fst")]
    out: Option<PathBuf>,
    /// Draw a picture instead of opening a window; needs no display
    #[arg(long, value_name = "FILE.png")]
    png: Option<PathBuf>,
    /// Workers of the RTL, 4 without it
    #[arg(long)]
    workers: Option<u32>,
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
            room.join(options.case.replace(|c: char| !c.is_ascii_alphanumeric(), "-")).with_extension("fst")
        }
    };
    let Some(out_text) = out.to_str() else { bail!("{} is no path in UTF-8", out.display()) };
    let mut args = vec![options.case.clone(), "--out".to_owned(), out_text.to_owned()];
    args.extend(options.workers.iter().flat_map(|workers| ["--workers".to_owned(), workers.to_string()]));
    let code = doorbell::forward(root, "wave", &args)?;
    // A case that fails (exit code 1) is recorded, and worth a look more than any other.
    if code != ExitCode::SUCCESS && code != ExitCode::FAILURE {
        return Ok(code);
    }

    let out = absolute(&out).with_context(|| format!("cannot find {}", out.display()))?;
    match &options.png {
        Some(png) => {
            let png = absolute(png).with_context(|| format!("cannot find {}", png.display()))?;
            let mut draw =
                shell::cargo(root, &["run", "--release", "--quiet", "--package", "doorbell-wave", "--"]);
            shell::run(draw.arg(SAVE_FILE).arg(&out).arg(&png))?;
            println!("wrote {}", png.display());
        }
        None => shell::run(&mut gtkwave(root, &out))?,
    }
    Ok(code)
}

/// GTKWave with the waveform and the save file.
fn gtkwave(root: &Path, waveform: &Path) -> Command {
    let mut command = Command::new("gtkwave");
    command.current_dir(root).arg("--dump").arg(waveform).args(["--save", SAVE_FILE]);
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
