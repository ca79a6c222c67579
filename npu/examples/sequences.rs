//! Programs for the bench of the sequencer, each with the words that the interpreter makes ready of it, and how it ends.
//!
//!     cargo run --release -p doorbell-npu --example sequences -- SEED COUNT > FILE
//!
//! A case is `C words line memory silent lines`, then `lines` lines of memory (place, faulty, 512 bits), then `I` and an `npu_issue_t` for each word,
//! and at last `E` and an `npu_log_t`.

use doorbell_npu::isa::{FORMS, Fault, Unit};
use doorbell_npu::layout::LINE;
use doorbell_npu::run::{Engine, Function, Issue, MatrixAt, Next, Range, Refused, Sequencer, Work};
use doorbell_npu::text::assemble;

/// Lines of a context, and of the model's memory; where programs stand.
const LINES: u32 = 32;
const MEMORY: u64 = 200;
const PROGRAM: u64 = 1000;
/// Stands in lines that memory answers with an error.
const POISON: u64 = 0xFBAD_FBAD_FBAD_FBAD;
/// Of the bus: `FAULT_MEMORY` of `npu_pkg`.
const BUS: u8 = 31;

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

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    fn of<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len() as u64) as usize]
    }
}

/// Bits, the highest first, as a packed structure has them.
#[derive(Default)]
struct Packed(Vec<bool>);

impl Packed {
    fn push(&mut self, value: u64, width: u32) {
        assert!(width == 64 || value >> width == 0, "{value:#x} has more than {width} bits");
        self.0.extend((0..width).rev().map(|bit| value >> bit & 1 == 1));
    }

    fn range(&mut self, range: Option<Range>) {
        let (start, end) = match range {
            Some(Range::Lines(start, end)) => (start.into(), end.into()),
            _ => (0, 0),
        };
        self.push(u64::from(end != 0), 1);
        self.push(start, 15);
        self.push(end, 16);
    }

    fn place(&mut self, pc: u32, layer: Option<u16>, word: u64) {
        self.push(pc.into(), 16);
        self.push(layer.is_some().into(), 1);
        self.push(layer.unwrap_or_default().into(), 16);
        self.push(word, 64);
    }

    fn hex(&self) -> String {
        let bits: Vec<bool> = std::iter::repeat_n(false, self.0.len().wrapping_neg() % 4)
            .chain(self.0.iter().copied())
            .collect();
        let digit = |four: &[bool]| four.iter().fold(0u32, |value, &bit| value << 1 | u32::from(bit));
        bits.chunks(4).map(|four| char::from_digit(digit(four), 16).expect("four bits")).collect()
    }
}

/// Fields of `npu_op_t`, behind its flags.
#[derive(Default)]
struct Op {
    kind: u64,
    flags: u64,
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
}

impl Op {
    fn of(work: &Work) -> Self {
        let line = |byte: u64| byte / LINE as u64;
        let matrix = |op: Self, matrix: MatrixAt| {
            let MatrixAt { weights, scales, exponent, rows, columns } = matrix;
            Self { rows, columns, exponent, from: line(weights), scales: line(scales), ..op }
        };
        match *work {
            Work::Copy { dst, from, lines } => {
                Self { kind: 0, dst, from: line(from), lines, ..Self::default() }
            }
            Work::Gain { dst, from, exponent, lines } => {
                Self { kind: 1, dst, from: line(from), exponent, lines, ..Self::default() }
            }
            Work::Row { dst, from, stride, rows, lines } => {
                Self { kind: 2, dst, from: line(from), stride: line(stride), rows, lines, ..Self::default() }
            }
            Work::Embed { dst, matrix: at } => matrix(Self { kind: 3, dst, ..Self::default() }, at),
            Work::Append { src, kv } => Self {
                kind: 4,
                a: src,
                kv_heads: kv.heads,
                width: kv.width,
                block: line(kv.block),
                layer: line(kv.layer),
                ..Self::default()
            },
            Work::Out { src, to, lines } => {
                Self { kind: 5, a: src, from: line(to), lines, ..Self::default() }
            }
            Work::Multiply { dst, src, matrix: at, accumulate, scaled } => {
                let flags = u64::from(accumulate) << 3 | u64::from(scaled) << 2;
                matrix(Self { kind: 6, flags, dst, a: src, ..Self::default() }, at)
            }
            Work::Head { src, matrix: at, first, last } => {
                let flags = u64::from(first) << 1 | u64::from(last);
                matrix(Self { kind: 7, flags, a: src, ..Self::default() }, at)
            }
            Work::Vector { function, dst, a, b, heads, width } => {
                let (kind, value) = match function {
                    Function::Add => (8, 0),
                    Function::Multiply => (9, 0),
                    Function::Activate => (10, 0),
                    Function::Swiglu => (11, 0),
                    Function::Normalise(epsilon) => (12, epsilon),
                    Function::Rotate => (13, 0),
                    Function::Store => (14, 0),
                };
                Self { kind, dst, a, b, heads, width, value, ..Self::default() }
            }
            Work::Attend { dst, src, heads, kv, factor } => Self {
                kind: 15,
                dst,
                a: src,
                heads,
                kv_heads: kv.heads,
                width: kv.width,
                block: line(kv.block),
                layer: line(kv.layer),
                value: factor,
                ..Self::default()
            },
        }
    }

    fn push(&self, packed: &mut Packed) {
        packed.push(self.kind, 4);
        packed.push(self.flags, 4);
        packed.push(self.dst.into(), 15);
        packed.push(self.a.into(), 15);
        packed.push(self.b.into(), 15);
        packed.push(self.lines.into(), 16);
        packed.push(self.rows.into(), 21);
        packed.push(self.columns.into(), 16);
        packed.push(self.heads.into(), 13);
        packed.push(self.kv_heads.into(), 13);
        packed.push(self.width.into(), 17);
        packed.push((self.exponent as u16 & 0xFF).into(), 8);
        packed.push(self.from, 34);
        packed.push(self.scales, 32);
        packed.push(self.stride, 15);
        packed.push(self.block, 32);
        packed.push(self.layer, 31);
        packed.push(self.value.into(), 32);
    }
}

fn issue(issue: &Issue) -> String {
    let mut packed = Packed::default();
    packed.place(issue.pc, issue.layer, issue.word);
    let unit = Engine::ALL.iter().position(|&engine| engine == issue.engine()).expect("one of them");
    packed.push(unit as u64, 2);
    packed.push(issue.waited_for().into(), 1);
    let is_lines = |range: &Range| matches!(range, Range::Lines(..));
    let (reads, writes) = (issue.reads(), issue.writes());
    let lines: Vec<Range> = reads.iter().copied().filter(is_lines).collect();
    packed.range(lines.first().copied());
    packed.range(lines.get(1).copied());
    packed.range(writes.filter(is_lines));
    packed.push(reads.iter().any(|range| !is_lines(range)).into(), 1);
    packed.push(writes.is_some_and(|range| !is_lines(&range)).into(), 1);
    Op::of(&issue.work).push(&mut packed);
    packed.hex()
}

fn log(code: u8, pc: u32, layer: Option<u16>, word: u64) -> String {
    let mut packed = Packed::default();
    packed.place(pc, layer, word);
    packed.push(code.into(), 5);
    packed.hex()
}

/// Programs of tests/faults.rs: what stands in its cases, behind its MEMSETs.
fn named() -> (String, Vec<String>) {
    // The longest loop there is takes a simulation too long.
    let text = include_str!("../tests/faults.rs").replace("\\n", "\n").replace("count=65535", "count=300");
    let quoted = |from: &str| -> String {
        let start = from.find('"').expect("a string") + 1;
        from[start..].split('"').next().expect("a string").to_owned()
    };
    let set = quoted(text.split("const SET").nth(1).expect("MEMSETs"));
    let cases =
        text.split("#[case").skip(1).filter(|part| part.trim_start_matches([':', '(', ')']).contains('"'));
    let known =
        |line: &str| line.starts_with('.') || FORMS.iter().any(|form| line.starts_with(form.mnemonic));
    (set, cases.map(quoted).filter(|lines| known(lines)).collect())
}

/// A word by chance, mostly one that can be executed in the machine of `SET`.
fn word(draws: &mut Draws) -> String {
    let chip = |draws: &mut Draws| draws.below(u64::from(LINES) + 2) * 4;
    let (x, y, z) = (chip(draws), chip(draws), chip(draws));
    // Shapes and descriptors that fit, more often than others.
    let mut pick = |fits: &[u64]| if draws.chance(4) { draws.below(20) } else { *draws.of(fits) };
    let (vector, head, words, kv) = (pick(&[0]), pick(&[1]), pick(&[2]), pick(&[5]));
    let (weights, matrix, table) = (pick(&[0]), pick(&[0]), pick(&[8]));
    let flag = |draws: &mut Draws, name| if draws.chance(50) { name } else { "" };
    let sync = flag(draws, "async");
    match draws.below(18) {
        0 | 1 => format!(
            "gemv dest={x} src={y} desc={weights} shape={matrix} lanes={} {} {}",
            draws.below(32),
            flag(draws, "acc"),
            flag(draws, "scale")
        ),
        2 => format!(
            "head src={y} desc={weights} shape={} {} {}",
            draws.of(&[0, 0, 0, 1]),
            flag(draws, "first"),
            flag(draws, "last")
        ),
        3 => format!(
            "memcpy.in dest={x} src={} desc={} shape={words} {sync}",
            draws.below(60),
            draws.of(&[12, 0, 1])
        ),
        4 => format!("memcpy.gain dest={x} desc={} shape={vector} {sync}", draws.of(&[12, 0, 13])),
        5 => format!("memcpy.row dest={x} desc={table} shape=3 {sync}"),
        6 => format!("memcpy.embed dest={x} desc={weights} shape={matrix} {sync}"),
        7 | 8 => format!("memcpy.kv src={y} desc={kv} shape={head} {sync}"),
        9 => format!("memcpy.out dest={} src={y} shape={words} {sync}", draws.below(9)),
        10 => format!(
            "{} dst={x} a={y} b={z} shape={vector}",
            draws.of(&["vec.add", "vec.mul", "vec.swiglu", "vec.norm"])
        ),
        11 => format!("vec.add dst={x} a={x} b={x} shape={vector}"),
        12 => format!("vec.act dst={x} a={y} shape={vector}"),
        13 => format!("vec.rope dst={x} a={} b={z} shape={head}", draws.of(&[x, y])),
        14 => format!("vec.store dst={x} a={y} shape={head}"),
        15 | 16 => format!("attn dst={x} src={y} shape={head} desc={kv}"),
        _ => format!(
            "memset.desc index={} base={} aux={}",
            draws.below(64),
            draws.below(MEMORY),
            draws.of(&[0i64, 1, 5, 34, -20])
        ),
    }
}

struct Case {
    words: Vec<u64>,
    memory: Vec<u8>,
    silent: bool,
    /// A line that memory answers with an error: of the program, or of memory.
    poisoned: Option<(bool, u64)>,
}

fn say(case: &Case) {
    let Case { words, memory, silent, poisoned } = case;
    let (mut known, mut seen) = (words.clone(), memory.clone());
    match *poisoned {
        Some((true, line)) => {
            known.iter_mut().skip(line as usize * 8).take(8).for_each(|word| *word = POISON)
        }
        Some((false, line)) => {
            for eight in seen[line as usize * LINE..][..LINE].chunks_exact_mut(8) {
                eight.copy_from_slice(&POISON.to_le_bytes());
            }
        }
        None => {}
    }
    let program: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let line_of = |bytes: &[u8]| bytes.iter().rev().map(|byte| format!("{byte:02x}")).collect::<String>();
    let program_lines =
        program.chunks(LINE).enumerate().map(|(line, bytes)| (PROGRAM + line as u64, line_of(bytes)));
    // Of the model's memory only layers' words are read: its last lines.
    let layer_lines =
        (MEMORY - 16..MEMORY).map(|line| (line, line_of(&memory[line as usize * LINE..][..LINE])));
    let all: Vec<(u64, String)> = program_lines.chain(layer_lines).collect();
    println!("C {} {PROGRAM} {MEMORY} {} {}", words.len(), u8::from(*silent), all.len());
    let faulty = poisoned.map(|(program, line)| if program { PROGRAM + line } else { line });
    for (line, bytes) in &all {
        println!("{line} {} {bytes}", u8::from(faulty == Some(*line)));
    }
    let mut sequencer = Sequencer::new(&known, &seen, LINES);
    loop {
        match sequencer.next() {
            Ok(Next::Issue(next)) => println!("I {}", issue(&next)),
            Ok(Next::Silent) if !silent => {}
            Ok(_) => break println!("E {}", log(0, 0, None, 0)),
            Err(Refused { pc, layer, word, fault }) => {
                let poison = matches!(fault, Fault::BadLayerWord { word: POISON });
                let (code, word) = match fault {
                    Fault::UnknownOpcode if word == POISON => (BUS, 0),
                    _ if poison => (BUS, word),
                    _ => (fault.code(), word),
                };
                break println!("E {}", log(code, pc, layer, word));
            }
        }
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<u64>().expect("SEED COUNT"));
    let (mut draws, count) = (Draws(arguments.next().unwrap_or(1)), arguments.next().unwrap_or(100));
    let (set, cases) = named();
    assert!(cases.len() > 80, "tests/faults.rs has {} cases", cases.len());
    let mut memory: Vec<u8> = (0..MEMORY as usize * LINE).map(|_| draws.next() as u8).collect();
    for (place, eight) in memory[198 * LINE..].chunks_exact_mut(8).enumerate() {
        let word: u64 = if place < 8 { 0x3000_0010_0020_0200 } else { 0x8000_0000_0000_0000 };
        eight.copy_from_slice(&word.to_le_bytes());
    }
    for lines in &cases {
        for tail in ["", "\nend"] {
            let words = assemble(&format!("{set}{lines}{tail}")).expect("words");
            say(&Case { words, memory: memory.clone(), silent: false, poisoned: None });
        }
    }
    for _ in 0..count {
        // Records of eleven words, two lines each, for eight layers: the context's shapes, set anew.
        let mut memory = memory.clone();
        let sets = assemble(&set).expect("words");
        for eight in memory[(MEMORY as usize - 16) * LINE..].chunks_exact_mut(8) {
            eight.copy_from_slice(&draws.of(&sets).to_le_bytes());
        }
        if draws.chance(10) {
            let at = (MEMORY as usize - 1 - draws.below(16) as usize) * LINE;
            memory[at..at + 8].copy_from_slice(&draws.next().to_le_bytes());
        }
        let lost = draws.below(400) as usize;
        let set: Vec<&str> =
            set.lines().enumerate().filter(|&(line, _)| line != lost).map(|(_, line)| line).collect();
        let mut text = set.join("\n") + "\nmemset.desc index=16 base=184 aux=2\n";
        let long = draws.chance(20);
        let list = |draws: &mut Draws, most: u64| {
            let words: Vec<String> = (0..draws.below(most)).map(|_| word(draws)).collect();
            words.join("\n")
        };
        text += &list(&mut draws, 12);
        if draws.chance(70) {
            text += "\nend.silent";
        }
        text += &format!(
            "\nlayers count={} words={} desc=16\n",
            1 + draws.below(8),
            draws.of(&[0, 1, 7, 8, 9, 11, 16])
        );
        text += &list(&mut draws, if long { 90 } else { 24 });
        text += "\nnext\n";
        text += &list(&mut draws, 4);
        text += *draws.of(&["\nend", "\nend", "\nend", ""]);
        // Words that cannot be executed are found alone and dropped, but for a few: programs are then longer.
        let all = assemble(&text).expect("words");
        let mut words = all.clone();
        for _ in 0..200 {
            let mut sequencer = Sequencer::new(&words, &memory, LINES);
            let refused = loop {
                match sequencer.next() {
                    Ok(Next::End) => break None,
                    Ok(_) => {}
                    Err(refused) => break Some(refused),
                }
            };
            match refused {
                Some(Refused { pc, fault, .. }) if fault != Fault::NoEnd && !draws.chance(1) => {
                    words.remove(pc as usize);
                }
                _ => break,
            }
        }
        // One is bent: another value in a field, or a bit.
        if draws.chance(40) {
            let at = draws.below(words.len() as u64) as usize;
            let form = doorbell_npu::isa::Form::of(words[at]);
            words[at] = match form {
                Ok(form) if !form.fields.is_empty() && draws.chance(80) => {
                    let field = draws.of(form.fields);
                    let bits = match field.unit {
                        Unit::Flag => draws.below(2),
                        _ => draws.next() & draws.next() & field.most(),
                    };
                    words[at] & !field.mask() | bits << field.low
                }
                _ => words[at] ^ 1 << draws.below(64),
            };
        }
        let poisoned = draws.chance(8).then(|| match draws.chance(50) {
            true => (true, draws.below(words.len().div_ceil(8) as u64)),
            false => (false, MEMORY - 16 + draws.below(16)),
        });
        say(&Case { words, memory, silent: draws.chance(20), poisoned });
    }
}
