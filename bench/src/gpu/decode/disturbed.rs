//! What rollouts notice of a prompt, or of a POLICY, that runs beside them.

use std::time::{Duration, Instant};

use doorbell_contract::{HwCompletion, HwDesc, Status};
use doorbell_host::Device as _;
use serde_json::json;

use super::super::load::Times;
use super::gaps::Watched;
use super::{Bed, PROMPT, STEPS};
use crate::decoding::DecodeShape;
use crate::{BenchError, Section, table, verdict};

/// Rollouts that decode.
pub(super) const BATCH: u32 = 64;
/// Positions that they have when they begin.
pub(super) const CONTEXT: u32 = 256;
/// p99 of the gaps between tokens while a prompt runs, over that without it, at most.
const GAP_BAR: f64 = 2.0;
/// Until a POLICY has completed, at most, and the tokens a second meanwhile, over those without it, at least.
const POLICY_BAR: Duration = Duration::from_millis(15);
const RATE_BAR: f64 = 0.9;

/// What runs beside the rollouts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Beside {
    Nothing,
    /// One of [`PROMPT`] tokens.
    Prompt,
    Policy,
}

/// What was seen in a window: from the submission of what runs beside the rollouts to its completion, or, of nothing, from the moment when each rollout has a token
/// until one of them has its last.
pub(super) struct Window {
    /// How long the windows took.
    took: Times,
    /// Gaps between two tokens of a rollout that overlap a window.
    gaps: Times,
    /// Tokens a second of all rollouts.
    rate: f64,
}

/// The windows of a shape.
pub(super) struct Disturbed {
    pub shape: DecodeShape,
    pub quiet: Window,
    pub prompt: Window,
    pub policy: Window,
}

impl Bed {
    /// The three windows of a bed that has a sequence more than [`BATCH`]. `None` where the rollouts never run at the same time.
    pub(super) fn disturbed(
        &mut self,
        shape: DecodeShape,
        quick: bool,
    ) -> Result<Option<Disturbed>, BenchError> {
        let prefills: Vec<_> = (0..BATCH).map(|number| self.prefill(number, CONTEXT)).collect();
        self.run(&prefills)?;
        let mut window = |beside| self.window(beside, if quick { 3 } else { 20 });
        let Some(quiet) = window(Beside::Nothing)? else { return Ok(None) };
        let Some(prompt) = window(Beside::Prompt)? else { return Ok(None) };
        Ok(window(Beside::Policy)?.map(|policy| Disturbed { shape, quiet, prompt, policy }))
    }

    /// So many rounds of [`STEPS`] tokens of each rollout.
    fn window(&mut self, beside: Beside, rounds: u32) -> Result<Option<Window>, BenchError> {
        let (mut took, mut gaps, mut tokens) = (vec![], vec![], 0_u32);
        for _ in 0..rounds {
            let mut rollouts = Watched::begin(&self.driver, BATCH, CONTEXT)?;
            // A POLICY loads the version that follows the one under which the rollouts decode.
            let decodes: Vec<HwDesc> =
                (0..BATCH).map(|number| self.decoding(number, CONTEXT, STEPS)).collect();
            let other = match beside {
                Beside::Nothing => None,
                Beside::Prompt => Some(self.prefill(BATCH, PROMPT)),
                Beside::Policy => Some(self.next_policy()?),
            };
            let (mut waiting, mut left) = (BATCH, BATCH + u32::from(other.is_some()));
            let (mut begin, mut end): (Option<Instant>, Option<Instant>) = (None, None);
            let mut submitted = 0;
            let mut ends = [HwCompletion::default(); 64];
            while left > 0 {
                if submitted < decodes.len() {
                    submitted += self.driver.submit(&decodes[submitted..])?;
                }
                if waiting == 0 && begin.is_none() {
                    // The queue has room: it is longer than all descriptors of a round.
                    if let Some(other) = other {
                        self.driver.submit(&[other])?;
                    }
                    begin = Some(Instant::now());
                }
                let count = self.driver.poll(&mut ends)?;
                for done in &ends[..count] {
                    if done.status != Status::Done as u8 || done.error != 0 {
                        return Err(BenchError::failed(format!(
                            "a descriptor did not end as it should: {done:?}"
                        )));
                    }
                    let is_decode = decodes.iter().any(|decode| decode.rollout_id == done.rollout_id);
                    if is_decode == other.is_none() {
                        end = end.or(Some(Instant::now()));
                    }
                    left -= 1;
                }
                rollouts.look(&self.driver, |before, now| {
                    let overlaps = begin.is_some() && end.is_none_or(|end| before.last < end);
                    if overlaps && before.tokens > 0 {
                        gaps.push(now - before.last);
                        tokens += u32::from(end.is_none());
                    }
                    waiting -= u32::from(before.tokens == 0);
                })?;
            }
            if let Some((begin, end)) = begin.zip(end) {
                took.push(end.saturating_duration_since(begin));
            }
        }
        let seconds: f64 = took.iter().map(Duration::as_secs_f64).sum();
        let is_seen = !gaps.is_empty() && seconds > 0.0;
        Ok(is_seen.then(|| Window {
            took: Times::new(took),
            gaps: Times::new(gaps),
            rate: f64::from(tokens) / seconds,
        }))
    }
}

/// The table.
pub(super) fn section(gpu: &str, rows: &[Disturbed]) -> Section {
    let columns = [
        "shape", "beside", "took p50", "bar", "gap p99", "/ quiet", "bar", "tokens/s", "/ quiet", "bar",
        "bars are",
    ];
    let mut table = table(columns, 2);
    let mut figures = vec![];
    for Disturbed { shape, quiet, prompt, policy } in rows {
        let quiet_gap = quiet.gaps.quantile(0.99);
        for (name, window) in [("nothing", quiet), ("a prompt", prompt), ("a POLICY", policy)] {
            let is_judged = *shape == DecodeShape::Smollm2;
            let (took, gap) = (window.took.quantile(0.5), window.gaps.quantile(0.99));
            let (longer, rate) = (gap.as_secs_f64() / quiet_gap.as_secs_f64(), window.rate / quiet.rate);
            let ms = |time: Duration| format!("{:.1} ms", 1e3 * time.as_secs_f64());
            let [took_bar, gap_bar, rate_bar, verdicts] = match name {
                "a prompt" if is_judged => {
                    [String::new(), GAP_BAR.to_string(), String::new(), verdict(longer <= GAP_BAR).to_owned()]
                }
                "a POLICY" if is_judged => [
                    ms(POLICY_BAR),
                    String::new(),
                    RATE_BAR.to_string(),
                    format!("{}, {}", verdict(took <= POLICY_BAR), verdict(rate >= RATE_BAR)),
                ],
                _ => [const { String::new() }; 4],
            };
            table.add_row([
                shape.name().to_owned(),
                name.to_owned(),
                ms(took),
                took_bar,
                ms(gap),
                format!("{longer:.2}"),
                gap_bar,
                format!("{:.0}", window.rate),
                format!("{rate:.2}"),
                rate_bar,
                verdicts,
            ]);
            figures.push(json!({
                "shape": shape.name(), "beside": name, "rollouts": BATCH, "took_p50_s": took.as_secs_f64(),
                "gap_p99_s": gap.as_secs_f64(), "tokens_per_s": window.rate,
            }));
        }
    }
    Section {
        heading: format!("{gpu}: what {BATCH} rollouts notice of a prompt of {PROMPT} tokens, and of a POLICY"),
        table,
        notes: vec![
            "Gaps between two tokens of a rollout and tokens a second are those from the submission of what runs beside the rollouts to its completion.".to_owned(),
        ],
        json: figures.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(took: u64, gap: u64, rate: f64) -> Window {
        let times = |ms| Times::new(vec![Duration::from_millis(ms)]);
        Window { took: times(took), gaps: times(gap), rate }
    }

    #[test]
    fn a_prompt_is_judged_by_gaps_and_a_policy_by_time_and_rate() {
        let row = |policy: Window, gap| Disturbed {
            shape: DecodeShape::Smollm2,
            quiet: window(70, 2, 50_000.0),
            prompt: window(30, gap, 20_000.0),
            policy,
        };
        let text = |row| section("a GPU", &[row]).to_string();
        let met = text(row(window(15, 9, 45_000.0), 4));
        assert!(met.contains("met, met") && !met.contains("missed"), "{met}");
        let missed = text(row(window(16, 1, 44_000.0), 5));
        assert!(missed.contains("missed, missed") && missed.matches("missed").count() == 3, "{missed}");
    }
}
