//! Role: worker, `kernels/worker.cuh`. A thread that runs one rollout at a time, from whichever queue.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::thread;
use std::time::{Duration, Instant};

use bytemuck::cast;
use doorbell_contract::{CompletionFlags, DescFlags, ErrorCode, HwCompletion, HwDesc, Status};
use doorbell_engine::{Digest, Engine, RewardModel, Step};

use super::descriptor::{Outcome, lines_of};
use super::pace::Pace;
use super::state::{PLACES, Shared, WORK_SLOTS};

/// Tokens of a step: the lanes of a warp.
const WARP: u32 = 32;

/// Waits as long as that many cycles of 1 GHz, and lets others go on meanwhile.
fn wait_cycles(cycles: u32, pace: &Pace<'_>, abandoned: impl Fn() -> bool) {
    let start = Instant::now();
    loop {
        pace.beat();
        thread::yield_now();
        if start.elapsed() >= Duration::from_nanos(cycles.into()) || abandoned() {
            return;
        }
    }
}

fn run(shared: &Shared, queue: usize, place_index: u32, worker_id: u16, pace: &mut Pace<'_>) {
    let state = &shared.queues[queue];
    let place = &state.places[place_index as usize];
    let start = Instant::now();
    let desc = HwDesc {
        user_data: place.user_data.load(Relaxed),
        reward_model_id: place.reward_model_id.load(Relaxed) as u16,
        flags: place.flags.load(Relaxed) as u8,
        seed: place.seed.load(Relaxed),
        ..HwDesc::decode(
            place.rollout_id.load(Relaxed),
            place.seq_len.load(Relaxed),
            place.max_tokens.load(Relaxed),
        )
    };
    let flags = DescFlags::from_bits_retain(desc.flags);
    let period = place.period.load(Relaxed);
    let (eos_threshold, wait_states) = (place.eos_threshold.load(Relaxed), place.wait_states.load(Relaxed));
    let tokens = place.tokens.load(Relaxed);
    let session = place.session.load(Relaxed);
    let mut decoder = Engine::Hash.begin(&desc, eos_threshold);

    let (mut produced, mut digest, mut checkpoint) = (0, Digest::EMPTY, period);
    let mut completion_flags = CompletionFlags::empty();
    let ended_as = loop {
        pace.beat();
        pace.step();
        let stop = place.stop.load(Relaxed);
        let dropped = state.abandon.load(Relaxed);
        // How many of the step count: up to the budget, the next checkpoint, an end of sequence that stops.
        let mut count = WARP.min(desc.max_tokens - produced).min(checkpoint - produced);
        if wait_states != 0 {
            count = 1;
            wait_cycles(wait_states, pace, || state.abandon.load(Relaxed) == session);
        }
        let (first, mut eos_stops) = (produced, false);
        for _ in 0..count {
            let Step { token, eos } = decoder.step();
            shared.write_token(queue, tokens + 4 * u64::from(produced), token);
            digest.push(token);
            produced += 1;
            if eos {
                completion_flags |= CompletionFlags::EOS;
                if flags.contains(DescFlags::EOS_STOPS) {
                    eos_stops = true;
                    break;
                }
            }
        }
        state.counters.tokens.fetch_add((produced - first).into(), Relaxed);

        // What ends a DECODE: the contract's order.
        if eos_stops || produced == desc.max_tokens {
            break Some(Status::Done);
        } else if stop != 0 {
            break Some(Status::Stopped);
        } else if produced == checkpoint {
            if !flags.contains(DescFlags::RESIDENT) {
                break Some(Status::RewardNeeded);
            } else if RewardModel::Digest.score(digest) < place.reward_threshold.load(Relaxed) {
                completion_flags |= CompletionFlags::REJECTED;
                break Some(Status::Done);
            }
            checkpoint = checkpoint.saturating_add(period);
        }
        if dropped == session {
            break None;
        }
    };

    // The tokens come before the news of the end.
    pace.step();
    if let Some(status) = ended_as {
        let outcome = Outcome {
            status,
            error: ErrorCode::None,
            flags: completion_flags,
            added: produced,
            result: digest.value(),
        };
        let completion = HwCompletion { worker_id, ..outcome.completion(&desc) };
        let words: [u64; 4] = cast(completion);
        for (word, value) in place.result.iter().zip(words) {
            word.store(value, Relaxed);
        }
        state.counters.lines.fetch_add(lines_of(tokens, produced), Relaxed);
    }
    state.counters.busy.fetch_add(start.elapsed().as_nanos() as u64, Relaxed);
    state.counters.wait.fetch_add(u64::from(wait_states) * u64::from(produced), Relaxed);
    let ticket = state.done_tail.fetch_add(1, Relaxed);
    pace.step();
    let entry = u64::from(ticket.wrapping_add(1)) << 32 | u64::from(place_index);
    state.done[(ticket % PLACES) as usize].store(entry, Release);
}

/// Takes tickets of the work queue, each in turn of its arrival, until every front end has ended.
pub(super) fn role(shared: &Shared, worker_id: u16, pace: &mut Pace<'_>) {
    loop {
        let ticket = shared.work_head.fetch_add(1, Relaxed);
        let slot = &shared.work[(ticket % WORK_SLOTS) as usize];
        let mut spins = 0;
        let entry = loop {
            let entry = slot.load(Acquire);
            if (entry >> 32) as u32 == ticket.wrapping_add(1) {
                break entry as u32;
            }
            if shared.exited.load(Relaxed) as usize == shared.options.queues {
                return;
            }
            pace.relax(&mut spins);
        };
        run(shared, (entry >> 16) as usize, entry & 0xFFFF, worker_id, pace);
    }
}
