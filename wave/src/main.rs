//! `doorbell-wave SAVE WAVEFORM PNG [FROM TO]`: draws a waveform as GTKWave's save file groups it, from one time in ns to another. `doorbell wave --png` does the same for what it records.
//! Filters that the save file names lie relative to the current directory.

use std::path::Path;
use std::process::ExitCode;

use doorbell_wave::{Save, files};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let span = |from: &str, to: &str| Some((from.parse::<u64>().ok()?, to.parse::<u64>().ok()?));
    let asked = match &arguments[..] {
        [save, waveform, png] => Some((save, waveform, png, None)),
        [save, waveform, png, from, to] => {
            span(from, to).filter(|(from, to)| from < to).map(|span| (save, waveform, png, Some(span)))
        }
        _ => None,
    };
    let Some((save, waveform, png, span)) = asked else {
        eprintln!("usage: doorbell-wave SAVE WAVEFORM PNG [FROM TO], times in ns, FROM before TO");
        return ExitCode::from(2);
    };
    match draw(save, waveform, png, span) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("error: {problem}");
            ExitCode::FAILURE
        }
    }
}

fn draw(save: &str, waveform: &str, png: &str, span: Option<(u64, u64)>) -> Result<(), String> {
    let text = std::fs::read_to_string(save).map_err(|error| format!("cannot read {save}: {error}"))?;
    let save = Save::parse(&text, &files(Path::new("."))).map_err(|problem| format!("{save}: {problem}"))?;
    let picture = doorbell_wave::draw(&save, Path::new(waveform), span)?;
    std::fs::write(png, picture).map_err(|error| format!("cannot write {png}: {error}"))
}
