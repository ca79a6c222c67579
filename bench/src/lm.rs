//! Tokens of a language model, SmolLM2-135M or one of its shape, beside the time that reading its weights takes, and beside candle.

use std::cmp::Reverse;
use std::hint::black_box;

use doorbell_lm::fast::{Instructions, Runner};
use doorbell_lm::{Cache, Matrix, Model, Shape, hashed};
use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};
use serde_json::{Value, json};

use crate::{BenchError, Elapsed, Language, Rates, Section, median, percent, table, timed, verdict};

/// Weights by hash: what they are costs no time.
const SHAPE: Shape = Shape { context: 1024, ..Shape::SMOLLM2 };

/// Tokens a second of one sequence on two cores.
const BAR: f64 = 15.0;
/// Tokens of a prompt that go through the weights together.
const AT_ONCE: usize = 128;

/// What a model said to a prompt, and how long that took.
pub(crate) struct Answer {
    /// Until it was known what follows the prompt.
    pub prompt: Elapsed,
    /// The tokens behind it, one by one.
    pub decode: Elapsed,
    /// The most likely one each time.
    pub tokens: Vec<u32>,
}

/// Runs a prompt, and so many tokens behind it.
type Answerer<'a> = Box<dyn FnMut(&[u32], usize) -> Result<Answer, BenchError> + 'a>;

/// What one model came to.
#[derive(Default)]
struct Runs {
    decoded: Vec<Rates>,
    prefilled: Vec<Rates>,
    tokens: Vec<u32>,
}

/// A line of the table.
struct Row {
    what: String,
    threads: usize,
    rates: Rates,
    /// Of ours: how often a second the weights can be read.
    floor: Option<f64>,
    /// Of a rival: how many times as fast ours is.
    ratio: Option<f64>,
    bar: Option<f64>,
}

/// One sequence, token by token, and a prompt.
pub fn tokens(quick: bool, language: Option<Language<'_>>) -> Result<Section, BenchError> {
    let (count, repeats) = if quick { (16, 2) } else { (64, 5) };
    let by_hash;
    let (name, model, prompt) = match language {
        Some(Language { model, file, prompt }) => {
            (file.file_stem().unwrap_or_default().to_string_lossy(), model, prompt.to_vec())
        }
        None => {
            by_hash = hashed(SHAPE);
            let prompt = (0..AT_ONCE as u32).map(|k| k * 97 % SHAPE.vocabulary as u32).collect();
            ("A language model of SmolLM2-135M's shape".into(), &by_hash, prompt)
        }
    };
    let prompt = &prompt[..prompt.len().min(AT_ONCE)];
    let (mut rows, mut agreements) = (vec![], vec![]);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut sizes = vec![1, 2, threads];
    sizes.retain(|&size| size <= threads);
    sizes.dedup();
    for size in sizes {
        let pool = ThreadPoolBuilder::new().num_threads(size).build().map_err(BenchError::failed)?;
        let mut rivals = rivals(size, language)?;
        let (mut floors, mut ours) = (vec![], Runs::default());
        let mut theirs: Vec<Runs> = rivals.iter().map(|_| Runs::default()).collect();
        for _ in 0..repeats {
            // By turns, so that other work on the machine disturbs all of them alike.
            floors.push(median((0..3).map(|_| 1.0 / pool_time(&pool, || read(model)).1.wall.as_secs_f64())));
            ours.add(prompt, answer(&pool, model, prompt, count));
            for ((_, rival), runs) in rivals.iter_mut().zip(&mut theirs) {
                runs.add(prompt, rival(prompt, count)?);
            }
        }
        let theirs: Vec<(&str, &Runs)> = rivals.iter().map(|(name, _)| name.as_str()).zip(&theirs).collect();
        rows.extend(lines(size, prompt.len(), median(floors), &ours, &theirs));
        agreements = theirs.iter().map(|(name, runs)| agreement(name, &ours.tokens, &runs.tokens)).collect();
    }
    let columns = [
        "what",
        "threads",
        "tokens/s",
        "tokens/CPU s",
        "reads of the weights/s",
        "of that",
        "doorbell / this",
        "bar",
        "bar is",
    ];
    let mut table = table(columns, 1);
    rows.iter().for_each(|row| _ = table.add_row(row.cells()));
    let floor = "A sequence reads every weight once a token: reading them and doing nothing is its floor. A prompt's tokens share a reading.";
    let missing = missing(language.is_some());
    let notes = [floor.to_owned()].into_iter().chain(agreements).chain(missing).collect();
    Ok(Section {
        heading: format!(
            "{name} in integers, {:.1} MB of weights for each token, {:?}",
            model.shape.weight_macs().0 as f64 / 1e6,
            Instructions::best(),
        ),
        table,
        notes,
        json: rows.iter().map(Row::json).collect(),
    })
}

impl Runs {
    /// Of one sequence, and of a prompt.
    const KINDS: [fn(&Self) -> &[Rates]; 2] = [|runs| &runs.decoded, |runs| &runs.prefilled];

    fn add(&mut self, prompt: &[u32], answer: Answer) {
        self.prefilled.push(answer.prompt.rates(prompt.len() as u64));
        self.decoded.push(answer.decode.rates(answer.tokens.len() as u64));
        self.tokens = answer.tokens;
    }
}

impl Row {
    fn cells(&self) -> [String; 9] {
        let number = |number: Option<f64>| number.map_or_else(String::new, |number| format!("{number:.1}"));
        let wall = self.rates.wall;
        [
            self.what.clone(),
            self.threads.to_string(),
            number(Some(wall)),
            number(self.cpu()),
            number(self.floor),
            self.floor.map_or_else(String::new, |floor| percent(wall / floor)),
            self.ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}")),
            self.bar.map_or_else(String::new, |bar| bar.to_string()),
            self.bar.map_or("", |bar| verdict(wall >= bar)).to_owned(),
        ]
    }

    fn json(&self) -> Value {
        json!({
            "what": self.what, "threads": self.threads, "tokens_per_s": self.rates.wall, "tokens_per_cpu_s": self.cpu(),
            "reads_per_s": self.floor, "doorbell_over_this": self.ratio, "bar": self.bar,
        })
    }

    /// Of several threads the others' time is not seen.
    fn cpu(&self) -> Option<f64> {
        (self.threads == 1).then_some(self.rates.cpu)
    }
}

/// One sequence and a prompt: ours, and each rival's below.
fn lines(threads: usize, prompt: usize, floor: f64, ours: &Runs, theirs: &[(&str, &Runs)]) -> Vec<Row> {
    let bar = (threads == 2).then_some(BAR);
    let prompt = format!("a prompt, {prompt} at once");
    let kinds = [("one sequence", bar), (&prompt, None)];
    let lines = kinds.into_iter().zip(Runs::KINDS).flat_map(|((what, bar), of)| {
        let rates = Rates::median(of(ours));
        let first = Row { what: what.to_owned(), threads, rates, floor: Some(floor), ratio: None, bar };
        let others = theirs.iter().map(move |(name, runs)| {
            let theirs = Rates::median(of(runs));
            let (what, ratio) = (format!("{what}, {name}"), Some(rates.wall / theirs.wall));
            Row { what, threads, rates: theirs, floor: None, ratio, bar: None }
        });
        [first].into_iter().chain(others).collect::<Vec<_>>()
    });
    lines.collect()
}

/// How far two say the same.
fn agreement(name: &str, ours: &[u32], theirs: &[u32]) -> String {
    let same = ours.iter().zip(theirs).take_while(|(a, b)| a == b).count();
    format!(
        "Of the {} most likely tokens, one after the other, the first {same} are those of {name}.",
        ours.len()
    )
}

/// Ours.
fn answer(pool: &ThreadPool, model: &Model, prompt: &[u32], count: usize) -> Answer {
    let runner = Runner::new(model);
    let mut cache = Cache::new(model);
    let (mut logits, first) = pool_time(pool, || {
        let streams = runner.extend(&mut cache, prompt);
        runner.logits(&streams[streams.len() - 1..])
    });
    let (tokens, rest) = pool_time(pool, || {
        let next = |_| {
            let token = most_likely(&logits[0]);
            logits = runner.logits(&runner.extend(&mut cache, &[token]));
            token
        };
        (0..count).map(next).collect()
    });
    Answer { prompt: first, decode: rest, tokens }
}

fn most_likely(logits: &[i32]) -> u32 {
    let tokens = (0..).zip(logits);
    tokens.max_by_key(|&(token, logit)| (logit, Reverse(token))).map_or(0, |(token, _)| token)
}

/// Candle, with weights of as many bits as ours, and with the file as it is.
#[cfg(feature = "candle")]
fn rivals(
    threads: usize,
    language: Option<Language<'_>>,
) -> Result<Vec<(String, Answerer<'static>)>, BenchError> {
    let mut rivals: Vec<(String, Answerer<'static>)> = vec![];
    for (language, repack) in language.into_iter().flat_map(|language| [(language, true), (language, false)])
    {
        let mut candle = crate::candle::Candle::start(threads, language.file, repack)?;
        let name = format!("candle, {}", candle.packing);
        // A file may have them as they are repacked.
        if rivals.iter().all(|(known, _)| *known != name) {
            rivals.push((name, Box::new(move |prompt, count| candle.answer(prompt, count))));
        }
    }
    Ok(rivals)
}

#[cfg(not(feature = "candle"))]
fn rivals(_: usize, _: Option<Language<'_>>) -> Result<Vec<(String, Answerer<'static>)>, BenchError> {
    Ok(vec![])
}

/// How to have what is not there.
fn missing(language: bool) -> impl Iterator<Item = String> {
    let model = "SmolLM2 itself is not here: `cargo xtask setup --model smollm2` fetches it.";
    let candle = "Candle is not in this build: `cargo run --release --no-default-features --features candle -- bench lm` measures it too.";
    let missing = [(language, model), (cfg!(feature = "candle"), candle)];
    missing.into_iter().filter(|(there, _)| !there).map(|(_, how)| how.to_owned())
}

fn pool_time<T: Send>(pool: &ThreadPool, work: impl FnOnce() -> T + Send) -> (T, Elapsed) {
    pool.install(|| timed(work))
}

/// Reads every weight, on all threads of the pool.
fn read(model: &Model) -> u64 {
    let of = |matrix: &Matrix| -> u64 {
        let part = matrix.weights.len().div_ceil(2 * rayon::current_num_threads());
        matrix.weights.par_chunks(part).map(words).reduce(|| 0, |a, b| a ^ b)
    };
    let layers = model.layers.iter().flat_map(|layer| {
        let own = layer.key_value.iter().flat_map(|own| [&own.key, &own.value]);
        own.chain([&layer.query, &layer.output, &layer.gate, &layer.up, &layer.down])
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

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(rate: f64) -> Runs {
        let rates = vec![Rates { wall: rate, cpu: rate }];
        Runs { decoded: rates.clone(), prefilled: rates, tokens: vec![] }
    }

    #[test]
    fn a_rival_stands_below_ours_with_how_many_times_as_fast_ours_is() {
        let rows = lines(2, 128, 40.0, &runs(10.0), &[("candle, Q8_0", &runs(4.0))]);
        let cells: Vec<String> = rows.iter().map(|row| row.cells().join(" ")).collect();
        assert_eq!(
            cells,
            [
                "one sequence 2 10.0  40.0 25.00 %  15 missed",
                "one sequence, candle, Q8_0 2 4.0    2.50  ",
                "a prompt, 128 at once 2 10.0  40.0 25.00 %   ",
                "a prompt, 128 at once, candle, Q8_0 2 4.0    2.50  ",
            ]
        );
        assert_eq!(lines(2, 128, 40.0, &runs(15.0), &[])[0].cells()[8], "met");
        assert_eq!(lines(1, 128, 40.0, &runs(15.0), &[])[0].cells()[7], "");
    }

    #[test]
    fn what_is_not_there_is_told_with_how_to_have_it() {
        let told = |language| missing(language).collect::<Vec<_>>().join("\n");
        assert_eq!(told(true).contains("--features candle -- bench lm"), !cfg!(feature = "candle"));
        assert!(told(false).contains("setup --model smollm2") && !told(true).contains("smollm2"));
    }

    #[test]
    fn the_first_of_equals_is_the_most_likely_and_agreement_ends_where_two_differ() {
        assert_eq!(most_likely(&[3, 7, 7, -1]), 1);
        let told = agreement("candle, Q8_0", &[1, 2, 3, 4], &[1, 2, 9, 4]);
        assert_eq!(
            told,
            "Of the 4 most likely tokens, one after the other, the first 2 are those of candle, Q8_0."
        );
    }
}
