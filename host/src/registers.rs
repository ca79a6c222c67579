//! The register page of a device in software: who may write what when, and what the writes do (docs/contract.md,
//! "Registers"). The model and the GPU, whose registers are its host's, share it.

use crate::queue::{Depth, between};
use doorbell_contract::{
    Access, CONTRACT_VERSION, Capability, Control, Counter, DEVICE_ID, DeviceFault, Irq, LENGTH_LIMIT_MAX,
    Register, SqKey, State,
};

/// The device answers SLVERR and changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused;

/// One ring as the device sees it; indices are free-running (R13).
#[derive(Clone, Copy, Debug)]
pub struct Ring {
    /// Bus address of slot 0.
    pub base: u64,
    /// Its slots.
    pub depth: Depth,
    /// Oldest slot in use: next to fetch (SQ) or oldest not released (CQ).
    pub head: u32,
    /// Next slot to be filled.
    pub tail: u32,
}

impl Ring {
    /// Slots in use.
    #[inline]
    pub fn fill(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    /// Whether every slot is in use.
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
pub struct Session {
    /// Submission queue: `head` is consumed up to, `tail` published up to.
    pub sq: Ring,
    /// Completion queue: `head` is released up to, `tail` written up to.
    pub cq: Ring,
    /// What descriptors are sealed with.
    pub sq_key: SqKey,
    /// Bus address of the token region.
    pub token_base: u64,
    /// Bytes of the token region.
    pub token_size: u64,
    /// Bytes of the KV region.
    pub kv_size: u64,
    /// Checkpoint of descriptors that give 0; 0 and `CHECKPOINT_NEVER` are never.
    pub checkpoint_default: u32,
    /// Cycles before each token.
    pub wait_states: u32,
    /// Largest `seq_len` + `max_tokens`.
    pub length_limit: u32,
    /// Probability of end of sequence, in 1/32768.
    pub eos_threshold: u32,
    /// RESIDENT: scores below it end the rollout; Q16.16.
    pub reward_threshold: u32,
    /// Workers in use.
    pub workers: u32,
    /// The newest completion that asked for an interrupt and is not released: if any such is left, then this one.
    asked: Option<u32>,
}

/// The register page.
#[derive(Debug)]
pub struct Registers {
    /// Config registers as last written, by offset / 4.
    config: [u32; CONFIG_WORDS],
    /// Present while STATE.ACTIVE is 1.
    pub session: Option<Session>,
    fault: DeviceFault,
    irq: Irq,
    refused: u8,
    /// Number of workers and feature bits, as CAPABILITY shows them.
    capability: u32,
    counters: [u64; Counter::ALL.len()],
    /// High halves as latched by reads of the low halves.
    latched: [u32; Counter::ALL.len()],
}

/// Words of the page up to the first counter.
const CONFIG_WORDS: usize = (Counter::Cycles.lo().offset() / 4) as usize;

const fn word(register: Register) -> usize {
    (register.offset() / 4) as usize
}

impl Registers {
    /// The page after reset of a device with `workers` workers (1 to 255) and these features.
    pub fn new(workers: u8, features: Capability) -> Self {
        let mut config = [0; CONFIG_WORDS];
        for register in Register::ALL.into_iter().filter(|register| register.access() == Access::Config) {
            // What depends on how a device was built is WORKERS.
            config[word(register)] = register.reset().unwrap_or(workers.into());
        }
        Self {
            config,
            session: None,
            fault: DeviceFault::empty(),
            irq: Irq::empty(),
            refused: 0,
            capability: u32::from(workers) | features.bits(),
            counters: [0; Counter::ALL.len()],
            latched: [0; Counter::ALL.len()],
        }
    }

    /// Adds to a counter.
    #[inline]
    pub fn count(&mut self, counter: Counter, amount: u64) {
        self.counters[counter as usize] += amount;
    }

    /// A counter's value.
    #[inline]
    pub fn counted(&self, counter: Counter) -> u64 {
        self.counters[counter as usize]
    }

    /// Sets a counter that the device keeps elsewhere.
    #[inline]
    pub fn set_counter(&mut self, counter: Counter, value: u64) {
        self.counters[counter as usize] = value;
    }

    /// The faults that ERROR shows.
    pub fn fault(&self) -> DeviceFault {
        self.fault
    }

    /// Adds to ERROR, whose bits stay until the host clears them.
    pub fn raise(&mut self, fault: DeviceFault) {
        self.fault |= fault;
    }

    /// A write of `register` by the host.
    ///
    /// # Errors
    /// `Refused`, where the device answers SLVERR.
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
            Register::Error => self.fault -= DeviceFault::from_bits_truncate(value),
            Register::Irq => {
                self.irq = Irq::from_bits_truncate(value) & Irq::ARMED | self.irq & Irq::PENDING;
                if self.irq.contains(Irq::ARMED) {
                    self.irq -= Irq::PENDING;
                }
                self.fire();
            }
            _ if register.access() != Access::Config || self.session.is_some() => return Err(Refused),
            Register::Workers if !(1..=self.capability & 0xFF).contains(&value) => return Err(Refused),
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
                self.refused = 0;
            }
            None => self.raise(DeviceFault::BAD_CONFIG),
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
            sq_key: SqKey::new(get(R::SqKey)),
            token_base: base(R::TokenBaseLo, R::TokenBaseHi)?,
            token_size: wide(R::TokenSizeLo, R::TokenSizeHi),
            kv_size: wide(R::KvSizeLo, R::KvSizeHi),
            checkpoint_default: get(R::CheckpointDefault),
            wait_states: get(R::WaitStates),
            workers: get(R::Workers),
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

    /// Fires if armed: for a completion that asked and is already released.
    pub fn interrupt(&mut self) {
        if self.irq.contains(Irq::ARMED) {
            self.irq = Irq::PENDING;
        }
    }

    /// R14: armed, and a visible completion that asked is not yet released.
    fn fire(&mut self) {
        let asked = self.session.as_ref().is_some_and(|session| session.asked.is_some());
        if asked {
            self.interrupt();
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
            Register::Capability => self.capability,
            Register::Control => self.session.as_ref().map_or(Control::empty(), |_| Control::ENABLE).bits(),
            Register::Doorbell => sq.map_or(0, |sq| sq.tail),
            Register::CqHead => cq.map_or(0, |cq| cq.head),
            Register::State => {
                let idle = !busy && sq.is_none_or(|sq| sq.fill() == 0);
                let mut state = State::empty();
                state.set(State::ACTIVE, self.session.is_some());
                state.set(State::IDLE, idle);
                state.set(State::FAULT, !self.fault.is_empty());
                state.bits()
            }
            Register::Error => self.fault.bits(),
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
                let value = self.counted(counter);
                self.latched[counter as usize] = (value >> 32) as u32;
                return value as u32;
            }
            if register == counter.hi() {
                return self.latched[counter as usize];
            }
        }
        0
    }
}
