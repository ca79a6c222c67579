//! What can be chosen about the simulated device and its memory.

use std::ops::{Range, RangeInclusive};
use std::path::PathBuf;

pub use crate::bridge::ffi::{Fault, FaultKind, FaultyRange, Injected, Moment, Weather};

use crate::bridge::ffi;
use crate::error::CosimError;

/// Channels of the device's AXI port, in the order of [`RtlConfig::stall_percent`].
pub const CHANNELS: [&str; 5] = ["AR", "R", "AW", "W", "B"];

/// Longest latency that can be asked for, in cycles.
pub const MAX_LATENCY: u32 = 1_000_000;

/// Cycles of a slice of the device's time, unless other threads have to wait for its end.
pub const SLICE: u64 = 4096;

/// Cycles of a slice of a device whose drivers have threads of their own: a register access waits until it is over, tens of
/// microseconds.
pub const SHARED_SLICE: u64 = 256;

/// How to build and surround the simulated device. The default is a memory that answers in the next cycle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RtlConfig {
    /// Workers that the RTL must have at least; the smallest variant that was built is taken
    /// (see [`built_workers`](crate::built_workers)). How many of them are used is
    /// [`QueueConfig::workers`](doorbell_host::QueueConfig::workers).
    pub workers: u32,
    /// Queue pairs that the RTL must have at least. One keeps to the variants of one queue pair.
    pub queues: u32,
    /// Functions that the RTL must have at least.
    pub functions: u32,
    /// Engines that the RTL must have: 2 for a language model's; with 1 the RTL is one without that.
    pub engines: u32,
    /// Cycles from an address, or the last beat of a write, to the first cycle of its answer, beyond the one that it
    /// takes at least; drawn anew for each transfer.
    pub latency: RangeInclusive<u32>,
    /// Chance, in percent up to 95, that a channel stands still in a cycle; see [`CHANNELS`].
    pub stall_percent: [u8; 5],
    /// Whether write responses of different IDs come in any order.
    pub reorder: bool,
    /// Seed of everything that is random, initial register values of the RTL included.
    pub seed: u64,
    /// What goes wrong.
    pub faults: Vec<Fault>,
    /// Function whose owner does with its registers what he likes. The memory holds its queue pairs to nothing but the windows
    /// of the function, and counts what strays from any function's ([`RtlPlatform::watch`](crate::RtlPlatform::watch)) where
    /// it would else end the simulation.
    pub hostile: Option<u8>,
    /// Whether each function has a host of its own, and reaches only what it [was given](doorbell_host::FunctionMemory) of that host's
    /// memory. All functions are hostile then, and messages are only counted.
    pub by_function: bool,
    /// Whether its memory is to be told, while it runs, [how to behave](crate::RtlPlatform::set_weather).
    pub changes: bool,
    /// Cycles that one [`advance`](doorbell_host::Platform::advance) simulates at most.
    pub slice: u64,
    /// Whether its memory keeps [when descriptors came and writes were answered](crate::RtlPlatform::take_moments).
    pub moments: bool,
    /// Waveform to be written.
    pub wave: Option<Wave>,
}

impl Default for RtlConfig {
    fn default() -> Self {
        Self {
            workers: 4,
            queues: 1,
            functions: 1,
            engines: 1,
            latency: 0..=0,
            stall_percent: [0; 5],
            reorder: false,
            seed: 1,
            faults: vec![],
            hostile: None,
            by_function: false,
            changes: false,
            slice: SLICE,
            moments: false,
            wave: None,
        }
    }
}

/// A waveform in FST format. Cycle *c* begins at 10 *c* ns and its rising clock edge is at 10 *c* + 5 ns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wave {
    /// File to be written.
    pub path: PathBuf,
    /// Clock cycles to be recorded, counted from the making of the device; `None` is all.
    pub window: Option<Range<u64>>,
}

impl RtlConfig {
    /// A memory with latency, stalls and reordering drawn from `seed`; no two seeds are alike, and some are extreme.
    #[must_use]
    pub fn with_random_memory(self, seed: u64) -> Self {
        // SplitMix64 again, so that neighbouring seeds differ in everything.
        let mut state = seed;
        let mut below = |bound: u64| {
            state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mut z = state;
            z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
            ((u128::from(z ^ z >> 31) * u128::from(bound)) >> 64) as u64
        };
        let min = below(4) * below(16);
        let max = min + below(3) * below(64);
        let mut stall_percent = [0; 5];
        for percent in &mut stall_percent {
            *percent = [0, 10, 30, 50, 90][below(5) as usize];
        }
        let reorder = below(4) != 0;
        Self { latency: min as u32..=max as u32, stall_percent, reorder, seed, ..self }
    }

    pub(crate) fn simulator(&self) -> Result<ffi::SimulatorConfig, CosimError> {
        let refuse = |field, value: String, expected| Err(CosimError::Config { field, value, expected });
        if self.latency.is_empty() || *self.latency.end() > MAX_LATENCY {
            return refuse(
                "latency",
                format!("{:?}", self.latency),
                "a range from low to high, at most 1000000",
            );
        }
        if let Some(channel) = self.stall_percent.iter().position(|&percent| percent > 95) {
            let value = format!("{} on {}", self.stall_percent[channel], CHANNELS[channel]);
            return refuse("stall_percent", value, "at most 95: a channel has to move now and then");
        }
        if self.slice == 0 {
            return refuse("slice", "0".to_owned(), "at least 1 cycle");
        }
        let (wave_path, window) = match &self.wave {
            None => (String::new(), 0..0),
            Some(wave) => {
                let path = wave.path.to_str().filter(|path| !path.is_empty());
                let Some(path) = path else {
                    return refuse("wave", wave.path.display().to_string(), "a path in UTF-8");
                };
                (path.to_owned(), wave.window.clone().unwrap_or(0..u64::MAX))
            }
        };
        Ok(ffi::SimulatorConfig {
            latency_min: *self.latency.start(),
            latency_max: *self.latency.end(),
            stall_percent: self.stall_percent,
            reorder: self.reorder,
            seed: self.seed,
            hostile: if self.by_function { 0xFFFF } else { self.hostile.map_or(0, |function| 1 << function) },
            by_function: self.by_function,
            moments: self.moments,
            changes: self.changes,
            faults: self.faults.clone(),
            wave_path,
            wave_from: window.start,
            wave_to: window.end,
        })
    }
}

impl FaultKind {
    /// This fault at that place, of bit 0 if it is one of a bit.
    pub fn at(self, at: u64) -> Fault {
        Fault { kind: self, at, bit: 0 }
    }
}
