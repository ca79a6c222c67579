//! What `build/module.rs` makes of text as Verilator writes it.

#[path = "../build/inputs.rs"]
#[expect(dead_code, reason = "one function of it is wanted")]
mod inputs;
#[path = "../build/module.rs"]
mod module;

const CYCLE: &str = "#include \"verilated.h\"\n#include \"Vtop___024root.h\"\n\n\
                     VL_INLINE_OPT void Vtop___024root___nba_sequent__TOP__0(Vtop___024root* vlSelf) {\n    \
                     vlSelf->on_q = vlSelf->next;\n}\n";
const TOP: &str = "#include \"Vtop__Syms.h\"\n    , vlSymsp{new Vtop__Syms(contextp(), name, this)}\n\
                   Vtop::~Vtop() {\n    delete vlSymsp;\n}\n";

#[test]
fn the_model_lies_at_an_address_that_is_known() {
    let mut texts = [CYCLE.to_owned()];
    let top = module::place(&mut texts, TOP, "Vtop").expect("the text is known");
    assert!(texts[0].contains("extern unsigned char doorbell_place_Vtop[];"), "{}", texts[0]);
    assert!(texts[0].contains("nba_sequent__TOP__0(Vtop___024root*) {"), "{}", texts[0]);
    assert!(top.contains("vlSymsp{::new (doorbell_take()) Vtop__Syms(contextp(), name, this)}"), "{top}");
    assert!(!top.contains("delete"), "{top}");
}

#[test]
fn what_is_not_known_stays() {
    let mut texts = [CYCLE.to_owned()];
    assert_eq!(module::place(&mut texts, &TOP.replace("delete", "free"), "Vtop"), None);
    assert_eq!(texts[0], CYCLE);
}

#[test]
fn a_failed_assertion_is_a_function_of_its_own() {
    let block = "    if (VL_UNLIKELY(vlSelf->wrong)) {\n        \
                 VL_WRITEF(\"[%0t] %%Error: R4 (a slot); it is not released\\n\",64,vlSymsp->name());\n        \
                 VL_STOP_MT(\"ring.sv\", 41, \"\");\n    }\n";
    let expected = "    if (VL_UNLIKELY(vlSelf->wrong)) {\n        \
                    doorbell_fail([=] {\n\
                    VL_WRITEF(\"[%0t] %%Error: R4 (a slot); it is not released\\n\",64,vlSelf->vlSymsp->name());\n        \
                    VL_STOP_MT(\"ring.sv\", 41, \"\");\n});\n    }\n";
    assert_eq!(module::fail_elsewhere(&format!("{block}{block}")), format!("{expected}{expected}"));
}

#[test]
fn what_says_something_and_goes_on_stays() {
    let says = "if (vlSelf->on_q) {\n    VL_WRITEF(\"on\\n\");\n    vlSelf->told_q = 1U;\n}\n";
    let goes_on = "if (vlSelf->on_q) {\n    VL_WRITEF(\"on\\n\");\n    VL_STOP_MT(\"a.sv\", 1, \"\");\n    vlSelf->told_q = 1U;\n}\n";
    for text in [says, goes_on] {
        assert_eq!(module::fail_elsewhere(text), text);
    }
}
