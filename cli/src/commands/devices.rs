//! `doorbell devices`.

use std::process::ExitCode;

use doorbell_devices::Kind;

use crate::failure::Failure;
use crate::output;

/// Prints a line per device.
pub fn run() -> Result<ExitCode, Failure> {
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
