//! What a run stores about itself beside its trajectories.

use std::path::Path;
use std::time::SystemTime;

use doorbell_runtime::trajectory::log::{NextRun, Piece, Reader, Run, runs};

use super::Args;
use crate::failure::Failure;
use crate::output;

/// The seed that a run has if none is given, and nothing was stored before.
const SEED: u32 = 1;

/// The seed of a run: the given one, or the first that no run in the log had, so that a run repeats another one's draws only if asked to.
pub fn seed(given: Option<u32>, store: Option<&Path>) -> Result<u32, Failure> {
    let (None, Some(directory)) = (given, store) else { return Ok(given.unwrap_or(SEED)) };
    let noted = runs(directory).map_err(Failure::input)?;
    // Programs that noted no runs had this seed by default.
    let first = noted.first().map_or(u64::MAX, |run| run.first);
    let mut records = Reader::open(directory).into_iter().flatten().filter_map(|piece| match piece {
        Ok(Piece::Record(record)) => Some(record.number),
        _ => None,
    });
    let older = first > 0 && records.next().is_some_and(|number| number < first);
    let had = |seed: u32| older && seed == SEED || noted.iter().any(|run| run.seed == u64::from(seed));
    Ok((SEED..=u32::MAX).find(|&seed| !had(seed)).unwrap_or(SEED))
}

/// Notes the run in its log, and says so if it repeats the draws of an earlier one.
pub fn note(args: &Args, next: NextRun, directory: &Path, device: &str) -> Result<Run, Failure> {
    let seed = args.seed.into();
    let earlier = runs(directory).map_err(Failure::input)?;
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let run = Run {
        started_ms: since.as_millis() as u64,
        seed,
        doorbell: env!("CARGO_PKG_VERSION").to_owned(),
        device: device.to_owned(),
        model: args.model.clone(),
        arguments: std::env::args_os()
            .skip(1)
            .map(|argument| argument.to_string_lossy().into_owned())
            .collect(),
        ..Run::default()
    };
    let run = next.begin(run).map_err(Failure::input)?;
    let name = directory.display();
    if let Some(same) = earlier.iter().rev().find(|run| run.seed == seed) {
        output::tell(format_args!(
            "{name}: run {} had the seed {seed} too: requests that are the same draw the same; leave --seed out, or give another, for other \
             draws",
            same.run
        ));
    }
    Ok(run)
}
