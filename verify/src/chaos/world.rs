//! One round: a device, its queue pairs with their hosts, and what is done to them.

use std::time::{Duration, Instant};

use doorbell_contract::{
    Capability, Control, Counter, FunctionControl, HwDesc, Place, QueueCounter, RANGES, Register,
    State as StateBits, mix,
};
use doorbell_host::config::QueueConfig;
use doorbell_host::device::{Device, Features};
use doorbell_host::driver::Driver;
use doorbell_host::memory::SharedMemory;
use doorbell_host::ports::{Division, Ports};
use doorbell_host::queue::{CompletionQueue, Depth, SubmissionQueue};

use super::device::{Disturbed, ResetPins, Weather, read};
use super::draw::Draw;
use super::interrupts;
use super::layout::{self, BYTES, CORPUS, CORPUS_WORDS, CQ, KV, KV_BYTES, LOGPS, SQ, TOKEN_BYTES, TOKENS};
use super::nonsense::{self, State};
use super::plan::{self, Plan};
use super::session::{Ended, Session, Tenant};
use super::tally::Tally;
use super::violation::{Violation, violated};
use crate::model::FaultyRange;
use crate::oracle::Oracle;

/// Cycles of one wait for what must come.
const WAIT: u32 = 512;
/// Waits in a row without anything new after which the device hangs (R15).
const PATIENCE: u32 = 400;
/// And so long, of a device with a time of its own, on a machine that may have others to run.
const PATIENCE_TIME: Duration = Duration::from_secs(5);
/// Descriptors of the clean run at the end, of each queue pair.
const CLEAN: u32 = 12;

/// One queue pair and its host.
struct Pair {
    place: Place,
    memory: SharedMemory,
    draw: Draw,
    plan: Plan,
    state: State,
    session: Option<Session>,
    /// Of the check words of this life.
    key: u32,
    /// Steps for which the host does nothing.
    rests: u32,
    /// What the memory held when the last life ended.
    left: Option<u64>,
}

/// What the other queue pairs of a function are, as far as their hosts know; the strongest counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Others {
    /// Inactive, all of them.
    Down,
    /// One may be active, and none is for certain.
    Ending,
    /// One is active.
    Up,
}

/// One round.
pub(super) struct World {
    pub device: Box<dyn Disturbed>,
    memory: SharedMemory,
    pairs: Vec<Pair>,
    tenants: Vec<Tenant>,
    pub configs: Vec<QueueConfig>,
    pub features: Features,
    pub draw: Draw,
    pub seed: u64,
    pub lives: u32,
    pub wait_states: u32,
    workers: u32,
    windows: u32,
    /// As the device was built.
    shape: (u8, u8),
    pub tally: Tally,
    pub weather: Weather,
}

impl World {
    /// Divides a device after reset among functions of which some are left alone.
    pub fn new(mut device: Box<dyn Disturbed>, seed: u64) -> Result<Self, Violation> {
        let mut draw = Draw::new(seed, 0);
        let mut built = |register| device.read_at(Place::FIRST, register);
        let (queues, most_functions) =
            (built(Register::CapQueues)? as u8, built(Register::CapFunctions)? as u8);
        let (workers, windows) = (built(Register::CapWorkers)?, built(Register::CapWindows)?);
        let features = Features {
            capability: Capability::from_bits_retain(built(Register::Capability)?),
            groups: built(Register::CapGroups)?,
            policy_slots: built(Register::CapPolicySlots)?,
            engines: built(Register::CapEngines)?,
            reward_models: built(Register::CapRewardModels)?,
            tick_hz: built(Register::CapTickHz)?,
        };
        let functions = 1 + draw.below(u32::from(most_functions.min(queues))) as u8;
        let calm = if functions > 1 { draw.below(u32::from(functions) + 1) as u8 } else { functions };
        let memory = device.map(BYTES * usize::from(queues))?;
        let mut pairs = Vec::new();
        // The queue pairs of a function lie side by side, as its window does.
        let places: Vec<Place> = (0..functions)
            .flat_map(|function| {
                let own = (0..queues).filter(move |queue| queue % functions == function);
                own.map(move |queue| Place { function, queue })
            })
            .collect();
        for (k, &place) in places.iter().enumerate() {
            let part = memory.part(k * BYTES, BYTES)?;
            layout::poison(&part)?;
            pairs.push(Pair {
                place,
                memory: part,
                draw: Draw::new(seed, 1 + u64::from(place.queue)),
                plan: Plan::default(),
                state: State::Down,
                session: None,
                key: 0,
                rests: 0,
                left: None,
            });
        }
        let tenants = (0..functions)
            .map(|function| Tenant {
                disturbed: function != calm,
                current: 0,
                is_current_unknown: false,
                next: 1,
                changes: 0,
                publishing: false,
                seed,
                function,
            })
            .collect();
        let configs = (0..functions).map(|_| Self::draw_config(&mut draw)).collect();
        let wait_states = draw.pick(&[0, 0, 0, 1, 3, 17]);
        let mut world = Self {
            device,
            memory,
            pairs,
            tenants,
            configs,
            features,
            draw,
            seed,
            lives: 0,
            wait_states,
            workers,
            windows,
            shape: (queues, most_functions),
            tally: Tally { rounds: 1, ..Tally::default() },
            weather: Weather::default(),
        };
        world.divide()?;
        for pair in 0..world.pairs.len() {
            world.store_corpus(pair)?;
        }
        Ok(world)
    }

    fn draw_config(draw: &mut Draw) -> QueueConfig {
        let mut ranges = [(u32::MAX, 0); RANGES as usize];
        ranges[0] = (0, draw.below(1 << 17));
        ranges[15] = (1 << 16, 1 << 17);
        QueueConfig {
            token_bytes: TOKEN_BYTES,
            logp_bytes: TOKEN_BYTES,
            kv_bytes: KV_BYTES,
            ranges,
            checkpoint_default: draw.pick(&[u32::MAX, 0, 5]),
            length_limit: draw.pick(&[4096, 1 << 20, 0x7FFF_FFFF]),
            eos_threshold: draw.pick(&[0, 500, 4000]),
            reward_threshold: draw.pick(&[0, 1 << 12, 1 << 15]),
            ..QueueConfig::default()
        }
    }

    /// What the device's owner does, and the functions': everything that a reset takes away.
    fn divide(&mut self) -> Result<(), Violation> {
        let device = &mut *self.device;
        let mut write = |place, register, value| device.write_at(place, register, value);
        write(Place::FIRST, Register::WaitStates, self.wait_states)?;
        for pair in &self.pairs {
            write(pair.place, Register::QueueFunction, pair.place.function.into())?;
        }
        let functions = self.tenants.len() as u32;
        for function in 0..self.shape.1 {
            let place = Place { function, ..Place::FIRST };
            let own = |pair: &&Pair| pair.place.function == function;
            let first = self.pairs.iter().find(own).map(|pair| pair.memory.bus_address());
            let bytes = self.pairs.iter().filter(own).count() * BYTES;
            // The last window, so that the others have nothing.
            let windows = [Register::Window0BaseLo, Register::Window1BaseLo, Register::Window2BaseLo];
            // A device may confine nobody (R11).
            for (k, low) in windows.into_iter().enumerate().filter(|_| self.windows > 0) {
                let (base, bytes) = if k == 2 { (first.unwrap_or(0), bytes as u64) } else { (0, 0) };
                let address = low.address(place);
                for (offset, half) in (0..).step_by(4).zip([
                    base as u32,
                    (base >> 32) as u32,
                    bytes as u32,
                    (bytes >> 32) as u32,
                ]) {
                    if let Some((register, place)) = Register::at(address + offset) {
                        write(place, register, half)?;
                    }
                }
            }
            if u32::from(function) < functions {
                // Workers of their own where there are enough: then nobody can blame another for a fault.
                let mask = if (functions..=32).contains(&self.workers) {
                    (0..self.workers)
                        .filter(|worker| worker % functions == u32::from(function))
                        .fold(0, |mask, worker| mask | 1 << worker)
                } else {
                    u32::MAX
                };
                write(place, Register::FnWorkers, mask)?;
                let config = &self.configs[usize::from(function)];
                for (register, value) in [
                    (Register::CheckpointDefault, config.checkpoint_default),
                    (Register::LengthLimit, config.length_limit),
                    (Register::EosThreshold, config.eos_threshold),
                    (Register::RewardThreshold, config.reward_threshold as u32),
                ] {
                    write(place, register, value)?;
                }
                for ((lo, hi), k) in config.ranges.into_iter().zip(0..) {
                    let address = Register::Range0Lo.address(place) + 8 * k;
                    for (address, value) in [(address, lo), (address + 4, hi)] {
                        if let Some((register, place)) = Register::at(address) {
                            write(place, register, value)?;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn corpus(seed: u64) -> Vec<u32> {
        (0..CORPUS_WORDS as u32).map(|k| mix(seed as u32 ^ mix(k)) & 0x1_FFFF).collect()
    }

    fn store_corpus(&self, pair: usize) -> Result<(), Violation> {
        let words = Self::corpus(self.seed);
        Ok(self.pairs[pair].memory.store_u32s(TOKENS + CORPUS as usize, &words)?)
    }

    /// The queue pairs: place, memory, and whether anything is to be done to them.
    pub fn places(&self) -> Vec<(Place, SharedMemory, bool)> {
        let disturbed = |place: Place| self.tenants[usize::from(place.function)].disturbed;
        self.pairs.iter().map(|pair| (pair.place, pair.memory.clone(), disturbed(pair.place))).collect()
    }

    /// Runs about so many descriptors.
    pub fn run(&mut self, descriptors: u64) -> Result<(), Violation> {
        let most_steps = descriptors.saturating_mul(20).saturating_add(1000);
        for _ in 0..most_steps {
            if self.tally.descriptors >= descriptors {
                break;
            }
            for pair in 0..self.pairs.len() {
                self.host(pair).map_err(|violation| self.named(pair, violation))?;
            }
            self.disturb()?;
            let cycles = match self.draw.below(4) {
                0 => 1 + self.draw.below(8),
                1..3 => 1 + self.draw.below(60),
                _ => 1 + self.draw.below(400),
            };
            self.pass(cycles)?;
        }
        self.settle()?;
        self.finish()
    }

    fn named(&self, pair: usize, violation: Violation) -> Violation {
        let Pair { place, state, .. } = &self.pairs[pair];
        let tenant = &self.tenants[usize::from(place.function)];
        let calm = if tenant.disturbed { "" } else { ", which nothing was done to" };
        violation.at(format!("queue pair {} of function {} ({state:?}){calm}", place.queue, place.function))
    }

    fn pass(&mut self, cycles: u32) -> Result<(), Violation> {
        self.device.pass(cycles)?;
        self.attribute()
    }

    /// Tells each queue pair which of its accesses were answered with an error.
    fn attribute(&mut self) -> Result<(), Violation> {
        for access in self.device.take_injected() {
            let offset = access.address.wrapping_sub(self.memory.bus_address()) as usize;
            let at = self.pairs.iter().position(|pair| {
                let first = (pair.memory.bus_address() - self.memory.bus_address()) as usize;
                (first..first + BYTES).contains(&offset)
            });
            let kind = if access.is_decerr { "DECERR" } else { "SLVERR" };
            self.tally.disturbed(kind);
            let Some(at) = at else {
                return Err(violated("R11", format!("an access outside of all memory: {access:x?}")));
            };
            let pair = &mut self.pairs[at];
            let known = match &mut pair.session {
                Some(session) => session.injected(offset % BYTES, &access),
                None => false,
            };
            if !known {
                let what = format!("an access that it may not make now: {access:x?}");
                return Err(self.named(at, violated("R12", what)));
            }
        }
        Ok(())
    }

    /// What the host of a queue pair does in a step.
    fn host(&mut self, at: usize) -> Result<(), Violation> {
        if self.pairs[at].rests > 0 {
            self.pairs[at].rests -= 1;
            return Ok(());
        }
        self.attribute()?;
        let disturbed = self.tenants[usize::from(self.pairs[at].place.function)].disturbed;
        if disturbed && self.pairs[at].draw.once_in(6) {
            self.nonsense(at)?;
        }
        match self.pairs[at].state {
            State::Down => {
                if self.pairs[at].draw.once_in(3) {
                    self.start(at)?;
                }
            }
            State::Up => {
                self.reap(at)?;
                self.publish(at)?;
                if self.pairs[at].draw.once_in(24) {
                    self.abort(at)?;
                }
                // A host that looks elsewhere for a while.
                if self.pairs[at].draw.once_in(40) {
                    self.pairs[at].rests = self.pairs[at].draw.below(40);
                    self.tally.disturbed("a host that reaps nothing for a while");
                }
            }
            State::Draining | State::Stopping => {
                self.reap(at)?;
                self.look(at)?;
            }
        }
        Ok(())
    }

    fn nonsense(&mut self, at: usize) -> Result<(), Violation> {
        let Self { pairs, device, shape, tally, features, .. } = self;
        let Pair { place, draw, state, session, key, .. } = &mut pairs[at];
        if draw.once_in(5) {
            let has_interrupts = features.capability.contains(Capability::INTERRUPT);
            interrupts::disturb(&mut **device, draw, *place, *state, has_interrupts)?;
            tally.disturbed("ARM at any time");
            return Ok(());
        }
        if draw.once_in(4)
            && let Some(session) = session
        {
            if let Some(kind) = session.litter(draw, *key)? {
                tally.disturbed(kind);
            }
            return Ok(());
        }
        let kind = nonsense::access(&mut **device, draw, *place, *state, session.as_mut(), *shape)?;
        tally.disturbed(kind);
        Ok(())
    }

    /// Sets a queue pair up and enables it; now and then with a configuration that must be refused first.
    fn start(&mut self, at: usize) -> Result<(), Violation> {
        self.still(at)?;
        let depths = [2, 4, 8, 16, 32, layout::MOST_SLOTS];
        let pair = &mut self.pairs[at];
        let draw = &mut pair.draw;
        let (sq_depth, cq_depth) = (draw.pick(&depths), draw.pick(&depths));
        let near_the_wrap = |draw: &mut Draw| match draw.below(3) {
            0 => 0,
            1 => u32::MAX - draw.below(40),
            _ => draw.bits(),
        };
        let (sq_start, cq_start) = (near_the_wrap(draw), near_the_wrap(draw));
        let (key, weight) = (draw.bits(), 1 + draw.below(4));
        let bad = draw.once_in(4);
        let base = pair.memory.bus_address();
        let at_offset = |offset: usize| base + offset as u64;
        let place = pair.place;
        let mut registers = vec![
            (Register::SqSize, sq_depth),
            (Register::CqSize, cq_depth),
            (Register::SqStart, sq_start),
            (Register::CqStart, cq_start),
            (Register::SqKey, key),
            (Register::Weight, weight),
            (Register::Error, u32::MAX),
        ];
        for (lo, hi, value) in [
            (Register::SqBaseLo, Register::SqBaseHi, at_offset(SQ)),
            (Register::CqBaseLo, Register::CqBaseHi, at_offset(CQ)),
            (Register::TokenBaseLo, Register::TokenBaseHi, at_offset(TOKENS)),
            (Register::TokenSizeLo, Register::TokenSizeHi, TOKEN_BYTES),
            (Register::LogpBaseLo, Register::LogpBaseHi, at_offset(LOGPS)),
            (Register::LogpSizeLo, Register::LogpSizeHi, TOKEN_BYTES),
            (Register::KvBaseLo, Register::KvBaseHi, at_offset(KV)),
            (Register::KvSizeLo, Register::KvSizeHi, KV_BYTES),
        ] {
            registers.extend([(lo, value as u32), (hi, (value >> 32) as u32)]);
        }
        for (register, value) in registers.iter().copied() {
            self.device.write_at(place, register, value)?;
        }
        if bad && self.tenants[usize::from(place.function)].disturbed {
            self.start_badly(at)?;
            for (register, value) in registers {
                self.device.write_at(place, register, value)?;
            }
        }
        let pair = &mut self.pairs[at];
        let depth = |slots| Depth::new("ring", slots);
        let (sq_depth, cq_depth) = (depth(sq_depth)?, depth(cq_depth)?);
        let sq = SubmissionQueue::new(&pair.memory, SQ, sq_depth, sq_start, key)?;
        CompletionQueue::new(&pair.memory, CQ, cq_depth, cq_start)?;
        let function = usize::from(place.function);
        let others = self.others(at);
        let tenant = &mut self.tenants[function];
        if others != Others::Up {
            // R18: version 0 with salt 0, and nothing else, where no other is active.
            tenant.current = 0;
            tenant.publishing &= others == Others::Ending;
            tenant.changes += 1;
        }
        let config = QueueConfig { sq_depth: sq_depth.slots(), ..self.configs[function].clone() };
        let oracle = Oracle::new(&config).with_features(self.features);
        self.lives += 1;
        self.tally.lives += 1;
        let pair = &mut self.pairs[at];
        let starts = (sq_start, cq_start);
        let session = Session::new(
            &pair.memory,
            sq,
            (sq_depth, cq_depth),
            starts,
            self.lives,
            oracle,
            &self.tenants[function],
        );
        pair.session = Some(session);
        pair.key = key;
        pair.plan.restart();
        pair.state = State::Up;
        self.device.write_at(place, Register::Control, Control::ENABLE.bits())?;
        let state = StateBits::from_bits_retain(read(&mut *self.device, place, Register::State)?);
        if !state.contains(StateBits::ACTIVE) {
            let error = read(&mut *self.device, place, Register::Error)?;
            return Err(violated("R12", format!("a good configuration did not start: ERROR {error:#x}")));
        }
        if others != Others::Up {
            let slots = self.take_versions(place)?;
            if others == Others::Down && slots != [0x0101_0000, 0] {
                return Err(violated("R18", format!("the policy slots are {slots:x?} at the start")));
            }
        }
        Ok(())
    }

    /// Takes the version that was loaded last from the device.
    fn take_versions(&mut self, place: Place) -> Result<[u32; 2], Violation> {
        let mut get = |register| read(&mut *self.device, place, register);
        let slots = [get(Register::PolicySlot0)?, get(Register::PolicySlot1)?];
        let tenant = &mut self.tenants[usize::from(place.function)];
        let last = slots.into_iter().find(|slot| slot & 1 << 24 != 0);
        tenant.current = last.unwrap_or(0) as u16;
        tenant.is_current_unknown = false;
        Ok(slots)
    }

    /// What the other queue pairs of its function are.
    fn others(&self, at: usize) -> Others {
        let function = self.pairs[at].place.function;
        let others = self
            .pairs
            .iter()
            .enumerate()
            .filter(|(other, pair)| *other != at && pair.place.function == function);
        others
            .map(|(_, pair)| match pair.state {
                State::Down => Others::Down,
                State::Draining | State::Stopping => Others::Ending,
                State::Up => Others::Up,
            })
            .max()
            .unwrap_or(Others::Down)
    }

    /// ENABLE with one value that cannot be: it is refused, with BAD_CONFIG.
    fn start_badly(&mut self, at: usize) -> Result<(), Violation> {
        let Pair { place, draw, .. } = &mut self.pairs[at];
        let place = *place;
        // The last ones are refused because they lie in no window.
        const BAD: [(Register, u32); 17] = [
            (Register::SqSize, 0),
            (Register::SqSize, 1),
            (Register::SqSize, 48),
            (Register::SqSize, 1 << 17),
            (Register::CqSize, 0),
            (Register::CqSize, 3),
            (Register::CqSize, u32::MAX),
            (Register::SqBaseLo, 4),
            (Register::CqBaseLo, 32),
            (Register::TokenBaseLo, 60),
            (Register::KvBaseLo, 1),
            (Register::SqBaseHi, u32::MAX),
            (Register::CqBaseHi, 0),
            (Register::TokenSizeHi, 1),
            (Register::TokenSizeHi, u32::MAX),
            (Register::LogpSizeHi, 7),
            (Register::KvSizeLo, u32::MAX),
        ];
        let (register, value) = draw.pick(if self.windows > 0 { &BAD[..] } else { &BAD[..11] });
        self.device.write_at(place, register, value)?;
        self.device.write_bytes(Register::Control.address(place), Control::ENABLE.bits(), 0xF)?;
        let mut get = |register| read(&mut *self.device, place, register);
        let (control, state, error) = (get(Register::Control)?, get(Register::State)?, get(Register::Error)?);
        let bad = doorbell_contract::DeviceFault::BAD_CONFIG.bits();
        if control != 0 || state & StateBits::ACTIVE.bits() != 0 || error != bad {
            let what = format!(
                "{register} = {value:#x}: CONTROL {control:#x}, STATE {state:#x}, ERROR {error:#x} after ENABLE"
            );
            return Err(violated("R12", what));
        }
        self.device.write_at(place, Register::Error, bad)?;
        self.tally.disturbed("ENABLE with a bad configuration");
        Ok(())
    }

    fn reap(&mut self, at: usize) -> Result<(), Violation> {
        self.attribute()?;
        let Self { pairs, tenants, tally, .. } = self;
        let Pair { place, draw, state, session, .. } = &mut pairs[at];
        let Some(session) = session else { return Ok(()) };
        let tenant = &mut tenants[usize::from(place.function)];
        let most = if draw.once_in(4) { draw.below(4) } else { u32::MAX };
        let changes = tenant.changes;
        session.reap(most, tenant, tally)?;
        // Its life may be over, and the function's versions may have begun anew since.
        tenant.is_current_unknown |= *state != State::Up && tenant.changes != changes;
        if tenant.is_current_unknown {
            let place = *place;
            self.take_versions(place)?;
        }
        let Self { pairs, device, .. } = self;
        let Pair { place, draw, state, session: Some(session), .. } = &mut pairs[at] else { return Ok(()) };
        // Late or at once, in one step or in several.
        if session.cq_released != session.cq_seen && *state == State::Up && !draw.once_in(4) {
            let steps = session.cq_seen.wrapping_sub(session.cq_released);
            let part = if draw.once_in(4) { 1 + draw.below(steps) } else { steps };
            session.cq_released = session.cq_released.wrapping_add(part);
            device.write_at(*place, Register::CqHead, session.cq_released)?;
        } else if session.cq_released != session.cq_seen && *state == State::Draining {
            // It may be over by now, and then it takes nothing.
            device.write_bytes(Register::CqHead.address(*place), session.cq_seen, 0xF)?;
            session.cq_released = session.cq_seen;
        }
        Ok(())
    }

    fn publish(&mut self, at: usize) -> Result<(), Violation> {
        let Pair { place, session, .. } = &mut self.pairs[at];
        let Some(session) = session else { return Ok(()) };
        if session.lost() > 0 && session.sq.free() == 0 {
            // What would have told may be what got lost.
            let head = read(&mut *self.device, *place, Register::SqHead)?;
            session.sq.consumed_to(session.sq.head(), head);
        }
        // Of a slot that is used again nobody could tell later.
        self.attribute()?;
        let Self { pairs, tenants, tally, device, .. } = self;
        let Pair { place, memory, draw, plan, session, .. } = &mut pairs[at];
        let Some(session) = session else { return Ok(()) };
        let tenant = &mut tenants[usize::from(place.function)];
        if draw.once_in(3) {
            return Ok(());
        }
        let before = session.sq.tail();
        for _ in 0..=draw.below(16) {
            if session.sq.free() == 0 {
                break;
            }
            let mut stored = Ok(());
            let mut store = |offset: u64, words: [u32; 4]| {
                stored = memory.store_u32s(TOKENS + offset as usize, &words);
            };
            let mut draft = plan.next(draw, session, tenant, &mut store);
            stored?;
            let mut area = None;
            if draft.writes {
                let Some(own) = session.take_area() else { break };
                draft.desc = draft.desc.with_delta_offset(layout::area(own) + plan::jitter(draw));
                area = Some(own);
            } else if draft.scores_area {
                match session.area_of(draft.desc.rollout_id) {
                    Some((shared, decode)) => {
                        session.share_area(shared);
                        draft.desc.delta_offset = decode.delta_offset;
                        area = Some(shared);
                    }
                    None => draft.desc = HwDesc { rollout_id: draft.desc.rollout_id, ..HwDesc::nop() },
                }
            }
            let is_policy = draft.desc.opcode == doorbell_contract::Opcode::Policy as u8 && draft.sealed;
            let publishes = is_policy
                && draft.desc.delta_offset < layout::FIRST_AREA
                && draft.desc.delta_offset.is_multiple_of(64);
            if publishes && tenant.publishing {
                // Another queue pair of the function was faster.
                plan.sent();
                continue;
            }
            session.publish(draft.desc, draft.sealed, area, tenant)?;
            if publishes {
                tenant.publishing = true;
                tenant.next += 1;
                tenant.changes += 1;
            }
            plan.sent();
            tally.descriptors += 1;
        }
        if session.sq.tail() != before {
            device.write_at(*place, Register::Doorbell, session.sq.tail())?;
        }
        Ok(())
    }

    fn abort(&mut self, at: usize) -> Result<(), Violation> {
        let Self { pairs, device, tally, .. } = self;
        let Pair { place, draw, session, .. } = &mut pairs[at];
        let Some(session) = session else { return Ok(()) };
        let Some(rollout) = session.some_rollout(draw) else { return Ok(()) };
        if device.write_bytes(Register::Abort.address(*place), rollout, 0xF)? {
            session.aborted(rollout);
            tally.disturbed("aborts");
        }
        Ok(())
    }

    /// Looks whether a queue pair that is to end has ended, and then judges its life.
    fn look(&mut self, at: usize) -> Result<bool, Violation> {
        let (place, state) = (self.pairs[at].place, self.pairs[at].state);
        let bits = StateBits::from_bits_retain(read(&mut *self.device, place, Register::State)?);
        self.attribute()?;
        if bits.contains(StateBits::ACTIVE) {
            return Ok(false);
        }
        let mut get = |register| read(&mut *self.device, place, register);
        let (sq_head, cq_tail, control) =
            (get(Register::SqHead)?, get(Register::CqTail)?, get(Register::Control)?);
        if control != 0 {
            return Err(violated("R12", format!("CONTROL reads {control:#x} and ACTIVE 0")));
        }
        let ended =
            if state == State::Draining { Ended::Whole } else { Ended::Disabled { sq_head, cq_tail } };
        self.end(at, ended)?;
        Ok(true)
    }

    /// The life of a queue pair is over.
    fn end(&mut self, at: usize, ended: Ended) -> Result<(), Violation> {
        let Self { pairs, tenants, tally, device, .. } = self;
        let Pair { place, session, .. } = &mut pairs[at];
        let error = read(&mut **device, *place, Register::Error)?;
        if let Some(session) = session {
            let tenant = &mut tenants[usize::from(place.function)];
            let changes = tenant.changes;
            session.end(ended, error, tenant, tally)?;
            tenant.is_current_unknown |= tenant.changes != changes;
            if ended != Ended::Reset {
                Self::count(&mut **device, *place, session, ended)?;
            }
        }
        self.strayed(at)?;
        let place = self.pairs[at].place;
        if self.tenants[usize::from(place.function)].is_current_unknown {
            self.take_versions(place)?;
        }
        let pair = &mut self.pairs[at];
        pair.session = None;
        pair.state = State::Down;
        pair.left = Some(digest(&pair.memory)?);
        Ok(())
    }

    /// Holds the queue pair's counters, and its count of refused doorbells, to what was seen.
    fn count(
        device: &mut dyn Disturbed,
        place: Place,
        session: &Session,
        ended: Ended,
    ) -> Result<(), Violation> {
        let mut get = |counter: QueueCounter| -> Result<u64, Violation> {
            let low = read(device, place, counter.lo())?;
            Ok(u64::from(read(device, place, counter.hi())?) << 32 | u64::from(low))
        };
        let descriptors = get(QueueCounter::Descriptors)?;
        let completions = get(QueueCounter::Completions)?;
        let (errors, tokens) = (get(QueueCounter::Errors)?, get(QueueCounter::Tokens)?);
        let seen = u64::from(session.seen() - session.lost());
        if completions != seen {
            let what = format!("COMPLETIONS counts {completions}, and {seen} are visible");
            return Err(violated("counters", what));
        }
        if ended == Ended::Whole {
            let published = u64::from(session.published());
            let exact = session.lost() == 0 && !session.tokens_uncertain();
            if descriptors != published
                || session.lost() == 0 && errors != session.errors_seen
                || exact && tokens != session.tokens_seen
            {
                let what = format!(
                    "DESCRIPTORS {descriptors} of {published}, ERRORS {errors} of {}, TOKENS {tokens} of {}",
                    session.errors_seen, session.tokens_seen
                );
                return Err(violated("counters", what));
            }
        }
        Ok(())
    }

    /// R11: nothing stands where nobody may write.
    fn strayed(&self, at: usize) -> Result<(), Violation> {
        let memory = &self.pairs[at].memory;
        if let Some((offset, word)) = layout::strayed(memory)? {
            return Err(violated("R11", format!("{word:#x} was written to byte {offset:#x} of its memory")));
        }
        let mut words = vec![0; CORPUS_WORDS as usize];
        memory.load_u32s(TOKENS + CORPUS as usize, &mut words)?;
        if words != Self::corpus(self.seed) {
            return Err(violated("R11", "tokens that it only reads were written".into()));
        }
        Ok(())
    }

    /// R12: nothing was written since the last life ended.
    fn still(&mut self, at: usize) -> Result<(), Violation> {
        let pair = &mut self.pairs[at];
        if let Some(left) = pair.left.take()
            && digest(&pair.memory)? != left
        {
            return Err(violated("R12", "its memory changed while it was inactive".into()));
        }
        Ok(())
    }

    /// Something happens to the whole, or to a queue pair at random.
    fn disturb(&mut self) -> Result<(), Violation> {
        if self.draw.once_in(10) {
            self.change_weather()?;
        }
        // Each queue pair about as often, however many there are.
        if self.draw.once_in((48 / self.pairs.len() as u32).max(2)) {
            let at = self.draw.below(self.pairs.len() as u32) as usize;
            let place = self.pairs[at].place;
            if self.tenants[usize::from(place.function)].disturbed {
                self.end_a_life(at).map_err(|violation| self.named(at, violation))?;
            }
        }
        if self.draw.once_in(400) {
            self.reset()?;
        }
        Ok(())
    }

    fn end_a_life(&mut self, at: usize) -> Result<(), Violation> {
        let (place, state) = (self.pairs[at].place, self.pairs[at].state);
        match self.draw.below(8) {
            0..4 if matches!(state, State::Up | State::Draining) => {
                self.device.write_at(place, Register::Control, 0)?;
                self.pairs[at].state = State::Stopping;
                self.tally.disturbed("disables");
            }
            4..7 if state == State::Up => {
                let drain = Control::ENABLE | Control::DRAIN;
                self.device.write_at(place, Register::Control, drain.bits())?;
                self.pairs[at].state = State::Draining;
                self.pairs[at].rests = 0;
                self.tally.disturbed("drains");
            }
            7 => {
                let reset = FunctionControl::RESET.bits();
                self.device.write_at(place, Register::FnControl, reset)?;
                for pair in self.pairs.iter_mut().filter(|pair| pair.place.function == place.function) {
                    if pair.state != State::Down {
                        pair.state = State::Stopping;
                        pair.rests = 0;
                    }
                }
                self.tally.disturbed("resets of a function");
            }
            _ => {}
        }
        Ok(())
    }

    pub fn change_weather(&mut self) -> Result<(), Violation> {
        let draw = &mut self.draw;
        let mut weather = Weather::default();
        if draw.once_in(2) {
            let low = draw.below(4) * draw.below(16);
            weather.latency = low..=low + draw.below(3) * draw.below(64);
            for percent in &mut weather.stall_percent {
                *percent = draw.pick(&[0, 0, 10, 50, 90]);
            }
            self.tally.disturbed("storms of latency and stalls");
        }
        match draw.below(8) {
            0 => weather.withholds_reads = true,
            1 => weather.withholds_writes = true,
            _ => {}
        }
        if weather.withholds_reads || weather.withholds_writes {
            self.tally.disturbed("withheld responses");
        }
        if draw.once_in(2) {
            for pair in &self.pairs {
                if !self.tenants[usize::from(pair.place.function)].disturbed {
                    continue;
                }
                let base = pair.memory.bus_address();
                for (first, end) in
                    [(SQ, CQ - 4096), (CQ, TOKENS - 4096), (TOKENS, LOGPS - 4096), (LOGPS, KV - 4096)]
                {
                    if draw.once_in(3) {
                        let one_in = draw.pick(&[4, 16, 64]);
                        weather.faults.push(FaultyRange {
                            first: base + first as u64,
                            last: base + end as u64 - 1,
                            one_in,
                        });
                    }
                }
            }
            self.tally.disturbed("times with bus errors");
        }
        self.weather = weather;
        let seed = self.draw.wide();
        Ok(self.device.set_weather(&self.weather, seed)?)
    }

    pub fn calm_down(&mut self) -> Result<(), Violation> {
        self.weather = Weather::default();
        Ok(self.device.set_weather(&self.weather, 0)?)
    }

    /// The reset pin, with the bus or without it.
    fn reset(&mut self) -> Result<(), Violation> {
        let pins = if self.draw.once_in(2) { ResetPins::WithBus } else { ResetPins::Alone };
        self.attribute()?;
        if !self.device.reset(pins)? {
            return Ok(());
        }
        self.tally.disturbed(match pins {
            ResetPins::WithBus => "resets with the bus",
            ResetPins::Alone => "resets of the device alone",
        });
        // What was promised to the bus goes on for a while; what is withheld is let go at last.
        let first = Place::FIRST;
        for waited in 0.. {
            let state = StateBits::from_bits_retain(read(&mut *self.device, first, Register::State)?);
            if !state.contains(StateBits::ACTIVE) {
                break;
            }
            if waited == 8 {
                self.calm_down()?;
            }
            if waited == PATIENCE {
                let report = self.device.report().unwrap_or_default();
                return Err(violated("R15", format!("ACTIVE does not fall after a reset. {report}")));
            }
            self.pass(WAIT)?;
        }
        self.attribute()?;
        for at in 0..self.pairs.len() {
            let place = self.pairs[at].place;
            read(&mut *self.device, place, Register::State)?;
            self.end(at, Ended::Reset).map_err(|violation| self.named(at, violation))?;
            self.pairs[at].rests = 0;
        }
        for tenant in &mut self.tenants {
            tenant.publishing = false;
            tenant.changes += 1;
            tenant.current = 0;
        }
        self.divide()
    }

    /// Everything that was published comes to its end in a calm memory, within a bound.
    fn settle(&mut self) -> Result<(), Violation> {
        self.calm_down()?;
        let (mut quiet, mut since) = (0, Instant::now());
        let mut last = None;
        loop {
            let mut waiting = Vec::new();
            for at in 0..self.pairs.len() {
                self.pairs[at].rests = 0;
                if self.is_waiting(at).map_err(|violation| self.named(at, violation))? {
                    waiting.push(at);
                }
            }
            if waiting.is_empty() {
                return Ok(());
            }
            let now: Vec<(u32, u32)> = self
                .pairs
                .iter()
                .map(|pair| {
                    pair.session.as_ref().map_or((0, 0), |session| (session.cq_seen, session.sq.head()))
                })
                .collect();
            let now = Some((now, self.progress()?));
            if now != last {
                (quiet, since) = (0, Instant::now());
            }
            quiet += 1;
            last = now;
            if quiet > PATIENCE && (!self.device.runs_alone() || since.elapsed() > PATIENCE_TIME) {
                return Err(self.hang(&waiting));
            }
            self.pass(WAIT)?;
        }
    }

    /// Whether a queue pair has not come to rest; one that has is disabled, and its life is judged.
    fn is_waiting(&mut self, at: usize) -> Result<bool, Violation> {
        if self.pairs[at].state == State::Down {
            return Ok(false);
        }
        self.attribute()?;
        self.reap(at)?;
        let Self { pairs, device, .. } = self;
        let Pair { place, state, session, .. } = &mut pairs[at];
        let place = *place;
        if *state != State::Up {
            return Ok(!self.look(at)?);
        }
        let Some(session) = session else { return Ok(false) };
        if session.cq_released != session.cq_seen {
            session.cq_released = session.cq_seen;
            device.write_at(place, Register::CqHead, session.cq_seen)?;
        }
        let bits = StateBits::from_bits_retain(read(&mut **device, place, Register::State)?);
        if !bits.contains(StateBits::IDLE) {
            return Ok(true);
        }
        self.attribute()?;
        self.reap(at)?;
        if let Some(session) = &self.pairs[at].session {
            let refused = read(&mut *self.device, place, Register::Status)? & 0xFF;
            if refused != session.refused.min(255) {
                let what = format!("STATUS counts {refused} refused doorbells of {}", session.refused);
                return Err(violated("registers", what));
            }
        }
        self.end(at, Ended::Whole)?;
        self.device.write_at(place, Register::Control, 0)?;
        self.pairs[at].state = State::Stopping;
        Ok(true)
    }

    fn progress(&mut self) -> Result<[u32; 3], Violation> {
        let mut get = |counter: Counter| read(&mut *self.device, Place::FIRST, counter.lo());
        Ok([get(Counter::Descriptors)?, get(Counter::Completions)?, get(Counter::Tokens)?])
    }

    /// Who waits for what (R15).
    fn hang(&mut self, waiting: &[usize]) -> Violation {
        let mut what = String::from("nothing moves any more:");
        for &at in waiting {
            let Pair { place, state, session, .. } = &self.pairs[at];
            let (place, state) = (*place, *state);
            let seen = session.as_ref().map_or((0, 0), |session| (session.published(), session.seen()));
            let mut get = |register| self.device.read_at(place, register).unwrap_or(0xDEAD_DEAD);
            let registers =
                [Register::State, Register::Status, Register::SqHead, Register::CqTail].map(&mut get);
            what += &format!(
                " queue pair {} ({state:?}) has {} published and {} seen, STATE {:#x} STATUS {:#x} SQ_HEAD {:#x} \
                 CQ_TAIL {:#x};",
                place.queue, seen.0, seen.1, registers[0], registers[1], registers[2], registers[3]
            );
        }
        what += &self.device.report().unwrap_or_default();
        violated("R15", what)
    }

    /// After all, every queue pair is as good as new, for a driver that does everything right.
    fn finish(&mut self) -> Result<(), Violation> {
        for at in 0..self.pairs.len() {
            self.still(at).and_then(|()| self.strayed(at)).map_err(|violation| self.named(at, violation))?;
        }
        Ok(())
    }

    /// The clean run: the device divided anew, a [`Driver`] for each queue pair.
    pub fn clean_run(self) -> Result<Tally, Violation> {
        let Self { device, shape, wait_states, tally, seed, .. } = self;
        let config = QueueConfig {
            token_bytes: 1 << 14,
            sq_depth: 8,
            cq_depth: 4,
            wait_states,
            ..QueueConfig::default()
        };
        let division = Division {
            queues: shape.0,
            functions: shape.1.min(shape.0),
            bytes: config.shared_bytes()?,
            wait_states,
            ..Division::default()
        };
        let ports = Ports::divide(device, &division)?;
        let ports = ports.take_all()?;
        for (queue, port) in ports.into_iter().enumerate() {
            let clean = || -> Result<(), Violation> {
                let mut driver = Driver::new(port, config.clone())?;
                let oracle = Oracle::new(driver.config());
                let descs: Vec<HwDesc> = (0..CLEAN)
                    .map(|k| {
                        let desc = HwDesc::decode(k, k, 20).with_seed(seed as u32).with_user_data(k.into());
                        desc.with_delta_offset(80 * u64::from(k))
                    })
                    .collect();
                let (mut left, mut ends) = (&descs[..], Vec::new());
                let mut out = [doorbell_contract::HwCompletion::default(); 8];
                while ends.len() < descs.len() {
                    let taken = driver.submit(left)?;
                    left = &left[taken..];
                    let count = driver.poll(&mut out)?;
                    ends.extend_from_slice(&out[..count]);
                }
                for end in ends {
                    let expected = oracle.answer(&descs[end.user_data as usize % descs.len()]);
                    let mut tokens = vec![0; expected.tokens.len()];
                    driver.tokens(80 * end.user_data, &mut tokens)?;
                    if end.without_timing() != expected.completion || tokens != expected.tokens {
                        let what = format!("{end:x?} instead of {:x?}", expected.completion);
                        return Err(violated("R6", what));
                    }
                }
                Ok(())
            };
            clean().map_err(|violation| violation.at(format!("clean run on queue pair {queue}")))?;
        }
        Ok(tally)
    }
}

/// What a queue pair's memory holds, but for what the host alone writes.
fn digest(memory: &SharedMemory) -> Result<u64, Violation> {
    let mut sum = 0u64;
    let mut add = |word: u64| sum = (sum.rotate_left(5) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    for offset in (CQ..CQ + 32 * layout::MOST_SLOTS as usize).step_by(8) {
        add(memory.word64(offset)?.load(std::sync::atomic::Ordering::Acquire));
    }
    let mut words = vec![0; TOKEN_BYTES as usize / 4];
    for region in [TOKENS, LOGPS] {
        memory.load_u32s(region, &mut words)?;
        words.iter().for_each(|&word| add(word.into()));
    }
    Ok(sum)
}
