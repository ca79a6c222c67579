//! GEMV and HEAD (rtl/npu/npu_gemv.sv): the activation first, then 64 products a beat. The last step, a value's place, may have to wait,
//! and with it the whole pipeline.

use super::ports::Lines;
use crate::layout::{self, LINE};
use crate::run::Work;

/// Rows that a line of scales is for, and that are asked for at once.
const ROWS: u64 = 32;
/// Numbers of a line.
const SLOTS: u32 = 16;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum What {
    #[default]
    Head,
    Shifts,
    Mantissas,
    /// A line of what is added to.
    Before,
}

/// What a cycle brings.
pub(super) struct In {
    pub read_ready: bool,
    pub read_answer: bool,
    pub write_ready: bool,
    pub fetch_ready: bool,
    pub beat: bool,
    pub sampler_idle: bool,
    pub logit_ready: bool,
}

/// The unit.
#[derive(Debug, Default)]
pub(super) struct Gemv {
    busy: bool,
    pub done: bool,
    head: bool,
    last: bool,
    cap: bool,
    accumulate: bool,
    row_lines: u64,
    pub read: bool,
    read_what: What,
    came_what: What,
    asked: u64,
    came: u64,
    filled: bool,
    before_left: u64,
    before_open: bool,
    before_here: bool,
    fetch: bool,
    fetch_scales: bool,
    fetch_single: bool,
    fetch_lines: Lines,
    rows_line: u64,
    scales_line: u64,
    rows_unasked: u64,
    rows_left: u64,
    pads: u64,
    wants_scales: bool,
    row: u64,
    column: u64,
    /// A beat at each of four stages, weights to shifted sums, and whether it is its row's last.
    beats: [Option<bool>; 4],
    /// A row at each of four: sum, product, shifted, value.
    rows: [bool; 4],
    line_here: bool,
    slot: u32,
    pub write: bool,
    /// A logit for the sampler, and whether a token is wanted behind it.
    pub logit: Option<bool>,
    pub begin: bool,
    soft: [bool; 4],
    soft_last: bool,
}

impl Gemv {
    pub fn idle(&self) -> bool {
        !self.busy && !self.done
    }

    pub fn asks(&self) -> Option<Lines> {
        self.fetch.then_some(self.fetch_lines)
    }

    fn soft_goes(&self, logit_ready: bool) -> bool {
        !(self.soft[3] && self.logit.is_some() && !logit_ready)
    }

    fn line_waits(&self) -> bool {
        self.write && self.slot == SLOTS - 1
    }

    fn stands(&self, logit_ready: bool) -> bool {
        self.rows[3]
            && if self.cap {
                self.soft[..3].contains(&true) || !self.soft_goes(logit_ready)
            } else if self.head {
                self.logit.is_some()
            } else {
                !self.line_here || self.line_waits()
            }
    }

    pub fn takes(&self, logit_ready: bool) -> bool {
        self.filled && !self.stands(logit_ready)
    }

    pub fn start(&mut self, work: Work) {
        let line = |byte: u64| byte / LINE as u64;
        let (matrix, head, first, last, cap, accumulate) = match work {
            Work::Multiply { matrix, accumulate, .. } => (matrix, false, false, false, false, accumulate),
            Work::Head { matrix, first, last, cap, .. } => (matrix, true, first, last, cap, false),
            _ => unreachable!("{work:?} is no word of GEMV"),
        };
        let rows = u64::from(matrix.rows);
        let filled = if head { rows } else { rows.next_multiple_of(ROWS) };
        *self = Self {
            busy: true,
            head,
            last,
            cap,
            accumulate,
            row_lines: layout::row(matrix.columns.into()) / LINE as u64,
            read: true,
            before_left: if accumulate { layout::integers(rows) } else { 0 },
            fetch: true,
            fetch_scales: true,
            fetch_lines: Lines { first: line(matrix.scales), count: 1 },
            rows_line: line(matrix.weights),
            scales_line: line(matrix.scales) + 1,
            rows_unasked: rows,
            rows_left: filled,
            pads: filled - rows,
            wants_scales: true,
            line_here: !accumulate,
            begin: head && first,
            ..Self::default()
        };
    }

    pub fn clock(&mut self, i: &In) {
        let begin = std::mem::take(&mut self.begin);
        debug_assert!(!begin || self.busy, "the sampler begins for a word");
        if !self.busy {
            self.done = false;
            return;
        }
        let stands = self.stands(i.logit_ready);
        let takes = i.beat && self.takes(i.logit_ready);
        let soft_goes = self.soft_goes(i.logit_ready);
        let pads = !self.head && self.rows_left != 0 && self.rows_left <= self.pads && !self.line_waits();
        let places = (self.rows[3] && !stands) || pads;
        let fills = places && !self.head && self.slot == SLOTS - 1;
        let loads = self.before_here && (fills || !self.line_here);
        let last_row = self.rows_left == 1;

        // The end.
        let over = self.rows_left == 0
            && if self.head {
                !self.soft.contains(&true) && self.logit.is_none() && i.sampler_idle
            } else {
                !self.write || i.write_ready
            };

        // Reads of on-chip memory.
        let (read, what) = (self.read, self.read_what);
        if !read && !self.before_open && self.before_left != 0 {
            self.read = true;
            self.before_left -= 1;
            self.before_open = true;
        }
        if loads {
            self.before_open = false;
            self.before_here = false;
            self.line_here = true;
        } else if fills && self.accumulate {
            self.line_here = false;
        }
        if i.read_answer {
            match self.came_what {
                What::Before => self.before_here = true,
                What::Mantissas => {
                    self.came += 1;
                    self.filled |= self.came == self.row_lines;
                }
                _ => {}
            }
        }
        if read && i.read_ready {
            self.came_what = what;
            let whole = what == What::Mantissas && self.asked == self.row_lines;
            if what == What::Before || whole {
                self.read = false;
                self.read_what = What::Before;
            } else if what == What::Head || (what == What::Mantissas && self.asked.is_multiple_of(32)) {
                // A line of shifts is for 32 lines of mantissas.
                self.read_what = What::Shifts;
            } else {
                self.read_what = What::Mantissas;
                self.asked += 1;
            }
        }

        // Asks memory.
        if self.fetch && i.fetch_ready {
            // Rows that do not fill a line of scales are asked for one by one, behind the same scales.
            let more_rows = self.fetch_single && self.rows_unasked != 0;
            if !self.fetch_scales && !more_rows {
                self.fetch = self.rows_unasked != 0;
                self.fetch_scales = true;
                self.fetch_lines = Lines { first: self.scales_line, count: 1 };
                self.scales_line += 1;
            } else {
                // Rows: 32 of them, or one.
                let single = self.rows_unasked < ROWS;
                let rows = if single { 1 } else { ROWS };
                self.fetch_scales = false;
                self.fetch_single = single;
                self.fetch_lines = Lines { first: self.rows_line, count: rows * self.row_lines };
                self.rows_line += rows * self.row_lines;
                self.rows_unasked = self.rows_unasked.saturating_sub(rows);
            }
        }

        // A value's place.
        if i.write_ready {
            self.write = false;
        }
        if i.logit_ready {
            self.logit = None;
        }
        let (soft_gives, soft_last) = (self.soft[3] && soft_goes, self.soft_last);
        if soft_goes {
            self.soft = [places && self.cap, self.soft[0], self.soft[1], self.soft[2]];
        }
        if soft_gives {
            self.logit = Some(soft_last);
        }
        if places {
            if self.cap {
                self.soft_last = self.last && last_row;
            } else if self.head {
                self.logit = Some(self.last && last_row);
            } else {
                self.slot = (self.slot + 1) % SLOTS;
            }
            self.rows_left -= 1;
        }
        if fills {
            self.write = true;
        }

        // Rows and beats.
        if !stands {
            let [taken, parts, blocks, joined] = self.beats;
            self.rows = [joined == Some(true), self.rows[0], self.rows[1], self.rows[2]];
            let mut beat = None;
            if takes {
                if self.wants_scales {
                    self.wants_scales = false;
                } else {
                    let last = self.column + 1 == self.row_lines;
                    beat = Some(last);
                    if last {
                        self.wants_scales = self.row == ROWS - 1;
                        self.row = (self.row + 1) % ROWS;
                    }
                    self.column = if last { 0 } else { self.column + 1 };
                }
            }
            self.beats = [beat, taken, parts, blocks];
        }
        if over {
            self.busy = false;
            self.done = true;
            self.filled = false;
        }
    }
}
