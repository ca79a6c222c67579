//! Groups: exactly one GROUP_DONE, last.

use doorbell_models::groups::{Groups, Mistake};
use rstest::rstest;
use stateright::{Checker, HasDiscoveries, Model};

/// Long enough for a group, a late descriptor of it, and the next group to lie in one queue.
const LENGTH: usize = 5;

#[test]
fn exactly_one_group_done_and_last() {
    let checker = Groups { length: LENGTH, mistake: None }.checker().threads(1).spawn_bfs().join();
    checker.assert_properties();
    assert!(checker.is_done());
    println!("{} states", checker.unique_state_count());
}

#[rstest]
#[case(Mistake::DecideWhereItEnds)]
#[case(Mistake::CountEnds)]
#[case(Mistake::StopAllOvertakes)]
#[case(Mistake::AbsentMembersStay)]
#[case(Mistake::CheckpointEnds)]
#[case(Mistake::ErrorEnds)]
#[case(Mistake::StopNeedsADecode)]
#[case(Mistake::NoGeneration)]
fn each_mistake_is_found(#[case] mistake: Mistake) {
    let wrong = |name: &str| !name.starts_with("two groups") && !name.starts_with("a group ends");
    let checker = Groups { length: LENGTH, mistake: Some(mistake) }.checker().threads(1);
    let checker = checker.finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let found: Vec<_> = checker.discoveries().into_keys().filter(|name| wrong(name)).collect();
    assert!(!found.is_empty(), "{mistake:?} was not noticed in {} states", checker.unique_state_count());
}
