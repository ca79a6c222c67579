//! What differs between devices: how memory is shared, how a register is reached, how the device is given time.

use std::time::Instant;

use crate::error::DeviceError;
use crate::memory::SharedMemory;
use crate::ports::SharedDevice;
use doorbell_contract::{HwEvent, Register};

/// What somebody waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// A completion.
    Completion,
    /// The message of an interrupt that was armed at this index (R14).
    Interrupt {
        /// What ARM was written with.
        from: u32,
    },
}

/// What the message of a driver's interrupt writes: anything but 0, which the driver writes when it has seen it.
pub const MESSAGE: u32 = 1;

/// The narrow interface beneath [`Driver`](crate::driver::Driver): everything that a kind of device must provide.
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

    /// Reads `register` of the block WORKER for the worker of this number. The default is for devices without such counters.
    ///
    /// # Errors
    /// As [`read_register`](Self::read_register).
    fn read_worker(&mut self, worker: u8, register: Register) -> Result<u32, DeviceError> {
        let _ = worker;
        Err(DeviceError::ReadRefused { device: self.name().to_owned(), register })
    }

    /// Gives the device time: until about `want` completions (taken as 1 if 0) have been posted, or a bounded slice
    /// of its time has passed.
    ///
    /// # Errors
    /// Failures of the device, such as a failed assertion.
    fn advance(&mut self, want: usize) -> Result<(), DeviceError>;

    /// Makes the interrupts of the queue pair write [`MESSAGE`] to the word at byte `offset` of `memory`, as an operating system
    /// does when it gives a driver a vector. The default writes the device's table, for a platform whose driver has the device to
    /// itself.
    ///
    /// # Errors
    /// `WriteRefused` where the device has no interrupts, or another failure of the device.
    fn route(&mut self, memory: &SharedMemory, offset: usize) -> Result<(), DeviceError> {
        message_table(memory, offset)
            .into_iter()
            .try_for_each(|(register, value)| self.write_register(register, value))
    }

    /// Lets time pass until the awaited event may be there, and at most until about `deadline`. It may return
    /// earlier without a reason (a spurious wake-up), but never later because it missed the event: an event
    /// from before the call ends it too. The caller checks, and calls again.
    ///
    /// The default is for devices that run only while they are given time: one [`advance`](Self::advance).
    ///
    /// # Errors
    /// As [`advance`](Self::advance).
    fn wait(&mut self, awaited: Awaited, deadline: Instant) -> Result<(), DeviceError> {
        let _ = (awaited, deadline);
        self.advance(1)
    }

    /// Whether the device runs by itself, so that a thread that waits for it may sleep. The default, `false`, is for
    /// devices that run only while they are given time.
    fn runs_alone(&self) -> bool {
        false
    }

    /// Who in the device waits for what, for the report of a wait that ran out (R15).
    fn report(&mut self) -> Option<String> {
        None
    }

    /// What the clock of its LIFE events (R23) reads now, where whoever runs the device can tell. The default, `None`, is for devices whose clock nobody
    /// can read.
    fn ticks(&mut self) -> Option<u64> {
        None
    }

    /// Copies LIFE events of queue pair `queue` that the simulation observes itself, without an event ring, into the head of `out`, and returns how many
    /// (R23). The default, none, is for devices that report events only in memory.
    ///
    /// # Errors
    /// Failures of the device.
    fn tapped(&mut self, queue: u8, out: &mut [HwEvent]) -> Result<usize, DeviceError> {
        let _ = (queue, out);
        Ok(0)
    }

    /// Whether [`tapped`](Self::tapped) keeps all events until they are asked for.
    fn keeps_lives(&self) -> bool {
        false
    }

    /// The device, if this is one of several of its queue pairs with drivers of their own. Page 0 then belongs to the device's
    /// owner: a driver only reads it, and accepts what it finds there. The default, `None`, is a device with one driver.
    fn shared_device(&self) -> Option<SharedDevice> {
        None
    }

    /// The function that the queue pair belongs to, where it is one of several of its device.
    fn function(&self) -> u8 {
        0
    }

    /// The queue pair's number in its device, where it is one of several.
    fn queue(&self) -> u8 {
        0
    }

    /// Whether WORKER_STATE says what the device's workers do. A function behind a socket or on a bus cannot see the workers, and reads 0; a GPU, whose workers tell
    /// the host nothing before a completion, shows how many queue pairs have work.
    fn shows_workers(&self) -> bool {
        true
    }
}

/// What the table of messages is to hold for a queue pair whose message goes to byte `offset` of `memory`, unmasked at the end.
pub(crate) fn message_table(memory: &SharedMemory, offset: usize) -> [(Register, u32); 4] {
    let address = memory.bus_address() + offset as u64;
    [
        (Register::MessageAddressLo, address as u32),
        (Register::MessageAddressHi, (address >> 32) as u32),
        (Register::MessageData, MESSAGE),
        (Register::MessageControl, 0),
    ]
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

    fn read_worker(&mut self, worker: u8, register: Register) -> Result<u32, DeviceError> {
        (**self).read_worker(worker, register)
    }

    fn advance(&mut self, want: usize) -> Result<(), DeviceError> {
        (**self).advance(want)
    }

    fn route(&mut self, memory: &SharedMemory, offset: usize) -> Result<(), DeviceError> {
        (**self).route(memory, offset)
    }

    fn wait(&mut self, awaited: Awaited, deadline: Instant) -> Result<(), DeviceError> {
        (**self).wait(awaited, deadline)
    }

    fn runs_alone(&self) -> bool {
        (**self).runs_alone()
    }

    fn report(&mut self) -> Option<String> {
        (**self).report()
    }

    fn ticks(&mut self) -> Option<u64> {
        (**self).ticks()
    }

    fn tapped(&mut self, queue: u8, out: &mut [HwEvent]) -> Result<usize, DeviceError> {
        (**self).tapped(queue, out)
    }

    fn keeps_lives(&self) -> bool {
        (**self).keeps_lives()
    }

    fn shared_device(&self) -> Option<SharedDevice> {
        (**self).shared_device()
    }

    fn function(&self) -> u8 {
        (**self).function()
    }

    fn queue(&self) -> u8 {
        (**self).queue()
    }

    fn shows_workers(&self) -> bool {
        (**self).shows_workers()
    }
}
