//! The plain executor: word by word, in order.

use thiserror::Error;

use super::context::{Arena, Context, Sample};
use super::execute::{Effect, Memories, Space};
use super::observe::{Observer, Place};
use super::sequence::{Issue, Next, Refused, Sequencer};
use crate::arithmetic::Speed;
use crate::isa::Fault;
use crate::layout::CHIP_LINES;
use crate::text::disassemble;

/// What a machine is built with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Lines of 64 bytes of on-chip memory that each context has, at most 32,768.
    pub lines: u32,
    /// How inner loops are run.
    pub speed: Speed,
}

impl Default for Settings {
    fn default() -> Self {
        Self { lines: CHIP_LINES, speed: Speed::Fast }
    }
}

/// A machine: the memories, and the contexts.
#[derive(Clone, Debug)]
pub struct Machine {
    /// As it was built.
    pub settings: Settings,
    /// The model, read alone.
    pub memory: Vec<u8>,
    /// Keys and values.
    pub kv: Vec<u8>,
    /// Those that execute programs.
    pub contexts: Vec<Context>,
}

/// How a step ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The token, where one was wanted.
    pub sample: Option<Sample>,
}

/// What a program was stopped by.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("context {context}, position {position}, word {pc}{}: {word:#018x} ({}): {fault}", .layer.map_or(String::new(), |layer| format!(" of layer {layer}")), disassemble(*.word))]
pub struct Stop {
    /// Whose step it was.
    pub context: usize,
    /// At which position.
    pub position: u32,
    /// Place of the word.
    pub pc: u32,
    /// The layer, in a loop.
    pub layer: Option<u16>,
    /// The word, 0 behind the last one.
    pub word: u64,
    /// What is wrong with it.
    pub fault: Fault,
}

/// How far the contexts of a gang are.
#[derive(Debug)]
pub(super) struct Gang<'g> {
    pub members: &'g [usize],
    ended: Vec<Option<Result<Outcome, Stop>>>,
    samples: Vec<Option<Sample>>,
}

impl<'g> Gang<'g> {
    pub fn new(members: &'g [usize]) -> Self {
        Self { members, ended: vec![None; members.len()], samples: vec![None; members.len()] }
    }

    /// Places in the gang of those that still run.
    pub fn running(&self) -> Vec<usize> {
        (0..self.members.len()).filter(|&place| self.ended[place].is_none()).collect()
    }

    pub fn stop(&mut self, machine: &Machine, place: usize, refused: Refused) {
        let Refused { pc, layer, word, fault } = refused;
        let context = self.members[place];
        let position = machine.contexts[context].position;
        self.ended[place].get_or_insert(Err(Stop { context, position, pc, layer, word, fault }));
    }

    pub fn end(&mut self, place: usize) {
        let outcome = Outcome { sample: self.samples[place] };
        self.ended[place].get_or_insert(Ok(outcome));
    }

    /// Ends what a `Next` that is no word ends; whether none is left.
    pub fn over(&mut self, machine: &Machine, next: Next) -> bool {
        for place in self.running() {
            if next == Next::End || machine.contexts[self.members[place]].silent {
                self.end(place);
            }
        }
        self.running().is_empty()
    }

    pub fn sampled(&mut self, place: usize, sample: Option<Sample>) {
        self.samples[place] = sample.or(self.samples[place]);
    }

    pub fn outcomes(self) -> Vec<Result<Outcome, Stop>> {
        self.ended.into_iter().map(|ended| ended.expect("a gang ends with all of its contexts")).collect()
    }
}

impl Machine {
    /// A machine without contexts, with this in its model's memory, and `kv` bytes for keys and values.
    pub fn new(settings: Settings, memory: Vec<u8>, kv: usize) -> Self {
        Self { settings, memory, kv: vec![0; kv], contexts: vec![] }
    }

    /// A new context's number: at position 0, its memory all 0.
    ///
    /// # Panics
    /// If the arena is not in the memory of keys and values.
    pub fn admit(&mut self, arena: Arena, blocks: Vec<u32>) -> usize {
        self.contexts.push(Context::new(self.settings.lines, arena, blocks));
        self.check(self.contexts.len() - 1);
        self.contexts.len() - 1
    }

    /// A step of this context begins: no sampler of an earlier one goes on.
    pub(super) fn begin(&mut self, context: usize) {
        self.check(context);
        self.contexts[context].sampler = None;
    }

    fn check(&self, context: usize) {
        let Arena { base, bytes } = self.contexts[context].arena;
        let end = base.checked_add(bytes);
        assert!(
            end.is_some_and(|end| end <= self.kv.len() as u64),
            "the arena of context {context} ends at {end:?}"
        );
    }

    /// Executes a program for a gang of contexts, each at its own token and position: one step of each, or what stopped it. A word
    /// that no context could execute stops all of the gang.
    ///
    /// # Panics
    /// If there is no such context, or its arena is not in the memory of keys and values.
    pub fn step(
        &mut self,
        words: &[u64],
        gang: &[usize],
        observer: &mut dyn Observer,
    ) -> Vec<Result<Outcome, Stop>> {
        gang.iter().for_each(|&context| self.begin(context));
        let mut all = Gang::new(gang);
        // The sequencer reads the model while contexts change.
        let memory = std::mem::take(&mut self.memory);
        let mut sequencer = Sequencer::new(words, &memory, self.settings.lines);
        loop {
            let running = all.running();
            if running.is_empty() {
                break;
            }
            match sequencer.next() {
                Ok(Next::Issue(issue)) => {
                    let effects = self.effects(&memory, &issue, gang, &running);
                    for (place, effect) in running.into_iter().zip(effects) {
                        self.take(&mut all, place, &issue, effect, observer);
                    }
                }
                Ok(over) => {
                    all.over(self, over);
                }
                Err(refused) => running.into_iter().for_each(|place| all.stop(self, place, refused)),
            }
        }
        self.memory = memory;
        all.outcomes()
    }

    /// What a word does to contexts as they are now.
    pub(super) fn effects(
        &self,
        memory: &[u8],
        issue: &Issue,
        gang: &[usize],
        places: &[usize],
    ) -> Vec<Result<Effect, Fault>> {
        let contexts: Vec<&Context> = places.iter().map(|&place| &self.contexts[gang[place]]).collect();
        Memories { model: memory, kv: &self.kv, speed: self.settings.speed }.execute(&issue.work, &contexts)
    }

    /// Lets a word have its effect.
    pub(super) fn take(
        &mut self,
        gang: &mut Gang<'_>,
        place: usize,
        issue: &Issue,
        effect: Result<Effect, Fault>,
        observer: &mut dyn Observer,
    ) {
        let &Issue { pc, layer, word, .. } = issue;
        let number = gang.members[place];
        match effect {
            Err(fault) => gang.stop(self, place, Refused { pc, layer, word, fault }),
            Ok(effect) => {
                let context = &mut self.contexts[number];
                let at = Place { context: number, position: context.position, layer, pc, word };
                observer.executed(&at, &effect.writes);
                if !effect.skipped.is_empty() {
                    observer.skipped(&at, &effect.skipped);
                }
                for write in &effect.writes {
                    let memory = match write.space {
                        Space::Chip => &mut context.chip,
                        Space::Kv => &mut self.kv[context.arena.base as usize..],
                        Space::Output => &mut context.output,
                        Space::Logits => continue,
                    };
                    memory[write.at as usize..][..write.bytes.len()].copy_from_slice(&write.bytes);
                }
                if let Some(sampler) = effect.sampler {
                    context.sampler = sampler;
                }
                gang.sampled(place, effect.sample);
            }
        }
    }
}
