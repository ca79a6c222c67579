//! Round trips of descriptors through driver and model, on one core.

use std::hint::black_box;

use crate::throughput::measure;
use doorbell_contract::{HwCompletion, HwDesc, Opcode, SqKey};
use doorbell_devices::{Kind, OpenError, Settings};
use doorbell_host::{DeviceError, Driver, QueueConfig};
use doorbell_verify::ModelPlatform;
use serde_json::json;

use crate::{BenchError, Load};
use crate::{Rates, Section, median, table, timed};

/// Descriptors per second that a round trip has to reach.
const BAR: f64 = 15e6;
const BATCHES: [usize; 3] = [1, 16, 256];
/// Slots of the rings, here and in the floor.
const DEPTH: usize = 1024;

/// Rates of NOPs and of DECODEs of one token. The runs of all rows take turns, each with its floor, so that a machine
/// that slows down slows them all.
pub fn round_trips(load: &Load<'_>) -> Result<Section, BenchError> {
    let several = load.queues > 1;
    let (descriptors, repeats) = if load.quick { (1 << 18, 3) } else { (1 << 22, 7) };
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
            rates[row].push(round_trip(load, batch, rounds as u64)?);
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
            if several { "-".to_owned() } else { million(BAR) },
            if several { "for one queue pair" } else { rate.verdict(BAR) }.to_owned(),
        ]);
        rows.push(json!({
            "descriptor": opcode.name(), "batch": batch.len(), "per_second": rate.wall, "best_per_second": best,
            "per_cpu_second": rate.cpu, "floor_per_second": floor.wall, "bar_per_second": (!several).then_some(BAR),
            "queues": load.queues, "functions": load.functions,
        }));
    }
    let through = match (several, load.functions) {
        (false, _) => String::new(),
        (true, 1) => format!(", {} queue pairs as one device", load.queues),
        (true, functions) => format!(", {} queue pairs of {functions} functions as one device", load.queues),
    };
    Ok(Section {
        heading: format!(
            "CPU queue round trip: descriptors per second through driver and model on one core{through}, median of \
             {repeats} runs of {descriptors}"
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

pub(crate) fn batch(opcode: Opcode, size: usize) -> Vec<HwDesc> {
    (0..size as u32)
        .map(|k| match opcode {
            Opcode::Decode => HwDesc::decode(k, 0, 1).with_delta_offset(64 * u64::from(k)),
            // Of as many rollouts: several queue pairs share them out.
            _ => HwDesc { rollout_id: k, ..HwDesc::nop() },
        })
        .collect()
}

pub(crate) fn round_trip(load: &Load<'_>, batch: &[HwDesc], rounds: u64) -> Result<Rates, BenchError> {
    let depth = DEPTH as u32;
    let queue = QueueConfig { sq_depth: depth, cq_depth: depth, ..QueueConfig::default() };
    let (seen, elapsed) = if load.queues == 1 && load.functions == 1 {
        // Not behind a pointer.
        let mut driver = Driver::new(ModelPlatform::new(), queue)?;
        timed(|| measure(&mut driver, batch, rounds))
    } else {
        let (queues, functions) = (load.queues, load.functions);
        let opened = Kind::Model.open(&Settings { queue, queues, functions, ..Settings::default() });
        let mut device = opened.map_err(|error| match error {
            OpenError::Device(error) => error.into(),
            other => BenchError::input(other),
        })?;
        timed(|| measure(&mut *device, batch, rounds))
    };
    let seen = seen?;
    if seen.done == seen.descriptors {
        return Ok(elapsed.rates(seen.descriptors));
    }
    Err(BenchError::Device(DeviceError::Protocol {
        device: "model".to_owned(),
        rule: "R10",
        what: format!("only {} of {} well-formed descriptors completed as DONE", seen.done, seen.descriptors),
    }))
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
    use doorbell_trace::{Generator, Trace};
    use rstest::rstest;

    use super::*;

    fn load(trace: &Trace, queues: u8, functions: u8) -> Load<'_> {
        Load { trace, quick: true, queues, entries: None, functions, language: None, decode: None }
    }

    #[rstest]
    #[case(1, 1)]
    #[case(4, 2)]
    fn r10_a_descriptor_that_is_not_done_is_an_error(#[case] queues: u8, #[case] functions: u8) {
        let trace = Generator::new(1, 1, 1).generate().unwrap();
        let bad = [HwDesc::decode(0, 0, 0)];
        let error = round_trip(&load(&trace, queues, functions), &bad, 100).err().unwrap().to_string();
        assert!(error.contains("only 0 of 100 well-formed descriptors completed as DONE"), "{error}");
        assert!(round_trip(&load(&trace, queues, functions), &batch(Opcode::Nop, 16), 10).is_ok());
    }

    #[test]
    fn more_functions_than_queue_pairs_are_refused() {
        let trace = Generator::new(1, 1, 1).generate().unwrap();
        for queues in [1, 2] {
            let error = round_trip(&load(&trace, queues, 3), &[HwDesc::nop()], 1).err().unwrap().to_string();
            let expected = format!("functions is 3: it must be at most {queues}, the number of queue pairs");
            assert_eq!(error, expected);
        }
    }
}
