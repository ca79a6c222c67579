//! The simulated device with a memory for each function ([`RtlConfig::by_function`](crate::RtlConfig::by_function)).

use std::collections::BTreeMap;

use doorbell_host::{FunctionMemory, Move, Mover, SharedMemory};

use crate::bridge::ffi;
use crate::platform::RtlPlatform;

/// Queue pairs, or functions, whose numbers stand in the IDs of the bus.
const MOST: u32 = 16;

/// What functions were given, by function and bus address. The simulator has pointers into it.
pub(crate) type Given = BTreeMap<(u8, u64), SharedMemory>;

impl FunctionMemory for RtlPlatform {
    fn map_range(&mut self, function: u8, memory: SharedMemory, writable: bool) {
        let (address, bytes) = (memory.bus_address(), memory.len() as u64);
        let before = self.given.range(..(function, address.saturating_add(bytes))).next_back();
        let overlaps = before.is_some_and(|(&(owner, start), range)| {
            owner == function && start + range.len() as u64 > address
        });
        assert!(!overlaps, "function {function} has a part of {bytes:#x} bytes at {address:#x}");
        let host = memory.host_pointer().as_ptr();
        // SAFETY: the block is readable and writable, and `given` keeps it alive until `unmap_range`, or for longer than the simulator;
        // the simulator accesses it atomically, as everybody else does.
        unsafe { self.simulator_mut().map_range(function.into(), address, bytes, host, writable) };
        self.given.insert((function, address), memory);
    }

    fn unmap_range(&mut self, function: u8, address: u64, bytes: u64) {
        self.simulator_mut().unmap_range(function.into(), address, bytes);
        // Only now may the memory go.
        let last = address.saturating_add(bytes.saturating_sub(1));
        while let Some((&place, _)) = self.given.range((function, address)..=(function, last)).next() {
            self.given.remove(&place);
        }
    }

    fn set_bus_master(&mut self, function: u8, may: bool) {
        self.simulator_mut().set_master(function.into(), may);
    }

    fn refused_accesses(&self, function: u8) -> u64 {
        self.refused(function)
    }

    fn messages(&self, queue: u8) -> u64 {
        RtlPlatform::messages(self, queue.into())
    }

    fn cycle(&self) -> Option<u64> {
        Some(self.cycles())
    }

    fn take_moves(&mut self) -> Vec<Move> {
        let moved = self.simulator_mut().take_moved();
        let told = |beat: ffi::Moved| {
            // The IDs of docs/integration.md: what is a queue pair's comes first, and what is a function's behind it.
            let number = (beat.id % MOST) as u8;
            let mover = if beat.id < 2 * MOST { Mover::Queue(number) } else { Mover::Function(number) };
            Move { mover, address: beat.address, host: beat.host as usize, is_write: beat.is_write }
        };
        moved.into_iter().map(told).collect()
    }
}
