//! A device whose functions have hosts of their own: virtual machines, or other processes.

use crate::memory::SharedMemory;
use crate::ports::Pages;

/// A device each of whose functions reaches only what it was given of the memory of its own host. The same bus address of two
/// functions is two places.
///
/// An access of anything else is answered with an error, as a bus answers where nobody is (DECERR), and counted. Data moves only
/// while the device is given time: so behind [`unmap_range`](Self::unmap_range) nothing moves to or from that range any more.
///
/// The message of an interrupt (R14) moves no data: it is counted, and wakes the host in whatever way its owner has.
pub trait FunctionMemory: Pages {
    /// Gives `memory` to `function`, at its bus address; where it is not `writable`, to be read. It is kept until it is taken back.
    ///
    /// # Panics
    /// If it overlaps a range that the function has.
    fn map_range(&mut self, function: u8, memory: SharedMemory, writable: bool);

    /// Takes back the ranges of `function` that begin in the `bytes` bytes from `address` on. Whole ranges are given and taken.
    fn unmap_range(&mut self, function: u8, address: u64, bytes: u64);

    /// Whether `function` may move data at all (Bus Master Enable of PCI). Until this is called it may not.
    fn set_bus_master(&mut self, function: u8, may: bool);

    /// Accesses of `function` that were answered with an error since the device was made.
    fn refused_accesses(&self, function: u8) -> u64;

    /// Messages of the interrupt of `queue` since the device was made.
    fn messages(&self, queue: u8) -> u64;

    /// What the device has moved since this was called last, in its order; the first call begins to note it. Messages are left out. Whoever
    /// gave the memory can hold the device to that: it says where the bytes lay, not where they should have.
    fn take_moves(&mut self) -> Vec<Move>;

    /// Clock cycles since the device was made; `None` where it has no clock.
    fn cycle(&self) -> Option<u64> {
        None
    }
}

/// Bytes that a device has moved: some of the 64 from an address on, which is a multiple of 64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// For whom.
    pub mover: Mover,
    /// Bus address.
    pub address: u64,
    /// Where they lie in this process.
    pub host: usize,
    /// Whether it was a write.
    pub is_write: bool,
}

/// Whose descriptors, completions, tokens or events are moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mover {
    /// A queue pair's, by its number in the device.
    Queue(u8),
    /// A function's.
    Function(u8),
}

impl<D: FunctionMemory + ?Sized> FunctionMemory for Box<D> {
    fn map_range(&mut self, function: u8, memory: SharedMemory, writable: bool) {
        (**self).map_range(function, memory, writable);
    }

    fn unmap_range(&mut self, function: u8, address: u64, bytes: u64) {
        (**self).unmap_range(function, address, bytes);
    }

    fn set_bus_master(&mut self, function: u8, may: bool) {
        (**self).set_bus_master(function, may);
    }

    fn refused_accesses(&self, function: u8) -> u64 {
        (**self).refused_accesses(function)
    }

    fn messages(&self, queue: u8) -> u64 {
        (**self).messages(queue)
    }

    fn take_moves(&mut self) -> Vec<Move> {
        (**self).take_moves()
    }

    fn cycle(&self) -> Option<u64> {
        (**self).cycle()
    }
}
