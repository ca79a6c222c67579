//! The hot thread under watch.

use doorbell_guard::{Facts, PrefaultOptions, SystemCallGuard, Watch, prefault};
use doorbell_runtime::pipeline::{Feed, Next, Pipeline, RuntimeError, Source};

use crate::signals::Signals;

/// Runs the feed, and watches the calling thread from the moment at which `warm_up` rollouts have ended. The facts are an
/// error if the thread could not be watched at all, or nothing was left to watch.
pub fn run(
    pipeline: &mut Pipeline,
    feed: &mut Feed<'_>,
    warm_up: u64,
    signals: &Signals,
) -> (Result<(), RuntimeError>, Option<Result<Facts, String>>) {
    // What is not resident now would be a fault later. What could not be made so is counted then.
    prefault(PrefaultOptions::default());
    let mut guard = SystemCallGuard::install();
    let warm = pipeline.run(feed, |pipeline| signals.come() || pipeline.ended() >= warm_up);
    if warm.is_err() {
        return (warm, None);
    }
    if signals.come() {
        return (warm, Some(Err("a signal came in the warm-up".into())));
    }
    if matches!(feed.next(), Next::End) && pipeline.is_idle() {
        let reason = "all rollouts ended in the warm-up; give a longer trace, or a smaller --warm-up";
        return (warm, Some(Err(reason.into())));
    }
    let watch = match Watch::begin(&mut guard) {
        Ok(watch) => watch,
        Err(error) => return (pipeline.run(feed, |_| signals.come()), Some(Err(error.to_string()))),
    };
    let result = pipeline.run(feed, |_| signals.come());
    let facts = watch.end();
    pipeline.metrics().counters.hot.hotpath_mallocs_caught.add(facts.allocations);
    (result, Some(Ok(facts)))
}
