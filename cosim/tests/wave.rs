//! Waveforms: written when asked for, in the window asked for, and of a failing run too.

use std::path::Path;

use doorbell_cosim::cases::{CaseOptions, find};
use doorbell_cosim::{Fault, RtlConfig, RtlPlatform, Wave};
use wellen::simple::read;

fn times(path: &Path) -> Vec<u64> {
    read(path).expect("a readable FST").time_table().to_vec()
}

#[test]
fn a_case_leaves_a_waveform() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("basic.fst");
    let wave = Some(Wave { path: path.clone(), window: None });
    let cycles = find("basic decode").unwrap().run(&CaseOptions { wave, ..Default::default() }).unwrap();
    let times = times(&path);
    assert_eq!((times[0], *times.last().unwrap()), (0, 10 * (cycles - 1) + 5));
    let waveform = read(&path).unwrap();
    let clock = waveform.hierarchy().lookup_var(&["top"], "clk_i");
    assert!(clock.is_some() || waveform.hierarchy().iter_vars().len() > 100);
}

#[test]
fn a_window_holds_its_cycles_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("window.fst");
    let wave = Some(Wave { path: path.clone(), window: Some(100..200) });
    find("basic decode").unwrap().run(&CaseOptions { wave, ..Default::default() }).unwrap();
    let times = times(&path);
    assert_eq!((times[0], *times.last().unwrap()), (1000, 1995));
}

#[test]
fn a_failing_run_is_recorded_up_to_the_failure() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("failure.fst");
    let config = RtlConfig {
        faults: vec![Fault::SpuriousResponse { cycle: 50 }],
        wave: Some(Wave { path: path.clone(), window: None }),
        ..Default::default()
    };
    let mut platform = RtlPlatform::new(&config).unwrap();
    platform.run(100).unwrap_err();
    let cycles = platform.cycles();
    drop(platform);
    assert_eq!(*times(&path).last().unwrap(), 10 * cycles + 5);
}
