//! A judge that checks rules, as verifiers of format and length do.

use std::collections::HashSet;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{Answer, Judge, Moment, ONE, Verdict};

/// What an answer is judged by: the score is the weight of the satisfied rules over the weight of all.
///
/// At a checkpoint a rule that a longer answer may still satisfy counts as satisfied. So the score at a checkpoint is
/// the best that the rollout can still reach, and one that ends by it could not have passed.
#[derive(Clone, Debug, PartialEq)]
pub struct Rules {
    /// A lower score ends the rollout at a checkpoint; 0 to 1.
    pub threshold: f64,
    /// At least one.
    pub rules: Vec<Rule>,
}

/// One rule.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// Its name, which no other has.
    pub name: String,
    /// What it counts, above 0.
    pub weight: f64,
    /// What it asks for.
    pub check: Check,
}

/// What a rule asks for.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(tag = "check", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Check {
    /// The answer has at least `min` tokens and at most `max`.
    Length {
        /// Fewest tokens.
        #[serde(default)]
        min: u32,
        /// Most tokens.
        #[serde(default = "no_limit")]
        max: u32,
    },
    /// The answer holds these tokens, one behind the other.
    Require {
        /// The sequence, at least one token.
        tokens: Vec<u32>,
    },
    /// It does not.
    Forbid {
        /// The sequence, at least one token.
        tokens: Vec<u32>,
    },
    /// No `length` tokens come more than `max` times in a row.
    Repeat {
        /// Tokens that repeat together.
        #[serde(default = "one")]
        length: u32,
        /// How often they may come in a row.
        max: u32,
    },
    /// The answer ends with an end of sequence, and not because its budget is used up.
    EndOfSequence {},
}

fn no_limit() -> u32 {
    u32::MAX
}

fn one() -> u32 {
    1
}

/// Why rules cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RulesError {
    /// The file cannot be read.
    #[error("cannot read the rules {path}: {source}")]
    Read {
        /// The file.
        path: String,
        /// Why.
        source: std::io::Error,
    },

    /// No TOML, or no JSON.
    #[error("the rules are no {format}: {message}")]
    Syntax {
        /// `TOML` or `JSON`.
        format: &'static str,
        /// What the parser says, with the place.
        message: String,
    },

    /// Something beside the rules.
    #[error("{field}: {problem}")]
    Field {
        /// Which field.
        field: String,
        /// What is wrong.
        problem: String,
    },

    /// A rule.
    #[error("rule {number} (`{name}`): {problem}")]
    Rule {
        /// Which, from 1.
        number: usize,
        /// Its name, if it has one.
        name: String,
        /// What is wrong.
        problem: String,
    },
}

impl Rules {
    /// Reads rules from a file: JSON if it ends in `.json`, else TOML.
    ///
    /// # Errors
    /// `Read`, or what [`from_toml`](Self::from_toml) returns.
    pub fn read(path: &Path) -> Result<Self, RulesError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| RulesError::Read { path: path.display().to_string(), source })?;
        match path.extension() {
            Some(extension) if extension == "json" => Self::from_json(&text),
            _ => Self::from_toml(&text),
        }
    }

    /// Rules from TOML: `threshold` (0 if it is not given), and tables `[[rule]]` with `name`, `weight` (1 if it is not
    /// given), `check` and its fields.
    ///
    /// # Errors
    /// `Syntax`; `Field` or `Rule`, naming what is wrong.
    pub fn from_toml(text: &str) -> Result<Self, RulesError> {
        let message = |error: toml::de::Error| error.to_string().trim_end().to_owned();
        toml::from_str(text)
            .map_err(|error| RulesError::Syntax { format: "TOML", message: message(error) })
            .and_then(Self::from_object)
    }

    /// The same from JSON.
    ///
    /// # Errors
    /// As [`from_toml`](Self::from_toml).
    pub fn from_json(text: &str) -> Result<Self, RulesError> {
        serde_json::from_str(text)
            .map_err(|error| RulesError::Syntax { format: "JSON", message: error.to_string() })
            .and_then(Self::from_object)
    }

    fn from_object(mut object: Map<String, Value>) -> Result<Self, RulesError> {
        let field = |field: &str, problem: String| RulesError::Field { field: field.to_owned(), problem };
        let threshold = match object.remove("threshold") {
            None => 0.0,
            Some(value) => value
                .as_f64()
                .filter(|value| (0.0..=1.0).contains(value))
                .ok_or_else(|| field("threshold", format!("{value} is no number from 0 to 1")))?,
        };
        let rules = match object.remove("rule") {
            Some(Value::Array(rules)) if !rules.is_empty() => rules,
            _ => return Err(field("rule", "there must be at least one [[rule]]".to_owned())),
        };
        if let Some(unknown) = object.keys().next() {
            return Err(field(unknown, "unknown; there are `threshold` and `rule`".to_owned()));
        }
        let rules = rules.into_iter().zip(1..).map(|(value, number)| Rule::from_value(value, number));
        let rules: Vec<Rule> = rules.collect::<Result<_, _>>()?;
        let mut names = HashSet::new();
        for (rule, number) in rules.iter().zip(1..) {
            if !names.insert(&rule.name) {
                let problem = "another rule has that name".to_owned();
                return Err(RulesError::Rule { number, name: rule.name.clone(), problem });
            }
        }
        Ok(Self { threshold, rules })
    }

    /// The score of an answer, Q16.16 from 0 to 65536.
    pub fn score(&self, tokens: &[u32], moment: Moment) -> u32 {
        let total: f64 = self.rules.iter().map(|rule| rule.weight).sum();
        let satisfied = self.rules.iter().filter(|rule| rule.check.is_satisfied(tokens, moment));
        let satisfied: f64 = satisfied.map(|rule| rule.weight).sum();
        fixed(satisfied / total)
    }
}

/// `share` from 0 to 1 as Q16.16.
fn fixed(share: f64) -> u32 {
    (share * f64::from(ONE)).round() as u32
}

impl Rule {
    fn from_value(value: Value, number: usize) -> Result<Self, RulesError> {
        let mut name = String::new();
        Self::parse(value, &mut name).map_err(|problem| RulesError::Rule { number, name, problem })
    }

    fn parse(value: Value, name: &mut String) -> Result<Self, String> {
        let Value::Object(mut object) = value else { return Err("a rule is a table".to_owned()) };
        match object.remove("name") {
            Some(Value::String(given)) if !given.is_empty() => *name = given,
            _ => return Err("it needs a `name`".to_owned()),
        }
        let weight = object.remove("weight").unwrap_or(Value::from(1));
        let weight = weight
            .as_f64()
            .filter(|weight| (1e-6..=1e6).contains(weight))
            .ok_or_else(|| format!("weight {weight} is no number from 0.000001 to 1000000"))?;
        let check = Check::deserialize(Value::Object(object)).map_err(|error| error.to_string())?;
        check.check()?;
        Ok(Self { name: name.clone(), weight, check })
    }
}

impl Check {
    fn check(&self) -> Result<(), String> {
        match self {
            Self::Length { min: 0, max: u32::MAX } => Err("it needs `min` or `max`".to_owned()),
            Self::Length { min, max } if min > max => Err(format!("min {min} is above max {max}")),
            Self::Require { tokens } | Self::Forbid { tokens } if tokens.is_empty() => {
                Err("`tokens` must name at least one token".to_owned())
            }
            Self::Repeat { length: 0, .. } | Self::Repeat { max: 0, .. } => {
                Err("`length` and `max` must be at least 1".to_owned())
            }
            _ => Ok(()),
        }
    }

    /// Whether the answer satisfies it, or at a checkpoint still can.
    fn is_satisfied(&self, tokens: &[u32], moment: Moment) -> bool {
        let open = moment == Moment::Checkpoint;
        match self {
            Self::Length { min, max } => {
                (open || tokens.len() >= *min as usize) && tokens.len() <= *max as usize
            }
            Self::Require { tokens: wanted } => open || holds(tokens, wanted),
            Self::Forbid { tokens: unwanted } => !holds(tokens, unwanted),
            Self::Repeat { length, max } => repeats(tokens, *length as usize) <= *max as usize,
            Self::EndOfSequence {} => open || moment == Moment::End { eos: true },
        }
    }
}

fn holds(tokens: &[u32], sequence: &[u32]) -> bool {
    tokens.windows(sequence.len()).any(|window| window == sequence)
}

/// How often some `length` tokens come in a row, at most: a stretch in which every token is the one `length` before it
/// repeats what stands before the stretch, once for every `length` of its tokens.
fn repeats(tokens: &[u32], length: usize) -> usize {
    let (mut stretch, mut longest) = (0, 0);
    for (token, before) in tokens.iter().skip(length).zip(tokens) {
        stretch = if token == before { stretch + 1 } else { 0 };
        longest = longest.max(stretch);
    }
    if tokens.len() < length { 0 } else { longest / length + 1 }
}

/// Judges by [`Rules`].
#[derive(Clone, Debug, PartialEq)]
pub struct RuleJudge {
    rules: Rules,
    threshold: u32,
}

impl RuleJudge {
    /// A judge by these rules.
    pub fn new(rules: Rules) -> Self {
        Self { threshold: fixed(rules.threshold), rules }
    }
}

impl Judge for RuleJudge {
    fn score(&mut self, answer: &Answer<'_>) -> Verdict {
        let score = self.rules.score(answer.tokens, answer.moment);
        Verdict { score, proceed: score >= self.threshold }
    }
}
