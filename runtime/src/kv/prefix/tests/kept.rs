//! Pieces that their tokens name, and blocks of answers that are kept.

use super::*;

const BLOCK: u32 = 4;

fn tables(blocks: u32, nodes: u32) -> Prefixes {
    Prefixes::new(PrefixConfig {
        blocks,
        block_tokens: BLOCK,
        sharing: Sharing::Tokens,
        answer_start: AnswerStart::SamePage,
        prefixes: 5,
        branches: 9,
        prompt_tokens: 16,
        answer_tokens: 12,
        nodes,
        cap: None,
    })
    .unwrap()
}

fn asks(tokens: &[u32], answer_tokens: u32) -> Group<'_> {
    Group {
        prefix: tokens,
        prompt_tokens: tokens.len() as u32,
        domain: 0,
        salt: 0,
        members: 1,
        answer_tokens,
    }
}

/// Answers a prompt, keeps the answer, and says from which position on the prompt was to be filled.
fn answer(tables: &mut Prefixes, group: &Group<'_>, answer: &[u32]) -> u32 {
    let prefix = tables.admit(group).unwrap();
    let from = tables.claim(prefix).unwrap().unwrap();
    tables.fill(prefix, group.prompt_tokens, 1).unwrap();
    let mut branch = tables.branch(prefix).unwrap();
    tables.release_prefix(prefix).unwrap();
    tables.append(&mut branch, answer.len() as u32).unwrap();
    let first = (group.prompt_tokens / BLOCK * BLOCK) as usize;
    let own = [&group.prefix[first.min(group.prefix.len())..], answer].concat();
    tables.keep(&mut branch, &own, 1).unwrap();
    tables.release(&mut branch).unwrap();
    from
}

#[test]
fn a_prompt_finds_the_answer_that_it_goes_on_from() {
    let mut tables = tables(16, 16);
    assert_eq!(answer(&mut tables, &asks(&[1, 2, 3, 4, 5, 6], 7), &[7, 8, 9, 10, 11]), 0);
    let counts = tables.counts();
    assert_eq!(
        (counts.committed, counts.cold, counts.arena.in_use),
        (0, 2, 2),
        "two whole blocks of eleven positions"
    );
    assert_eq!(answer(&mut tables, &asks(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 0], 1), &[]), 8);
    assert_eq!(answer(&mut tables, &asks(&[1, 2, 3, 4, 5, 6, 7, 7, 9, 0], 1), &[]), 4);
    assert_eq!(answer(&mut tables, &Group { salt: 1, ..asks(&[1, 2, 3, 4], 1) }, &[]), 0);
    assert_eq!(answer(&mut tables, &Group { domain: 1, ..asks(&[1, 2, 3, 4], 1) }, &[]), 0);
}

#[test]
fn after_a_flush_nothing_is_found_and_nothing_is_left() {
    let mut tables = tables(16, 16);
    let prompt = [1, 2, 3, 4, 5, 6, 7, 8];
    answer(&mut tables, &asks(&prompt, 4), &[9, 9, 9, 9]);
    let used = tables.admit(&asks(&prompt, 4)).unwrap();
    let mut branch = tables.branch(used).unwrap();
    tables.flush().unwrap();
    assert_eq!(tables.counts().cold, 0, "the answer's block was cold");
    assert_eq!(answer(&mut tables, &asks(&prompt, 4), &[]), 0);
    // What was in use stays until it is not, and is not kept then.
    tables.append(&mut branch, 4).unwrap();
    tables.release_prefix(used).unwrap();
    tables.keep(&mut branch, &[9, 9, 9, 9], 1).unwrap();
    tables.release(&mut branch).unwrap();
    let counts = tables.counts();
    assert_eq!((counts.committed, counts.cold, counts.arena.in_use), (0, 2, 2));
    assert_eq!(answer(&mut tables, &asks(&prompt, 4), &[]), 8);
    assert_eq!(answer(&mut tables, &asks(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 9, 9], 4), &[]), 8);
}

/// Which tokens, with what before them, made a position: what a block holds of it.
fn made(kind: (u64, u64, u32), tokens: &[u32]) -> u64 {
    let first = (kind.0 * 31 + kind.1) * 31 + u64::from(kind.2);
    tokens
        .iter()
        .fold(first + 7, |hash, &token| (hash ^ u64::from(token)).wrapping_mul(0x9E37_79B9_7F4A_7C15))
}

#[derive(Clone, Debug)]
enum Step {
    Admit { tokens: Vec<u32>, members: u32, answer: u32, domain: u64, salt: u64 },
    Append(prop::sample::Index, Vec<u32>),
    Release(prop::sample::Index),
    Flush,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let pick = any::<prop::sample::Index>;
    let tokens = || prop::collection::vec(0u32..2, 0..16);
    let admit = (tokens(), 1u32..4, 0u32..12, 0u64..2, 0u64..2).prop_map(
        |(tokens, members, answer, domain, salt)| Step::Admit { tokens, members, answer, domain, salt },
    );
    let append =
        (pick(), prop::collection::vec(0u32..2, 0..9)).prop_map(|(at, tokens)| Step::Append(at, tokens));
    prop::collection::vec(
        prop_oneof![6 => admit, 9 => append, 6 => pick().prop_map(Step::Release), 1 => Just(Step::Flush)],
        1..120,
    )
}

/// A member, with its tokens from the prompt's first on.
struct Member {
    branch: Branch,
    kind: (u64, u64, u32),
    tokens: Vec<u32>,
    prompt: usize,
    /// It is kept, and grows no more.
    over: bool,
}

impl Member {
    fn keep(&mut self, tables: &mut Prefixes) {
        let own = self.prompt / BLOCK as usize * BLOCK as usize;
        tables.keep(&mut self.branch, &self.tokens[own..], 1).unwrap();
        self.over = true;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Whatever is found holds what the prompt's own tokens make, under its domain and salt and since the last flush; nobody's blocks change, and
    /// all come back.
    #[test]
    fn what_is_found_is_what_would_have_been_made(steps in steps(), blocks in 8u32..30, nodes in 4u32..12) {
        let mut tables = tables(blocks, nodes);
        let mut memory = vec![[0u64; BLOCK as usize]; blocks as usize];
        let mut members: Vec<Member> = vec![];
        let mut flushes = 0;
        for step in steps {
            match step {
                Step::Admit { tokens, members: count, answer, domain, salt } => {
                    let group = Group { prefix: &tokens, prompt_tokens: tokens.len() as u32, domain, salt, members: count, answer_tokens: answer };
                    let before = tables.counts();
                    let Ok(prefix) = tables.admit(&group) else {
                        prop_assert_eq!(before, tables.counts(), "a refusal changes nothing");
                        continue;
                    };
                    let kind = (domain, salt, flushes);
                    let from = tables.claim(prefix).unwrap().unwrap() as usize;
                    let mut table = vec![];
                    tables.prompt_table(prefix, &mut table).unwrap();
                    for place in 0..tokens.len() {
                        let held = &mut memory[table[place / BLOCK as usize] as usize][place % BLOCK as usize];
                        let want = made(kind, &tokens[..=place]);
                        if place < from {
                            prop_assert_eq!(*held, want, "position {} was found", place);
                        }
                        *held = want;
                    }
                    tables.fill(prefix, tokens.len() as u32, 1).unwrap();
                    for _ in 0..count {
                        let branch = tables.branch(prefix).unwrap();
                        members.push(Member { branch, kind, tokens: tokens.clone(), prompt: tokens.len(), over: false });
                    }
                    tables.release_prefix(prefix).unwrap();
                }
                Step::Append(..) | Step::Release(_) if members.is_empty() => {}
                Step::Append(at, _) if members[at.index(members.len())].over => {}
                Step::Append(at, tokens) => {
                    let at = at.index(members.len());
                    let member = &mut members[at];
                    let Ok(copied) = tables.append(&mut member.branch, tokens.len() as u32) else { continue };
                    if let Some(copied) = copied {
                        memory[copied.to as usize] = memory[copied.from as usize];
                    }
                    for token in tokens {
                        let place = member.tokens.len() as u32;
                        member.tokens.push(token);
                        let block = tables.block_of(&member.branch, place).unwrap();
                        memory[block as usize][(place % BLOCK) as usize] = made(member.kind, &member.tokens);
                    }
                }
                Step::Release(at) => {
                    // First it is kept, while it has its blocks; the next time it is released.
                    let at = at.index(members.len());
                    if members[at].over {
                        tables.release(&mut members.swap_remove(at).branch).unwrap();
                    } else {
                        members[at].keep(&mut tables);
                    }
                }
                Step::Flush => {
                    tables.flush().unwrap();
                    flushes += 1;
                }
            }
            for member in &members {
                for place in 0..member.tokens.len() {
                    let block = tables.block_of(&member.branch, place as u32).unwrap();
                    let held = memory[block as usize][place % BLOCK as usize];
                    prop_assert_eq!(held, made(member.kind, &member.tokens[..=place]), "position {} of a member", place);
                }
            }
            let counts = tables.counts();
            prop_assert!(counts.committed <= blocks);
            prop_assert!(counts.arena.in_use - u64::from(counts.cold) <= u64::from(counts.committed));
        }
        for mut member in members {
            member.keep(&mut tables);
            tables.release(&mut member.branch).unwrap();
        }
        let counts = tables.counts();
        prop_assert_eq!((counts.committed, counts.arena.in_use), (0, u64::from(counts.cold)));
        tables.flush().unwrap();
        prop_assert_eq!((tables.counts().arena.in_use, tables.counts().cold), (0, 0));
    }
}
