//! A region of memory on the largest pages to be had: pre-faulted, locked, and near the calling CPU.
//!
//! Order matters: pages are bound to a node before they are touched, touched before they are locked. What could not be
//! had is no error, as the memory works without it; [`PageReport`] tells it.

use std::fmt;
use std::io;
use std::ptr::NonNull;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// What backs a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PageSize {
    /// Base pages of 4 KiB.
    Base,
    /// Transparent huge pages of 2 MiB, by `madvise(MADV_HUGEPAGE)`.
    Transparent,
    /// 2 MiB of the `hugetlb` pool.
    Huge2M,
    /// 1 GiB of the `hugetlb` pool.
    Huge1G,
}

impl PageSize {
    /// From the largest on, the order in which they are asked for.
    pub const ALL: [PageSize; 4] =
        [PageSize::Huge1G, PageSize::Huge2M, PageSize::Transparent, PageSize::Base];

    /// Bytes of a page.
    pub const fn bytes(self) -> usize {
        match self {
            PageSize::Base => 4 * KIB,
            PageSize::Transparent | PageSize::Huge2M => 2 * MIB,
            PageSize::Huge1G => 1024 * MIB,
        }
    }
}

impl fmt::Display for PageSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PageSize::Base => "4 KiB",
            PageSize::Transparent => "transparent 2 MiB",
            PageSize::Huge2M => "2 MiB",
            PageSize::Huge1G => "1 GiB",
        })
    }
}

/// What is asked of the system for a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageOptions {
    /// The largest pages to ask for; smaller ones are taken where these are not to be had.
    pub largest: PageSize,
    /// Whether to keep the pages from being swapped out.
    pub lock: bool,
}

impl Default for PageOptions {
    fn default() -> Self {
        Self { largest: PageSize::Huge1G, lock: true }
    }
}

/// How a region was pre-faulted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prefault {
    /// By `madvise(MADV_POPULATE_WRITE)`.
    Populated,
    /// By a write into each page, since the system refused that for this reason.
    Touched(String),
}

/// Whether something that the memory works without was had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Granted {
    /// It was.
    Yes,
    /// It was not asked for.
    NotAsked,
    /// It was refused, for this reason.
    Refused(String),
}

/// Where the pages of a region lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placement {
    /// The machine has one node, so there is nothing to choose.
    OneNode,
    /// Bound to this node, that of the CPU that made the region.
    Bound(u32),
    /// Wherever the system puts them, for this reason.
    Unbound(String),
}

/// What a region got, and why not better.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageReport {
    /// Bytes of the region.
    pub bytes: usize,
    /// What backs it.
    pub page: PageSize,
    /// The larger pages that were asked for, and why they were refused.
    pub refused: Vec<(PageSize, String)>,
    /// How it was pre-faulted.
    pub prefault: Prefault,
    /// Whether it is locked.
    pub locked: Granted,
    /// On which node it lies.
    pub placement: Placement,
}

impl fmt::Display for PageReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes on pages of {}", self.bytes, self.page)?;
        for (page, reason) in &self.refused {
            write!(f, "; no {page}: {reason}")?;
        }
        match &self.prefault {
            Prefault::Populated => f.write_str("; populated")?,
            Prefault::Touched(reason) => write!(f, "; touched page by page: {reason}")?,
        }
        match &self.locked {
            Granted::Yes => f.write_str("; locked")?,
            Granted::NotAsked => f.write_str("; not locked: not asked for")?,
            Granted::Refused(reason) => write!(f, "; not locked: {reason}")?,
        }
        match &self.placement {
            Placement::OneNode => f.write_str("; one NUMA node"),
            Placement::Bound(node) => write!(f, "; bound to NUMA node {node}"),
            Placement::Unbound(reason) => write!(f, "; not bound to a NUMA node: {reason}"),
        }
    }
}

/// A zeroed, private mapping of whole pages, unmapped on drop.
#[derive(Debug)]
pub struct Region {
    base: NonNull<u8>,
    len: usize,
    report: PageReport,
}

// SAFETY: the mapping belongs to the region alone and stays where it is on any thread; the region itself never reads or
// writes it.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// At least `bytes` bytes, zeroed, every page of them touched.
    ///
    /// # Errors
    /// The system has not even base pages for them.
    pub fn new(bytes: usize, options: PageOptions) -> io::Result<Region> {
        let mut refused = vec![];
        for page in PageSize::ALL.into_iter().filter(|&page| page <= options.largest) {
            if page > PageSize::Base && bytes < page.bytes() {
                refused.push((page, format!("{bytes} bytes are less than one such page")));
                continue;
            }
            match Mapping::new(bytes, page).and_then(|mapping| mapping.prepare(page)) {
                Ok((mapping, prefault, placement)) => {
                    let locked = if options.lock { mapping.lock() } else { Granted::NotAsked };
                    let Mapping { base, len } = mapping;
                    std::mem::forget(mapping);
                    let report = PageReport { bytes: len, page, refused, prefault, locked, placement };
                    return Ok(Region { base, len, report });
                }
                Err(error) if page == PageSize::Base => return Err(error),
                Err(error) => refused.push((page, error.to_string())),
            }
        }
        unreachable!("base pages end the loop either way")
    }

    /// Where it begins, aligned to its pages. Valid while the region lives.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What it got.
    pub fn report(&self) -> &PageReport {
        &self.report
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        drop(Mapping { base: self.base, len: self.len });
    }
}

/// A mapping on its way to be a region.
struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and nobody refers to it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

impl Mapping {
    fn new(bytes: usize, page: PageSize) -> io::Result<Mapping> {
        let overflow = || io::Error::new(io::ErrorKind::InvalidInput, "the size overflows");
        let len = bytes.max(1).checked_next_multiple_of(page.bytes()).ok_or_else(overflow)?;
        let flags = match page {
            PageSize::Huge1G => libc::MAP_HUGETLB | libc::MAP_HUGE_1GB,
            PageSize::Huge2M => libc::MAP_HUGETLB | libc::MAP_HUGE_2MB,
            PageSize::Transparent | PageSize::Base => 0,
        };
        // Only pages of the pool come aligned to their size; for transparent ones the slack is cut off again.
        let slack = if page == PageSize::Transparent { page.bytes() } else { 0 };
        let mapped =
            len.checked_add(slack).filter(|&len| isize::try_from(len).is_ok()).ok_or_else(overflow)?;
        // SAFETY: a new anonymous mapping at an address of the system's choice touches no memory of ours.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                mapped,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let mut mapping =
            Mapping { base: NonNull::new(base.cast()).expect("mmap never maps address 0"), len: mapped };
        if slack > 0 {
            let head = mapping.base.as_ptr().align_offset(page.bytes());
            // SAFETY: `head` is less than the slack, so the cut pieces lie in the mapping and `len` bytes remain.
            unsafe {
                let aligned = mapping.base.add(head);
                if head > 0 {
                    libc::munmap(mapping.base.as_ptr().cast(), head);
                }
                libc::munmap(aligned.add(len).as_ptr().cast(), slack - head);
                mapping.base = aligned;
            }
            mapping.len = len;
        }
        Ok(mapping)
    }

    /// Binds and touches the pages, and makes sure that they are what was asked for.
    fn prepare(self, page: PageSize) -> io::Result<(Mapping, Prefault, Placement)> {
        if page == PageSize::Transparent {
            self.advise(libc::MADV_HUGEPAGE)?;
        }
        let placement = self.bind();
        let prefault = match self.advise(libc::MADV_POPULATE_WRITE) {
            Ok(()) => Prefault::Populated,
            // Linux before 5.14 does not know it. A page of the pool that is not there would then be a fatal signal.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) && page <= PageSize::Transparent => {
                for offset in (0..self.len).step_by(PageSize::Base.bytes()) {
                    // SAFETY: `offset` lies in the mapping, which nobody else refers to.
                    unsafe { self.base.add(offset).write_volatile(0) };
                }
                Prefault::Touched(error.to_string())
            }
            Err(error) => return Err(error),
        };
        if page == PageSize::Transparent {
            let huge = self.transparent_bytes()?;
            if huge < self.len {
                return Err(io::Error::other(format!(
                    "the system gave them for {huge} of {} bytes; see /sys/kernel/mm/transparent_hugepage/enabled",
                    self.len
                )));
            }
        }
        Ok((self, prefault, placement))
    }

    fn advise(&self, advice: libc::c_int) -> io::Result<()> {
        // SAFETY: the range is our mapping; neither advice that is given changes what it holds.
        match unsafe { libc::madvise(self.base.as_ptr().cast(), self.len, advice) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn lock(&self) -> Granted {
        // SAFETY: the range is our mapping.
        match unsafe { libc::mlock(self.base.as_ptr().cast(), self.len) } {
            0 => Granted::Yes,
            _ => Granted::Refused(format!("{}; see ulimit -l", io::Error::last_os_error())),
        }
    }

    /// Binds the pages to the node of the CPU that runs this.
    fn bind(&self) -> Placement {
        match std::fs::read_to_string("/sys/devices/system/node/online") {
            Ok(nodes) if !nodes.contains(['-', ',']) => return Placement::OneNode,
            Ok(_) => {}
            Err(error) => {
                return Placement::Unbound(format!("/sys/devices/system/node/online: {error}"));
            }
        }
        let (mut cpu, mut node) = (0u32, 0u32);
        // SAFETY: both pointers are valid for a write; the third argument is unused.
        if unsafe { libc::syscall(libc::SYS_getcpu, &raw mut cpu, &raw mut node, 0usize) } != 0 {
            return Placement::Unbound(format!("getcpu: {}", io::Error::last_os_error()));
        }
        let mut mask = [0u64; 16];
        let Some(word) = mask.get_mut(node as usize / 64) else {
            return Placement::Unbound(format!("node {node} is beyond the mask of 1024 nodes"));
        };
        *word = 1 << (node % 64);
        // SAFETY: the range is our mapping, and the mask is as long as is said (the kernel reads one bit less).
        let refused = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.base.as_ptr(),
                self.len,
                libc::MPOL_BIND,
                mask.as_ptr(),
                8 * size_of_val(&mask) + 1,
                0,
            )
        };
        match refused {
            0 => Placement::Bound(node),
            _ => Placement::Unbound(format!("mbind: {}", io::Error::last_os_error())),
        }
    }

    /// Bytes of the mapping that transparent huge pages back. The mapping may be listed in pieces, or joined with
    /// neighbours, of which the overlap counts.
    fn transparent_bytes(&self) -> io::Result<usize> {
        let smaps = std::fs::read_to_string("/proc/self/smaps")?;
        let first = self.base.as_ptr() as usize;
        let (mut overlap, mut bytes) = (0, 0);
        for line in smaps.lines() {
            let word = line.split(' ').next().unwrap_or_default();
            let range = word.split_once('-').and_then(|(from, to)| {
                Some((usize::from_str_radix(from, 16).ok()?, usize::from_str_radix(to, 16).ok()?))
            });
            if let Some((from, to)) = range {
                overlap = to.min(first + self.len).saturating_sub(from.max(first));
            } else if word == "AnonHugePages:" && overlap > 0 {
                let kib = line.split_whitespace().nth(1).and_then(|kib| kib.parse::<usize>().ok());
                bytes += overlap.min(kib.unwrap_or(0) * KIB);
            }
        }
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests;
