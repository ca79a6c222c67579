//! What `cargo xtask vm --long` shows of a guest, one guest after the other.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::guest::Round;
use super::stage::{Kit, Scene, Stage, address};
use super::{Options, endless, kill_guest, play, require_ends, require_success, rounds, trace};
use crate::steps::Steps;
use doorbell_setup::shell;

/// Of DECODEs that are slept for, one at a time.
const SLEEPS: u32 = 100_000;
/// What tiny goes on with, as a shell reads it.
const PROMPT: &str = "'Once upon a time'";
/// Of a guest whose server was killed: Linux waits for a function that does not come back.
const PATIENCE: Duration = Duration::from_secs(400);

/// Runs all of it.
///
/// # Errors
/// When a part fails; the others run all the same.
pub fn run(root: &Path, kit: &Kit, options: &Options) -> Result<()> {
    let programs = programs(root, kit)?;
    let time = Duration::from_secs(options.time);
    let trace = trace(options);
    let scene = |functions, rounds| Scene {
        serve: vec!["--device".to_owned(), options.device.clone()],
        functions,
        rounds,
        programs: &programs,
        trace: options.trace.as_deref(),
        time,
    };
    let one = |start: String| Round { starts: vec![start], meanwhile: vec![] };
    let own = address(0);
    let mut steps = Steps::new("vm --long");
    let mut part = |name: String, play: &dyn Fn() -> Result<()>| {
        if options.only.as_ref().is_none_or(|only| name.contains(only.as_str())) {
            steps.run(name, play);
        }
    };
    for functions in [1, 4] {
        part(format!("compare on {functions}"), &|| {
            let scene = scene(functions, rounds(functions, options.limit, &trace));
            require_success(&scene, &play(kit, &scene)?)
        });
    }
    for (name, start) in [
        ("conformance", format!("guest conformance {own}")),
        ("sleeps", format!("guest sleeps {own} {SLEEPS}")),
        ("run_sim from C", format!("run_sim pcie address={own}")),
    ] {
        part(name.to_owned(), &|| {
            let scene = scene(1, vec![one(start.clone())]);
            require_ends(&scene, &play(kit, &scene)?)
        });
    }
    part("generate".to_owned(), &|| generate(kit, scene(1, vec![])));
    part("reset under load".to_owned(), &|| reset_under_load(kit, &scene(2, reset_rounds(&trace))));
    part("guest killed".to_owned(), &|| kill_guest(kit, &scene(1, vec![one(endless(0, &trace))])));
    part("server killed".to_owned(), &|| {
        kill_server(kit, &Scene { time: PATIENCE, ..scene(1, vec![one(endless(0, &trace))]) })
    });
    steps.finish()
}

/// What runs in the guest beside `doorbell`, built for it.
fn programs(root: &Path, kit: &Kit) -> Result<Vec<PathBuf>> {
    let target = doorbell_setup::target(root);
    let example = ["build", "--release", "--package", "doorbell-vfio", "--example", "guest"];
    shell::run(&mut shell::cargo(root, &example))?;
    let library =
        ["build", "--release", "--package", "doorbell-capi", "--no-default-features", "--features", "vfio"];
    shell::run(&mut shell::cargo(root, &library))?;
    let run_sim = kit.folder.join("run_sim");
    let mut compile = Command::new("cc");
    compile.args(["-std=c11", "-O2", "-I"]).arg(root.join("capi/include"));
    compile.arg("-I").arg(root.join("contract")).arg(root.join("capi/examples/run_sim.c"));
    compile.arg(target.join("release/libdoorbell.a")).args(["-lm", "-lpthread", "-ldl", "-o"]).arg(&run_sim);
    shell::run(&mut compile)?;
    Ok(vec![target.join("release/examples/guest"), run_sim])
}

/// In the guest tiny says what the golden model makes it say on this machine.
fn generate(kit: &Kit, mut scene: Scene<'_>) -> Result<()> {
    const TOKENS: &str = "--tokens 64 --logprobs";
    let mut native = Command::new("sh");
    let line = format!("\"$0\" generate --device model {TOKENS} {PROMPT}");
    native.arg("-c").arg(line).arg(&kit.program);
    let native = native.output().context("cannot run sh")?;
    ensure!(native.status.success(), "{}", String::from_utf8_lossy(&native.stderr));
    let native = String::from_utf8_lossy(&native.stdout);
    let tokens = native.lines().count();
    ensure!(tokens >= 64, "the golden model gave {tokens} lines of tokens:\n{native}");
    scene.serve.push("--language".to_owned());
    let start = format!("doorbell generate --device pcie:{} {TOKENS} {PROMPT}", address(0));
    scene.rounds = vec![Round { starts: vec![start], meanwhile: vec![] }];
    let told = play(kit, &scene)?;
    ensure!(told.ends == [0], "it ended with {:?}", told.ends);
    ensure!(told.guest.contains(native.trim()), "the guest's tokens are not the golden model's:\n{native}");
    println!("vm: the guest's {tokens} lines of tokens are the golden model's");
    Ok(())
}

/// One function is reset while its driver runs and its neighbour is compared over and over; then it is compared itself.
fn reset_rounds(trace: &str) -> Vec<Round> {
    let [loaded, neighbour] = [0, 1].map(address);
    let compare =
        |address: &str| format!("doorbell compare --devices model,pcie:{address} --limit 500{trace}");
    let again = format!("sh -c 'for k in 1 2 3 4 5 6 7 8; do {} || exit 1; done'", compare(&neighbour));
    let under_load = Round {
        starts: vec![endless(0, trace), again],
        meanwhile: vec!["sleep 2".to_owned(), format!("reset_function {loaded}")],
    };
    vec![under_load, Round { starts: vec![compare(&loaded)], meanwhile: vec![] }]
}

fn reset_under_load(kit: &Kit, scene: &Scene<'_>) -> Result<()> {
    let told = play(kit, scene)?;
    ensure!(told.guest.contains(&format!("vm: {} was reset", address(0))), "the function was not reset");
    // The driver that was reset says so; its neighbour notices nothing, and the next driver finds the function as new.
    ensure!(
        matches!(told.ends[..], [1, 0, 0]) && told.guest.contains("the function was reset; open it again"),
        "the driver that was reset, its neighbour and the next driver ended with {:?}",
        told.ends
    );
    Ok(())
}

/// The server goes while a driver sleeps: QEMU ends, or the driver does, with a message that names the cause.
fn kill_server(kit: &Kit, scene: &Scene<'_>) -> Result<()> {
    let mut stage = Stage::open(kit, scene)?;
    stage.wait_until_under_way()?;
    stage.kill_server();
    let told = stage.finish()?;
    println!("vm: its program ended with {:?}", told.ends);
    ensure!(
        told.ends.is_empty() || told.guest.contains("has gone from the bus"),
        "the driver ended without a word on its device"
    );
    Ok(())
}
