//! `contract/doorbell_contract.h`.

use super::spec::{Record, Reset, Spec, Type};
use super::{HEADER, hex, remark};

const PROLOGUE: &str = "\
#ifndef DOORBELL_CONTRACT_H
#define DOORBELL_CONTRACT_H

#if defined(__CUDACC_RTC__)
// NVRTC compiles without the standard headers.
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef int int32_t;
typedef unsigned long long uint64_t;
// Not all of its versions take offsetof in a constant expression, and nvcc checks the same text.
#define DOORBELL_ASSERT(condition, message)
#else
#include <stddef.h>
#include <stdint.h>
#define DOORBELL_OFFSETOF(type, field) offsetof(type, field)
#endif

#if defined(__cplusplus)
#define DOORBELL_ALIGNAS(bytes) alignas(bytes)
#define DOORBELL_ALIGNOF(type) alignof(type)
#if !defined(DOORBELL_ASSERT)
#define DOORBELL_ASSERT(condition, message) static_assert(condition, message)
#endif
#else
#define DOORBELL_ALIGNAS(bytes) _Alignas(bytes)
#define DOORBELL_ALIGNOF(type) _Alignof(type)
#define DOORBELL_ASSERT(condition, message) _Static_assert(condition, message)
#endif

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error \"the contract is little-endian, and so must the host be\"
#endif
";

/// Header for C11, C++17 and CUDA with the contract's types and numbers.
pub fn generate(spec: &Spec) -> String {
    let mut out =
        format!("// {HEADER}\n// Types and numbers of the wire contract, for C11, C++17 and CUDA.\n");
    let o = &mut out;
    o.push_str(PROLOGUE);
    o.push('\n');
    define(o, "CONTRACT_VERSION", &number(spec.version.into(), Type::U32), "[31:16] major, [15:0] minor");
    for c in &spec.constants {
        define(o, &c.name, &number(c.value, c.ty), &c.doc);
    }
    for r in &spec.records {
        record(o, r);
    }
    for e in &spec.enums {
        section(o, &e.doc);
        let tag = e.sv_prefix.to_lowercase();
        let values = e.values.iter().map(|v| (v.name.as_str(), hex(v.value, e.width), v.doc.as_str()));
        enumeration(o, &tag, &e.sv_prefix, values);
    }
    for f in &spec.flags {
        section(o, &f.doc);
        for v in &f.values {
            define(o, &format!("{}_{}", f.sv_prefix, v.name), &number(1 << v.bit, Type::U32), &v.doc);
        }
    }
    section(o, "Registers: byte offsets in the page.");
    let registers =
        spec.registers.iter().map(|r| (r.name.as_str(), hex(r.offset.into(), 12), r.doc.as_str()));
    enumeration(o, "reg", "REG", registers);
    section(o, "Registers that do not reset to 0.");
    for r in &spec.registers {
        if let Reset::Value(v @ 1..) = r.reset {
            define(o, &format!("RESET_{}", r.name), &number(v.into(), Type::U32), "");
        }
    }
    section(o, "Counters: byte offset of the low half; the high half is 4 above.");
    let counters = spec.counters.iter().map(|c| (c.name.as_str(), hex(c.offset.into(), 12), c.doc.as_str()));
    enumeration(o, "cnt", "CNT", counters);
    o.push_str("\n#endif\n");
    out
}

/// The first field carries the alignment: C11 has none on the structure itself.
fn record(o: &mut String, r: &Record) {
    let name = format!("doorbell_{}", r.stem());
    section(o, &r.doc);
    o.push_str(&format!("struct {name} {{\n"));
    for (i, f) in r.fields.iter().enumerate() {
        let align = if i == 0 { format!("DOORBELL_ALIGNAS({}) ", r.size) } else { String::new() };
        remark(o, 2, &format!("{align}{}_t {};", f.ty.rust().replace('u', "uint"), f.name), 38, &f.doc);
    }
    o.push_str("};\n");
    let mut assert = |condition: String, message: String| {
        o.push_str(&format!("DOORBELL_ASSERT({condition}, \"{message}\");\n"));
    };
    assert(format!("sizeof(struct {name}) == {}", r.size), format!("size of {name}"));
    assert(format!("DOORBELL_ALIGNOF(struct {name}) == {}", r.size), format!("alignment of {name}"));
    for f in &r.fields {
        assert(
            format!("DOORBELL_OFFSETOF(struct {name}, {}) == {}", f.name, f.offset),
            format!("offset of {}", f.name),
        );
    }
}

fn enumeration<'a>(
    o: &mut String,
    tag: &str,
    prefix: &str,
    values: impl Iterator<Item = (&'a str, String, &'a str)>,
) {
    o.push_str(&format!("enum doorbell_{tag} {{\n"));
    for (name, value, doc) in values {
        remark(o, 2, &format!("DOORBELL_{prefix}_{name} = {},", value.replace('_', "")), 48, doc);
    }
    o.push_str("};\n");
}

fn section(o: &mut String, title: &str) {
    o.push_str(&format!("\n// {title}\n"));
}

fn define(o: &mut String, name: &str, value: &str, doc: &str) {
    remark(o, 0, &format!("#define DOORBELL_{name} {value}"), 48, doc);
}

fn number(value: u64, ty: Type) -> String {
    let suffix = if ty == Type::U64 { "ull" } else { "u" };
    format!("{}{suffix}", hex(value, ty.bits()).replace('_', ""))
}
