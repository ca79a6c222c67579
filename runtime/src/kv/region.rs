//! Memory that is there once it is touched.

use std::io;
use std::ptr::NonNull;

/// A zeroed, private mapping, unmapped on drop. No page of it is there before it is first touched; the system is advised to
/// back it with huge pages then.
#[derive(Debug)]
pub struct Region {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to the region alone and stays where it is on any thread.
unsafe impl Send for Region {}
// SAFETY: as above; it is written through `&mut` alone.
unsafe impl Sync for Region {}

impl Region {
    /// `bytes` zeroed bytes, aligned to a page.
    ///
    /// # Errors
    /// The system has not as much address space, or refuses.
    pub fn new(bytes: usize) -> io::Result<Region> {
        if isize::try_from(bytes).is_err() {
            return Err(io::Error::from_raw_os_error(libc::ENOMEM));
        }
        let len = bytes.max(1);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new anonymous mapping at an address of the system's choice touches no memory of ours.
        let base = unsafe {
            libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // Refused where there are none, and then it works without.
        // SAFETY: the range is our mapping, and the advice changes nothing that it holds.
        unsafe { libc::madvise(base, len, libc::MADV_HUGEPAGE) };
        Ok(Region { base: NonNull::new(base.cast()).expect("mmap never maps address 0"), len })
    }

    /// All of it.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping is readable and `len` bytes long.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }

    /// All of it, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is writable and `len` bytes long, and the region is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.len) }
    }

    /// All of it as words, but for an odd end.
    pub fn words(&self) -> &[u64] {
        // SAFETY: the mapping is readable, aligned to a page and `len` bytes long.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().cast(), self.len / 8) }
    }

    /// All of it as words that can be written.
    pub fn words_mut(&mut self) -> &mut [u64] {
        // SAFETY: as in `words`, and the region is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr().cast(), self.len / 8) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and nobody refers to it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resident(region: &Region) -> usize {
        let mut map = vec![0u8; region.len.div_ceil(4096)];
        // SAFETY: the range is the region's, and the map has a byte for each of its pages.
        let refused = unsafe { libc::mincore(region.base.as_ptr().cast(), region.len, map.as_mut_ptr()) };
        assert_eq!(refused, 0, "{}", io::Error::last_os_error());
        map.iter().filter(|&&page| page & 1 == 1).count()
    }

    #[test]
    fn a_region_is_not_there_before_it_is_touched() {
        let mut region = Region::new(64 << 20).unwrap();
        assert_eq!(resident(&region), 0);
        region.bytes_mut()[40 << 20] = 7;
        // One page, or one huge page.
        assert!((1..=512).contains(&resident(&region)));
        assert_eq!(region.bytes()[(40 << 20) - 1..][..3], [0, 7, 0]);
    }

    #[test]
    fn an_impossible_size_is_an_error() {
        assert!(Region::new(usize::MAX).is_err());
        assert!(Region::new(1 << 60).is_err());
    }
}
