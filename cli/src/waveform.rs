//! Waveforms of where the RTL went wrong.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::Ordering;

use doorbell_cosim::{RtlPlatform, SLICE, Wave};
use doorbell_devices::Settings;
use doorbell_devices::rtl::open;
use doorbell_host::{DeviceError, Driver};
use doorbell_verify::compare::Outcome;
use doorbell_verify::lockstep::Difference;
use doorbell_verify::replay::{Progress, ReplayFailure, ReplayPlan, replay};

use crate::failure::Failure;
use crate::output::Recording;

/// Cycles recorded before the poll before the divergence, and after it.
const MARGIN: u64 = 2_000;
/// Cycles recorded after the last completion of a device that hangs.
const AFTERMATH: u64 = 20_000;
/// Cycles recorded at most.
const LONGEST: u64 = 100_000;

/// Repeats a run that went wrong, which a simulation does exactly, and records the cycles around the place where it
/// did. Returns the recorded cycles.
pub fn record_wave(
    plan: &ReplayPlan,
    settings: &Settings,
    outcome: &Outcome,
    path: &Path,
) -> Result<std::ops::Range<u64>, Failure> {
    if settings.queues > 1 {
        return Err(Failure::input(format!(
            "a waveform shows a run over one queue pair, and this one was over {}: repeat it with --queues 1",
            settings.queues
        )));
    }
    // Once to find the cycles, where they are not known, and once to record them.
    let in_step = outcome.lockstep.as_ref().and_then(|held| held.difference.as_ref());
    let (from, to) = match in_step {
        Some(Difference { cycle, instruction, .. }) => {
            let began = instruction.as_ref().and_then(|instruction| instruction.began).unwrap_or(*cycle);
            (began.max(cycle.saturating_sub(LONGEST - 2 * MARGIN)), *cycle)
        }
        None => cycles_around(plan, open(settings, None)?, outcome),
    };
    let from = from.saturating_sub(MARGIN);
    let window = from..(to + MARGIN).min(from + LONGEST);
    let recording = Recording::open(path, window.end - window.start)?;
    let wave = Wave { path: recording.path().to_owned(), window: Some(window.clone()) };
    // Just enough patience to reach the end of the window: a token of a language model may take long.
    let silent = if in_step.is_some() { window.end } else { LONGEST };
    let patience = Some(u32::try_from(2 + silent / SLICE).unwrap_or(u32::MAX));
    let mut driver = open(&Settings { patience, ..settings.clone() }, Some(wave))?;
    let clock = driver.platform().clock();
    replay(plan, &mut driver, &mut |_| stop_if(clock.load(Ordering::Relaxed) > window.end));
    driver.platform_mut().flush_wave().map_err(DeviceError::from)?;
    drop(driver);
    recording.finish()?;
    Ok(window)
}

/// The clock at the polls before and after the completion that was wrong; without one, before and after the end. A
/// device that hangs did so after its last completion.
fn cycles_around(plan: &ReplayPlan, mut driver: Driver<RtlPlatform>, outcome: &Outcome) -> (u64, u64) {
    let hangs = matches!(outcome.failure, Some(ReplayFailure::Device { error: DeviceError::Timeout(_), .. }));
    let wrong = outcome.divergence.as_ref().and_then(|divergence| divergence.ordinal);
    let enough = match wrong {
        Some(ordinal) => ordinal as u64 + 1,
        None if hangs => outcome.completions,
        None => u64::MAX,
    };
    let clock = driver.platform().clock();
    let (mut before, mut last) = (0, 0);
    if enough > 0 {
        replay(plan, &mut driver, &mut |progress: Progress| {
            before = last;
            last = clock.load(Ordering::Relaxed);
            stop_if(progress.completions >= enough)
        });
    }
    match wrong {
        Some(_) => (before, last),
        None if hangs => (before, last + AFTERMATH),
        None => (last, clock.load(Ordering::Relaxed)),
    }
}

fn stop_if(stop: bool) -> ControlFlow<()> {
    if stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}
