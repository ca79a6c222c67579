//! From the shape of a model, and where its image has what, to a program and a memory map.
//!
//! A program is a step of one token. It is a loop over the layers, not each layer written out: some fifty words do for any number of layers, and a
//! person reads them. What differs between layers, where their weights lie and the exponents of those, stands in a table behind
//! the image, some MEMSETs for each layer, which `layers` and `next` execute.

mod gemma;
mod llama;

use doorbell_lm::Shape;
use doorbell_lm::image::{Entry, Kind};
use thiserror::Error;

use crate::isa::Form;
use crate::layout::{self, Block, LINE};

/// Why there is no program for a model.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum CompileError {
    /// The shape is none that devices run.
    #[error("{0}")]
    Shape(String),
    /// The image lacks a part, or it is of another size.
    #[error("{kind:?} of layer {layer} is not in the image as its shape says")]
    Part {
        /// Which part.
        kind: Kind,
        /// Of which layer.
        layer: u16,
    },
    /// A number that no field of a word holds.
    #[error("{what} is {value}, and words hold {most} at most")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// How large it is.
        value: u64,
        /// How large it may be.
        most: u64,
    },
    /// Rows that are no M · N of 16 bits each.
    #[error("{what} is {value}, which is no product of two numbers of 16 bits")]
    Rows {
        /// What has as many.
        what: &'static str,
        /// How many.
        value: u64,
    },
}

/// Some lines of a context's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// What lies there.
    pub name: &'static str,
    /// First line.
    pub start: u32,
    /// How many.
    pub lines: u32,
}

/// A program, and where it expects what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Words of the program.
    pub words: Vec<u64>,
    /// Words of each layer, MEMSETs alone.
    pub layers: Vec<Vec<u64>>,
    /// Byte of the model's memory at which the layers' words are expected, a record of whole lines for each.
    pub table: u64,
    /// Byte of the model's memory at which the program itself stands.
    pub start: u64,
    /// On-chip memory.
    pub map: Vec<Part>,
    /// Bytes of a block: keys and values of 32 tokens in all layers that have their own.
    pub block: u64,
}

impl Program {
    /// Lines of on-chip memory that a context needs.
    pub fn lines(&self) -> u32 {
        self.map.last().map_or(0, |part| part.start + part.lines)
    }

    /// The model's memory: the image, the layers' words behind it, and the program behind those.
    ///
    /// # Panics
    /// If the image is not as long as the one that was compiled.
    pub fn memory(&self, mut image: Vec<u8>) -> Vec<u8> {
        image.resize(image.len().next_multiple_of(LINE), 0);
        assert_eq!(image.len() as u64, self.table, "the program is not of this image");
        for words in self.layers.iter().chain([&self.words]) {
            image.extend(layout::whole(words.iter().flat_map(|word| word.to_le_bytes()).collect()));
        }
        image
    }
}

/// The words, one by one.
#[derive(Debug, Default)]
struct Words(Vec<u64>);

impl Words {
    fn add(&mut self, mnemonic: &str, fields: &[(&str, u64)]) {
        let form = Form::named(mnemonic).unwrap_or_else(|| panic!("there is no {mnemonic}"));
        self.0.push(form.word(fields));
    }

    fn shape(&mut self, mnemonic: &str, index: u64, [m, n, k]: [u64; 3]) {
        self.add(mnemonic, &[("index", index), ("m", m), ("n", n), ("k", k)]);
    }

    fn descriptor(&mut self, index: u64, byte: u64, aux: i16) {
        let base = byte / LINE as u64;
        self.add("memset.desc", &[("index", index), ("base", base), ("aux", aux as u16 as u64)]);
    }

    /// A gain's.
    fn gain(&mut self, index: u64, entry: &Entry) {
        self.descriptor(index, entry.offset, entry.exponent as i16);
    }

    /// A table's of rotations, which have as many lines each.
    fn rope(&mut self, index: u64, entry: &Entry, lines: u64) {
        self.descriptor(index, entry.offset, lines as i16);
    }

    /// A matrix's: its scales lie behind its rows.
    fn matrix(&mut self, index: u64, entry: &Entry) {
        self.descriptor(index, entry.offset, entry.exponent as i16);
        self.descriptor(index + 1, entry.offset + u64::from(entry.rows) * entry.stride(), 0);
    }

    fn gemv(&mut self, dst: Part, src: Part, matrix: u64, shape: u64, flags: &[&str]) {
        let fields =
            [("dest", words(dst)), ("src", words(src)), ("desc", matrix), ("shape", shape), ("scale", 1)];
        let flags = flags.iter().map(|&flag| (flag, 1));
        self.add("gemv", &fields.into_iter().chain(flags).collect::<Vec<_>>());
    }

    fn vector(&mut self, mnemonic: &str, dst: Part, a: Part, b: Option<Part>, shape: u64) {
        let b = b.map(|part| ("b", part.start.into()));
        let fields = [("dst", dst.start.into()), ("a", a.start.into()), ("shape", shape)];
        self.add(mnemonic, &fields.into_iter().chain(b).collect::<Vec<_>>());
    }

    fn set(&mut self, register: &str, value: u64) {
        self.add(register, &[("value", value)]);
    }

    /// The same ahead of each layer: as many words as each of `layers` has, through a descriptor.
    fn layers(&mut self, layers: &[Vec<u64>], descriptor: u64) {
        let words = layers.first().map_or(0, Vec::len) as u64;
        self.add("layers", &[("count", layers.len() as u64), ("words", words), ("desc", descriptor)]);
    }

    /// Stored keys and values to their place.
    fn append(&mut self, stored: Part, descriptor: u64, shape: u64) {
        let fields = [("src", words(stored)), ("desc", descriptor), ("shape", shape), ("async", 1)];
        self.add("memcpy.kv", &fields);
    }

    fn attend(&mut self, dst: Part, src: Part, shape: u64, descriptor: u64, flags: &[&str]) {
        let [dst, src] = [dst, src].map(|part| u64::from(part.start));
        let fields = [("dst", dst), ("src", src), ("shape", shape), ("desc", descriptor)];
        let flags = flags.iter().map(|&flag| (flag, 1));
        self.add("attn", &fields.into_iter().chain(flags).collect::<Vec<_>>());
    }

    /// All rows at once.
    fn head(&mut self, src: Part, descriptor: u64, shape: u64, flags: &[&str]) {
        let fields = [("src", src.start.into()), ("desc", descriptor), ("shape", shape)];
        let flags = ["first", "last"].iter().chain(flags).map(|&flag| (flag, 1));
        self.add("head", &fields.into_iter().chain(flags).collect::<Vec<_>>());
    }

    /// Nothing waits for a copy: the scoreboard holds back what needs it.
    fn copy(&mut self, kind: &str, dst: Part, descriptor: u64, shape: u64) {
        self.add(kind, &[("dest", words(dst)), ("desc", descriptor), ("shape", shape), ("async", 1)]);
    }
}

fn words(part: Part) -> u64 {
    u64::from(part.start) * u64::from(layout::LINE_WORDS)
}

/// What of an image a program needs to know.
struct Parts<'e>(&'e [Entry]);

impl Parts<'_> {
    fn get(&self, kind: Kind, layer: u16, rows: usize, columns: usize) -> Result<&Entry, CompileError> {
        let found = self.0.iter().find(|entry| entry.kind == kind && entry.layer == layer);
        let entry = found.ok_or(CompileError::Part { kind, layer })?;
        let sound = entry.rows as usize == rows
            && entry.columns as usize == columns
            && entry.offset % LINE as u64 == 0
            && i8::try_from(entry.exponent).is_ok();
        if !sound {
            return Err(CompileError::Part { kind, layer });
        }
        fits("offset in lines", (entry.offset + entry.bytes) / LINE as u64, u32::MAX.into())?;
        Ok(entry)
    }
}

fn fits(what: &'static str, value: u64, most: u64) -> Result<u64, CompileError> {
    if value > most { Err(CompileError::TooLarge { what, value, most }) } else { Ok(value) }
}

/// M and N of so many rows.
fn factors(what: &'static str, rows: usize) -> Result<[u64; 2], CompileError> {
    let rows = rows as u64;
    let m = (1..=u64::from(u16::MAX)).find(|&m| rows.is_multiple_of(m) && rows / m <= u16::MAX.into());
    m.map(|m| [m, rows / m]).ok_or(CompileError::Rows { what, value: rows })
}

/// Lays parts of on-chip memory one behind the other.
#[derive(Debug, Default)]
struct Layout(Vec<Part>);

impl Layout {
    fn part(&mut self, name: &'static str, lines: u64) -> Part {
        let start = self.0.last().map_or(0, |part| part.start + part.lines);
        let part = Part { name, start, lines: lines as u32 };
        self.0.push(part);
        part
    }

    /// All of them, where operands of VEC, ATTN and HEAD can name them.
    fn map(self) -> Result<Vec<Part>, CompileError> {
        let lines = self.0.last().map_or(0, |part| part.start + part.lines);
        fits("on-chip memory in lines", lines.into(), 1 << 13)?;
        Ok(self.0)
    }
}

/// Numbers in 32s.
fn vector(count: usize) -> [u64; 3] {
    [1, count as u64 / 32, 32]
}

/// Rows and columns.
fn matrix(rows: usize, columns: usize) -> [u64; 3] {
    [1, rows as u64, columns as u64]
}

/// What the shape says of a block: bytes of a layer in it, and of all that have keys and values of their own.
fn block(shape: &Shape) -> Result<[u64; 2], CompileError> {
    let layer = shape.kv_heads as u64 * Block { width: shape.head_width as u64 }.bytes();
    fits("keys and values of a layer, in lines", layer / LINE as u64, i16::MAX as u64)?;
    let block = layer * shape.kv_layers() as u64;
    fits("a block of keys and values, in lines", block / LINE as u64, u32::MAX.into())?;
    Ok([layer, block])
}

/// Bytes of a layer's words.
fn record(layers: &[Vec<u64>]) -> u64 {
    layers.first().map_or(0, |words| layout::row(8 * words.len() as u64))
}

/// The program of a model of this shape whose image has these parts, and `image` bytes.
///
/// # Errors
/// If no device runs the shape, the parts are not those of it, or a number is beyond what words hold.
pub fn compile(shape: &Shape, epsilon: u32, entries: &[Entry], image: u64) -> Result<Program, CompileError> {
    if let Some(refusal) = shape.refusal() {
        return Err(CompileError::Shape(refusal));
    }
    let &Shape { heads, kv_heads, head_width, .. } = shape;
    let (queries, keys) = (heads * head_width, kv_heads * head_width);
    for (what, value) in [
        ("width", shape.width),
        ("queries", queries),
        ("keys and values", 2 * keys),
        ("hidden", shape.hidden),
    ] {
        fits(what, value as u64, 65_504)?;
    }
    let table = image.next_multiple_of(LINE as u64);
    fits("table in lines", table / LINE as u64, u32::MAX.into())?;
    let model = Model { shape, epsilon, parts: Parts(entries), table };
    match shape.gemma {
        Some(gemma) => gemma::compile(&model, &gemma),
        None => llama::compile(&model),
    }
}

/// What is compiled.
struct Model<'e> {
    shape: &'e Shape,
    epsilon: u32,
    parts: Parts<'e>,
    /// Byte behind the image.
    table: u64,
}
