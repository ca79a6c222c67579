//! A judge that takes longer.

use std::thread;
use std::time::Duration;

use super::{Answer, Judge, JudgeError, Verdict};

/// Another judge behind a delay, as a reward model on another machine has it.
#[derive(Clone, Copy, Debug)]
pub struct SlowJudge<J> {
    /// Who judges.
    pub judge: J,
    /// How long each verdict takes in addition.
    pub delay: Duration,
}

impl<J: Judge> Judge for SlowJudge<J> {
    fn score(&mut self, answer: &Answer<'_>) -> Result<Verdict, JudgeError> {
        thread::sleep(self.delay);
        self.judge.score(answer)
    }
}
