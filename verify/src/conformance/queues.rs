//! R1 to R5, R7 and R13: what the queue pair promises.

use rand_chacha::rand_core::Rng;

use super::rig::{below, by_position, numbered, refused};
use super::{Bench, Failure, ensure, ensure_eq};
use doorbell_contract::{
    Capability, CompletionFlags, Counter, DescFlags, ErrorCode, HwCompletion, HwDesc, Opcode, Register,
    SqKey, State, Status,
};
use doorbell_host::config::QueueConfig;
use doorbell_host::device::Device;

pub(super) fn r01_without_a_doorbell_nothing_happens(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let mut rig = bench.open(QueueConfig { sq_depth: 8, ..Default::default() })?;
    let descs = numbered((0..6).map(|k| HwDesc::decode(k, 0, 8)));
    rig.driver.submission_queue().push(&descs)?;
    let before = rig.snapshot()?;
    rig.settle()?;
    // Where slots are polled, the check word has published them.
    if !polls_slots(&mut rig)? {
        ensure!(rig.snapshot()? == before, "R1: the device wrote memory without a doorbell");
        for counter in [Counter::Descriptors, Counter::Completions, Counter::Tokens, Counter::ReadBeats] {
            ensure_eq!(rig.driver.counter(counter)?, 0, "R1: {counter} without a doorbell");
        }
    }
    rig.driver.ring()?;
    let completions = rig.drain()?;
    rig.compare(&descs, &by_position(&completions, descs.len())?)
}

fn polls_slots(rig: &mut super::Rig) -> Result<bool, Failure> {
    let capability = Capability::from_bits_truncate(rig.driver.read(Register::Capability)?);
    Ok(capability.contains(Capability::SLOT_POLLING))
}

pub(super) fn r01_only_what_is_published_is_executed(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let mut rig = bench.open(QueueConfig { sq_depth: 16, ..Default::default() })?;
    let descs = numbered((0..12).map(|k| HwDesc::decode(k, 0, 4)));
    rig.driver.submit(&descs[..5])?;
    let sealed = !polls_slots(&mut rig)?;
    if sealed {
        rig.driver.submission_queue().push(&descs[5..])?;
    } else {
        // Their check words, all 0, publish nothing.
        rig.driver.submission_queue().push_unsealed(&descs[5..])?;
    }
    rig.settle()?;
    ensure_eq!(rig.driver.counter(Counter::Descriptors)?, 5, "R1: descriptors consumed of 5 published");
    ensure_eq!(rig.driver.counter(Counter::ReadBeats)?, 5, "R1: slots read of 5 published");
    ensure_eq!(rig.drain()?.len(), 5, "R1: completions for 5 published");
    rig.driver.ring()?;
    let others = rig.drain()?;
    ensure_eq!(others.len(), 7, "R1: completions for the other 7");
    let executed = others.iter().all(|completion| completion.error != ErrorCode::BadCheck as u8);
    ensure_eq!(executed, sealed, "R2: whether what the doorbell covers was executed");
    Ok(())
}

pub(super) fn r01_impossible_doorbells_are_refused(bench: &mut Bench<'_>) -> Result<(), Failure> {
    for start in [0, 3, u32::MAX - 2] {
        let mut rig = bench.open(QueueConfig { sq_depth: 4, sq_start: start, ..Default::default() })?;
        rig.run(&numbered([HwDesc::nop(); 3]))?;
        let tail = start.wrapping_add(3);
        let refusals = |rig: &mut super::Rig| rig.driver.read(Register::Status).map(|status| status & 0xFF);
        let before = refusals(&mut rig)?;
        let impossible = [tail.wrapping_sub(1), tail.wrapping_add(5), tail.wrapping_add(1 << 31), start];
        for value in impossible {
            refused(
                rig.driver.write(Register::Doorbell, value),
                &format!("doorbell {value:#x} at tail {tail:#x}"),
            )?;
        }
        ensure_eq!(refusals(&mut rig)? - before, impossible.len() as u32, "refused doorbells in STATUS");
        rig.driver.write(Register::Doorbell, tail)?;
        ensure_eq!(rig.driver.read(Register::Doorbell)?, tail, "DOORBELL after refusals");
        rig.check(&numbered([HwDesc::decode(1, 2, 3), HwDesc::nop()]))?;
    }
    Ok(())
}

pub(super) fn r02_a_wrong_check_word_is_never_executed(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let mut rig = bench.open(QueueConfig { sq_depth: 64, ..Default::default() })?;
    let whole = HwDesc::decode(7, 100, 16).with_user_data(99).with_seed(3);
    let mut expected = Vec::new();
    for bit in (0..512).step_by(11) {
        let index = rig.driver.submission_queue().tail();
        let key = *rig.driver.submission_queue().key();
        let mut bytes: [u8; 64] = bytemuck::cast(whole.seal(&key, index));
        bytes[bit / 8] ^= 1 << (bit % 8);
        let torn: HwDesc = bytemuck::cast(bytes);
        rig.driver.submission_queue().push_unsealed(&[torn])?;
        rig.driver.ring()?;
        expected.push(index);
    }
    let before = rig.tokens(0, 64)?;
    let completions = rig.drain()?;
    ensure_eq!(completions.len(), expected.len(), "R3: completions");
    // Workers may have changed their order.
    let mut found: Vec<HwCompletion> =
        completions.iter().map(|completion| completion.without_timing()).collect();
    found.sort_by_key(|completion| completion.result);
    for (index, completion) in expected.into_iter().zip(found) {
        let rejected = HwCompletion {
            result: index,
            status: Status::Error as u8,
            error: ErrorCode::BadCheck as u8,
            flags: CompletionFlags::NO_ECHO.bits(),
            ..HwCompletion::default()
        };
        ensure_eq!(completion, rejected, "R2: completion of a torn slot");
    }
    ensure!(rig.tokens(0, 64)? == before, "R2: a torn DECODE wrote tokens");
    ensure_eq!(rig.driver.counter(Counter::Tokens)?, 0, "R2: tokens of torn slots");
    rig.check(&numbered([HwDesc::decode(7, 100, 16)]))?;
    Ok(())
}

pub(super) fn r02_a_stale_slot_is_never_executed(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let mut rig = bench.open(QueueConfig { sq_depth: 4, sq_key: Some(0x8000_0001), ..Default::default() })?;
    rig.check(&numbered((0..4).map(|k| HwDesc::decode(k, 0, 2))))?;
    // The second pass publishes what the first left, a slot of zeroes, and one sealed for its neighbour.
    let (key, other) = (SqKey::new(0x8000_0001), SqKey::new(1));
    let mut stale: Vec<HwDesc> = (0..2).map(|k| HwDesc::decode(k, 0, 2).seal(&key, k)).collect();
    stale.extend([HwDesc::default(), HwDesc::nop().seal(&key, 8)]);
    // The others have one alone: a device that polls slots has nothing but the doorbell that says that it was meant. The
    // last is of a queue that lay here before.
    for slots in [stale, vec![HwDesc::nop().seal(&key, 7)], vec![HwDesc::nop().seal(&other, 9)]] {
        rig.driver.submission_queue().push_unsealed(&slots)?;
        rig.driver.ring()?;
        for completion in rig.drain()? {
            ensure_eq!(
                (completion.status, completion.error),
                (Status::Error as u8, ErrorCode::BadCheck as u8),
                "R2: end of a stale slot"
            );
        }
    }
    // The counter follows the memory's acknowledgement, which may come after the completion was seen.
    rig.settle()?;
    ensure_eq!(rig.driver.counter(Counter::Completions)?, 10, "R3: completions");
    Ok(())
}

pub(super) fn r03_every_descriptor_has_one_completion(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let mut random = bench.random();
    for (sq_depth, cq_depth) in [(2, 2), (16, 4), (64, 64)] {
        let config =
            QueueConfig { sq_depth, cq_depth, token_bytes: 1 << 16, kv_bytes: 4096, ..Default::default() };
        let mut rig = bench.open(config)?;
        let garbage = |position: u64| {
            let mut bytes = [0u8; 64];
            random.fill_bytes(&mut bytes);
            let mut desc: HwDesc = bytemuck::cast(bytes);
            // Without help nearly all would end at the opcode or the flags. No STOP: what it stops depends on timing.
            desc.opcode = [0, 1, 1, 3, desc.opcode & 0x7F][below(&mut random, 5) as usize];
            if below(&mut random, 4) > 0 {
                (desc.flags, desc.policy_version) = (desc.flags & 0x1F, 0);
                (desc.model_id, desc.kv_offset) = (desc.model_id & 1, 0);
                desc.delta_offset &= 0x1_3FFC;
                (desc.seq_len, desc.max_tokens) = (desc.seq_len & 0xFFFF, desc.max_tokens & 0x3F);
                // Groups that nobody ends: a device has room for few.
                if desc.opcode == Opcode::Prefill as u8 {
                    desc.max_tokens = 0;
                }
            }
            // What it says depends on what was published.
            if desc.opcode == Opcode::Policy as u8 {
                desc.model_id |= 2;
            }
            HwDesc { user_data: position, ..desc }
        };
        let descs: Vec<HwDesc> = (0..300).map(garbage).collect();
        let completions = by_position(&rig.run(&descs)?, descs.len())?;
        for (desc, completion) in descs.iter().zip(completions) {
            // Their tokens overlap each other, so only the completions can be compared; the digest stands for tokens.
            let expected = rig.oracle().answer(desc).completion;
            ensure_eq!(completion.without_timing(), expected, "R6: completion of {desc:x?}");
        }
    }
    Ok(())
}

pub(super) fn r04_full_completion_queue_stalls_and_drops_nothing(
    bench: &mut Bench<'_>,
) -> Result<(), Failure> {
    for cq_start in [0, u32::MAX - 1] {
        let config = QueueConfig { sq_depth: 64, cq_depth: 4, cq_start, ..Default::default() };
        let mut rig = bench.open(config)?;
        let descs =
            numbered((0..64).map(|k| if k % 2 == 0 { HwDesc::nop() } else { HwDesc::decode(k, 9, 3) }));
        ensure_eq!(rig.driver.submit(&descs)?, 64, "descriptors taken by an empty queue of 64");
        rig.settle()?;
        ensure_eq!(
            rig.driver.counter(Counter::Completions)?,
            4,
            "R4: completions in a queue of 4 that nobody reads"
        );
        ensure!(rig.driver.counter(Counter::StallCq)? > 0, "R4: STALL_CQ is 0 although the queue is full");
        let status = rig.driver.read(Register::Status)?;
        ensure_eq!(status >> 8 & 0xFF, 4, "STATUS: fill of the completion ring");
        let state = State::from_bits_retain(rig.driver.read(Register::State)?);
        ensure!(!state.contains(State::IDLE), "STATE.IDLE with completions outstanding");
        let ring = rig.driver.layout().cq..rig.driver.layout().cq + 4 * 32;
        let slots = |rig: &super::Rig| -> Result<Vec<u32>, Failure> {
            Ok(rig.snapshot()?[ring.start / 4..ring.end / 4].to_vec())
        };
        let before = slots(&rig)?;
        rig.settle()?;
        ensure!(slots(&rig)? == before, "R4: the device overwrote completions that nobody has read");
        let completions = rig.drain()?;
        rig.compare(&descs, &by_position(&completions, 64)?)?;
    }
    Ok(())
}

pub(super) fn r04_a_device_that_stalls_is_not_idle(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let mut rig = bench.open(QueueConfig { sq_depth: 16, cq_depth: 2, ..Default::default() })?;
    let mut left = rig.driver.submit(&[HwDesc::nop(); 8])?;
    while left > 0 {
        // With each completion taken the next can be written; that of the last makes the device idle.
        left -= rig.driver.poll(&mut [HwCompletion::default()])?;
        rig.settle()?;
        let state = State::from_bits_retain(rig.driver.read(Register::State)?);
        ensure_eq!(
            state.contains(State::IDLE),
            left <= 2,
            "R4: STATE.IDLE with {left} completions not taken"
        );
    }
    Ok(())
}

pub(super) fn r04_impossible_releases_are_refused(bench: &mut Bench<'_>) -> Result<(), Failure> {
    for cq_start in [0, u32::MAX - 2] {
        let mut rig = bench.open(QueueConfig { cq_depth: 8, cq_start, ..Default::default() })?;
        rig.run(&numbered([HwDesc::nop(); 4]))?;
        rig.driver.submit(&[HwDesc::nop(); 2])?;
        rig.settle()?;
        let head = cq_start.wrapping_add(4);
        for value in
            [head.wrapping_sub(1), head.wrapping_add(3), head.wrapping_add(8), head.wrapping_add(1 << 31)]
        {
            refused(rig.driver.write(Register::CqHead, value), &format!("CQ_HEAD {value:#x} at {head:#x}"))?;
        }
        ensure_eq!(rig.driver.read(Register::CqHead)?, head, "CQ_HEAD after refusals");
        ensure_eq!(rig.drain()?.len(), 2, "R3: completions after refusals");
    }
    Ok(())
}

pub(super) fn r05_completions_of_a_rollout_keep_its_order(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let mut random = bench.random();
    let mut rig = bench.open(QueueConfig { sq_depth: 32, cq_depth: 16, ..Default::default() })?;
    let descs = numbered((0..400).map(|_| {
        let rollout = below(&mut random, 5);
        match below(&mut random, 8) {
            0 => HwDesc { rollout_id: rollout, ..HwDesc::nop() },
            1 => HwDesc::decode(rollout, 0, 0),
            _ => HwDesc::decode(rollout, below(&mut random, 1000), 1 + below(&mut random, 40)),
        }
    }));
    let completions = rig.run(&descs)?;
    rig.compare(&descs, &by_position(&completions, descs.len())?)?;
    for rollout in 0..5 {
        let order: Vec<u64> = completions
            .iter()
            .filter(|c| c.rollout_id == rollout)
            .map(|completion| completion.user_data)
            .collect();
        ensure!(order.is_sorted(), "R5: completions of rollout {rollout} came in the order {order:?}");
    }
    if rig.driver.read(Register::FnWorkers)?.count_ones() == 1 {
        let order: Vec<u64> = completions.iter().map(|completion| completion.user_data).collect();
        ensure!(order.is_sorted(), "R5: one worker completed in the order {order:?}");
    }
    Ok(())
}

pub(super) fn r05_a_rollout_runs_one_descriptor_at_a_time(bench: &mut Bench<'_>) -> Result<(), Failure> {
    // Each of these overwrites the tokens of the one before; run at the same time, the longer one would win.
    let mut rig = bench.open(QueueConfig::default())?;
    for round in 0..20 {
        let long = HwDesc::decode(round, 0, 100).with_user_data(0);
        let short = HwDesc::decode(round, 5000, 10).with_user_data(1);
        let oracle = rig.oracle();
        by_position(&rig.run(&[long, short])?, 2)?;
        let mut expected = oracle.answer(&long).tokens;
        expected[..10].copy_from_slice(&oracle.answer(&short).tokens);
        ensure!(
            rig.tokens(0, 100)? == expected,
            "R5: two descriptors of rollout {round} ran at the same time"
        );
    }
    Ok(())
}

pub(super) fn r07_fences_separate(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let mut random = bench.random();
    let mut rig = bench.open(QueueConfig { sq_depth: 64, cq_depth: 8, ..Default::default() })?;
    let descs = numbered((0..300).map(|k| {
        let desc = match below(&mut random, 4) {
            0 => HwDesc::nop(),
            // A malformed descriptor is no fence.
            1 if below(&mut random, 3) == 0 => return HwDesc::decode(k, 0, 0).with_flags(DescFlags::FENCE),
            _ => HwDesc::decode(k, 0, 1 + below(&mut random, 60)),
        };
        if below(&mut random, 6) == 0 { desc.with_flags(DescFlags::FENCE) } else { desc }
    }));
    let completions = rig.run(&descs)?;
    rig.compare(&descs, &by_position(&completions, descs.len())?)?;
    for (fence, _) in descs
        .iter()
        .enumerate()
        .filter(|(_, desc)| desc.flags & DescFlags::FENCE.bits() != 0 && rig.oracle().error(desc).is_none())
    {
        let place = |position: usize| completions.iter().position(|c| c.user_data == position as u64);
        for other in 0..descs.len() {
            let in_order = (place(other) < place(fence)) == (other < fence) || other == fence;
            ensure!(in_order, "R7: descriptor {other} passed the fence {fence}");
        }
    }
    Ok(())
}

pub(super) fn r13_every_rule_holds_across_the_wrap(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let mut random = bench.random();
    for (sq_depth, cq_depth, sq_start, cq_start) in [
        (2, 2, u32::MAX, u32::MAX),
        (4, 2, u32::MAX - 20, 0),
        (2, 8, 0x7FFF_FFFF, u32::MAX - 9),
        (16, 16, u32::MAX - 100, u32::MAX - 50),
        (64, 32, 5, 0xFFFF),
    ] {
        let mut rig =
            bench.open(QueueConfig { sq_depth, cq_depth, sq_start, cq_start, ..Default::default() })?;
        let descs =
            numbered((0..200).map(|k| HwDesc::decode(k, below(&mut random, 99), 1 + below(&mut random, 20))));
        rig.check(&descs)?;
        let (tail, head) = (rig.driver.read(Register::Doorbell)?, rig.driver.read(Register::CqHead)?);
        ensure_eq!(tail, sq_start.wrapping_add(200), "R13: DOORBELL");
        ensure_eq!(head, cq_start.wrapping_add(200), "R13: CQ_HEAD");
        let idle = State::from_bits_retain(rig.driver.read(Register::State)?);
        ensure_eq!(idle, State::ACTIVE | State::IDLE, "STATE when all is done");
        ensure_eq!(rig.driver.in_flight(), 0, "R3: in flight when all is done");
    }
    Ok(())
}
