//! Engines that complete words in any order give the same bytes, and a scoreboard that overlooks a hazard does not.

mod common;

use common::{Draws, machine, program};
use doorbell_lm::{Image, micro, micro_gemma};
use doorbell_npu::arithmetic::Speed;
use doorbell_npu::cycles::Costs;
use doorbell_npu::run::{Arena, Engine, Hazards, Idle, Latency, Machine, Scoreboard, Settings, Trace};
use doorbell_npu::text::{assemble, listing};
use proptest::prelude::*;
use rstest::rstest;

/// All that a program leaves behind.
fn state(machine: &Machine) -> (Vec<Vec<u8>>, Vec<u8>) {
    (machine.contexts.iter().map(|context| context.chip().to_vec()).collect(), machine.kv.clone())
}

/// A short program of words by chance over a few lines, so that most depend on each other. Kinds of all four engines.
fn any_program(seed: u64) -> Vec<u64> {
    let mut draws = Draws(seed);
    let mut text = String::from(
        "memset.fmap index=0 m=1 n=1 k=64\nmemset.fmap index=1 m=2 n=1 k=32\nmemset.fmap index=2 m=1 n=1 k=32\n\
         memset.fmap index=3 m=1 n=4 k=4\nmemset.weight index=0 m=1 n=64 k=64\nmemset.desc index=0 base=1 aux=-20\n\
         memset.desc index=1 base=65 aux=0\nmemset.desc index=2 base=3 aux=5\nmemset.desc index=3 base=140 aux=70\n\
         memset.desc index=4 base=0 aux=0\nmemset.epsilon value=10\nmemset.factor value=16715\n\
         memset.window value=2\nmemset.source value=1\nmemset.cut value=9000\nmemset.weight index=1 m=1 n=36 k=64\n\
         layers count=2 words=0 desc=4\n",
    );
    for _ in 0..24 {
        // Lines 0 to 11; vectors have up to four.
        let mut line = || draws.below(3) * 16;
        let (x, y) = (line(), line());
        let z = 48 + line();
        let row = match draws.below(18) {
            0 => format!("gemv dest={x} src={z} desc=0 shape=0 lanes=0 scale"),
            1 => format!("gemv dest={x} src={z} desc=0 shape=0 lanes=0 scale acc"),
            2 => format!("memcpy.in dest={x} src={} desc=2 shape=3 async", draws.below(40)),
            3 => format!("memcpy.gain dest={z} desc=2 shape=0 async"),
            4 => format!("vec.act dst={z} a={x} shape=0"),
            5 => format!("vec.add dst={x} a={x} b={y} shape=0"),
            6 => format!("vec.store dst={z} a={x} shape=1"),
            7 => format!("memcpy.kv src={z} desc=3 shape=1 async"),
            8 => format!("attn dst={x} src={z} shape=1 desc=3"),
            9 => format!("attn dst={x} src={z} shape=1 desc=3 window"),
            10 => format!("attn dst={x} src={z} shape=1 desc=3 source"),
            11 => format!("gemv dest={x} src={z} desc=0 shape=1 lanes=0 scale"),
            12 => format!("vec.level dst={x} a={x} b={z} shape=1"),
            13 => format!("vec.cut dst={x} a={y} shape=0"),
            14 => format!("vec.blend dst={y} a={x} b={y} shape=0"),
            15 => format!("vec.predict dst={x} a={y} b={z} shape=1"),
            16 => format!("vec.correct dst={x} a={z} b={z} shape=1"),
            _ => format!("vec.rescale dst={x} a={x} b={z} shape=0"),
        };
        text += &(row + "\n");
    }
    text += "next\nend\n";
    assemble(&text).unwrap()
}

fn any_machine(seed: u64) -> Machine {
    let mut draws = Draws(seed);
    let memory = (0..200 * 64).map(|_| draws.next() as u8).collect();
    let mut machine = Machine::new(Settings { lines: 32, speed: Speed::Plain }, memory, 140 * 64 * 2);
    for base in [0, 140 * 64] {
        machine.admit(Arena { base, bytes: 140 * 64 }, vec![0]);
    }
    machine.kv.iter_mut().for_each(|byte| *byte = draws.next() as u8);
    for (position, context) in (3..).zip(&mut machine.contexts) {
        context.position = position;
        context.chip_mut().iter_mut().for_each(|byte| *byte = draws.next() as u8);
    }
    machine
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(1000) })]

    #[test]
    fn any_order_of_completion_gives_the_same_bytes(seed in any::<u64>(), latency in any::<u64>(), depth in 1..6usize) {
        let words = any_program(seed);
        let [mut plain, mut board] = [any_machine(seed), any_machine(seed)];
        let [mut expected, mut found] = [Trace::default(), Trace::default()];
        let outcomes = plain.step(&words, &[0, 1], &mut expected);
        prop_assert!(outcomes.iter().all(Result::is_ok), "{:?}", outcomes);
        let scoreboard = Scoreboard { depth, ..Scoreboard::new(Latency::Random(latency)) };
        let (outcomes, _) = scoreboard.step(&mut board, &words, &[0, 1], &mut found);
        prop_assert!(outcomes.iter().all(Result::is_ok), "{:?}", outcomes);
        prop_assert!(state(&plain) == state(&board), "{}", listing(&words));
        prop_assert_eq!(expected.divergence(&found), None);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    /// Gangs that share the engines know nothing of each other, at any pace; and every cycle of every engine is accounted for.
    #[test]
    fn gangs_that_share_engines_are_as_alone(seed in any::<u64>(), latency in any::<u64>(), depth in 1..6usize, expected in any::<bool>(), overlap in any::<bool>()) {
        let words = any_program(seed);
        let [mut plain, mut board] = [any_machine(seed), any_machine(seed)];
        for context in 0..2 {
            plain.step(&words, &[context], &mut ());
        }
        let latency = if expected { Latency::Expected(Costs::default()) } else { Latency::Random(latency) };
        let scoreboard = Scoreboard { depth, overlap, ..Scoreboard::new(latency) };
        let (outcomes, timing) = scoreboard.steps(&mut board, &words, &[&[0], &[1]], &mut ());
        prop_assert!(outcomes.concat().iter().all(Result::is_ok), "{:?}", outcomes);
        prop_assert!(state(&plain) == state(&board), "{}", listing(&words));
        for (busy, idle) in timing.busy.iter().zip(&timing.idle) {
            prop_assert_eq!(busy + idle.iter().sum::<u64>(), timing.cycles);
        }
        // One at a time, engines of a gang are never busy together.
        if !overlap {
            let (_, timing) = scoreboard.step(&mut any_machine(seed), &words, &[0, 1], &mut ());
            prop_assert!(timing.busy.iter().sum::<u64>() <= timing.cycles);
        }
    }
}

/// What one engine waits for: a word's operand on another, the order of the program, a token, words, and nothing any more.
#[test]
fn why_an_engine_has_no_word_is_told() {
    let words = assemble(
        "memset.fmap index=0 m=1 n=1 k=64\nmemset.fmap index=1 m=1 n=1 k=16\nmemset.desc index=2 base=3 aux=5\n\
         memcpy.in dest=0 src=0 desc=2 shape=1 async\nvec.act dst=64 a=0 shape=0\n\
         memcpy.in dest=96 src=0 desc=2 shape=1 async\nend",
    )
    .unwrap();
    let board = Scoreboard::new(Latency::Expected(Costs::default()));
    let (outcomes, timing) = board.step(&mut any_machine(1), &words, &[0], &mut ());
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    // Four words to begin with; 64 cycles to memory and a beat for each of 4 lines, twice; a pass of 16 cycles between, which only the word behind
    // it does not wait for.
    let [copy, act] = [64 + 4, 16];
    assert_eq!(timing.busy, [2 * copy, 0, act, 0]);
    let [mem, _, sfu, _] = timing.idle;
    assert_eq!(timing.cycles, 4 + copy + 1 + copy);
    assert_eq!(mem, [0, 0, 0, 4 + 1, 0]);
    assert_eq!(sfu, [copy - 1, 0, 0, 4 + 1, copy + 1 - act]);
    let alone = Scoreboard { overlap: false, ..board };
    let (_, timing) = alone.step(&mut any_machine(1), &words, &[0], &mut ());
    assert_eq!(timing.cycles, 4 + copy + act + copy);
    assert_eq!(timing.idle[Engine::Mem as usize][Idle::Order as usize], act - 1);
}

/// Of programs by chance, how many a machine that overlooks a hazard gets wrong.
fn wrong(hazards: Hazards) -> usize {
    let runs = (0..300).filter(|&seed| {
        let words = any_program(seed);
        let [mut plain, mut board] = [any_machine(seed), any_machine(seed)];
        plain.step(&words, &[0, 1], &mut ());
        let scoreboard = Scoreboard { hazards, ..Scoreboard::new(Latency::Random(seed)) };
        scoreboard.step(&mut board, &words, &[0, 1], &mut ());
        state(&plain) != state(&board)
    });
    runs.count()
}

#[rstest]
#[case::raw(Hazards { raw: false, ..Hazards::default() })]
#[case::war(Hazards { war: false, ..Hazards::default() })]
#[case::waw(Hazards { waw: false, ..Hazards::default() })]
#[case::kv(Hazards { kv: false, ..Hazards::default() })]
fn a_hazard_that_is_overlooked_shows(#[case] hazards: Hazards) {
    let found = wrong(hazards);
    println!("{hazards:?}: {found} of 300");
    assert!(found >= 10, "{found} of 300");
    assert_eq!(wrong(Hazards::default()), 0);
}

/// Two words on two engines, and nothing else to blame.
#[rstest]
#[case::raw("memcpy.in dest=0 src=0 desc=2 shape=3 async\nvec.act dst=64 a=0 shape=0", Hazards { raw: false, ..Hazards::default() })]
#[case::war("vec.act dst=64 a=0 shape=0\nmemcpy.in dest=0 src=0 desc=2 shape=3 async", Hazards { war: false, ..Hazards::default() })]
#[case::waw("vec.add dst=0 a=32 b=32 shape=0\nmemcpy.in dest=0 src=0 desc=2 shape=3 async", Hazards { waw: false, ..Hazards::default() })]
#[case::kv("memcpy.kv src=0 desc=3 shape=1 async\nattn dst=64 src=32 shape=1 desc=3", Hazards { kv: false, ..Hazards::default() })]
fn each_hazard_has_two_words_that_show_it(#[case] two: &str, #[case] without: Hazards) {
    let text = format!(
        "memset.fmap index=0 m=1 n=1 k=64\nmemset.fmap index=1 m=2 n=1 k=32\nmemset.fmap index=3 m=1 n=4 k=4\n\
         memset.desc index=2 base=3 aux=5\nmemset.desc index=3 base=140 aux=70\nmemset.desc index=4 base=0 aux=0\n\
         memset.factor value=16715\nlayers count=1 words=0 desc=4\n{two}\nnext\nend"
    );
    let words = assemble(&text).unwrap();
    let wrong = |hazards| {
        (0..100).any(|seed| {
            let [mut plain, mut board] = [any_machine(9), any_machine(9)];
            // The token that is appended is the only one, so that its weight is all there is.
            (plain.contexts[0].position, board.contexts[0].position) = (0, 0);
            plain
                .step(&words, &[0], &mut ())
                .into_iter()
                .for_each(|outcome| assert!(outcome.is_ok(), "{outcome:?}"));
            let scoreboard = Scoreboard { hazards, ..Scoreboard::new(Latency::Random(seed)) };
            scoreboard.step(&mut board, &words, &[0], &mut ());
            state(&plain) != state(&board)
        })
    };
    assert!(wrong(without), "nothing shows");
    assert!(!wrong(Hazards::default()));
}

/// The program of a model, token by token. Its words are a chain of RAWs, in which no WAR and no WAW is left to show; random programs
/// show those.
#[rstest]
#[case::all(Hazards::default(), true)]
#[case::raw(Hazards { raw: false, ..Hazards::default() }, false)]
#[case::kv(Hazards { kv: false, ..Hazards::default() }, false)]
#[case::war_and_waw(Hazards { war: false, waw: false, ..Hazards::default() }, true)]
fn micro_runs_on_the_scoreboard(#[case] hazards: Hazards, #[case] same: bool) {
    assert_eq!(agree(&micro(), hazards, 40), same);
}

/// Gemma 3N's program too: what keys and values wait for on MEM, a gain behind them, the queries wait for as well.
#[rstest]
#[case::all(Hazards::default(), true)]
#[case::raw(Hazards { raw: false, ..Hazards::default() }, false)]
#[case::others(Hazards { war: false, waw: false, kv: false, ..Hazards::default() }, true)]
fn micro_gemma_runs_on_the_scoreboard(#[case] hazards: Hazards, #[case] same: bool) {
    assert_eq!(agree(&micro_gemma(), hazards, if same { 110 } else { 10 }), same);
}

/// Whether the plain order and some others give the same, token by token.
fn agree(image: &Image, hazards: Hazards, positions: u32) -> bool {
    let (program, memory) = program(image);
    let [mut plain, mut board] = [0, 0].map(|_| machine(&program, memory.clone(), 2, 4, Speed::Fast, 8));
    let mut agree = true;
    for position in 0..positions {
        for machine in [&mut plain, &mut board] {
            for (context, token) in machine.contexts.iter_mut().zip([position * 7 % 64, position * 5 % 64]) {
                (context.token, context.position) = (token, position);
            }
        }
        let [mut expected, mut found] = [Trace::default(), Trace::default()];
        let outcomes = plain.step(&program.words, &[0, 1], &mut expected);
        let scoreboard = Scoreboard { hazards, ..Scoreboard::new(Latency::Random(position.into())) };
        let (others, _) = scoreboard.step(&mut board, &program.words, &[0, 1], &mut found);
        agree &=
            outcomes == others && expected.divergence(&found).is_none() && state(&plain) == state(&board);
    }
    agree
}
