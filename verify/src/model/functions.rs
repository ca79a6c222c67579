//! The memories of functions that have hosts of their own.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use doorbell_host::memory::{BusFault, SharedMemory};
use doorbell_host::registers::Registers;
use doorbell_host::{DeviceError, FunctionMemory, Move, Mover};

use super::ModelPlatform;
use super::bus::Bus;

/// Most functions and queue pairs of a device.
const MOST: usize = 16;

/// What each function was given of its host's memory.
#[derive(Debug, Default)]
pub(super) struct Functions {
    /// By function and bus address; and whether it is writable.
    ranges: BTreeMap<(u8, u64), (SharedMemory, bool)>,
    masters: [bool; MOST],
    refused: [Cell<u64>; MOST],
    /// By queue pair.
    messages: [Cell<u64>; MOST],
    /// The function, and its queue pair, whose accesses these are.
    served: Cell<(u8, u8)>,
    /// What was moved, once somebody asks for it.
    moves: RefCell<Option<Vec<Move>>>,
}

impl Functions {
    /// The memory of the served function that has this address. Records are aligned to their size, so that no one crosses the end of a
    /// range.
    pub fn find(&self, address: u64, is_write: bool) -> Result<&SharedMemory, BusFault> {
        let (function, _) = self.served.get();
        let (masters, refused) = (&self.masters[..], &self.refused[usize::from(function)]);
        let below = self.ranges.range((function, 0)..=(function, address)).next_back();
        let range = below.filter(|((_, start), (memory, writable))| {
            address - start < memory.len() as u64
                && (*writable || !is_write)
                && masters[usize::from(function)]
        });
        match range {
            Some((_, (memory, _))) => {
                self.note_move(memory, address, is_write);
                Ok(memory)
            }
            None => {
                refused.set(refused.get() + 1);
                Err(BusFault)
            }
        }
    }

    /// Once for what follows one after the other in the same 64 bytes.
    fn note_move(&self, memory: &SharedMemory, address: u64, is_write: bool) {
        let Some(moves) = &mut *self.moves.borrow_mut() else { return };
        let (mover, address) = (Mover::Queue(self.served.get().1), address & !63);
        let offset = address.wrapping_sub(memory.bus_address()) as usize;
        let host = memory.host_pointer().as_ptr().addr().wrapping_add(offset);
        let moved = Move { mover, address, host, is_write };
        if moves.last() != Some(&moved) {
            moves.push(moved);
        }
    }

    #[cold]
    pub fn serve(&self, registers: &Registers, queue: u8) {
        self.served.set((registers.owner(queue) as u8, queue));
    }

    pub fn count_message(&self) {
        let messages = &self.messages[usize::from(self.served.get().1)];
        messages.set(messages.get() + 1);
    }
}

impl ModelPlatform {
    /// The same, each of whose functions has a host of its own and reaches what it [was given](FunctionMemory) of that host's memory.
    ///
    /// # Errors
    /// `Memory` if the system refuses a page.
    pub fn by_function(mut self) -> Result<Self, DeviceError> {
        self.bus = Some(Bus::by_function()?);
        Ok(self)
    }

    fn functions(&mut self) -> &mut Functions {
        let functions = self.bus.as_mut().and_then(Bus::functions);
        functions.expect("a model that was made with `by_function`")
    }
}

/// Of a model that was made with [`by_function`](ModelPlatform::by_function); another one panics.
impl FunctionMemory for ModelPlatform {
    fn map_range(&mut self, function: u8, memory: SharedMemory, writable: bool) {
        let (address, bytes) = (memory.bus_address(), memory.len() as u64);
        let ranges = &mut self.functions().ranges;
        let before = ranges.range((function, 0)..(function, address.saturating_add(bytes))).next_back();
        let overlaps = before.is_some_and(|((_, start), (range, _))| start + range.len() as u64 > address);
        assert!(!overlaps, "function {function} has a part of {bytes:#x} bytes at {address:#x}");
        ranges.insert((function, address), (memory, writable));
    }

    fn unmap_range(&mut self, function: u8, address: u64, bytes: u64) {
        let last = address.saturating_add(bytes.saturating_sub(1));
        let ranges = &mut self.functions().ranges;
        // One at a time: a function may have 65,536, and each is taken back by itself.
        while let Some((&place, _)) = ranges.range((function, address)..=(function, last)).next() {
            ranges.remove(&place);
        }
    }

    fn set_bus_master(&mut self, function: u8, may: bool) {
        self.functions().masters[usize::from(function)] = may;
    }

    fn refused_accesses(&self, function: u8) -> u64 {
        self.bus
            .as_ref()
            .and_then(Bus::functions_seen)
            .map_or(0, |seen| seen.refused[usize::from(function)].get())
    }

    fn messages(&self, queue: u8) -> u64 {
        self.bus
            .as_ref()
            .and_then(Bus::functions_seen)
            .map_or(0, |seen| seen.messages[usize::from(queue)].get())
    }

    fn take_moves(&mut self) -> Vec<Move> {
        let moves = &mut self.functions().moves;
        moves.replace(Some(vec![])).unwrap_or_default()
    }
}
