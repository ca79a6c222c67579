//! Memories that are slow, out of order, or wrong.

use doorbell_contract::{DescFlags, DeviceFault, ErrorCode, HwDesc, Register, Status};
use doorbell_host::{Device, QueueConfig};

use super::support::{agree, drain, equal, laid_out, statuses};
use super::{Case, CaseError, Rtl};
use crate::config::{Fault, RtlConfig};

pub const RANDOM_MEMORY: Case = Case {
    name: "random memory",
    about: "random latency, stalls on every channel and responses out of order change no answer (R6)",
    setup: || {
        let rtl = RtlConfig {
            workers: 4,
            latency: 3..=90,
            stall_percent: [30, 20, 40, 50, 10],
            reorder: true,
            ..Default::default()
        };
        let queue = QueueConfig {
            sq_depth: 64,
            cq_depth: 16,
            checkpoint_default: 24,
            eos_threshold: 300,
            reward_threshold: 0x6000,
            token_bytes: 1 << 18,
            ..Default::default()
        };
        (rtl, queue)
    },
    script: random_memory,
    portable: true,
};

fn random_memory(rtl: &mut Rtl) -> Result<(), CaseError> {
    let descs = laid_out((0..600).map(|k: u32| match k % 11 {
        0 => HwDesc::nop(),
        1 => HwDesc::prefill(k, 100),
        2 => HwDesc { max_tokens: 0, ..HwDesc::decode(k % 13, k, 1) },
        3 => HwDesc::decode(k % 13, k, 90).with_flags(DescFlags::RESIDENT),
        4 => HwDesc::decode(k % 13, k, 70).with_flags(DescFlags::EOS_STOPS | DescFlags::INTERRUPT),
        5 if k.is_multiple_of(4) => HwDesc::decode(k % 13, k, 9).with_flags(DescFlags::FENCE),
        _ => HwDesc::decode(k % 13, k, 1 + k * 29 % 80).with_seed(k),
    }));
    agree(rtl, &descs).map(drop)
}

pub const DMA_FAULT: Case = Case {
    name: "dma fault",
    about: "error answers of the memory complete as ERROR/DMA_FAULT, and the device goes on",
    setup: || {
        let faults = vec![Fault::ReadError { beat: 2 }, Fault::TokenWriteError { beat: 1 }];
        let rtl = RtlConfig { workers: 1, faults, ..Default::default() };
        (rtl, QueueConfig { workers: Some(1), ..Default::default() })
    },
    script: dma_fault,
    portable: false,
};

fn dma_fault(rtl: &mut Rtl) -> Result<(), CaseError> {
    // The second token line of the first descriptor is lost, and the third descriptor cannot be read.
    let descs = laid_out((0..5).map(|id| HwDesc::decode(id, 0, 40)));
    rtl.submit(&descs)?;
    let mut found = drain(rtl)?;
    let (done, error) = (Status::Done as u8, Status::Error as u8);
    equal("statuses", statuses(&found), vec![error, done, error, done, done])?;
    for broken in [found[0], found[2]] {
        equal("error code", broken.error, ErrorCode::DmaFault as u8)?;
    }
    equal("length of the DECODE that lost a line", found[0].final_seq_len, 40)?;
    let unread = (found[2].result, found[2].user_data, found[2].rollout_id, found[2].final_seq_len);
    equal("result and echoed fields of the slot that could not be read", unread, (2, 0, 0, 0))?;
    let fault = rtl.read(Register::Error)?;
    let both = DeviceFault::DMA_READ | DeviceFault::DMA_WRITE;
    equal("ERROR holds both faults", DeviceFault::from_bits_retain(fault), both)?;
    rtl.write(Register::Error, DeviceFault::DMA_READ.bits())?;
    equal("ERROR after one was cleared", rtl.read(Register::Error)?, DeviceFault::DMA_WRITE.bits())?;
    rtl.write(Register::Error, fault)?;
    equal("ERROR after it was cleared", rtl.read(Register::Error)?, 0)?;

    found.remove(2);
    equal("user_data of the others", found.iter().map(|c| c.user_data).collect(), vec![0, 1, 3, 4])?;
    agree(rtl, &descs).map(drop)
}
