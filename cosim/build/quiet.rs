//! Leaves out of a cycle what changes nothing in it. Both steps read off Verilator's text where that holds; what looks otherwise
//! stays as it is.

use std::collections::{BTreeMap, BTreeSet};

/// What follows from the inputs, and what follows from a clock edge: all that a cycle runs through.
const FROM_INPUTS: [&str; 2] = ["ico_sequent", "ico_comb"];
const FROM_EDGE: [&str; 2] = ["nba_sequent", "nba_comb"];
/// Marks of what does more than write variables.
const EFFECTS: [&str; 3] = ["VL_WRITEF", "VL_STOP", "VL_FINISH"];
/// Where the flags are declared.
const DECLARATIONS: &str = "// INTERNAL VARIABLES";
const MEMBER: &str = "vlSelf->";
/// How many stores a flag of defaults has to save: it costs a second test in every cycle.
const DEFAULTS: usize = 3;
/// The same of a branch, where the test of the flag takes the place of the stores.
const BRANCH: usize = 2;

/// How often each variable is written.
type Writes<'a> = BTreeMap<&'a str, usize>;

enum Statement<'a> {
    /// `variable = constant;`: the variable, and the word of it with the constant.
    Constant(&'a str, (&'a str, &'a str)),
    /// `if (condition) { body }`.
    If(&'a str, &'a str),
    /// `if (condition) { body } else { variable = constant; … }`.
    Else(&'a str, &'a str, &'a str),
    Other,
}

/// Constants that are written while a test fails.
struct Group<'a> {
    function: usize,
    /// Statements: the tests, side by side; of a branch the one.
    tests: Vec<usize>,
    branch: bool,
    /// What each variable gets; of defaults, the statements that do it.
    values: BTreeMap<&'a str, Vec<(&'a str, &'a str)>>,
    defaults: BTreeMap<&'a str, Vec<usize>>,
    /// How often it writes each variable, in all.
    writes: Writes<'a>,
}

struct Function<'a> {
    name: &'a str,
    text: &'a str,
    statements: Vec<&'a str>,
    parsed: Vec<Statement<'a>>,
}

/// What depends on inputs and state follows from a clock edge too: until the inputs of the next cycle come, when it is worked out
/// anew. So it is left to them. What follows from the state alone depends on none of it.
pub fn leave_to_inputs(texts: &mut [String]) {
    let mut changed = vec![];
    let functions: Vec<Function> = texts.iter().flat_map(|text| functions(text)).collect();
    let mut later = Writes::new();
    for function in functions.iter().filter(|function| function.of(&FROM_INPUTS)) {
        add_writes(&mut later, function.text);
    }
    for function in functions.iter().filter(|function| function.of(&FROM_EDGE)) {
        let stays = |text: &str| {
            let written = writes(text);
            written.is_empty()
                || written.keys().any(|name| !later.contains_key(name))
                || EFFECTS.iter().any(|effect| text.contains(effect))
        };
        let kept: String = function.statements.iter().copied().filter(|text| stays(text)).collect();
        changed.push((function.text.to_owned(), kept));
    }
    replace(texts, changed);
}

/// What a process shows while it has nothing to do, Verilator writes in every cycle: defaults, and then, behind a test, the
/// rest; or the one branch of a test, where the other holds nothing but constants. Here constants are written in the first cycle
/// in which there is nothing to do, and left alone until there was something again: one flag for each test says so. It holds
/// where nobody else writes these variables, and where the test does not look at them.
///
/// Changes `texts`, which hold the model of a cycle, and `header`, which declares its state.
pub fn keep_quiet(texts: &mut [String], header: &mut String) {
    let Some(place) = header.find(DECLARATIONS) else { return };
    let mut changed = vec![];
    let flags = {
        let functions: Vec<Function> = texts.iter().flat_map(|text| functions(text)).collect();
        let mut total = Writes::new();
        for text in texts.iter() {
            add_writes(&mut total, text);
        }
        let groups: Vec<Group> =
            functions.iter().enumerate().flat_map(|(number, function)| groups(number, function)).collect();
        let (chosen, flags) = choose(&groups, &total);
        for (number, function) in functions.iter().enumerate() {
            let here: Vec<_> =
                groups.iter().zip(&chosen).filter(|(group, _)| group.function == number).collect();
            if here.iter().any(|(_, chosen)| chosen.is_some()) {
                changed.push((function.text.to_owned(), rewritten(function, &here)));
            }
        }
        flags
    };
    replace(texts, changed);
    if flags > 0 {
        header.insert_str(place, &format!("CData/*0:0*/ __Vquiet[{flags}] = {{}};\n\n    "));
    }
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
        let statements = statements(text);
        let parsed = statements.iter().map(|statement| parse(statement)).collect();
        let function = Function { name, text, statements, parsed };
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

fn parse(statement: &str) -> Statement<'_> {
    let text = statement.trim();
    if let Some((name, word, value)) = text.strip_suffix(';').and_then(constant) {
        return Statement::Constant(name, (word, value));
    }
    let Some(condition) = text.strip_prefix("if ").and_then(|text| enclosed(text, '(', ')')) else {
        return Statement::Other;
    };
    let behind = &text["if ()".len() + condition.len()..];
    let Some(body) = behind.strip_prefix(' ').and_then(|text| enclosed(text, '{', '}')) else {
        return Statement::Other;
    };
    let behind = &behind[" {}".len() + body.len()..];
    if behind.is_empty() {
        return Statement::If(condition, body);
    }
    match behind.strip_prefix(" else ").and_then(|text| enclosed(text, '{', '}')) {
        Some(other)
            if behind.len() == " else {}".len() + other.len()
                && other
                    .split(';')
                    .map(str::trim)
                    .filter(|text| !text.is_empty())
                    .all(|text| constant(text).is_some()) =>
        {
            Statement::Else(condition, body, other)
        }
        _ => Statement::Other,
    }
}

/// What stands between the bracket that `text` begins with and its partner.
fn enclosed(text: &str, open: char, close: char) -> Option<&str> {
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

/// `vlSelf->variable[word] = constant`: the three of them.
fn constant(text: &str) -> Option<(&str, &str, &str)> {
    let rest = text.strip_prefix(MEMBER)?;
    let name = &rest[..word(rest)];
    let (index, value) = rest[name.len()..].split_once('=')?;
    let (index, value) = (index.trim(), value.trim());
    let literal = |text: &str| text.starts_with(|c: char| c.is_ascii_digit()) && word(text) == text.len();
    let indexed = index.is_empty()
        || index.strip_prefix('[').and_then(|text| text.strip_suffix(']')).is_some_and(literal);
    let pooled = || {
        let (pool, index) = value.split_once('[')?;
        (pool.contains("__ConstPool__CONST_")
            && word(pool) == pool.len()
            && index.strip_suffix(']').is_some_and(literal))
        .then_some(())
    };
    (!name.is_empty() && indexed && (literal(value) || pooled().is_some())).then_some((name, index, value))
}

/// Length of the word that `text` begins with.
fn word(text: &str) -> usize {
    text.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(text.len())
}

/// The variables in `text`, each with what stands behind it.
fn variables(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.split(MEMBER).skip(1).map(|rest| rest.split_at(word(rest)))
}

fn mentioned(text: &str) -> BTreeSet<&str> {
    variables(text).map(|(name, _)| name).collect()
}

/// Counts what `text` writes: what stands before a `=`, and what is handed to a function before its last argument.
fn add_writes<'a>(writes: &mut Writes<'a>, text: &'a str) {
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
                *writes.entry(name).or_default() += 1;
            }
        }
        let call = piece.trim();
        if call[word(call)..].starts_with('(') && !call.starts_with("if") {
            let taken = &call[..call.rfind(',').unwrap_or(0)];
            for (name, _) in variables(taken) {
                *writes.entry(name).or_default() += 1;
            }
        }
    }
}

fn writes(text: &str) -> Writes<'_> {
    let mut found = Writes::new();
    add_writes(&mut found, text);
    found
}

fn groups<'a>(number: usize, function: &Function<'a>) -> Vec<Group<'a>> {
    let statements = &function.statements;
    let mut found = vec![];
    // Defaults that are not looked at yet, with the statements that write them.
    let mut waiting: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    let mut at = 0;
    while at < statements.len() {
        match &function.parsed[at] {
            Statement::Constant(name, _) => waiting.entry(name).or_default().push(at),
            Statement::If(condition, body) => {
                let (seen, mut written) = (mentioned(condition), writes(body));
                waiting.retain(|name, _| !seen.contains(name));
                let mut defaults = BTreeMap::new();
                let looked_at = mentioned(body);
                for name in &looked_at {
                    if let Some(all) = waiting.remove(name)
                        && written.contains_key(name)
                    {
                        defaults.insert(*name, all);
                    }
                }
                // More tests of the same process.
                let mut tests = vec![at];
                while let Some(Statement::If(condition, body)) = function.parsed.get(at + 1) {
                    let (seen, more) = (mentioned(condition), writes(body));
                    if !more.keys().any(|name| defaults.contains_key(name))
                        || seen.iter().any(|name| written.contains_key(name) || defaults.contains_key(name))
                    {
                        break;
                    }
                    for name in mentioned(body) {
                        if let Some(all) = waiting.remove(name)
                            && more.contains_key(name)
                        {
                            defaults.insert(name, all);
                        }
                    }
                    for name in seen {
                        waiting.remove(name);
                    }
                    more.iter().for_each(|(name, count)| *written.entry(name).or_default() += count);
                    at += 1;
                    tests.push(at);
                }
                let value = |at: &usize| match function.parsed[*at] {
                    Statement::Constant(_, value) => value,
                    _ => unreachable!("a default is a constant"),
                };
                let values =
                    defaults.iter().map(|(name, all)| (*name, all.iter().map(value).collect())).collect();
                for (name, all) in &defaults {
                    *written.entry(name).or_default() += all.len();
                }
                found.push(Group {
                    function: number,
                    tests,
                    branch: false,
                    values,
                    defaults,
                    writes: written,
                });
            }
            Statement::Else(condition, body, other) => {
                let seen = mentioned(statements[at]);
                waiting.retain(|name, _| !seen.contains(name));
                let mut values: BTreeMap<&str, Vec<_>> = BTreeMap::new();
                for (name, word, value) in other.split(';').filter_map(|text| constant(text.trim())) {
                    values.entry(name).or_default().push((word, value));
                }
                let looked_at = mentioned(condition);
                values.retain(|name, _| !looked_at.contains(name));
                let mut written = writes(body);
                add_writes(&mut written, other);
                let tests = vec![at];
                found.push(Group {
                    function: number,
                    tests,
                    branch: true,
                    values,
                    defaults: BTreeMap::new(),
                    writes: written,
                });
            }
            Statement::Other => {
                let seen = mentioned(statements[at]);
                waiting.retain(|name, _| !seen.contains(name));
            }
        }
        at += 1;
    }
    found
}

/// The flag of a group, and the variables that stand behind it.
type Choice<'a> = Option<(usize, BTreeSet<&'a str>)>;

/// For each group its flag and the variables that stand behind it; and how many flags there are. A variable that several groups
/// write, as what depends on inputs, has one flag in all of them.
fn choose<'a>(groups: &[Group<'a>], total: &Writes) -> (Vec<Choice<'a>>, usize) {
    let mut owners: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (number, group) in groups.iter().enumerate() {
        for name in group.values.keys() {
            owners.entry(name).or_default().push(number);
        }
    }
    // Variables by who writes them.
    let mut shared: BTreeMap<&[usize], BTreeSet<&'a str>> = BTreeMap::new();
    for group in groups {
        for name in group.values.keys() {
            let all = &owners[name];
            let alike = all.iter().all(|&owner| groups[owner].values[name] == group.values[name]);
            let written: usize =
                all.iter().map(|&owner| groups[owner].writes.get(name).copied().unwrap_or(0)).sum();
            if alike && total.get(name) == Some(&written) {
                shared.entry(all).or_default().insert(name);
            }
        }
    }
    let stores = |group: &Group, names: &BTreeSet<&str>| -> usize {
        // A compiler stores four words at once.
        names.iter().map(|name| group.values[name].len().div_ceil(4)).sum()
    };
    let (mut chosen, mut flags) = (vec![None; groups.len()], 0);
    let mut best: Vec<_> = shared.into_iter().collect();
    best.sort_by_key(|(all, names)| std::cmp::Reverse(stores(&groups[all[0]], names)));
    for (all, names) in best {
        let enough = |&owner: &usize| {
            let group = &groups[owner];
            chosen[owner].is_none() && stores(group, &names) >= if group.branch { BRANCH } else { DEFAULTS }
        };
        if all.iter().all(enough) {
            all.iter().for_each(|&owner| chosen[owner] = Some((flags, names.clone())));
            flags += 1;
        }
    }
    (chosen, flags)
}

fn rewritten(function: &Function, groups: &[(&Group, &Choice)]) -> String {
    let mut texts: Vec<String> = function.statements.iter().map(|&text| text.to_owned()).collect();
    for (group, choice) in groups {
        let Some((flag, names)) = choice else { continue };
        let flag = format!("{MEMBER}__Vquiet[{flag}U]");
        let first = group.tests[0];
        if let Statement::Else(condition, body, other) = &function.parsed[first] {
            let (mut quiet, mut always) = (String::new(), String::new());
            for text in other.split_inclusive(';').filter(|text| !text.trim().is_empty()) {
                let kept = constant(text.trim().trim_end_matches(';'))
                    .is_some_and(|(name, ..)| names.contains(name));
                *(if kept { &mut quiet } else { &mut always }) += text;
            }
            texts[first] = format!(
                "    if ({condition}) {{\n        {flag} = 0U;{body}}} else {{{always}\n        if (!{flag}) {{\n            {flag} = 1U;{quiet}\n        }}\n    }}\n"
            );
            continue;
        }
        let mut defaults: Vec<usize> = names.iter().flat_map(|name| group.defaults[name].clone()).collect();
        defaults.sort_unstable();
        let mut body: String = defaults.iter().map(|&at| std::mem::take(&mut texts[at])).collect();
        body.extend(group.tests.iter().map(|&at| std::mem::take(&mut texts[at])));
        let busy: Vec<_> = group
            .tests
            .iter()
            .map(|&at| match &function.parsed[at] {
                Statement::If(condition, _) => format!("({condition})"),
                _ => unreachable!("a test is one"),
            })
            .collect();
        let busy = busy.join(" || ");
        texts[first] =
            format!("    if (({busy}) || !{flag}) {{\n        {flag} = !({busy});\n{body}    }}\n");
    }
    texts.concat()
}
