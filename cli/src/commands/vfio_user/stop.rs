//! A device that stops at a write of its hosts: whoever wrote waits for the answer, and the clock stands.

use std::io::BufRead as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use doorbell_contract::{Place, Register};
use doorbell_host::{DeviceError, FunctionMemory, Move, Pages, Platform, SharedMemory};

use crate::output;

/// Cycles that a waveform has behind the stop.
const BEHIND: u64 = 2_000;

/// Which write stops the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stop {
    register: Register,
    /// Counted from 1.
    nth: u64,
}

/// Reads it from `REGISTER` or `REGISTER:N`.
///
/// # Errors
/// What is wrong with it.
pub fn parse(text: &str) -> Result<Stop, String> {
    let (name, nth) = text.split_once(':').unwrap_or((text, "1"));
    let register = Register::ALL.into_iter().find(|register| register.name().eq_ignore_ascii_case(name));
    let register = register.ok_or_else(|| {
        format!("'{name}' is no register; docs/contract.md lists them, as DOORBELL, CONTROL or ARM")
    })?;
    match nth.parse() {
        Ok(nth) if nth > 0 => Ok(Stop { register, nth }),
        _ => Err(format!("'{nth}' is no number from 1 on, as in {name}:3")),
    }
}

/// The device, and where it stops.
pub struct Stopping {
    device: Box<dyn FunctionMemory>,
    stop: Option<Stop>,
    /// Set when the server is to end, a while behind the stop; without it, it goes on.
    end: Option<Arc<AtomicBool>>,
    /// The cycle in which that is.
    until: Option<u64>,
}

impl Stopping {
    pub fn new(device: Box<dyn FunctionMemory>, stop: Option<Stop>, end: Option<Arc<AtomicBool>>) -> Self {
        Self { device, stop, end, until: None }
    }

    /// Stops before the write that was asked for.
    fn look(&mut self, place: Place, register: Register, value: u32) {
        let Some(stop) = self.stop.as_mut().filter(|stop| stop.register == register) else { return };
        stop.nth -= 1;
        if stop.nth > 0 {
            return;
        }
        self.stop = None;
        let cycle = self.device.cycle();
        let when = cycle.map_or(String::new(), |cycle| format!(" in cycle {cycle}"));
        // What was asked for, so --quiet leaves it.
        output::tell(format_args!(
            "function {}, queue pair {}: {register} is written {value:#x}{when}; Enter goes on",
            place.function, place.queue
        ));
        // Its end goes on as well.
        let _ = std::io::stdin().lock().read_line(&mut String::new());
        self.until = self.end.as_ref().and(cycle).map(|cycle| cycle + BEHIND);
    }

    /// Ends the server once enough is recorded behind the stop.
    fn tick(&self) {
        if let (Some(until), Some(end)) = (self.until, &self.end)
            && self.device.cycle().is_none_or(|cycle| cycle >= until)
        {
            end.store(true, Ordering::Release);
        }
    }
}

impl Platform for Stopping {
    fn name(&self) -> &str {
        self.device.name()
    }

    fn map(&mut self, bytes: usize) -> Result<SharedMemory, DeviceError> {
        self.device.map(bytes)
    }

    fn write_register(&mut self, register: Register, value: u32) -> Result<(), DeviceError> {
        self.write_at(Place::FIRST, register, value)
    }

    fn read_register(&mut self, register: Register) -> Result<u32, DeviceError> {
        self.read_at(Place::FIRST, register)
    }

    fn advance(&mut self, want: usize) -> Result<(), DeviceError> {
        let advanced = self.device.advance(want);
        self.tick();
        advanced
    }
}

impl Pages for Stopping {
    fn write_at(&mut self, place: Place, register: Register, value: u32) -> Result<(), DeviceError> {
        self.look(place, register, value);
        let written = self.device.write_at(place, register, value);
        self.tick();
        written
    }

    fn read_at(&mut self, place: Place, register: Register) -> Result<u32, DeviceError> {
        let read = self.device.read_at(place, register);
        self.tick();
        read
    }
}

impl FunctionMemory for Stopping {
    fn map_range(&mut self, function: u8, memory: SharedMemory, writable: bool) {
        self.device.map_range(function, memory, writable);
    }

    fn unmap_range(&mut self, function: u8, address: u64, bytes: u64) {
        self.device.unmap_range(function, address, bytes);
    }

    fn set_bus_master(&mut self, function: u8, may: bool) {
        self.device.set_bus_master(function, may);
    }

    fn refused_accesses(&self, function: u8) -> u64 {
        self.device.refused_accesses(function)
    }

    fn messages(&self, queue: u8) -> u64 {
        self.device.messages(queue)
    }

    fn take_moves(&mut self) -> Vec<Move> {
        self.device.take_moves()
    }

    fn cycle(&self) -> Option<u64> {
        self.device.cycle()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_is_a_register_and_a_number() {
        assert_eq!(parse("doorbell"), Ok(Stop { register: Register::Doorbell, nth: 1 }));
        assert_eq!(parse("ARM:7"), Ok(Stop { register: Register::Arm, nth: 7 }));
        for (text, why) in
            [("BELL", "'BELL' is no register"), ("ARM:0", "'0' is no number"), ("ARM:x", "'x' is no")]
        {
            let error = parse(text).unwrap_err();
            assert!(error.starts_with(why), "{error}");
        }
    }
}
