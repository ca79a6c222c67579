//! What runs behind the mailboxes: the kernel on a GPU, or its text on the CPU.

use doorbell_host::{DeviceError, SharedMemory};

use crate::Phases;

/// Something that serves one mailbox per queue pair, and memory for all of them. Dropped, it ends.
pub trait Engine: Send + Sync {
    /// Short name for users, as in `gpu`.
    fn name(&self) -> &str;

    /// Queue pairs, 1 to 16.
    fn queues(&self) -> usize;

    /// Decode engines: 1, or 2 with engine 1.
    fn engines(&self) -> u32;

    /// The page of queue pair `queue`, which this engine serves.
    ///
    /// # Errors
    /// `OutOfBounds` if there is no such queue pair.
    fn mailbox(&self, queue: usize) -> Result<SharedMemory, DeviceError>;

    /// The memory that the queue pairs have in common.
    ///
    /// # Errors
    /// `OutOfBounds` if there is none.
    fn memory(&self) -> Result<SharedMemory, DeviceError>;

    /// Bytes of device memory in which keys and values stay between descriptors (rule R26).
    fn kept_bytes(&self) -> u64 {
        0
    }

    /// Where the time of teams' steps went so far; `None` if nobody takes it.
    fn phases(&self) -> Option<Phases> {
        None
    }

    /// Asks whether the engine still lives.
    ///
    /// # Errors
    /// `Failed`, saying what happened.
    fn check(&self) -> Result<(), DeviceError>;
}
