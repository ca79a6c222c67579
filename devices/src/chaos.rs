//! Devices for [`doorbell_verify::chaos`]: bare, after reset, in a world that can be made to misbehave.

use doorbell_host::DeviceError;
use doorbell_verify::ModelPlatform;
use doorbell_verify::chaos::Disturbed;

use crate::{Kind, OpenError};

impl Kind {
    /// Opens the device for chaos, with at least so many workers, queue pairs and functions where it has a choice; `seed` is that of
    /// its memory.
    ///
    /// # Errors
    /// The device is not there, or another process or the kernel stands between it and what chaos does.
    pub fn open_for_chaos(self, shape: &Shape, seed: u64) -> Result<Box<dyn Disturbed>, OpenError> {
        if let Some(reason) = self.left_out() {
            let device = self.name().to_owned();
            return Err(DeviceError::Unavailable { device, reason }.into());
        }
        match self {
            Kind::Model => Ok(Box::new(ModelPlatform::with_queues(shape.queues, shape.functions)?)),
            #[cfg(feature = "rtl")]
            Kind::Rtl => Ok(Box::new(rtl::open(shape, seed)?)),
            #[cfg(feature = "gpu")]
            Kind::Gpu => Ok(Box::new(doorbell_verify::chaos::OwnClock(crate::gpu::open_bare(shape.queues)?))),
            #[cfg(not(feature = "rtl"))]
            Kind::Rtl => unreachable!("what was left out is told above, {seed}"),
            #[cfg(not(feature = "gpu"))]
            Kind::Gpu => unreachable!("what was left out is told above, {seed}"),
            Kind::VfioUser | Kind::Pcie => {
                let kinds = Kind::ALL.map(Kind::name).join(", ");
                let reason = format!(
                    "chaos resets a whole device and spoils its memory, which the driver of one function cannot; it takes {kinds}"
                );
                Err(DeviceError::Unavailable { device: self.name().to_owned(), reason }.into())
            }
        }
    }
}

/// What a device for chaos is to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Workers of the RTL.
    pub workers: u32,
    /// Queue pairs, 1 to 16.
    pub queues: u8,
    /// Functions, at most as many.
    pub functions: u8,
    /// Waveform of the RTL to be written.
    pub wave: Option<std::path::PathBuf>,
}

#[cfg(feature = "rtl")]
mod rtl {
    use super::*;
    use doorbell_contract::{Place, Register};
    use doorbell_cosim::{CosimError, FaultyRange, RtlConfig, RtlPlatform, Wave};
    use doorbell_host::{Pages, Platform, SharedMemory};
    use doorbell_verify::chaos::{Injected, ResetPins, Weather};

    pub(super) struct Rtl(RtlPlatform);

    impl Platform for Rtl {
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

        fn route(&mut self, memory: &doorbell_host::SharedMemory, offset: usize) -> Result<(), DeviceError> {
            self.0.route(memory, offset)
        }

        fn wait(
            &mut self,
            awaited: doorbell_host::Awaited,
            deadline: std::time::Instant,
        ) -> Result<(), DeviceError> {
            self.0.wait(awaited, deadline)
        }

        fn runs_alone(&self) -> bool {
            self.0.runs_alone()
        }

        fn report(&mut self) -> Option<String> {
            self.0.report()
        }
    }

    impl Pages for Rtl {
        fn write_at(&mut self, place: Place, register: Register, value: u32) -> Result<(), DeviceError> {
            Pages::write_at(&mut self.0, place, register, value)
        }

        fn read_at(&mut self, place: Place, register: Register) -> Result<u32, DeviceError> {
            Pages::read_at(&mut self.0, place, register)
        }
    }

    pub(super) fn open(shape: &Shape, seed: u64) -> Result<Rtl, DeviceError> {
        let config = RtlConfig {
            workers: shape.workers,
            queues: shape.queues.into(),
            functions: shape.functions.into(),
            reorder: seed & 1 == 0,
            seed,
            changes: true,
            wave: shape.wave.clone().map(|path| Wave { path, window: None }),
            ..RtlConfig::default()
        };
        Ok(Rtl(RtlPlatform::new(&config)?))
    }

    impl Disturbed for Rtl {
        fn write_bytes(&mut self, address: u32, value: u32, strobe: u8) -> Result<bool, DeviceError> {
            Ok(self.0.write_bytes(address, value, strobe)?)
        }

        fn read_address(&mut self, address: u32) -> Result<(u32, bool), DeviceError> {
            Ok(self.0.read_address(address)?)
        }

        fn pass(&mut self, cycles: u32) -> Result<(), DeviceError> {
            Ok(self.0.run(cycles.into())?)
        }

        fn set_weather(&mut self, weather: &Weather, _: u64) -> Result<(), DeviceError> {
            let faults = weather.faults.iter().map(|range| FaultyRange {
                first: range.first,
                last: range.last,
                one_in: range.one_in,
            });
            Ok(self.0.set_weather(&doorbell_cosim::Weather {
                latency: [*weather.latency.start(), *weather.latency.end()],
                stall_percent: weather.stall_percent,
                withholds_reads: weather.withholds_reads,
                withholds_writes: weather.withholds_writes,
                faults: faults.collect(),
            })?)
        }

        fn take_injected(&mut self) -> Vec<Injected> {
            let injected = self.0.take_injected().into_iter();
            let injected = injected.map(|access| Injected {
                address: access.address,
                bytes: access.bytes,
                is_write: access.is_write,
                is_decerr: access.is_decerr,
            });
            injected.collect()
        }

        fn reset(&mut self, pins: ResetPins) -> Result<bool, DeviceError> {
            let reset: Result<(), CosimError> = match pins {
                ResetPins::WithBus => self.0.reset(2),
                ResetPins::Alone => self.0.reset_alone(2),
            };
            Ok(reset.map(|()| true)?)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever a user may name: it opens, or says why not.
    #[test]
    fn every_kind_opens_for_chaos_or_says_why_not() {
        let shape = Shape { workers: 1, queues: 1, functions: 1, wave: None };
        for kind in Kind::ALL.into_iter().chain([Kind::VfioUser, Kind::Pcie]) {
            match kind.open_for_chaos(&shape, 0) {
                Ok(_) => assert!(Kind::ALL.contains(&kind), "{kind}"),
                Err(error) => {
                    assert!(error.missing().is_some_and(|reason| !reason.is_empty()), "{kind}: {error}")
                }
            }
        }
    }
}
