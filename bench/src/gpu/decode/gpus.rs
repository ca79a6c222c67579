//! Several GPUs that decode at the same time, each with a driver of its own, beside one of them.

use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use doorbell_npu::Published;
use serde_json::json;

use super::{Bed, STEPS, fits};
use crate::decoding::{Decode, DecodeShape};
use crate::{BenchError, Section, table, verdict};

/// Times the rate of one GPU that two of them are to have.
const BAR: f64 = 1.9;

/// Rates of one GPU and of all, with so many rollouts on each.
pub(super) struct Row {
    shape: DecodeShape,
    context: u32,
    batch: u32,
    one: f64,
    all: f64,
}

/// The first context with each batch.
pub(super) fn rows(
    shape: DecodeShape,
    published: &Published,
    what: &Decode,
    quick: bool,
) -> Result<Vec<Row>, BenchError> {
    let Some(&context) = what.contexts.first() else { return Ok(vec![]) };
    let batches: Vec<u32> =
        what.batches.iter().copied().filter(|&batch| fits(shape, batch, context)).collect();
    let Some(&most) = batches.iter().max() else { return Ok(vec![]) };
    let mut beds = Bed::several(shape.shape(), published, most.into(), context + STEPS, what, &what.gpus)?;
    let mut row = |&batch: &u32| -> Result<Row, BenchError> {
        let repeats = if quick { 2 } else { 5 };
        let one = together(&mut beds[..1], batch, context, repeats)?;
        let all = together(&mut beds, batch, context, repeats)?;
        Ok(Row { shape, context, batch, one, all })
    };
    batches.iter().map(&mut row).collect()
}

/// Tokens a second of so many rollouts on each GPU: from the moment that all begin until the last of them has ended, the median of `repeats`.
fn together(beds: &mut [Bed], batch: u32, context: u32, repeats: u32) -> Result<f64, BenchError> {
    let barrier = Barrier::new(beds.len());
    let tokens = f64::from(batch * STEPS) * beds.len() as f64;
    let mut rates = vec![];
    // The first is for caches and clocks.
    for repeat in 0..=repeats {
        let spans = thread::scope(|scope| {
            let run = |bed: &mut Bed| {
                let prefills: Vec<_> = (0..batch).map(|number| bed.prefill(number, context)).collect();
                let decodes: Vec<_> = (0..batch).map(|number| bed.decoding(number, context, STEPS)).collect();
                let filled = if repeat == 0 { bed.run(&prefills).map(|_| ()) } else { Ok(()) };
                barrier.wait();
                let start = Instant::now();
                filled.and_then(|()| bed.run(&decodes)).map(|_| (start, Instant::now()))
            };
            let threads: Vec<_> = beds.iter_mut().map(|bed| scope.spawn(move || run(bed))).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect::<Result<Vec<_>, BenchError>>()
        })?;
        let start = spans.iter().map(|span| span.0).min();
        let end = spans.iter().map(|span| span.1).max();
        let span = start.zip(end).map_or(0.0, |(start, end)| (end - start).as_secs_f64());
        if repeat > 0 {
            rates.push(tokens / span);
        }
    }
    Ok(crate::median(rates))
}

/// The table.
pub(super) fn section(gpu: &str, gpus: usize, rows: &[Row]) -> Section {
    let all = format!("{gpus} GPUs");
    let mut table = table(["shape", "context", "on each", "one GPU", &all, "/ one", "bar", "bar is"], 1);
    let mut figures = vec![];
    for row in rows {
        let ratio = row.all / row.one;
        let bar = (gpus == 2).then_some(BAR);
        table.add_row([
            row.shape.name().to_owned(),
            row.context.to_string(),
            row.batch.to_string(),
            format!("{:.0}", row.one),
            format!("{:.0}", row.all),
            format!("{ratio:.2}"),
            bar.map_or_else(String::new, |bar| bar.to_string()),
            bar.map_or("", |bar| verdict(ratio >= bar)).to_owned(),
        ]);
        figures.push(json!({
            "shape": row.shape.name(), "context": row.context, "rollouts_each": row.batch, "gpus": gpus,
            "one_tokens_per_s": row.one, "all_tokens_per_s": row.all,
        }));
    }
    let notes = if rows.is_empty() {
        vec!["--gpus names several GPUs, and then they decode at the same time".to_owned()]
    } else {
        vec![
            "Tokens a second of all rollouts together; each GPU has a driver and a thread of its own."
                .to_owned(),
        ]
    };
    Section {
        heading: format!("{gpu}: several GPUs at the same time, as many rollouts on each"),
        table,
        notes,
        json: figures.into(),
    }
}
