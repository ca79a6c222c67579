//! Memory that answers with an error (R10, "Which error").

use doorbell_contract::{DescFlags, DeviceFault, ErrorCode, PolicyMode, Register, Status};
use rstest::rstest;

use crate::host::{BLOCK, Draws, Host, ended, model};

/// A fault of what a DECODE reads or writes is its own, and ERROR says which it was.
#[rstest]
fn r10_memory_that_answers_with_an_error(
    #[values("sequence", "table", "token", "keys", "next keys", "next token")] what: &str,
) {
    let mut host = Host::new();
    let mut sequence = host.sequence(&Draws(1).prompt(40), 100, 1.0);
    host.prefill(&mut sequence);
    let layout = host.driver.layout();
    let kv = layout.kv + sequence.kv_offset as usize;
    let tokens = layout.tokens + sequence.record.prompt as usize;
    let block = |entry: usize| layout.arenas[0] + (u64::from(sequence.table[entry]) * BLOCK) as usize;
    let (offset, bytes, is_write) = match what {
        "sequence" => (kv, 64, false),
        "table" => (kv + 64, 8, false),
        "token" => (tokens + 4 * 39, 4, false),
        "keys" => (block(0) + 64, 8, false),
        "next keys" => (block(1) + 64 + 32 * 9, 8, true),
        _ => (tokens + 4 * 40, 4, true),
    };
    let desc = sequence.decode(6);
    // Scaled accesses are hit one in so many: again until one is.
    let mut end = None;
    for seed in 0..200 {
        let first = host.driver.memory().bus_address() + offset as u64;
        let range = first..=first + bytes - 1;
        crate::set_fault(host.driver.platform_mut(), Some(range), is_write, seed);
        let found = host.run(&[desc])[0];
        if ended(&found) == Status::Error {
            end = Some(found);
            break;
        }
    }
    crate::set_fault(host.driver.platform_mut(), None, false, 0);
    let end = end.expect("one of 200 was hit");
    assert_eq!(end.error, ErrorCode::DmaFault as u8);
    let added = end.final_seq_len - 40;
    match what {
        "next keys" => assert_eq!(added, 2),
        // A device may learn of it behind the tokens that follow.
        "next token" => assert!(added <= 6, "{added}"),
        _ => assert_eq!(added, 0),
    }
    let fault = DeviceFault::from_bits_retain(host.driver.read(Register::Error).unwrap());
    assert_eq!(fault, if is_write { DeviceFault::DMA_WRITE } else { DeviceFault::DMA_READ }, "{what}");
    // Others go on, and so does it.
    host.decode(&mut sequence, 6, DescFlags::LOGP);
}

#[rstest]
fn r10_a_policy_whose_memory_answers_with_an_error(#[values("header", "image", "file")] what: &str) {
    let mut end = None;
    for seed in 0..200 {
        let mut host = Host::new();
        let (desc, record) = host.place(2, &model(1), PolicyMode::Wait);
        let layout = host.driver.layout();
        let (offset, bytes) = match what {
            "header" => (layout.tokens, 16),
            "image" => (layout.tokens + 64, 64),
            _ => (layout.model + record.offset as usize, 1 << 15),
        };
        let first = host.driver.memory().bus_address() + offset as u64;
        let range = first..=first + bytes - 1;
        crate::set_fault(host.driver.platform_mut(), Some(range), false, seed);
        let found = host.run(&[desc])[0];
        if ended(&found) == Status::Error {
            end = Some(found);
            break;
        }
    }
    assert_eq!(end.expect("one of 200 was hit").error, ErrorCode::DmaFault as u8);
}
