//! `contract/contract.toml` as typed data.

use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;

use super::mailbox::Mailbox;
use super::validate;

/// The whole contract: everything that the generated files are made from.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// Contract version, `[31:16]` major, `[15:0]` minor.
    pub version: u32,
    /// Records on the wire, in the file's order.
    #[serde(rename = "record")]
    pub records: Vec<Record>,
    /// Sets of code points of which a field holds exactly one.
    #[serde(rename = "enum")]
    pub enums: Vec<Enum>,
    /// Sets of bits of which a field or register holds any.
    pub flags: Vec<Flags>,
    /// Named numbers.
    #[serde(rename = "constant")]
    pub constants: Vec<Constant>,
    /// 32-bit registers.
    #[serde(rename = "register")]
    pub registers: Vec<Register>,
    /// 64-bit counters, each a pair of read-only registers.
    #[serde(rename = "counter")]
    pub counters: Vec<Counter>,
    /// The page that a GPU's kernel and its host share; not of the wire.
    pub mailbox: Option<Mailbox>,
}

/// A fixed-size little-endian structure, aligned to its own size.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// Rust name.
    pub name: String,
    /// SystemVerilog name, `…_t`.
    pub sv: String,
    /// Bytes; also the alignment.
    pub size: usize,
    /// What it is.
    pub doc: String,
    /// Fields by rising offset.
    pub fields: Vec<Field>,
}

impl Record {
    /// Fields that two devices must agree on.
    pub fn compared(&self) -> impl Iterator<Item = &Field> {
        self.fields.iter().filter(|f| f.compared)
    }

    /// SystemVerilog name without its `_t`.
    pub fn stem(&self) -> &str {
        self.sv.strip_suffix("_t").unwrap_or(&self.sv)
    }
}

/// One field of a [`Record`].
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Field {
    /// Name in every language.
    pub name: String,
    /// Width.
    #[serde(rename = "type")]
    pub ty: Type,
    /// Bytes from the start of the record.
    pub offset: usize,
    /// Whether devices must agree on it.
    #[serde(default)]
    pub compared: bool,
    /// What it means.
    pub doc: String,
}

impl Field {
    /// First byte after the field.
    pub fn end(&self) -> usize {
        self.offset + self.ty.size()
    }
}

/// Unsigned integer types of the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Type {
    /// 1 byte.
    U8,
    /// 2 bytes.
    U16,
    /// 4 bytes.
    U32,
    /// 8 bytes.
    U64,
}

impl Type {
    /// Bytes.
    pub fn size(self) -> usize {
        match self {
            Type::U8 => 1,
            Type::U16 => 2,
            Type::U32 => 4,
            Type::U64 => 8,
        }
    }

    /// Bits.
    pub fn bits(self) -> usize {
        8 * self.size()
    }

    /// The type's name in Rust.
    pub fn rust(self) -> &'static str {
        match self {
            Type::U8 => "u8",
            Type::U16 => "u16",
            Type::U32 => "u32",
            Type::U64 => "u64",
        }
    }

    /// Largest value.
    pub fn max(self) -> u64 {
        u64::MAX >> (64 - self.bits())
    }
}

/// Code points of one 8-bit field.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Enum {
    /// Rust name.
    pub name: String,
    /// Prefix of the values in SystemVerilog and C.
    pub sv_prefix: String,
    /// Bits of the field that carries it.
    pub width: usize,
    /// What they are.
    pub doc: String,
    /// The code points.
    pub values: Vec<EnumValue>,
}

/// One code point.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EnumValue {
    /// Upper-case name.
    pub name: String,
    /// Number on the wire.
    pub value: u64,
    /// What it means.
    pub doc: String,
}

/// Bits of one field or register.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Flags {
    /// Rust name.
    pub name: String,
    /// Prefix of the bits in SystemVerilog and C.
    pub sv_prefix: String,
    /// Bits of the field or register.
    pub width: usize,
    /// What they are.
    pub doc: String,
    /// The bits.
    pub values: Vec<Flag>,
}

impl Flags {
    /// All defined bits.
    pub fn mask(&self) -> u64 {
        self.values.iter().fold(0, |mask, v| mask | 1u64.checked_shl(v.bit as u32).unwrap_or(0))
    }
}

/// One bit.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Flag {
    /// Upper-case name.
    pub name: String,
    /// Position, 0 is the least significant.
    pub bit: usize,
    /// What it means.
    pub doc: String,
}

/// A named number.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Constant {
    /// Upper-case name.
    pub name: String,
    /// Width.
    #[serde(rename = "type")]
    pub ty: Type,
    /// The number.
    pub value: u64,
    /// What it is.
    pub doc: String,
}

/// A 32-bit register.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Register {
    /// Upper-case name.
    pub name: String,
    /// Bytes from the start of the page.
    pub offset: u32,
    /// Who may write it, and when.
    pub access: Access,
    /// Value after reset.
    #[serde(default)]
    pub reset: Reset,
    /// What it holds.
    pub doc: String,
}

/// Who may write a register.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Access {
    /// Nobody.
    Ro,
    /// The host, always.
    Rw,
    /// The host, while the device is inactive.
    Cfg,
    /// A write clears.
    W1c,
}

impl Access {
    /// Name in the contract's tables.
    pub fn label(self) -> &'static str {
        match self {
            Access::Ro => "ro",
            Access::Rw => "rw",
            Access::Cfg => "cfg",
            Access::W1c => "w1c",
        }
    }
}

/// Value of a register after reset; 0 where the file says nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum Reset {
    /// The same on every device.
    Value(u32),
    /// Depends on how the device was built.
    Built(Built),
}

impl Default for Reset {
    fn default() -> Self {
        Reset::Value(0)
    }
}

/// The word `built` in place of a reset value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Built {
    /// `reset = "built"`
    Built,
}

/// A 64-bit counter: low half at `offset`, high half 4 above.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counter {
    /// Upper-case name.
    pub name: String,
    /// Bytes from the start of the page to the low half.
    pub offset: u32,
    /// What it counts.
    pub doc: String,
}

impl Spec {
    /// Reads and validates `path`.
    ///
    /// # Errors
    /// When the file cannot be read, is not the expected TOML, or breaks a rule of layout; the message names the
    /// entry.
    pub fn load(path: &Path) -> Result<Spec> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the contract {}", path.display()))?;
        Spec::parse(&text).with_context(|| format!("{} is not a valid contract", path.display()))
    }

    /// Parses and validates the text of a contract.
    ///
    /// # Errors
    /// As [`Spec::load`].
    pub fn parse(text: &str) -> Result<Spec> {
        let spec: Spec = toml::from_str(text)?;
        let problems = validate::problems(&spec);
        anyhow::ensure!(problems.is_empty(), "{}", problems.join("\n"));
        Ok(spec)
    }
}

/// `SQ_BASE_LO` as `SqBaseLo`.
pub fn camel(upper: &str) -> String {
    upper
        .split('_')
        .map(|part| {
            let mut chars = part.chars();
            chars.next().map_or(String::new(), |first| {
                first.to_uppercase().collect::<String>() + &chars.as_str().to_lowercase()
            })
        })
        .collect()
}
