//! `doorbell wave`.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::failure::Failure;

/// Records a case of the conformance suite on the RTL, every signal in every cycle, for GTKWave or Surfer. Of a case that
/// makes several devices, the last. With --model a token of a language model instead, and lists what its NPU did.
#[derive(Debug, clap::Args)]
#[cfg_attr(not(feature = "cosim"), allow(dead_code, reason = "no simulated device is built"))]
pub struct Args {
    /// The case
    #[arg(default_value = "basic decode")]
    case: String,
    /// Record a token of this language model (engine 1), as `doorbell model list` has it: a DECODE after a prompt of four tokens, from before the
    /// step begins until after its completion
    #[cfg(feature = "lm")]
    #[arg(long, conflicts_with_all = ["case", "workers", "json"])]
    model: Option<String>,
    /// File to write, in FST format; by default beside the picture, or named after the case, as basic-decode.fst
    #[arg(long, value_name = "FILE.fst")]
    out: Option<PathBuf>,
    /// Draw a picture of it too, grouped as `cargo xtask wave` shows it in GTKWave; needs no display. For 4 workers
    #[arg(long, value_name = "FILE.png", conflicts_with = "workers")]
    png: Option<PathBuf>,
    /// Draw only this span of time, in nanoseconds, as 2500..4000
    #[arg(long, value_name = "NS..NS", requires = "png", value_parser = span)]
    span: Option<(u64, u64)>,
    /// Workers of the RTL
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=16))]
    workers: u32,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// The file of a recording for which none was named.
#[cfg(feature = "cosim")]
fn file_of(args: &Args) -> Result<PathBuf, Failure> {
    #[cfg(feature = "lm")]
    if let Some(model) = &args.model {
        let name = std::path::Path::new(model).file_stem().unwrap_or_default().to_string_lossy().into_owned();
        return Ok(format!("{name}-token.fst").into());
    }
    Ok(format!("{}.fst", super::cosim::title(super::cosim::named(&args.case)?).replace(' ', "-")).into())
}

/// Runs the case. One that fails is recorded up to the failure.
#[cfg(feature = "cosim")]
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    use doorbell_cosim::Wave;

    use super::cosim::{Run, named, title};
    use crate::busy::Busy;
    use crate::failure::DIFFERENT;
    use crate::output::{self, Output, Recording};

    let png = args.png.as_deref().map(|png| Output::open("picture", png)).transpose()?;
    let out = match (&args.out, &args.png) {
        (Some(out), _) => out.clone(),
        (None, Some(png)) => png.with_extension("fst"),
        (None, None) => file_of(&args)?,
    };
    if args.png.as_ref() == Some(&out) {
        return Err(Failure::input("--out and --png are the same file; give two"));
    }
    #[cfg(feature = "lm")]
    if let Some(model) = &args.model {
        let code = token::run(model, &out)?;
        draw(include_str!("../../../tb/wave/token.gtkw"), &out, png, &args)?;
        return Ok(code);
    }
    let Args { case, workers, .. } = &args;
    let workers = *workers;
    let case = case.clone();
    let case = named(&case)?;
    let recording = Recording::open(&out)?;
    let Run { outcome, cycles } = Busy::during("recording", || {
        Run::of(case, workers, None, Some(Wave { path: recording.path().to_owned(), window: None }))
    })?;
    // How the case went is told whatever becomes of its waveform and picture.
    let recorded = recording.finish();
    let has_waveform = recorded.is_ok();
    let written =
        recorded.and_then(|()| draw(include_str!("../../../tb/wave/descriptor.gtkw"), &out, png, &args));
    let (name, problem) = (title(case), outcome.err().map(|error| error.to_string()));
    if args.json {
        let picture = args.png.as_deref().filter(|_| written.is_ok());
        output::print_raw(&output::json(&serde_json::json!({
            "case": name, "waveform": has_waveform.then(|| output::path(&out)), "picture": picture.map(output::path), "cycles": cycles,
            "passed": problem.is_none(), "problem": problem,
        })))?;
    } else if let Some(problem) = &problem {
        output::tell(format_args!("error: case '{name}' failed: {problem}"));
        if written.is_ok() {
            output::tell(format_args!("{} shows it up to the failure", out.display()));
        }
    } else if written.is_ok() {
        output::print(&format!("{}: {cycles} cycles of case '{name}'\n", out.display()))?;
    }
    match (problem, written) {
        (None, written) => written.map(|()| ExitCode::SUCCESS),
        (Some(_), written) => {
            if let Err(failure) = written {
                output::tell(format_args!("error: {failure}"));
            }
            Ok(ExitCode::from(DIFFERENT))
        }
    }
}

/// Two times in ns, the first before the second.
fn span(text: &str) -> Result<(u64, u64), String> {
    let parts = text.split_once("..").and_then(|(from, to)| Some((from.parse().ok()?, to.parse().ok()?)));
    parts.filter(|(from, to)| from < to).ok_or_else(|| "expected FROM..TO in ns, as 2500..4000".into())
}

/// The names of values that the save files use, by the path of their file. They are part of the program: where it runs, the repository may be gone.
#[cfg(feature = "cosim")]
fn filter(path: &str) -> Result<String, String> {
    macro_rules! files {
        ($($name:literal),*) => { [$((concat!("tb/wave/", $name), include_str!(concat!("../../../tb/wave/", $name)))),*] };
    }
    let files = files![
        "axi_id.txt",
        "engine_npu_state.txt",
        "error.txt",
        "npu_kind.txt",
        "npu_sequencer_state.txt",
        "opcode.txt",
        "register.txt",
        "status.txt",
        "worker_state.txt"
    ];
    let text = files.iter().find(|(file, _)| *file == path).map(|(_, text)| (*text).to_owned());
    text.ok_or_else(|| format!("the save file uses {path}, which is not part of this program; report this"))
}

/// Draws what was recorded, if asked to.
#[cfg(feature = "cosim")]
fn draw(
    save: &str,
    waveform: &std::path::Path,
    png: Option<crate::output::Output>,
    args: &Args,
) -> Result<(), Failure> {
    let Some(file) = png else { return Ok(()) };
    let save = doorbell_wave::Save::parse(save, &filter).map_err(Failure::input)?;
    let picture = doorbell_wave::draw(&save, waveform, args.span).map_err(Failure::input)?;
    file.write(&picture)
}

/// A token of a language model.
#[cfg(all(feature = "cosim", feature = "lm"))]
mod token {
    use std::fmt::Write;
    use std::ops::ControlFlow;
    use std::path::Path;
    use std::process::ExitCode;
    use std::sync::{Arc, Mutex, PoisonError};

    use doorbell_cosim::Wave;
    use doorbell_devices::{Kind, Settings, rtl};
    use doorbell_host::DeviceError;
    use doorbell_npu::run::{Begun, Ended, Event, Retired};
    use doorbell_npu::text::disassemble;
    use doorbell_trace::{Request, Trace};
    use doorbell_verify::replay::{ReplayOptions, ReplayPlan, replay};

    use crate::failure::Failure;
    use crate::output::{self, Recording};

    /// Cycles ahead of the step, in which its sequence is read and held to its check, and behind it, in which its token and its
    /// completion are written.
    const AHEAD: u64 = 350;
    const BEHIND: u64 = 250;

    /// The last step of a run.
    #[derive(Default)]
    struct Step {
        begun: Option<Begun>,
        words: Vec<Retired>,
        ended: Option<Ended>,
    }

    /// Runs it once to find its cycles, and once to record them.
    pub fn run(model: &str, out: &Path) -> Result<ExitCode, Failure> {
        let language = Arc::new(crate::models::language_of(crate::models::image(model)?)?);
        crate::models::fits(&language.published, Kind::Rtl)?;
        let request = Request { arrival_ms: 0, prompt_tokens: 4, output_tokens: 1, prefix: vec![] };
        let trace = Trace { source: "a token".into(), requests: vec![request] };
        let plan = ReplayPlan::with_language(&trace, ReplayOptions::default(), language);
        let plan = plan.map_err(Failure::input)?;
        let settings = Settings { queue: plan.queue_config(), ..Settings::default() };
        drop(Recording::open(out)?);

        let mut driver = rtl::open(&settings, None)?;
        let step = Arc::new(Mutex::new(Step::default()));
        let seen = Arc::clone(&step);
        let listen = move |event: &Event| {
            let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            // One rollout: one step at a time, so one context.
            match event {
                Event::Begun(begun) => *seen = Step { begun: Some(*begun), ..Step::default() },
                Event::Retired(retired) => seen.words.push(retired.clone()),
                Event::Ended(ended) => seen.ended = Some(*ended),
            }
            Ok(())
        };
        driver.platform_mut().observe_npu(listen).map_err(DeviceError::from)?;
        if let Some(failure) = replay(&plan, &mut driver, &mut |_| ControlFlow::Continue(())).failure {
            return Err(Failure::failed(failure));
        }
        drop(driver);
        let step = step.lock().unwrap_or_else(PoisonError::into_inner);
        let (Some(begun), Some(ended)) = (step.begun, step.ended) else {
            return Err(Failure::failed("the NPU ran no step to its end"));
        };

        let window = begun.cycle.saturating_sub(AHEAD)..ended.cycle + BEHIND;
        let recording = Recording::open(out)?;
        let wave = Wave { path: recording.path().to_owned(), window: Some(window.clone()) };
        let mut driver = rtl::open(&settings, Some(wave))?;
        if let Some(failure) = replay(&plan, &mut driver, &mut |_| ControlFlow::Continue(())).failure {
            return Err(Failure::failed(failure));
        }
        driver.platform_mut().flush_wave().map_err(DeviceError::from)?;
        // The last register access lies before the window's end.
        let behind = window.end.saturating_sub(driver.platform().cycles());
        driver.platform_mut().run(behind).map_err(DeviceError::from)?;
        drop(driver);
        recording.finish()?;
        output::print(&told(model, out, &window, &begun, &step.words, &ended))?;
        Ok(ExitCode::SUCCESS)
    }

    fn told(
        model: &str,
        out: &Path,
        window: &std::ops::Range<u64>,
        begun: &Begun,
        words: &[Retired],
        ended: &Ended,
    ) -> String {
        let mut text =
            format!("{}: cycles {} to {} of a token of {model}\n", out.display(), window.start, window.end);
        let Begun { cycle, token, position, .. } = begun;
        let _ = write!(
            text,
            "step: token {token} at position {position}, begun in cycle {cycle}, {} cycles",
            ended.cycle - cycle
        );
        let _ = match ended.sample {
            Some(sample) => writeln!(
                text,
                ": token {} follows, log-probability {:.4}",
                sample.token,
                f64::from(sample.log_probability) / 65_536.0
            ),
            None => writeln!(text),
        };
        let mut table = output::table(["begun", "done", "cycles", "layer", "word", "instruction"], 0);
        // As they were begun, which is the program's order.
        let mut words: Vec<&Retired> = words.iter().collect();
        words.sort_by_key(|word| word.began);
        for Retired { cycle: done, began, place, .. } in words {
            table.add_row([
                (began - cycle).to_string(),
                (done - cycle).to_string(),
                (done - began).to_string(),
                place.layer.map_or("-".to_owned(), |layer| layer.to_string()),
                place.pc.to_string(),
                disassemble(place.word),
            ]);
        }
        if let Some(instruction) = table.column_mut(5) {
            instruction.set_cell_alignment(comfy_table::CellAlignment::Left);
        }
        let _ = writeln!(text, "{table}");
        text
    }
}

/// Without the simulated device there is nothing to record.
#[cfg(not(feature = "cosim"))]
pub fn run(_: Args) -> Result<ExitCode, Failure> {
    Err(Failure::unavailable("rtl is not part of this build; build with the feature 'cosim'"))
}

#[cfg(all(test, feature = "cosim"))]
mod tests {
    use super::*;

    /// Values have their names wherever the program runs.
    #[test]
    fn a_picture_has_the_names_of_values_without_the_repository() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        for save in
            [include_str!("../../../tb/wave/descriptor.gtkw"), include_str!("../../../tb/wave/token.gtkw")]
        {
            let own = doorbell_wave::Save::parse(save, &filter).unwrap();
            let read = doorbell_wave::Save::parse(save, &doorbell_wave::files(root)).unwrap();
            assert!(own == read && !own.rows.is_empty());
        }
        assert!(filter("tb/wave/none.txt").unwrap_err().contains("tb/wave/none.txt"));
    }
}
