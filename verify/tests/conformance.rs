//! The conformance suite on the model, alone and at every place of a device with several queue pairs and functions: one test
//! per case, and proof that the suite notices a faulty device. `DOORBELL_SEED` sets the seed.

use std::panic::{AssertUnwindSafe, catch_unwind};

use doorbell_contract::{Block, Control, Place, Register};
use doorbell_host::{DeviceError, Pages, Platform, SharedMemory};
use doorbell_verify::ModelPlatform;
use doorbell_verify::conformance::{Bench, CASES, Case, Seat, TENANT_CASES, Tenancy, TenantCase};
use doorbell_verify::model::Mutation;
use libtest_mimic::{Arguments, Failed, Trial};

/// A fault, and a case that has to notice it.
const FAULTS: &[(&str, &str)] = &[
    ("token:0", "r06_settings_change_no_answer"),
    ("token:1000", "r09_checkpoints_lose_nothing"),
    ("completion:3:user_data", "r03_every_descriptor_has_one_completion"),
    ("completion:3:rollout_id", "r06_settings_change_no_answer"),
    ("completion:3:final_seq_len", "r06_lengths_beyond_16_bits"),
    ("completion:3:result", "r13_every_rule_holds_across_the_wrap"),
    ("completion:3:sq_head", "r13_every_rule_holds_across_the_wrap"),
    ("completion:3:reward_model_id", "r03_every_descriptor_has_one_completion"),
    ("completion:3:error", "r10_every_error_code_and_its_precedence"),
    ("completion:3:flags", "r06_end_of_sequence"),
    ("completion:3:status", "r09_a_budget_that_ends_at_a_checkpoint_is_done"),
    ("completion:3:phase", "r04_full_completion_queue_stalls_and_drops_nothing"),
    ("policy:late-load", "r18_tokens_come_from_the_version_they_name"),
    ("policy:late-load", "r20_publishes_under_load_lose_nothing"),
    ("policy:swapped-slot", "r18_tokens_come_from_the_version_they_name"),
    ("policy:swapped-slot", "r20_publishes_under_load_lose_nothing"),
    ("policy:stale-prefix", "r21_prefixes_belong_to_their_version"),
    ("policy:late-stop", "r20_a_retired_version_ends"),
    ("event:3:kind", "r23_every_completion_has_its_life"),
    ("event:3:queue_id", "r23_events_and_drops_are_all_completions"),
    ("event:3:worker_id", "r23_every_completion_has_its_life"),
    ("event:3:index", "r23_every_completion_has_its_life"),
    ("event:3:stamp", "r23_events_and_drops_are_all_completions"),
    ("event:3:start", "r23_every_completion_has_its_life"),
    ("event:3:first_token", "r23_events_and_drops_are_all_completions"),
    ("event:3:ended", "r23_every_completion_has_its_life"),
    ("event:3:visible", "r23_events_and_drops_are_all_completions"),
    ("event:full", "r23_a_full_ring_drops_and_holds_nobody_back"),
    ("event:full", "r23_the_last_quarter_is_left_for_faults"),
    ("hang:1", "r15_a_slow_device_is_waited_for"),
    ("hang:5", "r08_stop_leaves_other_rollouts_alone"),
];

/// What is not kept apart between queue pairs.
#[derive(Clone, Copy, Debug)]
enum Leak {
    /// A disable ends every queue pair.
    Disable,
    /// A reset of a function ends those of all functions.
    Reset,
    /// A drain ends the queue pair behind it as well.
    Drain,
    /// The page of a function reaches every queue pair.
    Pages,
    /// Windows confine nothing.
    Windows,
    /// Weights are 1.
    Weights,
    /// All but queue pair 0 have more turns than they should.
    Turns,
    /// A full completion queue holds up all.
    Stall,
    /// A doorbell of one is one of queue pair 0.
    Doorbell,
    /// Interrupt and errors are those of queue pair 0.
    Faults,
    /// A configuration that one function writes is everybody's.
    Lengths,
    /// Counters of a queue pair are those of queue pair 0.
    Counters,
}

/// A leak, and a case that has to notice it.
const LEAKS: &[(Leak, &str)] = &[
    (Leak::Disable, "r12_a_disable_touches_no_other"),
    (Leak::Disable, "counters_are_the_sums_of_all_queue_pairs"),
    (Leak::Reset, "r12_a_function_reset_touches_no_other_function"),
    (Leak::Drain, "r12_a_drain_touches_no_other"),
    (Leak::Pages, "r11_a_page_reaches_its_own_functions_queue_pairs"),
    (Leak::Pages, "r11_hostile_accesses_change_nothing_of_others"),
    (Leak::Windows, "r11_windows_refuse_the_regions_of_another_function"),
    (Leak::Windows, "r11_hostile_accesses_change_nothing_of_others"),
    (Leak::Windows, "everything_is_function_0s_after_reset"),
    (Leak::Weights, "shares_are_the_weights"),
    (Leak::Turns, "shares_are_the_weights"),
    (Leak::Turns, "an_eligible_queue_pair_waits_for_the_weights_of_the_others"),
    (Leak::Stall, "r04_a_queue_pair_that_is_never_reaped_holds_up_no_other"),
    (Leak::Stall, "r05_a_rollout_of_another_queue_pair_is_another"),
    (Leak::Stall, "r07_a_fence_looks_at_its_own_queue_pair"),
    (Leak::Doorbell, "r05_a_rollout_of_another_queue_pair_is_another"),
    (Leak::Faults, "r11_hostile_accesses_change_nothing_of_others"),
    (Leak::Lengths, "r06_settings_are_a_functions_own"),
    (Leak::Lengths, "r23_a_ring_is_of_its_function_alone"),
    (Leak::Counters, "counters_are_the_sums_of_all_queue_pairs"),
];

/// The model with a leak.
struct Leaky {
    model: ModelPlatform,
    leak: Leak,
}

const QUEUES: u8 = 4;
const FUNCTIONS: u8 = 2;

fn model() -> Result<ModelPlatform, DeviceError> {
    ModelPlatform::with_queues(QUEUES, FUNCTIONS)
}

impl Leaky {
    /// Every queue pair, by its owner.
    fn places(&mut self) -> Result<Vec<Place>, DeviceError> {
        let mut place = |queue| {
            let owner = self.model.read_at(Place { queue, ..Place::FIRST }, Register::QueueFunction)?;
            Ok(Place { function: owner as u8, queue })
        };
        (0..QUEUES).map(&mut place).collect()
    }

    /// Where an access goes.
    fn place(&mut self, place: Place, register: Register) -> Result<Place, DeviceError> {
        Ok(match (self.leak, register.block()) {
            (Leak::Pages, Block::FunctionQueue) if place.queue < QUEUES => {
                self.places()?[usize::from(place.queue)]
            }
            (Leak::Doorbell, _) if register == Register::Doorbell => Place { queue: 0, ..place },
            (Leak::Faults, _) if matches!(register, Register::Error | Register::Arm) => {
                Place { queue: 0, ..place }
            }
            (Leak::Counters, Block::Queue) if register >= Register::QueueDescriptorsLo => {
                Place { queue: 0, ..place }
            }
            (Leak::Lengths, Block::Function) if register != Register::FnControl => {
                Place { function: 0, ..place }
            }
            _ => place,
        })
    }
}

impl Platform for Leaky {
    fn name(&self) -> &str {
        "leaky"
    }

    fn map(&mut self, bytes: usize) -> Result<SharedMemory, DeviceError> {
        self.model.map(bytes)
    }

    fn write_register(&mut self, register: Register, value: u32) -> Result<(), DeviceError> {
        self.write_at(Place::FIRST, register, value)
    }

    fn read_register(&mut self, register: Register) -> Result<u32, DeviceError> {
        self.read_at(Place::FIRST, register)
    }

    fn advance(&mut self, want: usize) -> Result<(), DeviceError> {
        match self.leak {
            Leak::Stall => {
                for queue in 0..QUEUES {
                    let place = Place { queue, ..Place::FIRST };
                    let fill = self.model.read_at(place, Register::Status)? >> 8 & 0xFF;
                    let owner = self.model.read_at(place, Register::QueueFunction)? as u8;
                    let size = self.model.read_at(Place { function: owner, queue }, Register::CqSize)?;
                    if fill > 0 && fill == size {
                        return Ok(());
                    }
                }
                self.model.advance(want)
            }
            _ => self.model.advance(want),
        }
    }
}

impl Pages for Leaky {
    fn write_at(&mut self, place: Place, register: Register, value: u32) -> Result<(), DeviceError> {
        let place = self.place(place, register)?;
        let control = Control::from_bits_truncate(value);
        match (self.leak, register) {
            (Leak::Windows, Register::Window0SizeLo | Register::Window0SizeHi) => {
                return self.model.write_at(place, register, u32::MAX);
            }
            (Leak::Windows, Register::Window0BaseLo | Register::Window0BaseHi) => return Ok(()),
            (Leak::Weights, Register::Weight) => return self.model.write_at(place, register, 1),
            (Leak::Turns, Register::Weight) if place.queue > 0 => {
                return self.model.write_at(place, register, 255);
            }
            (Leak::Disable, Register::Control) if value == 0 => {
                for place in self.places()? {
                    self.model.write_at(place, register, 0)?;
                }
                return Ok(());
            }
            (Leak::Reset, Register::FnControl) => {
                for function in 0..FUNCTIONS {
                    self.model.write_at(Place { function, ..place }, register, value)?;
                }
                return Ok(());
            }
            (Leak::Drain, Register::Control) if control.contains(Control::DRAIN) => {
                let behind = self.places()?[usize::from((place.queue + 1) % QUEUES)];
                self.model.write_at(behind, register, 0)?;
            }
            _ => {}
        }
        self.model.write_at(place, register, value)
    }

    fn read_at(&mut self, place: Place, register: Register) -> Result<u32, DeviceError> {
        let is_size = matches!(register, Register::Window0SizeLo | Register::Window0SizeHi);
        let place = self.place(place, register)?;
        let value = self.model.read_at(place, register)?;
        Ok(if is_size && matches!(self.leak, Leak::Windows) { u32::MAX } else { value })
    }
}

/// The model, whose registers of coalescing nobody can write, although it says that it has interrupts.
struct Uncoalesced(ModelPlatform);

impl Platform for Uncoalesced {
    fn name(&self) -> &str {
        "uncoalesced"
    }

    fn map(&mut self, bytes: usize) -> Result<SharedMemory, DeviceError> {
        self.0.map(bytes)
    }

    fn write_register(&mut self, register: Register, value: u32) -> Result<(), DeviceError> {
        if matches!(register, Register::CoalesceCount | Register::CoalesceTime) && value != 0 {
            return Err(DeviceError::WriteRefused { device: self.name().to_owned(), register, value });
        }
        self.0.write_register(register, value)
    }

    fn read_register(&mut self, register: Register) -> Result<u32, DeviceError> {
        self.0.read_register(register)
    }

    fn advance(&mut self, want: usize) -> Result<(), DeviceError> {
        self.0.advance(want)
    }
}

/// Cases that coalesce.
const COALESCE: [&str; 4] = [
    "r14_a_number_of_completions_fires",
    "r14_time_fires",
    "r14_a_drain_tells_of_its_last_completion",
    "r14_no_wake_up_is_lost",
];

fn run(
    case: &Case,
    seed: u64,
    make: impl Fn() -> Result<Box<dyn Platform>, DeviceError>,
) -> Result<(), Failed> {
    let mut make = || make();
    Bench::new(&mut make, seed).run(case).map_err(Failed::from)
}

fn run_tenants(
    case: &TenantCase,
    seed: u64,
    make: impl Fn() -> Result<Box<dyn Pages>, DeviceError>,
) -> Result<(), Failed> {
    let mut make = || make();
    Tenancy::new(&mut make, seed).run(case).map_err(Failed::from)
}

/// Whatever a faulty device does must not pass: the case fails, or the memory finds an access that nobody may have made.
fn noticed(result: impl FnOnce() -> Result<(), Failed>) -> Result<(), Failed> {
    match catch_unwind(AssertUnwindSafe(result)) {
        Ok(Ok(())) => Err(Failed::from("the case passed")),
        Ok(Err(_)) | Err(_) => Ok(()),
    }
}

fn main() {
    let seed =
        std::env::var("DOORBELL_SEED").map_or(1, |text| text.parse().expect("DOORBELL_SEED is a number"));
    let rules = CASES
        .iter()
        .map(|case| Trial::test(case.name, move || run(case, seed, || Ok(Box::new(ModelPlatform::new())))));
    let places = (0..QUEUES).map(|queue| Place { function: queue % FUNCTIONS, queue });
    let seats = places.flat_map(|place| {
        CASES.iter().map(move |case| {
            let name = format!("{} on queue pair {} of function {}", case.name, place.queue, place.function);
            Trial::test(name, move || run(case, seed, || Ok(Box::new(Seat::new(Box::new(model()?), place)?))))
        })
    });
    let faults = FAULTS.iter().map(|&(fault, name)| {
        Trial::test(format!("{fault} is noticed by {name}"), move || {
            let case = CASES.iter().find(|case| case.name == name).ok_or("no such case")?;
            let mutation: Mutation = fault.parse()?;
            noticed(|| run(case, seed, || Ok(Box::new(ModelPlatform::new().with_mutation(mutation)))))
        })
    });
    let sizes = [(QUEUES, FUNCTIONS), (2, 1), (2, 2), (16, 4)];
    let tenants = sizes.into_iter().flat_map(|(queues, functions)| {
        TENANT_CASES.iter().map(move |case| {
            let name = format!("{} of {queues} queue pairs and {functions} functions", case.name);
            Trial::test(name, move || {
                run_tenants(case, seed, || Ok(Box::new(ModelPlatform::with_queues(queues, functions)?)))
            })
        })
    });
    let skipped = Trial::test("the cases of several queue pairs say why they do not run on one", || {
        let mut make = || -> Result<Box<dyn Pages>, DeviceError> { Ok(Box::new(ModelPlatform::new())) };
        let reason = Tenancy::new(&mut make, 1).skipped()?;
        match reason.as_deref() {
            Some("model was built with one queue pair (CAP_QUEUES)") => Ok(()),
            other => Err(Failed::from(format!("{other:?}"))),
        }
    });
    let leaks = LEAKS.iter().map(|&(leak, name)| {
        Trial::test(format!("{leak:?} that leaks is noticed by {name}"), move || {
            let case = TENANT_CASES.iter().find(|case| case.name == name).ok_or("no such case")?;
            let make =
                || -> Result<Box<dyn Pages>, DeviceError> { Ok(Box::new(Leaky { model: model()?, leak })) };
            noticed(|| run_tenants(case, seed, make))
        })
    });
    let coalesced = COALESCE.iter().map(|&name| {
        Trial::test(format!("registers of coalescing that are refused are noticed by {name}"), move || {
            let case = CASES.iter().find(|case| case.name == name).ok_or("no such case")?;
            noticed(|| run(case, seed, || Ok(Box::new(Uncoalesced(ModelPlatform::new())))))
        })
    });
    let all = rules.chain(seats).chain(faults).chain(tenants).chain([skipped]).chain(leaks).chain(coalesced);
    libtest_mimic::run(&Arguments::from_args(), all.collect()).exit();
}
