//! Waveforms of where the RTL went wrong.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use doorbell_cosim::{RtlPlatform, SLICE, Wave};
use doorbell_devices::Settings;
use doorbell_devices::rtl::{open, patience};
use doorbell_host::{DeviceError, Driver};
#[cfg(feature = "cosim")]
use doorbell_setup::shell::word;
use doorbell_verify::compare::Outcome;
use doorbell_verify::lockstep::Difference;
use doorbell_verify::replay::{Progress, ReplayFailure, ReplayPlan, replay};

use crate::commands::compare::Cut;
use crate::failure::Failure;
use crate::output::{Output, Recording};
use crate::report::Recorded;

/// The device in a waveform.
#[cfg(feature = "cosim")]
const TOP: &str = "top.rl_runtime_top";
/// Nanoseconds of a clock cycle.
const PERIOD: u64 = 10;
/// Cycles that GTKWave shows before the divergence.
const VIEW: u64 = 100;
/// Signals of tb/wave/descriptor.gtkw with a bit for each worker.
const PER_WORKER: [&str; 8] =
    ["free", "assign_work", "run_q", "wait_q", "token_o", "done_o", "item_valid", "item_take"];
/// Signals with a word for each worker.
const WORD_PER_WORKER: [&str; 4] = ["rollout_q", "position_q", "event_q", "token_data_o"];
/// Bits of such a word.
const WORD: u32 = 32;

/// Cycles recorded before the poll before the divergence, and after it.
const MARGIN: u64 = 2_000;
/// Cycles recorded after the last completion of a device that hangs.
const AFTERMATH: u64 = 20_000;
/// Cycles recorded at most.
const LONGEST: u64 = 100_000;

/// Repeats a run, which a simulation does exactly, and records what `cut` says; without cycles those around the place where it went
/// wrong. Beside the waveform goes a save file with signals, and a marker where the divergence was seen.
pub fn record_wave(
    plan: &ReplayPlan,
    settings: &Settings,
    outcome: &Outcome,
    path: &Path,
    cut: Cut,
) -> Result<Recorded, Failure> {
    if settings.queues > 1 {
        return Err(Failure::input(format!(
            "a waveform shows a run over one queue pair, and this one was over {}: repeat it with --queues 1",
            settings.queues
        )));
    }
    #[cfg(feature = "cosim")]
    let Cut { window, scope } = cut;
    #[cfg(not(feature = "cosim"))]
    let Cut { window } = cut;
    // Once to find the cycles, where they are not known, and once to record them.
    let in_step = outcome.lockstep.as_ref().and_then(|held| held.difference.as_ref());
    let place = match in_step {
        _ if outcome.agrees() => None,
        Some(Difference { cycle, instruction, .. }) => {
            let began = instruction.as_ref().and_then(|instruction| instruction.began).unwrap_or(*cycle);
            Some((began.max(cycle.saturating_sub(LONGEST - 2 * MARGIN)), *cycle))
        }
        None => Some(cycles_around(plan, open(settings, None)?, outcome)),
    };
    let around = |(from, to): (u64, u64)| {
        let from = from.saturating_sub(MARGIN);
        from..(to + MARGIN).min(from + LONGEST)
    };
    let asked = window.is_some();
    let window = window.or(place.map(around)).unwrap_or(0..LONGEST);
    let recording = Recording::open(path)?;
    let wave = Wave { path: recording.path().to_owned(), window: Some(window.clone()) };
    // As patient as the run, which may have waited long for a PREFILL of a language model; after a hang long enough to show it; and no longer
    // than the end of the window can take.
    let slices = |cycles: u64| u32::try_from(2 + cycles / SLICE).unwrap_or(u32::MAX);
    let patience = Some(patience(settings)?.max(slices(LONGEST)).min(slices(window.end)));
    let mut driver = open(&Settings { patience, ..settings.clone() }, Some(wave))?;
    let clock = driver.platform().clock();
    let again = replay(plan, &mut driver, &mut |_| stop_if(clock.load(Ordering::Relaxed) > window.end));
    driver.platform_mut().flush_wave().map_err(DeviceError::from)?;
    let reached = driver.platform().cycles();
    let workers = driver.platform().built().workers;
    drop(driver);
    if reached <= window.start {
        let first = if asked { "that was asked for" } else { "around the place where it went wrong" };
        let why = match (&outcome.failure, &again.failure) {
            (None, Some(failure)) => format!("; repeated, it failed: {failure}"),
            _ => String::new(),
        };
        return Err(Failure::input(format!(
            "the run ended in cycle {reached}, before the first {first}, {}{why}",
            window.start
        )));
    }
    #[cfg(feature = "cosim")]
    let shown = scope.map(|scope| signals_of(recording.path(), &scope)).transpose()?;
    #[cfg(not(feature = "cosim"))]
    let shown: Option<Vec<String>> = None;
    recording.finish()?;
    let of_token = in_step.is_some();
    let save = save_path(path);
    let divergence = place.map(|(from, to)| if of_token { to..to } else { from.min(to)..to });
    let (start, marker) = match &divergence {
        Some(place) => (window.start.max(place.end.saturating_sub(VIEW)), place.end),
        None => (window.start, window.start),
    };
    let text = match shown {
        Some(signals) => save_file_of(&signals, start, marker),
        None => save_file(of_token, workers, start, marker),
    };
    let written = Output::open("save file", &save).and_then(|output| output.write(text.as_bytes()));
    Ok(Recorded {
        cycles: window.start..window.end.min(reached),
        divergence,
        save: written.map(|()| save).map_err(|failure| failure.to_string()),
    })
}

/// Records the last cycles of what `run` repeats and ends in cycle `end`, on the RTL with so many workers, with a save file beside it. Says
/// where both are.
#[cfg(feature = "cosim")]
pub fn record_end(
    path: &Path,
    workers: u32,
    end: u64,
    run: impl FnOnce(Wave) -> Result<(), Failure>,
) -> Result<String, Failure> {
    let window = end.saturating_sub(LONGEST)..end + MARGIN;
    let recording = Recording::open(path)?;
    run(Wave { path: recording.path().to_owned(), window: Some(window.clone()) })?;
    recording.finish()?;
    let save = save_path(path);
    let built =
        doorbell_cosim::built_workers().into_iter().find(|&built| built >= workers).unwrap_or(workers);
    let text = save_file(false, built, window.start.max(end.saturating_sub(VIEW)), end);
    Output::open("save file", &save)?.write(text.as_bytes())?;
    Ok(format!(
        "waveform: {} (cycles {} to {end}; a cycle is {PERIOD} ns)\nopen it: gtkwave {} {}  (the marker is at the end)\n",
        path.display(),
        window.start,
        word(path),
        word(save)
    ))
}

/// The save file beside a waveform.
fn save_path(path: &Path) -> PathBuf {
    match path.with_extension("gtkw") {
        same if same == path => path.with_extension("save.gtkw"),
        save => save,
    }
}

/// The signals of an instance of the RTL.
#[cfg(feature = "cosim")]
fn signals_of(waveform: &Path, instance: &str) -> Result<Vec<String>, Failure> {
    let signals = doorbell_wave::signals(waveform, &format!("{TOP}.{instance}")).map_err(Failure::input)?;
    if signals.is_empty() {
        let instances = doorbell_wave::instances(waveform, TOP).map_err(Failure::input)?.join(", ");
        return Err(Failure::input(format!(
            "--trace-scope: the RTL has no instance {instance}; it has {instances}"
        )));
    }
    Ok(signals)
}

/// A save file of these signals alone.
fn save_file_of(signals: &[String], start: u64, marker: u64) -> String {
    let mut out = format!("[timestart] {}\n*-5.42 {} -1 -1\n", PERIOD * start, PERIOD * marker);
    for signal in signals {
        // Vectors in hexadecimal, bits as they are.
        out += if signal.ends_with(']') { "@22\n" } else { "@28\n" };
        out += signal;
        out.push('\n');
    }
    out
}

/// The signals of `cargo xtask wave` for this number of workers, from cycle `start` on, with the marker in cycle `marker`.
fn save_file(of_token: bool, workers: u32, start: u64, marker: u64) -> String {
    let text = if of_token {
        include_str!("../../tb/wave/token.gtkw")
    } else {
        include_str!("../../tb/wave/descriptor.gtkw")
    };
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."));
    let mut out = String::with_capacity(text.len());
    for line in text.lines() {
        if line.starts_with("[*]") || line.starts_with("[timestart]") {
            continue;
        }
        if line.starts_with('*') {
            out += &format!("[timestart] {}\n*-5.42 {} -1 -1\n", PERIOD * start, PERIOD * marker);
        } else if let Some((number, filter)) = line.strip_prefix('^').and_then(|line| line.split_once(' ')) {
            // Where the repository is gone, values have numbers and no names.
            out += &format!("^{number} {}\n", repository.join(filter).display());
        } else {
            out += &widened(line, workers);
            out.push('\n');
        }
    }
    out
}

/// A line of the save file for 4 workers, for another number of them.
fn widened(line: &str, workers: u32) -> String {
    let top = workers - 1;
    let line = PER_WORKER.iter().fold(line.to_owned(), |line, name| {
        let four = format!(".{name}[3:0]");
        if !line.contains(&four) {
            return line;
        }
        line.replace("(3)top", &format!("({top})top")).replace(&four, &format!(".{name}[{top}:0]"))
    });
    let four = format!("[{}:0]", 4 * WORD - 1);
    if !WORD_PER_WORKER.iter().any(|name| line.contains(&format!(".{name}{four}"))) {
        return line;
    }
    // Bits are counted from the highest: those of worker 0 are the last word of the line's vector.
    let moved = |word: &str| {
        let bit = word.strip_prefix('(').and_then(|word| word.split_once(")top"));
        match bit.and_then(|(bit, name)| Some((bit.parse::<u32>().ok()?, name))) {
            Some((bit, name)) => format!("({})top{name}", (bit + WORD * workers).saturating_sub(4 * WORD)),
            None => word.to_owned(),
        }
    };
    let words: Vec<String> = line.split(' ').map(moved).collect();
    words.join(" ").replace(&four, &format!("[{}:0]", WORD * workers - 1))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_save_file_fits_the_number_of_workers_and_marks_a_cycle() {
        let text = save_file(false, 16, 900, 1000);
        assert!(text.contains("[timestart] 9000\n*-5.42 10000 "), "{text}");
        let state = "(15)top.rl_runtime_top.u_rollout_worker_fsm.run_q[15:0] (15)top.rl_runtime_top.u_rollout_worker_fsm.wait_q[15:0]";
        assert!(text.contains(state), "{text}");
        assert!(text.contains("top.rl_runtime_top.item_worker[3:0]\n") && !text.contains("free[3:0]"));
        // Filters lie in the repository, wherever GTKWave starts.
        for line in text.lines().filter(|line| line.starts_with('^')) {
            assert!(Path::new(line.split_once(' ').unwrap().1).is_file(), "{line}");
        }
        assert_eq!(widened("(3)top.x.done_o[3:0]", 1), "(0)top.x.done_o[0:0]");
        let word = "#{rollout_q[31:0]} (96)top.x.rollout_q[127:0] (127)top.x.rollout_q[127:0]";
        assert_eq!(widened(word, 1), "#{rollout_q[31:0]} (0)top.x.rollout_q[31:0] (31)top.x.rollout_q[31:0]");
        assert!(widened(word, 16).ends_with("(511)top.x.rollout_q[511:0]"));
        assert!(save_file(true, 1, 0, 7).contains("unit_busy_q[3:0]"));
    }
}
