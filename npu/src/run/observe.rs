//! Lockstep: what two executors wrote, compared word by word.

use std::fmt;

use super::execute::{Space, Write};
use crate::text::disassemble;

/// Which word of which step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// Whose step.
    pub context: usize,
    /// Of its token: the step.
    pub position: u32,
    /// In a loop.
    pub layer: Option<u16>,
    /// Of the word in its program.
    pub pc: u32,
    /// The word.
    pub word: u64,
}

/// Sees what every word writes, context by context.
pub trait Observer {
    /// A word was executed for a context, and wrote this.
    fn executed(&mut self, place: &Place, writes: &[Write]);

    /// An `attn` was executed for a context: head by head, which of the blocks that it sees were below both bins.
    fn skipped(&mut self, _place: &Place, _blocks: &[bool]) {}
}

/// Sees nothing.
impl Observer for () {
    fn executed(&mut self, _: &Place, _: &[Write]) {}
}

/// What 16 bits of data, written at an address of 16-bit units, add to the sum of a word. Sums are modulo 2^64, so the order in
/// which an engine writes does not show.
///
/// ```systemverilog
/// z = ({space, address[45:0], data} ^ 64'hD6E8FEB86659FD93) * 64'h9E3779B97F4A7C15;
/// z = (z ^ (z >> 32)) * 64'hD6E8FEB86659FD93;
/// mix = z ^ (z >> 32);
/// ```
pub fn mix(space: Space, address: u64, data: u16) -> u64 {
    let z = (space as u64) << 62 | (address & ((1 << 46) - 1)) << 16 | u64::from(data);
    let z = (z ^ 0xD6E8_FEB8_6659_FD93).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let z = (z ^ z >> 32).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    z ^ z >> 32
}

fn units(writes: &[Write]) -> impl Iterator<Item = (Space, u64, u16)> + '_ {
    writes.iter().flat_map(|write| {
        let units = write.bytes.chunks_exact(2).map(|two| u16::from_le_bytes([two[0], two[1]]));
        (write.at / 2..).zip(units).map(|(address, data)| (write.space, address, data))
    })
}

/// What a word wrote for a context, added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Which word.
    pub place: Place,
    /// Sum of [`mix`] over all that it wrote.
    pub sum: u64,
}

/// The records of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    records: Vec<Record>,
}

impl Observer for Trace {
    fn executed(&mut self, place: &Place, writes: &[Write]) {
        let sum = units(writes)
            .fold(0u64, |sum, (space, address, data)| sum.wrapping_add(mix(space, address, data)));
        self.records.push(Record { place: *place, sum });
    }
}

impl Trace {
    /// A trace that another executor recorded, in any order.
    pub fn of(records: Vec<Record>) -> Self {
        Self { records }
    }

    /// As they were executed.
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// By context, then step, then in the order of the program: the order in which words completed does not matter. `loops` are places of first
    /// words.
    fn in_order(&self, loops: &[u32]) -> Vec<Record> {
        let mut records = self.records.clone();
        records.sort_by_cached_key(|record| {
            let place = record.place;
            let turn = match place.layer {
                Some(layer) => {
                    let of = loops.iter().rev().find(|&&first| first <= place.pc);
                    (of.copied().unwrap_or_default(), layer)
                }
                // Outside of a loop a word comes ahead of all layers or behind them, by its place.
                None => (place.pc, 0),
            };
            (place.context, place.position, turn, place.pc)
        });
        records
    }

    /// The first word, in program order, that did not do the same in both.
    pub fn divergence(&self, found: &Self) -> Option<Divergence> {
        let loops = loops(self.records.iter().chain(&found.records));
        let (expected, found) = (self.in_order(&loops), found.in_order(&loops));
        let longest = expected.len().max(found.len());
        let pair = |index: usize| (expected.get(index).copied(), found.get(index).copied());
        (0..longest).map(pair).find(|(expected, found)| expected != found).map(|(expected, found)| {
            let place = |record: Option<Record>| record.map(|record| record.place);
            Divergence { expected: place(expected), found: place(found) }
        })
    }
}

/// Places of the first words of loops. Between two of them stand `next` and `layers`, of which there are no records; where a loop sets something
/// of its own, in two words or more at once, it counts as two.
fn loops<'r>(records: impl Iterator<Item = &'r Record>) -> Vec<u32> {
    let mut places: Vec<u32> =
        records.filter(|record| record.place.layer.is_some()).map(|record| record.place.pc).collect();
    places.sort_unstable();
    places.dedup();
    let begins = |(at, &place): (usize, &u32)| at == 0 || place - places[at - 1] > 2;
    places.iter().enumerate().filter(|&pair| begins(pair)).map(|(_, &place)| place).collect()
}

/// Where two runs part: the same word with other writes, or other words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Divergence {
    /// Where the first run was; `None` behind its end.
    pub expected: Option<Place>,
    /// Where the second was.
    pub found: Option<Place>,
}

/// What one word wrote: kept of the word at a place when a run is repeated to explain a [`Divergence`], or of every word of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dump {
    place: Place,
    writes: Vec<Write>,
}

impl Observer for Dump {
    fn executed(&mut self, place: &Place, writes: &[Write]) {
        if *place == self.place {
            self.writes = writes.to_vec();
        }
    }
}

/// Keeps what every word wrote.
impl Observer for Vec<Dump> {
    fn executed(&mut self, place: &Place, writes: &[Write]) {
        self.push(Dump { place: *place, writes: writes.to_vec() });
    }
}

/// Sixteen bits that a word wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Element {
    /// Where.
    pub space: Space,
    /// First byte, a multiple of 2.
    pub at: u64,
    /// What.
    pub data: u16,
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let space = ["chip", "kv", "output", "logits"][self.space as usize];
        write!(f, "{:#06x} at {space} byte {:#x}", self.data, self.at)
    }
}

impl Dump {
    /// Of a word.
    pub fn of(place: Place) -> Self {
        Self { place, writes: vec![] }
    }

    /// The word.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// What it wrote.
    pub fn writes(&self) -> &[Write] {
        &self.writes
    }

    /// Elements in the order of their addresses.
    fn elements(&self) -> Vec<Element> {
        let element = |(space, address, data)| Element { space, at: 2 * address, data };
        let mut all: Vec<Element> = units(&self.writes).map(element).collect();
        all.sort_unstable();
        all
    }

    /// The first element, by its address, in which two executors differ: what this one wrote and what the other, `None` where one wrote
    /// nothing more; and how many differ.
    pub fn difference(&self, found: &Self) -> Option<(Option<Element>, Option<Element>, usize)> {
        let (expected, found) = (self.elements(), found.elements());
        let pairs = (0..expected.len().max(found.len()))
            .map(|at| (expected.get(at).copied(), found.get(at).copied()));
        let mut differ = pairs.filter(|(expected, found)| expected != found);
        let (expected, found) = differ.next()?;
        Some((expected, found, 1 + differ.count()))
    }

    /// The first element that another executor wrote otherwise: layer, instruction with its operands, address, expected and found.
    pub fn explain(&self, found: &Self) -> Option<String> {
        let (expected, found, _) = self.difference(found)?;
        let Place { context, position, layer, pc, word } = self.place;
        let layer = layer.map_or(String::new(), |layer| format!(", layer {layer}"));
        Some(format!(
            "context {context}, position {position}{layer}, word {pc} ({}): expected {}, found {}",
            disassemble(word),
            say(expected),
            say(found)
        ))
    }
}

/// An element, or that there is none.
pub fn say(element: Option<Element>) -> String {
    element.map_or_else(|| "nothing more".to_owned(), |element| element.to_string())
}
