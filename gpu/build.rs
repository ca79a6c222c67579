//! Compiles the kernels, where there are an nvcc and a GPU, and embeds what the crate loads: machine code and PTX, deflated, and the
//! source for NVRTC. What nvcc makes is kept by content, in a folder that all builds of the target directory and `cargo xtask gpu-check`
//! share.
//!
//! Environment: `NVCC` (the compiler, default: the first that is found), `DOORBELL_CUDA=off` (use none),
//! `DOORBELL_CUDA_ARCHITECTURES` (machine code for these alone, as in `90a`; default: all where the machine has a GPU, else none).
//! `DOCS_RS`, which docs.rs sets, is as `DOORBELL_CUDA=off`.

#[path = "build/cache.rs"]
mod cache;
#[allow(dead_code, reason = "the rest is for xtask")]
#[path = "build/nvcc.rs"]
mod nvcc;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::exit;
use std::{env, fs};

use cache::Cache;
use nvcc::{ARCHITECTURES, CACHE, CHOICE, INCLUDES, KERNELS, Nvcc, Places, STANDARD, VARIABLES};

/// What NVIDIA's driver makes.
const GPU: &str = "/dev/nvidiactl";

fn main() {
    if let Err(message) = build() {
        // Cargo shows the last lines of a failed build script: the message alone, without a backtrace.
        eprintln!("\ndoorbell-gpu: {message}\n");
        exit(1);
    }
}

fn build() -> Result<(), String> {
    let manifest = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    // A package has no repository around it: what it needs of one lies in the place of the links of `packaged/`.
    let repository = manifest.parent().filter(|repository| repository.join(KERNELS).is_file());
    let root = real(&repository.map_or_else(|| manifest.join("packaged"), Path::to_owned))?;
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    for variable in VARIABLES.into_iter().chain([CHOICE]) {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    println!("cargo::rerun-if-env-changed=DOCS_RS");
    println!("cargo::rerun-if-changed=build.rs");

    let mut files = BTreeSet::new();
    let mut source = String::new();
    flatten(&root, &real(&root.join(KERNELS))?, &mut files, &mut source)?;
    for file in &files {
        println!("cargo::rerun-if-changed={}", file.display());
    }
    write(&out.join("doorbell.cu"), &source)?;

    let places = Places::this();
    let nvcc = if env::var_os("DOCS_RS").is_some() { None } else { places.find()? };
    let (code, ptx) = match nvcc {
        // Five minutes of a core, for a GPU that is not there.
        Some(nvcc) if !places.architectures.is_empty() || Path::new(GPU).exists() => {
            println!("cargo::rerun-if-changed={}", nvcc.program.display());
            compile(&nvcc, &root, &out)?
        }
        _ => (String::new(), "None"),
    };
    write(
        &out.join("embedded.rs"),
        &format!(
            "pub(super) const MACHINE_CODE: &[(&str, &[u8])] = &[{code}];\n\
             pub(super) const PTX: Option<&[u8]> = {ptx};\n\
             pub(super) const SOURCE: &str = include_str!(\"doorbell.cu\");\n\
             pub(super) const ARCHITECTURES: &[&str] = &{ARCHITECTURES:?};\n\
             pub(super) const STANDARD: &str = {STANDARD:?};\n"
        ),
    )
}

/// Machine code for the architectures that have some, as the items of a list in Rust, and PTX for those that come, as an expression.
fn compile(nvcc: &Nvcc, root: &Path, out: &Path) -> Result<(String, &'static str), String> {
    let cache = Cache::of_build(out, CACHE)?;
    let mut items = String::new();
    let mut ptx = "None";
    for code in nvcc.machine_code(root, &cache)? {
        let name = format!("sm_{}.cubin.deflated", code.architecture);
        // What the cache keeps may go before this build does.
        deflate(&code.code, &out.join(&name))?;
        let _ = write!(items, "({:?}, include_bytes!({name:?})), ", code.architecture);
        if let Some(file) = code.ptx {
            deflate(&file, &out.join("doorbell.ptx.deflated"))?;
            ptx = r#"Some(include_bytes!("doorbell.ptx.deflated"))"#;
        }
    }
    Ok((items, ptx))
}

/// Appends `file` to `text`, each file that it includes by `#include "…"` in place of the first such line: NVRTC has no
/// files to look in. Whether the line stands under an `#if` is not looked at.
fn flatten(root: &Path, file: &Path, files: &mut BTreeSet<PathBuf>, text: &mut String) -> Result<(), String> {
    if !files.insert(file.to_owned()) {
        return Ok(());
    }
    let shown = file.strip_prefix(root).unwrap_or(file).display();
    let _ = writeln!(text, "#line 1 \"{shown}\"");
    for (number, line) in (1..).zip(read(file)?.lines()) {
        match included(line) {
            Some(name) => {
                let beside = file.parent().map(|dir| dir.join(name));
                let mut places = beside.into_iter().chain(INCLUDES.map(|dir| root.join(dir).join(name)));
                let found = places
                    .find(|path| path.is_file())
                    .ok_or_else(|| format!("{shown}:{number}: there is no file \"{name}\" to include"))?;
                flatten(root, &real(&found)?, files, text)?;
                let _ = writeln!(text, "#line {} \"{shown}\"", number + 1);
            }
            None if line.trim() == "#pragma once" => text.push('\n'),
            None => {
                text.push_str(line);
                text.push('\n');
            }
        }
    }
    Ok(())
}

/// The name in `#include "name"`.
fn included(line: &str) -> Option<&str> {
    let directive = line.trim_start().strip_prefix('#')?.trim_start().strip_prefix("include")?;
    directive.trim_start().strip_prefix('"')?.split('"').next()
}

/// The one name of a file, however it was reached.
fn real(path: &Path) -> Result<PathBuf, String> {
    fs::canonicalize(path).map_err(|error| format!("cannot find {}: {error}", path.display()))
}

fn read(file: &Path) -> Result<String, String> {
    fs::read_to_string(file).map_err(|error| format!("cannot read {}: {error}", file.display()))
}

/// Writes what is in `from` to `to` as a zlib stream: a quarter of it.
fn deflate(from: &Path, to: &Path) -> Result<(), String> {
    let bytes = fs::read(from).map_err(|error| format!("cannot read {}: {error}", from.display()))?;
    let deflated = miniz_oxide::deflate::compress_to_vec_zlib(&bytes, 8);
    fs::write(to, deflated).map_err(|error| format!("cannot write {}: {error}", to.display()))
}

fn write(file: &Path, text: &str) -> Result<(), String> {
    fs::write(file, text).map_err(|error| format!("cannot write {}: {error}", file.display()))
}
