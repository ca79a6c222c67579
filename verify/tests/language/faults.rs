//! Faults that are planted in the model, each of which these checks must tell.

use std::panic::{AssertUnwindSafe, catch_unwind};

use doorbell_contract::{DescFlags, PolicyMode};
use doorbell_host::{Device, Division, Driver, Ports, QueueConfig};
use doorbell_verify::ModelPlatform;
use doorbell_verify::model::{LanguageFault, Mutation};
use rstest::rstest;

use crate::host::*;

/// Shared prefixes with a partial block, the same prefix again under other weights, and a switch of versions while a rollout runs.
fn everything(mutation: Option<Mutation>) {
    let bytes = config().shared_bytes().unwrap();
    let division = Division { queues: 2, functions: 1, bytes, ..Division::default() };
    let platform = ModelPlatform::with_queues(2, 1).unwrap();
    let platform = match mutation {
        Some(mutation) => platform.with_mutation(mutation),
        None => platform,
    };
    let ports = Ports::divide(platform, &division).unwrap();
    let mut host = Host::over(ports.take(0).unwrap());
    let tokens = host.driver.token_regions().remove(0);
    // Its image takes several steps, in one turn: the rollout is not at its end then.
    let config = QueueConfig { weight: 8, ..QueueConfig::default() };
    let mut other = Driver::over(ports.take(1).unwrap(), config, tokens).unwrap();

    let prompt = Draws(3).prompt(50);
    let mut prefix = host.sequence(&prompt, 50, 1.0);
    host.prefill(&mut prefix);
    let mut member = crate::rollouts::member(&mut host, &prefix, &prompt, 1);
    member.reference = prefix.reference.clone();
    host.decode(&mut member, 20, DescFlags::LOGP);

    let running = member.decode(900);
    host.driver.submit(&[running]).unwrap();
    ports.device().pass(200);
    let (policy, _) = host.place(2, &model(2), PolicyMode::Keep);
    other.submit(&[policy]).unwrap();
    let ends = host.reap(1);
    host.note(2, &model(2));
    host.check(&mut member, &running, &ends[0]);

    let mut again = host.sequence(&prompt, 50, 1.0);
    (again.version, again.rollout) = (2, prefix.rollout);
    host.prefill(&mut again);
}

#[test]
fn without_a_fault_nothing_is_told() {
    everything(None);
}

#[rstest]
fn every_fault_is_told(#[values(0, 1, 2, 3)] number: usize) {
    let (name, fault) = LanguageFault::ALL[number];
    assert!(matches!(format!("language:{name}").parse(), Ok(Mutation::Language(found)) if found == fault));
    let told = catch_unwind(AssertUnwindSafe(|| everything(Some(Mutation::Language(fault)))));
    let told = told.expect_err(name);
    let told = told.downcast_ref::<String>().expect("an assertion");
    assert!(told.contains("R6") || told.contains("R27") || told.contains("version 1"), "{name}: {told}");
}

/// What lies in the blocks below a rollout may be anything: no step panics, hangs or leaves its arena.
#[rstest]
fn r10_any_keys_and_values_are_taken(#[values(0x80, 0xFF, 0x00, 0x7F)] byte: u8) {
    let mut host = Host::new();
    let mut sequence = host.sequence(&Draws(1).prompt(200), 260, 1.0);
    host.prefill(&mut sequence);
    for &block in &sequence.table {
        host.regions.arenas[0].write(u64::from(block) * BLOCK, &[byte; BLOCK as usize]).unwrap();
    }
    let desc = sequence.decode(30);
    let end = host.run(&[desc])[0];
    assert_eq!((end.error, end.final_seq_len), (0, 230));
    assert_eq!(host.run(&[desc])[0], end, "and it says the same again");
}
