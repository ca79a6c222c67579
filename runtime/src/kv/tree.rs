//! The radix tree of prompt pieces that requests share, and which of them are cold.
//!
//! A node is one piece of a prompt, or the shorter last one, and is found by its parent, its id and its length. Pieces that are named by their tokens
//! have a hash of them for an id, and the tokens themselves beside it, so that equal hashes mix nothing up. A node's users are the prefixes that end in
//! it and those of its children that have users. One without users is *cold*: it stays findable until its blocks are wanted.
//!
//! Cold nodes are evicted the least recently used first. A node goes cold only after all of its children have, so
//! whatever is evicted has no children left. After a flush no node is found that was there before: those in use are evicted as soon as they are cold.

use std::collections::HashMap;
use std::hash::BuildHasher;

use super::arena::NONE;

/// What a node is found by.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key {
    /// Parent node, or [`NONE`].
    pub(super) parent: u32,
    /// Among whose pieces it is.
    pub(super) domain: u64,
    pub(super) salt: u64,
    /// Id of the piece in the trace, or hash of its tokens.
    pub(super) id: u32,
    /// Tokens of the piece.
    pub(super) tokens: u32,
}

struct Node {
    key: Key,
    users: u32,
    /// Flushes before it was made.
    flushes: u32,
    /// Blocks in use of its row.
    blocks: u32,
    /// With what they were filled, or [`NONE`], and the prefix that fills them, or [`NONE`].
    filled: u32,
    filler: u32,
    /// Neighbours among the cold ones.
    colder: u32,
    warmer: u32,
}

impl Node {
    /// Without blocks.
    fn new(key: Key, users: u32, flushes: u32) -> Self {
        Self { key, users, flushes, blocks: 0, filled: NONE, filler: NONE, colder: NONE, warmer: NONE }
    }
}

/// What a key leads to.
pub(super) enum Found {
    /// This node.
    Node(u32),
    /// Nothing.
    Nothing,
    /// A piece of other tokens, which have the same hash.
    Other,
}

/// Nodes of fixed number, each with a row of blocks.
pub(super) struct Tree {
    nodes: Box<[Node]>,
    rows: Box<[u32]>,
    row_len: usize,
    /// Tokens of each piece, where these name it.
    tokens: Box<[u32]>,
    piece_tokens: usize,
    /// Where each piece is. Keyed, so that no trace can be made whose ids all fall into one bucket.
    index: HashMap<Key, u32>,
    free: Vec<u32>,
    coldest: u32,
    warmest: u32,
    cold_nodes: u32,
    cold_blocks: u32,
    flushes: u32,
}

impl Tree {
    /// `nodes` nodes of up to `row_len` blocks; of pieces of `piece_tokens` tokens where these name them, else 0.
    pub(super) fn new(nodes: u32, row_len: usize, piece_tokens: usize) -> Self {
        let none = Key { parent: NONE, domain: u64::MAX, salt: u64::MAX, id: NONE, tokens: NONE };
        let node = |_| Node::new(none, 0, 0);
        Self {
            nodes: (0..nodes).map(node).collect(),
            rows: vec![NONE; nodes as usize * row_len].into(),
            row_len,
            tokens: vec![NONE; nodes as usize * piece_tokens].into(),
            piece_tokens,
            // Twice as many as there can be: then no mixture of comings and goings makes it grow.
            index: HashMap::with_capacity(2 * nodes as usize),
            free: (0..nodes).rev().collect(),
            coldest: NONE,
            warmest: NONE,
            cold_nodes: 0,
            cold_blocks: 0,
            flushes: 0,
        }
    }

    /// Flushes so far.
    pub(super) fn flushes(&self) -> u32 {
        self.flushes
    }

    /// Lets no node be found any more. Those that are cold are [`outdated`](Self::has_outdated) from now on, the others once they are.
    pub(super) fn flush(&mut self) {
        self.index.clear();
        self.flushes = self.flushes.wrapping_add(1);
    }

    /// Whether a cold node is left that cannot be found: it is the coldest.
    pub(super) fn has_outdated(&self) -> bool {
        self.coldest != NONE && self.nodes[self.coldest as usize].flushes != self.flushes
    }

    /// What tokens are named by: keyed, so that nobody can choose tokens of equal hashes.
    pub(super) fn name(&self, tokens: &[u32]) -> u32 {
        self.index.hasher().hash_one(tokens) as u32
    }

    fn tokens_of(&self, node: u32) -> std::ops::Range<usize> {
        let first = node as usize * self.piece_tokens;
        first..first + self.piece_tokens
    }

    pub(super) fn cold_nodes(&self) -> u32 {
        self.cold_nodes
    }

    pub(super) fn cold_blocks(&self) -> u32 {
        self.cold_blocks
    }

    /// Nodes that can be had without touching one in use.
    pub(super) fn available(&self) -> u32 {
        self.free.len() as u32 + self.cold_nodes
    }

    pub(super) fn is_cold(&self, node: u32) -> bool {
        self.nodes[node as usize].users == 0
    }

    pub(super) fn parent(&self, node: u32) -> u32 {
        self.nodes[node as usize].key.parent
    }

    /// With what the node's blocks were filled, or [`NONE`].
    pub(super) fn filled(&self, node: u32) -> u32 {
        self.nodes[node as usize].filled
    }

    pub(super) fn fill(&mut self, node: u32, with: u32) {
        self.nodes[node as usize].filled = with;
    }

    /// The prefix that fills the node's blocks, or [`NONE`].
    pub(super) fn filler(&self, node: u32) -> u32 {
        self.nodes[node as usize].filler
    }

    pub(super) fn set_filler(&mut self, node: u32, prefix: u32) {
        self.nodes[node as usize].filler = prefix;
    }

    pub(super) fn blocks(&self, node: u32) -> &[u32] {
        let first = node as usize * self.row_len;
        &self.rows[first..first + self.nodes[node as usize].blocks as usize]
    }

    /// The node of a key, and of these tokens if tokens name pieces.
    pub(super) fn find(&self, key: &Key, tokens: &[u32]) -> Found {
        match self.index.get(key) {
            Some(&node) if self.tokens[self.tokens_of(node)] == *tokens => Found::Node(node),
            Some(_) => Found::Other,
            None => Found::Nothing,
        }
    }

    /// A new node without blocks, in which a prefix ends that ended in its parent so far: the parent keeps its number
    /// of users. `None` if no node is free.
    pub(super) fn extend(&mut self, key: Key, tokens: &[u32]) -> Option<u32> {
        let node = self.free.pop()?;
        self.index.insert(key, node);
        self.nodes[node as usize] = Node::new(key, 1, self.flushes);
        let own = self.tokens_of(node);
        self.tokens[own].copy_from_slice(tokens);
        Some(node)
    }

    /// Adds a block to a node.
    pub(super) fn add_block(&mut self, node: u32, block: u32) {
        let at = &mut self.nodes[node as usize];
        self.rows[node as usize * self.row_len + at.blocks as usize] = block;
        at.blocks += 1;
    }

    /// One prefix more that ends in a node. It and those above are cold no longer. Returns how many blocks were.
    pub(super) fn enter(&mut self, mut node: u32) -> u32 {
        let before = self.cold_blocks;
        while node != NONE {
            if self.is_cold(node) {
                self.unlink(node);
            }
            let at = &mut self.nodes[node as usize];
            at.users += 1;
            if at.users > 1 {
                break;
            }
            node = at.key.parent;
        }
        before - self.cold_blocks
    }

    /// One user less. Returns how many blocks went cold with it, in this node and those above.
    pub(super) fn leave(&mut self, mut node: u32) -> u32 {
        let mut cooled = 0;
        while node != NONE {
            let at = &mut self.nodes[node as usize];
            at.users -= 1;
            if at.users > 0 {
                break;
            }
            let (parent, blocks) = (at.key.parent, at.blocks);
            if at.flushes == self.flushes {
                (at.colder, at.warmer) = (self.warmest, NONE);
                match self.warmest {
                    NONE => self.coldest = node,
                    warmest => self.nodes[warmest as usize].warmer = node,
                }
                self.warmest = node;
            } else {
                (at.colder, at.warmer) = (NONE, self.coldest);
                match self.coldest {
                    NONE => self.warmest = node,
                    coldest => self.nodes[coldest as usize].colder = node,
                }
                self.coldest = node;
            }
            self.cold_nodes += 1;
            self.cold_blocks += blocks;
            cooled += blocks;
            node = parent;
        }
        cooled
    }

    /// Blocks that would go cold with one user less of a node.
    pub(super) fn used_once(&self, mut node: u32) -> u32 {
        let mut blocks = 0;
        while node != NONE && self.nodes[node as usize].users == 1 {
            let at = &self.nodes[node as usize];
            (blocks, node) = (blocks + at.blocks, at.key.parent);
        }
        blocks
    }

    /// Takes a node out of the cold ones.
    fn unlink(&mut self, node: u32) {
        let Node { colder, warmer, blocks, .. } = self.nodes[node as usize];
        match colder {
            NONE => self.coldest = warmer,
            colder => self.nodes[colder as usize].warmer = warmer,
        }
        match warmer {
            NONE => self.warmest = colder,
            warmer => self.nodes[warmer as usize].colder = colder,
        }
        self.cold_nodes -= 1;
        self.cold_blocks -= blocks;
    }

    /// Forgets the coldest node, and returns its blocks. `None` if none is cold.
    pub(super) fn evict(&mut self) -> Option<&[u32]> {
        let node = self.coldest;
        if node == NONE {
            return None;
        }
        self.unlink(node);
        let key = &self.nodes[node as usize].key;
        // After a flush another node may have the key.
        if self.index.get(key) == Some(&node) {
            self.index.remove(key);
        }
        self.free.push(node);
        Some(self.blocks(node))
    }
}
