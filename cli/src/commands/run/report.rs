//! What a run has to tell at its end.

use std::fmt::Write;
use std::fs;
use std::time::Duration;

use comfy_table::Table;
use doorbell_contract::{Counter, ErrorCode, HwCompletion};
use doorbell_guard::Facts;
use doorbell_host::placement::Account;
use doorbell_host::{Counters as DeviceCounters, TokenRegion, WorkerCounters};
use doorbell_runtime::events::STAGES;
use doorbell_runtime::kv::PrefixCounts;
use doorbell_runtime::metrics::{CounterValues, ThreadTime};
use doorbell_runtime::pipeline::Lost;
use doorbell_runtime::reward::{JudgeFault, Shutdown};
use doorbell_runtime::trajectory::Stored;
use doorbell_runtime::trajectory::log::Run;
use doorbell_trace::{Format, Trace};
use serde_json::{Map, Value, json};

use super::Args;
use super::language::Verdict;
use super::reward::{Model, Who};
use crate::output::{self, table, thousands};
use crate::workers::{workers, workers_json};

/// Everything that is known of a run.
pub struct Report<'a> {
    pub args: &'a Args,
    pub trace: &'a Trace,
    pub format: Option<Format>,
    /// Name of the device.
    pub device: String,
    pub wall: Duration,
    pub values: CounterValues,
    /// What the hot thread did with its time.
    pub hot: Option<ThreadTime>,
    /// The first rollouts that failed.
    pub failures: &'a [Lost],
    /// Mean of the scores, if there are any.
    pub mean_score: Option<f64>,
    pub judges: &'a Shutdown,
    pub device_counters: Option<DeviceCounters>,
    /// Of each worker of the device, if it tells.
    pub workers: Vec<WorkerCounters>,
    /// Slots of the device's submission queue.
    pub capacity: usize,
    pub events: Option<doorbell_runtime::events::Report>,
    pub kv: PrefixCounts,
    /// Blocks without any sharing.
    pub alone: u64,
    /// How often a rollout gave its blocks back at a checkpoint.
    pub preempted: u64,
    pub stored: Option<Stored>,
    /// What the log has noted of the run.
    pub run: Option<Run>,
    pub first_error: Option<HwCompletion>,
    /// What the guard saw, if it was asked for.
    pub facts: Option<&'a Result<Facts, String>>,
    /// How the memory lies that it shares with the device, if that was asked for.
    pub memory: Option<Result<Placed, String>>,
    /// What the oracle says, if it was asked.
    pub verdict: Option<Verdict>,
    /// Why the run ended early, if it did.
    pub reasons: &'a [String],
}

/// The kernel's accounts of memory that was placed.
pub struct Placed {
    /// Of the shared memory, by `/proc/self/smaps` and `numa_maps`.
    account: Account,
    /// What `/proc/meminfo` has of huge pages, of the whole machine.
    machine: Vec<(String, String)>,
}

impl Placed {
    /// That of the memory that these regions lie in.
    pub fn of(regions: &[TokenRegion]) -> Result<Placed, String> {
        let account =
            TokenRegion::account_of(regions).map_err(|error| format!("/proc/self/smaps: {error}"))?;
        let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let lines = memory.lines().filter_map(|line| line.split_once(':'));
        let machine = lines
            .filter(|(name, _)| ["AnonHugePages", "HugePages_Total", "HugePages_Free"].contains(name))
            .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
            .collect();
        Ok(Placed { account, machine })
    }

    fn json(&self) -> Value {
        let Account { bytes, resident, huge, by_name, locked, nodes } = &self.account;
        let names: Map<String, Value> =
            by_name.iter().map(|(name, bytes)| ((*name).to_owned(), json!(bytes))).collect();
        let machine: Map<String, Value> =
            self.machine.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
        json!({
            "bytes": bytes, "resident": resident, "huge": huge, "by_name": names, "locked": locked, "nodes": nodes, "meminfo": machine,
        })
    }
}

/// Rollouts that have ended, in whichever way.
pub fn ended(values: &CounterValues) -> u64 {
    values.rollouts_completed + values.rollouts_aborted + values.rollouts_failed + values.rollouts_stale
}

impl Report<'_> {
    /// Whether all went as it should.
    pub fn succeeded(&self) -> bool {
        let watched = self.facts.is_none_or(|facts| facts.as_ref().is_ok_and(Facts::clean));
        self.reasons.is_empty() && self.first_error.is_none() && watched
    }

    fn ended(&self) -> u64 {
        ended(&self.values)
    }

    fn rate(&self, count: u64) -> f64 {
        count as f64 / self.wall.as_secs_f64()
    }

    /// Share of the blocks that sharing has saved.
    fn saved(&self) -> f64 {
        if self.alone == 0 { 0.0 } else { 1.0 - self.kv.arena.acquired as f64 / self.alone as f64 }
    }

    /// Share of the time in which a worker of the device had nothing to do, if the device tells.
    fn device_idle(&self) -> Option<f64> {
        let counters = self.device_counters?;
        let (busy, idle) = (counters.get(Counter::Busy), counters.get(Counter::Idle));
        (idle > 0).then(|| idle as f64 / (busy + idle) as f64)
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut text = format!("{}\n\n{}\n", self.heading(), self.totals());
        let values = &self.values;
        let _ = writeln!(text, "\n{}", self.threads());
        if !self.workers.is_empty() {
            let _ = writeln!(text, "\n{}", workers(&self.device, &self.workers));
        }
        if let Some(events) = &self.events {
            let _ = writeln!(text, "\n{}", events.to_string().trim_end());
        }
        let _ = writeln!(text, "\n{}", self.blocks());
        if self.preempted > 0 {
            let _ =
                writeln!(text, "gave their KV blocks back at a checkpoint, for others: {}", self.preempted);
        }
        let stalls: Vec<String> = STAGES
            .iter()
            .zip(values.credit_stalls)
            .filter(|(_, count)| *count > 0)
            .map(|(stage, count)| {
                let what =
                    if *stage == STAGES[0] { "slots, KV blocks or groups of the device" } else { stage };
                format!("{count} times for want of {what}")
            })
            .collect();
        let stalls = if stalls.is_empty() { "never".to_owned() } else { stalls.join(", ") };
        let _ = writeln!(text, "admission held back: {stalls}");
        let _ = writeln!(text, "{}", self.trajectories());
        if let Some(Verdict { checked, different, .. }) = &self.verdict {
            let _ = writeln!(
                text,
                "held to the oracle: {checked} trajectories, with log-probabilities, keys and values; {different} differ"
            );
        }
        if let Some(completion) = &self.first_error {
            let code = ErrorCode::try_from(completion.error).map_or("an unknown code", ErrorCode::name);
            let _ = writeln!(
                text,
                "the device refused a descriptor, the first (rollout_id {}) with {code}; {} rollouts have failed",
                completion.rollout_id, values.rollouts_failed
            );
        }
        text += &self.failed();
        match &self.memory {
            None => {}
            Some(Ok(Placed { account, machine })) => {
                let machine: Vec<String> =
                    machine.iter().map(|(name, value)| format!("{name} {value}")).collect();
                let _ = writeln!(text, "shared memory, by smaps: {account}; meminfo: {}", machine.join(", "));
            }
            Some(Err(reason)) => {
                let _ = writeln!(text, "shared memory: the kernel does not tell: {reason}");
            }
        }
        match self.facts {
            None => {}
            Some(Ok(facts)) => {
                let _ = writeln!(text, "strict: hot thread after the warm-up: {facts}");
            }
            Some(Err(reason)) => {
                let _ = writeln!(text, "strict: the hot thread was not watched: {reason}");
            }
        }
        for reason in self.reasons {
            let _ = writeln!(text, "error: {reason}");
        }
        text
    }

    /// What failed of rollouts and judges, the first of each; nothing if nothing did.
    fn failed(&self) -> String {
        const SHOWN: usize = 5;
        let mut text = String::new();
        let mut list = |what: &str, count: u64, lines: Vec<String>| {
            if count == 0 {
                return;
            }
            let _ = writeln!(text, "{what}: {count}");
            let shown = lines.len().min(SHOWN);
            lines[..shown].iter().for_each(|line| {
                let _ = writeln!(text, "  {line}");
            });
            if count > shown as u64 {
                let _ = writeln!(text, "  and {} more", count - shown as u64);
            }
        };
        let failures = self.failures.iter().map(ToString::to_string).collect();
        list("rollouts that failed", self.values.rollouts_failed, failures);
        // Judges that were left behind before those that broke at an answer.
        let Shutdown { faults, more_faults, .. } = self.judges;
        let of_answer =
            |fault: &&JudgeFault| matches!(fault, JudgeFault::Panicked { .. } | JudgeFault::Error { .. });
        let gone = faults.iter().filter(|fault| !of_answer(fault));
        let lines = gone.chain(faults.iter().filter(of_answer)).map(ToString::to_string).collect();
        list("faults of judges", faults.len() as u64 + more_faults, lines);
        text
    }

    fn heading(&self) -> String {
        let format = self.format.map(|format| format!(", {format}")).unwrap_or_default();
        let Args { group, checkpoint, policy, reward, reward_model, reward_queue, .. } = self.args;
        let model = self.args.model.as_ref().map(|model| format!(" of {model}")).unwrap_or_default();
        let groups = if *group > 1 { format!(" in groups of {group}") } else { String::new() };
        let judged = match (reward, reward_model) {
            (Who::Host, Model::Digest) => "judged",
            (Who::Host, Model::Ranges) => "judged by ranges",
            (Who::Resident, _) => "scored by the device (RESIDENT)",
            (Who::Device, Model::Digest) => "scored by the device (REWARD, digest)",
            (Who::Device, Model::Ranges) => "scored by the device (REWARD, ranges)",
        };
        let mut scored = match checkpoint {
            0 if self.args.judge_group => format!("{judged} as groups"),
            n if self.args.judge_group => format!("{judged} every {n} tokens, and as groups"),
            0 => format!("{judged} at their end"),
            n => format!("{judged} every {n} tokens"),
        };
        if *reward_queue {
            scored += ", on queue pairs of its own";
        }
        format!(
            "{}{format}: {} requests{model}{groups} on {}, {policy}, {scored}",
            output::plain(&self.trace.source),
            self.trace.requests.len(),
            self.device
        )
    }

    fn totals(&self) -> Table {
        let mut table = table(["", "count", "per second"], 1);
        let values = &self.values;
        for (name, count) in [
            ("rollouts", self.ended()),
            ("segments", values.segments),
            ("tokens", values.tokens_generated),
            ("verdicts", values.reward_handoffs - values.verdicts_late.min(values.reward_handoffs)),
        ] {
            table.add_row([name.to_owned(), count.to_string(), thousands(self.rate(count))]);
        }
        for (name, count) in [
            ("of the rollouts: aborted", values.rollouts_aborted),
            ("of the rollouts: failed", values.rollouts_failed),
            ("of the rollouts: dropped as stale", values.rollouts_stale),
            ("scored by judges of the host", values.scored_host),
            ("scored by the device (RESIDENT)", values.scored_resident),
            ("scored by the device (REWARD)", values.scored_device),
            ("groups that ended on the device", values.groups_done),
            ("groups that have not ended there", values.groups_open),
        ] {
            if count > 0 {
                table.add_row([name.to_owned(), count.to_string(), String::new()]);
            }
        }
        if let Some(score) = self.mean_score {
            table.add_row(["mean score".to_owned(), format!("{score:.4}"), String::new()]);
        }
        if values.publishes > 0 {
            table.add_row([
                format!("versions published, up to {}", values.policy_version),
                values.publishes.to_string(),
                thousands(self.rate(values.publishes)),
            ]);
            table.add_row([
                "DECODEs that went on under the next version".to_owned(),
                values.superseded.to_string(),
                thousands(self.rate(values.superseded)),
            ]);
        }
        let batches = values.decode_batches.max(1);
        let mean = values.decode_rollouts_scheduled as f64 / batches as f64;
        table.add_row([
            format!("doorbells with DECODEs (mean {mean:.1}, at most {})", values.decode_batch_peak),
            values.decode_batches.to_string(),
            thousands(self.rate(values.decode_batches)),
        ]);
        table
    }

    fn threads(&self) -> Table {
        let mut table = table(["worker", "busy", "idle", "idle share"], 1);
        let mut row = |name: String, busy: Duration, idle: Duration| {
            let all = (busy + idle).as_secs_f64();
            let share = if all > 0.0 { idle.as_secs_f64() / all } else { 0.0 };
            table.add_row([name, format!("{busy:.2?}"), format!("{idle:.2?}"), percent(share)]);
        };
        if let Some(hot) = &self.hot {
            row("hot thread".into(), Duration::from_nanos(hot.busy_ns), Duration::from_nanos(hot.idle_ns));
        }
        for (number, load) in self.judges.loads.iter().enumerate() {
            row(format!("judge {number}"), load.busy, load.alive.saturating_sub(load.busy));
        }
        if let (Some(share), Some(counters)) = (self.device_idle(), self.device_counters) {
            let cycles = |counter| format!("{} cycles", counters.get(counter));
            table.add_row([
                "device, all workers".to_owned(),
                cycles(Counter::Busy),
                cycles(Counter::Idle),
                percent(share),
            ]);
        }
        table
    }

    fn blocks(&self) -> String {
        let PrefixCounts { arena, evicted, found, .. } = self.kv;
        format!(
            "KV blocks: {} handed out, {} without sharing: {} ({found} found in other prompts, {evicted} evicted, \
             at most {} of {} in use)",
            arena.acquired,
            self.alone,
            match arena.acquired.checked_sub(self.alone) {
                None | Some(0) => format!("{} saved", percent(self.saved())),
                // The block that a prefix does not fill is there once more for each member.
                Some(more) =>
                    format!("{more} more, as a prefix's unfinished block is copied for each member"),
            },
            arena.peak,
            arena.capacity,
        )
    }

    fn trajectories(&self) -> String {
        let Some(stored) = self.stored else { return "trajectories: not all stored".to_owned() };
        match &self.args.store {
            None if self.args.nic.is_some() => format!(
                "trajectories: {} with {} tokens carried by a modelled NIC, not stored (--store DIR keeps them)",
                stored.trajectories, stored.tokens
            ),
            None => format!("trajectories: {}, not stored (--store DIR keeps them)", stored.trajectories),
            Some(directory) => format!(
                "trajectories: {} with {} tokens stored in {}{}, in {} writes",
                stored.trajectories,
                stored.tokens,
                directory.display(),
                self.run
                    .as_ref()
                    .map_or_else(String::new, |run| format!(" as run {} (seed {})", run.run, run.seed)),
                stored.groups
            ),
        }
    }

    /// For programs.
    pub fn json(&self) -> String {
        let facts = match self.facts {
            None => json!(null),
            Some(Ok(facts)) => json!({ "clean": facts.clean(), "facts": facts }),
            Some(Err(reason)) => json!({ "clean": false, "not_watched": reason }),
        };
        let judges: Vec<_> = self
            .judges
            .loads
            .iter()
            .map(|load| json!({ "judged": load.judged, "busy_ns": load.busy.as_nanos() as u64, "idle_share": 1.0 - load.share() }))
            .collect();
        let failures: Vec<_> = self
            .failures
            .iter()
            .map(|lost| json!({ "request": lost.request, "member": lost.member, "reason": lost.to_string() }))
            .collect();
        let faults: Vec<_> = self.judges.faults.iter().map(ToString::to_string).collect();
        let mut value = json!({
            "source": self.trace.source,
            "requests": self.trace.requests.len(),
            "repeat": self.args.repeat,
            "device": self.device,
            "device_capacity": self.capacity,
            "policy": self.args.policy.name(),
            "group": self.args.group,
            "checkpoint": self.args.checkpoint,
            "reward": format!("{:?}", self.args.reward).to_lowercase(),
            "reward_model": format!("{:?}", self.args.reward_model).to_lowercase(),
            "reward_queue": self.args.reward_queue,
            "mean_score": self.mean_score,
            "judge_group": self.args.judge_group,
            "publish_every": self.args.publish_every,
            "publish_mode": format!("{:?}", self.args.publish_mode).to_lowercase(),
            "max_staleness": self.args.max_staleness,
            "logprobs": self.args.logprobs,
            "seed": self.args.seed,
            "succeeded": self.succeeded(),
            "errors": self.reasons,
            "seconds": self.wall.as_secs_f64(),
            "rollouts_per_second": self.rate(self.ended()),
            "segments_per_second": self.rate(self.values.segments),
            "tokens_per_second": self.rate(self.values.tokens_generated),
            "counters": self.values,
            "hot_thread": self.hot,
            "judges": judges,
            "failures": failures,
            "judge_faults": faults,
            "judge_faults_unlisted": self.judges.more_faults,
            "device_idle_share": self.device_idle(),
            "events": self.events,
            "kv": {
                "allocated": self.kv.arena.acquired, "freed": self.kv.arena.released, "peak": self.kv.arena.peak,
                "capacity": self.kv.arena.capacity, "without_sharing": self.alone, "saved": self.saved(),
                "found": self.kv.found, "evicted": self.kv.evicted,
            },
            "trajectories": self.stored.map(|stored| json!({
                "stored": stored.trajectories, "tokens": stored.tokens, "directory": self.args.store.as_deref().map(output::path),
                "run": self.run.as_ref().map(|run| run.run), "run_id": self.run.as_ref().map(|run| &run.id),
            })),
            "strict": facts,
        });
        if let Some(memory) = &self.memory {
            value["memory"] = match memory {
                Ok(placed) => placed.json(),
                Err(reason) => json!({ "not_told": reason }),
            };
        }
        value["device_workers"] = workers_json(&self.workers);
        if let Some(model) = &self.args.model {
            value["model"] = json!(model);
            value["prompts"] = json!(self.args.prompts.as_deref().map(output::path));
            value["prefill_tokens"] = json!(self.args.prefill_tokens);
            value["kv"]["preempted"] = json!(self.preempted);
            value["oracle"] = json!(self.verdict.as_ref().map(|Verdict { checked, different, first }| {
                json!({ "checked": checked, "different": different, "first": first })
            }));
        }
        output::json(&value)
    }
}

fn percent(part: f64) -> String {
    format!("{:.1} %", 100.0 * part)
}
