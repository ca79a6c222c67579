use std::collections::HashMap;

use super::super::branch::{Branch, Copied};
use super::*;
use proptest::prelude::*;
use rstest::rstest;

mod kept;

const B: u32 = 256;

/// Blocks of 256 tokens, so two for each piece of a prompt.
fn config(sharing: Sharing, answer_start: AnswerStart, blocks: u32) -> PrefixConfig {
    PrefixConfig {
        blocks,
        block_tokens: B,
        sharing,
        answer_start,
        prefixes: 5,
        branches: 12,
        prompt_tokens: 6 * B,
        answer_tokens: 3 * B,
        nodes: 6,
        cap: None,
    }
}

fn group(prefix: &[u32], prompt_tokens: u32, members: u32, answer_tokens: u32) -> Group<'_> {
    Group { prefix, prompt_tokens, domain: 0, salt: 0, members, answer_tokens }
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
fn flaw15_a_member_gets_a_copy_of_the_block_that_others_hold() {
    let mut tables = Prefixes::new(config(Sharing::Group, AnswerStart::SamePage, 16)).unwrap();
    let prefix = tables.admit(&group(&[], 300, 2, 10)).unwrap();
    let (mut one, mut two) = (tables.branch(prefix).unwrap(), tables.branch(prefix).unwrap());
    tables.release_prefix(prefix).unwrap();
    let shared = tables.block_of(&one, 299).unwrap();
    assert_eq!(tables.block_of(&two, 299), Ok(shared));
    let Some(Copied { from, to }) = tables.append(&mut one, 1).unwrap() else { panic!("nothing was copied") };
    assert!(from == shared && to != shared);
    assert_eq!(tables.block_of(&one, 299), Ok(to));
    assert_eq!(tables.block_of(&two, 299), Ok(shared), "the other member has what it had");
    assert_eq!(tables.append(&mut one, 1), Ok(None), "once");
    // Now it is the last holder.
    assert_eq!(tables.append(&mut two, 1), Ok(None));
    assert_eq!(tables.block_of(&two, 300), Ok(shared));
    // The full block of the prompt is nobody's to write, and shared.
    assert_eq!(tables.block_of(&one, 0), tables.block_of(&two, 0));
}

/// Which block holds each position that a token still sees is never the block of another position that it sees, nor the one that is written.
#[rstest]
fn an_answer_with_a_cap_takes_blocks_in_turns(
    #[values(1, 2, 31, 32, 33, 64, 100)] window: u32,
    #[values(0, 32, 96)] sinks: u32,
    #[values(1, 31, 32, 40, 70, 200)] prompt: u32,
) {
    let cap = Some(AnswerCap { window, sinks });
    let longest = 500;
    let config = PrefixConfig {
        block_tokens: 32,
        sharing: Sharing::Group,
        prompt_tokens: 200,
        answer_tokens: longest,
        prefixes: 1,
        branches: 2,
        cap,
        ..config(Sharing::Group, AnswerStart::SamePage, 64)
    };
    let mut tables = Prefixes::new(config).unwrap();
    let prefix = tables.admit(&group(&[], prompt, 2, longest)).unwrap();
    let most = sinks.div_ceil(32).saturating_sub(prompt / 32) + window.div_ceil(32) + 1;
    let promised = most.min((prompt % 32 + longest).div_ceil(32));
    assert_eq!(tables.counts().committed, prompt.div_ceil(32) + 2 * promised);
    let mut branches = [tables.branch(prefix).unwrap(), tables.branch(prefix).unwrap()];
    tables.release_prefix(prefix).unwrap();
    let mut held = [vec![], vec![]];
    let mut length = prompt;
    for tokens in [1u32, 7, 32, 5, 64, 3].into_iter().cycle() {
        if length + tokens > prompt + longest {
            break;
        }
        for (branch, held) in branches.iter_mut().zip(&mut held) {
            tables.append(branch, tokens).unwrap();
            tables.table(branch, held).unwrap();
        }
        for position in length..length + tokens {
            let seen = |at: u32| at < sinks || at + window > position;
            for at in (0..position).filter(|&at| seen(at)) {
                let same = held[0][at as usize / 32] == held[0][position as usize / 32];
                assert_eq!(same, at / 32 == position / 32, "position {position} overwrites {at}");
            }
        }
        length += tokens;
        let own = |held: &[u32]| held[(prompt / 32) as usize..].to_vec();
        assert!(
            own(&held[0]).iter().all(|block| !own(&held[1]).contains(block)),
            "members share nothing of their own"
        );
    }
    assert!(tables.counts().arena.in_use <= u64::from(prompt.div_ceil(32) + 2 * promised));
    for branch in &mut branches {
        tables.release(branch).unwrap();
    }
    assert_eq!((tables.counts().arena.in_use, tables.counts().committed), (0, 0));
}

#[test]
fn positions_beyond_the_sequence_and_blocks_beyond_the_promise_are_errors() {
    let mut tables = Prefixes::new(config(Sharing::Group, AnswerStart::NewBlock, 16)).unwrap();
    let prefix = tables.admit(&group(&[], 300, 1, 10)).unwrap();
    let mut branch = tables.branch(prefix).unwrap();
    assert_eq!(tables.block_of(&branch, 300), Err(KvError::Position { position: 300, tokens: 300 }));
    assert_eq!(tables.append(&mut branch, 10), Ok(None));
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
    assert_eq!(tables.admit(&group(&[9], 512, 1, 1)), Err(refused));
    // The same prompt costs nothing but its answer.
    let same = tables.admit(&group(&[1, 2], 1024, 1, 1)).unwrap();
    tables.append(&mut branch, 1).unwrap();
    tables.release_prefix(same).unwrap();
    tables.release(&mut branch).unwrap();
    assert!(tables.admit(&group(&[9], 512, 1, 1)).is_ok());
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
    let whole = tables.admit(&group(&[], 1, 3, 3 * B)).unwrap();
    let refused = KvError::Full { what: "blocks", need: 2, available: 0 };
    assert_eq!(tables.admit(&group(&[], 1, 1, 1)), Err(refused));
    assert_eq!(tables.counts().prefixes, 1);
    // Members that are never made give their promise back.
    tables.release_prefix(whole).unwrap();
    assert!(tables.admit(&group(&[], 1, 1, 1)).is_ok());
}

/// What lies in a block of a prompt: it depends on all ids up to its own, or, where there is none, on what only this prompt
/// has.
fn of_prompt(ids: &[u32], salt: u64, logical: u32) -> u64 {
    let piece = (logical * B / PREFIX_BLOCK_TOKENS) as usize;
    let path =
        ids.get(..=piece).map_or(salt, |path| path.iter().fold(1, |hash, &id| hash * 3 + u64::from(id)));
    path << 8 | u64::from(logical)
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
    /// What lies in its blocks, prompt first.
    blocks: Vec<u64>,
    own_tail: bool,
    promise: u32,
    answer: u32,
}

#[derive(Clone, Debug)]
enum Step {
    Admit { ids: Vec<u32>, prompt: u32, members: u32, answer: u32 },
    Branch(prop::sample::Index),
    Append(prop::sample::Index, u32),
    Release(prop::sample::Index),
    ReleasePrefix(prop::sample::Index),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let pick = any::<prop::sample::Index>;
    let ids = prop::collection::vec(0u32..2, 0..4);
    let prompt = prop_oneof![0..=6 * B, (0u32..=6).prop_map(|blocks| blocks * B)];
    let admit = (ids, prompt, 0u32..5, 0..=3 * B).prop_map(|(ids, prompt, members, answer)| Step::Admit {
        ids,
        prompt,
        members,
        answer,
    });
    prop::collection::vec(
        prop_oneof![
            3 => admit,
            5 => pick().prop_map(Step::Branch),
            5 => (pick(), 0..2 * B).prop_map(|(at, tokens)| Step::Append(at, tokens)),
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

    /// Contents, copies, promises and counts, against members that have everything to themselves.
    #[test]
    fn tables_do_what_members_with_everything_to_themselves_do((sharing, start, blocks) in shape(), steps in steps()) {
        let mut tables = Prefixes::new(config(sharing, start, blocks)).unwrap();
        // What whoever has the blocks' memory has written.
        let mut memory = vec![0u64; blocks as usize];
        let mut written = 1 << 32;
        let mut prefixes: Vec<NaivePrefix> = vec![];
        let mut branches: Vec<NaiveBranch> = vec![];
        let split = |prompt: u32| match start {
            AnswerStart::NewBlock => (prompt.div_ceil(B), 0),
            AnswerStart::SamePage => (prompt / B, prompt % B),
        };
        for step in steps {
            match step {
                Step::Admit { mut ids, prompt, members, answer } => {
                    let (full, partial) = split(prompt);
                    ids.truncate(prompt.div_ceil(PREFIX_BLOCK_TOKENS) as usize);
                    let group = group(&ids, prompt, members, answer);
                    let before = tables.counts();
                    let admitted = tables.admit(&group);
                    let after = tables.counts();
                    let promise = (partial + answer).div_ceil(B);
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
                    let salt = prefixes.len() as u64 | 1 << 40;
                    let row = tables.prompt(id.slot())[..full as usize].iter().copied();
                    let tail = tables.slots[id.slot() as usize].tail;
                    for (logical, block) in (0..).zip(row.chain(tail)) {
                        let (place, content) = (&mut memory[block as usize], of_prompt(&ids, salt, logical));
                        if logical < found {
                            prop_assert_eq!(*place, content, "block {} was found", logical);
                        }
                        *place = content;
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
                    let salt = at as u64 | 1 << 40;
                    let blocks = (0..prefix.prompt.div_ceil(B)).map(|k| of_prompt(&prefix.ids, salt, k)).collect();
                    branches.push(NaiveBranch {
                        branch, prefix: at, blocks, own_tail: false, promise: prefix.promise, answer: 0,
                    });
                }
                Step::Append(..) | Step::Release(_) if branches.is_empty() => {}
                Step::Append(at, tokens) => {
                    let at = at.index(branches.len());
                    let it = &mut branches[at];
                    let prefix = &mut prefixes[it.prefix];
                    let (first, partial) = split(prefix.prompt);
                    let row = |answer: u32| (partial + answer).div_ceil(B);
                    let copies = partial > 0 && it.answer == 0 && tokens > 0 && !it.own_tail && prefix.tail_holders > 1;
                    let need = row(it.answer + tokens) - row(it.answer) + u32::from(copies);
                    let done = tables.append(&mut it.branch, tokens);
                    let fits = need <= it.promise && row(it.answer + tokens) <= 4;
                    prop_assert_eq!(done.is_ok(), fits, "{:?}: {} of {}", done, need, it.promise);
                    let Ok(copied) = done else { continue };
                    prop_assert_eq!(copied.is_some(), copies);
                    if let Some(Copied { from, to }) = copied {
                        memory[to as usize] = memory[from as usize];
                        it.own_tail = true;
                        prefix.tail_holders -= 1;
                    }
                    it.promise -= need;
                    // The tokens are written: into the block that they begin in, and those behind.
                    let begin = first + (partial + it.answer) / B;
                    it.answer += tokens;
                    let end = if tokens == 0 { begin } else { first + row(it.answer) };
                    for k in begin..end {
                        let position = prefix.prompt - partial + (k - first) * B;
                        let block = tables.block_of(&it.branch, position).unwrap();
                        written += 1;
                        memory[block as usize] = written;
                        it.blocks.resize(it.blocks.len().max(k as usize + 1), 0);
                        it.blocks[k as usize] = written;
                    }
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
                for (logical, &want) in (0..).zip(&it.blocks) {
                    let position =
                        if logical < full { logical * B } else { prefix.prompt - partial + (logical - full) * B };
                    let block = tables.block_of(&it.branch, position).unwrap();
                    prop_assert_eq!(memory[block as usize], want, "block {} of a branch", logical);
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
                in_use += it.blocks.len() as u32 - full - shared_tail;
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
