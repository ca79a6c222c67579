use std::collections::HashSet;

use super::*;
use proptest::prelude::*;
use rstest::rstest;

fn arena(blocks: u32) -> Arena {
    Arena::new(ArenaConfig { blocks, block_bytes: 64 }).unwrap()
}

#[test]
fn flaw13_no_block_past_the_capacity() {
    let mut arena = arena(5);
    let blocks: Vec<_> = (0..5).map(|_| arena.acquire().unwrap()).collect();
    assert_eq!(arena.acquire(), Err(ArenaError::Exhausted { blocks: 5 }));
    let offsets: HashSet<_> = blocks.iter().map(|&block| arena.offset(block).unwrap()).collect();
    assert_eq!(offsets, (0..5).map(|k| 64 * k).collect());
    let counts = ArenaCounts { capacity: 5, acquired: 5, released: 0, in_use: 5, peak: 5 };
    assert_eq!(arena.counts(), counts);
    assert_eq!(arena.release(blocks[2]), Ok(true));
    assert_eq!(arena.acquire().unwrap().index(), 2);
}

#[test]
fn flaw13_a_double_free_and_a_stale_name_are_errors() {
    let mut arena = arena(3);
    let first = arena.acquire().unwrap();
    assert_eq!(arena.release(first), Ok(true));
    let refused = ArenaError::Released { index: first.index(), generation: 1, current: 1 };
    assert_eq!(arena.release(first), Err(refused));
    let second = arena.acquire().unwrap();
    assert_eq!(second.index(), first.index(), "the block is used again, by another name");
    let refused = ArenaError::Released { index: first.index(), generation: 1, current: 2 };
    let before = arena.counts();
    assert_eq!(arena.release(first), Err(refused));
    assert_eq!(arena.retain(first), Err(refused));
    assert_eq!(arena.offset(first), Err(refused));
    assert_eq!(arena.counts(), before);
    assert_eq!(arena.references(second), Ok(1));
}

#[test]
fn flaw13_a_block_of_another_arena_is_an_error() {
    let (mut here, mut there) = (arena(3), arena(3));
    let (ours, theirs) = (here.acquire().unwrap(), there.acquire().unwrap());
    assert_eq!(ours.index(), theirs.index());
    assert!(matches!(here.release(theirs), Err(ArenaError::Foreign { index: 0, .. })));
    assert!(matches!(here.retain(theirs), Err(ArenaError::Foreign { .. })));
    assert_eq!((here.counts().in_use, there.counts().in_use), (1, 1));
}

#[test]
fn a_block_with_several_holders_is_freed_by_the_last() {
    let mut arena = arena(2);
    let block = arena.acquire().unwrap();
    arena.retain(block).unwrap();
    arena.retain(block).unwrap();
    assert_eq!(arena.references(block), Ok(3));
    assert_eq!(arena.release(block), Ok(false));
    assert_eq!(arena.release(block), Ok(false));
    assert_eq!(arena.counts().in_use, 1);
    assert_eq!(arena.release(block), Ok(true));
    assert_eq!(arena.counts().in_use, 0);
}

#[rstest]
#[case::no_blocks(ArenaConfig { blocks: 0, block_bytes: 64 }, "blocks is 0")]
#[case::odd_size(ArenaConfig { blocks: 1, block_bytes: 96 }, "block_bytes is 96")]
#[case::no_size(ArenaConfig { blocks: 1, block_bytes: 0 }, "block_bytes is 0")]
#[case::too_large(ArenaConfig { blocks: 1 << 20, block_bytes: 1 << 60 }, "the address space")]
fn bad_configurations_are_told(#[case] config: ArenaConfig, #[case] told: &str) {
    let error = Arena::new(config).unwrap_err().to_string();
    assert!(error.contains(told), "{error}");
}

proptest! {
    /// Against a list of what is held: names, references, counts.
    #[test]
    fn an_arena_does_what_a_list_does(
        blocks in 1u32..9, steps in prop::collection::vec((0u8..4, any::<prop::sample::Index>()), 0..200),
    ) {
        let mut arena = arena(blocks);
        let mut held: Vec<(BlockId, u32)> = vec![];
        let mut gone: Vec<BlockId> = vec![];
        let (mut acquired, mut peak) = (0, 0);
        for (step, pick) in steps {
            match step {
                0 => match arena.acquire() {
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
                    prop_assert_eq!(arena.release(held[at].0), Ok(held[at].1 == 0));
                    if held[at].1 == 0 {
                        gone.push(held.swap_remove(at).0);
                    }
                }
                _ if !gone.is_empty() => {
                    let stale = gone[pick.index(gone.len())];
                    let refused = matches!(arena.release(stale), Err(ArenaError::Released { .. }));
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

#[test]
fn the_first_byte_of_an_arena_too_large_is_refused() {
    let mut arena = Arena::new(ArenaConfig { blocks: 1 << 20, block_bytes: 1 << 40 }).unwrap();
    assert!(matches!(arena.put(0, 0, &[1]), Err(ArenaError::Memory { .. })));
}
