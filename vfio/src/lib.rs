//! A Doorbell device as functions of PCI Express, over the protocol vfio-user: what [`Server`] serves, QEMU and other virtual machine
//! monitors show to their guests as a PCI device. [`VfioUser`] is the platform of a driver in a process of its own, and [`VfioPci`] that of
//! a driver over the kernel's vfio-pci.
//!
//! A message takes this way: `connection` has it whole (`closing` closes files that it does not take), [`protocol`] says what it asks, `function` does it, with `config_space`, `view`
//! (BAR 0), `vectors` (MSI-X) and `memory` (DMA). `watched` holds the device to what its hosts have given. [`Refusal`] names why something is not done. docs/pcie.md tells what of PCI Express is
//! real here, and what is not.

mod client;
mod closing;
mod config_space;
mod connection;
mod function;
mod interrupt;
pub mod memory;
mod pci;
pub mod protocol;
mod refusal;
mod server;
mod socket;
mod vectors;
mod view;
mod watched;

pub use client::VfioUser;
pub use config_space::{CLASS, DEVICE, VENDOR};
pub use pci::{VfioPci, functions};
pub use refusal::{Refusal, Tally};
pub use server::{Notice, ServeError, Server};
