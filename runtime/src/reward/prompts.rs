//! What is known of the prompts, for judges to read.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use doorbell_host::TokenRegion;

/// The ids of the prompts' blocks, of all groups that live: the hot thread writes them at admission, judges read them.
///
/// As with tokens, a group's place may be used again while a judge is at an aborted rollout: it reads old ids, new ones
/// or some of each, and its verdict is dropped. A request's way through the ring orders what is written before it.
#[derive(Clone, Debug)]
pub struct Prompts {
    words: Arc<[AtomicU32]>,
    longest: usize,
}

impl Prompts {
    /// Room for `groups` prompts of at most `longest` ids each.
    pub fn new(groups: u32, longest: usize) -> Prompts {
        // Written one by one, so that the pages are there: zeroed memory would only be promised.
        let words = (0..groups as usize * longest).map(|_| std::hint::black_box(AtomicU32::new(0))).collect();
        Prompts { words, longest }
    }

    /// Prompts that there is room for; any number, if they have no ids.
    pub fn groups(&self) -> usize {
        self.words.len().checked_div(self.longest).unwrap_or(usize::MAX)
    }

    /// Ids that a prompt may have.
    pub fn longest(&self) -> usize {
        self.longest
    }

    /// Writes the ids of `group`'s prompt, as many as there is room for.
    #[inline]
    pub(crate) fn write(&self, group: u32, ids: &[u32]) {
        let start = group as usize * self.longest;
        let room = self.words.get(start..start + self.longest).unwrap_or_default();
        for (word, &id) in room.iter().zip(ids) {
            word.store(id, Ordering::Relaxed);
        }
    }

    /// The first `count` ids of `group`'s prompt; `None` if there is no room for as many.
    #[inline]
    pub(crate) fn read(&self, group: u32, count: usize) -> Option<impl Iterator<Item = u32> + '_> {
        let start = group as usize * self.longest;
        let words = self.words.get(start..start + self.longest).unwrap_or_default().get(..count)?;
        Some(words.iter().map(|word| word.load(Ordering::Relaxed)))
    }
}

/// Where judges read what they judge.
#[derive(Clone, Debug)]
pub struct AnswerMemory {
    /// The device's token regions ([`Device::token_regions`](doorbell_host::Device::token_regions)).
    pub tokens: Vec<TokenRegion>,
    /// The prompts.
    pub prompts: Prompts,
}
