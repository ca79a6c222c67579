//! Rewrites of Verilator's output that speed up a WebAssembly module but not a native program. They match the text that Verilator writes;
//! any other text stays unchanged.

use crate::inputs::enclosed;

/// Puts the model's state at an address that the linker knows, so that only one model fits. Each load and store then encodes its address.
/// With a pointer, most of them would need an addition first, and the pointer would take a register. `texts` are the sources that evaluate
/// a cycle; `top` is the source that creates the model. Returns the new `top`, or `None` if Verilator wrote something else.
pub fn place(texts: &mut [String], top: &str, prefix: &str) -> Option<String> {
    let (root, all) = (format!("{prefix}___024root"), format!("{prefix}__Syms"));
    let (include, include_all) = (format!("#include \"{root}.h\"\n"), format!("#include \"{all}.h\"\n"));
    let (made, gone) = (format!("vlSymsp{{new {all}("), "delete vlSymsp;");
    if !texts.iter().all(|text| text.contains(&include))
        || ![&include_all, &made, gone].iter().all(|part| top.contains(*part))
    {
        return None;
    }
    let place = format!("doorbell_place_{prefix}");
    let known = format!(
        "{include_all}{include}\
         extern unsigned char {place}[];\n\
         static {root}* const vlSelf = reinterpret_cast<{root}*>({place} + __builtin_offsetof({all}, TOP));\n"
    );
    for text in texts {
        *text = text
            .replacen(&include, &known, 1)
            .replace(&format!("({root}* vlSelf) {{\n"), &format!("({root}*) {{\n"));
    }
    let room = format!(
        "{include_all}\
         #include <new>\n\
         alignas({all}) unsigned char {place}[sizeof({all})];\n\
         static bool doorbell_taken = false;\n\
         static void* doorbell_take() {{\n\
         if (doorbell_taken) vl_fatal(\"\", 0, \"\", \"there is room for one device: drop it before another is made\");\n\
         doorbell_taken = true;\n\
         return {place};\n\
         }}\n"
    );
    let top = top
        .replacen(&include_all, &room, 1)
        .replace(&made, &format!("vlSymsp{{::new (doorbell_take()) {all}("))
        .replace(gone, &format!("vlSymsp->~{all}();\ndoorbell_taken = false;"));
    Some(top)
}

/// Moves the report of a failed assertion into a function that does not return, so that the evaluation ends there. Otherwise a browser
/// keeps the code of the branch in the hot path, and spills variables that are live across its call to memory.
pub fn fail_elsewhere(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("VL_WRITEF(") {
        out += &rest[..at];
        rest = &rest[at..];
        let words = last_words(rest).unwrap_or_default();
        if words.is_empty() {
            out += "VL_WRITEF(";
            rest = &rest["VL_WRITEF(".len()..];
        } else {
            out +=
                &format!("doorbell_fail([=] {{\n{}\n}});", words.replace("vlSymsp->", "vlSelf->vlSymsp->"));
            rest = &rest[words.len()..];
        }
    }
    out + rest
}

/// The statements at the start of `text`, if they are the rest of a block that prints a message and stops.
fn last_words(text: &str) -> Option<&str> {
    let said = enclosed(&text["VL_WRITEF".len()..], '(', ')')?;
    let behind = &text["VL_WRITEF()".len() + said.len()..];
    let stop = behind.strip_prefix(';')?.trim_start();
    if !stop.starts_with("VL_STOP_MT(") {
        return None;
    }
    let (_, rest) = stop.split_once(';')?;
    rest.trim_start().starts_with('}').then(|| &text[..text.len() - rest.len()])
}
