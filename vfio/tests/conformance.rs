//! The conformance suite of one queue pair through a socket: the pages of the function and of its queue pair as a client reaches them, and
//! page 0 as the device's owner does, who is in this process. Each device is the function that its last client left reset.

mod common;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use doorbell_contract::{Block, Place, Register};
use doorbell_host::{Awaited, DeviceError, FunctionMemory, Pages, Platform, SharedMemory};
use doorbell_verify::conformance::{Bench, CASES, Case};
use doorbell_vfio::VfioUser;
use libtest_mimic::{Arguments, Failed, Trial};

use common::Served;

/// Cases of what a function behind a socket does not have, and why.
const LEFT_OUT: &[(&str, &str)] = &[
    ("r14_a_message_that_nobody_takes_is_told", MESSAGES),
    ("r23_without_life_only_faults_are_told", MESSAGES),
    ("r23_a_fault_is_told_once", MESSAGES),
    ("r23_the_last_quarter_is_left_for_faults", MESSAGES),
    (
        "registers_after_reset",
        "whoever sets an eventfd has unmasked its vector, and the client does when it connects",
    ),
    ("r14_time_fires", TIME),
    ("r15_a_slow_device_is_waited_for", TIME),
];
const MESSAGES: &str = "a message becomes an eventfd, and is never answered with an error";
const TIME: &str = "it counts what the device does in the time that it is given, and here it runs by itself";

/// Left out for the golden model alone.
const TOO_FAST: &[&str] = &["r08_stop_right_behind_its_rollout", "r08_an_abort_reaches_what_was_published"];

/// A device that its server and its owner both reach.
struct Shared<D>(Arc<Mutex<D>>);

impl<D> Shared<D> {
    fn device(&self) -> std::sync::MutexGuard<'_, D> {
        self.0.lock().unwrap()
    }
}

impl<D: FunctionMemory> Platform for Shared<D> {
    fn name(&self) -> &str {
        "served"
    }

    fn map(&mut self, bytes: usize) -> Result<SharedMemory, DeviceError> {
        self.device().map(bytes)
    }

    fn write_register(&mut self, register: Register, value: u32) -> Result<(), DeviceError> {
        self.device().write_register(register, value)
    }

    fn read_register(&mut self, register: Register) -> Result<u32, DeviceError> {
        self.device().read_register(register)
    }

    fn advance(&mut self, want: usize) -> Result<(), DeviceError> {
        self.device().advance(want)
    }
}

impl<D: FunctionMemory> Pages for Shared<D> {
    fn write_at(&mut self, place: Place, register: Register, value: u32) -> Result<(), DeviceError> {
        self.device().write_at(place, register, value)
    }

    fn read_at(&mut self, place: Place, register: Register) -> Result<u32, DeviceError> {
        self.device().read_at(place, register)
    }
}

impl<D: FunctionMemory> FunctionMemory for Shared<D> {
    fn map_range(&mut self, function: u8, memory: SharedMemory, writable: bool) {
        self.device().map_range(function, memory, writable);
    }

    fn unmap_range(&mut self, function: u8, address: u64, bytes: u64) {
        self.device().unmap_range(function, address, bytes);
    }

    fn set_bus_master(&mut self, function: u8, may: bool) {
        self.device().set_bus_master(function, may);
    }

    fn refused_accesses(&self, function: u8) -> u64 {
        self.device().refused_accesses(function)
    }

    fn messages(&self, queue: u8) -> u64 {
        self.device().messages(queue)
    }
}

/// A client of the function, whose driver has the rights of the device's owner too.
struct Owner {
    client: VfioUser,
    device: Arc<Mutex<dyn FunctionMemory>>,
}

/// What it has set goes before its client does: a reset of the function starts queue pairs.
impl Drop for Owner {
    fn drop(&mut self) {
        let _ = self.restore();
    }
}

/// Whether a register is one of page 0, or of a worker.
fn is_owners(register: Register) -> bool {
    matches!(register.block(), Block::Device | Block::DeviceFunction | Block::DeviceQueue | Block::Worker)
}

impl Owner {
    /// Gives page 0 what the server had set there.
    fn restore(&mut self) -> Result<(), DeviceError> {
        let _ = self.client.write_register(Register::Control, 0);
        for (register, value) in [
            (Register::WaitStates, 0),
            (Register::BusTimeout, 0),
            (Register::Window0BaseLo, 0),
            (Register::Window0BaseHi, 0),
            (Register::Window0SizeLo, u32::MAX),
            (Register::Window0SizeHi, u32::MAX),
            (Register::FnWorkers, u32::MAX),
        ] {
            self.write_register(register, value)?;
        }
        Ok(())
    }
}

impl Platform for Owner {
    fn name(&self) -> &str {
        self.client.name()
    }

    fn map(&mut self, bytes: usize) -> Result<SharedMemory, DeviceError> {
        self.client.map(bytes)
    }

    fn write_register(&mut self, register: Register, value: u32) -> Result<(), DeviceError> {
        if is_owners(register) {
            return self.device.lock().unwrap().write_register(register, value);
        }
        self.client.write_register(register, value)
    }

    fn read_register(&mut self, register: Register) -> Result<u32, DeviceError> {
        // Its own vectors are pending in the table that it sees.
        if is_owners(register) && register != Register::MessagesPending {
            return self.device.lock().unwrap().read_register(register);
        }
        self.client.read_register(register)
    }

    fn read_worker(&mut self, worker: u8, register: Register) -> Result<u32, DeviceError> {
        self.device.lock().unwrap().read_worker(worker, register)
    }

    fn advance(&mut self, want: usize) -> Result<(), DeviceError> {
        self.client.advance(want)
    }

    fn route(&mut self, memory: &SharedMemory, offset: usize) -> Result<(), DeviceError> {
        self.client.route(memory, offset)
    }

    fn wait(&mut self, awaited: Awaited, deadline: Instant) -> Result<(), DeviceError> {
        self.client.wait(awaited, deadline)
    }

    fn runs_alone(&self) -> bool {
        true
    }
}

fn run(case: &Case, device: impl FunctionMemory + 'static) -> Result<(), Failed> {
    let device = Arc::new(Mutex::new(device));
    // What the owner sets is as after a reset of the device, of every case.
    let served = Served::new(Shared(device.clone()), 1);
    let mut make = || -> Result<Box<dyn Platform>, DeviceError> {
        let deadline = Instant::now() + Duration::from_secs(5);
        let client = loop {
            match VfioUser::open(served.socket(0)) {
                Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(1)),
                opened => break opened?,
            }
        };
        let mut owner = Owner { client, device: device.clone() };
        owner.restore()?;
        Ok(Box::new(owner))
    };
    Bench::new(&mut make, 1).run(case).map_err(Failed::from)
}

fn main() {
    let mut trials = vec![];
    for case in CASES {
        let left_out = LEFT_OUT.iter().any(|(name, _)| *name == case.name);
        let trial = |kind: &str, run: fn(&'static Case) -> Result<(), Failed>| {
            Trial::test(format!("{}: {kind}", case.name), move || run(case)).with_ignored_flag(left_out)
        };
        // It runs by itself here, and is done before the STOP is published.
        let too_fast = left_out || TOO_FAST.contains(&case.name);
        trials.push(trial("model", |case| run(case, common::model(1))).with_ignored_flag(too_fast));
        trials.push(trial("rtl", |case| run(case, common::rtl(1))));
    }
    for (name, reason) in LEFT_OUT {
        assert!(CASES.iter().any(|case| case.name == *name), "there is no case {name}");
        println!("left out: {name}: {reason}");
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
