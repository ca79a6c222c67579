//! Leaves out of a clock edge what the inputs of the next cycle decide anew. It is read off Verilator's text where that holds; what
//! looks otherwise stays as it is.

use std::collections::BTreeSet;

/// What follows from the inputs, and what follows from a clock edge.
const FROM_INPUTS: [&str; 2] = ["ico_sequent", "ico_comb"];
const FROM_EDGE: [&str; 2] = ["nba_sequent", "nba_comb"];
/// Marks of what does more than write variables.
const EFFECTS: [&str; 3] = ["VL_WRITEF", "VL_STOP", "VL_FINISH"];
const MEMBER: &str = "vlSelf->";

struct Function<'a> {
    name: &'a str,
    text: &'a str,
    statements: Vec<&'a str>,
}

/// What depends on inputs and state follows from a clock edge too: until the inputs of the next cycle come, when it is worked out
/// anew. So it is left to them. What follows from the state alone depends on none of it.
pub fn leave_to_inputs(texts: &mut [String]) {
    let mut changed = vec![];
    let functions: Vec<Function> = texts.iter().flat_map(|text| functions(text)).collect();
    let mut later = BTreeSet::new();
    for function in functions.iter().filter(|function| function.of(&FROM_INPUTS)) {
        add_writes(&mut later, function.text);
    }
    for function in functions.iter().filter(|function| function.of(&FROM_EDGE)) {
        let stays = |text: &str| {
            let written = writes(text);
            written.is_empty()
                || written.iter().any(|name| !later.contains(name))
                || EFFECTS.iter().any(|effect| text.contains(effect))
        };
        let kept: String = function.statements.iter().copied().filter(|text| stays(text)).collect();
        changed.push((function.text.to_owned(), kept));
    }
    replace(texts, changed);
}

/// Bodies of functions, and what becomes of them.
fn replace(texts: &mut [String], changed: Vec<(String, String)>) {
    for (old, new) in changed {
        if let Some((text, at)) = texts.iter_mut().find_map(|text| text.find(&old).map(|at| (text, at))) {
            text.replace_range(at..at + old.len(), &new);
        }
    }
}

impl Function<'_> {
    fn of(&self, names: &[&str]) -> bool {
        names.iter().any(|name| self.name.contains(name))
    }
}

/// The bodies of the functions that make up a cycle.
fn functions(text: &str) -> Vec<Function<'_>> {
    let mut found = vec![];
    let mut rest = text;
    while let Some(at) = rest.find("* vlSelf) {\n") {
        let name = rest[..at].lines().next_back().unwrap_or_default();
        rest = &rest[at + "* vlSelf) {\n".len()..];
        let Some(end) = rest.find("\n}\n") else { break };
        let text = &rest[..=end];
        let function = Function { name, text, statements: statements(text) };
        if function.of(&FROM_INPUTS) || function.of(&FROM_EDGE) {
            found.push(function);
        }
        rest = &rest[end..];
    }
    found
}

/// A statement begins with a line that is indented by four; what closes a block goes on with it.
fn statements(body: &str) -> Vec<&str> {
    let begins = |line: &str| line.starts_with("    ") && !line[4..].starts_with([' ', '}', '\n']);
    let (mut all, mut start, mut at) = (vec![], 0, 0);
    for line in body.split_inclusive('\n') {
        if begins(line) && at > start {
            all.push(&body[start..at]);
            start = at;
        }
        at += line.len();
    }
    all.push(&body[start..]);
    all
}

/// What stands between the bracket that `text` begins with and its partner.
pub fn enclosed(text: &str, open: char, close: char) -> Option<&str> {
    let (mut depth, mut quoted, mut escaped) = (0, false, false);
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            _ if quoted => {}
            _ if c == open => depth += 1,
            _ if c == close => depth -= 1,
            _ => {}
        }
        match depth {
            0 if at == 0 => return None,
            0 => return Some(&text[1..at]),
            _ => {}
        }
    }
    None
}

/// Length of the word that `text` begins with.
fn word(text: &str) -> usize {
    text.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(text.len())
}

/// Adds the variables that `text` writes: what stands before a `=`, and what is handed to a function before its last argument.
fn add_writes<'a>(writes: &mut BTreeSet<&'a str>, text: &'a str) {
    for piece in text.split([';', '{', '}']) {
        let mut rest = piece;
        // A name with its indices, which may name others.
        while let Some(at) = rest.find(MEMBER) {
            rest = &rest[at + MEMBER.len()..];
            let (name, mut behind) = rest.split_at(word(rest));
            rest = behind;
            while let Some(index) = enclosed(behind.trim_start(), '[', ']') {
                behind = &behind.trim_start()[index.len() + 2..];
            }
            let behind = behind.trim_start();
            if behind.starts_with('=') && !behind.starts_with("==") {
                writes.insert(name);
            }
        }
        let call = piece.trim();
        if call[word(call)..].starts_with('(') && !call.starts_with("if") {
            let taken = &call[..call.rfind(',').unwrap_or(0)];
            writes.extend(taken.split(MEMBER).skip(1).map(|rest| &rest[..word(rest)]));
        }
    }
}

fn writes(text: &str) -> BTreeSet<&str> {
    let mut found = BTreeSet::new();
    add_writes(&mut found, text);
    found
}
