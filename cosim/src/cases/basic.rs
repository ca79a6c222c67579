//! Decoding, registers, errors.

use doorbell_contract::{
    Counter, DEVICE_ID, DescFlags, ErrorCode, HwDesc, PREFIX_NONE, Register, State, Status,
};
use doorbell_engine::Digest;
use doorbell_host::{Device, QueueConfig};

use super::support::{agree, drain, equal, holds, laid_out, policy, refused, settle, tokens};
use super::{Case, CaseError, Rtl};
use crate::config::RtlConfig;

pub const BASIC_DECODE: Case = Case {
    name: "basic decode",
    about: "a few DECODEs of different lengths: completions, tokens and counters",
    setup: Default::default,
    script: basic_decode,
    portable: true,
};

fn basic_decode(rtl: &mut Rtl) -> Result<(), CaseError> {
    let lengths = [5, 1, 16, 17, 33, 2, 100, 15];
    let descs =
        laid_out((0..).zip(lengths).map(|(id, tokens)| HwDesc::decode(id, 10 * id, tokens).with_seed(7)));
    let completions = agree(rtl, &descs)?;

    // Not only the model: the policy itself.
    let first: Vec<u32> = policy(&descs[0]);
    equal("tokens of descriptor 0", tokens(rtl, &descs[0], 5)?, first.clone())?;
    equal("digest of descriptor 0", completions[0].result, Digest::of(&first).value())?;

    settle(rtl)?;
    let total: u32 = lengths.iter().sum();
    equal("counter TOKENS", rtl.counter(Counter::Tokens)?, total.into())?;
    equal("counter DESCRIPTORS", rtl.counter(Counter::Descriptors)?, 8)?;
    equal("counter COMPLETIONS", rtl.counter(Counter::Completions)?, 8)?;
    equal("counter READ_BEATS", rtl.counter(Counter::ReadBeats)?, 8)
}

pub const REGISTERS: Case = Case {
    name: "registers",
    about: "identity, refusals (SLVERR) that change nothing, configuration locked while active",
    setup: Default::default,
    script: registers,
    portable: true,
};

fn registers(rtl: &mut Rtl) -> Result<(), CaseError> {
    equal("ID", rtl.read(Register::Id)?, DEVICE_ID)?;
    let workers = rtl.platform().workers();
    equal("CAPABILITY[7:0]", rtl.read(Register::Capability)? & 0xFF, workers)?;
    equal("STATE", rtl.read(Register::State)?, (State::ACTIVE | State::IDLE).bits())?;

    for register in [Register::Id, Register::Version, Register::State, Register::Status, Register::SqSize] {
        let before = rtl.read(register)?;
        refused(rtl, register, !before)?;
        equal(format!("{} after a refused write", register.name()), rtl.read(register)?, before)?;
    }
    for offset in [0x080, 0x0FC, 0x180, 0xFFC] {
        let platform = rtl.platform_mut();
        equal(format!("read of {offset:#x}"), platform.read_offset(offset).map_err(device)?, (0, false))?;
        equal(format!("write of {offset:#x}"), platform.write_bytes(offset, 1, 0xF).map_err(device)?, false)?;
    }
    let before = rtl.read(Register::Irq)?;
    for strobe in [0x0, 0x1, 0x7, 0xE] {
        let okay = rtl.platform_mut().write_bytes(Register::Irq.offset(), 1, strobe).map_err(device)?;
        equal(format!("write of IRQ with strobes {strobe:#x}"), okay, false)?;
    }
    equal("IRQ after refused writes", rtl.read(Register::Irq)?, before)?;

    rtl.disable()?;
    for value in [0, workers + 1] {
        refused(rtl, Register::Workers, value)?;
    }
    for register in [Register::SqBaseLo, Register::CqBaseLo, Register::TokenSizeLo, Register::KvSizeLo] {
        rtl.write(register, 0x40)?;
        equal(format!("{} read back", register.name()), rtl.read(register)?, 0x40)?;
    }
    // The driver writes the whole configuration anew.
    rtl.enable()?;
    agree(rtl, &laid_out([HwDesc::decode(1, 0, 20)])).map(drop)
}

fn device(error: crate::CosimError) -> CaseError {
    CaseError::Device(error.into())
}

pub const ERROR_CODES: Case = Case {
    name: "error codes",
    about: "every way to be malformed completes as ERROR, writes no token, and the next descriptor runs (R2, R10)",
    setup: || {
        let queue =
            QueueConfig { token_bytes: 4096, kv_bytes: 4096, length_limit: 1000, ..Default::default() };
        (RtlConfig::default(), queue)
    },
    script: error_codes,
    portable: true,
};

fn error_codes(rtl: &mut Rtl) -> Result<(), CaseError> {
    use ErrorCode as E;
    let good = HwDesc::decode(9, 10, 20);
    let cow = good.with_flags(DescFlags::COW_PREFIX);
    let resident = good.with_flags(DescFlags::RESIDENT);
    let cases = [
        (HwDesc { opcode: 4, ..good }, E::BadOpcode),
        (HwDesc { opcode: 2, ..good }, E::BadOpcode),
        (HwDesc { flags: 0x20, ..good }, E::ReservedSet),
        (HwDesc { reserved: 1, ..good }, E::ReservedSet),
        (HwDesc { reserved: 0x8000, ..HwDesc::stop(9) }, E::ReservedSet),
        (HwDesc { model_id: 1, ..good }, E::BadModel),
        (HwDesc { reward_model_id: 1, ..resident }, E::BadModel),
        (HwDesc { reward_model_id: 1, ..good }, E::None),
        (HwDesc { max_tokens: 0, ..good }, E::BadLength),
        (HwDesc { seq_len: 981, ..good }, E::BadLength),
        (HwDesc { seq_len: 980, ..good }, E::None),
        (HwDesc { seq_len: u32::MAX, max_tokens: 2, ..good }, E::BadLength),
        (HwDesc { seq_len: 1001, ..HwDesc::prefill(0, 0) }, E::BadLength),
        (HwDesc { delta_offset: 2, ..good }, E::BadRegion),
        (HwDesc { delta_offset: 4096 - 76, ..good }, E::BadRegion),
        (HwDesc { delta_offset: 4096 - 80, ..good }, E::None),
        (HwDesc { delta_offset: 0xFFFF_FFFF_FFFF_FFFC, ..good }, E::BadRegion),
        (HwDesc { kv_offset: 4096, ..good }, E::BadRegion),
        (HwDesc { kv_offset: 4095, ..good }, E::None),
        (HwDesc { prefix_id: PREFIX_NONE, ..cow }, E::BadPrefix),
        (HwDesc { prefix_id: 0, ..cow }, E::None),
        (HwDesc::prefill(PREFIX_NONE, 3), E::BadPrefix),
        // The first check that applies decides.
        (HwDesc { opcode: 77, flags: 0xFF, max_tokens: 0, ..good }, E::BadOpcode),
        (HwDesc { model_id: 3, max_tokens: 0, delta_offset: 1, ..good }, E::BadModel),
        (HwDesc { max_tokens: 0, delta_offset: 1, ..good }, E::BadLength),
        (HwDesc::nop(), E::None),
    ];
    // One at a time, because all write the same place.
    for (number, (desc, code)) in cases.into_iter().enumerate() {
        let found = agree(rtl, &[HwDesc { user_data: 0, ..desc }])?[0];
        equal(format!("error of case {number}, {desc:?}"), found.error, code as u8)?;
    }
    let malformed = cases.iter().filter(|(_, code)| *code != E::None).count() as u64;
    equal("counter ERRORS", rtl.counter(Counter::Errors)?, malformed)?;

    // A slot whose check word is wrong, or right for another index, is not executed (R2).
    let key = *rtl.submission_queue().key();
    let torn = [good.seal(&key, 0), HwDesc { check: 0, ..good }];
    let before = rtl.submission_queue().tail();
    holds("the running index is past the replayed one", before > 0, "above 0", before)?;
    rtl.submission_queue().push_unsealed(&torn)?;
    rtl.ring()?;
    for completion in drain(rtl)? {
        equal("status of a torn slot", completion.status, Status::Error as u8)?;
        equal("error of a torn slot", completion.error, E::BadCheck as u8)?;
    }
    Ok(())
}
