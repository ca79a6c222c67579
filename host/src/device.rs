//! What a user of a device sees: submit descriptors, poll completions.

use std::time::Instant;

use crate::error::DeviceError;
use crate::language::LanguageRegions;
use crate::memory::SharedMemory;
use crate::placement::Account;
use crate::platform::Platform;
use crate::ports::SharedDevice;
use crate::why::Why;
use doorbell_contract::{
    Capability, Counter, HwCompletion, HwDesc, HwEvent, HwPolicy, QueueCounter, Register, WorkerCounter,
};

/// A device with one queue pair, whatever executes behind it.
///
/// Dropping a device does not wait: what is in flight is lost.
pub trait Device: Send {
    /// Short name of the device, as users type it.
    fn name(&self) -> &str;

    /// Submits the head of `batch`, as much as the submission queue has room for, with one doorbell, and returns how
    /// many were taken: 0 if the queue is full (then [`poll`](Self::poll) frees slots). The check word is filled in.
    ///
    /// # Errors
    /// `Disabled`, or a failure of the device.
    fn submit(&mut self, batch: &[HwDesc]) -> Result<usize, DeviceError>;

    /// Copies completions into the head of `out` and returns how many. If none is there yet and some are due, it
    /// gives the device time once. If that brings none, it returns 0: call it again.
    ///
    /// # Errors
    /// `Timeout` if nothing has moved for too long (R15), `Protocol` if the device broke the contract, `Disabled`, or
    /// another failure of the device.
    fn poll(&mut self, out: &mut [HwCompletion]) -> Result<usize, DeviceError>;

    /// As [`poll`](Self::poll), but takes only what is there already, and gives the device no time.
    ///
    /// # Errors
    /// As [`poll`](Self::poll), but for `Timeout`.
    fn collect(&mut self, out: &mut [HwCompletion]) -> Result<usize, DeviceError>;

    /// Arms the interrupt of each of its queue pairs at the completion that it would read next (R14). The next [`wait`](Self::wait) then sleeps until one fires; not every
    /// completion makes it fire. Completions since the last poll count, so there is no need to poll in between. Returns whether it armed: `false`, the default, is for a
    /// device without interrupts, where a wait polls.
    ///
    /// # Errors
    /// `Disabled`, or a failure of the device.
    fn arm(&mut self) -> Result<bool, DeviceError> {
        Ok(false)
    }

    /// Waits until [`collect`](Self::collect) would bring a completion or an error, and returns `true`; or until
    /// `deadline` has passed, or nothing is in flight, and returns `false`. The thread may sleep. With a deadline that has
    /// passed already, it looks, gives the device time at most once, and looks again.
    ///
    /// `true` may be spurious, so call this in a loop. A completion that is there ends the sleep within a millisecond. If the interrupt
    /// is [armed](Self::arm), this waits for the interrupt instead: `true` says that it has fired, and must be armed anew. The default, for devices that know nothing better, says `true`
    /// at once whenever something is in flight: its caller then polls.
    ///
    /// # Errors
    /// As [`poll`](Self::poll).
    fn wait(&mut self, deadline: Instant) -> Result<bool, DeviceError> {
        let _ = deadline;
        Ok(self.in_flight() > 0)
    }

    /// The descriptor that `completion` answers but does not name. The device could trust nothing in its slot, so the completion has
    /// NO_ECHO and only the slot's index ("Which error" in docs/contract.md). `None` for every other completion, and if the slot has
    /// been used again, so call this before the next [`submit`](Self::submit).
    fn unread(&self, completion: &HwCompletion) -> Option<HwDesc> {
        let _ = completion;
        None
    }

    /// Descriptors submitted and not yet returned by [`poll`](Self::poll).
    fn in_flight(&self) -> usize;

    /// Slots of the submission queue.
    fn capacity(&self) -> usize;

    /// Free slots of the submission queue, as far as is known: [`submit`](Self::submit) takes at least that many.
    fn room(&self) -> usize;

    /// Copies `out.len()` tokens from `delta_offset` bytes into the token region. The tokens of a descriptor are
    /// there once its completion has been returned.
    ///
    /// # Errors
    /// `OutOfBounds` if the range is not within the token region or misaligned.
    fn tokens(&self, delta_offset: u64, out: &mut [u32]) -> Result<(), DeviceError>;

    /// The token regions of all shards, for other threads to read: one for a device that is one queue pair.
    fn token_regions(&self) -> Vec<TokenRegion>;

    /// For each token region, the region of its tokens' log-probabilities, at the same offsets (R11); none if there is none.
    fn logp_regions(&self) -> Vec<TokenRegion> {
        vec![]
    }

    /// For each token region, where the models, sequences, keys and values of engine 1 lie (R25, R26); none if a queue pair has none of its own.
    fn language_regions(&self) -> Vec<LanguageRegions> {
        vec![]
    }

    /// Which of the [`token_regions`](Self::token_regions) has the token at `delta_offset`: the one of the shard to
    /// which the last DECODE of these bytes was submitted. Allocates nothing.
    fn token_shard(&self, delta_offset: u64) -> usize;

    /// What each of its queue pairs can do; with several shards, what all of them can do.
    ///
    /// The default, nothing, is for devices that know nothing better.
    fn features(&self) -> Features {
        Features::default()
    }

    /// Which of its queue pairs `desc` would go to if it were submitted now, by the place of its region among the
    /// [`token_regions`](Self::token_regions). Of one that was submitted since the last [`poll`](Self::poll) it is the one that it went to. Of one that
    /// names a shared prefix that place follows from the prefix alone, unless its rollout is in flight.
    fn queue_of(&self, desc: &HwDesc) -> usize {
        let _ = desc;
        0
    }

    /// One queue pair of each function of each device, by the same places: a POLICY sent to each of them is published
    /// everywhere (R18). Allocates.
    fn functions(&self) -> Vec<usize> {
        vec![0]
    }

    /// Submits `desc` to queue pair `queue`, and says whether it was taken: not if the submission queue is full.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    fn submit_to(&mut self, queue: usize, desc: &HwDesc) -> Result<bool, DeviceError> {
        let _ = queue;
        Ok(self.submit(std::slice::from_ref(desc))? == 1)
    }

    /// The device's counters since it was enabled.
    ///
    /// # Errors
    /// A failure of the device.
    fn counters(&mut self) -> Result<Counters, DeviceError>;

    /// The counters of each of its queue pairs since that was enabled, by the places of the
    /// [`token_regions`](Self::token_regions). Allocates. The default, none, is for devices that know nothing better.
    ///
    /// # Errors
    /// A failure of the device.
    fn queue_counters(&mut self) -> Result<Vec<QueueCounters>, DeviceError> {
        Ok(vec![])
    }

    /// The counters of each worker of its device since the device's [`counters`](Self::counters) were cleared, by the worker's number.
    /// Allocates. The default, none, is for devices without CAPABILITY.WORKER_COUNTERS.
    ///
    /// # Errors
    /// A failure of the device.
    fn worker_counters(&mut self) -> Result<Vec<WorkerCounters>, DeviceError> {
        Ok(vec![])
    }

    /// The device to which the [`counters`](Self::counters) belong, if other queue pairs of the same device count there too.
    /// The default, `None`, says that only this queue pair counts there.
    fn shared_device(&self) -> Option<SharedDevice> {
        None
    }

    /// The function that its queue pair belongs to, where it is one of several queue pairs of a device.
    fn function(&self) -> u8 {
        0
    }

    /// The number of its queue pair in its device, where it is one of several.
    fn queue(&self) -> u8 {
        0
    }

    /// Copies events into the head of `out`, releases them, and returns how many (R23). Those of a function come to the queue pair
    /// that has laid its ring out, [`QueueConfig::event_slots`](crate::QueueConfig::event_slots); the default, none, is what others see. `queue_id` says whose each
    /// is: by its number in the device, or of several shards by the place of its region among the
    /// [`token_regions`](Self::token_regions), 255 if it is none of them. Those that lie in memory are read behind a disable, too.
    ///
    /// # Errors
    /// A failure of the device.
    fn events(&mut self, out: &mut [HwEvent]) -> Result<usize, DeviceError> {
        let _ = out;
        Ok(0)
    }

    /// Whether LIFE events wait until they are read, however many there are: then nobody needs to read them while the device works. The default, `false`, is a
    /// ring, which drops what finds no room.
    fn keeps_lives(&self) -> bool {
        false
    }

    /// The `user_data` of the completion that `event`, as [`events`](Self::events) gave it, tells the life of, where that is known: with
    /// [`QueueConfig::life_events`](crate::QueueConfig::life_events), and not much later than its completion.
    fn answered(&self, event: &HwEvent) -> Option<u64> {
        let _ = event;
        None
    }

    /// The index of the completion that queue pair `queue` gives next, where that is known: the [`poll`](Self::poll)s so far gave those below. `queue` is the place of
    /// its region among the [`token_regions`](Self::token_regions).
    fn taken(&self, queue: usize) -> Option<u32> {
        let _ = queue;
        None
    }

    /// What the clock of its LIFE events (R23) reads now, where whoever runs the device can tell. The default, `None`, is for devices whose clock nobody
    /// can read.
    fn ticks(&mut self) -> Option<u64> {
        None
    }

    /// Why the next completion of each of its queue pairs does not come: who waits for whom, and the root. By the place of the queue pair's
    /// region among the [`token_regions`](Self::token_regions); those that have nothing in flight are left out. Reads registers
    /// and both rings, and changes nothing. The default, none, is for devices that know nothing better.
    ///
    /// # Errors
    /// A failure of the device.
    fn why(&mut self) -> Result<Vec<(usize, Why)>, DeviceError> {
        Ok(vec![])
    }

    /// Stops the device (R12): returns once it no longer accesses memory. What is in flight is lost.
    ///
    /// # Errors
    /// `Timeout` if it does not stop, or another failure of the device.
    fn disable(&mut self) -> Result<(), DeviceError>;

    /// Starts a disabled device anew, with empty queues and the configuration it had.
    ///
    /// # Errors
    /// `NotStarted`, or another failure of the device.
    fn enable(&mut self) -> Result<(), DeviceError>;
}

/// What a queue pair can do beyond what all can: what its device's capability words say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// CAPABILITY.
    pub capability: Capability,
    /// Groups that the queue pair may have at a time (R17); 0: none.
    pub groups: u32,
    /// Versions of the policy that its function may have resident (R18); 0: version 0 alone.
    pub policy_slots: u32,
    /// Decode engines: `model_id` below it is known.
    pub engines: u32,
    /// Reward models: `reward_model_id` below it is known.
    pub reward_models: u32,
    /// Ticks of the device's clock in a second; 0: they are of no fixed length.
    pub tick_hz: u32,
}

impl Features {
    /// What the device behind `platform` reports. If a device lacks one of these registers, it lacks what the register describes.
    ///
    /// # Errors
    /// A failure of the device.
    pub fn of(platform: &mut (impl Platform + ?Sized)) -> Result<Self, DeviceError> {
        let mut read = |register| match platform.read_register(register) {
            Err(DeviceError::ReadRefused { .. }) => Ok(0),
            read => read,
        };
        Ok(Features {
            capability: Capability::from_bits_retain(read(Register::Capability)?),
            groups: read(Register::CapGroups)?,
            policy_slots: read(Register::CapPolicySlots)?,
            engines: read(Register::CapEngines)?,
            reward_models: read(Register::CapRewardModels)?,
            tick_hz: read(Register::CapTickHz)?,
        })
    }

    /// What both can.
    #[must_use]
    pub fn and(self, other: Features) -> Features {
        Features {
            capability: self.capability & other.capability,
            groups: self.groups.min(other.groups),
            policy_slots: self.policy_slots.min(other.policy_slots),
            engines: self.engines.min(other.engines),
            reward_models: self.reward_models.min(other.reward_models),
            // Of two clocks neither is that of both.
            tick_hz: if self.tick_hz == other.tick_hz { self.tick_hz } else { 0 },
        }
    }
}

/// The token region of one shard, for any thread to read while the device runs. Clones share the memory, and keep it
/// when the device is gone.
///
/// Tokens may be read by whoever learnt of their completion from the thread that polled it, through anything that
/// orders the two (a ring, a channel). If they are read earlier, or after the area was given to another descriptor,
/// they are old, new, or some of each; a token is never torn.
#[derive(Clone, Debug)]
pub struct TokenRegion {
    memory: SharedMemory,
    start: usize,
    bytes: u64,
}

impl TokenRegion {
    /// The `bytes` bytes from `start` in `memory`.
    ///
    /// # Errors
    /// `OutOfBounds` if they do not lie in the memory, or `start` is not 4-byte aligned.
    pub fn new(memory: SharedMemory, start: usize, bytes: u64) -> Result<Self, DeviceError> {
        let size = memory.len() as u64;
        if !start.is_multiple_of(4) || (start as u64).checked_add(bytes).is_none_or(|end| end > size) {
            return Err(DeviceError::OutOfBounds {
                what: "shared memory",
                offset: start as u64,
                bytes,
                size,
            });
        }
        Ok(Self { memory, start, bytes })
    }

    /// Bytes of the region.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Where the device sees it.
    pub fn bus_address(&self) -> u64 {
        self.memory.bus_address() + self.start as u64
    }

    /// What the kernel reports about the memory that these regions lie in, including what else their drivers have there: rings, KV,
    /// models. Memory that several regions share counts once. Reads `/proc`.
    ///
    /// # Errors
    /// As [`SharedMemory::account`].
    pub fn account_of(regions: &[Self]) -> std::io::Result<Account> {
        SharedMemory::account_of(regions.iter().map(|region| &region.memory))
    }

    /// Copies `out.len()` tokens from `byte_offset` bytes into the region.
    ///
    /// # Errors
    /// `OutOfBounds` if the range is not within the region or misaligned.
    #[inline]
    pub fn read(&self, byte_offset: u64, out: &mut [u32]) -> Result<(), DeviceError> {
        let (bytes, size) = (4 * out.len() as u64, self.bytes);
        if !byte_offset.is_multiple_of(4) || byte_offset.checked_add(bytes).is_none_or(|end| end > size) {
            return Err(DeviceError::OutOfBounds { what: "token region", offset: byte_offset, bytes, size });
        }
        self.memory.load_u32s(self.start + byte_offset as usize, out)
    }

    /// Writes the header of a policy to `byte_offset` bytes into the region, for a POLICY that is published later to load (R19).
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn place_policy(&self, byte_offset: u64, header: &HwPolicy) -> Result<(), DeviceError> {
        self.write(byte_offset, &bytemuck::cast::<HwPolicy, [u32; 4]>(*header))
    }

    /// Writes words to `byte_offset` bytes into the region, for a descriptor that is published later to read.
    ///
    /// # Errors
    /// `OutOfBounds` if they do not lie in the region, or are misaligned.
    pub fn write(&self, byte_offset: u64, words: &[u32]) -> Result<(), DeviceError> {
        let (bytes, size) = (4 * words.len() as u64, self.bytes);
        if !byte_offset.is_multiple_of(4) || byte_offset.checked_add(bytes).is_none_or(|end| end > size) {
            return Err(DeviceError::OutOfBounds { what: "token region", offset: byte_offset, bytes, size });
        }
        self.memory.store_u32s(self.start + byte_offset as usize, words)
    }
}

/// A snapshot of a device's counters, one value after another: counters that run on may be a few counts apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counters([u64; Counter::ALL.len()]);

impl Counters {
    /// Reads every counter through `read`.
    ///
    /// # Errors
    /// The first that `read` returns.
    pub fn read(mut read: impl FnMut(Counter) -> Result<u64, DeviceError>) -> Result<Self, DeviceError> {
        let mut values = [0; Counter::ALL.len()];
        for (value, counter) in values.iter_mut().zip(Counter::ALL) {
            *value = read(counter)?;
        }
        Ok(Self(values))
    }

    /// One counter's value.
    pub fn get(&self, counter: Counter) -> u64 {
        self.0[counter as usize]
    }

    /// All counters, in the order of the contract.
    pub fn iter(&self) -> impl Iterator<Item = (Counter, u64)> + '_ {
        Counter::ALL.into_iter().zip(self.0)
    }
}

/// A snapshot of a queue pair's counters, likewise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueCounters([u64; QueueCounter::ALL.len()]);

impl QueueCounters {
    /// Reads every counter through `read`.
    ///
    /// # Errors
    /// The first that `read` returns.
    pub fn read(mut read: impl FnMut(QueueCounter) -> Result<u64, DeviceError>) -> Result<Self, DeviceError> {
        let mut values = [0; QueueCounter::ALL.len()];
        for (value, counter) in values.iter_mut().zip(QueueCounter::ALL) {
            *value = read(counter)?;
        }
        Ok(Self(values))
    }

    /// One counter's value.
    pub fn get(&self, counter: QueueCounter) -> u64 {
        self.0[counter as usize]
    }

    /// All counters, in the order of the contract.
    pub fn iter(&self) -> impl Iterator<Item = (QueueCounter, u64)> + '_ {
        QueueCounter::ALL.into_iter().zip(self.0)
    }
}

/// A snapshot of a worker's counters, likewise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerCounters([u64; WorkerCounter::ALL.len()]);

impl WorkerCounters {
    /// Reads every counter through `read`.
    ///
    /// # Errors
    /// The first that `read` returns.
    pub fn read(
        mut read: impl FnMut(WorkerCounter) -> Result<u64, DeviceError>,
    ) -> Result<Self, DeviceError> {
        let mut values = [0; WorkerCounter::ALL.len()];
        for (value, counter) in values.iter_mut().zip(WorkerCounter::ALL) {
            *value = read(counter)?;
        }
        Ok(Self(values))
    }

    /// One counter's value.
    pub fn get(&self, counter: WorkerCounter) -> u64 {
        self.0[counter as usize]
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn region() -> TokenRegion {
        let memory = SharedMemory::allocate(8192, 0).unwrap();
        for word in 0..2048 {
            memory.bus_write_u32(4 * word, word as u32).unwrap();
        }
        TokenRegion::new(memory, 4096, 4000).unwrap()
    }

    #[test]
    fn a_region_is_read_from_other_threads_and_outlives_its_device() {
        let region = region();
        let readers: Vec<_> = (0..4u64)
            .map(|k| (k, region.clone()))
            .map(|(k, region)| {
                std::thread::spawn(move || {
                    let mut out = [0; 3];
                    region.read(40 * k, &mut out).map(|()| out)
                })
            })
            .collect();
        drop(region);
        for (k, reader) in readers.into_iter().enumerate() {
            let first = 1024 + 10 * k as u32;
            assert_eq!(reader.join().unwrap().unwrap(), [first, first + 1, first + 2]);
        }
    }

    #[rstest]
    #[case::last(3996, 1, true)]
    #[case::empty_at_the_end(4000, 0, true)]
    #[case::behind_the_region_but_in_the_memory(4000, 1, false)]
    #[case::across(3996, 2, false)]
    #[case::misaligned(2, 1, false)]
    #[case::wrapping(u64::MAX - 3, 2, false)]
    fn r11_accesses_stay_within_the_region(#[case] offset: u64, #[case] count: usize, #[case] within: bool) {
        assert_eq!(region().read(offset, &mut vec![0; count]).is_ok(), within);
        assert_eq!(region().write(offset, &vec![7; count]).is_ok(), within);
    }

    #[test]
    fn what_is_written_is_read() {
        let region = region();
        region.write(64, &[1, 2, 3]).unwrap();
        let mut out = [0; 5];
        region.read(60, &mut out).unwrap();
        assert_eq!(out, [1039, 1, 2, 3, 1043]);
    }

    #[rstest]
    #[case::misaligned(2, 4)]
    #[case::beyond(4096, 4097)]
    #[case::wrapping(8, u64::MAX)]
    fn a_region_lies_within_its_memory(#[case] start: usize, #[case] bytes: u64) {
        let memory = SharedMemory::allocate(8192, 0).unwrap();
        let error = TokenRegion::new(memory, start, bytes).unwrap_err();
        assert!(matches!(error, DeviceError::OutOfBounds { size: 8192, .. }), "{error}");
    }
}
