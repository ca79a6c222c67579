//! What the linker of emscripten is told, of a build for a browser.

use std::env;

/// What JavaScript calls: `src/exports.rs`.
const EXPORTS: &str = "-sEXPORTED_FUNCTIONS=_main,_tab_buffer,_tab_open,_tab_call,_tab_answer";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if env::var("CARGO_CFG_TARGET_OS").as_deref() != Ok("emscripten") {
        return;
    }
    for argument in [
        // C++ and Rust alike unwind by WebAssembly's own exceptions.
        "-fwasm-exceptions",
        "-msimd128",
        EXPORTS,
        "-sEXPORTED_RUNTIME_METHODS=[]",
        // A function that makes the module, in a worker of a page or in node.
        "-sMODULARIZE=1",
        "-sEXPORT_NAME=doorbell",
        "-sENVIRONMENT=worker,node",
        // Twice what tiny needs. Where memory can grow, a browser looks up behind each call where it lies.
        "-sALLOW_MEMORY_GROWTH=0",
        "-sINITIAL_MEMORY=67108864",
        // The heap stays when main has returned.
        "-sEXIT_RUNTIME=0",
        "-sNODEJS_CATCH_EXIT=0",
        "-sNODEJS_CATCH_REJECTION=0",
        "-O2",
        // What is called from one place would else become one function of all that a cycle does, which no browser optimises well.
        "-sBINARYEN_EXTRA_PASSES=--one-caller-inline-max-function-size=200",
    ] {
        println!("cargo::rustc-link-arg-bins={argument}");
    }
}
