//! What differs between devices: how memory is shared, how a register is reached, how the device is given time.

use crate::error::DeviceError;
use crate::memory::SharedMemory;
use doorbell_contract::Register;

/// The narrow seam beneath [`Driver`](crate::driver::Driver): all that a kind of device has to bring.
pub trait Platform: Send {
    /// Short name of the device, as users type it: `model`, `rtl`, …
    fn name(&self) -> &str;

    /// Memory of at least `bytes` bytes, zeroed, that host and device both see. The driver maps once; the device may
    /// assume that it is never asked to access anything else.
    ///
    /// # Errors
    /// `Memory` or `Unavailable`.
    fn map(&mut self, bytes: usize) -> Result<SharedMemory, DeviceError>;

    /// Writes all four bytes of `register`. What the host wrote to
    /// shared memory before is visible to the device that sees the write.
    ///
    /// # Errors
    /// `WriteRefused` where the device answers SLVERR; anything else is a failure of the device.
    fn write_register(&mut self, register: Register, value: u32) -> Result<(), DeviceError>;

    /// Reads `register`.
    ///
    /// # Errors
    /// `ReadRefused` where the device answers SLVERR; anything else is a failure of the device.
    fn read_register(&mut self, register: Register) -> Result<u32, DeviceError>;

    /// Gives the device time: until about `want` completions (taken as 1 if 0) have been posted, or a bounded slice
    /// of its time has passed.
    ///
    /// # Errors
    /// Failures of the device, such as a failed assertion.
    fn advance(&mut self, want: usize) -> Result<(), DeviceError>;

    /// Who in the device waits for what, for the report of a wait that ran out (R15).
    fn report(&mut self) -> Option<String> {
        None
    }
}

impl<P: Platform + ?Sized> Platform for Box<P> {
    fn name(&self) -> &str {
        (**self).name()
    }

    fn map(&mut self, bytes: usize) -> Result<SharedMemory, DeviceError> {
        (**self).map(bytes)
    }

    fn write_register(&mut self, register: Register, value: u32) -> Result<(), DeviceError> {
        (**self).write_register(register, value)
    }

    fn read_register(&mut self, register: Register) -> Result<u32, DeviceError> {
        (**self).read_register(register)
    }

    fn advance(&mut self, want: usize) -> Result<(), DeviceError> {
        (**self).advance(want)
    }

    fn report(&mut self) -> Option<String> {
        (**self).report()
    }
}
