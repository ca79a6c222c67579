//! Rollouts of Gemma 3N's shape: windows, layers that read another one's keys and values, streams.

use doorbell_contract::{DescFlags, PolicyMode, Status};
use rstest::rstest;

use crate::host::*;
use crate::rollouts::member;

fn host() -> Host {
    Host::of(crate::device(1, 1), &gemma(0))
}

/// Up to and beyond the window of 41, from prompts around the ends of blocks.
#[rstest]
#[case(1, 1.0)]
#[case(31, 0.0)]
#[case(33, 1.0)]
#[case(64, 0.0)]
#[case(90, 0.0)]
#[case(90, 1.0)]
fn r06_a_rollout_is_the_oracles(#[case] prompt: usize, #[case] temperature: f64) {
    let mut host = host();
    let prompt = Draws(prompt as u64).prompt(prompt);
    let mut sequence = host.sequence(&prompt, prompt.len() + 45, temperature);
    if prompt.len() > 1 {
        host.prefill(&mut sequence);
    }
    let end = host.decode(&mut sequence, 45, DescFlags::LOGP);
    assert_eq!((ended(&end), end.final_seq_len), (Status::Done, prompt.len() as u32 + 45));
}

/// R9, R26: in pieces, whose last positions lie before, at and behind the end of a window.
#[test]
fn r09_pieces_lose_nothing() {
    let mut host = host();
    let prompt = Draws(17).prompt(39);
    let mut sequence = host.sequence(&prompt, 39 + 60, 0.8);
    host.prefill(&mut sequence);
    for tokens in [1, 1, 1, 2, 20, 1, 9] {
        host.decode(&mut sequence, tokens, DescFlags::LOGP);
    }
}

/// R17, R27: members share whole blocks of a prefix and copy its last one.
#[rstest]
fn r27_members_share_a_prefix(#[values(17, 45, 65)] length: usize) {
    let mut host = host();
    let prompt = Draws(length as u64).prompt(length);
    let prefix = host.sequence(&prompt, length, 1.0);
    let mut members: Vec<Sequence> = (0..3).map(|k| member(&mut host, &prefix, &prompt, k)).collect();
    let mut descs = vec![prefix.prefill(Some(3))];
    descs.extend(members.iter().zip(0..).map(|(member, number)| {
        member.decode(20).with_flags(DescFlags::LOGP).with_member(prefix.rollout, number)
    }));
    let ends = host.run(&descs);
    assert_eq!(ended(&of(&ends, prefix.rollout.into())), Status::Done);
    for (member, desc) in members.iter_mut().zip(&descs[1..]) {
        let end = of(&ends, member.rollout.into());
        host.catch_up(member);
        host.check(member, desc, &end);
    }
}

/// R25: other weights of the same shape, over keys and values that the first ones made, and the first ones again.
#[test]
fn r25_weights_are_switched_between_descriptors() {
    let mut host = host();
    assert_eq!(host.publish(2, &gemma(1), PolicyMode::Wait).status, Status::Done as u8);
    let prompt = Draws(23).prompt(30);
    let mut sequence = host.sequence(&prompt, 30 + 60, 1.0);
    host.prefill(&mut sequence);
    for version in [1, 2, 1, 2] {
        sequence.version = version;
        host.decode(&mut sequence, 15, DescFlags::LOGP);
    }
}
