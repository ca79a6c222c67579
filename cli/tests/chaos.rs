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
#[case(
    "compare --chaos 1 --devices model:queues=4",
    "takes no settings of one device, and 'model:queues=4' has some"
)]
// What would test nothing, or the same again.
#[case("compare --chaos 18446744073709551615", "is not in 0..4294967296")]
#[case("compare --chaos 1 --chaos-seeds 0", "0 is not in 1..")]
#[case(
    "compare --chaos 4294967295 --chaos-seeds 2",
    "from seed 4294967295 on there are 1; give at most so many"
)]
#[case("compare --chaos 1 --chaos-rounds 0", "0 is not in 1..")]
#[case("compare --chaos 1 --chaos-round 4294967295", "4294967295 is not in 0..65536")]
#[case("compare --chaos 1 --chaos-descriptors 0", "0 is not in 1..")]
#[case("compare --chaos 1 --chaos-descriptors 18446744073709551615", "is not in 1..=1000000000")]
#[case("compare --chaos 1 --chaos-jobs 1025", "1025 is not in 1..=1024")]
#[case("compare --chaos 1 --devices model,model", "--devices names model twice")]
fn bad_usage_is_told(#[case] arguments: &str, #[case] message: &str) {
    let directory = tempdir().unwrap();
    let run = doorbell(directory.path(), arguments);
    assert_eq!(run.code, 2, "{}{}", run.stdout, run.stderr);
    assert!(run.stderr.contains(message), "{}", run.stderr);
}

/// Chaos has the whole device, which the driver of one function has not.
#[cfg(feature = "vfio")]
#[rstest]
#[case("vfio-user")]
#[case("vfio-user:/run/doorbell.sock")]
#[case("pcie:0000:00:03.0")]
fn a_function_is_refused(#[case] device: &str) {
    let directory = tempdir().unwrap();
    let run = doorbell(directory.path(), &format!("compare --chaos 1 --devices {device}"));
    assert_eq!(run.code, 3, "{}{}", run.stdout, run.stderr);
    assert!(run.stderr.contains("it takes model, rtl, gpu"), "{}", run.stderr);
}

/// The last seed and the last round are run.
#[test]
fn the_last_seed_has_its_last_round() {
    let directory = tempdir().unwrap();
    let arguments = "compare --devices model --chaos 4294967295 --chaos-round 65535 --chaos-descriptors 60";
    let run = doorbell(directory.path(), arguments);
    assert_eq!(run.code, 0, "{}{}", run.stdout, run.stderr);
    assert!(
        run.stdout.lines().any(|line| line.starts_with("| rounds ") && line.contains(" 1 |")),
        "{}",
        run.stdout
    );
}
