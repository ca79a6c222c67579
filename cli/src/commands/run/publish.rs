//! Publishing versions of the policy while rollouts run.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use clap::ValueEnum;
use doorbell_contract::{GOLDEN, PolicyMode, mix};
use doorbell_runtime::metrics::Metrics;
use doorbell_runtime::pipeline::{PublishAnswer, Publisher};

use super::language::Publishing;
use super::{Args, report};

/// How often the publisher looks how many rollouts have ended.
const LOOK: Duration = Duration::from_micros(100);

/// What becomes of rollouts under the version before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// They end under it.
    Wait,
    /// They go on under the new one.
    Keep,
    /// They are aborted.
    Abort,
}

impl From<Mode> for PolicyMode {
    fn from(mode: Mode) -> PolicyMode {
        match mode {
            Mode::Wait => PolicyMode::Wait,
            Mode::Keep => PolicyMode::Keep,
            Mode::Abort => PolicyMode::Abort,
        }
    }
}

/// Publishes a version each time that enough rollouts have ended, one after the other, until the run is over. Says why one was
/// refused: then no other is published. With a language model the first is due at once, as nothing runs without it.
pub fn run(
    mut publisher: Publisher,
    mut publishing: Option<Publishing>,
    args: &Args,
    metrics: &Metrics,
    over: &AtomicBool,
) -> Option<String> {
    let mut version = 0u16;
    let mut due = if publishing.is_some() { 0 } else { args.publish_every };
    while !over.load(Ordering::Acquire) {
        match publisher.answer() {
            Some((version, PublishAnswer::Refused(refusal))) => {
                return Some(format!("version {version} was not published: {refusal}"));
            }
            Some((_, PublishAnswer::Resident)) => publishing.iter_mut().for_each(Publishing::published),
            None => {}
        }
        if due > 0 && args.publish_every == 0 && publisher.awaited() == 0 {
            return None;
        }
        if publisher.awaited() > 0 || report::ended(&metrics.counters.values()) < due {
            thread::sleep(LOOK);
            continue;
        }
        version = version.wrapping_add(1);
        let salt = mix(args.seed ^ u32::from(version).wrapping_mul(GOLDEN));
        let mode = if due == 0 { PolicyMode::Wait } else { args.publish_mode.into() };
        // Nothing else waits, so that there is room.
        let asked = match &publishing {
            None => publisher.publish(version, salt, mode).map_err(|_| String::new()),
            Some(publishing) => {
                publishing.publish(&mut publisher, version, mode).map_err(|failure| failure.to_string())
            }
        };
        if let Err(what) = asked {
            return Some(format!("version {version} was not published: {what}"));
        }
        due += args.publish_every.max(1);
    }
    // What was answered since.
    match publisher.answer() {
        Some((version, PublishAnswer::Refused(refusal))) => {
            Some(format!("version {version} was not published: {refusal}"))
        }
        _ => None,
    }
}
