//! A judge that checks rules, as verifiers of format, length and arithmetic do.

use std::collections::HashSet;
use std::path::Path;

use regex::Regex;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::number::Number;
use super::{Answer, Judge, JudgeError, Moment, ONE, Texts, Verdict};

/// What an answer is judged by: the score is the weight of the satisfied rules over the weight of all.
///
/// At a checkpoint a rule that a longer answer may still satisfy counts as satisfied. So the score at a checkpoint is
/// the best that the rollout can still reach, and one that ends by it could not have passed.
#[derive(Clone, Debug, PartialEq)]
pub struct Rules {
    /// A lower score ends the rollout at a checkpoint; 0 to 1.
    threshold: f64,
    /// At least one, each with a name of its own.
    rules: Vec<Rule>,
}

/// One rule: its name, what it counts, and what it asks for.
#[derive(Clone, Debug, PartialEq)]
struct Rule {
    name: String,
    /// 0.000001 to 1000000.
    weight: f64,
    check: Check,
}

/// What a rule asks for, as it stands in a file; [`Check::is_possible`] says whether it can be.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "check", rename_all = "kebab-case", deny_unknown_fields)]
enum Check {
    /// The answer has at least `min` tokens and at most `max`.
    Length {
        #[serde(default)]
        min: u32,
        #[serde(default = "no_limit")]
        max: u32,
    },
    /// The answer holds these tokens, one behind the other.
    Require { tokens: Vec<u32> },
    /// It does not.
    Forbid { tokens: Vec<u32> },
    /// No `length` tokens come more than `max` times in a row.
    Repeat {
        #[serde(default = "one")]
        length: u32,
        max: u32,
    },
    /// The answer ends with an end of sequence, and not because its budget is used up.
    EndOfSequence {},
    /// The regular expression matches somewhere in the text.
    Matches { pattern: Pattern },
    /// The last number of the text is the prompt's answer.
    EqualsAnswer {},
}

/// A regular expression, as the crate `regex` has them.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "String")]
struct Pattern(Regex);

impl TryFrom<String> for Pattern {
    type Error = regex::Error;

    fn try_from(pattern: String) -> Result<Self, regex::Error> {
        Regex::new(&pattern).map(Pattern)
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_str() == other.0.as_str()
    }
}

/// An answer, as rules see it.
struct Seen<'a> {
    tokens: &'a [u32],
    moment: Moment,
    /// Empty where no rule reads it.
    text: &'a str,
    /// The answer that the prompt comes with.
    reference: Option<&'a str>,
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
        let text = doorbell_trace::read_input(path)
            .and_then(|bytes| String::from_utf8(bytes).map_err(std::io::Error::other))
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
        let threshold = match object.remove("threshold") {
            None => 0.0,
            Some(value) => value
                .as_f64()
                .ok_or_else(|| wrong("threshold", format!("{value} is no number from 0 to 1")))?,
        };
        let rules = match object.remove("rule") {
            Some(Value::Array(rules)) => rules,
            _ => vec![],
        };
        if let Some(unknown) = object.keys().next() {
            return Err(wrong(unknown, "unknown; there are `threshold` and `rule`".to_owned()));
        }
        let rules = rules.into_iter().zip(1..).map(|(value, number)| Rule::from_value(value, number));
        let rules = rules.collect::<Result<Vec<_>, _>>()?;
        if !(0.0..=1.0).contains(&threshold) {
            return Err(wrong("threshold", format!("{threshold} is no number from 0 to 1")));
        }
        if rules.is_empty() {
            return Err(wrong("rule", "there must be at least one [[rule]]".to_owned()));
        }
        let mut names = HashSet::new();
        if let Some((twice, number)) = rules.iter().zip(1..).find(|(rule, _)| !names.insert(&rule.name)) {
            let problem = "another rule has that name".to_owned();
            return Err(RulesError::Rule { number, name: twice.name.clone(), problem });
        }
        Ok(Self { threshold, rules })
    }

    /// Whether one of them reads text.
    pub fn reads_text(&self) -> bool {
        self.rules.iter().any(|rule| rule.check.reads_text())
    }

    /// The score of an answer, Q16.16 from 0 to 65536.
    fn score(&self, seen: &Seen<'_>) -> i32 {
        let total: f64 = self.rules.iter().map(|rule| rule.weight).sum();
        let satisfied = self.rules.iter().filter(|rule| rule.check.is_satisfied(seen));
        let satisfied: f64 = satisfied.map(|rule| rule.weight).sum();
        fixed(satisfied / total)
    }
}

fn wrong(field: &str, problem: String) -> RulesError {
    RulesError::Field { field: field.to_owned(), problem }
}

/// `share` from 0 to 1 as Q16.16.
fn fixed(share: f64) -> i32 {
    (share * f64::from(ONE)).round() as i32
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
        let possible = weight.as_f64().filter(|weight| (1e-6..=1e6).contains(weight));
        let weight =
            possible.ok_or_else(|| format!("weight {weight} is no number from 0.000001 to 1000000"))?;
        let check = Check::deserialize(Value::Object(object)).map_err(|error| error.to_string())?;
        check.is_possible()?;
        Ok(Self { name: name.clone(), weight, check })
    }
}

impl Check {
    /// # Errors
    /// Why not, in words.
    fn is_possible(&self) -> Result<(), String> {
        match self {
            Check::Length { min: 0, max: u32::MAX } => Err("it needs `min` or `max`".to_owned()),
            Check::Length { min, max } if min > max => Err(format!("min {min} is above max {max}")),
            Check::Require { tokens } | Check::Forbid { tokens } if tokens.is_empty() => {
                Err("`tokens` must name at least one token".to_owned())
            }
            Check::Repeat { length: 0, .. } | Check::Repeat { max: 0, .. } => {
                Err("`length` and `max` must be at least 1".to_owned())
            }
            Check::Matches { pattern } if pattern.0.as_str().is_empty() => {
                Err("`pattern` is empty, and matches every text".to_owned())
            }
            _ => Ok(()),
        }
    }

    fn reads_text(&self) -> bool {
        matches!(self, Check::Matches { .. } | Check::EqualsAnswer {})
    }

    /// Whether all is there that it reads beside tokens.
    ///
    /// # Errors
    /// What is not, in words.
    fn has_texts(&self, texts: Option<&Texts>) -> Result<(), String> {
        if !self.reads_text() {
            return Ok(());
        }
        let texts = texts.ok_or("it reads text, and these answers have none; give a language model")?;
        if *self != (Check::EqualsAnswer {}) {
            return Ok(());
        }
        if texts.references().is_empty() {
            return Err(
                "it reads the prompts' answers, and these prompts have none; give prompts with answers"
                    .into(),
            );
        }
        let missing =
            (1..).zip(texts.references()).find_map(|(prompt, reference)| match reference.as_deref() {
                None => Some(format!("prompt {prompt} has no answer; give it a number")),
                Some(text) if Number::parse(text).is_none() => Some(format!(
                    "the answer of prompt {prompt}, `{text}`, is no number; give one, as -1234.5"
                )),
                Some(_) => None,
            });
        missing.map_or(Ok(()), Err)
    }

    /// Whether the answer satisfies it, or at a checkpoint still can.
    fn is_satisfied(&self, &Seen { tokens, moment, text, reference }: &Seen<'_>) -> bool {
        let open = moment == Moment::Checkpoint;
        match self {
            Check::Length { min, max } => {
                (open || tokens.len() >= *min as usize) && tokens.len() <= *max as usize
            }
            Check::Require { tokens: wanted } => open || holds(tokens, wanted),
            Check::Forbid { tokens: unwanted } => !holds(tokens, unwanted),
            Check::Repeat { length, max } => repeats(tokens, *length as usize) <= *max as usize,
            Check::EndOfSequence {} => open || moment == Moment::End { eos: true },
            Check::Matches { pattern } => open || pattern.0.is_match(text),
            Check::EqualsAnswer {} => {
                let wanted = reference.and_then(Number::parse);
                open || (wanted.is_some() && Number::last(text) == wanted)
            }
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
#[derive(Clone, Debug)]
pub struct RuleJudge {
    rules: Rules,
    threshold: i32,
    /// If a rule reads them.
    texts: Option<Texts>,
}

impl RuleJudge {
    /// A judge by these rules. Those over text read `texts`.
    ///
    /// # Errors
    /// `Rule` for one that reads what is not there: text, or the answers that prompts come with.
    pub fn new(rules: Rules, texts: Option<Texts>) -> Result<Self, RulesError> {
        for (rule, number) in rules.rules.iter().zip(1..) {
            let told = |problem| RulesError::Rule { number, name: rule.name.clone(), problem };
            rule.check.has_texts(texts.as_ref()).map_err(told)?;
        }
        let texts = texts.filter(|_| rules.reads_text());
        Ok(Self { threshold: fixed(rules.threshold), rules, texts })
    }
}

impl Judge for RuleJudge {
    fn score(&mut self, answer: &Answer<'_>) -> Result<Verdict, JudgeError> {
        let &Answer { tokens, moment, .. } = answer;
        // At a checkpoint any text may still come.
        let texts = self.texts.as_ref().filter(|_| moment != Moment::Checkpoint);
        let text = texts.map(|texts| texts.decode(tokens)).transpose()?.unwrap_or_default();
        let reference = texts.and_then(|texts| texts.reference(answer.request));
        let score = self.rules.score(&Seen { tokens, moment, text: &text, reference });
        Ok(Verdict { score, proceed: score >= self.threshold })
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::rollout::RolloutId;

    const END: Moment = Moment::End { eos: true };
    const CUT: Moment = Moment::End { eos: false };

    #[rstest]
    #[case::short(r#"check = "length", min = 4"#, &[1, 2, 3], END, false)]
    #[case::may_grow(r#"check = "length", min = 4"#, &[1, 2, 3], Moment::Checkpoint, true)]
    #[case::long_enough(r#"check = "length", min = 3, max = 3"#, &[1, 2, 3], END, true)]
    #[case::will_not_shrink(r#"check = "length", max = 2"#, &[1, 2, 3], Moment::Checkpoint, false)]
    #[case::there(r#"check = "require", tokens = [2, 3]"#, &[1, 2, 3], END, true)]
    #[case::not_in_a_row(r#"check = "require", tokens = [1, 3]"#, &[1, 2, 3], END, false)]
    #[case::may_come(r#"check = "require", tokens = [9]"#, &[1, 2, 3], Moment::Checkpoint, true)]
    #[case::forbidden(r#"check = "forbid", tokens = [1, 2]"#, &[1, 2, 3], Moment::Checkpoint, false)]
    #[case::longer_than_the_answer(r#"check = "forbid", tokens = [1, 2, 3, 4]"#, &[1, 2, 3], END, true)]
    #[case::thrice(r#"check = "repeat", max = 2"#, &[5, 5, 5], END, false)]
    #[case::twice(r#"check = "repeat", max = 2"#, &[5, 5, 6, 5, 5], END, true)]
    #[case::pairs(r#"check = "repeat", length = 2, max = 2"#, &[9, 1, 2, 1, 2, 1, 2], END, false)]
    #[case::pairs_and_a_half(r#"check = "repeat", length = 2, max = 2"#, &[1, 2, 1, 2, 1], END, true)]
    #[case::once(r#"check = "repeat", max = 1"#, &[1, 2, 1], END, true)]
    #[case::nothing(r#"check = "repeat", length = 2, max = 1"#, &[], END, true)]
    #[case::ended(r#"check = "end-of-sequence""#, &[1], END, true)]
    #[case::cut(r#"check = "end-of-sequence""#, &[1], CUT, false)]
    #[case::may_end(r#"check = "end-of-sequence""#, &[1], Moment::Checkpoint, true)]
    fn each_check(
        #[case] rule: &str,
        #[case] tokens: &[u32],
        #[case] moment: Moment,
        #[case] satisfied: bool,
    ) {
        assert_eq!(judged(rule, None, tokens, moment), Ok(if satisfied { ONE } else { 0 }));
    }

    /// What one rule says of an answer to request 5.
    fn judged(rule: &str, texts: Option<Texts>, tokens: &[u32], moment: Moment) -> Result<i32, JudgeError> {
        let rules = Rules::from_toml(&format!("rule = [{{ name = 'it', {rule} }}]")).unwrap();
        RuleJudge::new(rules, texts).unwrap().score(&answer(tokens, moment)).map(|verdict| verdict.score)
    }

    fn answer(tokens: &[u32], moment: Moment) -> Answer<'_> {
        Answer {
            rollout: RolloutId::new(0, 0),
            request: 5,
            member: 0,
            prompt_tokens: 0,
            prompt: &[],
            tokens,
            segment: 0..tokens.len(),
            moment,
            digest: 0,
        }
    }

    /// Tokens are bytes, as far as they are; the others steer, but for one that no tokenizer has.
    fn texts(references: &[Option<&str>]) -> Texts {
        let decode = |tokens: &[u32]| match tokens.contains(&u32::MAX) {
            true => Err(JudgeError::new("there is no such token")),
            false => {
                let bytes: Vec<u8> = tokens.iter().filter_map(|&token| token.try_into().ok()).collect();
                Ok(String::from_utf8_lossy(&bytes).into_owned())
            }
        };
        Texts::new(decode, references.iter().map(|text| text.map(str::to_owned)).collect())
    }

    #[rstest]
    #[case::somewhere("the answer is 4", "answer is [0-9]+", END, true)]
    #[case::nowhere("the answer is four", "answer is [0-9]+", END, false)]
    #[case::all_of_it("42", "^[0-9]+$", END, true)]
    #[case::more_than_it("42.", "^[0-9]+$", END, false)]
    #[case::cut("42", "^[0-9]+$", CUT, true)]
    #[case::may_come("no", "^[0-9]+$", Moment::Checkpoint, true)]
    #[case::nothing("", "[0-9]", END, false)]
    #[case::nothing_is_wanted("", "^$", END, true)]
    #[case::lines("a\n4\nb", "(?m)^4$", END, true)]
    #[case::letters("größer", r"^\\w{6}$", END, true)]
    fn texts_match(
        #[case] text: &str,
        #[case] pattern: &str,
        #[case] moment: Moment,
        #[case] satisfied: bool,
    ) {
        let tokens: Vec<u32> = text.bytes().map(u32::from).collect();
        let rule = format!(r#"check = "matches", pattern = "{pattern}""#);
        assert_eq!(judged(&rule, Some(texts(&[])), &tokens, moment), Ok(if satisfied { ONE } else { 0 }));
    }

    #[rstest]
    #[case::right("2 + 2 = 4", "4", END, true)]
    #[case::wrong("2 + 2 = 5", "4", END, false)]
    #[case::the_last_counts("4, or 5", "4", END, false)]
    #[case::no_number("four", "4", END, false)]
    #[case::nothing("", "0", END, false)]
    #[case::negative("that is -3", "-3", END, true)]
    #[case::not_negative("that is -3", "3", END, false)]
    #[case::taken_away("7-3", "3", END, true)]
    #[case::decimal("about 2.50.", "2.5", END, true)]
    #[case::not_a_part("12.5", "5", END, false)]
    #[case::thousands("1,250", "1250.0", CUT, true)]
    #[case::may_come("five", "4", Moment::Checkpoint, true)]
    fn numbers_equal_the_answer(
        #[case] text: &str,
        #[case] reference: &str,
        #[case] moment: Moment,
        #[case] satisfied: bool,
    ) {
        let tokens: Vec<u32> = text.bytes().map(u32::from).collect();
        // Request 5 has the last of three prompts.
        let texts = texts(&[Some("0.125"), Some("0.25"), Some(reference)]);
        let score = judged(r#"check = "equals-answer""#, Some(texts), &tokens, moment);
        assert_eq!(score, Ok(if satisfied { ONE } else { 0 }));
    }

    /// Half a letter, at the end or before something else, is some other letter: it spoils no number beside it.
    #[rstest]
    #[case::whole(&[0xC3, 0xB6, 0x37], "ö7")]
    #[case::torn(&[0xC3, 0x37], "\u{FFFD}7")]
    #[case::within(&[0x37, 0xE2, 0x88], "7\u{FFFD}")]
    #[case::steering(&[0x37, 1000], "7")]
    fn bytes_that_are_no_letter_are_text(#[case] tokens: &[u32], #[case] text: &str) {
        let matches = format!("check = 'matches', pattern = '^{text}$'");
        assert_eq!(judged(&matches, Some(texts(&[])), tokens, END), Ok(ONE));
        let seven = judged("check = 'equals-answer'", Some(texts(&[Some("7")])), tokens, END);
        assert_eq!(seven, Ok(ONE));
    }

    #[test]
    fn a_tokenizer_that_fails_gives_no_verdict() {
        let rule = "check = 'matches', pattern = '4'";
        let told = judged(rule, Some(texts(&[])), &[u32::MAX], END);
        assert_eq!(told, Err(JudgeError::new("there is no such token")));
        let open = judged(rule, Some(texts(&[])), &[u32::MAX], Moment::Checkpoint);
        assert_eq!(open, Ok(ONE), "it is not asked");
        let other = judged("check = 'length', min = 1", Some(texts(&[])), &[u32::MAX], END);
        assert_eq!(other, Ok(ONE), "nor where no rule reads text");
    }

    #[rstest]
    #[case::no_text(
        "check = 'matches', pattern = 'a'",
        None,
        "rule 1 (`it`): it reads text, and these answers have none; give a language model"
    )]
    #[case::no_text_for_numbers(
        "check = 'equals-answer'",
        None,
        "rule 1 (`it`): it reads text, and these answers have none; give a language model"
    )]
    #[case::no_prompts(
        "check = 'equals-answer'",
        Some(texts(&[])),
        "rule 1 (`it`): it reads the prompts' answers, and these prompts have none; give prompts with answers"
    )]
    #[case::no_answer(
        "check = 'equals-answer'",
        Some(texts(&[Some("1"), None])),
        "rule 1 (`it`): prompt 2 has no answer; give it a number"
    )]
    #[case::no_number(
        "check = 'equals-answer'",
        Some(texts(&[Some("1"), Some("4 apples")])),
        "rule 1 (`it`): the answer of prompt 2, `4 apples`, is no number; give one, as -1234.5"
    )]
    fn what_rules_cannot_read_is_told(
        #[case] rule: &str,
        #[case] texts: Option<Texts>,
        #[case] message: &str,
    ) {
        let rules = Rules::from_toml(&format!("rule = [{{ name = 'it', {rule} }}]")).unwrap();
        assert_eq!(RuleJudge::new(rules, texts).unwrap_err().to_string(), message);
    }

    const RULES: &str = r#"
        threshold = 0.5
        [[rule]]
        name = "short"
        check = "length"
        max = 2
        [[rule]]
        name = "polite"
        weight = 2.0
        check = "require"
        tokens = [7]
    "#;

    #[test]
    fn the_score_is_the_weight_of_what_is_satisfied_and_the_threshold_decides() {
        let mut judge = RuleJudge::new(Rules::from_toml(RULES).unwrap(), None).unwrap();
        let mut score = |tokens: &[u32], moment| {
            let verdict = judge.score(&answer(tokens, moment)).unwrap();
            (verdict.score, verdict.proceed)
        };
        assert_eq!(score(&[7], END), (ONE, true));
        assert_eq!(score(&[7, 8, 9], END), (43691, true));
        assert_eq!(score(&[8], END), (21845, false));
        assert_eq!(score(&[1, 2, 3], Moment::Checkpoint), (43691, true), "it may still become polite");
        assert_eq!(score(&[1, 2, 3], END), (0, false));
    }

    #[test]
    fn json_says_the_same() {
        let json = r#"{"threshold": 0.5, "rule": [{"name": "short", "check": "length", "max": 2},
                       {"name": "polite", "weight": 2, "check": "require", "tokens": [7]}]}"#;
        assert_eq!(Rules::from_json(json).unwrap(), Rules::from_toml(RULES).unwrap());
    }

    #[rstest]
    #[case::nothing("", "rule: there must be at least one [[rule]]")]
    #[case::empty("rule = []", "rule: there must be at least one [[rule]]")]
    #[case::threshold("threshold = 2", "threshold: 2 is no number from 0 to 1")]
    #[case::field(
        "rules = 1\nrule = [{ name = 'a', check = 'end-of-sequence' }]",
        "rules: unknown; there are `threshold` and `rule`"
    )]
    #[case::table("rule = [1]", "rule 1 (``): a rule is a table")]
    #[case::nameless("rule = [{ check = 'length' }]", "rule 1 (``): it needs a `name`")]
    #[case::twice(
        "rule = [{ name = 'a', check = 'end-of-sequence' }, { name = 'a', check = 'end-of-sequence' }]",
        "rule 2 (`a`): another rule has that name"
    )]
    #[case::weight(
        "rule = [{ name = 'a', weight = -1, check = 'end-of-sequence' }]",
        "rule 1 (`a`): weight -1 is no number from 0.000001 to 1000000"
    )]
    #[case::checkless("rule = [{ name = 'a' }]", "rule 1 (`a`): missing field `check`")]
    #[case::unknown(
        "rule = [{ name = 'a', check = 'mood' }]",
        "rule 1 (`a`): unknown variant `mood`, expected one of `length`, `require`, `forbid`, `repeat`, `end-of-sequence`, `matches`, `equals-answer`"
    )]
    #[case::stray(
        "rule = [{ name = 'a', check = 'end-of-sequence', min = 3 }]",
        "rule 1 (`a`): unknown field `min`, there are no fields"
    )]
    #[case::boundless("rule = [{ name = 'a', check = 'length' }]", "rule 1 (`a`): it needs `min` or `max`")]
    #[case::crossed(
        "rule = [{ name = 'a', check = 'length', min = 3, max = 2 }]",
        "rule 1 (`a`): min 3 is above max 2"
    )]
    #[case::no_tokens(
        "rule = [{ name = 'a', check = 'forbid', tokens = [] }]",
        "rule 1 (`a`): `tokens` must name at least one token"
    )]
    #[case::negative(
        "rule = [{ name = 'a', check = 'forbid', tokens = [-1] }]",
        "rule 1 (`a`): invalid value: integer `-1`, expected u32"
    )]
    #[case::no_length(
        "rule = [{ name = 'a', check = 'repeat', length = 0, max = 1 }]",
        "rule 1 (`a`): `length` and `max` must be at least 1"
    )]
    #[case::weightless(
        "rule = [{ name = 'a', weight = 0, check = 'end-of-sequence' }]",
        "rule 1 (`a`): weight 0 is no number from 0.000001 to 1000000"
    )]
    #[case::unnamed("rule = [{ name = '', check = 'end-of-sequence' }]", "rule 1 (``): it needs a `name`")]
    #[case::nothing_wanted(
        "rule = [{ name = 'a', check = 'require', tokens = [] }]",
        "rule 1 (`a`): `tokens` must name at least one token"
    )]
    #[case::pattern(
        "rule = [{ name = 'a', check = 'matches', pattern = '(' }]",
        "rule 1 (`a`): regex parse error:\n    (\n    ^\nerror: unclosed group"
    )]
    #[case::patternless(
        "rule = [{ name = 'a', check = 'matches' }]",
        "rule 1 (`a`): missing field `pattern`"
    )]
    #[case::matches_all(
        "rule = [{ name = 'a', check = 'matches', pattern = '' }]",
        "rule 1 (`a`): `pattern` is empty, and matches every text"
    )]
    #[case::never(
        "rule = [{ name = 'a', check = 'repeat', max = 0 }]",
        "rule 1 (`a`): `length` and `max` must be at least 1"
    )]
    fn bad_rules_are_named(#[case] text: &str, #[case] message: &str) {
        assert_eq!(Rules::from_toml(text).unwrap_err().to_string(), message);
    }

    #[test]
    fn what_is_no_toml_or_json_is_told_with_its_place() {
        let toml = Rules::from_toml("threshold = ").unwrap_err().to_string();
        assert!(toml.starts_with("the rules are no TOML: TOML parse error at line 1"), "{toml}");
        let json = Rules::from_json("{").unwrap_err().to_string();
        assert!(json.starts_with("the rules are no JSON: EOF"), "{json}");
        let missing = Rules::read(Path::new("no/such/rules.toml")).unwrap_err().to_string();
        assert!(missing.starts_with("cannot read the rules no/such/rules.toml: "), "{missing}");
    }
}
