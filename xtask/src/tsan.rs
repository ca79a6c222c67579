//! `cargo xtask tsan`: the rings, and the text of the GPU's kernel, under ThreadSanitizer.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use doorbell_setup::shell;

/// Where it runs: ThreadSanitizer has to know the target.
const TARGET: &str = "x86_64-unknown-linux-gnu";
/// What the standard library is built from; it has to be instrumented too, or its own synchronisation is not seen.
const SOURCES: &str = "lib/rustlib/src/rust/library/std/Cargo.toml";
/// Tests of rings with a weakened order, each of which ThreadSanitizer has to report.
const WEAKENED: [&str; 2] = ["weakened_spsc", "weakened_mpsc"];
/// The same of the kernel: no release orders anything.
const WEAKENED_KERNEL: &str = "weakened";

/// Why it cannot run here, if it cannot.
pub fn missing(root: &Path) -> Option<String> {
    if !cfg!(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu")) {
        return Some(format!("ThreadSanitizer is run on {TARGET} alone"));
    }
    let output = Command::new("rustc").current_dir(root).args(["--print", "sysroot"]).output();
    let sysroot = match output {
        Ok(output) if output.status.success() => {
            PathBuf::from(String::from_utf8_lossy(&output.stdout).trim())
        }
        _ => return Some("`rustc --print sysroot` does not run".to_owned()),
    };
    (!sysroot.join(SOURCES).is_file())
        .then(|| "the standard library's sources are not there: `rustup component add rust-src`".to_owned())
}

/// Runs the stress of the rings and the conformance suite on the kernel's text under ThreadSanitizer, clean, and then the
/// weakened rings and the weakened kernel, which it must report.
///
/// The rings need nothing but the standard library, so a package of their own, written to `target/tsan`, spares
/// instrumenting what the runtime depends on.
///
/// # Errors
/// When it cannot run here, finds a race, or does not find one in a weakened ring.
pub fn run(root: &Path) -> Result<()> {
    if let Some(reason) = missing(root) {
        bail!("cannot run ThreadSanitizer: {reason}");
    }
    let package = root.join("target/tsan");
    write_package(root, &package)?;
    shell::run(&mut stress(&package, &[]))?;
    for test in WEAKENED {
        let mut command = stress(&package, &["--ignored", "--exact", test]);
        println!("$ {}   (must be reported)", shell::shown(&command));
        let output = command.output().context("cannot run cargo")?;
        reported(test, output.status.success(), &String::from_utf8_lossy(&output.stderr))?;
    }
    // The host's side is not instrumented, and shares nothing but atomics with the kernel.
    shell::run(&mut kernel(root, &["of 1, calm"]))?;
    shell::run(&mut kernel(root, &["of 3, stress"]))?;
    let mut command = kernel(root, &["--ignored", "--exact", WEAKENED_KERNEL]);
    println!("$ {}   (must be reported)", shell::shown(&command));
    let output = command.output().context("cannot run cargo")?;
    reported(WEAKENED_KERNEL, output.status.success(), &String::from_utf8_lossy(&output.stderr))
}

/// The conformance suite on the kernel's text, instrumented, with these arguments of its own.
fn kernel(root: &Path, args: &[&str]) -> Command {
    let test =
        ["test", "--release", "--package", "doorbell-gpu", "--test", "kernel", "--", "--test-threads", "1"];
    let mut command = shell::cargo(root, &test);
    command.args(args).env("DOORBELL_KERNEL_TSAN", "1").env("TSAN_OPTIONS", "halt_on_error=1");
    command
}

/// # Errors
/// When the weakened ring's test passed, or failed of anything but a data race.
fn reported(test: &str, passed: bool, stderr: &str) -> Result<()> {
    ensure!(!passed, "ThreadSanitizer did not report {test}: it would not see a race in the rings either");
    ensure!(
        stderr.contains("WARNING: ThreadSanitizer: data race"),
        "{test} failed, but of no data race:\n{stderr}"
    );
    println!("{test}: reported as a data race");
    Ok(())
}

/// A library with the rings alone, under the name of the crate that they belong to, and its stress test.
fn write_package(root: &Path, package: &Path) -> Result<()> {
    let path = |file: &str| toml::Value::String(root.join(file).display().to_string());
    let manifest = format!(
        "[package]\nname = \"doorbell-runtime\"\nedition = \"2024\"\n\n[workspace]\n\n[lib]\npath = \"lib.rs\"\n\n\
         [[test]]\nname = \"ring_stress\"\npath = {}\n",
        path("runtime/tests/ring_stress.rs")
    );
    let library = format!("#[path = {}]\npub mod ring;\n", path("runtime/src/ring/mod.rs"));
    fs::create_dir_all(package).with_context(|| format!("cannot create {}", package.display()))?;
    for (name, text) in [("Cargo.toml", manifest), ("lib.rs", library)] {
        let file = package.join(name);
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}

/// The test under ThreadSanitizer, with these arguments of its own.
fn stress(package: &Path, args: &[&str]) -> Command {
    let test = ["test", "--release", "--test", "ring_stress", "-Zbuild-std", "--target", TARGET, "--"];
    let mut command = shell::cargo(package, &test);
    command
        .args(args)
        // The sanitizer and a standard library of one's own are there in the stable compiler too, if asked for so.
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTFLAGS", "-Zsanitizer=thread")
        .env("CARGO_TARGET_DIR", package)
        .env("TSAN_OPTIONS", "halt_on_error=1");
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_data_race_counts_as_reported() {
        let race = "WARNING: ThreadSanitizer: data race (pid=1)";
        assert!(reported("t", false, race).is_ok());
        assert!(reported("t", true, race).unwrap_err().to_string().contains("did not report t"));
        let error = reported("t", false, "error: could not compile").unwrap_err().to_string();
        assert!(error.contains("of no data race") && error.contains("could not compile"), "{error}");
    }
}
