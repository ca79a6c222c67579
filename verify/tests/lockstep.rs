//! What is planted in an NPU is named: the first word that did something else than the interpreter's.

use std::sync::Arc;

use doorbell_contract::HwSequence;
use doorbell_host::SharedMemory;
use doorbell_host::language::{LanguageRegions, WordRegion};
use doorbell_lm::micro;
use doorbell_lm::sample::Sharpness;
use doorbell_npu::Published;
use doorbell_npu::layout::Block;
use doorbell_npu::run::{
    Arena, Begun, Ended, Event, Hazards, Latency, Machine, Next, Observer, Place, Retired, Sampling,
    Scoreboard, Sequencer, Settings, Space, Work, Write,
};
use doorbell_verify::language::Version;
use doorbell_verify::lockstep::{Difference, Lockstep};
use doorbell_verify::replay::Language;

const BUS: u64 = 0x12_0000_0000;
/// Bytes of each region.
const MODEL: u64 = 1 << 20;
const SEQUENCES: u64 = 1 << 12;
const ARENA: u64 = 1 << 16;

fn language() -> Arc<Language> {
    let image = micro();
    let published = Published::new(image.to_bytes(), &image.about.ends).unwrap();
    let version = Version { model: image.model, ends: image.about.ends };
    Arc::new(Language { published, version, sharpness: Sharpness::ONE })
}

/// An NPU that may be wrong, beside the memory that a host sees.
struct Npu {
    machine: Machine,
    words: Vec<u64>,
    board: Scoreboard,
    regions: LanguageRegions,
    lockstep: Lockstep,
    cycle: u64,
    /// What it tells of the token of each step.
    bend: fn(&mut Ended),
    /// Words that it does not tell of.
    silent: Option<u32>,
}

/// Tells the lockstep, and keeps what it says.
struct Teller<'l> {
    lockstep: &'l mut Lockstep,
    arena: &'l WordRegion,
    cycle: &'l mut u64,
    silent: Option<u32>,
    told: Result<(), String>,
}

impl Observer for Teller<'_> {
    fn executed(&mut self, place: &Place, writes: &[Write]) {
        *self.cycle += 1;
        for write in writes.iter().filter(|write| write.space == Space::Kv) {
            let (word, end) = (write.at / 8 * 8, write.at + write.bytes.len() as u64);
            let mut there = vec![0; (end.next_multiple_of(8) - word) as usize];
            self.arena.read(word, &mut there).unwrap();
            there[(write.at - word) as usize..][..write.bytes.len()].copy_from_slice(&write.bytes);
            self.arena.write(word, &there).unwrap();
        }
        // Logits are told from 0 on, a line of MEMCPY in units of 16 bits.
        let mut writes = writes.to_vec();
        for write in writes.iter_mut().filter(|write| write.space == Space::Logits) {
            write.at = 0;
        }
        if self.silent == Some(place.pc) {
            return;
        }
        let (cycle, began) = (*self.cycle, *self.cycle - 1);
        let retired = Retired { cycle, began, place: *place, is_fine: true, writes };
        let told = self.lockstep.happened(&Event::Retired(retired));
        self.told = self.told.clone().and(told);
    }
}

impl Npu {
    fn new(board: Scoreboard) -> Self {
        let language = language();
        let memory = SharedMemory::allocate((MODEL + SEQUENCES + 4 * ARENA) as usize, BUS).unwrap();
        let region =
            |start: u64, bytes| WordRegion::new(memory.clone(), "test", start as usize, bytes).unwrap();
        let arenas = [0, 1, 2, 3].map(|arena| region(MODEL + SEQUENCES + arena * ARENA, ARENA));
        let regions =
            LanguageRegions { model: region(0, MODEL), sequences: region(MODEL, SEQUENCES), arenas };
        let image = language.published.at(0);
        let memory = language.published.memory.clone();
        let words = memory[image.program_at as usize..][..8 * image.words as usize].chunks_exact(8);
        Self {
            words: words.map(|eight| u64::from_le_bytes(eight.try_into().unwrap())).collect(),
            machine: Machine::new(Settings::default(), memory, ARENA as usize),
            board,
            lockstep: Lockstep::new(&language, regions.clone()),
            regions,
            cycle: 0,
            bend: |_| {},
            silent: None,
        }
    }

    /// A step of the sequence at 0; `blocks` are those that the device takes.
    fn step(&mut self, rollout: u32, token: u32, position: u32, blocks: &[u32]) -> Result<(), String> {
        let sampling = Sampling { sharpness: Sharpness::ONE, seed: 7, rollout, scores: false };
        self.step_with(sampling, token, position, blocks)
    }

    /// The same; `sampling` is what the device takes.
    fn step_with(
        &mut self,
        sampling: Sampling,
        token: u32,
        position: u32,
        blocks: &[u32],
    ) -> Result<(), String> {
        self.cycle += 1;
        let arena = &self.regions.arenas[0];
        let begun = Begun {
            context: 0,
            gang: 0,
            cycle: self.cycle,
            token,
            position,
            silent: false,
            sampling,
            arena: Arena { base: arena.bus_address(), bytes: ARENA },
            table: self.regions.sequences.bus_address() + 64,
            entries: blocks.len() as u32,
        };
        self.lockstep.happened(&Event::Begun(begun))?;
        self.machine.contexts.clear();
        let context = self.machine.admit(Arena { base: 0, bytes: ARENA }, blocks.to_vec());
        let context = &mut self.machine.contexts[context];
        (context.token, context.position, context.sampling) = (token, position, sampling);
        let (silent, told) = (self.silent, Ok(()));
        let mut teller = Teller { lockstep: &mut self.lockstep, arena, cycle: &mut self.cycle, silent, told };
        let (outcomes, _) = self.board.step(&mut self.machine, &self.words, &[0], &mut teller);
        teller.told?;
        let outcome = outcomes[0].unwrap();
        let mut ended = Ended { context: 0, cycle: self.cycle, sample: outcome.sample, stop: None };
        (self.bend)(&mut ended);
        self.lockstep.happened(&Event::Ended(ended))
    }

    fn sequence(&self, record: HwSequence, table: &[u32]) {
        let record = HwSequence { sharpness: Sharpness::ONE.0, ..record };
        self.regions.place_sequence(0, record, table).unwrap();
    }

    /// Copies so many positions of a block, as an engine does ahead of a step.
    fn copy(&mut self, from: u32, to: u32, positions: u64) {
        let (bytes, place) = (self.block(), Block { width: 32 });
        let block = |number: u32| u64::from(number) * bytes;
        for (start, part, token) in (0..4).flat_map(|layer| {
            (0..2).flat_map(move |part| (0..positions).map(move |token| (layer * place.bytes(), part, token)))
        }) {
            for (at, count) in [(place.scale(part, token), 2), (place.mantissas(part, token), 32)] {
                let (from, to) = ((block(from) + start + at) as usize, (block(to) + start + at) as usize);
                self.machine.kv.copy_within(from..from + count, to);
            }
        }
        let (start, end) = (block(to) as usize, block(to + 1) as usize);
        self.regions.arenas[0].write(block(to), &self.machine.kv[start..end]).unwrap();
    }

    fn block(&self) -> u64 {
        language().published.at(0).block_bytes()
    }

    fn difference(&self) -> &Difference {
        self.lockstep.held().difference.as_ref().expect("a difference")
    }
}

fn plain() -> Scoreboard {
    Scoreboard::new(Latency::Random(1))
}

/// The first words of a sequence, up to the first that differs.
fn run(npu: &mut Npu, positions: u32) -> Result<(), String> {
    npu.sequence(HwSequence::default(), &[3, 0, 5]);
    (0..positions).try_for_each(|position| npu.step(4, 1 + position % 60, position, &[3, 0, 5]))
}

/// Where the machine's program has a word, by what it does.
fn find(npu: &Npu, wanted: impl Fn(&Work) -> bool) -> (u32, Option<u16>) {
    let mut sequencer = Sequencer::new(&npu.words, &npu.machine.memory, npu.machine.settings.lines);
    loop {
        match sequencer.next().unwrap() {
            Next::Issue(issue) if wanted(&issue.work) => return (issue.pc, issue.layer),
            Next::End => panic!("the program has no such word"),
            _ => {}
        }
    }
}

fn named(npu: &Npu) -> (u32, Option<u16>) {
    let instruction = npu.difference().instruction.as_ref().expect("an instruction");
    (instruction.pc, instruction.layer)
}

/// R26: a key stands for seed and rollout, whatever the device takes.
#[test]
fn a_key_that_is_not_taken_is_named() {
    for (seed, rollout, holds) in [(8, 9, true), (7, 4, false), (9, 8, false)] {
        let mut npu = Npu::new(plain());
        npu.sequence(HwSequence { draw_key: 9 << 32 | 8, ..HwSequence::default() }, &[3]);
        let sampling = Sampling { sharpness: Sharpness::ONE, seed, rollout, scores: false };
        let told = (0..8).try_for_each(|position| npu.step_with(sampling, 5, position, &[3]));
        assert_eq!(told.is_ok(), holds, "{told:?}");
    }
}

/// R27: the log-probability of a given token is the interpreter's.
#[test]
fn a_score_that_is_another_is_named() {
    for off in [0, 1] {
        let mut npu = Npu::new(plain());
        npu.sequence(HwSequence::default(), &[3]);
        for given in [0, 13, 63] {
            let sampling = Sampling { sharpness: Sharpness::ONE, seed: given, rollout: 4, scores: true };
            npu.step_with(sampling, 5, given % 8, &[3]).unwrap();
        }
        if off == 1 {
            npu.bend = |ended| ended.sample.as_mut().unwrap().log_probability += 1;
        }
        let sampling = Sampling { sharpness: Sharpness::ONE, seed: 9, rollout: 4, scores: true };
        let told = npu.step_with(sampling, 5, 8, &[3]);
        assert_eq!(told.is_ok(), off == 0, "{told:?}");
        assert!(off == 0 || npu.difference().is_prefill);
    }
}

#[test]
fn words_in_any_order_are_the_interpreters() {
    let mut npu = Npu::new(plain());
    run(&mut npu, 70).unwrap();
    // Two words ahead of the layers, 19 in each of four, three behind them.
    assert_eq!((npu.lockstep.held().steps, npu.lockstep.held().words), (70, 70 * (2 + 4 * 19 + 3)));
    assert_eq!(npu.lockstep.held().difference, None);
}

/// A word that begins too early is the first that differs: of those that were done before, each did what the interpreter's did.
#[test]
fn a_hazard_that_is_overlooked_is_named() {
    let without = [Hazards { raw: false, ..Hazards::default() }, Hazards { kv: false, ..Hazards::default() }];
    for (hazards, expected) in without.into_iter().zip([None, Some("attn")]) {
        let mut seen = 0;
        for seed in 1..20 {
            let mut npu = Npu::new(Scoreboard { hazards, ..Scoreboard::new(Latency::Random(seed)) });
            let Err(told) = run(&mut npu, 8) else { continue };
            seen += 1;
            let instruction = npu.difference().instruction.as_ref().unwrap();
            assert!(told.contains(&instruction.text), "{told}");
            assert!(expected.is_none_or(|name| instruction.text.starts_with(name)), "{told}");
            assert!(told.contains("expected 0x") && told.contains("found 0x"), "{told}");
        }
        assert!(seen > 5, "{hazards:?} showed in {seen} runs");
    }
}

/// A weight that is another in the device's memory alone.
#[test]
fn a_wrong_weight_is_named_by_the_word_that_takes_it() {
    let mut npu = Npu::new(plain());
    let mut sequencer = Sequencer::new(&npu.words, &npu.machine.memory, npu.machine.settings.lines);
    let (place, weights) = loop {
        match sequencer.next().unwrap() {
            Next::Issue(issue) if issue.layer == Some(2) => {
                if let Work::Multiply { matrix, .. } = issue.work {
                    break ((issue.pc, issue.layer), matrix.weights);
                }
            }
            Next::End => panic!("the program has no such word"),
            _ => {}
        }
    };
    npu.machine.memory[weights as usize + 64] ^= 0x40;
    run(&mut npu, 3).unwrap_err();
    assert_eq!(named(&npu), place);
    let Difference { rollout_id, position, token, is_prefill, .. } = *npu.difference();
    assert_eq!((rollout_id, position, token, is_prefill), (4, 0, 1, false));
    let text = npu.difference().to_string();
    assert!(text.contains(&format!("of the model at {weights:#x}")), "{text}");
}

#[test]
fn swapped_blocks_are_named_by_the_word_that_writes_there() {
    let mut npu = Npu::new(plain());
    run(&mut npu, 32).unwrap();
    npu.step(4, 9, 32, &[0, 3, 5]).unwrap_err();
    assert_eq!(named(&npu), find(&npu, |work| matches!(work, Work::Append { .. })));
    let text = npu.difference().to_string();
    assert!(text.contains("at kv byte") && text.contains("position 32"), "{text}");
}

#[test]
fn a_short_copy_is_told_with_its_place() {
    for missing in [0, 1] {
        let mut npu = Npu::new(plain());
        run(&mut npu, 21).unwrap();
        npu.sequence(HwSequence { shared: 21, source: 3, ..HwSequence::default() }, &[6]);
        npu.copy(3, 6, 21 - missing);
        let told = npu.step(5, 2, 21, &[6]);
        if missing == 0 {
            told.unwrap();
            continue;
        }
        let text = told.unwrap_err();
        assert!(text.contains("R27: the copy of block 3 to block 6"), "{text}");
        assert!(text.contains("the key of position 20, layer 0, head 0"), "{text}");
        assert_eq!(npu.difference().instruction, None);
    }
}

#[test]
fn a_token_that_was_not_drawn_is_the_heads() {
    let mut npu = Npu::new(plain());
    npu.bend = |ended| {
        ended.sample.as_mut().unwrap().log_probability -= 1;
    };
    run(&mut npu, 1).unwrap_err();
    assert_eq!(named(&npu), find(&npu, |work| matches!(work, Work::Head { .. })));
}

#[test]
fn a_word_that_was_not_executed_is_named() {
    let mut npu = Npu::new(plain());
    let (pc, _) = find(&npu, |work| matches!(work, Work::Attend { .. }));
    npu.silent = Some(pc);
    let text = run(&mut npu, 1).unwrap_err();
    assert!(text.contains("this word was not executed") && text.contains("attn"), "{text}");
    assert_eq!(named(&npu), (pc, Some(0)));
}

#[test]
fn a_step_that_stops_elsewhere_is_told() {
    let mut npu = Npu::new(plain());
    npu.bend = |ended| {
        let place = Place { context: 0, position: 0, layer: Some(1), pc: 30, word: 0 };
        (ended.sample, ended.stop) = (None, Some((place, 20)));
    };
    let text = run(&mut npu, 1).unwrap_err();
    assert!(text.contains("expected the end of the step, found error 20 of word 30"), "{text}");
}
