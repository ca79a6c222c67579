//! R4: one function's full rings hold up no other function.

use doorbell_models::credits::{Credits, Mistake};
use rstest::rstest;
use stateright::{Checker, HasDiscoveries, Model};

#[test]
fn r04_credits_let_no_function_wait_for_another() {
    let checker = Credits { mistake: None }.checker().threads(1).spawn_bfs().join();
    checker.assert_properties();
    assert!(checker.is_done());
    println!("{} states", checker.unique_state_count());
}

#[rstest]
#[case(Mistake::ReserveWhenPosting)]
#[case(Mistake::ReserveOneRing)]
#[case(Mistake::KeepBothReservations)]
#[case(Mistake::CreditBehindTheChoice)]
#[case(Mistake::SharedPlaces)]
#[case(Mistake::SubmitBlocks)]
fn r04_each_mistake_is_found(#[case] mistake: Mistake) {
    let checker = Credits { mistake: Some(mistake) }.checker().threads(1);
    let checker = checker.finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let found: Vec<_> = checker.discoveries().into_keys().filter(|name| !name.contains("end")).collect();
    assert!(!found.is_empty(), "{mistake:?} was not noticed in {} states", checker.unique_state_count());
}
