//! Prefixes: the prompts of groups, shared within a group and, if wanted, across requests.
//!
//! All of it belongs to one thread, the one that admits. After the constructor nothing allocates, waits or makes a
//! system call.
//!
//! **The promise.** A group is admitted only if every block that it may need is available: `committed` counts the
//! blocks in use, except cold ones, and those promised, and never exceeds the size of the arena. Cold blocks are
//! evicted at admission, so that the free ones always cover what is promised; to append never evicts and never fails.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU32, Ordering};

use doorbell_trace::PREFIX_BLOCK_TOKENS;

use super::arena::{Arena, ArenaCounts, NONE};
use super::error::KvError;
use super::tree::{Found, Key, Tree};

/// Who shares the blocks of equal prompts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// The members of a group.
    Group,
    /// All requests: pieces of [`PREFIX_BLOCK_TOKENS`] tokens, and the shorter last one of a prompt, that have equal ids
    /// behind equal beginnings are the same blocks. They stay findable after their last user, until they are evicted.
    Requests,
    /// The same with pieces of one block, which are named by their tokens. Blocks that an answer has filled can be kept too ([`Prefixes::keep`]): a
    /// prompt finds whatever was made of its beginning.
    Tokens,
}

impl Sharing {
    /// Tokens of a piece.
    fn piece_tokens(self, block_tokens: u32) -> u32 {
        match self {
            Sharing::Group | Sharing::Requests => PREFIX_BLOCK_TOKENS,
            Sharing::Tokens => block_tokens,
        }
    }
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

/// How prefix tables are set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixConfig {
    /// Blocks of the arena.
    pub blocks: u32,
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
    /// Bounds what an answer takes, if the model sees no more of it. Needs [`AnswerStart::SamePage`].
    pub cap: Option<AnswerCap>,
}

/// What a model sees of a sequence: its first and its last tokens. An answer then takes blocks in turns: one that no later token sees any more holds
/// the tokens to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerCap {
    /// Last tokens that are seen, the one that asks included.
    pub window: u32,
    /// First tokens of the sequence that are seen.
    pub sinks: u32,
}

impl AnswerCap {
    /// After how many blocks of an answer one comes again: the window reaches into one block more than it fills.
    pub const fn turn(self, block_tokens: u32) -> u32 {
        self.window.div_ceil(block_tokens) + 1
    }

    /// Blocks that an answer takes at most after a prompt with so many whole blocks; the partial last block of the prompt counts.
    pub const fn blocks(self, block_tokens: u32, whole: u32) -> u32 {
        self.sinks.div_ceil(block_tokens).saturating_sub(whole) + self.turn(block_tokens)
    }
}

impl Default for PrefixConfig {
    /// 4096 blocks of 32 tokens, shared across requests.
    fn default() -> Self {
        Self {
            blocks: 4096,
            block_tokens: 32,
            sharing: Sharing::Requests,
            answer_start: AnswerStart::NewBlock,
            prefixes: 256,
            branches: 2048,
            prompt_tokens: 1 << 15,
            answer_tokens: 1 << 12,
            nodes: 4096,
            cap: None,
        }
    }
}

/// What a group may come to need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group<'a> {
    /// Ids of the prompt's pieces of [`PREFIX_BLOCK_TOKENS`] tokens, as in
    /// [`Request::prefix`](doorbell_trace::Request::prefix), or with [`Sharing::Tokens`] its tokens. May be fewer than the prompt has, or none: then
    /// the group shares nothing, and leaves nothing for others.
    pub prefix: &'a [u32],
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Among whose pieces its own are looked for: those of another domain are never shared, even where ids are equal. For prompts whose blocks hold
    /// something that ids do not tell of, as keys and values of another version's weights.
    pub domain: u64,
    /// The same, chosen by whoever asks: requests of different salts find nothing of one another.
    pub salt: u64,
    /// How many branches will be made.
    pub members: u32,
    /// The longest answer of a member, in tokens.
    pub answer_tokens: u32,
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

/// One prefix.
pub(super) struct Slot {
    pub(super) generation: u32,
    /// Whether its name is still held: members may be made.
    pub(super) open: bool,
    /// Members that may still be made.
    pub(super) unmade: u32,
    /// The name, if it is held, and the branches.
    pub(super) holders: u32,
    /// Tokens of the prompt.
    pub(super) prompt_tokens: u32,
    /// Blocks, from the first on, that nodes of the tree hold: they are never written.
    pub(super) cached: u32,
    /// Blocks that each member may take.
    pub(super) promise: u32,
    /// The partial last block, if answers go on in it.
    pub(super) tail: Option<u32>,
    /// Deepest node, or [`NONE`].
    pub(super) leaf: u32,
    /// What nodes below that are found by, if its pieces are shared, and how many flushes were before.
    pub(super) shares: Option<(u64, u64)>,
    pub(super) flushes: u32,
}

/// Prefix tables: admits groups, and makes, grows and ends their members.
pub struct Prefixes {
    pub(super) number: u32,
    pub(super) arena: Arena,
    pub(super) slots: Box<[Slot]>,
    /// Blocks of each prompt, one row a prefix.
    prompts: Box<[u32]>,
    prompt_row: usize,
    /// Blocks of each answer, one row a branch, from the partial last block of the prompt on.
    pub(super) answers: Box<[u32]>,
    pub(super) answer_row: usize,
    /// Free rows.
    pub(super) rows: Vec<u32>,
    /// Blocks in use or promised, but for cold ones.
    pub(super) committed: u32,
    /// Rows of branches in use or promised.
    pub(super) committed_rows: u32,
    pub(super) tree: Tree,
    free_slots: Vec<u32>,
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
    /// Pieces that are shared, these among them.
    wanted: usize,
    /// Blocks that each member may take.
    promise: u32,
    /// Blocks and rows to commit.
    commit: u32,
}

impl Prefixes {
    /// Tables and their arena, all memory touched.
    ///
    /// # Errors
    /// `Config`.
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
        if let Some(AnswerCap { window, sinks }) = config.cap {
            check("cap.window", window, (1..=1 << 24).contains(&window), "1 to 2^24")?;
            check("cap.sinks", sinks, sinks <= 1 << 24, "0 to 2^24")?;
            let same_page = config.answer_start == AnswerStart::SamePage;
            check("cap.window", window, same_page, "none: with AnswerStart::NewBlock no model is told of")?;
        }
        let piece_tokens = config.sharing.piece_tokens(block_tokens);
        let pieces = prompt_tokens.div_ceil(piece_tokens);
        let nodes = match config.sharing {
            Sharing::Group => 0,
            Sharing::Requests | Sharing::Tokens => config.nodes,
        };
        check(
            "nodes",
            nodes,
            config.sharing == Sharing::Group || (pieces..=1 << 28).contains(&nodes),
            "at least the pieces of the longest prompt, and at most 2^28",
        )?;
        let arena = Arena::new(config.blocks)?;
        let slot = |_| Slot {
            generation: 1,
            open: false,
            unmade: 0,
            holders: 0,
            prompt_tokens: NONE,
            cached: NONE,
            promise: NONE,
            tail: None,
            leaf: NONE,
            shares: None,
            flushes: 0,
        };
        let named = if config.sharing == Sharing::Tokens { piece_tokens } else { 0 };
        // Nothing is written as zero, for which the system might hand out pages that are not touched yet.
        let prompt_row = prompt_tokens.div_ceil(block_tokens) as usize;
        let answer_row = answer_tokens.div_ceil(block_tokens) as usize + 1;
        Ok(Self {
            number: NUMBER.fetch_add(1, Ordering::Relaxed),
            arena,
            slots: (0..prefixes).map(slot).collect(),
            prompts: vec![NONE; prefixes as usize * prompt_row].into(),
            prompt_row,
            answers: vec![NONE; branches as usize * answer_row].into(),
            answer_row,
            rows: (0..branches).rev().collect(),
            committed: 0,
            committed_rows: 0,
            tree: Tree::new(nodes, (piece_tokens / block_tokens) as usize, named as usize),
            free_slots: (0..prefixes).rev().collect(),
            limits: config,
            evicted: 0,
            found: 0,
        })
    }

    /// The arena that the blocks are of.
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// What they were made to be.
    pub fn config(&self) -> &PrefixConfig {
        &self.limits
    }

    /// Tokens of a block.
    pub fn block_tokens(&self) -> u32 {
        self.limits.block_tokens
    }

    pub(super) fn prompt(&self, slot: u32) -> &[u32] {
        &self.prompts[slot as usize * self.prompt_row..][..self.prompt_row]
    }

    fn prompt_mut(&mut self, slot: u32) -> &mut [u32] {
        &mut self.prompts[slot as usize * self.prompt_row..][..self.prompt_row]
    }

    /// Blocks of a prompt, and those of its tokens that its last shared block lacks if answers go on in it.
    pub(super) fn split(&self, prompt_tokens: u32) -> (u32, u32) {
        let block = self.limits.block_tokens;
        match self.limits.answer_start {
            AnswerStart::NewBlock => (prompt_tokens.div_ceil(block), 0),
            AnswerStart::SamePage => (prompt_tokens / block, prompt_tokens % block),
        }
    }

    /// Admits a group: finds or acquires the blocks of its prompt, and promises it all that its members may take.
    /// Evicts what is coldest where that is needed. Takes time for each block of the prompt.
    ///
    /// # Errors
    /// `TooLarge`; `Full`.
    pub fn admit(&mut self, group: &Group<'_>) -> Result<PrefixId, KvError> {
        let Plan { mut leaf, pieces, found, wanted, promise, commit } = self.plan(group)?;
        let slot = self.free_slots.pop().ok_or(full("prefixes", 1, 0))?;
        self.committed += commit;
        self.committed_rows += group.members;
        self.found += u64::from(found);

        // What was found is in use from now on, and cannot be evicted.
        self.tree.enter(leaf);
        let room = self.limits.blocks - self.committed;
        while self.tree.cold_blocks() > room {
            self.evict()?;
        }

        let piece_row = (self.piece_tokens() / self.limits.block_tokens) as usize;
        let mut node = leaf;
        for piece in (0..pieces).rev() {
            let blocks = self.tree.blocks(node);
            let row = slot as usize * self.prompt_row + piece * piece_row;
            self.prompts[row..row + blocks.len()].copy_from_slice(blocks);
            node = self.tree.parent(node);
        }
        let (blocks, partial) = self.split(group.prompt_tokens);
        let mut filled = found;
        for piece in pieces..wanted {
            let (key, tokens) = self.key(leaf, piece, group);
            let count = self.piece_blocks(key.tokens);
            let node = loop {
                match self.tree.extend(key, tokens) {
                    Some(node) => break node,
                    None => self.evict()?,
                }
            };
            leaf = node;
            for _ in 0..count {
                let block = self.arena.acquire()?;
                self.tree.add_block(node, block);
                self.prompt_mut(slot)[filled as usize] = block;
                filled += 1;
            }
        }
        let cached = filled;
        for place in cached..blocks {
            let block = self.arena.acquire()?;
            self.prompt_mut(slot)[place as usize] = block;
        }
        let tail = match partial {
            0 => None,
            _ => Some(self.arena.acquire()?),
        };
        let at = &mut self.slots[slot as usize];
        let generation = NonZeroU32::new(at.generation).expect("generations skip zero");
        *at = Slot {
            generation: at.generation,
            open: true,
            unmade: group.members,
            holders: 1,
            prompt_tokens: group.prompt_tokens,
            cached,
            promise,
            tail,
            leaf,
            shares: (!group.prefix.is_empty()).then_some((group.domain, group.salt)),
            flushes: self.tree.flushes(),
        };
        Ok(PrefixId { tables: self.number, slot, generation })
    }

    /// How the tables stand.
    pub fn counts(&self) -> PrefixCounts {
        PrefixCounts {
            arena: self.arena.counts(),
            committed: self.committed,
            cold: self.tree.cold_blocks(),
            cold_nodes: self.tree.cold_nodes(),
            prefixes: self.slots.len() as u32 - self.free_slots.len() as u32,
            branches: self.committed_rows,
            evicted: self.evicted,
            found: self.found,
        }
    }

    /// One holder of a prefix less; the last one gives the prompt back.
    pub(super) fn leave(&mut self, slot: u32) -> Result<(), KvError> {
        let at = &mut self.slots[slot as usize];
        at.holders -= 1;
        if at.holders > 0 {
            return Ok(());
        }
        let (prompt_tokens, cached, leaf) = (at.prompt_tokens, at.cached, at.leaf);
        // Zero is no generation, so that a name has a niche for "none".
        at.generation = at.generation.checked_add(1).unwrap_or(1);
        let (blocks, _) = self.split(prompt_tokens);
        for place in cached..blocks {
            let last = self.arena.release(self.prompt(slot)[place as usize])?;
            debug_assert!(last, "a prompt's own blocks have no other holder");
        }
        self.committed -= blocks - cached + self.tree.leave(leaf);
        self.free_slots.push(slot);
        self.evict_outdated()
    }

    /// Forgets what was kept: whatever is admitted from now on finds nothing that was there before. Blocks in use stay with those that use them.
    ///
    /// # Errors
    /// None, unless the tables are broken.
    pub fn flush(&mut self) -> Result<(), KvError> {
        self.tree.flush();
        self.evict_outdated()
    }

    pub(super) fn evict_outdated(&mut self) -> Result<(), KvError> {
        while self.tree.has_outdated() {
            self.evict()?;
        }
        Ok(())
    }

    /// Tokens of a piece.
    pub(super) fn piece_tokens(&self) -> u32 {
        self.limits.sharing.piece_tokens(self.limits.block_tokens)
    }

    /// Pieces of a prompt that may be shared.
    fn named(&self, group: &Group<'_>) -> usize {
        let names = group.prefix.len();
        match self.limits.sharing {
            Sharing::Group => 0,
            Sharing::Requests => names.min(group.prompt_tokens.div_ceil(PREFIX_BLOCK_TOKENS) as usize),
            Sharing::Tokens => names.min(group.prompt_tokens as usize) / self.limits.block_tokens as usize,
        }
    }

    fn tokens_of(&self, piece: usize, group: &Group<'_>) -> u32 {
        let most = self.piece_tokens();
        (group.prompt_tokens - piece as u32 * most).min(most)
    }

    /// What a piece of a prompt is found by, with its tokens where these name it.
    fn key<'a>(&self, parent: u32, piece: usize, group: &Group<'a>) -> (Key, &'a [u32]) {
        let tokens = self.tokens_of(piece, group);
        let (id, own) = match self.limits.sharing {
            Sharing::Tokens => {
                let own = &group.prefix[piece * tokens as usize..][..tokens as usize];
                (self.tree.name(own), own)
            }
            _ => (group.prefix[piece], &[][..]),
        };
        (Key { parent, domain: group.domain, salt: group.salt, id, tokens }, own)
    }

    /// Blocks of a piece that are shared.
    fn piece_blocks(&self, tokens: u32) -> u32 {
        self.split(tokens).0
    }

    fn plan(&self, group: &Group<'_>) -> Result<Plan, KvError> {
        let limits = &self.limits;
        let at_most = |field, value: u32, limit: u32| match value <= limit {
            true => Ok(()),
            false => Err(KvError::TooLarge { field, value: value.into(), limit: limit.into() }),
        };
        at_most("number of prompt tokens", group.prompt_tokens, limits.prompt_tokens)?;
        at_most("number of answer tokens", group.answer_tokens, limits.answer_tokens)?;
        at_most("number of members", group.members, limits.branches)?;
        let (blocks, partial) = self.split(group.prompt_tokens);

        let (mut leaf, mut pieces, mut found, mut cold_nodes, mut in_use) = (NONE, 0, 0, 0, 0);
        let named = self.named(group);
        let mut wanted = named;
        for piece in 0..named {
            let count = self.piece_blocks(self.tokens_of(piece, group));
            if count == 0 {
                wanted = piece;
                break;
            }
            if pieces < piece {
                continue;
            }
            let (key, tokens) = self.key(leaf, piece, group);
            match self.tree.find(&key, tokens) {
                Found::Node(node) => {
                    (leaf, pieces, found) = (node, piece + 1, found + count);
                    match self.tree.is_cold(node) {
                        true => cold_nodes += 1,
                        false => in_use += count,
                    }
                }
                Found::Nothing => {}
                // Its place is taken.
                Found::Other => wanted = piece,
            }
            if wanted == piece {
                break;
            }
        }
        let promise =
            (u64::from(partial) + u64::from(group.answer_tokens)).div_ceil(limits.block_tokens.into());
        let promise = promise.min(self.distinct(group.prompt_tokens).into());
        let prompt = u64::from(blocks) + u64::from(partial > 0);
        let whole = prompt + u64::from(group.members) * promise;
        if whole > u64::from(limits.blocks) {
            let (value, limit) = (whole, limits.blocks.into());
            return Err(KvError::TooLarge { field: "number of blocks that it may need", value, limit });
        }
        let check = |what, need: u64, available: u32| match need <= available.into() {
            true => Ok(()),
            false => Err(full(what, need, available)),
        };
        let commit = whole - u64::from(in_use);
        check("blocks", commit, limits.blocks - self.committed)?;
        check("nodes", (wanted - pieces) as u64, self.tree.available() - cold_nodes)?;
        check("prefixes", 1, self.free_slots.len() as u32)?;
        check("branches", group.members.into(), limits.branches - self.committed_rows)?;
        // At most all blocks, by what was checked.
        Ok(Plan { leaf, pieces, found, wanted, promise: promise as u32, commit: commit as u32 })
    }

    pub(super) fn evict(&mut self) -> Result<(), KvError> {
        let Some(cold) = self.tree.evict() else {
            return Err(full("nodes", 1, 0));
        };
        for &block in cold {
            self.arena.release(block)?;
        }
        self.evicted += cold.len() as u64;
        Ok(())
    }
}

fn full(what: &'static str, need: u64, available: u32) -> KvError {
    KvError::Full { what, need, available: available.into() }
}

#[cfg(test)]
mod tests;
