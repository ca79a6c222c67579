//! Of a browser: the functions that JavaScript calls. Everywhere else: a command line that does the same run, to compare with.

#[cfg(target_os = "emscripten")]
mod exports;

#[cfg(target_os = "emscripten")]
fn main() {
    // There are no threads to start: whoever computes in parallel does so on this one.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).use_current_thread().build_global();
    pool.expect("nothing has started a pool before");
}

#[cfg(not(target_os = "emscripten"))]
mod native;

#[cfg(not(target_os = "emscripten"))]
fn main() -> std::process::ExitCode {
    native::main()
}
