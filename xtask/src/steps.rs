//! Commands that consist of several steps: all run, then a summary, then one verdict.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

enum Outcome {
    Passed(Cost),
    Failed(String),
    Skipped(String),
}

/// What a step took.
struct Cost {
    elapsed: Duration,
    /// Processor seconds of the programs that it ran; `None` where the system does not say.
    processor: Option<f64>,
}

/// Processor seconds of all programs that this process has started and that have ended, and of this process itself.
fn processor_seconds() -> Option<f64> {
    /// `USER_HZ`, in which Linux reports times to programs: 100 on every architecture that Rust runs on.
    const TICKS: f64 = 100.0;
    let text = fs::read_to_string("/proc/self/stat").ok()?;
    // The name of the program may hold spaces: fields are counted from behind its bracket. See proc(5): utime is field 14.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = fields.get(11..15)?.iter().map(|field| field.parse::<f64>().ok()).sum::<Option<f64>>()?;
    Some(ticks / TICKS)
}

/// A step that runs as a program of its own while others run.
pub struct Beside {
    name: &'static str,
    start: Instant,
    running: Result<Running>,
}

struct Running {
    child: Child,
    /// Reads what the program prints, so that it never waits for a reader.
    output: JoinHandle<std::io::Result<String>>,
}

impl Beside {
    /// Starts `command`.
    pub fn start(name: &'static str, mut command: Command) -> Beside {
        println!("\n== {name}: begins, and is shown once it has ended");
        let start = Instant::now();
        let mut spawn = || {
            let (read, write) = std::io::pipe().context("cannot make a pipe")?;
            command
                .stdin(Stdio::null())
                .stdout(write.try_clone().context("cannot share a pipe")?)
                .stderr(write);
            let child = command.spawn().with_context(|| format!("cannot run {command:?}"))?;
            // The command holds the pipe open too.
            command.stdout(Stdio::null()).stderr(Stdio::null());
            Ok(Running { child, output: thread::spawn(|| std::io::read_to_string(read)) })
        };
        let running = spawn();
        Beside { name, start, running }
    }
}

impl Running {
    /// Waits for its end and prints what it printed; the time when it ended.
    fn end(mut self) -> Result<Instant> {
        let output =
            self.output.join().expect("reading does not panic").context("cannot read what it prints");
        let ended = Instant::now();
        let status = self.child.wait().context("cannot wait for it")?;
        print!("{}", output?);
        ensure!(status.success(), "it ended with {status}, see above");
        Ok(ended)
    }
}

/// Steps of one command and what came of them.
pub struct Steps {
    title: &'static str,
    rows: Vec<(String, Outcome)>,
    /// What a step of this name is for, shown in its line of the summary.
    purposes: &'static [(&'static str, &'static str)],
}

impl Steps {
    /// No step yet.
    pub fn new(title: &'static str) -> Steps {
        Steps { title, rows: Vec::new(), purposes: &[] }
    }

    /// The summary says of each step what it is for.
    pub fn with_purposes(self, purposes: &'static [(&'static str, &'static str)]) -> Steps {
        Steps { purposes, ..self }
    }

    /// What a step is for, as it stands behind its costs.
    fn purpose(&self, name: &str) -> String {
        let purpose = self.purposes.iter().find(|(step, _)| *step == name);
        purpose.map_or(String::new(), |(_, purpose)| format!("  {purpose}"))
    }

    /// Runs a step; a failure is noted and does not hold up the next one.
    pub fn run(&mut self, name: impl Into<String>, step: impl FnOnce() -> Result<()>) {
        self.run_or_skip(name, || step().map(|()| None));
    }

    /// Runs a step that may find out that it cannot run here, and says why.
    pub fn run_or_skip(&mut self, name: impl Into<String>, step: impl FnOnce() -> Result<Option<String>>) {
        let name = name.into();
        println!("\n== {name}");
        let (start, before) = (Instant::now(), processor_seconds());
        let outcome = match step() {
            Ok(None) => Outcome::Passed(Cost {
                elapsed: start.elapsed(),
                processor: before.and_then(|before| Some(processor_seconds()? - before)),
            }),
            Ok(Some(reason)) => {
                println!("{reason}");
                Outcome::Skipped(reason)
            }
            Err(error) => {
                println!("error: {error:#}");
                Outcome::Failed(format!("{error:#}"))
            }
        };
        self.rows.push((name, outcome));
    }

    /// Waits for a step that was begun beside others. Processor time is the program's own, as it is counted when the program is waited for.
    pub fn end(&mut self, beside: Beside) {
        let Beside { name, start, running } = beside;
        let mut ended = start;
        self.run(name, || {
            ended = running?.end()?;
            Ok(())
        });
        if let Some((_, Outcome::Passed(cost))) = self.rows.last_mut() {
            cost.elapsed = ended.duration_since(start);
        }
    }

    /// Notes a step that cannot run here.
    pub fn skip(&mut self, name: impl Into<String>, reason: impl Into<String>) {
        self.rows.push((name.into(), Outcome::Skipped(reason.into())));
    }

    /// Prints the summary.
    ///
    /// # Errors
    /// When a step failed, or none ran.
    pub fn finish(self) -> Result<()> {
        println!("\n== {}: summary", self.title);
        let width = self.rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        let (mut passed, mut failed) = (0, Vec::new());
        let mut total = 0.0;
        for (name, outcome) in &self.rows {
            let text = match outcome {
                Outcome::Passed(Cost { elapsed, processor }) => {
                    passed += 1;
                    total += processor.unwrap_or(0.0);
                    let processor =
                        processor.map_or(String::new(), |seconds| format!("  {seconds:>7.1} s of CPU"));
                    format!("ok       {:>7.1} s{processor}{}", elapsed.as_secs_f64(), self.purpose(name))
                }
                Outcome::Failed(reason) => {
                    failed.push(name.as_str());
                    format!("FAILED   {}", reason.lines().next().unwrap_or_default())
                }
                Outcome::Skipped(reason) => format!("skipped  {reason}"),
            };
            println!("{name:<width$}  {text}");
        }
        if !failed.is_empty() {
            bail!(
                "{}: {} of {} steps failed: {}",
                self.title,
                failed.len(),
                self.rows.len(),
                failed.join(", ")
            );
        }
        if passed == 0 {
            bail!("{}: no step ran", self.title);
        }
        println!("{}: {passed} of {} steps passed, {total:.0} s of CPU", self.title, self.rows.len());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_failed_step_fails_the_whole_and_the_rest_still_runs() {
        let mut steps = Steps::new("test");
        let mut ran = false;
        steps.run("first", || bail!("broken"));
        steps.run("second", || {
            ran = true;
            Ok(())
        });
        steps.skip("third", "not here");
        assert!(ran);
        assert_eq!(steps.finish().unwrap_err().to_string(), "test: 1 of 3 steps failed: first");
    }

    #[test]
    fn processor_time_counts_programs_that_were_run() {
        let before = processor_seconds().unwrap();
        let busy = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
        assert!(std::process::Command::new("sh").args(["-c", busy]).status().unwrap().success());
        assert!(
            processor_seconds().unwrap() > before,
            "a busy shell takes more than a hundredth of a second"
        );
    }

    #[test]
    fn a_step_beside_others_has_its_own_costs_and_fails_alone() {
        let shell = |text: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", text]);
            command
        };
        let mut steps = Steps::new("test");
        // More than a pipe holds, and nobody reads it before its end.
        let talks = Beside::start("talks", shell("seq 1 20000; sleep 0.3"));
        let fails = Beside::start("fails", shell("exit 3"));
        let missing = Beside::start("missing", Command::new("/nowhere/no program"));
        steps.run("other", || Ok(()));
        [talks, fails, missing].into_iter().for_each(|beside| steps.end(beside));
        let [(_, Outcome::Passed(_)), (_, Outcome::Passed(talks)), _, _] = &steps.rows[..] else {
            panic!("the first two pass")
        };
        assert!(talks.elapsed >= Duration::from_millis(300), "{:?}", talks.elapsed);
        let error = steps.finish().unwrap_err().to_string();
        assert_eq!(error, "test: 2 of 4 steps failed: fails, missing");
    }

    #[test]
    fn a_step_says_what_it_is_for() {
        let steps = Steps::new("test").with_purposes(&[("lint", "the sources look alike")]);
        assert_eq!(
            (steps.purpose("lint").as_str(), steps.purpose("other").as_str()),
            ("  the sources look alike", "")
        );
    }

    #[test]
    fn a_step_that_finds_out_that_it_cannot_run_is_skipped() {
        let mut steps = Steps::new("test");
        steps.run("first", || Ok(()));
        steps.run_or_skip("second", || Ok(Some("no network".to_owned())));
        assert!(matches!(&steps.rows[1].1, Outcome::Skipped(reason) if reason == "no network"));
        assert!(steps.finish().is_ok());
    }

    #[test]
    fn nothing_run_is_no_success() {
        let mut steps = Steps::new("lint");
        steps.skip("only", "not here");
        assert!(steps.finish().is_err());
    }

    #[test]
    fn passed_and_skipped_is_success() {
        let mut steps = Steps::new("lint");
        steps.skip("first", "not here");
        steps.run("second", || Ok(()));
        assert!(steps.finish().is_ok());
    }
}
