//! What `build/inputs.rs` leaves out of a clock edge, on text as Verilator writes it.

#[path = "../build/inputs.rs"]
mod inputs;

use rstest::rstest;

/// Of a model with an input, whose function for inputs writes `open` and the words of `wide`.
fn tuned(statement: &str) -> String {
    let inputs = "VL_INLINE_OPT void Vtop___024root___ico_sequent__TOP__0(Vtop___024root* vlSelf) {\n    \
                  // Body\n    \
                  vlSelf->open = (vlSelf->valid_i & vlSelf->on_q);\n    \
                  VL_ASSIGN_W(64, vlSelf->wide, vlSelf->open);\n}\n";
    let edge = format!(
        "VL_INLINE_OPT void Vtop___024root___nba_sequent__TOP__0(Vtop___024root* vlSelf) {{\n    // Body\n    \
         vlSelf->on_q = vlSelf->next;\n    {statement}\n}}\n"
    );
    let mut texts = [edge, inputs.to_owned()];
    inputs::leave_to_inputs(&mut texts);
    assert_eq!(texts[1], inputs, "what follows from the inputs stays whole");
    texts[0].clone()
}

#[rstest]
#[case::written_anew("vlSelf->open = (vlSelf->valid_i & vlSelf->on_q);")]
#[case::handed_to_a_function("VL_ASSIGN_W(64, vlSelf->wide, vlSelf->on_q);")]
#[case::behind_a_test(
    "if (vlSelf->on_q) {\n        vlSelf->open = 1U;\n        vlSelf->wide[1U] = 0U;\n    }"
)]
fn what_the_inputs_decide_anew_is_left_to_them(#[case] statement: &str) {
    let text = tuned(statement);
    assert!(!text.contains(statement), "{text}");
    assert!(text.contains("vlSelf->on_q = vlSelf->next;"), "{text}");
}

#[rstest]
#[case::state("vlSelf->count_q = vlSelf->open;")]
#[case::state_beside_it(
    "if (vlSelf->open) {\n        vlSelf->open = 0U;\n        vlSelf->count_q = 0U;\n    }"
)]
#[case::a_comparison("if ((vlSelf->open == 1U)) {\n        vlSelf->count_q = 2U;\n    }")]
#[case::a_message("if (vlSelf->open) {\n        VL_WRITEF(\"R3: =\");\n        vlSelf->open = 0U;\n    }")]
#[case::an_end("if (vlSelf->open) {\n        VL_STOP_MT(\"a\", 1, \"\");\n        vlSelf->open = 0U;\n    }")]
#[case::an_index_is_no_write("vlSelf->mem[vlSelf->open] = 1U;")]
fn everything_else_stays(#[case] statement: &str) {
    let text = tuned(statement);
    assert!(text.contains(statement), "{text}");
}
