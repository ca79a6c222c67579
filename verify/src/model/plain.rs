//! Descriptors that use nothing of what few use, run in one loop: NOPs and DECODEs of engine 0 without groups, log-probabilities and
//! scores, of a version that is resident, in a model without faults of any kind.
//!
//! It does what `Execution::step` and `Execution::post` do with them, without looking at what they do not use. It leaves every other
//! descriptor in its slot for those two, and hands back an outcome that is not plain.

use bytemuck::cast;

use super::STEP_TOKENS;
use super::engine::{Decode, Outcome, Source, check};
use super::execution::{Execution, Running, cast_desc, lines, slot};
use doorbell_contract::{DescFlags, HwCompletion, Opcode, SlotState, Status};
use doorbell_engine::Engine;
use doorbell_host::queue::COMPLETION_WORDS;

/// The flags that a plain descriptor may have.
const PLAIN: u8 = DescFlags::FENCE.union(DescFlags::EOS_STOPS).union(DescFlags::INTERRUPT).bits();

impl Execution<'_> {
    /// Runs plain descriptors, `want` at most, as far as `budget` allows and the completion queue has room, and, where queue pairs
    /// take TURNS, each for one step. How many have completed, and the outcome of one that has ended, and not as plain as it began: it is to be posted.
    #[inline(always)]
    pub(super) fn run_plain<const TURNS: bool>(
        &mut self,
        want: usize,
        budget: &mut u32,
    ) -> (usize, Option<Outcome>) {
        if !self.is_plain() {
            return (0, None);
        }
        let (mut completed, mut rest) = (0, None);
        let Self { bus, registers, lane, .. } = self;
        let Some(mut plain) = registers.plain(self.queue) else { return (0, None) };
        let memory = bus.memory();
        let desc = &mut lane.desc;
        let (mut fault, mut left) = (None, *budget);
        lane.part = None;
        while completed < want && left > 0 {
            let session = &mut *plain.session;
            let index = session.sq.head;
            if session.sq.fill() == 0
                || session.cq.is_full()
                || memory.bus_read(slot(session, index), cast_desc(desc)).is_err()
                || desc.flags & !PLAIN != 0
                || desc.model_id != 0
            {
                break;
            }
            let outcome = match check(desc, index, session) {
                Ok(Opcode::Nop) => {
                    left -= 1;
                    Outcome::plain(Status::Done)
                }
                Ok(Opcode::Decode) => {
                    let Some(number) = plain.policies.find(desc.policy_version) else { break };
                    let version = plain.policies.slot(number);
                    if version.state != SlotState::Resident || version.engine != 0 {
                        break;
                    }
                    let Some(mut decoder) = Engine::Hash.begin(desc, version.salt, session.eos_threshold)
                    else {
                        break;
                    };
                    left -= 1;
                    let mut decode = Decode::new(desc, session, number);
                    let base = session.token_base;
                    // Where queue pairs take turns, a descriptor costs as much as a token, in the slice and not in the step.
                    let most = if TURNS { STEP_TOKENS.min(left + 1) } else { left.max(1) };
                    let write =
                        |offset: u64, token, _| memory.bus_write_u32(base.wrapping_add(offset), token);
                    let outcome = decode.produce(desc, most, None, session, || Ok(decoder.step()), write);
                    left = left.saturating_sub(decode.produced);
                    plain.counts.tokens += u64::from(decode.produced);
                    plain.counts.write_beats += lines(desc.delta_offset, 0, decode.produced);
                    let Some(outcome) = outcome else {
                        session.sq.head = index.wrapping_add(1);
                        plain.counts.descriptors += 1;
                        self.tables.users[usize::from(session.function)][number] += 1;
                        lane.running = Some(Running::Decode(decode.with(Source::Hash(decoder))));
                        break;
                    };
                    fault = Some(decode.fault).filter(|fault| !fault.is_empty());
                    outcome
                }
                _ => break,
            };
            session.sq.head = index.wrapping_add(1);
            plain.counts.descriptors += 1;
            let answer = session.cq.tail;
            let completion = HwCompletion { sq_head: session.sq.head, ..outcome.of(desc) };
            let words: [u64; COMPLETION_WORDS] = cast(completion.with_phase(session.cq.depth.phase(answer)));
            let address = session.cq.address(answer, size_of::<HwCompletion>() as u64);
            if fault.is_some() || memory.bus_write(address, words).is_err() {
                rest = Some(outcome);
                break;
            }
            session.cq.tail = answer.wrapping_add(1);
            plain.counts.completions += 1;
            plain.counts.write_beats += 1;
            completed += 1;
            if desc.flags & DescFlags::INTERRUPT.bits() != 0 {
                plain.ask(answer);
            }
        }
        *budget = left;
        let counts = plain.give_back();
        registers.count_plain(self.queue, counts);
        if let Some(fault) = fault {
            self.fault(fault);
        }
        (completed, rest)
    }

    /// The same behind a descriptor that was not plain, apart from the loop over those.
    #[inline(never)]
    pub(super) fn run_plain_again(&mut self, want: usize, budget: &mut u32) -> (usize, Option<Outcome>) {
        self.run_plain::<false>(want, budget)
    }

    /// Whether nothing is set that any descriptor would have to be held against.
    fn is_plain(&self) -> bool {
        self.mutator.is_none()
            && self.tables.cuts.is_empty()
            && self.lane.running.is_none()
            && self.lane.awaited.is_none()
            && !self.bus.is_special()
            && !self.bus.withholds_some()
    }
}
