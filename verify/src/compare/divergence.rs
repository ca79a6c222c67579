//! A difference between two devices, and how it is told.

use std::fmt;

use serde::Serialize;

use super::record::{compared, without_group_done};
use doorbell_contract::{CompletionFlags, DescFlags, ErrorCode, HwCompletion, HwDesc, Opcode, Status};

/// Where a device differs from the reference, in one completion or its tokens.
///
/// Displayed, it is a report of several lines: the fields that differ, and the descriptor field by field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Divergence {
    /// The rollout.
    pub rollout_id: u32,
    /// Which of the rollout's completions, from 0.
    pub completion: usize,
    /// Which of the device's completions, from 0, in the order in which it posted them; `None` if it posted none.
    pub ordinal: Option<usize>,
    /// The descriptor that was to be answered. Its check word is not filled in.
    pub desc: HwDesc,
    /// What the reference answered, or what the rules demand; `None` if nothing was to come.
    pub expected: Option<HwCompletion>,
    /// What the device answered; `None` if nothing came.
    pub found: Option<HwCompletion>,
    /// The compared fields that differ.
    pub fields: Vec<FieldDifference>,
    /// The first token that differs.
    pub token: Option<TokenDifference>,
    /// The rule that the completion breaks among those of its group, if it is that.
    pub broken: Option<String>,
}

/// A compared field with two values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct FieldDifference {
    /// Name in the contract.
    pub name: &'static str,
    /// The reference's value.
    pub expected: u64,
    /// The device's value.
    pub found: u64,
}

/// A word of the token region with two values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TokenDifference {
    /// Which token of its descriptor, from 0.
    pub index: u32,
    /// Its position in the sequence.
    pub position: u32,
    /// Bytes into the token region.
    pub offset: u64,
    /// Whether it lies behind the tokens that the device reported.
    pub beyond: bool,
    /// The reference's word.
    pub expected: u32,
    /// The device's word.
    pub found: u32,
}

impl FieldDifference {
    /// Every compared field in which `found` differs.
    pub fn between(expected: &HwCompletion, found: &HwCompletion) -> Vec<FieldDifference> {
        if compared(expected) == compared(found) {
            return Vec::new();
        }
        HwCompletion::COMPARED
            .iter()
            .map(|field| FieldDifference {
                name: field.name,
                expected: (field.get)(&without_group_done(expected)),
                found: (field.get)(&without_group_done(found)),
            })
            .filter(|difference| difference.expected != difference.found)
            .collect()
    }
}

impl Divergence {
    pub(super) fn at(desc: HwDesc) -> Divergence {
        Divergence {
            rollout_id: desc.rollout_id,
            completion: 0,
            ordinal: None,
            desc,
            expected: None,
            found: None,
            fields: Vec::new(),
            token: None,
            broken: None,
        }
    }
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "rollout {}, completion {} of it (from 0)", self.rollout_id, self.completion)?;
        match (&self.expected, &self.found) {
            (Some(expected), None) => {
                writeln!(
                    f,
                    "  expected {}, found no completion",
                    code(expected.status, Status::try_from, Status::name)
                )?;
            }
            (None, Some(found)) => {
                writeln!(
                    f,
                    "  expected no completion, found {}",
                    code(found.status, Status::try_from, Status::name)
                )?;
            }
            _ => {}
        }
        if let Some(broken) = &self.broken {
            writeln!(f, "  {broken}")?;
        }
        if !self.fields.is_empty() {
            writeln!(f, "  {:<17}{:<28}found", "field", "expected")?;
        }
        for field in &self.fields {
            let value = |value| completion_value(field.name, value);
            writeln!(f, "  {:<17}{:<28}{}", field.name, value(field.expected), value(field.found))?;
        }
        if let Some(token) = &self.token {
            let place = if token.beyond { ", after the tokens reported," } else { "" };
            writeln!(
                f,
                "  token {} of the descriptor{place} (position {}, token region + {:#x}): expected {:#x}, found {:#x}",
                token.index, token.position, token.offset, token.expected, token.found
            )?;
        }
        if self.fields.is_empty() && self.token.is_some() {
            writeln!(f, "  all fields of the completion agree")?;
        }
        write!(f, "  the descriptor:")?;
        for field in HwDesc::FIELDS.iter().filter(|field| field.name != "check") {
            write!(f, "\n    {:<16} {}", field.name, desc_value(field.name, (field.get)(&self.desc)))?;
        }
        Ok(())
    }
}

/// A code point with its name.
fn code<T: Copy, E>(
    value: u8,
    decode: impl Fn(u8) -> Result<T, E>,
    name: impl Fn(T) -> &'static str,
) -> String {
    match decode(value) {
        Ok(point) => format!("{} ({value:#04x})", name(point)),
        Err(_) => format!("{value:#04x} (no code point)"),
    }
}

fn completion_value(field: &str, value: u64) -> String {
    match field {
        "status" => code(value as u8, Status::try_from, |status| status.name()),
        "error" => code(value as u8, ErrorCode::try_from, |error| error.name()),
        "flags" => flag_names(CompletionFlags::from_bits_retain(value as u8), value),
        "user_data" | "result" => format!("{value:#x}"),
        _ => value.to_string(),
    }
}

fn desc_value(field: &str, value: u64) -> String {
    match field {
        "opcode" => code(value as u8, Opcode::try_from, |opcode| opcode.name()),
        "flags" => flag_names(DescFlags::from_bits_retain(value as u8), value),
        "user_data" | "kv_offset" | "delta_offset" | "seed" => format!("{value:#x}"),
        "prefix_id" | "checkpoint" if value == u64::from(u32::MAX) => {
            format!("{value:#x} ({})", if field == "prefix_id" { "none" } else { "never" })
        }
        _ => value.to_string(),
    }
}

fn flag_names<B: bitflags::Flags>(flags: B, value: u64) -> String {
    let names: Vec<&str> = flags.iter_names().map(|(name, _)| name).collect();
    if names.is_empty() { format!("{value:#04x}") } else { format!("{} ({value:#04x})", names.join(" | ")) }
}
