//! Engine 1: what the pipeline lays out for a language model (R25 to R27), in blocks that the KV tables hand out.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use doorbell_contract::{BLOCK_TOKENS, DescFlags, HwDesc, HwSequence};
use doorbell_host::language::{LanguageRegions, WordRegion};
use doorbell_host::{Device, DeviceError, TokenRegion};
use doorbell_trace::Request;

use super::options::Options;
use super::rollout::Prefill;
use super::{Pipeline, RuntimeError};
use crate::kv::{self, AnswerStart, Arena, ArenaCounts, KvError, Prefixes, Sharing};
use crate::rollout::{RolloutId, State};
use crate::trajectory::{Finished, Span, Spans};

/// Places for weights in a MODEL region where versions are published one after the other: two are resident, and the third is free to be
/// written.
const PLACES: u64 = 3;

/// The language model that rollouts run, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Language {
    /// Longest sequence, prompt and answer (`HwImage::positions`).
    pub positions: u32,
    /// Bytes of a block of keys and values, of 32 positions in all layers (`HwImage::block_bytes`).
    pub block_bytes: u64,
    /// How tokens are drawn (`HwSequence::sharpness`).
    pub sharpness: u32,
    /// Longest prompt, in tokens.
    pub max_prompt_tokens: u32,
    /// Positions that one PREFILL makes at most, so that longer prompts take several; 0 makes all in one.
    pub prefill_tokens: u32,
    /// Blocks of host memory for rollouts that wait at a checkpoint, and give theirs back for a request that finds too few; 0: none does.
    pub swap_blocks: u32,
}

/// Where the tokens of prompts come from. Called by the hot thread at admission: it must not wait, and should not allocate.
pub trait PromptSource: Send {
    /// Writes the prompt of request `number` to `out`, which is as long as that. Prompts of requests with equal ids begin with equal tokens, as far
    /// as the ids are equal: their keys and values are shared.
    fn prompt(&mut self, number: u64, request: &Request, out: &mut [u32]);
}

impl<F: FnMut(u64, &Request, &mut [u32]) + Send> PromptSource for F {
    fn prompt(&mut self, number: u64, request: &Request, out: &mut [u32]) {
        self(number, request, out);
    }
}

/// What a pipeline of engine 1 works with beyond others.
pub struct LanguageParts {
    /// The prompts.
    pub prompts: Box<dyn PromptSource>,
    /// Under which versions the keys and values of prompts were made.
    pub made: PromptSpans,
}

/// Under which versions the keys and values of the living rollouts' prompts were made: the hot thread notes it before it hands a trajectory on,
/// whoever checks trajectories reads it. See [`Spans`], which tell of the answers.
#[derive(Clone, Debug)]
pub struct PromptSpans {
    spans: Spans,
    found: Arc<[AtomicU32]>,
}

impl PromptSpans {
    /// Room for what a pipeline with these options notes.
    pub fn new(options: &Options) -> PromptSpans {
        let longest = options.language.map_or(0, |language| language.max_prompt_tokens);
        // The pieces that requests share, a block or more each, the rest, and what stands behind the last.
        let spans = Spans::new(options.slots, longest.div_ceil(BLOCK_TOKENS) + 2);
        PromptSpans { spans, found: (0..options.slots).map(|_| AtomicU32::new(0)).collect() }
    }

    /// Positions of the prompt of the rollout in `slot` whose keys and values were there before it.
    pub fn found(&self, slot: u32) -> u32 {
        self.found.get(slot as usize).map_or(0, |found| found.load(Ordering::Relaxed))
    }

    /// Of the rollout in `slot`: each span begins at the position `first`, and ends where the next one begins, the last at the prompt's last
    /// token, whose keys and values the first step of the answer makes.
    pub fn read(&self, slot: u32) -> Vec<Span> {
        let all = self.spans.read(slot, self.spans.longest()).into_iter().flatten();
        all.take_while(|span| span.first != u32::MAX).collect()
    }

    fn write(&self, slot: u32, spans: &[Span], found: u32) {
        let end = Span { version: 0, first: u32::MAX };
        (0..).zip(spans.iter().chain([&end])).for_each(|(place, &span)| self.spans.write(slot, place, span));
        // Whoever reads it has heard of the rollout from the hot thread since.
        self.found[slot as usize].store(found, Ordering::Relaxed);
    }
}

/// Where a sequence of engine 1 lies in the memory of a device, for whoever checks what a pipeline hands to its writer.
#[derive(Clone, Debug)]
pub struct SequenceMemory {
    options: Options,
    tokens: Vec<TokenRegion>,
    logps: Vec<TokenRegion>,
    regions: Vec<LanguageRegions>,
    spans: Spans,
    made: PromptSpans,
}

/// A sequence of engine 1, as a device has made it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sequence {
    /// The answer.
    pub tokens: Vec<u32>,
    /// Log-probabilities of its tokens, 16 fraction bits, if they were asked for.
    pub logps: Option<Vec<i32>>,
    /// Bytes of the blocks of keys and values of its positions; `None` if it gave them back at its last checkpoint, and did not go on.
    pub blocks: Option<Vec<Vec<u8>>>,
    /// Versions that have made it, each up to, not including, the position of the token that its last step adds.
    pub spans: Vec<(usize, u16)>,
}

impl SequenceMemory {
    /// That of the sequences of a pipeline on `device`.
    pub fn new(options: Options, device: &dyn Device, spans: Spans, made: PromptSpans) -> SequenceMemory {
        let (tokens, logps) = (device.token_regions(), device.logp_regions());
        SequenceMemory { options, tokens, logps, regions: device.language_regions(), spans, made }
    }

    /// Reads a sequence whose rollout was posted to the writer and is not stored yet: until then nothing of it changes.
    ///
    /// # Errors
    /// `OutOfBounds` for one that is not of this memory.
    pub fn read(&self, finished: &Finished) -> Result<Sequence, DeviceError> {
        let outside = |what, size: usize| DeviceError::OutOfBounds {
            what,
            offset: finished.shard.into(),
            bytes: 1,
            size: size as u64,
        };
        let (shard, slot) = (finished.shard as usize, finished.rollout.slot());
        let read = |regions: &[TokenRegion]| {
            let region = regions.get(shard).ok_or(outside("token regions", regions.len()))?;
            let mut words = vec![0; finished.answer_tokens as usize];
            region.read(finished.offset, &mut words)?;
            Ok::<_, DeviceError>(words)
        };
        let tokens = read(&self.tokens)?;
        let logps = finished.has_logprobs.then(|| read(&self.logps)).transpose()?;
        let logps = logps.map(|words| words.into_iter().map(|word| word as i32).collect());

        let regions = self.regions.get(shard).ok_or(outside("language regions", self.regions.len()))?;
        let bytes = self.options.language.map_or(0, |language| language.block_bytes);
        let made = finished.prompt_tokens + finished.answer_tokens - 1;
        let mut table = regions.table(self.options.sequence_offset(slot))?;
        let gave_back = table.is_empty() && made > 0;
        table.truncate(made.div_ceil(BLOCK_TOKENS) as usize);
        let read = |block: u32| {
            let mut block_bytes = vec![0; bytes as usize];
            regions.arenas[0].read(u64::from(block) * bytes, &mut block_bytes).map(|()| block_bytes)
        };
        let blocks =
            (!gave_back).then(|| table.into_iter().map(read).collect::<Result<_, _>>()).transpose()?;

        // Keys and values of position p are made by the step that adds the token of p + 1.
        let answer = self.spans.read(slot, finished.spans as usize).into_iter().flatten();
        let answer = answer.map(|span| (finished.prompt_tokens + span.first, span.version));
        let all = self.made.read(slot).into_iter().map(|span| (span.first + 1, span.version)).chain(answer);
        let starts: Vec<(u32, u16)> = all.collect();
        let last = finished.prompt_tokens + finished.answer_tokens;
        let ends = starts.iter().skip(1).map(|&(start, _)| start).chain([last]);
        let spans = starts.iter().zip(ends).map(|(&(_, version), end)| (end as usize, version)).collect();
        Ok(Sequence { tokens, logps, blocks, spans })
    }
}

/// Where versions of a language model lie in the MODEL regions of a device: each is written where none lies that a device may still read (R25).
#[derive(Debug)]
pub struct Weights {
    regions: Vec<WordRegion>,
    stride: u64,
    next: u64,
}

impl Weights {
    /// Bytes of a MODEL region for versions of at most `longest` bytes, one of them or many.
    pub const fn region_bytes(longest: u64, many: bool) -> u64 {
        longest.next_multiple_of(64) * if many { PLACES } else { 1 }
    }

    /// In the MODEL regions of `device`, for versions of at most `longest` bytes.
    pub fn new(device: &dyn Device, longest: u64) -> Weights {
        let regions = device.language_regions().into_iter().map(|regions| regions.model).collect();
        Weights { regions, stride: longest.next_multiple_of(64), next: 0 }
    }

    /// Writes the version that is published next to the MODEL region of every function, and says at which offset. Until
    /// [`published`](Self::published) says that it is resident, another call takes the same place.
    ///
    /// # Errors
    /// `OutOfBounds` if it has no room there.
    pub fn lay(&self, memory: &[u8]) -> Result<u64, DeviceError> {
        let offset = self.next % PLACES * self.stride;
        self.regions.iter().try_for_each(|region| region.write(offset, memory))?;
        Ok(offset)
    }

    /// The version that was laid out last is resident.
    pub fn published(&mut self) {
        self.next += 1;
    }
}

/// What the hot thread keeps of engine 1.
pub(super) struct Sequences {
    language: Language,
    regions: Vec<LanguageRegions>,
    prompts: Box<dyn PromptSource>,
    made: PromptSpans,
    /// Groups of whose prompt a part is made, and the next is due.
    pub parts: VecDeque<u32>,
    /// A block table, and a prompt, on their way to memory; and what an answer is kept by.
    table: Vec<u32>,
    words: Vec<u32>,
    kept: Vec<u32>,
    /// Those of a prompt.
    spans: Vec<Span>,
    swap: Option<Swap>,
    /// Of keys and values (R26): raised when the host writes blocks.
    generation: u32,
}

/// In a row of [`Swap`]: no block.
const NOTHING: u32 = u32::MAX;

/// What host memory keeps of rollouts that have given their blocks back.
struct Swap {
    blocks: Arena,
    bytes: Vec<u8>,
    /// The blocks of each slot's rollout, in a row: [`NOTHING`] where a later entry of its table has the same block.
    rows: Vec<u32>,
    row: usize,
    /// Rollouts that are to go on, once there are blocks for them.
    returning: VecDeque<RolloutId>,
    /// How often one has given its blocks back.
    count: u64,
    /// Of each prefix, holders that could give theirs back: to be counted in.
    leaving: Vec<u32>,
}

impl Sequences {
    /// Checks that the device, its memory and the tables are such as engine 1 needs.
    pub fn new(
        options: &Options,
        parts: Option<LanguageParts>,
        device: &dyn Device,
        kv: &Prefixes,
    ) -> Result<Option<Sequences>, RuntimeError> {
        let bad = |field, value, expected: String| Err(RuntimeError::Options { field, value, expected });
        let (language, parts) = match (options.language, parts) {
            (None, None) => return Ok(None),
            (Some(language), Some(parts)) => (language, parts),
            (language, _) => {
                let expected = "in the options where prompts are among the parts, and nowhere else";
                return bad("language", language.is_some().into(), expected.into());
            }
        };
        let engines = device.features().engines;
        if engines < 2 {
            let expected = "at least 2 for a language model (CAP_ENGINES); use a device with engine 1";
            return bad("number of engines", engines.into(), expected.into());
        }
        let regions = device.language_regions();
        let queues = device.token_regions().len();
        if regions.len() != queues {
            let expected = format!(
                "{}: each queue pair needs a function of its own for a language model, with a MODEL region and an arena",
                regions.len()
            );
            return bad("number of queue pairs", queues as u64, expected);
        }
        if kv.block_tokens() != BLOCK_TOKENS {
            return bad("block_tokens", kv.block_tokens().into(), format!("{BLOCK_TOKENS} (R26)"));
        }
        if kv.config().answer_start != AnswerStart::SamePage {
            let expected = "AnswerStart::SamePage: an entry of a block table is for 32 positions by their numbers, so an answer goes on in \
                            the block where its prompt ends (R26)";
            return bad("answer_start", 0, expected.into());
        }
        let answer = options.max_output_tokens;
        if language.swap_blocks > 0 && kv.config().answer_tokens < answer + BLOCK_TOKENS {
            let expected = "0 where the KV tables are not made for answers of a block more: to a rollout that gave its blocks back, what its \
                            prompt has in its last block is a part of the answer";
            return bad("swap_blocks", language.swap_blocks.into(), expected.into());
        }
        let blocks = u64::from(kv.arena().blocks()) * language.block_bytes;
        let least = regions.iter().map(|regions| regions.arenas[0].bytes()).min().unwrap_or(0);
        if least < blocks {
            return bad("arena_bytes", least, format!("at least {blocks}, the bytes of all KV blocks"));
        }
        let least = regions.iter().map(|regions| regions.sequences.bytes()).min().unwrap_or(0);
        if least < options.kv_bytes() {
            let expected = format!("at least {}, the bytes of all block tables", options.kv_bytes());
            return bad("kv_bytes", least, expected);
        }
        let swap = match language.swap_blocks {
            0 => None,
            blocks => {
                let (length, mut bytes) = (blocks as usize * language.block_bytes as usize, vec![]);
                if bytes.try_reserve_exact(length).is_err() {
                    let expected = format!("fewer: this machine does not have {length} bytes for them");
                    return bad("swap_blocks", blocks.into(), expected);
                }
                // Not zeros, for which the system might hand out pages that are not there yet.
                bytes.resize(length, 0xFF);
                Some(Swap {
                    blocks: Arena::new(blocks)?,
                    bytes,
                    rows: vec![NOTHING; options.slots as usize * options.longest_table() as usize],
                    row: options.longest_table() as usize,
                    returning: VecDeque::with_capacity(options.slots as usize),
                    count: 0,
                    leaving: vec![0; kv.config().prefixes as usize],
                })
            }
        };
        Ok(Some(Sequences {
            language,
            swap,
            generation: 1,
            regions,
            prompts: parts.prompts,
            made: parts.made,
            parts: VecDeque::with_capacity(options.slots as usize),
            table: Vec::with_capacity(options.longest_table() as usize),
            words: vec![0; language.max_prompt_tokens as usize],
            kept: vec![0; (options.max_output_tokens + BLOCK_TOKENS) as usize],
            spans: Vec::with_capacity(language.max_prompt_tokens.div_ceil(BLOCK_TOKENS) as usize + 2),
        }))
    }

    /// Takes the prompt of a request from its source.
    pub fn take_prompt(&mut self, number: u64, request: &Request) {
        self.prompts.prompt(number, request, &mut self.words[..request.prompt_tokens as usize]);
    }

    /// The tokens of that prompt.
    pub fn prompt(&self, request: &Request) -> &[u32] {
        &self.words[..request.prompt_tokens as usize]
    }

    /// Writes it to where its PREFILLs read it.
    pub fn write_prompt(
        &self,
        region: &TokenRegion,
        offset: u64,
        request: &Request,
    ) -> Result<&[u32], DeviceError> {
        let words = self.prompt(request);
        region.write(offset, words)?;
        Ok(words)
    }
}

/// The descriptor, for engine 1.
fn of_sequence(desc: HwDesc, kv_offset: u64) -> HwDesc {
    HwDesc { model_id: 1, kv_offset, ..desc }
}

impl Pipeline {
    /// Positions of a prompt whose keys and values lie in blocks before its answer begins: with engine 1 the last token is the first
    /// step's.
    #[inline]
    pub(super) fn kv_prompt(&self, prompt_tokens: u32) -> u32 {
        prompt_tokens - u32::from(self.language.is_some())
    }

    /// Whether the group's PREFILL may be made now: not while another group makes a part of its prompt.
    pub(super) fn may_prefill(&mut self, index: u32) -> Result<bool, RuntimeError> {
        if self.language.is_none() {
            return Ok(true);
        }
        let group = &mut self.groups[index as usize];
        if group.made.is_none()
            && let Some(prefix) = group.prefix
        {
            group.made = self.kv.claim(prefix)?;
            group.part_version = group.version;
            if let Some(found) = group.made {
                group.found = found;
                let hot = &self.metrics.counters.hot;
                hot.prompt_tokens.add(group.prompt_tokens.into());
                hot.prompt_tokens_cached.add(found.into());
            }
        }
        Ok(group.made.is_some())
    }

    /// Lays out the next part of a group's prompt, and makes its PREFILL; `None` where there is no language model. The last one opens the
    /// group on the device.
    pub(super) fn language_prefill(
        &mut self,
        index: u32,
        version: u16,
    ) -> Result<Option<HwDesc>, RuntimeError> {
        let Some(sequences) = &mut self.language else { return Ok(None) };
        let group = &mut self.groups[index as usize];
        let Some(prefix) = group.prefix else { return Ok(None) };
        if group.part_version != Some(version) {
            // What it has of a piece comes from the version before; a piece is made of one.
            group.made = self.kv.claim(prefix)?;
            group.part_version = Some(version);
        }
        let start = group.made.unwrap_or(0);
        let end = group.prompt_tokens - 1;
        let longest = match sequences.language.prefill_tokens {
            0 => u32::MAX,
            tokens => tokens,
        };
        group.part_end = end.min(start.saturating_add(longest));
        let length = group.part_end + 1;
        self.kv.prompt_table(prefix, &mut sequences.table)?;
        let record = HwSequence {
            prompt: self.options.prompt_offset(index),
            start,
            generation: sequences.generation,
            ..HwSequence::default()
        };
        let kv_offset = self.options.sequence_offset(self.options.slots + index);
        sequences.regions[group.region].place_sequence(kv_offset, record, &sequences.table)?;
        let wire_id = group.wire_id.unwrap_or_default();
        let desc = if group.device.takes_part && group.part_end == end {
            group.device.opened = true;
            group.device.flying += 1;
            HwDesc::open_group(wire_id, length, group.terms.members)
        } else {
            HwDesc::prefill(wire_id, length)
        };
        let desc = if group.terms.scored { desc.with_flags(DescFlags::LOGP) } else { desc };
        Ok(Some(of_sequence(desc, kv_offset)))
    }

    /// A PREFILL of a group has been DONE. Says whether another part of the prompt is due.
    pub(super) fn part_made(&mut self, index: u32) -> Result<bool, RuntimeError> {
        let Some(sequences) = &mut self.language else { return Ok(false) };
        let group = &mut self.groups[index as usize];
        let (Some(prefix), Some(version)) = (group.prefix, group.part_version) else { return Ok(false) };
        group.made = Some(group.part_end);
        self.kv.fill(prefix, group.part_end, version.into())?;
        if group.part_end + 1 < group.prompt_tokens {
            group.prefill = Prefill::Parted;
            sequences.parts.push_back(index);
            return Ok(true);
        }
        Ok(false)
    }

    /// Makes the next parts of prompts that are due.
    pub(super) fn take_parts(&mut self) -> Result<bool, RuntimeError> {
        let mut moved = false;
        while self.batch.len() < self.batch_limit()
            && let Some(&index) = self.language.as_ref().and_then(|sequences| sequences.parts.front())
        {
            let is_due = self.is_part_due(index)?;
            if is_due && self.versions.holds_prefills() {
                break;
            }
            if let Some(sequences) = &mut self.language {
                sequences.parts.pop_front();
            }
            moved = true;
            if is_due {
                self.post_prefill(index)?;
            } else {
                self.end_parts(index)?;
            }
        }
        Ok(moved)
    }

    /// Ends the groups that wait for the next part of their prompt and were aborted meanwhile; says whether there were any.
    #[cold]
    pub(super) fn end_unwanted_parts(&mut self) -> Result<bool, RuntimeError> {
        let mut moved = false;
        for _ in 0..self.language.as_ref().map_or(0, |sequences| sequences.parts.len()) {
            let Some(index) = self.language.as_mut().and_then(|sequences| sequences.parts.pop_front()) else {
                break;
            };
            if !self.is_part_due(index)? {
                moved = true;
                self.end_parts(index)?;
            } else if let Some(sequences) = &mut self.language {
                sequences.parts.push_back(index);
            }
        }
        Ok(moved)
    }

    /// Whether the next part of a group's prompt is to be made: not if all of it was aborted meanwhile.
    fn is_part_due(&self, index: u32) -> Result<bool, RuntimeError> {
        Ok(self.groups[index as usize].prefill == Prefill::Parted && self.is_wanted(index)?)
    }

    /// No other part of a group's prompt is made, and its members end.
    fn end_parts(&mut self, index: u32) -> Result<(), RuntimeError> {
        self.groups[index as usize].prefill = Prefill::Never;
        self.end_prefill(index)?;
        self.wake(index)
    }

    /// Whether a member of the group is not aborted.
    fn is_wanted(&self, index: u32) -> Result<bool, RuntimeError> {
        let mut next = self.groups[index as usize].first;
        while let Some(slot) = next {
            let life = self.lives.get(self.lives.current(slot))?;
            if !life.aborted {
                return Ok(true);
            }
            next = life.next;
        }
        Ok(false)
    }

    /// The prompt is made, or never will be: from now on the members alone hold its blocks.
    pub(super) fn end_prefill(&mut self, index: u32) -> Result<(), RuntimeError> {
        let group = &mut self.groups[index as usize];
        let Some(prefix) = group.prefix.take() else { return Ok(()) };
        if let Some(sequences) = &mut self.language {
            self.kv.give_up(prefix)?;
            let Sequences { spans, made, .. } = sequences;
            spans.clear();
            let rest = self.kv.pieces(prefix, |first, version| {
                spans.push(Span { version: version.unwrap_or_default() as u16, first });
            })?;
            let found = group.found;
            spans.reverse();
            if rest + 1 < group.prompt_tokens {
                spans.push(Span { version: group.part_version.unwrap_or_default(), first: rest });
            }
            let mut next = group.first;
            while let Some(slot) = next {
                made.write(slot, spans, found);
                next = self.lives.slot_mut(slot).next;
            }
        }
        self.kv.release_prefix(prefix)?;
        if self.language.is_some() && self.groups[index as usize].left == 0 {
            // Its members have ended before its PREFILL, so no end of theirs tells of these blocks.
            self.publish_blocks();
        }
        Ok(())
    }

    /// How often a rollout has given its blocks back at a checkpoint, for another request.
    pub fn preempted(&self) -> u64 {
        self.swap().map_or(0, |swap| swap.count)
    }

    fn swap(&self) -> Option<&Swap> {
        self.language.as_ref()?.swap.as_ref()
    }

    /// Whether rollouts that gave their blocks back wait for others: they come before new ones.
    pub(super) fn has_returning(&self) -> bool {
        self.swap().is_some_and(|swap| !swap.returning.is_empty())
    }

    /// Entries of the table of the rollout in `slot` that are kept if it gives its blocks back, and the blocks of host memory that this takes; `None` if it
    /// cannot.
    fn preemptible(&self, slot: u32, free: u64) -> Result<Option<(u32, u64)>, RuntimeError> {
        let id = self.lives.current(slot);
        if self.lives.state(id) != Ok(State::RewardPending) {
            return Ok(None);
        }
        let life = self.lives.get(id)?;
        let made = self.groups[life.group as usize].prompt_tokens - 1 + life.produced;
        let count = made.div_ceil(BLOCK_TOKENS);
        if life.outcome.is_some() || life.parked || life.branch.is_released() {
            return Ok(None);
        }
        let kept = (0..count).filter(|&place| !self.kv.is_overwritten(&life.branch, place, count));
        let need = kept.count() as u64;
        Ok((need <= free).then_some((count, need)))
    }

    /// Blocks of host memory that are free.
    fn swap_room(&self) -> u64 {
        self.swap().map_or(0, |swap| {
            let ArenaCounts { capacity, in_use, .. } = swap.blocks.counts();
            u64::from(capacity) - in_use
        })
    }

    /// Whether the rollouts that wait for their verdicts can give back so many blocks.
    #[cold]
    pub(super) fn may_preempt(&mut self, wanted: u64) -> Result<bool, RuntimeError> {
        if self.swap().is_none() || self.occupancy.of(State::RewardPending) == 0 {
            return Ok(false);
        }
        let swap = self.language.as_mut().and_then(|sequences| sequences.swap.as_mut());
        let mut leaving = swap.map(|swap| std::mem::take(&mut swap.leaving)).unwrap_or_default();
        leaving.fill(0);
        let (mut room, mut freed) = (self.swap_room(), 0);
        for slot in 0..self.options.slots {
            let Some((_, need)) = self.preemptible(slot, room)? else { continue };
            room -= need;
            let branch = &self.lives.get(self.lives.current(slot))?.branch;
            let mut last = false;
            if let Some(leaving) = branch.prefix_slot().and_then(|prefix| leaving.get_mut(prefix as usize)) {
                *leaving += 1;
                last = self.kv.are_all_holders(branch, *leaving);
            }
            freed += u64::from(self.kv.frees(branch, last)?);
        }
        if let Some(swap) = self.language.as_mut().and_then(|sequences| sequences.swap.as_mut()) {
            swap.leaving = leaving;
        }
        Ok(freed >= wanted)
    }

    /// Lets a rollout that waits for its verdict give its blocks back, from slot `from` on; says from which slot on to look next, `None` if there is
    /// none. What lies in the blocks goes to host memory (R26: it may go on under any other table).
    pub(super) fn preempt(&mut self, from: u32) -> Result<Option<u32>, RuntimeError> {
        let room = self.swap_room();
        for slot in from..self.options.slots {
            let Some((count, _)) = self.preemptible(slot, room)? else { continue };
            let id = self.lives.current(slot);
            let Some(Sequences { language, regions, table, swap: Some(swap), .. }) = &mut self.language
            else {
                break;
            };
            let life = self.lives.get_mut(id)?;
            let group = &self.groups[life.group as usize];
            self.kv.table(&life.branch, table)?;
            let overwritten = |kv: &Prefixes, place| kv.is_overwritten(&life.branch, place, count);
            let (bytes, arena) = (language.block_bytes as usize, &regions[group.region].arenas[0]);
            for (place, &block) in (0..count).zip(table.iter()) {
                let row = &mut swap.rows[slot as usize * swap.row + place as usize];
                if overwritten(&self.kv, place) {
                    *row = NOTHING;
                    continue;
                }
                let kept = swap.blocks.acquire()?;
                *row = kept;
                let to = &mut swap.bytes[kept as usize * bytes..][..bytes];
                arena.read(u64::from(block) * language.block_bytes, to)?;
            }
            // Its table is of blocks that others may have from now on.
            let kv_offset = self.options.sequence_offset(slot);
            regions[group.region].place_sequence(kv_offset, HwSequence::default(), &[])?;
            life.kept = count;
            self.kv.release(&mut life.branch)?;
            swap.count += 1;
            return Ok(Some(slot + 1));
        }
        Ok(None)
    }

    /// A rollout goes on: at once, or once it has blocks again.
    pub(super) fn go_on(&mut self, id: RolloutId) -> Result<(), RuntimeError> {
        let kept = self.lives.get(id)?.kept > 0;
        match self.language.as_mut().and_then(|sequences| sequences.swap.as_mut()) {
            Some(swap) if kept => swap.returning.push_back(id),
            _ => self.queues.decode.push(id)?,
        }
        Ok(())
    }

    /// Gives blocks to those that gave theirs back, in their order.
    pub(super) fn take_returning(&mut self) -> Result<bool, RuntimeError> {
        let mut moved = false;
        while let Some(&id) = self.swap().and_then(|swap| swap.returning.front()) {
            if !self.lives.get(id)?.aborted && !self.swap_in(id)? {
                break;
            }
            moved = true;
            if let Some(Sequences { swap: Some(swap), .. }) = &mut self.language {
                swap.returning.pop_front();
            }
            self.queues.decode.push(id)?;
        }
        Ok(moved)
    }

    /// Ends those that were aborted of the rollouts that gave their blocks back and are to go on.
    #[cold]
    pub(super) fn end_aborted_returning(&mut self) -> Result<(), RuntimeError> {
        for _ in 0..self.swap().map_or(0, |swap| swap.returning.len()) {
            let Some(Sequences { swap: Some(swap), .. }) = &mut self.language else { break };
            let Some(id) = swap.returning.pop_front() else { break };
            if self.lives.get(id)?.aborted {
                self.end_waiting(id)?;
            } else {
                swap.returning.push_back(id);
            }
        }
        Ok(())
    }

    /// Brings back what host memory keeps of a rollout, into blocks of its own. `false` if there are too few now.
    fn swap_in(&mut self, id: RolloutId) -> Result<bool, RuntimeError> {
        let Some(Sequences { language, regions, table, swap: Some(swap), generation, .. }) =
            &mut self.language
        else {
            return Ok(true);
        };
        let life = self.lives.get_mut(id)?;
        let group = &self.groups[life.group as usize];
        // Its blocks come again where they did: with a cap that follows from the prompt's whole blocks.
        let prompt = group.prompt_tokens - 1;
        let partial = prompt % BLOCK_TOKENS;
        let prefix = match self.kv.admit(&kv::Group {
            prefix: &[],
            prompt_tokens: prompt - partial,
            domain: 0,
            salt: 0,
            members: 1,
            answer_tokens: partial + group.output_tokens,
        }) {
            Ok(prefix) => prefix,
            Err(KvError::Full { .. }) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        life.branch = self.kv.branch(prefix)?;
        self.kv.release_prefix(prefix)?;
        self.kv.append(&mut life.branch, partial + life.produced)?;
        life.appended = life.produced;
        self.kv.table(&life.branch, table)?;
        let (bytes, arena) = (language.block_bytes as usize, &regions[group.region].arenas[0]);
        let row = &swap.rows[id.slot() as usize * swap.row..][..std::mem::take(&mut life.kept) as usize];
        for (&kept, &block) in row.iter().zip(table.iter()).filter(|(kept, _)| **kept != NOTHING) {
            arena.write(
                u64::from(block) * language.block_bytes,
                &swap.bytes[kept as usize * bytes..][..bytes],
            )?;
            swap.blocks.release(kept)?;
        }
        // R26: of these blocks a device may have kept what was in them before. 0 is none.
        *generation = generation.checked_add(1).unwrap_or(1);
        Ok(true)
    }

    /// Keeps what a rollout that has ended has filled of its blocks, where requests share by tokens.
    pub(super) fn keep_answer(&mut self, id: RolloutId) -> Result<(), RuntimeError> {
        let Some(sequences) = &mut self.language else { return Ok(()) };
        let life = self.lives.get_mut(id)?;
        let nothing = life.produced == 0 || life.kept > 0 || life.branch.is_released();
        if self.kv.config().sharing != Sharing::Tokens || nothing || life.failure.is_some() {
            return Ok(());
        }
        // Keys and values of the last token are not made (R27).
        let group = &self.groups[life.group as usize];
        let prompt = group.prompt_tokens - 1;
        let first = prompt / BLOCK_TOKENS * BLOCK_TOKENS;
        let whole = (prompt + life.produced) / BLOCK_TOKENS * BLOCK_TOKENS;
        if whole == first {
            return Ok(());
        }
        let words = &mut sequences.kept[..(whole - first) as usize];
        let (asked, answered) = words.split_at_mut((group.prompt_tokens - first) as usize);
        let region = &self.regions[group.region];
        region.read(self.options.prompt_offset(life.group) + 4 * u64::from(first), asked)?;
        region.read(self.options.answer_offset(id.slot()), answered)?;
        self.kv.keep(&mut life.branch, words, life.last_version.into())?;
        Ok(())
    }

    /// Gives back the blocks of a rollout that has ended, wherever they are.
    pub(super) fn release_blocks(&mut self, id: RolloutId) -> Result<(), RuntimeError> {
        let life = self.lives.get_mut(id)?;
        let kept = std::mem::take(&mut life.kept) as usize;
        if kept == 0 {
            self.kv.release(&mut life.branch)?;
        } else if let Some(Sequences { swap: Some(swap), .. }) = &mut self.language {
            let row = &swap.rows[id.slot() as usize * swap.row..][..kept];
            for &kept in row.iter().filter(|&&kept| kept != NOTHING) {
                swap.blocks.release(kept)?;
            }
        }
        Ok(())
    }

    /// Lays out what the next DECODE of a rollout reads, of engine 1.
    pub(super) fn lay_sequence(&mut self, id: RolloutId, desc: HwDesc) -> Result<HwDesc, RuntimeError> {
        let Some(sequences) = &mut self.language else { return Ok(desc) };
        let life = self.lives.get(id)?;
        let group = &self.groups[life.group as usize];
        if life.produced == 0 {
            // The first step takes the prompt's last token, from before the answer (R27).
            let mut last = [0];
            let region = &self.regions[group.region];
            let prompt = self.options.prompt_offset(life.group);
            region.read(prompt + 4 * u64::from(group.prompt_tokens - 1), &mut last)?;
            region.write(desc.delta_offset - 4, &last)?;
        }
        self.kv.table(&life.branch, &mut sequences.table)?;
        let source = life.branch.source();
        let draws = group.terms.draws;
        let record = HwSequence {
            sharpness: draws.sharpness,
            draw_key: draws.key_of(life.member),
            top_k: draws.top_k,
            top_p: draws.top_p,
            min_p: draws.min_p,
            shared: source.map_or(0, |_| group.prompt_tokens - 1),
            source: source.unwrap_or(0),
            generation: sequences.generation,
            ..HwSequence::default()
        };
        let kv_offset = self.options.sequence_offset(id.slot());
        sequences.regions[group.region].place_sequence(kv_offset, record, &sequences.table)?;
        Ok(of_sequence(desc, kv_offset))
    }
}
