//! `doorbell-wave SAVE WAVEFORM PNG [FROM TO]`: draws a waveform as GTKWave's save file groups it, from one time in ns to another. `cargo xtask wave --png` runs it.
//! Filters that the save file names lie relative to the current directory.

mod picture;
mod save;

use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::process::ExitCode;

use save::Save;

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
    let parsed = Save::parse(&text, Path::new(".")).map_err(|problem| format!("{save}: {problem}"))?;
    let mut read =
        wellen::simple::read(waveform).map_err(|error| format!("cannot read {waveform}: {error}"))?;
    let drawn =
        picture::draw(&mut read, &parsed, span).map_err(|problem| format!("{waveform}: {problem}"))?;
    let problem = |error: png::EncodingError| format!("cannot write {png}: {error}");
    let file = File::create(png).map_err(|error| format!("cannot write {png}: {error}"))?;
    let mut encoder = png::Encoder::new(BufWriter::new(file), drawn.width as u32, drawn.height as u32);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_compression(png::Compression::High);
    let mut writer = encoder.write_header().map_err(problem)?;
    writer.write_image_data(&drawn.pixels).map_err(problem)?;
    writer.finish().map_err(problem)
}
