//! Branches: the members of a group, each with blocks of its own behind the prompt that they share.

use super::arena::NONE;
use super::error::KvError;
use super::prefix::{PrefixId, Prefixes, Sharing, Slot};
use super::tree::{Found, Key};

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
    /// The block that it holds until its copy is made, or [`NONE`].
    source: u32,
    /// The last piece of what is kept of it, which it uses, or [`NONE`]; and which blocks of the row are pieces' now.
    kept: u32,
    pieces: (u32, u32),
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
            source: NONE,
            kept: NONE,
            pieces: (0, 0),
        }
    }
}

impl Branch {
    /// Whether it was released, or never made.
    pub const fn is_released(&self) -> bool {
        self.prefix == NONE
    }

    /// Tokens of the answer so far.
    pub const fn answer_tokens(&self) -> u32 {
        self.answer_tokens
    }

    /// The block that is to be copied to its first own one, while it is [held](Prefixes::hold_source).
    pub fn source(&self) -> Option<u32> {
        (self.source != NONE).then_some(self.source)
    }

    /// Slot of its prefix, below [`PrefixConfig::prefixes`](super::PrefixConfig::prefixes); `None` once it is released.
    pub fn prefix_slot(&self) -> Option<u32> {
        (self.prefix != NONE).then_some(self.prefix)
    }

    /// Blocks that it may still take of what was promised at admission.
    pub const fn promise(&self) -> u32 {
        self.promise
    }
}

/// A block that a branch has taken in the place of one that others hold: what lies in the one is to be copied to the other
/// before the branch writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copied {
    /// The block that others hold.
    pub from: u32,
    /// The branch's own.
    pub to: u32,
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
            self.arena.retain(tail)?;
            self.answer_mut(row)[0] = tail;
        }
        Ok(Branch {
            tables: self.number,
            prefix: prefix.slot(),
            row,
            prompt_tokens,
            answer_tokens: 0,
            blocks: tail.is_some().into(),
            promise,
            source: NONE,
            kept: NONE,
            pieces: (0, 0),
        })
    }

    /// Makes the answer `tokens` tokens longer, and takes the blocks that they need. If the answer begins in the
    /// prompt's partial block and others hold that, the branch gets a copy of it, which the caller is to make.
    ///
    /// # Errors
    /// `Branch`; `Promise`.
    pub fn append(&mut self, branch: &mut Branch, tokens: u32) -> Result<Option<Copied>, KvError> {
        self.check(branch)?;
        if tokens == 0 {
            return Ok(None);
        }
        let (_, partial) = self.split(branch.prompt_tokens);
        let answer = u64::from(branch.answer_tokens) + u64::from(tokens);
        let want = (u64::from(partial) + answer).div_ceil(self.block_tokens().into());
        let mut shared = None;
        if partial > 0 && branch.answer_tokens == 0 {
            let tail = self.answer(branch.row)[0];
            shared = (self.arena.references(tail)? > 1).then_some(tail);
        }
        // Mostly they fit into the last block.
        if want == u64::from(branch.blocks) && shared.is_none() {
            branch.answer_tokens = answer as u32;
            return Ok(None);
        }
        let distinct = self.distinct(branch.prompt_tokens);
        let own = |blocks: u64| blocks.min(distinct.into());
        let need = own(want) - own(branch.blocks.into()) + u64::from(shared.is_some());
        if need > u64::from(branch.promise) || want > self.answer_row as u64 {
            let need = u32::try_from(need).unwrap_or(u32::MAX);
            return Err(KvError::Promise { need, left: branch.promise });
        }
        branch.promise -= need as u32;
        let mut copied = None;
        if let Some(from) = shared {
            let to = self.arena.acquire()?;
            self.answer_mut(branch.row)[0] = to;
            self.arena.release(from)?;
            copied = Some(Copied { from, to });
        }
        while u64::from(branch.blocks) < want {
            let block = match branch.blocks.checked_sub(self.turn()) {
                Some(before) if branch.blocks >= distinct => self.answer(branch.row)[before as usize],
                _ => self.arena.acquire()?,
            };
            self.answer_mut(branch.row)[branch.blocks as usize] = block;
            branch.blocks += 1;
        }
        branch.answer_tokens = answer as u32;
        Ok(copied)
    }

    /// Holds the block that `append` has told to copy from, for a copy that is made later: until [`drop_source`](Self::drop_source), or the
    /// branch's end, nobody writes to it.
    ///
    /// # Errors
    /// `Branch`; `Free` if nobody holds the block any more.
    pub fn hold_source(&mut self, branch: &mut Branch, copied: Copied) -> Result<(), KvError> {
        self.check(branch)?;
        self.drop_source(branch)?;
        self.arena.retain(copied.from)?;
        branch.source = copied.from;
        Ok(())
    }

    /// The copy is made: the block that it was made from is held no longer, if one was.
    ///
    /// # Errors
    /// `Branch`.
    pub fn drop_source(&mut self, branch: &mut Branch) -> Result<(), KvError> {
        self.check(branch)?;
        if let Some(source) = branch.source() {
            branch.source = NONE;
            self.committed -= u32::from(self.arena.release(source)?);
        }
        Ok(())
    }

    /// The blocks of all positions of prompt and answer, in their order, into `out`.
    ///
    /// # Errors
    /// `Branch`.
    pub fn table(&self, branch: &Branch, out: &mut Vec<u32>) -> Result<(), KvError> {
        self.check(branch)?;
        let (whole, _) = self.split(branch.prompt_tokens);
        out.clear();
        out.extend_from_slice(&self.prompt(branch.prefix)[..whole as usize]);
        out.extend_from_slice(&self.answer(branch.row)[..branch.blocks as usize]);
        Ok(())
    }

    /// Whether entry `entry` of the branch's [`table`](Self::table) has a block that a later one of its first `entries` entries has too: with a cap, what was
    /// stored there was seen by no token any more, and is overwritten.
    pub fn is_overwritten(&self, branch: &Branch, entry: u32, entries: u32) -> bool {
        let (whole, _) = self.split(branch.prompt_tokens);
        let again = entry.saturating_add(self.turn());
        entry >= whole && again < entries && again - whole >= self.distinct(branch.prompt_tokens)
    }

    /// The block that holds a position of prompt and answer.
    ///
    /// # Errors
    /// `Branch`; `Position`.
    pub fn block_of(&self, branch: &Branch, position: u32) -> Result<u32, KvError> {
        self.check(branch)?;
        let tokens = branch.prompt_tokens + branch.answer_tokens;
        if position >= tokens {
            return Err(KvError::Position { position, tokens });
        }
        let whole = branch.prompt_tokens - self.split(branch.prompt_tokens).1;
        Ok(match position.checked_sub(whole) {
            Some(own) => self.answer(branch.row)[(own / self.block_tokens()) as usize],
            None => self.prompt(branch.prefix)[(position / self.block_tokens()) as usize],
        })
    }

    /// Keeps the blocks that the branch's answer has filled, for prompts that begin with its prompt and its answer. They can be found from now on, and are
    /// cold once the branch is released, to which nothing is appended any more. A second call does nothing. `tokens` are those of its own blocks, from the end of the prompt's last whole block on; only
    /// whole blocks are kept. `what` they were filled with is that of [`fill`](Self::fill). Nothing is kept with another [`Sharing`] than
    /// `Tokens`, of a group that shares nothing, or after a [`flush`](Self::flush) since its admission.
    ///
    /// # Errors
    /// `Branch`.
    pub fn keep(&mut self, branch: &mut Branch, tokens: &[u32], what: u32) -> Result<(), KvError> {
        self.check(branch)?;
        let (blocks, _) = self.split(branch.prompt_tokens);
        let &Slot { leaf, cached, shares, flushes, .. } = &self.slots[branch.prefix as usize];
        let Some((domain, salt)) = shares else { return Ok(()) };
        if branch.kept != NONE {
            return Ok(());
        }
        // Of an answer whose blocks took turns the first ones are overwritten.
        if branch.blocks > self.distinct(branch.prompt_tokens) {
            return Ok(());
        }
        let is_whole = cached == blocks && (leaf == NONE || self.tree.filled(leaf) != NONE);
        if self.config().sharing != Sharing::Tokens || flushes != self.tree.flushes() || !is_whole {
            return Ok(());
        }
        let (mut node, piece_tokens) = (leaf, self.block_tokens());
        self.committed += self.tree.enter(node);
        let pieces = tokens.chunks_exact(piece_tokens as usize).take(branch.blocks as usize);
        for (place, piece) in pieces.enumerate() {
            let key = Key { parent: node, domain, salt, id: self.tree.name(piece), tokens: piece_tokens };
            match self.tree.find(&key, piece) {
                // What another is yet to fill, nothing can follow.
                Found::Node(next) if self.tree.filled(next) == NONE => break,
                Found::Node(next) => {
                    self.committed += self.tree.enter(next);
                    self.committed -= self.tree.leave(node);
                    node = next;
                }
                Found::Other => break,
                Found::Nothing => {
                    let block = self.answer(branch.row)[place];
                    // One that another member is yet to copy from stays its.
                    if self.arena.references(block)? > 1 || self.tree.available() == 0 {
                        break;
                    }
                    node = loop {
                        match self.tree.extend(key, piece) {
                            Some(node) => break node,
                            None => self.evict()?,
                        }
                    };
                    self.tree.add_block(node, block);
                    self.tree.fill(node, what);
                    // Behind a piece that is new all are.
                    let (first, _) = branch.pieces;
                    let first = if branch.pieces == (0, 0) { place as u32 } else { first };
                    branch.pieces = (first, place as u32 + 1);
                }
            }
        }
        branch.kept = node;
        Ok(())
    }

    /// Blocks that its release makes free or promises no more, at least; those of its prompt among them if it is the `last` holder of
    /// that.
    ///
    /// # Errors
    /// `Branch`; `Free`.
    pub fn frees(&self, branch: &Branch, last: bool) -> Result<u32, KvError> {
        self.check(branch)?;
        let own = branch.blocks.min(self.distinct(branch.prompt_tokens));
        let mut freed = branch.promise;
        for &block in &self.answer(branch.row)[..own as usize] {
            freed += u32::from(self.arena.references(block)? == 1);
        }
        if last {
            let &Slot { prompt_tokens, cached, leaf, .. } = &self.slots[branch.prefix as usize];
            freed += self.split(prompt_tokens).0 - cached + self.tree.used_once(leaf);
        }
        Ok(freed)
    }

    /// Whether so many holders of the branch's prefix are all that there are.
    pub fn are_all_holders(&self, branch: &Branch, holders: u32) -> bool {
        self.slots.get(branch.prefix as usize).is_some_and(|slot| slot.holders == holders)
    }

    /// Gives back the branch's blocks, what is left of its promise, and its part in the prefix.
    ///
    /// # Errors
    /// `Branch`: it was released before, and nothing happens.
    pub fn release(&mut self, branch: &mut Branch) -> Result<(), KvError> {
        self.drop_source(branch)?;
        let distinct = self.distinct(branch.prompt_tokens);
        let Branch { prefix, row, blocks, promise, kept, pieces, .. } = std::mem::take(branch);
        let mut freed = promise;
        for k in (0..blocks.min(distinct)).filter(|k| !(pieces.0..pieces.1).contains(k)) {
            let block = self.answer(row)[k as usize];
            freed += u32::from(self.arena.release(block)?);
        }
        freed += self.tree.leave(kept);
        self.rows.push(row);
        self.committed -= freed;
        self.committed_rows -= 1;
        self.leave(prefix)?;
        self.evict_outdated()
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
            freed += u32::from(self.arena.release(tail)?);
        }
        self.committed -= freed;
        self.committed_rows -= unmade;
        self.leave(prefix.slot())
    }

    /// After how many blocks a block of an answer comes again.
    fn turn(&self) -> u32 {
        self.config().cap.map_or(u32::MAX, |cap| cap.turn(self.block_tokens()))
    }

    /// How many blocks an answer takes at most, the partial last one of the prompt included, before they come again.
    pub(super) fn distinct(&self, prompt_tokens: u32) -> u32 {
        let (whole, _) = self.split(prompt_tokens);
        self.config().cap.map_or(u32::MAX, |cap| cap.blocks(self.block_tokens(), whole))
    }

    /// Blocks that a prompt and an answer take which share nothing.
    pub fn alone(&self, prompt_tokens: u32, answer_tokens: u32) -> u64 {
        let whole = u64::from(prompt_tokens / self.block_tokens());
        let tokens = u64::from(prompt_tokens) + u64::from(answer_tokens);
        whole + (tokens.div_ceil(self.block_tokens().into()) - whole).min(self.distinct(prompt_tokens).into())
    }

    fn answer(&self, row: u32) -> &[u32] {
        &self.answers[row as usize * self.answer_row..][..self.answer_row]
    }

    fn answer_mut(&mut self, row: u32) -> &mut [u32] {
        &mut self.answers[row as usize * self.answer_row..][..self.answer_row]
    }

    /// An open prefix.
    pub(super) fn slot(&mut self, prefix: PrefixId) -> Result<&mut Slot, KvError> {
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
}
