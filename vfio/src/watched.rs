//! The monitor of a device that is served: it holds everything that the device moves to what the hosts have given.
//!
//! The device looks an address up itself. The monitor has its own list of what was given, and is told where the bytes lay in this process and
//! for which queue pair they were moved. What lies elsewhere, was given to another function, was taken back, was to be read only, or was
//! moved by a function that is not bus master ends the server with an error: the device, or the server, is broken then, and no host can
//! rely on its memory.

use std::collections::BTreeMap;

use doorbell_contract::{Place, Register};
use doorbell_host::{DeviceError, FunctionMemory, Move, Mover, Pages, Platform, SharedMemory};

/// Functions and queue pairs of a device, at most.
const MOST: usize = 16;

/// A device and what its functions were given.
pub(crate) struct Watched<D> {
    device: D,
    given: BTreeMap<(u8, u64), Given>,
    masters: [bool; MOST],
    /// The function of each queue pair.
    owners: [u8; MOST],
    /// What was moved that should not have been.
    violation: Option<String>,
}

/// A range that a function was given.
#[derive(Clone, Copy, Debug)]
struct Given {
    bytes: u64,
    host: usize,
    writable: bool,
}

impl<D: FunctionMemory> Watched<D> {
    /// A device of whose functions none was given anything.
    pub fn new(mut device: D) -> Self {
        // From here on it notes what it moves.
        device.take_moves();
        let masters = [false; MOST];
        Self { device, given: BTreeMap::new(), masters, owners: [0; MOST], violation: None }
    }

    /// The device itself.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// Looks at what was moved since this was called last.
    fn look(&mut self) {
        for moved in self.device.take_moves() {
            if let Err(why) = self.judge(&moved) {
                self.violation.get_or_insert(why);
            }
        }
    }

    /// Why this should not have been moved.
    fn judge(&self, moved: &Move) -> Result<(), String> {
        let Move { mover, address, host, is_write } = *moved;
        let (function, whose) = match mover {
            Mover::Queue(queue) => {
                let function = self.owners[usize::from(queue) % MOST];
                (function, format!("queue pair {queue} of function {function}"))
            }
            Mover::Function(function) => (function, format!("function {function}")),
        };
        let range = self.given.range(..=(function, address)).next_back();
        let range =
            range.filter(|((owner, start), given)| *owner == function && address - start < given.bytes);
        let why = match range {
            _ if !self.masters[usize::from(function) % MOST] => "is not bus master",
            None => "was given nothing there",
            Some((_, given)) if is_write && !given.writable => "may only read there",
            Some(((_, start), given)) if host != given.host + (address - start) as usize => {
                "was given other memory there"
            }
            Some(_) => return Ok(()),
        };
        let what = if is_write { "a write" } else { "a read" };
        Err(format!("{what} of {whose} at {address:#x} was carried out, and the function {why}"))
    }

    /// An error if something was moved that should not have been.
    fn checked<T>(&mut self, answer: Result<T, DeviceError>) -> Result<T, DeviceError> {
        self.look();
        match &self.violation {
            Some(what) => Err(DeviceError::Failed {
                device: self.device.name().to_owned(),
                what: format!("R11: {what}; no host can rely on its memory any more, and the server ends"),
            }),
            None => answer,
        }
    }
}

impl<D: FunctionMemory> FunctionMemory for Watched<D> {
    fn map_range(&mut self, function: u8, memory: SharedMemory, writable: bool) {
        self.look();
        let host = memory.host_pointer().as_ptr().addr();
        let given = Given { bytes: memory.len() as u64, host, writable };
        self.given.insert((function, memory.bus_address()), given);
        self.device.map_range(function, memory, writable);
    }

    fn unmap_range(&mut self, function: u8, address: u64, bytes: u64) {
        self.device.unmap_range(function, address, bytes);
        // What was moved before it is judged by what was given then.
        self.look();
        let last = address.saturating_add(bytes.saturating_sub(1));
        while let Some((&place, _)) = self.given.range((function, address)..=(function, last)).next() {
            self.given.remove(&place);
        }
    }

    fn set_bus_master(&mut self, function: u8, may: bool) {
        if may {
            self.masters[usize::from(function) % MOST] = true;
            self.device.set_bus_master(function, true);
        } else {
            self.device.set_bus_master(function, false);
            self.look();
            self.masters[usize::from(function) % MOST] = false;
        }
    }

    fn refused_accesses(&self, function: u8) -> u64 {
        self.device.refused_accesses(function)
    }

    fn messages(&self, queue: u8) -> u64 {
        self.device.messages(queue)
    }

    /// They are judged here.
    fn take_moves(&mut self) -> Vec<Move> {
        vec![]
    }
}

impl<D: FunctionMemory> Platform for Watched<D> {
    fn name(&self) -> &str {
        self.device.name()
    }

    fn map(&mut self, bytes: usize) -> Result<SharedMemory, DeviceError> {
        self.device.map(bytes)
    }

    fn write_register(&mut self, register: Register, value: u32) -> Result<(), DeviceError> {
        self.write_at(Place::FIRST, register, value)
    }

    fn read_register(&mut self, register: Register) -> Result<u32, DeviceError> {
        self.read_at(Place::FIRST, register)
    }

    fn advance(&mut self, want: usize) -> Result<(), DeviceError> {
        let advanced = self.device.advance(want);
        self.checked(advanced)
    }
}

impl<D: FunctionMemory> Pages for Watched<D> {
    fn write_at(&mut self, place: Place, register: Register, value: u32) -> Result<(), DeviceError> {
        let written = self.device.write_at(place, register, value);
        if register == Register::QueueFunction && written.is_ok() {
            self.look();
            self.owners[usize::from(place.queue) % MOST] = value as u8;
        }
        self.checked(written)
    }

    fn read_at(&mut self, place: Place, register: Register) -> Result<u32, DeviceError> {
        let read = self.device.read_at(place, register);
        self.checked(read)
    }
}
