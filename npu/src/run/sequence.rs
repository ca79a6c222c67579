//! The sequencer: fetches words, executes MEMSET and CTRL itself, and makes all others ready for their engines, in order.

use doorbell_lm::STREAMS;

use super::work::{Engine, Function, KvAt, MatrixAt, Range, Seen, Work, aligned, in_memory};
use crate::isa::{Fault, Form};
use crate::layout::{self, LINE};

/// M, N and K.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    m: u64,
    n: u64,
    k: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Descriptor {
    /// In lines.
    base: u32,
    aux: i16,
}

impl Descriptor {
    fn byte(self) -> u64 {
        u64::from(self.base) * LINE as u64
    }

    /// An exponent: 8 bits with a sign.
    fn exponent(self) -> Result<i16, Fault> {
        i8::try_from(self.aux).map(i16::from).map_err(|_| Fault::BadAux { value: self.aux })
    }

    /// A distance, in bytes.
    fn stride(self) -> Result<u64, Fault> {
        let lines = u64::try_from(self.aux).map_err(|_| Fault::BadAux { value: self.aux })?;
        Ok(lines * LINE as u64)
    }
}

#[derive(Clone, Copy, Debug)]
struct Loop {
    /// Of its first word.
    pc: u32,
    count: u16,
    words: u32,
    table: Descriptor,
}

/// A word on its way to an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Issue {
    /// Its place in the program.
    pub pc: u32,
    /// The layer, in a loop.
    pub layer: Option<u16>,
    /// As it stands in the program.
    pub word: u64,
    /// What it does.
    pub work: Work,
}

impl Issue {
    /// Whether the words behind it wait until it is done.
    pub fn waited_for(&self) -> bool {
        self.word >> 60 == 2 && self.word & 1 == 0
    }

    /// What executes it.
    pub fn engine(&self) -> Engine {
        self.work.engine()
    }

    /// What it reads.
    pub fn reads(&self) -> Vec<Range> {
        self.work.reads()
    }

    /// What it writes.
    pub fn writes(&self) -> Option<Range> {
        self.work.writes()
    }
}

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// A word for an engine.
    Issue(Issue),
    /// Contexts that want no token are done.
    Silent,
    /// All are.
    End,
}

/// Where a word was, and what is wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Its place in the program.
    pub pc: u32,
    /// The layer, in a loop.
    pub layer: Option<u16>,
    /// The word, 0 behind the last one.
    pub word: u64,
    /// What is wrong with it.
    pub fault: Fault,
}

/// One program's, at one step.
#[derive(Clone, Debug)]
pub struct Sequencer<'m> {
    words: &'m [u64],
    memory: &'m [u8],
    lines: u32,
    pc: u32,
    layer: u16,
    around: Option<Loop>,
    shapes: [[Option<Shape>; 64]; 2],
    descriptors: [Option<Descriptor>; 64],
    registers: [Option<u32>; 6],
    /// Words that it executed itself.
    pub(super) own: u64,
}

const FMAP: usize = 0;
const WEIGHT: usize = 1;
/// Registers, by their numbers in MEMSET.
const EPSILON: usize = 0;
const FACTOR: usize = 1;
const WINDOW: usize = 2;
const SOURCE: usize = 3;
const CUT: usize = 4;
const SINKS: usize = 5;

impl<'m> Sequencer<'m> {
    /// At the first word, with nothing set; contexts have `lines` lines.
    pub fn new(words: &'m [u64], memory: &'m [u8], lines: u32) -> Self {
        Self {
            words,
            memory,
            lines,
            pc: 0,
            layer: 0,
            around: None,
            shapes: [[None; 64]; 2],
            descriptors: [None; 64],
            registers: [None; 6],
            own: 0,
        }
    }

    /// The next word that is not its own.
    ///
    /// # Errors
    /// A word that nothing could execute. Nothing comes behind it.
    #[expect(clippy::should_implement_trait, reason = "it does not end with `None`")]
    pub fn next(&mut self) -> Result<Next, Refused> {
        loop {
            let pc = self.pc;
            let layer = self.around.map(|_| self.layer);
            let word = self.words.get(pc as usize).copied();
            let refused = |fault| Refused { pc, layer, word: word.unwrap_or_default(), fault };
            let word = word.ok_or(refused(Fault::NoEnd))?;
            self.pc += 1;
            if let Some(next) = self.execute(word).map_err(refused)? {
                return Ok(match next {
                    Done::Work(work) => Next::Issue(Issue { pc, layer, word, work }),
                    Done::Silent => Next::Silent,
                    Done::End => Next::End,
                });
            }
            self.own += 1;
        }
    }

    fn execute(&mut self, word: u64) -> Result<Option<Done>, Fault> {
        let form = Form::of(word)?;
        let get = |name| form.get(word, name);
        match form.mnemonic {
            "end" if self.around.is_some() => return Err(Fault::BadLoop),
            "end" => return Ok(Some(Done::End)),
            "end.silent" if self.around.is_some() => return Err(Fault::BadLoop),
            "end.silent" => return Ok(Some(Done::Silent)),
            "layers" => self.begin(get("count") as u16, get("words") as u32, get("desc"))?,
            "next" => self.next_layer()?,
            _ if word >> 60 == 3 => self.set(form, word),
            _ => {
                let work = self.ready(form, word)?;
                work.check(self.lines)?;
                return Ok(Some(Done::Work(work)));
            }
        }
        Ok(None)
    }

    fn set(&mut self, form: &Form, word: u64) {
        let get = |name| form.get(word, name);
        match form.mnemonic {
            "memset.fmap" | "memset.weight" => {
                let cache = usize::from(form.mnemonic == "memset.weight");
                let shape = Shape { m: get("m"), n: get("n"), k: get("k") };
                self.shapes[cache][get("index") as usize] = Some(shape);
            }
            "memset.desc" => {
                let descriptor = Descriptor { base: get("base") as u32, aux: get("aux") as i16 };
                self.descriptors[get("index") as usize] = Some(descriptor);
            }
            _ => self.registers[(word >> 52 & 63) as usize] = Some(get("value") as u32),
        }
    }

    fn begin(&mut self, count: u16, words: u32, table: u64) -> Result<(), Fault> {
        if self.around.is_some() || count == 0 {
            return Err(Fault::BadLoop);
        }
        let table = self.descriptor(table)?;
        self.around = Some(Loop { pc: self.pc, count, words, table });
        self.layer = 0;
        // Its words belong to `layers` itself, so that an error names it.
        self.layer_words().inspect_err(|_| self.around = None)
    }

    fn next_layer(&mut self) -> Result<(), Fault> {
        let around = self.around.ok_or(Fault::NoLoop)?;
        if self.layer + 1 == around.count {
            self.around = None;
            return Ok(());
        }
        self.layer += 1;
        self.pc = around.pc;
        self.layer_words()
    }

    fn layer_words(&mut self) -> Result<(), Fault> {
        let Loop { words, table, .. } = self.around.ok_or(Fault::NoLoop)?;
        let start = table.byte() + u64::from(self.layer) * table.stride()?;
        let bytes = u64::from(words) * 8;
        in_memory(start, layout::row(bytes), self.memory.len())?;
        let record = &self.memory[start as usize..][..bytes as usize];
        for eight in record.chunks_exact(8) {
            let word = u64::from_le_bytes(eight.try_into().expect("eight bytes"));
            match Form::of(word) {
                Ok(form) if word >> 60 == 3 => self.set(form, word),
                _ => return Err(Fault::BadLayerWord { word }),
            }
            self.own += 1;
        }
        Ok(())
    }

    fn descriptor(&self, index: u64) -> Result<Descriptor, Fault> {
        let descriptor = self.descriptors.get(index as usize).copied().flatten();
        descriptor.ok_or(Fault::DescriptorUnset { index: index as u8 })
    }

    fn shape(&self, cache: usize, index: u64) -> Result<Shape, Fault> {
        self.shapes[cache][index as usize].ok_or(Fault::ShapeUnset { index: index as u8 })
    }

    /// The matrix whose weights a descriptor names, and its scales the one behind it.
    fn matrix(&self, index: u64, shape: u64) -> Result<MatrixAt, Fault> {
        let shape = self.shape(WEIGHT, shape)?;
        let weights = self.descriptor(index)?;
        let scales = self.descriptor(index + 1)?;
        let rows = dimension(shape.m * shape.n, 1, 1 << 20)?;
        let columns = dimension(shape.k, 32, 65_504)?;
        let (exponent, scales) = (weights.exponent()?, scales.byte());
        let matrix = MatrixAt { weights: weights.byte(), scales, exponent, rows, columns };
        matrix.check(self.memory.len())?;
        Ok(matrix)
    }

    fn register(&self, number: usize) -> Result<u32, Fault> {
        self.registers[number].ok_or(Fault::RegisterUnset)
    }

    /// Keys and values of this layer, or of the one that register `source` names.
    fn kv(&self, index: u64, heads: u64, width: u64, of_source: bool) -> Result<KvAt, Fault> {
        let descriptor = self.descriptor(index)?;
        if self.around.is_none() {
            return Err(Fault::NoLoop);
        }
        let (heads, width) = (dimension(heads, 1, 4096)?, dimension(width, 32, 256)?);
        let (block, stride) = (descriptor.byte(), descriptor.stride()?);
        let needed = u64::from(heads) * layout::Block { width: width.into() }.bytes();
        // A layer has 16 bits, as in a loop.
        let number = match of_source {
            true => dimension_from(self.register(SOURCE)?.into(), 0, u16::MAX.into())?,
            false => self.layer.into(),
        };
        let layer = u64::from(number) * stride;
        if needed > stride || layer + needed > block {
            return Err(Fault::BlockTooSmall { needed: layer + needed });
        }
        Ok(KvAt { block, layer, heads, width })
    }

    /// Lines of M · N · K words.
    fn words(&self, index: u64) -> Result<u32, Fault> {
        let shape = self.shape(FMAP, index)?;
        let words = dimension(shape.m * shape.n * shape.k, 4, 1 << 17)?;
        Ok(words / layout::LINE_WORDS)
    }

    fn ready(&self, form: &Form, word: u64) -> Result<Work, Fault> {
        let get = |name| form.get(word, name);
        let memory = self.memory.len();
        match form.mnemonic {
            "gemv" if get("max") == 0 => {
                let [dst, src] = [aligned(get("dest"))?, aligned(get("src"))?];
                let matrix = self.matrix(get("desc"), get("shape"))?;
                let (accumulate, scaled) = (get("acc") == 1, get("scale") == 1);
                // Rows are filled up to a multiple of 32 with zeros, which is nothing to add to what is there.
                dimension(matrix.rows.into(), if accumulate { 32 } else { 1 }, 65_504)?;
                Ok(Work::Multiply { dst, src, matrix, accumulate, scaled })
            }
            "memcpy.in" => {
                let dst = aligned(get("dest"))?;
                let lines = self.words(get("shape"))?;
                let from = self.descriptor(get("desc"))?.byte() + get("src") * LINE as u64;
                in_memory(from, u64::from(lines) * LINE as u64, memory)?;
                Ok(Work::Copy { dst, from, lines })
            }
            "memcpy.gain" => {
                let dst = aligned(get("dest"))?;
                let shape = self.shape(FMAP, get("shape"))?;
                let factors = dimension(shape.m * shape.n * shape.k, 32, 65_504)?;
                let descriptor = self.descriptor(get("desc"))?;
                let (from, exponent) = (descriptor.byte(), descriptor.exponent()?);
                let lines = layout::gain(factors.into()) as u32;
                in_memory(from, u64::from(lines - 1) * LINE as u64, memory)?;
                Ok(Work::Gain { dst, from, exponent, lines })
            }
            "memcpy.row" => {
                let dst = aligned(get("dest"))?;
                let shape = self.shape(FMAP, get("shape"))?;
                let rows = dimension(shape.m * shape.n, 1, 1 << 20)?;
                let lines = dimension(shape.k, 4, 1 << 17)? / layout::LINE_WORDS;
                let descriptor = self.descriptor(get("desc"))?;
                let (from, stride) = (descriptor.byte(), descriptor.stride()?);
                let last = u64::from(rows - 1) * stride;
                in_memory(from, last + u64::from(lines) * LINE as u64, memory)?;
                Ok(Work::Row { dst, from, stride, rows, lines })
            }
            "memcpy.embed" => {
                let dst = aligned(get("dest"))?;
                Ok(Work::Embed { dst, matrix: self.matrix(get("desc"), get("shape"))? })
            }
            "memcpy.kv" => {
                let src = aligned(get("src"))?;
                let shape = self.shape(FMAP, get("shape"))?;
                if shape.m != 2 {
                    return Err(Fault::BadLength { value: shape.m });
                }
                Ok(Work::Append { src, kv: self.kv(get("desc"), shape.n, shape.k, false)? })
            }
            "memcpy.out" => {
                let src = aligned(get("src"))?;
                let lines = self.words(get("shape"))?;
                Ok(Work::Out { src, to: get("dest") * LINE as u64, lines })
            }
            "attn" => {
                let shape = self.shape(FMAP, get("shape"))?;
                let heads = dimension(shape.m, 1, 4096)?;
                let kv = self.kv(get("desc"), shape.n, shape.k, get("source") == 1)?;
                if heads % kv.heads != 0 {
                    return Err(Fault::BadLength { value: shape.n });
                }
                let factor = self.register(FACTOR)?;
                let window = match get("window") {
                    0 => None,
                    _ => Some(dimension_from(self.register(WINDOW)?.into(), 1, 65_536)?),
                };
                let sinks = match get("sinks") {
                    0 => 0,
                    _ => dimension_from(self.register(SINKS)?.into(), 0, 65_536)?,
                };
                if sinks % 32 != 0 {
                    return Err(Fault::BadLength { value: sinks.into() });
                }
                let seen = Seen { window, sinks };
                let [dst, src] = ["dst", "src"].map(|name| get(name) as u32);
                Ok(Work::Attend { dst, src, heads, kv, factor, seen })
            }
            "head" => {
                let matrix = self.matrix(get("desc"), get("shape"))?;
                let [first, last, cap] = ["first", "last", "cap"].map(|name| get(name) == 1);
                if !last {
                    // Blocks of 32 logits do not go over a word's end.
                    dimension(matrix.rows.into(), 32, 1 << 20)?;
                }
                Ok(Work::Head { src: get("src") as u32, matrix, first, last, cap })
            }
            _ if word >> 60 == 5 => self.vector(form, word),
            _ => Err(Fault::NotBuilt),
        }
    }

    fn vector(&self, form: &Form, word: u64) -> Result<Work, Fault> {
        let get = |name| form.get(word, name) as u32;
        let shape = self.shape(FMAP, get("shape").into())?;
        // What a register holds is looked at ahead of lengths.
        let (function, of) = match form.mnemonic {
            "vec.add" => (Function::Add, Of::Numbers(65_536)),
            "vec.mul" => (Function::Multiply, Of::Numbers(65_536)),
            "vec.act" => (Function::Activate, Of::Numbers(65_536)),
            "vec.swiglu" => (Function::Swiglu, Of::Numbers(65_536)),
            "vec.norm" => (Function::Normalise(self.register(EPSILON)?), Of::Numbers(65_536)),
            "vec.rope" => (Function::Rotate, Of::Heads(4096, 256)),
            "vec.store" => (Function::Store, Of::Heads(4096, 256)),
            "vec.level" => (Function::Level(self.register(EPSILON)?), Of::Heads(4096, 4096)),
            "vec.tanh" => (Function::Tanh, Of::Numbers(65_536)),
            "vec.geglu" => (Function::Geglu, Of::Numbers(65_536)),
            "vec.blend" => (Function::Blend, Of::Numbers(65_536)),
            "vec.cut" => (Function::Cut(self.register(CUT)?), Of::Numbers(65_536)),
            "vec.rescale" => (Function::Rescale(self.register(EPSILON)?), Of::Numbers(4096)),
            "vec.predict" => (Function::Predict, Of::Heads(STREAMS as u64, 4096)),
            "vec.correct" => (Function::Correct, Of::Heads(STREAMS as u64, 4096)),
            name => unreachable!("{name} is no VEC"),
        };
        let (heads, width) = match of {
            Of::Heads(heads, width) => {
                (dimension(shape.m * shape.n, 1, heads)?, dimension(shape.k, 32, width)?)
            }
            Of::Numbers(most) => (1, dimension(shape.m * shape.n * shape.k, 32, most)?),
        };
        let b = if form.field("b").is_some() { get("b") } else { 0 };
        Ok(Work::Vector { function, dst: get("dst"), a: get("a"), b, heads, width })
    }
}

/// What a shape counts for a word, and how much of it there may be.
enum Of {
    /// Numbers, all of them.
    Numbers(u64),
    /// Heads or streams, and channels of each.
    Heads(u64, u64),
}

enum Done {
    Work(Work),
    Silent,
    End,
}

/// A dimension: a multiple of `unit`, not 0, at most `most`.
fn dimension(value: u64, unit: u64, most: u64) -> Result<u32, Fault> {
    if value == 0 || !value.is_multiple_of(unit) || value > most {
        return Err(Fault::BadLength { value });
    }
    Ok(value as u32)
}

/// What a register holds, from `least` to `most`.
fn dimension_from(value: u64, least: u64, most: u64) -> Result<u32, Fault> {
    if !(least..=most).contains(&value) {
        return Err(Fault::BadLength { value });
    }
    Ok(value as u32)
}
