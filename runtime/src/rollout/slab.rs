//! Slots with a value each, named by generation-checked ids.

use super::{RolloutId, State, StateTable, TransitionError};

/// A value for each slot of a [`StateTable`].
///
/// Every operation is O(1), and storage is allocated at construction alone.
#[derive(Debug)]
pub struct Slab<T> {
    states: StateTable,
    values: Box<[T]>,
}

impl<T> Slab<T> {
    /// `slots` free slots, each with a value that `make` gives for its number.
    pub fn new(slots: u32, make: impl FnMut(u32) -> T) -> Slab<T> {
        Slab { states: StateTable::new(slots), values: (0..slots).map(make).collect() }
    }

    /// The states, to look at.
    #[inline]
    pub fn states(&self) -> &StateTable {
        &self.states
    }

    /// Slots.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// The value of rollout `id`.
    ///
    /// # Errors
    /// `Stale` if the rollout has ended, `Unknown` if it never was.
    #[inline]
    pub fn get(&self, id: RolloutId) -> Result<&T, TransitionError> {
        self.states.state(id)?;
        Ok(&self.values[id.slot() as usize])
    }

    /// The value of rollout `id`, to change.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    #[inline]
    pub fn get_mut(&mut self, id: RolloutId) -> Result<&mut T, TransitionError> {
        self.states.state(id)?;
        Ok(&mut self.values[id.slot() as usize])
    }

    /// The value of a slot, whoever is in it.
    ///
    /// # Panics
    /// There is no such slot.
    #[inline]
    pub fn slot_mut(&mut self, slot: u32) -> &mut T {
        &mut self.values[slot as usize]
    }

    /// Moves rollout `id` along one edge, and gives its value to whoever works on it next.
    ///
    /// # Errors
    /// As [`StateTable::advance`].
    #[inline(always)]
    pub fn advance(&mut self, id: RolloutId, from: State, to: State) -> Result<&mut T, TransitionError> {
        self.states.advance(id, from, to)?;
        Ok(&mut self.values[id.slot() as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_stay_with_their_rollouts() {
        let mut slab = Slab::new(2, |slot| slot * 10);
        let id = slab.states().current(1);
        *slab.advance(id, State::Free, State::PrefillReady).unwrap() += 1;
        assert_eq!(slab.get(id), Ok(&11));
        for step in [State::PrefillReady, State::Decoding, State::Done, State::Free].windows(2) {
            slab.advance(id, step[0], step[1]).unwrap();
        }
        assert_eq!(slab.get_mut(id), Err(TransitionError::Stale { id, generation: 1 }));
        assert_eq!(slab.get(slab.states().current(1)), Ok(&11));
        assert_eq!(slab.get(slab.states().current(0)), Ok(&0));
    }
}
