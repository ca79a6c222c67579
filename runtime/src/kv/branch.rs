//! Branches: the members of a group, each with blocks of its own behind the prompt that they share.
//!
//! What threads have in common is atomic here; the tree of prompts is its owner's alone (see [`Prefixes`]).
//!
//! [`Prefixes`]: super::prefix::Prefixes

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::arena::{Arena, ArenaHandle};
use super::error::KvError;
use super::prefix::{AnswerStart, PrefixId};
use super::stack::{NONE, Stack};

/// One prefix, as every thread sees it.
pub(super) struct Slot {
    /// A [`Share`].
    pub(super) share: AtomicU64,
    /// Tokens of the prompt.
    pub(super) prompt_tokens: AtomicU32,
    /// Blocks, from the first on, that nodes of the tree hold: they are never written.
    pub(super) cached: AtomicU32,
    /// Blocks that each member may take.
    pub(super) promise: AtomicU32,
    /// Name of the partial last block, if answers go on in it: index in the low half, generation in the high half.
    pub(super) tail: AtomicU64,
    /// The next one whose last user has gone.
    pub(super) next_idle: AtomicU32,
}

/// Who uses a prefix, in one word: generation (32 bits), whether its handle is open (1), how many members may still be
/// made (15), and how many hold it (16): the handle and the branches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share {
    pub(super) generation: u32,
    pub(super) open: bool,
    pub(super) unmade: u32,
    pub(super) holders: u32,
}

/// Members of a group at most.
pub(super) const MEMBERS_MAX: u32 = (1 << 15) - 1;

impl Share {
    pub(super) const fn pack(self) -> u64 {
        (self.generation as u64) << 32
            | (self.open as u64) << 31
            | (self.unmade as u64) << 16
            | self.holders as u64
    }

    pub(super) const fn unpack(word: u64) -> Self {
        Self {
            generation: (word >> 32) as u32,
            open: word >> 31 & 1 == 1,
            unmade: word as u32 >> 16 & MEMBERS_MAX,
            holders: word as u32 & 0xFFFF,
        }
    }
}

/// What the tables' threads share.
pub(super) struct Tables {
    pub(super) number: u32,
    pub(super) arena: Arc<Arena>,
    pub(super) answer_start: AnswerStart,
    pub(super) block_tokens: u32,
    pub(super) slots: Box<[Slot]>,
    /// Blocks of each prompt, one row a prefix.
    pub(super) prompts: Box<[AtomicU32]>,
    pub(super) prompt_row: usize,
    /// Blocks of each answer, one row a branch, from the partial last block of the prompt on.
    pub(super) answers: Box<[AtomicU32]>,
    pub(super) answer_row: usize,
    pub(super) rows: Stack,
    /// Blocks in use or promised, but for cold ones.
    pub(super) committed: AtomicU32,
    /// Rows of branches in use or promised.
    pub(super) committed_rows: AtomicU32,
    /// The prefix whose last user went last; a list by `next_idle`.
    pub(super) idle: AtomicU32,
}

impl Tables {
    pub(super) fn prompt(&self, slot: u32) -> &[AtomicU32] {
        &self.prompts[slot as usize * self.prompt_row..][..self.prompt_row]
    }

    fn answer(&self, row: u32) -> &[AtomicU32] {
        &self.answers[row as usize * self.answer_row..][..self.answer_row]
    }

    /// Blocks of a prompt, and those of its tokens that its last shared block lacks if answers go on in it.
    pub(super) fn split(&self, prompt_tokens: u32) -> (u32, u32) {
        match self.answer_start {
            AnswerStart::NewBlock => (prompt_tokens.div_ceil(self.block_tokens), 0),
            AnswerStart::SamePage => (prompt_tokens / self.block_tokens, prompt_tokens % self.block_tokens),
        }
    }

    /// One holder of a prefix less.
    fn leave(&self, slot: u32, change: impl Fn(Share) -> Share) -> Share {
        let word = &self.slots[slot as usize].share;
        let mut seen = word.load(Ordering::Relaxed);
        loop {
            let before = Share::unpack(seen);
            let after = change(before);
            // Release: what this thread did with the blocks is done before another one finds itself their last
            // holder; acquire: and this one may be the last.
            match word.compare_exchange_weak(seen, after.pack(), Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => {
                    if after.holders == 0 {
                        self.set_idle(slot);
                    }
                    return before;
                }
                Err(now) => seen = now,
            }
        }
    }

    /// Hands a prefix to the tree's owner. The owner takes the whole list at once, so there is no ABA.
    fn set_idle(&self, slot: u32) {
        let mut seen = self.idle.load(Ordering::Relaxed);
        loop {
            self.slots[slot as usize].next_idle.store(seen, Ordering::Relaxed);
            match self.idle.compare_exchange_weak(seen, slot, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }
}

/// A member of a group: the shared prompt and an answer of its own.
///
/// Made by [`Branches::branch`]; whoever has it `&mut` is the only one to change it. The default is a branch that was
/// released. One that is dropped without a release keeps its blocks for ever.
#[derive(Debug)]
#[must_use = "a branch keeps its blocks until it is released"]
pub struct Branch {
    /// Number of its tables.
    tables: u32,
    /// Slot of its prefix, or [`NONE`].
    prefix: u32,
    /// Row of its answer's blocks.
    row: u32,
    prompt_tokens: u32,
    answer_tokens: u32,
    /// Blocks in the row.
    blocks: u32,
    /// Blocks that it may still take.
    promise: u32,
    /// The latest of its own copies of whole prompt blocks; a list through the blocks' notes.
    copies: u32,
}

impl Default for Branch {
    fn default() -> Self {
        Self {
            tables: NONE,
            prefix: NONE,
            row: NONE,
            prompt_tokens: 0,
            answer_tokens: 0,
            blocks: 0,
            promise: 0,
            copies: NONE,
        }
    }
}

impl Branch {
    /// Whether it was released, or never made.
    pub const fn is_released(&self) -> bool {
        self.prefix == NONE
    }

    /// Tokens of the prompt.
    pub const fn prompt_tokens(&self) -> u32 {
        self.prompt_tokens
    }

    /// Tokens of the answer so far.
    pub const fn answer_tokens(&self) -> u32 {
        self.answer_tokens
    }

    /// Tokens of prompt and answer.
    pub const fn tokens(&self) -> u32 {
        self.prompt_tokens + self.answer_tokens
    }

    /// Blocks that it may still take of what was promised at admission.
    pub const fn promise(&self) -> u32 {
        self.promise
    }
}

/// Where a write may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Byte offset of the block in the arena's region; the branch is its only holder.
    pub offset: usize,
    /// Whether the block was copied for this write.
    pub copied: bool,
}

/// One thread's way to branches. Nothing here allocates, waits or calls the system.
pub struct Branches {
    pub(super) tables: Arc<Tables>,
    pub(super) blocks: ArenaHandle,
    copies: u64,
}

impl Branches {
    pub(super) fn new(tables: Arc<Tables>) -> Result<Self, KvError> {
        let blocks = tables.arena.handle()?;
        Ok(Self { tables, blocks, copies: 0 })
    }

    /// The arena that the blocks are of.
    pub fn arena(&self) -> &Arc<Arena> {
        &self.tables.arena
    }

    /// Blocks that this thread copied so far because another holder was to keep them as they were.
    pub fn copies(&self) -> u64 {
        self.copies
    }

    /// A member of the group of this prefix, its answer empty. Takes no block.
    ///
    /// # Errors
    /// `Prefix`; `Members`.
    pub fn branch(&mut self, prefix: PrefixId) -> Result<Branch, KvError> {
        let tables = &*self.tables;
        let slot = tables.slot(prefix)?;
        let stale = KvError::Prefix { slot: prefix.slot() };
        // The partial last block first: once it is held, the handle may go.
        let tail = slot.tail.load(Ordering::Acquire);
        let tail = (tail as u32 != NONE).then(|| tables.arena.named(tail));
        if let Some(tail) = tail {
            tables.arena.retain(tail).map_err(|_| stale)?;
        }
        let mut seen = slot.share.load(Ordering::Acquire);
        let joined = loop {
            let share = Share::unpack(seen);
            if share.generation != prefix.generation() || !share.open {
                break Err(stale);
            }
            let Some(unmade) = share.unmade.checked_sub(1) else {
                break Err(KvError::Members { slot: prefix.slot() });
            };
            let after = Share { unmade, holders: share.holders + 1, ..share }.pack();
            match slot.share.compare_exchange_weak(seen, after, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => break Ok(()),
                Err(now) => seen = now,
            }
        };
        if let Err(error) = joined {
            if let Some(tail) = tail
                && self.blocks.release(tail)?
            {
                tables.committed.fetch_sub(1, Ordering::Release);
            }
            return Err(error);
        }
        let mut row = [NONE];
        let taken = tables.rows.pop(&mut row);
        assert_eq!(taken, 1, "admission promised a row for each member");
        let [row] = row;
        if let Some(tail) = tail {
            tables.answer(row)[0].store(tail.index(), Ordering::Relaxed);
        }
        Ok(Branch {
            tables: tables.number,
            prefix: prefix.slot(),
            row,
            prompt_tokens: slot.prompt_tokens.load(Ordering::Relaxed),
            answer_tokens: 0,
            blocks: tail.is_some().into(),
            promise: slot.promise.load(Ordering::Relaxed),
            copies: NONE,
        })
    }

    /// Makes the answer `tokens` tokens longer, and takes the blocks that they need. If the answer begins in the
    /// prompt's partial block and others hold that, the block is copied first.
    ///
    /// # Errors
    /// `Branch`; `Promise`.
    pub fn append(&mut self, branch: &mut Branch, tokens: u32) -> Result<(), KvError> {
        self.tables.check(branch)?;
        if tokens == 0 {
            return Ok(());
        }
        let (_, partial) = self.tables.split(branch.prompt_tokens);
        let answer = u64::from(branch.answer_tokens) + u64::from(tokens);
        let want = (u64::from(partial) + answer).div_ceil(self.tables.block_tokens.into());
        let tail = (partial > 0 && branch.answer_tokens == 0).then(|| self.row_block(branch, 0));
        let shared = tail.filter(|&tail| self.tables.arena.references_of(tail) > 1);
        let need = want - u64::from(branch.blocks) + u64::from(shared.is_some());
        // What was promised for writes into the prompt is not for the answer, whose row may be full.
        if need > u64::from(branch.promise) || want > self.tables.answer_row as u64 {
            let need = u32::try_from(need).unwrap_or(u32::MAX);
            return Err(KvError::Promise { need, left: branch.promise });
        }
        if shared.is_some() {
            self.copy_tail(branch)?;
        }
        while u64::from(branch.blocks) < want {
            let block = self.take(branch)?;
            self.tables.answer(branch.row)[branch.blocks as usize].store(block, Ordering::Relaxed);
            branch.blocks += 1;
        }
        branch.answer_tokens = answer as u32;
        Ok(())
    }

    /// Byte offset, in the arena's region, of the block that holds a position.
    ///
    /// # Errors
    /// `Branch`; `Position`.
    pub fn block_of(&self, branch: &Branch, position: u32) -> Result<usize, KvError> {
        self.tables.check(branch)?;
        Ok(self.tables.arena.offset_of(self.find(branch, position)?.block))
    }

    /// Makes sure that the branch is the only holder of the block of a position, and returns where that is. A block that
    /// others hold, or may find, is copied into one of the branch's own, all of its bytes.
    ///
    /// The full blocks of a prompt are held as a whole: they are the branch's own once the prefix and all other branches
    /// are released, unless other requests may find them.
    ///
    /// # Errors
    /// `Branch`; `Position`; `Promise`.
    pub fn write(&mut self, branch: &mut Branch, position: u32) -> Result<Place, KvError> {
        self.tables.check(branch)?;
        let found = self.find(branch, position)?;
        let tables = &*self.tables;
        let (block, copied) = match found.place {
            // Acquire, in `references_of` and here: what the others did with the block is done.
            At::Row if tables.arena.references_of(found.block) == 1 => (found.block, false),
            At::Row => (self.copy_tail(branch)?, true),
            At::Copy => (found.block, false),
            At::Prompt(logical) => {
                let slot = &tables.slots[branch.prefix as usize];
                let share = Share::unpack(slot.share.load(Ordering::Acquire));
                // The only holder of a closed prefix is this branch, and nobody can join it.
                if share.holders == 1 && logical >= slot.cached.load(Ordering::Relaxed) {
                    (found.block, false)
                } else {
                    let copy = self.copy(branch, found.block)?;
                    let note = u64::from(logical) << 32 | u64::from(branch.copies);
                    self.tables.arena.note(copy).store(note, Ordering::Relaxed);
                    branch.copies = copy;
                    (copy, true)
                }
            }
        };
        Ok(Place { offset: self.tables.arena.offset_of(block), copied })
    }

    /// Writes `bytes` at byte `at` of the block of a position, after [`write`](Self::write).
    ///
    /// # Errors
    /// As [`write`](Self::write); `Bytes`.
    pub fn put(
        &mut self,
        branch: &mut Branch,
        position: u32,
        at: usize,
        bytes: &[u8],
    ) -> Result<Place, KvError> {
        self.tables.check_bytes(at, bytes.len())?;
        let place = self.write(branch, position)?;
        let block = (place.offset / self.tables.arena.block_bytes()) as u32;
        // SAFETY: the branch, which is borrowed mutably, is the block's only holder, and only its holders use it.
        unsafe { self.tables.arena.put(block, at, bytes) };
        Ok(place)
    }

    /// Reads the bytes from `at` on of the block of a position.
    ///
    /// # Errors
    /// `Branch`; `Position`; `Bytes`.
    pub fn get(&self, branch: &Branch, position: u32, at: usize, out: &mut [u8]) -> Result<(), KvError> {
        self.tables.check(branch)?;
        self.tables.check_bytes(at, out.len())?;
        let block = self.find(branch, position)?.block;
        // SAFETY: the branch holds the block: another holder copies before it writes, and this one is borrowed.
        unsafe { self.tables.arena.get(block, at, out) };
        Ok(())
    }

    /// Gives back the branch's blocks, what is left of its promise, and its part in the prefix.
    ///
    /// # Errors
    /// `Branch`: it was released before, and nothing happens.
    pub fn release(&mut self, branch: &mut Branch) -> Result<(), KvError> {
        self.tables.check(branch)?;
        let Branch { prefix, row, blocks, promise, copies, .. } = std::mem::take(branch);
        let mut freed = promise;
        for k in 0..blocks as usize {
            let block = self.tables.answer(row)[k].load(Ordering::Relaxed);
            freed += u32::from(self.blocks.release(self.tables.arena.id(block))?);
        }
        let mut copy = copies;
        while copy != NONE {
            let next = self.tables.arena.note(copy).load(Ordering::Relaxed) as u32;
            freed += u32::from(self.blocks.release(self.tables.arena.id(copy))?);
            copy = next;
        }
        self.tables.rows.push(&[row]);
        self.tables.committed.fetch_sub(freed, Ordering::Release);
        self.tables.committed_rows.fetch_sub(1, Ordering::Release);
        self.tables.leave(prefix, |share| Share { holders: share.holders - 1, ..share });
        Ok(())
    }

    /// Gives the handle of a prefix back: no more branches can be made, and what was promised to those that were not
    /// is free again. Those that were made keep the prompt.
    ///
    /// # Errors
    /// `Prefix`: it was released before, and nothing happens.
    pub fn release_prefix(&mut self, prefix: PrefixId) -> Result<(), KvError> {
        let tables = &*self.tables;
        let slot = tables.slot(prefix)?;
        let stale = KvError::Prefix { slot: prefix.slot() };
        // Both are read while the handle is known to be open, or the exchange fails.
        let mut seen = slot.share.load(Ordering::Acquire);
        let (unmade, promise, tail, idle) = loop {
            let share = Share::unpack(seen);
            if share.generation != prefix.generation() || !share.open {
                return Err(stale);
            }
            let promise = slot.promise.load(Ordering::Relaxed);
            let tail = slot.tail.load(Ordering::Relaxed);
            let after = Share { open: false, unmade: 0, holders: share.holders - 1, ..share };
            match slot.share.compare_exchange_weak(seen, after.pack(), Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => break (share.unmade, promise, tail, after.holders == 0),
                Err(now) => seen = now,
            }
        };
        let mut freed = unmade * promise;
        if tail as u32 != NONE {
            let tail = tables.arena.named(tail);
            freed += u32::from(self.blocks.release(tail)?);
        }
        tables.committed.fetch_sub(freed, Ordering::Release);
        tables.committed_rows.fetch_sub(unmade, Ordering::Release);
        if idle {
            tables.set_idle(prefix.slot());
        }
        Ok(())
    }

    fn row_block(&self, branch: &Branch, k: usize) -> u32 {
        self.tables.answer(branch.row)[k].load(Ordering::Relaxed)
    }

    fn find(&self, branch: &Branch, position: u32) -> Result<Found, KvError> {
        if position >= branch.tokens() {
            return Err(KvError::Position { position, tokens: branch.tokens() });
        }
        let tables = &*self.tables;
        let (first, partial) = tables.split(branch.prompt_tokens);
        let whole = branch.prompt_tokens - partial;
        if position >= whole {
            let k = ((position - whole) / tables.block_tokens) as usize;
            return Ok(Found { block: self.row_block(branch, k), place: At::Row });
        }
        let logical = position / tables.block_tokens;
        debug_assert!(logical < first);
        let mut copy = branch.copies;
        while copy != NONE {
            let note = tables.arena.note(copy).load(Ordering::Relaxed);
            if (note >> 32) as u32 == logical {
                return Ok(Found { block: copy, place: At::Copy });
            }
            copy = note as u32;
        }
        let block = tables.prompt(branch.prefix)[logical as usize].load(Ordering::Relaxed);
        Ok(Found { block, place: At::Prompt(logical) })
    }

    /// Takes a block of the branch's promise.
    fn take(&mut self, branch: &mut Branch) -> Result<u32, KvError> {
        let Some(left) = branch.promise.checked_sub(1) else {
            return Err(KvError::Promise { need: 1, left: 0 });
        };
        let block = self.blocks.acquire()?;
        branch.promise = left;
        Ok(block.index())
    }

    /// A copy, of the branch's own, of a block that it holds.
    fn copy(&mut self, branch: &mut Branch, from: u32) -> Result<u32, KvError> {
        let to = self.take(branch)?;
        // SAFETY: nobody writes `from`, as this branch holds it and is not its only holder; nobody else knows `to`.
        unsafe { self.tables.arena.copy(from, to) };
        self.copies += 1;
        Ok(to)
    }

    /// Replaces the prompt's partial block, the first of the row, by a copy.
    fn copy_tail(&mut self, branch: &mut Branch) -> Result<u32, KvError> {
        let tail = self.row_block(branch, 0);
        let copy = self.copy(branch, tail)?;
        self.tables.answer(branch.row)[0].store(copy, Ordering::Relaxed);
        // The other holders may have gone since this one looked.
        if self.blocks.release(self.tables.arena.id(tail))? {
            self.tables.committed.fetch_sub(1, Ordering::Release);
        }
        Ok(copy)
    }
}

impl Tables {
    fn slot(&self, prefix: PrefixId) -> Result<&Slot, KvError> {
        match self.slots.get(prefix.slot() as usize) {
            Some(slot) if prefix.tables() == self.number => Ok(slot),
            _ => Err(KvError::Prefix { slot: prefix.slot() }),
        }
    }

    fn check(&self, branch: &Branch) -> Result<(), KvError> {
        if branch.is_released() || branch.tables != self.number { Err(KvError::Branch) } else { Ok(()) }
    }

    fn check_bytes(&self, at: usize, len: usize) -> Result<(), KvError> {
        let block = self.arena.block_bytes();
        match at.checked_add(len) {
            Some(to) if to <= block => Ok(()),
            to => Err(KvError::Bytes { from: at, to: to.unwrap_or(usize::MAX), block }),
        }
    }
}

/// A block that serves a position.
struct Found {
    block: u32,
    place: At,
}

/// How a branch holds a block.
enum At {
    /// In this place of its row.
    Row,
    /// As its own copy of a prompt block.
    Copy,
    /// As this block of the prompt.
    Prompt(u32),
}
