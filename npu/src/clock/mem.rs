//! MEM (rtl/npu/npu_mem.sv): one stream of lines through a queue of four, and a register behind it.

use super::ports::Lines;
use crate::layout::LINE;
use crate::run::Work;

/// Lines that the queue has room for.
const ROOM: u32 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// What speaks against the word; a product of addresses.
    Prepare,
    Address,
    /// For the position's block.
    Look,
    Move,
}

/// What a cycle brings.
pub(super) struct In {
    pub read_ready: bool,
    pub read_answer: bool,
    pub write_ready: bool,
    pub fetch_ready: bool,
    pub beat: bool,
    pub store_ready: bool,
    pub stored: bool,
    pub block_answer: bool,
}

/// The unit.
#[derive(Debug)]
pub(super) struct Mem {
    token: u32,
    position: u32,
    work: Option<Work>,
    pub done: bool,
    state: State,
    fetch: Option<Lines>,
    /// The row, to be asked for behind its scale.
    behind: Option<Lines>,
    beats: u64,
    scaled: bool,
    line_full: bool,
    line_last: bool,
    quarter: u32,
    products_full: bool,
    /// Lines to be read of on-chip memory.
    walks: u64,
    pub read: bool,
    queued: u32,
    free: u32,
    pub write: bool,
    pub store: bool,
    owed: u32,
}

impl Mem {
    pub fn new() -> Self {
        Self {
            token: 0,
            position: 0,
            work: None,
            done: false,
            state: State::Prepare,
            fetch: None,
            behind: None,
            beats: 0,
            scaled: false,
            line_full: false,
            line_last: false,
            quarter: 0,
            products_full: false,
            walks: 0,
            read: false,
            queued: 0,
            free: ROOM,
            write: false,
            store: false,
            owed: 0,
        }
    }

    pub fn idle(&self) -> bool {
        self.work.is_none()
    }

    pub fn asks(&self) -> Option<Lines> {
        self.fetch
    }

    pub fn looks(&self) -> Option<u32> {
        (self.work.is_some() && self.state == State::Look).then_some(self.position / 32)
    }

    fn embeds(&self) -> bool {
        matches!(self.work, Some(Work::Embed { .. }))
    }

    /// A quarter of a line of weights is multiplied; whether it is the line's last.
    fn multiplies(&self) -> (bool, bool) {
        let Some(Work::Embed { matrix, .. }) = self.work else { return (false, false) };
        // One is shifted and one multiplied: both have a place.
        let multiplies = self.line_full && self.queued < ROOM - 1;
        let last = if self.line_last && matrix.columns & 32 != 0 { 1 } else { 3 };
        (multiplies, multiplies && self.quarter == last)
    }

    pub fn takes(&self) -> bool {
        self.work.is_some()
            && self.beats != 0
            && if self.embeds() {
                !self.scaled || !self.line_full || self.multiplies().1
            } else {
                self.queued != ROOM
            }
    }

    /// A word of a context with this token, at this position.
    pub fn start(&mut self, work: Work, token: u32, position: u32) {
        *self = Self { token, position, work: Some(work), ..Self::new() };
    }

    pub fn clock(&mut self, i: &In) {
        self.done = false;
        let Some(work) = self.work else { return };
        let embeds = self.embeds();
        let takes = self.takes() && i.beat;
        let (multiplies, line_ends) = self.multiplies();
        let fetched = self.fetch.is_some() && i.fetch_ready;
        let reading = self.read && !i.read_ready;
        let (writing, storing) = (self.write && !i.write_ready, self.store && !i.store_ready);
        let stores = matches!(work, Work::Append { .. } | Work::Out { .. });
        let mut push = false;
        let over = self.state == State::Move
            && self.fetch.is_none()
            && self.beats == 0
            && !self.line_full
            && !self.products_full
            && self.walks == 0
            && self.queued == 0
            && !self.write
            && !self.store
            && self.free == ROOM
            && self.owed == 0;

        // What the queue gives.
        let pop = self.queued != 0 && !writing && !storing;
        (self.write, self.store) = (writing || (pop && !stores), storing || (pop && stores));
        self.owed += u32::from(pop && stores);
        self.owed -= u32::from(i.stored);

        // What comes of on-chip memory, and is asked for.
        push |= i.read_answer;
        let given = self.walks != 0 && !reading && self.free != 0;
        self.walks -= u64::from(given);
        self.read = reading || given;
        self.free = self.free - u32::from(given) + u32::from(pop && stores);

        // What is made of weights.
        push |= self.products_full;
        if multiplies {
            self.quarter = (self.quarter + 1) % 4;
            self.line_full = !line_ends;
        }
        self.products_full = multiplies;

        // What comes of memory, and is asked for.
        if takes {
            if embeds && !self.scaled {
                self.scaled = true;
            } else {
                if embeds {
                    self.line_full = true;
                    self.line_last = self.beats == 1;
                    self.quarter = 0;
                } else {
                    push = true;
                }
                self.beats -= 1;
            }
        }
        if fetched {
            self.fetch = self.behind.take();
        }

        match self.state {
            State::Look => {
                if i.block_answer {
                    let Work::Append { kv, .. } = work else { unreachable!("{work:?} looks for no block") };
                    // Of each head its scale and its pieces of 32 channels; whole lines where it has an even number of them.
                    let pieces = u64::from(kv.width / 32);
                    let lines = if pieces % 2 == 0 { pieces / 2 } else { pieces };
                    self.walks = 2 * u64::from(kv.heads) * (1 + lines);
                    self.state = State::Move;
                }
            }
            State::Address => {
                self.state = State::Move;
                let line = |byte: u64| byte / LINE as u64;
                match work {
                    Work::Copy { from, lines, .. } => {
                        self.fetch = Some(Lines { first: line(from), count: lines.into() });
                    }
                    Work::Gain { from, lines, .. } => {
                        self.fetch = Some(Lines { first: line(from), count: u64::from(lines) - 1 });
                        push = true;
                    }
                    Work::Row { from, stride, lines, .. } => {
                        let first = line(from + u64::from(self.position) * stride);
                        self.fetch = Some(Lines { first, count: lines.into() });
                    }
                    Work::Embed { matrix, .. } => {
                        let lines = u64::from(matrix.columns).div_ceil(LINE as u64);
                        let token = u64::from(self.token);
                        self.fetch = Some(Lines { first: line(matrix.scales) + token / 32, count: 1 });
                        self.behind =
                            Some(Lines { first: line(matrix.weights) + token * lines, count: lines });
                        self.beats = lines;
                    }
                    Work::Out { lines, .. } => self.walks = lines.into(),
                    _ => self.state = State::Look,
                }
                if !embeds {
                    self.beats = self.fetch.map_or(0, |lines| lines.count);
                }
            }
            State::Prepare => self.state = State::Address,
            State::Move => {}
        }
        self.queued = self.queued + u32::from(push) - u32::from(pop);
        if over {
            self.work = None;
            self.done = true;
        }
    }
}
