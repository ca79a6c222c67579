//! Disable, reset, and a clean start afterwards (R12).

use doorbell_contract::{Counter, HwDesc, Register, State};
use doorbell_host::{Device, QueueConfig};

use super::support::{agree, equal, holds, laid_out};
use super::{Case, CaseError, Rtl};
use crate::config::RtlConfig;

pub const DISABLE_WITH_FULL_QUEUE: Case = Case {
    name: "disable with full queue",
    about: "a full completion queue does not hold up a disable; nothing is written afterwards (R12)",
    setup: || (RtlConfig::default(), QueueConfig { cq_depth: 2, token_bytes: 1 << 16, ..Default::default() }),
    script: disable_with_full_queue,
    portable: true,
};

fn disable_with_full_queue(rtl: &mut Rtl) -> Result<(), CaseError> {
    for round in 0..5 {
        rtl.submit(&laid_out((0..200).map(|id| HwDesc::decode(id, 0, 20 + round))))?;
        // Ends at another place in each round.
        pass(rtl, [10, 100, 300, 1000, 5000][round as usize])?;
        rtl.disable()?;
        let snapshot = contents(rtl)?;
        // The memory itself fails the case if the device still accesses it (R12).
        pass(rtl, 1000)?;
        equal("shared memory after the disable (R12)", contents(rtl)?, snapshot)?;
        equal("STATE", rtl.read(Register::State)?, State::IDLE.bits())?;
        rtl.enable()?;
        equal("counter TOKENS after the start", rtl.counter(Counter::Tokens)?, 0)?;
        agree(rtl, &laid_out((0..30).map(|id| HwDesc::decode(id, 3, 1 + id))))?;
    }
    Ok(())
}

pub const RESET_IN_MID_RUN: Case = Case {
    name: "reset in mid-run",
    about: "the reset pin at any moment: registers at their reset values, queues empty, a clean start (R12)",
    setup: || (RtlConfig::default(), QueueConfig { token_bytes: 1 << 16, ..Default::default() }),
    script: reset_in_mid_run,
    portable: true,
};

fn reset_in_mid_run(rtl: &mut Rtl) -> Result<(), CaseError> {
    for cycles in [1, 7, 20, 33, 64, 150, 900] {
        rtl.submit(&laid_out((0..200).map(|id| HwDesc::decode(id, 0, 30))))?;
        pass(rtl, cycles)?;
        rtl.platform_mut().reset(3).map_err(|error| CaseError::Device(error.into()))?;
        for register in Register::ALL {
            if let Some(reset) = register.reset() {
                equal(format!("{} after reset", register.name()), rtl.read(register)?, reset)?;
            }
        }
        let snapshot = contents(rtl)?;
        pass(rtl, 500)?;
        equal("shared memory after the reset (R12)", contents(rtl)?, snapshot)?;
        rtl.disable()?;
        rtl.enable()?;
        let completions = agree(rtl, &laid_out((0..30).map(|id| HwDesc::decode(id, 3, 1 + id))))?;
        holds("completions after the reset", completions.len() == 30, 30, completions.len())?;
    }
    Ok(())
}

fn pass(rtl: &mut Rtl, cycles: u64) -> Result<(), CaseError> {
    rtl.platform_mut().run(cycles).map_err(|error| CaseError::Device(error.into()))
}

/// The completion queue and the token region, as words.
fn contents(rtl: &Rtl) -> Result<Vec<u32>, CaseError> {
    let (start, end) = (rtl.layout().cq, rtl.layout().kv);
    let mut words = vec![0; (end - start) / 4];
    rtl.memory().load_u32s(start, &mut words)?;
    Ok(words)
}
