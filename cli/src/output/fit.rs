//! Text as wide as the terminal: a terminal itself would break lines inside words, and rows of a table inside cells.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// A text whose lines take at most `width` columns, as far as its words do. Lines that are longer go on below. A wide table becomes several, each
/// with its first column.
pub fn fit(text: &str, width: usize) -> String {
    let mut out = String::with_capacity(text.len());
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if !line.starts_with('|') {
            push(&mut out, &wrap(line, width));
            continue;
        }
        let mut rows = vec![line];
        while let Some(row) = lines.next_if(|line| line.starts_with('|')) {
            rows.push(row);
        }
        let is_wide = rows.iter().any(|row| row.width() > width);
        match Columns::parse(&rows).filter(|_| is_wide) {
            Some(columns) => push(&mut out, &columns.fit(width)),
            None => rows.iter().for_each(|row| push(&mut out, row)),
        }
    }
    if !text.ends_with('\n') {
        out.pop();
    }
    out
}

fn push(out: &mut String, lines: &str) {
    out.push_str(lines);
    out.push('\n');
}

/// Breaks a line at blanks. What follows lies below the last column of the line, if it has columns, or is indented.
fn wrap(line: &str, width: usize) -> String {
    if line.width() <= width {
        return line.to_owned();
    }
    let own = line.len() - line.trim_start().len();
    let half = line.char_indices().nth(width / 2).map_or(line.len(), |(at, _)| at);
    let column = line[..half].rfind("  ").map(|at| at + 2).filter(|&at| at > own);
    let indent = column.map_or(own + 2, |at| line[..at].width());
    let (mut out, mut used) = (String::new(), 0);
    let mut rest = line;
    while !rest.is_empty() {
        let blanks = rest.len() - rest.trim_start_matches(' ').len();
        let end = rest[blanks..].find(' ').map_or(rest.len(), |at| blanks + at);
        let (word, next) = (&rest[..end], &rest[end..]);
        if used > indent && used + word.width() > width {
            out.truncate(out.trim_end().len());
            out.push('\n');
            out.push_str(&" ".repeat(indent));
            used = indent;
            rest = &rest[blanks..];
            continue;
        }
        out.push_str(word);
        used += word.width();
        rest = next;
    }
    out
}

/// A table as `output::table` lays it out, column by column.
struct Columns {
    widths: Vec<usize>,
    /// Lines of each cell, by row and column, padded.
    rows: Vec<Vec<Vec<String>>>,
}

impl Columns {
    /// Nothing if the rows are no such table.
    fn parse(rows: &[&str]) -> Option<Columns> {
        let [header, rule, rest @ ..] = rows else { return None };
        let widths = rule.strip_prefix('|')?.strip_suffix('|')?.split('|');
        let widths: Vec<usize> =
            widths.map(|dashes| dashes.strip_prefix('-').map_or(0, |rest| 1 + rest.len())).collect();
        if widths.contains(&0) || rule.contains(|letter| letter != '|' && letter != '-') {
            return None;
        }
        let rows =
            std::iter::once(header).chain(rest).map(|row| cells(row, &widths)).collect::<Option<_>>()?;
        Some(Columns { widths, rows })
    }

    /// Makes a column narrower, by more lines in its cells.
    fn narrow(&mut self, column: usize, width: usize) {
        if self.widths[column] <= width {
            return;
        }
        for row in &mut self.rows {
            let text = row[column].iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ");
            row[column] = wrap(&text, width.saturating_sub(2).max(1))
                .lines()
                .map(|line| format!(" {} ", line.trim()))
                .collect();
        }
        let widest = self.rows.iter().flat_map(|row| &row[column]).map(|line| line.width()).max();
        self.widths[column] = widest.unwrap_or(2);
        for line in self.rows.iter_mut().flat_map(|row| &mut row[column]) {
            *line += &" ".repeat(self.widths[column] - line.width());
        }
    }

    fn fit(mut self, width: usize) -> String {
        self.narrow(0, width / 2);
        let room = width.saturating_sub(2 + self.widths[0]);
        for column in 1..self.widths.len() {
            self.narrow(column, room.saturating_sub(1));
        }
        let mut parts = vec![];
        let mut next = 1;
        while next < self.widths.len() {
            let (first, mut used) = (next, self.widths[next] + 1);
            next += 1;
            while next < self.widths.len() && used + self.widths[next] < room {
                used += self.widths[next] + 1;
                next += 1;
            }
            parts.push(self.part(first..next));
        }
        parts.join("\n\n")
    }

    /// The first column, and some others.
    fn part(&self, columns: std::ops::Range<usize>) -> String {
        let shown: Vec<usize> = std::iter::once(0).chain(columns).collect();
        let rule: Vec<String> = shown.iter().map(|&column| "-".repeat(self.widths[column])).collect();
        let mut lines = vec![];
        for (number, row) in self.rows.iter().enumerate() {
            let height = shown.iter().map(|&column| row[column].len()).max().unwrap_or(0);
            for line in 0..height {
                let cell = |&column: &usize| {
                    row[column].get(line).cloned().unwrap_or_else(|| " ".repeat(self.widths[column]))
                };
                lines.push(format!("|{}|", shown.iter().map(cell).collect::<Vec<_>>().join("|")));
            }
            if number == 0 {
                lines.push(format!("|{}|", rule.join("|")));
            }
        }
        lines.join("\n")
    }
}

/// The cells of a row, if it has columns of these widths.
fn cells(row: &str, widths: &[usize]) -> Option<Vec<Vec<String>>> {
    let mut letters = row.chars();
    let mut cells = vec![];
    for &width in widths {
        if letters.next() != Some('|') {
            return None;
        }
        let (mut cell, mut used) = (String::new(), 0);
        while used < width {
            let letter = letters.next()?;
            used += letter.width().unwrap_or(0);
            cell.push(letter);
        }
        // What takes no column of its own belongs to the letter before.
        while letters.clone().next().is_some_and(|letter| letter.width() == Some(0)) {
            cell.extend(letters.next());
        }
        cells.push(vec![cell]);
    }
    (letters.as_str() == "|").then_some(cells)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
head
| device | descriptors | tokens |
|--------|-------------|--------|
| model  |          12 |    345 |
| rtl é  |           6 |      7 |
tail
";

    #[test]
    fn what_fits_stays() {
        assert_eq!(fit(TABLE, 33), TABLE);
        assert_eq!(fit("no newline", 80), "no newline");
        assert_eq!(fit("| no table | at all, whatever", 9), "| no table | at all, whatever");
    }

    #[test]
    fn a_wide_table_becomes_several() {
        let expected = "\
head
| device | descriptors |
|--------|-------------|
| model  |          12 |
| rtl é  |           6 |

| device | tokens |
|--------|--------|
| model  |    345 |
| rtl é  |      7 |
tail
";
        assert_eq!(fit(TABLE, 32), expected);
    }

    #[test]
    fn a_long_cell_gets_more_lines() {
        let table = "\
| n | text                          |
|---|-------------------------------|
| 1 | some words, and 漢字 | others |
";
        let expected = "\
| n | text            |
|---|-----------------|
| 1 | some words, and |
|   | 漢字 | others   |";
        assert_eq!(fit(table, 25), expected.to_owned() + "\n");
    }

    #[test]
    fn lines_break_at_blanks() {
        assert_eq!(fit("one two three four\n", 9), "one two\n  three\n  four\n");
        assert_eq!(fit("tool     nvcc   found at a place", 24), "tool     nvcc   found at\n         a place");
        assert_eq!(fit("a-word-that-is-too-long for it", 8), "a-word-that-is-too-long\n  for it");
        for width in 1..60 {
            let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
            let text = "  some text, in which — as always —   each word stays whole\n";
            assert_eq!(words(&fit(text, width)), words(text));
        }
    }
}
