//! What a host gives to a function of its memory. All `unsafe` of the server is here.
//!
//! A host sends the descriptor of a file and says which part of it lies at which bus address. Each file is mapped once, as a whole,
//! whatever the number of its ranges: a guest behind an IOMMU gives single pages, and a process may have 65,530 mappings.
//!
//! Only a memfd that is sealed against shrinking is taken. The pages of any other file may go away, and touching what has gone ends
//! the process that touches it (SIGBUS). A memfd of huge pages is not taken either: its pages come from a pool that may be empty when
//! one is touched, with the same end.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

use doorbell_host::SharedMemory;
use doorbell_host::memory::PAGE;
use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{SealFlags, fcntl_get_seals, fstat, fstatfs};

use crate::protocol::dma;
use crate::refusal::Refusal;

/// Ranges of a function, at most.
pub const MAX_RANGES: usize = 1 << 16;
/// Files that a function has mapped at a time, at most.
pub const MAX_FILES: usize = 64;
/// Bytes of all of them together, at most. A file may be far longer than what it holds, and a process has 128 TiB of addresses: one
/// client could take all, and the server would have no memory of its own.
pub const MAX_BYTES: u64 = 1 << 40;

/// A file that is mapped as long as a range of it is.
#[derive(Debug)]
struct Mapped {
    file: (u64, u64),
    bytes: u64,
    map: Weak<MmapRaw>,
}

/// The ranges of one function.
#[derive(Debug, Default)]
pub struct Ranges {
    /// Bytes, by bus address.
    ranges: BTreeMap<u64, u64>,
    files: Vec<Mapped>,
}

/// What a host asks to be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Bits of [`dma`].
    pub flags: u32,
    /// Into the file.
    pub offset: u64,
    /// Bus address.
    pub address: u64,
    /// Bytes.
    pub size: u64,
}

impl Ranges {
    /// The memory that is asked for, and whether it is writable, for the function to have; `None` for memory that the host keeps to
    /// itself, which takes the addresses and nothing more.
    ///
    /// # Errors
    /// The reason, and nothing has changed.
    pub fn map(
        &mut self,
        asked: Asked,
        file: Option<OwnedFd>,
    ) -> Result<Option<(SharedMemory, bool)>, Refusal> {
        let Asked { flags, offset, address, size } = asked;
        let page = PAGE as u64;
        if flags & !(dma::READ | dma::WRITE) != 0 {
            return Err(Refusal::Malformed);
        }
        if size == 0 || [offset, address, size].iter().any(|value| !value.is_multiple_of(page)) {
            return Err(Refusal::MapUnaligned);
        }
        let (Some(end), Some(file_end)) = (address.checked_add(size), offset.checked_add(size)) else {
            return Err(Refusal::MapWraps);
        };
        let before = self.ranges.range(..end).next_back();
        if before.is_some_and(|(start, bytes)| start + bytes > address) {
            return Err(Refusal::MapOverlaps);
        }
        if self.ranges.len() >= MAX_RANGES {
            return Err(Refusal::TooManyRanges);
        }
        let memory = match file {
            // A VMM tells of its ROMs, too, which it does not share: a device that reads one gets DECERR. Memory to be written that is
            // not shared is a mistake.
            None if flags & dma::WRITE == 0 => None,
            None => return Err(Refusal::MapWithoutDescriptor),
            Some(file) => {
                let map = self.file(file, file_end)?;
                Some((
                    part(map, offset, size, address).ok_or(Refusal::MapBeyondFile)?,
                    flags & dma::WRITE != 0,
                ))
            }
        };
        self.ranges.insert(address, size);
        Ok(memory)
    }

    /// The mapping of a file, of which bytes up to `end` are needed.
    fn file(&mut self, file: OwnedFd, end: u64) -> Result<Arc<MmapRaw>, Refusal> {
        // The seal first: from then on the size does not fall.
        let sealed = fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
        if !sealed {
            return Err(Refusal::MapNotSealed);
        }
        // TMPFS_MAGIC: a memfd of huge pages lies in another file system.
        if fstatfs(&file).map_err(|_| Refusal::MapFailed)?.f_type != 0x0102_1994 {
            return Err(Refusal::MapHugePages);
        }
        let stat = fstat(&file).map_err(|_| Refusal::MapFailed)?;
        let (known, bytes) = ((stat.st_dev, stat.st_ino), u64::try_from(stat.st_size).unwrap_or(0));
        if end > bytes {
            return Err(Refusal::MapBeyondFile);
        }
        self.files.retain(|mapped| mapped.map.strong_count() > 0);
        let mut mapped = self.files.iter().filter(|mapped| mapped.file == known && mapped.bytes >= end);
        if let Some(map) = mapped.find_map(|mapped| mapped.map.upgrade()) {
            return Ok(map);
        }
        if self.files.len() >= MAX_FILES {
            return Err(Refusal::TooManyFiles);
        }
        let before: u64 = self.files.iter().map(|mapped| mapped.bytes).sum();
        if bytes > MAX_BYTES - before {
            return Err(Refusal::TooManyBytes);
        }
        let len = usize::try_from(bytes).map_err(|_| Refusal::MapFailed)?;
        // The host has the pages; this end reserves none.
        let map = MmapOptions::new().len(len).no_reserve_swap().map_raw(&File::from(file));
        let map = Arc::new(map.map_err(|_| Refusal::MapFailed)?);
        self.files.push(Mapped { file: known, bytes, map: Arc::downgrade(&map) });
        Ok(map)
    }

    /// Takes back the ranges in these bytes; how many bytes they had.
    ///
    /// # Errors
    /// `MapUnaligned`, `MapWraps`, or `UnmapCuts` where a range is only partly in them; nothing has changed then.
    pub fn unmap(&mut self, address: u64, size: u64) -> Result<u64, Refusal> {
        let page = PAGE as u64;
        if size == 0 || !address.is_multiple_of(page) || !size.is_multiple_of(page) {
            return Err(Refusal::MapUnaligned);
        }
        // The last page of all addresses may be named, too.
        let last = address.checked_add(size - 1).ok_or(Refusal::MapWraps)?;
        let cut = |at: u64| {
            let range = self.ranges.range(..at).next_back();
            range.is_some_and(|(start, bytes)| start + bytes > at)
        };
        if cut(address) || last.checked_add(1).is_some_and(cut) {
            return Err(Refusal::UnmapCuts);
        }
        let mut taken = 0;
        while let Some((&start, &bytes)) = self.ranges.range(address..=last).next() {
            self.ranges.remove(&start);
            taken += bytes;
        }
        Ok(taken)
    }

    /// Takes back all of them.
    pub fn clear(&mut self) {
        self.ranges.clear();
    }
}

/// Those bytes of a mapped file, seen by a device at `address`.
fn part(map: Arc<MmapRaw>, offset: u64, size: u64, address: u64) -> Option<SharedMemory> {
    let (offset, size) = (usize::try_from(offset).ok()?, usize::try_from(size).ok()?);
    if offset > map.len() || size > map.len() - offset {
        return None;
    }
    let base = NonNull::new(map.as_mut_ptr().wrapping_add(offset))?;
    // SAFETY: the bytes lie in the mapping, as seen above, which is readable and writable and lives in the owner. The file is a memfd that
    // cannot shrink (`Ranges::file`), so that none of its pages goes. On this host only this block and others over the same file, whose
    // accesses are atomic as well, access it; what the host at the other end does is what any other agent may do with shared memory.
    unsafe { SharedMemory::from_raw_parts(base, size, address, map) }.ok()
}

/// Memory of at least `bytes` bytes, zeroed, that a device in another process can be given: the memory, seen by the device at
/// `address`, and the file that it lies in.
///
/// # Errors
/// The system's.
pub fn shared(bytes: usize, address: u64) -> std::io::Result<(SharedMemory, File)> {
    use rustix::fs::{MemfdFlags, fcntl_add_seals, memfd_create};
    let too_large = || std::io::Error::from(std::io::ErrorKind::OutOfMemory);
    let len = bytes.max(1).checked_next_multiple_of(PAGE).ok_or_else(too_large)?;
    let file = File::from(memfd_create("doorbell", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
    file.set_len(len as u64)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    let map = MmapOptions::new().len(len).no_reserve_swap().map_raw(&file)?;
    let memory = part(Arc::new(map), 0, len as u64, address).ok_or_else(too_large)?;
    Ok((memory, file))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use rustix::fs::{MemfdFlags, fcntl_add_seals, memfd_create};

    use super::*;

    const RW: u32 = dma::READ | dma::WRITE;

    fn sealed(pages: u64) -> File {
        shared(pages as usize * PAGE, 0).unwrap().1
    }

    fn asked(offset: u64, address: u64, size: u64) -> Asked {
        Asked { flags: RW, offset, address, size }
    }

    fn page(number: u64) -> u64 {
        number * PAGE as u64
    }

    #[rstest]
    #[case(asked(0, 0, 0), Refusal::MapUnaligned)]
    #[case(asked(0, 1, page(1)), Refusal::MapUnaligned)]
    #[case(asked(8, 0, page(1)), Refusal::MapUnaligned)]
    #[case(asked(0, 0, 64), Refusal::MapUnaligned)]
    #[case(asked(0, u64::MAX - page(1) + 1, page(2)), Refusal::MapWraps)]
    #[case(asked(u64::MAX - page(1) + 1, 0, page(2)), Refusal::MapWraps)]
    #[case(asked(0, page(3), page(2)), Refusal::MapOverlaps)]
    #[case(asked(0, page(5), page(1)), Refusal::MapOverlaps)]
    #[case(asked(0, 0, page(9)), Refusal::MapOverlaps)]
    #[case(asked(page(3), 0, page(2)), Refusal::MapBeyondFile)]
    #[case(asked(page(9), 0, page(1)), Refusal::MapBeyondFile)]
    #[case(Asked { flags: 8, ..asked(0, 0, page(1)) }, Refusal::Malformed)]
    fn a_range_that_cannot_be_is_refused(#[case] asked: Asked, #[case] refusal: Refusal) {
        let mut ranges = Ranges::default();
        let own = Asked { address: page(4), size: page(2), ..super::tests::asked(0, 0, 0) };
        assert!(ranges.map(own, Some(sealed(4).into())).unwrap().is_some());
        let before = ranges.ranges.clone();
        assert_eq!(ranges.map(asked, Some(sealed(4).into())).err(), Some(refusal));
        assert_eq!(ranges.ranges, before, "nothing has changed");
    }

    #[test]
    fn memory_that_can_go_away_or_is_not_there_is_refused() {
        let mut ranges = Ranges::default();
        let one = asked(0, 0, page(1));
        assert_eq!(ranges.map(one, None).err(), Some(Refusal::MapWithoutDescriptor));
        // A ROM of the host's: its addresses are taken, and nothing is there.
        assert!(ranges.map(Asked { flags: dma::READ, ..one }, None).unwrap().is_none());
        ranges.clear();
        let plain = memfd_create("plain", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&plain, page(1)).unwrap();
        assert_eq!(ranges.map(one, Some(plain.try_clone().unwrap())).err(), Some(Refusal::MapNotSealed));
        let file = tempfile::tempfile().unwrap();
        file.set_len(page(1)).unwrap();
        assert_eq!(ranges.map(one, Some(file.into())).err(), Some(Refusal::MapNotSealed));
        assert_eq!(
            ranges.map(one, Some(std::io::pipe().unwrap().0.into())).err(),
            Some(Refusal::MapNotSealed)
        );
        fcntl_add_seals(&plain, SealFlags::SHRINK).unwrap();
        assert!(ranges.map(one, Some(plain.try_clone().unwrap())).unwrap().is_some());
        // And it cannot be taken away from here on.
        assert!(rustix::fs::ftruncate(&plain, 0).is_err());
    }

    #[test]
    fn a_file_is_mapped_once_whatever_the_number_of_its_ranges() {
        let mut ranges = Ranges::default();
        let file = sealed(8);
        let give = |ranges: &mut Ranges, k: u64| {
            ranges
                .map(asked(page(7 - k), page(2 * k), page(1)), Some(file.try_clone().unwrap().into()))
                .unwrap()
                .unwrap()
                .0
        };
        let given: Vec<SharedMemory> = (0..8).map(|k| give(&mut ranges, k)).collect();
        assert_eq!(ranges.files.len(), 1);
        let lowest = given[7].host_pointer().addr().get();
        for (k, memory) in (0..).zip(&given) {
            assert_eq!(memory.bus_address(), page(2 * k));
            assert_eq!(memory.host_pointer().addr().get() - lowest, page(7 - k) as usize);
        }
        // With the last range the mapping goes.
        assert_eq!(ranges.unmap(0, page(16)), Ok(page(8)));
        drop(given);
        give(&mut ranges, 0);
        assert_eq!(ranges.files.len(), 1);
    }

    #[test]
    fn floods_of_files_and_ranges_are_refused() {
        let mut ranges = Ranges::default();
        let held: Vec<_> = (0..MAX_FILES as u64)
            .map(|k| ranges.map(asked(0, page(k), page(1)), Some(sealed(1).into())).unwrap())
            .collect();
        let next = asked(0, page(MAX_FILES as u64), page(1));
        assert_eq!(ranges.map(next, Some(sealed(1).into())).err(), Some(Refusal::TooManyFiles));
        drop(held);
        ranges.ranges.extend((1000..1000 + MAX_RANGES as u64).map(|k| (page(k), page(1))));
        assert_eq!(ranges.map(next, Some(sealed(1).into())).err(), Some(Refusal::TooManyRanges));
    }

    /// Sparse files hold nothing, and take addresses.
    #[test]
    fn no_function_takes_all_addresses_of_the_process() {
        let sparse = |bytes: u64| {
            let file = memfd_create("sparse", MemfdFlags::ALLOW_SEALING).unwrap();
            rustix::fs::ftruncate(&file, bytes).unwrap();
            fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
            file
        };
        let mut ranges = Ranges::default();
        let one = asked(0, 0, page(1));
        assert_eq!(ranges.map(one, Some(sparse(MAX_BYTES + page(1)))).err(), Some(Refusal::TooManyBytes));
        let held = ranges.map(one, Some(sparse(MAX_BYTES))).unwrap();
        let next = asked(0, page(1), page(1));
        assert_eq!(ranges.map(next, Some(sparse(page(1)))).err(), Some(Refusal::TooManyBytes));
        drop(held);
        assert!(ranges.map(next, Some(sparse(page(1)))).is_ok(), "what was given back counts no more");
    }

    #[test]
    fn huge_pages_that_may_be_missing_are_refused() {
        let huge = MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
        let Ok(file) = memfd_create("huge", huge) else {
            println!("not run: the system has no files of huge pages");
            return;
        };
        rustix::fs::ftruncate(&file, 2 << 20).unwrap();
        fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
        let refused = Ranges::default().map(asked(0, 0, page(1)), Some(file)).err();
        assert_eq!(refused, Some(Refusal::MapHugePages));
    }

    #[test]
    fn an_unmap_takes_whole_ranges() {
        let mut ranges = Ranges::default();
        ranges.ranges.extend([(page(1), page(2)), (page(3), page(1)), (page(8), page(1))]);
        assert_eq!(ranges.unmap(page(2), page(1)), Err(Refusal::UnmapCuts));
        assert_eq!(ranges.unmap(page(1), page(1)), Err(Refusal::UnmapCuts));
        assert_eq!(ranges.unmap(page(1), 0), Err(Refusal::MapUnaligned));
        assert_eq!(ranges.unmap(page(2), u64::MAX - page(1) + 1), Err(Refusal::MapWraps));
        assert_eq!(
            ranges.unmap(page(1), u64::MAX - page(1) + 1),
            Ok(page(4)),
            "up to the end of all addresses"
        );
        assert_eq!(ranges.unmap(page(20), page(1)), Ok(0), "what is not there is no error, as in the kernel");
        assert!(ranges.ranges.is_empty());
    }
}
