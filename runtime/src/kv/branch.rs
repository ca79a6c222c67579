//! Branches: the members of a group, each with blocks of its own behind the prompt that they share.

use super::arena::NONE;
use super::error::KvError;
use super::prefix::{PrefixId, Prefixes, Slot};

/// A member of a group: the shared prompt and an answer of its own.
///
/// Made by [`Prefixes::branch`]; whoever has it `&mut` is the only one to change it. The default is a branch that was
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

impl Prefixes {
    /// A member of the group of this prefix, its answer empty. Takes no block.
    ///
    /// # Errors
    /// `Prefix`; `Members`.
    pub fn branch(&mut self, prefix: PrefixId) -> Result<Branch, KvError> {
        let slot = self.slot(prefix)?;
        let unmade = slot.unmade.checked_sub(1).ok_or(KvError::Members { slot: prefix.slot() })?;
        slot.unmade = unmade;
        slot.holders += 1;
        let (prompt_tokens, promise, tail) = (slot.prompt_tokens, slot.promise, slot.tail);
        let row = self.rows.pop().expect("admission promised a row for each member");
        if let Some(tail) = tail {
            self.arena.retain_of(tail.index());
            self.answer_mut(row)[0] = tail.index();
        }
        Ok(Branch {
            tables: self.number,
            prefix: prefix.slot(),
            row,
            prompt_tokens,
            answer_tokens: 0,
            blocks: tail.is_some().into(),
            promise,
            copies: NONE,
        })
    }

    /// Makes the answer `tokens` tokens longer, and takes the blocks that they need. If the answer begins in the
    /// prompt's partial block and others hold that, the block is copied first.
    ///
    /// # Errors
    /// `Branch`; `Promise`.
    pub fn append(&mut self, branch: &mut Branch, tokens: u32) -> Result<(), KvError> {
        self.check(branch)?;
        if tokens == 0 {
            return Ok(());
        }
        let (_, partial) = self.split(branch.prompt_tokens);
        let answer = u64::from(branch.answer_tokens) + u64::from(tokens);
        let want = (u64::from(partial) + answer).div_ceil(self.block_tokens().into());
        let tail = (partial > 0 && branch.answer_tokens == 0).then(|| self.row_block(branch, 0));
        let shared = tail.filter(|&tail| self.arena.references_of(tail) > 1);
        let need = want - u64::from(branch.blocks) + u64::from(shared.is_some());
        // What was promised for writes into the prompt is not for the answer, whose row may be full.
        if need > u64::from(branch.promise) || want > self.answer_row as u64 {
            let need = u32::try_from(need).unwrap_or(u32::MAX);
            return Err(KvError::Promise { need, left: branch.promise });
        }
        if shared.is_some() {
            self.copy_tail(branch)?;
        }
        while u64::from(branch.blocks) < want {
            let block = self.take(branch)?;
            self.answer_mut(branch.row)[branch.blocks as usize] = block;
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
        self.check(branch)?;
        Ok(self.arena.offset_of(self.find(branch, position)?.block))
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
        self.check(branch)?;
        let found = self.find(branch, position)?;
        let (block, copied) = match found.place {
            At::Row if self.arena.references_of(found.block) == 1 => (found.block, false),
            At::Row => (self.copy_tail(branch)?, true),
            At::Copy => (found.block, false),
            At::Prompt(logical) => {
                let slot = &self.slots[branch.prefix as usize];
                // The only holder of a closed prefix is this branch, and nobody can join it.
                if slot.holders == 1 && logical >= slot.cached {
                    (found.block, false)
                } else {
                    let copy = self.copy(branch, found.block)?;
                    *self.arena.note(copy) = [logical, branch.copies];
                    branch.copies = copy;
                    (copy, true)
                }
            }
        };
        Ok(Place { offset: self.arena.offset_of(block), copied })
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
        self.check_bytes(at, bytes.len())?;
        let place = self.write(branch, position)?;
        let block = (place.offset / self.arena.block_bytes()) as u32;
        self.arena.put(block, at, bytes)?;
        Ok(place)
    }

    /// Reads the bytes from `at` on of the block of a position.
    ///
    /// # Errors
    /// `Branch`; `Position`; `Bytes`.
    pub fn get(&self, branch: &Branch, position: u32, at: usize, out: &mut [u8]) -> Result<(), KvError> {
        self.check(branch)?;
        self.check_bytes(at, out.len())?;
        let block = self.find(branch, position)?.block;
        self.arena.get(block, at, out);
        Ok(())
    }

    /// Gives back the branch's blocks, what is left of its promise, and its part in the prefix.
    ///
    /// # Errors
    /// `Branch`: it was released before, and nothing happens.
    pub fn release(&mut self, branch: &mut Branch) -> Result<(), KvError> {
        self.check(branch)?;
        let Branch { prefix, row, blocks, promise, mut copies, .. } = std::mem::take(branch);
        let mut freed = promise;
        for k in 0..blocks as usize {
            let block = self.answer(row)[k];
            freed += u32::from(self.arena.release_of(block));
        }
        while copies != NONE {
            let [_, next] = self.arena.noted(copies);
            freed += u32::from(self.arena.release_of(copies));
            copies = next;
        }
        self.rows.push(row);
        self.committed -= freed;
        self.committed_rows -= 1;
        self.leave(prefix);
        Ok(())
    }

    /// Gives the name of a prefix back: no more branches can be made, and what was promised to those that were not
    /// is free again. Those that were made keep the prompt.
    ///
    /// # Errors
    /// `Prefix`: it was released before, and nothing happens.
    pub fn release_prefix(&mut self, prefix: PrefixId) -> Result<(), KvError> {
        let slot = self.slot(prefix)?;
        slot.open = false;
        let unmade = std::mem::take(&mut slot.unmade);
        let mut freed = unmade * slot.promise;
        if let Some(tail) = slot.tail.take() {
            freed += u32::from(self.arena.release_of(tail.index()));
        }
        self.committed -= freed;
        self.committed_rows -= unmade;
        self.leave(prefix.slot());
        Ok(())
    }

    fn answer(&self, row: u32) -> &[u32] {
        &self.answers[row as usize * self.answer_row..][..self.answer_row]
    }

    fn answer_mut(&mut self, row: u32) -> &mut [u32] {
        &mut self.answers[row as usize * self.answer_row..][..self.answer_row]
    }

    fn row_block(&self, branch: &Branch, k: usize) -> u32 {
        self.answer(branch.row)[k]
    }

    fn find(&self, branch: &Branch, position: u32) -> Result<Found, KvError> {
        if position >= branch.tokens() {
            return Err(KvError::Position { position, tokens: branch.tokens() });
        }
        let (first, partial) = self.split(branch.prompt_tokens);
        let whole = branch.prompt_tokens - partial;
        if position >= whole {
            let k = ((position - whole) / self.block_tokens()) as usize;
            return Ok(Found { block: self.row_block(branch, k), place: At::Row });
        }
        let logical = position / self.block_tokens();
        debug_assert!(logical < first);
        let mut copy = branch.copies;
        while copy != NONE {
            let [of, next] = self.arena.noted(copy);
            if of == logical {
                return Ok(Found { block: copy, place: At::Copy });
            }
            copy = next;
        }
        let block = self.prompt(branch.prefix)[logical as usize];
        Ok(Found { block, place: At::Prompt(logical) })
    }

    /// Takes a block of the branch's promise.
    fn take(&mut self, branch: &mut Branch) -> Result<u32, KvError> {
        let Some(left) = branch.promise.checked_sub(1) else {
            return Err(KvError::Promise { need: 1, left: 0 });
        };
        let block = self.arena.acquire()?;
        branch.promise = left;
        Ok(block.index())
    }

    /// A copy, of the branch's own, of a block that it holds.
    fn copy(&mut self, branch: &mut Branch, from: u32) -> Result<u32, KvError> {
        let to = self.take(branch)?;
        self.arena.copy(from, to);
        self.copies += 1;
        Ok(to)
    }

    /// Replaces the prompt's partial block, the first of the row, by a copy.
    fn copy_tail(&mut self, branch: &mut Branch) -> Result<u32, KvError> {
        let tail = self.row_block(branch, 0);
        let copy = self.copy(branch, tail)?;
        self.answer_mut(branch.row)[0] = copy;
        self.arena.release_of(tail);
        Ok(copy)
    }

    /// An open prefix.
    fn slot(&mut self, prefix: PrefixId) -> Result<&mut Slot, KvError> {
        let stale = KvError::Prefix { slot: prefix.slot() };
        if prefix.tables() != self.number {
            return Err(stale);
        }
        let open = |slot: &&mut Slot| slot.open && slot.generation == prefix.generation();
        self.slots.get_mut(prefix.slot() as usize).filter(open).ok_or(stale)
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
