//! What lies in the blocks of prompts: which pieces are filled, with what, and by whom.
//!
//! A piece that requests share is in the tree from the admission of the first of them on, and filled later. So whoever finds it asks here: what is
//! filled need not be made again, and what another prefix is at is waited for.

use super::arena::NONE;
use super::error::KvError;
use super::prefix::{PrefixId, Prefixes};

impl Prefixes {
    /// Takes it on to fill the prompt of a prefix: says from which position on, as what lies below is filled. `None` while another prefix fills a
    /// piece of it: ask again later. Asked again by the one that fills, it says where the first piece begins that is not filled.
    ///
    /// # Errors
    /// `Prefix`.
    pub fn claim(&mut self, prefix: PrefixId) -> Result<Option<u32>, KvError> {
        let (own, piece_tokens) = (prefix.slot(), self.piece_tokens());
        let (mut from, mut waits) = (self.slot(prefix)?.cached * self.block_tokens(), false);
        self.walk(prefix, |tree, piece, node, _| {
            if tree.filled(node) == NONE {
                from = piece * piece_tokens;
                waits = tree.filler(node) != NONE && tree.filler(node) != own;
            }
        })?;
        if waits {
            return Ok(None);
        }
        self.walk(prefix, |tree, _, node, _| {
            if tree.filled(node) == NONE {
                tree.set_filler(node, own);
            }
        })?;
        Ok(Some(from))
    }

    /// The one that has claimed it has filled the positions below `end`: pieces that lie below it, whole, count as filled with `what`.
    ///
    /// # Errors
    /// `Prefix`.
    ///
    /// # Panics
    /// If `what` is 2^32 - 1.
    pub fn fill(&mut self, prefix: PrefixId, end: u32, what: u32) -> Result<(), KvError> {
        assert_ne!(what, NONE, "that stands for nothing");
        let own = prefix.slot();
        self.walk(prefix, |tree, _, node, last| {
            if last <= end && tree.filler(node) == own {
                tree.fill(node, what);
                tree.set_filler(node, NONE);
            }
        })
    }

    /// Gives up what was claimed and is not filled, for others to fill.
    ///
    /// # Errors
    /// `Prefix`.
    pub fn give_up(&mut self, prefix: PrefixId) -> Result<(), KvError> {
        let own = prefix.slot();
        self.walk(prefix, |tree, _, node, _| {
            if tree.filler(node) == own {
                tree.set_filler(node, NONE);
            }
        })
    }

    /// Tells of each piece that requests may share where it begins and, if it is filled, with what, from the last to the first. Returns where the
    /// rest of the prompt begins.
    ///
    /// # Errors
    /// `Prefix`.
    pub fn pieces(
        &mut self,
        prefix: PrefixId,
        mut tell: impl FnMut(u32, Option<u32>),
    ) -> Result<u32, KvError> {
        let piece_tokens = self.piece_tokens();
        self.walk(prefix, |tree, piece, node, _| {
            let what = tree.filled(node);
            tell(piece * piece_tokens, (what != NONE).then_some(what));
        })?;
        Ok(self.slot(prefix)?.cached * self.block_tokens())
    }

    /// The blocks of the prompt of a prefix, in their order, the partial last one included, into `out`.
    ///
    /// # Errors
    /// `Prefix`.
    pub fn prompt_table(&mut self, prefix: PrefixId, out: &mut Vec<u32>) -> Result<(), KvError> {
        let slot = self.slot(prefix)?;
        let (tokens, tail) = (slot.prompt_tokens, slot.tail);
        let (whole, _) = self.split(tokens);
        out.clear();
        out.extend_from_slice(&self.prompt(prefix.slot())[..whole as usize]);
        out.extend(tail);
        Ok(())
    }

    /// Visits the pieces of a prompt from the last to the first: number, node, and the position behind its last block.
    fn walk(
        &mut self,
        prefix: PrefixId,
        mut visit: impl FnMut(&mut super::tree::Tree, u32, u32, u32),
    ) -> Result<(), KvError> {
        let slot = self.slot(prefix)?;
        let (mut node, cached) = (slot.leaf, slot.cached);
        let (mut end, piece_tokens) = (cached * self.block_tokens(), self.piece_tokens());
        while node != NONE {
            // All but the last are whole.
            let piece = (end - 1) / piece_tokens;
            visit(&mut self.tree, piece, node, end);
            end = piece * piece_tokens;
            node = self.tree.parent(node);
        }
        Ok(())
    }
}
