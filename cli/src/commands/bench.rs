//! `doorbell bench`.

#[cfg(feature = "report")]
use std::path::Path;
use std::path::PathBuf;
use std::process::ExitCode;

use doorbell_bench::decoding::{Decode, DecodeShape};
use doorbell_bench::{BenchError, Language, Load, MACHINE, PROMPT, What};
use doorbell_checkpoint::text::Text;
use doorbell_devices::machine::Machine;
use doorbell_lm::Image;
use serde_json::{Map, Value};

use super::trace;
use crate::busy::Busy;
use crate::failure::Failure;
use crate::models;
#[cfg(feature = "report")]
use crate::output::Output;
use crate::output::{self, Sink};
use crate::signals::before_the_end;

/// Measures throughput. A slow figure never changes the exit code; a descriptor that ends wrongly does.
#[derive(clap::Args)]
pub struct Args {
    /// What to measure
    #[arg(value_enum)]
    what: What,
    /// Trace for the RTL and for KV blocks (own format, Mooncake or Azure); by default a small built-in one
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Write the figures as JSON; '-' is standard output, and the tables go to standard error then
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Shorter and fewer runs: times are less precise, counts of cycles stay exact
    #[arg(long)]
    quick: bool,
    /// hw-fastpath: queue pairs of the model, 1 to 16, as one device
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=16))]
    queues: u8,
    /// hw-fastpath: functions that they are spread over, at most as many as those; gpu: functions of each row, as far as it has
    /// queue pairs
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=16))]
    functions: u8,
    /// policies: write how many rollouts wait, over time, as a picture (SVG)
    #[cfg(feature = "report")]
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// nic: entries to carry to a collector that is killed on the way; 1,000,000 by default, 50,000 with --quick
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    entries: Option<u64>,
    /// decode: shapes of the language model
    #[arg(long, value_enum, value_name = "SHAPE", value_delimiter = ',', default_value = "smollm2")]
    shapes: Vec<DecodeShape>,
    /// decode: rollouts at a time, a row each
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,8,64,256",
          value_parser = clap::value_parser!(u32).range(1..=256))]
    batches: Vec<u32>,
    /// decode: positions before a rollout's first token, a row each
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "256,2048",
          value_parser = clap::value_parser!(u32).range(1..=4032))]
    contexts: Vec<u32>,
    /// decode: a Python that has torch, which runs the same shape in the same call
    #[arg(long, value_name = "PROGRAM")]
    python: Option<String>,
    /// decode: threads of the host that compute meanwhile, at most 1024
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u16).range(..=1024))]
    busy: u16,
    /// decode: bytes of GPU memory in which keys and values stay between descriptors, 0 for none; the GPU's default when not given
    #[arg(long, value_name = "BYTES")]
    kept_bytes: Option<u64>,
    /// decode: blocks of a team that takes a language model's steps together; the GPU's default for the model when not given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=128))]
    ranks: Option<u32>,
    /// decode: GPUs that decode at the same time, beside the first of them alone, as in 0,1
    #[arg(long, value_name = "LIST", value_parser = super::gpus)]
    gpus: Option<super::GpuList>,
    /// decode: where a step's time goes, by kernels that NVRTC compiles for it (a minute or more); they are slower than the others
    #[arg(long)]
    phases: bool,
}

impl From<BenchError> for Failure {
    fn from(error: BenchError) -> Failure {
        match error {
            BenchError::Device(error) => error.into(),
            BenchError::Failed(message) => Failure::failed(message),
            BenchError::Unavailable(message) => Failure::unavailable(message),
            BenchError::Input(message) => Failure::input(message),
        }
    }
}

/// The model that the bench of language models measures.
struct Held {
    image: Image,
    file: PathBuf,
    prompt: Vec<u32>,
}

impl Held {
    /// SmolLM2, if it was fetched.
    fn new() -> Result<Option<Self>, Failure> {
        let Some(file) = models::fetched("smollm2") else {
            return Ok(None);
        };
        let image = models::image("smollm2")?;
        let text = Text::new(&image.about, image.model.shape.vocabulary).map_err(Failure::input)?;
        let prompt = text.encode(PROMPT).map_err(Failure::input)?;
        Ok(Some(Self { image, file, prompt }))
    }

    fn language(&self) -> Language<'_> {
        let Self { image, file, prompt } = self;
        Language { model: &image.model, file, prompt }
    }
}

/// Where the picture goes, if one is asked for.
#[cfg(feature = "report")]
fn picture(args: &Args) -> Result<Option<Output>, Failure> {
    let Some(path) = args.svg.as_deref() else { return Ok(None) };
    if !matches!(args.what, What::Policies | What::All) {
        return Err(Failure::input("--svg is for `bench policies`"));
    }
    Output::open("the picture", path).map(Some)
}

/// The picture of the policies' rows: rollouts that wait for a worker, over time, under the cap.
#[cfg(feature = "report")]
fn waiting(source: &str, rows: &Value) -> String {
    let name = Path::new(source).file_name().map_or(source.into(), |name| name.to_string_lossy());
    let pair = |point: &Value| Some((point[0].as_f64()?, point[1].as_f64()?));
    let lines: Vec<(String, Vec<(f64, f64)>)> = rows
        .as_array()
        .into_iter()
        .flatten()
        // Without a cap hundreds wait, and nobody would see the others.
        .filter(|row| row["capped"] == true)
        .map(|row| {
            let points = row["waiting_over_time"].as_array().into_iter().flatten().filter_map(pair);
            (row["policy"].as_str().unwrap_or_default().to_owned(), points.collect())
        })
        .collect();
    doorbell_report::lines(&format!("Rollouts that wait for a worker: {name}"), "simulated cycles", &lines)
}

/// Refuses options that the bench that was asked for does not read.
fn check(args: &Args) -> Result<(), Failure> {
    let of = |option: &str, is_given: bool, bench: What, name: &str| match is_given {
        true if args.what != bench && args.what != What::All => {
            Err(Failure::input(format!("{option} is for `bench {name}`")))
        }
        _ => Ok(()),
    };
    of("--entries", args.entries.is_some(), What::Nic, "nic")?;
    of("--phases", args.phases, What::Decode, "decode")?;
    of("--gpus", args.gpus.is_some(), What::Decode, "decode")?;
    match args.gpus.as_ref() {
        Some(super::GpuList(gpus)) if gpus.len() < 2 || gpus[0] != 0 => Err(Failure::input(
            "--gpus is a list that begins with 0 and has another GPU: the table compares all of them with GPU 0",
        )),
        _ => Ok(()),
    }
}

/// Runs the benches.
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    check(&args)?;
    before_the_end(doorbell_bench::clear)?;
    // Read in any case, so that a bad one is told.
    let (trace, _) = trace::read(args.trace.as_deref())?;
    #[cfg(feature = "report")]
    let svg = picture(&args)?;
    let json = args.json.as_deref().map(|path| Sink::open("JSON", path)).transpose()?;
    let to_stderr = matches!(json, Some(Sink::Standard));
    let print = |text: &str| {
        if to_stderr {
            output::tell(text.trim_end_matches('\n'));
            return Ok(());
        }
        output::print(text)
    };
    let machine = Machine::this();
    let facts = machine.facts().map(|(name, value)| (name.to_owned(), Value::String(value)));
    let mut figures = Map::from_iter([(MACHINE.to_owned(), Value::Object(Map::from_iter(facts)))]);
    print(&format!("machine: {machine}\n\n"))?;
    let Args { quick, queues, functions, .. } = args;
    let decode = Decode {
        shapes: args.shapes,
        batches: args.batches,
        contexts: args.contexts,
        python: args.python,
        busy: args.busy.into(),
        kept_bytes: args.kept_bytes,
        ranks: args.ranks,
        gpus: args.gpus.map_or_else(Vec::new, |super::GpuList(gpus)| gpus),
        phases: args.phases,
    };
    let held = match args.what {
        What::Lm | What::Npu | What::All => Held::new()?,
        _ => None,
    };
    let language = held.as_ref().map(Held::language);
    let load = Load {
        trace: &trace,
        quick,
        entries: args.entries,
        queues,
        functions,
        language,
        decode: Some(&decode),
    };
    // Shown as they come: the whole takes a while.
    let busy = || Busy::new("measuring");
    let mut waits = Some(busy());
    let ran = doorbell_bench::run(args.what, &load, |key, section| {
        drop(waits.take());
        waits = Some(busy());
        let text = section.to_string();
        figures.insert(key.to_owned(), section.json);
        print(&text)
    });
    drop(waits);
    match &ran {
        Ok(skipped) => skipped.iter().for_each(|what| output::note(format_args!("skipped: {what}"))),
        // The figures before it are written all the same.
        Err(failure) => drop(figures.insert("failed".to_owned(), Value::String(failure.to_string()))),
    }
    #[cfg(feature = "report")]
    if let (Some(svg), Some(rows)) = (svg, figures.get("policies")) {
        svg.write(waiting(&trace.source, rows).as_bytes())?;
    }
    if let Some(json) = json {
        json.write(&output::json(&Value::Object(figures)))?;
    }
    ran?;
    Ok(ExitCode::SUCCESS)
}
