//! `npu_sequencer`: two registers of words, a step a cycle for each word of a unit, lines of the program and of layers from memory.

use super::ports::Lines;
use crate::isa::Form;
use crate::layout::LINE;
use crate::run::{Issue, Next, Refused, Sequencer as Plain, Work};

/// Steps that make a word ready; of `attn` a remainder, a bit a step, comes on top. They are counted from 1.
const STEPS: u32 = 10;
const STEPS_ATTEND: u32 = 16;
/// Steps that find a layer's words: the descriptor is read before the first layer alone.
const TABLE: u32 = 7;
const TABLE_AGAIN: u32 = 2;
/// Words of a line, and lines of the program that are held.
const WORDS: u32 = 8;
const HELD: u32 = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Word,
    Ready,
    Table,
    Silent,
    End,
    Drain,
    Over,
}

/// What a word is for the sequencer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Set,
    Layers { count: u32, words: u32, table: usize },
    Next,
    Silent,
    End,
    Unit,
}

/// What a cycle brings.
pub(super) struct In {
    pub fetch_ready: bool,
    pub beat: bool,
    pub taken: bool,
    pub quiet: bool,
}

/// The sequencer.
pub(super) struct Sequencer<'m> {
    plain: Plain<'m>,
    words: &'m [u64],
    memory: &'m [u8],
    program: u64,
    silent: bool,
    at: At,
    step: u32,
    /// Which line of the program stands at each place.
    held: [Option<u32>; HELD as usize],
    pc: u32,
    ask: Option<Lines>,
    owed: u32,
    owed_layer: bool,
    fill: u32,
    line_full: bool,
    line_word: u32,
    left: u32,
    layering: bool,
    /// Fetched, and decoded.
    word: Option<Kind>,
    decoded: Option<Kind>,
    tables: [(u64, u64); 64],
    layer: u32,
    count: u32,
    loop_words: u32,
    loop_pc: u32,
    loop_table: (u64, u64),
    /// The first word of the layer in memory.
    layer_words: u64,
    ready: Option<Issue>,
    /// Made ready, until it is taken.
    pub issue: Option<Issue>,
}

impl<'m> Sequencer<'m> {
    pub fn new(words: &'m [u64], memory: &'m [u8], lines: u32, program: u64, silent: bool) -> Self {
        Self {
            plain: Plain::new(words, memory, lines),
            words,
            memory,
            program,
            silent,
            at: At::Word,
            step: 0,
            held: [None; HELD as usize],
            pc: 0,
            ask: None,
            owed: 0,
            owed_layer: false,
            fill: 0,
            line_full: false,
            line_word: 0,
            left: 0,
            layering: false,
            word: None,
            decoded: None,
            tables: [(0, 0); 64],
            layer: 0,
            count: 0,
            loop_words: 0,
            loop_pc: 0,
            loop_table: (0, 0),
            layer_words: 0,
            ready: None,
            issue: None,
        }
    }

    pub fn over(&self) -> bool {
        self.at == At::Over
    }

    pub fn asks(&self) -> Option<Lines> {
        self.ask
    }

    pub fn takes(&self) -> bool {
        self.owed != 0 && (!self.owed_layer || !self.line_full)
    }

    /// What a word is; descriptors may be tables.
    fn kind(&mut self, word: u64) -> Kind {
        let Ok(form) = Form::of(word) else { return Kind::Unit };
        let get = |name| form.get(word, name);
        match form.mnemonic {
            "memset.desc" => {
                self.tables[get("index") as usize] = (get("base"), get("aux"));
                Kind::Set
            }
            _ if word >> 60 == 3 => Kind::Set,
            "layers" => Kind::Layers {
                count: get("count") as u32,
                words: get("words") as u32,
                table: get("desc") as usize,
            },
            "next" => Kind::Next,
            "end.silent" => Kind::Silent,
            "end" => Kind::End,
            _ => Kind::Unit,
        }
    }

    /// A cycle.
    ///
    /// # Errors
    /// A word that nothing could execute: what it takes until the step is over is not said.
    pub fn clock(&mut self, i: &In) -> Result<(), Refused> {
        let running = self.at == At::Word;
        let here = self.decoded.filter(|_| running);
        let loop_ends = self.layer + 1 == self.count;
        let done_word = match here {
            Some(Kind::Set) => true,
            Some(Kind::Next) => loop_ends,
            _ => false,
        };
        let take_word = running && (self.decoded.is_none() || done_word);
        let line = self.pc / WORDS;
        let none = self.pc as usize >= self.words.len();
        let next_here = if self.layering {
            self.line_full
        } else {
            none || self.held[(line % HELD) as usize] == Some(line)
        };
        let (was, asks, owed, takes) = (self.at, self.ask.is_some(), self.owed, self.takes());
        let (issued, layering) = (self.issue.is_some(), self.layering);
        let (had_word, had_decoded, left) = (self.word.is_some(), self.decoded.is_some(), self.left);
        let loop_lines = self.loop_words.div_ceil(WORDS);

        // A word for a unit.
        if i.taken {
            self.issue = None;
        }
        if was == At::Ready {
            let attends = |issue: Issue| matches!(issue.work, Work::Attend { .. });
            let last = if self.ready.is_some_and(attends) { STEPS_ATTEND } else { STEPS };
            if self.step != last {
                self.step += 1;
            } else if !issued || i.taken {
                self.at = At::Word;
                self.decoded = None;
                self.issue = self.ready.take();
            }
        }

        // Where a layer's words lie.
        if was == At::Table {
            if self.step != TABLE {
                self.step += 1;
            } else if !asks && owed == 0 {
                self.at = At::Word;
                self.layering = true;
                self.left = self.loop_words;
                let first = self.loop_table.0 + u64::from(self.layer) * self.loop_table.1;
                self.layer_words = first * u64::from(WORDS);
                self.ask = (loop_lines != 0).then_some(Lines { first, count: loop_lines.into() });
                self.owed = loop_lines;
                self.owed_layer = true;
                self.line_full = false;
            }
            self.word = None;
            self.decoded = None;
        }

        if let Some(kind) = here {
            self.step = 1;
            match kind {
                Kind::Set => {}
                Kind::End => self.at = At::End,
                Kind::Silent => self.at = At::Silent,
                Kind::Layers { count, words, table } => {
                    self.at = At::Table;
                    (self.count, self.loop_words, self.layer) = (count, words, 0);
                    self.loop_table = self.tables[table];
                    self.loop_pc = self.pc_of_decoded() + 1;
                }
                Kind::Next if loop_ends => {}
                Kind::Next => {
                    self.at = At::Table;
                    self.step = TABLE_AGAIN;
                    self.layer += 1;
                }
                Kind::Unit => self.at = At::Ready,
            }
            if matches!(kind, Kind::End | Kind::Silent | Kind::Unit)
                && let Next::Issue(issue) = self.plain.next()?
            {
                self.ready = Some(issue);
            }
        }

        // Words.
        if take_word {
            self.decoded = self.word.take();
        }
        if running && (take_word || !had_word) && next_here && !(layering && left == 0) {
            let word = if layering {
                let at = (self.layer_words + u64::from(self.loop_words - left)) as usize * 8;
                let bytes = self.memory[at..at + 8].try_into().expect("eight bytes");
                self.line_word += 1;
                self.left -= 1;
                if self.line_word == WORDS || left == 1 {
                    self.line_full = false;
                }
                Some(u64::from_le_bytes(bytes))
            } else {
                self.pc += u32::from(!none);
                self.words.get(self.pc as usize - usize::from(!none)).copied()
            };
            // Behind the last one there is none, which is an error.
            let kind = word.map_or(Kind::Unit, |word| self.kind(word));
            self.word = Some(kind);
        }
        if running && layering && left == 0 && !had_word && (!had_decoded || done_word) {
            self.layering = false;
            self.pc = self.loop_pc;
        }

        // Memory.
        if asks && i.fetch_ready {
            self.ask = None;
        }
        if running && !layering && !next_here && !asks && owed == 0 {
            let all = self.words.len() as u32;
            let lines = (all.div_ceil(WORDS) - line).min(HELD);
            self.ask = Some(Lines { first: self.program + u64::from(line), count: lines.into() });
            self.owed = lines;
            self.owed_layer = false;
            self.fill = line;
        }
        if i.beat && takes {
            self.owed -= 1;
            if self.owed_layer {
                self.line_full = true;
                self.line_word = 0;
            } else {
                self.held[(self.fill % HELD) as usize] = Some(self.fill);
                self.fill += 1;
            }
        }

        // The end.
        if was == At::Silent && !issued && i.quiet {
            self.at = if self.silent { At::Drain } else { At::Word };
            self.decoded = None;
        }
        if was == At::End && !issued && i.quiet {
            self.at = At::Drain;
        }
        if was == At::Drain && !asks && owed == 0 {
            self.at = At::Over;
        }
        Ok(())
    }

    /// Place of `layers`: words that were fetched behind it count ahead of it.
    fn pc_of_decoded(&self) -> u32 {
        self.pc - 1 - u32::from(self.word.is_some())
    }
}

/// The first line of a byte of memory.
pub(super) fn line(byte: u64) -> u64 {
    byte / LINE as u64
}
