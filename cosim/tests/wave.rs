//! Waveforms: written when asked for, in the window asked for, and of a failing run too.

use std::ops::Range;
use std::path::Path;

use doorbell_cosim::{FaultKind, RtlConfig, RtlPlatform, Wave};
use wellen::simple::read;

fn times(path: &Path) -> Vec<u64> {
    read(path).expect("a readable FST").time_table().to_vec()
}

/// The first and the last time that a run of 300 cycles leaves of the cycles in `window`, and its length in cycles.
fn recorded(window: Option<Range<u64>>) -> (u64, u64, u64) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run.fst");
    let wave = Some(Wave { path: path.clone(), window });
    let mut platform = RtlPlatform::new(&RtlConfig { wave, ..Default::default() }).unwrap();
    platform.run(300).unwrap();
    let cycles = platform.cycles();
    drop(platform);
    let times = times(&path);
    (times[0], *times.last().unwrap(), cycles)
}

#[test]
fn a_waveform_holds_every_cycle() {
    let (first, last, cycles) = recorded(None);
    assert_eq!((first, last), (0, 10 * (cycles - 1) + 5));
}

#[test]
fn a_window_holds_its_cycles_alone() {
    let (first, last, _) = recorded(Some(100..200));
    assert_eq!((first, last), (1000, 1995));
}

#[test]
fn a_failing_run_is_recorded_up_to_the_failure() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("failure.fst");
    let config = RtlConfig {
        faults: vec![FaultKind::SpuriousResponse.at(50)],
        wave: Some(Wave { path: path.clone(), window: None }),
        ..Default::default()
    };
    let mut platform = RtlPlatform::new(&config).unwrap();
    platform.run(100).unwrap_err();
    let cycles = platform.cycles();
    drop(platform);
    assert_eq!(*times(&path).last().unwrap(), 10 * cycles + 5);
}
