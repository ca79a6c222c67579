//! The six states of a rollout and the eight edges between them.

use std::fmt;

use super::RolloutId;

/// Where a rollout is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum State {
    /// The slot holds no rollout.
    Free,
    /// Admitted; its prefix is being registered, or its first DECODE waits to be submitted.
    PrefillReady,
    /// A DECODE of it runs, or waits to be submitted.
    Decoding,
    /// A judge has its answer.
    RewardPending,
    /// Scored for the last time; its trajectory is being stored.
    TrajectoryReady,
    /// Stored, aborted or failed; its blocks are being given back.
    Done,
}

impl State {
    /// All states, in the order of a life.
    pub const ALL: [State; 6] = [
        State::Free,
        State::PrefillReady,
        State::Decoding,
        State::RewardPending,
        State::TrajectoryReady,
        State::Done,
    ];

    /// Its name, as in reports and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            State::Free => "FREE",
            State::PrefillReady => "PREFILL_READY",
            State::Decoding => "DECODING",
            State::RewardPending => "REWARD_PENDING",
            State::TrajectoryReady => "TRAJECTORY_READY",
            State::Done => "DONE",
        }
    }

    /// Whether a rollout may go from here to `to`: one of the eight edges.
    pub const fn leads_to(self, to: State) -> bool {
        use State::{Decoding, Done, Free, PrefillReady, RewardPending, TrajectoryReady};
        matches!(
            (self, to),
            (Free, PrefillReady)
                | (PrefillReady, Decoding)
                | (Decoding, RewardPending | Done)
                | (RewardPending, TrajectoryReady | Decoding)
                | (TrajectoryReady, Done)
                | (Done, Free)
        )
    }

    const fn from_bits(bits: u64) -> State {
        State::ALL[(bits & 0xFF) as usize]
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why a rollout did not change its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TransitionError {
    /// There is no such edge.
    #[error("rollout {id} cannot go from {from} to {to}: no edge of the life of a rollout joins them")]
    Illegal {
        /// The rollout.
        id: RolloutId,
        /// Where it was said to be.
        from: State,
        /// Where it was to go.
        to: State,
    },
    /// The rollout is elsewhere.
    #[error("rollout {id} cannot go from {from} to {to}: it is {found}")]
    NotThere {
        /// The rollout.
        id: RolloutId,
        /// Where it was said to be.
        from: State,
        /// Where it was to go.
        to: State,
        /// Where it is.
        found: State,
    },
    /// The id is of a rollout that has ended.
    #[error("rollout {id} has ended: its slot is at generation {generation}; drop what came for it")]
    Stale {
        /// The rollout.
        id: RolloutId,
        /// The generation that its slot is at.
        generation: u32,
    },
    /// There is no such slot.
    #[error("rollout {id} is none of this table, which has {slots} slots")]
    Unknown {
        /// The rollout.
        id: RolloutId,
        /// Slots of the table.
        slots: usize,
    },
}

/// Slots, each with a rollout's state and a value. They belong to one thread, so that a move is a load, a comparison and a
/// store.
///
/// A slot's word holds its generation, in the high half, and its state: a move by an id of an earlier generation fails,
/// however late it comes. Generations wrap after 2^30 lives of a slot, so an id must not be kept that long.
///
/// Every operation is O(1), and storage is allocated at construction alone.
#[derive(Debug)]
pub struct Slab<T> {
    slots: Box<[Slot<T>]>,
}

/// Word and value lie side by side: whoever has checked one has found the other.
#[derive(Debug)]
struct Slot<T> {
    word: u64,
    value: T,
}

const fn pack(generation: u32, state: State) -> u64 {
    (generation as u64) << 32 | state as u64
}

/// Generations count below this, so that the two highest bits of an id are free for whoever carries it as a tag.
pub const GENERATIONS: u32 = 1 << 30;

impl<T> Slab<T> {
    /// `slots` slots, all [`State::Free`], each with a value that `make` gives for its number.
    pub fn new(slots: u32, mut make: impl FnMut(u32) -> T) -> Slab<T> {
        let slot = |slot| Slot { word: pack(0, State::Free), value: make(slot) };
        Slab { slots: (0..slots).map(slot).collect() }
    }

    /// The value of rollout `id`.
    ///
    /// # Errors
    /// `Stale` if the rollout has ended, `Unknown` if it never was.
    #[inline]
    pub fn get(&self, id: RolloutId) -> Result<&T, TransitionError> {
        self.slot(id).map(|slot| &slot.value)
    }

    /// The value of rollout `id`, to change.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    #[inline]
    pub fn get_mut(&mut self, id: RolloutId) -> Result<&mut T, TransitionError> {
        self.slot(id)?;
        Ok(&mut self.slots[id.slot() as usize].value)
    }

    /// The value of a slot, whoever is in it.
    ///
    /// # Panics
    /// There is no such slot.
    #[inline]
    pub fn slot_mut(&mut self, slot: u32) -> &mut T {
        &mut self.slots[slot as usize].value
    }

    /// The id of the rollout that is in `slot`, or if it is free of the next that will be.
    ///
    /// # Panics
    /// There is no such slot.
    #[inline]
    pub fn current(&self, slot: u32) -> RolloutId {
        RolloutId::new(slot, (self.slots[slot as usize].word >> 32) as u32)
    }

    /// Where rollout `id` is.
    ///
    /// # Errors
    /// `Stale` if it has ended, `Unknown` if it never was.
    #[inline]
    pub fn state(&self, id: RolloutId) -> Result<State, TransitionError> {
        self.slot(id).map(|slot| State::from_bits(slot.word))
    }

    /// Whether rollout `id` is in `state`: not if it has ended, or never was.
    #[inline]
    pub fn is_in(&self, id: RolloutId, state: State) -> bool {
        self.slots.get(id.slot() as usize).is_some_and(|slot| slot.word == pack(id.generation(), state))
    }

    /// The slot of rollout `id`.
    #[inline]
    fn slot(&self, id: RolloutId) -> Result<&Slot<T>, TransitionError> {
        match self.slots.get(id.slot() as usize) {
            Some(slot) if (slot.word >> 32) as u32 == id.generation() => Ok(slot),
            _ => Err(self.missing(id)),
        }
    }

    /// Why rollout `id` has no slot.
    #[cold]
    fn missing(&self, id: RolloutId) -> TransitionError {
        match self.slots.get(id.slot() as usize) {
            Some(slot) => TransitionError::Stale { id, generation: (slot.word >> 32) as u32 },
            None => TransitionError::Unknown { id, slots: self.slots.len() },
        }
    }

    /// Moves rollout `id` along one edge, and gives its value to whoever works on it next. Leaving [`State::Done`] ends its
    /// generation.
    ///
    /// # Errors
    /// `Illegal` if there is no such edge, `NotThere` if the rollout is in another state than `from`, `Stale` if it has
    /// ended, `Unknown` if it never was. Nothing changes then.
    #[inline(always)]
    pub fn advance(&mut self, id: RolloutId, from: State, to: State) -> Result<&mut T, TransitionError> {
        if !from.leads_to(to) {
            return Err(TransitionError::Illegal { id, from, to });
        }
        let generation =
            if to as u8 == State::Free as u8 { (id.generation() + 1) % GENERATIONS } else { id.generation() };
        if !self.is_in(id, from) {
            return Err(self.refused(id, from, to));
        }
        let slot = &mut self.slots[id.slot() as usize];
        slot.word = pack(generation, to);
        Ok(&mut slot.value)
    }

    #[cold]
    fn refused(&self, id: RolloutId, from: State, to: State) -> TransitionError {
        match self.state(id) {
            Ok(found) => TransitionError::NotThere { id, from, to, found },
            Err(error) => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The edges, as the field knows them.
    const EDGES: [(State, State); 8] = [
        (State::Free, State::PrefillReady),
        (State::PrefillReady, State::Decoding),
        (State::Decoding, State::RewardPending),
        (State::Decoding, State::Done),
        (State::RewardPending, State::TrajectoryReady),
        (State::RewardPending, State::Decoding),
        (State::TrajectoryReady, State::Done),
        (State::Done, State::Free),
    ];

    /// A table whose slot 0 was moved to `state`.
    fn table_in(state: State) -> (Slab<u32>, RolloutId) {
        use State::{Decoding, Done, Free, PrefillReady, RewardPending, TrajectoryReady};
        let mut table = Slab::new(1, |_| 7);
        let id = table.current(0);
        let way = [Free, PrefillReady, Decoding, RewardPending, TrajectoryReady, Done];
        let steps = way.iter().position(|&at| at == state).unwrap();
        for step in way[..=steps].windows(2) {
            table.advance(id, step[0], step[1]).unwrap();
        }
        (table, id)
    }

    #[test]
    fn exactly_the_eight_edges_are_legal() {
        for from in State::ALL {
            for to in State::ALL {
                let (mut table, id) = table_in(from);
                let legal = EDGES.contains(&(from, to));
                let moved = table.advance(id, from, to);
                assert_eq!(moved.is_ok(), legal, "{from} to {to}");
                if !legal {
                    let text = moved.unwrap_err().to_string();
                    assert!(text.contains(&format!("from {from} to {to}")), "{text}");
                    assert_eq!(table.state(id), Ok(from));
                }
            }
        }
    }

    #[test]
    fn a_rollout_elsewhere_is_not_moved_and_the_error_says_where_it_is() {
        let (mut table, id) = table_in(State::RewardPending);
        let error = table.advance(id, State::Decoding, State::Done).unwrap_err();
        assert_eq!(
            error,
            TransitionError::NotThere {
                id,
                from: State::Decoding,
                to: State::Done,
                found: State::RewardPending
            }
        );
        assert_eq!(table.state(id), Ok(State::RewardPending));
    }

    #[test]
    fn an_id_of_an_earlier_life_finds_nothing() {
        let (mut table, old) = table_in(State::Done);
        table.advance(old, State::Done, State::Free).unwrap();
        let new = table.current(0);
        assert_ne!(old, new);
        table.advance(new, State::Free, State::PrefillReady).unwrap();
        assert_eq!(table.state(old), Err(TransitionError::Stale { id: old, generation: 1 }));
        assert!(table.advance(old, State::PrefillReady, State::Decoding).is_err());
        assert_eq!(table.state(new), Ok(State::PrefillReady));
        assert_eq!(table.get(new), Ok(&7));
        assert!(table.is_in(new, State::PrefillReady));
        assert!(!table.is_in(new, State::Decoding) && !table.is_in(old, State::PrefillReady));
        assert!(table.get_mut(old).is_err());
        let stranger = RolloutId::new(1, 0);
        assert!(!table.is_in(stranger, State::Free));
        assert_eq!(table.state(stranger), Err(TransitionError::Unknown { id: stranger, slots: 1 }));
    }

    #[test]
    fn generations_wrap() {
        let mut table = Slab::new(1, |_| 7);
        let last = RolloutId::new(0, GENERATIONS - 1);
        table.slots[0].word = last.to_bits() & !0xFFFF_FFFF | State::Done as u64;
        table.advance(last, State::Done, State::Free).unwrap();
        assert_eq!(table.current(0).generation(), 0);
    }
}
