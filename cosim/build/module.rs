//! What a module of WebAssembly gains from, and a native program does not. It is read off Verilator's text; what looks otherwise stays
//! as it is.

/// Puts the state of the model at an address that the linker knows, so there is room for one model. Each load and store then names its
/// address. Behind a pointer most of them take an addition first, and the pointer takes a register. `texts` are those of a cycle, `top` is
/// what makes the model, and so is the answer; none where Verilator writes something else.
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
