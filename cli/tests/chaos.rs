//! `doorbell compare --chaos`: a short draw on every shape of the devices, what it prints, and bad usage.

mod common;

use common::doorbell;
use rstest::rstest;
use tempfile::tempdir;

#[cfg(feature = "cosim")]
const DEVICES: &str = "model,rtl";
#[cfg(not(feature = "cosim"))]
const DEVICES: &str = "model";

#[rstest]
#[case("--queues 1 --functions 1 --workers 1")]
#[case("--queues 1 --functions 1 --workers 4")]
#[case("--queues 4 --functions 4 --workers 4")]
#[case("--queues 16 --functions 4 --workers 16")]
fn chaos_keeps_every_rule(#[case] shape: &str) {
    let directory = tempdir().unwrap();
    let arguments = format!("compare --devices {DEVICES} --chaos 20 --chaos-seeds 6 {shape}");
    let run = doorbell(directory.path(), &arguments);
    assert_eq!(run.code, 0, "{}\n{}", run.stdout, run.stderr);
    for device in DEVICES.split(',') {
        assert!(run.stdout.contains(&format!("\n{device}: every rule held: ")), "{}", run.stdout);
    }
    assert!(
        run.stdout.contains("drawn: disables") && run.stdout.contains("completed as DONE"),
        "{}",
        run.stdout
    );
}

#[test]
fn one_round_alone_is_the_same_again() {
    let directory = tempdir().unwrap();
    let arguments = "compare --devices model --chaos 3 --chaos-round 2 --chaos-descriptors 100";
    let [first, second] = [(); 2].map(|()| doorbell(directory.path(), arguments).stdout);
    assert_eq!(first, second);
    assert!(first.contains("every rule held"), "{first}");
}

/// Side by side seeds give the same sum as one behind the other; what the time cuts off is told.
#[test]
fn seeds_run_side_by_side() {
    let directory = tempdir().unwrap();
    let arguments =
        "compare --devices model --chaos 5 --chaos-seeds 12 --chaos-shapes --chaos-descriptors 60";
    let alone = doorbell(directory.path(), arguments).stdout;
    assert_eq!(doorbell(directory.path(), &format!("{arguments} --chaos-jobs 3")).stdout, alone);
    let cut = doorbell(directory.path(), &format!("{arguments} --chaos-seconds 0"));
    assert_eq!(cut.code, 0, "{}", cut.stderr);
    assert!(
        cut.stdout.ends_with("the time is over: go on with --chaos 6 --chaos-seeds 11\n"),
        "{}",
        cut.stdout
    );
}

#[rstest]
#[case("compare --chaos 1 --chaos-shapes --queues 4", "cannot be used with")]
#[case("compare --chaos 1 --devices nothing", "unknown device 'nothing'")]
#[case("compare --chaos 1 --devices model --functions 2", "functions is 2: it must be at most 1")]
#[case("compare --chaos-seeds 4", "--chaos <SEED>")]
fn bad_usage_is_told(#[case] arguments: &str, #[case] message: &str) {
    let directory = tempdir().unwrap();
    let run = doorbell(directory.path(), arguments);
    assert_eq!(run.code, 2, "{}{}", run.stdout, run.stderr);
    assert!(run.stderr.contains(message), "{}", run.stderr);
}
