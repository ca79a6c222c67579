//! `doorbell model audit`.

use std::path::Path;
use std::process::ExitCode;

use doorbell_lm::{Shape, image};
use doorbell_npu::audit::{Floors, Machine, Token, checks};
use doorbell_npu::compile;
use serde_json::json;

use crate::failure::Failure;
use crate::inputs;
use crate::models;
use crate::output;

/// Machines that need no file.
const MACHINES: [(&str, &str); 2] = [
    ("pccx-v002", include_str!("../../../machines/pccx-v002.toml")),
    ("doorbell", include_str!("../../../machines/doorbell.toml")),
];
/// The model that needs no image: its shape is enough.
const E4B: &str = "gemma-3n-e4b";
/// Tokens that share a pass over the weights.
const GANGS: [u64; 4] = [1, 2, 4, 8];

/// Says what a model asks of a machine, how many tokens a second the machine makes at most, and, where something is claimed of it, whether its own arithmetic bears
/// that: exit code 1 if one claim does not hold.
#[derive(clap::Args)]
pub struct Args {
    /// A name (`doorbell model list`), an image, a GGUF file or a directory of Hugging Face; gemma-3n-e4b is a shape without weights
    model: String,
    /// doorbell, pccx-v002, or a TOML file that describes a machine, as `cli/machines` has them
    #[arg(long, default_value = MACHINES[1].0)]
    machine: String,
    /// Positions up to the token's; by default those that the machine's claims name, or all of the model's
    #[arg(long, value_name = "N")]
    context: Option<u32>,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// Audits.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let machine = machine(&args.machine)?;
    let (shape, program) = model(&args.model)?;
    let most = shape.context as u32;
    let claimed = machine.claims.as_ref().map_or(most, |claims| claims.context.min(most));
    let context = args.context.unwrap_or(claimed);
    if context == 0 || context > most {
        return Err(Failure::input(format!("--context is {context}; it must be 1 to {most}, the model's")));
    }
    let token = Token::of(&shape, context.into());
    let floors = GANGS.map(|gang| (gang, Floors::of(&token, &machine, gang)));
    let checks =
        machine.claims.iter().flat_map(|claims| checks(&shape, &machine, claims)).collect::<Vec<_>>();
    let held = checks.iter().filter(|check| check.holds).count();
    let code = if held == checks.len() { ExitCode::SUCCESS } else { ExitCode::from(1) };
    if args.json {
        let floors = floors.map(|(gang, floors)| {
            json!({
                "gang": gang, "port_ps": floors.port as u64, "multipliers_ps": floors.multipliers as u64,
                "tokens_per_second": floors.tokens_per_second(),
            })
        });
        let checks: Vec<_> = checks
            .iter()
            .map(|check| json!({"claim": check.claim, "arithmetic": check.arithmetic, "holds": check.holds}))
            .collect();
        let value = json!({
            "model": args.model, "machine": machine.name, "context": context, "weights": token.weights,
            "kv_channels_kept": token.kept, "kv_channels_read": token.read, "program_lines": program, "floors": floors, "checks": checks,
        });
        output::print_raw(&output::json(&value))?;
        return Ok(code);
    }
    let mut text = format!(
        "{} on {}, {context} positions: {} weights a token, {} channels of keys and values kept for each position, {} read\n",
        output::plain(&args.model),
        output::plain(&machine.name),
        token.weights,
        token.kept,
        token.read
    );
    if let Some(lines) = program {
        text += &format!("its program takes {} bytes on chip for each sequence\n", lines * 64);
    }
    let mut table = output::table(
        ["one pass for", "ports, µs a token", "multipliers, µs", "longer", "tokens/s at most"],
        0,
    );
    for (gang, floors) in &floors {
        let micros = |picoseconds: u128| format!("{:.2}", picoseconds as f64 / 1e6);
        let longer = if floors.port >= floors.multipliers { "ports" } else { "multipliers" };
        table.add_row([
            gang.to_string(),
            micros(floors.port),
            micros(floors.multipliers),
            longer.to_owned(),
            format!("{:.2}", floors.tokens_per_second()),
        ]);
    }
    text += &format!("\n{table}\n");
    for (number, check) in (1..).zip(&checks) {
        let verdict = if check.holds { "holds" } else { "does not hold" };
        text += &format!("\n{number}. {}: {verdict}\n   {}\n", output::plain(&check.claim), check.arithmetic);
    }
    if !checks.is_empty() {
        text += &format!("\n{held} of {} claims hold\n", checks.len());
    }
    output::print(&text)?;
    Ok(code)
}

fn machine(name: &str) -> Result<Machine, Failure> {
    let built_in = MACHINES.iter().find(|(known, _)| *known == name).map(|(_, text)| (*text).to_owned());
    let text = match built_in {
        Some(text) => text,
        None => inputs::text("machine", Path::new(name)).map_err(|failure| {
            let [a, b] = MACHINES.map(|(name, _)| name);
            Failure::input(format!("{failure}; a machine is {a}, {b}, or a TOML file"))
        })?,
    };
    let machine: Machine = toml::from_str(&text)
        .map_err(|error| Failure::input(format!("{name}: {}", error.to_string().trim_end())))?;
    machine.check().map_err(|error| Failure::input(format!("{name}: {error}")))?;
    Ok(machine)
}

/// A model's shape, and the lines of on-chip memory that its program takes, where there are weights to compile it for.
fn model(name: &str) -> Result<(Shape, Option<u32>), Failure> {
    if name == E4B {
        return Ok((Shape::GEMMA_3N_E4B, None));
    }
    let bytes = models::image(name)?.to_bytes();
    let header = image::header(&bytes).map_err(Failure::input)?;
    let entries = image::entries(&bytes).map_err(Failure::input)?;
    let program = compile(&header.shape, header.epsilon, &entries, bytes.len() as u64).ok();
    Ok((header.shape, program.map(|program| program.lines())))
}
