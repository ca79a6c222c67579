//! Programs for tests. Tests of other crates include this file by its path: what is built for tests alone is no part of a library.

use std::path::Path;
use std::process::Command;

/// An executable shell script in `dir`, standing in for a program.
///
/// A shell writes it: were it this process, a program that another thread starts at that moment would inherit the open
/// file, and whoever runs the script before that one has closed it gets ETXTBSY.
pub fn fake(dir: &Path, name: &str, body: &str) {
    let written = Command::new("/bin/sh")
        .args(["-c", "printf '#!/bin/sh\\n%s\\n' \"$2\" > \"$1\" && /bin/chmod 755 \"$1\"", "fake"])
        .arg(dir.join(name))
        .arg(body)
        .status()
        .unwrap();
    assert!(written.success(), "{name} in {}: {written}", dir.display());
}
