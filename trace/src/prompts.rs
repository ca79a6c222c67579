//! Prompts as text, a line each: what a trace does not hold.

use std::num::NonZeroU32;
use std::path::Path;

use serde::Deserialize;

use super::TraceError;
use super::lines::Lines;

const LINE: &str = r#"a line {"prompt":"…"} for each prompt, with "answer":"…" and "max_tokens":u32 of at least 1 where wanted"#;

/// A prompt, and what is known of its answer.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prompt {
    /// The text.
    pub prompt: String,
    /// The reference answer, for whoever judges.
    pub answer: Option<String>,
    /// Most tokens of an answer, where they are other than those of the other prompts.
    pub max_tokens: Option<NonZeroU32>,
}

impl Prompt {
    /// Reads a file of prompts: JSON lines, the first of which is the first prompt.
    ///
    /// # Errors
    /// The file cannot be read, holds no prompt, or a line is malformed.
    pub fn read(path: &Path) -> Result<Vec<Prompt>, TraceError> {
        let file = path.display().to_string();
        let bytes =
            crate::read_input(path).map_err(|source| TraceError::Read { file: file.clone(), source })?;
        Prompt::parse(&file, &bytes)
    }

    /// Reads the content of a file; `file` is its name in error messages.
    ///
    /// # Errors
    /// As [`Prompt::read`].
    pub fn parse(file: &str, bytes: &[u8]) -> Result<Vec<Prompt>, TraceError> {
        let lines = Lines::split(file, bytes)?;
        if lines.first().is_none() {
            return Err(lines.malformed(0, 0, "the file is empty", LINE));
        }
        lines.enumerate(0).map(|(index, _)| lines.json(index, LINE)).collect()
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[test]
    fn prompts_are_read() {
        let text =
            "\u{feff}{\"prompt\":\"2 + 2?\",\"answer\":\"4\",\"max_tokens\":9}\r\n{\"prompt\":\"\"}\n\n";
        let read = Prompt::parse("p", text.as_bytes()).unwrap();
        let first =
            Prompt { prompt: "2 + 2?".into(), answer: Some("4".into()), max_tokens: NonZeroU32::new(9) };
        assert_eq!(read, [first, Prompt { prompt: String::new(), answer: None, max_tokens: None }]);
    }

    #[rstest]
    #[case::empty("\n\n", "p:1:1: the file is empty")]
    #[case::blank("{\"prompt\":\"a\"}\n\n{\"prompt\":\"b\"}", "p:2:1: blank line before the end of the file")]
    #[case::no_object("{\"prompt\":\"a\"}\n\"b\"", "p:2:1: not a JSON object")]
    #[case::cut("{\"prompt\":", "p:1:10: EOF while parsing a value")]
    #[case::promptless("{\"answer\":\"4\"}", "p:1:14: missing field `prompt`")]
    #[case::number("{\"prompt\":\"a\",\"answer\":4}", "p:1:24: invalid type: integer `4`, expected a string")]
    #[case::nothing(
        "{\"prompt\":\"a\",\"max_tokens\":0}",
        "p:1:28: invalid value: integer `0`, expected a nonzero u32"
    )]
    #[case::stray("{\"prompt\":\"a\",\"tokens\":[1]}", "p:1:22: unknown field `tokens`, expected one of")]
    fn what_is_malformed_is_told_with_its_place(#[case] text: &str, #[case] problem: &str) {
        let told = Prompt::parse("p", text.as_bytes()).unwrap_err().to_string();
        assert!(told.starts_with(problem), "{told}");
        assert!(told.ends_with(&format!("expected {LINE}")), "{told}");
    }

    #[test]
    fn bytes_that_are_no_text_are_told_with_their_place() {
        let told = Prompt::parse("p", b"{\"prompt\":\"a\"}\n{\"prompt\":\"\xff\"}").unwrap_err().to_string();
        assert!(told.starts_with("p:2:12: byte 0xff is not UTF-8"), "{told}");
        let told = Prompt::read(Path::new("no/such.jsonl")).unwrap_err().to_string();
        assert!(told.starts_with("cannot read no/such.jsonl: "), "{told}");
    }
}
