//! What two executors wrote is compared word by word, and the first one that differs is named with its operands.

mod common;

use common::{machine, program};
use doorbell_lm::{micro, micro_gemma};
use doorbell_npu::arithmetic::Speed;
use doorbell_npu::run::{
    Dump, Latency, Machine, Observer, Place, Record, Scoreboard, Space, Trace, Write, mix,
};

/// Tells an observer something else than what was written.
struct Bent<'o> {
    observer: &'o mut dyn Observer,
    at: (usize, u32, Option<u16>, &'static str),
    bend: fn(&mut Vec<Write>),
}

impl Observer for Bent<'_> {
    fn executed(&mut self, place: &Place, writes: &[Write]) {
        let mut writes = writes.to_vec();
        let text = doorbell_npu::text::disassemble(place.word);
        let (context, position, layer, name) = self.at;
        if (place.context, place.position, place.layer) == (context, position, layer)
            && text.starts_with(name)
        {
            (self.bend)(&mut writes);
        }
        self.observer.executed(place, &writes);
    }
}

fn steps(observer: &mut dyn Observer, step: impl Fn(&mut Machine, &[u64], &mut dyn Observer)) {
    let image = micro();
    let (program, memory) = program(&image);
    let mut machine = machine(&program, memory, 2, 1, Speed::Fast, 12);
    for position in 0..3 {
        for context in &mut machine.contexts {
            (context.token, context.position) = (position + 1, position);
        }
        step(&mut machine, &program.words, observer);
    }
}

fn plain(observer: &mut dyn Observer) {
    steps(observer, |machine, words, observer| {
        machine.step(words, &[0, 1], observer);
    });
}

#[test]
fn the_order_of_words_and_writes_does_not_show() {
    let [mut expected, mut found] = [Trace::default(), Trace::default()];
    plain(&mut expected);
    steps(&mut found, |machine, words, observer| {
        // One context behind the other, words in any order.
        for gang in [[1], [0]] {
            Scoreboard::new(Latency::Random(5)).step(machine, words, &gang, observer);
        }
    });
    assert_ne!(expected, found);
    assert_eq!(expected.divergence(&found), None);
    // 2 contexts, 3 steps, 2 words ahead of the layers, 19 in each of 4, 3 behind them.
    assert_eq!(expected.records().len(), 2 * 3 * (2 + 19 * 4 + 3));
    let write = |at, bytes: &[u8]| Write { space: Space::Chip, at, bytes: bytes.to_vec() };
    let place = expected.records()[0].place;
    let sum = |writes: &[Write]| {
        let mut trace = Trace::default();
        trace.executed(&place, writes);
        trace.records()[0].sum
    };
    let [a, b] = [write(0, &[1, 2, 3, 4]), write(64, &[5, 6])];
    assert_eq!(sum(&[a.clone(), b.clone()]), sum(&[b.clone(), a.clone()]));
    assert_eq!(
        sum(&[write(0, &[1, 2]), write(2, &[3, 4])]),
        sum(std::slice::from_ref(&a)),
        "however it is cut"
    );
    assert_ne!(sum(&[a.clone(), b]), sum(&[a, write(66, &[5, 6])]));
    assert_ne!(sum(&[write(0, &[1, 2, 3, 4])]), sum(&[write(0, &[3, 4, 1, 2])]));
}

/// Known answers, for the adder in hardware; from a program in Python.
#[test]
fn mix_has_known_answers() {
    let found = [
        (Space::Chip, 0, 0),
        (Space::Chip, 1, 0),
        (Space::Kv, 0, 1),
        (Space::Logits, 0x3FFF_FFFF_FFFF, 0xFFFF),
    ]
    .map(|(space, address, data)| mix(space, address, data));
    assert_eq!(
        found,
        [0x873E_6848_2833_18EB, 0xB77D_4AEE_F940_60DA, 0x618C_182E_AC18_81F4, 0x4AD4_1E25_02BB_2219]
    );
}

#[test]
fn the_first_word_that_differs_is_named() {
    let at = (1, 1, Some(2), "vec.swiglu");
    let bend: fn(&mut Vec<Write>) = |writes| writes[0].bytes[0x43] ^= 0x40;
    let [mut expected, mut found] = [Trace::default(), Trace::default()];
    plain(&mut expected);
    plain(&mut Bent { observer: &mut found, at, bend });
    let place = expected.divergence(&found).unwrap().expected.unwrap();
    assert_eq!((place.context, place.position, place.layer), (1, 1, Some(2)));
    // The run is repeated for what that word wrote.
    let [mut expected, mut found] = [Dump::of(place), Dump::of(place)];
    plain(&mut expected);
    plain(&mut Bent { observer: &mut found, at, bend });
    let text = expected.explain(&found).unwrap();
    assert!(text.starts_with("context 1, position 1, layer 2, word 4"), "{text}");
    assert!(text.contains("(vec.swiglu dst="), "{text}");
    assert!(text.contains("at chip byte 0x"), "{text}");
    assert_eq!(expected.explain(&expected), None);
}

/// Layers count from 0 in each loop: the first one's last comes ahead of the second one's first.
#[test]
fn loops_come_one_behind_the_other() {
    let image = micro_gemma();
    let (program, memory) = program(&image);
    let run = |observer: &mut dyn Observer| {
        let mut machine = machine(&program, memory.clone(), 1, 1, Speed::Fast, 12);
        machine.step(&program.words, &[0], observer);
    };
    let mut expected = Trace::default();
    run(&mut expected);
    let named =
        |record: &&Record| doorbell_npu::text::disassemble(record.place.word).starts_with("vec.predict");
    let predicted: Vec<Place> = expected.records().iter().filter(named).map(|record| record.place).collect();
    let layers: Vec<Option<u16>> = predicted.iter().map(|place| place.layer).collect();
    assert_eq!(layers, [0, 1, 2, 0, 1].map(Some));
    // From each on, all that comes behind it is wrong, and told in another order.
    for first in predicted {
        let at = expected.records().iter().position(|record| record.place == first).unwrap();
        let bend = |(number, &record): (usize, &Record)| {
            if number < at { record } else { Record { sum: record.sum ^ 1, ..record } }
        };
        let found = Trace::of(expected.records().iter().enumerate().map(bend).rev().collect());
        assert_eq!(expected.divergence(&found).unwrap().expected, Some(first));
    }
}

#[test]
fn a_word_too_few_is_a_divergence() {
    let mut expected = Trace::default();
    plain(&mut expected);
    let records = expected.records().to_vec();
    let found =
        Trace::of(records.iter().filter(|record| record.place != records[100].place).copied().collect());
    let place = expected.divergence(&found).unwrap().expected.unwrap();
    assert_eq!(place, records[100].place);
    let cut = Trace::of(records[..records.len() - 1].to_vec());
    let last = expected.divergence(&cut).unwrap();
    assert_eq!((last.expected.is_some(), last.found), (true, None));
    let wrong = Trace::of(records.iter().map(|&record| Record { sum: record.sum + 1, ..record }).collect());
    assert!(expected.divergence(&wrong).unwrap().expected.unwrap().layer.is_none());
}
