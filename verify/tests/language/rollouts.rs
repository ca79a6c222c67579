//! Rollouts: whole, in pieces, in groups, wherever their blocks lie.

use doorbell_contract::{
    CompletionFlags, DIGEST_INIT, DescFlags, HwCompletion, HwDesc, HwSequence, QueueCounter, Status,
};
use doorbell_host::Device;
use doorbell_lm::sample::Sharpness;
use doorbell_npu::arithmetic::Speed;
use doorbell_npu::layout::{Block, LINE};
use doorbell_npu::run::{Arena, Machine, Sampling, Settings};
use rstest::rstest;

use crate::host::*;

/// Prompts around the ends of blocks, and of one token, which need no PREFILL. Prompt and temperature do not meet in a device, so a
/// prompt has one temperature, and the longest has all.
#[rstest]
#[case(1, 0.5)]
#[case(2, 1.0)]
#[case(31, 0.0)]
#[case(32, 0.5)]
#[case(33, 1.0)]
#[case(34, 0.0)]
#[case(65, 0.0)]
#[case(65, 0.5)]
#[case(65, 1.0)]
fn r06_a_rollout_is_the_oracles(#[case] prompt: usize, #[case] temperature: f64) {
    let mut host = Host::new();
    let prompt = Draws(prompt as u64).prompt(prompt);
    let mut sequence = host.sequence(&prompt, prompt.len() + 40, temperature);
    if prompt.len() > 1 {
        host.prefill(&mut sequence);
    }
    let end = host.decode(&mut sequence, 40, DescFlags::LOGP);
    assert_eq!((ended(&end), end.final_seq_len), (Status::Done, prompt.len() as u32 + 40));
}

#[test]
fn r06_one_draw_for_each_position_seed_and_rollout() {
    let mut host = Host::new();
    let prompt = Draws(3).prompt(9);
    let mut told = vec![];
    for (seed, rollout) in [(1, 1), (1, 2), (2, 1), (1, 1)] {
        let mut sequence = host.sequence(&prompt, 64, 1.0);
        (sequence.seed, sequence.rollout) = (seed, rollout);
        host.prefill(&mut sequence);
        host.decode(&mut sequence, 24, DescFlags::empty());
        told.push(sequence.reference.tokens);
    }
    assert_eq!(told[0], told[3]);
    assert!(told[0] != told[1] && told[0] != told[2] && told[1] != told[2]);
}

/// R9: cut at checkpoints, it is what an uncut one is.
#[rstest]
fn r09_checkpoints_lose_nothing(#[values(1, 7, 32)] checkpoint: u32) {
    let mut host = Host::new();
    let prompt = Draws(7).prompt(20);
    let mut sequence = host.sequence(&prompt, 20 + 50, 0.8);
    host.prefill(&mut sequence);
    let mut desc = sequence.decode(50).with_checkpoint(checkpoint).with_flags(DescFlags::LOGP);
    loop {
        let end = host.run(&[desc])[0];
        host.check(&mut sequence, &desc, &end);
        match ended(&end) {
            Status::RewardNeeded => desc = desc.continued(&end).unwrap(),
            status => break assert_eq!(status, Status::Done),
        }
    }
    assert_eq!(sequence.done, 70);
}

#[test]
fn r09_a_resident_rollout_goes_on_or_ends_by_its_score() {
    let mut statuses = vec![];
    for threshold in [-1, i32::MAX] {
        let config = doorbell_host::QueueConfig { reward_threshold: threshold, ..config() };
        let mut host = Host::configured(crate::device(1, 1), config);
        host.publish(1, &model(0), doorbell_contract::PolicyMode::Wait);
        let mut sequence = host.sequence(&[5, 6, 7], 64, 1.0);
        host.prefill(&mut sequence);
        let desc = sequence.decode(30).with_checkpoint(10).with_flags(DescFlags::RESIDENT);
        let end = host.run(&[desc])[0];
        host.check(&mut sequence, &desc, &end);
        statuses.push((end.has(CompletionFlags::REJECTED), end.final_seq_len));
    }
    assert_eq!(statuses, [(false, 33), (true, 13)]);
}

/// R26: at any length it may be ended and go on under another descriptor.
#[test]
fn r26_a_rollout_is_preempted_at_every_length() {
    let mut host = Host::new();
    let prompt = Draws(11).prompt(29);
    let mut whole = host.sequence(&prompt, 29 + 12, 1.0);
    host.prefill(&mut whole);
    host.decode(&mut whole, 12, DescFlags::empty());
    for length in 1..12 {
        let mut sequence = host.sequence(&prompt, 29 + 12, 1.0);
        (sequence.seed, sequence.rollout) = (whole.seed, whole.rollout);
        host.prefill(&mut sequence);
        host.decode(&mut sequence, length, DescFlags::empty());
        // Its blocks move to another arena, in another order.
        let moved: Vec<u32> = vec![6 - length % 3, length % 3];
        for (from, to) in host.blocks(&sequence).iter().zip(&moved) {
            host.regions.arenas[3].write(u64::from(*to) * BLOCK, from).unwrap();
        }
        let freed = std::mem::replace(&mut sequence.table, moved);
        for block in freed {
            host.regions.arenas[0].write(u64::from(block) * BLOCK, &[0x5A; BLOCK as usize]).unwrap();
            host.free.insert(0, block);
        }
        sequence.arena = 3;
        host.generation += 1;
        sequence.record.generation = host.generation;
        host.lay(&sequence);
        host.decode(&mut sequence, 12 - length, DescFlags::empty());
        assert_eq!(sequence.reference.tokens, whole.reference.tokens, "preempted at {length}");
    }
}

/// R27: the same bytes in one descriptor or in several.
#[rstest]
#[case(&[70])]
#[case(&[1, 2, 3, 64, 70])]
#[case(&[32, 64, 70])]
#[case(&[33, 33, 70])]
fn r27_a_prompt_may_be_prefilled_in_pieces(#[case] lengths: &[u32]) {
    let mut host = Host::new();
    let prompt = Draws(13).prompt(70);
    let mut sequence = host.sequence(&prompt, 70 + 8, 1.0);
    for &length in lengths {
        let desc = HwDesc { seq_len: length, ..sequence.prefill(None) };
        host.lay(&sequence);
        let end = host.run(&[desc])[0];
        assert_eq!((ended(&end), end.final_seq_len, end.result), (Status::Done, length, 0));
        sequence.record.start = length - 1;
    }
    host.catch_up(&mut sequence);
    host.decode(&mut sequence, 8, DescFlags::LOGP);
}

/// Blocks lie anywhere, in any arena.
#[rstest]
fn r26_blocks_lie_in_any_order(#[values(1, 2, 3)] seed: u64, #[values(0, 1)] arena: u16) {
    let mut host = Host::new();
    let mut draws = Draws(seed);
    let prompt = draws.prompt(100);
    let mut sequence = host.sequence(&prompt, 140, 0.7);
    sequence.arena = arena;
    sequence.table = draws.shuffled(ARENA_BLOCKS[usize::from(arena)] as u32);
    sequence.table.truncate(5);
    host.lay(&sequence);
    let others = (0..ARENA_BLOCKS[usize::from(arena)] as u32).filter(|block| !sequence.table.contains(block));
    let others: Vec<_> = others.map(|number| (number, host.block(arena, number))).collect();
    host.prefill(&mut sequence);
    host.decode(&mut sequence, 40, DescFlags::empty());
    for (number, before) in others {
        assert!(host.block(arena, number) == before, "R11: block {number}");
    }
}

/// R17, R27: a PREFILL opens a group, whose members share its whole blocks and copy the last one.
#[rstest]
fn r27_members_share_a_prefix(#[values(2, 17, 32, 33, 45, 64, 65)] length: usize) {
    let mut host = Host::new();
    let prompt = Draws(length as u64).prompt(length);
    let prefix = host.sequence(&prompt, length, 1.0);
    let shared = length - 1;
    let mut members: Vec<Sequence> = (0..4).map(|k| member(&mut host, &prefix, &prompt, k)).collect();
    let mut descs = vec![prefix.prefill(Some(4))];
    descs.extend(members.iter().zip(0..).map(|(member, number)| {
        member.decode(20 + u32::from(number)).with_flags(DescFlags::LOGP).with_member(prefix.rollout, number)
    }));
    let last = *prefix.table.last().unwrap();
    let before = host.block(0, last);
    let ends = host.run(&descs);
    assert_eq!(ended(&of(&ends, prefix.rollout.into())), Status::Done);
    let mut made = prefix.clone();
    host.catch_up(&mut made);
    for (member, desc) in members.iter_mut().zip(&descs[1..]) {
        let end = of(&ends, member.rollout.into());
        host.catch_up(member);
        host.check(member, desc, &end);
    }
    assert!(members[0].reference.tokens[..length + 20] != members[1].reference.tokens[..length + 20]);
    // R11: behind the prefix its last block is as it was.
    let (after, place) = (host.block(0, last), Block { width: 32 });
    let first = if shared.div_ceil(32) < prefix.table.len() { 0 } else { (shared as u64 - 1) % 32 + 1 };
    for (token, head, part) in
        (first..32).flat_map(|t| (0..8).map(move |k| (t, k / 2 * place.bytes(), k % 2)))
    {
        for (at, bytes) in [(place.scale(part, token), 2), (place.mantissas(part, token), 32)] {
            let range = (head + at) as usize..(head + at + bytes) as usize;
            assert_eq!(before[range.clone()], after[range], "R11: position {token} of the last block");
        }
    }
}

/// A member of a prefix: it has the prefix's whole blocks, and one of its own for the rest.
pub fn member<P: doorbell_host::Platform>(
    host: &mut Host<P>,
    prefix: &Sequence,
    prompt: &[u32],
    number: u32,
) -> Sequence {
    let shared = prompt.len() - 1;
    let mut member = host.sequence(prompt, prompt.len() + 30, 1.0);
    member.seed = 77 + number;
    let whole = shared / 32;
    member.table[..whole].copy_from_slice(&prefix.table[..whole]);
    member.record.shared = shared as u32;
    member.record.source = prefix.table[whole.min(prefix.table.len() - 1)];
    host.lay(&member);
    member
}

/// A prefix that goes on behind another one, which it shares: COW of COW.
#[test]
fn r27_a_prefix_goes_on_behind_another() {
    let mut host = Host::new();
    let prompt = Draws(21).prompt(80);
    let mut first = host.sequence(&prompt[..50], 50, 1.0);
    host.prefill(&mut first);
    // The second one has 49 positions of the first; it begins in the middle of a block, which it copies.
    let mut second = host.sequence(&prompt, 80 + 20, 1.0);
    second.table[0] = first.table[0];
    second.record = HwSequence { start: 49, shared: 49, source: first.table[1], ..second.record };
    host.lay(&second);
    let before = host.blocks(&first);
    host.prefill(&mut second);
    assert!(host.blocks(&first) == before, "R11: the first prefix is as it was");
    host.decode(&mut second, 20, DescFlags::LOGP);
    // A second DECODE begins elsewhere, and copies nothing any more.
    host.regions.arenas[0].write(u64::from(first.table[1]) * BLOCK, &[0xEE; BLOCK as usize]).unwrap();
    host.decode(&mut second, 9, DescFlags::empty());
}

/// One that is stopped before it begins, or at any time later, goes on under another descriptor, which copies what the first has not.
#[test]
fn r27_what_was_stopped_before_it_began_copies_when_it_goes_on() {
    let mut host = Host::new();
    let prompt = Draws(41).prompt(45);
    let mut prefix = host.sequence(&prompt, 45, 1.0);
    host.prefill(&mut prefix);
    let mut unbegun = 0;
    for number in 0..6 {
        let mut sequence = member(&mut host, &prefix, &prompt, number);
        host.catch_up(&mut sequence);
        let desc = sequence.decode(20).with_flags(DescFlags::LOGP);
        host.driver.submit(&[desc]).unwrap();
        crate::pass(host.driver.platform_mut(), number);
        host.driver.submit(&[sequence.stop()]).unwrap();
        let ends = host.reap(2);
        let end = of(&ends, sequence.rollout.into());
        host.check(&mut sequence, &desc, &end);
        unbegun += u32::from(end.final_seq_len == desc.seq_len);
        host.decode(&mut sequence, 9, DescFlags::LOGP);
    }
    println!("{unbegun} of 6 had added no token");
}

/// A STOP ends it at some length, from which it can go on.
#[test]
fn r08_a_stop_ends_a_rollout_that_runs() {
    let mut host = Host::new();
    let prompt = Draws(31).prompt(10);
    let mut sequence = host.sequence(&prompt, 700, 1.0);
    host.prefill(&mut sequence);
    let desc = sequence.decode(600);
    host.driver.submit(&[desc]).unwrap();
    crate::pass(host.driver.platform_mut(), 200);
    host.driver.submit(&[sequence.stop()]).unwrap();
    let ends = host.reap(2);
    let end = of(&ends, sequence.rollout.into());
    assert_eq!(ended(&end), Status::Stopped);
    assert!((11..200).contains(&end.final_seq_len), "{}", end.final_seq_len);
    host.check(&mut sequence, &desc, &end);
    host.decode(&mut sequence, 8, DescFlags::empty());
}

#[test]
fn r08_an_abort_ends_what_runs_and_what_waits() {
    use doorbell_contract::Register;
    let mut host = Host::new();
    let prompt = Draws(32).prompt(10);
    let mut sequence = host.sequence(&prompt, 700, 1.0);
    host.prefill(&mut sequence);
    let desc = sequence.decode(600);
    let later = HwDesc { user_data: 7, ..desc };
    host.driver.submit(&[desc, later]).unwrap();
    crate::pass(host.driver.platform_mut(), 300);
    host.driver.write(Register::Abort, sequence.rollout).unwrap();
    let ends = host.reap(2);
    let end = of(&ends, sequence.rollout.into());
    assert_eq!(ended(&end), Status::Stopped);
    host.check(&mut sequence, &desc, &end);
    let unstarted = of(&ends, 7);
    // It adds no more than the device's bound.
    assert_eq!(ended(&unstarted), Status::Stopped);
    assert!((10..=11).contains(&unstarted.final_seq_len), "{}", unstarted.final_seq_len);
    assert_eq!(unstarted.final_seq_len == 10, unstarted.result == DIGEST_INIT);
}

/// A slice of time is over before a long PREFILL is; another queue pair's descriptors come in between.
#[test]
fn r16_a_long_prefill_takes_turns() {
    use doorbell_host::{Division, Driver, Ports, QueueConfig};
    let bytes = config().shared_bytes().unwrap();
    let division = Division { queues: 2, functions: 1, bytes, ..Division::default() };
    let ports = Ports::divide(crate::device(2, 1), &division).unwrap();
    let mut host = Host::over(ports.take(0).unwrap());
    let mut other = Driver::new(ports.take(1).unwrap(), QueueConfig::default()).unwrap();
    let prompt = Draws(33).prompt(900);
    let sequence = host.sequence(&prompt, 900, 1.0);
    host.driver.submit(&[sequence.prefill(None)]).unwrap();
    other.submit(&(0..20).map(|k| HwDesc::decode(k, 0, 900)).collect::<Vec<_>>()).unwrap();
    let mut out = [HwCompletion::default(); 32];
    let (mut first, mut second) = (0, 0);
    while host.driver.in_flight() > 0 {
        crate::pass(&mut ports.device(), 700);
        second += other.collect(&mut out).unwrap();
        first += host.driver.collect(&mut out).unwrap();
    }
    assert_eq!(first, 1);
    let between = if crate::ONE_AT_A_TIME { 3..20 } else { 3..21 };
    assert!(between.contains(&second), "{second} of the other queue pair's descriptors came in between");
    let mut made = sequence.clone();
    host.catch_up(&mut made);
    assert_eq!(host.driver.queue_counter(QueueCounter::Tokens).unwrap(), 0);
}

#[test]
fn r10_the_end_of_a_sequence_is_a_token_of_the_image() {
    let mut host = Host::new();
    let prompt = Draws(41).prompt(5);
    let mut seen = 0;
    for flags in [DescFlags::empty(), DescFlags::EOS_STOPS] {
        let mut sequence = host.sequence(&prompt, 5 + 200, 2.0);
        (sequence.seed, sequence.rollout) = (1, 1);
        host.prefill(&mut sequence);
        let end = host.decode(&mut sequence, 200, flags);
        seen += u32::from(end.has(CompletionFlags::EOS));
        let is_last = sequence.reference.tokens.last() == Some(&0);
        assert_eq!(is_last && end.final_seq_len < 205, flags == DescFlags::EOS_STOPS);
    }
    assert_eq!(seen, 2, "a token of 64 ends it, and 200 were drawn");
}

/// The program that lies in the MODEL region gives the same tokens and the same bytes, in the NPU's interpreter.
#[test]
fn r25_the_program_in_memory_says_the_same() {
    let mut host = Host::new();
    let (_, record) = host.place(1, &model(0), doorbell_contract::PolicyMode::Wait);
    let prompt = Draws(51).prompt(40);
    let mut sequence = host.sequence(&prompt, 70, 1.0);
    host.prefill(&mut sequence);
    host.decode(&mut sequence, 30, DescFlags::LOGP);

    let mut memory = vec![0; record.length as usize];
    host.regions.model.read(record.offset, &mut memory).unwrap();
    let program = &memory[record.program_at as usize..][..8 * record.words as usize];
    let words: Vec<u64> =
        program.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
    let settings = Settings { lines: 512, speed: Speed::Plain };
    assert_eq!(BLOCK % LINE as u64, 0);
    let arena = Arena { base: 0, bytes: 3 * BLOCK };
    let mut machine = Machine::new(settings, memory, arena.bytes as usize);
    let context = machine.admit(arena, vec![2, 0, 1]);
    machine.contexts[context].sampling = Sampling {
        sharpness: Sharpness(sequence.record.sharpness),
        seed: sequence.seed,
        rollout: sequence.rollout,
        scores: false,
    };
    let tokens = &sequence.reference.tokens;
    let mut logps = vec![0; 30];
    host.driver.logps(sequence.record.prompt + 4 * 40, &mut logps).unwrap();
    for position in 0..tokens.len() - 1 {
        let context = &mut machine.contexts[context];
        (context.token, context.position, context.silent) =
            (tokens[position], position as u32, position < 39);
        let outcome = machine.step(&words, &[0], &mut ())[0].unwrap();
        if let Some(sample) = outcome.sample {
            assert_eq!((sample.token, sample.log_probability), (tokens[position + 1], logps[position - 39]));
        }
    }
    let blocks: Vec<Vec<u8>> =
        [2, 0, 1].map(|block| machine.kv[block * BLOCK as usize..][..BLOCK as usize].to_vec()).into();
    let found = sequence.reference.kv_difference(host.version(1), &blocks, 0, tokens.len() - 1);
    assert_eq!(found, None);
}
