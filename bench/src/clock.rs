//! Latencies between a moment of the device and one of the host, on one clock: what the runtime measures of each device that is there.

use doorbell_devices::{Kind, Settings};
use doorbell_host::QueueConfig;
use doorbell_runtime::events::{TickRate, duration};
use doorbell_runtime::pipeline::Scoring;
use serde_json::{Value, json};

use crate::pipeline::{Beside, Workload};
use crate::{BenchError, Section, table};

/// Tokens of a segment.
const TOKENS: u32 = 32;
/// Slots of the event ring: the runtime reads it after every batch of completions.
const EVENT_SLOTS: u32 = 1 << 14;

/// The table, of the devices whose clock can be compared with the host's.
pub fn latencies(quick: bool) -> Result<Section, BenchError> {
    let mut table = table(["device", "from → to", "p50", "p90", "p99", "longest", "count", "error"], 2);
    let (mut rows, mut notes): (Vec<Value>, Vec<String>) = (vec![], vec![]);
    for kind in Kind::ALL {
        if let Some(reason) = kind.missing() {
            notes.push(format!("{}: left out, {reason}", kind.name()));
            continue;
        }
        let segments = match kind {
            Kind::Gpu => 1 << 20,
            Kind::Model => 1 << 18,
            // Simulated.
            _ => 1 << 13,
        };
        let workload = Workload::new(TOKENS, if quick { segments / 8 } else { segments });
        let queue = QueueConfig {
            event_slots: EVENT_SLOTS,
            life_events: true,
            token_bytes: workload.token_bytes(),
            ..QueueConfig::default()
        };
        let settings = Settings { queue, tap: true, ..Settings::default() };
        let device = kind.open(&settings).map_err(BenchError::failed)?;
        let rate = TickRate(device.features().tick_hz);
        let beside = Beside { judge: true, events: true, lives: Some(rate), scoring: Scoring::Stage };
        let (_, report) = workload.run_on(device, beside)?;
        let report = report.unwrap_or_default();
        let (dropped, one) =
            (report.device.unwrap_or_default().dropped, report.one_clock.unwrap_or_default());
        for span in &one.spans {
            table.add_row([
                kind.name().to_owned(),
                span.name.clone(),
                duration(span.p50),
                duration(span.p90),
                duration(span.p99),
                duration(span.max),
                span.count.to_string(),
                format!("±{}", duration(one.error_ns)),
            ]);
            rows.push(json!({
                "device": kind.name(), "span": span.name, "p50_ns": span.p50, "p90_ns": span.p90, "p99_ns": span.p99,
                "max_ns": span.max, "count": span.count, "error_ns": one.error_ns,
            }));
        }
        if one.unmapped + one.unpaired + dropped > 0 {
            notes.push(format!(
                "{}: of {} descriptors the clocks could not be compared, of {} lives it is not known whose they are, and {} were dropped \
                 on their way",
                kind.name(),
                one.unmapped,
                one.unpaired,
                dropped
            ));
        }
    }
    notes.push(format!(
        "the runtime with a judge's thread, DECODEs of {TOKENS} tokens; POSTED: handed to the submission queue; FETCHED: the device \
         had read its slot; VISIBLE: its completion was in memory; POLLED: the runtime handled it; error: no moment of the device is \
         wrong by more; time in a simulated device is time of the simulation"
    ));
    Ok(Section {
        heading: "One clock: what lies between a moment of the device and one of the host".to_owned(),
        table,
        notes,
        json: json!(rows),
    })
}
