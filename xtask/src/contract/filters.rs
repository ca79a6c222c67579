//! What the templates can do with an entry beside writing it.

use minijinja::Environment;
use minijinja::value::Serde;

use super::spec::{Record, Type, camel};

/// Adds every filter and function.
pub fn add(templates: &mut Environment<'_>) {
    templates.add_filter("hex", hex);
    templates.add_filter("digits", digits);
    templates.add_filter("literal", |value: u64, Serde(ty): Serde<Type>| {
        if value < 256 && ty != Type::U8 { value.to_string() } else { hex(value, ty.bits()) }
    });
    templates.add_filter("bit", |number: u32| 1u64 << number);
    templates.add_filter("bytes", |Serde(ty): Serde<Type>| ty.size());
    templates.add_filter("bits", |Serde(ty): Serde<Type>| ty.bits());
    templates.add_filter("camel", |upper: &str| camel(upper));
    // The SystemVerilog name of a record without its `_t`.
    templates.add_filter("stem", |name: &str| name.trim_end_matches("_t").to_owned());
    templates.add_filter("pad", |text: &str, width: usize| format!("{text:<width$}"));
    // Brackets are escaped lest rustdoc takes `[7:0]` for a link.
    templates.add_filter("rustdoc", |text: &str| text.replace('[', "\\[").replace(']', "\\]"));
    templates.add_filter("cell", |text: &str| text.replace('|', "\\|"));
    templates.add_filter("lower_first", lower_first);
    templates.add_function("remark", remark);
    templates.add_function("diagram", |Serde(record): Serde<Record>| diagram(&record));
}

/// `0x9E37_79B9`: as many digits as `bits` need, in groups of four.
pub fn hex(value: u64, bits: usize) -> String {
    format!("0x{}", digits(value, bits))
}

fn digits(value: u64, bits: usize) -> String {
    let digits = format!("{value:0width$X}", width = bits.div_ceil(4));
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 4 == 0 {
            out.push('_');
        }
        out.push(digit);
    }
    out
}

/// A line of SystemVerilog or C with its comment: behind it from `column` on where both fit, else above it.
fn remark(indent: usize, code: &str, column: usize, comment: &str) -> String {
    const WIDTH: usize = 110;
    let lead = format!("{:indent$}{code}", "");
    let behind = format!("{lead:<column$} // {comment}");
    if comment.is_empty() {
        return lead;
    }
    if behind.len() <= WIDTH {
        return behind;
    }
    let (mut out, mut line) = (String::new(), String::new());
    for word in comment.split(' ') {
        if indent + 3 + line.len() + 1 + word.len() > WIDTH {
            out.push_str(&format!("{:indent$}//{line}\n", ""));
            line.clear();
        }
        line.push(' ');
        line.push_str(word);
    }
    out + &format!("{:indent$}//{line}\n{lead}", "")
}

/// A sentence as the continuation of another: first letter small, no full stop.
fn lower_first(sentence: &str) -> String {
    let mut chars = sentence.trim_end_matches('.').chars();
    chars.next().map_or(String::new(), |c| c.to_lowercase().collect::<String>() + chars.as_str())
}

/// Rows of 64 bits, bit 63 on the left, as a register or a bus carries them.
fn diagram(record: &Record) -> String {
    /// Bytes in one row.
    const ROW: usize = 8;
    /// Characters of one byte, its left border included.
    const BYTE: usize = 9;
    let rows = record.size / ROW;
    let ruler: String = (0..ROW).rev().map(|byte| format!(" {:<4}{:>4}", 8 * byte + 7, 8 * byte)).collect();
    let mut out = format!("byte  {ruler}\n");
    for row in 0..=rows {
        let mut rule = vec!['-'; BYTE * ROW + 1];
        // A field's right border, in the rows above and below the rule.
        let beside = record.fields.iter().filter(|f| f.offset / ROW == row || f.offset / ROW + 1 == row);
        for at in beside.map(|f| BYTE * (ROW - f.offset % ROW)).chain([0]) {
            rule[at] = '+';
        }
        out.push_str(&format!("      {}\n", rule.iter().collect::<String>()));
        if row < rows {
            let fields = record.fields.iter().rev().filter(|f| f.offset / ROW == row);
            let cells: String = fields.map(|f| format!("|{:^1$}", f.name, BYTE * f.ty.size() - 1)).collect();
            out.push_str(&format!("{:>4}  {cells}|\n", row * ROW));
        }
    }
    out
}
