//! What engine 1's units do, by the words that they have executed.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use doorbell_npu::isa::Form;
use doorbell_npu::run::{Event, Place};
use doorbell_npu::text::disassemble;
use serde::Serialize;

/// Names of the units, as the words' mnemonics tell them apart.
pub const UNITS: [&str; 4] = ["MEM", "GEMV", "SFU", "ATTN"];

/// A word that is done.
#[derive(Clone, Debug, Serialize)]
pub struct Word {
    /// As text.
    pub text: String,
    /// Its place in the program.
    pub pc: u32,
    /// The layer, in the loop over layers.
    pub layer: Option<u16>,
    /// The position whose token is wanted.
    pub position: u32,
    /// Which of [`UNITS`].
    pub unit: usize,
    /// The cycle in which the unit began.
    pub began: u64,
    /// The cycle in which it was done.
    pub cycle: u64,
}

/// What was seen since the device was made.
#[derive(Clone, Debug, Default)]
pub struct Units {
    /// Cycles in which each unit had a word.
    pub busy: [u64; UNITS.len()],
    /// Words that are done.
    pub words: u64,
    last: Option<(Place, u64, u64)>,
}

impl Units {
    /// The word that was done last.
    pub fn last(&self) -> Option<Word> {
        let (place, began, cycle) = self.last?;
        let text = disassemble(place.word);
        let unit = unit_of(place.word);
        Some(Word { text, pc: place.pc, layer: place.layer, position: place.position, unit, began, cycle })
    }
}

/// MEMCPY, GEMV and HEAD, VEC, ATTN.
fn unit_of(word: u64) -> usize {
    match Form::of(word).ok().and_then(|form| form.mnemonic.split('.').next()) {
        Some("gemv" | "head") => 1,
        Some("vec") => 2,
        Some("attn") => 3,
        _ => 0,
    }
}

/// The device's listener writes, the page reads.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen(Arc<Mutex<Units>>);

impl Seen {
    pub fn units(&self) -> MutexGuard<'_, Units> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what the device tells.
    pub fn happened(&self, event: &Event) {
        let Event::Retired(word) = event else { return };
        let mut units = self.units();
        units.busy[unit_of(word.place.word)] += word.cycle - word.began;
        units.words += 1;
        units.last = Some((word.place, word.began, word.cycle));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_its_units() {
        for (name, unit) in [("memcpy.row", 0), ("gemv", 1), ("head", 1), ("vec.norm", 2), ("attn", 3)] {
            let form = Form::named(name).unwrap_or_else(|| panic!("no word is a {name}"));
            assert_eq!(unit_of(form.value), unit, "{name}");
        }
    }
}
