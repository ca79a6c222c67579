//! `cargo xtask chaos`: the long run of chaos, seed by seed, on the program `doorbell`.

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::Result;

use doorbell_setup::{shell, target};

/// Rounds of a seed.
const ROUNDS: u64 = 4;

/// What is run.
#[derive(clap::Args)]
pub struct Options {
    /// Seeds
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// The first of them: a run that was broken off goes on there
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    from: u64,
    /// Descriptors on each device, all seeds together
    #[arg(long, value_name = "N", default_value_t = 10_000_000)]
    descriptors: u64,
    /// Devices to run
    #[arg(long, value_name = "NAME,NAME", default_value = "model,rtl")]
    devices: String,
    /// Seeds that run side by side
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    jobs: u16,
}

/// Builds `doorbell` and gives it all seeds; its exit code is the result.
///
/// # Errors
/// When it does not build or cannot be started.
pub fn run(root: &Path, options: &Options) -> Result<ExitCode> {
    let build = ["build", "--release", "--package", "doorbell", "--no-default-features", "--features"];
    let mut build = shell::cargo(root, &build);
    build.arg("rtl,gpu,doorbell-cosim/variants");
    shell::run(&mut build)?;
    let mut command = command(&target(root).join("release").join("doorbell"), options);
    println!("$ {}", shell::shown(&command));
    shell::forward(&mut command)
}

fn command(program: &Path, options: &Options) -> Command {
    let each = options.descriptors.div_ceil(options.seeds.saturating_mul(ROUNDS)).max(1);
    let mut command = Command::new(program);
    command.args(["compare", "--devices", &options.devices, "--chaos-shapes"]);
    for (name, value) in [
        ("--chaos", options.from),
        ("--chaos-seeds", options.seeds),
        ("--chaos-rounds", ROUNDS),
        ("--chaos-descriptors", each),
        ("--chaos-jobs", options.jobs.into()),
    ] {
        command.arg(name).arg(value.to_string());
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seeds_share_the_descriptors() {
        let options =
            Options { seeds: 1000, from: 7, descriptors: 10_000_000, devices: "model,rtl".into(), jobs: 2 };
        assert_eq!(
            shell::shown(&command(Path::new("doorbell"), &options)),
            "doorbell compare --devices model,rtl --chaos-shapes --chaos 7 --chaos-seeds 1000 --chaos-rounds 4 \
             --chaos-descriptors 2500 --chaos-jobs 2"
        );
        let most = Options { seeds: u64::MAX, descriptors: 1, ..options };
        assert!(shell::shown(&command(Path::new("doorbell"), &most)).contains("--chaos-descriptors 1 "));
    }
}
