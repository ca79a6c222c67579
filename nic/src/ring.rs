//! The send ring: one agent's finishers post entries into it, and the NIC takes them in order (W1 to W8).
//!
//! The text is written over [`Cell`], so that `tests/loom.rs` runs these very functions on loom's atomics.

use std::sync::atomic::{AtomicU64, Ordering};

use bytemuck::cast;
use doorbell_contract::{
    DIGEST_INIT, DIGEST_PRIME, HwDesc, HwNicEntry, NIC_BELL_AT, NIC_COMPLETED_AT, NIC_FAULT_AT,
    NIC_LENGTH_MAX, NIC_SLOTS_AT, NicFault, NicFlags, NicOpcode, SqKey,
};
use doorbell_host::{DeviceError, SharedMemory, queue::Depth};

use Ordering::{Acquire, Relaxed, Release};

/// 64-bit words of an entry.
pub const ENTRY_WORDS: usize = size_of::<HwNicEntry>() / 8;

/// Seed that a ring's key is mixed with: an entry of a send ring is no descriptor of a queue with the same key (W2).
const KEY: u32 = 0x4E49_4331;

/// A 64-bit word that several agents access.
pub trait Cell {
    /// Reads it.
    fn load(&self, order: Ordering) -> u64;
    /// Writes it.
    fn store(&self, value: u64, order: Ordering);
    /// Adds to it in one step.
    fn add(&self, value: u64, order: Ordering);
    /// Replaces `current` by `new` in one step, without an order; else what it holds. It may fail without a reason.
    ///
    /// # Errors
    /// What it holds.
    fn replace(&self, current: u64, new: u64) -> Result<u64, u64>;
}

impl Cell for AtomicU64 {
    #[inline]
    fn load(&self, order: Ordering) -> u64 {
        AtomicU64::load(self, order)
    }

    #[inline]
    fn store(&self, value: u64, order: Ordering) {
        AtomicU64::store(self, value, order);
    }

    #[inline]
    fn add(&self, value: u64, order: Ordering) {
        self.fetch_add(value, order);
    }

    #[inline]
    fn replace(&self, current: u64, new: u64) -> Result<u64, u64> {
        self.compare_exchange_weak(current, new, Relaxed, Relaxed)
    }
}

/// The words of a send ring's memory.
pub trait Words {
    /// What a word is.
    type Cell: Cell;
    /// The word at byte `at`, which a ring of this depth has.
    fn word(&self, at: usize) -> &Self::Cell;
}

/// A send ring in shared memory.
#[derive(Clone, Debug)]
pub struct RingMemory {
    memory: SharedMemory,
    offset: usize,
}

impl Words for RingMemory {
    type Cell = AtomicU64;

    #[inline]
    fn word(&self, at: usize) -> &AtomicU64 {
        match self.memory.word64(self.offset + at) {
            Ok(word) => word,
            Err(error) => unreachable!("a ring asks for its own words, which lie in the block: {error}"),
        }
    }
}

/// Bytes of a ring of `depth` slots.
pub const fn ring_bytes(depth: Depth) -> usize {
    NIC_SLOTS_AT as usize + size_of::<HwNicEntry>() * depth.slots() as usize
}

/// What both sides know of a ring: where it is, how many slots it has, its key.
#[derive(Clone, Debug)]
pub struct SendRing<W = RingMemory> {
    words: W,
    depth: Depth,
    key: SqKey,
}

impl SendRing {
    /// The ring at byte `offset` of `memory`, empty: every word of it is cleared, so that no slot is an entry.
    ///
    /// # Errors
    /// `OutOfBounds` if it does not lie in the block, or is not aligned to 64 bytes.
    pub fn new(memory: &SharedMemory, offset: usize, depth: Depth, key: u32) -> Result<Self, DeviceError> {
        let bytes = ring_bytes(depth);
        let lies =
            offset.is_multiple_of(64) && memory.len().checked_sub(bytes).is_some_and(|last| offset <= last);
        if !lies {
            let (offset, bytes, size) = (offset as u64, bytes as u64, memory.len() as u64);
            return Err(DeviceError::OutOfBounds { what: "memory of a send ring", offset, bytes, size });
        }
        Ok(Self::over(RingMemory { memory: memory.clone(), offset }, depth, key))
    }
}

impl<W: Words> SendRing<W> {
    /// The ring over `words`, which it clears.
    pub fn over(words: W, depth: Depth, key: u32) -> Self {
        for at in (0..ring_bytes(depth)).step_by(8) {
            words.word(at).store(0, Relaxed);
        }
        Self { words, depth, key: SqKey::new(key ^ KEY) }
    }

    /// Number of slots.
    pub fn depth(&self) -> Depth {
        self.depth
    }

    /// What its entries are sealed with.
    pub fn key(&self) -> &SqKey {
        &self.key
    }

    #[inline]
    fn slot(&self, index: u64, word: usize) -> &W::Cell {
        let slot = self.depth.slot(index as u32) as usize;
        self.words.word(NIC_SLOTS_AT as usize + size_of::<HwNicEntry>() * slot + 8 * word)
    }

    /// Entries that the NIC has completed: whoever sees an index below it may reuse slot and payload (W7).
    #[inline]
    pub fn completed(&self) -> u64 {
        self.words.word(NIC_COMPLETED_AT as usize).load(Acquire)
    }

    /// Why the ring stopped (W8), if it has.
    #[inline]
    pub fn fault(&self) -> Option<NicFault> {
        match self.words.word(NIC_FAULT_AT as usize).load(Acquire) {
            0 => None,
            code => Some(
                u8::try_from(code).ok().and_then(|c| NicFault::try_from(c).ok()).unwrap_or(NicFault::Closed),
            ),
        }
    }
}

/// The check word (W2) of an entry in the slot of running index `index`: R2's, with the ring's key.
#[inline]
pub fn check_for(entry: &HwNicEntry, key: &SqKey, index: u64) -> u32 {
    cast::<HwNicEntry, HwDesc>(*entry).check_for(key, index as u32)
}

/// This entry as it stands in the slot of running index `index`.
#[inline]
pub fn seal(entry: HwNicEntry, key: &SqKey, index: u64) -> HwNicEntry {
    let entry = HwNicEntry { index: index as u32, check: 0, ..entry };
    HwNicEntry { check: check_for(&entry, key, index), ..entry }
}

/// An entry that carries `length` bytes at `offset` of the payload region.
pub fn send(user_data: u64, offset: u64, length: u32) -> HwNicEntry {
    HwNicEntry { opcode: NicOpcode::Send as u8, user_data, offset, length, ..HwNicEntry::default() }
}

/// The digest of a payload (W4): that of a descriptor's tokens, over the payload's 32-bit words, of which the last is filled up
/// with zeros.
pub fn digest(words: impl IntoIterator<Item = u32>) -> u32 {
    words.into_iter().fold(DIGEST_INIT, |digest, word| (digest ^ word).wrapping_mul(DIGEST_PRIME))
}

/// The 32-bit words of a payload, the last one filled up with zeros.
pub fn words(payload: &[u8]) -> impl Iterator<Item = u32> + '_ {
    let (whole, rest) = payload.as_chunks::<4>();
    let last = (!rest.is_empty()).then(|| {
        let mut word = [0; 4];
        word[..rest.len()].copy_from_slice(rest);
        u32::from_le_bytes(word)
    });
    whole.iter().map(|word| u32::from_le_bytes(*word)).chain(last)
}

/// Why an entry was not posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostError {
    /// No slot is free.
    #[error("every slot of the send ring has an entry that is not completed; post again when one is")]
    Full,
    /// The ring has stopped.
    #[error(
        "the send ring stopped with {0}: its entries from the count of completed ones on were not carried; begin another ring"
    )]
    Stopped(NicFault),
}

/// The agent's side of a ring: its finishers share it by reference (W3).
#[derive(Debug)]
pub struct Agent<W: Words = RingMemory> {
    ring: SendRing<W>,
    /// Slots that finishers have taken. It is the agent's own, and 64 bits wide: no exchange takes a count for one of 2^32 entries
    /// before.
    reserved: W::Cell,
}

impl Agent {
    /// The only agent of this ring.
    pub fn new(ring: SendRing) -> Self {
        Self::with(ring, AtomicU64::new(0))
    }
}

impl<W: Words> Agent<W> {
    /// As [`new`](Agent::new), with the cell that counts the slots taken, which is 0.
    pub fn with(ring: SendRing<W>, reserved: W::Cell) -> Self {
        Self { ring, reserved }
    }

    /// The ring.
    pub fn ring(&self) -> &SendRing<W> {
        &self.ring
    }

    /// Posts `entry`, whose payload is written, and returns its running index. Nobody waits for another finisher.
    ///
    /// # Errors
    /// `Full`, or `Stopped`.
    pub fn post(&self, entry: HwNicEntry) -> Result<u64, PostError> {
        let index = self.reserve()?;
        self.publish(index, entry);
        Ok(index)
    }

    /// Takes a slot. Whoever takes one publishes it.
    ///
    /// # Errors
    /// As [`post`](Self::post).
    pub fn reserve(&self) -> Result<u64, PostError> {
        let mut at = self.reserved.load(Relaxed);
        loop {
            if let Some(fault) = self.ring.fault() {
                return Err(PostError::Stopped(fault));
            }
            // Acquired by the thread that writes the slot: the NIC read it before.
            let completed = self.ring.completed();
            // A count that others have raised since may lie below `completed`. The exchange fails then, and brings the newest.
            if at.wrapping_sub(completed) as i64 >= i64::from(self.ring.depth.slots()) {
                return Err(PostError::Full);
            }
            match self.reserved.replace(at, at.wrapping_add(1)) {
                Ok(_) => return Ok(at),
                Err(newest) => at = newest,
            }
        }
    }

    /// Writes the entry into a slot that was reserved, then publishes it, then rings.
    pub fn publish(&self, index: u64, entry: HwNicEntry) {
        let words: [u64; ENTRY_WORDS] = cast(seal(entry, &self.ring.key, index));
        for (word, value) in words[..ENTRY_WORDS - 1].iter().enumerate() {
            self.ring.slot(index, word).store(*value, Relaxed);
        }
        self.ring.slot(index, ENTRY_WORDS - 1).store(words[ENTRY_WORDS - 1], Release);
        // One step that adds: a store would take back the bell of another finisher, whose entry would lie there until the next one.
        self.ring.words.word(NIC_BELL_AT as usize).add(1, Release);
    }
}

/// What the NIC found in the slot that is next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Looked {
    /// Nobody has rung for anything that was not taken.
    Quiet,
    /// Somebody has, and the next slot is not published yet: its finisher is late.
    Late,
    /// The next entry.
    Entry(u64, HwNicEntry),
}

/// The NIC's side of a ring.
#[derive(Debug)]
pub struct Taker<W = RingMemory> {
    ring: SendRing<W>,
    /// Running index of the next entry to take.
    next: u64,
    completed: u64,
}

impl<W: Words> Taker<W> {
    /// The only NIC of this ring.
    pub fn new(ring: SendRing<W>) -> Self {
        Self { ring, next: 0, completed: 0 }
    }

    /// The ring.
    pub fn ring(&self) -> &SendRing<W> {
        &self.ring
    }

    /// Entries taken and not completed.
    pub fn outstanding(&self) -> u64 {
        self.next - self.completed
    }

    /// Entries that were rung for and are not completed.
    pub fn waiting(&self) -> u64 {
        self.ring.words.word(NIC_BELL_AT as usize).load(Acquire).saturating_sub(self.completed)
    }

    /// Looks at the bell, and if it was rung for something, at the next slot (W5). What it returns is a copy: no byte of a slot is
    /// read again.
    ///
    /// # Errors
    /// `BadCheck` if the slot was published and is not whole.
    pub fn look(&mut self) -> Result<Looked, NicFault> {
        let rung = self.ring.words.word(NIC_BELL_AT as usize).load(Acquire);
        if rung == self.next {
            return Ok(Looked::Quiet);
        }
        let index = self.next;
        let last = self.ring.slot(index, ENTRY_WORDS - 1).load(Acquire);
        // Of a slot's life before the index is another, and of cleared memory the check word is 0, which no entry has.
        if last as u32 != index as u32 || last >> 32 == 0 {
            // A bell that lags behind what was taken rings later, and nobody is waited for.
            return Ok(if rung > self.next { Looked::Late } else { Looked::Quiet });
        }
        let mut words = [0; ENTRY_WORDS];
        for (word, value) in words[..ENTRY_WORDS - 1].iter_mut().enumerate() {
            *value = self.ring.slot(index, word).load(Relaxed);
        }
        words[ENTRY_WORDS - 1] = last;
        let entry: HwNicEntry = cast(words);
        if entry.check != check_for(&entry, &self.ring.key, index) {
            return Err(NicFault::BadCheck);
        }
        self.next += 1;
        Ok(Looked::Entry(index, entry))
    }

    /// Gives back the last entry that was taken: it is not carried.
    pub fn put_back(&mut self) {
        debug_assert!(self.outstanding() > 0);
        self.next -= 1;
    }

    /// Completes the next `count` entries: their slots and payloads are the agent's again.
    pub fn complete(&mut self, count: u64) {
        debug_assert!(count <= self.outstanding());
        self.completed += count;
        self.ring.words.word(NIC_COMPLETED_AT as usize).store(self.completed, Release);
    }

    /// Stops the ring, once all entries before the one that is at fault are completed (W8).
    pub fn stop(&mut self, fault: NicFault) {
        self.ring.words.word(NIC_FAULT_AT as usize).store(u64::from(fault as u8), Release);
    }
}

/// What is wrong with an entry that is whole, beside its payload (W4).
///
/// # Errors
/// The fault.
pub fn judge(entry: &HwNicEntry, region_bytes: u64) -> Result<(), NicFault> {
    if NicOpcode::try_from(entry.opcode).is_err() {
        return Err(NicFault::BadOpcode);
    }
    let flags = NicFlags::from_bits(entry.flags).ok_or(NicFault::ReservedSet)?;
    let unused = !flags.contains(NicFlags::DIGEST) && entry.digest != 0;
    if entry.reserved_0 != 0 || entry.reserved_1 != 0 || unused {
        return Err(NicFault::ReservedSet);
    }
    if entry.length > NIC_LENGTH_MAX {
        return Err(NicFault::BadLength);
    }
    // Whole words are read.
    let end = entry.offset.checked_add(u64::from(entry.length).next_multiple_of(4));
    if !entry.offset.is_multiple_of(4) || end.is_none_or(|end| end > region_bytes) {
        return Err(NicFault::BadRegion);
    }
    Ok(())
}
