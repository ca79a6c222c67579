use std::collections::{HashMap, HashSet};

use super::super::branch::Branch;
use super::*;
use proptest::prelude::*;
use rstest::rstest;

const B: u32 = 256;

/// Blocks of 256 tokens of one byte each, so two for each piece of a prompt.
fn config(sharing: Sharing, answer_start: AnswerStart, blocks: u32) -> PrefixConfig {
    PrefixConfig {
        blocks,
        block_bytes: B as usize,
        block_tokens: B,
        sharing,
        answer_start,
        prefixes: 5,
        branches: 12,
        prompt_tokens: 6 * B,
        answer_tokens: 3 * B,
        nodes: 6,
    }
}

fn group(prefix: &[u32], prompt_tokens: u32, members: u32, answer_tokens: u32) -> Group<'_> {
    Group { prefix, prompt_tokens, members, answer_tokens, prompt_writes: 0 }
}

#[test]
fn flaw11_no_prefix_and_the_first_prefix_differ() {
    let mut tables = Prefixes::new(config(Sharing::Group, AnswerStart::NewBlock, 8)).unwrap();
    let first = tables.admit(&group(&[], 1, 1, 1)).unwrap();
    assert_eq!(first.slot(), 0);
    assert_ne!(Some(first), None);
    assert_eq!(size_of::<Option<PrefixId>>(), size_of::<PrefixId>(), "none is no number that a prefix has");
    // A group without any prompt is a prefix too, and not the same one.
    let empty = tables.admit(&group(&[], 0, 1, 1)).unwrap();
    assert_ne!(first, empty);
    let mut branch = tables.branch(empty).unwrap();
    assert!(matches!(tables.block_of(&branch, 0), Err(KvError::Position { tokens: 0, .. })));
    tables.append(&mut branch, 1).unwrap();
    assert!(tables.block_of(&branch, 0).is_ok());
}

#[rstest]
fn flaw15_a_double_release_drops_nobodys_reference(
    #[values(AnswerStart::NewBlock, AnswerStart::SamePage)] start: AnswerStart,
) {
    let mut tables = Prefixes::new(config(Sharing::Group, start, 16)).unwrap();
    let prefix = tables.admit(&group(&[], 300, 2, 10)).unwrap();
    let (mut one, mut two) = (tables.branch(prefix).unwrap(), tables.branch(prefix).unwrap());
    tables.append(&mut one, 1).unwrap();
    tables.append(&mut two, 1).unwrap();
    tables.release(&mut one).unwrap();
    tables.release_prefix(prefix).unwrap();
    let before = tables.counts();
    assert_eq!(tables.release(&mut one), Err(KvError::Branch));
    assert_eq!(tables.append(&mut one, 1), Err(KvError::Branch));
    assert_eq!(tables.block_of(&one, 0), Err(KvError::Branch));
    let stale = KvError::Prefix { slot: prefix.slot() };
    for _ in 0..3 {
        assert_eq!(tables.release_prefix(prefix), Err(stale));
    }
    assert_eq!(tables.branch(prefix).unwrap_err(), stale);
    assert_eq!(tables.counts(), before, "the other member has all its blocks");
    assert!(tables.block_of(&two, 300).is_ok());
    tables.release(&mut two).unwrap();
    assert_eq!((tables.counts().arena.in_use, tables.counts().committed), (0, 0));
    // The slot is used again, by another name.
    let next = tables.admit(&group(&[], 300, 2, 10)).unwrap();
    assert_eq!(next.slot(), prefix.slot());
    assert_eq!(tables.release_prefix(prefix), Err(stale));
    assert_eq!(tables.counts().prefixes, 1);
}

#[test]
fn names_of_other_tables_are_errors() {
    let of = config(Sharing::Group, AnswerStart::NewBlock, 8);
    let (mut here, mut there) = (Prefixes::new(of).unwrap(), Prefixes::new(of).unwrap());
    let (ours, theirs) =
        (here.admit(&group(&[], 9, 2, 1)).unwrap(), there.admit(&group(&[], 9, 2, 1)).unwrap());
    let mut branch = there.branch(theirs).unwrap();
    assert_eq!(here.release_prefix(theirs), Err(KvError::Prefix { slot: 0 }));
    assert_eq!(here.branch(theirs).unwrap_err(), KvError::Prefix { slot: 0 });
    assert_eq!(here.release(&mut branch), Err(KvError::Branch));
    assert!(!branch.is_released());
    here.release_prefix(ours).unwrap();
    there.release(&mut branch).unwrap();
}

#[test]
fn flaw15_a_write_copies_every_byte_of_a_shared_block() {
    let mut tables = Prefixes::new(config(Sharing::Group, AnswerStart::SamePage, 16)).unwrap();
    let prefix = tables.admit(&group(&[], 300, 2, 10)).unwrap();
    let (mut one, mut two) = (tables.branch(prefix).unwrap(), tables.branch(prefix).unwrap());
    let pattern: Vec<u8> = (0..=255).collect();
    fill(&mut tables, prefix, 299, &pattern);
    tables.release_prefix(prefix).unwrap();
    let shared = tables.block_of(&one, 299).unwrap();
    assert_eq!(tables.block_of(&two, 299), Ok(shared));
    let place = tables.put(&mut one, 299, 43, &[7]).unwrap();
    assert!(place.copied && place.offset != shared);
    let mut bytes = [0; 256];
    tables.get(&one, 299, 0, &mut bytes).unwrap();
    let mut want = pattern.clone();
    want[43] = 7;
    assert_eq!(bytes[..], want[..]);
    tables.get(&two, 299, 0, &mut bytes).unwrap();
    assert_eq!(bytes[..], pattern[..], "the other member sees what was there");
    // Now it is the last holder.
    let place = tables.put(&mut two, 299, 43, &[9]).unwrap();
    assert_eq!((place.copied, place.offset), (false, shared));
    assert_eq!(tables.copies(), 1);
}

#[test]
fn bytes_beyond_a_block_and_positions_beyond_the_sequence_are_errors() {
    let mut tables = Prefixes::new(config(Sharing::Group, AnswerStart::NewBlock, 16)).unwrap();
    let prefix = tables.admit(&group(&[], 300, 1, 10)).unwrap();
    let mut branch = tables.branch(prefix).unwrap();
    let refused = KvError::Bytes { from: 250, to: 257, block: 256 };
    assert_eq!(tables.put(&mut branch, 0, 250, &[0; 7]), Err(refused));
    assert_eq!(tables.get(&branch, 0, 250, &mut [0; 7]), Err(refused));
    assert!(matches!(tables.get(&branch, 0, usize::MAX, &mut [0; 7]), Err(KvError::Bytes { .. })));
    assert_eq!(tables.write(&mut branch, 300), Err(KvError::Position { position: 300, tokens: 300 }));
    // A write that was not promised is refused, too.
    assert_eq!(tables.append(&mut branch, 10), Ok(()));
    assert_eq!(tables.write(&mut branch, 0), Err(KvError::Promise { need: 1, left: 0 }));
    assert_eq!(tables.append(&mut branch, B), Err(KvError::Promise { need: 1, left: 0 }));
    assert_eq!(tables.append(&mut branch, u32::MAX), Err(KvError::Promise { need: 1 << 24, left: 0 }));
    assert_eq!(branch.answer_tokens(), 10);
}

#[test]
fn cold_prompts_are_found_again_and_the_coldest_goes_first() {
    // Room for three prompts of two blocks, and an answer.
    let mut tables = Prefixes::new(config(Sharing::Requests, AnswerStart::NewBlock, 7)).unwrap();
    let run = |tables: &mut Prefixes, id: u32| {
        let found = tables.counts().found;
        let prefix = tables.admit(&group(&[id], 512, 1, 1)).unwrap();
        tables.release_prefix(prefix).unwrap();
        tables.counts().found - found
    };
    for id in [1, 2, 3] {
        assert_eq!(run(&mut tables, id), 0);
    }
    assert_eq!((tables.counts().cold, tables.counts().committed), (6, 0));
    assert_eq!(run(&mut tables, 1), 2, "1 is warm now, and 2 the coldest");
    assert_eq!(run(&mut tables, 4), 0);
    assert_eq!(tables.counts().evicted, 2);
    assert_eq!([3, 1, 4].map(|id| run(&mut tables, id)), [2, 2, 2]);
    assert_eq!(run(&mut tables, 2), 0, "2 was evicted");
}

#[test]
fn a_prompt_in_use_is_never_evicted() {
    let mut tables = Prefixes::new(config(Sharing::Requests, AnswerStart::NewBlock, 6)).unwrap();
    let used = tables.admit(&group(&[1, 2], 1024, 1, 1)).unwrap();
    let mut branch = tables.branch(used).unwrap();
    tables.release_prefix(used).unwrap();
    let refused = KvError::Full { what: "blocks", need: 3, available: 1 };
    assert_eq!(tables.could_admit(&group(&[9], 512, 1, 1)), Err(refused));
    assert_eq!(tables.admit(&group(&[9], 512, 1, 1)), Err(refused));
    // The same prompt costs nothing but its answer.
    let same = tables.admit(&group(&[1, 2], 1024, 1, 1)).unwrap();
    tables.append(&mut branch, 1).unwrap();
    tables.release_prefix(same).unwrap();
    tables.release(&mut branch).unwrap();
    assert_eq!(tables.could_admit(&group(&[9], 512, 1, 1)), Ok(()));
}

/// The blocks of a group's own prompt, which is cold, are not evicted to make room for the group.
#[test]
fn admission_does_not_evict_what_it_is_about_to_find() {
    let mut tables = Prefixes::new(config(Sharing::Requests, AnswerStart::NewBlock, 6)).unwrap();
    for ids in [[1, 2], [1, 2]] {
        let prefix = tables.admit(&group(&ids, 1024, 2, 1)).unwrap();
        tables.release_prefix(prefix).unwrap();
    }
    assert_eq!((tables.counts().found, tables.counts().evicted), (4, 0));
}

#[test]
fn a_group_that_never_fits_is_told_apart_from_one_that_must_wait() {
    let mut tables = Prefixes::new(config(Sharing::Group, AnswerStart::NewBlock, 10)).unwrap();
    let too_large = |error: KvError| matches!(error, KvError::TooLarge { .. });
    assert!(too_large(tables.admit(&group(&[], 7 * B, 1, 1)).unwrap_err()));
    assert!(too_large(tables.admit(&group(&[], 1, 1, 4 * B)).unwrap_err()));
    assert!(too_large(tables.admit(&group(&[], 1, 13, 1)).unwrap_err()));
    assert!(too_large(tables.admit(&group(&[], 1, 4, 3 * B)).unwrap_err()));
    assert!(too_large(tables.admit(&Group { prompt_writes: 2, ..group(&[], 1, 1, 1) }).unwrap_err()));
    let whole = tables.admit(&group(&[], 1, 3, 3 * B)).unwrap();
    let refused = KvError::Full { what: "blocks", need: 2, available: 0 };
    assert_eq!(tables.admit(&group(&[], 1, 1, 1)), Err(refused));
    assert_eq!(tables.counts().prefixes, 1);
    // Members that are never made give their promise back.
    tables.release_prefix(whole).unwrap();
    assert_eq!(tables.could_admit(&group(&[], 1, 1, 1)), Ok(()));
}

/// Writes the block of a prompt's position as a prefill would.
fn fill(tables: &mut Prefixes, prefix: PrefixId, position: u32, bytes: &[u8]) {
    let slot = &tables.slots[prefix.slot() as usize];
    let (full, _) = tables.split(slot.prompt_tokens);
    let logical = position / B;
    let block = match logical < full {
        true => tables.prompt(prefix.slot())[logical as usize],
        false => slot.tail.unwrap().index(),
    };
    tables.arena.put(block, 0, bytes).unwrap();
}

/// A block of a prompt: it depends on all ids up to its own, or, where there is none, on what only this prompt has.
fn prompt_bytes(ids: &[u32], salt: u8, logical: u32) -> Vec<u8> {
    let piece = (logical * B / PREFIX_BLOCK_TOKENS) as usize;
    let path = ids.get(..=piece).map_or(salt, |path| path.iter().fold(1, |hash, &id| hash * 3 + id as u8));
    (0..B).map(|k| (k as u8).wrapping_mul(7) ^ path.wrapping_mul(31) ^ logical as u8).collect()
}

/// A prefix, as one would keep it without sharing anything.
struct NaivePrefix {
    id: PrefixId,
    ids: Vec<u32>,
    prompt: u32,
    promise: u32,
    unmade: u32,
    open: bool,
    branches: u32,
    /// Who holds the partial last block.
    tail_holders: u32,
}

struct NaiveBranch {
    branch: Branch,
    prefix: usize,
    /// All bytes of its blocks, prompt first.
    blocks: Vec<Vec<u8>>,
    copies: HashSet<u32>,
    own_tail: bool,
    promise: u32,
    answer: u32,
}

#[derive(Clone, Debug)]
enum Step {
    Admit { ids: Vec<u32>, prompt: u32, members: u32, answer: u32, writes: u32 },
    Branch(prop::sample::Index),
    Append(prop::sample::Index, u32),
    Put(prop::sample::Index, u32, u8),
    Release(prop::sample::Index),
    ReleasePrefix(prop::sample::Index),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let pick = any::<prop::sample::Index>;
    let ids = prop::collection::vec(0u32..2, 0..4);
    let prompt = prop_oneof![0..=6 * B, (0u32..=6).prop_map(|blocks| blocks * B)];
    let admit =
        (ids, prompt, 0u32..5, 0..=3 * B, 0u32..2).prop_map(|(ids, prompt, members, answer, writes)| {
            Step::Admit { ids, prompt, members, answer, writes }
        });
    prop::collection::vec(
        prop_oneof![
            3 => admit,
            5 => pick().prop_map(Step::Branch),
            5 => (pick(), 0..2 * B).prop_map(|(at, tokens)| Step::Append(at, tokens)),
            6 => (pick(), any::<u32>(), any::<u8>()).prop_map(|(at, position, byte)| Step::Put(at, position, byte)),
            3 => pick().prop_map(Step::Release),
            2 => pick().prop_map(Step::ReleasePrefix),
        ],
        1..80,
    )
}

fn shape() -> impl Strategy<Value = (Sharing, AnswerStart, u32)> {
    (
        prop_oneof![Just(Sharing::Group), Just(Sharing::Requests)],
        prop_oneof![Just(AnswerStart::NewBlock), Just(AnswerStart::SamePage)],
        6u32..40,
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Bytes, copies, promises and counts, against members that have everything to themselves.
    #[test]
    fn tables_do_what_members_with_everything_to_themselves_do((sharing, start, blocks) in shape(), steps in steps()) {
        let mut tables = Prefixes::new(config(sharing, start, blocks)).unwrap();
        let mut prefixes: Vec<NaivePrefix> = vec![];
        let mut branches: Vec<NaiveBranch> = vec![];
        let split = |prompt: u32| match start {
            AnswerStart::NewBlock => (prompt.div_ceil(B), 0),
            AnswerStart::SamePage => (prompt / B, prompt % B),
        };
        for step in steps {
            match step {
                Step::Admit { mut ids, prompt, members, answer, writes } => {
                    let (full, partial) = split(prompt);
                    ids.truncate(prompt.div_ceil(PREFIX_BLOCK_TOKENS) as usize);
                    let group = Group {
                        prefix: &ids, prompt_tokens: prompt, members, answer_tokens: answer,
                        prompt_writes: writes.min(full),
                    };
                    let before = tables.counts();
                    let could = tables.could_admit(&group);
                    let admitted = tables.admit(&group);
                    prop_assert_eq!(could, admitted.map(drop));
                    let after = tables.counts();
                    let promise = (partial + answer).div_ceil(B) + writes.min(full);
                    let Ok(id) = admitted else {
                        prop_assert_eq!(before, after, "a refusal changes nothing");
                        // Refused only for a reason: what would be committed does not fit, or a table is full.
                        let whole = u64::from(full + u32::from(partial > 0) + members * promise);
                        let reason = u64::from(before.committed) + whole > blocks.into()
                            || before.prefixes == 5
                            || before.branches + members > 12
                            || sharing == Sharing::Requests;
                        prop_assert!(reason, "{:?} refused by {:?}", group, before);
                        continue;
                    };
                    // What was found holds what it held; the rest is prefilled.
                    let found = (after.found - before.found) as u32;
                    let salt = prefixes.len() as u8 | 128;
                    for logical in 0..found {
                        let block = tables.prompt(id.slot())[logical as usize];
                        let mut bytes = vec![0; B as usize];
                        tables.arena.get(block, 0, &mut bytes);
                        prop_assert_eq!(&bytes, &prompt_bytes(&ids, salt, logical), "block {} was found", logical);
                    }
                    for logical in found..prompt.div_ceil(B) {
                        fill(&mut tables, id, logical * B, &prompt_bytes(&ids, salt, logical));
                    }
                    let tail_holders = u32::from(partial > 0);
                    prefixes.push(NaivePrefix {
                        id, ids, prompt, promise, unmade: members, open: true, branches: 0, tail_holders,
                    });
                }
                Step::Branch(_) if prefixes.is_empty() => {}
                Step::Branch(at) => {
                    let at = at.index(prefixes.len());
                    let prefix = &mut prefixes[at];
                    let branch = tables.branch(prefix.id);
                    prop_assert_eq!(branch.is_ok(), prefix.open && prefix.unmade > 0);
                    let Ok(branch) = branch else { continue };
                    prefix.unmade -= 1;
                    prefix.branches += 1;
                    prefix.tail_holders += u32::from(split(prefix.prompt).1 > 0);
                    let salt = at as u8 | 128;
                    let blocks =
                        (0..prefix.prompt.div_ceil(B)).map(|k| prompt_bytes(&prefix.ids, salt, k)).collect();
                    branches.push(NaiveBranch {
                        branch, prefix: at, blocks, copies: HashSet::new(), own_tail: false,
                        promise: prefix.promise, answer: 0,
                    });
                }
                Step::Append(..) | Step::Put(..) | Step::Release(_) if branches.is_empty() => {}
                Step::Append(at, tokens) => {
                    let at = at.index(branches.len());
                    let it = &mut branches[at];
                    let prefix = &mut prefixes[it.prefix];
                    let (_, partial) = split(prefix.prompt);
                    let row = |answer: u32| (partial + answer).div_ceil(B);
                    let copies = partial > 0 && it.answer == 0 && tokens > 0 && !it.own_tail && prefix.tail_holders > 1;
                    let need = row(it.answer + tokens) - row(it.answer) + u32::from(copies);
                    let done = tables.append(&mut it.branch, tokens);
                    let fits = need <= it.promise && row(it.answer + tokens) <= 4;
                    prop_assert_eq!(done.is_ok(), fits, "{:?}: {} of {}", done, need, it.promise);
                    if !fits {
                        continue;
                    }
                    it.promise -= need;
                    it.answer += tokens;
                    if copies {
                        it.own_tail = true;
                        prefix.tail_holders -= 1;
                    }
                    let (first, _) = split(prefix.prompt);
                    for k in it.blocks.len() as u32..first + row(it.answer) {
                        // A fresh block holds anything; write it.
                        let position = if k < first { unreachable!() } else { (prefix.prompt - partial) + (k - first) * B };
                        let bytes = vec![k as u8; B as usize];
                        let place = tables.put(&mut it.branch, position, 0, &bytes).unwrap();
                        prop_assert!(!place.copied);
                        it.blocks.push(bytes);
                    }
                }
                Step::Put(at, position, byte) => {
                    let at = at.index(branches.len());
                    let it = &mut branches[at];
                    let prefix = &mut prefixes[it.prefix];
                    let tokens = prefix.prompt + it.answer;
                    if tokens == 0 {
                        continue;
                    }
                    let position = position % tokens;
                    let (full, partial) = split(prefix.prompt);
                    let whole = prefix.prompt - partial;
                    let logical = if position < whole { position / B } else { full + (position - whole) / B };
                    let tail = partial > 0 && logical == full;
                    let pieces = if sharing == Sharing::Requests { prefix.ids.len() as u32 } else { 0 };
                    let cached = (pieces * PREFIX_BLOCK_TOKENS / B).min(full);
                    let copied = if tail {
                        !it.own_tail && prefix.tail_holders > 1
                    } else if position < whole {
                        let alone = !prefix.open && prefix.branches == 1 && logical >= cached;
                        !it.copies.contains(&logical) && !alone
                    } else {
                        false
                    };
                    let done = tables.put(&mut it.branch, position, 5, &[byte]);
                    if copied && it.promise == 0 {
                        prop_assert_eq!(done, Err(KvError::Promise { need: 1, left: 0 }));
                        continue;
                    }
                    prop_assert_eq!(done.map(|place| place.copied), Ok(copied), "position {}", position);
                    it.promise -= u32::from(copied);
                    if copied && tail {
                        it.own_tail = true;
                        prefix.tail_holders -= 1;
                    } else if copied {
                        it.copies.insert(logical);
                    }
                    it.blocks[logical as usize][5] = byte;
                }
                Step::Release(at) => {
                    let mut it = branches.swap_remove(at.index(branches.len()));
                    let prefix = &mut prefixes[it.prefix];
                    tables.release(&mut it.branch).unwrap();
                    prop_assert_eq!(tables.release(&mut it.branch), Err(KvError::Branch));
                    prefix.branches -= 1;
                    prefix.tail_holders -= u32::from(split(prefix.prompt).1 > 0 && !it.own_tail);
                }
                Step::ReleasePrefix(_) if prefixes.is_empty() => {}
                Step::ReleasePrefix(at) => {
                    let at = at.index(prefixes.len());
                    let prefix = &mut prefixes[at];
                    prop_assert_eq!(tables.release_prefix(prefix.id).is_ok(), prefix.open);
                    if prefix.open {
                        prefix.open = false;
                        prefix.unmade = 0;
                        prefix.tail_holders -= u32::from(split(prefix.prompt).1 > 0);
                    }
                }
            }
            for it in &branches {
                let prefix = &prefixes[it.prefix];
                prop_assert_eq!(it.branch.promise(), it.promise);
                let (full, partial) = split(prefix.prompt);
                for (logical, want) in it.blocks.iter().enumerate() {
                    let logical = logical as u32;
                    let position =
                        if logical < full { logical * B } else { prefix.prompt - partial + (logical - full) * B };
                    let mut bytes = vec![0; B as usize];
                    tables.get(&it.branch, position, 0, &mut bytes).unwrap();
                    prop_assert_eq!(&bytes, want, "block {} of a branch", logical);
                }
            }
            // Each piece once, however many use it.
            let mut pieces: HashMap<(Vec<u32>, u32), u32> = HashMap::new();
            let (mut in_use, mut promised, mut rows, mut live) = (0, 0, branches.len() as u32, 0);
            for prefix in prefixes.iter().filter(|prefix| prefix.open || prefix.branches > 0) {
                let (full, _) = split(prefix.prompt);
                let mut cached = 0;
                if sharing == Sharing::Requests {
                    for k in 1..=prefix.ids.len() {
                        let tokens = (prefix.prompt - (k as u32 - 1) * PREFIX_BLOCK_TOKENS).min(PREFIX_BLOCK_TOKENS);
                        let blocks = split(tokens).0;
                        cached += blocks;
                        pieces.insert((prefix.ids[..k].to_vec(), tokens), blocks);
                    }
                }
                in_use += full - cached + u32::from(prefix.tail_holders > 0);
                promised += prefix.unmade * prefix.promise;
                rows += prefix.unmade;
                live += 1;
            }
            in_use += pieces.values().sum::<u32>();
            for it in &branches {
                let (full, partial) = split(prefixes[it.prefix].prompt);
                let shared_tail = u32::from(partial > 0 && !it.own_tail);
                in_use += it.blocks.len() as u32 - full - shared_tail + it.copies.len() as u32;
                promised += it.promise;
            }
            let counts = tables.counts();
            prop_assert_eq!(counts.committed, in_use + promised);
            prop_assert!(counts.committed <= blocks);
            prop_assert_eq!(counts.arena.in_use, u64::from(in_use + counts.cold));
            prop_assert_eq!((counts.branches, counts.prefixes), (rows, live));
        }
    }
}

#[test]
fn tables_that_only_count_have_no_memory_of_blocks() {
    let mut tables = Prefixes::new(PrefixConfig { block_bytes: 1 << 20, ..PrefixConfig::default() }).unwrap();
    let prefix = tables.admit(&Group { prompt_writes: 1, ..group(&[1, 2, 3], 1200, 2, 300) }).unwrap();
    let (mut one, mut two) = (tables.branch(prefix).unwrap(), tables.branch(prefix).unwrap());
    tables.append(&mut one, 300).unwrap();
    assert!(tables.write(&mut two, 0).unwrap().copied);
    tables.release(&mut one).unwrap();
    let mut byte = [1];
    tables.get(&two, 0, 9, &mut byte).unwrap();
    assert_eq!((byte, tables.arena().is_mapped()), ([0], false));
    tables.put(&mut two, 0, 9, &[5]).unwrap();
    tables.get(&two, 0, 9, &mut byte).unwrap();
    assert_eq!((byte, tables.arena().is_mapped()), ([5], true));
}

#[rstest]
#[case::odd_block(PrefixConfig { block_tokens: 48, ..PrefixConfig::default() }, "block_tokens is 48")]
#[case::large_block(PrefixConfig { block_tokens: 1024, ..PrefixConfig::default() }, "block_tokens is 1024")]
#[case::no_prefix(PrefixConfig { prefixes: 0, ..PrefixConfig::default() }, "prefixes is 0")]
#[case::few_nodes(PrefixConfig { nodes: 3, ..PrefixConfig::default() }, "nodes is 3")]
#[case::no_blocks(PrefixConfig { blocks: 0, ..PrefixConfig::default() }, "blocks is 0")]
fn bad_configurations_are_told(#[case] config: PrefixConfig, #[case] told: &str) {
    let error = Prefixes::new(config).err().unwrap().to_string();
    assert!(error.contains(told), "{error}");
}
