//! The C interface as C programs use it: compiled, linked with the static library, run; and under AddressSanitizer.
//!
//! Under AddressSanitizer the C programs are instrumented. The library is not, Rust and C++ alike, but its heap is the
//! sanitizer's: leaks of either are found, and so is what a program is made to write outside its own objects or outside
//! a block of the heap by way of `memcpy`.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};

use doorbell_lm::sample::{Sharpness, log_probability};
use doorbell_lm::{Cache, Oracle, micro_gemma};
use doorbell_verify::ModelPlatform;
use doorbell_vfio::Server;

const DEVICES: &[&str] = if cfg!(feature = "rtl") { &["model", "rtl"] } else { &["model"] };
const ASAN: &[&str] = &["-g", "-fsanitize=address"];

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The static library that this test was built with: beside it.
fn library() -> PathBuf {
    let own = env::current_exe().unwrap();
    let deps = own.parent().unwrap();
    let newest = std::fs::read_dir(deps)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            let name = path.file_name().unwrap().to_string_lossy();
            name.starts_with("libdoorbell") && name.ends_with(".a") && !name.starts_with("libdoorbell_")
        })
        .max_by_key(|path| path.metadata().unwrap().modified().unwrap());
    newest.unwrap_or_else(|| panic!("there is no libdoorbell.a in {}", deps.display()))
}

/// Compiles `source` and links it with the library; `language` chooses the compiler.
fn build(source: &str, language: &str, flags: &[&str], directory: &Path) -> PathBuf {
    let program = directory.join(Path::new(source).file_stem().unwrap());
    let link = |libraries: &[&str]| {
        let (compiler, standard) = if language == "c" { ("cc", "-std=c11") } else { ("c++", "-std=c++17") };
        Command::new(compiler)
            .args(["-x", language, standard, "-Wall", "-Wextra", "-Wpedantic", "-Werror"])
            .args(flags)
            .arg("-I")
            .arg(here().join("include"))
            .arg("-I")
            .arg(here().join("../contract"))
            .arg(here().join(source))
            .args(["-x", "none"])
            .arg(library())
            .args(["-lstdc++", "-lz", "-lm", "-lpthread", "-ldl"])
            .args(libraries)
            .arg("-o")
            .arg(&program)
            .output()
            .expect("there is a C compiler")
    };
    // Later Verilators need LZ4.
    let mut output = link(&[]);
    if !output.status.success() {
        output = link(&["-llz4"]);
    }
    assert!(output.status.success(), "{}", text(&output));
    program
}

fn run(program: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(program);
    command.args(arguments).env("ASAN_OPTIONS", "detect_leaks=1:strict_string_checks=1");
    command.output().unwrap_or_else(|error| panic!("{}: {error}", program.display()))
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn run_sim_agrees(flags: &[&str]) {
    let directory = tempfile::tempdir().unwrap();
    let program = build("examples/run_sim.c", "c", flags, directory.path());
    for device in DEVICES {
        for options in ["", "workers=1 sq_depth=8 wait_states=3"] {
            let output = run(&program, &[device, options]);
            let text = text(&output);
            assert_eq!(output.status.code(), Some(0), "{device} {options}: {text}");
            assert!(text.ends_with(&format!("{device} and model: identical\n")), "{text}");
            assert_eq!(text.matches("status 1,").count(), 8, "{text}");
        }
    }
    // It can fail: a bit that is flipped on the way is a disagreement.
    for (device, fault) in [("model", "fault=token:20"), ("rtl", "fault=token:1:3 workers=1")] {
        if DEVICES.contains(&device) {
            let output = run(&program, &[device, fault]);
            assert_eq!(output.status.code(), Some(1), "{device}: {}", text(&output));
            assert!(text(&output).contains("DIFFERS FROM THE MODEL"), "{}", text(&output));
        }
    }
    if cfg!(feature = "vfio") {
        behind_a_socket(&program, directory.path());
    }
    let output = run(&program, &["toaster"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output).contains("DOORBELL_UNKNOWN_DEVICE: unknown device 'toaster'"), "{}", text(&output));
}

/// In a process of its own, in front of a server.
fn behind_a_socket(program: &Path, directory: &Path) {
    let socket = directory.join("function");
    let device = ModelPlatform::with_queues(1, 1).and_then(ModelPlatform::by_function).unwrap();
    let mut server = Server::new(device, std::slice::from_ref(&socket)).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| server.run(&over, |_| {}).unwrap());
        let output = run(program, &["vfio-user", &format!("socket={}", socket.display())]);
        over.store(true, Ordering::Release);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output));
        assert!(text(&output).ends_with("vfio-user and model: identical\n"), "{}", text(&output));
    });
    let output = run(program, &["pcie", "address=ffff:ff:1f.7"]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output));
    assert!(text(&output).contains("no PCI device has this address"), "{}", text(&output));
}

fn wrong_arguments_are_refused(flags: &[&str]) {
    let directory = tempfile::tempdir().unwrap();
    let program = build("tests/arguments.c", "c", flags, directory.path());
    for device in DEVICES {
        let output = run(&program, &[device]);
        assert_eq!(output.status.code(), Some(0), "{device}: {}", text(&output));
    }
}

/// Groups, versions, log-probabilities and rewards; a bit that is flipped on the way is seen.
fn rollouts_are_what_the_contract_says(flags: &[&str]) {
    let directory = tempfile::tempdir().unwrap();
    let program = build("tests/rollouts.c", "c", flags, directory.path());
    for device in DEVICES {
        // The RTL of this build has one queue pair.
        let several: &[&str] = if *device == "model" { &["queues=4 functions=2"] } else { &[] };
        for options in ["", "sq_depth=8 cq_depth=2"].iter().chain(several) {
            let output = run(&program, &[device, options]);
            assert_eq!(output.status.code(), Some(0), "{device} {options}: {}", text(&output));
        }
    }
    for fault in ["fault=token:30", "fault=completion:6:result", "fault=completion:13:flags"] {
        let output = run(&program, &["model", fault]);
        assert_eq!(output.status.code(), Some(1), "{fault}: {}", text(&output));
    }
}

/// Calls in destructors of keys, which end the program if a thread-local value of the library is gone by then.
fn any_moment_of_a_thread_will_do(flags: &[&str]) {
    let directory = tempfile::tempdir().unwrap();
    let program = build("tests/threads.c", "c", flags, directory.path());
    for device in DEVICES {
        let output = run(&program, &[device]);
        assert_eq!(output.status.code(), Some(0), "{device}: {}", text(&output));
    }
}

/// Given tokens have the log-probabilities that the oracle gives them, step by step.
fn scores_are_the_oracles(flags: &[&str]) {
    let directory = tempfile::tempdir().unwrap();
    let program = build("tests/score.c", "c", flags, directory.path());
    let image = micro_gemma();
    let path = directory.path().join("micro-gemma.doorbell");
    std::fs::write(&path, image.to_bytes()).unwrap();
    let tokens: Vec<u32> = (0..40).map(|k| (k * k + 5) % 64).collect();
    let (oracle, mut cache) = (Oracle::new(&image.model), Cache::new(&image.model));
    let scored = tokens.windows(2).map(|pair| {
        let logits = oracle.logits(&oracle.step(&mut cache, pair[0]));
        log_probability(&logits, Sharpness::ONE, pair[1])
    });
    let expected: String = [0].into_iter().chain(scored).map(|logp| format!("{logp}\n")).collect();
    let arguments: Vec<String> = tokens.iter().map(u32::to_string).collect();
    let arguments: Vec<&str> =
        [path.to_str().unwrap()].into_iter().chain(arguments.iter().map(String::as_str)).collect();
    let output = run(&program, &arguments);
    assert_eq!((output.status.code(), text(&output)), (Some(0), expected));
    let output = run(&program, &[arguments[0], "1", "64"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output).contains("token 1 is 64, beyond the vocabulary of 64"), "{}", text(&output));
}

#[test]
fn given_tokens_are_scored_from_c() {
    scores_are_the_oracles(&[]);
}

#[test]
fn given_tokens_are_scored_from_c_under_address_sanitizer() {
    scores_are_the_oracles(ASAN);
}

#[test]
fn any_moment_of_a_thread_from_c() {
    any_moment_of_a_thread_will_do(&[]);
}

#[test]
fn any_moment_of_a_thread_from_c_under_address_sanitizer() {
    any_moment_of_a_thread_will_do(ASAN);
}

#[test]
fn groups_versions_log_probabilities_and_rewards_from_c() {
    rollouts_are_what_the_contract_says(&[]);
}

#[test]
fn groups_versions_log_probabilities_and_rewards_from_c_under_address_sanitizer() {
    rollouts_are_what_the_contract_says(ASAN);
}

#[test]
fn run_sim_agrees_with_the_model() {
    run_sim_agrees(&[]);
}

#[test]
fn run_sim_agrees_with_the_model_under_address_sanitizer() {
    run_sim_agrees(ASAN);
}

#[test]
fn wrong_arguments_give_their_codes() {
    wrong_arguments_are_refused(&[]);
}

#[test]
fn wrong_arguments_and_closed_devices_are_clean_under_address_sanitizer() {
    wrong_arguments_are_refused(ASAN);
}

#[test]
fn the_header_is_cpp_too() {
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("cpp.cpp");
    let body = "int main() { return doorbell_close(nullptr) == DOORBELL_BAD_HANDLE ? 0 : 1; }";
    std::fs::write(&source, format!("#include \"doorbell.h\"\n{body}\n")).unwrap();
    let program = build(source.to_str().unwrap(), "c++", &[], directory.path());
    assert_eq!(run(&program, &[]).status.code(), Some(0));
}

#[test]
fn a_leak_is_found() {
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("leak.c");
    let body = "#include \"doorbell.h\"\n#include <string.h>\nint main(void) { doorbell_device *device;\n\
                for (int k = 0; k < 3; k++) if (doorbell_open(\"model\", 0, &device)) return 3;\n\
                char *lost = strdup(\"lost\"); lost = 0; return lost != 0; }\n";
    std::fs::write(&source, body).unwrap();
    let flags: Vec<&str> = ASAN.iter().copied().chain(["-D_GNU_SOURCE"]).collect();
    let program = build(source.to_str().unwrap(), "c", &flags, directory.path());
    let output = run(&program, &[]);
    assert_ne!(output.status.code(), Some(0));
    assert!(text(&output).contains("LeakSanitizer: detected memory leaks"), "{}", text(&output));
}
