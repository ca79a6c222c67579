//! Commands that this build left out, as that of `make compare` does: they say so, and how to get them.

use crate::failure::Failure;

/// How to build all of them.
const BUILD: &str = "cargo build --release --package doorbell --features full";

/// What `--help` says first.
pub const HELP: &str = "This build leaves out commands that take long to compile. To build them all:\n\
    cargo build --release --package doorbell --features full";

/// Whatever a command is given.
#[derive(clap::Args)]
pub struct Args {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    _arguments: Vec<std::ffi::OsString>,
}

/// Why a command does nothing.
pub fn command(name: &str, feature: &str) -> Failure {
    missing("command", name, feature)
}

/// Why an option of a command does nothing.
#[cfg(not(all(feature = "lm", feature = "cosim")))]
pub fn option(name: &str, feature: &str) -> Failure {
    missing("option", name, feature)
}

fn missing(what: &str, name: &str, feature: &str) -> Failure {
    Failure::input(format!(
        "the {what} '{name}' was not built into this program: it comes with the feature '{feature}'; \
         `{BUILD}` builds all commands"
    ))
}
