//! What a contract must satisfy before anything is generated from it.

use std::collections::HashMap;

use super::spec::{
    COUNTERS, Counter, Field, Mailbox, QUEUE_COUNTERS, Record, Reset, Set, Spec, WORKER_COUNTERS, camel,
};

/// Bytes of a page of registers.
const PAGE: u32 = 0x1000;

/// Functions, and queue pairs, that a device may have.
const MOST: u32 = 16;

/// Every breach of the layout rules, each naming its entry; empty when the contract is sound.
pub fn problems(spec: &Spec) -> Vec<String> {
    let mut out = Vec::new();
    spec.records.iter().for_each(|r| record(r, &mut out));
    spec.enums.iter().for_each(|e| code_points(e, &mut out));
    spec.flags.iter().for_each(|f| flags(f, &mut out));
    for c in &spec.constants {
        if c.value > c.ty.max() {
            out.push(format!("constant {}: {:#x} does not fit {}", c.name, c.value, c.ty.rust()));
        }
    }
    registers(spec, &mut out);
    names(spec, &mut out);
    agreement(spec, &mut out);
    mailbox(&spec.mailbox, &mut out);
    out
}

/// Fields must tile the record: naturally aligned, in order, without holes or overlap.
fn record(record: &Record, out: &mut Vec<String>) {
    let name = &record.name;
    if !record.size.is_power_of_two() || record.size < 8 {
        out.push(format!("record {name}: size {} is not a power of two of at least 8", record.size));
    }
    for field in record.fields.iter().filter(|field| field.count != 1) {
        out.push(format!("record {name}, field {}: only the mailbox has arrays", field.name));
    }
    let end = tiles(&format!("record {name}"), 0, &record.fields, out);
    if end != record.size {
        out.push(format!("record {name}: its fields end at byte {end}, its size is {}", record.size));
    }
}

/// Where the fields end that begin at `start`.
fn tiles(place: &str, start: usize, fields: &[Field], out: &mut Vec<String>) -> usize {
    let mut end = start;
    for field in fields {
        let (what, offset, size) = (format!("{place}, field {}", field.name), field.offset, field.ty.size());
        if offset % size != 0 {
            out.push(format!("{what}: offset {offset} is not a multiple of its size {size}"));
        }
        if offset < end {
            out.push(format!("{what}: offset {offset} overlaps the field before it, which ends at {end}"));
        } else if offset > end {
            out.push(format!("{what}: bytes {end} to {} before it belong to no field", offset - 1));
        }
        end = field.end();
    }
    for (_, name, _) in duplicates(fields.iter().map(|f| (&f.name, f.name.clone()))) {
        out.push(format!("{place}: two fields are called {name}"));
    }
    end
}

/// What one side of the mailbox writes shares no cache line with what the other does.
fn mailbox(mailbox: &Mailbox, out: &mut Vec<String>) {
    let mut end = 0;
    for part in &mailbox.part {
        let at = part.offset;
        if at % 64 != 0 || at < end {
            out.push(format!(
                "mailbox: the part at {at} begins no line of its own: the one before ends at {end}"
            ));
        }
        end = tiles(&format!("mailbox, part at {at}"), at, &part.fields, out);
        let widest = part.fields.iter().map(|field| field.ty.size()).max().unwrap_or(1);
        if part.name.is_some() && end % widest != 0 {
            out.push(format!(
                "mailbox, part at {at}: a structure that ends at byte {end} is padded behind it"
            ));
        }
    }
    let names = mailbox.part.iter().flat_map(|p| &p.fields).map(|f| (&f.name, f.name.clone()));
    for (_, name, _) in duplicates(names) {
        out.push(format!("mailbox: two fields are called {name}"));
    }
    if end > mailbox.size {
        out.push(format!("mailbox: its fields end at byte {end}, its size is {}", mailbox.size));
    }
}

fn code_points(e: &Set, out: &mut Vec<String>) {
    if e.width != 8 {
        out.push(format!("enum {}: width {} is not 8", e.name, e.width));
    }
    for v in &e.values {
        if v.value > 0xFF {
            out.push(format!("enum {}, value {}: {} does not fit 8 bits", e.name, v.name, v.value));
        }
    }
    for (a, b, value) in duplicates(e.values.iter().map(|v| (v.value, v.name.clone()))) {
        out.push(format!("enum {}: {a} and {b} have the same value {value}", e.name));
    }
}

fn flags(f: &Set, out: &mut Vec<String>) {
    if ![8, 32].contains(&f.width) {
        out.push(format!("flags {}: width {} is neither 8 nor 32", f.name, f.width));
    }
    for v in &f.values {
        if v.value >= f.width as u64 {
            out.push(format!(
                "flags {}, bit {}: {} is outside the {} bits",
                f.name, v.name, v.value, f.width
            ));
        }
    }
    for (a, b, bit) in duplicates(f.values.iter().map(|v| (v.value, v.name.clone()))) {
        out.push(format!("flags {}: {a} and {b} have the same bit {bit}", f.name));
    }
}

fn registers(spec: &Spec, out: &mut Vec<String>) {
    blocks(spec, out);
    let registers = spec.registers.iter().map(|r| (r.address, 4, format!("register {}", r.name)));
    let counters = all_counters(spec).map(|(c, name, _)| (c.address, 8, format!("counter {name}")));
    let mut all: Vec<(u32, u32, String)> = registers.chain(counters).collect();
    all.sort();
    for (offset, size, what) in &all {
        if offset % size != 0 {
            out.push(format!("{what}: offset {offset:#05x} is not a multiple of {size}"));
        }
    }
    for r in &spec.registers {
        let size = spec.blocks.iter().find(|b| b.name == r.block).map_or(0, |block| block.size);
        if r.offset.saturating_add(4) > size {
            out.push(format!(
                "register {}: offset {:#05x} is outside its block of {size:#x} bytes",
                r.name, r.offset
            ));
        }
    }
    for (c, name, block) in all_counters(spec) {
        let size = spec.blocks.iter().find(|b| b.name == block).map_or(0, |block| block.size);
        if c.offset.saturating_add(8) > size {
            out.push(format!("counter {name}: offset {:#05x} is outside the block {block}", c.offset));
        }
    }
    for (counters, prefix) in [(&spec.queue_counters, "QUEUE"), (&spec.worker_counters, "WORKER")] {
        for c in counters {
            if !spec.counters.iter().any(|of_device| of_device.name == c.name) {
                out.push(format!("counter {prefix}_{0}: the device has no counter {0}", c.name));
            }
        }
    }
    for pair in all.windows(2) {
        let ((low, size, a), (high, _, b)) = (&pair[0], &pair[1]);
        if low.saturating_add(*size) > *high {
            out.push(format!("{b}: offset {high:#05x} overlaps {a} at {low:#05x}"));
        }
    }
}

/// All counters, each with its name among all and the block in which it lies.
fn all_counters(spec: &Spec) -> impl Iterator<Item = (&Counter, String, &'static str)> {
    let device = spec.counters.iter().map(|c| (c, c.name.clone(), COUNTERS));
    let queue = spec.queue_counters.iter().map(|c| (c, format!("QUEUE_{}", c.name), QUEUE_COUNTERS));
    let worker = spec.worker_counters.iter().map(|c| (c, format!("WORKER_{}", c.name), WORKER_COUNTERS));
    device.chain(queue).chain(worker)
}

/// No two blocks share an address, whatever their function and queue pair, and what belongs to one function or queue pair
/// alone, and not to the device's owner, shares no page with what belongs to another.
fn blocks(spec: &Spec, out: &mut Vec<String>) {
    let mut all = Vec::new();
    for block in &spec.blocks {
        let count = |stride: u32| if stride == 0 { 1 } else { MOST };
        for function in 0..count(block.per_function) {
            for queue in 0..count(block.per_queue) {
                for worker in 0..count(block.per_worker) {
                    let strides =
                        function * block.per_function + queue * block.per_queue + worker * block.per_worker;
                    let start = block.base + strides;
                    all.push((start, start + block.size, &block.name));
                }
            }
        }
        if block.base >= PAGE && ![0, PAGE].contains(&block.per_function) {
            out.push(format!("block {}: functions share a page", block.name));
        }
    }
    all.sort();
    let mut told = None;
    for pair in all.windows(2) {
        let ((_, end, a), (start, _, b)) = (pair[0], pair[1]);
        if end > start && told != Some((a, b)) {
            out.push(format!("block {b}: {start:#07x} overlaps block {a}, which ends at {end:#07x}"));
            told = Some((a, b));
        }
    }
}

/// Names must be identifiers of the expected case and unique where the generated languages put them side by side.
fn names(spec: &Spec, out: &mut Vec<String>) {
    let mut upper = |kind: &str, name: &str| {
        let ok = name.starts_with(|c: char| c.is_ascii_uppercase())
            && name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
        if !ok {
            out.push(format!("{kind} {name}: the name is not UPPER_CASE"));
        }
    };
    // SystemVerilog and C have one flat scope; Rust scopes its variants, which differ by camel case there.
    let mut flat: Vec<(String, String)> = vec![("CONTRACT_VERSION".into(), "the contract's version".into())];
    for (set, kind) in spec.enums.iter().map(|e| (e, "value")).chain(spec.flags.iter().map(|f| (f, "flag"))) {
        for v in &set.values {
            upper(kind, &v.name);
            let (name, place) = (format!("{}_{}", set.sv_prefix, v.name), format!("{}.{}", set.name, v.name));
            if kind == "flag" {
                flat.push((format!("{name}_BIT"), place.clone()));
            }
            flat.push((name, place));
        }
    }
    for c in &spec.constants {
        upper("constant", &c.name);
        flat.push((c.name.clone(), format!("constant {}", c.name)));
    }
    for b in &spec.blocks {
        upper("block", &b.name);
        flat.push((format!("BLOCK_{}", b.name), format!("block {}", b.name)));
        flat.push((format!("BLOCK_{}_PER_FUNCTION", b.name), format!("block {}", b.name)));
        flat.push((format!("BLOCK_{}_PER_QUEUE", b.name), format!("block {}", b.name)));
        flat.push((format!("BLOCK_{}_PER_WORKER", b.name), format!("block {}", b.name)));
    }
    for r in &spec.registers {
        upper("register", &r.name);
        flat.push((format!("REG_{}", r.name), format!("register {}", r.name)));
        flat.push((format!("RESET_{}", r.name), format!("register {}", r.name)));
    }
    for (_, name, _) in all_counters(spec) {
        upper("counter", &name);
        flat.push((format!("CNT_{name}"), format!("counter {name}")));
    }
    for (a, b, name) in duplicates(flat) {
        out.push(format!("{a} and {b} would both be called {name}"));
    }

    let halves = all_counters(spec).flat_map(|(_, name, _)| [format!("{name}_LO"), format!("{name}_HI")]);
    let variants = spec.registers.iter().map(|r| r.name.clone()).chain(halves);
    for (a, b, name) in duplicates(variants.map(|n| (camel(&n), n))) {
        out.push(format!("registers {a} and {b} would both be called Register::{name}"));
    }
    for record in &spec.records {
        for field in &record.fields {
            let ok = field.name.starts_with(|c: char| c.is_ascii_lowercase())
                && field.name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
            if !ok {
                out.push(format!("record {}, field {}: the name is not snake_case", record.name, field.name));
            }
            if KEYWORDS.contains(&field.name.as_str()) {
                out.push(format!(
                    "record {}, field {}: the name is a keyword of SystemVerilog or C++",
                    record.name, field.name
                ));
            }
        }
        if !record.sv.ends_with("_t") {
            out.push(format!(
                "record {}: the SystemVerilog name {} does not end in _t",
                record.name, record.sv
            ));
        }
    }
}

/// Keywords of SystemVerilog that could be names of fields, and what Verilator keeps for its C++.
const KEYWORDS: [&str; 48] = [
    "begin", "end", "if", "else", "case", "for", "while", "do", "repeat", "wait", "input", "output", "inout",
    "ref", "bit", "byte", "int", "integer", "logic", "reg", "wire", "real", "string", "time", "event",
    "type", "table", "edge", "force", "release", "disable", "return", "task", "function", "priority",
    "unique", "queue", "map", "set", "list", "vector", "new", "delete", "class", "this", "union", "short",
    "long",
];

/// Numbers that the contract states twice must be equal.
fn agreement(spec: &Spec, out: &mut Vec<String>) {
    let reset = |name: &str| spec.registers.iter().find(|r| r.name == name).map(|r| r.reset);
    let constant = |name: &str| spec.constants.iter().find(|c| c.name == name).map(|c| c.value);
    if reset("VERSION").is_some_and(|r| r != Reset::Value(spec.version)) {
        out.push(format!(
            "register VERSION: its reset value is not the contract's version {:#010x}",
            spec.version
        ));
    }
    if let (Some(r), Some(id)) = (reset("ID"), constant("DEVICE_ID"))
        && !matches!(r, Reset::Value(v) if u64::from(v) == id)
    {
        out.push(format!("register ID: its reset value is not the constant DEVICE_ID, {id:#010x}"));
    }
    let desc_flags = spec.flags.iter().find(|f| f.name == "DescFlags");
    if let (Some(f), Some(mask)) = (desc_flags, constant("DESC_FLAGS_MASK")) {
        let all = f.values.iter().fold(0, |all, v| all | 1u64.checked_shl(v.value as u32).unwrap_or(0));
        if all != mask {
            out.push(format!(
                "constant DESC_FLAGS_MASK: {mask:#x} is not all of DescFlags, which is {all:#x}"
            ));
        }
    }
}

/// Pairs of labels with one key: (first label, later label, key).
fn duplicates<K: std::hash::Hash + Eq + Clone>(
    items: impl IntoIterator<Item = (K, String)>,
) -> Vec<(String, String, K)> {
    let mut seen: HashMap<K, String> = HashMap::new();
    let mut out = Vec::new();
    for (key, label) in items {
        match seen.get(&key) {
            Some(first) => out.push((first.clone(), label, key)),
            None => drop(seen.insert(key, label)),
        }
    }
    out
}
