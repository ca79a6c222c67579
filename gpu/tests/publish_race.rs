//! R12, R19: a POLICY and the end of another queue pair's session, on the kernel's text on the CPU, by a host of its own
//! (`publish_race.cpp`), which looks at nothing but the kernel's memory. With `DOORBELL_KERNEL_TSAN=1` under ThreadSanitizer.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use rstest::rstest;

/// Layers of the model that is read: so many that a step lasts while the other queue pair publishes.
const LAYERS: &str = "500";

fn is_instrumented() -> bool {
    std::env::var("DOORBELL_KERNEL_TSAN").is_ok_and(|value| value == "1")
}

/// The program, compiled once in a run of the tests.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let out = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let name = if is_instrumented() { "publish_race_tsan" } else { "publish_race" };
        let (object, program) = (out.join(format!("{name}_runtime.o")), out.join(name));
        let compiler = || {
            let mut command = Command::new(std::env::var_os("CXX").unwrap_or_else(|| "c++".into()));
            command.args(["-std=c++17", "-O1", "-fno-exceptions", "-fno-strict-aliasing", "-w"]);
            for include in ["gpu/cpu/kernel", "gpu/kernels", "contract"] {
                command.arg("-I").arg(root.join(include));
            }
            if is_instrumented() {
                command.arg("-DDOORBELL_TSAN");
            }
            command
        };
        // What switches between lanes tells ThreadSanitizer of it, and is not instrumented.
        let mut runtime = compiler();
        run(runtime.arg("-c").arg(root.join("gpu/cpu/kernel/runtime.cpp")).arg("-o").arg(&object));
        let mut linked = compiler();
        if is_instrumented() {
            linked.arg("-fsanitize=thread");
        }
        let source = root.join("gpu/tests/publish_race.cpp");
        run(linked.arg(source).arg(&object).arg("-o").arg(&program).arg("-lpthread"));
        program
    })
}

fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"));
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success(), "{command:?}: {}\n{out}{err}", output.status);
    output
}

/// What the other queue pair does when the POLICY comes, and the model that it publishes: of the same shape, of another, with wider
/// layers, with a directory that points nowhere.
#[rstest]
#[case("disable", "same")]
#[case("disable", "other")]
#[case("disable", "wide")]
#[case("disable", "hostile")]
// Where the models do not meet, two of them are enough: the nearest and the furthest.
#[case("busy", "same")]
#[case("busy", "hostile")]
#[case("after", "same")]
#[case("after", "hostile")]
fn r19_a_publish_waits_for_the_rollouts_of_a_session_at_its_end(#[case] mode: &str, #[case] model: &str) {
    let mut command = Command::new(program());
    command.args([mode, model, LAYERS]).env("TSAN_OPTIONS", "halt_on_error=1");
    let output = run(&mut command);
    let text = String::from_utf8_lossy(&output.stdout);
    let expected = match mode {
        // POLICY_BUSY: its rollout runs.
        "busy" => "POLICY v3: completed, status ff error 0d; B's session is running",
        _ => "POLICY v3: completed, status 01 error 00; B's session is over (reached)",
    };
    assert!(text.contains(expected) && !text.contains("complaint"), "{text}");
}

/// Layers of a model that takes a while to be brought.
const MANY_LAYERS: &str = "4000";
/// The same where steps of it are made as well.
fn some_layers() -> &'static str {
    if is_instrumented() { "300" } else { "1000" }
}

/// Status of a run that shows nothing, `kNotJudged` of `publish_race.cpp`.
const NOT_JUDGED: i32 = 3;
/// Runs until one shows something.
const TRIES: u32 = 6;

/// R19: nobody else of the function is held while the model of a POLICY is brought. R12: nor does the end of the session wait for it, and
/// what was resident stays so.
#[rstest]
#[case::others_decode("beside", "DECODEs while A brought a model")]
#[case::the_session_ends("cut", "A's session ended")]
fn r19_a_model_is_brought_beside_those_that_run(#[case] mode: &str, #[case] expected: &str) {
    let layers = if mode == "cut" { some_layers() } else { MANY_LAYERS };
    // Whether the session ends before the model is there depends on when the machine runs the kernel's threads. A kernel in
    // which the end waits for the model fails each time.
    let judged = (0..TRIES).find_map(|_| {
        let mut command = Command::new(program());
        let output =
            command.args([mode, "same", layers]).env("TSAN_OPTIONS", "halt_on_error=1").output().unwrap();
        (output.status.code() != Some(NOT_JUDGED)).then_some(output)
    });
    let output = judged
        .unwrap_or_else(|| panic!("in none of {TRIES} runs the session ended before the model was there"));
    let text = String::from_utf8_lossy(&output.stdout);
    let is_right = output.status.success() && text.contains(expected) && !text.contains("complaint");
    assert!(is_right, "{}: {text}{}", output.status, String::from_utf8_lossy(&output.stderr));
}

/// A model that is brought in the place of a version, or published before all of it is there.
#[rstest]
fn what_is_planted_in_a_load_is_noticed(#[values("LoadsInPlace", "TakesUnfinished")] fault: &str) {
    if is_instrumented() {
        return;
    }
    for _ in 0..TRIES {
        let mut command = Command::new(program());
        let output =
            command.args(["cut", "same", some_layers()]).env("DOORBELL_FAULT", fault).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        match output.status.code() {
            Some(NOT_JUDGED) => {}
            Some(0) => panic!("{fault} is not noticed: {text}"),
            _ => return,
        }
    }
    panic!("in none of {TRIES} runs the session ended before the model was there");
}
