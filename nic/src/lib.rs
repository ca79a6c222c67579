//! A modelled NIC, whose doorbell is rung by whoever finishes a rollout (docs/nic.md).
//!
//! An [agent](ring::Agent) posts 64-byte [entries](doorbell_contract::HwNicEntry) into a [send ring](ring::SendRing). The
//! [NIC](device::Nic), a thread, takes them in order, carries their payloads over TCP through a [lossy link](link::Link), and completes
//! them once the [collector](collector::Collector) has stored them.

pub mod collector;
pub mod device;
pub mod link;
pub mod poster;
pub mod ring;
pub mod store;
pub mod wire;

/// What every line that tells of this NIC says.
pub const MODELLED: &str = "modelled";
