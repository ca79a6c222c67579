//! Lockstep: a device's NPU, held to the interpreter word by word while it runs (docs/isa.md, "Lockstep").
//!
//! Each step is run by the interpreter when the device begins it, over the model as the host has it, and over keys and values that the interpreter
//! keeps of its own: so nothing that goes wrong in a device's memory is taken over. What every word wrote is compared as soon as the device has
//! done it.

use std::collections::HashMap;
use std::fmt;

use bytemuck::cast;
use serde::Serialize;

use doorbell_contract::{BLOCK_TOKENS, HwSequence};
use doorbell_host::language::LanguageRegions;
use doorbell_lm::sample::Sharpness;
use doorbell_npu::layout::Block;
use doorbell_npu::run::{
    Arena, Begun, Dump, Ended, Event, MatrixAt, Next, Observer, Outcome, Place, Range, Retired, Sample,
    Sampling, Sequencer, Settings, Space, Stop, Work, say,
};
use doorbell_npu::run::{Machine, Write};
use doorbell_npu::text::disassemble;

use crate::replay::Language;

/// How a device numbers what no interpreter has: memory that answered with an error.
const MEMORY_FAULT: u8 = 31;

/// Where a device's NPU first did something else than the interpreter.
///
/// Displayed, it is a report of several lines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Clock cycle in which it was seen: of an instruction, in which it was done.
    pub cycle: u64,
    /// Whose step it was.
    pub rollout_id: u32,
    /// The position of its token.
    pub position: u32,
    /// The token.
    pub token: u32,
    /// Whether it is a step of a PREFILL, else of a DECODE.
    pub is_prefill: bool,
    /// The instruction; `None` where none is to blame.
    pub instruction: Option<Instruction>,
    /// What was expected and what was found.
    pub what: String,
}

/// An instruction of a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Instruction {
    /// Its address in the program, in words.
    pub pc: u32,
    /// The layer, in a loop.
    pub layer: Option<u16>,
    /// As the assembler takes it.
    pub text: String,
    /// What its operands are at this step.
    pub operands: String,
    /// Clock cycle in which its unit began with it, if it did.
    pub began: Option<u64>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cycle, rollout_id, position, token, is_prefill, instruction, what } = self;
        let opcode = if *is_prefill { "PREFILL" } else { "DECODE" };
        writeln!(f, "rollout {rollout_id}, position {position} of a {opcode}, token {token}")?;
        let Some(Instruction { pc, layer, text, operands, began }) = instruction else {
            return write!(f, "  {what}\n  seen in cycle {cycle}");
        };
        let layer = layer.map_or(String::new(), |layer| format!(", layer {layer}"));
        writeln!(f, "  word {pc} of the program{layer}: {text}")?;
        writeln!(f, "    {operands}")?;
        writeln!(f, "  {what}")?;
        match began {
            Some(began) => write!(f, "  begun in cycle {began}, done in cycle {cycle}"),
            None => write!(f, "  seen in cycle {cycle}"),
        }
    }
}

/// What was held of a device's NPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Held {
    /// Steps that have ended.
    pub steps: u64,
    /// Words that were compared.
    pub words: u64,
    /// Where it first differed, if it did.
    pub difference: Option<Difference>,
}

/// A step that a device is in.
struct Step {
    begun: Begun,
    outcome: Result<Outcome, Stop>,
    expected: Vec<Dump>,
    /// By layer and place in the program: its place in `expected`, until it is done.
    waiting: HashMap<(Option<u16>, u32), usize>,
}

/// Holds one queue pair's steps to the interpreter.
pub struct Lockstep {
    machine: Machine,
    program: Vec<u64>,
    /// Of the model: layers with keys and values of their own, heads of keys and values, bytes of a block.
    layers: u64,
    heads: u64,
    place: Block,
    block: u64,
    regions: LanguageRegions,
    /// Keys and values of each arena, as the interpreter made them.
    kv: [Vec<u8>; 4],
    /// By the device's context.
    steps: HashMap<usize, Step>,
    held: Held,
}

impl Lockstep {
    /// Of a device that has `language` published at the beginning of `regions.model`, and nothing in its arenas.
    pub fn new(language: &Language, regions: LanguageRegions) -> Self {
        let image = language.published.at(0);
        let memory = language.published.memory.clone();
        let words = memory[image.program_at as usize..][..8 * image.words as usize].chunks_exact(8);
        let word = |eight: &[u8]| u64::from_le_bytes(eight.try_into().expect("eight bytes"));
        let shape = &language.version.model.shape;
        Self {
            program: words.map(word).collect(),
            machine: Machine::new(Settings::default(), memory, 0),
            layers: shape.kv_layers() as u64,
            heads: shape.kv_heads as u64,
            place: Block { width: shape.head_width as u64 },
            block: image.block_bytes(),
            kv: [0, 1, 2, 3].map(|arena: usize| vec![0; regions.arenas[arena].bytes() as usize]),
            regions,
            steps: HashMap::new(),
            held: Held::default(),
        }
    }

    /// What was held so far.
    pub fn held(&self) -> &Held {
        &self.held
    }

    /// Takes what the device tells. Behind the first difference nothing is compared any more.
    ///
    /// # Errors
    /// The first difference, in words; once.
    pub fn happened(&mut self, event: &Event) -> Result<(), String> {
        if self.held.difference.is_some() {
            return Ok(());
        }
        let different = match event {
            Event::Begun(begun) => self.begun(begun),
            Event::Retired(retired) => self.retired(retired),
            Event::Ended(ended) => self.ended(ended),
        };
        let Some(different) = different else { return Ok(()) };
        let text = different.to_string();
        self.held.difference = Some(different);
        Err(format!("the NPU differs from the interpreter: {text}"))
    }

    /// The interpreter runs the step.
    fn begun(&mut self, begun: &Begun) -> Option<Difference> {
        let astray = |what: String| Some(Difference { what, ..difference(begun, begun.cycle) });
        let arena = (0..4).find(|&arena| {
            let region = &self.regions.arenas[arena];
            region.bytes() > 0 && region.bus_address() == begun.arena.base
        });
        let Some(arena) = arena else {
            return astray(format!("R26: the step's arena is at {:#x}, where none is", begun.arena.base));
        };
        let (sequence, blocks) = match self.sequence(begun) {
            Ok(found) => found,
            Err(what) => return astray(what),
        };
        if sequence.shared == begun.position
            && let Some(what) = self.copy(arena, &sequence, &blocks, begun.position)
        {
            return astray(what);
        }
        self.machine.kv = std::mem::take(&mut self.kv[arena]);
        self.machine.contexts.clear();
        let bytes = self.machine.kv.len() as u64;
        let context = self.machine.admit(Arena { base: 0, bytes }, blocks);
        let context = &mut self.machine.contexts[context];
        (context.token, context.position, context.silent) = (begun.token, begun.position, begun.silent);
        context.sampling = Sampling { sharpness: Sharpness(sequence.sharpness), ..begun.sampling };
        if sequence.draw_key != 0 && !begun.sampling.scores {
            let key = sequence.draw_key;
            (context.sampling.seed, context.sampling.rollout) = (key as u32, (key >> 32) as u32);
        }
        let mut expected: Vec<Dump> = vec![];
        let outcome = self.machine.step(&self.program, &[0], &mut expected).remove(0);
        self.kv[arena] = std::mem::take(&mut self.machine.kv);
        let key = |dump: &Dump| (dump.place().layer, dump.place().pc);
        let waiting = expected.iter().enumerate().map(|(at, dump)| (key(dump), at)).collect();
        self.steps.insert(begun.context, Step { begun: *begun, outcome, expected, waiting });
        None
    }

    /// The sequence and the block table of a step, as the host has laid them out: entries up to that of its position.
    fn sequence(&self, begun: &Begun) -> Result<(HwSequence, Vec<u32>), String> {
        let region = &self.regions.sequences;
        let offset = begun.table.wrapping_sub(region.bus_address());
        let read = |offset: u64, bytes: &mut [u8]| {
            region.read(offset, bytes).map_err(|error| format!("R26: the step's block table: {error}"))
        };
        let mut record = [0; 64];
        read(offset.wrapping_sub(64), &mut record)?;
        let sequence: HwSequence = cast(record);
        let entries = sequence.entries.min(begun.position / BLOCK_TOKENS + 1) as usize;
        let mut table = vec![0; (4 * entries).next_multiple_of(8)];
        read(offset, &mut table)?;
        let entry = |four: &[u8]| u32::from_le_bytes(four.try_into().expect("four bytes"));
        Ok((sequence, table.chunks_exact(4).map(entry).take(entries).collect()))
    }

    /// Copies, as the device has before this step, what the block of `position` shares; what in the device's memory is another (R27).
    fn copy(&mut self, arena: usize, sequence: &HwSequence, blocks: &[u32], position: u32) -> Option<String> {
        let (from, count) = (sequence.source, u64::from(position % BLOCK_TOKENS));
        let to = *blocks.get((position / BLOCK_TOKENS) as usize)?;
        let start = |number: u32| u64::from(number) * self.block;
        if count == 0 || start(from.max(to)) + self.block > self.kv[arena].len() as u64 {
            return None;
        }
        let mut there = vec![0; self.block as usize];
        if let Err(error) = self.regions.arenas[arena].read(start(to), &mut there) {
            return Some(format!("R27: block {to}: {error}"));
        }
        let (from_at, to_at) = (start(from) as usize, start(to) as usize);
        let mut wrong = None;
        let kinds = (0..self.layers).flat_map(|layer| (0..self.heads).map(move |head| (layer, head)));
        for (layer, head) in kinds {
            for (part, token) in (0..2).flat_map(|part| (0..count).map(move |token| (part, token))) {
                let base = (layer * self.heads + head) * self.place.bytes();
                let scale = base + self.place.scale(part, token);
                let mantissas = base + self.place.mantissas(part, token);
                for (at, bytes) in [(scale, 2), (mantissas, self.place.width)] {
                    let at = at as usize..(at + bytes) as usize;
                    let held = self.kv[arena][from_at..][at.clone()].to_vec();
                    let other = (0..bytes as usize).find(|&byte| held[byte] != there[at.start + byte]);
                    if let Some(byte) = other.filter(|_| wrong.is_none()) {
                        let what = ["key", "value"][part as usize];
                        let position = u64::from(position) - count + token;
                        wrong = Some(format!(
                            "R27: the copy of block {from} to block {to}, ahead of the step: expected {:#04x}, found {:#04x} at byte {:#x} of \
                             the block, in the {what} of position {position}, layer {layer}, head {head}",
                            held[byte],
                            there[at.start + byte],
                            at.start + byte,
                        ));
                    }
                    self.kv[arena][to_at..][at].copy_from_slice(&held);
                }
            }
        }
        wrong
    }

    fn retired(&mut self, retired: &Retired) -> Option<Difference> {
        let Retired { cycle, began, place, is_fine, writes } = retired;
        // Of one context, as the interpreter has it.
        let step = self.steps.get_mut(&place.context)?;
        let place = &Place { context: 0, ..*place };
        let begun = step.begun;
        let Some(at) = step.waiting.remove(&(place.layer, place.pc)) else {
            // Words behind one that fails may have been begun before it did.
            if step.outcome.is_err() {
                return None;
            }
            let what = "this word is done, and the interpreter executes none here".to_owned();
            return self.at(&begun, place, Some(*began), *cycle, what);
        };
        if !is_fine {
            return None;
        }
        let expected = &step.expected[at];
        let found = dump(place, writes, expected);
        self.held.words += 1;
        if expected.place().word != place.word {
            let what =
                format!("expected the word {:#018x}, found {:#018x}", expected.place().word, place.word);
            return self.at(&begun, place, Some(*began), *cycle, what);
        }
        let (expected, found, count) = expected.difference(&found)?;
        let others = match count {
            1 => String::new(),
            2 => "; one more of its elements of 16 bits differs".to_owned(),
            _ => format!("; {} more of its elements of 16 bits differ", count - 1),
        };
        let what = format!("expected {}, found {}{others}", say(expected), say(found));
        self.at(&begun, place, Some(*began), *cycle, what)
    }

    fn ended(&mut self, ended: &Ended) -> Option<Difference> {
        let step = self.steps.remove(&ended.context)?;
        let (begun, cycle) = (step.begun, ended.cycle);
        self.held.steps += 1;
        match (step.outcome, ended.stop) {
            // Of the interpreter no memory fails.
            (_, Some((_, MEMORY_FAULT))) => None,
            (Ok(outcome), None) => {
                if let Some(&at) = step.waiting.values().min() {
                    let place = *step.expected[at].place();
                    let what = "the step is over, and this word was not executed".to_owned();
                    return self.at(&begun, &place, None, cycle, what);
                }
                if outcome.sample == ended.sample {
                    return None;
                }
                let place = *step.expected.last()?.place();
                let tell = |sample: Option<Sample>| match sample {
                    Some(Sample { token, log_probability }) => {
                        format!("token {token} with log-probability {log_probability}")
                    }
                    None => "no token".to_owned(),
                };
                let what = format!("expected {}, found {}", tell(outcome.sample), tell(ended.sample));
                self.at(&begun, &place, None, cycle, what)
            }
            (Err(stop), Some((place, code)))
                if (stop.pc, stop.layer, stop.fault.code()) == (place.pc, place.layer, code) =>
            {
                None
            }
            (outcome, found) => {
                let expected =
                    outcome.err().map_or("the end of the step".to_owned(), |stop| stop.to_string());
                let place = found.map(|(place, _)| place);
                let found = found.map_or("the end of the step".to_owned(), |(place, code)| {
                    format!("error {code} of word {}", place.pc)
                });
                let what = format!("expected {expected}, found {found}");
                match place {
                    Some(place) => self.at(&begun, &place, None, cycle, what),
                    None => Some(Difference { what, ..difference(&begun, cycle) }),
                }
            }
        }
    }

    /// A difference at a word of this step.
    fn at(
        &self,
        begun: &Begun,
        place: &Place,
        began: Option<u64>,
        cycle: u64,
        what: String,
    ) -> Option<Difference> {
        let instruction = Instruction {
            pc: place.pc,
            layer: place.layer,
            text: disassemble(place.word),
            operands: self.operands(place),
            began,
        };
        Some(Difference { instruction: Some(instruction), what, ..difference(begun, cycle) })
    }

    /// What a word works on: where it stands, shapes and descriptors are those that the words before it have set.
    fn operands(&self, place: &Place) -> String {
        let mut sequencer = Sequencer::new(&self.program, &self.machine.memory, self.machine.settings.lines);
        while let Ok(next) = sequencer.next() {
            match next {
                Next::Issue(issue) if (issue.pc, issue.layer) == (place.pc, place.layer) => {
                    return describe(&issue.work);
                }
                Next::End => break,
                _ => {}
            }
        }
        "the interpreter has no such word".to_owned()
    }
}

fn difference(begun: &Begun, cycle: u64) -> Difference {
    Difference {
        cycle,
        rollout_id: begun.sampling.rollout,
        position: begun.position,
        token: begun.token,
        is_prefill: begun.silent || begun.sampling.scores,
        instruction: None,
        what: String::new(),
    }
}

/// What a device wrote. Its logits have no address: they come in order.
fn dump(place: &Place, writes: &[Write], expected: &Dump) -> Dump {
    let first = expected.writes().first().map_or(0, |write| write.at);
    let placed = |write: &Write| match write.space {
        Space::Logits => Write { at: first + write.at, ..write.clone() },
        _ => write.clone(),
    };
    let mut dump = Dump::of(*place);
    dump.executed(place, &writes.iter().map(placed).collect::<Vec<_>>());
    dump
}

fn describe(work: &Work) -> String {
    let range = |range: &Range| match range {
        Range::Lines(start, end) if end - start == 1 => format!("line {start}"),
        Range::Lines(start, end) => format!("lines {start} to {}", end - 1),
        Range::Kv(byte) => format!("keys and values from byte {byte:#x} of each block"),
    };
    let mut parts = vec![];
    let reads: Vec<String> = work.reads().iter().map(range).collect();
    if !reads.is_empty() {
        parts.push(format!("reads {}", reads.join(", ")));
    }
    match work {
        Work::Copy { from, lines, .. } => parts.push(format!("{lines} lines of the model at {from:#x}")),
        Work::Gain { from, lines, exponent, .. } => {
            parts.push(format!("{} lines of the model at {from:#x}, exponent {exponent}", lines - 1));
        }
        Work::Row { from, stride, rows, .. } => {
            parts.push(format!("a row of {rows}, {stride} bytes apart, of the model at {from:#x}"));
        }
        Work::Multiply { matrix, .. } | Work::Head { matrix, .. } | Work::Embed { matrix, .. } => {
            let MatrixAt { weights, scales, exponent, rows, columns } = matrix;
            parts.push(format!(
                "matrix of {rows} rows and {columns} columns of the model at {weights:#x}, scales at {scales:#x}, exponent {exponent}"
            ));
        }
        Work::Attend { heads, kv, .. } => {
            parts.push(format!("{heads} heads over {}, {} wide", kv.heads, kv.width));
        }
        Work::Vector { heads, width, .. } if *heads > 1 => parts.push(format!("{heads} heads, {width} wide")),
        Work::Vector { width, .. } => parts.push(format!("{width} numbers")),
        Work::Append { kv, .. } => parts.push(format!("{} heads, {} wide", kv.heads, kv.width)),
        Work::Out { .. } => {}
    }
    if let Some(written) = work.writes() {
        parts.push(format!("writes {}", range(&written)));
    }
    parts.join("; ")
}
