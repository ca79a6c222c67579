//! Round trips of descriptors through driver and model, on one core.

use std::hint::black_box;

use crate::throughput::measure;
use doorbell_contract::{HwCompletion, HwDesc, Opcode, SqKey};
use doorbell_host::{DeviceError, Driver, QueueConfig};
use doorbell_verify::ModelPlatform;
use serde_json::json;

use crate::BenchError;
use crate::{Rates, Section, median, table, timed};

/// Descriptors per second that a round trip has to reach.
const BAR: f64 = 15e6;
const BATCHES: [usize; 3] = [1, 16, 256];
/// Slots of the rings, here and in the floor.
const DEPTH: usize = 1024;

/// Rates of NOPs and of DECODEs of one token. The runs of all rows take turns, each with its floor, so that a machine
/// that slows down slows them all.
pub fn round_trips(quick: bool) -> Result<Section, BenchError> {
    let (descriptors, repeats) = if quick { (1 << 18, 3) } else { (1 << 22, 7) };
    let workloads: Vec<(Opcode, Vec<HwDesc>)> = [Opcode::Nop, Opcode::Decode]
        .into_iter()
        .flat_map(|opcode| BATCHES.map(|size| (opcode, batch(opcode, size))))
        .collect();
    let mut rates = vec![vec![]; workloads.len()];
    let mut floors = vec![vec![]; workloads.len()];
    for _ in 0..repeats {
        for (row, (_, batch)) in workloads.iter().enumerate() {
            let rounds = descriptors / batch.len();
            floors[row].push(floor(batch, rounds));
            rates[row].push(round_trip(batch, rounds as u64)?);
        }
    }

    let mut table = table(
        [
            "descriptor",
            "batch",
            "per second",
            "best run",
            "per CPU second",
            "floor",
            "of the floor",
            "bar",
            "bar is",
        ],
        1,
    );
    let mut rows = vec![];
    for ((opcode, batch), (rates, floors)) in workloads.iter().zip(rates.iter().zip(&floors)) {
        let (rate, floor) = (Rates::median(rates), Rates::median(floors));
        let ratio = median(rates.iter().zip(floors).map(|(rate, floor)| rate.wall / floor.wall));
        let best = rates.iter().map(|rate| rate.wall).fold(0.0, f64::max);
        let name = if *opcode == Opcode::Nop { "NOP" } else { "DECODE, 1 token" };
        let million = |rate: f64| format!("{:.2} M", rate / 1e6);
        table.add_row([
            name.to_owned(),
            batch.len().to_string(),
            million(rate.wall),
            million(best),
            million(rate.cpu),
            million(floor.wall),
            format!("{ratio:.2}"),
            million(BAR),
            rate.verdict(BAR).to_owned(),
        ]);
        rows.push(json!({
            "descriptor": opcode.name(), "batch": batch.len(), "per_second": rate.wall, "best_per_second": best,
            "per_cpu_second": rate.cpu, "floor_per_second": floor.wall, "bar_per_second": BAR,
        }));
    }
    Ok(Section {
        heading: format!(
            "CPU queue round trip: descriptors per second through driver and model on one core, median of {repeats} \
             runs of {descriptors}"
        ),
        table,
        notes: vec![
            "Every descriptor completed as DONE. The floor only seals each descriptor (R2) into its slot of a ring and \
             copies 32 bytes back."
                .to_owned(),
        ],
        json: rows.into(),
    })
}

fn batch(opcode: Opcode, size: usize) -> Vec<HwDesc> {
    (0..size as u32)
        .map(|k| match opcode {
            Opcode::Decode => HwDesc::decode(k, 0, 1).with_delta_offset(64 * u64::from(k)),
            _ => HwDesc::nop(),
        })
        .collect()
}

fn round_trip(batch: &[HwDesc], rounds: u64) -> Result<Rates, DeviceError> {
    let depth = DEPTH as u32;
    let config = QueueConfig { sq_depth: depth, cq_depth: depth, ..QueueConfig::default() };
    let mut driver = Driver::new(ModelPlatform::new(), config)?;
    let (seen, elapsed) = timed(|| measure(&mut driver, batch, rounds));
    let seen = seen?;
    if seen.done == seen.descriptors {
        return Ok(elapsed.rates(seen.descriptors));
    }
    Err(DeviceError::Protocol {
        device: "model".to_owned(),
        rule: "R10",
        what: format!("only {} of {} well-formed descriptors completed as DONE", seen.done, seen.descriptors),
    })
}

/// The rate of the least that any queue of this contract has to do for a round trip.
fn floor(batch: &[HwDesc], rounds: usize) -> Rates {
    let key = SqKey::new(1);
    let mut slots = vec![HwDesc::default(); DEPTH];
    let results = vec![HwCompletion::default(); DEPTH];
    let mut out = vec![HwCompletion::default(); batch.len()];
    let ((), elapsed) = timed(|| {
        for round in 0..rounds {
            for (k, desc) in batch.iter().enumerate() {
                let index = round * batch.len() + k;
                slots[index % DEPTH] = desc.seal(&key, index as u32);
                out[k] = results[index % DEPTH];
            }
            black_box((&mut slots, &mut out));
        }
    });
    elapsed.rates((rounds * batch.len()) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r10_a_descriptor_that_is_not_done_is_an_error() {
        let bad = [HwDesc::decode(0, 0, 0)];
        let error = round_trip(&bad, 100).err().unwrap().to_string();
        assert!(error.contains("only 0 of 100 well-formed descriptors completed as DONE"), "{error}");
    }
}
