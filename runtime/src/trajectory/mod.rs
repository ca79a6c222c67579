//! Finished rollouts on disk.
