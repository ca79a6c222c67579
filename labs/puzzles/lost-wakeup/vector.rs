//! The interrupt vector of one queue pair, in the device: whether the host waits for a completion, and whether a message is to be sent.
//!
//! Indices of completions run freely, as `u32` that wraps.

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Vector {
    /// The host waits for a completion at or above this index.
    armed: Option<u32>,
    /// The first completion that is not visible yet.
    visible: u32,
    /// A message is to be sent.
    pending: bool,
    /// None is sent now.
    masked: bool,
}

impl Vector {
    /// That of a queue pair whose first completion will have the index `start`. It is not armed, and not masked.
    pub fn new(start: u32) -> Self {
        Self { armed: None, visible: start, pending: false, masked: false }
    }

    /// The next completion has become visible to the host.
    pub fn completion_visible(&mut self) {
        let index = self.visible;
        self.visible = index.wrapping_add(1);
        if let Some(armed) = self.armed
            && Self::is_at_or_above(index, armed)
        {
            self.fire();
        }
    }

    /// The host writes ARM.
    pub fn arm(&mut self, index: u32) {
        self.armed = Some(index);
    }

    /// The owner of the device masks the vector, or takes the mask away.
    pub fn mask(&mut self, masked: bool) {
        self.masked = masked;
    }

    /// Whether the device sends a message now.
    pub fn send(&mut self) -> bool {
        let sends = self.pending && !self.masked;
        if sends {
            self.pending = false;
        }
        sends
    }

    /// An arming brings one message.
    fn fire(&mut self) {
        self.armed = None;
        self.pending = true;
    }

    /// Whether a completion has an index at or above that of ARM, the newest less than 2^31 ahead of it.
    fn is_at_or_above(index: u32, armed: u32) -> bool {
        index.wrapping_sub(armed) < 1 << 31
    }
}
