//! Prefixes: the prompts of groups, shared within a group and, if wanted, across requests.
//!
//! [`Prefixes`] belongs to one thread, which admits groups. What goes on within an admitted group, any thread may do
//! through its own [`Branches`]. Nothing behind the constructor allocates, waits or calls the system.
//!
//! **The promise.** A group is admitted only if every block that it may come to need can be had: `committed` counts the
//! blocks in use, but for cold ones, and those promised, and never exceeds what the arena can give. Cold blocks are
//! evicted at admission, so that the free ones always cover what is promised; to append never evicts and never fails.

use std::num::NonZeroU32;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use doorbell_trace::PREFIX_BLOCK_TOKENS;

use super::arena::{Arena, ArenaConfig, ArenaCounts};
use super::branch::{Branches, MEMBERS_MAX, Share, Slot, Tables};
use super::error::KvError;
use super::pages::PageOptions;
use super::stack::{NONE, Stack};
use super::tree::{Key, Tree};

/// Who shares the blocks of equal prompts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// The members of a group.
    Group,
    /// All requests: pieces of [`PREFIX_BLOCK_TOKENS`] tokens, and the shorter last one of a prompt, that have equal ids
    /// behind equal beginnings are the same blocks. They stay findable after their last user, until they are evicted.
    Requests,
}

/// In which block an answer begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerStart {
    /// In a block of its own. A prompt that does not fill its last block leaves the rest of that unused, and no block of
    /// the prompt is ever written: blocks of a group of `n` are `ceil(p/b) + n ceil(o/b)`.
    NewBlock,
    /// Behind the prompt's last token, in the same block, which each member but its last holder copies first: blocks
    /// of a group of `n` are `floor(p/b) + n (ceil((p+o)/b) - floor(p/b))`, if the prefix is released before the last
    /// member writes. The partial block is not shared across requests.
    SamePage,
}

/// What prefix tables are to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixConfig {
    /// Blocks of the arena.
    pub blocks: u32,
    /// Bytes of a block: a multiple of 64.
    pub block_bytes: usize,
    /// Tokens of a block: a power of two, at most [`PREFIX_BLOCK_TOKENS`].
    pub block_tokens: u32,
    /// Who shares.
    pub sharing: Sharing,
    /// Where answers begin.
    pub answer_start: AnswerStart,
    /// Prefixes in use at once.
    pub prefixes: u32,
    /// Branches in use or promised at once.
    pub branches: u32,
    /// The longest prompt, in tokens.
    pub prompt_tokens: u32,
    /// The longest answer, in tokens.
    pub answer_tokens: u32,
    /// Pieces of prompts that are remembered at once, in use or cold, if requests share.
    pub nodes: u32,
    /// Threads that work on branches, the owner of the tables among them.
    pub threads: usize,
    /// What is asked of the system.
    pub pages: PageOptions,
}

impl Default for PrefixConfig {
    /// 4096 blocks of 32 tokens in the layout [`fixed128`](super::layout), shared across requests, for one thread.
    fn default() -> Self {
        Self {
            blocks: 4096,
            block_bytes: 16_384,
            block_tokens: 32,
            sharing: Sharing::Requests,
            answer_start: AnswerStart::NewBlock,
            prefixes: 256,
            branches: 2048,
            prompt_tokens: 1 << 15,
            answer_tokens: 1 << 12,
            nodes: 4096,
            threads: 1,
            pages: PageOptions::default(),
        }
    }
}

/// What a group may come to need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group<'a> {
    /// Ids of the prompt's pieces of [`PREFIX_BLOCK_TOKENS`] tokens, as in
    /// [`Request::prefix`](doorbell_trace::Request::prefix); may be fewer than the prompt has, or none.
    pub prefix: &'a [u32],
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// How many branches will be made.
    pub members: u32,
    /// The longest answer of a member, in tokens.
    pub answer_tokens: u32,
    /// How many full blocks of the prompt a member may write into, each of which may have to be copied.
    pub prompt_writes: u32,
}

/// Names a prefix. `None` of an `Option` is "no prefix", which no prefix's name equals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PrefixId {
    tables: u32,
    slot: u32,
    generation: NonZeroU32,
}

impl PrefixId {
    /// Slot of the prefix: unique among those in use, below [`PrefixConfig::prefixes`].
    pub const fn slot(self) -> u32 {
        self.slot
    }

    pub(super) const fn generation(self) -> u32 {
        self.generation.get()
    }

    pub(super) const fn tables(self) -> u32 {
        self.tables
    }
}

/// How the tables stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixCounts {
    /// The arena's counts; cold blocks are in use there.
    pub arena: ArenaCounts,
    /// Blocks in use or promised, but for cold ones.
    pub committed: u32,
    /// Blocks that nobody uses, and that are kept to be found again.
    pub cold: u32,
    /// Pieces of prompts that are cold.
    pub cold_nodes: u32,
    /// Prefixes in use.
    pub prefixes: u32,
    /// Branches in use or promised.
    pub branches: u32,
    /// Blocks evicted so far.
    pub evicted: u64,
    /// Prompt blocks that admission found instead of acquiring them, so far.
    pub found: u64,
}

/// Prefix tables, as their owner sees them: admits groups. For all else see [`Branches`], to which it dereferences.
pub struct Prefixes {
    branches: Branches,
    tree: Tree,
    /// Deepest node of each prefix, or [`NONE`].
    leaves: Box<[u32]>,
    free_slots: Vec<u32>,
    /// What the arena can promise.
    usable: u32,
    sharing: Sharing,
    limits: PrefixConfig,
    evicted: u64,
    found: u64,
}

/// What admission of a group would do.
struct Plan {
    /// Deepest node that was found, or [`NONE`].
    leaf: u32,
    /// Pieces that were found.
    pieces: usize,
    /// Blocks in these.
    found: u32,
    /// Blocks that each member may take.
    promise: u32,
    /// Blocks and rows to commit.
    commit: u32,
}

/// Free blocks that the handles keep.
const MAGAZINE: u32 = 64;

impl Prefixes {
    /// Tables and their arena, all of their memory touched.
    ///
    /// # Errors
    /// `Config`; those of [`Arena::new`].
    pub fn new(config: PrefixConfig) -> Result<Self, KvError> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let check = |field, value: u32, ok: bool, expected| {
            if ok { Ok(()) } else { Err(KvError::Config { field, value: value.into(), expected }) }
        };
        let PrefixConfig { block_tokens, prefixes, branches, prompt_tokens, answer_tokens, .. } = config;
        check(
            "block_tokens",
            block_tokens,
            block_tokens.is_power_of_two() && block_tokens <= PREFIX_BLOCK_TOKENS,
            "a power of two, at most 512",
        )?;
        let table = |field, value: u32| check(field, value, (1..=1 << 24).contains(&value), "1 to 2^24");
        table("prefixes", prefixes)?;
        table("branches", branches)?;
        table("prompt_tokens", prompt_tokens)?;
        table("answer_tokens", answer_tokens)?;
        let pieces = prompt_tokens.div_ceil(PREFIX_BLOCK_TOKENS);
        let nodes = match config.sharing {
            Sharing::Group => 0,
            Sharing::Requests => config.nodes,
        };
        check(
            "nodes",
            nodes,
            config.sharing == Sharing::Group || (pieces..=1 << 28).contains(&nodes),
            "at least the pieces of 512 tokens of the longest prompt, and at most 2^28",
        )?;
        let arena = Arena::new(ArenaConfig {
            blocks: config.blocks,
            block_bytes: config.block_bytes,
            handles: config.threads,
            magazine: MAGAZINE,
            pages: config.pages,
        })?;
        // Free blocks in another thread's magazine cannot be had.
        let others = u64::from(MAGAZINE) * (config.threads as u64 - 1);
        let usable = u64::from(config.blocks).saturating_sub(others) as u32;
        check(
            "blocks",
            config.blocks,
            usable > 0,
            "more than 64 for each thread but the first, which keeps that many",
        )?;

        let slot = |_| Slot {
            share: AtomicU64::new(Share { generation: 1, open: false, unmade: 0, holders: 0 }.pack()),
            prompt_tokens: AtomicU32::new(NONE),
            cached: AtomicU32::new(NONE),
            promise: AtomicU32::new(NONE),
            tail: AtomicU64::new(u64::MAX),
            next_idle: AtomicU32::new(NONE),
        };
        // Nothing is written as zero, for which the system might hand out pages that are not touched yet.
        let row = |len: usize| (0..len).map(|_| AtomicU32::new(NONE)).collect::<Box<[_]>>();
        let prompt_row = prompt_tokens.div_ceil(block_tokens) as usize;
        let answer_row = answer_tokens.div_ceil(block_tokens) as usize + 1;
        let tables = Arc::new(Tables {
            number: NUMBER.fetch_add(1, Ordering::Relaxed),
            arena,
            answer_start: config.answer_start,
            block_tokens,
            slots: (0..prefixes).map(slot).collect(),
            prompts: row(prefixes as usize * prompt_row),
            prompt_row,
            answers: row(branches as usize * answer_row),
            answer_row,
            rows: Stack::full(branches),
            committed: AtomicU32::new(0),
            committed_rows: AtomicU32::new(0),
            idle: AtomicU32::new(NONE),
        });
        Ok(Self {
            branches: Branches::new(tables)?,
            tree: Tree::new(nodes, (PREFIX_BLOCK_TOKENS / block_tokens) as usize),
            leaves: vec![NONE; prefixes as usize].into(),
            free_slots: (0..prefixes).rev().collect(),
            usable,
            sharing: config.sharing,
            limits: config,
            evicted: 0,
            found: 0,
        })
    }

    /// Tokens of a block.
    pub fn block_tokens(&self) -> u32 {
        self.branches.tables.block_tokens
    }

    /// The way of another thread to the branches.
    ///
    /// # Errors
    /// `Arena(Handles)`: all [`threads`](PrefixConfig::threads) have theirs.
    pub fn worker(&self) -> Result<Branches, KvError> {
        Branches::new(self.branches.tables.clone())
    }

    /// Whether [`admit`](Self::admit) would admit the group now. One look-up for each piece of the prompt.
    ///
    /// # Errors
    /// Why not: `TooLarge`, `Full`.
    pub fn could_admit(&mut self, group: &Group<'_>) -> Result<(), KvError> {
        self.reclaim();
        self.plan(group).map(drop)
    }

    /// Admits a group: finds or acquires the blocks of its prompt, and promises it all that its members may take.
    /// Evicts what is coldest where that is needed. Takes time for each block of the prompt.
    ///
    /// # Errors
    /// `TooLarge`; `Full`.
    pub fn admit(&mut self, group: &Group<'_>) -> Result<PrefixId, KvError> {
        self.reclaim();
        let Plan { mut leaf, pieces, found, promise, commit } = self.plan(group)?;
        let slot = self.free_slots.pop().ok_or(full("prefixes", 1, 0))?;
        let tables = self.branches.tables.clone();
        tables.committed.fetch_add(commit, Ordering::AcqRel);
        tables.committed_rows.fetch_add(group.members, Ordering::AcqRel);
        self.found += u64::from(found);

        // What was found is in use from now on, and cannot be evicted.
        self.tree.enter(leaf);
        let room = self.usable.saturating_sub(tables.committed.load(Ordering::Acquire));
        while self.tree.cold_blocks() > room {
            self.evict()?;
        }

        let row = tables.prompt(slot);
        let piece_row = (PREFIX_BLOCK_TOKENS / tables.block_tokens) as usize;
        let mut node = leaf;
        for piece in (0..pieces).rev() {
            for (place, &block) in row[piece * piece_row..].iter().zip(self.tree.blocks(node)) {
                place.store(block, Ordering::Relaxed);
            }
            node = self.tree.parent(node);
        }
        let (blocks, partial) = tables.split(group.prompt_tokens);
        let mut filled = found;
        let ids = self.ids(group);
        for (piece, &id) in ids.iter().enumerate().skip(pieces) {
            let key = self.key(leaf, piece, id, group.prompt_tokens);
            let count = self.piece_blocks(key.tokens);
            if count == 0 {
                break;
            }
            let node = loop {
                match self.tree.extend(key) {
                    Some(node) => break node,
                    None => self.evict()?,
                }
            };
            leaf = node;
            for _ in 0..count {
                let block = self.branches.blocks.acquire()?.index();
                self.tree.add_block(node, block);
                row[filled as usize].store(block, Ordering::Relaxed);
                filled += 1;
            }
        }
        let cached = filled;
        for place in &row[filled as usize..blocks as usize] {
            place.store(self.branches.blocks.acquire()?.index(), Ordering::Relaxed);
        }
        let tail = match partial {
            0 => u64::from(NONE),
            _ => self.branches.blocks.acquire()?.to_bits(),
        };

        self.leaves[slot as usize] = leaf;
        let at = &tables.slots[slot as usize];
        at.prompt_tokens.store(group.prompt_tokens, Ordering::Relaxed);
        at.cached.store(cached, Ordering::Relaxed);
        at.promise.store(promise, Ordering::Relaxed);
        at.tail.store(tail, Ordering::Release);
        let generation = Share::unpack(at.share.load(Ordering::Relaxed)).generation;
        let share = Share { generation, open: true, unmade: group.members, holders: 1 };
        at.share.store(share.pack(), Ordering::Release);
        let generation = NonZeroU32::new(generation).expect("generations skip zero");
        Ok(PrefixId { tables: tables.number, slot, generation })
    }

    /// How the tables stand, after what other threads released has been taken back.
    pub fn counts(&mut self) -> PrefixCounts {
        self.reclaim();
        let tables = &self.branches.tables;
        PrefixCounts {
            arena: tables.arena.counts(),
            committed: tables.committed.load(Ordering::Acquire),
            cold: self.tree.cold_blocks(),
            cold_nodes: self.tree.cold_nodes(),
            prefixes: tables.slots.len() as u32 - self.free_slots.len() as u32,
            branches: tables.committed_rows.load(Ordering::Acquire),
            evicted: self.evicted,
            found: self.found,
        }
    }

    /// Takes the prompts back whose last user has gone; [`admit`](Self::admit) does it by itself.
    pub fn reclaim(&mut self) {
        if self.branches.tables.idle.load(Ordering::Relaxed) == NONE {
            return;
        }
        let tables = self.branches.tables.clone();
        let mut slot = tables.idle.swap(NONE, Ordering::Acquire);
        while slot != NONE {
            let at = &tables.slots[slot as usize];
            let next = at.next_idle.load(Ordering::Relaxed);
            let (blocks, _) = tables.split(at.prompt_tokens.load(Ordering::Relaxed));
            let cached = at.cached.load(Ordering::Relaxed);
            let mut freed = blocks - cached;
            for place in &tables.prompt(slot)[cached as usize..blocks as usize] {
                let block = tables.arena.id(place.load(Ordering::Relaxed));
                let last = self.branches.blocks.release(block);
                debug_assert_eq!(last, Ok(true), "a prompt's own blocks have no other holder");
            }
            let leaf = std::mem::replace(&mut self.leaves[slot as usize], NONE);
            freed += self.tree.leave(leaf);
            tables.committed.fetch_sub(freed, Ordering::AcqRel);
            let generation = Share::unpack(at.share.load(Ordering::Relaxed)).generation;
            // Zero is no generation, so that a name has a niche for "none".
            let generation = generation.checked_add(1).unwrap_or(1);
            let share = Share { generation, open: false, unmade: 0, holders: 0 };
            at.share.store(share.pack(), Ordering::Release);
            self.free_slots.push(slot);
            slot = next;
        }
    }

    /// The pieces of a prompt that may be shared.
    fn ids<'a>(&self, group: &Group<'a>) -> &'a [u32] {
        match self.sharing {
            Sharing::Group => &[],
            Sharing::Requests => {
                let pieces = group.prompt_tokens.div_ceil(PREFIX_BLOCK_TOKENS) as usize;
                &group.prefix[..group.prefix.len().min(pieces)]
            }
        }
    }

    fn key(&self, parent: u32, piece: usize, id: u32, prompt_tokens: u32) -> Key {
        let tokens = (prompt_tokens - piece as u32 * PREFIX_BLOCK_TOKENS).min(PREFIX_BLOCK_TOKENS);
        Key { parent, id, tokens }
    }

    /// Blocks of a piece that are shared.
    fn piece_blocks(&self, tokens: u32) -> u32 {
        self.branches.tables.split(tokens).0
    }

    fn plan(&self, group: &Group<'_>) -> Result<Plan, KvError> {
        let tables = &self.branches.tables;
        let limits = &self.limits;
        let at_most = |field, value: u32, limit: u32| match value <= limit {
            true => Ok(()),
            false => Err(KvError::TooLarge { field, value: value.into(), limit: limit.into() }),
        };
        at_most("number of prompt tokens", group.prompt_tokens, limits.prompt_tokens)?;
        at_most("number of answer tokens", group.answer_tokens, limits.answer_tokens)?;
        at_most("number of members", group.members, limits.branches.min(MEMBERS_MAX))?;
        let (blocks, partial) = tables.split(group.prompt_tokens);
        at_most("number of prompt writes", group.prompt_writes, blocks)?;

        let (mut leaf, mut pieces, mut found, mut cold_nodes, mut in_use) = (NONE, 0, 0, 0, 0);
        let ids = self.ids(group);
        let mut wanted = ids.len();
        for (piece, &id) in ids.iter().enumerate() {
            let key = self.key(leaf, piece, id, group.prompt_tokens);
            let count = self.piece_blocks(key.tokens);
            if count == 0 {
                wanted = piece;
                break;
            }
            if let Some(node) = (pieces == piece).then(|| self.tree.find(&key)).flatten() {
                (leaf, pieces, found) = (node, piece + 1, found + count);
                match self.tree.is_cold(node) {
                    true => cold_nodes += 1,
                    false => in_use += count,
                }
            }
        }
        let promise = (u64::from(partial) + u64::from(group.answer_tokens))
            .div_ceil(tables.block_tokens.into())
            + u64::from(group.prompt_writes);
        let prompt = u64::from(blocks) + u64::from(partial > 0);
        let whole = prompt + u64::from(group.members) * promise;
        if whole > u64::from(self.usable) {
            let (value, limit) = (whole, self.usable.into());
            return Err(KvError::TooLarge { field: "number of blocks that it may need", value, limit });
        }
        let check = |what, need: u64, available: u32| match need <= available.into() {
            true => Ok(()),
            false => Err(full(what, need, available)),
        };
        let commit = whole - u64::from(in_use);
        check("blocks", commit, self.usable - tables.committed.load(Ordering::Acquire))?;
        check("nodes", (wanted - pieces) as u64, self.tree.available() - cold_nodes)?;
        check("prefixes", 1, self.free_slots.len() as u32)?;
        let rows = tables.committed_rows.load(Ordering::Acquire);
        check("branches", group.members.into(), limits.branches - rows)?;
        // At most `usable`, by what was checked.
        Ok(Plan { leaf, pieces, found, promise: promise as u32, commit: commit as u32 })
    }

    fn evict(&mut self) -> Result<(), KvError> {
        let Self { tree, branches: Branches { tables, blocks, .. }, evicted, .. } = self;
        let Some(cold) = tree.evict() else {
            return Err(full("nodes", 1, 0));
        };
        for &block in cold {
            blocks.release(tables.arena.id(block))?;
        }
        *evicted += cold.len() as u64;
        Ok(())
    }
}

fn full(what: &'static str, need: u64, available: u32) -> KvError {
    KvError::Full { what, need, available: available.into() }
}

impl Deref for Prefixes {
    type Target = Branches;

    fn deref(&self) -> &Branches {
        &self.branches
    }
}

impl DerefMut for Prefixes {
    fn deref_mut(&mut self) -> &mut Branches {
        &mut self.branches
    }
}

#[cfg(test)]
mod tests;
