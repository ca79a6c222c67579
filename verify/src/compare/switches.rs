//! The same bytes at the same switch points (R6, R20): what a device did while versions were published, run again on the model.

use std::collections::HashMap;

use super::record::{Answer, Record};
use crate::model::ModelPlatform;
use crate::replay::ReplayPlan;
use doorbell_contract::{DescFlags, HwCompletion, HwDesc, Opcode, PolicyMode, Status};
use doorbell_host::device::Device;
use doorbell_host::driver::Driver;
use doorbell_host::error::DeviceError;

/// Runs every DECODE of `record` on the model, cut where it was cut, one version after the other. What differs from the record or
/// the bytes in the device's memory is told.
///
/// # Errors
/// A failure of the model, or of the device's memory.
pub(super) fn rerun(
    plan: &ReplayPlan,
    record: &Record<'_>,
    device: &dyn Device,
) -> Result<Option<String>, DeviceError> {
    // By version, in the order of rollouts.
    let mut answers: Vec<Answer> = (0..plan.ids())
        .flat_map(|id| record.answers(id))
        .filter(|answer| answer.desc.opcode == Opcode::Decode as u8)
        .collect();
    answers.sort_by_key(|answer| answer.desc.policy_version);
    let cut = |answer: &Answer| {
        let status = Status::try_from(answer.completion.status).ok()?;
        let is_cut = matches!(status, Status::Stopped | Status::Superseded);
        is_cut.then(|| (answer.desc.user_data, (answer.tokens(), status)))
    };
    let cuts: HashMap<_, _> = answers.iter().filter_map(cut).collect();
    let mut model = Driver::new(ModelPlatform::new().with_cuts(cuts), plan.queue_config())?;
    let mut version = 0;
    for answer in &answers {
        while version < answer.desc.policy_version {
            version += 1;
            let policy = HwDesc { checkpoint: PolicyMode::Wait as u32, ..plan.policy(version) };
            model.place_policy(policy.delta_offset, &plan.header(version))?;
            run(&mut model, &policy)?;
        }
        // Groups and prefixes change no byte.
        let flags = answer.desc.flags & !DescFlags::COW_PREFIX.bits();
        let again = run(&mut model, &HwDesc { flags, ..answer.desc })?;
        if again.without_timing() != answer.completion.without_timing() {
            return Ok(Some(format!(
                "R6: at its switch points the model completes {:?} as {again:?}, the device {:?}",
                answer.desc, answer.completion
            )));
        }
    }
    let (mut expected, mut found) = (Vec::new(), Vec::new());
    for area in (0..plan.ids()).filter_map(|id| plan.area(id)) {
        let words = ((area.end - area.start) / 4) as usize;
        expected.resize(words, 0);
        found.resize(words, 0);
        model.tokens(area.start, &mut expected)?;
        device.tokens(area.start, &mut found)?;
        if expected != found {
            return Ok(Some(format!(
                "R6: at its switch points the model has other tokens at {:#x}",
                area.start
            )));
        }
    }
    Ok(None)
}

/// Runs one descriptor to its end.
fn run(model: &mut Driver<ModelPlatform>, desc: &HwDesc) -> Result<HwCompletion, DeviceError> {
    let mut out = [HwCompletion::default()];
    model.submit(std::slice::from_ref(desc))?;
    while model.poll(&mut out)? == 0 {}
    Ok(out[0])
}
