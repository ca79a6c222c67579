//! Faults that can be planted in a server, for suites that look for them (`doorbell-lifecycle`). Each breaks one rule of a request's life, as servers
//! of this kind have broken it. None is there unless it is named by `doorbell serve --fault`.

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use doorbell_runtime::trajectory::Span;

use crate::engine::{Ask, End, VersionSpan};

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Prompts share keys and values across versions.
    StaleKv,
    /// The label of all tokens is the version that is resident when the answer is sent.
    LateLabel,
    /// An aborted answer lacks the tokens that were not told before.
    AbortLosesTokens,
    /// A pause that aborts leaves the oldest request running.
    PauseLeaks,
    /// Weights that come during a pause are not used: the ones before go on under the new name.
    ResumeOldWeights,
    /// Half of a group begins only after the next update.
    HalfGroup,
    /// Flushing says that it did, and the cache still answers.
    NoFlush,
    /// Log-probabilities are not those at the temperature of the draw.
    OtherTemperature,
    /// Seeds decide nothing.
    SeedIgnored,
    /// A rollout that is kept over an update repeats a token.
    KeepDoubles,
    /// A rollout that is kept over an update loses a token.
    KeepDrops,
    /// A pause that waits answers while requests run.
    WaitReturnsEarly,
    /// An abort answers a second before it happens.
    AbortReturnsEarly,
    /// An update says that the weights are resident, and they are not.
    UpdateNotResident,
}

use Fault::{
    AbortLosesTokens, AbortReturnsEarly, HalfGroup, KeepDoubles, KeepDrops, LateLabel, NoFlush,
    OtherTemperature, PauseLeaks, ResumeOldWeights, SeedIgnored, StaleKv, UpdateNotResident,
    WaitReturnsEarly,
};

/// All of them, by name.
pub const ALL: [(&str, Fault); 14] = [
    ("stale-kv", StaleKv),
    ("late-label", LateLabel),
    ("abort-loses-tokens", AbortLosesTokens),
    ("pause-leaks", PauseLeaks),
    ("resume-old-weights", ResumeOldWeights),
    ("half-group", HalfGroup),
    ("no-flush", NoFlush),
    ("other-temperature", OtherTemperature),
    ("seed-ignored", SeedIgnored),
    ("keep-doubles", KeepDoubles),
    ("keep-drops", KeepDrops),
    ("wait-returns-early", WaitReturnsEarly),
    ("abort-returns-early", AbortReturnsEarly),
    ("update-not-resident", UpdateNotResident),
];

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Fault, String> {
        ALL.iter().find(|(name, _)| *name == text).map(|&(_, fault)| fault).ok_or_else(|| {
            let names: Vec<&str> = ALL.iter().map(|&(name, _)| name).collect();
            format!("there is no fault {text}; there are {}", names.join(", "))
        })
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = ALL.iter().find(|(_, fault)| fault == self);
        f.write_str(named.map_or("", |(name, _)| name))
    }
}

/// How long an abort is put off.
pub(crate) const LATE: Duration = Duration::from_secs(1);
/// How long half a group waits if no update comes.
const PATIENCE: Duration = Duration::from_millis(400);

/// Updates so far, as half a group waits for the next.
static UPDATES: AtomicU64 = AtomicU64::new(0);

/// An update is resident.
pub(crate) fn updated() {
    UPDATES.fetch_add(1, Ordering::Relaxed);
}

/// Until when half a group waits: for an update, and not for ever.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    updates: u64,
    since: Instant,
}

impl Wait {
    pub fn now() -> Wait {
        Wait { updates: UPDATES.load(Ordering::Relaxed), since: Instant::now() }
    }

    fn is_over(self) -> bool {
        UPDATES.load(Ordering::Relaxed) > self.updates || self.since.elapsed() > PATIENCE
    }
}

/// The first of those that wait that may begin.
pub(crate) fn first<J>(jobs: &VecDeque<J>, wait: impl Fn(&J) -> Option<Wait>) -> Option<usize> {
    jobs.iter().position(|job| wait(job).is_none_or(Wait::is_over))
}

/// HalfGroup: groups in two halves, and which of these wait; all halves are alike.
pub(crate) fn halves(fault: Option<Fault>, asks: Vec<Ask>) -> Vec<(Ask, Option<Wait>)> {
    if fault != Some(HalfGroup) || asks.iter().any(|ask| ask.members % 2 == 1) {
        return asks.into_iter().map(|ask| (ask, None)).collect();
    }
    let half = |ask: Ask| {
        let first = Ask { members: ask.members / 2, ..ask };
        let mut second = first.clone();
        second.draws.key = second.draws.key.wrapping_add(first.members.into()).max(1);
        [(first, None), (second, Some(Wait::now()))]
    };
    asks.into_iter().flat_map(half).collect()
}

/// LateLabel: one label for all.
pub(crate) fn relabel(fault: Option<Fault>, end: &mut End, version: impl FnOnce() -> String) {
    if fault == Some(LateLabel)
        && let Some(last) = end.versions.last()
    {
        end.versions = vec![VersionSpan { version: version(), start: 0, ..*last }];
    }
}

/// OtherTemperature: log-probabilities by logits that were not divided by the temperature again.
pub(crate) fn logps(fault: Option<Fault>, sharpness: u32, logps: &mut [i32]) {
    if fault != Some(OtherTemperature) || sharpness == 0 {
        return;
    }
    let temperature = f64::from(1 << 20) * std::f64::consts::LOG2_E / f64::from(sharpness);
    logps.iter_mut().for_each(|logp| *logp = (f64::from(*logp) * temperature) as i32);
}

/// KeepDoubles and KeepDrops: at the first switch of an answer that was not told yet.
pub(crate) fn keep(
    fault: Option<Fault>,
    spans: &[Span],
    told: usize,
    tokens: &mut Vec<u32>,
    logps: &mut Vec<i32>,
) {
    let Some(at) = spans.get(1).map(|span| span.first as usize) else { return };
    if at < told.max(1) || at >= tokens.len() {
        return;
    }
    match fault {
        Some(KeepDoubles) => {
            tokens.insert(at, tokens[at]);
            if let Some(&logp) = logps.get(at) {
                logps.insert(at, logp);
            }
        }
        Some(KeepDrops) => {
            tokens.remove(at);
            if at < logps.len() {
                logps.remove(at);
            }
        }
        _ => {}
    }
}
