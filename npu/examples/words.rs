//! Words for the bench of the decoder, each with what the decoder makes of it: lines of three numbers, the word, its form's number, its
//! error's code (`npu_pkg`).
//!
//!     cargo run --release -p doorbell-npu --example words -- SEED COUNT > FILE

use doorbell_npu::isa::{FORMS, Form};

fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let z = (*state ^ *state >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ z >> 31
}

fn say(word: u64) {
    let (form, code) = match Form::of(word) {
        Ok(found) => (FORMS.iter().position(|form| form == found).expect("it is one of them"), 0),
        Err(fault) => (0, fault.code()),
    };
    println!("{word:016x} {form:02x} {code:02x}");
}

fn main() {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<u64>().expect("SEED COUNT"));
    let (mut state, count) = (arguments.next().unwrap_or(1), arguments.next().unwrap_or(1000));
    // Every opcode with every function, kind and register …
    for opcode in 0..16u64 {
        for function in 0..64 {
            say(opcode << 60 | function << 54);
            say(opcode << 60 | function << 58 & 3 << 58 | (function >> 2) << 13);
            say(opcode << 60 | 3 << 58 | function << 52);
        }
    }
    for form in FORMS {
        let free = !form.reserved() & !form.select;
        for _ in 0..8 {
            say(form.value | next(&mut state) & free);
        }
        // … every bit that is 0 in a word of its kind, and every bit that says which kind it is, the other way.
        for bit in (0..64).filter(|bit| free >> bit & 1 == 0) {
            say((form.value | next(&mut state) & free) ^ 1 << bit);
        }
    }
    for _ in 0..count {
        let word = next(&mut state);
        say(word);
        say(word & next(&mut state) & next(&mut state) | (next(&mut state) % 9) << 60);
    }
}
