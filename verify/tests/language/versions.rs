//! Versions of engine 1, and functions with models of their own (R18 to R21, R25).

use doorbell_contract::{DescFlags, ErrorCode, HwDesc, HwPolicy, PolicyMode, Status};
use doorbell_host::{Device, Division, Driver, Ports};
use doorbell_verify::ModelPlatform;
use rstest::rstest;

use crate::host::*;

#[test]
fn r18_tokens_come_from_the_version_they_name() {
    let mut host = Host::new();
    assert_eq!(host.publish(2, &model(1), PolicyMode::Wait).status, Status::Done as u8);
    let prompt = Draws(1).prompt(12);
    let mut told = vec![];
    for version in [1, 2, 1] {
        let mut sequence = host.sequence(&prompt, 60, 1.0);
        (sequence.version, sequence.seed, sequence.rollout) = (version, 3, 3);
        host.prefill(&mut sequence);
        host.decode(&mut sequence, 20, DescFlags::LOGP);
        told.push(sequence.reference.tokens);
    }
    assert!(told[0] != told[1] && told[0] == told[2]);
    // Version 0, of engine 0, was in the slot that version 2 has now.
    assert_eq!(host.run(&[HwDesc::decode(1, 0, 4)])[0].error, ErrorCode::BadVersion as u8);
    // And engine 0 comes back.
    host.driver.token_regions()[0].place_policy(POLICY, &HwPolicy::new(3, 0, 99, 0)).unwrap();
    let ends = host.run(&[HwDesc::policy(3, PolicyMode::Wait).with_delta_offset(POLICY)]);
    assert_eq!(ended(&ends[0]), Status::Done);
    let hash = HwDesc::decode(1, 5, 7).with_version(3);
    let answer = host.oracle().with_version(3, 99).answer(&hash);
    assert_eq!(host.run(&[hash])[0], answer.completion);
    let language = HwDesc { model_id: 1, policy_version: 3, ..HwDesc::decode(1, 5, 7).with_delta_offset(64) };
    assert_eq!(host.run(&[language])[0].error, ErrorCode::BadModel as u8);
}

/// R20: with KEEP what runs is superseded, and goes on under the new version with the keys and values that it has.
#[rstest]
fn r20_a_rollout_goes_on_under_a_new_version(#[values(1, 3, 9)] tokens: u32) {
    let mut host = Host::new();
    let prompt = Draws(tokens.into()).prompt(30);
    let mut sequence = host.sequence(&prompt, 800, 1.0);
    host.prefill(&mut sequence);
    for version in 2..5u16 {
        let desc = sequence.decode(200);
        let (policy, _) = host.place(version, &model(version.into()), PolicyMode::Keep);
        let policy = HwDesc { rollout_id: 7, user_data: 1, ..policy };
        // Other descriptors of one queue pair wait for it; so the DECODE is the second one to run.
        host.driver.submit(&[desc]).unwrap();
        host.driver.platform_mut().pass(10 * tokens);
        host.driver.submit(&[policy]).unwrap();
        // It comes to the POLICY behind the DECODE; so a new DECODE of the old version is superseded before it starts.
        let ends = host.reap(2);
        let end = of(&ends, sequence.rollout.into());
        host.check(&mut sequence, &desc, &end);
        assert_eq!(ended(&of(&ends, 1)), Status::Done);
        host.note(version, &model(version.into()));
        let late = sequence.decode(5);
        let end = host.run(&[late])[0];
        assert_eq!((ended(&end), end.final_seq_len), (Status::Superseded, late.seq_len));
        sequence.version = version;
    }
    host.decode(&mut sequence, 20, DescFlags::LOGP);
}

/// A POLICY that another queue pair of the function sends reaches a DECODE that runs.
#[rstest]
#[case(PolicyMode::Keep, Status::Superseded)]
#[case(PolicyMode::Abort, Status::Stopped)]
fn r20_a_version_that_is_retired_ends_what_runs(#[case] mode: PolicyMode, #[case] status: Status) {
    let bytes = config().shared_bytes().unwrap();
    let division = Division { queues: 2, functions: 1, bytes, ..Division::default() };
    let ports = Ports::divide(ModelPlatform::with_queues(2, 1).unwrap(), &division).unwrap();
    let mut host = Host::over(ports.take(0).unwrap());
    let tokens = host.driver.token_regions().remove(0);
    let plain = doorbell_host::QueueConfig::default();
    let mut other = Driver::over(ports.take(1).unwrap(), plain, tokens).unwrap();
    let prompt = Draws(2).prompt(20);
    let mut sequence = host.sequence(&prompt, 700, 1.0);
    host.prefill(&mut sequence);
    let mut waiting = host.sequence(&prompt, 60, 1.0);
    host.prefill(&mut waiting);
    let (desc, late) = (sequence.decode(600), waiting.decode(8));
    host.driver.submit(&[desc, late]).unwrap();
    ports.device().pass(300);
    let (policy, _) = host.place(2, &model(3), mode);
    other.submit(&[policy]).unwrap();
    let ends = host.reap(2);
    host.note(2, &model(3));
    let end = of(&ends, sequence.rollout.into());
    assert_eq!(ended(&end), status);
    assert!((21..300).contains(&end.final_seq_len), "{}", end.final_seq_len);
    host.check(&mut sequence, &desc, &end);
    let unstarted = of(&ends, waiting.rollout.into());
    assert_eq!((ended(&unstarted), unstarted.final_seq_len), (status, 20));
    if mode == PolicyMode::Keep {
        sequence.version = 2;
        host.decode(&mut sequence, 12, DescFlags::LOGP);
    }
}

/// R19: a slot whose version a PREFILL or a DECODE runs under is not loaded.
#[test]
fn r19_a_slot_in_use_is_not_loaded() {
    let bytes = config().shared_bytes().unwrap();
    let division = Division { queues: 2, functions: 1, bytes, ..Division::default() };
    let ports = Ports::divide(ModelPlatform::with_queues(2, 1).unwrap(), &division).unwrap();
    let mut host = Host::over(ports.take(0).unwrap());
    host.publish(2, &model(2), PolicyMode::Wait);
    let tokens = host.driver.token_regions().remove(0);
    let mut other =
        Driver::over(ports.take(1).unwrap(), doorbell_host::QueueConfig::default(), tokens).unwrap();
    let prompt = Draws(2).prompt(900);
    let mut sequence = host.sequence(&prompt, 900, 1.0);
    // Version 3 would take the slot of version 1.
    let record = doorbell_npu::Published::new(model(3).to_bytes(), &[]).unwrap().at(0);
    host.place_policy(3, &record);
    let policy = HwDesc { model_id: 1, ..HwDesc::policy(3, PolicyMode::Wait) }.with_delta_offset(POLICY);
    host.driver.submit(&[sequence.prefill(None)]).unwrap();
    ports.device().pass(400);
    other.submit(&[policy]).unwrap();
    let mut out = [doorbell_contract::HwCompletion::default()];
    while other.poll(&mut out).unwrap() == 0 {}
    assert_eq!(out[0].error, ErrorCode::PolicyBusy as u8);
    host.reap(1);
    host.catch_up(&mut sequence);
}

/// R21: a group belongs to the version of its PREFILL, and passes to the new one with KEEP.
#[rstest]
#[case(PolicyMode::Keep, ErrorCode::None)]
#[case(PolicyMode::Abort, ErrorCode::StalePrefix)]
fn r21_prefixes_belong_to_their_version(#[case] mode: PolicyMode, #[case] code: ErrorCode) {
    let mut host = Host::new();
    let prompt = Draws(6).prompt(40);
    let mut prefix = host.sequence(&prompt, 40, 1.0);
    let open = prefix.prefill(Some(2));
    host.run(&[open]);
    host.catch_up(&mut prefix);
    let mut member = crate::rollouts::member(&mut host, &prefix, &prompt, 0);
    host.publish(2, &model(5), mode);
    member.reference = prefix.reference.clone();
    member.version = 2;
    let desc = member.decode(9).with_member(prefix.rollout, 0);
    let end = host.run(&[desc])[0];
    assert_eq!(end.error, code as u8);
    if code == ErrorCode::None {
        host.check(&mut member, &desc, &end);
    }
}

/// R18: versions, MODEL regions and arenas are of a function.
#[test]
fn r18_functions_have_models_of_their_own() {
    let bytes = config().shared_bytes().unwrap();
    let division = Division { queues: 2, functions: 2, bytes, ..Division::default() };
    let ports = Ports::divide(ModelPlatform::with_queues(2, 2).unwrap(), &division).unwrap();
    let mut hosts: Vec<_> = (0..2).map(|queue| Host::empty(ports.take(queue).unwrap())).collect();
    let mut told = vec![];
    for (number, host) in (0..).zip(&mut hosts) {
        assert_eq!(host.publish(1, &model(number), PolicyMode::Wait).status, Status::Done as u8);
    }
    let mut sequences = vec![];
    for host in &mut hosts {
        let mut sequence = host.sequence(&Draws(1).prompt(33), 90, 1.0);
        host.prefill(&mut sequence);
        let desc = sequence.decode(50).with_flags(DescFlags::LOGP);
        host.driver.submit(&[desc]).unwrap();
        sequences.push((sequence, desc));
    }
    for (host, (sequence, desc)) in hosts.iter_mut().zip(&mut sequences) {
        let end = host.reap(1)[0];
        host.check(sequence, desc, &end);
        told.push(sequence.reference.tokens.clone());
    }
    assert_ne!(told[0], told[1]);
}

/// R12: a disable forgets a sequence that runs, and nothing of memory; what it left is there to go on from.
#[test]
fn r12_a_rollout_goes_on_behind_a_disable() {
    let mut host = Host::new();
    let prompt = Draws(9).prompt(25);
    let mut sequence = host.sequence(&prompt, 300, 1.0);
    host.prefill(&mut sequence);
    host.decode(&mut sequence, 10, DescFlags::empty());
    host.driver.submit(&[sequence.decode(200)]).unwrap();
    host.driver.platform_mut().pass(300);
    host.driver.disable().unwrap();
    host.driver.enable().unwrap();
    // R18: the first queue pair of its function begins with version 0.
    assert_eq!(host.run(&[sequence.decode(10)])[0].error, ErrorCode::BadVersion as u8);
    host.publish(1, &model(0), PolicyMode::Wait);
    host.decode(&mut sequence, 200, DescFlags::LOGP);
}
