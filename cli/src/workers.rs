//! What the workers of a device did, as it counts it itself.

use comfy_table::Table;
use doorbell_contract::WorkerCounter;
use doorbell_host::WorkerCounters;
use serde_json::{Value, json};

use crate::output::table;

/// A row for each worker of `device`: its tokens, the cycles in which it had a descriptor, and those in which the write port held a
/// result of it back.
pub fn workers(device: &str, workers: &[WorkerCounters]) -> Table {
    let mut table =
        table([&format!("worker of {device}"), "tokens", "busy cycles", "held back", "tokens/busy cycle"], 1);
    for (number, worker) in workers.iter().enumerate() {
        let [tokens, busy, held] = counts(worker);
        let share = if busy > 0 { format!("{:.3}", tokens as f64 / busy as f64) } else { "-".to_owned() };
        table.add_row([number.to_string(), tokens.to_string(), busy.to_string(), held.to_string(), share]);
    }
    table
}

/// The same for programs, by the worker's number.
pub fn workers_json(workers: &[WorkerCounters]) -> Value {
    let worker = |worker| {
        let [tokens, busy, held] = counts(worker);
        json!({ "tokens": tokens, "busy_cycles": busy, "held_cycles": held })
    };
    workers.iter().map(worker).collect()
}

fn counts(worker: &WorkerCounters) -> [u64; 3] {
    [WorkerCounter::Tokens, WorkerCounter::Busy, WorkerCounter::StallWrite].map(|counter| worker.get(counter))
}
