//! The monitor of the server: a device that moves data elsewhere than in what its hosts gave ends the server with an error that says so.
//! Each mistake is planted between the server and a device that is right.

mod common;

use std::time::{Duration, Instant};

use doorbell_contract::{HwDesc, Place, Register, SqKey};
use doorbell_cosim::{FaultKind, RtlConfig, RtlPlatform};
use doorbell_host::memory::{PAGE, SIMULATED_BUS_ADDRESS};
use doorbell_host::{DeviceError, FunctionMemory, Move, Pages, Platform, SharedMemory};
use doorbell_vfio::protocol::{self, command, dma};
use rstest::rstest;

use common::Served;
use common::raw::Raw;

/// What a device, or the way to it, may get wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    /// Nothing.
    None,
    /// A range stays after it was taken back.
    Keeps,
    /// A function finds the memory that function 0 was given there.
    Others,
    /// What is to be read only is written.
    Writes,
    /// Bus Master Enable is 1 for ever.
    Masters,
}

/// A device behind a mistake.
struct Wrong<D> {
    device: D,
    mistake: Mistake,
    /// What function 0 was given.
    first: Option<SharedMemory>,
}

impl<D: FunctionMemory> FunctionMemory for Wrong<D> {
    fn map_range(&mut self, function: u8, memory: SharedMemory, writable: bool) {
        let others = self.first.clone().filter(|_| self.mistake == Mistake::Others && function != 0);
        if function == 0 {
            self.first = Some(memory.clone());
        }
        let writable = writable || self.mistake == Mistake::Writes;
        self.device.map_range(function, others.unwrap_or(memory), writable);
    }

    fn unmap_range(&mut self, function: u8, address: u64, bytes: u64) {
        if self.mistake != Mistake::Keeps {
            self.device.unmap_range(function, address, bytes);
        }
    }

    fn set_bus_master(&mut self, function: u8, may: bool) {
        self.device.set_bus_master(function, may || self.mistake == Mistake::Masters);
    }

    fn refused_accesses(&self, function: u8) -> u64 {
        self.device.refused_accesses(function)
    }

    fn messages(&self, queue: u8) -> u64 {
        self.device.messages(queue)
    }

    fn take_moves(&mut self) -> Vec<Move> {
        self.device.take_moves()
    }
}

impl<D: FunctionMemory> Platform for Wrong<D> {
    fn name(&self) -> &str {
        self.device.name()
    }

    fn map(&mut self, bytes: usize) -> Result<SharedMemory, DeviceError> {
        self.device.map(bytes)
    }

    fn write_register(&mut self, register: Register, value: u32) -> Result<(), DeviceError> {
        self.device.write_register(register, value)
    }

    fn read_register(&mut self, register: Register) -> Result<u32, DeviceError> {
        self.device.read_register(register)
    }

    fn advance(&mut self, want: usize) -> Result<(), DeviceError> {
        self.device.advance(want)
    }
}

impl<D: FunctionMemory> Pages for Wrong<D> {
    fn write_at(&mut self, place: Place, register: Register, value: u32) -> Result<(), DeviceError> {
        self.device.write_at(place, register, value)
    }

    fn read_at(&mut self, place: Place, register: Register) -> Result<u32, DeviceError> {
        self.device.read_at(place, register)
    }
}

fn serve(kind: &str, mistake: Mistake) -> Served {
    let first = None;
    match kind {
        "model" => Served::new(Wrong { device: common::model(2), mistake, first }, 2),
        _ => Served::new(Wrong { device: common::rtl(2), mistake, first }, 2),
    }
}

const RW: u32 = dma::READ | dma::WRITE;
/// Pages of a host: of descriptors, of completions, of tokens.
const BYTES: usize = 3 * PAGE;

/// Gives a function three pages, with descriptors in the first of them, and starts its queue pair there; it has published nothing.
fn start(raw: &mut Raw, flags: u32, bus_master: bool) -> SharedMemory {
    assert_eq!(raw.write(protocol::CONFIG, 4, &[if bus_master { 6 } else { 2 }, 0]), 0);
    let base = SIMULATED_BUS_ADDRESS;
    let memory = raw.map(BYTES, base, flags);
    let slots = memory.slots::<8>(0, 8).unwrap();
    for slot in 0..8 {
        let desc = HwDesc::decode(slot, 0, 4).with_delta_offset(u64::from(slot) * 64);
        slots.store(slot, bytemuck::cast(desc.seal(&SqKey::new(0), slot)));
    }
    for (k, low) in [Register::SqBaseLo, Register::CqBaseLo, Register::TokenBaseLo].into_iter().enumerate() {
        let at = base + (k * PAGE) as u64;
        raw.write_register(low, Place::FIRST, at as u32);
        raw.write_register(Register::at(low as u32 + 4).unwrap().0, Place::FIRST, (at >> 32) as u32);
    }
    for (register, value) in [
        (Register::SqSize, 8),
        (Register::CqSize, 8),
        (Register::TokenSizeLo, 4096),
        (Register::LengthLimit, 1 << 20),
        (Register::Control, 1),
    ] {
        raw.write_register(register, Place::FIRST, value);
    }
    assert_eq!(raw.read_register(Register::Error, Place::FIRST), 0);
    memory
}

/// Publishes the descriptors; whoever serves may have gone by then.
fn publish(raw: &mut Raw) {
    let at = u64::from(Register::Doorbell.address(Place::FIRST)).to_le_bytes();
    let body = [&at[..], &protocol::words(&[protocol::BAR0, 4]), &7u32.to_le_bytes()].concat();
    raw.try_ask(command::REGION_WRITE, &body);
}

#[rstest]
fn a_device_that_leaves_what_it_was_given_ends_the_server(
    #[values("model", "rtl")] kind: &str,
    #[values(
        (Mistake::Keeps, "was given nothing there"),
        (Mistake::Others, "was given other memory there"),
        (Mistake::Writes, "may only read there"),
        (Mistake::Masters, "is not bus master")
    )]
    planted: (Mistake, &str),
) {
    let (mistake, why) = planted;
    let served = serve(kind, mistake);
    let mut first = Raw::connect(&served, 0);
    let _memory = start(&mut first, RW, true);
    let mut second = Raw::connect(&served, 1);
    let flags = if mistake == Mistake::Writes { dma::READ } else { RW };
    let memory = start(&mut second, flags, mistake != Mistake::Masters);
    if mistake == Mistake::Keeps {
        let (at, bytes) = (SIMULATED_BUS_ADDRESS.to_le_bytes(), (BYTES as u64).to_le_bytes());
        let body = [&protocol::words(&[24, 0])[..], &at, &bytes].concat();
        assert_eq!(second.ask(command::DMA_UNMAP, &body).0, 0);
    }
    publish(&mut second);
    let failure = served.failure();
    println!("{failure}");
    assert!(failure.contains("R11") && failure.contains(why), "{failure}");
    assert!(failure.contains("of function 1 at 0x120000"), "{failure}");
    drop(memory);
}

/// Without a mistake all of that runs, and what a host did not give is refused and not moved.
#[rstest]
fn a_device_that_keeps_to_it_is_served_on(
    #[values("model", "rtl")] kind: &str,
    #[values((RW, true), (dma::READ, true), (RW, false))] given: (u32, bool),
) {
    let served = serve(kind, Mistake::None);
    let mut raw = Raw::connect(&served, 1);
    let (flags, bus_master) = given;
    let _memory = start(&mut raw, flags, bus_master);
    publish(&mut raw);
    let deadline = Instant::now() + Duration::from_secs(20);
    let whole = flags == RW && bus_master;
    while if whole {
        raw.read_register(Register::CqTail, Place::FIRST) < 7
    } else {
        served.tallies[1].outside() == 0
    } {
        assert!(Instant::now() < deadline, "{}", served.tallies[1]);
    }
    assert_eq!(served.tallies[1].outside() == 0, whole);
    served.end();
}

/// A read in the name of another function than its queue pair's.
#[test]
fn rtl_that_reads_in_the_name_of_another_function_ends_the_server() {
    let config = RtlConfig {
        workers: 4,
        queues: 2,
        functions: 2,
        by_function: true,
        faults: vec![FaultKind::OtherFunction.at(0)],
        slice: common::SLICE,
        ..RtlConfig::default()
    };
    let served = Served::new(RtlPlatform::new(&config).unwrap(), 2);
    let mut raw = Raw::connect(&served, 1);
    let _memory = start(&mut raw, RW, true);
    publish(&mut raw);
    let failure = served.failure();
    assert!(failure.contains("R11") && failure.contains("AxUSER 0"), "{failure}");
}
