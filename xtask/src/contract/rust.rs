//! `contract/src/generated.rs`.

use std::fmt::{Display, Write};

use super::spec::{Access, Constant, Enum, Field, Flags, Record, Reset, Spec, Type, camel};
use super::{HEADER, hex};

/// Width that `rustfmt.toml` allows.
const WIDTH: usize = 110;

/// Definitions that do not depend on the contract's entries.
const SUPPORT: &str = r#"
const _: () = assert!(cfg!(target_endian = "little"), "the contract needs a little-endian host");

/// A byte that is no code point of its set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{value:#04x} is no {set} of contract version {CONTRACT_VERSION:#010x}")]
pub struct UnknownCode {
    /// The set's name.
    pub set: &'static str,
    /// The byte.
    pub value: u8,
}

/// Describes one field of the record `T`.
#[derive(Clone, Copy, Debug)]
pub struct Field<T: 'static> {
    /// Name in the contract.
    pub name: &'static str,
    /// Bytes from the start of the record.
    pub offset: usize,
    /// Bytes.
    pub size: usize,
    /// Reads the field, zero-extended.
    pub get: fn(&T) -> u64,
}
"#;

/// Rust source with the contract's types.
pub fn generate(spec: &Spec) -> String {
    let mut out = String::new();
    let o = &mut out;
    line(o, 0, format_args!("// {HEADER}"));
    line(o, 0, "//! Types and numbers of the wire contract.");
    line(o, 0, "");
    line(o, 0, "use bytemuck::{Pod, Zeroable};");
    line(o, 0, "use static_assertions::const_assert_eq;");
    line(o, 0, "");
    line(o, 0, "/// Version of the contract, `[31:16]` major, `[15:0]` minor.");
    line(o, 0, format_args!("pub const CONTRACT_VERSION: u32 = {};", hex(spec.version.into(), 32)));
    spec.constants.iter().for_each(|c| constant(o, c));
    o.push_str(SUPPORT);
    spec.records.iter().for_each(|r| record(o, r));
    spec.enums.iter().for_each(|e| code_points(o, e));
    spec.flags.iter().for_each(|f| flags(o, f));
    registers(o, spec);
    counters(o, spec);
    out
}

fn constant(o: &mut String, c: &Constant) {
    doc(o, 0, &c.doc);
    let value = literal(c.value, c.ty);
    line(o, 0, format_args!("pub const {}: {} = {value};", c.name, c.ty.rust()));
}

fn record(o: &mut String, r: &Record) {
    let (name, size) = (&r.name, r.size);
    line(o, 0, "");
    doc(o, 0, &r.doc);
    line(o, 0, format_args!("#[repr(C, align({size}))]"));
    line(o, 0, "#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]");
    line(o, 0, format_args!("pub struct {name} {{"));
    for f in &r.fields {
        let last = f.end() - 1;
        let place =
            if last == f.offset { format!("Byte {last}") } else { format!("Bytes {} to {last}", f.offset) };
        doc(o, 1, &format!("{place}: {}", f.doc));
        line(o, 1, format_args!("pub {}: {},", f.name, f.ty.rust()));
    }
    line(o, 0, "}");
    line(o, 0, "");
    line(o, 0, format_args!("const_assert_eq!(size_of::<{name}>(), {size});"));
    line(o, 0, format_args!("const_assert_eq!(align_of::<{name}>(), {size});"));
    for f in &r.fields {
        line(
            o,
            0,
            format_args!("const_assert_eq!(core::mem::offset_of!({name}, {}), {});", f.name, f.offset),
        );
    }
    line(o, 0, "");
    line(o, 0, format_args!("impl {name} {{"));
    doc(o, 1, "Every field, by rising offset.");
    table(o, "FIELDS", r.fields.iter());
    if r.compared().next().is_some() {
        line(o, 0, "");
        doc(o, 1, "The fields that two devices must agree on; the others depend on timing.");
        table(o, "COMPARED", r.compared());
    }
    line(o, 0, "}");
}

fn table<'a>(o: &mut String, table: &str, fields: impl Iterator<Item = &'a Field>) {
    let entries: Vec<String> = fields
        .map(|f| {
            let get = match f.ty {
                Type::U64 => format!("r.{}", f.name),
                _ => format!("u64::from(r.{})", f.name),
            };
            format!(
                "Field {{ name: \"{}\", offset: {}, size: {}, get: |r| {get} }}",
                f.name,
                f.offset,
                f.ty.size()
            )
        })
        .collect();
    list(o, 1, &format!("pub const {table}: [Field<Self>; {}]", entries.len()), &entries);
}

fn code_points(o: &mut String, e: &Enum) {
    let (name, int) = (&e.name, "u8");
    line(o, 0, "");
    doc(o, 0, &e.doc);
    line(o, 0, format_args!("#[repr({int})]"));
    line(o, 0, "#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]");
    line(o, 0, format_args!("pub enum {name} {{"));
    for v in &e.values {
        doc(o, 1, &format!("{}: {}", v.name, v.doc));
        line(o, 1, format_args!("{} = {},", camel(&v.name), v.value));
    }
    line(o, 0, "}");
    let variants: Vec<String> = e.values.iter().map(|v| camel(&v.name)).collect();
    line(o, 0, "");
    line(o, 0, format_args!("impl {name} {{"));
    doc(o, 1, "Every code point, in the contract's order.");
    all(o, &variants);
    line(o, 0, "");
    doc(o, 1, "The contract's name.");
    names(o, e.values.iter().map(|v| (camel(&v.name), v.name.clone())));
    line(o, 0, "}");
    line(o, 0, "");
    line(o, 0, format_args!("impl TryFrom<{int}> for {name} {{"));
    line(o, 1, "type Error = UnknownCode;");
    line(o, 0, "");
    line(o, 1, format_args!("fn try_from(value: {int}) -> Result<Self, UnknownCode> {{"));
    line(o, 2, "match value {");
    for v in &e.values {
        line(o, 3, format_args!("{} => Ok(Self::{}),", v.value, camel(&v.name)));
    }
    line(o, 3, format_args!("_ => Err(UnknownCode {{ set: \"{name}\", value }}),"));
    line(o, 2, "}");
    line(o, 1, "}");
    line(o, 0, "}");
    line(o, 0, "");
    line(o, 0, format_args!("impl From<{name}> for {int} {{"));
    line(o, 1, format_args!("fn from(code: {name}) -> {int} {{"));
    line(o, 2, format_args!("code as {int}"));
    line(o, 1, "}");
    line(o, 0, "}");
    display(o, name);
}

fn flags(o: &mut String, f: &Flags) {
    let int = format!("u{}", f.width);
    line(o, 0, "");
    line(o, 0, "bitflags::bitflags! {");
    doc(o, 1, &f.doc);
    line(o, 1, "#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]");
    line(o, 1, format_args!("pub struct {}: {int} {{", f.name));
    for v in &f.values {
        doc(o, 2, &format!("Bit {}: {}", v.bit, v.doc));
        line(o, 2, format_args!("const {} = 1 << {};", v.name, v.bit));
    }
    line(o, 1, "}");
    line(o, 0, "}");
}

/// A register of the page, as generated code sees it: counters are two of them.
struct Word {
    name: String,
    offset: u32,
    access: Access,
    reset: Reset,
    doc: String,
}

fn words(spec: &Spec) -> Vec<Word> {
    let registers = spec.registers.iter().map(|r| Word {
        name: r.name.clone(),
        offset: r.offset,
        access: r.access,
        reset: r.reset,
        doc: r.doc.clone(),
    });
    let counters = spec.counters.iter().flat_map(|c| {
        [("LO", 0, "low half; reading it latches the high half"), ("HI", 4, "high half, as latched")].map(
            |(half, above, note)| Word {
                name: format!("{}_{half}", c.name),
                offset: c.offset + above,
                access: Access::Ro,
                reset: Reset::default(),
                doc: format!("{}; {note}", c.doc),
            },
        )
    });
    registers.chain(counters).collect()
}

fn registers(o: &mut String, spec: &Spec) {
    line(o, 0, "");
    doc(o, 0, "Who may write a register.");
    line(o, 0, "#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]");
    line(o, 0, "pub enum Access {");
    for (variant, text) in [
        ("ReadOnly", "Nobody: a write answers SLVERR."),
        ("ReadWrite", "The host, always."),
        ("Config", "The host, while `STATE.ACTIVE` is 0; else a write answers SLVERR."),
        ("WriteOneClears", "A write clears the bits that are 1 in it."),
    ] {
        doc(o, 1, text);
        line(o, 1, format_args!("{variant},"));
    }
    line(o, 0, "}");

    let words = words(spec);
    let variants: Vec<String> = words.iter().map(|w| camel(&w.name)).collect();
    line(o, 0, "");
    doc(o, 0, "Registers, each 32 bits, by their byte offset in the page; counters are two registers each.");
    line(o, 0, "#[repr(u32)]");
    line(o, 0, "#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]");
    line(o, 0, "pub enum Register {");
    for (w, variant) in words.iter().zip(&variants) {
        doc(o, 1, &format!("{} ({}): {}", w.name, w.access.label(), w.doc));
        line(o, 1, format_args!("{variant} = {},", hex(w.offset.into(), 12)));
    }
    line(o, 0, "}");
    line(o, 0, "");
    line(o, 0, "impl Register {");
    doc(o, 1, "Every register, by the contract's order.");
    all(o, &variants);
    line(o, 0, "");
    doc(o, 1, "Bytes from the start of the page.");
    line(o, 1, "pub const fn offset(self) -> u32 {");
    line(o, 2, "self as u32");
    line(o, 1, "}");
    line(o, 0, "");
    doc(o, 1, "The register at a byte offset, if there is one.");
    line(o, 1, "pub const fn from_offset(offset: u32) -> Option<Self> {");
    line(o, 2, "match offset {");
    for (w, variant) in words.iter().zip(&variants) {
        line(o, 3, format_args!("{} => Some(Self::{variant}),", hex(w.offset.into(), 12)));
    }
    line(o, 3, "_ => None,");
    line(o, 2, "}");
    line(o, 1, "}");
    line(o, 0, "");
    doc(o, 1, "The contract's name.");
    names(o, words.iter().zip(&variants).map(|(w, v)| (v.clone(), w.name.clone())));
    line(o, 0, "");
    doc(o, 1, "Who may write it.");
    line(o, 1, "pub const fn access(self) -> Access {");
    line(o, 2, "match self {");
    for (access, rust) in
        [(Access::Rw, "ReadWrite"), (Access::Cfg, "Config"), (Access::W1c, "WriteOneClears")]
    {
        arm(o, words.iter().filter(|w| w.access == access), &format!("Access::{rust}"));
    }
    line(o, 3, "_ => Access::ReadOnly,");
    line(o, 2, "}");
    line(o, 1, "}");
    line(o, 0, "");
    doc(o, 1, "Value after reset; `None` where it depends on how the device was built.");
    line(o, 1, "pub const fn reset(self) -> Option<u32> {");
    line(o, 2, "match self {");
    arm(o, words.iter().filter(|w| matches!(w.reset, Reset::Built(_))), "None");
    for w in &words {
        if let Reset::Value(v @ 1..) = w.reset {
            arm(o, [w].into_iter(), &format!("Some({})", hex(v.into(), 32)));
        }
    }
    line(o, 3, "_ => Some(0),");
    line(o, 2, "}");
    line(o, 1, "}");
    line(o, 0, "}");
    display(o, "Register");
}

fn counters(o: &mut String, spec: &Spec) {
    let variants: Vec<String> = spec.counters.iter().map(|c| camel(&c.name)).collect();
    line(o, 0, "");
    doc(
        o,
        0,
        "64-bit counters. Reading [`lo`](Counter::lo) latches [`hi`](Counter::hi); both clear when the device is \
         enabled.",
    );
    line(o, 0, "#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]");
    line(o, 0, "pub enum Counter {");
    for (c, variant) in spec.counters.iter().zip(&variants) {
        doc(o, 1, &format!("{}: {}", c.name, c.doc));
        line(o, 1, format_args!("{variant},"));
    }
    line(o, 0, "}");
    line(o, 0, "");
    line(o, 0, "impl Counter {");
    doc(o, 1, "Every counter, in the contract's order.");
    all(o, &variants);
    line(o, 0, "");
    doc(o, 1, "The contract's name.");
    names(o, spec.counters.iter().zip(&variants).map(|(c, v)| (v.clone(), c.name.clone())));
    for (half, text) in [("lo", "Register of the low half."), ("hi", "Register of the high half.")] {
        line(o, 0, "");
        doc(o, 1, text);
        line(o, 1, format_args!("pub const fn {half}(self) -> Register {{"));
        line(o, 2, "match self {");
        for (c, variant) in spec.counters.iter().zip(&variants) {
            let register = camel(&format!("{}_{half}", c.name));
            line(o, 3, format_args!("Self::{variant} => Register::{register},"));
        }
        line(o, 2, "}");
        line(o, 1, "}");
    }
    line(o, 0, "}");
    display(o, "Counter");
}

fn display(o: &mut String, name: &str) {
    line(o, 0, "");
    line(o, 0, format_args!("impl core::fmt::Display for {name} {{"));
    line(o, 1, "fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {");
    line(o, 2, "f.pad(self.name())");
    line(o, 1, "}");
    line(o, 0, "}");
}

fn all(o: &mut String, variants: &[String]) {
    let items: Vec<String> = variants.iter().map(|v| format!("Self::{v}")).collect();
    list(o, 1, &format!("pub const ALL: [Self; {}]", items.len()), &items);
}

fn names(o: &mut String, pairs: impl Iterator<Item = (String, String)>) {
    line(o, 1, "pub const fn name(self) -> &'static str {");
    line(o, 2, "match self {");
    for (variant, name) in pairs {
        line(o, 3, format_args!("Self::{variant} => \"{name}\","));
    }
    line(o, 2, "}");
    line(o, 1, "}");
}

/// One match arm for several registers, laid out as rustfmt does; nothing when there is none.
fn arm<'a>(o: &mut String, words: impl Iterator<Item = &'a Word>, value: &str) {
    let patterns: Vec<String> = words.map(|w| format!("Self::{}", camel(&w.name))).collect();
    if patterns.is_empty() {
        return;
    }
    let one = format!("{} => {value},", patterns.join(" | "));
    if 12 + one.len() <= WIDTH {
        line(o, 3, one);
    } else {
        line(o, 3, format_args!("{} => {value},", patterns.join("\n            | ")));
    }
}

/// `prefix = [a, b, …];` laid out as rustfmt does: one line, two, or one item a line.
fn list(o: &mut String, level: usize, prefix: &str, items: &[String]) {
    let array = format!("[{}];", items.join(", "));
    if 4 * level + prefix.len() + 3 + array.len() <= WIDTH {
        return line(o, level, format_args!("{prefix} = {array}"));
    }
    if 4 * (level + 1) + array.len() <= WIDTH {
        line(o, level, format_args!("{prefix} ="));
        return line(o, level + 1, array);
    }
    line(o, level, format_args!("{prefix} = ["));
    items.iter().for_each(|i| line(o, level + 1, format_args!("{i},")));
    line(o, level, "];");
}

/// Doc comment; brackets are escaped lest rustdoc takes `[7:0]` for a link.
fn doc(o: &mut String, level: usize, text: &str) {
    let escaped =
        if text.contains("](") { text.to_owned() } else { text.replace('[', "\\[").replace(']', "\\]") };
    line(o, level, format_args!("/// {escaped}"));
}

fn line(o: &mut String, level: usize, text: impl Display) {
    let start = o.len();
    write!(o, "{:width$}{text}", "", width = 4 * level).expect("a String takes any text");
    o.truncate(start.max(o.trim_end_matches(' ').len()));
    o.push('\n');
}

fn literal(value: u64, ty: Type) -> String {
    if value < 256 && ty != Type::U8 { value.to_string() } else { hex(value, ty.bits()) }
}
