use std::collections::HashSet;
use std::sync::Barrier;

use super::super::pages::PageSize;
use super::*;
use proptest::prelude::*;
use rstest::rstest;

fn config(blocks: u32, handles: usize, magazine: u32) -> ArenaConfig {
    let pages = PageOptions { largest: PageSize::Base, lock: false };
    ArenaConfig { blocks, block_bytes: 64, handles, magazine, pages }
}

fn arena(blocks: u32, handles: usize, magazine: u32) -> Arc<Arena> {
    Arena::new(config(blocks, handles, magazine)).unwrap()
}

#[rstest]
fn flaw13_no_block_past_the_capacity(#[values(0, 1, 2, 64)] magazine: u32) {
    let arena = arena(5, 1, magazine);
    let mut handle = arena.handle().unwrap();
    let blocks: Vec<_> = (0..5).map(|_| handle.acquire().unwrap()).collect();
    assert_eq!(handle.acquire(), Err(ArenaError::Exhausted { blocks: 5 }));
    let offsets: HashSet<_> = blocks.iter().map(|&block| arena.offset(block).unwrap()).collect();
    assert_eq!(offsets, (0..5).map(|k| 64 * k).collect());
    let counts = ArenaCounts { capacity: 5, acquired: 5, released: 0, in_use: 5, peak: 5 };
    assert_eq!(arena.counts(), counts);
    assert_eq!(handle.release(blocks[2]), Ok(true));
    assert_eq!(handle.acquire().unwrap().index(), 2);
}

#[rstest]
fn flaw13_a_double_free_and_a_stale_name_are_errors(#[values(0, 4)] magazine: u32) {
    let arena = arena(3, 1, magazine);
    let mut handle = arena.handle().unwrap();
    let first = handle.acquire().unwrap();
    assert_eq!(handle.release(first), Ok(true));
    let refused = ArenaError::Released { index: first.index(), generation: 1, current: 1 };
    assert_eq!(handle.release(first), Err(refused));
    let second = handle.acquire().unwrap();
    assert_eq!(second.index(), first.index(), "the block is used again, by another name");
    let refused = ArenaError::Released { index: first.index(), generation: 1, current: 2 };
    let before = arena.counts();
    assert_eq!(handle.release(first), Err(refused));
    assert_eq!(arena.retain(first), Err(refused));
    assert_eq!(arena.offset(first), Err(refused));
    assert_eq!(arena.counts(), before);
    assert_eq!(arena.references(second), Ok(1));
}

#[test]
fn flaw13_a_block_of_another_arena_is_an_error() {
    let (here, there) = (arena(3, 1, 0), arena(3, 1, 0));
    let (mut at_home, mut away) = (here.handle().unwrap(), there.handle().unwrap());
    let (ours, theirs) = (at_home.acquire().unwrap(), away.acquire().unwrap());
    assert_eq!(ours.index(), theirs.index());
    assert!(matches!(at_home.release(theirs), Err(ArenaError::Foreign { index: 0, .. })));
    assert!(matches!(here.retain(theirs), Err(ArenaError::Foreign { .. })));
    assert_eq!((here.counts().in_use, there.counts().in_use), (1, 1));
}

/// Each thread acquires and releases at random, writes its number into what it holds, and finds it there.
#[rstest]
fn flaw13_threads_share_an_arena(#[values(0, 1, 8)] magazine: u32) {
    const THREADS: usize = 4;
    const BLOCKS: u32 = 64;
    const ROUNDS: u32 = 40_000;
    let arena = arena(BLOCKS, THREADS, magazine);
    let owners: Vec<AtomicU32> = (0..BLOCKS).map(|_| AtomicU32::new(NONE)).collect();
    let start = Barrier::new(THREADS);
    let totals: Vec<(u64, u64)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS as u32)
            .map(|me| {
                let (arena, owners, start) = (&arena, &owners, &start);
                scope.spawn(move || {
                    let mut handle = arena.handle().unwrap();
                    let (mut held, mut random, mut acquired) = (vec![], me + 1, 0);
                    start.wait();
                    for _ in 0..ROUNDS {
                        random ^= random << 13;
                        random ^= random >> 17;
                        random ^= random << 5;
                        if random & 1 == 0 || held.is_empty() {
                            if let Ok(block) = handle.acquire() {
                                let before = owners[block.index() as usize].swap(me, Ordering::Relaxed);
                                assert_eq!(before, NONE, "{block:?} was given out twice");
                                held.push(block);
                                acquired += 1;
                            }
                        } else {
                            let block: BlockId = held.swap_remove(random as usize / 2 % held.len());
                            let before = owners[block.index() as usize].swap(NONE, Ordering::Relaxed);
                            assert_eq!(before, me);
                            assert_eq!(handle.release(block), Ok(true));
                        }
                    }
                    let in_use = held.len() as u64;
                    for block in held {
                        owners[block.index() as usize].store(NONE, Ordering::Relaxed);
                        handle.release(block).unwrap();
                    }
                    (acquired, in_use)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let acquired = totals.iter().map(|&(acquired, _)| acquired).sum();
    let counts = arena.counts();
    assert_eq!((counts.acquired, counts.released, counts.in_use), (acquired, acquired, 0));
    assert!(counts.peak <= BLOCKS.into());
    // Nothing was lost: all blocks can be had.
    let mut handle = arena.handle().unwrap();
    let all: HashSet<_> = (0..BLOCKS).map(|_| handle.acquire().unwrap().index()).collect();
    assert_eq!(all.len(), BLOCKS as usize);
    assert!(handle.acquire().is_err());
}

/// Threads race to release one name that they all know: one of them does.
#[test]
fn flaw13_of_many_double_frees_at_once_one_succeeds() {
    const THREADS: usize = 4;
    let arena = arena(4, THREADS + 1, 0);
    let mut own = arena.handle().unwrap();
    for _ in 0..2000 {
        let block = own.acquire().unwrap();
        let start = Barrier::new(THREADS);
        let freed: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS)
                .map(|_| {
                    scope.spawn(|| {
                        let mut handle = arena.handle().unwrap();
                        start.wait();
                        usize::from(handle.release(block).is_ok())
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(freed, 1);
        assert_eq!(arena.counts().in_use, 0);
    }
}

/// Without magazines, the peak is exact whatever the threads do: all hold their blocks at one time.
#[test]
fn the_peak_of_several_threads_is_exact() {
    const EACH: usize = 10;
    let arena = arena(64, 3, 0);
    let barrier = Barrier::new(3);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut handle = arena.handle().unwrap();
                for _ in 0..100 {
                    barrier.wait();
                    let held: Vec<_> = (0..EACH).map(|_| handle.acquire().unwrap()).collect();
                    barrier.wait();
                    held.into_iter().for_each(|block| assert_eq!(handle.release(block), Ok(true)));
                }
            });
        }
    });
    let counts = arena.counts();
    assert_eq!((counts.acquired, counts.released), (3000, 3000));
    assert_eq!((counts.in_use, counts.peak), (0, 30));
}

#[test]
fn a_block_with_several_holders_is_freed_by_the_last() {
    let arena = arena(2, 1, 4);
    let mut handle = arena.handle().unwrap();
    let block = handle.acquire().unwrap();
    arena.retain(block).unwrap();
    arena.retain(block).unwrap();
    assert_eq!(arena.references(block), Ok(3));
    assert_eq!(handle.release(block), Ok(false));
    assert_eq!(handle.release(block), Ok(false));
    assert_eq!(arena.counts().in_use, 1);
    assert_eq!(handle.release(block), Ok(true));
    assert_eq!(arena.counts().in_use, 0);
}

#[test]
fn a_handle_that_is_dropped_gives_its_magazine_back() {
    let arena = arena(8, 2, 8);
    let mut one = arena.handle().unwrap();
    let block = one.acquire().unwrap();
    let mut two = arena.handle().unwrap();
    assert_eq!(arena.handle().unwrap_err(), ArenaError::Handles { handles: 2 });
    one.release(block).unwrap();
    drop(one);
    assert_eq!((0..8).filter(|_| two.acquire().is_ok()).count(), 8);
    assert!(arena.handle().is_ok());
    assert_eq!(arena.counts().acquired, 9);
}

#[rstest]
#[case::no_blocks(ArenaConfig { blocks: 0, ..config(1, 1, 0) }, "blocks is 0")]
#[case::odd_size(ArenaConfig { block_bytes: 96, ..config(1, 1, 0) }, "block_bytes is 96")]
#[case::no_size(ArenaConfig { block_bytes: 0, ..config(1, 1, 0) }, "block_bytes is 0")]
#[case::no_handle(config(1, 0, 0), "handles is 0")]
#[case::too_large(ArenaConfig { block_bytes: 1 << 60, ..config(1 << 20, 1, 0) }, "no memory")]
fn bad_configurations_are_told(#[case] config: ArenaConfig, #[case] told: &str) {
    let error = Arena::new(config).unwrap_err().to_string();
    assert!(error.contains(told), "{error}");
}

proptest! {
    /// Against a list of what is held: names, references, counts.
    #[test]
    fn an_arena_does_what_a_list_does(
        blocks in 1u32..9, magazine in 0u32..5, steps in prop::collection::vec((0u8..4, any::<prop::sample::Index>()), 0..200),
    ) {
        let arena = arena(blocks, 1, magazine);
        let mut handle = arena.handle().unwrap();
        let mut held: Vec<(BlockId, u32)> = vec![];
        let mut gone: Vec<BlockId> = vec![];
        let (mut acquired, mut peak) = (0, 0);
        for (step, pick) in steps {
            match step {
                0 => match handle.acquire() {
                    Ok(block) => {
                        prop_assert!(held.iter().all(|(other, _)| other.index() != block.index()));
                        prop_assert!(!gone.contains(&block), "a name was used twice");
                        held.push((block, 1));
                        acquired += 1;
                        peak = peak.max(held.len() as u64);
                    }
                    Err(error) => {
                        prop_assert_eq!(error, ArenaError::Exhausted { blocks });
                        prop_assert_eq!(held.len(), blocks as usize);
                    }
                },
                1 if !held.is_empty() => {
                    let at = pick.index(held.len());
                    arena.retain(held[at].0).unwrap();
                    held[at].1 += 1;
                }
                2 if !held.is_empty() => {
                    let at = pick.index(held.len());
                    held[at].1 -= 1;
                    prop_assert_eq!(handle.release(held[at].0), Ok(held[at].1 == 0));
                    if held[at].1 == 0 {
                        gone.push(held.swap_remove(at).0);
                    }
                }
                _ if !gone.is_empty() => {
                    let stale = gone[pick.index(gone.len())];
                    let refused = matches!(handle.release(stale), Err(ArenaError::Released { .. }));
                    prop_assert!(refused);
                }
                _ => {}
            }
            let counts = arena.counts();
            let want = (acquired, held.len() as u64, peak);
            prop_assert_eq!((counts.acquired, counts.in_use, counts.peak), want);
            for &(block, references) in &held {
                prop_assert_eq!(arena.references(block), Ok(references));
            }
        }
    }
}
