//! Draws waveforms as GTKWave's save files group them, without a display.

mod picture;
mod save;

use std::fs::File;
use std::io::BufWriter;
use std::path::Path;

pub use save::{Base, Row, Save, Trace};

/// Draws `waveform` as `save` groups it into the PNG file `picture`; with `span` from the first of these times, in ns, to the second.
///
/// # Errors
/// A file that cannot be read or written, or a signal that the waveform does not have.
pub fn draw(save: &Save, waveform: &Path, picture: &Path, span: Option<(u64, u64)>) -> Result<(), String> {
    let name = waveform.display();
    let mut read = wellen::simple::read(waveform).map_err(|error| format!("cannot read {name}: {error}"))?;
    let drawn = picture::draw(&mut read, save, span).map_err(|problem| format!("{name}: {problem}"))?;
    let name = picture.display();
    let problem = |error: png::EncodingError| format!("cannot write {name}: {error}");
    let file = File::create(picture).map_err(|error| format!("cannot write {name}: {error}"))?;
    let mut encoder = png::Encoder::new(BufWriter::new(file), drawn.width as u32, drawn.height as u32);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_compression(png::Compression::High);
    let mut writer = encoder.write_header().map_err(problem)?;
    writer.write_image_data(&drawn.pixels).map_err(problem)?;
    writer.finish().map_err(problem)
}
