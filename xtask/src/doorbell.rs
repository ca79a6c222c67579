//! `cargo xtask cosim` and `compare`: the program `doorbell`, built and run.

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::Result;

use doorbell_setup::shell;

/// What `compare` needs of the program; the rest takes several times as long to build. The Makefile says the same.
const COMPARE: [&str; 3] = ["--no-default-features", "--features", "rtl,gpu"];
/// With several queue pairs, the RTL that has them too.
const COMPARE_SEVERAL: [&str; 3] = ["--no-default-features", "--features", "rtl,gpu,variants"];

/// What `cosim` and `wave` need of the program: with it, a changed line of the RTL verilates and compiles one device and not all six.
const COSIM: [&str; 3] = ["--no-default-features", "--features", "cosim"];
/// What `wave --model` needs beside that, and its device: the one with a language model's engine.
const WAVE_MODEL: [&str; 3] = ["--no-default-features", "--features", "cosim,lm"];
const WAVE_MODEL_DEVICE: &str = "8npu";
/// The variable that names the devices that are built, by their workers.
const WORKERS: &str = "DOORBELL_RTL_WORKERS";
/// Workers of the device that `cosim` runs on where `--workers` does not say; the program says the same.
const COSIM_WORKERS: &str = "4";

/// The number of workers that the arguments of `cosim` ask for.
fn workers(args: &[String]) -> &str {
    let behind = |(at, arg): (usize, &String)| match arg.as_str() {
        "--workers" => args.get(at + 1).map(String::as_str),
        _ => args[at].strip_prefix("--workers="),
    };
    args.iter().enumerate().find_map(behind).unwrap_or(COSIM_WORKERS)
}

/// Builds `doorbell` and runs `doorbell <subcommand> <args>`; its exit code is the result.
///
/// # Errors
/// When cargo cannot be started.
pub fn forward(root: &Path, subcommand: &str, args: &[String]) -> Result<ExitCode> {
    shell::forward(&mut command(root, subcommand, args))
}

/// Runs where the caller stands: paths in `args` are relative to that.
fn command(root: &Path, subcommand: &str, args: &[String]) -> Command {
    let mut command = shell::cargo(Path::new("."), &["run", "--release", "--package", "doorbell"]);
    match subcommand {
        "compare" => {
            let several = args.iter().any(|arg| arg.contains("queues") || arg.contains("chaos"));
            command.args(if several { COMPARE_SEVERAL } else { COMPARE });
        }
        "cosim" | "wave" => {
            let is_model = args.iter().any(|arg| arg == "--model" || arg.starts_with("--model="));
            let (features, device) =
                if is_model { (WAVE_MODEL, WAVE_MODEL_DEVICE) } else { (COSIM, workers(args)) };
            command.args(features);
            if std::env::var_os(WORKERS).is_none() {
                command.env(WORKERS, device);
            }
        }
        _ => {}
    }
    command.arg("--manifest-path").arg(root.join("Cargo.toml")).args(["--", subcommand]).args(args);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comparison_of_several_queue_pairs_builds_the_rtl_that_has_them() {
        let features = |args: &[&str]| {
            let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
            let command = command(Path::new("."), "compare", &args);
            command.get_args().any(|arg| arg == COMPARE_SEVERAL[2])
        };
        assert!(!features(&["--trace", "x.jsonl"]));
        assert!(features(&["--queues", "4"]) && features(&["--queues=4"]));
        assert!(features(&["--devices", "model,rtl:queues=4"]));
        assert!(features(&["--chaos", "7"]));
    }

    #[test]
    fn a_case_of_cosim_builds_the_one_device_that_it_runs_on() {
        let words = |args: &[&str]| {
            let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
            workers(&args).to_owned()
        };
        assert_eq!(words(&["basic decode"]), "4");
        assert_eq!(words(&["--workers", "16", "basic decode"]), "16");
        assert_eq!(words(&["--workers=1"]), "1");
        let command = command(Path::new("."), "cosim", &[]);
        assert!(command.get_args().any(|arg| arg == "--no-default-features"));
    }

    /// A program of the default features has no `wave`.
    #[test]
    fn a_wave_builds_a_program_that_can_record_it() {
        let built = |args: &[&str]| {
            let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
            let command = command(Path::new("."), "wave", &args);
            let features = command.get_args().skip_while(|arg| *arg != "--features").nth(1).unwrap();
            let device = command.get_envs().find(|(name, _)| *name == WORKERS).and_then(|(_, value)| value);
            [features, device.unwrap()].map(|text| text.to_str().unwrap().to_owned())
        };
        assert_eq!(built(&["basic decode", "--png", "x.png"]), ["cosim", "4"]);
        assert_eq!(built(&["basic decode", "--workers", "2"]), ["cosim", "2"]);
        assert_eq!(built(&["--model", "micro"]), ["cosim,lm", "8npu"]);
        assert_eq!(built(&["--model=micro"]), ["cosim,lm", "8npu"]);
    }
}
