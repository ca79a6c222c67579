//! The model's register page: who may write what when, and what the writes do (docs/contract.md, "Registers").

use crate::contract::{
    Access, CONTRACT_VERSION, Capability, Control, Counter, DEVICE_ID, DeviceFault, Irq, LENGTH_LIMIT_MAX,
    Register, State,
};
use crate::queue::{Depth, between};

/// Workers built: the model executes in SQ order, one descriptor at a time.
const WORKERS: u32 = 1;

/// The device answers SLVERR and changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refused;

/// One ring as the device sees it; indices are free-running (R13).
#[derive(Clone, Copy, Debug)]
pub(super) struct Ring {
    pub base: u64,
    pub depth: Depth,
    /// Oldest slot in use: next to fetch (SQ) or oldest not released (CQ).
    pub head: u32,
    /// Next slot to be filled.
    pub tail: u32,
}

impl Ring {
    #[inline]
    pub fn fill(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    #[inline]
    pub fn is_full(&self) -> bool {
        self.fill() == self.depth.slots()
    }

    /// Bus address of the slot of `index`, slots being `bytes` long.
    #[inline]
    pub fn address(&self, index: u32, bytes: u64) -> u64 {
        self.base.wrapping_add(bytes * u64::from(self.depth.slot(index)))
    }
}

/// What is fixed while the device is active, and the rings.
#[derive(Clone, Debug)]
pub(super) struct Session {
    pub sq: Ring,
    pub cq: Ring,
    pub token_base: u64,
    pub token_size: u64,
    pub kv_size: u64,
    pub checkpoint_default: u32,
    pub length_limit: u32,
    pub eos_threshold: u32,
    pub reward_threshold: u32,
    /// The newest completion that asked for an interrupt and is not released: if any such is left, then this one.
    asked: Option<u32>,
}

/// The register page.
#[derive(Debug)]
pub(super) struct Registers {
    /// Config registers as last written, by offset / 4.
    config: [u32; CONFIG_WORDS],
    /// Present while STATE.ACTIVE is 1.
    pub session: Option<Session>,
    fault: DeviceFault,
    irq: Irq,
    refused: u8,
    /// What is counted one by one; the others follow from these and from the wait states of the session.
    counters: [u64; Counter::ALL.len()],
    wait_states: u64,
    /// High halves as latched by reads of the low halves.
    latched: [u32; Counter::ALL.len()],
}

/// Words of the page up to the first counter.
const CONFIG_WORDS: usize = (Counter::Cycles.lo().offset() / 4) as usize;

const fn word(register: Register) -> usize {
    (register.offset() / 4) as usize
}

impl Registers {
    pub fn new() -> Self {
        let mut config = [0; CONFIG_WORDS];
        for register in Register::ALL.into_iter().filter(|register| register.access() == Access::Config) {
            // What depends on how a device was built is WORKERS.
            config[word(register)] = register.reset().unwrap_or(WORKERS);
        }
        Self {
            config,
            session: None,
            fault: DeviceFault::None,
            irq: Irq::empty(),
            refused: 0,
            counters: [0; Counter::ALL.len()],
            wait_states: 0,
            latched: [0; Counter::ALL.len()],
        }
    }

    #[inline]
    pub fn count(&mut self, counter: Counter, amount: u64) {
        self.counters[counter as usize] += amount;
    }

    /// ERROR holds the first fault since it was cleared.
    pub fn raise(&mut self, fault: DeviceFault) {
        if self.fault == DeviceFault::None {
            self.fault = fault;
        }
    }

    #[inline]
    pub fn write(&mut self, register: Register, value: u32) -> Result<(), Refused> {
        match register {
            Register::Doorbell => self.ring_doorbell(value),
            Register::CqHead => self.release_completions(value),
            _ => self.write_slow(register, value),
        }
    }

    /// Publishes the slots below `tail` (R1).
    #[inline]
    fn ring_doorbell(&mut self, tail: u32) -> Result<(), Refused> {
        match &mut self.session {
            Some(Session { sq, .. }) if between(sq.tail, tail, sq.head.wrapping_add(sq.depth.slots())) => {
                sq.tail = tail;
                Ok(())
            }
            _ => self.refuse_doorbell(),
        }
    }

    /// Releases the completions below `head` (R4).
    #[inline]
    fn release_completions(&mut self, head: u32) -> Result<(), Refused> {
        match &mut self.session {
            Some(Session { cq, asked, .. }) if between(cq.head, head, cq.tail) => {
                if asked
                    .is_some_and(|asked| !between(head, asked, cq.tail.wrapping_sub(1)) || head == cq.tail)
                {
                    *asked = None;
                }
                cq.head = head;
                Ok(())
            }
            _ => self.refuse_doorbell(),
        }
    }

    #[cold]
    fn refuse_doorbell(&mut self) -> Result<(), Refused> {
        self.refused = self.refused.saturating_add(1);
        Err(Refused)
    }

    fn write_slow(&mut self, register: Register, value: u32) -> Result<(), Refused> {
        match register {
            Register::Control => {
                match (Control::from_bits_truncate(value).contains(Control::ENABLE), self.session.is_some()) {
                    (true, false) => self.enable(),
                    (false, _) => self.session = None,
                    (true, true) => {}
                }
                return Ok(());
            }
            Register::Error => self.fault = DeviceFault::None,
            Register::Irq => {
                self.irq = Irq::from_bits_truncate(value) & Irq::ARMED | self.irq & Irq::PENDING;
                if self.irq.contains(Irq::ARMED) {
                    self.irq -= Irq::PENDING;
                }
                self.fire();
            }
            _ if register.access() != Access::Config || self.session.is_some() => return Err(Refused),
            Register::Workers if !(1..=WORKERS).contains(&value) => return Err(Refused),
            Register::LengthLimit if value > LENGTH_LIMIT_MAX => return Err(Refused),
            Register::WaitStates | Register::EosThreshold => self.config[word(register)] = value & 0xFFFF,
            _ => self.config[word(register)] = value,
        }
        Ok(())
    }

    /// ENABLE: a bad configuration is a fault; a good one starts with empty queues and cleared counters (R12).
    fn enable(&mut self) {
        match self.configured() {
            Some(session) => {
                self.session = Some(session);
                self.counters.fill(0);
                self.wait_states = self.config[word(Register::WaitStates)].into();
                self.refused = 0;
            }
            None => self.raise(DeviceFault::BadConfig),
        }
    }

    fn configured(&self) -> Option<Session> {
        let get = |register| self.config[word(register)];
        let wide = |low, high| u64::from(get(high)) << 32 | u64::from(get(low));
        let base = |low, high| Some(wide(low, high)).filter(|base| base % 64 == 0);
        let ring = |base, size, start| {
            let depth = Depth::new("", get(size)).ok()?;
            Some(Ring { base, depth, head: get(start), tail: get(start) })
        };
        use Register as R;
        base(R::KvBaseLo, R::KvBaseHi)?;
        Some(Session {
            sq: ring(base(R::SqBaseLo, R::SqBaseHi)?, R::SqSize, R::SqStart)?,
            cq: ring(base(R::CqBaseLo, R::CqBaseHi)?, R::CqSize, R::CqStart)?,
            token_base: base(R::TokenBaseLo, R::TokenBaseHi)?,
            token_size: wide(R::TokenSizeLo, R::TokenSizeHi),
            kv_size: wide(R::KvSizeLo, R::KvSizeHi),
            checkpoint_default: get(R::CheckpointDefault),
            length_limit: get(R::LengthLimit),
            eos_threshold: get(R::EosThreshold),
            reward_threshold: get(R::RewardThreshold),
            asked: None,
        })
    }

    /// Notes that completion `index` asks for an interrupt, and fires if armed (R14).
    pub fn ask_interrupt(&mut self, index: u32) {
        if let Some(session) = &mut self.session {
            session.asked = Some(index);
        }
        self.fire();
    }

    /// R14: armed, and a visible completion that asked is not yet released.
    fn fire(&mut self) {
        let asked = self.session.as_ref().is_some_and(|session| session.asked.is_some());
        if asked && self.irq.contains(Irq::ARMED) {
            self.irq = Irq::PENDING;
        }
    }

    /// Reads `register`; `busy` says that a descriptor is being executed.
    pub fn read(&mut self, register: Register, busy: bool) -> u32 {
        let (sq, cq) = match &self.session {
            Some(session) => (Some(session.sq), Some(session.cq)),
            None => (None, None),
        };
        match register {
            Register::Id => DEVICE_ID,
            Register::Version => CONTRACT_VERSION,
            Register::Capability => {
                WORKERS | (Capability::PREFILL | Capability::RESIDENT | Capability::INTERRUPT).bits()
            }
            Register::Control => self.session.as_ref().map_or(Control::empty(), |_| Control::ENABLE).bits(),
            Register::Doorbell => sq.map_or(0, |sq| sq.tail),
            Register::CqHead => cq.map_or(0, |cq| cq.head),
            Register::State => {
                let idle = !busy && sq.is_none_or(|sq| sq.fill() == 0);
                let mut state = State::empty();
                state.set(State::ACTIVE, self.session.is_some());
                state.set(State::IDLE, idle);
                state.set(State::FAULT, self.fault != DeviceFault::None);
                state.bits()
            }
            Register::Error => self.fault as u32,
            Register::Status => {
                let fill = |ring: Option<Ring>| ring.map_or(0, |ring| ring.fill().min(0xFF));
                // One worker: state 1 is "runs", 0 is "idle".
                let worker = u32::from(busy) << 3 | u32::from(busy);
                worker << 24 | fill(sq) << 16 | fill(cq) << 8 | u32::from(self.refused)
            }
            Register::Irq => self.irq.bits(),
            _ if register.access() == Access::Config => self.config[word(register)],
            _ => self.read_counter(register),
        }
    }

    fn read_counter(&mut self, register: Register) -> u32 {
        for counter in Counter::ALL {
            if register == counter.lo() {
                let value = self.counter(counter);
                self.latched[counter as usize] = (value >> 32) as u32;
                return value as u32;
            }
            if register == counter.hi() {
                return self.latched[counter as usize];
            }
        }
        0
    }

    fn counter(&self, counter: Counter) -> u64 {
        let counted = |counter: Counter| self.counters[counter as usize];
        let waits = counted(Counter::Tokens) * self.wait_states;
        match counter {
            Counter::ReadBeats => counted(Counter::Descriptors),
            Counter::WriteBeats => counted(Counter::WriteBeats) + counted(Counter::Completions),
            Counter::Wait => waits,
            Counter::Cycles | Counter::Busy => {
                counted(Counter::Completions) + counted(Counter::Tokens) + waits
            }
            _ => counted(counter),
        }
    }
}
