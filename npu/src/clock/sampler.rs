//! The sampler (rtl/npu/npu_sampler.sv): a logit in four cycles, at 18 stages; blocks of 32 are read back while the next ones come.

/// Steps of what the hashes begin with.
const DRAWS: u32 = 13;

/// The unit.
#[derive(Debug, Default)]
pub(super) struct Sampler {
    busy: bool,
    /// A chain has begun that has not had its last logit.
    pub begun: bool,
    ready: bool,
    phase: u32,
    /// Stages with a logit.
    at: u32,
    draws: u32,
    /// Whether a logit is the last: copied every four cycles.
    last: [bool; 5],
    token: u32,
    /// A block is complete: its size less one, and whether it is the last.
    closes: Option<(u32, bool)>,
    walks: bool,
    reads: bool,
    walk: u32,
    walk_size: u32,
    walk_last: bool,
    walk_end: u32,
    end: u32,
}

/// Stages of a logit, of a block's walk, and of the end.
const LOGIT: u32 = 17;
const WALK: u32 = 5;
const END: u32 = 8;

impl Sampler {
    pub fn idle(&self) -> bool {
        !self.busy
    }

    pub fn ready(&self) -> bool {
        self.ready && self.phase == 0
    }

    /// The step is over whose chain has begun.
    pub fn forget(&mut self) {
        (self.begun, self.ready) = (false, false);
    }

    pub fn clock(&mut self, begin: bool, logit: Option<bool>) {
        let logit = logit.filter(|_| self.ready());
        if self.busy || logit.is_some() {
            let at = |stage: u32| self.at >> stage & 1 == 1;
            let quiet =
                self.at == 0 && self.draws == 0 && self.closes.is_none() && !self.walks && self.end == 0;
            let ends = self.walks && self.walk_end >> WALK & 1 == 1 && self.walk_last;
            let (out, copies) = (at(LOGIT), [at(3), at(7), at(11), at(15)]);
            let [last0, last1, last2, last3, last4] = self.last;

            self.begun &= self.end >> END & 1 == 0;

            // Blocks.
            let closes = self.closes;
            if self.walks {
                if self.walk_end >> WALK & 1 == 1 {
                    self.walks = false;
                }
                let last = self.reads && self.walk == self.walk_size;
                self.walk_end = (self.walk_end << 1 | u32::from(last)) & 0x3F;
                if self.reads {
                    self.reads = self.walk != self.walk_size;
                    self.walk += 1;
                }
            } else if let Some((size, last)) = closes {
                (self.walks, self.reads, self.walk) = (true, true, 0);
                (self.walk_size, self.walk_last) = (size, last);
                self.closes = None;
            }

            // Logits.
            if out {
                if self.token % 32 == 31 || last4 {
                    self.closes = Some((self.token % 32, last4));
                }
                self.token += 1;
            }
            for (stage, last) in [last0, last1, last2, last3].into_iter().enumerate() {
                if copies[stage] {
                    self.last[stage + 1] = last;
                }
            }
            if let Some(last) = logit {
                self.last[0] = last;
                self.ready &= !last;
            }
            if self.draws != 0 {
                self.draws -= 1;
                self.ready |= self.draws == 0;
            }

            // What goes on.
            self.busy = logit.is_some() || !quiet;
            self.phase = if self.busy { (self.phase + 1) % 4 } else { 0 };
            self.end = (self.end << 1 | u32::from(ends)) & ((2 << END) - 1);
            self.at = (self.at << 1 | u32::from(logit.is_some())) & ((2 << LOGIT) - 1);
        }
        if begin {
            (self.busy, self.begun) = (true, true);
            self.ready = false;
            self.draws = DRAWS;
            self.token = 0;
        }
    }
}
