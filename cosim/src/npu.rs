//! What the NPU did, as crate `npu` has it.

use std::fmt;

use doorbell_lm::sample::Sharpness;
use doorbell_npu::layout::LINE;
use doorbell_npu::run::{Arena, Begun, Ended, Event, Place, Retired, Sample, Sampling, Space, Write};

use crate::bridge::ffi;

/// What is told of each event; what it answers ends the run.
type Listener = dyn FnMut(&Event) -> Result<(), String> + Send;

/// Who hears what the NPU does.
pub(crate) struct NpuObserver {
    listener: Box<Listener>,
    /// Of the steps that run, by context: where the arena begins, and the position.
    steps: [(u64, u32); 32],
}

/// Why a run is to end.
#[derive(Debug)]
pub(crate) struct Ends(String);

impl fmt::Display for Ends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl NpuObserver {
    pub fn new(listener: Box<Listener>) -> Self {
        Self { listener, steps: [(0, 0); 32] }
    }

    pub fn happened(&mut self, event: &ffi::NpuEvent) -> Result<(), Ends> {
        let event = match event.kind {
            ffi::NpuEventKind::StepBegins => Event::Begun(self.begun(event)),
            ffi::NpuEventKind::WordDone => Event::Retired(self.retired(event)),
            _ => Event::Ended(self.ended(event)),
        };
        (self.listener)(&event).map_err(Ends)
    }

    /// `npu_step_t` and `npu_context_t`.
    fn begun(&mut self, event: &ffi::NpuEvent) -> Begun {
        let (step, context) = event.registers.split_at(5);
        let mut fields = Fields::new(step, 158);
        let [token, position, silent, scores, sharpness, seed, rollout] =
            [32, 32, 1, 1, 28, 32, 32].map(|bits| fields.take(bits) as u32);
        let mut fields = Fields::new(context, 382);
        let [_, _, _, _, base, lines, table, entries] =
            [58, 34, 34, 16, 58, 34, 58, 12].map(|bits| fields.take(bits));
        let arena = Arena { base: base * LINE as u64, bytes: lines * LINE as u64 };
        self.steps[event.context as usize] = (arena.base, position);
        Begun {
            context: event.context as usize,
            gang: event.gang as usize,
            cycle: event.cycle,
            token,
            position,
            silent: silent == 1,
            sampling: Sampling { sharpness: Sharpness(sharpness), seed, rollout, scores: scores == 1 },
            arena,
            table: table * LINE as u64,
            entries: entries as u32,
        }
    }

    /// `npu_place_t`.
    fn place(&self, context: u32, fields: &mut Fields<'_>) -> Place {
        let [pc, around, layer, word] = [16, 1, 16, 64].map(|bits| fields.take(bits));
        let layer = (around == 1).then_some(layer as u16);
        let context = context as usize;
        Place { context, position: self.steps[context].1, layer, pc: pc as u32, word }
    }

    fn retired(&self, event: &ffi::NpuEvent) -> Retired {
        let mut writes = vec![];
        for line in &event.chip {
            let bytes = line.words.iter().flat_map(|word| word.to_le_bytes()).collect();
            writes.push(Write { space: Space::Chip, at: line.line * LINE as u64, bytes });
        }
        for line in &event.stores {
            let bytes: Vec<u8> = line.words.iter().flat_map(|word| word.to_le_bytes()).collect();
            let start = (line.line * LINE as u64).wrapping_sub(self.steps[event.context as usize].0);
            // Nothing that is written has fewer than two bytes: one that was written alone is none of any word's.
            let written = |&at: &usize| line.strobe >> at & 3 == 3;
            for at in (0..LINE).step_by(2).filter(written) {
                writes.push(Write {
                    space: Space::Kv,
                    at: start + at as u64,
                    bytes: bytes[at..at + 2].to_vec(),
                });
            }
        }
        if !event.logits.is_empty() {
            let bytes = event.logits.iter().flat_map(|logit| logit.to_le_bytes()).collect();
            writes.push(Write { space: Space::Logits, at: 0, bytes });
        }
        let place = self.place(event.context, &mut Fields::new(&event.registers, 97));
        Retired { cycle: event.cycle, began: event.began, place, is_fine: event.end == 0, writes }
    }

    /// `npu_log_t`, and the token: whether there is one, its number and log-probability.
    fn ended(&self, event: &ffi::NpuEvent) -> Ended {
        let (log, sample) = event.registers.split_at(4);
        let &[sampled, token, log_probability] = sample else { unreachable!("three words") };
        let mut fields = Fields::new(log, 102);
        let place = self.place(event.context, &mut fields);
        let fault = fields.take(5) as u8;
        let sample = Sample { token, log_probability: log_probability as i32 };
        Ended {
            context: event.context as usize,
            cycle: event.cycle,
            sample: (sampled == 1).then_some(sample),
            stop: (fault != 0).then_some((place, fault)),
        }
    }
}

/// A packed record, whose first field has the highest bits.
struct Fields<'r> {
    words: &'r [u32],
    /// Bits that are left.
    left: u32,
}

impl<'r> Fields<'r> {
    fn new(words: &'r [u32], bits: u32) -> Self {
        Self { words, left: bits }
    }

    /// The next field, of at most 64 bits.
    fn take(&mut self, bits: u32) -> u64 {
        self.left -= bits;
        let word = |at: u32| u128::from(self.words.get(at as usize).copied().unwrap_or_default());
        let first = self.left / 32;
        let wide = word(first) | word(first + 1) << 32 | word(first + 2) << 64;
        (wide >> (self.left % 32)) as u64 & (u64::MAX >> (64 - bits))
    }
}

#[cfg(test)]
mod tests {
    use super::Fields;

    #[test]
    fn fields_of_a_packed_record() {
        // {3'd5, 64'h0123456789ABCDEF, 1'b1, 28'h8000001}
        let value: u128 = 5 << 93 | 0x0123_4567_89AB_CDEF << 29 | 1 << 28 | 0x800_0001;
        let words: Vec<u32> = (0..3).map(|word| (value >> (32 * word)) as u32).collect();
        let mut fields = Fields::new(&words, 96);
        assert_eq!([3, 64, 1, 28].map(|bits| fields.take(bits)), [5, 0x0123_4567_89AB_CDEF, 1, 0x800_0001]);
    }
}
