//! What the RTL's NPU does with its cycles, by how many rollouts share it. Everything here is in simulated cycles and thus exact.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};

use doorbell_devices::{Memory, Settings, rtl};
use doorbell_host::{DeviceError, QueueConfig};
use doorbell_lm::{About, Image, tiny};
use doorbell_npu::Published;
use doorbell_npu::run::{Begun, Ended, Engine, Event, Hazards, Idle, Issue, Next, Sequencer};
use doorbell_trace::{Request, Trace};
use doorbell_verify::language::Version;
use doorbell_verify::replay::{Language, ReplayOptions, ReplayPlan, replay};
use serde_json::json;

use crate::{BenchError, Load, Section, percent, table, verdict};

/// Cycles until memory answers, as the interpreter's scoreboard expects them.
const MEMORY: u32 = 64;
/// Cycles a second of the machine of which tokens per second are told.
const CLOCK: f64 = 1e8;
/// What the busiest unit is held to, with one rollout and with several.
const BARS: [f64; 2] = [0.5, 0.9];
/// Share of its cycles in which gateGPT keeps its multipliers busy, as it is published.
const GATE_GPT: f64 = 0.137;
/// Tokens of a prompt.
const PROMPT: u32 = 4;
/// Rollouts at a time, as far as the device has workers for them: one alone, and one, two, four or eight on each of two gangs.
const ROLLOUTS: [u32; 5] = [1, 2, 4, 8, 16];
/// The units, by [`Engine::ALL`].
const UNITS: [&str; 4] = ["MEM", "GEMV", "SFU", "KV"];

/// A word that a unit had.
struct Word {
    key: (Option<u16>, u32),
    unit: usize,
    began: u64,
    /// The cycle behind the last.
    end: u64,
}

/// What one gang did: steps of DECODEs, from their begin to their end, with how many contexts shared each, and words in the order of issue.
#[derive(Default)]
struct Gang {
    steps: Vec<(u64, u64, u32)>,
    words: Vec<Word>,
}

/// What became of a stretch of cycles in which every gang has a rollout.
struct Usage {
    gangs: usize,
    cycles: u64,
    tokens: f64,
    /// Cycles by unit.
    busy: [u64; 4],
    /// Cycles by unit, and by [`Idle::ALL`].
    idle: [[u64; 5]; 4],
}

impl Usage {
    fn share(&self, part: u64) -> f64 {
        part as f64 / self.cycles as f64
    }

    /// The busiest unit, and its share.
    fn busiest(&self) -> (&'static str, f64) {
        let unit = (0..4).max_by_key(|&unit| self.busy[unit]).expect("there are four");
        (UNITS[unit], self.share(self.busy[unit]))
    }
}

/// Runs so many rollouts of this many tokens, all at a time.
fn measure(language: &Arc<Language>, rollouts: u32, tokens: u32) -> Result<Usage, BenchError> {
    let request = Request { arrival_ms: 0, prompt_tokens: PROMPT, output_tokens: tokens, prefix: vec![] };
    let trace = Trace { source: "rollouts".to_owned(), requests: vec![request; rollouts as usize] };
    let plan = ReplayPlan::with_language(&trace, ReplayOptions::default(), Arc::clone(language));
    let plan = plan.map_err(BenchError::input)?;
    let queue = QueueConfig { workers: Some(rollouts), ..plan.queue_config() };
    let memory = Memory { latency: MEMORY..=MEMORY, ..Memory::default() };
    let settings = Settings { queue, memory, ..Settings::default() };
    let mut driver = rtl::open(&settings, None).map_err(BenchError::failed)?;

    let seen = Arc::new(Mutex::new(vec![]));
    let listener = Arc::clone(&seen);
    let listen = move |event: &Event| {
        let event = match event {
            Event::Retired(retired) => {
                let mut retired = retired.clone();
                retired.writes.clear();
                Event::Retired(retired)
            }
            other => other.clone(),
        };
        listener.lock().unwrap_or_else(PoisonError::into_inner).push(event);
        Ok(())
    };
    driver.platform_mut().observe_npu(listen).map_err(DeviceError::from)?;
    if let Some(failure) = replay(&plan, &mut driver, &mut |_| ControlFlow::Continue(())).failure {
        return Err(BenchError::failed(failure));
    }
    drop(driver);
    let events = std::mem::take(&mut *seen.lock().unwrap_or_else(PoisonError::into_inner));
    let issues = issues(&language.published);
    let gangs = gangs(&events, &issues);
    if gangs.len() != rollouts.min(2) as usize {
        return Err(BenchError::failed(format!("{rollouts} rollouts ran on {} gangs", gangs.len())));
    }
    usage(&gangs, &issues, rollouts / gangs.len() as u32)
}

type Issues = HashMap<(Option<u16>, u32), Issue>;

/// Every word of a step.
fn issues(published: &Published) -> Issues {
    let image = published.at(0);
    let bytes = &published.memory[image.program_at as usize..][..8 * image.words as usize];
    let word = |eight: &[u8]| u64::from_le_bytes(eight.try_into().expect("eight bytes"));
    let words: Vec<u64> = bytes.chunks_exact(8).map(word).collect();
    let mut sequencer = Sequencer::new(&words, &published.memory, u32::MAX);
    let mut issues = Issues::new();
    while let Ok(next) = sequencer.next() {
        match next {
            Next::Issue(issue) => {
                issues.insert((issue.layer, issue.pc), issue);
            }
            Next::End => break,
            _ => {}
        }
    }
    issues
}

/// What each gang did that ran a DECODE.
fn gangs(events: &[Event], issues: &Issues) -> Vec<Gang> {
    let mut gangs: HashMap<usize, Gang> = HashMap::new();
    let mut running: HashMap<usize, Begun> = HashMap::new();
    for event in events {
        match event {
            Event::Begun(begun) => {
                running.insert(begun.context, *begun);
            }
            Event::Retired(retired) => {
                let Some(begun) = running.get(&retired.place.context) else { continue };
                let key = (retired.place.layer, retired.place.pc);
                let unit = Engine::ALL.iter().position(|&unit| unit == issues[&key].engine());
                let unit = unit.expect("one of them");
                let words = &mut gangs.entry(begun.gang).or_default().words;
                // What all contexts share is told of each.
                let told = |word: &Word| word.unit == unit && word.key == key && word.began == retired.began;
                if !words.iter().rev().take(32).any(told) {
                    words.push(Word { key, unit, began: retired.began, end: retired.cycle + 1 });
                }
            }
            Event::Ended(Ended { context, cycle, .. }) => {
                if let Some(begun) = running.remove(context).filter(|begun| !begun.silent) {
                    let steps = &mut gangs.entry(begun.gang).or_default().steps;
                    match steps.last_mut().filter(|step| (step.0, step.1) == (begun.cycle, *cycle)) {
                        Some(step) => step.2 += 1,
                        None => steps.push((begun.cycle, *cycle, 1)),
                    }
                }
            }
        }
    }
    let mut gangs: Vec<Gang> = gangs.into_values().filter(|gang| !gang.steps.is_empty()).collect();
    gangs.iter_mut().for_each(|gang| gang.words.sort_by_key(|word| word.began));
    gangs
}

/// Of the cycles from when every gang has had its first DECODEs of all of its contexts to the last ones of any: rollouts begin, and end, one after the other.
fn usage(gangs: &[Gang], issues: &Issues, contexts: u32) -> Result<Usage, BenchError> {
    let full = |gang: &Gang| {
        let mut steps = gang.steps.iter().filter(|step| step.2 == contexts);
        let first = steps.next()?;
        Some((first.0, steps.next_back().unwrap_or(first).1))
    };
    let stretches: Option<Vec<(u64, u64)>> = gangs.iter().map(full).collect();
    let stretches =
        stretches.ok_or_else(|| BenchError::failed(format!("no gang had {contexts} contexts at a time")))?;
    let from = stretches.iter().map(|stretch| stretch.0).max().expect("a gang");
    let to = stretches.iter().map(|stretch| stretch.1).min().expect("a gang");
    if from >= to {
        return Err(BenchError::failed(format!("gangs of {contexts} contexts never ran beside each other")));
    }
    let within = |began: u64, end: u64| end.min(to).saturating_sub(began.max(from));
    let steps = gangs.iter().flat_map(|gang| &gang.steps);
    let made = |began, end| within(began, end) as f64 / (end - began) as f64;
    let tokens = steps.map(|&(began, end, contexts)| f64::from(contexts) * made(began, end)).sum();
    let cycles = to.saturating_sub(from);
    let mut usage = Usage { gangs: gangs.len(), cycles, tokens, busy: [0; 4], idle: [[0; 5]; 4] };

    let words = || gangs.iter().flat_map(|gang| &gang.words);
    let steps = gangs.iter().flat_map(|gang| &gang.steps).flat_map(|&(began, end, _)| [began, end]);
    let mut times: Vec<u64> = words().flat_map(|word| [word.began, word.end]).chain(steps).collect();
    times.extend([from, to]);
    times.retain(|time| (from..=to).contains(time));
    times.sort_unstable();
    times.dedup();
    let mut next = vec![0; gangs.len()];
    let mut flying: Vec<[Option<usize>; 4]> = vec![[None; 4]; gangs.len()];
    for pair in times.windows(2) {
        let (now, cycles) = (pair[0], pair[1] - pair[0]);
        for ((gang, next), flying) in gangs.iter().zip(&mut next).zip(&mut flying) {
            while let Some(word) = gang.words.get(*next).filter(|word| word.began <= now) {
                flying[word.unit] = Some(*next);
                *next += 1;
            }
            for slot in flying.iter_mut() {
                *slot = slot.filter(|&at| gang.words[at].end > now);
            }
        }
        let taken: [bool; 4] = std::array::from_fn(|unit| flying.iter().any(|flying| flying[unit].is_some()));
        for unit in 0..4 {
            if taken[unit] {
                usage.busy[unit] += cycles;
                continue;
            }
            let cause =
                |gang: usize| cause(&gangs[gang], next[gang], &flying[gang], &taken, unit, now, issues);
            let idle = (0..gangs.len()).map(cause).min().expect("a gang");
            usage.idle[unit][idle] += cycles;
        }
    }
    Ok(usage)
}

/// Why a unit has no word of a gang: a place in [`Idle::ALL`].
fn cause(
    gang: &Gang,
    next: usize,
    flying: &[Option<usize>; 4],
    taken: &[bool; 4],
    unit: usize,
    now: u64,
    issues: &Issues,
) -> usize {
    let at = |idle: Idle| Idle::ALL.iter().position(|&other| other == idle).expect("one of them");
    let step = gang.steps.iter().find(|&&(began, end, _)| (began..end).contains(&now));
    let (Some(word), Some(&(_, end, _))) = (gang.words.get(next), step) else { return at(Idle::End) };
    if word.began >= end {
        return at(Idle::End);
    }
    let issue = &issues[&word.key];
    let before = flying.iter().flatten().map(|&at| &issues[&gang.words[at].key]);
    let held = before.filter(|before| before.engine() != issue.engine() || before.waited_for());
    let waits =
        held.into_iter().any(|before| before.waited_for() || Hazards::default().between(before, issue));
    match (word.unit == unit, waits || taken[word.unit]) {
        (_, false) => at(Idle::Words),
        (true, true) => at(Idle::Operand),
        (false, true) => at(Idle::Order),
    }
}

/// A model's name, the model, and the tokens of a rollout.
type Measured = (&'static str, Arc<Language>, u32);

/// tiny, and the one that was fetched.
fn models(load: &Load<'_>) -> Result<Vec<Measured>, BenchError> {
    let built = |image: Image| -> Result<Arc<Language>, BenchError> {
        let published = Published::new(image.to_bytes(), &image.about.ends).map_err(BenchError::input)?;
        let version = Version { model: image.model, ends: image.about.ends };
        Ok(Arc::new(Language { published, version, sharpness: doorbell_lm::sample::Sharpness::ONE }))
    };
    let mut models = vec![("tiny", built(tiny())?, if load.quick { 8 } else { 30 })];
    if let Some(language) = load.language {
        let image = Image { model: language.model.clone(), about: About::default() };
        models.push(("smollm2", built(image)?, if load.quick { 4 } else { 8 }));
    }
    Ok(models)
}

/// Busy shares by rollouts, and what units without a word wait for.
pub fn sections(load: &Load<'_>) -> Result<Vec<Section>, BenchError> {
    let mut shares = table(
        [
            "model",
            "rollouts",
            "gangs",
            "contexts of each",
            "cycles a token",
            "tokens/s",
            "MEM",
            "GEMV",
            "SFU",
            "KV",
            "busiest",
            "bar",
            "bar is",
        ],
        1,
    );
    let mut causes =
        table(["model", "rollouts", "unit", "busy", "operand", "token", "order", "words", "end"], 1);
    let (mut rows, mut cause_rows) = (vec![], vec![]);
    let devices = doorbell_cosim::built().into_iter().filter(|device| device.engines > 1);
    let workers = devices.map(|device| device.workers).max().unwrap_or_default();
    for (name, language, tokens) in models(load)? {
        for rollouts in ROLLOUTS.into_iter().filter(|&rollouts| rollouts <= workers) {
            let usage = measure(&language, rollouts, tokens)?;
            let cycles = usage.cycles as f64 / usage.tokens;
            let (busiest, share) = usage.busiest();
            let bar = BARS[usize::from(rollouts > 1)];
            let mut cells = vec![
                name.to_owned(),
                rollouts.to_string(),
                usage.gangs.to_string(),
                (rollouts as usize / usage.gangs).to_string(),
                format!("{cycles:.0}"),
                format!("{:.0}", CLOCK / cycles),
            ];
            cells.extend(usage.busy.map(|busy| percent(usage.share(busy))));
            cells.extend([busiest.to_owned(), percent(bar), verdict(share >= bar).to_owned()]);
            shares.add_row(cells);
            rows.push(json!({
                "model": name, "rollouts": rollouts, "gangs": usage.gangs, "cycles_per_token": cycles, "busy": usage.busy.map(|busy| usage.share(busy)),
            }));
            for (unit, unit_name) in UNITS.into_iter().enumerate() {
                let mut cells = vec![name.to_owned(), rollouts.to_string(), unit_name.to_owned()];
                cells.push(percent(usage.share(usage.busy[unit])));
                cells.extend(usage.idle[unit].map(|idle| percent(usage.share(idle))));
                causes.add_row(cells);
                cause_rows.push(json!({
                    "model": name, "rollouts": rollouts, "unit": unit_name,
                    "busy": usage.busy[unit], "idle": usage.idle[unit], "cycles": usage.cycles,
                }));
            }
        }
    }
    Ok(vec![
        Section {
            heading: format!(
                "RTL, engine 1: share of cycles in which each unit has a word, memory at {MEMORY} cycles, tokens/s at 100 MHz"
            ),
            table: shares,
            notes: vec![format!(
                "Contexts of a gang share each pass over the weights. For comparison: gateGPT keeps {} of its multipliers' cycles busy.",
                percent(GATE_GPT)
            )],
            json: rows.into(),
        },
        Section {
            heading: "RTL, engine 1: what units without a word wait for".to_owned(),
            table: causes,
            notes: vec![
                "operand: its own word is next, and waits for another's; order: the word that is next is another unit's, and waits; words: \
                 none is ready yet; end: between two steps. With several gangs the first of these that any of them has."
                    .to_owned(),
            ],
            json: cause_rows.into(),
        },
    ])
}
