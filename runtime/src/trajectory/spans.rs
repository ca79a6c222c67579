//! Which versions of the policy the tokens of living rollouts come from.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::record::Span;

/// The spans of all rollouts that live, by slot: the hot thread notes them, the writer reads them.
///
/// A slot is used again only after its trajectory is stored, so that what the writer reads stays as it is. The rollout's way
/// through the ring orders what is noted before it.
#[derive(Clone, Debug)]
pub struct Spans {
    words: Arc<[AtomicU64]>,
    longest: usize,
}

impl Spans {
    /// Room for `slots` rollouts of at most `longest` spans each.
    pub fn new(slots: u32, longest: u32) -> Spans {
        // Written one by one, so that the pages are there: zeroed memory would only be promised.
        let word = |_| std::hint::black_box(AtomicU64::new(0));
        let words = (0..slots as usize * longest as usize).map(word).collect();
        Spans { words, longest: longest as usize }
    }

    /// Slots that there is room for; any number, if they have no spans.
    pub fn slots(&self) -> usize {
        self.words.len().checked_div(self.longest).unwrap_or(usize::MAX)
    }

    /// Spans that a rollout may have.
    pub fn longest(&self) -> usize {
        self.longest
    }

    /// Notes span number `place` of the rollout in `slot`; one for which there is no room is not noted.
    #[inline]
    pub(crate) fn write(&self, slot: u32, place: u32, span: Span) {
        if let Some(word) = self.of(slot).get(place as usize) {
            word.store(u64::from(span.first) << 16 | u64::from(span.version), Ordering::Relaxed);
        }
    }

    /// The first `count` spans of the rollout in `slot`, as its [`Finished`](super::Finished) says; `None` if there is no room for as many.
    pub fn read(&self, slot: u32, count: usize) -> Option<impl Iterator<Item = Span> + '_> {
        let words = self.of(slot).get(..count)?;
        Some(words.iter().map(|word| {
            let word = word.load(Ordering::Relaxed);
            Span { version: word as u16, first: (word >> 16) as u32 }
        }))
    }

    fn of(&self, slot: u32) -> &[AtomicU64] {
        let start = slot as usize * self.longest;
        self.words.get(start..start + self.longest).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_read_as_they_were_noted() {
        let spans = Spans::new(3, 2);
        let span = |version, first| Span { version, first };
        spans.write(1, 0, span(u16::MAX, 0));
        spans.write(1, 1, span(0, u32::MAX));
        // There is no room for these.
        spans.write(1, 2, span(7, 7));
        spans.write(3, 0, span(7, 7));
        assert_eq!(spans.read(1, 2).unwrap().collect::<Vec<_>>(), [span(u16::MAX, 0), span(0, u32::MAX)]);
        assert_eq!(spans.read(2, 1).unwrap().collect::<Vec<_>>(), [span(0, 0)]);
        assert!(spans.read(1, 3).is_none() && spans.read(3, 1).is_none());
    }
}
