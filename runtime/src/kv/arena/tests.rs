use std::collections::HashSet;

use super::*;
use proptest::prelude::*;

#[test]
fn flaw13_no_block_past_the_capacity() {
    let mut arena = Arena::new(5).unwrap();
    let blocks: HashSet<u32> = (0..5).map(|_| arena.acquire().unwrap()).collect();
    assert_eq!(blocks, (0..5).collect());
    assert_eq!(arena.acquire(), Err(KvError::Exhausted { blocks: 5 }));
    let counts = ArenaCounts { capacity: 5, acquired: 5, released: 0, in_use: 5, peak: 5 };
    assert_eq!(arena.counts(), counts);
    assert_eq!(arena.release(2), Ok(true));
    assert_eq!(arena.acquire(), Ok(2));
    assert!(Arena::new(0).is_err() && Arena::new(NONE).is_err());
}

#[test]
fn flaw13_a_double_free_is_an_error() {
    let mut arena = Arena::new(3).unwrap();
    let block = arena.acquire().unwrap();
    assert_eq!(arena.release(block), Ok(true));
    let before = arena.counts();
    for none in [block, 3, NONE] {
        assert_eq!(arena.release(none), Err(KvError::Free { block: none }));
        assert_eq!(arena.retain(none), Err(KvError::Free { block: none }));
        assert_eq!(arena.references(none), Err(KvError::Free { block: none }));
    }
    assert_eq!(arena.counts(), before);
}

proptest! {
    /// Against a list of what is held: references, counts.
    #[test]
    fn an_arena_does_what_a_list_does(
        blocks in 1u32..9, steps in prop::collection::vec((0u8..3, any::<prop::sample::Index>()), 0..200),
    ) {
        let mut arena = Arena::new(blocks).unwrap();
        let mut held: Vec<(u32, u32)> = vec![];
        let (mut acquired, mut peak) = (0, 0);
        for (step, pick) in steps {
            match step {
                0 => match arena.acquire() {
                    Ok(block) => {
                        prop_assert!(held.iter().all(|(other, _)| *other != block));
                        held.push((block, 1));
                        acquired += 1;
                        peak = peak.max(held.len() as u64);
                    }
                    Err(error) => {
                        prop_assert_eq!(error, KvError::Exhausted { blocks });
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
                        held.swap_remove(at);
                    }
                }
                _ => {}
            }
            let counts = arena.counts();
            prop_assert_eq!((counts.acquired, counts.in_use, counts.peak), (acquired, held.len() as u64, peak));
            for &(block, references) in &held {
                prop_assert_eq!(arena.references(block), Ok(references));
            }
        }
    }
}
