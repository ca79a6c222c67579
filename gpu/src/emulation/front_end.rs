//! The front end of one queue pair, `kernels/front_end.cuh`: threads that fetch descriptors, admit them in order, post
//! completions, and listen to the host.

use std::slice;
use std::sync::PoisonError;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::fence;
use std::time::{Duration, Instant};

use bytemuck::cast;
use doorbell_contract::{Counter, DescFlags, HwCompletion, HwDesc, Opcode, Status};
use doorbell_host::SharedMemory;
use doorbell_host::queue::{COMPLETION_WORDS, DESC_WORDS, Depth};

use super::descriptor::{Kind, Order, has, lines_of, period};
use super::fault::Fault;
use super::pace::Pace;
use super::state::{BATCH, FrontEnd, PLACES, Place, QueueState, Shared, WORK_SLOTS};
use crate::mailbox::{EXIT, KernelSide, News, SessionRegisters, Status as Told, Wait};

/// How long the completion role waits for what workers still hold when a session ends (R12, R15).
const PATIENCE: Duration = Duration::from_secs(2);

/// What a role of the block sees.
struct Block<'a, 'p> {
    f: &'a FrontEnd,
    shared: &'a Shared,
    queue: usize,
    mailbox: &'a KernelSide,
    state: &'a QueueState,
    memory: &'a SharedMemory,
    pace: &'a mut Pace<'p>,
    session: u32,
    started: Instant,
    config: SessionRegisters,
}

/// What whoever has the turn has to know.
#[derive(Clone, Copy)]
struct Turn {
    admitted: u32,
    /// No rollout is at a worker.
    is_idle: bool,
    cq_tail: u32,
    /// Slots of the completion queue that the host has released (R4).
    room: u32,
}

/// A reserved part of the completion queue.
#[derive(Clone, Copy)]
struct Reservation {
    count: u32,
    first: u32,
    sq_head: u32,
}

// ---------------------------------------------------------------- the block

/// Sessions, one after the other, until the host wants no more.
fn sessions<'a, 'p>(
    shared: &'a Shared,
    queue: usize,
    pace: &'a mut Pace<'p>,
    is_control: bool,
    mut role: impl FnMut(&mut Block<'a, 'p>, &mut u32),
) {
    let f = &shared.front_ends[queue];
    let mut block = Block {
        f,
        shared,
        queue,
        mailbox: &shared.mailboxes[queue],
        state: &shared.queues[queue],
        memory: &shared.memories[queue],
        pace,
        session: 0,
        started: Instant::now(),
        config: SessionRegisters::default(),
    };
    let mut heartbeat = 0;
    loop {
        // Only the control role listens; the others rest at the barrier.
        if is_control {
            block.await_request(&mut heartbeat);
        }
        f.barrier.wait(block.pace);
        block.session = f.wanted.load(Relaxed);
        if block.session % 2 == 1 {
            block.config = *f.config.lock().unwrap_or_else(PoisonError::into_inner);
            if is_control {
                f.reset(&block.config, shared.options.fetchers + 1, block.pace);
                for counter in block.state.counters.all() {
                    counter.store(0, Relaxed);
                }
            }
            f.barrier.wait(block.pace);
            role(&mut block, &mut heartbeat);
            // R12: behind this barrier, and the acknowledgement, nothing of the session writes memory.
            f.barrier.wait(block.pace);
            if is_control {
                block.publish(heartbeat);
            }
        } else {
            if is_control {
                block.mailbox.reach(block.session);
            }
            f.barrier.wait(block.pace);
        }
        if block.session == EXIT {
            if is_control {
                shared.exited.fetch_add(1, Relaxed);
            }
            return;
        }
    }
}

/// What ends on the spot.
fn instants(orders: &[Order]) -> impl Iterator<Item = &Order> {
    orders.iter().filter(|order| !order.is_long())
}

/// The same, with the index of each completion.
fn indexed(orders: &[Order], reservation: Reservation) -> impl Iterator<Item = (&Order, u32)> {
    instants(orders).zip((0..).map(move |rank| reservation.first.wrapping_add(rank)))
}

/// Role: control.
pub(super) fn control(shared: &Shared, queue: usize, pace: &mut Pace<'_>) {
    sessions(shared, queue, pace, true, |block, heartbeat| block.control(heartbeat));
}

/// Role: completion.
pub(super) fn completion(shared: &Shared, queue: usize, pace: &mut Pace<'_>) {
    let mut next = 0;
    sessions(shared, queue, pace, false, |block, _| next = block.completion(next));
}

/// Role: fetch.
pub(super) fn fetch(shared: &Shared, queue: usize, pace: &mut Pace<'_>) {
    sessions(shared, queue, pace, false, |block, _| {
        block.fetch_until_stopped();
        block.f.fetchers.fetch_sub(1, AcqRel);
    });
}

/// Role: scout.
pub(super) fn scout(shared: &Shared, queue: usize, pace: &mut Pace<'_>) {
    sessions(shared, queue, pace, false, |block, _| {
        block.scout_until_stopped();
        block.f.fetchers.fetch_sub(1, AcqRel);
    });
}

// ---------------------------------------------------------------- completions

impl Block<'_, '_> {
    /// Reserves up to `wanted` slots of the completion queue, all or none unless `some` will do.
    fn reserve(&mut self, wanted: u32, some: bool, advance_sq_head_to: Option<u32>) -> Reservation {
        let f = self.f;
        let mut old = f.posted.load(Relaxed);
        loop {
            let tail = old as u32;
            let sq_head = advance_sq_head_to.unwrap_or((old >> 32) as u32);
            // R4: never beyond what the host has released.
            let mut room = self.config.cq_size.wrapping_sub(tail.wrapping_sub(f.cq_head.load(Acquire)));
            if self.pace.has(Fault::ReservesBlindly) {
                room = wanted;
            }
            let count = wanted.min(room);
            if count < wanted && !some {
                return Reservation { count: 0, first: tail, sq_head };
            }
            let next = u64::from(sq_head) << 32 | u64::from(tail.wrapping_add(count));
            self.pace.step();
            match f.posted.compare_exchange(old, next, AcqRel, Acquire) {
                Ok(_) => return Reservation { count, first: tail, sq_head },
                Err(seen) => old = seen,
            }
        }
    }

    /// Writes a completion in two halves, in any order, with a pause now and then: the host tells by its mark (R4).
    fn write_completion(&mut self, completion: HwCompletion, index: u32, sq_head: u32) {
        let (offset, slots) =
            (self.config.cq_base.wrapping_sub(self.memory.bus_address()), self.config.cq_size);
        let placed = Depth::new("cq_size", slots).and_then(|depth| {
            let slot = 8 * COMPLETION_WORDS as u64 * u64::from(depth.slot(index));
            let words: [u64; COMPLETION_WORDS] =
                cast(HwCompletion { sq_head, phase: depth.phase(index), ..completion });
            let word = |k: u64| self.memory.word64((offset + slot + 8 * k) as usize);
            Ok((words, [word(0)?, word(1)?, word(2)?, word(3)?]))
        });
        let (words, at) = match placed {
            Ok(placed) => placed,
            Err(error) => return self.shared.complain(format!("R11: completion {index:#x}: {error}")),
        };
        let second_first = self.pace.below(2) == 0;
        for half in if second_first { [1, 0] } else { [0, 1] } {
            if half == 0 {
                at[0].store(words[0], Relaxed);
                self.pace.step();
                at[1].store(words[1], Relaxed);
            } else if self.pace.has(Fault::TearsHalves) {
                at[3].store(words[3], Release);
                self.pace.window(Fault::TearsHalves);
                at[2].store(words[2], Relaxed);
            } else {
                // The GPU writes both words at once; here the release keeps the phase behind the other.
                at[2].store(words[2], Relaxed);
                at[3].store(words[3], Release);
            }
            if self.pace.below(16) == 0 {
                self.pace.delay();
            }
            self.pace.step();
        }
    }

    /// R14: notes that the completion with this index asked for an interrupt.
    fn note_ask(&mut self, index: u32) {
        let f = self.f;
        let mut newest = f.asked.load(Relaxed);
        // All that may be noted at a time lie within one queue's length.
        while newest.wrapping_sub(index).wrapping_sub(1) >= self.config.cq_size {
            self.pace.step();
            match f.asked.compare_exchange(newest, index, AcqRel, Acquire) {
                Ok(_) => break,
                Err(seen) => newest = seen,
            }
        }
        f.asks.fetch_add(1, AcqRel);
    }

    // ---------------------------------------------------------------- admission

    /// What the turn finds. In this order: once it is the caller's nobody enters a rollout, and once none runs the
    /// completion role posts nothing, so that `posted` stays as it is.
    fn look(&mut self) -> Turn {
        let f = self.f;
        let admitted = f.admitted.load(Acquire);
        let too_early = f.posted.load(Relaxed) as u32;
        self.pace.window(Fault::ReadsTailEarly);
        self.pace.step();
        let is_idle = f.running.is_empty();
        self.pace.step();
        let cq_tail =
            if self.pace.has(Fault::ReadsTailEarly) { too_early } else { f.posted.load(Relaxed) as u32 };
        self.pace.step();
        let used = cq_tail.wrapping_sub(f.cq_head.load(Acquire));
        let is_blind = self.pace.has(Fault::ReservesBlindly);
        let room = if is_blind { u32::MAX } else { self.config.cq_size.wrapping_sub(used) };
        Turn { admitted, is_idle, cq_tail, room }
    }

    /// Takes the next slots of the completion queue. Only while nothing runs: else the completion role takes some too.
    fn post(&mut self, turn: Turn, consumed_to: u32, count: u32) -> Reservation {
        let f = self.f;
        // Counted before, so that nobody sees a completion without its descriptor.
        f.outstanding.fetch_add(count, AcqRel);
        self.pace.step();
        f.posted.store(u64::from(consumed_to) << 32 | u64::from(turn.cq_tail.wrapping_add(count)), Relaxed);
        Reservation { count, first: turn.cq_tail, sq_head: consumed_to }
    }

    /// Writes the tokens of the short DECODEs, in the order of their descriptors (R5).
    fn write_brief_tokens(&mut self, orders: &[Order]) {
        for order in orders.iter().filter(|order| order.kind == Kind::Brief) {
            for (k, &token) in (0..order.outcome.added).zip(&order.tokens) {
                let address = self.config.token_base + order.desc.delta_offset + 4 * u64::from(k);
                self.shared.write_token(self.queue, address, token);
            }
        }
    }

    /// Admits the orders if there are places, table entries and completion slots for all of them; else changes nothing
    /// and says what was missing. The caller has the turn, and the descriptors may start in any order.
    fn admit(&mut self, orders: &mut [Order], consumed_to: u32) -> Result<Reservation, Wait> {
        let f = self.f;
        let longs = orders.iter().filter(|order| order.is_long()).count() as u32;
        let instants = orders.len() as u32 - longs;
        let taken = f.places_taken.load(Relaxed);
        if longs != 0 {
            // The last place is never given out: see RunningTable.
            let limit = match self.config.workers {
                0 => PLACES - 1,
                workers => workers.min(PLACES - 1),
            };
            let in_use = taken.wrapping_sub(f.places_given.load(Acquire));
            if in_use + longs > limit {
                return Err(Wait::Worker);
            }
            let mut rank = 0;
            for k in 0..orders.len() {
                if !orders[k].is_long() {
                    continue;
                }
                let place = f.free_place(taken.wrapping_add(rank), self.pace).load(Relaxed);
                orders[k].place = place;
                self.pace.step();
                if !f.running.enter(orders[k].desc.rollout_id, place) {
                    self.leave(&orders[..k]);
                    return Err(Wait::Worker);
                }
                if !self.pace.has(Fault::ForgetsStop) {
                    self.place(place).stop.store(0, Relaxed);
                }
                rank += 1;
            }
        }
        // Counted before the reservation, so that nobody sees a completion without its descriptor.
        f.outstanding.fetch_add(orders.len() as u32, AcqRel);
        self.pace.step();
        let reservation = self.reserve(instants, false, Some(consumed_to));
        if instants != 0 && reservation.count == 0 {
            f.outstanding.fetch_sub(orders.len() as u32, AcqRel);
            self.leave(orders);
            return Err(Wait::CompletionSlot);
        }
        f.places_taken.store(taken.wrapping_add(longs), Relaxed);
        if !self.pace.has(Fault::PostsBeforeTokens) {
            self.write_brief_tokens(orders);
        }
        Ok(reservation)
    }

    /// Takes back what an admission that failed has entered.
    fn leave(&self, orders: &[Order]) {
        for order in orders.iter().filter(|order| order.is_long()) {
            self.f.running.leave(order.desc.rollout_id);
        }
    }

    fn place(&self, index: u32) -> &Place {
        &self.state.places[index as usize]
    }

    /// Hands the long DECODEs to the workers and posts the completions of the others.
    fn finish(&mut self, orders: &[Order], reservation: Reservation) {
        let longs = orders.iter().filter(|order| order.is_long());
        let mut ticket = self.shared.work_tail.fetch_add(longs.clone().count() as u32, Relaxed);
        for order in longs {
            self.pace.step();
            self.pace.window(Fault::ForgetsStop);
            self.hand_over(order, ticket);
            ticket = ticket.wrapping_add(1);
        }

        if reservation.count != 0 {
            self.complete(orders, reservation);
            self.account(orders, reservation);
        }
    }

    /// Posts the completions of what ends on the spot.
    fn complete(&mut self, orders: &[Order], reservation: Reservation) {
        // The tokens of all before the completions of any.
        if instants(orders).any(|order| order.kind == Kind::Brief) {
            fence(AcqRel);
        }
        for (order, index) in indexed(orders, reservation) {
            self.write_completion(order.outcome.completion(&order.desc), index, reservation.sq_head);
        }
        if self.pace.has(Fault::PostsBeforeTokens) {
            self.pace.window(Fault::PostsBeforeTokens);
            self.write_brief_tokens(orders);
        }
    }

    /// Counts completions, and what they tell beside themselves. It is called behind them: what is counted has completed
    /// (R7).
    fn account(&mut self, orders: &[Order], reservation: Reservation) {
        let f = self.f;
        let mut asking = None;
        for (order, index) in indexed(orders, reservation) {
            let failed = order.outcome.status == Status::Error;
            if failed || has(&order.desc, DescFlags::INTERRUPT) {
                asking = Some(index);
            }
            if failed {
                f.count(Counter::Errors, 1);
            } else if order.desc.opcode == Opcode::Prefill as u8 {
                f.count(Counter::Prefixes, 1);
            }
            if order.kind == Kind::Brief {
                let added = order.outcome.added;
                f.count(Counter::Tokens, added.into());
                f.count(Counter::WriteBeats, lines_of(order.desc.delta_offset, added));
            }
        }
        let count = reservation.count;
        f.count(Counter::Completions, count.into());
        f.count(Counter::WriteBeats, count.into());
        if let Some(index) = asking {
            self.note_ask(index);
        }
        self.pace.step();
        f.outstanding.fetch_sub(count, AcqRel);
    }

    /// Fills the place of a long DECODE and hands it to the workers.
    fn hand_over(&self, order: &Order, ticket: u32) {
        let Order { desc, place: index, .. } = order;
        let (place, config) = (self.place(*index), &self.config);
        let period = period(desc.checkpoint, config.checkpoint_default);
        for (word, value) in [
            (&place.rollout_id, desc.rollout_id),
            (&place.seed, desc.seed),
            (&place.seq_len, desc.seq_len),
            (&place.max_tokens, desc.max_tokens),
            (&place.period, period),
            (&place.flags, desc.flags.into()),
            (&place.reward_model_id, desc.reward_model_id.into()),
            (&place.eos_threshold, config.eos_threshold),
            (&place.wait_states, config.wait_states),
            (&place.reward_threshold, config.reward_threshold),
            (&place.session, self.session),
        ] {
            word.store(value, Relaxed);
        }
        if self.pace.has(Fault::ForgetsStop) {
            place.stop.store(0, Relaxed);
        }
        place.user_data.store(desc.user_data, Relaxed);
        place.tokens.store(config.token_base + desc.delta_offset, Relaxed);
        let entry = u64::from(ticket.wrapping_add(1)) << 32 | (self.queue as u64) << 16 | u64::from(*index);
        self.shared.work[(ticket % WORK_SLOTS) as usize].store(entry, Release);
    }

    // ---------------------------------------------------------------- fetch

    /// The descriptor in the slot of `index`, in whatever state: it verifies itself (R2).
    fn read_slot(&self, index: u32) -> HwDesc {
        let offset = self.config.sq_base.wrapping_sub(self.memory.bus_address()) as usize;
        match self.memory.slots::<DESC_WORDS>(offset, self.config.sq_size) {
            Ok(slots) => cast::<[u64; DESC_WORDS], HwDesc>(std::array::from_fn(|k| slots.word(index, k))),
            Err(error) => {
                self.shared.complain(format!("R11: descriptor {index:#x}: {error}"));
                HwDesc::default()
            }
        }
    }

    /// Takes the slots from `first` on; false if another thread was faster.
    fn claim(&mut self, first: u32, count: u32) -> bool {
        self.pace.step();
        self.f.claimed.compare_exchange(first, first.wrapping_add(count), AcqRel, Acquire).is_ok()
    }

    fn is_quiet(&self) -> bool {
        self.f.outstanding.load(Acquire) == 0 || self.pace.has(Fault::PassesFences)
    }

    /// Waits until `done`, noting for what and for how long; `None` if the session ends first.
    fn wait<T>(&mut self, waits_for: Wait, mut done: impl FnMut(&mut Self) -> Option<T>) -> Option<T> {
        if let Some(met) = done(self) {
            return Some(met);
        }
        let f = self.f;
        f.waits_for.store(waits_for as u32, Release);
        let counter = match waits_for {
            Wait::CompletionSlot => Counter::StallCq,
            Wait::Fence => Counter::StallFence,
            _ => Counter::StallOrder,
        };
        let late = self.pace.has(Fault::CountsStallsLate);
        let (mut since, mut spins) = (Instant::now(), 0);
        let met = loop {
            let met = done(self);
            let is_over = met.is_some() || f.is_stopping();
            if is_over || !late {
                f.count(counter, since.elapsed().as_nanos() as u64);
                since = Instant::now();
            }
            if is_over {
                break met;
            }
            self.pace.relax(&mut spins);
        };
        f.waits_for.store(Wait::Nothing as u32, Release);
        met
    }

    /// Admits the orders one by one, each once its rules allow it. `None` if the session ends first.
    fn admit_one_by_one(&mut self, orders: &mut [Order], consumed_to: u32) -> Option<()> {
        for order in orders {
            let rollout = order.desc.rollout_id;
            // R7: all earlier ones have completed.
            if order.is_fence {
                self.wait(Wait::Fence, |block| block.is_quiet().then_some(()))?;
            }
            // R8: the rollout ends at the next token boundary that its worker comes to.
            let is_stop = order.kind == Kind::Stop;
            if is_stop && let Some(place) = self.f.running.find(rollout) {
                self.place(place).stop.store(1, Relaxed);
            }
            // R5: one descriptor of a rollout at a time, in order.
            let waits_for = if is_stop { Wait::Stop } else { Wait::Rollout };
            self.wait(waits_for, |block| block.f.running.find(rollout).is_none().then_some(()))?;
            let order = slice::from_mut(order);
            let reservation = match self.admit(order, consumed_to) {
                Ok(reservation) => reservation,
                Err(missing) => self.wait(missing, |block| block.admit(order, consumed_to).ok())?,
            };
            self.finish(order, reservation);
            // R7: and none later starts before it has. R5: one worker completes in order.
            if order[0].is_fence || order[0].is_long() && self.config.workers == 1 {
                self.wait(Wait::Fence, |block| block.is_quiet().then_some(()))?;
            }
        }
        Some(())
    }

    /// Executes the descriptors from `first` on. `None` if the session ends first.
    fn execute(&mut self, first: u32, descs: &[HwDesc]) -> Option<()> {
        let f = self.f;
        let config = self.config;
        let indices = (0..).map(|k| first.wrapping_add(k));
        let orders: Vec<Order> =
            descs.iter().zip(indices).map(|(&desc, index)| Order::new(desc, index, &config)).collect();
        let usual = orders.iter().all(Order::is_usual);
        let count = orders.len() as u32;

        self.pace.window(Fault::ScoutsOutOfTurn);
        let mut turn = self.look();
        let mut spins = 0;
        while turn.admitted != first && !self.pace.has(Fault::AdmitsOutOfTurn) {
            if f.is_stopping() {
                return None;
            }
            self.pace.relax(&mut spins);
            turn = self.look();
        }
        if first.is_multiple_of(2) {
            self.pace.window(Fault::AdmitsOutOfTurn);
        }
        if !usual || !turn.is_idle || turn.room < count {
            return self.execute_in_general(first, orders);
        }
        let consumed_to = first.wrapping_add(count);
        let reservation = self.post(turn, consumed_to, count);
        if !self.pace.has(Fault::PostsBeforeTokens) {
            self.write_brief_tokens(&orders);
        }
        // The turn passes on; what is left needs no order.
        f.admitted.store(consumed_to, Release);
        self.pace.step();
        self.finish(&orders, reservation);
        f.count(Counter::Descriptors, count.into());
        Some(())
    }

    /// The same with all that may come; the caller has the turn.
    fn execute_in_general(&mut self, first: u32, mut orders: Vec<Order>) -> Option<()> {
        let f = self.f;
        // What needs to be taken one by one: what waits for others, or makes them wait.
        let held = (0..orders.len()).any(|k| {
            let order = &orders[k];
            let mut earlier = orders[..k].iter();
            order.is_fence
                || order.kind == Kind::Stop
                || order.is_long() && self.config.workers == 1
                || earlier.any(|other| other.is_long() && other.desc.rollout_id == order.desc.rollout_id)
                || f.running.find(order.desc.rollout_id).is_some()
        });
        let consumed_to = first.wrapping_add(orders.len() as u32);
        f.count(Counter::Descriptors, orders.len() as u64);
        let admitted = if held { None } else { self.admit(&mut orders, consumed_to).ok() };
        let Some(reservation) = admitted else {
            self.admit_one_by_one(&mut orders, consumed_to)?;
            f.admitted.store(consumed_to, Release);
            return Some(());
        };
        f.admitted.store(consumed_to, Release);
        self.pace.step();
        self.finish(&orders, reservation);
        Some(())
    }

    fn fetch_until_stopped(&mut self) -> Option<()> {
        let f = self.f;
        let mut spins = 0;
        while !f.is_stopping() {
            let first = f.claimed.load(Acquire);
            let known = f.sq_tail.load(Acquire).wrapping_sub(first);
            // The check words may have published more than the doorbell has told yet. One alone is left to the scout.
            if !(2..=self.config.sq_size).contains(&known) {
                self.pace.relax(&mut spins);
                continue;
            }
            let count = known.min(BATCH);
            if !self.claim(first, count) {
                continue;
            }
            self.pace.step();
            let descs: Vec<HwDesc> = (0..count).map(|k| self.read_slot(first.wrapping_add(k))).collect();
            self.execute(first, &descs)?;
            spins = 0;
        }
        Some(())
    }

    /// Polls the slot at the head of the queue for as long as the doorbell tells of no more than that one, and executes
    /// what its check word publishes (R1).
    fn scout_until_stopped(&mut self) -> Option<()> {
        let f = self.f;
        let mut spins = 0;
        while !f.is_stopping() {
            let index = f.claimed.load(Acquire);
            let known = f.sq_tail.load(Acquire).wrapping_sub(index);
            if (2..=self.config.sq_size).contains(&known) {
                self.pace.relax(&mut spins);
                continue;
            }
            // What the turn will find is looked at while the read is under way, so that either may be first. It stays so
            // unless somebody else claims `index`.
            let (desc, turn) = if self.pace.below(2) == 0 {
                let turn = self.look();
                (self.read_slot(index), turn)
            } else {
                (self.read_slot(index), self.look())
            };
            // What the doorbell had told of was there to be read: if it does not verify now, it never will (R2).
            if !desc.verify(index) && (known != 1 || self.pace.has(Fault::LeavesBadSlots)) {
                self.pace.relax(&mut spins);
                continue;
            }
            self.pace.step();
            self.pace.window(Fault::ScoutsBlindly);
            let next = index.wrapping_add(1);
            let claimed = f.claimed.compare_exchange(index, next, Relaxed, Relaxed).is_ok();
            if claimed || self.pace.has(Fault::ScoutsBlindly) {
                self.execute_find(index, desc, turn)?;
            }
            spins = 0;
        }
        Some(())
    }

    /// Executes what the scout has claimed: at once if the queue was quiet when it looked.
    fn execute_find(&mut self, index: u32, desc: HwDesc, turn: Turn) -> Option<()> {
        let f = self.f;
        let order = Order::new(desc, index, &self.config);
        let quiet = turn.admitted == index && turn.is_idle || self.pace.has(Fault::ScoutsOutOfTurn);
        if !quiet || turn.room == 0 || !order.is_usual() {
            let mut spins = 0;
            while f.admitted.load(Acquire) != index {
                if f.is_stopping() {
                    return None;
                }
                self.pace.relax(&mut spins);
            }
            return self.execute_in_general(index, vec![order]);
        }
        let (consumed_to, orders) = (index.wrapping_add(1), slice::from_ref(&order));
        let reservation = self.post(turn, consumed_to, 1);
        if !self.pace.has(Fault::PostsBeforeTokens) {
            self.write_brief_tokens(orders);
        }
        self.complete(orders, reservation);
        f.admitted.store(consumed_to, Release);
        self.pace.step();
        self.account(orders, reservation);
        f.count(Counter::Descriptors, 1);
        Some(())
    }

    // ---------------------------------------------------------------- completion role

    /// Posts what the workers have finished, in the order in which they did. `next` is the ticket to come; returns the
    /// next one when the session has ended and every worker has let go of it.
    fn completion(&mut self, mut next: u32) -> u32 {
        let f = self.f;
        let (mut spins, mut ended): (u32, Option<Instant>) = (0, None);
        loop {
            let done = (0..PLACES).map(|k| next.wrapping_add(k)).map_while(|ticket| {
                let entry = self.state.done[(ticket % PLACES) as usize].load(Acquire);
                ((entry >> 32) as u32 == ticket.wrapping_add(1)).then_some(entry as u32)
            });
            let mut places: Vec<u32> = done.collect();
            let ending = f.is_stopping();
            if places.is_empty() {
                // Once the fetch threads have ended nothing more is taken, and each place taken comes back.
                if ending && f.fetchers.load(Acquire) == 0 {
                    if f.places_taken.load(Relaxed) == f.places_given.load(Relaxed) {
                        return next;
                    }
                    if ended.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                        self.shared
                            .complain("R12: workers did not let go of a session that has ended".to_owned());
                        return next;
                    }
                }
                self.pace.relax(&mut spins);
                continue;
            }
            if self.pace.has(Fault::LeavesEarly) {
                places.iter().for_each(|&place| f.running.leave(self.place(place).rollout_id.load(Relaxed)));
                self.pace.window(Fault::LeavesEarly);
            }
            let mut reservation = Reservation { count: places.len() as u32, first: 0, sq_head: 0 };
            if !ending {
                reservation = self.reserve(reservation.count, true, None);
                if reservation.count == 0 {
                    // R4: the host has to release a slot first.
                    f.count(Counter::StallCq, 1);
                    f.waits_for.store(Wait::CompletionSlot as u32, Release);
                    self.pace.relax(&mut spins);
                    continue;
                }
                places.truncate(reservation.count as usize);
            }
            spins = 0;
            let count = reservation.count;
            let mut asking = None;
            if !ending {
                // The workers' tokens, seen through their release and this thread's acquire, before the completions.
                fence(AcqRel);
                for (&index, rank) in places.iter().zip(0..) {
                    let place = self.place(index);
                    let words: [u64; COMPLETION_WORDS] =
                        std::array::from_fn(|k| place.result[k].load(Relaxed));
                    let cq_index = reservation.first.wrapping_add(rank);
                    if place.flags.load(Relaxed) & u32::from(DescFlags::INTERRUPT.bits()) != 0 {
                        asking = Some(cq_index);
                    }
                    self.write_completion(cast(words), cq_index, reservation.sq_head);
                }
            }
            // R5: from here on another descriptor of the rollout may start.
            let given = f.places_given.load(Relaxed);
            for (&index, rank) in places.iter().zip(0..) {
                let rollout = self.place(index).rollout_id.load(Relaxed);
                self.pace.step();
                if !self.pace.has(Fault::StaysInTable) {
                    f.running.leave(rollout);
                }
                let number = given.wrapping_add(PLACES - 1).wrapping_add(rank);
                f.free_place(number, self.pace).store(index, Relaxed);
            }
            if !ending {
                f.count(Counter::Completions, count.into());
                f.count(Counter::WriteBeats, count.into());
            }
            if let Some(index) = asking {
                self.note_ask(index);
            }
            self.pace.step();
            f.places_given.store(given.wrapping_add(count), Release);
            f.outstanding.fetch_sub(count, AcqRel);
            next = next.wrapping_add(count);
        }
    }

    // ---------------------------------------------------------------- control role

    /// Waits until the host wants another session, or none.
    fn await_request(&mut self, heartbeat: &mut u32) {
        let mut spins = 0;
        let wanted = loop {
            let wanted = self.mailbox.host().wanted;
            if wanted != self.session {
                break wanted;
            }
            *heartbeat = heartbeat.wrapping_add(1);
            self.mailbox.beat(*heartbeat);
            self.pace.relax(&mut spins);
        };
        self.f.wanted.store(wanted, Relaxed);
        if wanted % 2 == 1 {
            *self.f.config.lock().unwrap_or_else(PoisonError::into_inner) = self.mailbox.session();
        }
    }

    /// Tells the host how far the session is.
    fn publish(&mut self, heartbeat: u32) {
        let (f, workers) = (self.f, &self.state.counters);
        // What is consumed by then is outstanding or has completed by now; and likewise for who asked.
        let sq_head = f.admitted.load(Acquire);
        let outstanding = f.outstanding.load(Acquire);
        self.pace.step();
        let asks = f.asks.load(Acquire);
        let asked = f.asked.load(Relaxed);
        let mut counters = [0; Counter::ALL.len()];
        for counter in Counter::ALL {
            let own = f.counters[counter as usize].load(Relaxed);
            counters[counter as usize] = match counter {
                Counter::Cycles => self.started.elapsed().as_nanos() as u64,
                Counter::Tokens => own + workers.tokens.load(Relaxed),
                Counter::Busy => workers.busy.load(Relaxed),
                Counter::Wait => workers.wait.load(Relaxed),
                Counter::ReadBeats => f.counters[Counter::Descriptors as usize].load(Relaxed),
                Counter::WriteBeats => own + workers.lines.load(Relaxed),
                _ => own,
            };
        }
        let cq_tail = f.posted.load(Relaxed) as u32;
        let status = Told { sq_head, cq_tail, outstanding, asks, asked };
        self.mailbox.tell(&News { status, waits_for: f.waits_for.load(Relaxed), heartbeat, counters });
    }

    /// Listens to the host until it wants another session, or none.
    fn control(&mut self, heartbeat: &mut u32) {
        let f = self.f;
        self.started = Instant::now();
        self.publish(*heartbeat);
        self.mailbox.reach(self.session);
        let (mut published, mut spins) = (0, 0);
        loop {
            let host = self.mailbox.host();
            if host.wanted != self.session {
                break;
            }
            f.sq_tail.store(host.sq_tail, Release);
            f.cq_head.store(host.cq_head, Release);
            self.pace.step();
            *heartbeat = heartbeat.wrapping_add(1);
            // What has changed is told every few rounds; that nothing has, now and then.
            if heartbeat.is_multiple_of(4) {
                let news = f
                    .posted
                    .load(Relaxed)
                    .wrapping_add(f.outstanding.load(Relaxed).into())
                    .wrapping_add(self.state.counters.tokens.load(Relaxed))
                    .wrapping_add(f.counters[Counter::Completions as usize].load(Relaxed));
                if news != published || heartbeat.is_multiple_of(16) {
                    spins = if news == published { spins } else { 0 };
                    published = news;
                    self.publish(*heartbeat);
                }
            }
            self.pace.relax(&mut spins);
        }
        if self.pace.has(Fault::AcknowledgesEarly) {
            self.mailbox.reach(self.mailbox.host().wanted);
            // Long enough for the host to look at all of its memory twice.
            (0..20).for_each(|_| self.pace.window(Fault::AcknowledgesEarly));
        }
        self.state.abandon.store(self.session, Relaxed);
        f.stopping.store(1, Release);
    }
}
