//! `cargo xtask doc`: the API's pages and the book.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::test::FULL;
use doorbell_setup::shell;

/// Builds both; the book only where mdbook is installed.
///
/// # Errors
/// When a page has a broken link or cannot be built.
pub fn run(root: &Path) -> Result<()> {
    api(root)?;
    if shell::find("mdbook", &shell::path()).is_none() {
        println!(
            "the book is left out: mdbook is not installed (`cargo install mdbook`); its pages are docs/*.md"
        );
        return Ok(());
    }
    shell::run(Command::new("mdbook").args(["build", "docs"]).current_dir(root))
}

/// Builds the API's pages; a broken link or a public item without documentation is an error.
///
/// # Errors
/// When rustdoc has something to say.
pub fn api(root: &Path) -> Result<()> {
    let mut command = unlinked(root, &["doc", "--workspace", "--no-deps", "--release", "--features", FULL]);
    shell::run(command.env("RUSTDOCFLAGS", "-D warnings"))
}

/// A call of cargo that reads the code and links nothing: it needs neither the device nor the kernels, which take minutes to compile.
pub fn unlinked(root: &Path, args: &[&str]) -> Command {
    let mut command = shell::cargo(root, args);
    command.env("DOORBELL_RTL", "off").env("DOORBELL_CUDA", "off");
    command
}
