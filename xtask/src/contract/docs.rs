//! The generated blocks of `docs/contract.md`.

use anyhow::{Context, Result};

use super::HEADER;
use super::hex;
use super::spec::{Record, Reset, Spec};

/// Bytes in one row of a bit diagram.
const ROW: usize = 8;
/// Characters of one byte in a bit diagram, its left border included.
const BYTE: usize = 9;

/// `page` with every generated block renewed.
///
/// # Errors
/// When a block's markers are missing or the page has a block that nothing generates.
pub fn generate(spec: &Spec, page: &str) -> Result<String> {
    let mut blocks: Vec<(String, String)> =
        spec.records.iter().map(|r| (r.name.clone(), record(r))).collect();
    blocks.push(("codes".into(), codes(spec)));
    blocks.push(("registers".into(), registers(spec)));

    let mut out = String::new();
    let mut rest = page;
    let mut seen = Vec::new();
    while let Some((before, after)) = rest.split_once("<!-- generated:") {
        let (name, body) =
            after.split_once(" -->").context("a '<!-- generated:' marker is not closed by ' -->'")?;
        let (_, tail) = body
            .split_once("<!-- /generated -->")
            .with_context(|| format!("block '{name}' has no '<!-- /generated -->'"))?;
        let (_, block) = blocks.iter().find(|(n, _)| n == name).with_context(|| {
            let known: Vec<&str> = blocks.iter().map(|(n, _)| n.as_str()).collect();
            format!("nothing generates block '{name}'; known are {}", known.join(", "))
        })?;
        out.push_str(&format!(
            "{before}<!-- generated:{name} -->\n<!-- {HEADER} -->\n\n{block}\n<!-- /generated -->"
        ));
        seen.push(name);
        rest = tail;
    }
    out.push_str(rest);
    for (name, _) in &blocks {
        anyhow::ensure!(
            seen.contains(&name.as_str()),
            "block '{name}' is missing: put '<!-- generated:{name} -->' and '<!-- /generated -->' where it belongs"
        );
    }
    Ok(out)
}

fn record(r: &Record) -> String {
    let compared = r.compared().next().is_some();
    let mut out = format!("`{}`, {} bytes, aligned to {}. {}\n\n", r.name, r.size, r.size, r.doc);
    out.push_str(&diagram(r));
    let mut header = vec!["byte", "type", "field", "meaning"];
    if compared {
        header.insert(3, "compared");
    }
    let rows = r.fields.iter().map(|f| {
        let mut row = vec![f.offset.to_string(), f.ty.rust().into(), code(&f.name), f.doc.clone()];
        if compared {
            row.insert(3, if f.compared { "yes" } else { "no" }.into());
        }
        row
    });
    out.push('\n');
    out.push_str(&table(&header, rows));
    out
}

/// Rows of 64 bits, bit 63 on the left, as a register or a bus carries them.
fn diagram(r: &Record) -> String {
    let rows = r.size / ROW;
    let width = BYTE * ROW + 1;
    let mut ruler = String::from("byte  ");
    for byte in (0..ROW).rev() {
        ruler.push_str(&format!(" {:<4}{:>4}", 8 * byte + 7, 8 * byte));
    }
    let mut out = format!("```text\n{}\n", ruler.trim_end());
    let borders = |row: Option<usize>| -> Vec<usize> {
        let fields = r.fields.iter().filter(|f| row == Some(f.offset / ROW));
        fields.map(|f| BYTE * (ROW - f.offset % ROW)).collect()
    };
    for row in 0..=rows {
        let mut rule = vec!['-'; width];
        let above = borders(row.checked_sub(1));
        let below = borders((row < rows).then_some(row));
        for at in above.into_iter().chain(below).chain([0, width - 1]) {
            rule[at] = '+';
        }
        out.push_str(&format!("      {}\n", rule.iter().collect::<String>()));
        if row == rows {
            break;
        }
        let mut fields: Vec<_> = r.fields.iter().filter(|f| f.offset / ROW == row).collect();
        fields.reverse();
        let cells: Vec<String> =
            fields.iter().map(|f| format!("{:^1$}", f.name, BYTE * f.ty.size() - 1)).collect();
        out.push_str(&format!("{:>4}  |{}|\n", row * ROW, cells.join("|")));
    }
    out.push_str("```\n");
    out
}

fn codes(spec: &Spec) -> String {
    let mut out = String::new();
    for e in &spec.enums {
        out.push_str(&format!("**`{}`**: {}\n\n", e.name, lower(&e.doc)));
        let rows = e.values.iter().map(|v| vec![hex(v.value, e.width), v.name.clone(), v.doc.clone()]);
        out.push_str(&table(&["value", "name", "meaning"], rows));
        out.push('\n');
    }
    for f in spec.flags.iter().filter(|f| f.width == 8) {
        out.push_str(&format!("**`{}`**: {}\n\n", f.name, lower(&f.doc)));
        let rows = f
            .values
            .iter()
            .map(|v| vec![v.bit.to_string(), hex(1 << v.bit, f.width), v.name.clone(), v.doc.clone()]);
        out.push_str(&table(&["bit", "mask", "name", "meaning"], rows));
        out.push('\n');
    }
    out.push_str("**Constants**\n\n");
    let rows = spec.constants.iter().map(|c| {
        let value = if c.value < 256 { c.value.to_string() } else { hex(c.value, c.ty.bits()) };
        vec![value, c.name.clone(), c.doc.clone()]
    });
    out.push_str(&table(&["value", "name", "meaning"], rows));
    out
}

fn registers(spec: &Spec) -> String {
    let mut out = String::from(
        "Access: *ro* read-only, *rw* read-write, *cfg* writable while `STATE.ACTIVE` is 0, *w1c* a write \
         clears the bits that are 1 in it.\n\n",
    );
    let rows = spec.registers.iter().map(|r| {
        let reset = match r.reset {
            Reset::Value(0) => "0".into(),
            Reset::Value(v) => hex(v.into(), 32),
            Reset::Built(_) => "as built".into(),
        };
        vec![hex(r.offset.into(), 12), r.name.clone(), r.access.label().into(), reset, r.doc.clone()]
    });
    out.push_str(&table(&["offset", "name", "access", "reset", "meaning"], rows));
    for f in spec.flags.iter().filter(|f| f.width == 32) {
        out.push_str(&format!("\n**{}**: {}\n\n", f.name.to_uppercase(), lower(&f.doc)));
        let rows = f.values.iter().map(|v| vec![v.bit.to_string(), v.name.clone(), v.doc.clone()]);
        out.push_str(&table(&["bit", "name", "meaning"], rows));
    }
    out.push_str(
        "\n**Counters**: 64 bits, read-only; the low half at the offset, the high half 4 above. Reading a low half \
         latches the matching\nhigh half, so that low-then-high is one consistent value; the next \
         read of any low half may replace\nwhat is latched. They clear when the device is enabled.\n\n",
    );
    let rows = spec.counters.iter().map(|c| vec![hex(c.offset.into(), 12), c.name.clone(), c.doc.clone()]);
    out.push_str(&table(&["offset", "name", "counts"], rows));
    out
}

fn table(header: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut out = format!("| {} |\n|{}\n", header.join(" | "), "---|".repeat(header.len()));
    for row in rows {
        let cells: Vec<String> = row.iter().map(|c| c.replace('|', "\\|")).collect();
        out.push_str(&format!("| {} |\n", cells.join(" | ")));
    }
    out
}

fn code(text: &str) -> String {
    format!("`{text}`")
}

/// A sentence as the continuation of another: first letter small, no full stop.
fn lower(sentence: &str) -> String {
    let mut chars = sentence.trim_end_matches('.').chars();
    chars.next().map_or(String::new(), |c| c.to_lowercase().collect::<String>() + chars.as_str())
}
