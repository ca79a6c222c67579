//! The instruction set as a table: every kind of word, and where its fields lie. Encoder, decoder, assembler, disassembler and
//! the table of docs/isa.md are all made of it.

use super::Fault;

/// What a field holds, which is how it is written in text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A number as it is.
    Number,
    /// The lowest bit alone, written by its name where it is 1.
    Flag,
    /// An address in lines of four words, written in words.
    Line,
    /// A number with a sign, in two's complement.
    Signed,
}

/// Some bits of a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name in text.
    pub name: &'static str,
    /// Highest bit.
    pub high: u8,
    /// Lowest bit.
    pub low: u8,
    /// What it holds.
    pub unit: Unit,
}

impl Field {
    const fn new(name: &'static str, high: u8, low: u8, unit: Unit) -> Self {
        Self { name, high, low, unit }
    }

    /// How many bits it has.
    pub const fn width(&self) -> u8 {
        self.high - self.low + 1
    }

    /// Largest value of its bits.
    pub const fn most(&self) -> u64 {
        u64::MAX >> (64 - self.width())
    }

    /// Its bits, in place.
    pub const fn mask(&self) -> u64 {
        self.most() << self.low
    }

    /// Its bits of a word.
    pub const fn of(&self, word: u64) -> u64 {
        word >> self.low & self.most()
    }
}

/// One kind of word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form {
    /// Its name in text.
    pub mnemonic: &'static str,
    /// The bits by which it is known.
    pub select: u64,
    /// What they are.
    pub value: u64,
    /// The bits that it may choose; all others are 0.
    pub fields: &'static [Field],
    /// What it does, for docs/isa.md.
    pub meaning: &'static str,
}

impl Form {
    /// The kind of a word.
    ///
    /// # Errors
    /// A word that is none, by what is wrong with it.
    pub fn of(word: u64) -> Result<&'static Self, Fault> {
        let opcode = (word >> 60) as u8;
        let mut none = Fault::UnknownOpcode;
        for form in FORMS.iter().filter(|form| form.value >> 60 == u64::from(opcode)) {
            if word & form.select == form.value {
                let reserved = word & form.reserved();
                return if reserved == 0 { Ok(form) } else { Err(Fault::ReservedBits { bits: reserved }) };
            }
            none = match opcode {
                2 if MEMCPY_KINDS.contains(&(word >> 13 & 15)) => Fault::BadRoute,
                3 => Fault::UnknownRegister,
                _ => Fault::UnknownFunction,
            };
        }
        Err(none)
    }

    /// The form with this name.
    pub fn named(mnemonic: &str) -> Option<&'static Self> {
        FORMS.iter().find(|form| form.mnemonic == mnemonic)
    }

    /// The field with this name.
    pub fn field(&self, name: &str) -> Option<&'static Field> {
        self.fields.iter().find(|field| field.name == name)
    }

    /// Bits that have to be 0.
    pub fn reserved(&self) -> u64 {
        !self.fields.iter().fold(self.select, |mask, field| mask | field.mask())
    }

    /// A field of a word of this form.
    ///
    /// # Panics
    /// If the form has no such field.
    pub(crate) fn get(&self, word: u64, name: &str) -> u64 {
        self.field(name).unwrap_or_else(|| panic!("{} has no {name}", self.mnemonic)).of(word)
    }

    /// The word with these fields, the others 0.
    ///
    /// # Panics
    /// If the form has no such field, or a value does not fit.
    pub fn word(&self, values: &[(&str, u64)]) -> u64 {
        values.iter().fold(self.value, |word, &(name, value)| {
            let field = self.field(name).unwrap_or_else(|| panic!("{} has no {name}", self.mnemonic));
            assert!(value <= field.most(), "{} {name}={value} is beyond {}", self.mnemonic, field.most());
            word | value << field.low
        })
    }
}

const OPCODE: u64 = 15 << 60;
/// Route and kind of a MEMCPY.
const COPY: u64 = OPCODE | 3 << 58 | 15 << 13;
const CACHE: u64 = OPCODE | 3 << 58;
const REGISTER: u64 = CACHE | 63 << 52;
const FUNCTION4: u64 = OPCODE | 15 << 56;
const FUNCTION6: u64 = OPCODE | 63 << 54;

const MEMCPY_KINDS: [u64; 5] = [0, 1, 2, 3, 4];

const fn copy(from_host: u64, to_host: u64, kind: u64) -> u64 {
    2 << 60 | from_host << 59 | to_host << 58 | kind << 13
}

const fn number(name: &'static str, high: u8, low: u8) -> Field {
    Field::new(name, high, low, Unit::Number)
}

const fn flag(name: &'static str, bit: u8) -> Field {
    Field::new(name, bit, bit, Unit::Flag)
}

const fn line(name: &'static str, high: u8, low: u8) -> Field {
    Field::new(name, high, low, Unit::Line)
}

const fn signed(name: &'static str, high: u8, low: u8) -> Field {
    Field::new(name, high, low, Unit::Signed)
}

const fn form(
    mnemonic: &'static str,
    select: u64,
    value: u64,
    fields: &'static [Field],
    meaning: &'static str,
) -> Form {
    Form { mnemonic, select, value, fields, meaning }
}

const MATRIX: &[Field] = &[
    number("dest", 59, 43),
    number("src", 42, 26),
    flag("max", 25),
    flag("acc", 24),
    flag("scale", 23),
    number("desc", 19, 14),
    number("shape", 13, 8),
    number("lanes", 7, 3),
];
const SHAPE: &[Field] =
    &[number("index", 57, 52), number("m", 51, 36), number("n", 35, 20), number("k", 19, 4)];
const VALUE: &[Field] = &[number("value", 51, 20)];
const CVO: &[Field] = &[
    number("src", 55, 39),
    number("dst", 38, 22),
    number("length", 21, 6),
    flag("minus_max", 5),
    flag("inverse", 4),
    flag("acc", 3),
    flag("async", 0),
];
const BINARY: &[Field] = &[line("dst", 53, 41), line("a", 40, 28), line("b", 27, 15), number("shape", 14, 9)];
const UNARY: &[Field] = &[line("dst", 53, 41), line("a", 40, 28), number("shape", 14, 9)];

const fn vector(
    mnemonic: &'static str,
    function: u64,
    fields: &'static [Field],
    meaning: &'static str,
) -> Form {
    form(mnemonic, FUNCTION6, 5 << 60 | function << 54, fields, meaning)
}

const fn cvo(mnemonic: &'static str, function: u64) -> Form {
    form(mnemonic, FUNCTION4, 4 << 60 | function << 56, CVO, "not built")
}

/// Every kind of word, by opcode.
pub const FORMS: &[Form] = &[
    form("gemv", OPCODE, 0, MATRIX, "matrix times activation, to int32; acc adds to what is there"),
    form("gemm", OPCODE, 1 << 60, MATRIX, "not built: a gang of tokens is this machine's GEMM"),
    form(
        "memcpy.in",
        COPY,
        copy(1, 0, 0),
        &[
            number("dest", 57, 41),
            number("src", 40, 24),
            number("desc", 12, 7),
            number("shape", 6, 1),
            flag("async", 0),
        ],
        "M·N·K words of memory, from line src of the descriptor on",
    ),
    form(
        "memcpy.gain",
        COPY,
        copy(1, 0, 1),
        &[number("dest", 57, 41), number("desc", 12, 7), number("shape", 6, 1), flag("async", 0)],
        "a gain of K factors, after a line with its exponent",
    ),
    form(
        "memcpy.row",
        COPY,
        copy(1, 0, 2),
        &[number("dest", 57, 41), number("desc", 12, 7), number("shape", 6, 1), flag("async", 0)],
        "K words of the position's row of a table of M·N rows",
    ),
    form(
        "memcpy.embed",
        COPY,
        copy(1, 0, 3),
        &[number("dest", 57, 41), number("desc", 12, 7), number("shape", 6, 1), flag("async", 0)],
        "the token's row of an M·N × K matrix, as int32",
    ),
    form(
        "memcpy.kv",
        COPY,
        copy(0, 1, 4),
        &[number("src", 40, 24), number("desc", 12, 7), number("shape", 6, 1), flag("async", 0)],
        "stored keys (first half of the heads) and values to this layer's and this position's place",
    ),
    form(
        "memcpy.out",
        COPY,
        copy(0, 1, 0),
        &[number("dest", 57, 41), number("src", 40, 24), number("shape", 6, 1), flag("async", 0)],
        "M·N·K words to line dest of the context's output region",
    ),
    form("memset.fmap", CACHE, 3 << 60, SHAPE, "shape of vectors"),
    form("memset.weight", CACHE, 3 << 60 | 1 << 58, SHAPE, "shape of a matrix"),
    form(
        "memset.desc",
        CACHE,
        3 << 60 | 2 << 58,
        &[number("index", 57, 52), number("base", 51, 20), signed("aux", 19, 4)],
        "where something lies in memory: base in lines, aux its exponent or stride",
    ),
    form("memset.epsilon", REGISTER, 3 << 60 | 3 << 58, VALUE, "ε of vec.norm, 20 fraction bits"),
    form(
        "memset.factor",
        REGISTER,
        3 << 60 | 3 << 58 | 1 << 52,
        VALUE,
        "log2(e) / √width of attn, 16 fraction bits",
    ),
    form(
        "memset.window",
        REGISTER,
        3 << 60 | 3 << 58 | 2 << 52,
        VALUE,
        "positions that attn window sees, 1 to 65,536",
    ),
    form(
        "memset.source",
        REGISTER,
        3 << 60 | 3 << 58 | 3 << 52,
        VALUE,
        "layer whose keys and values attn source reads",
    ),
    form(
        "memset.cut",
        REGISTER,
        3 << 60 | 3 << 58 | 4 << 52,
        VALUE,
        "deviations of vec.cut, 16 fraction bits; 0 cuts nothing",
    ),
    form(
        "memset.sinks",
        REGISTER,
        3 << 60 | 3 << 58 | 5 << 52,
        VALUE,
        "first positions that attn sinks sees besides its window, a multiple of 32 up to 65,536",
    ),
    cvo("cvo.exp", 0),
    cvo("cvo.sqrt", 1),
    cvo("cvo.gelu", 2),
    cvo("cvo.sin", 3),
    cvo("cvo.cos", 4),
    cvo("cvo.reduce_sum", 5),
    cvo("cvo.scale", 6),
    cvo("cvo.recip", 7),
    vector("vec.add", 0, BINARY, "a + b, within the residual stream's bounds"),
    vector("vec.mul", 1, BINARY, "[a · b >> 10], within 32 bits"),
    vector("vec.act", 2, UNARY, "activation of a"),
    vector("vec.swiglu", 3, BINARY, "activation of [swish(a) · b >> 10]"),
    vector("vec.norm", 4, BINARY, "activation of a, normalised, times the gain b"),
    vector("vec.rope", 5, BINARY, "each head of a turned by the turns b"),
    vector("vec.store", 6, UNARY, "each head of a as mantissas and a scale"),
    vector("vec.level", 7, BINARY, "each head of a, normalised, times the gain b, as integers"),
    vector("vec.tanh", 8, UNARY, "activation of tanh(a)"),
    vector("vec.geglu", 9, BINARY, "activation of [gelu(a) · b >> 10]"),
    vector("vec.blend", 10, BINARY, "√½ (a + b), within the residual stream's bounds"),
    vector("vec.cut", 11, UNARY, "what a is above its mean and cut deviations, else 0"),
    vector("vec.rescale", 12, BINARY, "a with the root mean square of b"),
    vector("vec.predict", 13, BINARY, "each stream of a, and all of them by its row of coefficients b"),
    vector(
        "vec.correct",
        14,
        BINARY,
        "each stream of dst, and what a is beyond the first, by its coefficient of b",
    ),
    form(
        "attn",
        OPCODE,
        6 << 60,
        &[
            line("dst", 59, 47),
            line("src", 46, 34),
            number("shape", 33, 28),
            number("desc", 27, 22),
            flag("window", 21),
            flag("source", 20),
            flag("sinks", 19),
        ],
        "mean of the values of this layer up to this position, for each stored query",
    ),
    form(
        "head",
        OPCODE,
        7 << 60,
        &[
            line("src", 59, 47),
            number("desc", 46, 41),
            number("shape", 40, 35),
            flag("first", 34),
            flag("last", 33),
            flag("cap", 32),
        ],
        "logits of M·N rows into the sampler, through softcap with cap; first begins, last gives the token",
    ),
    form("end", FUNCTION4, 8 << 60, &[], "the step is over"),
    form(
        "layers",
        FUNCTION4,
        8 << 60 | 1 << 56,
        &[number("count", 55, 40), number("words", 39, 34), number("desc", 33, 28)],
        "what follows up to next runs count times; before each, that layer's words (MEMSETs) are read through the descriptor",
    ),
    form("next", FUNCTION4, 8 << 60 | 2 << 56, &[], "the layer is over"),
    form("end.silent", FUNCTION4, 8 << 60 | 3 << 56, &[], "the step is over where no token is wanted"),
];

/// The table of docs/isa.md: a row for each form.
pub fn table() -> String {
    let rows = FORMS.iter().map(|form| {
        let fields = form.fields.iter().map(|field| {
            let unit = match field.unit {
                Unit::Number | Unit::Flag => "",
                Unit::Line => " (lines)",
                Unit::Signed => " (signed)",
            };
            format!("{}[{}]{unit}", field.name, span(field.high, field.low))
        });
        let fields: Vec<String> = fields.collect();
        let (known, fields) = (known_by(form), fields.join(" "));
        format!("| `{}` | {known} | {fields} | {} |\n", form.mnemonic, form.meaning)
    });
    "| word | known by | fields | what it does |\n|---|---|---|---|\n".to_owned() + &rows.collect::<String>()
}

fn span(high: u8, low: u8) -> String {
    if high == low { high.to_string() } else { format!("{high}:{low}") }
}

/// Each run of bits that select a form, with its value.
fn known_by(form: &Form) -> String {
    let opcode = format!("[63:60]={:X}", form.value >> 60);
    let mut runs = vec![opcode];
    let mut high = 60u8;
    while high > 0 {
        high -= 1;
        if form.select >> high & 1 == 0 {
            continue;
        }
        let low = (0..=high).rev().take_while(|&bit| form.select >> bit & 1 == 1).last().unwrap_or(high);
        let value = form.value >> low & u64::MAX >> (63 - (high - low));
        runs.push(format!("[{}]={value}", span(high, low)));
        high = low;
    }
    runs.join(" ")
}
