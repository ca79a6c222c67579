//! `doorbell completions` and `doorbell man`.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap_complete::Shell;
use doorbell_setup::shell::word;

use crate::failure::Failure;
use crate::output;

/// Prints the script on standard output; where it belongs is the shell's affair.
#[derive(clap::Args)]
pub struct Completions {
    /// The shell
    shell: Shell,
}

/// Writes doorbell.1, and a page for each command beside it, as doorbell-compare.1.
#[derive(clap::Args)]
pub struct Man {
    /// Directory to write to; it is made if it is not there
    directory: PathBuf,
}

/// Prints the script.
pub fn completions(args: Completions) -> Result<ExitCode, Failure> {
    let mut script = vec![];
    clap_complete::generate(args.shell, &mut crate::command_line(), "doorbell", &mut script);
    output::print_raw(&String::from_utf8_lossy(&script))?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the pages.
pub fn man(args: Man) -> Result<ExitCode, Failure> {
    let directory = &args.directory;
    let refused = |error: io::Error| {
        Failure::input(format!("cannot write manual pages to {}: {error}", directory.display()))
    };
    fs::create_dir_all(directory).map_err(refused)?;
    clap_mangen::generate_to(crate::command_line(), directory).map_err(refused)?;
    output::print(&format!(
        "{}: a page for each command; read one with `man {}`\n",
        directory.display(),
        word(directory.join("doorbell.1"))
    ))?;
    Ok(ExitCode::SUCCESS)
}
