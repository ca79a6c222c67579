//! The page that a GPU's kernel and its host share beside the queues: `gpu/kernels/mailbox.h` and `gpu/src/layout.rs`.

use serde::Deserialize;

use super::spec::Type;
use super::{HEADER, hex, remark};

/// The page. Its parts lie one behind the other, each from its own offset on.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mailbox {
    /// Bytes.
    pub size: usize,
    /// The `wanted` that asks the kernel to end.
    pub exit: u32,
    /// Parts by rising offset.
    #[serde(rename = "part")]
    pub parts: Vec<Part>,
    /// What a front end may wait for, by number.
    #[serde(rename = "wait")]
    pub waits: Vec<Wait>,
}

/// Fields that one side writes, or that belong together.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// Whether it is a structure of its own in C, of this name.
    pub name: Option<String>,
    /// Bytes from the start of the page.
    pub offset: usize,
    /// Who writes it, and in which order.
    pub doc: String,
    /// Fields, without holes.
    pub fields: Vec<Word>,
}

/// A field.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Word {
    /// Name in every language.
    pub name: String,
    /// Width.
    #[serde(rename = "type")]
    pub ty: Type,
    /// How many there are.
    #[serde(default = "one")]
    pub count: usize,
    /// What it holds.
    pub doc: String,
}

/// Something to wait for.
#[derive(Debug, Clone, Deserialize)]
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

impl Part {
    /// Fields with their offsets in the page.
    fn placed(&self) -> impl Iterator<Item = (usize, &Word)> {
        self.fields.iter().scan(self.offset, |at, word| {
            let offset = *at;
            *at += word.ty.size() * word.count;
            Some((offset, word))
        })
    }

    /// Behind the last field; a structure of its own is padded to its alignment.
    fn end(&self) -> usize {
        let end = self.placed().last().map_or(self.offset, |(at, word)| at + word.ty.size() * word.count);
        let align = self.fields.iter().map(|word| word.ty.size()).max().filter(|_| self.name.is_some());
        end.next_multiple_of(align.unwrap_or(1))
    }
}

/// Every breach of the layout, each naming its entry.
pub fn problems(mailbox: &Mailbox) -> Vec<String> {
    let mut out = Vec::new();
    let mut end = 0;
    let mut names: Vec<&str> = Vec::new();
    for part in &mailbox.parts {
        // What one side writes shares no line with what the other does.
        if part.offset % 64 != 0 || part.offset < end {
            out.push(format!(
                "mailbox: the part at {} begins no line of its own: the one before ends at {end}",
                part.offset
            ));
        }
        for (at, word) in part.placed() {
            if at % word.ty.size() != 0 {
                out.push(format!("mailbox, field {}: offset {at} is misaligned", word.name));
            }
            if names.contains(&word.name.as_str()) {
                out.push(format!("mailbox: two fields are called {}", word.name));
            }
            names.push(&word.name);
        }
        end = part.end();
    }
    if end > mailbox.size {
        out.push(format!("mailbox: its fields end at byte {end}, its size is {}", mailbox.size));
    }
    out
}

/// `gpu/kernels/mailbox.h`.
pub fn c(mailbox: &Mailbox) -> String {
    let mut out = format!(
        "// {HEADER}\n// What the host and the kernel share beside the queues: one page per queue pair in host memory.\n\
         #ifndef DOORBELL_MAILBOX_H\n#define DOORBELL_MAILBOX_H\n\n#include \"doorbell_contract.h\"\n\n\
         // `wanted` is odd while a session is wanted (or runs), and even while none is. Each change is one step up, so\n\
         // that no request is missed, but for this one, which asks the kernel to end.\n\
         #define DOORBELL_SESSION_EXIT {}u\n",
        hex(mailbox.exit.into(), 32).replace('_', "")
    );
    let o = &mut out;
    for part in &mailbox.parts {
        if let Some(name) = &part.name {
            o.push_str(&format!("\n// {}\nstruct doorbell_{name} {{\n", part.doc));
            part.fields.iter().for_each(|word| declare(o, word, ""));
            o.push_str("};\n");
        }
    }
    o.push_str("\nstruct doorbell_mailbox {\n");
    let (mut end, mut align) = (0, "DOORBELL_ALIGNAS(64) ");
    for (number, part) in mailbox.parts.iter().enumerate() {
        if part.offset > end {
            o.push_str(&format!("  uint8_t unused{number}[{}];\n", part.offset - end));
        }
        match &part.name {
            Some(name) => o.push_str(&format!("  {align}struct doorbell_{name} {name};\n")),
            None => {
                o.push_str(&format!("  // {}\n", part.doc));
                for word in &part.fields {
                    declare(o, word, align);
                    align = "";
                }
            }
        }
        align = "";
        end = part.end();
    }
    if mailbox.size > end {
        o.push_str(&format!("  uint8_t unused[{}];\n", mailbox.size - end));
    }
    o.push_str("};\n\n");
    let mut assert = |condition: String, message: &str| {
        o.push_str(&format!("DOORBELL_ASSERT({condition}, \"{message}\");\n"));
    };
    assert(format!("sizeof(struct doorbell_mailbox) == {}", mailbox.size), "size of doorbell_mailbox");
    for part in &mailbox.parts {
        for (at, word) in part.placed() {
            let path = part.name.as_ref().map_or(word.name.clone(), |name| format!("{name}.{}", word.name));
            let condition = format!("DOORBELL_OFFSETOF(struct doorbell_mailbox, {path}) == {at}");
            assert(condition, &format!("offset of {path}"));
        }
    }
    o.push_str("\n// What the oldest descriptor that has not started waits for (R15): `waits_for`.\nenum doorbell_wait {\n");
    for (number, wait) in mailbox.waits.iter().enumerate() {
        remark(o, 2, &format!("DOORBELL_WAIT_{} = {number},", wait.name), 38, &wait.text);
    }
    o.push_str("};\n\n#endif\n");
    out
}

fn declare(o: &mut String, word: &Word, align: &str) {
    let count = if word.count == 1 { String::new() } else { format!("[{}]", word.count) };
    let ty = word.ty.rust().replace('u', "uint");
    remark(o, 2, &format!("{align}{ty}_t {}{count};", word.name), 38, &word.doc);
}

/// `gpu/src/layout.rs`.
pub fn rust(mailbox: &Mailbox) -> String {
    let mut out = format!(
        "// {HEADER}\n//! The page that host and kernel share beside the queues: offsets of its fields in bytes.\n\n\
         /// Bytes of the page.\npub(crate) const SIZE: usize = {};\n\
         /// The `wanted` that asks the kernel to end. (Else: odd asks for a session, even for none.)\n\
         pub(crate) const EXIT: u32 = {};\n\
         /// What a front end may wait for, by number.\npub(crate) const WAITS: [&str; {}] = [\n",
        mailbox.size,
        hex(mailbox.exit.into(), 32),
        mailbox.waits.len()
    );
    for wait in &mailbox.waits {
        out.push_str(&format!("    \"{}\",\n", wait.text));
    }
    out.push_str("];\n");
    for part in &mailbox.parts {
        out.push_str(&format!("\n// {}\n", part.doc));
        for (at, word) in part.placed() {
            let name = word.name.to_uppercase();
            out.push_str(&format!("/// {}\npub(crate) const {name}: usize = {at};\n", word.doc));
        }
    }
    out
}
