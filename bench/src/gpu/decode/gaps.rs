//! The time between two tokens of a rollout, as the host sees them come.

use std::time::{Duration, Instant};

use doorbell_gpu::GpuDevice;
use doorbell_host::{Device as _, Driver};
use serde_json::json;

use super::super::load::Times;
use super::{Bed, STEPS, TOKENS};
use crate::decoding::DecodeShape;
use crate::{BenchError, Section, table, verdict};

/// p99.9 with busy cores over p99.9 without, at most, by batch.
const BAR: (u32, f64) = (64, 1.1);
/// What no token is.
const NOTHING: u32 = u32::MAX;

/// Gaps of a row.
pub(super) struct Gaps {
    shape: DecodeShape,
    context: u32,
    batch: u32,
    quiet: Times,
    /// Beside so many busy threads.
    pub busy: Option<(usize, Times)>,
}

impl Gaps {
    pub fn new(shape: DecodeShape, context: u32, batch: u32, quiet: Times) -> Self {
        Self { shape, context, batch, quiet, busy: None }
    }
}

/// Rollouts whose tokens the host sees come, each of which decodes [`STEPS`].
pub(super) struct Watched {
    rollouts: Vec<Seen>,
    context: u32,
}

/// A rollout as the host sees it.
pub(super) struct Seen {
    pub tokens: u32,
    /// When the last one came.
    pub last: Instant,
}

impl Watched {
    /// The first `batch` sequences of a bed, from `context` on. Their places get what no token is.
    pub fn begin(driver: &Driver<GpuDevice>, batch: u32, context: u32) -> Result<Self, BenchError> {
        let rollouts = (0..batch).map(|_| Seen { tokens: 0, last: Instant::now() }).collect();
        for number in 0..batch {
            driver.token_regions()[0].write(Self::at(number, context), &[NOTHING; STEPS as usize])?;
        }
        Ok(Self { rollouts, context })
    }

    /// Looks once at each, and calls `came` for each new token with what was seen before it.
    pub fn look(
        &mut self,
        driver: &Driver<GpuDevice>,
        mut came: impl FnMut(&Seen, Instant),
    ) -> Result<(), BenchError> {
        for (number, seen) in self.rollouts.iter_mut().enumerate().filter(|(_, seen)| seen.tokens < STEPS) {
            let (mut token, at) = ([NOTHING], Self::at(number as u32, self.context));
            driver.token_regions()[0].read(at + 4 * u64::from(seen.tokens), &mut token)?;
            if token[0] != NOTHING {
                let now = Instant::now();
                came(seen, now);
                *seen = Seen { tokens: seen.tokens + 1, last: now };
            }
        }
        Ok(())
    }

    /// Where the tokens of a sequence begin that follow its context.
    fn at(number: u32, context: u32) -> u64 {
        (u64::from(number) + 1) * TOKENS + 4 * u64::from(context)
    }
}

impl Bed {
    /// Gaps between tokens while all rollouts run: from the moment each has a token until one of them has its last.
    /// `None` where they never do: a GPU has fewer lanes than the row has rollouts.
    pub(super) fn gaps(
        &mut self,
        batch: u32,
        context: u32,
        quick: bool,
    ) -> Result<Option<Times>, BenchError> {
        let prefills: Vec<_> = (0..batch).map(|number| self.prefill(number, context)).collect();
        self.run(&prefills)?;
        let decodes: Vec<_> = (0..batch).map(|number| self.decoding(number, context, STEPS)).collect();
        self.run(&decodes)?;
        // So many gaps at least, of which a thousandth lies above p99.9; of one rollout fewer, as it takes long.
        let least = if quick { 4_000 } else { 20_000 };
        let rounds = (least / (batch * (STEPS - 10)) + 1).clamp(3, 100);
        let mut gaps = vec![];
        for _ in 0..rounds {
            let mut rollouts = Watched::begin(&self.driver, batch, context)?;
            // Until the last rollout has its first token, and until the first one has its last.
            let (mut waiting, mut all_run, mut ended) = (batch, None, false);
            self.run_beside(&decodes, |driver| {
                rollouts.look(driver, |before, now| {
                    if !ended && all_run.is_some_and(|since| before.last >= since) {
                        gaps.push(now - before.last);
                    }
                    waiting -= u32::from(before.tokens == 0);
                    all_run = all_run.or((waiting == 0).then_some(now));
                    ended |= before.tokens + 1 == STEPS;
                })
            })?;
        }
        Ok((!gaps.is_empty()).then(|| Times::new(gaps)))
    }
}

/// The table.
pub(super) fn section(gpu: &str, rows: &[Gaps]) -> Section {
    let columns =
        ["shape", "context", "rollouts", "busy", "p50 us", "p99", "p99.9", "/ quiet", "bar", "bar is"];
    let mut table = table(columns, 1);
    let mut figures = vec![];
    for row in rows {
        let quiet = row.quiet.quantile(0.999);
        for (busy, times) in
            [(0, &row.quiet)].into_iter().chain(row.busy.as_ref().map(|(busy, times)| (*busy, times)))
        {
            let [p50, p99, most] = [0.5, 0.99, 0.999].map(|share| times.quantile(share));
            let ratio = most.as_secs_f64() / quiet.as_secs_f64();
            let bar = (busy > 0 && row.batch == BAR.0 && row.shape == DecodeShape::Smollm2).then_some(BAR.1);
            let us = |time: Duration| format!("{:.0}", 1e6 * time.as_secs_f64());
            table.add_row([
                row.shape.name().to_owned(),
                row.context.to_string(),
                row.batch.to_string(),
                busy.to_string(),
                us(p50),
                us(p99),
                us(most),
                if busy > 0 { format!("{ratio:.2}") } else { String::new() },
                bar.map_or_else(String::new, |bar| bar.to_string()),
                bar.map_or("", |bar| verdict(ratio <= bar)).to_owned(),
            ]);
            figures.push(json!({
                "shape": row.shape.name(), "context": row.context, "rollouts": row.batch, "busy": busy,
                "p50_s": p50.as_secs_f64(), "p99_s": p99.as_secs_f64(), "p999_s": most.as_secs_f64(),
            }));
        }
    }
    Section {
        heading: format!("{gpu}: between two tokens of a rollout, as the host sees them"),
        table,
        notes: vec!["Seen by the thread that drives the queue, while all rollouts of the row run; beside it as many threads compute as the column says.".to_owned()],
        json: figures.into(),
    }
}
