//! The policy slots of a function (R18 to R20) in a device in software.

use doorbell_contract::{PolicyMode, SlotState};

/// One slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicySlot {
    /// The version that it holds.
    pub version: u16,
    /// The engine that it is of (R25).
    pub engine: u16,
    /// Its salt.
    pub salt: u32,
    /// What has become of it.
    pub state: SlotState,
}

/// The two slots of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicySlots {
    slots: [PolicySlot; 2],
    /// Which was loaded last.
    newest: usize,
}

impl Default for PolicySlots {
    fn default() -> Self {
        Self::new()
    }
}

impl PolicySlots {
    /// After a reset: version 0 with salt 0.
    pub const fn new() -> Self {
        let initial = PolicySlot { version: 0, engine: 0, salt: 0, state: SlotState::Resident };
        Self { slots: [initial, PolicySlot { state: SlotState::Empty, ..initial }], newest: 0 }
    }

    /// Those that a device elsewhere shows, as [`word`](Self::word) does; their salts are its own. Words that no device shows,
    /// as before its first session, change nothing.
    pub fn show(&mut self, words: [u32; 2]) {
        if (words[0] ^ words[1]) >> 24 != 1 {
            return;
        }
        for (number, word) in words.into_iter().enumerate() {
            let Ok(state) = SlotState::try_from((word >> 16) as u8) else { return };
            self.slots[number] = PolicySlot { version: word as u16, engine: 0, salt: 0, state };
            if word >> 24 & 1 == 1 {
                self.newest = number;
            }
        }
    }

    /// The slot with this number, 0 or 1.
    ///
    /// # Panics
    /// For another number.
    #[inline]
    pub const fn slot(&self, number: usize) -> &PolicySlot {
        &self.slots[number]
    }

    /// The slot that holds `version`, resident or retired.
    #[inline]
    pub fn find(&self, version: u16) -> Option<usize> {
        (0..2).find(|&k| self.slots[k].version == version && self.slots[k].state != SlotState::Empty)
    }

    /// Whether `version` is resident.
    pub fn is_resident(&self, version: u16) -> bool {
        self.find(version).is_some_and(|k| self.slots[k].state == SlotState::Resident)
    }

    /// The slot that the next version takes (R19): the other one than that which was loaded last, which is always resident.
    pub const fn target(&self) -> usize {
        1 - self.newest
    }

    /// Makes a version of an engine resident in the [target](Self::target), and retires the one before as `mode` says (R20).
    pub fn publish(&mut self, version: u16, engine: u16, salt: u32, mode: PolicyMode) {
        let (old, new) = (self.newest, self.target());
        self.slots[old].state = match mode {
            PolicyMode::Wait => SlotState::Resident,
            PolicyMode::Keep => SlotState::Kept,
            PolicyMode::Abort => SlotState::Aborted,
        };
        self.slots[new] = PolicySlot { version, engine, salt, state: SlotState::Resident };
        self.newest = new;
    }

    /// What POLICY_SLOT_0 or POLICY_SLOT_1 reads.
    ///
    /// # Panics
    /// If `number` is above 1.
    pub fn word(&self, number: usize) -> u32 {
        let slot = &self.slots[number];
        u32::from(self.newest == number) << 24 | (slot.state as u32) << 16 | u32::from(slot.version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r19_versions_take_turns_in_the_slots() {
        let mut slots = PolicySlots::new();
        assert_eq!([slots.word(0), slots.word(1)], [0x0101_0000, 0]);
        slots.publish(7, 0, 0xABCD, PolicyMode::Wait);
        assert_eq!([slots.word(0), slots.word(1)], [0x0001_0000, 0x0101_0007]);
        assert_eq!((slots.find(0), slots.find(7), slots.find(8)), (Some(0), Some(1), None));
        slots.publish(8, 0, 1, PolicyMode::Keep);
        assert_eq!([slots.word(0), slots.word(1)], [0x0101_0008, 0x0002_0007]);
        assert!(slots.is_resident(8) && !slots.is_resident(7) && slots.find(0).is_none());
        slots.publish(9, 1, 2, PolicyMode::Abort);
        assert_eq!([slots.word(0), slots.word(1)], [0x0003_0008, 0x0101_0009]);
        assert_eq!((slots.slot(1).engine, slots.slot(1).salt), (1, 2));
        let mut shown = PolicySlots::new();
        shown.show([slots.word(0), slots.word(1)]);
        assert_eq!([shown.word(0), shown.word(1)], [0x0003_0008, 0x0101_0009]);
    }
}
