//! `rtl/desc_pkg.sv`.

use super::spec::{Record, Reset, Spec};
use super::{HEADER, hex_digits, remark};

/// SystemVerilog package with the contract's types and numbers.
pub fn generate(spec: &Spec) -> String {
    let mut out = format!(
        "// {HEADER}\n\
         // Types and numbers of the wire contract.\n\
         package desc_pkg;\n\
         \n  \
           // No module uses every number of the contract.\n  \
           /* verilator lint_off UNUSEDPARAM */\n"
    );
    let o = &mut out;
    param(o, &logic(32), "CONTRACT_VERSION", &sized(spec.version.into(), 32), "[31:16] major, [15:0] minor");
    for c in &spec.constants {
        param(o, &logic(c.ty.bits()), &c.name, &sized(c.value, c.ty.bits()), &c.doc);
    }
    for r in &spec.records {
        record(o, r);
    }
    for e in &spec.enums {
        section(o, &e.doc);
        for v in &e.values {
            let name = format!("{}_{}", e.sv_prefix, v.name);
            param(o, &logic(e.width), &name, &sized(v.value, e.width), &v.doc);
        }
    }
    for f in &spec.flags {
        section(o, &format!("{} Number and mask of each bit.", f.doc));
        for v in &f.values {
            let name = format!("{}_{}", f.sv_prefix, v.name);
            param(o, "int", &format!("{name}_BIT"), &v.bit.to_string(), &v.doc);
            param(o, &logic(f.width), &name, &sized(1 << v.bit, f.width), "");
        }
    }
    section(o, "Registers: byte offsets in the page.");
    for r in &spec.registers {
        param(o, &logic(12), &format!("REG_{}", r.name), &sized(r.offset.into(), 12), &r.doc);
    }
    section(o, "Registers that do not reset to 0.");
    for r in &spec.registers {
        if let Reset::Value(v @ 1..) = r.reset {
            param(o, &logic(32), &format!("RESET_{}", r.name), &sized(v.into(), 32), "");
        }
    }
    section(o, "Counters: byte offset of the low half; the high half is 4 above.");
    for c in &spec.counters {
        param(o, &logic(12), &format!("CNT_{}", c.name), &sized(c.offset.into(), 12), &c.doc);
    }
    out.push_str("\n  /* verilator lint_on UNUSEDPARAM */\n\nendpackage\n");
    out
}

/// Packed, last field first: byte 0 of memory is bits `7:0`.
fn record(o: &mut String, r: &Record) {
    section(o, &format!("{} Byte 0 of memory is bits [7:0].", r.doc));
    o.push_str("  typedef struct packed {\n");
    for f in r.fields.iter().rev() {
        remark(o, 4, &format!("{:<12} {};", logic(f.ty.bits()), f.name), 36, &f.doc);
    }
    o.push_str(&format!("  }} {};\n\n", r.sv));
    let stem = r.stem().to_uppercase();
    param(o, "int", &format!("{stem}_BITS"), &(8 * r.size).to_string(), "");
    for f in &r.fields {
        let name = format!("{stem}_{}_LSB", f.name.to_uppercase());
        param(o, "int", &name, &(8 * f.offset).to_string(), "");
    }
}

fn section(o: &mut String, title: &str) {
    o.push_str(&format!("\n  // {title}\n"));
}

fn param(o: &mut String, ty: &str, name: &str, value: &str, doc: &str) {
    remark(o, 2, &format!("localparam {ty:<12} {name} = {value};"), 60, doc);
}

fn logic(bits: usize) -> String {
    format!("logic [{}:0]", bits - 1)
}

fn sized(value: u64, bits: usize) -> String {
    format!("{bits}'h{}", hex_digits(value, bits))
}
