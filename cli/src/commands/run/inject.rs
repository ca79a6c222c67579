//! Judges that break as they are told to: faults for trying out what a run makes of them.

use std::str::FromStr;
use std::thread;

use doorbell_runtime::reward::{Answer, Judge, JudgeError, Verdict};

/// How judges break.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// Every judge panics at this share of the rollouts, the same ones whoever judges.
    Panic(f64),
    /// Every judge answers with an error to this share of the rollouts, the same ones whoever judges.
    Error(f64),
    /// The judge of this number never comes back from its first answer.
    Hang(usize),
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Fault, String> {
        let unknown = || format!("'{text}' is no fault; there are panic:SHARE, error:SHARE and hang:JUDGE");
        let (kind, value) = text.split_once(':').ok_or_else(unknown)?;
        let share = || match value.strip_suffix('%') {
            Some(percent) => {
                let percent: f64 = percent.parse().map_err(|_| format!("'{value}' is no share"))?;
                crate::commands::fraction(&(percent / 100.0).to_string())
            }
            None => crate::commands::fraction(value),
        };
        match kind {
            "panic" => share().map(Fault::Panic),
            "error" => share().map(Fault::Error),
            "hang" => value.parse().map(Fault::Hang).map_err(|_| format!("'{value}' is no judge's number")),
            _ => Err(unknown()),
        }
    }
}

/// Another judge, that breaks.
pub struct Faulty<J> {
    pub judge: J,
    pub number: usize,
    pub faults: Vec<Fault>,
    pub seed: u32,
}

impl<J> Faulty<J> {
    /// Whether a rollout is of the `share` for which something happens; `salt` tells the faults apart.
    fn hits(&self, answer: &Answer<'_>, salt: u64, share: f64) -> bool {
        let key = answer.request << 12 ^ u64::from(answer.member) ^ u64::from(self.seed) << 44 ^ salt;
        // splitmix64: any bit of the key moves every bit.
        let mut mixed = key.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ mixed >> 31) >> 11) as f64 / ((1u64 << 53) as f64) < share
    }
}

impl<J: Judge> Judge for Faulty<J> {
    fn score(&mut self, answer: &Answer<'_>) -> Result<Verdict, JudgeError> {
        for (fault, salt) in self.faults.iter().zip(1..) {
            match *fault {
                Fault::Hang(judge) if judge == self.number => loop {
                    thread::park();
                },
                Fault::Panic(share) if self.hits(answer, salt, share) => {
                    panic!("a panic was asked for (--inject-judge)")
                }
                Fault::Error(share) if self.hits(answer, salt, share) => {
                    return Err(JudgeError::new("an error was asked for (--inject-judge)"));
                }
                _ => {}
            }
        }
        self.judge.score(answer)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("panic:1%", Ok(Fault::Panic(0.01)))]
    #[case("error:0.5", Ok(Fault::Error(0.5)))]
    #[case("hang:3", Ok(Fault::Hang(3)))]
    #[case("hang", Err("'hang' is no fault; there are panic:SHARE, error:SHARE and hang:JUDGE"))]
    #[case("hang:x", Err("'x' is no judge's number"))]
    #[case("panic:x%", Err("'x%' is no share"))]
    fn faults_are_read(#[case] text: &str, #[case] expected: Result<Fault, &str>) {
        assert_eq!(text.parse::<Fault>(), expected.map_err(str::to_owned));
    }

    #[test]
    fn shares_above_one_are_refused() {
        assert!("panic:101%".parse::<Fault>().is_err());
        assert!("error:1.5".parse::<Fault>().is_err());
    }
}
