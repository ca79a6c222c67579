//! Any queue pair of a device as if it were the device: for the cases of one queue pair.

use std::time::Instant;

use doorbell_contract::{Place, Register};
use doorbell_host::error::DeviceError;
use doorbell_host::memory::SharedMemory;
use doorbell_host::platform::{Awaited, Platform};
use doorbell_host::ports::Pages;

/// Queue pair `place.queue` of a device, which function `place.function` owns, with all rights: page 0 is its driver's, too.
pub struct Seat {
    device: Box<dyn Pages>,
    place: Place,
}

impl Seat {
    /// Gives the queue pair to the function, and the function all addresses, as function 0 has them after reset.
    ///
    /// # Errors
    /// A failure of the device, or a refusal where it was not built with that many.
    pub fn new(mut device: Box<dyn Pages>, place: Place) -> Result<Self, DeviceError> {
        device.write_at(place, Register::QueueFunction, place.function.into())?;
        if device.read_at(place, Register::CapWindows)? > 0 {
            device.write_at(place, Register::Window0SizeLo, u32::MAX)?;
            device.write_at(place, Register::Window0SizeHi, u32::MAX)?;
        }
        Ok(Self { device, place })
    }
}

impl Platform for Seat {
    fn name(&self) -> &str {
        self.device.name()
    }

    fn map(&mut self, bytes: usize) -> Result<SharedMemory, DeviceError> {
        self.device.map(bytes)
    }

    fn write_register(&mut self, register: Register, value: u32) -> Result<(), DeviceError> {
        self.device.write_at(self.place, register, value)
    }

    fn shows_workers(&self) -> bool {
        self.device.shows_workers()
    }

    fn read_register(&mut self, register: Register) -> Result<u32, DeviceError> {
        self.device.read_at(self.place, register)
    }

    fn read_worker(&mut self, worker: u8, register: Register) -> Result<u32, DeviceError> {
        self.device.read_worker(worker, register)
    }

    fn advance(&mut self, want: usize) -> Result<(), DeviceError> {
        self.device.advance_for(self.place, want)
    }

    fn wait(&mut self, awaited: Awaited, deadline: Instant) -> Result<(), DeviceError> {
        self.device.wait(awaited, deadline)
    }

    fn runs_alone(&self) -> bool {
        self.device.runs_alone()
    }

    fn queue(&self) -> u8 {
        self.place.queue
    }

    fn report(&mut self) -> Option<String> {
        self.device.report()
    }
}
