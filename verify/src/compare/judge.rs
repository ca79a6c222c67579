//! Holds one device's record to the reference's.

use std::ops::Range;

use super::divergence::{Divergence, FieldDifference, TokenDifference};
use super::record::{Answer, Record, read_logps, read_tokens};
use crate::groups::GroupJudge;
use crate::language::Reference;
use crate::oracle::{self, Oracle};
use crate::replay::ReplayPlan;
use doorbell_contract::{HwCompletion, HwDesc, Opcode, PolicyMode, Status};
use doorbell_engine::Step;
use doorbell_host::device::Device;
use rayon::prelude::*;

/// Rollouts that are held to the oracle at a time, each on whatever processor is free.
const AT_A_TIME: u32 = 64;

/// The first divergence of `device` in the order in which it posted completions, and how many rollout ids differ. For
/// the reference itself, what it does against a STOP's rule.
pub(super) fn judge(plan: &ReplayPlan, reference: Side<'_>, device: Side<'_>) -> (Option<Divergence>, u32) {
    let same = std::ptr::eq(reference.record, device.record);
    let language = plan.language();
    let versions = 1..=device.record.published().saturating_add(1);
    let oracle = versions.fold(Oracle::new(&plan.queue_config()), |oracle, version| match language {
        Some(language) => oracle.with_language(version, language.version.model.shape.context as u32),
        None => oracle.with_version(version, plan.salt(version)),
    });
    let mut judge = Judge { plan, oracle, reference, device, expected: Vec::new(), found: Vec::new() };
    let mut first: Option<Divergence> = None;
    let mut differing = 0;
    let mut taught = vec![].into_iter();
    for id in 0..plan.ids() {
        if language.is_some() && taught.len() == 0 {
            taught = judge.teach(id..plan.ids().min(id.saturating_add(AT_A_TIME))).into_iter();
        }
        // Where versions switch is every device's own, so each is held to the contract alone.
        let divergence = if language.is_some() && !plan.is_prefill(id) {
            taught.next().flatten().and_then(|taught| judge.sequence(id, taught))
        } else if plan.publishes() || language.is_some() {
            judge.alone(id)
        } else if same && plan.stop_after(id).is_none() {
            None
        } else {
            judge.rollout(id)
        };
        if let Some(divergence) = divergence {
            differing += 1;
            // What is missing has no place in the device's order; it comes last.
            let place = |divergence: &Divergence| divergence.ordinal.unwrap_or(usize::MAX);
            if first.as_ref().is_none_or(|first| place(&divergence) < place(first)) {
                first = Some(divergence);
            }
        }
    }
    // Where no group is opened, no completion closes one either.
    for request in 0..plan.requests() as u32 {
        if let Some(divergence) = judge.group(request) {
            differing += 1;
            if first.as_ref().is_none_or(|first| divergence.ordinal < first.ordinal) {
                first = Some(divergence);
            }
        }
    }
    (first, differing)
}

/// A device and what it did.
#[derive(Clone, Copy)]
pub(super) struct Side<'a> {
    pub record: &'a Record<'a>,
    pub device: &'a dyn Device,
}

/// A rollout of engine 1 as the device has it, and what the oracle says to each token, with those before it as the device has them.
struct Taught {
    /// The words of its token area; the first `made` are the device's.
    found: Vec<u32>,
    made: usize,
    reference: Reference,
    steps: Vec<Step>,
}

struct Judge<'a> {
    plan: &'a ReplayPlan,
    oracle: Oracle,
    reference: Side<'a>,
    device: Side<'a>,
    /// Token area of the rollout at hand, on the reference and on the device.
    expected: Vec<u32>,
    found: Vec<u32>,
}

impl Judge<'_> {
    fn rollout(&mut self, id: u32) -> Option<Divergence> {
        let both_complete = self.reference.record.is_complete() && self.device.record.is_complete();
        let mut expected = self.reference.record.answers(id);
        let mut found = self.device.record.answers(id);
        let mut desc = self.plan.first(id);
        let mut answers = Vec::new();
        loop {
            let at = Divergence { rollout_id: id, completion: answers.len(), ..Divergence::at(desc) };
            match (expected.next(), found.next()) {
                (None, None) => break,
                // A replay that ended early lacks completions; its failure says so.
                (Some(_), None) | (None, Some(_)) if !both_complete => break,
                (Some(expected), None) => {
                    return Some(Divergence {
                        desc: expected.desc,
                        expected: Some(expected.completion),
                        ..at
                    });
                }
                (None, Some(found)) => {
                    let (ordinal, completion) = (Some(found.ordinal), Some(found.completion));
                    return Some(Divergence { desc: found.desc, ordinal, found: completion, ..at });
                }
                (Some(expected), Some(found)) => {
                    let expected = self.expected_completion(&expected, &found);
                    let fields = FieldDifference::between(&expected, &found.completion);
                    answers.push(found);
                    if !fields.is_empty() {
                        let mut divergence = Divergence {
                            desc: found.desc,
                            ordinal: Some(found.ordinal),
                            expected: Some(expected),
                            found: Some(found.completion),
                            fields,
                            ..at.clone()
                        };
                        // What follows from the fields, such as tokens of a continuation that never came, is left out.
                        let own = |&(owner, token): &(usize, TokenDifference)| {
                            owner == at.completion && !token.beyond
                        };
                        divergence.token = self.token(id, &answers).filter(own).map(|(_, token)| token);
                        return Some(divergence);
                    }
                    desc = found.desc;
                }
            }
        }
        let (completion, token) = self.token(id, &answers)?;
        let answer = answers.get(completion)?;
        Some(Divergence {
            expected: Some(answer.completion),
            token: Some(token),
            ..at_answer(id, completion, answer)
        })
    }

    /// The descriptor that a rollout should have had next, and has not.
    fn missing(&self, id: u32, answers: &[Answer]) -> Option<Divergence> {
        let desc = match answers.last() {
            Some(last) => self.plan.next(&last.desc, &last.completion)?,
            None => self.plan.first(id),
        };
        Some(Divergence { completion: answers.len(), rollout_id: id, ..Divergence::at(desc) })
    }

    /// What the device did with a rollout, held to the contract, at the lengths at which the device says that it was cut (R20).
    fn alone(&mut self, id: u32) -> Option<Divergence> {
        let answers: Vec<Answer> = self.device.record.answers(id).collect();
        let at = |completion: usize, answer: &Answer| at_answer(id, completion, answer);
        read_tokens(self.plan, self.device.device, id, &mut self.found).ok()?;
        self.expected.clear();
        self.expected.resize(self.found.len(), 0);
        for (k, answer) in answers.iter().enumerate() {
            let expected = self.answer(answer);
            let fields = FieldDifference::between(&expected.completion, &answer.completion);
            if !fields.is_empty() {
                return Some(Divergence { expected: Some(expected.completion), fields, ..at(k, answer) });
            }
            let start = self.area_word(id, &answer.desc);
            if !expected.tokens.is_empty() {
                self.expected[start..start + expected.tokens.len()].copy_from_slice(&expected.tokens);
            }
        }
        if !self.device.record.is_complete() {
            return None;
        }
        if let Some(missing) = self.missing(id, &answers) {
            return Some(missing);
        }
        let (completion, token) = self.first_token(id, &answers, self.found.len(), produced(&answers))?;
        let answer = answers.get(completion)?;
        Some(Divergence { expected: Some(answer.completion), token: Some(token), ..at(completion, answer) })
    }

    /// Reads these rollouts, and asks the oracle: each on whatever processor is free. `None` where there is nothing to ask.
    fn teach(&self, ids: Range<u32>) -> Vec<Option<Taught>> {
        let (plan, device) = (self.plan, self.device);
        let Some(language) = plan.language() else { return vec![] };
        let read = |id: u32| {
            let mut found = vec![];
            read_tokens(plan, device.device, id, &mut found).ok()?;
            let answers = device.record.answers(id);
            let decodes = answers.filter(|answer| answer.desc.opcode == Opcode::Decode as u8);
            // A completion may say what it likes; no more than the area holds can be looked at.
            let made = decodes.map(|answer| answer.tokens() as usize).sum::<usize>().min(found.len());
            Some((id, found, made))
        };
        let read: Vec<_> = ids.filter(|&id| !plan.is_prefill(id)).map(read).collect();
        let vocabulary = language.version.model.shape.vocabulary as u32;
        let taught = |(id, found, made): (u32, Vec<u32>, usize)| {
            // Behind a token that is none the device could not go on either.
            let known = found[..made].iter().position(|&token| token >= vocabulary).unwrap_or(made);
            let mut reference = Reference::new(&language.version, &plan.prompt(plan.request_of(id)));
            let prompt = reference.tokens.len();
            reference.tokens.extend(&found[..known]);
            let first = plan.first(id);
            let spans = [(usize::MAX, &language.version)];
            let mut steps = reference.teach(&spans, language.sampling(first.seed, id), prompt);
            steps.resize((first.seq_len + first.max_tokens) as usize, Step { token: 0, eos: false, logp: 0 });
            Taught { found, made, reference, steps }
        };
        read.into_par_iter().map(|read| read.map(taught)).collect()
    }

    /// What the device did with a rollout of engine 1, held to the oracle: each token to those before it as the device has them, log-probabilities,
    /// and keys and values (R27).
    fn sequence(&mut self, id: u32, taught: Taught) -> Option<Divergence> {
        let language = self.plan.language()?;
        let Taught { found, made, reference, steps } = taught;
        self.found = found;
        let answers: Vec<Answer> = self.device.record.answers(id).collect();
        self.expected.clear();
        self.expected.resize(self.found.len(), 0);
        let region = self.device.device.token_shard(self.plan.area(id)?.start);
        let logps = self.device.device.logp_regions();
        for (k, answer) in answers.iter().enumerate() {
            let start = self.area_word(id, &answer.desc);
            let own = steps.get(start..start + answer.desc.max_tokens as usize).unwrap_or_default();
            let cut = (answer.completion.status == Status::Stopped as u8
                && self.plan.may_be_stopped(&answer.desc))
            .then_some((answer.tokens(), Status::Stopped));
            let expected = match answer.desc.opcode {
                opcode if opcode == Opcode::Decode as u8 => self.oracle.stepped(&answer.desc, own, cut),
                _ => self.oracle.answer(&answer.desc),
            };
            let end = start + expected.tokens.len();
            if end > self.expected.len() {
                break;
            }
            self.expected[start..end].copy_from_slice(&expected.tokens);
            let fields = FieldDifference::between(&expected.completion, &answer.completion);
            let mut found = vec![0; expected.logps.len().min(answer.tokens() as usize)];
            if !found.is_empty()
                && let Err(what) = read_logps(logps.get(region), answer.desc.delta_offset, &mut found)
            {
                return Some(Divergence { broken: Some(what), ..at_answer(id, k, answer) });
            }
            let unlikely = found.iter().zip(&expected.logps).position(|(&found, &logp)| found as i32 != logp);
            let at = at_answer(id, k, answer);
            if !fields.is_empty() {
                let token = self.first_token(id, &answers, start + found.len(), made);
                let token = token.filter(|(owner, _)| *owner == k).map(|(_, token)| token);
                return Some(Divergence { expected: Some(expected.completion), fields, token, ..at });
            }
            if let Some(index) = unlikely {
                let (found, expected) = (found[index] as i32, expected.logps[index]);
                let what =
                    format!("R6: the log-probability of token {index} is {found}, expected {expected}");
                return Some(Divergence { broken: Some(what), expected: Some(answer.completion), ..at });
            }
        }
        if self.device.record.is_complete()
            && let Some(missing) = self.missing(id, &answers)
        {
            return Some(missing);
        }
        let last = answers.last()?;
        let at = at_answer(id, answers.len() - 1, last);
        if let Some((completion, token)) = self.first_token(id, &answers, self.found.len(), made) {
            let answer = answers.get(completion)?;
            let at = at_answer(id, completion, answer);
            return Some(Divergence { expected: Some(answer.completion), token: Some(token), ..at });
        }
        let regions = self.device.device.language_regions();
        let blocks = regions.get(region).ok_or("the device has no regions of a language model".to_owned());
        let blocks =
            blocks.and_then(|regions| self.plan.blocks(id, regions).map_err(|error| error.to_string()));
        let blocks = match blocks {
            Ok(blocks) => blocks,
            Err(what) => return Some(Divergence { broken: Some(format!("R27: {what}")), ..at }),
        };
        let held = if made == 0 { reference.whole() } else { reference.made() };
        let different = reference.kv_difference(&language.version, &blocks, 0, held)?;
        Some(Divergence { broken: Some(different.to_string()), expected: Some(last.completion), ..at })
    }

    /// The first completion of a group that breaks R17.
    fn group(&self, request: u32) -> Option<Divergence> {
        if !self.device.record.is_complete() {
            return None;
        }
        let ids = self.plan.ids_per_request();
        let answers = |id: u32| self.device.record.answers(id).zip(0..);
        let mut answers: Vec<(Answer, usize)> =
            (request * ids..(request + 1) * ids).flat_map(answers).collect();
        answers.sort_by_key(|(answer, _)| answer.ordinal);
        let mut judge = GroupJudge::default();
        // Its PREFILL was submitted first, and a STOP of all of it last.
        let rank = |desc: &HwDesc| match desc.opcode {
            opcode if opcode == Opcode::Prefill as u8 => 0,
            opcode if opcode == Opcode::Stop as u8 => 2,
            _ => 1,
        };
        let mut submitted: Vec<HwDesc> = answers.iter().map(|(answer, _)| answer.desc).collect();
        submitted.sort_by_key(rank);
        submitted.iter().for_each(|desc| judge.submitted(desc));
        answers.iter().find_map(|(answer, completion)| {
            let broken = judge.completed(&answer.desc, &answer.completion).err()?;
            Some(Divergence {
                completion: *completion,
                ordinal: Some(answer.ordinal),
                found: Some(answer.completion),
                expected: Some(answer.completion),
                broken: Some(broken),
                ..Divergence::at(answer.desc)
            })
        })
    }

    /// What the device's completion must be: the reference's, or where a STOP may have cut it, what the policy says
    /// for the length that the device reached.
    fn expected_completion(&self, expected: &Answer, found: &Answer) -> HwCompletion {
        if !self.plan.may_be_stopped(&found.desc) {
            return expected.completion;
        }
        self.answer(found).completion
    }

    /// The first token word at which the area of `id` differs, with the index of the completion to which it belongs.
    ///
    /// The words behind the tokens of a rollout that has ended must be as untouched as on the reference.
    fn token(&mut self, id: u32, answers: &[Answer]) -> Option<(usize, TokenDifference)> {
        // A device whose tokens cannot be read has failed, and its record says so.
        read_tokens(self.plan, self.device.device, id, &mut self.found).ok()?;
        read_tokens(self.plan, self.reference.device, id, &mut self.expected).ok()?;
        let complete = self.reference.record.is_complete() && self.device.record.is_complete();
        let produced = produced(answers);
        if let Some(answer) = answers.iter().find(|answer| self.plan.may_be_stopped(&answer.desc)) {
            let start = self.area_word(id, &answer.desc);
            let tokens = self.answer(answer).tokens;
            self.expected[start..].fill(0);
            self.expected[start..start + tokens.len()].copy_from_slice(&tokens);
        }
        let words = if complete { self.found.len() } else { produced };
        self.first_token(id, answers, words, produced)
    }

    /// The first of the area's `words` that is not as expected, with the index of the completion to which it belongs; from
    /// `produced` on, the words are behind the tokens.
    fn first_token(
        &self,
        id: u32,
        answers: &[Answer],
        words: usize,
        produced: usize,
    ) -> Option<(usize, TokenDifference)> {
        let word = (0..words).find(|&word| self.expected[word] != self.found[word])?;
        let owner = answers
            .iter()
            .rposition(|answer| answer.tokens() > 0 && self.area_word(id, &answer.desc) <= word);
        let completion = owner.unwrap_or(0);
        let desc = answers.get(completion).map_or_else(|| self.plan.first(id), |answer| answer.desc);
        let index = word - self.area_word(id, &desc);
        let difference = TokenDifference {
            index: index as u32,
            position: desc.seq_len.wrapping_add(index as u32),
            offset: self.plan.area(id)?.start + 4 * word as u64,
            beyond: word >= produced,
            expected: self.expected[word],
            found: self.found[word],
        };
        Some((completion, difference))
    }

    /// Where the tokens of `desc` begin in the area of its rollout, in words.
    fn area_word(&self, id: u32, desc: &HwDesc) -> usize {
        let start = self.plan.area(id).map_or(0, |area| area.start);
        (desc.delta_offset.saturating_sub(start) / 4) as usize
    }

    /// What the contract says of a DECODE that a STOP, or a publish, may have cut: at the length that the device reached, if it
    /// says that it was. A length beyond what that can reach is not taken over, so that it shows as a difference.
    fn answer(&self, answer: &Answer) -> oracle::Answer {
        let aborts = self.plan.publishes() && self.plan.options().publish_mode == PolicyMode::Abort;
        let cut = match Status::try_from(answer.completion.status) {
            Ok(Status::Stopped) if aborts || self.plan.may_be_stopped(&answer.desc) => Some(Status::Stopped),
            Ok(Status::Superseded) if self.plan.publishes() => Some(Status::Superseded),
            _ => None,
        };
        match cut {
            Some(status) => self.oracle.cut(&answer.desc, answer.tokens(), status),
            None => self.oracle.answer(&answer.desc),
        }
    }
}

/// A divergence at the `completion`-th answer of a rollout.
fn at_answer(id: u32, completion: usize, answer: &Answer) -> Divergence {
    Divergence {
        rollout_id: id,
        completion,
        ordinal: Some(answer.ordinal),
        found: Some(answer.completion),
        ..Divergence::at(answer.desc)
    }
}

/// Tokens that the completions say were added.
fn produced(answers: &[Answer]) -> usize {
    answers.iter().map(|answer| answer.tokens() as usize).sum()
}
