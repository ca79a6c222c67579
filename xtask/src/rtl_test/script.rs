//! Scripts of the benches of `tb/npu/`, which the interpreter writes: what a unit finds, what it is to do, and what is there then.
//!
//! A bench says in its source what it wants, in a line of its own: `// vectors: UNIT CASES`, or `UNIT CASES MANY` where a
//! long draw has more cases.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::{Job, bench_file, run_name};
use doorbell_setup::{self as setup, shell};

/// Unit and cases that a bench wants.
fn wish(root: &Path, name: &str, long: bool) -> Option<(String, String)> {
    let source = fs::read_to_string(root.join(bench_file(root, name))).ok()?;
    let line = source.lines().find_map(|line| line.strip_prefix("// vectors: "))?;
    let mut words = line.split_whitespace();
    let (unit, cases) = (words.next()?, words.next()?);
    let many = words.next().filter(|_| long);
    Some((unit.to_owned(), many.unwrap_or(cases).to_owned()))
}

/// Builds what writes scripts, if one of these benches wants one.
///
/// # Errors
/// When it cannot be built.
pub fn generator(root: &Path, benches: &[String]) -> Result<Option<PathBuf>> {
    if !benches.iter().any(|name| wish(root, name, false).is_some()) {
        return Ok(None);
    }
    let arguments = ["build", "--quiet", "--release", "--package", "doorbell-npu", "--example", "vectors"];
    shell::run(&mut shell::cargo(root, &arguments))?;
    Ok(Some(setup::target(root).join("release/examples/vectors").canonicalize()?))
}

impl Job<'_> {
    /// Writes the script of a run, for a bench that wants one.
    pub(super) fn script(&self, name: &str, seed: u32) -> Result<Option<PathBuf>> {
        let long = self.plusargs.iter().any(|text| text == "+long");
        let Some((unit, cases)) = wish(self.root, name, long) else { return Ok(None) };
        let generator =
            self.vectors.as_ref().with_context(|| format!("nothing writes the script of {name}"))?;
        let path = self.out.join(format!("{}.script", run_name(name, seed)));
        let mut command = Command::new(generator);
        command.args([&unit, &seed.to_string(), &cases]).stdout(File::create(&path)?).stdin(Stdio::null());
        let status = command.status().with_context(|| format!("cannot run {}", shell::shown(&command)))?;
        ensure!(status.success(), "{} ended with {status}", shell::shown(&command));
        Ok(Some(path))
    }
}
