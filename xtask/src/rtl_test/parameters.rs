//! Values of the modules' parameters: those that must elaborate, and those at which the elaboration must end.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::{RTL, Simulator};

/// What Icarus says of the constant that ends an elaboration.
const REFUSED: &str = "repeat may not be negative";

/// Module, parameter, values that are taken, values that are not.
const PARAMETERS: [(&str, &str, &[i32], &[i32]); 23] = [
    ("rl_runtime_top", "Queues", &[1, 3, 16], &[-1, 0, 17]),
    ("rl_runtime_top", "Functions", &[1, 5, 16], &[-1, 0, 17]),
    ("rl_runtime_top", "Workers", &[1, 3, 16], &[-1, 0, 17]),
    ("rl_runtime_top", "FetchDepth", &[2, 4096], &[0, 1, 3, 100, 8192]),
    ("rl_runtime_top", "CompletionDepth", &[8, 4096], &[0, 4, 12, 100, 8192]),
    ("rl_runtime_top", "Engines", &[1, 2], &[0, 3]),
    ("desc_ring", "FetchDepth", &[2], &[1, 100]),
    ("dispatcher", "Queues", &[1, 16], &[0, 17]),
    ("desc_fetch", "FetchDepth", &[2], &[1, 100]),
    ("completion_ring", "Depth", &[8], &[4, 12]),
    ("sync_fifo", "Depth", &[2, 64], &[0, 1, 3]),
    ("sync_fifo", "Width", &[1], &[0]),
    ("round_robin", "N", &[1], &[0]),
    ("place_quota", "Places", &[8, 9], &[7]),
    ("npu_top", "Gangs", &[1, 4], &[0, 5]),
    ("npu_top", "Contexts", &[1, 8], &[0, 9]),
    ("npu_gemv", "Contexts", &[1, 8], &[0, 9]),
    ("npu_chip", "Lines", &[1, 32768], &[0, 32769]),
    ("npu_gemv", "Lines", &[2, 1000], &[1, 1025]),
    ("npu_sequencer", "Lines", &[1, 32768], &[0, 32769]),
    ("npu_port", "Depth", &[16], &[8, 24]),
    ("npu_port", "Writes", &[2], &[1, 24]),
    ("npu_reader", "Pieces", &[2], &[1, 12]),
];

/// Elaborates the modules with each value.
///
/// # Errors
/// When a good value does not elaborate, or a bad one does.
pub(super) fn check(root: &Path, simulator: &Simulator) -> Result<()> {
    for (module, parameter, good, bad) in PARAMETERS {
        let values = good.iter().map(|value| (value, true)).chain(bad.iter().map(|value| (value, false)));
        for (value, expected) in values {
            let mut command = Command::new(&simulator.iverilog);
            command.args(["-g2012", "-t", "null", "-s", module, "-f", RTL]);
            command.arg(format!("-P{module}.{parameter}={value}")).current_dir(root);
            let output =
                command.output().with_context(|| format!("cannot run {}", simulator.iverilog.display()))?;
            let text = String::from_utf8_lossy(&output.stderr);
            match (output.status.success(), expected) {
                (true, false) => bail!("{module} elaborates with {parameter} = {value}"),
                (false, true) => bail!("{module} does not elaborate with {parameter} = {value}:\n{text}"),
                (false, false) if !text.contains(REFUSED) => {
                    bail!("{module} with {parameter} = {value} fails, but not by its check:\n{text}")
                }
                _ => {}
            }
        }
    }
    Ok(())
}
