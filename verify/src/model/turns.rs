//! Turns of several queue pairs (R16).

use super::STEP_TOKENS;
use super::bus::Bus;
use super::execution::{Execution, Lane, Tables};
use super::mutation::Mutator;
use doorbell_contract::QueueCounter;
use doorbell_host::registers::Registers;

/// Whose turn it is, and how many steps are left of it.
#[derive(Debug)]
pub(super) struct Turn {
    pub(super) queue: u8,
    pub(super) steps: u32,
}

/// A model of several queue pairs while it has time.
pub(super) struct Turns<'a> {
    pub(super) bus: &'a Bus,
    pub(super) registers: &'a mut Registers,
    pub(super) lanes: &'a mut [Lane],
    pub(super) tables: &'a mut Tables,
    pub(super) turn: &'a mut Turn,
    pub(super) mutator: &'a mut Option<Mutator>,
}

impl Turns<'_> {
    pub(super) fn run(&mut self, want: usize, of: Option<u8>, mut budget: u32) {
        let mut posted = 0;
        while budget > 0 && posted < want && !self.mutator.as_ref().is_some_and(Mutator::hangs) {
            let Some(queue) = self.next_turn() else { break };
            let counts = of.is_none_or(|of| of == queue);
            let lane = &mut self.lanes[usize::from(queue)];
            let Self { bus, registers, tables, mutator, turn, .. } = self;
            bus.serve(registers, queue);
            let mut execution = Execution { bus, registers, queue, lane, tables, mutator };
            let was_running = execution.lane.running.is_some();
            let steps = turn.steps as usize;
            let most = if counts { steps.min(want - posted) } else { steps };
            let (completed, rest) = execution.run_plain::<true>(most, &mut budget);
            posted += if counts { completed } else { 0 };
            turn.steps -= completed as u32;
            if let Some(outcome) = rest {
                turn.steps -= 1;
                let interrupts = execution.post(outcome);
                posted += usize::from(counts);
                if interrupts {
                    break;
                }
                continue;
            }
            // What goes on in a later step has had one, too.
            let goes_on = !was_running && execution.lane.running.is_some();
            turn.steps -= u32::from(goes_on || completed == 0);
            if goes_on || completed > 0 {
                continue;
            }
            // A descriptor costs as much as a token, in the slice and not in the step.
            let tokens = STEP_TOKENS.min(budget);
            let most = if execution.lane.running.is_some() { tokens } else { tokens + 1 };
            let mut step = most;
            let stop_waits = execution.stop_waits();
            if let Some(outcome) = execution.step(&mut step, stop_waits) {
                let interrupts = execution.post(outcome);
                posted += usize::from(counts);
                if interrupts {
                    break;
                }
            }
            budget = budget.saturating_sub(most - step);
        }
        // R4: the heads of these wait for a slot alone.
        for (queue, lane) in (0..).zip(&*self.lanes) {
            let session = &self.registers.queue(queue).session;
            let waits = session.as_ref().is_some_and(|session| session.sq.fill() > 0 && session.cq.is_full());
            if waits && lane.running.is_none() {
                self.registers.count_of(queue, QueueCounter::StallCq, 1);
            }
        }
    }

    /// The queue pair that has the next step: the one whose turn it is, as long as it has steps left and can use them, else
    /// the next one that can, in circular order. One that cannot loses the rest of its turn.
    fn next_turn(&mut self) -> Option<u8> {
        if self.turn.steps > 0 && self.weight(self.turn.queue).is_some() {
            return Some(self.turn.queue);
        }
        self.turn.steps = 0;
        let count = self.lanes.len() as u8;
        let behind = (1..=count).map(|k| (self.turn.queue + k) % count);
        let (queue, steps) = behind.filter_map(|queue| Some((queue, self.weight(queue)?))).next()?;
        *self.turn = Turn { queue, steps };
        Some(queue)
    }

    /// The weight of a queue pair that can use a step: it awaits no answer, and a descriptor runs, its slot reserved (R4), or one is published and a
    /// slot is free.
    fn weight(&self, queue: u8) -> Option<u32> {
        let registers = self.registers.queue(queue);
        let (session, lane) = (registers.session.as_ref()?, &self.lanes[usize::from(queue)]);
        if lane.awaited.is_some() || registers.is_dead() {
            return None;
        }
        let runs = lane.running.is_some();
        (runs || session.sq.fill() > 0 && !session.cq.is_full()).then_some(session.weight)
    }
}
