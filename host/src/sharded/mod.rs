//! Several devices as one, such as the queue pairs of one or several GPUs.

mod regions;

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use crate::device::{Counters, Device, Features, QueueCounters, TokenRegion, WorkerCounters};
use crate::error::DeviceError;
use crate::language::LanguageRegions;
use crate::why::Why;
use doorbell_contract::{
    CompletionFlags, DescFlags, GOLDEN, HwCompletion, HwDesc, HwEvent, MEMBER_NONE, Opcode, PREFIX_NONE,
};
use regions::Regions;

/// Several devices, the *shards*, as one [`Device`]: rollouts are spread over them by prefix.
///
/// A descriptor goes to the shard that has its rollout in flight; else to the one of its `prefix_id`; else, without a
/// prefix, to the one of its `rollout_id`. So all descriptors of a rollout that are in flight at a time meet in one
/// queue pair, where its order (R5) and its STOP (R8), which may carry no prefix, hold; what follows a PREFILL comes
/// to where its prefix was registered; and as long as rollouts keep to their prefix, all of a group meet in one queue pair (R17). A
/// STOP of a whole group, which names no rollout, goes to the shard of its prefix. A REWARD of a rollout that is not in flight goes to the shard
/// whose DECODE made its first token, if there is one.
///
/// What the contract says of a queue pair holds for each shard alone: a FENCE (R7) separates the descriptors of its own
/// shard, and `sq_head`, or the SQ index that answers for a slot of which nothing could be trusted, counts that shard's slots.
///
/// Each shard has a token region of its own, all of the same size. A DECODE takes its range of bytes over when it is
/// submitted, even if it is rejected then: what another shard wrote there before is no longer read. Tokens that a REWARD reads and another shard has, as its
/// rollout is in flight here or has gone from shard to shard, are copied to its shard when it is submitted.
pub struct Sharded {
    name: String,
    shards: Vec<Box<dyn Device>>,
    /// The shard whose turn it is.
    turn: usize,
    /// Where the rollouts in flight are.
    rollouts: HashMap<u32, Rollout>,
    /// Which shard has the tokens of which bytes.
    regions: Regions,
    /// Where each shard's own token regions begin among those of all.
    first_region: Vec<usize>,
    /// Descriptors of one submission by shard, kept to use their memory again.
    runs: Vec<Vec<HwDesc>>,
    /// The SQ index and the descriptor of each slot of which nothing could be trusted, of the completions returned last.
    unread: Vec<(u32, HwDesc)>,
    /// A failure that came with completions of other shards: it is told of next.
    failure: Option<DeviceError>,
}

/// How long one shard is waited for while others may have something, at most.
const LONGEST_WAIT: Duration = Duration::from_millis(1);

/// A rollout in flight.
struct Rollout {
    shard: usize,
    in_flight: usize,
}

impl Sharded {
    /// `shards` as one device of the name `name`.
    ///
    /// # Errors
    /// `Config` if there are none.
    pub fn new(name: impl Into<String>, shards: Vec<Box<dyn Device>>) -> Result<Self, DeviceError> {
        if shards.is_empty() {
            return Err(DeviceError::Config { field: "shards", value: 0, expected: "at least 1".into() });
        }
        let first_region = shards
            .iter()
            .scan(0, |regions, shard| {
                Some(std::mem::replace(regions, *regions + shard.token_regions().len()))
            })
            .collect();
        Ok(Self {
            name: name.into(),
            turn: 0,
            first_region,
            // Twice as many as there can be: then no mixture of comings and goings makes it grow.
            rollouts: HashMap::with_capacity(2 * shards.iter().map(|shard| shard.capacity()).sum::<usize>()),
            regions: Regions::new(),
            runs: shards.iter().map(|shard| Vec::with_capacity(shard.capacity())).collect(),
            unread: Vec::new(),
            failure: None,
            shards,
        })
    }

    /// One shard, to look at it or to give it time. What is submitted or taken there behind this device's back is
    /// lost to it.
    ///
    /// # Panics
    /// If there is no such shard.
    pub fn shard_mut(&mut self, shard: usize) -> &mut dyn Device {
        &mut *self.shards[shard]
    }

    /// Rollouts that have a descriptor in flight.
    pub fn rollouts_in_flight(&self) -> usize {
        self.rollouts.len()
    }

    /// The shard to which `desc` would go if it were submitted now.
    pub fn shard_of(&self, desc: &HwDesc) -> usize {
        let stops_group = desc.opcode == Opcode::Stop as u8
            && desc.flags & DescFlags::COW_PREFIX.bits() != 0
            && desc.member == MEMBER_NONE;
        if !stops_group && let Some(rollout) = self.rollouts.get(&desc.rollout_id) {
            return rollout.shard;
        }
        if desc.opcode == Opcode::Reward as u8
            && let Some(shard) = self.regions.at(desc.delta_offset).0
        {
            return shard;
        }
        let key = if desc.prefix_id == PREFIX_NONE { desc.rollout_id } else { desc.prefix_id };
        // Fibonacci hashing: ids that are close, or equally far apart, still spread over few shards.
        (key.wrapping_mul(GOLDEN) >> 16) as usize % self.shards.len()
    }

    /// Notes that `desc` goes to `shard`.
    fn note_submitted(&mut self, shard: usize, desc: &HwDesc) {
        let rollout = self.rollouts.entry(desc.rollout_id).or_insert(Rollout { shard, in_flight: 0 });
        // One that has changed its prefix in flight is where it was before.
        rollout.in_flight += usize::from(rollout.shard == shard);
        // A misaligned one, or one beyond the end of all addresses, is rejected (R10) and writes nothing.
        if desc.opcode == Opcode::Decode as u8 && desc.delta_offset.is_multiple_of(4) {
            let end = desc.delta_offset.saturating_add(4 * u64::from(desc.max_tokens));
            self.regions.assign(desc.delta_offset..end, shard);
        }
    }

    /// Copies to `shard` what `desc`, a REWARD for it, reads of the tokens of other shards.
    #[cold]
    fn gather(&self, shard: usize, desc: &HwDesc) {
        let end = desc.delta_offset.saturating_add(4 * u64::from(desc.max_tokens));
        let (mut offset, mut words) = (desc.delta_offset, [0; 256]);
        let mut last = [0];
        // The device rejects what lies in no region (R10), and a range that begins within a word.
        if offset % 4 != 0
            || offset == end
            || self.shards[shard].tokens(end.saturating_sub(4), &mut last).is_err()
        {
            return;
        }
        while offset < end {
            // What no DECODE made, the host has written where it is to be read.
            let (Some(other), next) = self.regions.at(offset) else {
                offset = self.regions.at(offset).1;
                continue;
            };
            if other == shard {
                offset = next;
                continue;
            }
            let count = words.len().min((next.min(end) - offset).div_ceil(4) as usize);
            let to = &self.shards[shard];
            let copied = self.shards[other]
                .tokens(offset, &mut words[..count])
                .and_then(|()| to.token_regions()[to.token_shard(offset)].write(offset, &words[..count]));
            // Regions may differ: the device rejects what lies in none of its own.
            if copied.is_err() {
                return;
            }
            offset += 4 * count as u64;
        }
    }

    /// Notes that what was meant for `shard`, and for those behind it, was not submitted.
    #[cold]
    fn note_not_submitted(&mut self, shard: usize) {
        for shard in shard..self.shards.len() {
            for desc in &self.runs[shard] {
                if let Entry::Occupied(mut entry) = self.rollouts.entry(desc.rollout_id)
                    && entry.get().shard == shard
                {
                    entry.get_mut().in_flight -= 1;
                    if entry.get().in_flight == 0 {
                        entry.remove();
                    }
                }
            }
        }
    }

    /// Keeps a failure of a shard until it can be told of: others may have completions.
    #[cold]
    fn keep_failure(&mut self, shard: usize, error: DeviceError) {
        let error = self.of_shard(shard, error);
        self.failure.get_or_insert(error);
    }

    /// Takes what the shards have completed, those behind one that fails too.
    fn take(&mut self, out: &mut [HwCompletion]) -> usize {
        let mut taken = 0;
        for shard in self.in_turn() {
            match self.shards[shard].collect(&mut out[taken..]) {
                Ok(0) => {}
                Ok(more) => {
                    self.note_completed(shard, &out[taken..taken + more]);
                    self.pass_turn(shard);
                    taken += more;
                }
                Err(error) => self.keep_failure(shard, error),
            }
        }
        taken
    }

    /// Notes what `shard` has completed.
    fn note_completed(&mut self, shard: usize, completions: &[HwCompletion]) {
        for completion in completions {
            let mut rollout = completion.rollout_id;
            if completion.has(CompletionFlags::NO_ECHO)
                && let Some(desc) = self.shards[shard].unread(completion)
            {
                // It names no rollout: its slot does.
                rollout = desc.rollout_id;
                self.unread.push((completion.result, desc));
            }
            if let Entry::Occupied(mut entry) = self.rollouts.entry(rollout)
                && entry.get().shard == shard
            {
                entry.get_mut().in_flight -= 1;
                if entry.get().in_flight == 0 {
                    entry.remove();
                }
            }
        }
    }

    /// Every shard, from the one whose turn it is.
    fn in_turn(&self) -> impl Iterator<Item = usize> + use<> {
        (self.turn..self.shards.len()).chain(0..self.turn)
    }

    /// Makes it the turn of the shard behind `shard`.
    fn pass_turn(&mut self, shard: usize) {
        self.turn = (shard + 1) % self.shards.len();
    }

    /// The shard that has the token region at `place` among those of all.
    fn shard_at(&self, place: usize) -> usize {
        self.first_region.partition_point(|&first| first <= place).saturating_sub(1)
    }

    /// The place of queue pair `queue` of the device of `shard`, as that numbers them, among all; 255 if it is none of them.
    fn place_of(&self, shard: usize, queue: u8) -> u8 {
        let place = match self.shards[shard].shared_device() {
            None => Some(self.first_region[shard] + usize::from(queue)),
            device => {
                let mut shards = self.shards.iter();
                let found =
                    shards.position(|other| other.shared_device() == device && other.queue() == queue);
                found.map(|found| self.first_region[found])
            }
        };
        place.and_then(|place| u8::try_from(place).ok()).unwrap_or(u8::MAX)
    }

    #[cold]
    fn of_shard(&self, shard: usize, error: DeviceError) -> DeviceError {
        DeviceError::Shard { shard, shards: self.shards.len(), error: Box::new(error) }
    }

    /// Does `what` to every shard, to those behind one that fails too.
    fn each(
        &mut self,
        mut what: impl FnMut(&mut dyn Device) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let mut result = Ok(());
        for shard in 0..self.shards.len() {
            let done = what(&mut *self.shards[shard]).map_err(|error| self.of_shard(shard, error));
            result = result.and(done);
        }
        result
    }
}

impl Device for Sharded {
    fn name(&self) -> &str {
        &self.name
    }

    /// One doorbell for each shard that gets some, in the order of `batch` within a shard. The first descriptor for
    /// which its shard has no room ends what is taken, though others behind it might fit elsewhere: what is taken is
    /// the head of `batch`. After an error, other shards may have taken theirs.
    fn submit(&mut self, batch: &[HwDesc]) -> Result<usize, DeviceError> {
        self.runs.iter_mut().for_each(Vec::clear);
        let mut taken = 0;
        for desc in batch {
            let shard = self.shard_of(desc);
            if self.runs[shard].len() == self.shards[shard].room() {
                break;
            }
            if desc.opcode == Opcode::Reward as u8 {
                self.gather(shard, desc);
            }
            self.runs[shard].push(*desc);
            self.note_submitted(shard, desc);
            taken += 1;
        }
        for shard in 0..self.shards.len() {
            let run = &self.runs[shard];
            if run.is_empty() {
                continue;
            }
            let count = match self.shards[shard].submit(run) {
                Ok(count) => count,
                Err(error) => {
                    self.note_not_submitted(shard);
                    return Err(self.of_shard(shard, error));
                }
            };
            let room = self.runs[shard].len();
            if count != room {
                let error = DeviceError::Protocol {
                    device: self.shards[shard].name().to_owned(),
                    rule: "R3",
                    what: format!("it took {count} descriptors and had said that there was room for {room}"),
                };
                return Err(self.of_shard(shard, error));
            }
        }
        Ok(taken)
    }

    /// Looks at every shard, in turn. Where none has completions, gives time to one that has some due, in turn too; so
    /// one that has died is noticed (R15) when the others have nothing more to tell, after its own patience times the
    /// number of shards that have work.
    ///
    /// A shard that has failed hides nothing of the others. The completions that they have come first, and the error with the next
    /// call, or at once if there are none. Whoever goes on polling gets the rest of their completions, and the error again.
    fn poll(&mut self, out: &mut [HwCompletion]) -> Result<usize, DeviceError> {
        self.unread.clear();
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        let mut taken = self.take(out);
        if taken == 0
            && !out.is_empty()
            && let Some(shard) = self.in_turn().find(|&shard| self.shards[shard].in_flight() > 0)
        {
            self.pass_turn(shard);
            match self.shards[shard].poll(out) {
                Ok(more) => {
                    self.note_completed(shard, &out[..more]);
                    taken = more;
                }
                Err(error) => self.keep_failure(shard, error),
            }
        }
        if taken > 0 { Ok(taken) } else { self.failure.take().map_or(Ok(0), Err) }
    }

    /// As [`poll`](Self::poll), without giving time.
    fn collect(&mut self, out: &mut [HwCompletion]) -> Result<usize, DeviceError> {
        self.unread.clear();
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        let taken = self.take(out);
        if taken > 0 { Ok(taken) } else { self.failure.take().map_or(Ok(0), Err) }
    }

    fn arm(&mut self) -> Result<bool, DeviceError> {
        let mut all = true;
        self.each(|shard| {
            all &= shard.arm()?;
            Ok(())
        })?;
        Ok(all)
    }

    /// Looks at every shard in turn, and waits for each a little, longer from round to round: at most a millisecond for
    /// all together, which is how long a completion may wait to be seen.
    fn wait(&mut self, deadline: Instant) -> Result<bool, DeviceError> {
        if self.failure.is_some() {
            return Ok(true);
        }
        let longest = LONGEST_WAIT / self.shards.len() as u32;
        let mut pause = Duration::ZERO;
        loop {
            let mut working = false;
            for shard in self.in_turn() {
                let until = deadline.min(Instant::now() + pause);
                match self.shards[shard].wait(until) {
                    Ok(true) => return Ok(true),
                    Ok(false) => {}
                    Err(error) => self.keep_failure(shard, error),
                }
                working |= self.shards[shard].in_flight() > 0;
            }
            // Nobody has completions that would come before it.
            if let Some(failure) = self.failure.take() {
                return Err(failure);
            }
            if !working || Instant::now() >= deadline {
                return Ok(false);
            }
            pause = longest.min(2 * pause + Duration::from_micros(10));
        }
    }

    /// `None`, too, where two shards could trust nothing of slots of the same index.
    fn unread(&self, completion: &HwCompletion) -> Option<HwDesc> {
        let mut found = self.unread.iter().filter(|(index, _)| *index == completion.result);
        let &(_, desc) = found.next().filter(|_| completion.has(CompletionFlags::NO_ECHO))?;
        found.next().is_none().then_some(desc)
    }

    fn in_flight(&self) -> usize {
        self.shards.iter().map(|shard| shard.in_flight()).sum()
    }

    fn why(&mut self) -> Result<Vec<(usize, Why)>, DeviceError> {
        let (mut all, mut failed) = (vec![], None);
        for (shard, first) in self.shards.iter_mut().zip(&self.first_region) {
            // One that cannot be asked hides no other.
            match shard.why() {
                Ok(some) => all.extend(some.into_iter().map(|(place, why)| (first + place, why))),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.filter(|_| all.is_empty()).map_or(Ok(all), Err)
    }

    /// Of all shards together.
    fn capacity(&self) -> usize {
        self.shards.iter().map(|shard| shard.capacity()).sum()
    }

    /// Of the shard that has least, which is what descriptors find wherever they go.
    fn room(&self) -> usize {
        self.shards.iter().map(|shard| shard.room()).min().unwrap_or(0)
    }

    /// From the shard, or shards, to which the DECODEs of these bytes went; what no DECODE has taken, from the first one.
    fn tokens(&self, delta_offset: u64, out: &mut [u32]) -> Result<(), DeviceError> {
        let (mut offset, mut left) = (delta_offset, out);
        loop {
            let (shard, end) = self.regions.at(offset);
            let shard = shard.unwrap_or(0);
            let count = left.len().min(((end - offset) / 4) as usize);
            let (part, rest) = left.split_at_mut(count);
            self.shards[shard].tokens(offset, part)?;
            if rest.is_empty() {
                return Ok(());
            }
            (offset, left) = (end, rest);
        }
    }

    fn token_regions(&self) -> Vec<TokenRegion> {
        self.shards.iter().flat_map(|shard| shard.token_regions()).collect()
    }

    fn language_regions(&self) -> Vec<LanguageRegions> {
        self.shards.iter().flat_map(|shard| shard.language_regions()).collect()
    }

    fn logp_regions(&self) -> Vec<TokenRegion> {
        self.shards.iter().flat_map(|shard| shard.logp_regions()).collect()
    }

    /// The area of one rollout lies in one shard as long as its descriptors name one prefix, or none.
    fn token_shard(&self, delta_offset: u64) -> usize {
        let shard = self.regions.at(delta_offset).0.unwrap_or(0);
        self.first_region[shard] + self.shards[shard].token_shard(delta_offset)
    }

    fn features(&self) -> Features {
        let all = self.shards.iter().map(|shard| shard.features());
        all.reduce(Features::and).unwrap_or_default()
    }

    fn queue_of(&self, desc: &HwDesc) -> usize {
        let shard = self.shard_of(desc);
        self.first_region[shard] + self.shards[shard].queue_of(desc)
    }

    /// Queue pairs that share a device share its functions, too.
    fn functions(&self) -> Vec<usize> {
        let mut seen = HashSet::new();
        let mut functions = vec![];
        for (shard, &first) in self.shards.iter().zip(&self.first_region) {
            if shard.shared_device().is_none_or(|device| seen.insert((device, shard.function()))) {
                functions.extend(shard.functions().into_iter().map(|queue| first + queue));
            }
        }
        functions
    }

    fn submit_to(&mut self, queue: usize, desc: &HwDesc) -> Result<bool, DeviceError> {
        let shard = self.shard_at(queue);
        let place = queue - self.first_region[shard];
        let taken = self.shards[shard].submit_to(place, desc).map_err(|error| self.of_shard(shard, error))?;
        if taken {
            self.note_submitted(shard, desc);
        }
        Ok(taken)
    }

    /// Each the sum over all devices, those of time too; queue pairs of one device share its counters.
    fn counters(&mut self) -> Result<Counters, DeviceError> {
        let mut all = Vec::with_capacity(self.shards.len());
        let mut seen = HashSet::new();
        self.each(|shard| {
            if shard.shared_device().is_none_or(|device| seen.insert(device)) {
                all.push(shard.counters()?);
            }
            Ok(())
        })?;
        Counters::read(|counter| Ok(all.iter().map(|counters| counters.get(counter)).sum()))
    }

    fn queue_counters(&mut self) -> Result<Vec<QueueCounters>, DeviceError> {
        let mut all = Vec::with_capacity(self.shards.len());
        self.each(|shard| {
            all.extend(shard.queue_counters()?);
            Ok(())
        })?;
        Ok(all)
    }

    /// Those of all devices, one device behind the other.
    fn worker_counters(&mut self) -> Result<Vec<WorkerCounters>, DeviceError> {
        let mut all = Vec::new();
        let mut seen = HashSet::new();
        self.each(|shard| {
            if shard.shared_device().is_none_or(|device| seen.insert(device)) {
                all.extend(shard.worker_counters()?);
            }
            Ok(())
        })?;
        Ok(all)
    }

    /// A shard that has failed hides nothing of the others: its error comes if none of them has events, or with the next call that looks for completions.
    fn events(&mut self, out: &mut [HwEvent]) -> Result<usize, DeviceError> {
        let (mut taken, mut failed) = (0, None);
        for shard in 0..self.shards.len() {
            let rest = &mut out[taken..];
            let more = match self.shards[shard].events(rest) {
                Ok(more) => more,
                Err(error) => {
                    failed = failed.or(Some((shard, error)));
                    continue;
                }
            };
            for event in &mut out[taken..taken + more] {
                event.queue_id = self.place_of(shard, event.queue_id);
            }
            taken += more;
        }
        match failed {
            Some((shard, error)) if taken == 0 => Err(self.of_shard(shard, error)),
            Some((shard, error)) => {
                self.keep_failure(shard, error);
                Ok(taken)
            }
            None => Ok(taken),
        }
    }

    fn keeps_lives(&self) -> bool {
        self.shards.iter().all(|shard| shard.keeps_lives())
    }

    /// Of queue pairs of one device.
    fn ticks(&mut self) -> Option<u64> {
        let device = self.shards[0].shared_device()?;
        let one = self.shards.iter().all(|shard| shard.shared_device() == Some(device));
        one.then(|| self.shards[0].ticks()).flatten()
    }

    fn taken(&self, queue: usize) -> Option<u32> {
        let shard = self.shard_at(queue);
        self.shards[shard].taken(queue - self.first_region[shard])
    }

    fn answered(&self, event: &HwEvent) -> Option<u64> {
        let place = usize::from(event.queue_id);
        let shard = self.shard_at(place);
        let device = &self.shards[shard];
        let inner = place - self.first_region[shard];
        let queue = match (device.shared_device(), inner) {
            (None, inner) => inner as u8,
            (Some(_), 0) => device.queue(),
            // It is none of them.
            (Some(_), _) => return None,
        };
        device.answered(&HwEvent { queue_id: queue, ..*event })
    }

    fn disable(&mut self) -> Result<(), DeviceError> {
        self.rollouts.clear();
        self.failure = None;
        self.each(|shard| shard.disable())
    }

    fn enable(&mut self) -> Result<(), DeviceError> {
        self.each(|shard| shard.enable())
    }
}
