//! Notes the compiler and the profile, which reports name beside figures of time.

use std::env;
use std::process::Command;

fn main() {
    let rustc = env::var_os("RUSTC").expect("cargo sets RUSTC");
    let version = Command::new(rustc).arg("--version").output().expect("the compiler tells its version");
    println!("cargo::rustc-env=DOORBELL_RUSTC={}", String::from_utf8_lossy(&version.stdout).trim());
    let level = env::var("OPT_LEVEL").expect("cargo sets OPT_LEVEL");
    println!("cargo::rustc-env=DOORBELL_PROFILE=opt-level {level}");
    println!("cargo::rerun-if-changed=build.rs");
}
