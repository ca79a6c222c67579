//! Compiles the kernel's text, and what it finds in place of a GPU, for the CPU.
//!
//! Environment: `DOORBELL_KERNEL_TSAN=1` instruments the kernel's text for ThreadSanitizer.

use std::path::Path;

const SOURCES: [&str; 2] = ["kernel/runtime.cpp", "kernel/kernel.cpp"];
const INCLUDES: [&str; 3] = ["kernel", "../kernels", "../../contract"];

fn main() {
    let tsan = std::env::var("DOORBELL_KERNEL_TSAN").is_ok_and(|value| value == "1");
    println!("cargo::rerun-if-env-changed=DOORBELL_KERNEL_TSAN");
    println!("cargo::rerun-if-changed=build.rs");
    for dir in INCLUDES {
        println!("cargo::rerun-if-changed={dir}");
    }
    for (file, instrumented) in SOURCES.into_iter().zip([false, tsan]) {
        let mut build = cc::Build::new();
        build.cpp(true).std("c++17").includes(INCLUDES).file(file).warnings(true);
        // Steps of the kernel are compared with those on a GPU by eye: what a debugger shows should be the text.
        build.opt_level(2).flag("-fno-exceptions").flag("-fno-strict-aliasing");
        // What only nvcc knows, or what its own warnings judge.
        for warning in ["-Wno-unknown-pragmas", "-Wno-extra", "-Wno-unused-function"] {
            build.flag_if_supported(warning);
        }
        if instrumented {
            build.flag("-fsanitize=thread").flag_if_supported("-Wno-tsan");
        }
        if tsan {
            build.define("DOORBELL_TSAN", None);
        }
        let stem = Path::new(file).file_stem().expect("a file has a name").to_string_lossy();
        build.compile(&format!("doorbell_{stem}"));
    }
    if tsan {
        println!("cargo::rustc-link-lib=dylib=tsan");
    }
}
