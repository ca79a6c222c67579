//! Lines that whoever connects can cause: a flood of connections gives no flood of lines.

use std::time::{Duration, Instant};

/// Lines that are said at once.
const BURST: u32 = 32;
/// Then one is said each so often. What is left out in between is counted.
const REST: Duration = Duration::from_secs(10);

/// How many more may be said.
pub struct Lines {
    /// At once, as of `since`.
    left: u32,
    since: Instant,
    /// How many were left out since the last one.
    unsaid: u64,
}

impl Lines {
    pub fn new(now: Instant) -> Lines {
        Lines { left: BURST, since: now, unsaid: 0 }
    }

    /// Takes a line, if there is one to be had: what is to stand at its end, which tells how many were left out before it.
    pub fn take(&mut self, now: Instant) -> Option<String> {
        let rests = now.saturating_duration_since(self.since).as_secs() / REST.as_secs();
        self.left = self.left.saturating_add(u32::try_from(rests).unwrap_or(BURST)).min(BURST);
        self.since += REST * u32::try_from(rests).unwrap_or(0);
        if self.left == 0 {
            self.unsaid += 1;
            return None;
        }
        self.left -= 1;
        Some(match std::mem::take(&mut self.unsaid) {
            0 => String::new(),
            unsaid => format!(
                " ({unsaid} lines before this one were left out: after {BURST} there is one in {} s)",
                REST.as_secs()
            ),
        })
    }
}
