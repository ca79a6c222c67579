//! Decoding of language models on a GPU, through driver and queue, beside torch in the same run.

mod disturbed;
mod gaps;
mod gpus;
mod phases;

use std::fs;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use doorbell_contract::{DescFlags, HwCompletion, HwDesc, HwSequence, PolicyMode, Status};
use doorbell_gpu::probes::Probes;
use doorbell_gpu::{GpuDevice, GpuOptions, LanguageMemory};
use doorbell_host::language::{LanguageRegions, language_policy, sequence_bytes};
use doorbell_host::{Device as _, Driver, QueueConfig};
use doorbell_lm::{Shape, hashed, micro};
use doorbell_npu::Published;
use serde_json::json;

use self::gaps::Gaps;
use self::phases::Parts;
use super::load::Times;
use crate::decoding::{Decode, DecodeShape};
use crate::leftovers::{Folder, Program};
use crate::{BenchError, Section, percent, table, verdict};

/// Times as fast as the rival, and the fraction of the floor, that SmolLM2 is to reach by batch.
const BARS: [(u32, f64, f64); 4] = [(1, 3.0, 0.12), (8, 5.0, 0.18), (64, 5.0, 0.33), (256, 4.0, 0.42)];
/// Tokens a second of one prompt, and of 64 together.
const PROMPT_BARS: [(u32, f64); 2] = [(1, 35_000.0), (64, 300_000.0)];
/// Until the first token of a prompt of [`PROMPT`], and a POLICY of SmolLM2 with nothing beside it.
const FIRST_TOKEN_BAR: Duration = Duration::from_millis(80);
const POLICY_BAR: Duration = Duration::from_millis(5);
/// Tokens of a prompt.
const PROMPT: u32 = 2000;
/// Tokens that a rollout decodes at a time, as the rival's: from the context on.
const STEPS: u32 = 60;
/// Most bytes of page-locked memory for the keys and values of all rollouts of a row.
const MOST_BYTES: u64 = 12 << 30;
/// Bytes of the token region for each sequence.
const TOKENS: u64 = 4 * 4096;
const MODEL: u16 = 1;
/// 1.0 as a temperature.
const SHARPNESS: u32 = 1_512_775;
/// The rival, for a Python that has torch.
const RIVAL: &str = include_str!("../../rivals/decode_torch.py");

/// The tables `decode`, `prompts`, `policy`, `gaps`, `disturbed`, `gpus` and `phases`; the last two are empty if nothing asks for them.
pub fn sections(quick: bool, what: &Decode) -> Result<Vec<Section>, BenchError> {
    let gpu = Probes::open(super::GPU)?.describe()?;
    let mut rows = vec![];
    let (mut prompts, mut policies, mut disturbed) = (vec![], vec![], vec![]);
    let mut notes = vec![];
    let (mut gaps, mut parts, mut several) = (vec![], vec![], vec![]);
    // What a rival has measured holds for the shapes behind it, too.
    let mut read_rate = None;
    for &shape in &what.shapes {
        let published = publish(shape.shape())?;
        // The rival is through before the kernel starts, which would hold it up.
        let mut rivals = vec![];
        for &context in &what.contexts {
            let batches: Vec<u32> =
                what.batches.iter().copied().filter(|&batch| fits(shape, batch, context)).collect();
            let is_rival = shape == DecodeShape::Smollm2;
            let rival = match &what.python {
                Some(python) if is_rival => Some(Rival::run(python, &batches, context)?),
                _ => None,
            };
            read_rate = rival.as_ref().map(|rival| rival.read_rate).or(read_rate);
            rivals.push((context, batches, rival));
        }
        for (context, batches, rival) in rivals {
            let Some(&most) = batches.iter().max() else {
                notes.push(format!(
                    "context {context}: the keys and values of every batch would take more than {} GiB of page-locked memory, left out",
                    MOST_BYTES >> 30
                ));
                continue;
            };
            let mut bed = Bed::new(shape.shape(), &published, most.into(), context + STEPS, what)?;
            let kept = match bed.driver.platform().kept_bytes() >> 20 {
                0 => "no keys and values stay on the GPU between descriptors".to_owned(),
                most => format!("keys and values stay on the GPU between descriptors, in up to {most} MB"),
            };
            notes.push(format!("{}, context {context}: {kept}.", shape.name()));
            if policies.iter().all(|(of, _): &(DecodeShape, Times)| *of != shape) {
                policies.push((shape, bed.policies(if quick { 5 } else { 20 })?));
            }
            for &batch in &batches {
                let Some(quiet) = bed.gaps(batch, context, quick)? else {
                    notes.push(format!(
                        "{}, context {context}: {batch} rollouts never ran at the same time, so gaps between tokens are left out.",
                        shape.name()
                    ));
                    continue;
                };
                let mut gap = Gaps::new(shape, context, batch, quiet);
                if what.busy > 0 {
                    let host = Busy::start(what.busy);
                    gap.busy = bed.gaps(batch, context, quick)?.map(|times| (what.busy, times));
                    drop(host);
                }
                gaps.push(gap);
            }
            let host = Busy::start(what.busy);
            for batch in batches {
                let before = bed.phases();
                let (seconds, first) = bed.decode(batch, context, if quick { 2 } else { 5 })?;
                let us = 1e6 * seconds / f64::from(STEPS);
                let row = Row { shape, context, batch, us, first, floor: None, rival: None };
                rows.push(row.beside(read_rate, rival.as_ref()));
                if let Some((before, after)) = before.zip(bed.phases()) {
                    parts.push(Parts { shape, context, batch, phases: after - before });
                }
            }
            drop(host);
        }
        if what.gpus.len() > 1 {
            several.extend(gpus::rows(shape, &published, what, quick)?);
        }
        for batch in [1, 64].into_iter().filter(|&batch| fits(shape, batch, PROMPT)) {
            let mut bed = Bed::new(shape.shape(), &published, batch.into(), PROMPT + 1, what)?;
            let (all, first) = bed.prompts(batch)?;
            prompts.push(Prompts { shape, batch, rate: f64::from(batch * PROMPT) / all, first });
        }
        // A sequence more than rollouts: the prompt's.
        let sequences = disturbed::BATCH + 1;
        if what.batches.contains(&disturbed::BATCH) && fits(shape, sequences, PROMPT) {
            let mut bed = Bed::new(shape.shape(), &published, sequences.into(), PROMPT + 1, what)?;
            match bed.disturbed(shape, quick)? {
                Some(row) => disturbed.push(row),
                None => notes.push(format!(
                    "{}: {} rollouts never ran at the same time, so nothing was run beside them.",
                    shape.name(),
                    disturbed::BATCH
                )),
            }
        }
    }
    if what.python.is_none() {
        notes.push(
            "no rival: --python names a Python that has torch, and then torch runs in the same call"
                .to_owned(),
        );
    }
    notes.push(format!(
        "Every token passes through driver and queue, its keys and values go to the arena in host memory, and its log-probability is \
         written. A row decodes {STEPS} tokens a rollout from the context on, as the rival does; {} busy host threads beside.",
        what.busy
    ));
    Ok(vec![
        decode_section(&gpu, &rows, notes),
        prompt_section(&gpu, &prompts),
        policy_section(&gpu, &policies),
        gaps::section(&gpu, &gaps),
        disturbed::section(&gpu, &disturbed),
        gpus::section(&gpu, what.gpus.len(), &several),
        phases::section(&gpu, &parts),
    ])
}

/// Whether a row's page-locked memory is not too much.
fn fits(shape: DecodeShape, batch: u32, context: u32) -> bool {
    u64::from(batch) * u64::from(context + STEPS) * position_bytes(shape) <= MOST_BYTES
}

/// Bytes of the keys and values of a position.
fn position_bytes(shape: DecodeShape) -> u64 {
    let shape = shape.shape();
    (shape.layers * 2 * shape.kv_heads * (shape.head_width + 2)) as u64
}

fn publish(shape: Shape) -> Result<Published, BenchError> {
    let mut image = micro();
    image.model = hashed(shape);
    Published::new(image.to_bytes(), &[]).map_err(BenchError::failed)
}

/// A row of `decode`.
struct Row {
    shape: DecodeShape,
    context: u32,
    batch: u32,
    /// Of a step of all rollouts.
    us: f64,
    /// From the submission to the end of the first rollout's first token, in seconds.
    first: f64,
    /// Time to read weights, keys and values once, in us.
    floor: Option<f64>,
    /// The rival's step, in us.
    rival: Option<f64>,
}

impl Row {
    /// With its floor at so many bytes a second, and what a rival came to.
    fn beside(self, read_rate: Option<f64>, rival: Option<&Rival>) -> Self {
        let positions = f64::from(self.batch) * f64::from(self.context + STEPS / 2);
        let bytes = self.shape.shape().weight_macs().0 as f64 + positions * position_bytes(self.shape) as f64;
        let step =
            |rival: &Rival| rival.steps.iter().find(|(batch, _)| *batch == self.batch).map(|&(_, us)| us);
        Self { floor: read_rate.map(|rate| bytes / rate * 1e6), rival: rival.and_then(step), ..self }
    }

    fn rate(&self) -> f64 {
        f64::from(self.batch) * 1e6 / self.us
    }

    /// Of SmolLM2 in the rival's context: times the rival, and of the floor.
    fn bars(&self) -> Option<(f64, f64)> {
        let is_judged = self.shape == DecodeShape::Smollm2 && self.context == 256 && self.rival.is_some();
        let bars = BARS.iter().find(|(batch, ..)| is_judged && *batch == self.batch);
        bars.map(|&(_, rival, floor)| (rival, floor))
    }
}

fn decode_section(gpu: &str, rows: &[Row], notes: Vec<String>) -> Section {
    let columns = [
        "shape",
        "context",
        "rollouts",
        "us/step",
        "tokens/s",
        "of the floor",
        "torch",
        "/ torch",
        "bars",
        "bars are",
    ];
    let mut table = table(columns, 1);
    let mut figures = vec![];
    let optional = |value: Option<String>| value.unwrap_or_default();
    for row in rows {
        let (floor, ratio) = (row.floor.map(|floor| floor / row.us), row.rival.map(|rival| rival / row.us));
        let judged = row.bars().zip(floor.zip(ratio));
        table.add_row([
            row.shape.name().to_owned(),
            row.context.to_string(),
            row.batch.to_string(),
            format!("{:.0}", row.us),
            format!("{:.0}", row.rate()),
            optional(floor.map(percent)),
            optional(row.rival.map(|rival| format!("{:.0}", f64::from(row.batch) * 1e6 / rival))),
            optional(ratio.map(|ratio| format!("{ratio:.2}"))),
            optional(row.bars().map(|(ratio, floor)| format!("{ratio} x, {}", percent(floor)))),
            optional(judged.map(|((least, part), (floor, ratio))| {
                format!("{}, {}", verdict(ratio >= least), verdict(floor >= part))
            })),
        ]);
        figures.push(json!({
            "shape": row.shape.name(), "context": row.context, "rollouts": row.batch, "us_per_step": row.us,
            "tokens_per_s": row.rate(), "of_the_floor": floor, "torch_us_per_step": row.rival, "over_torch": ratio,
            "first_token_s": row.first,
        }));
    }
    Section {
        heading: format!("{gpu}: decoding in integers, one queue pair"),
        table,
        notes,
        json: figures.into(),
    }
}

/// Prompts, so many at a time.
struct Prompts {
    shape: DecodeShape,
    batch: u32,
    rate: f64,
    /// Until one prompt alone had its first token, in seconds.
    first: f64,
}

fn prompt_section(gpu: &str, rows: &[Prompts]) -> Section {
    let mut table =
        table(["prompts", "together", "tokens/s", "bar", "bar is", "first token", "bar", "bar is"], 1);
    let mut figures = vec![];
    for row in rows {
        let bar =
            PROMPT_BARS.iter().find(|(batch, _)| *batch == row.batch && row.shape == DecodeShape::Smollm2);
        let first = (row.batch == 1 && row.shape == DecodeShape::Smollm2).then_some(row.first);
        table.add_row([
            row.shape.name().to_owned(),
            row.batch.to_string(),
            format!("{:.0}", row.rate),
            bar.map_or_else(String::new, |(_, bar)| bar.to_string()),
            bar.map_or("", |(_, bar)| verdict(row.rate >= *bar)).to_owned(),
            format!("{:.1} ms", 1e3 * row.first),
            first.map_or_else(String::new, |_| format!("{FIRST_TOKEN_BAR:?}")),
            first.map_or("", |first| verdict(first <= FIRST_TOKEN_BAR.as_secs_f64())).to_owned(),
        ]);
        figures.push(json!({
            "shape": row.shape.name(), "prompts": row.batch, "tokens_per_s": row.rate, "first_token_s": row.first,
        }));
    }
    Section {
        heading: format!("{gpu}: prompts of {PROMPT} tokens"),
        table,
        notes: vec![],
        json: figures.into(),
    }
}

fn policy_section(gpu: &str, rows: &[(DecodeShape, Times)]) -> Section {
    let mut table = table(["POLICY of", "bytes", "p50", "p99", "bar", "bar is"], 1);
    let mut figures = vec![];
    for (shape, times) in rows {
        let [p50, p99] = [0.5, 0.99].map(|share| times.quantile(share));
        let is_judged = *shape == DecodeShape::Smollm2;
        let bytes = shape.shape().weight_macs().0;
        let ms = |time: Duration| format!("{:.2} ms", 1e3 * time.as_secs_f64());
        table.add_row([
            shape.name().to_owned(),
            bytes.to_string(),
            ms(p50),
            ms(p99),
            if is_judged { ms(POLICY_BAR) } else { String::new() },
            if is_judged { verdict(p50 <= POLICY_BAR).to_owned() } else { String::new() },
        ]);
        figures.push(json!({ "shape": shape.name(), "bytes": bytes, "p50_s": p50.as_secs_f64(), "p99_s": p99.as_secs_f64() }));
    }
    Section {
        heading: format!("{gpu}: a new version of the weights, with no rollout beside"),
        table,
        notes: vec![],
        json: figures.into(),
    }
}

/// A device that runs sequences of a model, and where they lie.
struct Bed {
    driver: Driver<GpuDevice>,
    regions: LanguageRegions,
    published: Published,
    /// Blocks of 32 positions of a sequence.
    blocks: u64,
    slot: u64,
    vocabulary: u32,
    version: u16,
}

impl Bed {
    fn new(
        shape: Shape,
        published: &Published,
        sequences: u64,
        positions: u32,
        what: &Decode,
    ) -> Result<Self, BenchError> {
        let mut beds = Self::several(shape, published, sequences, positions, what, &[super::GPU])?;
        Ok(beds.remove(0))
    }

    /// One for each of these GPUs.
    fn several(
        shape: Shape,
        published: &Published,
        sequences: u64,
        positions: u32,
        what: &Decode,
        gpus: &[usize],
    ) -> Result<Vec<Self>, BenchError> {
        let blocks = u64::from(positions).div_ceil(32);
        let block = 2 * (shape.layers * shape.kv_heads * (64 + 32 * shape.head_width)) as u64;
        let slot = sequence_bytes(blocks);
        let config = QueueConfig {
            model_bytes: (published.memory.len() as u64).next_multiple_of(4096),
            arena_bytes: [sequences * blocks * block, 0, 0, 0],
            kv_bytes: (sequences * slot).next_multiple_of(4096),
            token_bytes: (sequences + 1) * TOKENS,
            logp_bytes: (sequences + 1) * TOKENS,
            sq_depth: 1024,
            cq_depth: 1024,
            patience: 1_000_000,
            ..QueueConfig::default()
        };
        let language = LanguageMemory { model_bytes: config.model_bytes, cache_bytes: blocks * block };
        let bytes = config.shared_bytes()?;
        let options = |&gpu: &usize| GpuOptions {
            gpu,
            queues: 1,
            bytes,
            language: Some(language),
            kept_bytes: what.kept_bytes,
            ranks: what.ranks,
            phases: what.phases,
            ..GpuOptions::default()
        };
        let devices = doorbell_gpu::open_all(&gpus.iter().map(options).collect::<Vec<_>>())?;
        let open = |device| -> Result<Self, BenchError> {
            let driver = Driver::new(device, config.clone())?;
            let regions = driver.language_regions().remove(0);
            regions.model.write(0, &published.memory)?;
            let vocabulary = shape.vocabulary as u32;
            let (published, version) = (published.clone(), 0);
            let mut bed = Self { driver, regions, published, blocks, slot, vocabulary, version };
            bed.policy()?;
            for number in 0..sequences {
                bed.place(number)?;
            }
            Ok(bed)
        };
        devices.into_iter().map(open).collect()
    }

    /// What publishes the next version, of the same weights.
    fn next_policy(&mut self) -> Result<HwDesc, BenchError> {
        self.version += 1;
        let words = language_policy(self.version, &self.published.at(0));
        self.driver.token_regions()[0].write(0, &words)?;
        let desc = HwDesc { model_id: MODEL, ..HwDesc::policy(self.version, PolicyMode::Wait) };
        Ok(desc.with_delta_offset(0))
    }

    /// Publishes it.
    fn policy(&mut self) -> Result<Duration, BenchError> {
        let desc = self.next_policy()?;
        let all = self.run(&[desc])?;
        Ok(Duration::from_secs_f64(all))
    }

    fn policies(&mut self, count: u32) -> Result<Times, BenchError> {
        (0..count).map(|_| self.policy()).collect::<Result<_, _>>().map(Times::new)
    }

    /// Gives a sequence its blocks and a prompt that fills them.
    fn place(&self, number: u64) -> Result<(), BenchError> {
        let (at, mut state) = ((number + 1) * TOKENS, number as u32 + 1);
        let length = (self.blocks * 32).min(TOKENS / 4) as usize;
        let draw = || {
            state = doorbell_contract::mix(state);
            state % self.vocabulary
        };
        let prompt: Vec<u32> = std::iter::repeat_with(draw).take(length).collect();
        self.driver.token_regions()[0].write(at, &prompt)?;
        let first = (number * self.blocks) as u32;
        let table: Vec<u32> = (first..first + self.blocks as u32).collect();
        // Only the device writes the arena.
        let record = HwSequence { sharpness: SHARPNESS, prompt: at, generation: 1, ..HwSequence::default() };
        Ok(self.regions.place_sequence(number * self.slot, record, &table)?)
    }

    fn prefill(&self, number: u32, length: u32) -> HwDesc {
        let kv_offset = u64::from(number) * self.slot;
        // Of its own rollout, as its DECODE is: those of one rollout run one behind the other (R5).
        let rollout_id = number + 7;
        HwDesc { model_id: MODEL, kv_offset, rollout_id, ..HwDesc::prefill(rollout_id, length) }
            .with_version(self.version)
    }

    fn decoding(&self, number: u32, context: u32, steps: u32) -> HwDesc {
        let tokens = (u64::from(number) + 1) * TOKENS + 4 * u64::from(context);
        let kv_offset = u64::from(number) * self.slot;
        let desc = HwDesc { model_id: MODEL, kv_offset, ..HwDesc::decode(number + 7, context, steps) };
        let desc = desc.with_delta_offset(tokens).with_version(self.version).with_seed(number);
        desc.with_checkpoint(1 << 20).with_flags(DescFlags::LOGP)
    }

    /// Seconds of `STEPS` tokens of so many rollouts together, the median of `repeats`; and of one token of one of them.
    fn decode(&mut self, batch: u32, context: u32, repeats: u32) -> Result<(f64, f64), BenchError> {
        let prefills: Vec<HwDesc> = (0..batch).map(|number| self.prefill(number, context)).collect();
        self.run(&prefills)?;
        let decodes: Vec<HwDesc> = (0..batch).map(|number| self.decoding(number, context, STEPS)).collect();
        // Once for caches and clocks.
        self.run(&decodes)?;
        let mut seconds =
            (0..repeats).map(|_| self.run(&decodes)).collect::<Result<Vec<f64>, BenchError>>()?;
        seconds.sort_by(f64::total_cmp);
        let one = [self.decoding(0, context, 1)];
        Ok((seconds[seconds.len() / 2], self.run(&one)?))
    }

    /// Seconds of so many prompts together; and until one alone has its first token.
    fn prompts(&mut self, batch: u32) -> Result<(f64, f64), BenchError> {
        let prefills: Vec<HwDesc> = (0..batch).map(|number| self.prefill(number, PROMPT)).collect();
        self.run(&prefills[..1])?;
        let all = self.run(&prefills)?;
        let first = self.run(&[self.prefill(0, PROMPT), self.decoding(0, PROMPT, 1)])?;
        Ok((all, first))
    }

    /// What leaders have told so far, if they do.
    fn phases(&self) -> Option<doorbell_gpu::Phases> {
        // A leader tells its last step behind the completion.
        thread::sleep(Duration::from_millis(5));
        self.driver.platform().phases()
    }

    /// Seconds from the first submission to the last completion.
    fn run(&mut self, descs: &[HwDesc]) -> Result<f64, BenchError> {
        self.run_beside(descs, |_| Ok(()))
    }

    /// The same; `beside` is called again and again meanwhile.
    fn run_beside(
        &mut self,
        descs: &[HwDesc],
        mut beside: impl FnMut(&Driver<GpuDevice>) -> Result<(), BenchError>,
    ) -> Result<f64, BenchError> {
        let mut ends = [HwCompletion::default(); 64];
        let start = Instant::now();
        let (mut submitted, mut reaped) = (0, 0);
        while reaped < descs.len() {
            if submitted < descs.len() {
                submitted += self.driver.submit(&descs[submitted..])?;
            }
            let count = self.driver.poll(&mut ends)?;
            beside(&self.driver)?;
            if let Some(end) =
                ends[..count].iter().find(|end| end.status != Status::Done as u8 || end.error != 0)
            {
                return Err(BenchError::failed(format!("a descriptor did not end as it should: {end:?}")));
            }
            reaped += count;
        }
        Ok(start.elapsed().as_secs_f64())
    }
}

/// Threads that compute until it is dropped.
struct Busy {
    ends: std::sync::Arc<AtomicBool>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Busy {
    fn start(count: usize) -> Self {
        let ends = std::sync::Arc::new(AtomicBool::new(false));
        let spin = |ends: std::sync::Arc<AtomicBool>| {
            move || {
                while !ends.load(Ordering::Relaxed) {
                    std::hint::black_box((0..1_000_u64).fold(1, |sum: u64, k| sum.wrapping_mul(k | 1)));
                }
            }
        };
        let threads = (0..count).map(|_| thread::spawn(spin(ends.clone()))).collect();
        Self { ends, threads }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// What torch came to, on this GPU, just before.
#[derive(Debug, PartialEq)]
struct Rival {
    /// Bytes a second that the GPU's memory gives to a kernel that does nothing else.
    read_rate: f64,
    /// Batch, and the time of its step in us.
    steps: Vec<(u32, f64)>,
}

impl Rival {
    fn run(python: &str, batches: &[u32], context: u32) -> Result<Self, BenchError> {
        let failed = |what: String| BenchError::Input(format!("the rival, `{python}` with torch: {what}"));
        let list: Vec<String> = batches.iter().map(u32::to_string).collect();
        // Torch reads the source of what it compiles, so it has to lie in a file.
        let folder = Folder::new()?;
        let program = folder.path().join("rival.py");
        fs::write(&program, RIVAL)
            .map_err(|error| failed(format!("its program cannot be stored: {error}")))?;
        let mut command = Command::new(python);
        command
            .arg(program)
            .args(["--kinds", "bf16", "--no-prefill", "--batches", &list.join(",")])
            .args(["--context", &context.to_string()])
            .stdin(Stdio::null())
            .stderr(Stdio::inherit());
        let output = Program::output(&mut command)
            .map_err(|error| failed(format!("it cannot be started: {error}")))?;
        let text = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() {
            return Err(failed(format!(
                "ended with {}; is torch installed, and does it see the GPU?",
                output.status
            )));
        }
        Self::parse(&text).ok_or_else(|| failed(format!("printed no figures, but: {text}")))
    }

    /// Of what it prints: `…, read-only stream 3000 GB/s`, and `bf16 batch 8 1700.1 us/step …` for each batch.
    fn parse(text: &str) -> Option<Self> {
        let rate = text.split_once("read-only stream ")?.1.split_whitespace().next()?.parse::<f64>().ok()?;
        let step = |line: &str| {
            let mut words = line.strip_prefix("bf16 batch")?.split_whitespace();
            Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
        };
        let steps: Vec<(u32, f64)> = text.lines().filter_map(step).collect();
        (!steps.is_empty()).then_some(Self { read_rate: rate * 1e9, steps })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_rival_prints_is_read() {
        let text = "NVIDIA H100 80GB HBM3 2.9.0 read-only stream 2994 GB/s\n\
                    bf16 batch    1    1132.0 us/step        883 tokens/s  own floor   92.1 us: 0.08\n\
                    bf16 batch  256    3103.3 us/step      82493 tokens/s  own floor  370.4 us: 0.12\n";
        let rival = Rival::parse(text).unwrap();
        assert_eq!(rival, Rival { read_rate: 2994e9, steps: vec![(1, 1132.0), (256, 3103.3)] });
        assert_eq!(Rival::parse("Traceback: no torch"), None);
        assert_eq!(Rival::parse("read-only stream 2994 GB/s\n8 OutOfMemoryError"), None);
    }

    #[test]
    fn every_shape_runs_on_the_devices() {
        for shape in [DecodeShape::Smollm2, DecodeShape::Half, DecodeShape::One] {
            assert_eq!(shape.shape().refusal(), None, "{}", shape.name());
        }
    }

    #[test]
    fn a_row_is_judged_by_rival_and_floor() {
        let rival = Rival { read_rate: 3e12, steps: vec![(1, 1132.0)] };
        let row = Row {
            shape: DecodeShape::Smollm2,
            context: 256,
            batch: 1,
            us: 300.0,
            first: 0.0,
            floor: None,
            rival: None,
        };
        let row = row.beside(Some(rival.read_rate), Some(&rival));
        assert_eq!(row.bars(), Some((3.0, 0.12)));
        assert!((row.floor.unwrap() - 45.8).abs() < 1.0, "{:?}", row.floor);
        // Another shape has a floor by the rate that the rival measured, and no bar.
        let other = Row { shape: DecodeShape::One, floor: None, rival: None, ..row };
        let other = other.beside(Some(rival.read_rate), None);
        assert!(other.floor.unwrap() > 300.0 && other.rival.is_none() && other.bars().is_none());
        let text = decode_section("a GPU", &[row], vec![]).to_string();
        assert!(text.contains("3.77") && text.contains("met, met"), "{text}");
    }
}
