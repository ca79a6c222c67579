//! What chaos needs of a device beyond its pages: accesses that no driver makes, time in small pieces, a memory that misbehaves.

use std::ops::RangeInclusive;

use doorbell_contract::{Place, Register};
use doorbell_host::error::DeviceError;
use doorbell_host::memory::SharedMemory;
use doorbell_host::platform::{Awaited, Platform};
use doorbell_host::ports::Pages;

use crate::model::{BusFaults, FaultyRange, Injected, ModelPlatform};

/// How the memory behaves from now on. The default answers at once, and always.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weather {
    /// Cycles that it takes to answer.
    pub latency: RangeInclusive<u32>,
    /// Chance, in percent up to 95, that a channel (AR, R, AW, W, B) stands still in a cycle.
    pub stall_percent: [u8; 5],
    /// Reads are not answered as long as this lasts.
    pub withholds_reads: bool,
    /// Nor writes.
    pub withholds_writes: bool,
    /// Accesses that are answered with an error.
    pub faults: Vec<FaultyRange>,
}

impl Default for Weather {
    fn default() -> Self {
        Self {
            latency: 0..=0,
            stall_percent: [0; 5],
            withholds_reads: false,
            withholds_writes: false,
            faults: Vec::new(),
        }
    }
}

/// What the reset pins of a device reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResetPins {
    /// The device and the bus, which forgets what is in flight.
    WithBus,
    /// The device alone: what it promised to the bus it still has to take.
    Alone,
}

/// A device under chaos.
pub trait Disturbed: Pages {
    /// Writes those bytes that `strobe` names of the register at any address; whether the answer was OKAY. The default is for
    /// devices whose registers the host has in software, and knows no part of one.
    ///
    /// # Errors
    /// Failures of the device.
    fn write_bytes(&mut self, address: u32, value: u32, strobe: u8) -> Result<bool, DeviceError> {
        let (Some((register, place)), 0xF) = (Register::at(address), strobe) else { return Ok(false) };
        match self.write_at(place, register, value) {
            Ok(()) => Ok(true),
            Err(DeviceError::WriteRefused { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Reads at any address: data, and whether the answer was OKAY.
    ///
    /// # Errors
    /// Failures of the device.
    fn read_address(&mut self, address: u32) -> Result<(u32, bool), DeviceError> {
        let Some((register, place)) = Register::at(address) else { return Ok((0, false)) };
        match self.read_at(place, register) {
            Ok(value) => Ok((value, true)),
            Err(DeviceError::ReadRefused { .. }) => Ok((0, false)),
            Err(error) => Err(error),
        }
    }

    /// Lets time pass: of a device with a clock, exactly so many cycles.
    ///
    /// # Errors
    /// Failures of the device.
    fn pass(&mut self, cycles: u32) -> Result<(), DeviceError>;

    /// What the memory is to be like from here on; of what it cannot do, nothing happens. `seed` is that of its draws.
    ///
    /// # Errors
    /// Failures of the device.
    fn set_weather(&mut self, weather: &Weather, seed: u64) -> Result<(), DeviceError> {
        let _ = (weather, seed);
        Ok(())
    }

    /// The accesses that were answered with an error since this was asked last.
    fn take_injected(&mut self) -> Vec<Injected> {
        Vec::new()
    }

    /// Holds the reset pins for some cycles; false where there are none.
    ///
    /// # Errors
    /// Failures of the device.
    fn reset(&mut self, pins: ResetPins) -> Result<bool, DeviceError> {
        let _ = pins;
        Ok(false)
    }
}

/// Cycles of a device with a clock for each token of the model.
const CYCLES_OF_A_TOKEN: u32 = 4;

impl Disturbed for ModelPlatform {
    fn pass(&mut self, cycles: u32) -> Result<(), DeviceError> {
        ModelPlatform::pass(self, cycles.div_ceil(CYCLES_OF_A_TOKEN));
        Ok(())
    }

    fn set_weather(&mut self, weather: &Weather, seed: u64) -> Result<(), DeviceError> {
        let faults = (!weather.faults.is_empty()).then(|| BusFaults::new(weather.faults.clone(), seed));
        self.set_faults(faults);
        let withholds = weather.withholds_reads || weather.withholds_writes;
        self.withhold(if withholds { vec![0..=u64::MAX] } else { Vec::new() });
        Ok(())
    }

    fn take_injected(&mut self) -> Vec<Injected> {
        ModelPlatform::take_injected(self)
    }

    fn reset(&mut self, _: ResetPins) -> Result<bool, DeviceError> {
        ModelPlatform::reset(self);
        Ok(true)
    }
}

impl<D: Disturbed + ?Sized> Disturbed for Box<D> {
    fn write_bytes(&mut self, address: u32, value: u32, strobe: u8) -> Result<bool, DeviceError> {
        (**self).write_bytes(address, value, strobe)
    }

    fn read_address(&mut self, address: u32) -> Result<(u32, bool), DeviceError> {
        (**self).read_address(address)
    }

    fn pass(&mut self, cycles: u32) -> Result<(), DeviceError> {
        (**self).pass(cycles)
    }

    fn set_weather(&mut self, weather: &Weather, seed: u64) -> Result<(), DeviceError> {
        (**self).set_weather(weather, seed)
    }

    fn take_injected(&mut self) -> Vec<Injected> {
        (**self).take_injected()
    }

    fn reset(&mut self, pins: ResetPins) -> Result<bool, DeviceError> {
        (**self).reset(pins)
    }
}

/// A device with a clock of its own, whose memory never answers with an error and that has no reset pins: a GPU.
#[derive(Debug)]
pub struct OwnClock<P>(pub P);

impl<P: Pages> Platform for OwnClock<P> {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn map(&mut self, bytes: usize) -> Result<SharedMemory, DeviceError> {
        self.0.map(bytes)
    }

    fn write_register(&mut self, register: Register, value: u32) -> Result<(), DeviceError> {
        self.0.write_register(register, value)
    }

    fn read_register(&mut self, register: Register) -> Result<u32, DeviceError> {
        self.0.read_register(register)
    }

    fn advance(&mut self, want: usize) -> Result<(), DeviceError> {
        self.0.advance(want)
    }

    fn route(&mut self, memory: &SharedMemory, offset: usize) -> Result<(), DeviceError> {
        self.0.route(memory, offset)
    }

    fn wait(&mut self, awaited: Awaited, deadline: std::time::Instant) -> Result<(), DeviceError> {
        self.0.wait(awaited, deadline)
    }

    fn runs_alone(&self) -> bool {
        self.0.runs_alone()
    }

    fn report(&mut self) -> Option<String> {
        self.0.report()
    }
}

impl<P: Pages> Pages for OwnClock<P> {
    fn write_at(&mut self, place: Place, register: Register, value: u32) -> Result<(), DeviceError> {
        self.0.write_at(place, register, value)
    }

    fn read_at(&mut self, place: Place, register: Register) -> Result<u32, DeviceError> {
        self.0.read_at(place, register)
    }
}

impl<P: Pages> Disturbed for OwnClock<P> {
    fn pass(&mut self, _: u32) -> Result<(), DeviceError> {
        self.0.advance(1)
    }
}

/// A register that is there, or the reason why not as a failure.
pub(super) fn read(device: &mut dyn Disturbed, place: Place, register: Register) -> Result<u32, DeviceError> {
    device.read_at(place, register)
}
