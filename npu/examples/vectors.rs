//! What a unit of the NPU in RTL is to do, as the interpreter does it: a script for `tb/npu/npu_unit_harness.sv`.
//!
//!     cargo run --release -p doorbell-npu --example vectors -- UNIT SEED CASES     # mem, gemv, sfu, attend, or:
//!     … decode SEED CASES     # words, for the bench of the decoder (script/words.rs)
//!     … sequence SEED CASES   # programs, for that of the sequencer (script/sequences.rs)
//!     … step SEED CASES       # steps, for that of all of it (script/steps.rs); with less than 6 fewer steps of the models
//!     … micro SEED 0          # … of this model alone; or micro-gemma, tiny, or words: npu/tests/clock/words.txt
//!
//! A line of the script of a unit is a letter and numbers in hexadecimal:
//!
//!     C line data     on-chip memory; M: model memory; A: the arena        what the unit finds
//!     F line          a line of model memory that is answered with an error; G: of the arena
//!     B entry line end        the block table
//!     S token position silent sharpness seed rollout output
//!     O op            a word, made ready
//!     W line data     on-chip memory behind it; K: the arena; U: the output region
//!     Q token logp    what the sampler gives
//!     E end           why it ended; and the word runs

#[path = "script/sequences.rs"]
mod sequences;
#[path = "script/steps.rs"]
mod steps;
#[path = "script/words.rs"]
mod words;

use std::fmt::Write as _;

use doorbell_lm::sample::Sharpness;
use doorbell_npu::arithmetic::{Speed, plain};
use doorbell_npu::isa::{Fault, Form};
use doorbell_npu::layout::{self, Block, LINE};
use doorbell_npu::run::{
    Arena, Function, Issue, KvAt, Machine, MatrixAt, Next, Observer, Place, Sampling, Sequencer, Settings,
    Space, Work, Write,
};

/// Lines of on-chip memory, and of model memory, as the harness has them.
const LINES: u64 = 1024;
const MEMORY: u64 = 1 << 14;
const ARENA: u64 = 1 << 13;
const OUTPUT: u64 = 16;
/// Entries of the block table.
const ENTRIES: u32 = 12;

/// Numbers from a seed.
struct Draws(u64);

impl Draws {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn from(&mut self, first: u64, last: u64) -> u64 {
        first + self.below(last - first + 1)
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    fn one<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len() as u64) as usize]
    }

    /// From 1 to `few`, but in some cases to `many`.
    fn mostly(&mut self, percent: u64, few: u64, many: u64) -> u64 {
        let most = if self.chance(percent) { few } else { many };
        self.from(1, most)
    }

    fn bytes(&mut self, count: u64) -> Vec<u8> {
        (0..count).map(|_| self.next() as u8).collect()
    }

    /// Numbers of so many bits with a sign as the draw says, now and then the largest there are.
    fn integers(&mut self, count: u64) -> Vec<i32> {
        let most = self.from(1, 31);
        let extremes = if self.chance(20) { 3 } else { 0 };
        let number = |draws: &mut Self| match draws.below(100) {
            at if at < extremes => [i32::MIN, i32::MAX, 0][at as usize],
            _ => (draws.next() as i32) >> (31 - draws.from(most.saturating_sub(8), most)),
        };
        (0..count).map(|_| number(self)).collect()
    }

    /// Places for `sizes` in `lines` lines, none over another.
    fn apart(&mut self, lines: u64, sizes: &[u64]) -> Vec<u64> {
        let mut free = lines - sizes.iter().sum::<u64>();
        let mut order: Vec<usize> = (0..sizes.len()).collect();
        for last in (1..order.len()).rev() {
            order.swap(last, self.below(last as u64 + 1) as usize);
        }
        let (mut at, mut places) = (0, vec![0; sizes.len()]);
        for part in order {
            let gap = self.below(free + 1);
            free -= gap;
            places[part] = at + gap;
            at += gap + sizes[part];
        }
        places
    }
}

fn integers(values: &[i32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn word(name: &str, fields: &[(&str, u64)]) -> u64 {
    Form::named(name).expect("a word of the set").word(fields)
}

/// Bits, the highest first.
#[derive(Default)]
struct Bits(Vec<bool>);

impl Bits {
    fn put(&mut self, value: u64, width: u32) -> &mut Self {
        assert!(width == 64 || value >> width == 0, "{value} has more than {width} bits");
        self.0.extend((0..width).rev().map(|bit| value >> bit & 1 == 1));
        self
    }

    fn hex(&self) -> String {
        let ahead = self.0.len().next_multiple_of(4) - self.0.len();
        let bits: Vec<bool> = std::iter::repeat_n(false, ahead).chain(self.0.iter().copied()).collect();
        let digit = |four: &[bool]| four.iter().fold(0, |digit, &bit| digit << 1 | u32::from(bit));
        bits.chunks(4).map(|four| char::from_digit(digit(four), 16).expect("a digit")).collect()
    }
}

/// `npu_op_t` of rtl/npu/npu_unit_pkg.sv.
#[derive(Clone, Copy, Default)]
struct Op {
    kind: u64,
    accumulate: bool,
    scaled: bool,
    first: bool,
    last: bool,
    cap: bool,
    dst: u32,
    a: u32,
    b: u32,
    lines: u32,
    rows: u32,
    columns: u32,
    heads: u32,
    kv_heads: u32,
    width: u32,
    exponent: i16,
    from: u64,
    scales: u64,
    stride: u64,
    block: u64,
    layer: u64,
    value: u32,
    /// Of ATTN; 0 sees all.
    window: u32,
    /// Of ATTN, in blocks.
    sinks: u32,
}

impl Op {
    fn matrix(self, matrix: MatrixAt) -> Self {
        let MatrixAt { weights, scales, exponent, rows, columns } = matrix;
        Self { from: lines(weights), scales: lines(scales), exponent, rows, columns, ..self }
    }

    fn kv(self, kv: KvAt) -> Self {
        let KvAt { block, layer, heads, width } = kv;
        Self { block: lines(block), layer: lines(layer), kv_heads: heads, width, ..self }
    }

    fn of(work: Work) -> Self {
        let kind = |kind| Self { kind, ..Self::default() };
        match work {
            Work::Copy { dst, from, lines: count } => {
                Self { dst, from: lines(from), lines: count, ..kind(0) }
            }
            Work::Gain { dst, from, exponent, lines: count } => {
                Self { dst, from: lines(from), exponent, lines: count, ..kind(1) }
            }
            Work::Row { dst, from, stride, rows, lines: count } => {
                Self { dst, from: lines(from), stride: lines(stride), rows, lines: count, ..kind(2) }
            }
            Work::Embed { dst, matrix } => Self { dst, ..kind(3) }.matrix(matrix),
            Work::Append { src, kv } => Self { a: src, ..kind(4) }.kv(kv),
            Work::Out { src, to, lines: count } => Self { a: src, from: lines(to), lines: count, ..kind(5) },
            Work::Multiply { dst, src, matrix, accumulate, scaled } => {
                Self { dst, a: src, accumulate, scaled, ..kind(6) }.matrix(matrix)
            }
            Work::Head { src, matrix, first, last, cap } => {
                Self { a: src, first, last, cap, ..kind(7) }.matrix(matrix)
            }
            Work::Vector { function, dst, a, b, heads, width } => {
                let (number, value) = match function {
                    Function::Add => (8, 0),
                    Function::Multiply => (9, 0),
                    Function::Activate => (10, 0),
                    Function::Swiglu => (11, 0),
                    Function::Normalise(epsilon) => (12, epsilon),
                    Function::Rotate => (13, 0),
                    Function::Store => (14, 0),
                    Function::Level(epsilon) => (16, epsilon),
                    Function::Tanh => (17, 0),
                    Function::Geglu => (18, 0),
                    Function::Blend => (19, 0),
                    Function::Cut(deviations) => (20, deviations),
                    Function::Rescale(epsilon) => (21, epsilon),
                    Function::Predict => (22, 0),
                    Function::Correct => (23, 0),
                };
                Self { dst, a, b, heads, width, value, ..kind(number) }
            }
            Work::Attend { dst, src, heads, kv, factor, seen } => {
                let (window, sinks) = (seen.window.unwrap_or(0), seen.sinks / 32);
                Self { dst, a: src, heads, value: factor, window, sinks, ..kind(15) }.kv(kv)
            }
        }
    }

    fn hex(self) -> String {
        let mut bits = Bits::default();
        self.put(&mut bits);
        bits.hex()
    }

    fn put(self, bits: &mut Bits) {
        bits.put(self.kind, 5);
        for flag in [self.accumulate, self.scaled, self.first, self.last, self.cap] {
            bits.put(flag.into(), 1);
        }
        for line in [self.dst, self.a, self.b] {
            bits.put(line.into(), 15);
        }
        bits.put(self.lines.into(), 16).put(self.rows.into(), 21).put(self.columns.into(), 16);
        bits.put(self.heads.into(), 13).put(self.kv_heads.into(), 13).put(self.width.into(), 17);
        bits.put(u64::from(self.exponent as u8), 8).put(self.from, 34).put(self.scales, 32);
        bits.put(self.stride, 15).put(self.block, 32).put(self.layer, 31).put(self.value.into(), 32);
        bits.put(self.window.into(), 17).put(self.sinks.into(), 12);
    }
}

fn lines(bytes: u64) -> u64 {
    assert!(bytes.is_multiple_of(LINE as u64));
    bytes / LINE as u64
}

fn line_hex(bytes: &[u8]) -> String {
    bytes.iter().rev().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string takes all");
        text
    })
}

/// Writes of each word, in order.
#[derive(Default)]
struct Seen(Vec<Vec<Write>>);

impl Observer for Seen {
    fn executed(&mut self, _: &Place, writes: &[Write]) {
        self.0.push(writes.to_vec());
    }
}

/// A script on its way.
struct Script {
    draws: Draws,
    machine: Machine,
    text: String,
    /// Lines of model memory, of the arena, that answer with an error.
    broken: [Option<u64>; 2],
}

impl Script {
    fn new(seed: u64) -> Self {
        let mut draws = Draws(seed);
        let settings = Settings { lines: LINES as u32, speed: Speed::Plain };
        let mut machine = Machine::new(settings, vec![0; MEMORY as usize * LINE], ARENA as usize * LINE);
        machine.admit(Arena { base: 0, bytes: ARENA * LINE as u64 }, vec![]);
        machine.contexts[0].output = vec![0; OUTPUT as usize * LINE];
        let mut script = Self { draws: Draws(0), machine, text: String::new(), broken: [None; 2] };
        // What lies beside a source must not matter: lines of nonsense all over on-chip memory.
        for line in 0..LINES {
            let bytes = draws.bytes(LINE as u64);
            script.chip(line, bytes);
        }
        script.draws = draws;
        script
    }

    fn lines(&mut self, letter: char, first: u64, memory: &[u8]) {
        for (line, bytes) in (first..).zip(memory.chunks_exact(LINE)) {
            writeln!(self.text, "{letter} {line:x} {}", line_hex(bytes)).expect("a string takes all");
        }
    }

    /// Bytes from a line on; what is left of the last one stays as it is.
    fn chip(&mut self, line: u64, bytes: Vec<u8>) {
        let (start, end) = (line as usize * LINE, line as usize * LINE + bytes.len());
        let chip = self.machine.contexts[0].chip_mut();
        chip[start..end].copy_from_slice(&bytes);
        let whole = chip[start..end.next_multiple_of(LINE)].to_vec();
        self.lines('C', line, &whole);
    }

    fn memory(&mut self, line: u64, bytes: Vec<u8>) {
        let (start, end) = (line as usize * LINE, line as usize * LINE + bytes.len());
        self.machine.memory[start..end].copy_from_slice(&bytes);
        let whole = self.machine.memory[start..end.next_multiple_of(LINE)].to_vec();
        self.lines('M', line, &whole);
    }

    fn arena(&mut self, line: u64, bytes: Vec<u8>) {
        let (start, end) = (line as usize * LINE, line as usize * LINE + bytes.len());
        self.machine.kv[start..end].copy_from_slice(&bytes);
        let whole = self.machine.kv[start..end.next_multiple_of(LINE)].to_vec();
        self.lines('A', line, &whole);
    }

    /// Runs a program, and says what of it which word does.
    fn run(&mut self, words: &[u64]) {
        let context = &self.machine.contexts[0];
        let Sampling { sharpness, seed, rollout, scores } = context.sampling;
        let (token, position) = (context.token, context.position);
        let text = &mut self.text;
        let all = [
            token,
            position,
            u32::from(context.silent) | u32::from(scores) << 1,
            sharpness.0,
            seed,
            rollout,
            OUTPUT as u32,
        ];
        let all: Vec<String> = all.iter().map(|number| format!("{number:x}")).collect();
        writeln!(text, "S {}", all.join(" ")).expect("a string takes all");
        let memory = self.machine.memory.clone();
        let mut sequencer = Sequencer::new(words, &memory, LINES as u32);
        let mut issues: Vec<Issue> = vec![];
        while let Next::Issue(issue) = sequencer.next().expect("words are drawn sound") {
            issues.push(issue);
        }
        let broken = self.broken.iter().any(Option::is_some);
        let before = self.machine.clone();
        let mut seen = Seen::default();
        let outcome = self.machine.step(words, &[0], &mut seen).remove(0);
        let mut writes = seen.0.into_iter();
        let count = issues.len();
        for (place, issue) in issues.into_iter().enumerate() {
            writeln!(self.text, "O {}", Op::of(issue.work).hex()).expect("a string takes all");
            if broken {
                // Nothing is said of what it wrote.
                writeln!(self.text, "E 7").expect("a string takes all");
                self.machine = before;
                return;
            }
            let Some(writes) = writes.next() else {
                let fault = outcome.expect_err("it did not end").fault;
                writeln!(self.text, "E {:x}", end(fault)).expect("a string takes all");
                return;
            };
            self.written(&writes);
            let sample =
                if place + 1 == count { outcome.ok().and_then(|outcome| outcome.sample) } else { None };
            if let (Work::Head { last: true, .. }, Some(sample)) = (issue.work, sample) {
                let logp = sample.log_probability as u32;
                writeln!(self.text, "Q {:x} {logp:x}", sample.token).expect("a string takes all");
            }
            writeln!(self.text, "E 0").expect("a string takes all");
        }
    }

    /// What a word wrote: on-chip memory in whole lines; of the arena and the output region the lines that are touched, as they are behind
    /// the whole program, no two words of which touch the same.
    fn written(&mut self, writes: &[Write]) {
        let mut touched: Vec<(char, u64)> = vec![];
        for write in writes {
            let letter = match write.space {
                Space::Chip => {
                    self.lines('W', lines(write.at), &write.bytes);
                    continue;
                }
                Space::Kv => 'K',
                Space::Output => 'U',
                Space::Logits => continue,
            };
            let end = (write.at + write.bytes.len() as u64).div_ceil(LINE as u64);
            touched.extend((write.at / LINE as u64..end).map(|line| (letter, line)));
        }
        touched.sort_unstable();
        touched.dedup();
        for (letter, line) in touched {
            let memory = if letter == 'K' { &self.machine.kv } else { &self.machine.contexts[0].output };
            let bytes = memory[line as usize * LINE..][..LINE].to_vec();
            self.lines(letter, line, &bytes);
        }
    }

    fn step(&mut self, position: u32) {
        let draws = &mut self.draws;
        let sharpness = match draws.below(4) {
            0 => Sharpness::GREEDY,
            1 => Sharpness::ONE,
            _ => Sharpness(draws.from(1, (1 << 28) - 1) as u32 >> draws.below(20)),
        };
        let sharpness = if sharpness.0 == 0 { Sharpness::GREEDY } else { sharpness };
        let (seed, rollout) = (draws.next() as u32, draws.next() as u32);
        let sampling = Sampling { sharpness, seed, rollout, scores: false };
        let token = draws.below(1 << 17) as u32;
        let context = &mut self.machine.contexts[0];
        (context.token, context.position, context.sampling) = (token, position, sampling);
    }

    /// A line that this word reads answers with an error, in a few of the cases.
    fn break_line(&mut self, arena: bool, first: u64, count: u64) {
        if self.draws.chance(4) {
            let line = first + self.draws.below(count);
            self.broken[usize::from(arena)] = Some(line);
            writeln!(self.text, "{} {line:x}", if arena { 'G' } else { 'F' }).expect("a string takes all");
        }
    }

    fn mend(&mut self) {
        if self.broken.iter().any(Option::is_some) {
            self.broken = [None; 2];
            // F and G without a line mend all.
            writeln!(self.text, "F {:x}", u32::MAX).expect("a string takes all");
            writeln!(self.text, "G {:x}", u32::MAX).expect("a string takes all");
        }
    }

    // ------------------------------------------------------------ what each unit is given

    /// An activation of sound format, or nonsense; its exponent.
    fn activation(&mut self, line: u64, columns: u64) -> i16 {
        let draws = &mut self.draws;
        let mut bytes = plain(&draws.integers(columns));
        if draws.chance(15) {
            bytes = draws.bytes(bytes.len() as u64);
        }
        let scale = if draws.chance(90) { 0x8000 | draws.next() as u16 } else { draws.next() as u16 };
        let exponent = if draws.chance(95) { draws.below(200) as i16 - 100 } else { draws.next() as i16 };
        bytes[..2].copy_from_slice(&scale.to_le_bytes());
        bytes[2..4].copy_from_slice(&exponent.to_le_bytes());
        self.chip(line, bytes);
        exponent
    }

    /// A matrix in model memory: descriptors `index` and the one behind it, shape `index`.
    fn matrix(&mut self, index: u64, rows: u64, columns: u64, exponent: i16) -> Vec<u64> {
        let row = layout::row(columns);
        let sizes = [rows * row / LINE as u64, rows.div_ceil(32)];
        let places = self.draws.apart(MEMORY, &sizes);
        let narrow = self.draws.below(7);
        let mut weights = vec![];
        for _ in 0..rows {
            let of_row = self.draws.bytes(columns).into_iter().map(|byte| (byte as i8 >> narrow) as u8);
            weights.extend(of_row);
            // What fills a row up is 0 in an image, and nothing must need that.
            let rest = weights.len().next_multiple_of(LINE) - weights.len();
            weights.extend(self.draws.bytes(rest as u64));
        }
        self.memory(places[0], weights);
        let small = self.draws.below(12);
        let scales = (0..rows).flat_map(|_| (self.draws.next() as u16 >> small).to_le_bytes()).collect();
        self.memory(places[1], scales);
        if index == 0 {
            self.break_line(false, places[0], sizes[0]);
        }
        vec![
            word("memset.weight", &[("index", index), ("m", rows), ("n", 1), ("k", columns)]),
            word(
                "memset.desc",
                &[("index", index), ("base", places[0]), ("aux", u64::from(exponent as u16))],
            ),
            word("memset.desc", &[("index", index + 1), ("base", places[1])]),
        ]
    }

    fn columns(&mut self) -> u64 {
        match self.draws.below(20) {
            0 => 32 * self.draws.from(60, 80),
            1..=9 => 32 * self.draws.from(1, 20),
            _ => 32 * self.draws.from(1, 4),
        }
    }

    fn gemv(&mut self) {
        let position = self.draws.below(1 << 17) as u32;
        self.step(position);
        let columns = self.columns();
        let most = (MEMORY / 2 / columns.div_ceil(64)).min(200);
        if self.draws.chance(40) {
            // A chain of one to three, now and then without its first.
            let pieces = self.draws.from(1, 3);
            let begins = !self.draws.chance(6);
            let mut words = vec![];
            for piece in 0..pieces {
                let last = piece + 1 == pieces;
                let rows = if last { self.draws.from(1, most / 2) } else { 32 * self.draws.from(1, 2) };
                let src = self.draws.below(LINES - layout::activation(columns) + 1);
                let exponent = self.activation(src, columns);
                let aux = self.exponent(exponent);
                words.extend(self.matrix(2 * piece, rows, columns, aux));
                let first = u64::from(piece == 0 && begins);
                let cap = u64::from(self.draws.chance(40));
                let fields =
                    [("src", src), ("desc", 2 * piece), ("shape", 2 * piece), ("first", first), ("cap", cap)];
                words.push(word("head", &[&fields[..], &[("last", last.into())]].concat()));
            }
            words.push(word("end", &[]));
            if !begins {
                // What continues nothing reads nothing.
                self.mend();
            }
            self.run(&words);
            self.mend();
            return;
        }
        let acc = self.draws.chance(50);
        // What is not added may have any number of rows, which zeros fill up to 32.
        let rows = if acc || self.draws.chance(30) {
            32 * self.draws.from(1, most / 32)
        } else {
            self.draws.from(1, most)
        };
        let sizes = [layout::activation(columns), layout::products(rows)];
        let places = self.draws.apart(LINES, &sizes);
        let exponent = self.activation(places[0], columns);
        let aux = self.exponent(exponent);
        if acc {
            let before = integers(&self.draws.integers(rows));
            self.chip(places[1], before);
        }
        let scale = self.draws.chance(80);
        let mut words = self.matrix(0, rows, columns, aux);
        words.push(word(
            "gemv",
            &[("dest", places[1] * 4), ("src", places[0] * 4), ("acc", acc.into()), ("scale", scale.into())],
        ));
        words.push(word("end", &[]));
        self.run(&words);
        self.mend();
    }

    /// An exponent of a matrix with which most products mean something.
    fn exponent(&mut self, activation: i16) -> i16 {
        if self.draws.chance(10) {
            return self.draws.next() as i8 as i16;
        }
        let shift = self.draws.below(60) as i16 - 4;
        (-shift - 18).saturating_sub(activation).clamp(-128, 127)
    }

    fn sfu(&mut self) {
        let position = self.draws.below(1 << 17) as u32;
        self.step(position);
        let name = *self.draws.one(&[
            "vec.add",
            "vec.mul",
            "vec.act",
            "vec.swiglu",
            "vec.norm",
            "vec.rope",
            "vec.store",
            "vec.level",
            "vec.tanh",
            "vec.geglu",
            "vec.blend",
            "vec.cut",
            "vec.rescale",
            "vec.predict",
            "vec.correct",
        ]);
        let is = |names: &[&str]| names.contains(&name);
        let streams = is(&["vec.predict", "vec.correct"]);
        let (heads, width) = if is(&["vec.rope", "vec.store", "vec.level"]) {
            let most = if name == "vec.level" { 64 } else { 8 };
            let width = 32 * self.draws.mostly(70, 3, most);
            (self.draws.mostly(80, 9, 40).min(3072 / width), width)
        } else if streams {
            (if self.draws.chance(70) { 4 } else { self.draws.from(1, 3) }, 32 * self.draws.mostly(85, 6, 40))
        } else {
            (1, 32 * self.draws.mostly(85, 20, 110))
        };
        let count = heads * width;
        let two = is(&["vec.add", "vec.mul", "vec.swiglu", "vec.geglu", "vec.blend", "vec.rescale"]);
        let b_lines = match name {
            _ if two => layout::integers(count),
            "vec.norm" => layout::gain(count),
            "vec.level" => layout::gain(width),
            "vec.rope" => layout::turns(width),
            _ if streams => 1,
            _ => 0,
        };
        let written = match name {
            "vec.act" | "vec.swiglu" | "vec.norm" | "vec.tanh" | "vec.geglu" => layout::activation(count),
            "vec.store" => layout::stored(heads, width),
            _ => layout::integers(count),
        };
        let of_a = if name == "vec.correct" { width } else { count };
        let places = self.draws.apart(LINES, &[layout::integers(of_a), b_lines, written]);
        let [a, mut b, mut dst] = [places[0], places[1], places[2]];
        let mut values = self.draws.integers(of_a);
        if name == "vec.store" && self.draws.chance(50) {
            // Numbers that lie in the middle between two mantissas: odd multiples of a 32nd of the scale.
            for head in values.chunks_exact_mut(width as usize) {
                let part = self.draws.from(1, 2000) as i32;
                for value in &mut *head {
                    let odd = part * (2 * self.draws.below(127) as i32 + 1);
                    *value = if self.draws.chance(50) { -odd } else { odd };
                }
                head[0] = 254 * part;
            }
        }
        self.chip(a, integers(&values));
        if name == "vec.correct" {
            let values = integers(&self.draws.integers(count));
            self.chip(dst, values);
        }
        if two && name != "vec.rescale" && self.draws.chance(10) {
            b = a;
        } else if two {
            let values = integers(&self.draws.integers(count));
            self.chip(b, values);
        } else if streams {
            // Some tens at most, or anything; nonsense behind them.
            let few = if self.draws.chance(85) { 31 - self.draws.from(8, 16) } else { 0 };
            let coefficients: Vec<i32> = (0..16).map(|_| self.draws.next() as i32 >> few).collect();
            self.chip(b, integers(&coefficients));
        } else if b_lines > 0 {
            let small = self.draws.below(14);
            let mut numbers = vec![];
            let is_gain = name != "vec.rope";
            let factors = self.draws.bytes(2 * if name == "vec.norm" { count } else { width });
            let factors = factors.chunks_exact(2).map(|two| i16::from_le_bytes([two[0], two[1]]) >> small);
            numbers.extend(factors.flat_map(i16::to_le_bytes));
            if is_gain && self.draws.chance(90) {
                let mut head = self.draws.bytes(LINE as u64);
                // Where a head is shifted right or left, and where to the left nothing but 0 stays within the bounds.
                let least = if name == "vec.level" && self.draws.chance(40) { 20 } else { -30 };
                let exponent = self.draws.from(0, 40) as i16 + least;
                head[..2].copy_from_slice(&exponent.to_le_bytes());
                self.chip(b, head);
            }
            self.chip(b + u64::from(is_gain), numbers);
        }
        let onto_a = is(&["vec.rope", "vec.level", "vec.cut", "vec.rescale", "vec.predict"]);
        let onto_either = is(&["vec.add", "vec.mul", "vec.blend"]);
        if (onto_a || onto_either) && self.draws.chance(40) {
            dst = if onto_either && self.draws.chance(50) { b } else { a };
        }
        let epsilon = self.draws.next() as u32 >> self.draws.below(32);
        let cut = match self.draws.below(4) {
            0 => 0,
            1 => self.draws.next() >> (32 + self.draws.below(32)),
            _ => 107_797,
        };
        let (m, n, k) = if count == width { (1, 1, width) } else { (heads, 1, width) };
        let mut fields = vec![("dst", dst), ("a", a)];
        if b_lines > 0 {
            fields.push(("b", b));
        }
        let words = [
            word("memset.fmap", &[("m", m), ("n", n), ("k", k)]),
            word("memset.epsilon", &[("value", epsilon.into())]),
            word("memset.cut", &[("value", cut)]),
            word(name, &fields),
            word("end", &[]),
        ];
        self.run(&words);
    }

    fn mem(&mut self) {
        let kind = self.draws.below(6);
        let position = self.draws.below(40) as u32;
        self.step(position);
        let asynchronous = self.draws.below(2);
        let a_word = ("async", asynchronous);
        match kind {
            0 => {
                let count = self.draws.from(1, 40);
                let dest = self.draws.below(LINES - count);
                let from = self.draws.below(MEMORY - count - 8);
                let bytes = self.draws.bytes(count * LINE as u64);
                let src = self.draws.below(from.min(8) + 1);
                self.memory(from, bytes);
                self.break_line(false, from, count);
                self.run(&[
                    word("memset.fmap", &[("m", count), ("n", 2), ("k", 2)]),
                    word("memset.desc", &[("base", from - src)]),
                    word("memcpy.in", &[("dest", dest * 4), ("src", src), a_word]),
                    word("end", &[]),
                ]);
            }
            1 => {
                let factors = 32 * self.draws.from(1, 40);
                let count = layout::gain(factors);
                let dest = self.draws.below(LINES - count);
                let from = self.draws.below(MEMORY - count);
                let bytes = self.draws.bytes(2 * factors);
                self.memory(from, bytes);
                self.break_line(false, from, count - 1);
                let exponent = u64::from(i16::from(self.draws.next() as i8) as u16);
                self.run(&[
                    word("memset.fmap", &[("m", 1), ("n", 1), ("k", factors)]),
                    word("memset.desc", &[("base", from), ("aux", exponent)]),
                    word("memcpy.gain", &[("dest", dest * 4), a_word]),
                    word("end", &[]),
                ]);
            }
            2 => {
                let [rows, count] = [self.draws.from(1, 40), self.draws.from(1, 6)];
                let stride = self.draws.from(0, 12);
                let dest = self.draws.below(LINES - count);
                let from = self.draws.below(MEMORY - rows * stride - count);
                if u64::from(position) < rows {
                    let bytes = self.draws.bytes(count * LINE as u64);
                    self.memory(from + u64::from(position) * stride, bytes);
                    self.break_line(false, from + u64::from(position) * stride, count);
                }
                self.run(&[
                    word("memset.fmap", &[("m", rows), ("n", 1), ("k", count * 4)]),
                    word("memset.desc", &[("base", from), ("aux", stride)]),
                    word("memcpy.row", &[("dest", dest * 4), a_word]),
                    word("end", &[]),
                ]);
            }
            3 => {
                let columns = self.columns();
                let rows = self.draws.from(1, 100.min(MEMORY / 2 / columns.div_ceil(64)));
                let exponent = self.draws.below(60) as i16 - 50;
                let mut words = self.matrix(0, rows, columns, exponent);
                let token = self.draws.below(rows + rows / 10 + 1);
                self.machine.contexts[0].token = token as u32;
                // Which of its lines was to be broken it may not read.
                self.mend();
                let dest = self.draws.below(LINES - layout::integers(columns));
                words.push(word("memcpy.embed", &[("dest", dest * 4), a_word]));
                words.push(word("end", &[]));
                self.run(&words);
            }
            4 => {
                let (heads, width) = (self.draws.from(1, 20), 32 * self.draws.from(1, 4));
                let (mut words, ..) = self.kv(heads, width, position);
                let count = layout::stored(2 * heads, width);
                let src = self.draws.below(LINES - count);
                let bytes = self.draws.bytes(count * LINE as u64);
                self.chip(src, bytes);
                words.push(word("memset.fmap", &[("m", 2), ("n", heads), ("k", width)]));
                words.push(word("memcpy.kv", &[("src", src * 4), a_word]));
                words.extend([word("next", &[]), word("end", &[])]);
                self.run(&words);
            }
            _ => {
                let count = self.draws.from(1, 8);
                let [src, to] = [self.draws.below(LINES - count), self.draws.below(12)];
                self.run(&[
                    word("memset.fmap", &[("m", count), ("n", 2), ("k", 2)]),
                    word("memcpy.out", &[("dest", to), ("src", src * 4), a_word]),
                    word("end", &[]),
                ]);
            }
        }
        self.mend();
    }

    /// A block table, and one or two layers of keys and values up to a position: MEMSET of descriptor 0 and `layers`; lines of
    /// the stride, and of a block.
    fn kv(&mut self, heads: u64, width: u64, position: u32) -> (Vec<u64>, Vec<u32>, bool) {
        let head = lines(Block { width }.bytes());
        let stride = heads * head + self.draws.below(3);
        let layers = self.draws.from(1, 2);
        let block = stride * layers + self.draws.below(4);
        let fit = (ARENA / block).min(64);
        let needed = position / 32 + 1;
        let mut table: Vec<u32> = (0..ENTRIES).map(|_| self.draws.below(fit) as u32).collect();
        let short = self.draws.chance(5);
        let mut sound = !short;
        table.truncate(if short { needed as usize - 1 } else { ENTRIES as usize });
        if self.draws.chance(5) && !table.is_empty() {
            let entry = self.draws.below(u64::from(needed.min(table.len() as u32))) as usize;
            let bad = [fit, fit + 1, u64::from(u32::MAX)][self.draws.below(3) as usize];
            // Just behind the last block that fits, unless the arena has room for it.
            sound = false;
            table[entry] = if (bad + 1).saturating_mul(block) > ARENA { bad as u32 } else { u32::MAX };
        }
        for entry in 0..=ENTRIES {
            let (line, end) = match table.get(entry as usize) {
                None => (0, 3),
                Some(&number) if (u64::from(number) + 1) * block > ARENA => (0, 4),
                Some(&number) => (u64::from(number) * block, 0),
            };
            writeln!(self.text, "B {entry:x} {line:x} {end:x}").expect("a string takes all");
        }
        self.machine.contexts[0].blocks.clone_from(&table);
        // The table of layers' words has none; its descriptor is number 1.
        let words = vec![
            word("memset.desc", &[("base", block), ("aux", stride)]),
            word("memset.desc", &[("index", 1)]),
            word("layers", &[("count", layers), ("words", 0), ("desc", 1)]),
        ];
        (words, table, sound)
    }

    fn attend(&mut self) {
        let width = 32 * self.draws.mostly(80, 2, 8);
        let kv_heads = self.draws.from(1, 3);
        let heads = kv_heads * self.draws.from(1, 3);
        // In these cases there are positions between the sinks and the window. Nothing may read them, and every block that is read counts.
        let gap = self.draws.chance(40);
        let position = match self.draws.below(10) {
            _ if gap => 64 + self.draws.below(66),
            0..=3 => self.draws.below(32),
            4..=8 => self.draws.below(130),
            _ => self.draws.below(u64::from(ENTRIES) * 32),
        } as u32;
        self.step(position);
        let (mut words, table, sound) = self.kv(kv_heads, width, position);
        // Scales by some power of 2 for each block, so that the bins of scores move; mantissas by chance.
        let head = lines(Block { width }.bytes());
        let [block, stride] = [words[0] >> 20 & 0xFFFF_FFFF, words[0] >> 4 & 0xFFFF];
        let layers = words[2] >> 40 & 0xFFFF;
        let plain = self.draws.chance(if gap { 100 } else { 70 });
        let spread = self.draws.from(1, if gap { 2 } else { 15 });
        let window = self.draws.chance(if gap { 100 } else { 50 }).then(|| match self.draws.below(4) {
            _ if gap => self.draws.from(1, u64::from(position) - 32),
            0 => 65_536,
            1 => self.draws.from(1, u64::from(position) + 2),
            _ => self.draws.from(1, 80),
        });
        let source = self.draws.chance(30).then(|| self.draws.below(layers));
        // Sinks that the window reaches, that it leaves, and more than there are positions.
        let sinks = self.draws.chance(if gap { 70 } else { 40 }).then(|| match self.draws.below(8) {
            _ if gap => 32,
            0 => 65_536,
            1 => 32 * self.draws.below(u64::from(position) / 32 + 2),
            _ => 32 * self.draws.below(4),
        });
        let seen = doorbell_npu::run::Seen {
            window: window.map(|window| window as u32),
            sinks: sinks.unwrap_or(0) as u32,
        };
        let (sunk, first) = seen.at(position);
        let seen = if sunk == 0 { u64::from(first) / 32 } else { 0 };
        for (entry, &number) in table.iter().enumerate() {
            if entry as u32 > position / 32 || (u64::from(number) + 1) * block > ARENA {
                continue;
            }
            for at in (0..layers).flat_map(|layer| (0..kv_heads).map(move |head| (layer, head))) {
                let line = u64::from(number) * block + at.0 * stride + at.1 * head;
                let mut bytes = self.draws.bytes(head * LINE as u64);
                if plain {
                    let small = self.draws.below(spread);
                    let half = bytes.len() / 2;
                    for token in (0..32).flat_map(|token| [2 * token, half + 2 * token]) {
                        let scale = u16::from_le_bytes([bytes[token], bytes[token + 1]]) >> small;
                        bytes[token..token + 2].copy_from_slice(&scale.to_le_bytes());
                    }
                }
                self.arena(line, bytes);
                if sound && at == (source.unwrap_or(0), 0) && entry as u64 == seen {
                    // A line that is read: scales of keys, in the first block that is seen.
                    self.break_line(true, line, 1);
                }
            }
        }
        let sizes = [layout::stored(heads, width), layout::integers(heads * width)];
        let places = self.draws.apart(LINES, &sizes);
        let mut stored = self.draws.bytes(sizes[0] * LINE as u64);
        let small = self.draws.below(16);
        for head in 0..heads as usize {
            let scale = u16::from_le_bytes([stored[2 * head], stored[2 * head + 1]]) >> small;
            stored[2 * head..2 * head + 2].copy_from_slice(&scale.to_le_bytes());
        }
        self.chip(places[0], stored);
        let factor = if plain { self.draws.from(1000, 20_000) } else { self.draws.next() >> 32 };
        words.insert(0, word("memset.factor", &[("value", factor)]));
        words.insert(0, word("memset.fmap", &[("m", heads), ("n", kv_heads), ("k", width)]));
        let fields = [("dst", places[1]), ("src", places[0])];
        let flags = [("window", window), ("source", source), ("sinks", sinks)];
        let flags = flags.map(|(name, value)| (name, value.is_some().into()));
        words.push(word("attn", &[&fields[..], &flags].concat()));
        let registers = [("memset.window", window), ("memset.source", source), ("memset.sinks", sinks)];
        for (register, value) in registers {
            words.splice(..0, value.map(|value| word(register, &[("value", value)])));
        }
        words.extend([word("next", &[]), word("end", &[])]);
        self.run(&words);
        self.mend();
    }
}

/// `npu_end_t`.
fn end(fault: Fault) -> u32 {
    match fault {
        Fault::BadToken { .. } => 1,
        Fault::BadPosition { .. } => 2,
        Fault::BlockMissing { .. } => 3,
        Fault::BlockOutOfRange { .. } => 4,
        Fault::OutputOutOfRange { .. } => 5,
        Fault::NoFirst => 6,
        _ => panic!("a word that was drawn sound is refused: {fault}"),
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let usage = "vectors mem|gemv|sfu|attend|decode|sequence|step SEED CASES";
    let [unit, seed, cases] = arguments.as_slice() else { panic!("usage: {usage}") };
    let (seed, cases) = (seed.parse().expect(usage), cases.parse().expect(usage));
    let of: fn(&mut Script) = match unit.as_str() {
        "gemv" => Script::gemv,
        "sfu" => Script::sfu,
        "mem" => Script::mem,
        "attend" => Script::attend,
        "decode" => return words::print(seed, cases),
        "sequence" => return sequences::print(seed, cases),
        "step" => return steps::print(seed, cases),
        "words" => return steps::words(seed),
        "micro" => return steps::of(&doorbell_lm::micro(), seed),
        "micro-gemma" => return steps::of(&doorbell_lm::micro_gemma(), seed),
        "tiny" => return steps::of(&doorbell_lm::tiny(), seed),
        _ => panic!("usage: {usage}"),
    };
    let mut script = Script::new(seed);
    (0..cases).for_each(|_| of(&mut script));
    print!("{}", script.text);
}
