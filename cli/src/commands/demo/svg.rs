//! A terminal as a picture.

use std::fmt::Write;

use unicode_width::UnicodeWidthStr;

use super::panes::Line;
use crate::paint::Style;

/// Columns of the picture.
const COLUMNS: usize = 80;
/// Pixels of a letter, between lines, and around the text.
const LETTER: f64 = 8.4;
const LINE: f64 = 19.0;
const MARGIN: f64 = 18.0;
/// Above the text: the window's buttons and its title.
const BAR: f64 = 34.0;

/// Colours of a picture.
#[derive(Clone, Copy, Debug)]
pub struct Theme {
    ground: &'static str,
    bar: &'static str,
    plain: &'static str,
    dim: &'static str,
    good: &'static str,
    bad: &'static str,
}

pub const LIGHT: Theme = Theme {
    ground: "#ffffff",
    bar: "#eaeef2",
    plain: "#1f2328",
    dim: "#59636e",
    good: "#116329",
    bad: "#a40e26",
};

pub const DARK: Theme = Theme {
    ground: "#0d1117",
    bar: "#21262d",
    plain: "#e6edf3",
    dim: "#9198a1",
    good: "#56d364",
    bad: "#ff7b72",
};

/// The picture of the lines that a command has printed. Every letter has a place of its own, so that columns stand below one another
/// whatever the font.
pub fn draw(command: &str, lines: &[Line], theme: &Theme) -> String {
    let Theme { ground, bar, plain, dim, good, bad } = theme;
    let width = COLUMNS as f64 * LETTER + 2.0 * MARGIN;
    let height = BAR + (lines.len() + 1) as f64 * LINE + 2.0 * MARGIN;
    let mut out = String::new();
    let _ = writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" viewBox=\"0 0 {width:.0} {height:.0}\" \
         role=\"img\" aria-label=\"What `{command}` prints\">\n\
         <style>text {{ font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace; white-space: pre; \
         fill: {plain} }} .bold {{ font-weight: bold }} .dim {{ fill: {dim} }} .good {{ fill: {good} }} .bad {{ fill: {bad} }}</style>\n\
         <rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"{ground}\" stroke=\"{bar}\"/>\n\
         <path d=\"M0 {BAR} V8 A8 8 0 0 1 8 0 H{inner:.0} A8 8 0 0 1 {width:.0} 8 V{BAR} Z\" fill=\"{bar}\"/>",
        inner = width - 8.0,
    );
    for (at, colour) in ["#ff5f57", "#febc2e", "#28c840"].into_iter().enumerate() {
        let _ = writeln!(out, "<circle cx=\"{}\" cy=\"17\" r=\"6\" fill=\"{colour}\"/>", 20 + 20 * at);
    }
    let prompt = vec![(Style::Dim, "$ ".to_owned()), (Style::Bold, command.to_owned())];
    for (row, line) in std::iter::once(&prompt).chain(lines).enumerate() {
        let y = BAR + MARGIN + LINE * row as f64 + 14.0;
        let mut column = 0;
        for (style, text) in line {
            let class = match style {
                Style::Plain => "",
                Style::Bold => " class=\"bold\"",
                Style::Dim => " class=\"dim\"",
                Style::Good => " class=\"good\"",
                Style::Bad => " class=\"bad\"",
            };
            for (skipped, words) in apart(text) {
                let at = column + skipped;
                let used = words.width();
                if words.contains(['│', '─', '┼']) {
                    strokes(&mut out, words, at, y, dim);
                } else {
                    let (x, length) = (MARGIN + LETTER * at as f64, LETTER * used as f64);
                    let words = escaped(words);
                    let _ = writeln!(
                        out,
                        "<text x=\"{x:.1}\" y=\"{y:.0}\" textLength=\"{length:.1}\"{class}>{words}</text>"
                    );
                }
            }
            column += text.width();
        }
    }
    out + "</svg>\n"
}

/// Pieces of a text that have no two blanks in a row, which not every reader of pictures keeps, each with the columns before it.
fn apart(text: &str) -> Vec<(usize, &str)> {
    let (mut pieces, mut from) = (vec![], 0);
    while let Some(begin) = text[from..].find(|letter| letter != ' ').map(|at| from + at) {
        let end = text[begin..].find("  ").map_or(text.trim_end_matches(' ').len(), |at| begin + at);
        pieces.push((text[..begin].width(), &text[begin..end]));
        from = end;
    }
    pieces
}

/// Lines between panes, drawn so that they join.
fn strokes(out: &mut String, text: &str, column: usize, y: f64, colour: &str) {
    let mut path = String::new();
    let middle = y - 5.0;
    for (at, letter) in text.chars().enumerate() {
        let left = MARGIN + LETTER * (column + at) as f64;
        let centre = left + LETTER / 2.0;
        if letter != '─' && letter != ' ' {
            let _ = write!(path, "M{centre:.1} {:.1}v{LINE}", middle - LINE / 2.0);
        }
        if letter != '│' && letter != ' ' {
            let _ = write!(path, "M{left:.1} {middle:.1}h{LETTER}");
        }
    }
    let _ = writeln!(out, "<path d=\"{path}\" stroke=\"{colour}\"/>");
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_has_the_text_where_it_stands() {
        let line = vec![
            (Style::Plain, "a < b  c".to_owned()),
            (Style::Good, " met".to_owned()),
            (Style::Dim, " │".to_owned()),
        ];
        let picture = draw("doorbell", &[line], &LIGHT);
        for part in [
            "textLength=\"42.0\">a &lt; b</text>",
            "<text x=\"76.8\" y=\"85\" textLength=\"8.4\">c</text>",
            "<text x=\"93.6\" y=\"85\" textLength=\"25.2\" class=\"good\">met</text>",
            "<path d=\"M131.4 70.5v19\" stroke=\"#59636e\"/>",
        ] {
            assert!(picture.contains(part), "{part} in {picture}");
        }
        assert_eq!(apart("  a b   c "), [(2, "a b"), (8, "c")]);
    }

    /// Other white space than blanks, at the end too, is part of the text.
    #[test]
    fn a_picture_has_every_white_space() {
        for (text, pieces) in [
            ("Once \t", vec![(0, "Once \t")]),
            ("Once  \u{a0} ", vec![(0, "Once"), (6, "\u{a0}")]),
            ("\t", vec![(0, "\t")]),
            ("Once\u{3000}", vec![(0, "Once\u{3000}")]),
            ("\u{2028}  ", vec![(0, "\u{2028}")]),
        ] {
            assert_eq!(apart(text), pieces, "{text:?}");
            let picture = draw("doorbell", &[vec![(Style::Plain, text.to_owned())]], &LIGHT);
            assert_eq!(picture.matches("<text").count(), 1 + 1 + pieces.len(), "{text:?}");
        }
    }
}
