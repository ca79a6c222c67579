use rstest::rstest;

use super::*;
use crate::fake::fake;

/// A repository with the bench `fifo_tb`, and a simulator of shell scripts.
struct Fixture {
    dir: TempDir,
    limit: Duration,
}

impl Fixture {
    fn new(iverilog: &str, vvp: &str) -> Fixture {
        let dir = tempfile::tempdir().unwrap();
        for room in ["bin", "out", "tb/common"] {
            fs::create_dir_all(dir.path().join(room)).unwrap();
        }
        for file in ["tb/fifo_tb.sv", "tb/ring_tb.sv", "tb/common/clock.sv", "tb/notes.txt"] {
            fs::write(dir.path().join(file), "").unwrap();
        }
        fake(&dir.path().join("bin"), "iverilog", iverilog);
        fake(&dir.path().join("bin"), "vvp", vvp);
        Fixture { dir, limit: Duration::from_secs(60) }
    }

    fn root(&self) -> &Path {
        self.dir.path()
    }

    fn simulator(&self) -> Result<Simulator> {
        Simulator::find(self.root().join("bin").into())
    }

    fn run(&self) -> Result<Vec<String>> {
        let job = Job {
            root: self.root(),
            simulator: &self.simulator()?,
            shared: shared_sources(self.root())?,
            out: &self.root().join("out"),
            plusargs: &["+steps=3".into()],
            wave: None,
            limit: self.limit,
            vectors: None,
        };
        let warnings = job.build("fifo_tb")?;
        job.run("fifo_tb", 7, &AtomicU64::new(0))?;
        Ok(warnings)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.root().join("out/fifo_tb-7.log")).unwrap()
    }
}

#[test]
fn a_bench_that_says_pass_passes() {
    let fixture = Fixture::new("echo $@ > out/compiled", "echo args \"$@\"; echo 'fifo_tb: PASS'");
    fixture.run().unwrap();
    let compiled = fs::read_to_string(fixture.root().join("out/compiled")).unwrap();
    assert!(compiled.contains("-s fifo_tb -o"), "{compiled}");
    assert!(compiled.ends_with("-f rtl/files.f tb/common/clock.sv tb/fifo_tb.sv\n"), "{compiled}");
    assert!(fixture.log().contains("fifo_tb.vvp +seed=7 +steps=3"), "{}", fixture.log());
}

#[test]
fn warnings_of_the_compiler_are_handed_on_once() {
    let known = "rtl/a.sv:1: warning: System task ($fatal) cannot be synthesized in an always_ff process.";
    let odd = "tb/fifo_tb.sv:9: warning: sorry: 'unique' is ignored.";
    let fixture =
        Fixture::new(&format!("echo \"{odd}\"; echo '{known}'; echo \"{odd}\""), "echo 'fifo_tb: PASS'");
    assert_eq!(fixture.run().unwrap(), [odd]);
}

#[rstest]
#[case::input("Instantiating module rest_clock with dangling input port 2 (rst_ni) floating.")]
#[case::wire("implicit definition of wire 'x'.")]
fn what_nothing_drives_is_an_error(#[case] warning: &str) {
    let fixture =
        Fixture::new(&format!("echo \"tb/fifo_tb.sv:9: warning: {warning}\""), "echo 'fifo_tb: PASS'");
    let error = fixture.run().unwrap_err().to_string();
    assert!(error.contains(warning), "{error}");
}

#[rstest]
#[case::exit_code("echo 'fifo_tb: PASS'; exit 1", "ended with exit status: 1")]
#[case::killed("echo 'fifo_tb: PASS'; kill -KILL $$", "ended with signal: 9")]
#[case::silent("exit 0", "never said 'fifo_tb: PASS'")]
#[case::error("echo 'ERROR: tb/fifo_tb.sv:3: lost'; echo 'fifo_tb: PASS'", "ERROR: tb/fifo_tb.sv:3: lost")]
#[case::error_afterwards("echo 'fifo_tb: PASS'; echo 'ERROR: late' >&2", "ERROR: late")]
#[case::fatal("echo 'FATAL: tb/fifo_tb.sv:3'; echo 'fifo_tb: PASS'", "FATAL: tb/fifo_tb.sv:3")]
#[case::other_bench("echo 'ring_tb: PASS'", "never said")]
#[case::token_within_a_line("echo 'not fifo_tb: PASS'", "never said")]
#[case::fail_token("echo 'fifo_tb: FAIL'", "never said")]
fn a_bench_that_fails_is_a_failure(#[case] vvp: &str, #[case] expected: &str) {
    let error = Fixture::new("exit 0", vvp).run().unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
}

#[test]
fn a_bench_that_does_not_compile_is_not_run() {
    let error = Fixture::new("echo 'syntax error'; exit 2", "echo 'fifo_tb: PASS'").run().unwrap_err();
    assert!(error.to_string().contains("does not compile"), "{error}");
}

#[rstest]
#[case::bench("exit 0", "echo 'fifo_tb: PASS'; exec sleep 1000", "hang: the bench")]
#[case::compiler("exec sleep 1000", "echo 'fifo_tb: PASS'", "hang: compilation")]
fn a_hang_is_killed_and_is_a_failure(#[case] iverilog: &str, #[case] vvp: &str, #[case] expected: &str) {
    let mut fixture = Fixture::new(iverilog, vvp);
    fixture.limit = Duration::from_millis(300);
    let error = fixture.run().unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
}

#[test]
fn a_flood_of_output_is_killed_and_is_a_failure() {
    let fixture = Fixture::new("exit 0", "exec cat /dev/zero");
    let error = fixture.run().unwrap_err().to_string();
    assert!(error.contains("wrote more than 64 MiB"), "{error}");
}

#[test]
fn a_failed_bench_shows_the_end_of_its_log() {
    let fixture = Fixture::new("exit 0", "i=0; while [ $i -lt 100 ]; do echo line $i; i=$((i+1)); done");
    fixture.run().unwrap_err();
    let simulator = fixture.simulator().unwrap();
    let out = fixture.root().join("out");
    let job = Job {
        root: fixture.root(),
        simulator: &simulator,
        shared: vec![],
        out: &out,
        plusargs: &[],
        wave: None,
        limit: fixture.limit,
        vectors: None,
    };
    let tail = job.tail("fifo_tb-7");
    assert!(tail.starts_with("    line 80\n") && tail.ends_with("    line 99\n"), "{tail}");
}

#[test]
fn benches_are_the_tb_files() {
    let fixture = Fixture::new("", "");
    assert_eq!(benches(fixture.root()).unwrap(), ["fifo_tb", "ring_tb"]);
    fs::remove_dir_all(fixture.root().join("tb")).unwrap();
    assert!(benches(fixture.root()).is_err());
    fs::create_dir(fixture.root().join("tb")).unwrap();
    assert!(benches(fixture.root()).unwrap_err().to_string().contains("nothing to test"));
}

#[rstest]
#[case(&[], &["fifo_tb", "ring_tb"])]
#[case(&["ring"], &["ring_tb"])]
#[case(&["ring_tb", "ring", "fifo"], &["ring_tb", "fifo_tb"])]
fn benches_are_chosen_by_name(#[case] wanted: &[&str], #[case] expected: &[&str]) {
    let all = vec!["fifo_tb".to_owned(), "ring_tb".to_owned()];
    let wanted: Vec<String> = wanted.iter().map(|&w| w.to_owned()).collect();
    assert_eq!(select(all, &wanted).unwrap(), expected);
}

#[test]
fn an_unknown_bench_is_an_error_that_lists_the_others() {
    let error = select(vec!["fifo_tb".into()], &["rinq".into()]).unwrap_err().to_string();
    assert_eq!(error, "there is no bench rinq; there are fifo_tb");
}
