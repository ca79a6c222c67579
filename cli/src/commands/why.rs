//! `doorbell why`.

use std::fmt;
use std::process::ExitCode;

use doorbell_contract::Opcode;
use doorbell_verify::compare::Outcome;
use doorbell_verify::life;

use super::compare::{self, Compared, Lives, Prepared};
use crate::busy::Busy;
use crate::failure::{DIFFERENT, Failure};
use crate::{output, report, why};

/// Says why: the life of one descriptor on each device, side by side, with what held it; or of a run that went wrong, who
/// waits for whom down to the root, and the life of the first descriptor that differs. Takes the options of compare, and runs
/// what they say. Without a descriptor it ends with code 1 if something went wrong.
#[derive(clap::Args)]
pub struct Args {
    /// A descriptor: a rollout's number, and after a colon which of its descriptors: 12 or 12:0 is the first, 12:1 the one that
    /// goes on after its first checkpoint, 12:stop its STOP; by default, what went wrong
    #[arg(value_name = "ROLLOUT[:PART]")]
    descriptor: Option<Name>,
    /// Only devices that stopped answering
    #[arg(long, conflicts_with = "descriptor")]
    hang: bool,
    /// Only devices that differ from the first
    #[arg(long, conflicts_with_all = ["descriptor", "hang"])]
    divergence: bool,
    #[command(flatten)]
    runs: compare::Runs,
}

/// A descriptor of a plan, by rollout and part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Name {
    rollout: u32,
    part: Part,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Segment(u32),
    Stop,
}

impl std::str::FromStr for Name {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected =
            || "expected a rollout's number, as 12, or one of its descriptors, as 12:1 or 12:stop".to_owned();
        let (rollout, part) = text.split_once(':').unwrap_or((text, "0"));
        let part = match part {
            "stop" => Part::Stop,
            segment => Part::Segment(segment.parse().map_err(|_| expected())?),
        };
        Ok(Name { rollout: rollout.parse().map_err(|_| expected())?, part })
    }
}

impl Name {
    /// The `user_data` of that descriptor, among those that were submitted.
    ///
    /// # Errors
    /// Which of its rollout there are.
    fn find(self, lives: &life::Lives) -> Result<u64, Vec<Part>> {
        let mut others = vec![];
        for life in lives.of_rollout(self.rollout) {
            let segment = life.desc.user_data as u32;
            let part =
                if life.desc.opcode == Opcode::Stop as u8 { Part::Stop } else { Part::Segment(segment) };
            if part == self.part {
                return Ok(life.desc.user_data);
            }
            others.push(part);
        }
        Err(others)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.part {
            Part::Segment(segment) => write!(f, "{}:{segment}", self.rollout),
            Part::Stop => write!(f, "{}:stop", self.rollout),
        }
    }
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    match args.descriptor {
        Some(name) => of_descriptor(args, name),
        None => what_went_wrong(args),
    }
}

/// The life of one descriptor.
fn of_descriptor(args: &Args, name: Name) -> Result<ExitCode, Failure> {
    let Prepared { plan, mut opened, .. } = compare::prepare(&args.runs, true, Lives::Dropped)?;
    opened.devices.clear();
    let ids = plan.ids();
    if name.rollout >= ids {
        return Err(Failure::input(format!(
            "there is no rollout {}: this plan has rollouts 0 to {}",
            name.rollout,
            ids - 1
        )));
    }
    let enough = |lives: &life::Lives| name.find(lives).is_ok_and(|user_data| lives.is_told(user_data));
    let ran = Busy::during("running the plan", || why::run(&plan, &opened.kinds, &opened.settings, &enough))?;
    let found: Vec<_> = ran.iter().map(|ran| name.find(ran.lives())).collect();
    let Some(user_data) = found.iter().find_map(|found| found.as_ref().ok()) else {
        let mut others: Vec<Part> = found.into_iter().filter_map(Result::err).flatten().collect();
        others.sort_unstable();
        others.dedup();
        let others: Vec<String> = others.into_iter().map(|part| Name { part, ..name }.to_string()).collect();
        let there = if others.is_empty() { "none".to_owned() } else { others.join(", ") };
        return Err(Failure::input(format!(
            "no descriptor {name} was submitted; of rollout {}: {there}",
            name.rollout
        )));
    };
    output::print(&why::life(&ran, *user_data))?;
    for ran in &ran {
        output::print(&why::ended(ran))?;
    }
    Ok(if ran.iter().any(why::Ran::failed) { ExitCode::from(DIFFERENT) } else { ExitCode::SUCCESS })
}

/// Who waits for whom, and what differs.
fn what_went_wrong(args: &Args) -> Result<ExitCode, Failure> {
    let Compared { prepared: Prepared { plan, opened, .. }, outcomes } =
        compare::compared(&args.runs, args.hang, Lives::Dropped)?;
    let wanted = |outcome: &Outcome| {
        let fits = if args.hang {
            outcome.failure.is_some()
        } else {
            !args.divergence || outcome.divergence.is_some() || outcome.rerun.is_some()
        };
        !outcome.agrees() && fits
    };
    if let Some(fault) = compare::planted(&opened.settings, &outcomes).filter(|fault| !fault.found) {
        output::print(&report::not_found(&fault, &outcomes[0]))?;
        return Ok(ExitCode::from(DIFFERENT));
    }
    if !outcomes.iter().any(wanted) {
        let names: Vec<&str> = outcomes.iter().map(|outcome| outcome.name.as_str()).collect();
        let what = match (args.hang, args.divergence) {
            (true, _) => "no device stopped answering",
            (_, true) => "no device differs from the first",
            _ => "no device differs from the first or stopped answering",
        };
        output::print(&format!("{what}: {}\n", names.join(", ")))?;
        return Ok(ExitCode::SUCCESS);
    }
    let reference = &outcomes[0].name;
    for outcome in outcomes.iter().filter(|outcome| wanted(outcome)) {
        output::print(&report::difference(reference, outcome, plan.ids()))?;
    }
    why::of_outcomes(&plan, &opened.kinds, &opened.settings, &outcomes, &wanted, &mut output::print)?;
    Ok(ExitCode::from(DIFFERENT))
}
