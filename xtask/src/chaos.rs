//! `cargo xtask chaos`: the long run of chaos, seed by seed, on the program `doorbell`.

use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};

use doorbell_setup::shell;

/// Rounds of a seed.
const ROUNDS: u64 = 4;
/// Devices of a seed: queue pairs, functions and workers of the RTL, in turn.
const SHAPES: [[u32; 3]; 4] = [[4, 4, 4], [1, 1, 4], [16, 4, 16], [1, 1, 1]];

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
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    jobs: u64,
}

/// Builds `doorbell` and gives it seed after seed.
///
/// # Errors
/// When a rule was broken, with seed, rule and how to repeat it.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    let build = ["build", "--release", "--package", "doorbell", "--no-default-features", "--features"];
    let mut build = shell::cargo(root, &build);
    build.arg("rtl,gpu,doorbell-cosim/variants");
    shell::run(&mut build)?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), Into::into);
    let program = target.join("release").join("doorbell");
    let (next, start) = (AtomicU64::new(options.from), Instant::now());
    let end = options.from.saturating_add(options.seeds);
    let done = Mutex::new((0u64, Vec::<(String, Totals)>::new()));
    let failed = Mutex::new(Vec::<String>::new());
    thread::scope(|scope| {
        for _ in 0..options.jobs {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end || failed.lock().is_ok_and(|failed| !failed.is_empty()) {
                        return;
                    }
                    let result = one_seed(&program, seed, options);
                    match result {
                        Ok(totals) => add(&done, totals, seed, end, start),
                        Err(error) => failed.lock().expect("no thread panics").push(format!("{error:#}")),
                    }
                }
            });
        }
    });
    let (seeds, totals) = done.into_inner().expect("no thread panics");
    println!("\n{seeds} seeds in {:.0} s", start.elapsed().as_secs_f64());
    for (device, total) in &totals {
        println!(
            "{device}: {} descriptors, {} lost to bus errors, {} cancelled",
            total.descriptors, total.lost, total.cancelled
        );
    }
    let failed = failed.into_inner().expect("no thread panics");
    if !failed.is_empty() {
        bail!("chaos broke a rule:\n{}", failed.join("\n"));
    }
    println!("every rule held: none doubled, none wrong, nothing written outside, no hang");
    Ok(())
}

/// What a device counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Totals {
    descriptors: u64,
    lost: u64,
    cancelled: u64,
}

type Done = Mutex<(u64, Vec<(String, Totals)>)>;

fn add(done: &Done, totals: Vec<(String, Totals)>, seed: u64, end: u64, start: Instant) {
    let mut done = done.lock().expect("no thread panics");
    done.0 += 1;
    for (device, one) in totals {
        let sum = match done.1.iter_mut().position(|(name, _)| *name == device) {
            Some(at) => &mut done.1[at].1,
            None => {
                done.1.push((device, Totals::default()));
                &mut done.1.last_mut().expect("one was pushed").1
            }
        };
        sum.descriptors += one.descriptors;
        sum.lost += one.lost;
        sum.cancelled += one.cancelled;
    }
    if done.0.is_multiple_of(20) {
        let sums: Vec<String> =
            done.1.iter().map(|(device, total)| format!("{device} {}", total.descriptors)).collect();
        let seconds = start.elapsed().as_secs_f64();
        println!("{} seeds, the last {seed} of {end}, {seconds:.0} s: {}", done.0, sums.join(", "));
        // A run that is broken off has said how far it came.
        let _ = std::io::stdout().flush();
    }
}

fn one_seed(program: &Path, seed: u64, options: &Options) -> Result<Vec<(String, Totals)>> {
    let [queues, functions, workers] = SHAPES[(seed % SHAPES.len() as u64) as usize];
    let each = options.descriptors.div_ceil(options.seeds * ROUNDS).max(1);
    let mut command = Command::new(program);
    command.args(["compare", "--chaos", &seed.to_string(), "--devices", &options.devices]);
    for (name, value) in [
        ("--chaos-rounds", ROUNDS),
        ("--chaos-descriptors", each),
        ("--queues", queues.into()),
        ("--functions", functions.into()),
        ("--workers", workers.into()),
    ] {
        command.arg(name).arg(value.to_string());
    }
    command.arg("--wave").arg(std::env::temp_dir().join(format!("chaos-{seed}.fst")));
    let output = command.output().with_context(|| format!("cannot run {}", program.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let verdicts = text.lines().skip_while(|line| line.starts_with('|')).collect::<Vec<_>>().join("\n");
    ensure!(
        output.status.success(),
        "{}\n{verdicts}{}",
        shell::shown(&command),
        String::from_utf8_lossy(&output.stderr)
    );
    let totals: Vec<(String, Totals)> = verdicts.lines().filter_map(totals).collect();
    ensure!(!totals.is_empty(), "{} said nothing: {text}", shell::shown(&command));
    Ok(totals)
}

/// Reads the line that a device ends with.
fn totals(line: &str) -> Option<(String, Totals)> {
    let (device, rest) = line.split_once(": every rule held: ")?;
    let mut numbers = rest.split(", ").filter_map(|part| part.split(' ').next()?.parse().ok());
    let totals = Totals { descriptors: numbers.next()?, lost: numbers.next()?, cancelled: numbers.next()? };
    Some((device.to_owned(), totals))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_of_a_device_is_read() {
        let line = "rtl: every rule held: 2018 descriptors, 26 lost to bus errors, 736 cancelled, none doubled, none wrong";
        let expected = Totals { descriptors: 2018, lost: 26, cancelled: 736 };
        assert_eq!(totals(line), Some(("rtl".to_owned(), expected)));
        assert_eq!(totals("rtl: seed 2, round 3: R12: …"), None);
    }

    #[test]
    #[cfg(unix)]
    fn a_broken_rule_and_silence_are_failures() {
        let options = Options { seeds: 1, from: 0, descriptors: 1, devices: "model".into(), jobs: 1 };
        for program in ["/bin/false", "/bin/true", "/nowhere/doorbell"] {
            assert!(one_seed(Path::new(program), 0, &options).is_err(), "{program}");
        }
    }
}
