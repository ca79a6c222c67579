//! What `compare` found, as text and as JSON.

use std::fmt::Write;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use comfy_table::Table;
use doorbell_contract::{HwCompletion, HwDesc};
use doorbell_devices::Kind;
use doorbell_setup::shell::word;
use doorbell_trace::{Format, Trace};
use doorbell_verify::compare::{Divergence, Outcome};
use doorbell_verify::lockstep::Held;
use doorbell_verify::replay::ReplayPlan;
use serde_json::{Map, Value, json};

use crate::output;
use crate::why;
use crate::workers::{workers, workers_json};

/// Everything there is to tell.
pub struct Report<'a> {
    pub trace: &'a Trace,
    /// `None` for the built-in trace.
    pub format: Option<Format>,
    pub plan: &'a ReplayPlan,
    pub outcomes: &'a [Outcome],
    pub skipped: &'a [Skipped],
    pub fault: Option<Fault>,
    /// Why devices went wrong, in words.
    pub why: String,
    pub waveform: Option<Waveform>,
}

/// What `--inject` asked for.
#[derive(Clone, Debug)]
pub struct Fault {
    pub fault: String,
    /// The device that was to have it.
    pub device: String,
    /// Whether a device differs or failed.
    pub found: bool,
}

/// A device that is not there and was not asked for.
#[derive(Clone, Debug)]
pub struct Skipped {
    pub kind: Kind,
    pub reason: String,
}

/// A recorded waveform.
#[derive(Clone, Debug)]
pub struct Waveform {
    pub device: String,
    pub path: PathBuf,
    /// What was recorded, or why nothing was.
    pub recorded: Result<Recorded, String>,
}

/// Clock cycles of a device.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// Those that are in the waveform.
    pub cycles: Range<u64>,
    /// The host saw the divergence at the end of these, and no sign of it at their beginning. `None` where there is none.
    pub divergence: Option<Range<u64>>,
    /// The save file with signals and a marker at the divergence, or why there is none.
    pub save: Result<PathBuf, String>,
}

impl Report<'_> {
    fn identical(&self) -> bool {
        self.outcomes.iter().all(Outcome::agrees)
    }

    /// The table, then `identical: …` or what differs.
    pub fn text(&self) -> String {
        let mut text = heading(self.trace, self.format, self.plan);
        text += &format!("\n{}\n\n", self.table());
        for outcome in self.outcomes.iter().filter(|outcome| !outcome.workers.is_empty()) {
            text += &format!("{}\n\n", workers(&outcome.name, &outcome.workers));
        }
        for Skipped { kind, reason } in self.skipped {
            text += &format!("skipped: {} ({reason})\n", kind.name());
        }
        if let Some(fault) = self.fault.as_ref().filter(|fault| !fault.found) {
            text += &not_found(fault, &self.outcomes[0]);
        } else if self.identical() {
            let names: Vec<&str> = self.outcomes.iter().map(|outcome| outcome.name.as_str()).collect();
            let first = &self.outcomes[0];
            let (completions, tokens) = (first.completions, first.tokens);
            let options = self.plan.options();
            let _ = if self.plan.publishes() {
                let published: Vec<String> = self
                    .outcomes
                    .iter()
                    .map(|outcome| {
                        let Outcome { name, published, superseded, .. } = outcome;
                        format!("{name} ({published} versions, {superseded} superseded)")
                    })
                    .collect();
                writeln!(
                    text,
                    "right: every token is of the version of its span, and at the same switch points the model has the same \
                     bytes: {}",
                    published.join(", ")
                )
            } else if options.stop_every == 0 && options.stop_group_every == 0 {
                writeln!(
                    text,
                    "identical: {completions} completions and {tokens} tokens on {}",
                    names.join(", ")
                )
            } else {
                writeln!(
                    text,
                    "identical: {completions} completions and their tokens on {}; where a STOP cut a rollout, each to \
                     a right prefix",
                    names.join(", ")
                )
            };
        }
        for Outcome { name, lockstep, .. } in self.outcomes {
            if let Some(Held { steps, words, difference: None }) = lockstep {
                let _ = writeln!(
                    text,
                    "lockstep: {words} instructions of {steps} steps of {name} did what the interpreter's did"
                );
            }
        }
        for outcome in self.outcomes.iter().filter(|outcome| !outcome.agrees()) {
            text += &difference(&self.outcomes[0].name, outcome, self.plan.ids());
        }
        text += &self.why;
        if let Some(Waveform { device, path, recorded }) = &self.waveform {
            let shown = path.display();
            let _ = match recorded {
                Ok(Recorded { cycles, divergence, save }) => {
                    if let Some(Range { start, end }) = divergence {
                        let seen = if start == end {
                            format!("cycle {end}")
                        } else {
                            format!("cycle {end}; it came about after cycle {start}")
                        };
                        let _ = writeln!(text, "divergence: seen in {seen}");
                    }
                    let (from, to) = (cycles.start, cycles.end);
                    let _ = writeln!(
                        text,
                        "waveform: {shown} (cycles {from} to {to} of {device}; a cycle is 10 ns)"
                    );
                    match save {
                        Ok(save) => {
                            let words = [path, save].map(word);
                            let marker =
                                if divergence.is_some() { "the divergence" } else { "the first cycle" };
                            writeln!(
                                text,
                                "open it: gtkwave {}  (the marker is at {marker})",
                                words.join(" ")
                            )
                        }
                        Err(problem) => writeln!(text, "save file: not written: {problem}"),
                    }
                }
                Err(problem) => writeln!(text, "waveform: {shown} was not recorded: {problem}"),
            };
        }
        text
    }

    fn table(&self) -> Table {
        let columns = [
            "device",
            "descriptors",
            "completions",
            "tokens",
            "digest",
            "cycles",
            "tokens/cycle",
            "wall",
            "tokens/s",
        ];
        let mut table = output::table(columns, 1);
        for outcome in self.outcomes {
            let cycles = outcome.cycles.filter(|&cycles| cycles > 0);
            let per_cycle = cycles.map(|cycles| per_cycle(outcome.tokens as f64 / cycles as f64));
            table.add_row([
                outcome.name.clone(),
                outcome.descriptors.to_string(),
                outcome.completions.to_string(),
                outcome.tokens.to_string(),
                // Where a version switches is each device's own.
                if self.plan.publishes() { "-".into() } else { digest(outcome) },
                cycles.map_or("-".into(), |cycles| cycles.to_string()),
                per_cycle.unwrap_or("-".into()),
                seconds(outcome.wall),
                rate(outcome),
            ]);
        }
        table
    }

    /// The same as JSON.
    pub fn json(&self) -> String {
        let options = self.plan.options();
        let value = json!({
            "identical": self.identical(),
            "trace": { "source": self.trace.source, "format": self.format.map(|format| format.to_string()) },
            "plan": {
                "requests": self.plan.requests(),
                "rollouts": self.plan.rollouts(),
                "group": options.group,
                "checkpoint": options.checkpoint,
                "resident": options.resident,
                "reward_threshold": options.reward_threshold,
                "eos_threshold": options.eos_threshold,
                "stop_every": options.stop_every,
                "stop_groups": options.stop_group_every,
                "publish_every": options.publish_every,
                "publish_mode": options.publish_mode.name(),
                "seed": options.seed,
            },
            "devices": self.outcomes.iter().map(device).collect::<Vec<Value>>(),
            "skipped": self.skipped.iter().map(|Skipped { kind, reason }| json!({
                "device": kind.name(), "reason": reason,
            })).collect::<Vec<Value>>(),
            "waveform": self.waveform.as_ref().map(|waveform| json!({
                "device": waveform.device,
                "file": output::path(&waveform.path),
                "first_cycle": waveform.recorded.as_ref().ok().map(|recorded| recorded.cycles.start),
                "last_cycle": waveform.recorded.as_ref().ok().map(|recorded| recorded.cycles.end),
                "divergence_after_cycle": place(waveform).map(|place| place.start),
                "divergence_cycle": place(waveform).map(|place| place.end),
                "save_file": waveform.recorded.as_ref().ok().and_then(|recorded| recorded.save.as_deref().ok()).map(output::path),
                "problem": waveform.recorded.as_ref().err(),
            })),
            "fault": self.fault.as_ref().map(|fault| json!({
                "fault": fault.fault, "device": fault.device, "found": fault.found,
            })),
        });
        output::json(&value)
    }
}

/// What ran: the trace, and what became of it.
pub fn heading(trace: &Trace, format: Option<Format>, plan: &ReplayPlan) -> String {
    let options = plan.options();
    let format = format.map_or("built in".to_owned(), |format| format.to_string());
    let mut text = format!("trace: {} ({format})\n", output::plain(&trace.source));
    let _ = write!(text, "plan: {} requests, {} rollouts", plan.requests(), plan.rollouts());
    if plan.has_prefills() {
        let _ = write!(text, " in groups of {} after a PREFILL", options.group);
    }
    match options.checkpoint {
        0 => text += ", no checkpoints",
        every => {
            let _ = write!(text, ", a checkpoint every {every} tokens");
        }
    }
    if options.resident {
        text += ", scored by the devices";
    }
    if options.stop_every > 0 {
        let _ = write!(text, ", a STOP to one rollout in {}", options.stop_every);
    }
    if options.stop_group_every > 0 {
        let _ = write!(text, ", a STOP to one group in {}", options.stop_group_every);
    }
    if options.publish_every > 0 {
        let mode = options.publish_mode.name().to_lowercase();
        let _ = write!(text, ", a version every {} completions ({mode})", options.publish_every);
    }
    let _ = writeln!(text, ", seed {}", options.seed);
    text
}

/// That a planted fault was not found on any device; `first` is what the first did.
pub fn not_found(Fault { fault, device, .. }: &Fault, first: &Outcome) -> String {
    let Outcome { completions, tokens, .. } = first;
    format!(
        "not found: the fault '{fault}' was never planted in {device}, or changed nothing that is compared: all devices \
         did the same. The run had {completions} completions and {tokens} tokens; give a place that comes before its \
         end, as token:0 or completion:0:result, or a longer trace\n"
    )
}

/// How a device differs from `reference`, in a plan of so many rollout ids.
pub fn difference(reference: &str, outcome: &Outcome, ids: u32) -> String {
    let name = &outcome.name;
    let mut text = String::new();
    let in_step = outcome.lockstep.as_ref().and_then(|held| held.difference.as_ref());
    if let Some(difference) = in_step {
        let _ = writeln!(
            text,
            "different: the NPU of {name} differs from the interpreter; the first instruction that did:\n{difference}"
        );
    } else if let Some(failure) = &outcome.failure {
        let _ = writeln!(text, "failed: {name} did not finish: {failure}");
    }
    if let Some(divergence) = &outcome.divergence {
        let than = if name == reference { "the rules" } else { reference };
        let _ = writeln!(
            text,
            "different: {name} differs from {than} in {} of {} rollout ids; the first that it completed:\n{divergence}",
            outcome.differing, ids
        );
    }
    if let Some(rerun) = &outcome.rerun {
        let _ = writeln!(text, "different: {name}: {rerun}");
    }
    text
}

/// Where a waveform shows the divergence.
fn place(waveform: &Waveform) -> Option<&Range<u64>> {
    waveform.recorded.as_ref().ok()?.divergence.as_ref()
}

fn digest(outcome: &Outcome) -> String {
    format!("{:016x}", outcome.digest)
}

fn seconds(wall: Duration) -> String {
    format!("{:.3} s", wall.as_secs_f64())
}

fn tokens_per_second(outcome: &Outcome) -> f64 {
    outcome.tokens as f64 / outcome.wall.as_secs_f64().max(1e-9)
}

fn rate(outcome: &Outcome) -> String {
    output::thousands(tokens_per_second(outcome))
}

/// Three digits, also of a language model's thousandths.
fn per_cycle(rate: f64) -> String {
    let zeros = if rate > 0.0 { (-rate.log10()).ceil().clamp(1.0, 12.0) as usize } else { 1 };
    format!("{rate:.*}", 2 + zeros)
}

fn device(outcome: &Outcome) -> Value {
    json!({
        "name": outcome.name,
        "agrees": outcome.agrees(),
        "descriptors": outcome.descriptors,
        "completions": outcome.completions,
        "tokens": outcome.tokens,
        "published": outcome.published,
        "superseded": outcome.superseded,
        "rerun": outcome.rerun,
        "lockstep": outcome.lockstep,
        "digest": digest(outcome),
        "cycles": outcome.cycles,
        "wall_seconds": outcome.wall.as_secs_f64(),
        "tokens_per_second": tokens_per_second(outcome),
        "workers": workers_json(&outcome.workers),
        "failure": outcome.failure.as_ref().map(ToString::to_string),
        "why": outcome.failure.as_ref().and_then(why::json_of),
        "differing_rollout_ids": outcome.differing,
        "divergence": outcome.divergence.as_ref().map(divergence),
    })
}

fn divergence(divergence: &Divergence) -> Value {
    let completion = |completion: &HwCompletion| {
        let fields =
            HwCompletion::FIELDS.iter().map(|field| (field.name.to_owned(), json!((field.get)(completion))));
        Value::Object(fields.collect::<Map<String, Value>>())
    };
    let descriptor = HwDesc::FIELDS.iter().filter(|field| field.name != "check");
    let descriptor = descriptor.map(|field| (field.name.to_owned(), json!((field.get)(&divergence.desc))));
    json!({
        "rollout_id": divergence.rollout_id,
        "completion": divergence.completion,
        "ordinal": divergence.ordinal,
        "fields": divergence.fields,
        "token": divergence.token,
        "expected": divergence.expected.as_ref().map(completion),
        "found": divergence.found.as_ref().map(completion),
        "descriptor": descriptor.collect::<Map<String, Value>>(),
    })
}
