//! Rollouts of models with a cap on their keys and values: a token sees the first positions and the last ones.

use doorbell_contract::{BLOCK_TOKENS, DescFlags, ErrorCode, Status};
use doorbell_lm::{Image, KvCap, micro, micro_gemma};
use rstest::rstest;

use crate::host::*;

const CAP: KvCap = KvCap { window: 50, sinks: 32 };

fn capped(mut image: Image, cap: KvCap) -> Image {
    image.model.shape.kv_cap = Some(cap);
    image
}

/// A sequence whose blocks behind the sinks come again once no later token sees them, and how many blocks it has.
fn in_turns(host: &mut Host, prompt: &[u32], positions: usize, cap: KvCap) -> (Sequence, usize) {
    let mut sequence = host.sequence(prompt, positions, 0.8);
    let block = BLOCK_TOKENS as usize;
    // The blocks of the prompt are filled by one descriptor, so none of them comes again before its end.
    let fixed = (cap.sinks / block).max(prompt.len().div_ceil(block));
    let turn = cap.window.div_ceil(block) + 1;
    for entry in fixed + turn..sequence.table.len() {
        sequence.table[entry] = sequence.table[entry - turn];
    }
    host.lay(&sequence);
    let mut own = sequence.table.clone();
    own.sort_unstable();
    own.dedup();
    (sequence, own.len())
}

/// Over sinks and window, from prompts around the ends of both.
#[rstest]
fn r06_r26_a_rollout_is_the_oracles(
    #[values(false, true)] gemma: bool,
    #[values(1, 33, 81, 82, 100)] prompt: usize,
) {
    let image = capped(if gemma { micro_gemma() } else { micro() }, CAP);
    let mut host = Host::of(crate::device(1, 1), &image);
    let prompt = Draws(prompt as u64).prompt(prompt);
    let mut sequence = host.sequence(&prompt, prompt.len() + 90, 1.0);
    if prompt.len() > 1 {
        host.prefill(&mut sequence);
    }
    let end = host.decode(&mut sequence, 90, DescFlags::LOGP);
    assert_eq!((ended(&end), end.final_seq_len), (Status::Done, prompt.len() as u32 + 90));
}

/// R26: an answer of any length takes a bounded number of blocks, and is the oracle's.
#[rstest]
#[case(CAP, 40)]
#[case(KvCap { window: 1, sinks: 0 }, 5)]
#[case(KvCap { window: 33, sinks: 64 }, 20)]
#[case(KvCap { window: 64, sinks: 0 }, 70)]
fn r26_blocks_that_nobody_sees_come_again(#[case] cap: KvCap, #[case] prompt: usize) {
    let mut host = Host::of(crate::device(1, 1), &capped(micro(), cap));
    let prompt = Draws(3).prompt(prompt);
    let (mut sequence, blocks) = in_turns(&mut host, &prompt, prompt.len() + 170, cap);
    assert!(blocks <= cap.sinks / 32 + prompt.len().div_ceil(32) + cap.window.div_ceil(32) + 1);
    host.prefill(&mut sequence);
    for tokens in [1, 31, 2, 64, 3, 60] {
        host.decode(&mut sequence, tokens, DescFlags::LOGP);
    }
}

/// R26: what lies in a block that nobody sees is looked at by no device, whatever its entry says.
#[rstest]
fn r26_a_block_that_nobody_sees_has_no_entry(#[values(false, true)] seen: bool) {
    let mut host = Host::of(crate::device(1, 1), &capped(micro(), CAP));
    let prompt = Draws(9).prompt(120);
    let mut sequence = host.sequence(&prompt, 130, 0.8);
    host.prefill(&mut sequence);
    // Position 119 sees 0 to 31, and 70 on: nothing of block 1, and a part of block 2.
    let entry = if seen { 2 } else { 1 };
    let held = std::mem::replace(&mut sequence.table[entry], u32::MAX);
    host.lay(&sequence);
    let desc = sequence.decode(5).with_flags(DescFlags::LOGP);
    let end = host.run(&[desc])[0];
    sequence.table[entry] = held;
    if seen {
        assert_eq!(
            (ended(&end), ErrorCode::try_from(end.error).unwrap()),
            (Status::Error, ErrorCode::BadSequence)
        );
    } else {
        host.check(&mut sequence, &desc, &end);
    }
}

/// R26: a device that keeps blocks keeps of several entries with one number what the last of them has.
#[test]
fn r26_a_block_that_comes_again_within_a_descriptor_is_kept_as_it_is() {
    let mut host = Host::of(crate::device(1, 1), &capped(micro(), CAP));
    let prompt = Draws(11).prompt(40);
    let (mut sequence, _) = in_turns(&mut host, &prompt, 400, CAP);
    host.prefill(&mut sequence);
    for tokens in [130, 5, 140, 1, 60] {
        host.decode(&mut sequence, tokens, DescFlags::LOGP);
    }
}
