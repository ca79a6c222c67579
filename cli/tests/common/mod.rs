//! Running the program as a user does.

use std::path::Path;
use std::process::Command;

use assert_cmd::cargo::CommandCargoExt;

/// What one run of the program left behind.
pub struct Run {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

/// Runs `doorbell` with arguments separated by blanks, in `directory`.
pub fn doorbell(directory: &Path, arguments: &str) -> Run {
    let output = Command::cargo_bin("doorbell")
        .expect("the program is built")
        .args(arguments.split_whitespace())
        .current_dir(directory)
        .output()
        .expect("the program starts");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("the output is UTF-8");
    Run {
        code: output.status.code().expect("the program exits by itself"),
        stdout: text(output.stdout),
        stderr: text(output.stderr),
    }
}
