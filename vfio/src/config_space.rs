//! The configuration space of a function, as the PCI Local Bus and the PCI Express Base Specification lay it out: a header, the
//! capabilities PCI Express (with function level reset) and MSI-X, and one of Doorbell's own.

use doorbell_contract::CONTRACT_VERSION;

/// Bytes of it.
pub const BYTES: usize = 256;

/// Vendor: the PCI-SIG has given this number to nobody. Whoever builds a card puts in their own.
pub const VENDOR: u16 = 0xDBE1;
/// Device of that vendor.
pub const DEVICE: u16 = 0x0001;
/// Base class 'processing accelerators'.
pub const CLASS: u8 = 0x12;

/// Bytes of BAR 0: what the 18 bits of a register's address span.
pub const BAR0_BYTES: u32 = 1 << 18;
/// Where the table of MSI-X lies in BAR 0: the block DEVICE_MESSAGE.
pub const TABLE: u32 = 0x1000;
/// Where its pending bits lie.
pub const PENDING_BITS: u32 = 0x1800;

/// Where the command register lies.
pub const COMMAND: usize = 0x04;
const STATUS: usize = 0x06;
const BAR: usize = 0x10;
const EXPRESS: usize = 0x40;
const MSIX: usize = 0x80;
const OWN: usize = 0xA0;

const MEMORY_ENABLE: u16 = 1 << 1;
const BUS_MASTER_ENABLE: u16 = 1 << 2;
/// What a driver sets in the command register: accesses of BAR 0 are answered, and the function moves data.
pub const ENABLE: u16 = MEMORY_ENABLE | BUS_MASTER_ENABLE;
const INTX_DISABLE: u16 = 1 << 10;
const RESET_CAPABLE: u32 = 1 << 28;
const INITIATE_RESET: u16 = 1 << 15;
const MSIX_ENABLE: u16 = 1 << 15;
const MSIX_MASK: u16 = 1 << 14;

/// A configuration space. Writes change the bits that a host may change; all others stay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigSpace {
    bytes: [u8; BYTES],
    writable: [u8; BYTES],
}

impl ConfigSpace {
    /// That of a function after reset, with so many vectors, whose first queue pair has the number `first_queue` in its device.
    pub fn new(vectors: u8, first_queue: u8) -> Self {
        let mut space = Self { bytes: [0; BYTES], writable: [0; BYTES] };
        space.set(0x00, VENDOR);
        space.set(0x02, DEVICE);
        // A list of capabilities.
        space.set(STATUS, 1 << 4);
        // Major and minor version of the contract.
        space.bytes[0x08] = (CONTRACT_VERSION >> 16 << 4 | CONTRACT_VERSION & 0xF) as u8;
        space.bytes[0x0B] = CLASS;
        space.set(0x2C, VENDOR);
        space.set(0x2E, DEVICE);
        space.bytes[0x34] = EXPRESS as u8;

        // PCI Express: an endpoint, version 2, with function level reset. It has no link: all of that reads 0.
        space.set(EXPRESS, 0x10);
        space.bytes[EXPRESS + 1] = MSIX as u8;
        space.set(EXPRESS + 2, 2);
        space.set(EXPRESS + 4, RESET_CAPABLE as u16);
        space.set(EXPRESS + 6, (RESET_CAPABLE >> 16) as u16);

        space.bytes[MSIX] = 0x11;
        space.bytes[MSIX + 1] = OWN as u8;
        space.set(MSIX + 2, u16::from(vectors) - 1);
        space.set(MSIX + 4, TABLE as u16);
        space.set(MSIX + 8, PENDING_BITS as u16);

        // Vendor specific: id, next, bytes, version of this layout, the first queue pair.
        space.bytes[OWN..OWN + 5].copy_from_slice(&[0x09, 0, 8, 1, first_queue]);

        let mut allow = |at: usize, bits: u16| {
            let [low, high] = bits.to_le_bytes();
            space.writable[at] |= low;
            space.writable[at + 1] |= high;
        };
        allow(COMMAND, MEMORY_ENABLE | BUS_MASTER_ENABLE | INTX_DISABLE);
        // Cache line size and interrupt line: bytes that software keeps there, and that do nothing.
        allow(0x0C, 0xFF);
        allow(0x3C, 0xFF);
        // The low bits of the base stay 0, which tells the size.
        let base = !(BAR0_BYTES - 1);
        allow(BAR, base as u16);
        allow(BAR + 2, (base >> 16) as u16);
        // Device control but for the reset, which is no state.
        allow(EXPRESS + 8, 0x7FFF);
        allow(MSIX + 2, MSIX_ENABLE | MSIX_MASK);
        space
    }

    fn set(&mut self, at: usize, value: u16) {
        self.bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }

    fn get(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.bytes[at], self.bytes[at + 1]])
    }

    /// The bytes at `offset`; false where they are not all there.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> bool {
        let Some(bytes) = part(offset, out.len()).and_then(|part| self.bytes.get(part)) else { return false };
        out.copy_from_slice(bytes);
        true
    }

    /// Writes the bytes at `offset`. Whether a reset of the function is asked for; `None` where the bytes are not all there.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Option<bool> {
        let part = part(offset, data.len()).filter(|part| part.end <= BYTES)?;
        let start = part.start;
        for (at, byte) in part.zip(data) {
            let writable = self.writable[at];
            self.bytes[at] = self.bytes[at] & !writable | byte & writable;
        }
        let control = EXPRESS + 9;
        let upper = control.checked_sub(start).and_then(|place| data.get(place));
        Some(upper.is_some_and(|byte| byte & (INITIATE_RESET >> 8) as u8 != 0))
    }

    /// Whether accesses of BAR 0 are answered.
    pub fn memory_enabled(&self) -> bool {
        self.get(COMMAND) & MEMORY_ENABLE != 0
    }

    /// Whether the function may move data and send messages.
    pub fn is_bus_master(&self) -> bool {
        self.get(COMMAND) & BUS_MASTER_ENABLE != 0
    }

    /// Whether messages may be sent: MSI-X is enabled, its function mask is not set, and the function is bus master.
    pub fn may_send(&self) -> bool {
        self.get(MSIX + 2) & (MSIX_ENABLE | MSIX_MASK) == MSIX_ENABLE && self.is_bus_master()
    }
}

fn part(offset: u64, len: usize) -> Option<std::ops::Range<usize>> {
    let start = usize::try_from(offset).ok()?;
    Some(start..start.checked_add(len)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(space: &ConfigSpace, offset: u64) -> u32 {
        let mut bytes = [0; 4];
        assert!(space.read(offset, &mut bytes));
        u32::from_le_bytes(bytes)
    }

    #[test]
    fn a_host_finds_the_header_and_walks_the_capabilities() {
        let space = ConfigSpace::new(4, 8);
        assert_eq!(word(&space, 0), 0x0001_DBE1);
        assert_eq!(word(&space, 8) >> 24, 0x12);
        let mut seen = vec![];
        let mut at = word(&space, 0x34) & 0xFF;
        while at != 0 {
            let head = word(&space, at.into());
            seen.push(head & 0xFF);
            at = head >> 8 & 0xFF;
            assert!(seen.len() < 8, "the list ends");
        }
        assert_eq!(seen, [0x10, 0x11, 0x09]);
        assert_ne!(word(&space, 0x44) & 1 << 28, 0, "function level reset");
        assert_eq!(word(&space, 0x80) >> 16, 3, "4 vectors");
        assert_eq!(word(&space, 0xA4) & 0xFF, 8, "its first queue pair");
    }

    /// All bits are written: what reads back is what a host may change, and of the BAR its size.
    #[test]
    fn only_what_a_host_may_change_changes() {
        let before = ConfigSpace::new(2, 0);
        let mut space = before.clone();
        for at in (0..BYTES as u64).step_by(4) {
            assert_eq!(space.write(at, &[0xFF; 4]), Some(at == 0x48), "at {at:#x}");
        }
        let changed: Vec<(u64, u32)> = (0..BYTES as u64)
            .step_by(4)
            .map(|at| (at, word(&space, at) ^ word(&before, at)))
            .filter(|&(_, bits)| bits != 0)
            .collect();
        assert_eq!(
            changed,
            [
                (0x04, 0x0406),
                (0x0C, 0xFF),
                (0x10, 0xFFFC_0000),
                (0x3C, 0xFF),
                (0x48, 0x7FFF),
                (0x80, 0xC000_0000)
            ]
        );
        assert!(space.memory_enabled() && space.is_bus_master());
        assert!(!space.may_send(), "the function mask is set");
    }

    #[test]
    fn any_access_of_any_size_is_answered_or_refused() {
        let mut space = ConfigSpace::new(1, 0);
        for offset in [0, 1, 0x49, 0xFF, 0x100, 0x101, u64::MAX] {
            for len in [0, 1, 2, 3, 4, 8, 256, 300] {
                let fits = offset.checked_add(len as u64).is_some_and(|end| end <= BYTES as u64);
                assert_eq!(space.read(offset, &mut vec![0; len]), fits, "{offset:#x} {len}");
                assert_eq!(space.write(offset, &vec![0x80; len]).is_some(), fits, "{offset:#x} {len}");
            }
        }
        // The upper byte of device control alone.
        assert_eq!(space.write(0x49, &[0x80]), Some(true));
        assert_eq!(space.write(0x48, &[0x80]), Some(false));
    }
}
