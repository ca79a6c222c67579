//! What runs behind the mailboxes: the kernel on a GPU, or its text on the CPU.

use doorbell_host::{DeviceError, SharedMemory};

/// Something that serves one mailbox and block of memory per queue pair. Dropped, it ends.
pub trait Engine: Send + Sync {
    /// Short name for users, as in `gpu`.
    fn name(&self) -> &str;

    /// The page of queue pair `queue`, which this engine serves.
    ///
    /// # Errors
    /// `OutOfBounds` if there is no such queue pair.
    fn mailbox(&self, queue: usize) -> Result<SharedMemory, DeviceError>;

    /// The memory of queue pair `queue`.
    ///
    /// # Errors
    /// `OutOfBounds` if there is no such queue pair.
    fn memory(&self, queue: usize) -> Result<SharedMemory, DeviceError>;

    /// Asks whether the engine still lives.
    ///
    /// # Errors
    /// `Failed`, saying what happened.
    fn check(&self) -> Result<(), DeviceError>;
}
