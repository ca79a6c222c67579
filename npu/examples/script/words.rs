//! Words for the bench of the decoder, each with what the decoder makes of it: lines of three numbers, the word, its form's number, its
//! error's code (`npu_pkg`).

use super::Draws;
use doorbell_npu::isa::{FORMS, Form};

fn say(word: u64) {
    let (form, code) = match Form::of(word) {
        Ok(found) => (FORMS.iter().position(|form| form == found).expect("it is one of them"), 0),
        Err(fault) => (0, fault.code()),
    };
    println!("{word:016x} {form:02x} {code:02x}");
}

/// All that there is of words once, and some by chance.
pub fn print(seed: u64, count: u64) {
    let mut draws = Draws(seed);
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
            say(form.value | draws.next() & free);
        }
        // … every bit that is 0 in a word of its kind, and every bit that says which kind it is, the other way.
        for bit in (0..64).filter(|bit| free >> bit & 1 == 0) {
            say((form.value | draws.next() & free) ^ 1 << bit);
        }
    }
    for _ in 0..count {
        let word = draws.next();
        say(word);
        say(word & draws.next() & draws.next() | (draws.next() % 9) << 60);
    }
}
