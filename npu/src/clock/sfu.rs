//! VEC (rtl/npu/npu_sfu.sv): a line a cycle through stages, each with a tag that says what its line is. Registers are named as there.

use std::collections::VecDeque;

use crate::run::{Function, Work};

/// Places of the queue that reads ask for: two are for lines that no read asks for.
const ROOMS: u32 = 8 - 2;
/// Bits of a stored mantissa.
const MANTISSA: u32 = 7;
/// Steps of `npu_rms`: a division, a root, its inverse, a bit each; three between the first two.
const MEAN: u32 = 64;
const SHIFT: u32 = 1;
const EPSILON: u32 = 2;
const ROOT: u32 = 32;
const INVERSE: u32 = 17;

#[derive(Clone, Copy, Debug, Default)]
struct Tag {
    gain: bool,
    b: bool,
    odd: bool,
    second: bool,
    last: bool,
    whole: bool,
    middle: bool,
    closes: bool,
}

/// What a cycle brings.
pub(super) struct In {
    pub read_ready: bool,
    pub read_answer: bool,
    pub write_ready: bool,
}

/// The unit.
#[derive(Debug, Default)]
pub(super) struct Sfu {
    busy: bool,
    pub done: bool,
    // What the word is.
    sums: bool,
    own: bool,
    shared: bool,
    factors: bool,
    gated: bool,
    measures: bool,
    streams: bool,
    norm: bool,
    store: bool,
    tanh: bool,
    level: bool,
    cut: bool,
    predict: bool,
    correct: bool,
    heads: u32,
    /// Lines of a head.
    lines: u32,
    // What is asked for.
    reading: bool,
    pause: bool,
    hold: bool,
    gain: bool,
    b_next: bool,
    odd: bool,
    middle: bool,
    second: bool,
    head_out: bool,
    stream: u32,
    left: u32,
    heads_left: u32,
    quarter: u32,
    room: u32,
    pub read: bool,
    read_tag: Tag,
    answer_tag: Tag,
    // Stages.
    table: Option<Tag>,
    logistic: Option<Tag>,
    factor: Option<Tag>,
    swish: Option<Tag>,
    number: Option<Tag>,
    product: Option<Tag>,
    value: Option<Tag>,
    half: Option<Tag>,
    sum: Option<Tag>,
    /// Squares of four, and whether they are the last.
    squares4: Option<bool>,
    squares_last: bool,
    absolute: bool,
    waits: bool,
    measured: bool,
    fix: bool,
    bound: [bool; 2],
    mixes: bool,
    mix_last: bool,
    mix_into: u32,
    mix: u32,
    sized: bool,
    /// A block's first half is here, and whether it is the last; the same of its second.
    block: Option<bool>,
    rest: Option<bool>,
    // STORE: whether what is at a stage is its head's last line, and the last head's.
    stored: Option<(bool, bool)>,
    stored_last: (bool, bool),
    stored_waits: bool,
    top: Option<(bool, bool)>,
    best: Option<bool>,
    scaled: bool,
    steps: u32,
    divided: bool,
    divided_last: bool,
    // Lines that are made.
    line_part: u32,
    side_part: u32,
    line_full: bool,
    side_full: bool,
    head_owed: bool,
    ended: bool,
    /// Whether a read made room for it.
    queue: VecDeque<bool>,
    pub write: bool,
    /// Cycles until `npu_rms` is ready.
    rms: u32,
}

impl Sfu {
    pub fn idle(&self) -> bool {
        !self.busy
    }

    pub fn start(&mut self, work: Work) {
        let Work::Vector { function, heads, width, .. } = work else {
            unreachable!("{work:?} is no word of VEC")
        };
        let is = |of: &[bool]| of.contains(&true);
        let [add, mul, act, swiglu, norm, rope, store] = [
            function == Function::Add,
            function == Function::Multiply,
            function == Function::Activate,
            function == Function::Swiglu,
            matches!(function, Function::Normalise(_)),
            function == Function::Rotate,
            function == Function::Store,
        ];
        let [level, tanh, geglu, blend, cut, rescale, predict, correct] = [
            matches!(function, Function::Level(_)),
            function == Function::Tanh,
            function == Function::Geglu,
            function == Function::Blend,
            matches!(function, Function::Cut(_)),
            matches!(function, Function::Rescale(_)),
            function == Function::Predict,
            function == Function::Correct,
        ];
        *self = Self {
            busy: true,
            sums: is(&[add, mul, rope, blend]),
            own: is(&[add, mul, swiglu, geglu, blend]),
            shared: is(&[norm, rope, level]),
            factors: is(&[norm, rope, act, blend]),
            gated: is(&[swiglu, geglu]),
            measures: is(&[level, rescale, cut]),
            streams: is(&[predict, correct]),
            norm,
            store,
            tanh,
            level,
            cut,
            predict,
            correct,
            heads,
            lines: width / 16,
            reading: true,
            gain: is(&[norm, level, predict, correct]),
            b_next: !is(&[act, store, tanh, cut, rescale]),
            // Nothing is cut: what comes is what goes.
            second: function == Function::Cut(0),
            left: width / 16,
            heads_left: if is(&[predict, correct]) { 1 } else { heads },
            room: ROOMS,
            ..Self::default()
        };
    }

    pub fn clock(&mut self, i: &In) {
        self.done = false;
        if !self.busy {
            return;
        }
        let rms_ready = self.rms == 0;
        let held = self.hold;
        let rms_starts = self.squares_last;
        let mean_alone = self.cut && !self.measured;
        let found = self.waits && rms_ready;
        let answer = i.read_answer.then_some(self.answer_tag);
        let streams_last = |at: u32| at + 1 == self.heads;

        // Writes.
        let pop = !self.queue.is_empty() && (!self.write || i.write_ready);
        let over = self.ended
            && !self.line_full
            && !self.side_full
            && !self.head_owed
            && self.queue.is_empty()
            && (!self.write || i.write_ready);
        let mut give = false;
        let mut push = None;
        if self.line_full {
            push = Some(true);
            self.line_full = false;
        } else if self.side_full {
            push = Some(false);
            self.side_full = false;
        } else if self.head_owed && rms_ready {
            push = Some(false);
            self.head_owed = false;
        }
        if pop {
            self.write = true;
            give = self.queue.pop_front() == Some(true);
        } else if i.write_ready {
            self.write = false;
        }
        self.queue.extend(push);

        // Mantissas, shifts and scales into lines.
        let (mut put, mut note) = (None, None);
        if self.block.is_some() || self.rest.is_some() {
            put = Some(self.rest == Some(true));
            note = self.block;
        }
        self.rest = self.block;
        if self.divided {
            put = Some(self.divided_last);
        }
        note = self.best.or(note);
        if let Some(last) = put {
            self.line_full |= self.line_part == 3 || last;
            self.ended |= last;
            self.line_part = if last { 0 } else { (self.line_part + 1) % 4 };
        }
        if let Some(last) = note {
            let parts = if self.store { 32 } else { 64 };
            self.side_full |= self.side_part + 1 == parts || last;
            self.side_part = (self.side_part + 1) % parts;
        }

        // STORE: largest magnitude, dividers.
        let mut freed = false;
        self.divided = self.steps == 1;
        let scaled = self.scaled;
        if self.steps != 0 {
            self.steps -= 1;
        } else if self.stored_waits && scaled {
            self.divided_last = self.stored_last == (true, true);
            self.steps = MANTISSA;
            self.stored_waits = false;
            freed = true;
            self.scaled = !self.stored_last.0;
        }
        self.scaled |= self.best.is_some();
        self.best = self.top.filter(|top| top.0).map(|top| top.1);
        self.top = self.stored;

        // Activations: the shift of all, the blocks.
        self.block = self.half.filter(|tag| tag.odd).map(|tag| tag.last);
        self.half = self.value.filter(|tag| tag.second && !self.measures);
        if let Some(tag) = self.value.filter(|tag| tag.second && self.measures) {
            self.line_full = true;
            self.hold &= !tag.last;
            self.ended |= tag.last && tag.whole;
        }
        self.head_owed |= self.sized;
        self.sized = self.value.is_some_and(|tag| tag.last && !tag.second);
        let last_squares = self.squares4 == Some(true);
        self.squares_last = (last_squares && !mean_alone) || self.absolute;
        self.absolute = last_squares && mean_alone;

        // What holds for all numbers.
        if rms_starts {
            self.waits = self.measures;
        }
        let bound_ends = self.bound[1];
        self.bound = [found && self.cut && self.measured, self.bound[0]];
        if self.fix {
            (self.fix, self.hold) = (false, false);
        }
        if found {
            self.waits = false;
            if !self.level && !self.measured {
                self.hold = false;
            } else if !self.cut {
                self.fix = true;
            }
            self.measured = !self.level;
        }
        if bound_ends {
            self.hold = false;
        }

        // Sums, and what the products become.
        if let Some(tag) = self.sum {
            self.line_full = true;
            self.ended |= tag.last;
        }
        let product = self.product;
        self.sum = product.filter(|tag| self.streams && tag.closes);
        self.value =
            product.filter(|tag| !self.sums && !self.streams && !self.cut && (!self.measures || tag.second));
        self.squares4 = product.filter(|tag| (self.norm || self.measures) && !tag.second).map(|tag| tag.last);
        if let Some(tag) = product.filter(|tag| !self.streams && (self.sums || (self.cut && tag.second))) {
            self.line_full = true;
            self.ended |= tag.last && tag.whole;
        }

        // Products.
        let number = self.number;
        self.product = number.filter(|_| !self.store);
        self.stored = None;
        if let Some(tag) = number.filter(|_| self.store) {
            self.stored_last = (tag.last, tag.whole);
            self.stored = (!tag.second).then_some(self.stored_last);
            self.stored_waits |= tag.second;
        }

        // What takes a table, or a factor that holds for all.
        let comes = answer.filter(|tag| !tag.b && !tag.gain && !self.predict);
        let detours = comes.filter(|tag| {
            self.gated
                || self.tanh
                || self.correct
                || (self.measures && if self.cut { tag.middle } else { tag.second })
        });
        let direct = comes.filter(|_| detours.is_none());
        let (swish, factor, logistic, table) = (self.swish, self.factor, self.logistic, self.table);
        self.number = swish.or(logistic.filter(|_| self.correct)).or(direct);
        self.swish = factor.filter(|_| !self.factors);
        self.factor = logistic.filter(|_| !self.correct).or(direct.filter(|_| self.factors));
        self.logistic = table;
        self.table = detours;

        // PREDICT: a coefficient and a stream in a cycle.
        let mut held_off = false;
        if self.mixes {
            let last = streams_last(self.mix);
            let all = last && streams_last(self.mix_into);
            self.number = Some(Tag { closes: last, last: self.mix_last && all, ..Tag::default() });
            self.mix = if last { 0 } else { self.mix + 1 };
            if last {
                self.mix_into += 1;
                if all {
                    self.mixes = false;
                    held_off = true;
                }
            }
        }
        if let Some(tag) = answer.filter(|tag| self.predict && !tag.gain && tag.closes) {
            (self.mixes, self.mix_last, self.mix, self.mix_into) = (true, tag.last, 0, 0);
        }
        self.hold &= !held_off;

        // Reads. What holds reads back in this cycle is what did so before it.
        self.reads(i, held, give, freed);

        // npu_rms.
        if self.rms != 0 {
            self.rms -= 1;
        } else if rms_starts {
            self.rms = if mean_alone {
                MEAN
            } else if self.cut {
                MEAN + SHIFT + ROOT
            } else {
                MEAN + EPSILON + SHIFT + ROOT + INVERSE
            };
        }
        if over {
            self.busy = false;
            self.done = true;
        }
    }

    fn reads(&mut self, i: &In, held: bool, give: bool, freed: bool) {
        let closes = self.sums
            || self.correct
            || (self.second
                && (self.measures || self.quarter == 3 || (self.left == 1 && self.heads_left == 1)));
        let last_stream = self.stream + 1 == self.heads;
        // Lines of all streams come of a line of each.
        let take = if self.b_next {
            0
        } else if self.predict {
            if self.stream == 0 { self.heads } else { 0 }
        } else {
            u32::from(closes)
        };
        let go = self.reading
            && !self.pause
            && !held
            && (!self.read || i.read_ready)
            && (self.b_next || (self.room >= take && !self.head_out));
        self.room = self.room + u32::from(give) - if go { take } else { 0 };
        if self.read && i.read_ready {
            self.answer_tag = self.read_tag;
            self.read = false;
        }
        self.pause &= !i.read_ready;
        self.head_out &= !freed;
        if !go {
            return;
        }
        self.read = true;
        self.read_tag = Tag {
            gain: self.gain,
            b: self.b_next,
            odd: self.odd,
            middle: self.middle,
            second: self.second,
            last: self.left == 1 && (!self.streams || last_stream),
            whole: self.heads_left == 1,
            closes: last_stream || self.correct,
        };
        if self.b_next {
            self.b_next = self.gain && !self.level && !self.predict;
            self.gain = false;
        } else if self.streams {
            // A line of each stream.
            self.stream = if last_stream { 0 } else { self.stream + 1 };
            if last_stream {
                self.reading = self.left != 1;
                self.left -= 1;
                self.b_next = self.correct;
                self.hold = self.predict;
            }
        } else {
            self.b_next = self.own || (self.shared && self.odd && (!self.level || self.second));
            self.odd = !self.odd;
            if self.second {
                self.quarter = (self.quarter + 1) % 4;
            }
            self.head_out = self.store && self.second;
            if self.left != 1 {
                self.left -= 1;
            } else {
                self.left = self.lines;
                if self.measures && !self.second {
                    // Behind what holds for all numbers.
                    self.hold = true;
                    self.second = self.level || self.middle;
                    self.middle = !self.level && !self.middle;
                    self.b_next = self.level;
                } else if !self.sums && !self.second {
                    // Once more, behind a cycle without a read.
                    self.second = true;
                    self.pause = true;
                } else {
                    self.reading = self.heads_left != 1;
                    self.heads_left -= 1;
                    self.second = false;
                    if self.level {
                        self.b_next = false;
                        self.hold = true;
                    }
                }
            }
        }
    }
}
