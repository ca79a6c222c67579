//! Commands that consist of several steps: all run, then a summary, then one verdict.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

enum Outcome {
    Passed(Duration),
    Failed(String),
    Skipped(String),
}

/// Steps of one command and what came of them.
pub struct Steps {
    title: &'static str,
    rows: Vec<(String, Outcome)>,
}

impl Steps {
    /// No step yet.
    pub fn new(title: &'static str) -> Steps {
        Steps { title, rows: Vec::new() }
    }

    /// Runs a step; a failure is noted and does not hold up the next one.
    pub fn run(&mut self, name: impl Into<String>, step: impl FnOnce() -> Result<()>) {
        let name = name.into();
        println!("\n== {name}");
        let start = Instant::now();
        let outcome = match step() {
            Ok(()) => Outcome::Passed(start.elapsed()),
            Err(error) => {
                println!("error: {error:#}");
                Outcome::Failed(format!("{error:#}"))
            }
        };
        self.rows.push((name, outcome));
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
        for (name, outcome) in &self.rows {
            let text = match outcome {
                Outcome::Passed(time) => {
                    passed += 1;
                    format!("ok       {:.1} s", time.as_secs_f64())
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
        println!("{}: {passed} of {} steps passed", self.title, self.rows.len());
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
