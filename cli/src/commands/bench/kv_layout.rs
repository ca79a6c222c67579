//! Reading the K, then the V of one head: layout `fixed128`, others, and a plain read of as many bytes.

use std::hint::black_box;

use doorbell_runtime::kv::layout::{BLOCK_BYTES, Plane, ROW_BYTES, TOKENS, block, row};
use serde_json::json;

use super::{Section, median, table, timed};

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
    /// Blocks of `fixed128`, one a head, in the order of `blocks`.
    fixed: Vec<u64>,
    blocks: Vec<usize>,
    /// All rows of a token, then the next token.
    tokens: Vec<u64>,
    /// A page for each token, found only through the last one.
    pages: Vec<u64>,
    first_pages: Vec<usize>,
    plain: Vec<u64>,
}

impl Layouts {
    /// All memory is written here, so that no read finds a page that is not there.
    fn new(sequences: usize) -> Self {
        let tokens = sequences * WINDOW;
        let ones = |words: usize| vec![1u64; words];
        let order = shuffled(tokens);
        let mut pages = ones(tokens * PAGE_WORDS);
        for pair in order.windows(2) {
            pages[pair[0] * PAGE_WORDS] = pair[1] as u64;
        }
        Self {
            sequences,
            fixed: ones(tokens * TOKEN_WORDS),
            blocks: shuffled(tokens / TOKENS * HEADS),
            tokens: ones(tokens * TOKEN_WORDS),
            pages,
            first_pages: order.iter().copied().step_by(WINDOW).collect(),
            plain: ones(tokens * 2 * ROW_WORDS),
        }
    }

    /// Bytes that each way reads.
    fn bytes(&self) -> usize {
        self.plain.len() * 8
    }

    fn fixed128(&self, head: usize) -> u64 {
        let mut sum = 0u64;
        let of_head = self.blocks.len() / HEADS;
        for window in self.blocks[head * of_head..][..of_head].chunks_exact(WINDOW / TOKENS) {
            for plane in [Plane::K, Plane::V] {
                for &at in window {
                    // The rows of a plane follow each other.
                    let plane = (block(at) + row(plane, 0)) / 8;
                    sum = sum.wrapping_add(fold(&self.fixed[plane..plane + TOKENS * ROW_WORDS]));
                }
            }
        }
        sum
    }

    fn token_major(&self, head: usize) -> u64 {
        let mut sum = 0u64;
        for window in self.tokens.chunks_exact(WINDOW * TOKEN_WORDS) {
            for plane in 0..2 {
                let at = (2 * head + plane) * ROW_WORDS;
                for token in window.chunks_exact(TOKEN_WORDS) {
                    sum = sum.wrapping_add(fold(&token[at..at + ROW_WORDS]));
                }
            }
        }
        sum
    }

    fn page_per_token(&self, head: usize) -> u64 {
        let mut sum = 0u64;
        for &first in &self.first_pages {
            for plane in 0..2 {
                let at = 8 + (2 * head + plane) * ROW_WORDS;
                let mut page = first;
                for _ in 0..WINDOW {
                    let words = &self.pages[page * PAGE_WORDS..][..PAGE_WORDS];
                    sum = sum.wrapping_add(fold(&words[at..at + ROW_WORDS]));
                    page = words[0] as usize;
                }
            }
        }
        sum
    }

    fn plain(&self, _head: usize) -> u64 {
        fold(&self.plain)
    }
}

/// A way to read, and what it is called.
type Way = (&'static str, fn(&Layouts, usize) -> u64);

const WAYS: [Way; 4] = [
    ("one run: the floor", Layouts::plain),
    ("fixed128, blocks in any order", Layouts::fixed128),
    ("token-major, K and V of all heads together", Layouts::token_major),
    ("a page for each token, chained", Layouts::page_per_token),
];

/// Bytes per second of each way, taking turns.
pub fn kv_layout(quick: bool) -> Section {
    let (sequences, repeats) = if quick { (8, 3) } else { (32, 9) };
    let layouts = Layouts::new(sequences);
    let bytes = layouts.bytes() as f64;
    let mut rates = [const { Vec::new() }; WAYS.len()];
    for round in 0..repeats {
        for ((_, read), rates) in WAYS.iter().zip(&mut rates) {
            let (sum, time) = timed(|| read(black_box(&layouts), black_box(round % HEADS)));
            // All words are 1: whoever reads another number of them is wrong.
            assert_eq!(sum, (bytes / 8.0) as u64, "a layout was read wrongly");
            rates.push(bytes / time.wall.as_secs_f64());
        }
    }
    let floor = median(rates[0].iter().copied());
    let mut table = table(["layout", "GB/s", "of the floor"], 1);
    let mut rows = vec![];
    for ((name, _), rates) in WAYS.iter().zip(&rates) {
        let rate = median(rates.iter().copied());
        table.add_row([(*name).to_owned(), format!("{:.2}", rate / 1e9), format!("{:.2}", rate / floor)]);
        rows.push(json!({ "layout": name, "bytes_per_second": rate, "of_floor": rate / floor }));
    }
    Section {
        key: "kv_layout",
        heading: format!(
            "K, then V of one head of {HEADS}: {} windows of {WINDOW} tokens, {} MiB, median of {repeats} runs",
            layouts.sequences,
            layouts.bytes() >> 20
        ),
        table,
        notes: vec![format!(
            "One thread, each byte looked at once. Blocks of {BLOCK_BYTES} bytes hold one head of {TOKENS} tokens."
        )],
        json: rows.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_reads_the_same_bytes() {
        let layouts = Layouts::new(2);
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
