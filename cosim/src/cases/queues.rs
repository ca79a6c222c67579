//! The rings, the doorbells, the interrupt, and what passes between descriptors.

use doorbell_contract::{Counter, DescFlags, HwDesc, Irq, Register};
use doorbell_host::{Device, QueueConfig};

use super::support::{agree, compare, drain, equal, holds, in_order, laid_out, model, refused, run};
use super::{Case, CaseError, Rtl};
use crate::config::RtlConfig;

fn pass(rtl: &mut Rtl, cycles: u64) -> Result<(), CaseError> {
    rtl.platform_mut().run(cycles).map_err(|error| CaseError::Device(error.into()))
}

pub const COMPLETION_BACKPRESSURE: Case = Case {
    name: "completion backpressure",
    about: "a completion queue of 2 that the host does not release: nothing is overwritten, nothing lost (R4)",
    setup: || (RtlConfig::default(), QueueConfig { cq_depth: 2, ..Default::default() }),
    script: completion_backpressure,
    portable: true,
};

fn completion_backpressure(rtl: &mut Rtl) -> Result<(), CaseError> {
    let descs =
        laid_out((0..400).map(|k| if k % 3 == 0 { HwDesc::nop() } else { HwDesc::decode(k, 0, 1 + k % 40) }));
    equal("descriptors taken", rtl.submit(&descs)?, 400)?;
    pass(rtl, 20_000)?;
    equal("completions written to a full queue (R4)", rtl.counter(Counter::Completions)?, 2)?;
    let stalled = rtl.counter(Counter::StallCq)?;
    holds("counter STALL_CQ", stalled > 1000, "over 1000", stalled)?;
    // The stall reaches back to the fetch: it does not swallow the whole queue.
    let consumed = rtl.counter(Counter::Descriptors)?;
    holds("descriptors consumed behind a full queue (R4)", consumed < 400, "below 400", consumed)?;
    pass(rtl, 20_000)?;
    equal("completions written later (R4)", rtl.counter(Counter::Completions)?, 2)?;
    equal("descriptors consumed later (R4)", rtl.counter(Counter::Descriptors)?, consumed)?;

    let found = in_order(drain(rtl)?)?;
    equal("completions in all (R3)", found.len(), 400)?;
    let mut model = model(rtl)?;
    let expected = in_order(run(&mut model, &descs)?)?;
    compare(rtl, &model, &descs, &found, &expected)
}

pub const DOORBELL_GATING: Case = Case {
    name: "doorbell gating",
    about: "without a doorbell the device does not even read; refused doorbells change nothing (R1)",
    setup: || (RtlConfig::default(), QueueConfig { sq_depth: 8, ..Default::default() }),
    script: doorbell_gating,
    portable: true,
};

fn doorbell_gating(rtl: &mut Rtl) -> Result<(), CaseError> {
    let descs = laid_out((0..6).map(|id| HwDesc::decode(id, 0, 10)));
    rtl.submission_queue().push(&descs)?;
    pass(rtl, 1000)?;
    equal("beats read before the doorbell (R1)", rtl.counter(Counter::ReadBeats)?, 0)?;

    // Part of what was written.
    rtl.write(Register::Doorbell, 2)?;
    pass(rtl, 1000)?;
    equal("beats read after a doorbell for two (R1)", rtl.counter(Counter::ReadBeats)?, 2)?;
    equal("completions after a doorbell for two", rtl.counter(Counter::Completions)?, 2)?;

    // More than a ring ahead of what was consumed, and backwards.
    for tail in [11, 1, u32::MAX] {
        refused(rtl, Register::Doorbell, tail)?;
    }
    // More than was written, and backwards.
    for head in [3, u32::MAX] {
        refused(rtl, Register::CqHead, head)?;
    }
    equal("overflow count of STATUS", rtl.read(Register::Status)? & 0xFF, 5)?;
    pass(rtl, 1000)?;
    equal("beats read after refused doorbells", rtl.counter(Counter::ReadBeats)?, 2)?;

    rtl.ring()?;
    equal("completions in all", drain(rtl)?.len(), 6)?;
    rtl.disable()?;
    refused(rtl, Register::Doorbell, 6)?;
    refused(rtl, Register::CqHead, 6)
}

pub const INDEX_WRAP: Case = Case {
    name: "index wrap",
    about: "rings, phases and 2^32 wrap under traffic (R13)",
    setup: || {
        let queue = QueueConfig {
            sq_depth: 8,
            cq_depth: 4,
            sq_start: u32::MAX - 20,
            cq_start: u32::MAX - 33,
            ..Default::default()
        };
        (RtlConfig::default(), queue)
    },
    script: index_wrap,
    portable: true,
};

fn index_wrap(rtl: &mut Rtl) -> Result<(), CaseError> {
    let descs = laid_out((0..120).map(|k| HwDesc::decode(k % 9, k, 1 + k % 20)));
    agree(rtl, &descs)?;
    let tail = rtl.read(Register::Doorbell)?;
    equal("SQ tail after the wrap", tail, (u32::MAX - 20).wrapping_add(120))?;
    equal("CQ head after the wrap", rtl.read(Register::CqHead)?, (u32::MAX - 33).wrapping_add(120))
}

pub const INTERRUPT: Case = Case {
    name: "interrupt",
    about: "one interrupt per arming, also for a host that arms late (R14)",
    setup: Default::default,
    script: interrupt,
    portable: true,
};

fn interrupt(rtl: &mut Rtl) -> Result<(), CaseError> {
    let asks = |id| HwDesc::decode(id, 0, 10).with_flags(DescFlags::INTERRUPT);
    let line = |rtl: &Rtl| rtl.platform().interrupt();

    // Nothing is armed, nobody asks.
    run(rtl, &[asks(1)])?;
    equal("irq_o without arming", line(rtl), false)?;
    rtl.write(Register::Irq, Irq::ARMED.bits())?;
    run(rtl, &[HwDesc::decode(2, 0, 10)])?;
    equal("irq_o after a completion that did not ask", line(rtl), false)?;

    rtl.submit(&[asks(3)])?;
    pass(rtl, 2000)?;
    equal("irq_o after one that asked", line(rtl), true)?;
    equal("IRQ", rtl.read(Register::Irq)?, Irq::PENDING.bits())?;
    drain(rtl)?;

    // Armed anew: PENDING clears, and what was released does not fire again.
    rtl.write(Register::Irq, Irq::ARMED.bits())?;
    pass(rtl, 100)?;
    equal("irq_o after arming anew", line(rtl), false)?;
    rtl.write(Register::Irq, 0)?;

    // Late arming: the completion is there, visible and not released.
    rtl.submit(&[asks(4), asks(5)])?;
    pass(rtl, 2000)?;
    equal("irq_o while disarmed", line(rtl), false)?;
    rtl.write(Register::Irq, Irq::ARMED.bits())?;
    pass(rtl, 100)?;
    equal("irq_o after arming late", line(rtl), true)?;
    drain(rtl)?;
    pass(rtl, 100)?;
    equal("IRQ: one interrupt for one arming", rtl.read(Register::Irq)?, Irq::PENDING.bits())
}

pub const SATURATED_FETCH: Case = Case {
    name: "saturated fetch",
    about: "one worker loses no cycle between descriptors of two tokens behind a memory latency of 64 cycles",
    setup: || {
        let rtl = RtlConfig { workers: 1, latency: 64..=64, ..Default::default() };
        (rtl, QueueConfig { workers: Some(1), ..Default::default() })
    },
    script: saturated_fetch,
    portable: false,
};

fn saturated_fetch(rtl: &mut Rtl) -> Result<(), CaseError> {
    let count = 1000;
    let descs = laid_out((0..count).map(|id| HwDesc::decode(id, 0, 2)));
    let before = rtl.counter(Counter::Idle)?;
    rtl.submit(&descs)?;
    pass(rtl, 3000)?;
    equal("counter TOKENS", rtl.counter(Counter::Tokens)?, 2 * u64::from(count))?;
    // One cycle from idle to the first token, none between descriptors.
    equal("cycles of the worker with a descriptor", rtl.counter(Counter::Busy)?, 2 * u64::from(count) + 1)?;
    equal("counter STALL_WRITE", rtl.counter(Counter::StallWrite)?, 0)?;
    // Until the first descriptor has arrived, and after the last.
    let fetch = rtl.counter(Counter::StallFetch)?;
    holds("counter STALL_FETCH", fetch < 90, "one latency and the pipeline", fetch)?;
    let idle = rtl.counter(Counter::Idle)? - before;
    holds(
        "worker cycles without a descriptor",
        idle < 1200,
        "those before the first and after the last",
        idle,
    )?;
    equal("completions", drain(rtl)?.len(), count as usize)
}

pub const WAIT_STATES: Case = Case {
    name: "wait states",
    about: "wait states stretch every token and change none",
    setup: || {
        let rtl = RtlConfig { workers: 1, ..Default::default() };
        (rtl, QueueConfig { wait_states: 7, workers: Some(1), ..Default::default() })
    },
    script: wait_states,
    portable: false,
};

fn wait_states(rtl: &mut Rtl) -> Result<(), CaseError> {
    agree(rtl, &laid_out((0..10).map(|id| HwDesc::decode(id, 0, 1 + 3 * id))))?;
    let tokens = rtl.counter(Counter::Tokens)?;
    equal("counter WAIT", rtl.counter(Counter::Wait)?, 7 * tokens)?;
    // One cycle from idle to the first token's wait.
    equal("counter BUSY", rtl.counter(Counter::Busy)?, 8 * tokens + 1)
}
