//! The crates that others may use, as a registry would have them: each is packed, and what was packed must compile and make its pages
//! as docs.rs makes them: without the repository around it, the network, Verilator and nvcc.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

use doorbell_setup::{shell, target};

/// All that a build of the packages finds in `PATH`: Rust, and what build scripts compile and link with. docs.rs has more, and neither Verilator
/// nor nvcc.
const PROGRAMS: [&str; 10] = ["cargo", "rustc", "rustdoc", "cc", "c++", "gcc", "g++", "ld", "as", "ar"];

/// What `cargo metadata` says of a crate of the workspace.
#[derive(Deserialize)]
struct Crate {
    name: String,
    version: String,
    /// `None`: to any registry. An empty list: to none.
    publish: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Crate>,
}

/// The crates that are not kept from being published, by name.
///
/// # Errors
/// When cargo does not tell, or there is none.
fn published(root: &Path) -> Result<Vec<Crate>> {
    let output = shell::cargo(root, &["metadata", "--no-deps", "--format-version", "1"]).output()?;
    ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let Metadata { mut packages } =
        serde_json::from_slice(&output.stdout).context("cannot read what cargo metadata prints")?;
    packages.retain(|package| package.publish.is_none());
    packages.sort_by(|one, other| one.name.cmp(&other.name));
    ensure!(!packages.is_empty(), "no crate is published: all have `publish = false`");
    Ok(packages)
}

/// Packs all of them and unpacks them side by side, as one workspace in which each finds the others; its folder.
///
/// # Errors
/// When one cannot be packed: it needs a crate that is not published, or lacks what a registry asks for.
pub fn pack(root: &Path) -> Result<PathBuf> {
    let packages = published(root)?;
    let names = packages.iter().flat_map(|package| ["--package", &package.name]);
    // What is packed is compiled below, all at once: by itself cargo would compile each with all that it needs.
    let args: Vec<&str> =
        ["package", "--no-verify", "--allow-dirty", "--quiet"].into_iter().chain(names).collect();
    shell::run(&mut shell::cargo(root, &args))?;

    let packed = target(root).join("package");
    let trees = packed.join("trees");
    if trees.exists() {
        fs::remove_dir_all(&trees).with_context(|| format!("cannot remove {}", trees.display()))?;
    }
    fs::create_dir_all(&trees).with_context(|| format!("cannot create {}", trees.display()))?;
    let mut workspace =
        "[workspace]\nresolver = \"3\"\nmembers = [\"doorbell-*\"]\n\n[patch.crates-io]\n".to_owned();
    for Crate { name, version, .. } in &packages {
        let archive = packed.join(format!("{name}-{version}.crate"));
        // Files of now: in the archive all are equally old, and cargo would not see that one has changed.
        shell::run(Command::new("tar").args(["--touch", "-xzf"]).arg(&archive).arg("-C").arg(&trees))?;
        workspace += &format!("{name} = {{ path = \"{name}-{version}\" }}\n");
    }
    fs::write(trees.join("Cargo.toml"), workspace).context("cannot write the workspace of the packages")?;
    fs::copy(root.join("Cargo.lock"), trees.join("Cargo.lock")).context("cannot copy Cargo.lock")?;
    println!("{} packages in {}", packages.len(), trees.display());
    Ok(trees)
}

/// Compiles what was packed, with all features, and makes its pages, where there is little more than Rust.
///
/// # Errors
/// When one does not compile: it reads a file that is not in its package, or runs a program that is not there. When rustdoc has something to say.
pub fn build(root: &Path, trees: &Path) -> Result<()> {
    let programs = programs(&target(root).join("package/bin"))?;
    for args in [&["check"] as &[&str], &["doc", "--no-deps"]] {
        let mut command = shell::cargo(trees, args);
        command.args(["--offline", "--workspace", "--all-features", "--release"]);
        // What docs.rs sets.
        command.env("DOCS_RS", "1").env("RUSTDOCFLAGS", "-D warnings");
        for variable in
            ["CXX", "NVCC", "VERILATOR", "CUDA_HOME", "CUDA_PATH", "DOORBELL_RTL", "DOORBELL_CUDA"]
        {
            command.env_remove(variable);
        }
        shell::run(
            command.env("PATH", &programs).env("CARGO_TARGET_DIR", target(root).join("package/target")),
        )?;
    }
    Ok(())
}

/// A folder that has [`PROGRAMS`] and nothing else.
fn programs(folder: &Path) -> Result<PathBuf> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    for name in PROGRAMS {
        // A linker that has `as`, `ld` and `ar` built in needs none of them.
        if let Some(program) = shell::find(name, &shell::path()) {
            symlink(&program, folder.join(name))
                .with_context(|| format!("cannot link {}", program.display()))?;
        }
    }
    Ok(folder.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a registry shows of a crate.
    #[derive(Deserialize)]
    struct Shown {
        name: String,
        publish: Option<Vec<String>>,
        manifest_path: PathBuf,
        description: Option<String>,
        documentation: Option<String>,
        license: Option<String>,
        readme: Option<PathBuf>,
        rust_version: Option<String>,
        keywords: Vec<String>,
        categories: Vec<String>,
        dependencies: Vec<Dependency>,
    }

    #[derive(Deserialize)]
    struct Dependency {
        name: String,
        req: String,
        kind: Option<String>,
        path: Option<PathBuf>,
    }

    fn all() -> Vec<Shown> {
        let output =
            shell::cargo(&crate::root(), &["metadata", "--no-deps", "--offline", "--format-version", "1"]);
        let output = { output }.output().unwrap();
        let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        serde_json::from_value(metadata["packages"].clone()).unwrap()
    }

    #[test]
    fn published_crates_have_what_a_registry_shows() {
        let all = all();
        let is_published = |name: &str| all.iter().any(|other| other.name == name && other.publish.is_none());
        let mut count = 0;
        for shown in all.iter().filter(|shown| shown.publish.is_none()) {
            let Shown { name, manifest_path, .. } = shown;
            let folder = manifest_path.parent().unwrap();
            assert!(shown.description.is_some() && shown.rust_version.is_some(), "{name}");
            assert_eq!(shown.license.as_deref(), Some("MIT"), "{name}");
            assert_eq!(shown.documentation.as_deref(), Some(&*format!("https://docs.rs/{name}")));
            // What crates.io takes.
            assert!(
                (1..=5).contains(&shown.keywords.len()) && (1..=5).contains(&shown.categories.len()),
                "{name}"
            );
            assert!(shown.keywords.iter().all(|keyword| keyword.len() <= 20), "{name}: {:?}", shown.keywords);
            let readme = fs::read_to_string(folder.join(shown.readme.as_ref().unwrap())).unwrap();
            assert!(readme.starts_with(&format!("# {name}\n")) && readme.len() > 300, "{name}: README.md");
            let licence = fs::read_to_string(folder.join("LICENSE")).unwrap();
            assert_eq!(licence, fs::read_to_string(crate::root().join("LICENSE")).unwrap(), "{name}");
            for Dependency { name: other, req, kind, path } in &shown.dependencies {
                if path.is_some() && kind.as_deref() != Some("dev") {
                    assert!(is_published(other) && req != "*", "{name} needs {other} {req}");
                }
            }
            count += 1;
        }
        assert!(count > 10, "{count} crates are published");
    }

    #[test]
    fn the_page_has_each_crate_and_whether_it_is_published() {
        let page = fs::read_to_string(crate::root().join("docs/releases.md")).unwrap();
        let all = all();
        for Shown { name, publish, .. } in &all {
            let published = if publish.is_none() { "yes" } else { "no" };
            assert!(
                page.contains(&format!("\n| {name} | {published} | ")),
                "docs/releases.md: {name}: {published}"
            );
        }
        let rows = page.lines().filter(|line| line.contains(" | yes | ") || line.contains(" | no | "));
        assert_eq!(rows.count(), all.len(), "a crate of the page is not there");
    }

    /// Semantic versions: a new reason is no break.
    #[test]
    fn public_errors_can_grow() {
        fn sources(folder: &Path, out: &mut Vec<PathBuf>) {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    sources(&path, out);
                } else if path.extension().is_some_and(|extension| extension == "rs") {
                    out.push(path);
                }
            }
        }
        let (mut count, mut wrong) = (0, Vec::new());
        for shown in all().iter().filter(|shown| shown.publish.is_none()) {
            let mut files = Vec::new();
            sources(&shown.manifest_path.parent().unwrap().join("src"), &mut files);
            for file in files {
                let text = fs::read_to_string(&file).unwrap();
                let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
                for (at, line) in lines.iter().enumerate() {
                    let Some(name) =
                        line.strip_prefix("pub enum ").and_then(|rest| rest.split([' ', '<']).next())
                    else {
                        continue;
                    };
                    if !name.ends_with("Error") {
                        continue;
                    }
                    count += 1;
                    let attributes = lines[..at].iter().rev().take_while(|line| line.starts_with(['#', '/']));
                    if !{ attributes }.any(|line| *line == "#[non_exhaustive]") {
                        wrong.push(format!("{}: {name}", file.display()));
                    }
                }
            }
        }
        assert!(count > 20, "{count} types of errors");
        assert!(wrong.is_empty(), "without #[non_exhaustive]: {}", wrong.join(", "));
    }
}
