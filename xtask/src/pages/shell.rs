//! Commands that a page prints: indented lines that begin with a prompt or with the program.

/// The arguments of every call of `program`, whose first words these are, in the code of a page. A backslash at the end of a line joins it with the
/// next; a comment, a pipe and what follows end the command.
pub fn commands(page: &str, program: &[&str]) -> Vec<Vec<String>> {
    let mut out = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        let Some(code) = line.strip_prefix("    ") else { continue };
        let mut code = code.trim().strip_prefix("$ ").unwrap_or(code.trim()).to_owned();
        while code.ends_with('\\') {
            code.pop();
            let Some(next) = lines.next() else { break };
            code.push_str(next.trim());
        }
        let words = words(&code);
        if words.len() >= program.len() && words.iter().zip(program).all(|(word, expected)| word == expected)
        {
            out.push(words[program.len()..].to_vec());
        }
    }
    out
}

/// The words of a line as a shell has them, up to a comment, a pipe, `&` or `;`.
fn words(line: &str) -> Vec<String> {
    let mut out = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    for letter in line.chars() {
        match (quote, letter) {
            (Some(open), _) if open == letter => quote = None,
            (Some(_), _) => word.get_or_insert_default().push(letter),
            (None, '"' | '\'') => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (None, '|' | '&' | ';' | '>') => break,
            (None, '#') if word.is_none() => break,
            (None, _) if letter.is_whitespace() => out.extend(word.take()),
            (None, _) => word.get_or_insert_default().push(letter),
        }
    }
    out.extend(word);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_of_a_page_are_found() {
        let page = "Text: doorbell run\n\n    $ doorbell run --a \\\n          \"b c\" 'd # e' # a comment\n    output\n    doorbell top | head\n    doorbells x\n";
        assert_eq!(commands(page, &["doorbell"]), [vec!["run", "--a", "b c", "d # e"], vec!["top"]]);
        assert_eq!(commands("    cargo xtask lab 1\n    cargo test\n", &["cargo", "xtask"]), [["lab", "1"]]);
        assert_eq!(commands("    doorbell generate \"\"\n", &["doorbell"]), [["generate", ""]]);
    }
}
