//! Reading the K, then the V of one head: layout `fixed128`, others, and a plain read of as many bytes.

use std::hint::black_box;
use std::io;

use doorbell_runtime::kv::region::Region;
use serde_json::json;

use crate::BenchError;
use crate::layout::{BLOCK_BYTES, Plane, ROW_BYTES, TOKENS, block, row};
use crate::{Rates, Section, table, timed};

/// Heads of a layer, of which one is read.
const HEADS: usize = 8;
/// Tokens of a sequence's window.
const WINDOW: usize = 4096;
const ROW_WORDS: usize = ROW_BYTES / 8;
/// K and V rows of all heads of a token.
const TOKEN_WORDS: usize = HEADS * 2 * ROW_WORDS;
/// A page of a token: a line for the number of the next one, then the rows.
const PAGE_WORDS: usize = 8 + TOKEN_WORDS;

/// Folds a row, as cheaply as each byte can be looked at.
#[inline]
fn fold(row: &[u64]) -> u64 {
    row.iter().fold(0, |sum, &word| sum.wrapping_add(word))
}

/// The numbers below `count` in an order without runs, the same each time.
fn shuffled(count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    for k in (1..count).rev() {
        // xorshift64*
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        let draw = state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32;
        order.swap(k, draw as usize % (k + 1));
    }
    order
}

struct Layouts {
    sequences: usize,
    /// Blocks of `fixed128`, each of one head.
    fixed: Region,
    /// Blocks of as many tokens, each of all heads: all rows of a token, then the next token.
    tokens: Region,
    /// Which blocks a sequence has, of each of the two, after many others have come and gone.
    fixed_blocks: Vec<usize>,
    token_blocks: Vec<usize>,
    /// A page for each token, found only through the last one.
    pages: Region,
    first_pages: Vec<usize>,
    plain: Region,
}

impl Layouts {
    /// All memory is written here, so that no read finds a page that is not there.
    fn new(sequences: usize) -> io::Result<Self> {
        let tokens = sequences * WINDOW;
        // All alike, as layouts are to differ in nothing else.
        let ones = |words: usize| {
            let mut region = Region::new(8 * words)?;
            region.words_mut()[..words].fill(1);
            io::Result::Ok(region)
        };
        let order = shuffled(tokens);
        let mut pages = ones(tokens * PAGE_WORDS)?;
        for pair in order.windows(2) {
            pages.words_mut()[pair[0] * PAGE_WORDS] = pair[1] as u64;
        }
        Ok(Self {
            sequences,
            fixed: ones(tokens * TOKEN_WORDS)?,
            fixed_blocks: shuffled(tokens / TOKENS * HEADS),
            token_blocks: shuffled(tokens / TOKENS),
            tokens: ones(tokens * TOKEN_WORDS)?,
            pages,
            first_pages: order.iter().copied().step_by(WINDOW).collect(),
            plain: ones(tokens * 2 * ROW_WORDS)?,
        })
    }

    /// Bytes that each way reads.
    fn bytes(&self) -> usize {
        self.sequences * WINDOW * 2 * ROW_BYTES
    }

    /// `number` says which block of the region is the n-th of all, head by head.
    fn fixed128(&self, head: usize, number: impl Fn(usize) -> usize) -> u64 {
        let (mut sum, fixed) = (0u64, self.fixed.words());
        let of_head = self.sequences * WINDOW / TOKENS;
        let of_window = WINDOW / TOKENS;
        for first in (0..of_head).step_by(of_window) {
            for plane in [Plane::K, Plane::V] {
                for at in first..first + of_window {
                    // The rows of a plane follow each other.
                    let plane = (block(number(head * of_head + at)) + row(plane, 0)) / 8;
                    sum = sum.wrapping_add(fold(&fixed[plane..plane + TOKENS * ROW_WORDS]));
                }
            }
        }
        sum
    }

    fn token_major(&self, head: usize, number: impl Fn(usize) -> usize) -> u64 {
        const BLOCK_WORDS: usize = TOKENS * TOKEN_WORDS;
        let (mut sum, tokens) = (0u64, self.tokens.words());
        let of_window = WINDOW / TOKENS;
        for first in (0..self.sequences * of_window).step_by(of_window) {
            for plane in 0..2 {
                let at = (2 * head + plane) * ROW_WORDS;
                for block in first..first + of_window {
                    let block = &tokens[number(block) * BLOCK_WORDS..][..BLOCK_WORDS];
                    for token in block.chunks_exact(TOKEN_WORDS) {
                        sum = sum.wrapping_add(fold(&token[at..at + ROW_WORDS]));
                    }
                }
            }
        }
        sum
    }

    fn page_per_token(&self, head: usize) -> u64 {
        let (mut sum, pages) = (0u64, self.pages.words());
        for &first in &self.first_pages {
            for plane in 0..2 {
                let at = 8 + (2 * head + plane) * ROW_WORDS;
                let mut page = first;
                for _ in 0..WINDOW {
                    let words = &pages[page * PAGE_WORDS..][..PAGE_WORDS];
                    sum = sum.wrapping_add(fold(&words[at..at + ROW_WORDS]));
                    page = words[0] as usize;
                }
            }
        }
        sum
    }

    fn plain(&self, _head: usize) -> u64 {
        fold(&self.plain.words()[..self.bytes() / 8])
    }
}

/// A way to read, and what it is called.
type Way = (&'static str, fn(&Layouts, usize) -> u64);

const WAYS: [Way; 6] = [
    ("one run: the floor", Layouts::plain),
    ("fixed128, blocks one after another", |layouts, head| layouts.fixed128(head, |block| block)),
    ("fixed128, blocks in any order", |layouts, head| {
        layouts.fixed128(head, |block| layouts.fixed_blocks[block])
    }),
    ("token-major, blocks one after another", |layouts, head| layouts.token_major(head, |block| block)),
    ("token-major, blocks in any order", |layouts, head| {
        layouts.token_major(head, |block| layouts.token_blocks[block])
    }),
    ("a page for each token, chained", Layouts::page_per_token),
];

/// Bytes per second of each way, taking turns.
pub fn kv_layout(quick: bool) -> Result<Section, BenchError> {
    let (sequences, repeats) = if quick { (8, 3) } else { (32, 9) };
    let layouts = Layouts::new(sequences)
        .map_err(|error| BenchError::input(format!("no memory for the layouts: {error}; try --quick")))?;
    let bytes = layouts.bytes() as f64;
    let mut rates = [const { Vec::new() }; WAYS.len()];
    for round in 0..repeats {
        for ((_, read), rates) in WAYS.iter().zip(&mut rates) {
            let (sum, time) = timed(|| read(black_box(&layouts), black_box(round % HEADS)));
            // All words are 1: whoever reads another number of them is wrong.
            assert_eq!(sum, (bytes / 8.0) as u64, "a layout was read wrongly");
            rates.push(time.rates(bytes as u64));
        }
    }
    let floor = Rates::median(&rates[0]);
    let mut table = table(["layout", "GB/s, wall", "of the floor", "GB/s, CPU", "of the floor"], 1);
    let mut rows = vec![];
    for ((name, _), rates) in WAYS.iter().zip(&rates) {
        let rate = Rates::median(rates);
        let of_floor = [rate.wall / floor.wall, rate.cpu / floor.cpu];
        table.add_row([
            (*name).to_owned(),
            format!("{:.2}", rate.wall / 1e9),
            format!("{:.2}", of_floor[0]),
            format!("{:.2}", rate.cpu / 1e9),
            format!("{:.2}", of_floor[1]),
        ]);
        rows.push(json!({
            "layout": name, "bytes_per_second": rate.wall, "of_floor": of_floor[0],
            "bytes_per_cpu_second": rate.cpu, "of_floor_cpu": of_floor[1],
        }));
    }
    Ok(Section {
        heading: format!(
            "K, then V of one head of {HEADS}: {} windows of {WINDOW} tokens, {} MiB, median of {repeats} runs",
            layouts.sequences,
            layouts.bytes() >> 20
        ),
        table,
        notes: vec![format!(
            "One thread, each byte looked at once. Token-major blocks hold {TOKENS} tokens of all heads. Blocks of fixed128, of {BLOCK_BYTES} bytes, hold one head of as many."
        )],
        json: rows.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_reads_the_same_bytes() {
        let layouts = Layouts::new(2).unwrap();
        for (name, read) in WAYS {
            for head in 0..HEADS {
                assert_eq!(read(&layouts, head), (layouts.bytes() / 8) as u64, "{name}, head {head}");
            }
        }
    }

    #[test]
    fn a_shuffle_keeps_all_numbers() {
        let mut order = shuffled(1000);
        assert!(order.windows(2).filter(|pair| pair[0] + 1 == pair[1]).count() < 10);
        order.sort_unstable();
        assert_eq!(order, (0..1000).collect::<Vec<_>>());
    }
}
