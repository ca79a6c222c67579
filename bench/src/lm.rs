//! Tokens of a language model of SmolLM2-135M's shape, beside the time that reading its weights takes.

use std::hint::black_box;

use doorbell_lm::fast::Runner;
use doorbell_lm::{Cache, Matrix, Model, Shape, hashed};
use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};
use serde_json::json;

use crate::{BenchError, Elapsed, Rates, Section, median, percent, table, timed};

/// Weights by hash: what they are costs no time.
const SHAPE: Shape = Shape { context: 1024, ..Shape::SMOLLM2 };

/// Tokens a second of one sequence on two cores.
const BAR: f64 = 15.0;
/// Tokens of a prompt that go through the weights together.
const AT_ONCE: usize = 128;

/// One sequence, token by token, and a prompt.
pub fn tokens(quick: bool) -> Result<Section, BenchError> {
    let (count, repeats) = if quick { (16, 2) } else { (64, 5) };
    let model = hashed(SHAPE);
    let bytes = SHAPE.weight_macs().0;
    let columns =
        ["what", "threads", "tokens/s", "tokens/CPU s", "reads of the weights/s", "of that", "bar", "bar is"];
    let mut table = table(columns, 1);
    let mut rows = vec![];
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut sizes = vec![1, 2, threads];
    sizes.retain(|&size| size <= threads);
    sizes.dedup();
    for size in sizes {
        let pool = ThreadPoolBuilder::new().num_threads(size).build().map_err(BenchError::failed)?;
        let (mut floors, mut decoded, mut prefilled) = (vec![], vec![], vec![]);
        for _ in 0..repeats {
            // By turns, so that other work on the machine disturbs all of them alike.
            floors.push(median((0..3).map(|_| 1.0 / pool_time(&pool, || read(&model)).wall.as_secs_f64())));
            let runner = Runner::new(&model);
            let mut cache = Cache::new(&model);
            let prompt: Vec<u32> = (0..AT_ONCE as u32).map(|k| k * 97 % SHAPE.vocabulary as u32).collect();
            let time = pool_time(&pool, || black_box(runner.extend(&mut cache, &prompt)));
            prefilled.push(time.rates(AT_ONCE as u64));
            let time = pool_time(&pool, || {
                let mut token = 1;
                for _ in 0..count {
                    let logits = runner.logits(&runner.extend(&mut cache, &[token]));
                    token =
                        logits[0].iter().map(|&logit| logit as u32).fold(token, u32::wrapping_add) % 49_152;
                }
                token
            });
            decoded.push(time.rates(count));
        }
        let floor = median(floors);
        for (what, rates, bar) in
            [("one sequence", decoded, Some(BAR)), ("a prompt, 128 at once", prefilled, None)]
        {
            let rates = Rates::median(&rates);
            // Other threads' time is not seen.
            let cpu = (size == 1).then_some(rates.cpu);
            let bar = bar.filter(|_| size == 2);
            let verdict =
                bar.map(|bar| if size == 1 { rates.verdict(bar) } else { crate::verdict(rates.wall >= bar) });
            table.add_row([
                what.to_owned(),
                size.to_string(),
                format!("{:.1}", rates.wall),
                cpu.map_or_else(String::new, |rate| format!("{rate:.1}")),
                format!("{floor:.1}"),
                percent(rates.wall / floor),
                bar.map_or_else(String::new, |bar| format!("{bar}")),
                verdict.unwrap_or_default().to_owned(),
            ]);
            rows.push(json!({
                "what": what, "threads": size, "tokens_per_s": rates.wall, "tokens_per_cpu_s": cpu,
                "reads_per_s": floor, "bar": bar,
            }));
        }
    }
    Ok(Section {
        heading: format!(
            "Language model of SmolLM2-135M's shape in integers, {:.1} MB of weights for each token, {:?}",
            bytes as f64 / 1e6,
            doorbell_lm::fast::Instructions::best(),
        ),
        table,
        notes: vec![
            "A sequence reads every weight once a token: reading them and doing nothing is its floor. A prompt's tokens share a reading."
                .to_owned(),
        ],
        json: rows.into(),
    })
}

fn pool_time<T: Send>(pool: &ThreadPool, work: impl FnOnce() -> T + Send) -> Elapsed {
    pool.install(|| timed(work)).1
}

/// Reads every weight, on all threads of the pool.
fn read(model: &Model) -> u64 {
    let of = |matrix: &Matrix| -> u64 {
        let part = matrix.weights.len().div_ceil(2 * rayon::current_num_threads());
        matrix.weights.par_chunks(part).map(words).reduce(|| 0, |a, b| a ^ b)
    };
    let layers = model.layers.iter().flat_map(|layer| {
        [&layer.query, &layer.key, &layer.value, &layer.output, &layer.gate, &layer.up, &layer.down]
    });
    black_box(layers.chain([&model.tokens]).map(of).fold(0, |a, b| a ^ b))
}

fn words(weights: &[i8]) -> u64 {
    let (chunks, _) = weights.as_chunks::<64>();
    let mut sums = [0u64; 8];
    for chunk in chunks {
        for (sum, word) in sums.iter_mut().zip(chunk.as_chunks::<8>().0) {
            *sum ^= u64::from_le_bytes(word.map(|byte| byte as u8));
        }
    }
    sums.into_iter().fold(0, |a, b| a ^ b)
}
