//! Memory that host and device share. All `unsafe` of this crate is here, and in the calls of [`placement`](crate::placement).
//!
//! The other side may be another agent (a GPU, a thread), so every access is atomic: records are written with
//! relaxed stores and one release store of their last word, and read with one acquire load of it. Whoever sees the
//! last word (the check word, R2; the phase, R4) therefore sees the record.
//!
//! Records are accessed in 64-bit words and tokens in 32-bit words, by everybody: the memory models promise nothing where
//! sizes differ. In builds with debug assertions every access is held against the first of the same bytes, and one of
//! another size panics.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::error::DeviceError;
use crate::placement::{Account, Placement};

const _: () = assert!(usize::BITS >= 32, "a block of shared memory has megabytes");

/// Alignment of a shared block and of the regions in it, in bytes.
pub const PAGE: usize = 4096;

/// Where simulated devices see the block: fixed, so that runs and waveforms can be reproduced, and above 4 GiB, so
/// that the high halves of addresses are used.
pub const SIMULATED_BUS_ADDRESS: u64 = 0x0000_0012_0000_0000;

/// One contiguous, 4-KiB aligned block with a host pointer and a bus address. Clones share the block.
#[derive(Clone)]
pub struct SharedMemory {
    base: NonNull<u8>,
    len: usize,
    bus_address: u64,
    _owner: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the block lives as long as `_owner`, which may be held and dropped on any thread, and all access through
// `&self` is atomic.
unsafe impl Send for SharedMemory {}
// SAFETY: as above.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// A zeroed block of at least `bytes` bytes (rounded up to [`PAGE`]) that the device sees at `bus_address`. Pages
    /// take memory only once they are touched.
    ///
    /// # Errors
    /// `Config` if `bus_address` is misaligned or the block would wrap the address space; `Memory` if the system
    /// refuses.
    pub fn allocate(bytes: usize, bus_address: u64) -> Result<Self, DeviceError> {
        Self::placed(bytes, bus_address, &Placement::default())
    }

    /// The same, placed as `placement` says.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate); `Placement` with what the machine lacks, and what to do, if the block cannot be placed so.
    pub fn placed(bytes: usize, bus_address: u64, placement: &Placement) -> Result<Self, DeviceError> {
        let refused = |reason: String| match placement.is_default() {
            true => DeviceError::Memory { bytes, reason },
            false => DeviceError::Placement { bytes, placement: *placement, reason },
        };
        let len = bytes
            .max(1)
            .checked_next_multiple_of(PAGE)
            .filter(|&len| isize::try_from(len).is_ok())
            .ok_or_else(|| refused("the size overflows".into()))?;
        let (base, owner) = zeroed::pages(len, placement).map_err(refused)?;
        widths::forget(base, len);
        // SAFETY: the pages are `len` bytes, aligned, readable and writable, live in the owner, and only this block refers
        // to them.
        unsafe { Self::from_raw_parts(base, len, bus_address, owner) }
    }

    /// A block that somebody else mapped, kept alive by `owner`.
    ///
    /// # Errors
    /// `Config` if base, length or bus address is no multiple of [`PAGE`], or the block would wrap the address space.
    ///
    /// # Safety
    /// `base` must point to `len` bytes that stay readable and writable as long as `owner` lives, and that nobody on
    /// the host accesses other than through this block and its clones, or atomically.
    pub unsafe fn from_raw_parts(
        base: NonNull<u8>,
        len: usize,
        bus_address: u64,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Result<Self, DeviceError> {
        let aligned = |field, value: u64| match value % PAGE as u64 {
            0 => Ok(()),
            _ => Err(DeviceError::Config { field, value, expected: format!("a multiple of {PAGE}") }),
        };
        aligned("host pointer of the shared memory", base.addr().get() as u64)?;
        aligned("length of the shared memory", len as u64)?;
        aligned("bus address of the shared memory", bus_address)?;
        if bus_address.checked_add(len as u64).is_none() {
            return Err(DeviceError::Config {
                field: "bus address of the shared memory",
                value: bus_address,
                expected: format!("at most 2^64 - {len:#x}"),
            });
        }
        Ok(Self { base, len, bus_address, _owner: owner })
    }

    /// Length in bytes, a multiple of [`PAGE`].
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the block is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What the kernel says of the block: pages, locks, nodes. Reads `/proc`.
    ///
    /// # Errors
    /// What the system answers where it does not tell; on other systems than Linux `Unsupported`.
    pub fn account(&self) -> std::io::Result<Account> {
        Self::account_of([self])
    }

    /// The same of several blocks together, which may be [parts](Self::part) of one mapping, or lie over each other.
    ///
    /// # Errors
    /// As [`account`](Self::account).
    #[cfg(target_os = "linux")]
    pub fn account_of<'a>(blocks: impl IntoIterator<Item = &'a Self>) -> std::io::Result<Account> {
        let addresses = |block: &Self| block.base.addr().get()..block.base.addr().get() + block.len;
        crate::placement::account(&blocks.into_iter().map(addresses).collect::<Vec<_>>())
    }

    /// The same of several blocks together: no other system than Linux tells.
    ///
    /// # Errors
    /// `Unsupported`.
    #[cfg(not(target_os = "linux"))]
    pub fn account_of<'a>(_blocks: impl IntoIterator<Item = &'a Self>) -> std::io::Result<Account> {
        Err(std::io::ErrorKind::Unsupported.into())
    }

    /// Where the device sees the block.
    pub fn bus_address(&self) -> u64 {
        self.bus_address
    }

    /// Where the host sees the block, for a bridge to hand on. It is valid while this block or a clone of it lives.
    pub fn host_pointer(&self) -> NonNull<u8> {
        self.base
    }

    /// The `len` bytes at `offset` as a block of their own, which keeps the whole alive.
    ///
    /// # Errors
    /// `OutOfBounds` if they do not lie in the block; `Config` if they are not aligned to [`PAGE`].
    pub fn part(&self, offset: usize, len: usize) -> Result<Self, DeviceError> {
        let base = self.checked(offset, len, PAGE).ok_or_else(|| self.out_of_bounds(offset, len))?;
        // SAFETY: `checked` made sure that the bytes lie in the block, which the owner keeps and whose accesses, through
        // this block or that, are all atomic.
        unsafe { Self::from_raw_parts(base, len, self.bus_address + offset as u64, self._owner.clone()) }
    }

    /// Accepts words of any size in this block from now on, until it is [cleared](Self::clear): for callers that overlay
    /// regions on purpose. Has an effect only in builds with debug assertions.
    pub fn expect_any_words(&self) {
        widths::allow(self.base, self.len);
    }

    /// The 32-bit word at `offset`.
    ///
    /// # Errors
    /// `OutOfBounds` if it does not lie in the block or is not 4-byte aligned.
    #[inline]
    pub fn word32(&self, offset: usize) -> Result<&AtomicU32, DeviceError> {
        self.words32(offset, 1).map(|words| &words[0]).ok_or_else(|| self.out_of_bounds(offset, 4))
    }

    /// The 64-bit word at `offset`.
    ///
    /// # Errors
    /// `OutOfBounds` if it does not lie in the block or is not 8-byte aligned.
    #[inline]
    pub fn word64(&self, offset: usize) -> Result<&AtomicU64, DeviceError> {
        self.array::<1>(offset, 1).map(|words| &words[0][0]).ok_or_else(|| self.out_of_bounds(offset, 8))
    }

    /// Zeroes the block, which nobody else may access meanwhile. After this its words may have other sizes than before.
    pub fn clear(&self) {
        widths::forget(self.base, self.len);
        // `from_raw_parts` made sure that the block is whole words.
        for word in self.array::<1>(0, self.len / 8).into_iter().flatten() {
            word[0].store(0, Ordering::Relaxed);
        }
        widths::forget(self.base, self.len);
    }

    /// As a device reads a record of `N` 64-bit words at bus address `address`: the last word with acquire order, then
    /// the others.
    ///
    /// # Errors
    /// `BusFault` if the record does not lie in the block or is not 8-byte aligned (R11).
    #[inline]
    pub fn bus_read<const N: usize>(&self, address: u64, out: &mut [u64; N]) -> Result<(), BusFault> {
        self.array::<N>(self.offset_of(address), 1)
            .ok_or(BusFault)
            .map(|slots| Slots { slots, mask: 0 }.load(0, out))
    }

    /// As a device writes a record of `N` 64-bit words at bus address `address`: the last word behind the others, with
    /// release order.
    ///
    /// # Errors
    /// As [`bus_read`](Self::bus_read).
    #[inline]
    pub fn bus_write<const N: usize>(&self, address: u64, words: [u64; N]) -> Result<(), BusFault> {
        let slots = self.array::<N>(self.offset_of(address), 1).ok_or(BusFault)?;
        Slots { slots, mask: 0 }.store(0, words);
        Ok(())
    }

    /// As a device writes one 32-bit word at bus address `address`.
    ///
    /// # Errors
    /// `BusFault` if the word does not lie in the block or is not 4-byte aligned (R11).
    #[inline]
    pub fn bus_write_u32(&self, address: u64, value: u32) -> Result<(), BusFault> {
        let words = self.words32(self.offset_of(address), 1).ok_or(BusFault)?;
        words[0].store(value, Ordering::Relaxed);
        Ok(())
    }

    /// As a device sends the message of an interrupt (R14): what it wrote before is visible to whoever sees the message.
    ///
    /// # Errors
    /// As [`bus_write_u32`](Self::bus_write_u32).
    pub fn bus_send(&self, address: u64, data: u32) -> Result<(), BusFault> {
        let words = self.words32(self.offset_of(address), 1).ok_or(BusFault)?;
        words[0].store(data, Ordering::Release);
        Ok(())
    }

    /// As a device reads one 32-bit word at bus address `address`.
    ///
    /// # Errors
    /// As [`bus_write_u32`](Self::bus_write_u32).
    #[inline]
    pub fn bus_read_u32(&self, address: u64) -> Result<u32, BusFault> {
        let words = self.words32(self.offset_of(address), 1).ok_or(BusFault)?;
        Ok(words[0].load(Ordering::Relaxed))
    }

    /// What lies below the block wraps to far behind it, and so does what a 32-bit offset does not reach.
    #[inline]
    fn offset_of(&self, address: u64) -> usize {
        usize::try_from(address.wrapping_sub(self.bus_address)).unwrap_or(usize::MAX)
    }

    /// Copies 32-bit words out.
    ///
    /// # Errors
    /// `OutOfBounds` if the words do not lie in the block or are not 4-byte aligned.
    pub fn load_u32s(&self, offset: usize, out: &mut [u32]) -> Result<(), DeviceError> {
        let words = self
            .words32(offset, out.len())
            .ok_or_else(|| self.out_of_bounds(offset, out.len().saturating_mul(4)))?;
        for (out, word) in out.iter_mut().zip(words) {
            *out = word.load(Ordering::Relaxed);
        }
        Ok(())
    }

    /// Copies 32-bit words in.
    ///
    /// # Errors
    /// As [`load_u32s`](Self::load_u32s).
    pub fn store_u32s(&self, offset: usize, values: &[u32]) -> Result<(), DeviceError> {
        let words = self
            .words32(offset, values.len())
            .ok_or_else(|| self.out_of_bounds(offset, values.len().saturating_mul(4)))?;
        for (word, value) in words.iter().zip(values) {
            word.store(*value, Ordering::Relaxed);
        }
        Ok(())
    }

    /// A ring of `count` slots of `N` 64-bit words each.
    ///
    /// # Errors
    /// `OutOfBounds` if it does not lie in the block or is not 8-byte aligned; `RingDepth` if `count` is no power of
    /// two.
    #[inline]
    pub fn slots<const N: usize>(&self, offset: usize, count: u32) -> Result<Slots<'_, N>, DeviceError> {
        if !count.is_power_of_two() {
            return Err(DeviceError::RingDepth { field: "ring", value: count });
        }
        self.records(offset, count)
    }

    /// A ring of `count` records, a power of two. Apart from the check of that, as the compiler then makes less of a round trip of either (`cargo xtask perf`).
    #[inline]
    fn records<const N: usize>(&self, offset: usize, count: u32) -> Result<Slots<'_, N>, DeviceError> {
        let slots = self
            .array(offset, count as usize)
            .ok_or_else(|| self.out_of_bounds(offset, (count as usize).saturating_mul(8 * N)))?;
        Ok(Slots { slots, mask: count - 1 })
    }

    /// `count` records at `offset`, if they lie in the block and are aligned.
    #[inline]
    fn array<const N: usize>(&self, offset: usize, count: usize) -> Option<&[[AtomicU64; N]]> {
        const { assert!(N > 0, "a record has a last word") };
        let pointer = self.checked(offset, count.checked_mul(8 * N)?, align_of::<AtomicU64>())?;
        widths::note(pointer, 8 * N * count, 64);
        // SAFETY: `checked` made sure that `count` records of `N` words lie in the block, aligned; the block outlives
        // the borrow of `self`, is only accessed atomically, and `[AtomicU64; N]` has the layout of `[u64; N]`.
        Some(unsafe { std::slice::from_raw_parts(pointer.cast::<[AtomicU64; N]>().as_ptr(), count) })
    }

    /// `count` words at `offset`, if they lie in the block and are aligned.
    #[inline]
    fn words32(&self, offset: usize, count: usize) -> Option<&[AtomicU32]> {
        let pointer = self.checked(offset, count.checked_mul(4)?, align_of::<AtomicU32>())?;
        widths::note(pointer, 4 * count, 32);
        // SAFETY: `checked` made sure that `count` words lie in the block, aligned; the block outlives the borrow of
        // `self` and is only accessed atomically.
        Some(unsafe { std::slice::from_raw_parts(pointer.cast::<AtomicU32>().as_ptr(), count) })
    }

    /// The pointer to `bytes` bytes at `offset`, if they lie in the block and are aligned.
    #[inline]
    fn checked(&self, offset: usize, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        if !offset.is_multiple_of(align) || bytes > self.len || offset > self.len - bytes {
            return None;
        }
        // SAFETY: `offset` is at most `len`, so the result lies in, or one past, the block.
        Some(unsafe { self.base.add(offset) })
    }

    #[cold]
    fn out_of_bounds(&self, offset: usize, bytes: usize) -> DeviceError {
        DeviceError::OutOfBounds {
            what: "shared memory",
            offset: offset as u64,
            bytes: bytes as u64,
            size: self.len as u64,
        }
    }
}

/// Zeroed pages from the system, which takes memory for them only once they are touched, if nothing else is asked for.
#[cfg(target_os = "linux")]
mod zeroed {
    use super::{Any, Arc, NonNull, Placement};

    /// `len` bytes, a multiple of a page, and who keeps them.
    pub fn pages(
        len: usize,
        placement: &Placement,
    ) -> Result<(NonNull<u8>, Arc<dyn Any + Send + Sync>), String> {
        let (base, map) = crate::placement::map(len, placement)?;
        Ok((base, Arc::new(map)))
    }
}

/// The same of another system, which is asked for nothing else.
#[cfg(not(any(target_os = "linux", target_os = "emscripten")))]
mod zeroed {
    use super::{Any, Arc, NonNull, Placement};

    /// `len` bytes, a multiple of a page, and who keeps them.
    pub fn pages(
        len: usize,
        placement: &Placement,
    ) -> Result<(NonNull<u8>, Arc<dyn Any + Send + Sync>), String> {
        if !placement.is_default() {
            return Err("it is for Linux".to_owned());
        }
        let map = memmap2::MmapOptions::new().len(len).no_reserve_swap().map_anon();
        let mut map = map.map_err(|error| error.to_string())?;
        let base = NonNull::new(map.as_mut_ptr()).ok_or("null mapping")?;
        Ok((base, Arc::new(map)))
    }
}

/// Zeroed pages of the heap, in a browser, where nothing is mapped.
#[cfg(target_os = "emscripten")]
mod zeroed {
    use std::alloc::{Layout, alloc_zeroed, dealloc};

    use super::{Any, Arc, NonNull, PAGE, Placement};

    struct Pages(NonNull<u8>, Layout);

    // SAFETY: nobody has the pages but this and the block that it is the owner of, whose accesses are atomic.
    unsafe impl Send for Pages {}
    // SAFETY: as above.
    unsafe impl Sync for Pages {}

    impl Drop for Pages {
        fn drop(&mut self) {
            // SAFETY: `pages` allocated them with this layout.
            unsafe { dealloc(self.0.as_ptr(), self.1) }
        }
    }

    /// `len` bytes, a multiple of a page, and who keeps them.
    pub fn pages(
        len: usize,
        placement: &Placement,
    ) -> Result<(NonNull<u8>, Arc<dyn Any + Send + Sync>), String> {
        if !placement.is_default() {
            return Err("it is for Linux".to_owned());
        }
        let layout = Layout::from_size_align(len, PAGE).map_err(|error| error.to_string())?;
        // SAFETY: `len` is not 0, as `allocate` asks for at least a page.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or("the heap has no room")?;
        Ok((base, Arc::new(Pages(base, layout))))
    }
}

/// In which words each 8 bytes of shared memory are accessed.
#[cfg(debug_assertions)]
mod widths {
    use std::collections::HashMap;
    use std::ptr::NonNull;
    use std::sync::{LazyLock, Mutex, PoisonError};

    use super::PAGE;

    /// In place of the bits of words: any will do.
    const ANY: u8 = u8::MAX;

    /// By page, for each 8 bytes of it: bits of the words, or 0.
    static SEEN: LazyLock<Mutex<HashMap<usize, [u8; PAGE / 8]>>> = LazyLock::new(Mutex::default);

    /// Whoever asks for these bytes accesses them in words of `bits` bits.
    #[track_caller]
    pub fn note(base: NonNull<u8>, bytes: usize, bits: u8) {
        let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
        let (start, end) = (base.addr().get(), base.addr().get() + bytes);
        for page in start / PAGE..end.div_ceil(PAGE) {
            let cells = seen.entry(page).or_insert([0; PAGE / 8]);
            let (first, last) =
                (start.max(PAGE * page) % PAGE / 8, (end - PAGE * page).min(PAGE).div_ceil(8));
            for (cell, word) in cells[first..last].iter_mut().zip(first..).filter(|(cell, _)| **cell != ANY) {
                assert!(
                    *cell == 0 || *cell == bits,
                    "{:#x} is accessed in words of {bits} bits, and was in words of {cell}",
                    PAGE * page + 8 * word
                );
                *cell = bits;
            }
        }
    }

    /// These bytes, which are whole pages, may be accessed in any words.
    pub fn allow(base: NonNull<u8>, bytes: usize) {
        let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
        let pages = base.addr().get() / PAGE..(base.addr().get() + bytes).div_ceil(PAGE);
        seen.extend(pages.map(|page| (page, [ANY; PAGE / 8])));
    }

    /// These bytes start anew.
    pub fn forget(base: NonNull<u8>, bytes: usize) {
        let pages = base.addr().get() / PAGE..(base.addr().get() + bytes).div_ceil(PAGE);
        SEEN.lock().unwrap_or_else(PoisonError::into_inner).retain(|page, _| !pages.contains(page));
    }
}

#[cfg(not(debug_assertions))]
mod widths {
    use std::ptr::NonNull;

    #[inline(always)]
    pub fn note(_: NonNull<u8>, _: usize, _: u8) {}

    #[inline(always)]
    pub fn allow(_: NonNull<u8>, _: usize) {}

    #[inline(always)]
    pub fn forget(_: NonNull<u8>, _: usize) {}
}

/// The memory answers an access with an error (R11).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusFault;

impl std::fmt::Debug for SharedMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SharedMemory({:#x} bytes at bus address {:#x})", self.len, self.bus_address)
    }
}

/// A power-of-two ring of records in shared memory, addressed by free-running index (R13).
#[derive(Clone, Copy)]
pub struct Slots<'a, const N: usize> {
    slots: &'a [[AtomicU64; N]],
    mask: u32,
}

impl<const N: usize> Slots<'_, N> {
    #[inline]
    fn slot(&self, index: u32) -> &[AtomicU64; N] {
        &self.slots[(index & self.mask) as usize]
    }

    /// One word of the slot, with acquire order.
    #[inline]
    pub fn acquire(&self, index: u32, word: usize) -> u64 {
        self.slot(index)[word].load(Ordering::Acquire)
    }

    /// Reads the record in the slot into `out`, its last word first, with acquire order. (A record that is returned
    /// by value is copied once more, in wider words than were just stored, which stalls the processor.)
    #[inline]
    pub fn load(&self, index: u32, out: &mut [u64; N]) {
        let slot = self.slot(index);
        out[N - 1] = slot[N - 1].load(Ordering::Acquire);
        for (word, cell) in out[..N - 1].iter_mut().zip(slot) {
            *word = cell.load(Ordering::Relaxed);
        }
    }

    /// One word of the slot, with relaxed order.
    #[inline]
    pub fn word(&self, index: u32, word: usize) -> u64 {
        self.slot(index)[word].load(Ordering::Relaxed)
    }

    /// Writes the record into the slot, its last word behind the others, with release order.
    #[inline]
    pub fn store(&self, index: u32, words: [u64; N]) {
        let slot = self.slot(index);
        for (cell, word) in slot[..N - 1].iter().zip(words) {
            cell.store(word, Ordering::Relaxed);
        }
        slot[N - 1].store(words[N - 1], Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const BUS: u64 = 1 << 32;

    #[rstest]
    #[case::first(BUS, true)]
    #[case::last(BUS + 4096 - 16, true)]
    #[case::beyond(BUS + 4096 - 8, false)]
    #[case::misaligned(BUS + 4, false)]
    #[case::below(BUS - 8, false)]
    #[case::zero(0, false)]
    #[case::top(u64::MAX - 7, false)]
    fn r11_bus_accesses_are_contained(#[case] address: u64, #[case] contained: bool) {
        let memory = SharedMemory::allocate(1, BUS).unwrap();
        assert_eq!(memory.len(), PAGE);
        let written = [0x0102_0304_0506_0708, 0x1112_1314_1516_1718];
        assert_eq!(memory.bus_write(address, written).is_ok(), contained);
        let mut read = [0; 2];
        assert_eq!(memory.bus_read(address, &mut read).is_ok(), contained);
        assert_eq!(read == written, contained);
    }

    #[test]
    fn words_are_neighbours() {
        let memory = SharedMemory::allocate(PAGE, BUS).unwrap();
        for (address, word) in [(8, 0x1111_1111), (12, 0x2222_2222), (16, 0x3333_3333)] {
            memory.bus_write_u32(BUS + address, word).unwrap();
        }
        assert_eq!(memory.bus_write_u32(BUS + 4096, 0), Err(BusFault));
        assert_eq!(memory.bus_write_u32(BUS + 18, 0), Err(BusFault));
        let mut words = [0; 3];
        memory.load_u32s(8, &mut words).unwrap();
        assert_eq!(words, [0x1111_1111, 0x2222_2222, 0x3333_3333]);
        assert!(matches!(
            memory.load_u32s(PAGE - 8, &mut words),
            Err(DeviceError::OutOfBounds { offset: 4088, bytes: 12, size: 4096, .. })
        ));
        assert!(memory.load_u32s(usize::MAX - 3, &mut words).is_err());
        assert!(memory.load_u32s(PAGE, &mut []).is_ok());
    }

    #[test]
    #[cfg(debug_assertions)]
    fn words_of_two_sizes_on_the_same_bytes_are_told() {
        let mixed = |first: &dyn Fn(&SharedMemory), second: &dyn Fn(&SharedMemory)| {
            let memory = SharedMemory::allocate(2 * PAGE, BUS).unwrap();
            first(&memory);
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| second(&memory))).is_err()
        };
        let record = |memory: &SharedMemory| memory.bus_read(BUS + 4096 - 16, &mut [0; 4]).unwrap();
        let slot = |memory: &SharedMemory| memory.slots::<2>(4096, 2).unwrap().store(1, [1; 2]);
        let token =
            |address: u64| move |memory: &SharedMemory| memory.bus_write_u32(BUS + address, 1).unwrap();
        let tokens = |memory: &SharedMemory| memory.load_u32s(4096 - 8, &mut [0; 2]).unwrap();
        for (first, second, told) in [
            (&record as &dyn Fn(&SharedMemory), &token(4096 + 12) as &dyn Fn(&SharedMemory), true),
            (&record, &token(4096 + 16), false),
            (&record, &token(4096 - 20), false),
            (&record, &tokens, true),
            (&tokens, &record, true),
            (&tokens, &slot, false),
            (&slot, &token(4096 + 4), true),
        ] {
            assert_eq!(mixed(first, second), told);
            let cleared = |memory: &SharedMemory| (memory.clear(), second(memory)).1;
            assert!(!mixed(first, &cleared), "what starts anew may have other sizes");
            let expected = |memory: &SharedMemory| (memory.expect_any_words(), second(memory)).1;
            assert!(!mixed(first, &expected), "what was said to be expected");
            let again = |memory: &SharedMemory| {
                memory.expect_any_words();
                memory.clear();
                first(memory);
                second(memory);
            };
            assert_eq!(mixed(first, &again), told, "after a clear it is told again");
        }
    }

    #[test]
    fn huge_blocks_are_lazy_and_impossible_ones_are_errors() {
        let memory = SharedMemory::allocate(1 << 38, BUS).unwrap();
        memory.bus_write(BUS + (1 << 38) - 8, [1]).unwrap();
        assert!(matches!(SharedMemory::allocate(usize::MAX, BUS), Err(DeviceError::Memory { .. })));
        assert!(matches!(SharedMemory::allocate(1, 12), Err(DeviceError::Config { value: 12, .. })));
        assert!(SharedMemory::allocate(PAGE, u64::MAX - 4095).is_err());
    }

    /// Not every machine has huge pages or lets one lock: what is given is what was asked for, by the kernel's account, or an error
    /// that says what to do.
    #[rstest]
    #[case("touched", 0)]
    #[case("transparent", 2 << 20)]
    #[case("transparent+near+locked", 2 << 20)]
    #[case("reserved", 2 << 20)]
    #[case("locked", 0)]
    #[cfg(target_os = "linux")]
    fn a_block_is_placed_as_asked_or_not_at_all(#[case] text: &str, #[case] huge: u64) {
        let placement: Placement = text.parse().unwrap();
        let memory = match SharedMemory::placed(3 * PAGE, BUS, &placement) {
            Ok(memory) => memory,
            Err(DeviceError::Placement { reason, .. }) => {
                let told = ["vm.nr_hugepages=", "of 1 huge pages were had", "ulimit -l", "Linux 5.14"];
                return assert!(told.iter().any(|what| reason.contains(what)), "{reason}");
            }
            Err(other) => panic!("{other}"),
        };
        assert_eq!(memory.len(), 3 * PAGE, "rounding to huge pages changes nothing that the device sees");
        assert!(huge == 0 || memory.host_pointer().addr().get().is_multiple_of(2 << 20));
        let account = memory.account().unwrap();
        assert_eq!((account.resident, account.huge), (12 << 10, huge.min(12 << 10)), "{account}");
        // As several regions of a device lie in it.
        let parts = [0, 2, 1, 1].map(|page| memory.part(page * PAGE, PAGE).unwrap());
        assert_eq!(SharedMemory::account_of(&parts).unwrap(), account);
        assert!(!placement.locked || account.locked == 12 << 10, "{account}");
        memory.bus_write(BUS + 3 * PAGE as u64 - 8, [7]).unwrap();
        let mut word = [0];
        memory.bus_read(BUS + 3 * PAGE as u64 - 8, &mut word).unwrap();
        assert_eq!(word, [7]);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn what_a_machine_lacks_is_told() {
        let told = |text: &str| {
            let error = SharedMemory::placed(PAGE, BUS, &text.parse().unwrap()).unwrap_err();
            error.to_string()
        };
        assert!(told("node=1023").contains("there is no node 1023; nodes here: 0"), "{}", told("node=1023"));
    }

    #[test]
    fn r13_slots_wrap_with_the_index() {
        let memory = SharedMemory::allocate(PAGE, BUS).unwrap();
        let ring = memory.slots::<4>(0, 4).unwrap();
        for index in [u32::MAX - 1, u32::MAX, 0, 1] {
            ring.store(index, [u64::from(index); 4]);
        }
        let first = |index| {
            let mut words = [0; 4];
            ring.load(index, &mut words);
            words[0]
        };
        assert_eq!([2, 3, 4, 5].map(first), [u64::from(u32::MAX) - 1, u64::from(u32::MAX), 0, 1]);
        assert_eq!(ring.acquire(7, 3), u64::from(u32::MAX));
        assert!(matches!(memory.slots::<4>(0, 3), Err(DeviceError::RingDepth { value: 3, .. })));
    }
}
