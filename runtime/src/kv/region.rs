//! Memory that is there once it is touched.

use std::io;

use memmap2::{MmapMut, MmapOptions};

/// A zeroed, private mapping, unmapped on drop. No page of it is there before it is first touched; the system is advised to
/// back it with huge pages then.
#[derive(Debug)]
pub struct Region(MmapMut);

impl Region {
    /// `bytes` zeroed bytes, aligned to a page.
    ///
    /// # Errors
    /// The system has not as much address space, or refuses.
    pub fn new(bytes: usize) -> io::Result<Region> {
        if isize::try_from(bytes).is_err() {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let map = MmapOptions::new().len(bytes.max(1)).no_reserve_swap().map_anon()?;
        // Refused where there are none, and then it works without.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        Ok(Region(map))
    }

    /// All of it.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// All of it, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }

    /// All of it as words, but for an odd end.
    pub fn words(&self) -> &[u64] {
        // SAFETY: any bytes are words.
        let (_, words, _) = unsafe { self.0.align_to() };
        words
    }

    /// All of it as words that can be written, but for an odd end.
    pub fn words_mut(&mut self) -> &mut [u64] {
        // SAFETY: any bytes are words, and any words are bytes.
        let (_, words, _) = unsafe { self.0.align_to_mut() };
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resident(region: &Region) -> usize {
        let mut map = vec![0u8; region.bytes().len().div_ceil(4096)];
        // SAFETY: the range is the region's, and the map has a byte for each of its pages.
        let refused = unsafe {
            libc::mincore(region.bytes().as_ptr().cast_mut().cast(), region.bytes().len(), map.as_mut_ptr())
        };
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
