//! The storm with what users use: a [`Driver`] on each queue pair, while the memory errs and withholds its answers, and functions are
//! reset behind their drivers' backs. Each error must have a cause that was drawn, each completion must be right, and the way back that
//! `docs/driver.md` tells (disable, enable, submit anew what has no completion) must lead back.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use doorbell_contract::{
    Capability, CompletionFlags, DescFlags, DeviceFault, ErrorCode, FunctionControl, HwCompletion, HwDesc,
    Opcode, Place, Register, State, Status,
};
use doorbell_host::config::QueueConfig;
use doorbell_host::device::Device;
use doorbell_host::driver::Driver;
use doorbell_host::error::DeviceError;
use doorbell_host::memory::{PAGE, SharedMemory};
use doorbell_host::platform::{Awaited, MESSAGE, Platform};
use doorbell_host::ports::Pages;

use super::device::{Disturbed, ResetPins, Weather};
use super::draw::Draw;
use super::layout::{BYTES, POISON};
use super::tally::Tally;
use super::violation::{Violation, violated};
use super::world::World;
use crate::model::{FaultyRange, Injected};
use crate::oracle::Oracle;

/// Words of an area for the tokens of one descriptor, which is never all of it.
const AREA_WORDS: u32 = 40;
/// Areas: more than descriptors that can be under way.
const AREAS: u32 = 48;
/// Cycles of one advance of a driver.
const ADVANCE: u32 = 128;
/// Advances of a driver without progress, and on a device with a time of its own.
const PATIENCE: [u32; 2] = [120, 100_000];
/// How long an interrupt may take, where nothing else is to be done, and on a device with a time of its own.
const WAKE: [Duration; 2] = [Duration::from_secs(3), Duration::from_secs(20)];

/// A device that its owner and several drivers have in hand.
#[derive(Clone)]
pub(super) struct Shared {
    name: String,
    runs_alone: bool,
    device: Arc<Mutex<Box<dyn Disturbed>>>,
}

impl Shared {
    pub fn new(device: Box<dyn Disturbed>) -> Self {
        let (name, runs_alone) = (device.name().to_owned(), device.runs_alone());
        Self { name, runs_alone, device: Arc::new(Mutex::new(device)) }
    }

    fn device(&self) -> MutexGuard<'_, Box<dyn Disturbed>> {
        self.device.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Platform for Shared {
    fn name(&self) -> &str {
        &self.name
    }

    fn map(&mut self, bytes: usize) -> Result<SharedMemory, DeviceError> {
        self.device().map(bytes)
    }

    fn write_register(&mut self, register: Register, value: u32) -> Result<(), DeviceError> {
        self.device().write_register(register, value)
    }

    fn read_register(&mut self, register: Register) -> Result<u32, DeviceError> {
        self.device().read_register(register)
    }

    fn advance(&mut self, want: usize) -> Result<(), DeviceError> {
        self.device().advance(want)
    }

    fn wait(&mut self, awaited: Awaited, deadline: Instant) -> Result<(), DeviceError> {
        self.device().wait(awaited, deadline)
    }

    fn runs_alone(&self) -> bool {
        self.runs_alone
    }

    fn report(&mut self) -> Option<String> {
        self.device().report()
    }
}

impl Pages for Shared {
    fn write_at(&mut self, place: Place, register: Register, value: u32) -> Result<(), DeviceError> {
        self.device().write_at(place, register, value)
    }

    fn read_at(&mut self, place: Place, register: Register) -> Result<u32, DeviceError> {
        self.device().read_at(place, register)
    }
}

impl Disturbed for Shared {
    fn write_bytes(&mut self, address: u32, value: u32, strobe: u8) -> Result<bool, DeviceError> {
        self.device().write_bytes(address, value, strobe)
    }

    fn read_address(&mut self, address: u32) -> Result<(u32, bool), DeviceError> {
        self.device().read_address(address)
    }

    fn pass(&mut self, cycles: u32) -> Result<(), DeviceError> {
        self.device().pass(cycles)
    }

    fn set_weather(&mut self, weather: &Weather, seed: u64) -> Result<(), DeviceError> {
        self.device().set_weather(weather, seed)
    }

    fn take_injected(&mut self) -> Vec<Injected> {
        self.device().take_injected()
    }

    fn reset(&mut self, pins: ResetPins) -> Result<bool, DeviceError> {
        self.device().reset(pins)
    }
}

/// One queue pair as a driver's platform.
struct Port {
    shared: Shared,
    place: Place,
    memory: SharedMemory,
    has_interrupts: bool,
}

impl Platform for Port {
    fn name(&self) -> &str {
        &self.shared.name
    }

    fn map(&mut self, bytes: usize) -> Result<SharedMemory, DeviceError> {
        self.memory.part(PAGE, bytes)
    }

    fn write_register(&mut self, register: Register, value: u32) -> Result<(), DeviceError> {
        // Whose the workers are is the owner's to say.
        if register == Register::FnWorkers {
            Ok(())
        } else {
            self.shared.write_at(self.place, register, value)
        }
    }

    fn read_register(&mut self, register: Register) -> Result<u32, DeviceError> {
        self.shared.read_at(self.place, register)
    }

    fn advance(&mut self, _: usize) -> Result<(), DeviceError> {
        self.shared.pass(ADVANCE)
    }

    fn route(&mut self, memory: &SharedMemory, offset: usize) -> Result<(), DeviceError> {
        if !self.has_interrupts {
            let (device, register) = (self.name().to_owned(), Register::MessageAddressLo);
            return Err(DeviceError::WriteRefused { device, register, value: 0 });
        }
        let address = memory.bus_address() + offset as u64;
        self.write_register(Register::MessageAddressLo, address as u32)?;
        self.write_register(Register::MessageAddressHi, (address >> 32) as u32)?;
        self.write_register(Register::MessageData, MESSAGE)?;
        self.write_register(Register::MessageControl, 0)
    }

    fn report(&mut self) -> Option<String> {
        self.shared.report()
    }
}

/// What was submitted.
#[derive(Clone, Copy)]
struct Open {
    desc: HwDesc,
    area: Option<u32>,
    /// A STOP may end it.
    stoppable: bool,
}

/// A queue pair, its driver and what it has under way.
struct Host {
    place: Place,
    disturbed: bool,
    memory: SharedMemory,
    driver: Driver<Port>,
    oracle: Oracle,
    draw: Draw,
    open: BTreeMap<u64, Open>,
    /// Of this life, by SQ index: the `user_data` of what was submitted.
    sent: Vec<u64>,
    /// To be submitted anew, behind an end.
    again: Vec<Open>,
    areas: Vec<u32>,
    /// Areas a write to which was answered with an error.
    spoilt: HashSet<usize>,
    next: u64,
    /// Taken and not judged; of a slot that could not be read with the `user_data` of what stands in it.
    taken: Vec<(HwCompletion, Option<u64>)>,
    /// The driver has given up, and is on its way back; so often it has not come through.
    is_broken: bool,
    tries: u32,
    /// Of this life: what the bus answered with an error, whether the function was reset, whether answers were withheld.
    faults: DeviceFault,
    was_reset: bool,
    was_withheld: bool,
    was_dead: bool,
}

/// What all of them share.
struct Sky {
    /// Steps for which answers are still withheld, unless somebody gives up before.
    holds: u32,
    withholds: bool,
}

impl World {
    /// Runs about so many descriptors through drivers, and stops them.
    pub fn run_drivers(&mut self, shared: &Shared, descriptors: u64) -> Result<(), Violation> {
        if self.features.capability.contains(Capability::WATCHDOG) {
            // Of a device with a clock in cycles, far above what latency and stalls make of an answer; else in advances.
            let timeouts = if self.features.tick_hz == 0 { [0, 30, 80] } else { [0, 20_000, 60_000] };
            let timeout = self.draw.pick(&timeouts);
            self.device.write_at(Place::FIRST, Register::BusTimeout, timeout)?;
        }
        let mut hosts = (0..self.places().len())
            .map(|at| self.host_with_driver(at, shared))
            .collect::<Result<Vec<Host>, Violation>>()?;
        let mut sky = Sky { holds: 0, withholds: false };
        for _ in 0..descriptors.saturating_mul(20).saturating_add(1000) {
            if self.tally.descriptors >= descriptors {
                break;
            }
            self.weather_of_drivers(&hosts, &mut sky)?;
            for at in 0..hosts.len() {
                self.step(&mut hosts, at, &mut sky, true)?;
            }
            let (at, resets) = (self.draw.below(hosts.len() as u32) as usize, self.draw.once_in(60));
            if resets && hosts[at].disturbed {
                let place = hosts[at].place;
                self.device.write_at(place, Register::FnControl, FunctionControl::RESET.bits())?;
                let own = |host: &&mut Host| host.place.function == place.function;
                hosts.iter_mut().filter(own).for_each(|host| host.was_reset = true);
                self.tally.disturbed("a reset behind a driver's back");
            }
            let cycles = 1 + self.draw.below(300);
            self.device.pass(cycles)?;
        }
        self.calm_down()?;
        (sky.holds, sky.withholds) = (0, false);
        for step in 0.. {
            for at in 0..hosts.len() {
                self.step(&mut hosts, at, &mut sky, false)?;
            }
            if hosts.iter().all(|host| !host.is_broken && host.open.is_empty() && host.again.is_empty()) {
                break;
            }
            if step == 200_000 {
                return Err(violated("R15", "the drivers do not come to rest".into()));
            }
        }
        for host in &mut hosts {
            host.wakes(&mut *self.device).map_err(|violation| host.named(violation))?;
            host.driver.disable()?;
            host.strayed().map_err(|violation| host.named(violation))?;
        }
        Ok(())
    }

    fn host_with_driver(&mut self, at: usize, shared: &Shared) -> Result<Host, Violation> {
        let (place, memory, disturbed) = self.places()[at].clone();
        memory.store_u32s(0, &[POISON; BYTES / 4])?;
        let (features, draw) = (self.features, &mut self.draw);
        let config = QueueConfig {
            sq_depth: draw.pick(&[2, 8, 32]),
            cq_depth: draw.pick(&[2, 8, 32]),
            sq_start: draw.bits(),
            cq_start: draw.bits(),
            sq_key: Some(draw.bits()),
            token_bytes: u64::from(4 * AREA_WORDS * AREAS),
            logp_bytes: 0,
            kv_bytes: 0,
            patience: PATIENCE[usize::from(shared.runs_alone)],
            wait_states: self.wait_states,
            ..self.configs[usize::from(place.function)].clone()
        };
        let has_interrupts = features.capability.contains(Capability::INTERRUPT);
        let port = Port { shared: shared.clone(), place, memory: memory.clone(), has_interrupts };
        let driver = Driver::new(port, config)?;
        let oracle = Oracle::new(driver.config()).with_features(features);
        self.lives += 1;
        self.tally.lives += 1;
        let mut host = Host {
            place,
            disturbed,
            memory,
            driver,
            oracle,
            draw: Draw::new(self.seed, 100 + at as u64),
            open: BTreeMap::new(),
            sent: Vec::new(),
            again: Vec::new(),
            areas: (0..AREAS).collect(),
            spoilt: HashSet::new(),
            next: 0,
            taken: Vec::new(),
            is_broken: false,
            tries: 0,
            faults: DeviceFault::empty(),
            was_reset: false,
            was_withheld: false,
            was_dead: false,
        };
        (0..AREAS).try_for_each(|area| host.poison(area))?;
        Ok(host)
    }

    fn weather_of_drivers(&mut self, hosts: &[Host], sky: &mut Sky) -> Result<(), Violation> {
        sky.holds = sky.holds.saturating_sub(1);
        if sky.holds > 0 || !self.draw.once_in(12) {
            return Ok(());
        }
        self.change_weather()?;
        let draw = &mut self.draw;
        if !self.weather.faults.is_empty() {
            self.weather.faults.clear();
            for host in hosts.iter().filter(|host| host.disturbed) {
                let layout = host.driver.layout();
                let base = host.memory.bus_address() + PAGE as u64;
                let parts =
                    [(layout.sq, layout.cq), (layout.cq, layout.tokens), (layout.tokens, layout.bytes)];
                let (first, end) = draw.pick(&parts);
                let (first, last) = (base + first as u64, base + end as u64 - 1);
                self.weather.faults.push(FaultyRange { first, last, one_in: draw.pick(&[16, 64, 256]) });
            }
            let seed = draw.wide();
            self.device.set_weather(&self.weather, seed)?;
        }
        sky.withholds = self.weather.withholds_reads || self.weather.withholds_writes;
        if sky.withholds && self.draw.once_in(3) {
            // For ever, as far as a driver can tell.
            sky.holds = 4 * PATIENCE[0];
            self.tally.disturbed("answers withheld until a driver gives up");
        }
        Ok(())
    }

    fn step(&mut self, hosts: &mut [Host], at: usize, sky: &mut Sky, submits: bool) -> Result<(), Violation> {
        self.note_injected(hosts)?;
        let host = &mut hosts[at];
        host.was_withheld |= sky.withholds;
        let result = if host.is_broken {
            host.come_back(&mut self.tally)
        } else {
            host.work(submits, &mut self.tally)
        };
        // What was answered meanwhile counts.
        let dies = matches!(result, Err(DeviceError::WriteRefused { .. } | DeviceError::Refused { .. }))
            && self.is_dead(hosts, at)?;
        let host = &mut hosts[at];
        host.was_dead |= dies;
        if dies {
            self.tally.disturbed("queue pairs that died");
        }
        let failed = match result {
            Ok(()) => {
                // What a completion says of a fault is judged behind what is known of faults.
                self.note_injected(hosts)?;
                return hosts[at].judge_all(&mut self.tally).map_err(|violation| hosts[at].named(violation));
            }
            Err(error) => error,
        };
        self.note_injected(hosts)?;
        let host = &mut hosts[at];
        host.judge_all(&mut self.tally).map_err(|violation| host.named(violation))?;
        host.excuse(failed, &mut self.tally).map_err(|violation| host.named(violation))?;
        if sky.withholds {
            // Somebody has given up: the owner looks after the memory.
            self.calm_down()?;
            (sky.holds, sky.withholds) = (0, false);
        }
        Ok(())
    }

    /// Whether its queue pair is dead (R24).
    fn is_dead(&mut self, hosts: &[Host], at: usize) -> Result<bool, Violation> {
        let state = self.device.read_at(hosts[at].place, Register::State)?;
        Ok(State::from_bits_retain(state).contains(State::DEAD))
    }

    fn note_injected(&mut self, hosts: &mut [Host]) -> Result<(), Violation> {
        for access in self.device.take_injected() {
            self.tally.disturbed(if access.is_decerr { "DECERR" } else { "SLVERR" });
            let within = |host: &Host| access.address.wrapping_sub(host.memory.bus_address()) < BYTES as u64;
            let Some(host) = hosts.iter_mut().find(|host| within(host)) else {
                return Err(violated("R11", format!("an access outside of all memory: {access:x?}")));
            };
            let offset = (access.address - host.memory.bus_address()) as usize - PAGE;
            let layout = host.driver.layout();
            host.faults |= match (access.is_write, offset) {
                (false, _) => DeviceFault::DMA_READ,
                (true, offset) if offset == layout.message => DeviceFault::MESSAGE_WRITE,
                (true, offset) if offset >= layout.tokens => {
                    let stride = 4 * AREA_WORDS as usize;
                    let within = offset - layout.tokens..offset - layout.tokens + access.bytes as usize;
                    host.spoilt.extend(within.start / stride..within.end.div_ceil(stride));
                    DeviceFault::DMA_WRITE
                }
                _ => DeviceFault::COMPLETION_WRITE,
            };
        }
        Ok(())
    }
}

impl Host {
    fn named(&self, violation: Violation) -> Violation {
        let Place { function, queue } = self.place;
        let calm = if self.disturbed { "" } else { ", which nothing was done to" };
        violation.at(format!("driver of queue pair {queue} of function {function}{calm}"))
    }
}

impl Host {
    /// What it does in a step.
    fn work(&mut self, submits: bool, tally: &mut Tally) -> Result<(), DeviceError> {
        if self.was_reset {
            // The first that tells of it.
            self.driver.ring()?;
        }
        if submits && self.draw.once_in(2) || !self.again.is_empty() {
            self.submit(submits, tally)?;
        }
        let mut out = [HwCompletion::default(); 8];
        let out = &mut out[..1 + self.draw.below(8) as usize];
        let count = match self.draw.below(4) {
            0 => self.driver.collect(out)?,
            1 => {
                if self.driver.in_flight() > 0 && self.driver.arm()? {
                    self.driver.wait(Instant::now())?;
                }
                self.driver.collect(out)?
            }
            _ => self.driver.poll(out)?,
        };
        for completion in &out[..count] {
            let unread = self.driver.unread(completion).map(|desc| desc.user_data);
            self.taken.push((*completion, unread));
        }
        Ok(())
    }

    fn submit(&mut self, submits: bool, tally: &mut Tally) -> Result<(), DeviceError> {
        let room = self.driver.room().min(1 + self.draw.below(8) as usize);
        let mut batch = Vec::new();
        while batch.len() < room {
            let anew = (!self.again.is_empty()).then(|| self.again.remove(0));
            let (desc, area) = match anew {
                Some(open) => (open.desc, open.area),
                None if submits => self.draw(),
                None => break,
            };
            if desc.opcode == Opcode::Stop as u8 {
                let own = self.open.values_mut().filter(|open| open.desc.rollout_id == desc.rollout_id);
                own.for_each(|open| open.stoppable = true);
            }
            self.open.insert(desc.user_data, Open { desc, area, stoppable: false });
            self.sent.push(desc.user_data);
            batch.push(desc);
        }
        tally.descriptors += batch.len() as u64;
        self.driver.submit(&batch).map(drop)
    }

    fn draw(&mut self) -> (HwDesc, Option<u32>) {
        let draw = &mut self.draw;
        let (rollout, user_data) = (draw.below(6), self.next);
        self.next += 1;
        let nop =
            HwDesc { rollout_id: rollout, seq_len: draw.bits(), ..HwDesc::nop() }.with_user_data(user_data);
        match draw.below(20) {
            0..12 => {
                let Some(area) = self.areas.pop() else { return (nop, None) };
                let mut flags = DescFlags::empty();
                for (flag, times) in [
                    (DescFlags::FENCE, 12),
                    (DescFlags::EOS_STOPS, 3),
                    (DescFlags::RESIDENT, 5),
                    (DescFlags::INTERRUPT, 6),
                ] {
                    flags.set(flag, draw.once_in(times));
                }
                let checkpoint = draw.pick(&[0, u32::MAX, 1, 7]);
                let desc = HwDesc::decode(rollout, draw.below(2000), 1 + draw.below(AREA_WORDS - 3))
                    .with_flags(flags)
                    .with_checkpoint(checkpoint)
                    .with_seed(draw.below(4))
                    .with_delta_offset(u64::from(4 * AREA_WORDS * area))
                    .with_user_data(user_data);
                (desc, Some(area))
            }
            12..15 => (
                nop.with_flags(draw.pick(&[DescFlags::empty(), DescFlags::FENCE, DescFlags::INTERRUPT])),
                None,
            ),
            15..17 => (HwDesc::stop(rollout).with_user_data(user_data), None),
            _ => {
                let bad = draw.pick(&[
                    HwDesc { opcode: 0x7F, ..nop },
                    HwDesc { model_id: 3, ..HwDesc::decode(rollout, 5, 6) },
                    HwDesc::decode(rollout, 5, 0),
                    HwDesc::decode(rollout, 5, 6).with_delta_offset(u64::MAX - 3),
                    HwDesc::decode(rollout, 5, 6).with_version(0x4000),
                ]);
                (bad.with_user_data(user_data), None)
            }
        }
    }

    /// The way back: disable, enable, and submit anew what has no completion.
    fn come_back(&mut self, tally: &mut Tally) -> Result<(), DeviceError> {
        self.tries += 1;
        self.driver.disable()?;
        if self.driver.read(Register::FnControl)? != 0 {
            // The reset of its function still waits for others.
            return Ok(());
        }
        self.driver.enable()?;
        (self.is_broken, self.tries) = (false, 0);
        (self.faults, self.was_reset) = (DeviceFault::empty(), false);
        (self.was_withheld, self.was_dead) = (false, false);
        self.sent.clear();
        for open in std::mem::take(&mut self.open).into_values() {
            if open.desc.opcode == Opcode::Stop as u8 {
                continue;
            }
            self.again.push(Open { stoppable: false, ..open });
        }
        // What was to be submitted anew already came behind in the order of the rollouts.
        self.again.sort_by_key(|open| open.desc.user_data);
        let areas: Vec<u32> = self.again.iter().filter_map(|open| open.area).collect();
        areas.into_iter().try_for_each(|area| self.poison(area))?;
        tally.lives += 1;
        tally.disturbed("a driver that has come back");
        Ok(())
    }

    fn poison(&mut self, area: u32) -> Result<(), DeviceError> {
        self.spoilt.remove(&(area as usize));
        let at = PAGE + self.driver.layout().tokens + (4 * AREA_WORDS * area) as usize;
        self.memory.store_u32s(at, &[POISON; AREA_WORDS as usize])
    }

    /// Whether what was drawn can have made the driver give up.
    fn excuse(&mut self, error: DeviceError, tally: &mut Tally) -> Result<(), Violation> {
        let excused = match &error {
            DeviceError::Timeout(timeout) if self.faults.contains(DeviceFault::COMPLETION_WRITE) => {
                self.was_withheld || self.was_reset || timeout.fault.contains("COMPLETION_WRITE")
            }
            DeviceError::Timeout(_) => self.was_withheld || self.was_reset,
            DeviceError::WriteRefused { .. } | DeviceError::Refused { .. } => {
                self.was_reset || self.was_dead && self.was_withheld
            }
            _ => false,
        };
        if !excused || self.tries > 3 {
            let failure = Violation::failure(error);
            return Err(failure.at("its driver gave up for nothing that was drawn"));
        }
        self.is_broken = true;
        tally.disturbed("a driver that gave up");
        Ok(())
    }

    fn judge_all(&mut self, tally: &mut Tally) -> Result<(), Violation> {
        for (completion, unread) in std::mem::take(&mut self.taken) {
            self.judge(&completion, unread).map_err(|violation| violation.at(format!("{completion:x?}")))?;
            tally.completed(&completion);
        }
        Ok(())
    }

    fn judge(&mut self, completion: &HwCompletion, unread: Option<u64>) -> Result<(), Violation> {
        let no_echo = completion.has(CompletionFlags::NO_ECHO);
        let index = completion.result.wrapping_sub(self.driver.config().sq_start);
        let number = match no_echo {
            true => self.sent.get(index as usize).copied(),
            false => Some(completion.user_data),
        };
        // Its slot may have been used again.
        if no_echo && unread.is_some() && unread != number {
            return Err(violated(
                "host",
                format!("the driver takes it for {unread:?}, and it is {number:?}"),
            ));
        }
        let Some((number, open)) = number.and_then(|number| Some((number, self.open.remove(&number)?)))
        else {
            return Err(violated("R3", "it answers nothing that is under way".into()));
        };
        let Open { desc, area, stoppable } = open;
        let unreadable = self.faults.contains(DeviceFault::DMA_READ);
        let earlier = |(_, other): (&u64, &Open)| other.desc.rollout_id == desc.rollout_id;
        if !unreadable && self.open.range(..number).any(earlier) {
            return Err(violated("R5", format!("an earlier one of its rollout is under way: {desc:x?}")));
        }
        let found = completion.without_timing();
        let fault = completion.error == ErrorCode::DmaFault as u8;
        if no_echo {
            if !fault || !unreadable {
                return Err(violated("R10", format!("a good slot was not trusted: {desc:x?}")));
            }
        } else {
            let malformed = self.oracle.error(&desc).is_some();
            let answer = match Status::try_from(found.status) {
                Ok(Status::Stopped) if stoppable && !malformed && desc.opcode == Opcode::Decode as u8 => {
                    self.oracle.cut(&desc, found.final_seq_len.wrapping_sub(desc.seq_len), Status::Stopped)
                }
                _ => self.oracle.answer(&desc),
            };
            let is_spoilt = area.is_some_and(|area| self.spoilt.contains(&(area as usize)));
            if fault && is_spoilt && !malformed {
                // Its length and its tokens are what they are.
            } else if found != answer.completion {
                let what = format!("{desc:x?}: expected {:x?}", answer.completion);
                return Err(violated(if malformed { "R10" } else { "R6" }, what));
            } else if let Some(area) = area {
                let mut words = [0; AREA_WORDS as usize];
                self.driver.tokens(u64::from(4 * AREA_WORDS * area), &mut words)?;
                let (tokens, rest) = words.split_at(answer.tokens.len());
                if tokens != answer.tokens || rest.iter().any(|&word| word != POISON) {
                    return Err(violated("R6", format!("{desc:x?}: its area holds {words:x?}")));
                }
            }
        }
        if let Some(area) = area {
            self.poison(area)?;
            self.areas.push(area);
        }
        Ok(())
    }

    /// R14: armed before its completion is there, and behind that, the message comes.
    fn wakes(&mut self, device: &mut dyn Disturbed) -> Result<(), Violation> {
        if !self.driver.features().capability.contains(Capability::INTERRUPT) {
            return Ok(());
        }
        let wake = WAKE[usize::from(device.runs_alone())];
        for late in [false, true] {
            if !late {
                self.driver.arm()?;
            }
            let desc = HwDesc::nop().with_flags(DescFlags::INTERRUPT).with_user_data(self.next);
            self.next += 1;
            self.driver.submit(&[desc])?;
            if late {
                device.pass(4000)?;
                self.driver.arm()?;
            }
            let mut out = [HwCompletion::default(); 2];
            // A message of an earlier arming may be on its way.
            for _ in 0..4 {
                if !self.driver.wait(Instant::now() + wake)? {
                    return Err(violated(
                        "R14",
                        format!("nobody woke it; armed after the completion: {late}"),
                    ));
                }
                if self.driver.collect(&mut out)? == 1 {
                    break;
                }
                self.driver.arm()?;
            }
            if out[0].user_data != desc.user_data {
                return Err(violated("R3", format!("{:x?} in place of {desc:x?}", out[0])));
            }
        }
        Ok(())
    }

    /// R11: nothing stands outside of what the driver has.
    fn strayed(&self) -> Result<(), Violation> {
        for (first, end) in [(0, PAGE), (PAGE + self.driver.layout().bytes, BYTES)] {
            let mut words = vec![0; (end - first) / 4];
            self.memory.load_u32s(first, &mut words)?;
            if let Some(k) = words.iter().position(|&word| word != POISON) {
                let what = format!("{:#x} was written to byte {:#x} of its memory", words[k], first + 4 * k);
                return Err(violated("R11", what));
            }
        }
        Ok(())
    }
}
