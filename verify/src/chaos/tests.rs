//! The judge sees what is planted, and nothing where nothing is.

use rstest::rstest;

use super::*;
use crate::model::{ModelPlatform, Mutation};
use doorbell_contract::{Control, HwCompletion, Place, Register, State};
use doorbell_host::memory::SharedMemory;
use doorbell_host::platform::Platform;
use doorbell_host::ports::Pages;

fn chaos(seed: u64, rounds: u32, queues: u8, functions: u8) -> Result<Tally, Box<Broken>> {
    let options = Options { rounds, ..Options::new(seed) };
    run(&options, &mut |_| Ok(Box::new(ModelPlatform::with_queues(queues, functions)?)))
}

/// Devices that are drawn in turn.
const SHAPES: [(u8, u8); 4] = [(1, 1), (4, 2), (4, 4), (3, 2)];

#[test]
fn the_model_keeps_every_rule() {
    let mut all = Tally::default();
    let seeds = SHAPES.iter().flat_map(|&shape| (0..24).map(move |seed| (seed, shape)));
    let broken: Vec<String> = seeds
        .filter_map(|(seed, (queues, functions))| match chaos(seed, 2, queues, functions) {
            Ok(tally) => {
                all += &tally;
                None
            }
            Err(broken) => Some(format!("{queues} queue pairs, {functions} functions: {broken}")),
        })
        .collect();
    assert!(broken.is_empty(), "{} broke rules:\n{}", broken.len(), broken[..broken.len().min(8)].join("\n"));
    // Nothing is held that is not drawn.
    assert!(all.lost > 100 && all.cancelled > 1000, "{all:?}");
    assert!(all.disturbances.len() >= 25, "{:?}", all.disturbances);
    for kind in ["a driver that has come back", "rounds of drivers"] {
        assert!(
            all.disturbances.get(kind).is_some_and(|&count| count > 20),
            "{kind}: {:?}",
            all.disturbances
        );
    }
    for kind in ["disables", "drains", "resets of a function", "SLVERR", "DECERR", "aborts"] {
        assert!(
            all.disturbances.get(kind).is_some_and(|&count| count > 50),
            "{kind}: {:?}",
            all.disturbances
        );
    }
}

#[test]
fn a_seed_is_the_same_again() {
    for seed in [3, u64::MAX] {
        assert_eq!(chaos(seed, 2, 4, 2).unwrap(), chaos(seed, 2, 4, 2).unwrap());
    }
    assert_ne!(chaos(3, 1, 4, 2).unwrap(), chaos(4, 1, 4, 2).unwrap());
}

/// What a device does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plant {
    WritesOutside,
    WritesWhileInactive,
    LosesStickyBits,
    InventsStickyBits,
    DisablesNeighbours,
    AcceptsPartialWrites,
    DrainCancels,
    SaysMoreWasRead,
    ForgetsRefusedDoorbells,
    ExecutesWhatItCouldNotRead,
    CountsWrong,
    TakesBadConfigurations,
    KeepsActive,
    NeverWakes,
    RefusesDoorbells,
}

struct Planted {
    model: ModelPlatform,
    plant: Plant,
    memory: Option<SharedMemory>,
    passes: u32,
}

impl Platform for Planted {
    fn name(&self) -> &str {
        "planted"
    }

    fn map(&mut self, bytes: usize) -> Result<SharedMemory, DeviceError> {
        let memory = self.model.map(bytes)?;
        self.memory = Some(memory.clone());
        Ok(memory)
    }

    fn write_register(&mut self, register: Register, value: u32) -> Result<(), DeviceError> {
        self.write_at(Place::FIRST, register, value)
    }

    fn read_register(&mut self, register: Register) -> Result<u32, DeviceError> {
        self.read_at(Place::FIRST, register)
    }

    fn advance(&mut self, want: usize) -> Result<(), DeviceError> {
        self.model.advance(want)
    }
}

impl Planted {
    fn store(&self, offset: usize) {
        self.memory.as_ref().unwrap().store_u32s(offset, &[7]).unwrap();
    }
}

impl Pages for Planted {
    fn write_at(&mut self, place: Place, register: Register, mut value: u32) -> Result<(), DeviceError> {
        if register == Register::Control {
            if self.plant == Plant::DisablesNeighbours && value == 0 {
                let queue = (place.queue + 1) % 4;
                // Whichever function it is of.
                for function in 0..4 {
                    let _ = self.model.write_at(Place { function, queue }, register, 0);
                }
            }
            if self.plant == Plant::DrainCancels && value & Control::DRAIN.bits() != 0 {
                value = 0;
            }
        }
        if register == Register::MessageControl && self.plant == Plant::NeverWakes {
            value |= 1;
        }
        if register == Register::Doorbell && self.plant == Plant::RefusesDoorbells {
            self.passes += 1;
            if self.passes.is_multiple_of(16) {
                return Err(DeviceError::WriteRefused { device: "planted".into(), register, value });
            }
        }
        self.model.write_at(place, register, value)
    }

    fn read_at(&mut self, place: Place, register: Register) -> Result<u32, DeviceError> {
        let value = self.model.read_at(place, register)?;
        Ok(match (self.plant, register) {
            (Plant::LosesStickyBits, Register::Error) => value & 1,
            (Plant::InventsStickyBits, Register::Error) => value | 2,
            (Plant::SaysMoreWasRead, Register::SqHead) => value.wrapping_add(1),
            (Plant::ForgetsRefusedDoorbells, Register::Status) => value & !0xFF,
            (Plant::CountsWrong, Register::QueueCompletionsLo) => value + 1,
            (Plant::TakesBadConfigurations, Register::Error) => value & !1,
            (Plant::KeepsActive, Register::State) => value | State::ACTIVE.bits(),
            (Plant::WritesWhileInactive, Register::State) if value & State::ACTIVE.bits() == 0 => {
                // When the host has looked, and before it looks again.
                self.passes = 0;
                value
            }
            _ => value,
        })
    }
}

impl Disturbed for Planted {
    fn write_bytes(&mut self, address: u32, value: u32, strobe: u8) -> Result<bool, DeviceError> {
        let okay = self.model.write_bytes(address, value, strobe)?;
        Ok(okay || self.plant == Plant::AcceptsPartialWrites && strobe != 0xF)
    }

    fn pass(&mut self, cycles: u32) -> Result<(), DeviceError> {
        self.passes += 1;
        match self.plant {
            Plant::WritesOutside if self.passes == 40 => self.store(layout::CQ - 8),
            Plant::WritesWhileInactive if self.passes == 1 => {
                self.store(layout::TOKENS + layout::area(3) as usize);
            }
            _ => {}
        }
        Disturbed::pass(&mut self.model, cycles)
    }

    fn set_weather(&mut self, weather: &Weather, seed: u64) -> Result<(), DeviceError> {
        self.model.set_weather(weather, seed)
    }

    fn take_injected(&mut self) -> Vec<Injected> {
        let mut injected = Disturbed::take_injected(&mut self.model);
        if self.plant == Plant::ExecutesWhatItCouldNotRead && self.passes == 60 {
            self.passes += 1;
            let address = self.memory.as_ref().unwrap().bus_address() + layout::SQ as u64;
            injected.push(Injected { address, bytes: 128, is_write: false, is_decerr: true });
        }
        injected
    }

    fn reset(&mut self, pins: ResetPins) -> Result<bool, DeviceError> {
        Disturbed::reset(&mut self.model, pins)
    }
}

/// The first rule that one of these seeds finds broken.
fn found(make: impl Fn() -> Box<dyn Disturbed>) -> Option<Box<Broken>> {
    (0..40).find_map(|seed| run(&Options { rounds: 1, ..Options::new(seed) }, &mut |_| Ok(make())).err())
}

#[rstest]
#[case(Plant::WritesOutside, &["R11"])]
#[case(Plant::WritesWhileInactive, &["R11", "R12"])]
#[case(Plant::LosesStickyBits, &["ERROR"])]
#[case(Plant::InventsStickyBits, &["ERROR", "R12"])]
#[case(Plant::DisablesNeighbours, &["R12", "R15", "R3", "device"])]
#[case(Plant::AcceptsPartialWrites, &["registers"])]
#[case(Plant::DrainCancels, &["R3"])]
#[case(Plant::SaysMoreWasRead, &["R12", "R2", "R13", "device"])]
#[case(Plant::ForgetsRefusedDoorbells, &["registers"])]
#[case(Plant::ExecutesWhatItCouldNotRead, &["R10", "R12"])]
#[case(Plant::CountsWrong, &["counters"])]
#[case(Plant::TakesBadConfigurations, &["R12"])]
#[case(Plant::KeepsActive, &["R12", "R15"])]
#[case(Plant::NeverWakes, &["R14"])]
#[case(Plant::RefusesDoorbells, &["R15", "device"])]
fn what_is_planted_is_found(#[case] plant: Plant, #[case] rules: &[&str]) {
    let make = || -> Box<dyn Disturbed> {
        let model = ModelPlatform::with_queues(4, 4).unwrap();
        Box::new(Planted { model, plant, memory: None, passes: 0 })
    };
    let broken = found(make).expect("no seed has found it");
    assert!(rules.contains(&broken.violation.rule), "{broken}");
}

#[rstest]
#[case("token:90", &["R6"])]
#[case("hang:200", &["R15"])]
#[case("completion:60:user_data", &["R3", "R5", "R6", "R7", "R13"])]
#[case("completion:60:rollout_id", &["R6", "R10"])]
#[case("completion:60:status", &["R6", "R10"])]
#[case("completion:60:error", &["R6", "R10"])]
#[case("completion:60:result", &["R6", "R10", "R3"])]
#[case("completion:60:final_seq_len", &["R6", "R10"])]
#[case("completion:60:sq_head", &["R13"])]
#[case("completion:60:flags", &["R6", "R10"])]
#[case::lost_without_a_fault("completion:60:phase", &["R3", "R12", "R13", "R15"])]
#[case("policy:swapped-slot", &["R6", "R12"])]
#[case("policy:late-load", &["R6", "R12"])]
fn mistakes_of_the_model_are_found(#[case] mutation: &str, #[case] rules: &[&str]) {
    let mutation: Mutation = mutation.parse().unwrap();
    let make = || -> Box<dyn Disturbed> {
        Box::new(ModelPlatform::with_queues(2, 2).unwrap().with_mutation(mutation))
    };
    let broken = found(make).expect("no seed has found it");
    assert!(rules.contains(&broken.violation.rule), "{broken}");
}

/// A hang says who waits for what (R15), and how to come back to it.
#[test]
fn a_hang_names_seed_and_queue_pair() {
    let mutation: Mutation = "hang:30".parse().unwrap();
    let make = || -> Box<dyn Disturbed> { Box::new(ModelPlatform::new().with_mutation(mutation)) };
    let broken = found(make).unwrap().to_string();
    assert!(broken.starts_with("seed 0, round 0: R15: ") && broken.contains("queue pair 0"), "{broken}");
    assert!(broken.contains("STATE") && HwCompletion::FIELDS.len() > 5, "{broken}");
}
