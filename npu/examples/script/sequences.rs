//! Programs for the bench of the sequencer, each with the words that the interpreter makes ready of it, and how it ends.
//!
//! A case is `C words line memory silent lines`, then `lines` lines of memory (place, faulty, 512 bits), then `I` and an `npu_issue_t` for each word,
//! and at last `E` and an `npu_log_t`.

use doorbell_npu::isa::{FORMS, Fault, Unit};
use doorbell_npu::layout::LINE;
use doorbell_npu::run::{Engine, Issue, Next, Range, Refused, Sequencer};

use super::{Bits, Draws, Op, line_hex};
use doorbell_npu::text::assemble;

/// Lines of a context, and of the model's memory; where programs stand.
const LINES: u32 = 32;
const MEMORY: u64 = 200;
const PROGRAM: u64 = 1000;
/// Stands in lines that memory answers with an error.
const POISON: u64 = 0xFBAD_FBAD_FBAD_FBAD;
/// Of the bus: `FAULT_MEMORY` of `npu_pkg`.
const BUS: u8 = 31;

/// Bits of a range, of one that is no lines or none 0.
fn range(bits: &mut Bits, range: Option<Range>) {
    let (start, end) = match range {
        Some(Range::Lines(start, end)) => (start.into(), end.into()),
        _ => (0, 0),
    };
    bits.put(u64::from(end != 0), 1).put(start, 15).put(end, 16);
}

/// `npu_place_t`.
fn place(bits: &mut Bits, pc: u32, layer: Option<u16>, word: u64) {
    bits.put(pc.into(), 16)
        .put(layer.is_some().into(), 1)
        .put(layer.unwrap_or_default().into(), 16)
        .put(word, 64);
}

/// `npu_issue_t`.
fn issue(issue: &Issue) -> String {
    let mut bits = Bits::default();
    place(&mut bits, issue.pc, issue.layer, issue.word);
    let unit = Engine::ALL.iter().position(|&engine| engine == issue.engine()).expect("one of them");
    bits.put(unit as u64, 2).put(issue.waited_for().into(), 1);
    let is_lines = |range: &Range| matches!(range, Range::Lines(..));
    let (reads, writes) = (issue.reads(), issue.writes());
    let lines: Vec<Range> = reads.iter().copied().filter(is_lines).collect();
    range(&mut bits, lines.first().copied());
    range(&mut bits, lines.get(1).copied());
    range(&mut bits, writes.filter(is_lines));
    bits.put(reads.iter().any(|range| !is_lines(range)).into(), 1);
    bits.put(writes.is_some_and(|range| !is_lines(&range)).into(), 1);
    Op::of(issue.work).put(&mut bits);
    bits.hex()
}

/// `npu_log_t`.
pub fn log(code: u8, pc: u32, layer: Option<u16>, word: u64) -> String {
    let mut bits = Bits::default();
    place(&mut bits, pc, layer, word);
    bits.put(code.into(), 5);
    bits.hex()
}

/// Programs of tests/faults.rs: what stands in its cases, behind its MEMSETs.
fn named() -> (String, Vec<String>) {
    // The longest loop there is takes a simulation too long.
    let text = include_str!("../../tests/faults.rs").replace("\\n", "\n").replace("count=65535", "count=300");
    let quoted = |from: &str| -> String {
        let start = from.find('"').expect("a string") + 1;
        from[start..].split('"').next().expect("a string").to_owned()
    };
    let set = quoted(text.split("const SET").nth(1).expect("MEMSETs"));
    // What stands in the attributes themselves: behind those of parameters, which have nothing in them, are functions.
    let attributes = text.split("#[case").skip(1).filter(|part| !part.starts_with(']'));
    let attributes = attributes.filter_map(|part| part.split(")]").next());
    let cases = attributes.filter(|part| part.contains('"'));
    let known =
        |line: &str| line.starts_with('.') || FORMS.iter().any(|form| line.starts_with(form.mnemonic));
    (set, cases.map(quoted).filter(|lines| known(lines)).collect())
}

/// A word by chance, mostly one that can be executed in the machine of `SET`.
fn word(draws: &mut Draws) -> String {
    let chip = |draws: &mut Draws| draws.below(u64::from(LINES) + 2) * 4;
    let (x, y, z) = (chip(draws), chip(draws), chip(draws));
    // Shapes and descriptors that fit, more often than others.
    let mut pick = |fits: &[u64]| if draws.chance(4) { draws.below(20) } else { *draws.one(fits) };
    let (vector, head, words, kv) = (pick(&[0]), pick(&[1]), pick(&[2]), pick(&[5]));
    let (weights, matrix, table) = (pick(&[0]), pick(&[0]), pick(&[8]));
    let flag = |draws: &mut Draws, name| if draws.chance(50) { name } else { "" };
    let sync = flag(draws, "async");
    match draws.below(24) {
        0 | 1 => format!(
            "gemv dest={x} src={y} desc={weights} shape={} lanes={} {} {}",
            draws.one(&[matrix, matrix, 1]),
            draws.below(32),
            flag(draws, "acc"),
            flag(draws, "scale")
        ),
        2 => format!(
            "head src={y} desc={weights} shape={} {} {} {}",
            draws.one(&[0, 0, 0, 1]),
            flag(draws, "first"),
            flag(draws, "last"),
            flag(draws, "cap")
        ),
        3 => format!(
            "memcpy.in dest={x} src={} desc={} shape={words} {sync}",
            draws.below(60),
            draws.one(&[12, 0, 1])
        ),
        4 => format!("memcpy.gain dest={x} desc={} shape={vector} {sync}", draws.one(&[12, 0, 13])),
        5 => format!("memcpy.row dest={x} desc={table} shape=3 {sync}"),
        6 => format!("memcpy.embed dest={x} desc={weights} shape={matrix} {sync}"),
        7 | 8 => format!("memcpy.kv src={y} desc={kv} shape={head} {sync}"),
        9 => format!("memcpy.out dest={} src={y} shape={words} {sync}", draws.below(9)),
        10 => format!(
            "{} dst={x} a={y} b={z} shape={vector}",
            draws.one(&["vec.add", "vec.mul", "vec.swiglu", "vec.norm"])
        ),
        11 => format!("vec.add dst={x} a={x} b={x} shape={vector}"),
        12 => format!("vec.act dst={x} a={y} shape={vector}"),
        13 => format!("vec.rope dst={x} a={} b={z} shape={head}", draws.one(&[x, y])),
        14 => format!("vec.store dst={x} a={y} shape={head}"),
        15 | 16 => format!(
            "attn dst={x} src={y} shape={head} desc={kv} {} {} {}",
            flag(draws, "window"),
            flag(draws, "source"),
            flag(draws, "sinks")
        ),
        17 => format!("vec.level dst={x} a={} b={z} shape={head}", draws.one(&[x, y])),
        18 => format!("vec.{} dst={x} a={} shape={vector}", draws.one(&["tanh", "cut"]), draws.one(&[x, y])),
        19 => format!(
            "vec.{} dst={x} a={} b={} shape={vector}",
            draws.one(&["blend", "rescale", "geglu"]),
            draws.one(&[x, y]),
            draws.one(&[x, z])
        ),
        20 => format!("vec.predict dst={x} a={} b={z} shape={head}", draws.one(&[x, y])),
        21 => format!("vec.correct dst={x} a={y} b={z} shape={head}"),
        22 => format!(
            "memset.{} value={}",
            draws.one(&["window", "source", "cut", "sinks"]),
            draws.one(&[0u32, 1, 2, 3, 32, 65_504, 65_535, 65_536, 65_537, 65_568, u32::MAX])
        ),
        _ => format!(
            "memset.desc index={} base={} aux={}",
            draws.below(64),
            draws.below(MEMORY),
            draws.one(&[0i64, 1, 5, 34, -20])
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
    let program_lines =
        program.chunks(LINE).enumerate().map(|(line, bytes)| (PROGRAM + line as u64, line_hex(bytes)));
    // Of the model's memory only layers' words are read: its last lines.
    let layer_lines =
        (MEMORY - 16..MEMORY).map(|line| (line, line_hex(&memory[line as usize * LINE..][..LINE])));
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

/// The programs of the tests, and some by chance.
pub fn print(seed: u64, count: u64) {
    let mut draws = Draws(seed);
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
    // What a word takes is unset at the first word of a step, though the programs ahead of it have set it.
    let loops = "layers count=1 words=0 desc=12\n";
    for (register, word) in [
        ("epsilon", "vec.norm dst=0 a=16 b=64 shape=0".to_owned()),
        ("cut", "vec.cut dst=0 a=0 shape=0".to_owned()),
        ("factor", format!("{loops}attn dst=0 src=64 shape=1 desc=5")),
        ("window", format!("{loops}attn dst=0 src=64 shape=1 desc=5 window")),
        ("source", format!("{loops}attn dst=0 src=64 shape=1 desc=5 source")),
        ("sinks", format!("{loops}attn dst=0 src=64 shape=1 desc=5 window sinks")),
    ] {
        let unset = format!("memset.{register} ");
        let lines: Vec<&str> = set.lines().filter(|line| !line.starts_with(&unset)).collect();
        assert_eq!(lines.len() + 1, set.lines().count(), "{register} is set once");
        let words = assemble(&format!("{}\n{word}\nend", lines.join("\n"))).expect("words");
        say(&Case { words, memory: memory.clone(), silent: false, poisoned: None });
    }
    // The first word of a layer is none: the layer's second line, which is on its way then, stands in nobody's way.
    let mut spoilt = memory.clone();
    let first = (MEMORY as usize - 16) * LINE;
    spoilt[first..first + 8].copy_from_slice(&u64::MAX.to_le_bytes());
    let layers = "memset.desc index=16 base=184 aux=2\nlayers count=2 words=16 desc=16\nnext\nend";
    let words = assemble(&format!("{set}\n{layers}")).expect("words");
    say(&Case { words: words.clone(), memory: spoilt, silent: false, poisoned: None });
    // Memory answers the second line of the program with an error, which no draw below is sure to meet.
    say(&Case { words, memory: memory.clone(), silent: false, poisoned: Some((true, 1)) });
    for _ in 0..count {
        // Records of eleven words, two lines each, for eight layers: the context's shapes, set anew.
        let mut memory = memory.clone();
        let sets = assemble(&set).expect("words");
        for eight in memory[(MEMORY as usize - 16) * LINE..].chunks_exact_mut(8) {
            eight.copy_from_slice(&draws.one(&sets).to_le_bytes());
        }
        if draws.chance(20) {
            let at = (MEMORY as usize - 16 + draws.below(6) as usize) * LINE;
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
            draws.one(&[0, 1, 7, 8, 9, 11, 16])
        );
        text += &list(&mut draws, if long { 90 } else { 24 });
        text += "\nnext\n";
        text += &list(&mut draws, 4);
        text += *draws.one(&["\nend", "\nend", "\nend", ""]);
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
                    let field = draws.one(form.fields);
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
