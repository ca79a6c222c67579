//! Configuration of a queue pair and where its parts lie in shared memory.

use crate::error::DeviceError;
use crate::memory::PAGE;
use crate::queue::Depth;
use doorbell_contract::{ARENAS, CHECKPOINT_NEVER, EventControl, LENGTH_LIMIT_MAX, RANGES, Register};

/// How a [`Driver`](crate::driver::Driver) sets up its queue pair and device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueConfig {
    /// Slots of the submission queue: a power of two, 2 to 65536.
    pub sq_depth: u32,
    /// Slots of the completion queue: a power of two, 2 to 65536.
    pub cq_depth: u32,
    /// Key of the submission queue's check words (R2); `None`: a fresh one each time the device is enabled.
    pub sq_key: Option<u32>,
    /// Running index at which the submission queue starts.
    pub sq_start: u32,
    /// Running index at which the completion queue starts.
    pub cq_start: u32,
    /// Bytes of the token region.
    pub token_bytes: u64,
    /// Bytes of the KV region.
    pub kv_bytes: u64,
    /// Bytes of the log-probability region; 0 where no descriptor has LOGP.
    pub logp_bytes: u64,
    /// Bytes of the function's MODEL region, in this queue pair's memory; 0: this queue pair has none. In a function, the queue pair that has the MODEL
    /// region and the arenas must be enabled first, and the others must have none (R25).
    pub model_bytes: u64,
    /// Bytes of each of the function's arenas (R26), likewise.
    pub arena_bytes: [u64; ARENAS as usize],
    /// Bytes of the blocks of the longest sequence in an arena, plus 4 bytes for each token of the vocabulary if draws are truncated: a GPU
    /// reserves this much for each sequence that it runs. 0: not known, and a GPU takes the size of the largest arena, at most 256 MiB.
    pub sequence_bytes: u64,
    /// Ranges of reward model 1: the first and the last token of each; one whose last is below its first is empty.
    pub ranges: [(u32, u32); RANGES as usize],
    /// Checkpoint of descriptors that give 0; 0 and [`CHECKPOINT_NEVER`] are never.
    pub checkpoint_default: u32,
    /// Cycles to wait before each token, at most 65535.
    pub wait_states: u32,
    /// Largest `seq_len` + `max_tokens`, at most [`LENGTH_LIMIT_MAX`].
    pub length_limit: u32,
    /// Probability of end of sequence per token, in 1/32768, at most 65535.
    pub eos_threshold: u32,
    /// RESIDENT: a score below it ends the rollout; Q16.16 with a sign.
    pub reward_threshold: i32,
    /// Workers to use, the first so many, 1 to 32; `None` is all that the device has. Of a device that has them by the
    /// thousand: descriptors that may run at a time, 1 to 31.
    pub workers: Option<u32>,
    /// Descriptors that the device hands out of this queue pair before it passes on to the next one, 1 to 255.
    pub weight: u32,
    /// Number of completions that makes an armed interrupt fire, whether they ask for it or not (R14), at most 65535; 0: no number does.
    pub coalesce_count: u32,
    /// Ticks of the device after which the first visible completion makes an armed interrupt fire (R14); 0: no time.
    pub coalesce_time: u32,
    /// Slots of the function's event ring: a power of two, 2 to 65536 (R23); 0: this queue pair lays out none. Of the queue pairs of a
    /// function the one that is enabled first lays the ring out, if it has any, and reads it.
    pub event_slots: u32,
    /// Whether each completion of the function has an event, which records when its descriptor passed through the device.
    pub life_events: bool,
    /// Advances in a row without any progress of the device after which a wait ends as `Timeout` (R15), at least 1.
    /// A slow device makes progress whenever a counter of tokens, descriptors or completions moves, so this bounds
    /// the time of a single token, wait states and memory latency included. Tokens that only the counter of the whole device shows may belong to
    /// other queue pairs. They extend a wait at most a thousand times.
    pub patience: u32,
}

impl Default for QueueConfig {
    fn default() -> Self {
        Self {
            sq_depth: 1024,
            cq_depth: 1024,
            sq_key: None,
            sq_start: 0,
            cq_start: 0,
            token_bytes: 1 << 20,
            kv_bytes: 0,
            logp_bytes: 0,
            model_bytes: 0,
            arena_bytes: [0; ARENAS as usize],
            sequence_bytes: 0,
            ranges: [(u32::MAX, 0); RANGES as usize],
            checkpoint_default: CHECKPOINT_NEVER,
            wait_states: 0,
            length_limit: 1 << 20,
            eos_threshold: 0,
            reward_threshold: 0,
            workers: None,
            weight: 1,
            coalesce_count: 0,
            coalesce_time: 0,
            event_slots: 0,
            life_events: false,
            patience: 1000,
        }
    }
}

/// Byte offsets of the parts of a queue pair in its shared memory, each a multiple of [`PAGE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Submission queue.
    pub sq: usize,
    /// Completion queue.
    pub cq: usize,
    /// Event ring, of no bytes where `event_slots` is 0.
    pub events: usize,
    /// Token region; of no bytes where it is another queue pair's ([`Driver::over`](crate::Driver::over)).
    pub tokens: usize,
    /// KV region.
    pub kv: usize,
    /// Log-probability region.
    pub logp: usize,
    /// MODEL region.
    pub model: usize,
    /// Arenas.
    pub arenas: [usize; ARENAS as usize],
    /// The page whose first word the interrupt's message is written to.
    pub message: usize,
    /// Length of the whole.
    pub bytes: usize,
}

/// A configuration that was checked.
#[derive(Clone, Debug)]
pub(crate) struct Checked {
    pub sq_depth: Depth,
    pub cq_depth: Depth,
    /// `None`: no event ring.
    pub event_depth: Option<Depth>,
    pub layout: Layout,
}

impl QueueConfig {
    /// Checks every value and lays the parts out.
    ///
    /// # Errors
    /// `RingDepth` or `Config`, naming the field.
    pub(crate) fn check(&self) -> Result<Checked, DeviceError> {
        let sq_depth = Depth::new("sq_depth", self.sq_depth)?;
        let cq_depth = Depth::new("cq_depth", self.cq_depth)?;
        let event_depth = match self.event_slots {
            0 => None,
            slots => Some(Depth::new("event_slots", slots)?),
        };
        at_most("wait_states", self.wait_states, 0xFFFF)?;
        at_most("eos_threshold", self.eos_threshold, 0xFFFF)?;
        at_most("length_limit", self.length_limit, LENGTH_LIMIT_MAX)?;
        at_most("weight", self.weight, 255)?;
        at_most("coalesce_count", self.coalesce_count, 0xFFFF)?;
        at_most("workers", self.workers.unwrap_or(1), 32)?;
        let counts =
            [("workers", self.workers), ("weight", Some(self.weight)), ("patience", Some(self.patience))];
        for (field, value) in counts {
            if value == Some(0) {
                return Err(DeviceError::Config { field, value: 0, expected: "at least 1".into() });
            }
        }
        Ok(Checked { sq_depth, cq_depth, event_depth, layout: self.layout(sq_depth, cq_depth)? })
    }

    /// Bytes of shared memory that a queue pair of this configuration takes.
    ///
    /// # Errors
    /// `RingDepth` or `Config`, naming the field.
    pub fn shared_bytes(&self) -> Result<usize, DeviceError> {
        Ok(self.check()?.layout.bytes)
    }

    fn layout(&self, sq_depth: Depth, cq_depth: Depth) -> Result<Layout, DeviceError> {
        let mut end = 0usize;
        let mut place = |field, bytes: u64| {
            let start = end;
            end = usize::try_from(bytes)
                .ok()
                .and_then(|bytes| bytes.checked_next_multiple_of(PAGE))
                .and_then(|bytes| start.checked_add(bytes))
                .filter(|&end| isize::try_from(end).is_ok())
                .ok_or_else(|| DeviceError::Config {
                    field,
                    value: bytes,
                    expected: "small enough for the regions to fit the address space together".into(),
                })?;
            Ok::<_, DeviceError>(start)
        };
        let sq = place("sq_depth", 64 * u64::from(sq_depth.slots()))?;
        let cq = place("cq_depth", 32 * u64::from(cq_depth.slots()))?;
        let events = place("event_slots", 32 * u64::from(self.event_slots))?;
        let tokens = place("token_bytes", self.token_bytes)?;
        let kv = place("kv_bytes", self.kv_bytes)?;
        let logp = place("logp_bytes", self.logp_bytes)?;
        let model = place("model_bytes", self.model_bytes)?;
        let mut arenas = [0; ARENAS as usize];
        for (arena, bytes) in arenas.iter_mut().zip(self.arena_bytes) {
            *arena = place("arena_bytes", bytes)?;
        }
        let message = place("message", PAGE as u64)?;
        Ok(Layout { sq, cq, events, tokens, kv, logp, model, arenas, message, bytes: end })
    }

    /// The registers that this configuration sets, for a token region at `tokens` and other regions at `layout` in memory at
    /// `bus_address`.
    pub(crate) fn registers(&self, layout: &Layout, bus_address: u64, tokens: u64) -> Vec<(Register, u32)> {
        use Register as R;
        let at = |offset: usize| bus_address + offset as u64;
        let wide = [
            (R::SqBaseLo, R::SqBaseHi, at(layout.sq)),
            (R::CqBaseLo, R::CqBaseHi, at(layout.cq)),
            (R::TokenBaseLo, R::TokenBaseHi, tokens),
            (R::TokenSizeLo, R::TokenSizeHi, lines(self.token_bytes)),
            (R::KvBaseLo, R::KvBaseHi, at(layout.kv)),
            (R::KvSizeLo, R::KvSizeHi, lines(self.kv_bytes)),
        ];
        let narrow = [
            (R::SqSize, self.sq_depth),
            (R::CqSize, self.cq_depth),
            (R::SqStart, self.sq_start),
            (R::CqStart, self.cq_start),
            (R::Weight, self.weight),
            (R::CheckpointDefault, self.checkpoint_default),
            (R::WaitStates, self.wait_states),
            (R::LengthLimit, self.length_limit),
            (R::EosThreshold, self.eos_threshold),
            (R::RewardThreshold, self.reward_threshold as u32),
        ];
        wide.into_iter()
            .flat_map(|(low, high, value)| [(low, value as u32), (high, (value >> 32) as u32)])
            .chain(narrow)
            .collect()
    }

    /// The registers of the log-probability region, which a device without log-probabilities does not have.
    pub(crate) fn logp_registers(&self, layout: &Layout, bus_address: u64) -> [(Register, u32); 4] {
        use Register as R;
        let base = bus_address + layout.logp as u64;
        [
            (R::LogpBaseLo, base as u32),
            (R::LogpBaseHi, (base >> 32) as u32),
            (R::LogpSizeLo, lines(self.logp_bytes) as u32),
            (R::LogpSizeHi, (lines(self.logp_bytes) >> 32) as u32),
        ]
    }

    /// The registers of MODEL region and arenas, which a device without engine 1 does not have. What has no bytes lies nowhere.
    pub(crate) fn language_registers(&self, layout: &Layout, bus_address: u64) -> Vec<(Register, u32)> {
        let parts = [(layout.model, self.model_bytes)];
        let arenas = layout.arenas.into_iter().zip(self.arena_bytes);
        let first = [Register::ModelBaseLo, Register::Arena0BaseLo, Register::Arena1BaseLo];
        let first = first.into_iter().chain([Register::Arena2BaseLo, Register::Arena3BaseLo]);
        let halves = parts.into_iter().chain(arenas).zip(first).flat_map(|((offset, bytes), first)| {
            let base = if bytes > 0 { bus_address + offset as u64 } else { 0 };
            let bytes = lines(bytes);
            let words = [base as u32, (base >> 32) as u32, bytes as u32, (bytes >> 32) as u32];
            (first as u32..).step_by(4).zip(words)
        });
        halves.filter_map(|(address, value)| Some((Register::at(address)?.0, value))).collect()
    }

    /// The registers of the event ring, which a device without events does not have.
    pub(crate) fn event_registers(&self, layout: &Layout, bus_address: u64) -> [(Register, u32); 4] {
        let base = if self.event_slots > 0 { bus_address + layout.events as u64 } else { 0 };
        let life =
            if self.event_slots > 0 && self.life_events { EventControl::LIFE } else { EventControl::empty() };
        [
            (Register::EqBaseLo, base as u32),
            (Register::EqBaseHi, (base >> 32) as u32),
            (Register::EqSize, self.event_slots),
            (Register::EventControl, life.bits()),
        ]
    }

    /// The registers of coalesced interrupts, which a device without interrupts does not have.
    pub(crate) fn coalescing_registers(&self) -> [(Register, u32); 2] {
        [(Register::CoalesceCount, self.coalesce_count), (Register::CoalesceTime, self.coalesce_time)]
    }

    /// The registers of reward model 1, which a device without it does not have.
    pub(crate) fn range_registers(&self) -> Vec<(Register, u32)> {
        let first = Register::Range0Lo as u32;
        let halves = self.ranges.iter().flat_map(|&(lo, hi)| [lo, hi]);
        let registers = halves.zip((first..).step_by(4));
        registers.filter_map(|(value, address)| Some((Register::at(address)?.0, value))).collect()
    }
}

fn at_most(field: &'static str, value: u32, limit: u32) -> Result<(), DeviceError> {
    if value > limit {
        return Err(DeviceError::Config { field, value: value.into(), expected: format!("at most {limit}") });
    }
    Ok(())
}

/// A region's size in its registers: whole lines (R11). The layout gives each region whole pages.
fn lines(bytes: u64) -> u64 {
    bytes.next_multiple_of(64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case(QueueConfig { sq_depth: 48, ..Default::default() },
           "sq_depth is 48: a ring has a power of two of slots, from 2 to 65536; the nearest: 32 and 64")]
    #[case(QueueConfig { cq_depth: 1, ..Default::default() },
           "cq_depth is 1: a ring has a power of two of slots, from 2 to 65536; the nearest: 2")]
    #[case(QueueConfig { wait_states: 65_536, ..Default::default() }, "wait_states is 65536: it must be at most 65535")]
    #[case(QueueConfig { eos_threshold: 65_536, ..Default::default() }, "eos_threshold is 65536: it must be at most 65535")]
    #[case(QueueConfig { length_limit: LENGTH_LIMIT_MAX + 1, ..Default::default() },
           "length_limit is 2147483648: it must be at most 2147483647")]
    #[case(QueueConfig { workers: Some(0), ..Default::default() }, "workers is 0: it must be at least 1")]
    #[case(QueueConfig { workers: Some(33), ..Default::default() }, "workers is 33: it must be at most 32")]
    #[case(QueueConfig { weight: 0, ..Default::default() }, "weight is 0: it must be at least 1")]
    #[case(QueueConfig { weight: 256, ..Default::default() }, "weight is 256: it must be at most 255")]
    #[case(QueueConfig { event_slots: 3, ..Default::default() },
           "event_slots is 3: a ring has a power of two of slots, from 2 to 65536; the nearest: 2 and 4")]
    #[case(QueueConfig { patience: 0, ..Default::default() }, "patience is 0: it must be at least 1")]
    #[case(QueueConfig { token_bytes: u64::MAX, ..Default::default() },
           "token_bytes is 18446744073709551615: it must be small enough for the regions to fit the address space together")]
    fn bad_configurations_name_the_field(#[case] config: QueueConfig, #[case] message: &str) {
        assert_eq!(config.check().unwrap_err().to_string(), message);
    }

    #[test]
    fn regions_are_page_aligned_and_disjoint() {
        let config = QueueConfig {
            sq_depth: 2,
            cq_depth: 256,
            event_slots: 2,
            token_bytes: 1,
            kv_bytes: 5000,
            logp_bytes: 3,
            model_bytes: 1,
            arena_bytes: [0, 64, 0, 0],
            ..Default::default()
        };
        let layout = config.check().unwrap().layout;
        assert_eq!(
            layout,
            Layout {
                sq: 0,
                cq: 4096,
                events: 12_288,
                tokens: 16_384,
                kv: 20_480,
                logp: 28_672,
                model: 32_768,
                arenas: [36_864, 36_864, 40_960, 40_960],
                message: 40_960,
                bytes: 45_056
            }
        );
    }
}
