//! `doorbell report`.

use std::path::PathBuf;
use std::process::ExitCode;

use doorbell_devices::Kind;
use doorbell_report::{Part, page};
use doorbell_verify::compare::Outcome;
use doorbell_verify::replay::ReplayFailure;

use super::compare::{self, Compared, Lives, Prepared};
use crate::failure::{DIFFERENT, Failure};
use crate::output::{self, Output};
use crate::{report, why};

/// Runs a trace on one device or several and writes one HTML page: what the workers did and what they waited for, timelines,
/// latencies, groups and their tails, the devices beside each other, and why where something went wrong. The page needs no
/// network. Ends with code 1 as compare does.
#[derive(clap::Args)]
pub struct Args {
    /// File to write
    #[arg(long, value_name = "FILE.html", default_value = "report.html")]
    out: PathBuf,
    #[command(flatten)]
    runs: compare::Runs,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let out = Output::open("report", &args.out)?;
    let Compared { prepared, outcomes } = compare::compared(&args.runs, true, Lives::Kept)?;
    let Prepared { opened, plan, .. } = &prepared;
    let reference = &outcomes[0].name;
    let verdicts: Vec<String> = outcomes.iter().map(|outcome| verdict(reference, outcome)).collect();
    let (mut parts, mut silent) = (vec![], vec![]);
    for ((outcome, verdict), &kind) in outcomes.iter().zip(&verdicts).zip(&opened.kinds) {
        let stopped = outcome.failure.as_ref().map(|failure| stopped(kind, &outcome.name, failure));
        let name = outcome.name.as_str();
        let (Some(lives), Some(counters)) = (&outcome.lives, &outcome.counters) else {
            silent.push((name, stopped.unwrap_or_default()));
            continue;
        };
        let workers = &outcome.workers[..];
        parts.push(Part {
            name,
            stopped,
            unit: unit(kind),
            wall: outcome.wall,
            lives,
            counters,
            workers,
            verdict,
        });
    }
    let mut told = String::new();
    for outcome in outcomes.iter().filter(|outcome| !outcome.agrees()) {
        told += &report::difference(reference, outcome, plan.ids());
    }
    let wrong = |outcome: &Outcome| !outcome.agrees();
    why::of_outcomes(plan, &opened.kinds, &opened.settings, &outcomes, &wrong, &mut |text: &str| {
        told += text;
        Ok::<_, Failure>(())
    })?;
    let fault = compare::planted(&opened.settings, &outcomes).filter(|fault| !fault.found);
    if let Some(fault) = &fault {
        told += &report::not_found(fault, &outcomes[0]);
    }
    out.write(page(&prepared.heading(), &parts, &silent, &told).as_bytes())?;
    output::print(&format!(
        "{}: {} devices, {} descriptors\n",
        args.out.display(),
        parts.len(),
        outcomes[0].descriptors
    ))?;
    Ok(if fault.is_none() && outcomes.iter().all(Outcome::agrees) {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(DIFFERENT)
    })
}

/// Why a device did not come to the end, on one line.
fn stopped(kind: Kind, name: &str, failure: &ReplayFailure) -> String {
    let why = why::hang(kind, name, failure);
    let root = why.lines().next().and_then(|line| line.split_once(": ")?.1.split_once(": "));
    root.map_or_else(|| failure.to_string(), |(_, root)| root.to_owned())
}

/// What a tick of a device's clock is.
fn unit(kind: Kind) -> &'static str {
    match kind {
        Kind::Rtl => "cycles",
        Kind::Gpu => "ns",
        Kind::Model | Kind::VfioUser | Kind::Pcie => "ticks",
    }
}

fn verdict(reference: &str, outcome: &Outcome) -> String {
    match outcome {
        _ if outcome.failure.is_some() => "did not finish".into(),
        _ if !outcome.agrees() => format!("differs in {} rollouts", outcome.differing),
        _ if outcome.name == reference => "keeps the rules".into(),
        _ => format!("as {reference}"),
    }
}
