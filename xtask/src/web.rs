//! `cargo xtask web`: the device in a tab, built into `target/web`, served, and tested in browsers.

mod puzzles;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use doorbell_setup::{self as setup, shell};

/// What Rust calls a browser.
const TARGET: &str = "wasm32-unknown-emscripten";
/// The device in the tab: one worker, and one of everything else.
const DEVICE: &str = "1npu";
/// C++ unwinds as Rust does there; what this compiler says of a loop that a lambda ends is no fault.
const CXX_FLAGS: &str = "-fwasm-exceptions -msimd128 -Wno-for-loop-analysis";
/// Where Debian has acorn, which its emscripten needs.
const DEBIANS_NODE: &str = "/usr/share/nodejs";
/// Commands under which the browsers are known, and what puppeteer calls them.
const BROWSERS: [(&str, &[&str]); 2] = [
    ("chrome", &["chromium", "google-chrome", "chromium-browser"]),
    ("firefox", &["firefox", "firefox-esr"]),
];

#[derive(clap::Args)]
pub struct Options {
    /// Also run the tests of the page, in Chromium and in Firefox, as far as they are installed
    #[arg(long)]
    test: bool,
    /// Also serve the page on this machine, until Ctrl-C
    #[arg(long, conflicts_with = "test")]
    serve: bool,
    /// The port to serve on; 0 takes a free one
    #[arg(long, value_name = "N", default_value_t = 8000, requires = "serve")]
    port: u16,
}

/// Builds the page, and tests or serves it.
///
/// # Errors
/// When something is missing, does not build, or a test fails.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    let page = build(root)?;
    if options.test {
        test(root, &page)?;
    }
    if options.serve {
        let mut command = Command::new("node");
        command.arg(root.join("web/test/serve.mjs")).arg(&page).arg(options.port.to_string());
        shell::run(&mut command)?;
    }
    Ok(())
}

/// What is missing to build, a line each with what to do.
fn missing() -> Vec<String> {
    let path = shell::path();
    let has = |program: &str| shell::find(program, &path).is_some();
    let mut missing = vec![];
    if !has("em++") {
        missing.push("emscripten: `sudo apt-get install --no-install-recommends emscripten`, or https://emscripten.org".to_owned());
    }
    if !has("node") {
        missing.push("node: `sudo apt-get install nodejs`".to_owned());
    }
    let library = Command::new("rustc").args(["--print", "target-libdir", "--target", TARGET]).output();
    let library = library.ok().map(|output| PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()));
    if !library.is_some_and(|library| library.is_dir()) {
        missing.push(format!("Rust's library for a browser: `rustup target add {TARGET}`"));
    }
    missing
}

/// Builds the module and puts it beside the page; the folder that is to be served.
fn build(root: &Path) -> Result<PathBuf> {
    let missing = missing();
    ensure!(missing.is_empty(), "to build the page there is missing:\n  {}", missing.join("\n  "));
    let mut cargo = shell::cargo(
        root,
        &["build", "--release", "--package", "doorbell-web", "--no-default-features", "--target", TARGET],
    );
    cargo.env("DOORBELL_RTL_WORKERS", DEVICE).env("CXXFLAGS_wasm32_unknown_emscripten", CXX_FLAGS);
    if env::var_os("NODE_PATH").is_none() && Path::new(DEBIANS_NODE).is_dir() {
        cargo.env("NODE_PATH", DEBIANS_NODE);
    }
    shell::run(&mut cargo)?;
    let page = setup::target(root).join("web");
    let copy = |from: PathBuf| -> Result<()> {
        let to = page.join(from.file_name().context("a file has a name")?);
        fs::copy(&from, &to)
            .with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
        Ok(())
    };
    let _ = fs::remove_dir_all(&page);
    fs::create_dir_all(&page).with_context(|| format!("cannot create {}", page.display()))?;
    let built = setup::target(root).join(TARGET).join("release");
    for file in fs::read_dir(root.join("web/page")).context("cannot read web/page")? {
        let file = file?.path();
        if file.is_file() {
            copy(file)?;
        }
    }
    copy(built.join("doorbell-web.js"))?;
    copy(built.join("doorbell_web.wasm"))?;
    copy(root.join("lm/models/tiny.doorbell"))?;
    let beside = page.join("puzzles");
    fs::create_dir_all(&beside).with_context(|| format!("cannot create {}", beside.display()))?;
    for file in fs::read_dir(root.join("web/page/puzzles")).context("cannot read web/page/puzzles")? {
        let file = file?;
        fs::copy(file.path(), beside.join(file.file_name()))
            .context("cannot copy the page of the puzzles")?;
    }
    puzzles::build(root, &beside)?;
    println!("the page is in {}", page.display());
    Ok(page)
}

/// Runs the page's tests in every browser that is installed, against what native runs of the same device give.
fn test(root: &Path, page: &Path) -> Result<()> {
    let path = shell::path();
    let found: Vec<(&str, PathBuf)> = BROWSERS
        .iter()
        .filter_map(|&(kind, names)| Some((kind, names.iter().find_map(|name| shell::find(name, &path))?)))
        .collect();
    for (kind, names) in BROWSERS {
        if !found.iter().any(|(there, _)| *there == kind) {
            println!("{kind} is not tested: none of {} is installed", names.join(", "));
        }
    }
    if found.is_empty() {
        bail!("no browser is installed: `sudo apt-get install chromium firefox-esr`");
    }
    let place = setup::target(root).join("web-test");
    fs::create_dir_all(&place).with_context(|| format!("cannot create {}", place.display()))?;
    for file in ["package.json", "browser.mjs", "serve.mjs"] {
        fs::copy(root.join("web/test").join(file), place.join(file))
            .with_context(|| format!("cannot copy {file}"))?;
    }
    // It never fetches a browser: puppeteer-core has none.
    let mut npm = Command::new("npm");
    npm.args(["install", "--no-audit", "--no-fund", "--ignore-scripts", "--silent"]).current_dir(&place);
    shell::run(&mut npm)?;
    let mut native =
        shell::cargo(root, &["build", "--release", "--package", "doorbell-web", "--no-default-features"]);
    shell::run(native.env("DOORBELL_RTL_WORKERS", DEVICE))?;
    fs::write(place.join("puzzles.json"), puzzles::expected(root)?.to_string())
        .context("cannot write what the puzzles' page must show")?;
    for (kind, program) in found {
        let mut command = Command::new("node");
        command.arg("browser.mjs").arg(kind).arg(program).arg(page);
        command.arg(setup::target(root).join("release/doorbell-web")).current_dir(&place);
        shell::run(&mut command)?;
    }
    Ok(())
}
