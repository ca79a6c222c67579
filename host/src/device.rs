//! What a user of a device sees: submit descriptors, poll completions.

use crate::contract::{Counter, HwCompletion, HwDesc};
use crate::error::DeviceError;

/// A device with one queue pair, whatever executes behind it.
///
/// Dropping a device does not wait: what is in flight is lost.
pub trait Device: Send {
    /// Short name of the device, as users type it.
    fn name(&self) -> &str;

    /// Submits the head of `batch`, as much as the submission queue has room for, with one doorbell, and returns how
    /// many were taken: 0 if the queue is full (then [`poll`](Self::poll) frees slots). The check word is filled in.
    ///
    /// # Errors
    /// `Disabled`, or a failure of the device.
    fn submit(&mut self, batch: &[HwDesc]) -> Result<usize, DeviceError>;

    /// Copies completions into the head of `out` and returns how many. Gives the device time once if none is there
    /// yet and some are due; returns 0 if that brought none, and then it is to be called again.
    ///
    /// # Errors
    /// `Timeout` if nothing has moved for too long (R15), `Protocol` if the device broke the contract, `Disabled`, or
    /// another failure of the device.
    fn poll(&mut self, out: &mut [HwCompletion]) -> Result<usize, DeviceError>;

    /// As [`poll`](Self::poll), of what is there already: gives the device no time.
    ///
    /// # Errors
    /// As [`poll`](Self::poll), but for `Timeout`.
    fn collect(&mut self, out: &mut [HwCompletion]) -> Result<usize, DeviceError>;

    /// Descriptors submitted and not yet returned by [`poll`](Self::poll).
    fn in_flight(&self) -> usize;

    /// Slots of the submission queue.
    fn capacity(&self) -> usize;

    /// Free ones of them, as far as is known: [`submit`](Self::submit) takes at least that many.
    fn room(&self) -> usize;

    /// Copies `out.len()` tokens from `delta_offset` bytes into the token region. The tokens of a descriptor are
    /// there once its completion has been returned.
    ///
    /// # Errors
    /// `OutOfBounds` if the range is not within the token region or misaligned.
    fn tokens(&self, delta_offset: u64, out: &mut [u32]) -> Result<(), DeviceError>;

    /// The device's counters since it was enabled.
    ///
    /// # Errors
    /// A failure of the device.
    fn counters(&mut self) -> Result<Counters, DeviceError>;

    /// Stops the device (R12): returns once it no longer accesses memory. What is in flight is lost.
    ///
    /// # Errors
    /// `Timeout` if it does not stop, or another failure of the device.
    fn disable(&mut self) -> Result<(), DeviceError>;

    /// Starts a disabled device anew, with empty queues and the configuration it had.
    ///
    /// # Errors
    /// `NotStarted`, or another failure of the device.
    fn enable(&mut self) -> Result<(), DeviceError>;
}

/// A snapshot of a device's counters, one value after another: counters that run on may be a few counts apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counters([u64; Counter::ALL.len()]);

impl Counters {
    /// Reads every counter through `read`.
    ///
    /// # Errors
    /// The first that `read` returns.
    pub fn read(mut read: impl FnMut(Counter) -> Result<u64, DeviceError>) -> Result<Self, DeviceError> {
        let mut values = [0; Counter::ALL.len()];
        for (value, counter) in values.iter_mut().zip(Counter::ALL) {
            *value = read(counter)?;
        }
        Ok(Self(values))
    }

    /// One counter's value.
    pub fn get(&self, counter: Counter) -> u64 {
        self.0[counter as usize]
    }

    /// All counters, in the order of the contract.
    pub fn iter(&self) -> impl Iterator<Item = (Counter, u64)> + '_ {
        Counter::ALL.into_iter().zip(self.0)
    }
}
