//! `doorbell model …`.

mod audit;
mod info;
mod judge;
mod program;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use doorbell_lm::Image;
use serde_json::json;

use crate::failure::Failure;
use crate::models;
use crate::output::{self, Output};

/// Language models: what engine 1 computes, in integers. A MODEL is a name (`doorbell model list`), an image, a GGUF file, or a
/// directory of Hugging Face with config.json, model.safetensors and tokenizer.json.
#[derive(clap::Subcommand)]
pub enum Command {
    /// List the models that have a name
    List {
        /// Print JSON instead of text
        #[arg(long)]
        json: bool,
    },
    /// Show what a model is made of
    Info {
        /// The model
        model: String,
        /// Print JSON instead of text
        #[arg(long)]
        json: bool,
    },
    /// Turn a published model into an image: integers, in the layout that devices read
    Import {
        /// A GGUF file, or a directory of Hugging Face
        source: PathBuf,
        /// The image to write
        #[arg(short, long, value_name = "FILE")]
        output: PathBuf,
        /// Print JSON instead of text
        #[arg(long)]
        json: bool,
    },
    /// Print the words that the NPU executes for each token of a model, and what its memory holds: docs/isa.md
    Program {
        /// The model
        model: String,
        /// Print JSON instead of text
        #[arg(long)]
        json: bool,
    },
    /// Hold a machine's claims to their arithmetic, and say how many tokens a second it could make at most: docs/npu.md
    Audit(audit::Args),
    /// Say how near a model's integers come to its published equations in 64-bit floating point
    Judge(judge::Args),
}

/// Runs the subcommand.
pub fn run(command: Command) -> Result<ExitCode, Failure> {
    match command {
        Command::List { json } => list(json),
        Command::Info { model, json } => info::run(&model, json),
        Command::Import { source, output, json } => import(&source, &output, json),
        Command::Program { model, json } => program::run(&model, json),
        Command::Audit(args) => return audit::run(&args),
        Command::Judge(args) => return judge::run(args),
    }?;
    Ok(ExitCode::SUCCESS)
}

fn list(as_json: bool) -> Result<(), Failure> {
    if as_json {
        let model = |models::Known { name, origin, missing }| json!({ "name": name, "from": origin, "missing": missing });
        let models: Vec<serde_json::Value> = models::known().into_iter().map(model).collect();
        return output::print_raw(&output::json(&json!({ "models": models })));
    }
    let mut table = output::table(["model", "from", "state"], 3);
    for models::Known { name, origin, missing } in models::known() {
        table.add_row([name.to_owned(), origin, missing.unwrap_or_else(|| "here".into())]);
    }
    output::print(&format!("{table}\n"))
}

fn import(source: &Path, output: &Path, as_json: bool) -> Result<(), Failure> {
    let file = Output::open("image", output)?;
    let image = models::published(&source.to_string_lossy())?.1;
    let bytes = image.to_bytes();
    // What no reader accepts is not written.
    Image::from_bytes(&bytes).map_err(|error| {
        Failure::input(format!("{}: the image cannot be read: {error}", source.display()))
    })?;
    file.write(&bytes)?;
    if as_json {
        let value = json!({ "file": output::path(output), "bytes": bytes.len(), "name": image.about.name });
        return output::print_raw(&output::json(&value));
    }
    output::print(&format!(
        "{}: {} bytes of {}\n",
        output.display(),
        bytes.len(),
        output::plain(&image.about.name)
    ))
}
