//! What a sequence may ask for beyond its blocks: a generation of keys and values, a key of draws, truncated draws, and scores of a given text
//! (R26, R27).

use doorbell_contract::{Capability, DescFlags, ErrorCode, HwSequence, PolicyMode, Status};
use doorbell_host::{Device, Division, Ports};
use doorbell_lm::{extreme, steep};
use rstest::rstest;

use crate::host::*;

fn truncates(host: &Host) -> bool {
    host.driver.features().capability.contains(Capability::TRUNCATION)
}

/// R26: the host exchanges the bytes of two blocks under the same tables, and raises the generation. The next descriptors take them as they are
/// now. The blocks are of two sequences: the order of a sequence's own whole blocks shows in no sum.
#[test]
fn r26_bytes_that_the_host_swaps_are_noticed_with_the_generation_raised() {
    let mut host = Host::new();
    let mut both = [71, 72].map(|seed| {
        let prompt = Draws(seed).prompt(70);
        let mut sequence = host.sequence(&prompt, 140, 0.9);
        sequence.record.generation = 1;
        host.lay(&sequence);
        host.prefill(&mut sequence);
        host.decode(&mut sequence, 3, DescFlags::LOGP);
        sequence
    });
    for (generation, block) in [(2, 0), (3, 1), (u32::MAX, 0), (4, 0)] {
        let before = both.each_ref().map(|sequence| sequence.reference.clone());
        let numbers = both.each_ref().map(|sequence| sequence.table[block]);
        let bytes = numbers.map(|number| host.block(0, number));
        for (number, bytes) in numbers.iter().zip(bytes.iter().rev()) {
            host.regions.arenas[0].write(u64::from(*number) * BLOCK, bytes).unwrap();
        }
        for (sequence, place) in both.iter_mut().zip(0..) {
            sequence.reference.take_block(host.version(1), &before[1 - place], block);
            sequence.record.generation = generation;
            host.lay(sequence);
            // The second descriptor of the generation may find what the first has kept.
            host.decode(sequence, 4, DescFlags::LOGP);
            host.decode(sequence, 4, DescFlags::LOGP);
            let (version, sampling, mut stale) =
                (host.version(1), sequence.sampling(), before[place].clone());
            let stale: Vec<i32> = (0..8).map(|_| stale.step(version, sampling).logp).collect();
            let mut found = vec![0; 8];
            let at = sequence.record.prompt + 4 * (sequence.done as u64 - 8);
            host.driver.logps(at, &mut found).unwrap();
            assert_ne!(stale, found, "the blocks that were there before give something else");
        }
    }
}

/// R26: what the device writes itself raises nothing: a block that another sequence gets is read as that one wrote it.
#[test]
fn r26_a_generation_stays_while_blocks_change_hands() {
    let mut host = Host::new();
    for (number, length) in [(1, 40), (2, 33), (3, 64), (4, 35)] {
        let prompt = Draws(number).prompt(length);
        let mut sequence = host.sequence(&prompt, 70, 1.0);
        sequence.record.generation = 7;
        host.lay(&sequence);
        host.prefill(&mut sequence);
        host.decode(&mut sequence, 3, DescFlags::LOGP);
        host.decode(&mut sequence, 3, DescFlags::LOGP);
        // The next sequence takes these blocks.
        let freed = std::mem::take(&mut sequence.table);
        host.free.extend(freed);
    }
}

/// R26: what a descriptor writes counts for all generations, and for none of its own if that is 0. First a sequence goes on under another one, then
/// its blocks are another sequence's.
#[rstest]
fn r26_what_is_written_under_another_generation_is_noticed(#[values(0, 8)] other: u32) {
    let mut host = Host::new();
    host.generation = 7;
    let mut sequence = host.sequence(&Draws(91).prompt(40), 90, 1.0);
    host.prefill(&mut sequence);
    for generation in [7, other, 7, other, other, 7, 7] {
        sequence.record.generation = generation;
        host.lay(&sequence);
        host.decode(&mut sequence, 5, DescFlags::LOGP);
    }
    host.free.append(&mut sequence.table);
    host.generation = other;
    let mut sequence = host.sequence(&Draws(92).prompt(80), 90, 1.0);
    host.prefill(&mut sequence);
    sequence.record.generation = 7;
    host.lay(&sequence);
    host.decode(&mut sequence, 5, DescFlags::LOGP);
    host.decode(&mut sequence, 5, DescFlags::LOGP);
}

/// R26: two functions have blocks of the same arena, number and generation, and each its own bytes in them.
#[test]
fn r26_what_is_kept_of_a_function_is_its_own() {
    let bytes = config().shared_bytes().unwrap();
    let division = Division { queues: 2, functions: 2, bytes, ..Division::default() };
    let ports = Ports::divide(crate::device(2, 2), &division).unwrap();
    let mut hosts = [0, 1].map(|queue| Host::over(ports.take(queue).unwrap()));
    let mut sequences = vec![];
    for (host, seed) in hosts.iter_mut().zip(93..) {
        let mut sequence = host.sequence(&Draws(seed).prompt(70), 90, 1.0);
        host.prefill(&mut sequence);
        sequences.push(sequence);
    }
    assert_eq!(sequences[0].table, sequences[1].table);
    for _ in 0..2 {
        for (host, sequence) in hosts.iter_mut().zip(&mut sequences) {
            host.decode(sequence, 5, DescFlags::LOGP);
        }
    }
}

/// R26: with a function's last queue pair ends what was kept of it, and every number is new.
#[test]
fn r26_what_is_kept_of_a_function_ends_with_it() {
    let bytes = config().shared_bytes().unwrap();
    let ports = Ports::divide(crate::device(1, 1), &Division { bytes, ..Division::default() }).unwrap();
    for seed in [95, 96] {
        let mut host = Host::over(ports.take(0).unwrap());
        let mut sequence = host.sequence(&Draws(seed).prompt(40), 90, 1.0);
        // The second time the host lays the same blocks there, and the device has not seen them being made.
        let table = std::mem::replace(&mut sequence.table, vec![40, 41, 42]);
        (sequence.arena, sequence.record.generation) = (1, 0);
        host.lay(&sequence);
        host.prefill(&mut sequence);
        for (&number, bytes) in table.iter().zip(host.blocks(&sequence)) {
            host.regions.arenas[0].write(u64::from(number) * BLOCK, &bytes).unwrap();
        }
        (sequence.arena, sequence.table, sequence.record.generation) = (0, table, 1);
        host.lay(&sequence);
        host.decode(&mut sequence, 5, DescFlags::LOGP);
        host.decode(&mut sequence, 5, DescFlags::LOGP);
    }
}

/// The same key draws the same, whatever rollout and seed; each half of it counts.
#[test]
fn r06_a_draw_key_takes_the_place_of_seed_and_rollout() {
    let mut host = Host::new();
    let prompt = Draws(81).prompt(9);
    let mut answers = vec![];
    for (key, seed) in [(5, 1), (5, 2), (5 << 32, 2), (0xFFFF_FFFF_0000_0001, 2), (0, 1), (0, 2)] {
        let mut sequence = host.sequence(&prompt, 40, 1.5);
        (sequence.record.draw_key, sequence.seed) = (key, seed);
        host.lay(&sequence);
        host.prefill(&mut sequence);
        host.decode(&mut sequence, 20, DescFlags::LOGP);
        host.decode(&mut sequence, 5, DescFlags::empty());
        answers.push(sequence.reference.tokens);
    }
    assert_eq!(answers[0], answers[1], "the key decides, not the seed");
    answers.remove(1);
    for (place, answer) in answers.iter().enumerate() {
        assert!(!answers[..place].contains(answer), "each draws its own");
    }
}

/// Truncated draws are those of the oracle, together and each alone; a device without them refuses each by name.
#[rstest]
#[case(1, 0, 0)]
#[case(2, 0, 0)]
#[case(40, 0, 0)]
#[case(64, 0, 0)]
#[case(u32::MAX, 0, 0)]
#[case(0, 1, 0)]
#[case(0, 6554, 0)]
#[case(0, 58_982, 0)]
#[case(0, 0xFFFF, 0)]
#[case(0, 0, 1)]
#[case(0, 0, 2000)]
#[case(0, 0, u32::MAX)]
#[case(2, 6554, 500)]
#[case(40, 58_982, 3000)]
#[case(40, 0xFFFF, 0)]
fn r06_truncated_draws_are_the_oracles(#[case] top_k: u32, #[case] top_p: u32, #[case] min_p: u32) {
    let mut host = Host::new();
    for (number, temperature) in [0.0, 0.7, 3.0].into_iter().enumerate() {
        let prompt = Draws(number as u64).prompt(20 + 12 * number);
        let mut sequence = host.sequence(&prompt, 90, temperature);
        sequence.record = HwSequence { top_k, top_p, min_p, ..sequence.record };
        host.lay(&sequence);
        if truncates(&host) {
            host.prefill(&mut sequence);
            host.decode(&mut sequence, 20, DescFlags::LOGP);
            host.decode(&mut sequence, 13, DescFlags::LOGP);
            continue;
        }
        for desc in [sequence.prefill(None), sequence.decode(4)] {
            let end = host.run(&[desc])[0];
            assert_eq!((ended(&end), end.error), (Status::Error, ErrorCode::BadSequence as u8));
        }
    }
}

/// Of a larger vocabulary, whose most likely tokens lie in several bins, and of one whose logits saturate.
#[test]
fn r06_truncated_draws_of_other_images_are_the_oracles() {
    for image in [steep(), extreme(0), gemma(0)] {
        let mut host = Host::of(crate::device(1, 1), &image);
        if !truncates(&host) {
            return;
        }
        for (top_k, top_p, min_p) in
            [(3, 0, 0), (0, 30_000, 0), (0, 0xFFFF, 0), (0, 0, 900), (50, 60_000, 5000)]
        {
            let prompt = Draws(3).prompt(4);
            let mut sequence = host.sequence(&prompt, 4 + 6, 1.0);
            sequence.record = HwSequence { top_k, top_p, min_p, ..sequence.record };
            host.lay(&sequence);
            host.prefill(&mut sequence);
            host.decode(&mut sequence, 6, DescFlags::LOGP);
            // Its neighbour's draws are not truncated.
            let mut sequence = host.sequence(&prompt, 4 + 3, 1.0);
            host.prefill(&mut sequence);
            host.decode(&mut sequence, 3, DescFlags::LOGP);
        }
    }
}

/// R27: a PREFILL with LOGP writes the log-probability of each given token but the first, and nothing else.
#[rstest]
#[case(1, 0.7)]
#[case(2, 0.0)]
// Given tokens are far below 2^-128.
#[case(17, 0.006)]
#[case(33, 0.006)]
#[case(33, 0.0)]
#[case(65, 0.7)]
fn r27_a_prefill_scores_its_tokens(#[case] length: usize, #[case] temperature: f64) {
    let mut host = Host::new();
    let prompt = Draws(length as u64).prompt(length);
    let mut sequence = host.sequence(&prompt, length + 10, temperature);
    host.score(&mut sequence, 0);
    // Again from later positions on, whose keys and values are made anew.
    for start in [1, 15, 16, 31, 32, 64].into_iter().filter(|&start| start < length) {
        host.score(&mut sequence, start);
    }
    host.decode(&mut sequence, 5, DescFlags::LOGP);
}

/// R27: what a DECODE has added, scored as a given text, has the log-probabilities that the DECODE wrote.
#[test]
fn r27_an_answer_is_scored_as_it_was_sampled() {
    let mut host = Host::new();
    let prompt = Draws(91).prompt(20);
    let mut sequence = host.sequence(&prompt, 64, 0.8);
    host.prefill(&mut sequence);
    host.decode(&mut sequence, 30, DescFlags::LOGP);
    let mut sampled = vec![0; 30];
    host.driver.logps(sequence.record.prompt + 80, &mut sampled).unwrap();
    let mut again = host.sequence(&sequence.reference.tokens, 64, 0.8);
    host.score(&mut again, 0);
    let mut scored = vec![0; 30];
    host.driver.logps(again.record.prompt + 80, &mut scored).unwrap();
    assert_eq!(scored, sampled);
}

/// R27: of other shapes, and of logits that are as far from each other as they can be.
#[test]
fn r27_other_images_are_scored() {
    for image in [gemma(0), steep(), extreme(0), extreme(1)] {
        let mut host = Host::of(crate::device(1, 1), &image);
        for temperature in [1.0, 0.006, 100.0] {
            let prompt = Draws(5).prompt(7);
            let mut sequence = host.sequence(&prompt, 12, temperature);
            host.score(&mut sequence, 0);
            host.decode(&mut sequence, 3, DescFlags::LOGP);
        }
    }
}

/// R27: PREFILLs that score stand beside DECODEs and PREFILLs that do not, of the same model.
#[test]
fn r27_scores_come_beside_other_work() {
    let mut host = Host::new();
    let mut sequences: Vec<Sequence> = (0..4)
        .map(|k| {
            let prompt = Draws(k).prompt(18 + 9 * k as usize);
            let mut sequence = host.sequence(&prompt, 80, 1.0);
            host.prefill(&mut sequence);
            sequence
        })
        .collect();
    let scored: Vec<Sequence> = (0..3)
        .map(|k| {
            let prompt = Draws(50 + k).prompt(21);
            host.sequence(&prompt, 40, 1.0)
        })
        .collect();
    let plain = host.sequence(&Draws(60).prompt(50), 50, 1.0);
    let decodes: Vec<_> = sequences.iter().map(|it| it.decode(25).with_flags(DescFlags::LOGP)).collect();
    let mut descs: Vec<_> = scored.iter().map(|it| it.prefill(None).with_flags(DescFlags::LOGP)).collect();
    descs.push(plain.prefill(None));
    descs.extend(&decodes);
    let ends = host.run(&descs);
    for (sequence, desc) in sequences.iter_mut().zip(&decodes) {
        let end = of(&ends, sequence.rollout.into());
        host.check(sequence, desc, &end);
    }
    for mut sequence in scored {
        assert_eq!(ended(&of(&ends, sequence.rollout.into())), Status::Done);
        let expected = sequence.reference.scores(host.version(1), sequence.sampling().sharpness);
        let mut found = vec![0; 20];
        host.driver.logps(sequence.record.prompt + 4, &mut found).unwrap();
        assert_eq!(found, expected, "R27: of rollout {}", sequence.rollout);
        host.catch_up(&mut sequence);
    }
    host.catch_up(&mut plain.clone());
}

/// What a PREFILL that scores is refused for, where one that does not is not.
#[test]
fn r26_what_is_scored_lies_in_both_regions_and_in_the_vocabulary() {
    let bytes = 1 << 13;
    let config = doorbell_host::QueueConfig { logp_bytes: bytes, ..config() };
    let mut host = Host::configured(crate::device(1, 1), config);
    assert_eq!(host.publish(1, &model(0), PolicyMode::Wait).status, Status::Done as u8);
    let mut sequence = host.sequence(&Draws(1).prompt(40), 80, 1.0);
    let tokens = host.driver.token_regions().remove(0);
    let mut ends = |sequence: &Sequence, flags| {
        host.lay(sequence);
        let end = host.run(&[sequence.prefill(None).with_flags(flags)])[0];
        (ended(&end), ErrorCode::try_from(end.error).unwrap())
    };
    let (done, bad) = ((Status::Done, ErrorCode::None), (Status::Error, ErrorCode::BadSequence));
    // The last token has no step of its own, and its log-probability a place.
    for (prompt, scored) in [(bytes - 160, done), (bytes - 156, bad), (bytes, bad), ((1 << 18) - 156, bad)] {
        sequence.record.prompt = prompt;
        tokens.write(prompt, &sequence.reference.tokens[..39]).unwrap();
        if scored == done {
            tokens.write(prompt, &sequence.reference.tokens).unwrap();
        }
        assert_eq!(ends(&sequence, DescFlags::empty()), done, "at {prompt:#x}");
        assert_eq!(ends(&sequence, DescFlags::LOGP), scored, "at {prompt:#x}");
    }
    // The last token is none: only its score needs it. Those before it are scored.
    sequence.record.prompt = TOKENS;
    tokens.write(TOKENS, &sequence.reference.tokens).unwrap();
    for none in [64, u32::MAX] {
        tokens.write(TOKENS + 4 * 39, &[none]).unwrap();
        assert_eq!(ends(&sequence, DescFlags::empty()), done);
        assert_eq!(ends(&sequence, DescFlags::LOGP), bad);
    }
    let mut found = vec![0; 38];
    host.driver.logps(TOKENS + 4, &mut found).unwrap();
    let expected = sequence.reference.scores(host.version(1), sequence.sampling().sharpness);
    assert_eq!(found, expected[..38], "R27: what comes before is scored");
    tokens.write(TOKENS, &sequence.reference.tokens).unwrap();
    host.score(&mut sequence, 0);
    host.decode(&mut sequence, 3, DescFlags::empty());
}
