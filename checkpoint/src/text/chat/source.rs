//! Rewrites the source of a template where crate `minijinja` reads it differently from `jinja2`.

use std::collections::HashSet;

/// Handles four differences. `{% generation %}` blocks, which mark the assistant's output for training, render as their contents. String
/// literals have Python's escapes. A raw block keeps its leading line feed. The default of a macro's argument may name another argument.
/// Comments and the contents of raw blocks stay unchanged.
pub(super) fn rewritten(template: &str) -> Result<String, String> {
    let mut text = String::with_capacity(template.len());
    let mut rest = template;
    while let Some(at) = rest.find('{') {
        let (before, tag) = rest.split_at(at);
        text.push_str(before);
        let kind = tag.as_bytes().get(1);
        let length = match kind {
            Some(b'#') => tag.find("#}").map(|end| end + 2),
            Some(b'%') => end(tag, "%}"),
            Some(b'{') => end(tag, "}}"),
            _ => Some(1),
        };
        // The template's parser reports a tag that does not end.
        let Some(length) = length else {
            rest = tag;
            break;
        };
        let (tag, after) = tag.split_at(length);
        rest = after;
        match kind {
            Some(b'{') => text.push_str(&quoted(tag)?),
            Some(b'%') => {
                let inner = &tag[2..tag.len() - 2];
                match inner.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+') {
                    "generation" => text.push_str(&tag.replace("generation", "with")),
                    "endgeneration" => text.push_str(&tag.replace("endgeneration", "endwith")),
                    "raw" => {
                        let raw = endraw(rest).unwrap_or(rest.len());
                        // The crate would drop the line feed.
                        match tag.strip_suffix("%}").filter(|tag| !tag.ends_with(['-', '+'])) {
                            Some(open) if rest.starts_with('\n') => text.extend([open, "+%}"]),
                            _ => text.push_str(tag),
                        }
                        let (raw, after) = rest.split_at(raw);
                        text.push_str(raw);
                        rest = after;
                    }
                    _ => text.push_str(&defaults(&quoted(tag)?)),
                }
            }
            _ => text.push_str(tag),
        }
    }
    text.push_str(rest);
    Ok(text)
}

/// The position after the `close` that ends a block or an expression. A `close` within a string literal does not count.
fn end(tag: &str, close: &str) -> Option<usize> {
    let mut braces = 0;
    for (at, letter) in code(tag).skip(2) {
        if braces == 0 && tag[at..].starts_with(close) {
            return Some(at + close.len());
        }
        match letter {
            '{' => braces += 1,
            '}' => braces -= 1,
            _ => {}
        }
    }
    None
}

/// The characters outside string literals, with their byte positions.
fn code(text: &str) -> impl Iterator<Item = (usize, char)> {
    let (mut quote, mut escaped) = (None, false);
    text.char_indices().filter(move |&(_, letter)| {
        match quote {
            Some(_) if escaped => escaped = false,
            Some(_) if letter == '\\' => escaped = true,
            Some(own) if letter == own => quote = None,
            Some(_) => {}
            None if matches!(letter, '"' | '\'') => quote = Some(letter),
            None => return true,
        }
        false
    })
}

/// The position of the tag that ends a raw block.
fn endraw(text: &str) -> Option<usize> {
    text.match_indices("{%").map(|(at, _)| at).find(|&at| {
        let inner = text[at + 2..].trim_start_matches(['-', '+']).trim_start();
        let after = inner.strip_prefix("endraw").map(|rest| rest.trim_start().trim_start_matches(['-', '+']));
        after.is_some_and(|rest| rest.starts_with("%}"))
    })
}

/// A tag with the escapes of its string literals rewritten to ones that both `jinja2` and the crate know.
fn quoted(tag: &str) -> Result<String, String> {
    let mut text = String::with_capacity(tag.len());
    let mut quote = None;
    let mut letters = tag.chars();
    while let Some(letter) = letters.next() {
        match quote {
            None if matches!(letter, '"' | '\'') => quote = Some(letter),
            Some(own) if letter == own => quote = None,
            Some(_) if letter == '\\' => {
                escape(&mut letters, &mut text)?;
                continue;
            }
            _ => {}
        }
        text.push(letter);
    }
    Ok(text)
}

/// Rewrites the escape sequence after a backslash.
fn escape(letters: &mut std::str::Chars<'_>, text: &mut String) -> Result<(), String> {
    let Some(kind) = letters.next() else { return Ok(()) };
    let radix = if kind.is_ascii_digit() { 8 } else { 16 };
    let most = match kind {
        '\n' => return Ok(()),
        'n' | 'r' | 't' | 'b' | 'f' | '\\' | '\'' | '"' => {
            text.extend(['\\', kind]);
            return Ok(());
        }
        'a' | 'v' => {
            text.push(if kind == 'a' { '\x07' } else { '\x0b' });
            return Ok(());
        }
        'x' => 2,
        'u' => 4,
        'U' => 8,
        '0'..='7' => 3,
        'N' => return Err("a text has \\N{…}, which is not read; write the letter itself".into()),
        _ if kind.is_ascii() => {
            text.extend(['\\', '\\', kind]);
            return Ok(());
        }
        _ => return Err(format!("a text has \\{kind}, which is no escape; write \\\\{kind}")),
    };
    let mut digits = String::new();
    if radix == 8 {
        digits.push(kind);
    }
    while digits.len() < most
        && let Some(digit) = letters.clone().next().filter(|letter| letter.is_digit(radix))
    {
        digits.push(digit);
        letters.next();
    }
    let letter = u32::from_str_radix(&digits, radix).ok().and_then(char::from_u32);
    match letter.filter(|_| radix == 8 || digits.len() == most) {
        Some('\n') => text.push_str("\\n"),
        Some(letter) => {
            if matches!(letter, '"' | '\'' | '\\') {
                text.push('\\');
            }
            text.push(letter);
        }
        None => {
            let problem =
                format!("a text has \\{kind}{digits}, which is no letter; write it with {most} digits");
            return Err(problem);
        }
    }
    Ok(())
}

/// Rewrites a macro whose defaults name earlier arguments. The crate evaluates a default before those arguments exist, so the macro's body
/// sets it instead.
fn defaults(tag: &str) -> String {
    let body = tag[2..].trim_start_matches(['-', '+']).trim_start();
    let is_macro = body.strip_prefix("macro").is_some_and(|rest| rest.starts_with(char::is_whitespace));
    let Some((open, close)) =
        tag.find('(').filter(|_| is_macro).zip(code(tag).filter(|&(_, c)| c == ')').last())
    else {
        return tag.to_owned();
    };
    let close = close.0;
    let Some(list) = tag.get(open + 1..close) else { return tag.to_owned() };
    let mut depth = 0;
    let mut cuts = vec![0];
    for (at, letter) in code(list) {
        match letter {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            ',' if depth == 0 => cuts.push(at + 1),
            _ => {}
        }
    }
    cuts.push(list.len() + 1);
    let (mut names, mut arguments, mut sets) = (HashSet::new(), vec![], String::new());
    for cut in cuts.windows(2) {
        let argument = &list[cut[0]..cut[1] - 1];
        let Some((name, default)) = argument.split_once('=') else {
            names.insert(argument.trim());
            arguments.push(argument.to_owned());
            continue;
        };
        let name = name.trim();
        if words(default).iter().any(|word| names.contains(word.as_str())) {
            arguments.push(format!("{name}=__none"));
            sets.push_str(&format!("{{% set {name} = {default} if {name} is undefined else {name} %}}"));
        } else {
            arguments.push(argument.to_owned());
        }
        names.insert(name);
    }
    if sets.is_empty() {
        return tag.to_owned();
    }
    // The end of the macro's tag moves to the last `set`: it decides how the whitespace after it is trimmed.
    let after = tag[close + 1..].trim_start();
    let sets = sets.strip_suffix("%}").unwrap_or(&sets);
    format!("{}({}) %}}{sets}{after}", &tag[..open], arguments.join(","))
}

/// The names in an expression, without attributes.
fn words(expression: &str) -> Vec<String> {
    let plain: String = code(expression).map(|(_, letter)| letter).collect();
    let mut words = vec![];
    let mut before = 0;
    for word in plain.split(|letter: char| letter != '_' && !letter.is_alphanumeric()) {
        if !word.is_empty() && !plain[..before].trim_end().ends_with('.') {
            words.push(word.to_owned());
        }
        before += word.len();
        before += plain[before..].chars().next().map_or(0, char::len_utf8);
    }
    words
}
