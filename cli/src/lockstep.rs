//! The RTL with its NPU held to the interpreter.

use std::sync::{Arc, Mutex, PoisonError};

use doorbell_devices::{OpenError, Settings, rtl};
use doorbell_host::{Device, DeviceError};
use doorbell_verify::lockstep::{Held, Lockstep};
use doorbell_verify::replay::Language;

/// Opens the device, which is to run rollouts of `language`, and ends where its NPU differs; and what tells, behind that, what was held.
///
/// # Errors
/// `Setting` for several queue pairs; else as [`rtl::open`].
pub fn open(
    settings: &Settings,
    language: &Language,
) -> Result<(Box<dyn Device>, impl FnOnce() -> Held + 'static), OpenError> {
    if settings.queues > 1 {
        return Err(OpenError::Setting(format!(
            "queues is {}: an NPU is held to the interpreter for one queue pair; give 1, or leave --lockstep out",
            settings.queues
        )));
    }
    let mut driver = rtl::open(settings, None)?;
    let regions = driver.language_regions().pop().ok_or_else(|| {
        OpenError::Setting("the device has no regions of a language model, whose NPU --lockstep holds".into())
    })?;
    let lockstep = Arc::new(Mutex::new(Lockstep::new(language, regions)));
    let listener = Arc::clone(&lockstep);
    driver
        .platform_mut()
        .observe_npu(move |event| listener.lock().unwrap_or_else(PoisonError::into_inner).happened(event))
        .map_err(DeviceError::from)?;
    Ok((Box::new(driver), move || lockstep.lock().unwrap_or_else(PoisonError::into_inner).held().clone()))
}
