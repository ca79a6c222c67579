//! Draws waveforms as GTKWave's save files group them, without a display.

mod picture;
mod save;

use std::path::Path;

pub use save::{Base, Row, Save, Trace};

/// The PNG of `waveform` as `save` groups it; with `span` from the first of these times, in ns, to the second.
///
/// # Errors
/// A file that cannot be read, or a signal that the waveform does not have.
pub fn draw(save: &Save, waveform: &Path, span: Option<(u64, u64)>) -> Result<Vec<u8>, String> {
    let name = waveform.display();
    let mut read = wellen::simple::read(waveform).map_err(|error| format!("cannot read {name}: {error}"))?;
    let drawn = picture::draw(&mut read, save, span).map_err(|problem| format!("{name}: {problem}"))?;
    let problem = |error: png::EncodingError| format!("{name}: no picture can be made: {error}");
    let mut bytes = vec![];
    let mut encoder = png::Encoder::new(&mut bytes, drawn.width as u32, drawn.height as u32);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_compression(png::Compression::High);
    let mut writer = encoder.write_header().map_err(problem)?;
    writer.write_image_data(&drawn.pixels).map_err(problem)?;
    writer.finish().map_err(problem)?;
    Ok(bytes)
}
