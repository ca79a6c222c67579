//! W10, W11: each entry is stored once, through any network and any deaths of the collector.

use doorbell_models::nic::{Mistake, Transport};
use rstest::rstest;
use stateright::{Checker, HasDiscoveries, Model};

fn transport(mistake: Option<Mistake>) -> Transport {
    Transport { entries: 5, window: 3, kills: 2, mistake }
}

#[test]
fn w10_w11_each_entry_is_stored_once() {
    let checker = transport(None).checker().threads(1).spawn_bfs().join();
    checker.assert_properties();
    assert!(checker.is_done());
    println!("{} states", checker.unique_state_count());
}

#[rstest]
#[case(Mistake::AcknowledgesFirst)]
#[case(Mistake::ForgetsItsNumber)]
#[case(Mistake::NumberInAnotherFile)]
#[case(Mistake::StoresEarly)]
#[case(Mistake::StoresTwice)]
#[case(Mistake::CompletesHeld)]
#[case(Mistake::SendsNothingAgain)]
fn w10_w11_each_mistake_is_found(#[case] mistake: Mistake) {
    let checker = transport(Some(mistake)).checker().threads(1);
    let checker = checker.finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let found: Vec<_> =
        checker.discoveries().into_keys().filter(|name| !name.starts_with("all arrive")).collect();
    assert!(!found.is_empty(), "{mistake:?} was not noticed in {} states", checker.unique_state_count());
}
