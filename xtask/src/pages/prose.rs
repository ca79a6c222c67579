//! Sentences of a page in Markdown, as far as is needed to count their words.

/// A sentence, or a part of one in a cell of a table.
#[derive(Debug, PartialEq, Eq)]
pub struct Sentence {
    pub words: usize,
    pub text: String,
    /// Whether it stands in a table.
    pub is_cell: bool,
}

/// What a line of a page is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Code,
    Blank,
    Text,
}

/// The kind of each line: between fences and indented by four behind a blank line it is code; so is what is generated between comments.
fn kinds(text: &str) -> Vec<(Kind, &str)> {
    let (mut fenced, mut generated) = (false, false);
    let mut before = Kind::Blank;
    let mut out = Vec::new();
    for line in text.lines() {
        let is_fence = line.trim_start().starts_with("```");
        generated |= line.starts_with("<!-- generated:");
        let is_comment = line.starts_with("<!--");
        let kind = if fenced || is_fence || generated || is_comment {
            Kind::Code
        } else if line.trim().is_empty() {
            Kind::Blank
        } else if line.starts_with("    ") && before != Kind::Text {
            Kind::Code
        } else {
            Kind::Text
        };
        fenced ^= is_fence;
        generated &= !line.starts_with("<!-- /generated") && !line.starts_with("<!-- end");
        before = if is_fence || is_comment { Kind::Blank } else { kind };
        out.push((kind, line));
    }
    out
}

/// The lines that are no code, and in them no code between backticks.
pub fn without_code(text: &str) -> Vec<String> {
    let lines = kinds(text).into_iter().filter(|(kind, _)| *kind != Kind::Code);
    lines.map(|(_, line)| replace_code(line, "")).collect()
}

/// The line with `word` for whatever stands between backticks.
fn replace_code(line: &str, word: &str) -> String {
    let mut out = String::new();
    let mut rest = line;
    while let Some((before, behind)) = rest.split_once('`') {
        let Some((_, next)) = behind.split_once('`') else { break };
        out.push_str(before);
        out.push_str(word);
        rest = next;
    }
    out + rest
}

/// The line with the text of each link in its place, and without stars.
pub fn plain(line: &str) -> String {
    let mut out = String::new();
    let mut rest = line;
    while let Some((before, behind)) = rest.split_once('[') {
        out.push_str(before);
        let linked =
            behind.split_once("](").and_then(|(name, behind)| Some((name, behind.split_once(')')?.1)));
        let Some((name, next)) = linked.filter(|(name, _)| !name.contains(']')) else {
            out.push('[');
            rest = behind;
            continue;
        };
        out.push_str(name);
        rest = next;
    }
    (out + rest).replace('*', "")
}

/// The sentences of running text, and those of each cell of a table, headings and code left out.
pub fn sentences(text: &str) -> Vec<Sentence> {
    let mut out = Vec::new();
    let mut paragraph = String::new();
    for (kind, line) in kinds(text) {
        let line = line.trim();
        let is_row = line.starts_with('|');
        if kind != Kind::Text || is_row || line.starts_with('#') || item(line).is_some() {
            split(&std::mem::take(&mut paragraph), false, &mut out);
        }
        if kind != Kind::Text || line.starts_with('#') {
            continue;
        }
        if is_row {
            let is_rule = line.chars().all(|letter| "|-: ".contains(letter));
            for cell in line.trim_matches('|').replace("\\|", "/").split('|').filter(|_| !is_rule) {
                split(cell, true, &mut out);
            }
            continue;
        }
        paragraph.push_str(item(line).unwrap_or(line.strip_prefix("> ").unwrap_or(line)));
        paragraph.push(' ');
    }
    split(&paragraph, false, &mut out);
    out
}

/// The text of an item of a list, if the line begins one.
fn item(line: &str) -> Option<&str> {
    if let Some(text) = line.strip_prefix("- ").or_else(|| line.strip_prefix("* ")) {
        return Some(text);
    }
    let (number, text) = line.split_once(". ")?;
    (!number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit())).then_some(text)
}

/// Cuts a paragraph behind each stop that a capital, a digit or code follows.
fn split(paragraph: &str, is_cell: bool, out: &mut Vec<Sentence>) {
    let text = plain(&replace_code(paragraph, "code"));
    let words: Vec<&str> = text.split_whitespace().collect();
    let mut first = 0;
    for (at, word) in words.iter().enumerate() {
        let ends = word.trim_end_matches([')', '"', '\'']).ends_with(['.', '!', '?']);
        let goes_on = words.get(at + 1).is_some_and(|next| {
            let next = next.trim_start_matches(['(', '"', '\'']);
            !next.starts_with(|letter: char| letter.is_uppercase() || letter.is_ascii_digit())
                && !next.starts_with("code")
        });
        if (ends && !goes_on) || at + 1 == words.len() {
            let sentence = &words[first..=at];
            let count = sentence.iter().filter(|word| word.contains(char::is_alphanumeric)).count();
            if count > 0 {
                out.push(Sentence { words: count, text: sentence.join(" "), is_cell });
            }
            first = at + 1;
        }
    }
}

/// Dates such as 2026-01-31 in the lines that are no code.
pub fn dates(text: &str) -> Vec<String> {
    let is_date = |word: &[u8]| {
        word.starts_with(b"20")
            && word
                .iter()
                .enumerate()
                .all(|(at, byte)| if at == 4 || at == 7 { *byte == b'-' } else { byte.is_ascii_digit() })
    };
    let lines = without_code(text);
    let found = lines.iter().flat_map(|line| line.as_bytes().windows(10)).filter(|word| is_date(word));
    found.map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(text: &str) -> Vec<usize> {
        sentences(text).iter().map(|sentence| sentence.words).collect()
    }

    #[test]
    fn sentences_end_at_stops_that_a_beginning_follows() {
        assert_eq!(
            counts("One two. Three `four five` six! `Seven` eight (nine). 10 is a number."),
            [2, 3, 3, 4]
        );
        assert_eq!(counts("Version 2.1 of e.g. this goes on over\ntwo lines.\n\nAnother paragraph"), [10, 2]);
        assert_eq!(counts("See [the long name](a.md#b). *All* of it - and more."), [4, 5]);
    }

    #[test]
    fn items_cells_headings_and_code_stand_apart() {
        assert_eq!(
            counts(
                "# A heading\n- one two\n  three\n1. four\n\n    code that is long\n\n```text\ncode\n```\n"
            ),
            [3, 1]
        );
        let table = sentences("| a b | c |\n|---|---|\n| d. E f | |\nText.\n");
        let cells: Vec<(usize, bool)> =
            table.iter().map(|sentence| (sentence.words, sentence.is_cell)).collect();
        assert_eq!(cells, [(2, true), (1, true), (1, true), (2, true), (1, false)]);
        assert_eq!(counts("<!-- generated:X -->\nMuch text.\n<!-- /generated:X -->\nOne.\n"), [1]);
    }

    #[test]
    fn dates_are_found_outside_code() {
        assert_eq!(dates("On 2026-01-31, `2026-02-01`.\n\n    2026-02-02\n"), ["2026-01-31"]);
        assert!(dates("2026-1-31, 120 26-01-31").is_empty());
    }
}
