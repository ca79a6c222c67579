//! A lock-free stack of indices, each in it at most once.
//!
//! The head carries a tag that each change advances, so a head that was read, left and restored is not taken for
//! unchanged (ABA). An index's link also says how many lie at and below it: the size comes with the head, at no
//! further cost.

use super::sync::{AtomicU32, AtomicU64, Ordering};

/// No index.
pub(super) const NONE: u32 = u32::MAX;

/// Next index, and number of indices from here on.
#[derive(Clone, Copy)]
struct Link {
    next: u32,
    depth: u32,
}

impl Link {
    const END: Link = Link { next: NONE, depth: 0 };

    const fn pack(self) -> u64 {
        (self.depth as u64) << 32 | self.next as u64
    }

    const fn unpack(word: u64) -> Self {
        Self { next: word as u32, depth: (word >> 32) as u32 }
    }
}

/// The indices `0..len`, of which each is in the stack or with whoever took it.
pub(super) struct Stack {
    links: Box<[AtomicU64]>,
    head: Head,
}

/// On a cache line of its own: every thread writes it.
#[repr(align(128))]
struct Head {
    /// Top index in the low half, tag in the high half.
    top: AtomicU64,
    /// The fewest indices that the stack ever held.
    low_water: AtomicU32,
}

impl Stack {
    /// All of `0..len`, the lowest on top, so that a short run touches few.
    pub(super) fn full(len: u32) -> Self {
        let link = |index: u32| match index + 1 < len {
            true => Link { next: index + 1, depth: len - index },
            false => Link { next: NONE, depth: 1 },
        };
        let top = if len > 0 { 0 } else { NONE };
        Self {
            links: (0..len).map(|index| AtomicU64::new(link(index).pack())).collect(),
            head: Head { top: AtomicU64::new(top.into()), low_water: AtomicU32::new(len) },
        }
    }

    /// Number of indices, in the stack or not.
    pub(super) fn len(&self) -> u32 {
        self.links.len() as u32
    }

    /// The fewest that it ever held.
    pub(super) fn low_water(&self) -> u32 {
        self.head.low_water.load(Ordering::Relaxed)
    }

    /// A word that whoever took the index may use.
    #[inline]
    pub(super) fn note(&self, index: u32) -> &AtomicU64 {
        &self.links[index as usize]
    }

    /// The link of an index that may have been taken meanwhile, and then is anything.
    #[inline]
    fn link(&self, index: u32) -> Link {
        let word = self.links.get(index as usize).map(|link| link.load(Ordering::Relaxed));
        word.map_or(Link::END, Link::unpack)
    }

    /// Takes up to `out.len()` indices; returns how many.
    pub(super) fn pop(&self, out: &mut [u32]) -> usize {
        let mut seen = self.head.top.load(Ordering::Acquire);
        loop {
            // Another thread may take these meanwhile and write their links; then the tag has changed as well, and the
            // exchange fails.
            let (mut top, mut count) = (seen as u32, 0);
            while count < out.len() && top != NONE {
                out[count] = top;
                count += 1;
                top = self.link(top).next;
            }
            if count == 0 {
                return 0;
            }
            let depth = self.link(top).depth;
            match self.exchange(seen, top) {
                Ok(()) => {
                    if depth < self.low_water() {
                        self.head.low_water.fetch_min(depth, Ordering::Relaxed);
                    }
                    return count;
                }
                Err(now) => seen = now,
            }
        }
    }

    /// Puts indices that only the caller has back, the last one on top.
    pub(super) fn push(&self, indices: &[u32]) {
        let Some(&last) = indices.last() else { return };
        let mut seen = self.head.top.load(Ordering::Acquire);
        loop {
            let mut below = Link { next: seen as u32, depth: self.link(seen as u32).depth };
            for &index in indices {
                below.depth = below.depth.wrapping_add(1);
                self.links[index as usize].store(below.pack(), Ordering::Relaxed);
                below.next = index;
            }
            match self.exchange(seen, last) {
                Ok(()) => return,
                Err(now) => seen = now,
            }
        }
    }

    /// Makes `top` the top, if nothing has changed since `seen`. Release, so that whoever takes it next sees its link;
    /// acquire, so that the new holder sees all that the last one did.
    #[inline]
    fn exchange(&self, seen: u64, top: u32) -> Result<(), u64> {
        let new = ((seen >> 32) + 1) << 32 | u64::from(top);
        let head = &self.head.top;
        head.compare_exchange_weak(seen, new, Ordering::AcqRel, Ordering::Acquire).map(drop)
    }
}
