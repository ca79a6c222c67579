//! What the threads share: `kernels/device_state.cuh`, and the shared memory of `kernels/front_end.cuh`.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use doorbell_contract::Counter;
use doorbell_host::SharedMemory;
use doorbell_host::queue::COMPLETION_WORDS;

use super::EmulationOptions;
use super::fault::Fault;
use super::pace::{Beats, Pace};
use super::running_table::RunningTable;
use crate::mailbox::{KernelSide, SessionRegisters};

/// Descriptors that one fetch thread takes at a time at most.
pub(super) const BATCH: u32 = 8;
/// DECODEs of at most so many tokens run in the fetch thread.
pub(super) const BRIEF: u32 = 4;
/// Rollouts of one queue that may be at workers at a time, and one more. Few, so that tests run out of them.
pub(super) const PLACES: u32 = 32;
/// Tickets of the work queue: more than places of all queues and waiting workers together.
pub(super) const WORK_SLOTS: u32 = 1024;

/// Where the counts of places start: every session comes past the wrap of 2^32 early (R13).
const FIRST_PLACE_COUNT: u32 = u32::MAX - 9;

/// A DECODE on its way to a worker, and back.
#[derive(Debug, Default)]
pub(super) struct Place {
    pub rollout_id: AtomicU32,
    pub seed: AtomicU32,
    pub seq_len: AtomicU32,
    pub max_tokens: AtomicU32,
    pub period: AtomicU32,
    pub flags: AtomicU32,
    pub reward_model_id: AtomicU32,
    pub stop: AtomicU32,
    pub user_data: AtomicU64,
    /// Bus address.
    pub tokens: AtomicU64,
    pub eos_threshold: AtomicU32,
    pub wait_states: AtomicU32,
    pub reward_threshold: AtomicU32,
    pub session: AtomicU32,
    /// The completion, but for what its slot decides.
    pub result: [AtomicU64; COMPLETION_WORDS],
}

/// Counters of what workers do for a queue.
#[derive(Debug, Default)]
pub(super) struct WorkerCounters {
    pub tokens: AtomicU64,
    pub busy: AtomicU64,
    pub wait: AtomicU64,
    pub lines: AtomicU64,
}

impl WorkerCounters {
    pub fn all(&self) -> [&AtomicU64; 4] {
        [&self.tokens, &self.busy, &self.wait, &self.lines]
    }
}

/// What device memory holds of one queue.
#[derive(Debug)]
pub(super) struct QueueState {
    /// The session whose rollouts are to be dropped.
    pub abandon: AtomicU32,
    pub done_tail: AtomicU32,
    /// Entry of ticket t: (t + 1) << 32 | place.
    pub done: Vec<AtomicU64>,
    pub places: Vec<Place>,
    pub counters: WorkerCounters,
}

/// What the roles of one queue pair share.
#[derive(Debug)]
pub(super) struct FrontEnd {
    pub running: RunningTable,
    /// As read when the session started.
    pub config: Mutex<SessionRegisters>,
    /// Places that are free: a ring, from which whoever has the turn takes and to which the completion role gives back.
    pub free_places: Vec<AtomicU32>,
    pub places_taken: AtomicU32,
    pub places_given: AtomicU32,
    pub sq_tail: AtomicU32,
    pub cq_head: AtomicU32,
    pub wanted: AtomicU32,
    pub stopping: AtomicU32,
    pub claimed: AtomicU32,
    pub admitted: AtomicU32,
    pub outstanding: AtomicU32,
    pub fetchers: AtomicU32,
    pub waits_for: AtomicU32,
    pub asks: AtomicU32,
    pub asked: AtomicU32,
    /// CQ tail in the low half, SQ head in the high one: they change together.
    pub posted: AtomicU64,
    pub counters: [AtomicU64; Counter::ALL.len()],
    pub barrier: Barrier,
}

/// Everything.
#[derive(Debug)]
pub(super) struct Shared {
    pub options: EmulationOptions,
    pub mailboxes: Vec<KernelSide>,
    pub memories: Vec<SharedMemory>,
    pub front_ends: Vec<FrontEnd>,
    pub queues: Vec<QueueState>,
    pub work_tail: AtomicU32,
    pub work_head: AtomicU32,
    /// Front ends that have ended.
    pub exited: AtomicU32,
    /// Entry of ticket t: (t + 1) << 32 | queue << 16 | place.
    pub work: Vec<AtomicU64>,
    pub beats: Beats,
    /// A thread has panicked.
    pub dead: AtomicBool,
    complaint: Mutex<Option<String>>,
}

fn zeroes(count: u32) -> Vec<AtomicU64> {
    (0..count).map(|_| AtomicU64::new(0)).collect()
}

impl Shared {
    pub fn new(options: EmulationOptions, parts: Vec<(KernelSide, SharedMemory)>) -> Self {
        let block = options.fetchers + 3;
        let (mailboxes, memories) = parts.into_iter().unzip();
        let queue = |_| QueueState {
            abandon: AtomicU32::new(0),
            done_tail: AtomicU32::new(0),
            done: zeroes(PLACES),
            places: (0..PLACES).map(|_| Place::default()).collect(),
            counters: WorkerCounters::default(),
        };
        Self {
            options,
            mailboxes,
            memories,
            front_ends: (0..options.queues).map(|_| FrontEnd::new(block as u32)).collect(),
            queues: (0..options.queues).map(queue).collect(),
            work_tail: AtomicU32::new(0),
            work_head: AtomicU32::new(0),
            exited: AtomicU32::new(0),
            work: zeroes(WORK_SLOTS),
            beats: Beats::new(options.queues * block + options.workers),
            dead: AtomicBool::new(false),
            complaint: Mutex::new(None),
        }
    }

    /// Notes the first thing that went wrong.
    pub fn complain(&self, what: String) {
        self.complaint.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(what);
    }

    pub fn complaint(&self) -> Option<String> {
        self.complaint.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Writes a token, which must lie in the memory of its queue (R11).
    pub fn write_token(&self, queue: usize, address: u64, token: u32) {
        if self.memories[queue].bus_write_u32(address, token).is_err() {
            self.complain(format!(
                "R11: a token at bus address {address:#x}, outside the memory of queue pair {queue}"
            ));
        }
    }
}

impl FrontEnd {
    fn new(threads: u32) -> Self {
        let zero = || AtomicU32::new(0);
        Self {
            running: RunningTable::default(),
            config: Mutex::default(),
            free_places: (0..PLACES).map(|_| zero()).collect(),
            places_taken: zero(),
            places_given: zero(),
            sq_tail: zero(),
            cq_head: zero(),
            wanted: zero(),
            stopping: zero(),
            claimed: zero(),
            admitted: zero(),
            outstanding: zero(),
            fetchers: zero(),
            waits_for: zero(),
            asks: zero(),
            asked: zero(),
            posted: AtomicU64::new(0),
            counters: Default::default(),
            barrier: Barrier { threads, arrived: zero(), passed: zero() },
        }
    }

    /// A session with these registers begins; the threads of the block are between two barriers.
    pub fn reset(&self, config: &SessionRegisters, fetchers: usize, pace: &Pace<'_>) {
        let set = |word: &AtomicU32, value| word.store(value, Ordering::Relaxed);
        self.running.clear();
        for k in 0..PLACES - 1 {
            set(self.free_place(FIRST_PLACE_COUNT.wrapping_add(k), pace), k);
        }
        set(&self.places_taken, FIRST_PLACE_COUNT);
        set(&self.places_given, FIRST_PLACE_COUNT);
        for word in [&self.outstanding, &self.waits_for, &self.asks, &self.stopping] {
            set(word, 0);
        }
        // Older than any of the session.
        set(&self.asked, config.cq_start.wrapping_sub(1));
        set(&self.fetchers, fetchers as u32);
        for word in [&self.sq_tail, &self.claimed, &self.admitted] {
            set(word, config.sq_start);
        }
        set(&self.cq_head, config.cq_start);
        self.posted.store(u64::from(config.sq_start) << 32 | u64::from(config.cq_start), Ordering::Relaxed);
        for counter in &self.counters {
            counter.store(0, Ordering::Relaxed);
        }
    }

    /// The slot of the ring from which the place with this number is taken. All places but one fill it up to the slot
    /// before the one that the first given back goes to.
    pub fn free_place(&self, count: u32, pace: &Pace<'_>) -> &AtomicU32 {
        let slots = if pace.has(Fault::WrapsPlaces) { PLACES - 1 } else { PLACES };
        &self.free_places[(count % slots) as usize]
    }

    pub fn count(&self, counter: Counter, amount: u64) {
        self.counters[counter as usize].fetch_add(amount, Ordering::Relaxed);
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed) != 0
    }
}

/// `__syncthreads`.
#[derive(Debug)]
pub(super) struct Barrier {
    threads: u32,
    arrived: AtomicU32,
    passed: AtomicU32,
}

impl Barrier {
    pub fn wait(&self, pace: &Pace<'_>) {
        let passed = self.passed.load(Ordering::Relaxed);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.threads {
            self.arrived.store(0, Ordering::Relaxed);
            self.passed.store(passed.wrapping_add(1), Ordering::Release);
            return;
        }
        let mut spins = 0;
        while self.passed.load(Ordering::Acquire) == passed {
            pace.relax(&mut spins);
        }
    }
}
