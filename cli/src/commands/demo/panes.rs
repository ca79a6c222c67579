//! Texts side by side, in lines of styled pieces.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::paint::Style;

/// Pieces of a line.
pub type Line = Vec<(Style, String)>;

/// Between two panes.
const BETWEEN: &str = " │ ";

/// How far a device has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    Opening,
    /// After so many tokens.
    Telling(usize),
    Ended {
        tokens: usize,
        cycles: Option<u64>,
    },
    Failed(String),
}

/// A device's story.
#[derive(Clone, Debug)]
pub struct Pane {
    name: String,
    about: String,
    /// What the story begins with.
    pub prompt: String,
    /// All of it, so far.
    pub text: String,
    pub state: State,
}

impl Pane {
    pub fn new(name: &str, about: &str, prompt: &str) -> Self {
        let prompt = crate::output::shown(prompt);
        Self { name: name.into(), about: about.into(), text: prompt.clone(), prompt, state: State::Opening }
    }

    fn is_over(&self) -> bool {
        matches!(self.state, State::Ended { .. } | State::Failed(_))
    }

    /// Below the story.
    fn foot(&self, width: usize) -> Vec<(Style, String)> {
        let (style, text) = match &self.state {
            State::Opening => (Style::Dim, "…".to_owned()),
            State::Telling(tokens) => (Style::Dim, format!("{tokens} tokens …")),
            State::Ended { tokens, cycles: None } => (Style::Dim, format!("{tokens} tokens")),
            State::Ended { tokens, cycles: Some(cycles) } => {
                (Style::Dim, format!("{tokens} tokens in {} clock cycles", grouped(*cycles)))
            }
            State::Failed(problem) => (Style::Bad, format!("failed: {problem}")),
        };
        wrapped(&text, width).into_iter().map(|line| (style, line)).collect()
    }
}

/// A number with its thousands apart.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Columns of each of `many` panes.
fn pane_width(many: usize, width: usize) -> usize {
    (width.saturating_sub(BETWEEN.width() * many.saturating_sub(1)) / many.max(1)).max(8)
}

/// Lines of the story that will stay as they are, whatever comes, as part of what [`side_by_side`] gives.
pub fn sure(panes: &[Pane], width: usize) -> usize {
    let width = pane_width(panes.len(), width);
    // The last line of a story that goes on may become longer.
    let lines = |pane: &Pane| wrapped(&pane.text, width).len() - usize::from(!pane.is_over());
    let least = panes.iter().filter(|pane| !pane.is_over()).map(lines).min();
    match least {
        Some(least) => head(panes, width) + least,
        None => usize::MAX / 2,
    }
}

/// Lines above the story: the name, what the device is, a rule.
fn head(panes: &[Pane], width: usize) -> usize {
    2 + panes.iter().map(|pane| wrapped(&pane.about, width).len()).max().unwrap_or(1)
}

/// All panes in so many columns: what each is, its story, and how far it is.
pub fn side_by_side(panes: &[Pane], width: usize) -> Vec<Line> {
    let own = pane_width(panes.len(), width);
    let row = |cells: Vec<(Style, String)>, between: &str| {
        let mut line: Line = vec![];
        for (at, (style, cell)) in cells.into_iter().enumerate() {
            if at > 0 {
                line.push((Style::Dim, between.to_owned()));
            }
            let is_last = at + 1 == panes.len();
            let room = if is_last { 0 } else { own.saturating_sub(cell.width()) };
            line.push((style, cell));
            if room > 0 {
                line.push((Style::Plain, " ".repeat(room)));
            }
        }
        line
    };
    let rule = |between: &str| row(panes.iter().map(|_| (Style::Dim, "─".repeat(own))).collect(), between);
    let columns = |columns: Vec<Vec<(Style, String)>>| -> Vec<Line> {
        let most = columns.iter().map(Vec::len).max().unwrap_or(0);
        let cell = |column: &Vec<(Style, String)>, at: usize| {
            column.get(at).cloned().unwrap_or((Style::Plain, String::new()))
        };
        (0..most).map(|at| row(columns.iter().map(|column| cell(column, at)).collect(), BETWEEN)).collect()
    };
    let mut lines =
        vec![row(panes.iter().map(|pane| (Style::Bold, cut(&pane.name, own))).collect(), BETWEEN)];
    let about = |pane: &Pane| wrapped(&pane.about, own).into_iter().map(|line| (Style::Dim, line)).collect();
    lines.extend(columns(panes.iter().map(about).collect()));
    lines.push(rule("─┼─"));
    let story = |pane: &Pane| wrapped(&pane.text, own).into_iter().map(|line| (Style::Plain, line)).collect();
    lines.extend(columns(panes.iter().map(story).collect()));
    lines.push(rule("─┼─"));
    lines.extend(columns(panes.iter().map(|pane| pane.foot(own)).collect()));
    lines
}

fn cut(text: &str, width: usize) -> String {
    let mut used = 0;
    text.chars()
        .take_while(|letter| {
            used += letter.width().unwrap_or(0);
            used <= width
        })
        .collect()
}

/// The lines of a text in so many columns, broken at blanks. A longer text begins with the same lines but for the last.
pub fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![];
    for paragraph in text.split('\n') {
        let mut line = String::new();
        for word in paragraph.split(' ') {
            let mut word = word;
            if !line.is_empty() {
                if line.width() + 1 + word.width() <= width {
                    line.push(' ');
                    line.push_str(word);
                    continue;
                }
                lines.push(std::mem::take(&mut line));
            }
            while word.width() > width {
                let head = cut(word, width);
                // A letter wider than the pane goes nowhere.
                if head.is_empty() {
                    break;
                }
                word = &word[head.len()..];
                lines.push(head);
            }
            line.push_str(word);
        }
        lines.push(line);
    }
    lines
}

/// Lines as text, with the codes of their colours if asked for.
pub fn painted(lines: &[Line], colours: bool) -> String {
    let mut out = String::new();
    for line in lines {
        let text: String =
            line.iter().map(|(style, text)| if colours { style.paint(text) } else { text.clone() }).collect();
        out += if colours { &text } else { text.trim_end() };
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_at_blanks_and_stay_when_more_comes() {
        assert_eq!(wrapped("one two three", 8), ["one two", "three"]);
        assert_eq!(wrapped("", 8), [""]);
        assert_eq!(wrapped("one\n\ntwo", 8), ["one", "", "two"]);
        assert_eq!(wrapped("abcdefghij kl", 4), ["abcd", "efgh", "ij", "kl"]);
        let text = "Once upon a time, there was a penguin.\n\"No\", it said, 漢字 and went. Averyveryverylongword, too";
        for width in 2..40 {
            let whole = wrapped(text, width);
            for (end, _) in text.char_indices() {
                let part = wrapped(&text[..end], width);
                assert_eq!(part[..part.len() - 1], whole[..part.len() - 1], "{width} columns, {end} bytes");
            }
            assert!(whole.iter().all(|line| line.width() <= width), "{width}: {whole:?}");
        }
    }

    #[test]
    fn panes_fit_and_what_was_sure_stays() {
        let panes = |lengths: [usize; 3]| {
            let text = "there was a silly penguin named Zoe, who sang songs all day long in the forest";
            let mut panes = ["model", "rtl", "gpu"].map(|name| Pane::new(name, "a device", "Once"));
            for (pane, length) in panes.iter_mut().zip(lengths) {
                pane.text += &format!(" {}", &text[..length]);
                pane.state = if length == text.len() {
                    State::Ended { tokens: 9, cycles: Some(1_234_567) }
                } else {
                    State::Telling(2)
                };
            }
            panes
        };
        for width in [40, 60, 80, 100] {
            let last = painted(&side_by_side(&panes([78, 78, 78]), width), false);
            assert!(last.lines().all(|line| line.width() <= width), "{last}");
            for lengths in [[0, 0, 0], [20, 5, 40], [78, 30, 31], [78, 78, 70]] {
                let some = panes(lengths);
                let lines = side_by_side(&some, width);
                let sure = sure(&some, width).min(lines.len());
                let text = painted(&lines[..sure], false);
                assert!(last.starts_with(&text), "{text}\nis not the beginning of\n{last}");
            }
        }
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(grouped(12), "12");
    }
}
