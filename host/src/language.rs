//! Where engine 1 has its memory, as the host lays it out (R25 to R27): models, sequences, blocks of keys and values.
//!
//! All of it is accessed in 64-bit words, by the device too.

use std::sync::atomic::Ordering;

use bytemuck::{cast, cast_slice, cast_slice_mut};

use crate::error::DeviceError;
use crate::memory::SharedMemory;
use doorbell_contract::{ARENAS, HwImage, HwPolicy, HwSequence};

/// Memory of whole 64-bit words that a device sees as one region. Clones share it, and keep it when the device is gone.
#[derive(Clone, Debug)]
pub struct WordRegion {
    memory: SharedMemory,
    name: &'static str,
    start: usize,
    bytes: u64,
}

impl WordRegion {
    /// The `bytes` bytes from `start` in `memory`; errors call it `name`.
    ///
    /// # Errors
    /// `OutOfBounds` if they do not lie in the memory, or `start` is not 8-byte aligned.
    pub fn new(
        memory: SharedMemory,
        name: &'static str,
        start: usize,
        bytes: u64,
    ) -> Result<Self, DeviceError> {
        let size = memory.len() as u64;
        if !start.is_multiple_of(8) || (start as u64).checked_add(bytes).is_none_or(|end| end > size) {
            return Err(DeviceError::OutOfBounds { what: name, offset: start as u64, bytes, size });
        }
        Ok(Self { memory, name, start, bytes })
    }

    /// Bytes of the region.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Where the device sees it.
    pub fn bus_address(&self) -> u64 {
        self.memory.bus_address() + self.start as u64
    }

    /// Where `bytes` bytes from `offset` on begin in the memory.
    fn at(&self, offset: u64, bytes: u64) -> Result<usize, DeviceError> {
        let end = offset.checked_add(bytes);
        if !offset.is_multiple_of(8) || !bytes.is_multiple_of(8) || end.is_none_or(|end| end > self.bytes) {
            return Err(DeviceError::OutOfBounds { what: self.name, offset, bytes, size: self.bytes });
        }
        Ok(self.start + offset as usize)
    }

    /// Writes bytes, of which the last word is filled up with 0.
    ///
    /// # Errors
    /// `OutOfBounds` if they do not lie in the region, or `offset` is not 8-byte aligned.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let start = self.at(offset, (bytes.len() as u64).next_multiple_of(8))?;
        for (place, eight) in (start..).step_by(8).zip(bytes.chunks(8)) {
            let mut word = [0; 8];
            word[..eight.len()].copy_from_slice(eight);
            self.memory.word64(place)?.store(u64::from_le_bytes(word), Ordering::Relaxed);
        }
        Ok(())
    }

    /// Reads bytes.
    ///
    /// # Errors
    /// As [`write`](Self::write), and if they are no whole words.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        let start = self.at(offset, out.len() as u64)?;
        for (place, eight) in (start..).step_by(8).zip(out.chunks_exact_mut(8)) {
            eight.copy_from_slice(&self.memory.word64(place)?.load(Ordering::Relaxed).to_le_bytes());
        }
        Ok(())
    }
}

/// The memory of engine 1 that a queue pair has laid out.
#[derive(Clone, Debug)]
pub struct LanguageRegions {
    /// Models, of the function.
    pub model: WordRegion,
    /// Sequences, of the queue pair: its KV region.
    pub sequences: WordRegion,
    /// Blocks of keys and values, of the function.
    pub arenas: [WordRegion; ARENAS as usize],
}

impl LanguageRegions {
    /// Reads the block table of the sequence at `kv_offset`.
    ///
    /// # Errors
    /// `OutOfBounds` if it does not lie in the KV region.
    pub fn table(&self, kv_offset: u64) -> Result<Vec<u32>, DeviceError> {
        let mut record = [0; size_of::<HwSequence>()];
        self.sequences.read(kv_offset, &mut record)?;
        let entries = cast::<_, HwSequence>(record).entries as usize;
        // Beyond the region it is refused before memory is taken for it.
        self.sequences.at(kv_offset + 64, (4 * entries as u64).next_multiple_of(8))?;
        let mut table = vec![0; entries.next_multiple_of(2)];
        self.sequences.read(kv_offset + 64, cast_slice_mut(&mut table))?;
        table.truncate(entries);
        Ok(table)
    }

    /// Writes a sequence and its block table to `kv_offset`, for a descriptor that is published later to read (R26). What
    /// `entries` and `check` say is set.
    ///
    /// # Errors
    /// `OutOfBounds` if they do not lie in the KV region, or `kv_offset` is not 8-byte aligned.
    pub fn place_sequence(
        &self,
        kv_offset: u64,
        sequence: HwSequence,
        table: &[u32],
    ) -> Result<(), DeviceError> {
        let sequence = HwSequence { entries: table.len() as u32, ..sequence }.seal();
        self.sequences.write(kv_offset.saturating_add(64), cast_slice(table))?;
        self.sequences.write(kv_offset, &cast::<_, [u8; 64]>(sequence))
    }
}

/// Bytes of a sequence with a table of so many blocks, to the next multiple of 64.
pub const fn sequence_bytes(blocks: u64) -> u64 {
    (size_of::<HwSequence>() as u64 + 4 * blocks).next_multiple_of(64)
}

/// What a POLICY of engine 1 loads, as the words that go to its `delta_offset` of the token region (R25).
pub fn language_policy(version: u16, image: &HwImage) -> [u32; 32] {
    let mut words = [0; 32];
    let header = HwPolicy::new(version, 1, 0, size_of::<HwImage>() as u32);
    words[..4].copy_from_slice(&cast::<_, [u32; 4]>(header));
    words[16..].copy_from_slice(&cast::<_, [u32; 16]>(*image));
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::PAGE;
    use doorbell_contract::TOKEN_NONE;

    #[test]
    fn r11_accesses_stay_within_the_region() {
        let memory = SharedMemory::allocate(2 * PAGE, 0).unwrap();
        let region = WordRegion::new(memory.clone(), "arena 0", 64, 4000).unwrap();
        region.write(3992, &[1, 2, 3]).unwrap();
        let mut out = [9; 8];
        region.read(3992, &mut out).unwrap();
        assert_eq!(out, [1, 2, 3, 0, 0, 0, 0, 0]);
        for (offset, bytes) in [(3992, 9), (4000, 1), (4, 8), (u64::MAX - 7, 8)] {
            let error = region.write(offset, &vec![0; bytes]).unwrap_err();
            assert!(matches!(error, DeviceError::OutOfBounds { what: "arena 0", size: 4000, .. }), "{error}");
        }
        assert!(region.read(0, &mut [0; 7]).is_err());
        assert!(WordRegion::new(memory.clone(), "arena 0", 4, 8).is_err());
        assert!(WordRegion::new(memory, "arena 0", 8, 2 * PAGE as u64).is_err());
    }

    #[test]
    fn r25_r26_records_lie_where_the_contract_has_them() {
        assert_eq!(
            [sequence_bytes(0), sequence_bytes(1), sequence_bytes(16), sequence_bytes(17)],
            [64, 128, 128, 192]
        );
        let image = HwImage { offset: 64, end_0: TOKEN_NONE, ..HwImage::default() }.seal();
        let words = language_policy(7, &image);
        assert_eq!(
            (words[0], words[2], words[4], words[16], words[27]),
            (0x0001_0007, 64, 0, 64, TOKEN_NONE)
        );
        assert!(cast::<[u32; 4], HwPolicy>(words[..4].try_into().unwrap()).verify());

        let memory = SharedMemory::allocate(PAGE, 0).unwrap();
        let region = |name| WordRegion::new(memory.clone(), name, 0, PAGE as u64).unwrap();
        let regions = LanguageRegions {
            model: region("model"),
            sequences: region("sequences"),
            arenas: [(); 4].map(|()| region("arena")),
        };
        regions
            .place_sequence(128, HwSequence { sharpness: 3, ..HwSequence::default() }, &[5, 6, 7])
            .unwrap();
        let mut bytes = [0; 80];
        regions.sequences.read(128, &mut bytes).unwrap();
        let sequence: HwSequence = bytemuck::pod_read_unaligned(&bytes[..64]);
        assert!(sequence.verify() && (sequence.sharpness, sequence.entries) == (3, 3));
        assert_eq!(regions.table(128).unwrap(), [5, 6, 7]);
        assert!(regions.table(PAGE as u64).is_err());
        assert_eq!(bytes[64..], [5, 0, 0, 0, 6, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
        assert!(regions.place_sequence(PAGE as u64 - 64, sequence, &[1]).is_err());
    }
}
