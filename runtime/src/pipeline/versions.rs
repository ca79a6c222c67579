//! Versions of the policy (R18 to R22): publishing one under load, and which one a rollout decodes under.
//!
//! Only the host publishes, so it knows which version lies in which slot of the device, and it counts the descriptors that name
//! each. So it sends a POLICY only once nothing in flight names the version that is replaced, and sends no descriptor that it
//! knows would be refused.

use doorbell_contract::{
    ErrorCode, HwCompletion, HwDesc, HwImage, HwPolicy, PREFIX_NONE, PolicyMode, SlotState, Status,
};
use doorbell_host::language::language_policy;
use rtrb::{Consumer, Producer, RingBuffer};

use super::aborts::Busy;
use super::rollout::Group;
use super::submission::Tag;
use super::{ASKS_PER_TURN, Pipeline, RuntimeError, Stall};
use crate::rollout::{RolloutId, State};
use crate::trajectory::Span;

/// Versions of one publisher that may wait for their answers.
const ASKS: usize = 64;

/// What became of a version that was to be published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PublishAnswer {
    /// It is resident on every function of every device, and every DECODE that is made from now on names it, but for those
    /// that wait for the version before ([`PolicyMode::Wait`]).
    Resident,
    /// It is not, anywhere: the version before goes on.
    Refused(PublishRefusal),
}

/// Why a version was not published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum PublishRefusal {
    /// The device knows only version 0.
    #[error("the device has no versions of the policy (CAP_POLICY_SLOTS)")]
    Unsupported,
    /// Versions count upwards, modulo 2^16, and by less than 2^15 (R22).
    #[error("the version is not newer than {current}, or by 2^15 or more (R22)")]
    NotNewer {
        /// The newest one.
        current: u16,
    },
    /// Rollouts still decode under the version whose place it would take, and the publisher does not wait
    /// ([`Publisher::without_waiting`]).
    #[error(
        "rollouts still decode under version {version}, whose place it would take (R19); publish it once they have ended"
    )]
    InUse {
        /// That version.
        version: u16,
    },
    /// It is of the other engine than the rollouts.
    #[error("the rollouts run {}, and the version is of the other engine", if *.language { "a language model" } else { "the hash policy" })]
    Engine {
        /// Whether the rollouts run engine 1.
        language: bool,
    },
    /// Every function refuses it.
    #[error("the device refuses it with error {code:#04x} (R19)")]
    Device {
        /// The first error code.
        code: u8,
    },
}

/// A version to publish.
#[derive(Clone, Copy, Debug)]
struct Ask {
    version: u16,
    what: What,
    mode: PolicyMode,
    /// Whether it waits for rollouts under the version whose place it takes.
    waits: bool,
}

/// What a version consists of.
#[derive(Clone, Copy, Debug)]
enum What {
    /// Of engine 0, a salt.
    Salt(u32),
    /// Of engine 1, weights in the MODEL region.
    Weights(HwImage),
}

/// Publishes versions of the policy, from any thread, and hears what became of them. A thread that wants a handle of its own
/// takes another one from the pipeline.
#[derive(Debug)]
pub struct Publisher {
    asks: Producer<Ask>,
    answers: Consumer<(u16, PublishAnswer)>,
    /// Asked and not answered.
    awaited: usize,
    waits: bool,
}

impl Publisher {
    /// The same, but a version is refused while rollouts decode under the one whose place it would take, as they do after a publish with
    /// [`PolicyMode::Wait`].
    #[must_use]
    pub fn without_waiting(mut self) -> Publisher {
        self.waits = false;
        self
    }

    /// Asks for `version` to be published, with `salt`, as soon as nothing in flight names the version whose place it takes;
    /// `mode` says what becomes of rollouts under the version before. Waits for nobody; [`answer`](Self::answer) tells what
    /// became of it.
    ///
    /// # Errors
    /// `Busy` if too many wait.
    pub fn publish(&mut self, version: u16, salt: u32, mode: PolicyMode) -> Result<(), Busy> {
        self.ask(Ask { version, what: What::Salt(salt), mode, waits: self.waits })
    }

    /// The same of a language model, whose weights lie in the MODEL region of every function where `image` says (R25; see
    /// [`Weights`](super::Weights)).
    ///
    /// # Errors
    /// `Busy` if too many wait.
    pub fn publish_weights(&mut self, version: u16, image: HwImage, mode: PolicyMode) -> Result<(), Busy> {
        self.ask(Ask { version, what: What::Weights(image), mode, waits: self.waits })
    }

    fn ask(&mut self, ask: Ask) -> Result<(), Busy> {
        if self.awaited == ASKS {
            return Err(Busy);
        }
        self.asks.push(ask).map_err(|_| Busy)?;
        self.awaited += 1;
        Ok(())
    }

    /// The next answer, in the order in which this handle has asked: the version and what became of it. `None` if there is
    /// none yet.
    pub fn answer(&mut self) -> Option<(u16, PublishAnswer)> {
        let answer = self.answers.pop().ok()?;
        self.awaited -= 1;
        Some(answer)
    }

    /// Versions that were asked for and not answered.
    pub fn awaited(&self) -> usize {
        self.awaited
    }

    /// Whether the pipeline is gone, so that no answer will come any more.
    pub fn is_over(&self) -> bool {
        self.answers.is_abandoned()
    }
}

/// The pipeline's end of a publisher.
pub(super) struct Publishes {
    asks: Consumer<Ask>,
    answers: Producer<(u16, PublishAnswer)>,
}

/// A policy slot of every function, as the host knows it.
#[derive(Clone, Copy, Debug)]
struct Slot {
    version: u16,
    state: SlotState,
    /// Its weights, if it is of engine 1, and the number of the publish that brought these.
    image: Option<HwImage>,
    weights: u64,
    /// Number of the publish that brought it.
    number: u64,
    /// DECODEs and PREFILLs in flight, or made, that name it.
    in_flight: u32,
    /// PREFILLs among them.
    prefills: u32,
    /// Rollouts that will make DECODEs under it, or may.
    bound: u32,
}

/// Where a publish is.
#[derive(Clone, Copy, Debug)]
struct Publishing {
    ask: Ask,
    /// Whose it is.
    publisher: usize,
    /// Functions that it was sent to, and that have answered; those that have refused, and the first error code.
    sent: usize,
    answered: usize,
    refused: usize,
    code: u8,
    /// Whether the device has, or may have, its header.
    sending: bool,
}

/// The two slots (R19), and the publish that is under way.
#[derive(Debug)]
pub(super) struct Versions {
    slots: [Slot; 2],
    newest: usize,
    publishing: Option<Publishing>,
    /// One queue pair of each function.
    functions: Vec<usize>,
    /// Whether that function has answered the POLICY of the publish that is under way.
    have_answered: Vec<bool>,
}

impl Versions {
    /// After a reset: version 0.
    pub fn new(functions: Vec<usize>) -> Versions {
        let slot = |state| Slot {
            version: 0,
            state,
            image: None,
            weights: 0,
            number: 0,
            in_flight: 0,
            prefills: 0,
            bound: 0,
        };
        Versions {
            slots: [slot(SlotState::Resident), slot(SlotState::Empty)],
            newest: 0,
            publishing: None,
            have_answered: vec![false; functions.len()],
            functions,
        }
    }

    fn newest(&self) -> &Slot {
        &self.slots[self.newest]
    }

    /// Whether the newest version is of engine 1.
    #[inline]
    pub fn has_language(&self) -> bool {
        self.newest().image.is_some()
    }

    /// Number of the publish that brought the newest version's weights: one that publishes them again as they lie, where nobody may write to them
    /// (R25), leaves it.
    #[inline]
    pub fn weights(&self) -> u64 {
        self.newest().weights
    }

    /// The slot that holds `version`.
    #[inline]
    fn of(&mut self, version: u16) -> Option<&mut Slot> {
        self.slots.iter_mut().find(|slot| slot.version == version && slot.state != SlotState::Empty)
    }

    /// The slot that the next version takes: its version is not the newest.
    fn target(&self) -> usize {
        1 - self.newest
    }

    /// Whether a publish is under way that retires the newest version, and is with the device already.
    #[inline]
    fn retires(&self) -> Option<PolicyMode> {
        let publishing = self.publishing.as_ref().filter(|publishing| publishing.sending)?;
        Some(publishing.ask.mode).filter(|&mode| mode != PolicyMode::Wait)
    }

    /// Whether DECODEs of `version` end as SUPERSEDED, or with [`PolicyMode::Abort`] as STOPPED.
    #[inline]
    pub fn is_retired(&self, version: u16, mode: PolicyMode) -> bool {
        let state = if mode == PolicyMode::Keep { SlotState::Kept } else { SlotState::Aborted };
        let retired = self.slots.iter().any(|slot| slot.version == version && slot.state == state);
        retired || self.retires() == Some(mode) && self.newest().version == version
    }

    /// Whether DECODEs wait for a publish: they would come back with no tokens.
    #[inline]
    pub fn holds_decodes(&self) -> bool {
        self.publishing.is_some() && self.retires().is_some()
    }

    /// Whether PREFILLs wait for a publish: one that comes behind it is BAD_VERSION.
    #[inline]
    pub fn holds_prefills(&self) -> bool {
        let Some(publishing) = &self.publishing else { return false };
        publishing.ask.mode != PolicyMode::Wait && (publishing.sending || self.target_is_free())
    }

    /// Whether nothing names the version whose place the next one takes.
    #[inline]
    fn target_is_free(&self) -> bool {
        let target = &self.slots[self.target()];
        target.in_flight == 0 && (target.state != SlotState::Resident || target.bound == 0)
    }

    /// Whether a POLICY is to be sent now.
    #[inline]
    pub fn is_due(&self) -> bool {
        let Some(publishing) = &self.publishing else { return false };
        let started = publishing.sending
            || self.target_is_free()
                && (publishing.ask.mode == PolicyMode::Wait || self.newest().prefills == 0);
        started && publishing.sent < self.functions.len()
    }

    /// Whether a DECODE or a PREFILL is in flight.
    pub fn has_in_flight(&self) -> bool {
        self.slots.iter().any(|slot| slot.in_flight > 0)
    }

    /// The version that waits to be published, and what holds it.
    pub fn stall(&self) -> Option<Stall> {
        let version = self.publishing.as_ref()?.ask.version;
        let used = &self.slots[self.target()];
        Some(Stall::Version {
            version,
            used: used.version,
            descriptors: used.in_flight + self.newest().prefills,
            rollouts: used.bound,
        })
    }

    #[inline]
    pub fn is_publishing(&self) -> bool {
        self.publishing.is_some()
    }
}

impl Pipeline {
    /// A handle by which another thread can publish versions of the policy. Allocates: take it before the run.
    pub fn publisher(&mut self) -> Publisher {
        let (asks, asked) = RingBuffer::new(ASKS);
        let (answer, answers) = RingBuffer::new(ASKS);
        self.publishers.push(Publishes { asks: asked, answers: answer });
        Publisher { asks, answers, awaited: 0, waits: true }
    }

    /// The version that new rollouts decode under.
    pub fn version(&self) -> u16 {
        self.versions.newest().version
    }

    /// Takes the next version that somebody wants published, one at a time and one of each handle in turn. Of those that are
    /// refused some are answered; the rest waits for the next turns, however fast more come.
    pub(super) fn take_publishes(&mut self) -> bool {
        let handles = self.publishers.len();
        let (mut left, mut silent) = (ASKS_PER_TURN, 0);
        while left > 0 && silent < handles && !self.versions.is_publishing() {
            let publisher = self.next_publisher;
            self.next_publisher = (publisher + 1) % handles;
            silent += 1;
            if let Ok(ask) = self.publishers[publisher].asks.pop() {
                (left, silent) = (left - 1, 0);
                let current = self.version();
                let language = self.language.is_some();
                let refusal = if matches!(ask.what, What::Weights(_)) != language {
                    Some(PublishRefusal::Engine { language })
                } else if self.features.policy_slots < 2 {
                    Some(PublishRefusal::Unsupported)
                } else if !(1..1 << 15).contains(&ask.version.wrapping_sub(current)) {
                    Some(PublishRefusal::NotNewer { current })
                } else {
                    let target = &self.versions.slots[self.versions.target()];
                    let in_use = target.state == SlotState::Resident && target.bound > 0;
                    (!ask.waits && in_use).then_some(PublishRefusal::InUse { version: target.version })
                };
                match refusal {
                    Some(refusal) => self.answer(publisher, ask.version, PublishAnswer::Refused(refusal)),
                    None => {
                        self.versions.have_answered.fill(false);
                        self.versions.publishing = Some(Publishing {
                            ask,
                            publisher,
                            sent: 0,
                            answered: 0,
                            refused: 0,
                            code: 0,
                            sending: false,
                        });
                    }
                }
            }
        }
        left < ASKS_PER_TURN
    }

    fn answer(&mut self, publisher: usize, version: u16, answer: PublishAnswer) {
        // There is room for all that the handle waits for; where it is gone, nobody waits.
        let _ = self.publishers[publisher].answers.push((version, answer));
    }

    /// Sends the POLICY that is due to each function, as far as there is room.
    pub(super) fn send_policies(&mut self) -> Result<bool, RuntimeError> {
        let mut moved = false;
        while self.versions.is_due() {
            let Some(mut publishing) = self.versions.publishing else { break };
            let Ask { version, what, mode, .. } = publishing.ask;
            let offset = self.options.policy_offset();
            if !publishing.sending {
                for &queue in &self.versions.functions {
                    let region = &self.regions[queue];
                    match what {
                        What::Salt(salt) => {
                            region.place_policy(offset, &HwPolicy::new(version, 0, salt, 0))?
                        }
                        What::Weights(image) => region.write(offset, &language_policy(version, &image))?,
                    }
                }
                publishing.sending = true;
            }
            let tag = Tag::Policy(publishing.sent as u32);
            // An id that no rollout has: it waits for none.
            let desc = HwDesc { rollout_id: PREFIX_NONE, ..HwDesc::policy(version, mode) };
            let desc = HwDesc { model_id: matches!(what, What::Weights(_)).into(), ..desc };
            let desc = desc.with_delta_offset(offset).with_user_data(tag.to_bits());
            let sent = self.device.submit_to(self.versions.functions[publishing.sent], &desc)?;
            if sent {
                publishing.sent += 1;
                moved = true;
                self.metrics.counters.hot.descriptors_posted.add(1);
                self.journal.submitted(None, self.versions.functions[publishing.sent - 1]);
            }
            self.versions.publishing = Some(publishing);
            if !sent {
                break;
            }
        }
        Ok(moved)
    }

    /// A function has answered a POLICY.
    pub(super) fn published(&mut self, function: u32, completion: &HwCompletion) -> Result<(), RuntimeError> {
        let functions = self.versions.functions.len();
        let function = function as usize;
        let have_answered = &self.versions.have_answered;
        let awaited = |publishing: &Publishing| function < publishing.sent && !have_answered[function];
        let Some(mut publishing) = self.versions.publishing.filter(awaited) else {
            return Err(self.unasked(completion, "no POLICY to that function is in flight"));
        };
        self.versions.have_answered[function] = true;
        publishing.answered += 1;
        if completion.status != Status::Done as u8 {
            publishing.refused += 1;
            if publishing.code == 0 {
                publishing.code = completion.error;
            }
        }
        self.versions.publishing = Some(publishing);
        if publishing.answered < functions {
            return Ok(());
        }
        let Publishing { ask: Ask { version, what, mode, .. }, publisher, refused, code, .. } = publishing;
        if refused > 0 && refused < functions {
            return Err(RuntimeError::Diverged {
                device: self.device.name().to_owned(),
                version,
                resident: functions - refused,
                functions,
                code: ErrorCode::try_from(code).map_or("an unknown code", ErrorCode::name),
            });
        }
        self.versions.publishing = None;
        if refused > 0 {
            let refusal = PublishRefusal::Device { code };
            self.answer(publisher, version, PublishAnswer::Refused(refusal));
            return Ok(());
        }
        self.enter(version, what, mode)?;
        self.answer(publisher, version, PublishAnswer::Resident);
        Ok(())
    }

    /// A version has become resident everywhere. A look at all groups: publishes are few.
    fn enter(&mut self, version: u16, what: What, mode: PolicyMode) -> Result<(), RuntimeError> {
        let image = match what {
            What::Salt(_) => None,
            What::Weights(image) => Some(image),
        };
        let Versions { slots, newest, .. } = &mut self.versions;
        let (old, new) = (*newest, 1 - *newest);
        let number = slots[old].number + u64::from(version.wrapping_sub(slots[old].version));
        let same = image.is_some() && image == slots[old].image;
        slots[new] = Slot {
            version,
            state: SlotState::Resident,
            image,
            weights: if same { slots[old].weights } else { number },
            number,
            in_flight: 0,
            prefills: 0,
            bound: 0,
        };
        *newest = new;
        slots[old].state = match mode {
            PolicyMode::Wait => SlotState::Resident,
            PolicyMode::Keep => SlotState::Kept,
            PolicyMode::Abort => SlotState::Aborted,
        };
        let before = slots[old].version;
        if mode == PolicyMode::Keep {
            slots[new].bound = std::mem::take(&mut slots[old].bound);
        }
        let hot = &self.metrics.counters.hot;
        hot.publishes.add(1);
        hot.policy_version.set(version.into());
        if image.is_some() && !same && !self.mixes_versions {
            // Nothing finds what other weights have made.
            self.kv.flush()?;
            self.publish_blocks();
        }
        if mode == PolicyMode::Wait {
            return Ok(());
        }
        for index in 0..self.groups.len() as u32 {
            let group = &mut self.groups[index as usize];
            if !group.lives() || group.version != Some(before) {
                continue;
            }
            match mode {
                PolicyMode::Keep => group.version = Some(version),
                _ => {
                    self.abort_open_members(index)?;
                }
            }
        }
        Ok(())
    }

    /// The version under which the rollouts of a group decode: the newest, from their first descriptor on.
    #[inline]
    pub(super) fn bind(&mut self, index: u32) -> u16 {
        let group = &mut self.groups[index as usize];
        match group.version {
            Some(version) => version,
            None => {
                let newest = &mut self.versions.slots[self.versions.newest];
                newest.bound += group.open;
                *group.version.insert(newest.version)
            }
        }
    }

    /// A rollout of this group makes no more DECODEs.
    #[inline]
    pub(super) fn unbind(&mut self, index: u32) {
        let Group { version, .. } = self.groups[index as usize];
        if let Some(slot) = version.and_then(|version| self.versions.of(version)) {
            slot.bound = slot.bound.saturating_sub(1);
        }
    }

    /// A DECODE, or a PREFILL, that names `version` has been made.
    #[inline]
    pub(super) fn names(&mut self, version: u16, prefill: bool) {
        if let Some(slot) = self.versions.of(version) {
            slot.in_flight += 1;
            slot.prefills += u32::from(prefill);
        }
    }

    /// Its completion was seen.
    #[inline]
    pub(super) fn named(&mut self, version: u16, prefill: bool) {
        if let Some(slot) = self.versions.of(version) {
            slot.in_flight -= 1;
            slot.prefills -= u32::from(prefill);
        }
    }

    /// Notes which version the tokens come from that the last DECODE of a rollout added.
    #[inline]
    pub(super) fn note_span(&mut self, id: RolloutId, added: u32) -> Result<(), RuntimeError> {
        let life = self.lives.get_mut(id)?;
        if added == 0 || life.spans > 0 && life.last_version == life.version {
            return Ok(());
        }
        let version = life.version;
        self.spans.write(id.slot(), life.spans, Span { version, first: life.produced - added });
        life.last_version = version;
        if life.spans == 0 {
            let of = |slot: &&Slot| slot.version == version && slot.state != SlotState::Empty;
            life.oldest = self.versions.slots.iter().find(of).map_or(0, |slot| slot.number);
        }
        life.spans += 1;
        Ok(())
    }

    /// How many versions the oldest token of a rollout lies back, if that is more than may be, or than there are places for
    /// its spans (R22).
    #[inline]
    pub(super) fn stale(&self, id: RolloutId, next: Option<u16>) -> Result<Option<u64>, RuntimeError> {
        let life = self.lives.get(id)?;
        if life.spans == 0 {
            return Ok(None);
        }
        let staleness = self.versions.newest().number - life.oldest;
        let full = next.is_some_and(|version| {
            version != life.last_version && life.spans as usize >= self.spans.longest()
        });
        let limit = self.options.max_staleness.map_or(u64::MAX, u64::from);
        Ok((staleness > limit || full).then_some(staleness))
    }

    /// Ends a rollout that is too old to be learnt from, and waits for its turn or has its last score.
    #[cold]
    pub(super) fn drop_stale(&mut self, id: RolloutId, staleness: u64) -> Result<(), RuntimeError> {
        let state = self.lives.state(id)?;
        let life = self.lives.get_mut(id)?;
        life.stale = Some(staleness);
        self.metrics.counters.hot.rollouts_stale.add(1);
        if state == State::TrajectoryReady {
            self.advance(id, State::TrajectoryReady, State::Done)?;
            return self.queues.done.push(id);
        }
        self.end_waiting(id)
    }
}
