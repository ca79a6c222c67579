//! Where models are: built in, in the cache, or a path.

use std::fs;
use std::path::{Path, PathBuf};

#[cfg(feature = "serve")]
use doorbell_checkpoint::import_update;
use doorbell_checkpoint::text::Text;
use doorbell_checkpoint::{IMPORTER, Imported, import};
use doorbell_devices::Kind;
#[cfg(feature = "serve")]
use doorbell_lm::Shape;
use doorbell_lm::sample::Sharpness;
use doorbell_lm::{
    FileError, Image, KvCap, MICRO_GLOBAL_ROPE_BASE, MICRO_ROPE_BASE, float, image, judge, micro,
    micro_gemma, quantise, tiny,
};
use doorbell_npu::Published;
use doorbell_npu::layout::CHIP_LINES;
use doorbell_setup::model::{SOURCES, Source, directory};
use doorbell_trace::Trace;
use doorbell_verify::language::Version;
use doorbell_verify::replay::Language;

use crate::busy::Busy;
use crate::failure::Failure;
use crate::output;

/// A cap on keys and values.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct CapArgs {
    /// Attend only to the first tokens and the last N, so that the keys and values of an answer stay bounded
    #[arg(long, value_name = "N")]
    pub kv_window: Option<usize>,
    /// First tokens that stay seen with --kv-window, a multiple of 32
    #[arg(long, value_name = "N", default_value_t = 32, requires = "kv_window")]
    pub kv_sinks: usize,
}

impl CapArgs {
    /// Refuses a cap where there is no model that it could be for.
    pub fn needs(self, model: Option<&str>) -> Result<(), Failure> {
        match (self.kv_window, model) {
            (Some(_), None) => Err(Failure::input("--kv-window is for a language model: give --model too")),
            _ => Ok(()),
        }
    }

    /// The model with that cap; as it is, if none is asked for.
    pub fn apply(self, mut image: Image) -> Result<Image, Failure> {
        if let Some(window) = self.kv_window {
            image.model.shape.kv_cap = Some(KvCap { window, sinks: self.kv_sinks });
            if let Some(problem) = image.model.shape.refusal() {
                return Err(Failure::input(format!(
                    "--kv-window {window}, --kv-sinks {}: {problem}",
                    self.kv_sinks
                )));
            }
        }
        Ok(image)
    }
}

/// The model of who names none.
pub const DEFAULT: &str = "tiny";

/// A model that needs no file, under its name.
type BuiltIn = (&'static str, fn() -> Image);

/// The models that need no file.
const BUILT_IN: [BuiltIn; 3] = [(DEFAULT, tiny), ("micro", micro), ("micro-gemma", micro_gemma)];

/// A model that needs no file.
fn built_in(name: &str) -> Option<Image> {
    BUILT_IN.iter().find(|(built_in, _)| *built_in == name).map(|(_, image)| image())
}

/// A model that `--model` can name.
pub struct Known {
    pub name: &'static str,
    /// Where it comes from.
    pub origin: String,
    /// Why it cannot be had yet, and what to do.
    pub missing: Option<String>,
}

/// All of them.
pub fn known() -> Vec<Known> {
    let built_in = BUILT_IN.map(|(name, _)| Known { name, origin: "built in".into(), missing: None });
    let fetched = SOURCES.map(|source| {
        let file = directory().map(|directory| source.file(&directory));
        let there = file.as_ref().is_some_and(|file| file.is_file());
        Known {
            name: source.name,
            origin: file.map_or_else(|| "PyPI".into(), |file| file.display().to_string()),
            missing: (!there).then(|| fetch(&source)),
        }
    });
    built_in.into_iter().chain(fetched).collect()
}

fn fetch(source: &Source) -> String {
    format!("`cargo xtask setup --model {}` fetches it", source.name)
}

fn file_failed(error: FileError) -> Failure {
    Failure::input(error)
}

/// The file of a model that was fetched.
#[cfg(feature = "bench")]
pub fn fetched(name: &str) -> Option<PathBuf> {
    let source = Source::named(name).ok()?;
    directory().map(|directory| source.file(&directory)).filter(|file| file.is_file())
}

/// Where a model lies that is not built in: a path, or a name of those that are fetched.
fn locate(model: &str) -> Result<(PathBuf, Option<PathBuf>), Failure> {
    let path = Path::new(model);
    if path.exists() {
        return Ok((path.into(), None));
    }
    let names = || known().iter().map(|known| known.name).collect::<Vec<_>>().join(", ");
    let unknown = || format!("there is no model {model}: give a path, or one of {}", names());
    let source = Source::named(model).map_err(|_| Failure::input(unknown()))?;
    let place = directory().ok_or_else(|| {
        Failure::input("there is no place where models are kept: set HOME or XDG_CACHE_HOME")
    })?;
    let file = source.file(&place);
    if !file.is_file() {
        return Err(Failure::input(format!("the model {model} is not here: {}", fetch(&source))));
    }
    let kept = file.with_file_name(format!("{model}-{IMPORTER}.image"));
    Ok((file, Some(kept)))
}

/// The image of a model: built in, read, or imported from what was published and kept beside it.
pub fn image(model: &str) -> Result<Image, Failure> {
    if let Some(image) = built_in(model) {
        return Ok(image);
    }
    let (path, kept) = locate(model)?;
    let _busy = Busy::new(format!("reading the model {model}"));
    if let Some(kept) = kept.as_ref().filter(|kept| newer(kept, &path)) {
        // One of another version of the format, or damaged, is made anew.
        if let Ok(image) = Image::read(kept) {
            return Ok(image);
        }
    }
    if path.is_file() && begins_as_image(&path) {
        return Image::read(&path).map_err(file_failed);
    }
    let image = imported(&path)?.1;
    if let Some(kept) = kept {
        // Best effort: without it the next start takes a few seconds longer.
        let _ = keep(&kept, &image);
        // Nobody reads what earlier importers made, the first of which had no number.
        let numbered = (1..IMPORTER).map(|importer| format!("{model}-{importer}.image"));
        for older in numbered.chain([format!("{model}.image")]) {
            let _ = fs::remove_file(kept.with_file_name(older));
        }
    }
    Ok(image)
}

/// A model as it was published, and the integers that it becomes.
pub fn published(model: &str) -> Result<(float::Model, Image), Failure> {
    if let Some(image) = built_in(model) {
        let global = image.model.gemma.as_ref().map(|_| MICRO_GLOBAL_ROPE_BASE);
        return Ok((judge::published(&image.model, MICRO_ROPE_BASE, global), image));
    }
    let (path, _) = locate(model)?;
    let _busy = Busy::new(format!("reading the model {model}"));
    if path.is_file() && begins_as_image(&path) {
        let problem = "it is an image, which holds no weights as they were published";
        return Err(Failure::input(format!("{}: {problem}; give what it was imported from", path.display())));
    }
    imported(&path)
}

/// Refuses a device whose on-chip memory the model's program does not fit: the NPU itself would stop at the first word beyond, as DMA_FAULT.
pub fn fits(model: &Published, kind: Kind) -> Result<(), Failure> {
    if kind != Kind::Rtl || model.lines <= CHIP_LINES {
        return Ok(());
    }
    let problem = format!(
        "the model takes {} lines of on-chip memory, and the NPU of {kind} has {CHIP_LINES}",
        model.lines
    );
    Err(Failure::input(format!("{problem}; give a smaller one, or another device")))
}

/// What `--temperature` asks for.
pub fn sharpness(temperature: f64) -> Result<Sharpness, Failure> {
    Sharpness::of(temperature).ok_or_else(|| {
        Failure::input(format!("--temperature is {temperature}; it must be 0, or 0.006 to 1000000"))
    })
}

/// A model as rollouts run it, at temperature 1, and as the oracle does.
pub fn language_of(image: Image) -> Result<Language, Failure> {
    let published = Published::new(image.to_bytes(), &image.about.ends).map_err(Failure::input)?;
    let version = Version { model: image.model, ends: image.about.ends };
    Ok(Language { published, version, sharpness: Sharpness::ONE })
}

/// The tokens of a prompt, for a model with this context: those of a chat, if it has a template and the text is not to be taken `raw`.
pub fn prompt(text: &Text, context: usize, prompt: &str, raw: bool) -> Result<Vec<u32>, Failure> {
    let tokens = match raw || !text.chats() {
        true => text.encode(prompt),
        false => text.chat(prompt).and_then(|chat| text.encode_chat(&chat)),
    };
    let tokens = tokens.map_err(Failure::input)?;
    match tokens.len() {
        0 => Err(Failure::input("the prompt is empty: give at least a letter")),
        many if many >= context => Err(Failure::input(format!(
            "the prompt has {many} tokens, and the model a context of {context}: give a shorter one"
        ))),
        _ => Ok(tokens),
    }
}

/// Reads weights that replace those of the served model: an image, or a model as it was published. They must have this shape and these end
/// tokens. A directory needs to hold only the weights if the served model is a directory too. The served model's cap applies to them.
#[cfg(feature = "serve")]
pub fn weights(
    path: &Path,
    served: &Path,
    shape: Shape,
    cap: CapArgs,
    ends: &[u32],
    kind: Kind,
) -> Result<Published, Failure> {
    if !path.exists() {
        return Err(Failure::input(format!(
            "there is nothing at {}; give a directory of weights",
            path.display()
        )));
    }
    let image = match path.is_file() && begins_as_image(path) {
        true => Image::read(path).map_err(file_failed)?,
        false => {
            let other = Some(served).filter(|served| served.is_dir());
            whole(path, import_update(path, other, &shape).map_err(file_failed)?)?.1
        }
    };
    let image = cap.apply(image)?;
    if image.model.shape != shape || image.about.ends != ends {
        return Err(Failure::input(format!(
            "{}: the model has another shape, or other end tokens, than the one that is served; start a server for it",
            path.display()
        )));
    }
    let weights = Published::new(image.to_bytes(), ends).map_err(Failure::input)?;
    fits(&weights, kind)?;
    Ok(weights)
}

/// Shortens the built-in trace, whose requests are longer than small models take.
pub fn fit(trace: &mut Trace, context: u32) {
    let most = (context / 8).max(1);
    for request in &mut trace.requests {
        request.prompt_tokens = 1 + request.prompt_tokens % most;
        request.output_tokens = request.output_tokens.min(most);
    }
}

fn imported(path: &Path) -> Result<(float::Model, Image), Failure> {
    whole(path, import(path).map_err(file_failed)?)
}

/// Quantises an imported model, checks that its tokeniser works, and prints the notes of the import.
fn whole(path: &Path, imported: Imported) -> Result<(float::Model, Image), Failure> {
    let model = quantise(&imported.model)
        .map_err(|error| Failure::input(format!("{}: {error}; give another model", path.display())))?;
    // What no text can be had with is refused here, and not by the first prompt.
    let text = Text::new(&imported.about, model.shape.vocabulary)
        .and_then(Text::tried)
        .map_err(|error| Failure::input(format!("{}: {error}", path.display())))?;
    for note in imported.notes.into_iter().chain(text.notes()) {
        output::note(format_args!("{}: {}", path.display(), output::plain(&note)));
    }
    Ok((imported.model, Image { model, about: imported.about }))
}

fn newer(file: &Path, than: &Path) -> bool {
    let modified = |path: &Path| fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
    modified(file).zip(modified(than)).is_some_and(|(file, than)| file > than)
}

fn begins_as_image(path: &Path) -> bool {
    use std::io::Read;
    let mut first = vec![];
    let read = fs::File::open(path).and_then(|file| file.take(64).read_to_end(&mut first));
    read.is_ok() && image::is_image(&first)
}

/// Whole, or not at all.
fn keep(path: &Path, image: &Image) -> std::io::Result<()> {
    let work = path.with_extension(format!("{}", std::process::id()));
    fs::write(&work, image.to_bytes()).and_then(|()| fs::rename(&work, path)).inspect_err(|_| {
        let _ = fs::remove_file(&work);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_beyond_the_rtls_lines_is_refused() {
        for (name, image) in BUILT_IN {
            let model = language_of(image()).unwrap().published;
            assert!(fits(&model, Kind::Rtl).is_ok(), "{name} takes {} lines", model.lines);
        }
        let mut model = language_of(micro_gemma()).unwrap().published;
        model.lines = CHIP_LINES;
        assert!(fits(&model, Kind::Rtl).is_ok());
        model.lines += 1;
        let refused = fits(&model, Kind::Rtl).unwrap_err().to_string();
        assert!(refused.contains("1025 lines of on-chip memory, and the NPU of rtl has 1024"), "{refused}");
        assert!(fits(&model, Kind::Model).is_ok() && fits(&model, Kind::Gpu).is_ok());
    }
}
