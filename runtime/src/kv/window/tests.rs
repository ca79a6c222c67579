use std::collections::BTreeMap;
use std::sync::Arc;

use super::super::arena::{Arena, ArenaConfig, ArenaError};
use super::super::pages::{PageOptions, PageSize};
use super::*;
use proptest::prelude::*;

fn arena(blocks: u32) -> Arc<Arena> {
    let pages = PageOptions { largest: PageSize::Base, lock: false };
    Arena::new(ArenaConfig { blocks, block_bytes: 64, handles: 1, magazine: 4, pages }).unwrap()
}

/// What a window is to do, told block by block: which are resident, and who they are.
struct Naive {
    config: WindowConfig,
    tokens: u32,
    /// By number in the sequence.
    resident: BTreeMap<u32, BlockId>,
}

impl Naive {
    /// The blocks that may stay: the sinks, and the latest that fill the ring.
    fn trim(&mut self) {
        let newest = self.tokens.div_ceil(self.config.block_tokens);
        let (sinks, ring) = (self.config.sink_blocks(), self.config.ring_blocks());
        self.resident.retain(|&block, _| block < sinks || block + ring >= newest);
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Append(u32),
    Share,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(prop_oneof![4 => (0u32..40).prop_map(Step::Append), 1 => Just(Step::Share)], 0..60)
}

proptest! {
    #[test]
    fn a_window_keeps_sinks_and_the_latest_tokens_within_its_cap(
        block_tokens in 1u32..9, sink_tokens in 0u32..20, window_tokens in 1u32..30, steps in steps(),
    ) {
        let config = WindowConfig { block_tokens, sink_tokens, window_tokens };
        let arena = arena(config.cap() + 1);
        let mut handle = arena.handle().unwrap();
        let shared = handle.acquire().unwrap();
        let mut window = Window::new(config).unwrap();
        let mut naive = Naive { config, tokens: 0, resident: BTreeMap::new() };
        for step in steps {
            match step {
                Step::Append(tokens) => {
                    window.append(&mut handle, tokens).unwrap();
                    naive.tokens += tokens;
                }
                Step::Share if naive.tokens % block_tokens == 0 => {
                    window.share(&mut handle, shared).unwrap();
                    naive.resident.insert(naive.tokens / block_tokens, shared);
                    naive.tokens += block_tokens;
                }
                Step::Share => {
                    let refused = KvError::Boundary { tokens: naive.tokens, block_tokens };
                    prop_assert_eq!(window.share(&mut handle, shared), Err(refused));
                }
            }
            naive.trim();
            prop_assert_eq!(window.tokens(), naive.tokens);
            prop_assert!(window.held() <= config.cap());
            let newest = naive.tokens.div_ceil(block_tokens);
            let [sinks, latest] = window.resident();
            let mut seen = BTreeMap::new();
            for position in 0..naive.tokens + 2 {
                let block = position / block_tokens;
                let there = position < naive.tokens
                    && (block < config.sink_blocks() || block + config.ring_blocks() >= newest);
                let served = window.block_of(position);
                prop_assert_eq!(served.is_some(), there, "position {} of {}", position, naive.tokens);
                prop_assert_eq!(sinks.contains(&position) || latest.contains(&position), there);
                if position < naive.tokens && (position < sink_tokens || position + window_tokens >= naive.tokens) {
                    prop_assert!(there, "sink or window position {} of {} is gone", position, naive.tokens);
                }
                let Some(served) = served else { continue };
                prop_assert!(arena.offset(served).is_ok(), "a block that the arena gave to others");
                prop_assert_eq!(*seen.entry(block).or_insert(served), served, "one block, one place");
                if let Some(&shared) = naive.resident.get(&block) {
                    prop_assert_eq!(served, shared);
                } else {
                    prop_assert_ne!(served, shared, "position {} would overwrite a shared block", position);
                }
            }
            let own: std::collections::HashSet<_> =
                seen.values().filter(|&&block| block != shared).map(|block| block.index()).collect();
            let owned = seen.values().filter(|&&block| block != shared).count();
            prop_assert_eq!(own.len(), owned, "two places share a block of the window's own");
            let uses = seen.len() - owned;
            prop_assert_eq!(arena.references(shared), Ok(1 + uses as u32), "shared blocks that left are let go");
            prop_assert_eq!(window.held() as usize, seen.len());
            prop_assert_eq!(arena.counts().in_use, 1 + owned as u64);
        }
        window.release(&mut handle).unwrap();
        prop_assert_eq!(arena.references(shared), Ok(1));
        prop_assert_eq!(arena.counts().in_use, 1);
    }
}

#[test]
fn a_ring_that_is_full_uses_its_oldest_block_again() {
    let config = WindowConfig { block_tokens: 4, sink_tokens: 4, window_tokens: 8 };
    assert_eq!(config.cap(), 1 + 3);
    let arena = arena(4);
    let mut handle = arena.handle().unwrap();
    let mut window = Window::new(config).unwrap();
    window.append(&mut handle, 16).unwrap();
    let oldest = window.block_of(4).unwrap();
    let acquired = arena.counts().acquired;
    window.append(&mut handle, 1).unwrap();
    assert_eq!(window.block_of(16), Some(oldest));
    assert_eq!(window.block_of(4), None);
    assert_eq!(window.resident(), [0..4, 8..17]);
    window.append(&mut handle, 1000).unwrap();
    assert_eq!(arena.counts().acquired, acquired, "the ring needs no block of the arena any more");
}

#[test]
fn an_arena_without_blocks_refuses_and_the_window_stays_whole() {
    let arena = arena(2);
    let mut handle = arena.handle().unwrap();
    let mut window =
        Window::new(WindowConfig { block_tokens: 4, sink_tokens: 0, window_tokens: 32 }).unwrap();
    let refused = KvError::Arena(ArenaError::Exhausted { blocks: 2 });
    assert_eq!(window.append(&mut handle, 9), Err(refused));
    assert_eq!((window.tokens(), window.held()), (8, 2));
    assert!(window.block_of(7).is_some() && window.block_of(8).is_none());
    window.release(&mut handle).unwrap();
    assert_eq!(arena.counts().in_use, 0);
}

#[test]
fn bad_configurations_are_told() {
    let good = WindowConfig { block_tokens: 4, sink_tokens: 4, window_tokens: 8 };
    for (bad, field) in [
        (WindowConfig { block_tokens: 0, ..good }, "block_tokens"),
        (WindowConfig { window_tokens: 0, ..good }, "window_tokens"),
        (WindowConfig { sink_tokens: u32::MAX, ..good }, "sink_tokens"),
    ] {
        let error = Window::new(bad).unwrap_err().to_string();
        assert!(error.starts_with(field), "{error}");
    }
}
