//! What the cases share: running descriptors, comparing with the model.

use std::fmt::Debug;

use doorbell_contract::{HwCompletion, HwDesc, Opcode, Register, State, Status};
use doorbell_engine::Engine;
use doorbell_host::{Device, DeviceError, Driver, QueueConfig};
use doorbell_verify::ModelPlatform;

use super::{CaseError, Rtl};

/// `found` is `expected`.
pub fn equal<T: PartialEq + Debug>(what: impl Into<String>, found: T, expected: T) -> Result<(), CaseError> {
    holds(what, found == expected, &expected, &found)
}

/// `condition` holds of `found`.
pub fn holds(
    what: impl Into<String>,
    condition: bool,
    expected: impl Debug,
    found: impl Debug,
) -> Result<(), CaseError> {
    if condition {
        return Ok(());
    }
    let (expected, found) = (format!("{expected:?}"), format!("{found:?}"));
    Err(CaseError::Unexpected { what: what.into(), expected, found })
}

/// `descs` numbered through in `user_data`, their tokens one behind the other in the token region.
pub fn laid_out(descs: impl IntoIterator<Item = HwDesc>) -> Vec<HwDesc> {
    let mut end = 0;
    (0..)
        .zip(descs)
        .map(|(number, desc)| {
            let placed = desc.with_delta_offset(end).with_user_data(number);
            end += 4 * u64::from(desc.max_tokens);
            placed
        })
        .collect()
}

/// Submits `descs` and polls until each has completed. Completions come in the order of arrival.
pub fn run(device: &mut dyn Device, descs: &[HwDesc]) -> Result<Vec<HwCompletion>, DeviceError> {
    let mut submitted = 0;
    let mut completions = vec![];
    while completions.len() < descs.len() {
        submitted += device.submit(&descs[submitted..])?;
        collect(device, &mut completions)?;
    }
    Ok(completions)
}

/// Polls until nothing is in flight.
pub fn drain(device: &mut dyn Device) -> Result<Vec<HwCompletion>, DeviceError> {
    let mut completions = vec![];
    while device.in_flight() > 0 {
        collect(device, &mut completions)?;
    }
    Ok(completions)
}

fn collect(device: &mut dyn Device, completions: &mut Vec<HwCompletion>) -> Result<(), DeviceError> {
    let mut out = [HwCompletion::default(); 64];
    let taken = device.poll(&mut out)?;
    completions.extend_from_slice(&out[..taken]);
    Ok(())
}

/// Runs `descs`, whose `user_data` are 0, 1, 2 …, on the device and on a fresh model of the same configuration, and
/// compares every completion but for timing and every token. Returns the device's completions in the order of `descs`.
pub fn agree(rtl: &mut Rtl, descs: &[HwDesc]) -> Result<Vec<HwCompletion>, CaseError> {
    let mut model = model(rtl)?;
    let expected = in_order(run(&mut model, descs)?)?;
    let found = in_order(run(rtl, descs)?)?;
    compare(rtl, &model, descs, &found, &expected)?;
    Ok(found)
}

/// A fresh model of the device's configuration.
pub fn model(rtl: &Rtl) -> Result<Driver<ModelPlatform>, DeviceError> {
    Driver::new(ModelPlatform::new(), QueueConfig { workers: None, ..rtl.config().clone() })
}

/// Compares what the device and the model answered to `descs`.
pub fn compare(
    rtl: &Rtl,
    model: &dyn Device,
    descs: &[HwDesc],
    found: &[HwCompletion],
    expected: &[HwCompletion],
) -> Result<(), CaseError> {
    for (number, desc) in descs.iter().enumerate() {
        let what = || format!("completion of descriptor {number}, {desc:?}");
        equal(what(), found[number].without_timing(), expected[number].without_timing())?;
        let added = expected[number].final_seq_len.saturating_sub(desc.seq_len) as usize;
        if desc.opcode == Opcode::Decode as u8 && expected[number].status != Status::Error as u8 {
            let what = format!("tokens of descriptor {number}, {desc:?}");
            equal(what, tokens(rtl, desc, added)?, tokens(model, desc, added)?)?;
        }
    }
    Ok(())
}

/// The first `count` tokens that `desc` wrote.
pub fn tokens(device: &dyn Device, desc: &HwDesc, count: usize) -> Result<Vec<u32>, DeviceError> {
    let mut out = vec![0; count];
    device.tokens(desc.delta_offset, &mut out)?;
    Ok(out)
}

/// Sorted by `user_data`, which must be 0, 1, 2 …, each once (R3).
pub fn in_order(mut completions: Vec<HwCompletion>) -> Result<Vec<HwCompletion>, CaseError> {
    completions.sort_by_key(|completion| completion.user_data);
    for (number, completion) in (0..).zip(&completions) {
        equal("user_data of the completions, sorted (R3)", completion.user_data, number)?;
    }
    Ok(completions)
}

/// A register write is refused.
pub fn refused(rtl: &mut Rtl, register: Register, value: u32) -> Result<(), CaseError> {
    let outcome = rtl.write(register, value);
    let is_refusal = matches!(outcome, Err(DeviceError::WriteRefused { .. }));
    holds(format!("write of {value:#x} to {}", register.name()), is_refusal, "SLVERR", outcome.err())
}

/// Statuses of completions.
pub fn statuses(completions: &[HwCompletion]) -> Vec<u8> {
    completions.iter().map(|completion| completion.status).collect()
}

/// Waits until the device has seen the responses of all its writes: the host sees a completion before the device knows
/// that it did, and only then do the counters count it.
pub fn settle(rtl: &mut Rtl) -> Result<(), CaseError> {
    for _ in 0..1000 {
        if State::from_bits_truncate(rtl.read(Register::State)?).contains(State::IDLE) {
            return Ok(());
        }
    }
    equal("STATE.IDLE after 1000 reads", false, true)
}

/// The tokens that the engine of `desc`, a DECODE, gives it when nothing ends it early.
pub fn policy(desc: &HwDesc) -> Vec<u32> {
    let decoder = Engine::of(desc.model_id).map(|engine| engine.begin(desc, 0));
    decoder.map_or_else(Vec::new, |mut decoder| (0..desc.max_tokens).map(|_| decoder.step().token).collect())
}
