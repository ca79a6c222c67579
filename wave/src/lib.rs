//! Draws waveforms as GTKWave's save files group them, without a display.

mod picture;
mod save;

use std::path::Path;

pub use save::{Base, Row, Save, Trace, files};

/// The signals of the instance `scope` in `waveform`, by their full names, as GTKWave's save files have them; none where there is no
/// such instance.
///
/// # Errors
/// A file that cannot be read.
pub fn signals(waveform: &Path, scope: &str) -> Result<Vec<String>, String> {
    let read = read(waveform)?;
    let hierarchy = read.hierarchy();
    let name = |var: &wellen::Var| {
        let name = var.full_name(hierarchy);
        below(&name, scope)?;
        let range = var.index().filter(|index| index.length() > 1);
        Some(range.map_or_else(|| name.clone(), |range| format!("{name}[{}:{}]", range.msb(), range.lsb())))
    };
    Ok(hierarchy.iter_vars().filter_map(name).collect())
}

/// The instances in the instance `scope` in `waveform`, by their names there.
///
/// # Errors
/// A file that cannot be read.
pub fn instances(waveform: &Path, scope: &str) -> Result<Vec<String>, String> {
    let read = read(waveform)?;
    let hierarchy = read.hierarchy();
    let name = |instance: &wellen::Scope| below(&instance.full_name(hierarchy), scope).map(str::to_owned);
    Ok(hierarchy.iter_scopes().filter_map(name).collect())
}

/// What lies directly in `scope`, by its name there.
fn below<'n>(name: &'n str, scope: &str) -> Option<&'n str> {
    name.strip_prefix(scope)?.strip_prefix('.').filter(|rest| !rest.contains('.'))
}

fn read(waveform: &Path) -> Result<wellen::simple::Waveform, String> {
    wellen::simple::read(waveform).map_err(|error| format!("cannot read {}: {error}", waveform.display()))
}

/// The PNG of `waveform` as `save` groups it; with `span` from the first of these times, in ns, to the second.
///
/// # Errors
/// A file that cannot be read, or a signal that the waveform does not have.
pub fn draw(save: &Save, waveform: &Path, span: Option<(u64, u64)>) -> Result<Vec<u8>, String> {
    let name = waveform.display();
    let mut read = read(waveform)?;
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
