//! `doorbell devices`.

use std::process::ExitCode;

use doorbell_devices::Kind;
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::output;

/// Lists the devices that `--device` and `--devices` can name.
#[derive(clap::Args)]
pub struct Args {
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// Prints a line per device.
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    if args.json {
        let device = |kind: Kind| json!({ "name": kind.name(), "about": kind.description(), "missing": kind.missing() });
        let devices: Vec<Value> = Kind::ALL.map(device).into();
        output::print_raw(&output::json(&json!({ "devices": devices })))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = String::new();
    for kind in Kind::ALL {
        let state = match kind.missing() {
            None => "available".to_owned(),
            Some(reason) => format!("not available: {reason}"),
        };
        text += &format!("{:<6} {}; {state}\n", kind.name(), kind.description());
    }
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}
