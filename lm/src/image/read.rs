//! From the bytes of an image to a model. Nothing of them is believed: the layout follows from the shape, and what could make a sum
//! overflow is refused.

use super::Image;
use super::layout::{ENTRY, Entry, Form, HEADER, KV_CAP, Kind, MAGIC, VERSION, layout, length};
use crate::about::About;
use crate::file::FileError;
use crate::ops::LARGEST_SUM;
use crate::quantise::LARGEST_EXPONENT;
use crate::shape::{Gemma, KvCap, STREAMS, Shape};
use crate::tables::Rope;
use crate::weights::{Gain, GemmaLayer, GemmaParts, KeyValue, Layer, Matrix, Model};

const AGAIN: &str = "import the model again";

fn wrong(place: &str, problem: String) -> FileError {
    FileError::new(place, problem, AGAIN)
}

/// What a file says of itself ahead of its directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What it is made of.
    pub shape: Shape,
    /// Added to the mean square of what is normalised, with 20 fraction bits.
    pub epsilon: u32,
    /// CRC-32C of all that stands behind it.
    pub check: u32,
    /// Bytes of the file.
    pub length: u64,
    entries: u32,
}

/// Whether a file that begins so is meant to be an image.
pub fn is_image(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC)
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// What Gemma 3N's shape has besides, which the other's has as zeros; `own` are the layers with keys and values of their own.
fn gemma(bytes: &[u8], own: usize) -> Option<Gemma> {
    let words = [0, 1, 2, 3, 4].map(|index| word(bytes, 64 + 4 * index) as usize);
    let [embedding, laurel, window, global, cut] = words;
    (own != 0 || words != [0; 5]).then_some(Gemma { embedding, laurel, window, global, own, cut })
}

/// The cap on keys and values, which images without one have as zeros.
fn kv_cap(bytes: &[u8]) -> Option<KvCap> {
    let [window, sinks] = [0, 4].map(|at| word(bytes, KV_CAP + at) as usize);
    (window != 0 || sinks != 0).then_some(KvCap { window, sinks })
}

/// The header, from the first 128 bytes at least.
///
/// # Errors
/// If it is none, of another version, or of a shape that no device runs.
pub fn header(bytes: &[u8]) -> Result<Header, FileError> {
    if bytes.len() < HEADER {
        return Err(wrong("", format!("it has {} bytes, and an image at least {HEADER}", bytes.len())));
    }
    if !is_image(bytes) {
        let problem = "it is no image of a model: it begins with other bytes".to_owned();
        return Err(FileError::new("", problem, "make one with `doorbell model import`"));
    }
    let version = word(bytes, 8);
    if version != VERSION {
        let problem = format!("it is of version {version}, this program reads version {VERSION}");
        return Err(wrong("", problem));
    }
    let at = |index: usize| word(bytes, 24 + 4 * index) as usize;
    let shape = Shape {
        width: at(0),
        layers: at(1) & 0xFFFF,
        heads: at(2),
        kv_heads: at(3),
        head_width: at(4),
        hidden: at(5),
        vocabulary: at(6),
        context: at(7),
        gemma: gemma(bytes, at(1) >> 16),
        kv_cap: kv_cap(bytes),
    };
    if let Some(problem) = shape.refusal() {
        return Err(wrong("header", problem));
    }
    let header = Header {
        shape,
        epsilon: at(8) as u32,
        check: word(bytes, 12),
        length: long(bytes, 16),
        entries: at(9) as u32,
    };
    if header.epsilon >= 1 << 20 {
        return Err(wrong("header", format!("epsilon is {}, expected less than 1048576", header.epsilon)));
    }
    Ok(header)
}

/// The directory, of a whole file: where a device finds what.
///
/// # Errors
/// As [`Image::from_bytes`], but for what the weights themselves could do.
pub fn entries(bytes: &[u8]) -> Result<Vec<Entry>, FileError> {
    let header = header(bytes)?;
    if header.length != bytes.len() as u64 {
        let problem = format!("it has {} bytes, and says that it has {}", bytes.len(), header.length);
        return Err(wrong("", problem));
    }
    let check = crc32c::crc32c(&bytes[16..]);
    if check != header.check {
        let problem = format!("its check is {check:08x}, and it says {:08x}: it is damaged", header.check);
        return Err(wrong("", problem));
    }
    // The lengths of the texts are all that the layout takes from the directory: those are its first two entries.
    if bytes.len() < HEADER + 2 * ENTRY {
        return Err(wrong("directory", "the file ends in it".into()));
    }
    let texts = [0, 1].map(|index| word(bytes, HEADER + ENTRY * index + 12));
    let mut expected = layout(&header.shape, texts[0], texts[1]);
    if expected.len() != header.entries as usize || length(&expected) != header.length {
        let problem = format!("its shape takes {} entries and {} bytes", expected.len(), length(&expected));
        return Err(wrong("directory", problem));
    }
    for (index, entry) in expected.iter_mut().enumerate() {
        let held = &bytes[HEADER + ENTRY * index..][..ENTRY];
        entry.exponent = word(held, 4) as i32;
        let same = held[..2] == (entry.kind as u16).to_le_bytes()
            && held[2..4] == entry.layer.to_le_bytes()
            && [word(held, 8), word(held, 12)] == [entry.rows, entry.columns]
            && [long(held, 16), long(held, 24)] == [entry.offset, entry.bytes];
        if !same {
            return Err(wrong("directory", format!("entry {index} is not the one that its shape takes")));
        }
        let (most, kinds) = match entry.kind.form() {
            Form::Matrix | Form::Gain => (LARGEST_EXPONENT, "a matrix or a gain"),
            Form::Rope | Form::Text => (0, "rotations or a text"),
        };
        if !(-most..=most).contains(&entry.exponent) {
            let (kind, exponent) = (entry.kind, entry.exponent);
            let expected = if most == 0 { "0".to_owned() } else { format!("-{most} to {most}") };
            let problem = format!(
                "entry {index}, {kind:?} of {}: its exponent is {exponent}, expected {expected} for {kinds}",
                entry.layer
            );
            return Err(wrong("directory", problem));
        }
    }
    unused(bytes, &header.shape, &expected)?;
    Ok(expected)
}

/// Refuses bytes that stand for nothing and are not 0: a later version may give them a meaning.
fn unused(bytes: &[u8], shape: &Shape, entries: &[Entry]) -> Result<(), FileError> {
    let directory = HEADER + ENTRY * entries.len();
    let mut gaps: Vec<std::ops::Range<usize>> = vec![];
    if shape.gemma.is_none() {
        gaps.push(64..KV_CAP);
    }
    gaps.push(KV_CAP + 8..HEADER);
    let mut end = directory;
    for entry in entries {
        gaps.push(end..entry.offset as usize);
        end = (entry.offset + entry.bytes) as usize;
    }
    gaps.push(end..bytes.len());
    for gap in gaps {
        let start = gap.start;
        if let Some(at) = bytes[gap].iter().position(|&byte| byte != 0) {
            let at = start + at;
            let problem = format!("byte {at} is {}, expected 0, as it stands for nothing", bytes[at]);
            return Err(wrong("", problem));
        }
    }
    Ok(())
}

/// The whole model.
pub(super) fn read(bytes: &[u8]) -> Result<Image, FileError> {
    let header = header(bytes)?;
    let entries = entries(bytes)?;
    let reader = Reader { bytes, entries: &entries };
    let mut about = about(reader.text(Kind::About)?)?;
    about.tokenizer = reader.text(Kind::Tokenizer)?.to_owned();
    let layer = |number: usize| {
        let is_gemma = header.shape.gemma.is_some();
        let key_value = |_| {
            Ok::<_, FileError>(KeyValue {
                key: reader.matrix(Kind::Key, number)?,
                value: reader.matrix(Kind::Value, number)?,
                gains: is_gemma
                    .then(|| [Kind::KeyGain, Kind::ValueGain].map(|kind| reader.gain(kind, number))),
            })
        };
        let gemma = |_| {
            Ok::<_, FileError>(Box::new(GemmaLayer {
                router_gain: reader.gain(Kind::RouterGain, number),
                router: reader.matrix(Kind::Router, number)?,
                predict: reader.matrix(Kind::Predict, number)?,
                correct: reader.matrix(Kind::Correct, number)?,
                query_gain: reader.gain(Kind::QueryGain, number),
                output_gain: reader.gain(Kind::OutputGain, number),
                left: reader.matrix(Kind::Left, number)?,
                right: reader.matrix(Kind::Right, number)?,
                laurel_gain: reader.gain(Kind::LaurelGain, number),
                down_gain: reader.gain(Kind::DownGain, number),
                embedding: reader.matrix(Kind::Embedding, number)?,
                projection: reader.matrix(Kind::Projection, number)?,
                projection_gain: reader.gain(Kind::ProjectionGain, number),
                embedding_gate: reader.matrix(Kind::EmbeddingGate, number)?,
                embedding_output: reader.matrix(Kind::EmbeddingOutput, number)?,
                embedding_gain: reader.gain(Kind::EmbeddingGain, number),
            }))
        };
        Ok(Layer {
            attention_gain: reader.gain(Kind::AttentionGain, number),
            query: reader.matrix(Kind::Query, number)?,
            key_value: (number < header.shape.kv_layers()).then_some(()).map(key_value).transpose()?,
            output: reader.matrix(Kind::Output, number)?,
            hidden_gain: reader.gain(Kind::HiddenGain, number),
            gate: reader.matrix(Kind::Gate, number)?,
            up: reader.matrix(Kind::Up, number)?,
            down: reader.matrix(Kind::Down, number)?,
            gemma: is_gemma.then_some(()).map(gemma).transpose()?,
        })
    };
    let streams = |kind: Kind| -> Result<[Matrix; STREAMS - 1], FileError> {
        let [a, b, c] = [1, 2, 3].map(|stream| reader.matrix(kind, stream));
        Ok([a?, b?, c?])
    };
    let gemma = |_| {
        Ok::<_, FileError>(Box::new(GemmaParts {
            global_rope: reader.rope(Kind::GlobalRope)?,
            split: streams(Kind::Split)?,
            merge: streams(Kind::Merge)?,
        }))
    };
    let model = Model {
        shape: header.shape,
        epsilon: header.epsilon,
        tokens: reader.matrix(Kind::Tokens, 0)?,
        layers: (0..header.shape.layers).map(layer).collect::<Result<_, FileError>>()?,
        last_gain: reader.gain(Kind::LastGain, 0),
        rope: reader.rope(Kind::Rope)?,
        gemma: header.shape.gemma.map(gemma).transpose()?,
    };
    Ok(Image { model, about })
}

struct Reader<'b> {
    bytes: &'b [u8],
    entries: &'b [Entry],
}

impl<'b> Reader<'b> {
    fn entry(&self, kind: Kind, layer: usize) -> (&Entry, &'b [u8]) {
        let found = self.entries.iter().find(|entry| entry.kind == kind && usize::from(entry.layer) == layer);
        let entry = found.expect("the layout has every part of every layer");
        (entry, &self.bytes[entry.offset as usize..][..entry.bytes as usize])
    }

    fn text(&self, kind: Kind) -> Result<&'b str, FileError> {
        let (_, bytes) = self.entry(kind, 0);
        std::str::from_utf8(bytes)
            .map_err(|error| wrong(&format!("{kind:?}"), format!("not a text: {error}")))
    }

    fn words(bytes: &[u8]) -> impl Iterator<Item = u16> {
        bytes.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]]))
    }

    fn gain(&self, kind: Kind, layer: usize) -> Gain {
        let (entry, bytes) = self.entry(kind, layer);
        debug_assert_eq!(kind.form(), Form::Gain);
        Gain { factors: Self::words(bytes).map(|word| word as i16).collect(), exponent: entry.exponent }
    }

    fn matrix(&self, kind: Kind, layer: usize) -> Result<Matrix, FileError> {
        let (entry, bytes) = self.entry(kind, layer);
        let (columns, stride) = (entry.columns as usize, entry.stride() as usize);
        let (rows, scales) = bytes.split_at(entry.rows as usize * stride);
        let mut weights = Vec::with_capacity(entry.rows as usize * columns);
        let refused = |row: usize, problem: String| {
            let place = match kind {
                Kind::Tokens => format!("{kind:?}, row {row}"),
                Kind::Split | Kind::Merge => format!("{kind:?} of stream {layer}, row {row}"),
                kind => format!("layer {layer}, {kind:?}, row {row}"),
            };
            Err(wrong(&place, problem))
        };
        for (number, row) in rows.chunks_exact(stride).enumerate() {
            let (row, padding) = row.split_at(columns);
            let sum: u64 = row.iter().map(|&weight| u64::from((weight as i8).unsigned_abs())).sum();
            if sum > LARGEST_SUM {
                let problem = format!(
                    "its weights add up to {sum} without their signs, at most {LARGEST_SUM} can be had"
                );
                return refused(number, problem);
            }
            if row.contains(&0x80) || padding.iter().any(|&byte| byte != 0) {
                return refused(number, "a weight is -128, or what fills the row up is not 0".into());
            }
            weights.extend(row.iter().map(|&weight| weight as i8));
        }
        let rows: Vec<u16> = Self::words(scales).collect();
        match rows.iter().position(|&scale| scale == 0) {
            Some(row) => refused(row, "its scale is 0".into()),
            None => Ok(Matrix { columns, weights, rows, exponent: entry.exponent }),
        }
    }

    fn rope(&self, kind: Kind) -> Result<Rope, FileError> {
        let (entry, bytes) = self.entry(kind, 0);
        let words: Vec<i16> = Self::words(bytes).map(|word| word as i16).collect();
        if words.iter().any(|part| !(-16_384..=16_384).contains(part)) {
            return Err(wrong(&format!("{kind:?}"), "a cosine or a sine is beyond 1".into()));
        }
        let turns = words.chunks_exact(2).map(|pair| [pair[0], pair[1]]).collect();
        Ok(Rope::new(entry.columns as usize, turns))
    }
}

fn about(text: &str) -> Result<About, FileError> {
    let value: serde_json::Value =
        serde_json::from_str(text).map_err(|error| wrong("About", format!("not JSON: {error}")))?;
    let text = |key: &str| value[key].as_str().unwrap_or_default().to_owned();
    let token = |value: &serde_json::Value| value.as_u64().and_then(|token| u32::try_from(token).ok());
    Ok(About {
        name: text("name"),
        licence: text("licence"),
        tokenizer: String::new(),
        chat: text("chat"),
        chat_tools: text("chat_tools"),
        ends: value["ends"].as_array().into_iter().flatten().filter_map(token).collect(),
        begin: token(&value["begin"]),
        special: value["special"].as_object().map(|special| {
            let texts =
                special.iter().filter_map(|(name, text)| Some((name.clone(), text.as_str()?.to_owned())));
            texts.collect()
        }),
    })
}
