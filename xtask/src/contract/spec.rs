//! `contract/contract.toml` as typed data.

use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::validate;

/// The whole contract: everything that the generated files are made from.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// Contract version, `[31:16]` major, `[15:0]` minor.
    pub version: u32,
    /// Records on the wire, in the file's order.
    #[serde(alias = "record")]
    pub records: Vec<Record>,
    /// Sets of code points of which a field holds exactly one.
    #[serde(alias = "enum")]
    pub enums: Vec<Set>,
    /// Sets of bits of which a field or register holds any.
    pub flags: Vec<Set>,
    /// Named numbers.
    #[serde(alias = "constant")]
    pub constants: Vec<Constant>,
    /// Groups of registers.
    #[serde(alias = "block")]
    pub blocks: Vec<Block>,
    /// 32-bit registers.
    #[serde(alias = "register")]
    pub registers: Vec<Register>,
    /// 64-bit counters, each a pair of read-only registers.
    #[serde(alias = "counter")]
    pub counters: Vec<Counter>,
    /// Likewise, of a queue pair.
    #[serde(alias = "queue_counter")]
    pub queue_counters: Vec<Counter>,
    /// Likewise, of a worker.
    #[serde(alias = "worker_counter")]
    pub worker_counters: Vec<Counter>,
    /// The page that a GPU's kernel and its host share; not of the wire.
    pub mailbox: Mailbox,
}

fn page() -> String {
    super::PAGE.to_owned()
}

/// A fixed-size little-endian structure, aligned to its own size.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// Rust name.
    pub name: String,
    /// SystemVerilog name, `…_t`.
    pub sv: String,
    /// Page of the book that has its table.
    #[serde(default = "page")]
    pub page: String,
    /// Bytes; also the alignment.
    pub size: usize,
    /// What it is.
    pub doc: String,
    /// Fields by rising offset.
    pub fields: Vec<Field>,
}

/// One field of a [`Record`] or a [`Part`].
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Field {
    /// Name in every language.
    pub name: String,
    /// Width.
    #[serde(rename = "type")]
    pub ty: Type,
    /// Bytes from the start of the record or page.
    pub offset: usize,
    /// Whether devices must agree on it.
    #[serde(default)]
    pub compared: bool,
    /// How many there are; only a part of the mailbox has more than one.
    #[serde(default = "one")]
    pub count: usize,
    /// What it means.
    pub doc: String,
}

impl Field {
    /// First byte after the field.
    pub fn end(&self) -> usize {
        self.offset + self.ty.size() * self.count
    }
}

/// Unsigned integer types of the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
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

/// Code points of one field, or bits of a field or register.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Set {
    /// Rust name.
    pub name: String,
    /// Prefix of the values in SystemVerilog and C.
    pub sv_prefix: String,
    /// Page of the book that has its table.
    #[serde(default = "page")]
    pub page: String,
    /// Bits of the field or register that carries it.
    pub width: usize,
    /// What they are.
    pub doc: String,
    /// The code points or bits.
    pub values: Vec<Entry>,
}

/// One code point or bit.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Upper-case name.
    pub name: String,
    /// Number on the wire; of a bit its position, 0 being the least significant.
    #[serde(alias = "bit")]
    pub value: u64,
    /// What it means.
    pub doc: String,
}

/// A named number.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Constant {
    /// Upper-case name.
    pub name: String,
    /// Width.
    #[serde(rename = "type")]
    pub ty: Type,
    /// Page of the book that has its table.
    #[serde(default = "page")]
    pub page: String,
    /// The number.
    pub value: u64,
    /// What it is.
    pub doc: String,
}

/// Registers that a device has once, or once for each function or queue pair.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Block {
    /// Upper-case name.
    pub name: String,
    /// Address for function 0 and queue pair 0.
    pub base: u32,
    /// Bytes.
    pub size: u32,
    /// Bytes from one function's to the next one's; 0: it belongs to no function.
    #[serde(default)]
    pub per_function: u32,
    /// Bytes from one queue pair's to the next one's; 0: it belongs to no queue pair.
    #[serde(default)]
    pub per_queue: u32,
    /// Bytes from one worker's to the next one's; 0: it belongs to no worker.
    #[serde(default)]
    pub per_worker: u32,
    /// Where it lies, and for whom.
    pub doc: String,
}

/// A 32-bit register.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Register {
    /// Upper-case name.
    pub name: String,
    /// Name of its block.
    pub block: String,
    /// Bytes from the start of the block.
    pub offset: u32,
    /// Its address for function 0 and queue pair 0, from block and offset.
    #[serde(skip_deserializing)]
    pub address: u32,
    /// Who may write it, and when.
    pub access: Access,
    /// Value after reset.
    #[serde(default)]
    pub reset: Reset,
    /// What it holds.
    pub doc: String,
}

/// Who may write a register.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Access {
    /// Nobody.
    Ro,
    /// The host, always.
    Rw,
    /// The host, while what the register belongs to is inactive.
    Cfg,
    /// A write clears.
    W1c,
}

/// Value of a register after reset; 0 where the file says nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Built {
    /// `reset = "built"`
    Built,
}

/// The blocks in which counters lie: those of the device, those of a queue pair, those of a worker.
pub const COUNTERS: &str = "DEVICE";
/// See [`COUNTERS`].
pub const QUEUE_COUNTERS: &str = "QUEUE";
/// See [`COUNTERS`].
pub const WORKER_COUNTERS: &str = "WORKER";

/// A 64-bit counter, of the device, of a queue pair or of a worker: low half at `offset` of its block, high half 4 above.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Counter {
    /// Upper-case name.
    pub name: String,
    /// Bytes from the start of its block to the low half.
    pub offset: u32,
    /// Address of the low half, for queue pair 0 and worker 0.
    #[serde(skip_deserializing)]
    pub address: u32,
    /// What it counts.
    pub doc: String,
}

/// The page that a GPU's kernel and its host share. Its parts lie one behind the other.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Mailbox {
    /// Bytes.
    pub size: usize,
    /// The `wanted` that asks the kernel to end.
    pub exit: u32,
    /// Groups that a queue pair may have at a time.
    pub groups: u32,
    /// Parts by rising offset.
    pub part: Vec<Part>,
    /// What a front end may wait for, by number.
    pub wait: Vec<Wait>,
}

/// Fields that one side writes, or that belong together.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// Whether it is a structure of its own in C, of this name.
    pub name: Option<String>,
    /// Bytes from the start of the page.
    pub offset: usize,
    /// Who writes it, and in which order.
    pub doc: String,
    /// Fields, without holes.
    pub fields: Vec<Field>,
}

/// Something to wait for.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Wait {
    /// Upper-case name.
    pub name: String,
    /// What users are told.
    pub text: String,
}

fn one() -> usize {
    1
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
        let mut spec: Spec = toml::from_str(text)?;
        for register in &mut spec.registers {
            let block = spec.blocks.iter().find(|block| block.name == register.block);
            let base = block
                .with_context(|| format!("register {}: no block {}", register.name, register.block))?
                .base;
            register.address = base.saturating_add(register.offset);
        }
        for (counters, block) in [
            (&mut spec.counters, COUNTERS),
            (&mut spec.queue_counters, QUEUE_COUNTERS),
            (&mut spec.worker_counters, WORKER_COUNTERS),
        ] {
            let found = spec.blocks.iter().find(|candidate| candidate.name == block);
            let base = found.with_context(|| format!("counters: no block {block}"))?.base;
            for counter in counters {
                counter.address = base.saturating_add(counter.offset);
            }
        }
        let problems = validate::problems(&spec);
        anyhow::ensure!(problems.is_empty(), "{}", problems.join("\n"));
        Ok(spec)
    }

    /// What of it has its tables on `page`. The registers are on the contract's own.
    pub fn on(&self, page: &str) -> Spec {
        let mut here = self.clone();
        here.records.retain(|record| record.page == page);
        here.enums.retain(|set| set.page == page);
        here.flags.retain(|set| set.page == page);
        here.constants.retain(|constant| constant.page == page);
        if page != super::PAGE {
            here.registers.clear();
        }
        here
    }

    /// Each page that a table is to be on, once or more often.
    pub fn pages(&self) -> impl Iterator<Item = &str> {
        let sets = self.enums.iter().chain(&self.flags).map(|set| &set.page);
        let records = self.records.iter().map(|record| &record.page);
        records.chain(sets).chain(self.constants.iter().map(|c| &c.page)).map(String::as_str)
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
