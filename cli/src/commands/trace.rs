//! `doorbell trace …`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use doorbell_trace::{Format, Generator, PREFIX_BLOCK_TOKENS, Trace};
use serde_json::json;

use crate::failure::Failure;
use crate::output::{self, Sink};

/// Traces: own format (JSON lines), Mooncake JSON lines and Azure LLM CSV are recognised by content.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Show what a trace holds
    Info {
        /// The trace; without it, the built-in one
        file: Option<PathBuf>,
        /// Print JSON instead of text
        #[arg(long)]
        json: bool,
    },
    /// Convert a trace of any known format to Doorbell's own
    Convert {
        /// The trace to read
        input: PathBuf,
        /// The file to write; '-' is standard output
        output: PathBuf,
    },
    /// Print the first requests of a trace, as a trace in Doorbell's own format
    Head {
        /// The trace; without it, the built-in one
        file: Option<PathBuf>,
        /// How many requests
        #[arg(short = 'n', long, default_value_t = 10)]
        requests: usize,
    },
    /// Generate a trace: groups of answers to one prompt, a long tail of lengths, shared prefixes
    Generate {
        /// Number of requests in all
        #[arg(long)]
        requests: u32,
        /// Seed; the same arguments give the same trace on every machine
        #[arg(long, default_value_t = 0)]
        seed: u64,
        /// Requests per prompt; they differ in the length of their answers
        #[arg(long, default_value_t = 1)]
        group: u32,
        /// Median length of an answer, in tokens
        #[arg(long, value_name = "TOKENS", default_value_t = Generator::new(1, 0, 1).output_median)]
        output_median: u32,
        /// Longest answer, in tokens
        #[arg(long, value_name = "TOKENS", default_value_t = Generator::new(1, 0, 1).output_max)]
        output_max: u32,
        /// Median length of a fresh prompt, in tokens
        #[arg(long, value_name = "TOKENS", default_value_t = Generator::new(1, 0, 1).prompt_median)]
        prompt_median: u32,
        /// The file to write; '-' is standard output
        #[arg(short, long, default_value = "-")]
        output: PathBuf,
    },
}

/// Runs the subcommand.
pub fn run(command: Command) -> Result<ExitCode, Failure> {
    match command {
        Command::Info { file, json } => info(file.as_deref(), json),
        Command::Convert { input, output } => {
            let (trace, _) = Trace::read(&input).map_err(Failure::input)?;
            write(&trace, &output)
        }
        Command::Head { file, requests } => {
            let (mut trace, _) = read(file.as_deref())?;
            trace.requests.truncate(requests);
            write(&trace, Path::new("-"))
        }
        Command::Generate { requests, seed, group, output_median, output_max, prompt_median, output } => {
            let generator = Generator { requests, seed, group, output_median, output_max, prompt_median };
            let trace = generator.generate().map_err(|error| {
                Failure::input(format!(
                    "--{} is {}; it must be {}",
                    flag(error.parameter),
                    error.value,
                    error.expected
                ))
            })?;
            write(&trace, &output)
        }
    }?;
    Ok(ExitCode::SUCCESS)
}

/// Reads a trace, or takes the built-in one.
pub fn read(file: Option<&Path>) -> Result<(Trace, Option<Format>), Failure> {
    match file {
        None => Ok((Trace::built_in(), None)),
        Some(file) => {
            let (trace, format) = Trace::read(file).map_err(Failure::input)?;
            Ok((trace, Some(format)))
        }
    }
}

fn flag(parameter: &str) -> String {
    parameter.replace('_', "-")
}

fn write(trace: &Trace, path: &Path) -> Result<(), Failure> {
    let sink = Sink::open("trace", path)?;
    let mut text = Vec::new();
    trace.write(&mut text).map_err(Failure::input)?;
    sink.write(&String::from_utf8_lossy(&text))
}

fn info(file: Option<&Path>, json: bool) -> Result<(), Failure> {
    let (trace, format) = read(file)?;
    let summary = trace.summary();
    let format = format.map_or("built in".to_owned(), |format| format.to_string());
    if json {
        let value = json!({ "format": format, "source": trace.source, "summary": summary });
        return output::print_raw(&output::json(&value));
    }
    let lengths = |name, of: &doorbell_trace::Lengths| {
        format!("{name:<10}{} tokens; p50 {}, p99 {}, longest {}\n", of.total, of.p50, of.p99, of.max)
    };
    let shared = match summary.prefix_blocks {
        0 => "unknown".to_owned(),
        blocks => format!(
            "{blocks} blocks of {PREFIX_BLOCK_TOKENS} tokens, {} distinct ({:.1} % are repeats)",
            summary.distinct_prefix_blocks,
            100.0 * (blocks - summary.distinct_prefix_blocks) as f64 / blocks as f64
        ),
    };
    output::print(&format!(
        "format    {format}\nsource    {}\nrequests  {} over {:.1} s\n{}{}prefixes  {shared}\n",
        output::plain(&trace.source),
        summary.requests,
        summary.span_ms as f64 / 1000.0,
        lengths("prompts", &summary.prompt),
        lengths("answers", &summary.output),
    ))
}
