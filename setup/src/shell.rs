//! Programs that the commands run.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};

use anyhow::{Context, Result, bail};

/// The caller's `PATH`.
pub fn path() -> OsString {
    env::var_os("PATH").unwrap_or_default()
}

/// Where `program` lies in `path`, if it is there and may be executed.
pub fn find(program: &str, path: &OsStr) -> Option<PathBuf> {
    env::split_paths(path)
        .map(|dir| dir.join(program))
        .find(|file| file.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0))
}

/// `cargo` with `args`, in the repository.
pub fn cargo(root: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root).args(args);
    command
}

/// The command line as a person would type it.
pub fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    std::iter::once(program).chain(command.get_args()).map(word).collect::<Vec<_>>().join(" ")
}

/// A word of a command as a shell reads it back: in quotes, where a letter of it might mean something there.
pub fn word(word: impl AsRef<OsStr>) -> String {
    let word = word.as_ref().to_string_lossy();
    let is_plain = |letter: char| letter.is_alphanumeric() || "%+,-./:=@_".contains(letter);
    if word.is_empty() || !word.chars().all(is_plain) {
        format!("'{}'", word.replace('\'', "'\\''"))
    } else {
        word.into_owned()
    }
}

/// Prints the command and runs it to its end.
///
/// # Errors
/// When it cannot be started or does not exit with 0.
pub fn run(command: &mut Command) -> Result<()> {
    let status = start(command)?;
    if !status.success() {
        bail!("`{}` ended with {status}", shown(command));
    }
    Ok(())
}

/// Prints the command, runs it to its end and hands its exit code on.
///
/// # Errors
/// When it cannot be started.
pub fn forward(command: &mut Command) -> Result<ExitCode> {
    start(command).map(code)
}

/// The exit code to hand on.
pub fn code(status: ExitStatus) -> ExitCode {
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    code.map_or(ExitCode::FAILURE, ExitCode::from)
}

/// As [`run`], whatever the exit code.
fn start(command: &mut Command) -> Result<ExitStatus> {
    println!("$ {}", shown(command));
    command.status().with_context(|| {
        format!("cannot run {}: is it installed? `cargo xtask setup` does that", shown(command))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::fake;

    #[test]
    fn a_program_that_fails_or_is_missing_is_an_error() {
        assert!(run(&mut Command::new("true")).is_ok());
        assert!(run(&mut Command::new("false")).unwrap_err().to_string().contains("`false` ended with"));
        let error = run(&mut Command::new("no-such-simulator")).unwrap_err().to_string();
        assert!(error.contains("no-such-simulator") && error.contains("cargo xtask setup"), "{error}");
    }

    #[test]
    fn exit_codes_are_handed_on() {
        let code = forward(Command::new("sh").args(["-c", "exit 3"])).unwrap();
        assert_eq!(format!("{code:?}"), format!("{:?}", ExitCode::from(3)));
        let killed = forward(Command::new("sh").args(["-c", "kill -KILL $$"])).unwrap();
        assert_eq!(format!("{killed:?}"), format!("{:?}", ExitCode::FAILURE));
    }

    #[test]
    fn only_executable_files_are_found() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("text"), "").unwrap();
        std::fs::create_dir(dir.path().join("room")).unwrap();
        fake(dir.path(), "tool", "");
        let path = dir.path().as_os_str();
        assert_eq!((find("text", path), find("room", path)), (None, None));
        assert_eq!(find("tool", path), Some(dir.path().join("tool")));
    }

    #[test]
    fn words_are_quoted_as_a_shell_needs_them() {
        let mut command = Command::new("/usr/bin/echo");
        command.args(["a b", "it's", "plain", ""]);
        assert_eq!(shown(&command), r"echo 'a b' 'it'\''s' plain ''");
        // A shell reads back what was given.
        let words: Vec<String> = (1..128u8)
            .map(|letter| format!("a{}b", char::from(letter)))
            .chain(["~".into(), "é".into()])
            .collect();
        for given in &words {
            let read =
                Command::new("sh").args(["-c", &format!("printf %s {}", word(given))]).output().unwrap();
            assert_eq!(String::from_utf8_lossy(&read.stdout), *given);
        }
    }
}
