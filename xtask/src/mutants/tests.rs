use rstest::rstest;
use tempfile::TempDir;

use super::*;
use crate::fake::fake;

/// A repository with `rtl/fifo.sv` and the bench `fifo_tb`. Its compiler takes the sources it finds as the program, and
/// its simulator fails at every `!=` in them.
struct Fixture {
    dir: TempDir,
    mutant: Mutant,
    limit: Duration,
}

const SOURCE: &str = "assign full  = count == Depth;\nassign empty = count == 0;\n";
const COMPILER: &str = "out=$(echo \"$@\" | sed 's/.*-o \\([^ ]*\\) .*/\\1/'); cat rtl/fifo.sv > $out";
const SIMULATOR: &str =
    "if grep -q '!=' $3; then echo 'ERROR: full is wrong'; exit 1; fi; echo 'fifo_tb: PASS'";

impl Fixture {
    fn new() -> Fixture {
        let dir = tempfile::tempdir().unwrap();
        for room in ["bin", "out", "rtl", "tb/common"] {
            fs::create_dir_all(dir.path().join(room)).unwrap();
        }
        fs::write(dir.path().join("tb/fifo_tb.sv"), "").unwrap();
        fs::write(dir.path().join("rtl/fifo.sv"), SOURCE).unwrap();
        let mutant = Mutant {
            name: "full too early".into(),
            rule: "R4".into(),
            file: "fifo.sv".into(),
            find: "count == Depth".into(),
            replace: "count != Depth".into(),
            bench: "fifo".into(),
        };
        let fixture = Fixture { dir, mutant, limit: Duration::from_secs(60) };
        fixture.tools(COMPILER, SIMULATOR);
        fixture
    }

    fn tools(&self, compiler: &str, simulator: &str) {
        fake(&self.root().join("bin"), "iverilog", compiler);
        fake(&self.root().join("bin"), "vvp", simulator);
    }

    fn root(&self) -> &Path {
        self.dir.path()
    }

    fn trial<T>(&self, seeds: &[u32], work: impl FnOnce(&Trial<'_>) -> T) -> T {
        let simulator = Simulator::find(self.root().join("bin").into()).unwrap();
        work(&Trial {
            root: self.root(),
            simulator: &simulator,
            out: &self.root().join("out"),
            seeds,
            limit: self.limit,
            vectors: None,
            plusargs: [GIVE_UP.to_owned()],
        })
    }

    fn notices(&self, seeds: &[u32]) -> Result<String> {
        self.trial(seeds, |trial| trial.notices("0", &self.mutant))
    }

    fn table(&self, entries: &str) -> Result<Vec<Mutant>> {
        fs::write(self.root().join(TABLE), entries).unwrap();
        table(self.root())
    }
}

/// An entry of the table.
fn entry(name: &str, find: &str, replace: &str, bench: &str) -> String {
    format!(
        "[[mutant]]\nname = '{name}'\nrule = 'R4'\nfile = 'fifo.sv'\nfind = '{find}'\nreplace = '{replace}'\nbench = '{bench}'\n"
    )
}

#[test]
fn a_mutant_is_noticed_and_the_device_stays_as_it_is() {
    let fixture = Fixture::new();
    assert_eq!(fixture.notices(&[7, 8]).unwrap(), "ERROR: full is wrong");
    assert_eq!(fs::read_to_string(fixture.root().join("rtl/fifo.sv")).unwrap(), SOURCE);
    let mutated = fs::read_to_string(fixture.root().join("out/0/rtl/fifo.sv")).unwrap();
    assert_eq!(mutated, SOURCE.replace("== Depth", "!= Depth"));
    fixture.trial(&[7, 8], |trial| trial.passes("fifo_tb")).unwrap();
}

#[test]
fn a_mutant_that_its_bench_passes_is_an_error() {
    let mut fixture = Fixture::new();
    fixture.mutant.replace = "count >= Depth".into();
    let error = format!("{:#}", fixture.notices(&[7]).unwrap_err());
    assert_eq!(error, "SURVIVED: fifo_tb passes with it at seed 7");
}

#[test]
fn a_mutant_must_be_noticed_at_every_seed() {
    let fixture = Fixture::new();
    fixture.tools(
        COMPILER,
        &format!("case \"$*\" in *+seed=9*) echo 'fifo_tb: PASS'; exit;; esac; {SIMULATOR}"),
    );
    fixture.notices(&[7, 8]).unwrap();
    fs::remove_dir_all(fixture.root().join("out/0")).unwrap();
    let error = format!("{:#}", fixture.notices(&[7, 8, 9]).unwrap_err());
    assert_eq!(error, "SURVIVED: fifo_tb passes with it at seed 9");
}

#[rstest]
#[case::compile("exit 1", SIMULATOR, "the mutant shows nothing: does not compile")]
#[case::hang(COMPILER, "exec sleep 1000", "seed 7 shows nothing: hang")]
#[case::flood(COMPILER, "exec cat /dev/zero", "seed 7 shows nothing: the bench wrote more than")]
fn what_shows_nothing_is_an_error(#[case] compiler: &str, #[case] simulator: &str, #[case] expected: &str) {
    let mut fixture = Fixture::new();
    fixture.tools(compiler, simulator);
    if simulator.contains("sleep") {
        fixture.limit = Duration::from_millis(300);
    }
    let error = format!("{:#}", fixture.notices(&[7]).unwrap_err());
    assert!(error.starts_with(expected), "{error}");
}

#[test]
fn a_bench_that_fails_without_a_mutant_proves_nothing() {
    let fixture = Fixture::new();
    fixture.tools(COMPILER, "echo 'ERROR: always'; exit 1");
    let error = format!("{:#}", fixture.trial(&[7], |trial| trial.passes("fifo_tb")).unwrap_err());
    assert_eq!(error, "seed 7: ERROR: always");
}

#[rstest]
#[case::gone(
    "count > Depth",
    "x",
    "fifo",
    "its text 'count > Depth' occurs 0 times in rtl/fifo.sv, and must occur once"
)]
#[case::twice("count ==", "x", "fifo", "its text 'count ==' occurs 2 times in rtl/fifo.sv")]
#[case::same("count == 0", "count == 0", "fifo", "changes nothing")]
#[case::bench("count == 0", "x", "fifu", "there is no bench fifu_tb")]
fn an_entry_that_cannot_be_made_is_an_error(
    #[case] find: &str,
    #[case] replace: &str,
    #[case] bench: &str,
    #[case] expected: &str,
) {
    let error = format!("{:#}", Fixture::new().table(&entry("odd", find, replace, bench)).unwrap_err());
    assert!(error.starts_with("tb/mutants.toml: mutant 'odd': ") && error.contains(expected), "{error}");
}

#[test]
fn the_table_is_held_to_its_form() {
    let fixture = Fixture::new();
    let good = entry("one", "count == 0", "count != 0", "fifo");
    assert_eq!(fixture.table(&good).unwrap().len(), 1);
    let twice = format!("{:#}", fixture.table(&format!("{good}{good}")).unwrap_err());
    assert!(twice.contains("two of this name"), "{twice}");
    let misspelt = format!("{:#}", fixture.table(&good.replace("rule", "role")).unwrap_err());
    assert!(misspelt.contains("is no table of mutants") && misspelt.contains("role"), "{misspelt}");
    let source = good.replace("fifo.sv", "fifa.sv");
    let missing = format!("{:#}", fixture.table(&source).unwrap_err());
    assert!(missing.contains("cannot read") && missing.contains("rtl/fifa.sv"), "{missing}");
    fs::remove_file(fixture.root().join(TABLE)).unwrap();
    assert!(format!("{:#}", table(fixture.root()).unwrap_err()).contains("cannot read"));
}

#[test]
fn every_mutant_of_the_repository_can_be_made() {
    assert!(table(&crate::root()).unwrap().len() >= 25);
}

#[rstest]
#[case("R4", true)]
#[case("early", true)]
#[case("fifo", true)]
#[case("R44", false)]
fn mutants_are_chosen_by_words(#[case] word: &str, #[case] expected: bool) {
    assert_eq!(Fixture::new().mutant.has(word), expected);
}
