//! Forgetting the keys and values that are kept for later requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Pipeline, RuntimeError};

/// Has the pipeline forget the keys and values that it keeps of prompts and answers, from any thread.
#[derive(Clone, Debug, Default)]
pub struct Cache(Arc<Flushes>);

#[derive(Debug, Default)]
struct Flushes {
    asked: AtomicU64,
    done: AtomicU64,
}

impl Cache {
    /// Asks for a flush: requests that are admitted after it find nothing that was there before. Returns its number, for
    /// [`is_flushed`](Self::is_flushed).
    pub fn flush(&self) -> u64 {
        self.0.asked.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Whether the flush of that number has happened.
    pub fn is_flushed(&self, number: u64) -> bool {
        self.0.done.load(Ordering::Acquire) >= number
    }
}

impl Pipeline {
    /// The handle of this pipeline.
    pub fn cache(&self) -> Cache {
        self.cache.clone()
    }

    /// Flushes if somebody has asked for it since.
    #[inline]
    pub(super) fn take_flushes(&mut self) -> Result<bool, RuntimeError> {
        let Flushes { asked, done } = &*self.cache.0;
        let asked = asked.load(Ordering::Acquire);
        if asked == done.load(Ordering::Relaxed) {
            return Ok(false);
        }
        self.kv.flush()?;
        self.publish_blocks();
        self.cache.0.done.store(asked, Ordering::Release);
        Ok(true)
    }
}
