//! A client of a function who is the owner of its device, too: in the process of the server.
//!
//! The owner gives the device its time, as cases and chaos expect it, and the server gives it none. So nothing depends on which thread the
//! system lets run.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use doorbell_contract::{Access, Block, Place, Register, State};
use doorbell_host::{DeviceError, FunctionMemory, Move, Pages, Platform, SharedMemory};
use doorbell_vfio::VfioUser;

/// A device that its server and its owner both reach.
pub struct Shared<D>(pub Arc<Mutex<D>>);

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

    fn advance(&mut self, _: usize) -> Result<(), DeviceError> {
        // Its turns go on, and are to leave the processor to others.
        std::thread::sleep(Duration::from_micros(50));
        Ok(())
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

    fn take_moves(&mut self) -> Vec<Move> {
        self.device().take_moves()
    }
}

/// What a client does with what belongs to the device's owner.
pub enum Page0 {
    /// It is the owner, in the process of the server, and gives the device its time.
    Owned(Arc<Mutex<dyn FunctionMemory>>),
    /// It is not, and is told so.
    Refused,
    /// It is not, and is let believe that it has set what concerns it alone: wait states, time-out, its workers, its queue pair. Of windows it is told that
    /// there are none.
    Ignored {
        /// As they were set last.
        wait_states: u32,
    },
}

/// A client of the function, whose driver may have the rights of the device's owner too.
pub struct Owner {
    client: VfioUser,
    /// Where its messages are to go, as its driver says it to the table.
    message: u64,
    memory: Option<SharedMemory>,
    page0: Page0,
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
    /// Connects to the socket, once its last client's function is reset.
    pub fn connect(socket: &Path, page0: Page0) -> Result<Self, DeviceError> {
        let deadline = Instant::now() + Duration::from_secs(5);
        let client = loop {
            match VfioUser::open_answered(socket) {
                Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(1)),
                opened => break opened?,
            }
        };
        let mut owner = Self { client, message: 0, memory: None, page0 };
        owner.restore()?;
        Ok(owner)
    }

    /// Gives page 0 what the server had set there.
    fn restore(&mut self) -> Result<(), DeviceError> {
        let _ = self.client.write_register(Register::Control, 0);
        let Page0::Owned(_) = self.page0 else { return Ok(()) };
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
        let memory = self.client.map(bytes)?;
        self.memory = Some(memory.clone());
        Ok(memory)
    }

    fn write_register(&mut self, register: Register, value: u32) -> Result<(), DeviceError> {
        if !is_owners(register) {
            return self.client.write_register(register, value);
        }
        // What is ignored is refused where a device refuses it: configuration while the queue pair is active.
        if matches!(self.page0, Page0::Ignored { .. })
            && register.access() == Access::Config
            && self.client.read_register(Register::State)? & State::ACTIVE.bits() != 0
        {
            let device = self.name().to_owned();
            return Err(DeviceError::WriteRefused { device, register, value });
        }
        match (&mut self.page0, register) {
            (Page0::Owned(device), _) => device.lock().unwrap().write_register(register, value),
            (Page0::Ignored { wait_states }, Register::WaitStates) => {
                *wait_states = value;
                Ok(())
            }
            (Page0::Ignored { .. }, Register::BusTimeout | Register::FnWorkers) => Ok(()),
            (Page0::Ignored { .. }, Register::QueueFunction) if value == 0 => Ok(()),
            // The table of messages is the function's own, in the place where page 0 has it.
            (_, Register::MessageAddressLo | Register::MessageAddressHi | Register::MessageData) => {
                self.client.write_register(register, value)
            }
            (_, Register::MessageControl) => self.client.write_register(register, value),
            _ => {
                let device = self.name().to_owned();
                Err(DeviceError::WriteRefused { device, register, value })
            }
        }
    }

    fn read_register(&mut self, register: Register) -> Result<u32, DeviceError> {
        match (&self.page0, register) {
            // Its own vectors are pending in the table that it sees.
            (Page0::Owned(device), _) if is_owners(register) && register != Register::MessagesPending => {
                device.lock().unwrap().read_register(register)
            }
            (Page0::Ignored { .. }, Register::CapWindows) => Ok(0),
            (Page0::Ignored { wait_states }, Register::WaitStates) => Ok(*wait_states),
            _ => self.client.read_register(register),
        }
    }

    fn read_worker(&mut self, worker: u8, register: Register) -> Result<u32, DeviceError> {
        match &self.page0 {
            Page0::Owned(device) => device.lock().unwrap().read_worker(worker, register),
            _ => Err(DeviceError::ReadRefused { device: self.name().to_owned(), register }),
        }
    }

    fn advance(&mut self, want: usize) -> Result<(), DeviceError> {
        if let Page0::Owned(device) = &self.page0 {
            device.lock().unwrap().advance(want)?;
        }
        // What has been sent meanwhile comes with an answer.
        self.client.read_register(Register::State).map(drop)
    }

    fn runs_alone(&self) -> bool {
        !matches!(self.page0, Page0::Owned(_))
    }

    fn route(&mut self, memory: &SharedMemory, offset: usize) -> Result<(), DeviceError> {
        self.client.route(memory, offset)
    }
}

/// The pages of a device with one queue pair.
impl Pages for Owner {
    fn write_at(&mut self, place: Place, register: Register, value: u32) -> Result<(), DeviceError> {
        if place != Place::FIRST {
            let device = self.name().to_owned();
            return Err(DeviceError::WriteRefused { device, register, value });
        }
        // A driver that writes the table itself: its message is the client's, and goes where the driver wants it.
        match register {
            Register::MessageAddressLo => self.message = self.message & !0xFFFF_FFFF | u64::from(value),
            Register::MessageAddressHi => self.message = self.message & 0xFFFF_FFFF | u64::from(value) << 32,
            Register::MessageControl if value == 0 => {
                let memory = self.memory.clone().filter(|memory| self.message >= memory.bus_address());
                if let Some(memory) = memory {
                    let offset = (self.message - memory.bus_address()) as usize;
                    self.client.route(&memory, offset)?;
                }
            }
            _ => {}
        }
        self.write_register(register, value)
    }

    fn read_at(&mut self, place: Place, register: Register) -> Result<u32, DeviceError> {
        if place != Place::FIRST {
            return Err(DeviceError::ReadRefused { device: self.name().to_owned(), register });
        }
        self.read_register(register)
    }
}
