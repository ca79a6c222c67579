//! Why a run went as it did: the life of a descriptor, and who waits for whom.

use std::fmt::Write;
use std::ops::ControlFlow;
use std::thread;

use doorbell_contract::{CompletionFlags, DescFlags, ErrorCode, HwDesc, Opcode, Status};
use doorbell_devices::{Kind, OpenError, Settings};
use doorbell_host::DeviceError;
use doorbell_host::why::{Cause, Root, Waiting, Why};
use doorbell_verify::compare::{Outcome, unique_names};
use doorbell_verify::life::{Life, Lives, Waited};
use doorbell_verify::replay::{ReplayFailure, ReplayPlan, watch_lives};

use crate::busy::Busy;

/// Slots of the event ring of each function: what completes between two looks fits into it.
const EVENT_SLOTS: u32 = 16_384;
/// Patience of the second run of an RTL device that hung, in advances without progress. One eighth of the first patience applies if that is
/// more.
const SECOND_PATIENCE: u32 = 100;
/// Waiting descriptors that are printed.
const SHOWN: usize = 12;

/// One device that ran a plan, and what became of each descriptor there.
pub struct Ran {
    kind: Kind,
    name: String,
    lives: Lives,
    /// Ticks of its clock in a second; 0: a cycle or a step.
    tick_hz: u32,
    failure: Option<ReplayFailure>,
}

impl Ran {
    /// Every descriptor.
    pub fn lives(&self) -> &Lives {
        &self.lives
    }
}

/// Has devices tell the life of each descriptor.
pub fn keep_lives(settings: &mut Settings) {
    settings.queue.event_slots = EVENT_SLOTS;
    settings.queue.life_events = true;
    // Of the RTL without a ring.
    settings.tap = true;
}

/// Runs `plan` on devices of these kinds, each on a thread, and keeps the life of each descriptor. A device ends once `enough` is known.
///
/// # Errors
/// If a device cannot be opened.
pub fn run(
    plan: &ReplayPlan,
    kinds: &[Kind],
    settings: &[Settings],
    enough: &(dyn Fn(&Lives) -> bool + Sync),
) -> Result<Vec<Ran>, OpenError> {
    let mut devices = Vec::with_capacity(kinds.len());
    for (kind, settings) in kinds.iter().zip(settings) {
        let mut settings = settings.clone();
        keep_lives(&mut settings);
        devices.push(kind.open(&settings)?);
    }
    let groups = devices.iter().all(|device| device.features().groups > 0);
    let (names, plan) = (unique_names(&devices), if groups { plan } else { &plan.clone().without_groups() });
    let told = |lives: &Lives| match enough(lives) {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    };
    Ok(thread::scope(|scope| {
        let threads: Vec<_> = devices
            .into_iter()
            .zip(kinds.iter().zip(names))
            .map(|(mut device, (&kind, name))| {
                scope.spawn(move || {
                    let (replay, lives) = watch_lives(plan, &mut *device, &mut |lives| told(lives));
                    let failure = replay.failure.filter(|failure| !matches!(failure, ReplayFailure::Ended));
                    Ran { kind, name, lives, tick_hz: device.features().tick_hz, failure }
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    }))
}

/// Explains what went wrong on the `wanted` devices: for each that stopped answering, which descriptor waits for which; for all devices,
/// the life of the descriptor where the first of them failed. That life takes a second run of the plan, so `tell` gets everything else
/// before it.
///
/// # Errors
/// Those of `tell`.
pub fn of_outcomes<E>(
    plan: &ReplayPlan,
    kinds: &[Kind],
    settings: &[Settings],
    outcomes: &[Outcome],
    wanted: &dyn Fn(&Outcome) -> bool,
    tell: &mut dyn FnMut(&str) -> Result<(), E>,
) -> Result<(), E> {
    let mut settings = settings.to_vec();
    for ((&kind, settings), outcome) in
        kinds.iter().zip(&mut settings).zip(outcomes).filter(|(_, outcome)| wanted(outcome))
    {
        let text = match &outcome.failure {
            Some(failure) => hang(kind, &outcome.name, failure),
            None => differs(kind, outcome),
        };
        tell(&text)?;
        // A device that hung once hangs again, so the second run waits for a shorter time. The RTL has simulated time, which the machine's
        // load does not stretch.
        if let (Kind::Rtl, Some(waited)) = (kind, outcome.failure.as_ref().and_then(patience_of)) {
            settings.patience = Some(waited.min(SECOND_PATIENCE.max(waited / 8)));
        }
    }
    // A device that is gone cannot run the plan again.
    let gone =
        |error: &DeviceError| matches!(error, DeviceError::Failed { .. } | DeviceError::Unavailable { .. });
    let is_gone = |outcome: &Outcome| matches!(&outcome.failure, Some(ReplayFailure::Device { error, .. }) if gone(error));
    if outcomes.iter().any(|outcome| wanted(outcome) && is_gone(outcome)) {
        return Ok(());
    }
    let wrong = outcomes.iter().filter(|outcome| wanted(outcome) && !outcome.agrees());
    let Some(name) = wrong.filter_map(in_question).next() else { return Ok(()) };
    let ran = Busy::during("running the plan again to say why", || {
        run(plan, kinds, &settings, &|lives| lives.is_told(name))
    });
    tell(&match ran {
        Ok(ran) => format!("why: {}", life(&ran, name)),
        Err(error) => format!("why: the life of the descriptor is not known: {error}\n"),
    })
}

/// The `user_data` of the descriptor that a device went wrong with.
fn in_question(outcome: &Outcome) -> Option<u64> {
    if let Some(divergence) = &outcome.divergence {
        return Some(divergence.desc.user_data);
    }
    match &outcome.failure {
        // The oldest of the queue pair that is told of; else of all.
        Some(ReplayFailure::Device { error, waiting }) => {
            let oldest = why_of(error).and_then(|(_, why)| Some(why.waiting.first()?.desc.user_data));
            oldest.or(waiting.as_ref().map(|desc| desc.user_data))
        }
        Some(ReplayFailure::Unasked { completion, .. }) => Some(completion.user_data),
        _ => None,
    }
}

/// The life of the descriptor with this `user_data` on each device, side by side, and what it waited for.
pub fn life(ran: &[Ran], name: u64) -> String {
    let found: Vec<Option<&Life>> = ran.iter().map(|ran| ran.lives.of(name)).collect();
    let Some(desc) = found.iter().flatten().next().map(|life| life.desc) else {
        return format!("no device came to the descriptor with user_data {name:#x}\n");
    };
    let mut text = format!("the life of {}\n\n", described(&desc));
    let mut table = comfy_table::Table::new();
    table.load_preset(comfy_table::presets::ASCII_MARKDOWN);
    let names = ran.iter().map(|ran| ran.name.clone());
    table.set_header([String::new()].into_iter().chain(names));
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(comfy_table::CellAlignment::Right);
    }
    let columns: Vec<Vec<String>> = ran.iter().zip(&found).map(|(ran, life)| column(ran, *life)).collect();
    for (row, label) in ROWS.iter().enumerate() {
        let cells: Vec<String> = columns.iter().map(|column| column[row].clone()).collect();
        if cells.iter().any(|cell| cell != NONE) {
            table.add_row([(*label).to_owned()].into_iter().chain(cells));
        }
    }
    let _ = writeln!(text, "{table}\n");
    for (ran, life) in ran.iter().zip(&found) {
        let name = &ran.name;
        match life {
            None => {
                let _ = writeln!(text, "{name}: was never given it");
            }
            Some(life) if life.completion.is_none() => {
                let _ = writeln!(text, "{name}: it has no completion");
            }
            Some(life) if life.event.is_none() => {
                let no_echo = life.completion.is_some_and(|(_, found)| found.has(CompletionFlags::NO_ECHO));
                let why = match no_echo {
                    true => "its slot could not be trusted (R2), so its LIFE event does not name it",
                    false => "no LIFE event (R23) names it",
                };
                let _ = writeln!(text, "{name}: its times are not known: {why}");
            }
            Some(life) => {
                if let Some(held) = held(ran, life) {
                    let _ = writeln!(text, "{name}: {held}");
                }
            }
        }
    }
    text
}

/// What a cell says of what is not known.
const NONE: &str = "-";

const ROWS: [&str; 13] = [
    "submitted as descriptor",
    "queue pair",
    "slot read after",
    "a worker began",
    "first token",
    "ended",
    "completion visible",
    "worker",
    "completion",
    "status",
    "error",
    "final_seq_len",
    "result",
];

/// A cell for each of the [`ROWS`].
fn column(ran: &Ran, life: Option<&Life>) -> Vec<String> {
    let none = || NONE.to_owned();
    let Some(life) = life else { return vec![none(); ROWS.len()] };
    let event = life.event;
    let ticks = |ticks: u64| duration(ran, ticks);
    let after = |delta: Option<u32>| delta.map_or_else(none, |delta| format!("+ {}", ticks(delta.into())));
    let completion = life.completion;
    let of = |value: Option<String>| value.unwrap_or_else(none);
    vec![
        ran.lives.place(life).to_string(),
        of(event.map(|event| event.queue_id.to_string())),
        of(ran.lives.since_first(life).map(ticks)),
        after(event.map(|event| event.start)),
        // As `ended` where there is none.
        after(event.filter(|event| event.first_token != event.ended).map(|event| event.first_token)),
        after(event.map(|event| event.ended)),
        after(event.map(|event| event.visible)),
        of(event.map(|event| event.worker_id.to_string())),
        of(completion.map(|(ordinal, _)| ordinal.to_string())),
        of(completion.map(|(_, completion)| {
            Status::try_from(completion.status)
                .map_or(format!("{:#04x}", completion.status), |status| status.name().to_owned())
        })),
        of(completion.filter(|(_, completion)| completion.error != 0).map(|(_, completion)| {
            ErrorCode::try_from(completion.error)
                .map_or(format!("{:#04x}", completion.error), |error| error.name().to_owned())
        })),
        of(completion.map(|(_, completion)| completion.final_seq_len.to_string())),
        of(completion.map(|(_, completion)| format!("{:#x}", completion.result))),
    ]
}

/// Ticks of the device's clock, in words.
fn duration(ran: &Ran, ticks: u64) -> String {
    match (ran.kind, ran.tick_hz) {
        // A tick of the RTL is a cycle, whatever its frequency would be.
        (Kind::Rtl, _) if ticks == 1 => "1 cycle".to_owned(),
        (Kind::Rtl, _) => format!("{ticks} cycles"),
        (_, 0) => format!("{ticks} ticks"),
        (_, hz) => format!("{:.2} us", ticks as f64 * 1e6 / f64::from(hz)),
    }
}

/// What a descriptor waited for, in a sentence.
fn held(ran: &Ran, life: &Life) -> Option<String> {
    let event = life.event?;
    let waited = ran.lives.waited(life)?;
    let (rule, reason) = match waited {
        Waited::Order(_) => ("R5", "the one before it in its rollout"),
        Waited::Fence(_) => ("R7", "a fence before it"),
        Waited::Earlier(_) => ("R7", "the last to complete before this fence"),
        Waited::Prefill(_) => ("R17", "which opens its group"),
        Waited::Worker(_) => ("R16", "which had its worker"),
        Waited::Turn(_) => ("R16", "the one before it in its queue pair, which had not begun"),
        Waited::Unknown => ("R4", "the completion queue was full, most likely: that does not show in events"),
    };
    let took = duration(ran, event.start.into());
    let source = rule_source(ran.kind, rule);
    Some(match waited.other() {
        Some(other) => format!(
            "began {took} after its slot was read; it waited for\n  {}, {reason} ({rule}, {source})",
            described(&other.desc)
        ),
        None => format!(
            "began {took} after its slot was read; nothing that events show held it:\n  {reason} ({rule}, {source})"
        ),
    })
}

/// A descriptor in a few words.
fn described(desc: &HwDesc) -> String {
    let opcode = Opcode::try_from(desc.opcode).map_or("a descriptor", Opcode::name);
    let flags = DescFlags::from_bits_retain(desc.flags);
    let part = if opcode == "DECODE" { format!(", part {}", desc.user_data as u32) } else { String::new() };
    let fence = if flags.contains(DescFlags::FENCE) { " with FENCE" } else { "" };
    format!("{opcode} of rollout {}{part}{fence}", desc.rollout_id)
}

impl Ran {
    /// Whether it did not come to the end of the plan.
    pub fn failed(&self) -> bool {
        self.failure.is_some()
    }
}

/// Why a device did not come to the end of the plan; nothing of one that did.
pub fn ended(ran: &Ran) -> String {
    let Some(failure) = &ran.failure else { return String::new() };
    let chain = hang(ran.kind, &ran.name, failure);
    if chain.is_empty() { format!("{} did not finish: {failure}\n", ran.name) } else { chain }
}

/// Explains why a device stopped answering or broke the contract: the root with its rule and source, and which descriptor waits for which.
/// Empty for any other failure.
pub fn hang(kind: Kind, name: &str, failure: &ReplayFailure) -> String {
    let ReplayFailure::Device { error, .. } = failure else { return String::new() };
    if let Some((place, why)) = why_of(error) {
        return waits(kind, &named(name, place), why);
    }
    let (place, error) = match error {
        DeviceError::Shard { shard, error, .. } => (Some(*shard), &**error),
        error => (None, error),
    };
    let (root, source) = match error {
        DeviceError::Refused { register, root, .. } => {
            (format!("{root}; so a write of {register} was refused"), root_source(kind, root, 0))
        }
        DeviceError::Protocol { rule, what, .. } => {
            (format!("it broke {rule}: {what}"), rule_source(kind, rule))
        }
        _ => return String::new(),
    };
    format!("why: {}: {root}\n  see {source}\n", named(name, place))
}

/// Names the part of the device that made a difference, with its rule and source.
fn differs(kind: Kind, outcome: &Outcome) -> String {
    let tell = |what: String, rule: &str, source: &str| {
        format!("why: {}: {what} ({rule})\n  see {source}\n", outcome.name)
    };
    if outcome.rerun.is_some() {
        let what = "its tokens are not those of the versions that it reports: a policy was loaded too late, or another one is in its slot";
        return tell(what.into(), "R18, R19", rule_source(kind, "R19"));
    }
    let Some(divergence) = &outcome.divergence else { return String::new() };
    let (desc, found) = (&divergence.desc, divergence.found);
    let Some(found) = found.filter(|_| divergence.expected.is_some()) else {
        let what = if found.is_some() {
            "a descriptor has one completion too many"
        } else {
            "a descriptor has no completion"
        };
        return tell(what.into(), "R3", rule_source(kind, "R3"));
    };
    let of_field = |name: &str| divergence.fields.iter().any(|field| field.name == name);
    if of_field("error") && found.error != 0 {
        let error = ErrorCode::try_from(found.error);
        let no_echo = found.has(CompletionFlags::NO_ECHO);
        let (what, rule, source) = match error {
            Ok(ErrorCode::BadCheck) => {
                ("its slot is not what the driver wrote, or another one was read", "R2", "R2")
            }
            Ok(ErrorCode::DmaFault) if no_echo => {
                ("the read of its slot was answered with an error", "R10", "R2")
            }
            Ok(ErrorCode::DmaFault) => ("a read or a write of it was answered with an error", "R10", "R15"),
            _ => ("it was refused", "R10", "R10"),
        };
        let error = error.map_or("no code point", |error| error.name());
        return tell(format!("{what}: {error}"), rule, rule_source(kind, source));
    }
    if let Some(broken) = &divergence.broken {
        return tell(broken.clone(), "R17", rule_source(kind, "R17"));
    }
    let engine = ["rtl/engine_hash.sv", "gpu/kernels/worker.cuh", "engine/src/lib.rs"];
    let engine = if desc.model_id == 0 {
        engine
    } else {
        ["rtl/npu/engine_npu.sv", "gpu/kernels/language_worker.cuh", "lm/src/lib.rs"]
    };
    let result = of_field("result");
    match &divergence.token {
        Some(_) if !result => tell(
            "its result accounts for the token, and memory has another: a write of the token changed it, or went elsewhere".into(),
            "R6",
            rule_source(kind, "R15"),
        ),
        Some(_) => tell("its engine gave another token".into(), "R6", of_kind(kind, engine)),
        None if result && desc.opcode == Opcode::Decode as u8 => tell(
            "the tokens in memory are right, and the result in its completion is another".into(),
            "R6",
            rule_source(kind, "R3"),
        ),
        None => {
            let fields: Vec<&str> = divergence.fields.iter().map(|field| field.name).collect();
            tell(format!("its completion differs in {}", fields.join(", ")), "R3", rule_source(kind, "R3"))
        }
    }
}

/// What a time-out knows, and of which shard.
fn why_of(error: &DeviceError) -> Option<(Option<usize>, &Why)> {
    match error {
        DeviceError::Timeout(timeout) => Some((None, timeout.why.as_ref()?)),
        DeviceError::Shard { shard, error, .. } => Some((Some(*shard), why_of(error)?.1)),
        _ => None,
    }
}

/// The number of advances without progress after which the driver gave up.
fn patience_of(failure: &ReplayFailure) -> Option<u32> {
    let ReplayFailure::Device { error, .. } = failure else { return None };
    match error {
        DeviceError::Timeout(timeout) => Some(timeout.patience),
        DeviceError::Shard { error, .. } => match &**error {
            DeviceError::Timeout(timeout) => Some(timeout.patience),
            _ => None,
        },
        _ => None,
    }
}

fn named(name: &str, shard: Option<usize>) -> String {
    shard.map_or_else(|| name.to_owned(), |shard| format!("{name}, queue pair {shard}"))
}

/// The root, and each descriptor that waits.
fn waits(kind: Kind, name: &str, why: &Why) -> String {
    let engine = why.waiting.first().map_or(0, |oldest| oldest.desc.model_id);
    let mut text = format!("why: {name}: {}\n  see {}\n", why.root, root_source(kind, &why.root, engine));
    let mut shown = 0;
    let mut rest = &why.waiting[..];
    // Descriptors in a row that wait for the same have one line.
    while let (Some(first), true) = (rest.first(), shown < SHOWN) {
        let same = rest.iter().take_while(|waiting| waiting.cause == first.cause).count();
        let _ = match same {
            1 | 2 => writeln!(text, "  {first}"),
            _ => writeln!(text, "  {first}, and {} behind it as well", same - 1),
        };
        rest = &rest[if same > 2 { same } else { 1 }..];
        shown += 1;
    }
    let more = rest.len() as u64 + why.unknown;
    if more > 0 {
        let _ = writeln!(text, "  and {more} more descriptors without a completion");
    }
    text
}

/// The source file where the device does what the root names; `engine` is the decode engine of the oldest descriptor.
fn root_source(kind: Kind, root: &Root, engine: u16) -> &'static str {
    let [rtl, gpu, model] = match root {
        Root::Dead(_) => ["rtl/watchdog.sv", "gpu/kernels/front_end/control.cuh", "verify/src/model/bus.rs"],
        Root::Inactive | Root::Drains => {
            ["rtl/device_ctrl.sv", "gpu/kernels/front_end/control.cuh", "host/src/registers/queue.rs"]
        }
        Root::LostDoorbell { .. } | Root::Unread { .. } => {
            ["rtl/desc_ring.sv", "gpu/kernels/front_end/fetch.cuh", "host/src/registers/queue.rs"]
        }
        Root::Setting { .. } => {
            ["rtl/mmio_regs.sv", "host/src/registers/mod.rs", "host/src/registers/mod.rs"]
        }
        Root::LostRelease { .. }
        | Root::FullQueue { .. }
        | Root::Unseen { .. }
        | Root::Phase { .. }
        | Root::Untaken { .. } => COMPLETIONS,
        Root::Masked | Root::LostArm { .. } | Root::LostMessage { .. } | Root::Unasked { .. } => {
            ["rtl/interrupts.sv", "host/src/registers/interrupt.rs", "host/src/registers/interrupt.rs"]
        }
        Root::WritePort | Root::Held { .. } => {
            ["rtl/axi_writer.sv", "gpu/kernels/worker.cuh", "verify/src/model/bus.rs"]
        }
        Root::Running if engine > 0 => {
            ["rtl/npu/engine_npu.sv", "gpu/kernels/language_worker.cuh", "verify/src/model/execution.rs"]
        }
        Root::Running => {
            ["rtl/rollout_worker_fsm.sv", "gpu/kernels/worker.cuh", "verify/src/model/execution.rs"]
        }
        _ => ["rtl/dispatcher.sv", "gpu/kernels/front_end/admit.cuh", "verify/src/model/turns.rs"],
    };
    of_kind(kind, [rtl, gpu, model])
}

/// The source files where each device writes completions.
const COMPLETIONS: [&str; 3] =
    ["rtl/completion_ring.sv", "gpu/kernels/front_end/completion_queue.cuh", "verify/src/model/execution.rs"];

/// The source file where the device implements a rule.
fn rule_source(kind: Kind, rule: &str) -> &'static str {
    let sources = match rule {
        "R1" => ["rtl/desc_ring.sv", "gpu/kernels/front_end/fetch.cuh", "host/src/registers/queue.rs"],
        "R2" => ["rtl/desc_ring.sv", "gpu/kernels/front_end/fetch.cuh", "verify/src/model/bus.rs"],
        "R3" | "R4" | "R13" => COMPLETIONS,
        "R10" => ["rtl/desc_check.sv", "gpu/kernels/front_end/admit.cuh", "verify/src/model/execution.rs"],
        "R15" => ["rtl/axi_writer.sv", "gpu/kernels/worker.cuh", "verify/src/model/bus.rs"],
        "R17" => ["rtl/group_table.sv", "gpu/kernels/front_end/groups.cuh", "verify/src/model/groups.rs"],
        "R19" => ["rtl/policy_slots.sv", "gpu/kernels/front_end/admit.cuh", "verify/src/model/execution.rs"],
        _ => ["rtl/dispatcher.sv", "gpu/kernels/front_end/admit.cuh", "verify/src/model/turns.rs"],
    };
    of_kind(kind, sources)
}

fn of_kind(kind: Kind, [rtl, gpu, model]: [&'static str; 3]) -> &'static str {
    match kind {
        Kind::Rtl => rtl,
        Kind::Gpu => gpu,
        Kind::Model => model,
        Kind::VfioUser | Kind::Pcie => "docs/contract.md",
    }
}

/// As JSON: the root, and what each descriptor waits for.
pub fn json(why: &Why) -> serde_json::Value {
    let waiting = |waiting: &Waiting| {
        let Waiting { index, desc, cause, .. } = waiting;
        serde_json::json!({
            "index": index,
            "rollout_id": desc.rollout_id,
            "user_data": desc.user_data,
            "waits_for": cause.older(),
            "held": !matches!(cause, Cause::Ready),
        })
    };
    serde_json::json!({
        "root": why.root.to_string(),
        "waiting": why.waiting.iter().map(waiting).collect::<Vec<_>>(),
        "unknown": why.unknown,
    })
}

/// The same of a failure; nothing if it is not one of a device that stopped answering.
pub fn json_of(failure: &ReplayFailure) -> Option<serde_json::Value> {
    let ReplayFailure::Device { error, .. } = failure else { return None };
    why_of(error).map(|(_, why)| json(why))
}

#[cfg(test)]
mod tests {
    use super::*;
    use doorbell_contract::Register;
    use std::path::Path;

    #[test]
    fn every_source_is_there() {
        let roots = [
            Root::Dead(String::new()),
            Root::Inactive,
            Root::Drains,
            Root::Setting { register: Register::CqSize, wrote: 0, has: 0 },
            Root::LostDoorbell { wrote: 0, has: 0 },
            Root::LostRelease { wrote: 0, has: 0 },
            Root::FullQueue { completions: 0 },
            Root::Masked,
            Root::LostArm { wrote: 0, has: 0 },
            Root::LostMessage { faults: String::new() },
            Root::Unasked { arm: 0 },
            Root::Untaken { from: 0 },
            Root::Unseen { from: 0, to: 0, faults: String::new() },
            Root::Phase { at: 0 },
            Root::WritePort,
            Root::WaitStates,
            Root::Running,
            Root::Unread { from: 0, to: 0 },
            Root::Held { descriptors: 0 },
            Root::Unshown { descriptors: 0 },
        ];
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        for kind in Kind::ALL {
            let sources = roots.iter().flat_map(|root| [0, 1].map(|engine| root_source(kind, root, engine)));
            let rules = ["R1", "R2", "R3", "R4", "R5", "R10", "R15", "R17", "R19"];
            for source in sources.chain(rules.map(|rule| rule_source(kind, rule))) {
                assert!(repository.join(source).is_file(), "{source}");
            }
        }
    }
}
