//! ATTN (rtl/npu/npu_attend.sv): per head its query, then blocks of 32 tokens, keys and values of each, then the means.

use super::ports::Lines;
use crate::layout::LINE;
use crate::run::{KvAt, Seen, Work};

/// Steps of the dividers, and two ahead of them: the bins are read, what is divided.
const DIVIDE: u32 = 20 + 2;
/// Blocks that are asked for and not all taken.
const AHEAD: u32 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Query,
    Keys,
    Ceiling,
    Bin,
    Values,
    Join,
    Mean,
    Divide,
    Last,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ask {
    Rest,
    Look,
    Fetch,
}

/// What a cycle brings.
pub(super) struct In {
    pub read_ready: bool,
    pub read_answer: bool,
    pub write_ready: bool,
    pub fetch_ready: bool,
    pub beat: bool,
    /// First line of the block that was asked for.
    pub block: Option<u64>,
}

/// A word.
#[derive(Clone, Copy, Debug)]
struct Of {
    heads: u64,
    kv: KvAt,
    pieces: u32,
    /// Lines of a head's keys, or values, in a block.
    half: u32,
    seen: Seen,
    /// The first position of the last ones that it sees.
    from: u32,
    /// The first block that it sees.
    begin: u32,
}

impl Of {
    /// Tokens of a block ahead of those that count.
    fn skip(&self, entry: u32) -> u32 {
        if entry == self.from / 32 { self.from % 32 } else { 0 }
    }
}

/// The unit.
#[derive(Debug)]
pub(super) struct Attend {
    position: u32,
    of: Option<Of>,
    pub done: bool,
    phase: Phase,
    ask: Ask,
    more: bool,
    ask_head: u64,
    ask_entry: u32,
    ask_share: u64,
    ask_offset: u64,
    fetch_line: u64,
    ahead: u32,
    head: u64,
    entry: u32,
    line: u32,
    open: bool,
    token: u32,
    piece: u32,
    pub read: bool,
    reads: bool,
    scale_next: bool,
    come_scale: bool,
    from_piece: u64,
    read_piece: u32,
    come_piece: u32,
    /// A line of products, and how many tokens end in it.
    parts: Option<u32>,
    finished: u32,
    scoring: u32,
    scored: u32,
    /// A score at three stages.
    scores: [bool; 3],
    weighing: u32,
    weighed: u32,
    /// A weight at three stages.
    weights: [bool; 3],
    joined: Option<u32>,
    join: u32,
    group: u32,
    step: u32,
    pub write: bool,
    /// Head by head, blocks of which no values are computed, and how many were asked about.
    skipped: Vec<bool>,
    binned: usize,
    skips: bool,
}

impl Attend {
    pub fn new() -> Self {
        Self {
            position: 0,
            of: None,
            done: false,
            phase: Phase::Query,
            ask: Ask::Rest,
            more: true,
            ask_head: 0,
            ask_entry: 0,
            ask_share: 0,
            ask_offset: 0,
            fetch_line: 0,
            ahead: 0,
            head: 0,
            entry: 0,
            line: 0,
            open: false,
            token: 0,
            piece: 0,
            read: false,
            reads: true,
            scale_next: true,
            come_scale: false,
            from_piece: 0,
            read_piece: 0,
            come_piece: 0,
            parts: None,
            finished: 0,
            scoring: 0,
            scored: 0,
            scores: [false; 3],
            weighing: 0,
            weighed: 0,
            weights: [false; 3],
            joined: None,
            join: 0,
            group: 0,
            step: 0,
            write: false,
            skipped: vec![],
            binned: 0,
            skips: false,
        }
    }

    pub fn idle(&self) -> bool {
        self.of.is_none()
    }

    pub fn asks(&self) -> Option<Lines> {
        let of = self.of?;
        (self.ask == Ask::Fetch).then(|| Lines { first: self.fetch_line, count: 2 * u64::from(of.half) })
    }

    pub fn looks(&self) -> Option<u32> {
        (self.of.is_some() && self.ask == Ask::Look).then_some(self.ask_entry)
    }

    /// Bytes from a block to the next.
    pub fn stride(&self) -> u64 {
        self.of.map_or(0, |of| of.kv.block)
    }

    /// Tokens of the block that count.
    fn count(&self) -> u32 {
        if self.entry == self.position / 32 { self.position % 32 + 1 } else { 32 }
    }

    /// The second half of a line: its token and piece.
    fn second(&self, pieces: u32) -> (u32, u32) {
        if self.piece + 1 == pieces { (self.token + 1, 0) } else { (self.token, self.piece + 1) }
    }

    pub fn takes(&self) -> bool {
        let Some(of) = self.of else { return false };
        let weighed =
            || self.skips || self.weighed > self.second(of.pieces).0 || self.weighed == self.count();
        self.open && (self.phase == Phase::Keys || (self.phase == Phase::Values && weighed()))
    }

    /// A word of a context at this position.
    pub fn start(&mut self, work: Work, position: u32, skipped: &[bool]) {
        let Work::Attend { heads, kv, seen, .. } = work else { unreachable!("{work:?} is no word of KV") };
        let (sinks, from) = seen.at(position);
        let begin = if sinks == 0 { from / 32 } else { 0 };
        let of =
            Of { heads: heads.into(), kv, pieces: kv.width / 32, half: 1 + kv.width / 2, seen, from, begin };
        *self = Self { position, of: Some(of), ask_entry: begin, skipped: skipped.to_vec(), ..Self::new() };
    }

    pub fn clock(&mut self, i: &In) {
        self.done = false;
        let Some(of) = self.of else { return };
        let Of { pieces, half, .. } = of;
        let was = self.phase;
        let (open, ahead, take) = (self.open, self.ahead, i.beat && self.takes());
        let (writing, reading) = (self.write && !i.write_ready, self.read && !i.read_ready);
        let last_entry = self.entry == self.position / 32;
        let skip = of.skip(self.entry);
        let count = self.count();
        let (token_b, piece_b) = self.second(pieces);
        let a_ends = self.piece + 1 == pieces;
        let b_ends = piece_b + 1 == pieces;
        let mut taken_all = false;
        let over = was == Phase::Last && !self.write;
        if was == Phase::Keys && !open && self.scored == count {
            self.phase = Phase::Ceiling;
        }
        // Pieces that a read brings: both halves of a line, but where the head begins or ends in the middle of it.
        let two = |from: u64, piece: u32| (from + u64::from(piece)).is_multiple_of(2) && piece + 1 != pieces;
        let (mut fresh, mut write, mut read) = (None, writing, reading);

        // The query.
        if was == Phase::Query {
            if !self.reads && !self.read && !i.read_answer && self.come_piece == pieces {
                self.phase = Phase::Keys;
                self.open = true;
                self.line = 0;
                self.entry = of.begin;
                fresh = Some(of.skip(of.begin));
            }
            let (reads, read_piece, scale_next) = (self.reads, self.read_piece, self.scale_next);
            if i.read_answer && self.come_scale {
                self.come_scale = false;
            } else if i.read_answer {
                self.come_piece += 1 + u32::from(two(self.from_piece, self.come_piece));
            }
            if reads && !reading {
                read = true;
                if scale_next {
                    self.scale_next = false;
                    self.come_scale = true;
                    self.come_piece = 0;
                } else {
                    self.read_piece = read_piece + 1 + u32::from(two(self.from_piece, read_piece));
                    self.reads = self.read_piece != pieces;
                }
            }
        }

        // Means.
        if was == Phase::Divide {
            if self.step < DIVIDE {
                self.step += 1;
            } else if !writing {
                write = true;
                self.step = 0;
                self.group += 1;
                if self.group == 2 * pieces {
                    self.phase = if self.head + 1 == of.heads { Phase::Last } else { Phase::Query };
                    self.head += 1;
                    self.from_piece += u64::from(pieces);
                    (self.reads, self.scale_next, self.read_piece) = (true, true, 0);
                }
            }
        }
        if was == Phase::Mean {
            (self.group, self.step, self.phase) = (0, 0, Phase::Divide);
        }

        // The block's sums into their bin.
        taken_all |= self.joined.is_some_and(|group| group + 1 == 2 * pieces);
        let joins = was == Phase::Join && self.join != 2 * pieces;
        self.joined = joins.then_some(self.join);
        self.join += u32::from(joins);

        // Values, and weights.
        if was == Phase::Values && !open {
            self.join = 0;
            self.phase = Phase::Join;
            taken_all |= self.skips;
        }
        let weighs = was == Phase::Values && !self.skips && self.weighing != count;
        self.weighed += u32::from(self.weights[2]);
        self.weights = [weighs, self.weights[0], self.weights[1]];
        self.weighing += u32::from(weighs);

        // Which bin.
        if was == Phase::Bin {
            self.phase = Phase::Values;
            self.open = true;
            (self.weighing, self.weighed) = (skip, skip);
            self.skips = self.skipped.get(self.binned).is_some_and(|&skips| skips);
            self.binned += 1;
        }
        if was == Phase::Ceiling {
            self.phase = Phase::Bin;
        }

        // Scores.
        if was == Phase::Keys {
            let scores = self.scoring < self.finished;
            self.scored += u32::from(self.scores[2]);
            self.scores = [scores, self.scores[0], self.scores[1]];
            self.scoring += u32::from(scores);
            self.finished += self.parts.take().unwrap_or(0);
            if take && self.line != 0 && self.line != half && self.token < count {
                self.parts = Some(u32::from(a_ends) + u32::from(b_ends && token_b < count));
            }
        }

        // What is asked for.
        match self.ask {
            Ask::Rest => {
                if self.more && ahead != AHEAD {
                    self.ask = Ask::Look;
                }
            }
            Ask::Look => {
                if let Some(block) = i.block {
                    self.fetch_line = block + of.kv.layer / LINE as u64 + self.ask_offset;
                    self.ask = Ask::Fetch;
                }
            }
            Ask::Fetch if i.fetch_ready => {
                self.ask = Ask::Rest;
                self.ahead += 1;
                if self.ask_entry == self.position / 32 {
                    self.ask_entry = of.begin;
                    self.ask_share += u64::from(of.kv.heads);
                    if self.ask_share >= of.heads {
                        self.ask_share -= of.heads;
                        self.ask_offset += 2 * u64::from(half);
                    }
                    self.ask_head += 1;
                    self.more = self.ask_head != of.heads;
                } else {
                    self.ask_entry = of.seen.after(self.ask_entry, self.position);
                }
            }
            Ask::Fetch => {}
        }

        // Lines.
        if take {
            let line = self.line;
            self.line += 1;
            let scales = was == Phase::Keys && (line == 0 || line == half);
            (self.token, self.piece) = match (scales, b_ends) {
                (true, _) => (0, 0),
                (false, true) => (token_b + 1, 0),
                (false, false) => (token_b, piece_b + 1),
            };
            if was == Phase::Keys && line == half {
                self.open = false;
                self.line = 1;
            }
            if was == Phase::Values && line + 1 == half {
                self.open = false;
                self.ahead -= 1;
            }
        }
        if taken_all {
            self.phase = if last_entry { Phase::Mean } else { Phase::Keys };
            self.open = true;
            self.line = 0;
            self.entry = of.seen.after(self.entry, self.position);
            fresh = Some(of.skip(self.entry));
        }
        if let Some(first) = fresh {
            self.finished = 0;
            (self.scoring, self.scored) = (first, first);
        }
        (self.read, self.write) = (read, write);
        if over {
            self.of = None;
            self.done = true;
        }
    }
}
