//! Colours on a terminal: what a text means, and the codes for it. `NO_COLOR` turns them off, `CLICOLOR_FORCE` on.

use std::env;
use std::io::IsTerminal;

/// What a piece of text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    #[cfg_attr(not(feature = "lm"), expect(dead_code, reason = "the demo's"))]
    Plain,
    /// A heading.
    #[cfg_attr(not(feature = "lm"), expect(dead_code, reason = "the demo's"))]
    Bold,
    /// What matters less.
    #[cfg_attr(not(feature = "lm"), expect(dead_code, reason = "the demo's"))]
    Dim,
    Good,
    Bad,
}

impl Style {
    /// The text with the codes around it.
    pub fn paint(self, text: &str) -> String {
        let code = match self {
            Style::Plain => return text.to_owned(),
            Style::Bold => "1",
            Style::Dim => "2",
            Style::Good => "32",
            Style::Bad => "31",
        };
        format!("\u{1b}[{code}m{text}\u{1b}[0m")
    }
}

/// Whether text for this stream is to have colours.
pub fn is_on(stream: &impl IsTerminal) -> bool {
    let set = |name| env::var_os(name).is_some_and(|value| !value.is_empty() && value != "0");
    let is_dumb = env::var_os("TERM").is_some_and(|term| term == "dumb");
    !set("NO_COLOR") && (set("CLICOLOR_FORCE") || stream.is_terminal() && !is_dumb)
}

/// Verdicts at the beginning of a line.
const LINES: [(&str, Style); 9] = [
    ("identical", Style::Good),
    ("right", Style::Good),
    ("different", Style::Bad),
    ("failed", Style::Bad),
    ("not found", Style::Bad),
    ("error", Style::Bad),
    ("story differs", Style::Bad),
    ("lockstep", Style::Good),
    ("not all is well", Style::Bad),
];

/// Verdicts that are a word of their own in a cell or at the end of a line.
const WORDS: [(&str, Style); 10] = [
    ("met", Style::Good),
    ("missed", Style::Bad),
    ("ok", Style::Good),
    ("PROBLEM", Style::Bad),
    ("PASS", Style::Good),
    ("FAIL", Style::Bad),
    ("identical", Style::Good),
    ("different", Style::Bad),
    ("available", Style::Good),
    ("damaged", Style::Bad),
];

/// A text of several lines with its verdicts painted.
pub fn verdicts(text: &str) -> String {
    text.split_inclusive('\n').map(line).collect()
}

fn line(line: &str) -> String {
    let of_line =
        LINES.iter().find(|(word, _)| line.strip_prefix(word).is_some_and(|rest| rest.starts_with(':')));
    if let Some((word, style)) = of_line {
        return style.paint(word) + &line[word.len()..];
    }
    if line.starts_with('|') {
        let cells = line.split('|').map(|cell| match word_of(cell.trim()) {
            Some(style) => cell.replacen(cell.trim(), &style.paint(cell.trim()), 1),
            None => cell.to_owned(),
        });
        return cells.collect::<Vec<_>>().join("|");
    }
    // `RTL co-sim NAME: PASS`, and the third column of `doctor`.
    if let Some((before, last)) = line.trim_end().rsplit_once(": ")
        && let Some(style) = word_of(last)
    {
        return format!("{before}: {}{}", style.paint(last), &line[line.trim_end().len()..]);
    }
    if let Some(rest) = line.get(19..)
        && let Some(word) = rest.split(' ').next()
        && ["machine ", "gpu ", "tool ", "device "].iter().any(|about| line.starts_with(about))
        && let Some(style) = word_of(word)
    {
        return format!("{}{}{}", &line[..19], style.paint(word), &rest[word.len()..]);
    }
    line.to_owned()
}

fn word_of(text: &str) -> Option<Style> {
    WORDS.iter().find(|(word, _)| *word == text).map(|&(_, style)| style)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_are_painted_and_nothing_else() {
        let good = |word| Style::Good.paint(word);
        let bad = |word| Style::Bad.paint(word);
        assert_eq!(
            verdicts("identical: 2\nnot identical: 2\n"),
            format!("{}: 2\nnot identical: 2\n", good("identical"))
        );
        assert_eq!(
            verdicts("| a | met    |\n| met it | missed |\n"),
            format!("| a | {}    |\n| met it | {} |\n", good("met"), bad("missed"))
        );
        assert_eq!(
            verdicts("RTL co-sim basic decode: PASS\n"),
            format!("RTL co-sim basic decode: {}\n", good("PASS"))
        );
        let doctor = "tool     g++       ok       g++ 12 is ok\n";
        assert_eq!(verdicts(doctor), format!("tool     g++       {}       g++ 12 is ok\n", good("ok")));
        let plain = "a text: with a colon\n";
        assert_eq!(verdicts(plain), plain);
    }
}
