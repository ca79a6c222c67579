//! What is kept of a rollout, and its bytes.

use std::fmt;

use doorbell_contract::PREFIX_NONE;

use crate::reward::Scorer;
use crate::rollout::RolloutId;

/// How a rollout ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Outcome {
    /// It used up its budget of tokens.
    Completed = 0,
    /// The device saw an end of sequence.
    Eos = 1,
    /// A judge, or a RESIDENT device, ended it by its score.
    Rejected = 2,
    /// It was stopped, and what it had is kept.
    Stopped = 3,
}

impl Outcome {
    /// All, in the order of their codes.
    pub const ALL: [Outcome; 4] = [Self::Completed, Self::Eos, Self::Rejected, Self::Stopped];

    /// Its name in tables and in Parquet.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Eos => "eos",
            Self::Rejected => "rejected",
            Self::Stopped => "stopped",
        }
    }

    fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Tokens in a row that come from one version of the policy (R18).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// The version.
    pub version: u16,
    /// The first of its tokens, counted within the answer.
    pub first: u32,
}

/// What a rollout is worth beside the others of its group: group-relative policy optimisation (Shao et al., DeepSeekMath, 2024).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GroupScore {
    /// Mean score of the members that have a trajectory.
    pub mean: f64,
    /// The score of this one, less the mean, over their standard deviation; 0 if they all have the same.
    pub advantage: f64,
}

impl GroupScore {
    /// Mean and standard deviation (of all that there are, not of a sample) of scores in Q16.16.
    pub fn statistics(scores: impl Iterator<Item = i32> + Clone) -> (f64, f64) {
        let count = scores.clone().count().max(1) as f64;
        let scores = scores.map(|score| f64::from(score) / 65536.0);
        let mean = scores.clone().sum::<f64>() / count;
        let variance = scores.map(|score| (score - mean) * (score - mean)).sum::<f64>() / count;
        (mean, variance.sqrt())
    }

    /// Of a member with this score, Q16.16.
    pub fn of(score: i32, (mean, deviation): (f64, f64)) -> GroupScore {
        let above = f64::from(score) / 65536.0 - mean;
        GroupScore { mean, advantage: if deviation > 0.0 { above / deviation } else { 0.0 } }
    }
}

/// A rollout that is to be stored: all of it but its tokens, their log-probabilities and its spans, which stay where they are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Finished {
    /// The rollout.
    pub rollout: RolloutId,
    /// Number of the request that it answers.
    pub request: u64,
    /// Which answer to that request, from 0.
    pub member: u32,
    /// `rollout_id` of its descriptors; with the seed and the length of the prompt it names the tokens of engine 0.
    pub device_rollout: u32,
    /// `seed` of its descriptors.
    pub seed: u32,
    /// `prefix_id` of its descriptors; [`PREFIX_NONE`] if it has none (0 is a prefix like any other).
    pub prefix_id: u32,
    /// Hash of the prefix's tokens, or whatever else names it beyond this run; without meaning if there is none.
    pub prefix_hash: u64,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens of the answer.
    pub answer_tokens: u32,
    /// Last score, signed Q16.16.
    pub score: i32,
    /// Who gave it; `None` if it was stored by a program that did not say.
    pub scorer: Option<Scorer>,
    /// Descriptors that it took: checkpoints passed, and one.
    pub segments: u32,
    /// How it ended.
    pub outcome: Outcome,
    /// Versions of the policy that its tokens come from, in a row: so many [`Span`]s lie in its slot of the
    /// [`Spans`](super::Spans).
    pub spans: u32,
    /// What it is worth in its group, if that was judged as one.
    pub group: Option<GroupScore>,
    /// Whether log-probabilities lie beside its tokens.
    pub has_logprobs: bool,
    /// Which token region has its tokens ([`Device::token_shard`](doorbell_host::Device::token_shard)).
    pub shard: u32,
    /// Where in that region they begin, in bytes.
    pub offset: u64,
}

/// A stored rollout.
#[derive(Clone, Debug, PartialEq)]
pub struct Trajectory {
    /// Number of its record in the log, from 0.
    pub number: u64,
    /// What was said of it. `shard` and `offset` are not stored and read as 0, as they mean nothing any more.
    pub finished: Finished,
    /// The answer.
    pub tokens: Vec<u32>,
    /// Which version of the policy each token comes from; none if it was stored by a program that knew of no versions.
    pub spans: Vec<Span>,
    /// Log-probabilities of the tokens, if they were asked for.
    pub logprobs: Option<Vec<f32>>,
    /// The prompt, if it was stored.
    pub prompt: Option<Prompt>,
}

/// A stored prompt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prompt {
    /// Its tokens, as the device got them.
    pub tokens: Vec<u32>,
    /// The text that they were made of, if there was one.
    pub text: Option<String>,
}

/// A prompt that is to be stored.
#[derive(Clone, Copy, Debug)]
pub struct PromptBody<'a> {
    /// Its tokens: `prompt_tokens` of them.
    pub tokens: &'a [u32],
    /// The text that they were made of, or none.
    pub text: Option<&'a str>,
}

/// The parts of a record that lie elsewhere while the rollout lives.
#[derive(Clone, Copy, Debug, Default)]
pub struct Body<'a> {
    /// The answer.
    pub tokens: &'a [u32],
    /// Its spans.
    pub spans: &'a [Span],
    /// Log-probabilities of the tokens, or none.
    pub logprobs: &'a [f32],
    /// The prompt, if it is stored.
    pub prompt: Option<PromptBody<'a>>,
}

impl Trajectory {
    /// From the payload of a record, as the format has it (docs/trajectories.md): what a log keeps, or a [`Carrier`](super::Carrier) carries.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn decode(number: u64, payload: &[u8]) -> Result<Trajectory, &'static str> {
        decode(number, payload)
    }

    /// The score as a number.
    pub fn score(&self) -> f64 {
        f64::from(self.finished.score) / 65536.0
    }

    /// What is stored beside `finished`.
    pub fn body(&self) -> Body<'_> {
        Body {
            tokens: &self.tokens,
            spans: &self.spans,
            logprobs: self.logprobs.as_deref().unwrap_or_default(),
            prompt: self
                .prompt
                .as_ref()
                .map(|Prompt { tokens, text }| PromptBody { tokens, text: text.as_deref() }),
        }
    }

    /// The prefix, if it has one: its id, and its hash.
    pub fn prefix(&self) -> Option<(u32, u64)> {
        (self.finished.prefix_id != PREFIX_NONE)
            .then_some((self.finished.prefix_id, self.finished.prefix_hash))
    }
}

/// Bytes of a payload before what may be missing and the tokens.
pub(super) const FIXED: usize = 64;
/// Bytes of a span, and of a group's statistics.
const SPAN: usize = 8;
const GROUP: usize = 16;

/// Bits of the last fixed word: what lies between the fixed fields and the tokens, and behind them. 0 is what version 1 of the
/// format has there.
const HAS_GROUP: u32 = 1 << 0;
const HAS_LOGPROBS: u32 = 1 << 1;
/// Who has scored, a code; 0 is what versions 1 and 2 of the format have there.
const SCORER_SHIFT: u32 = 2;
const SCORER_MASK: u32 = 3 << SCORER_SHIFT;
/// The prompt; 0 is what versions 1 to 3 of the format have there.
const HAS_PROMPT: u32 = 1 << 4;
/// Bytes of a text that stand for none.
const NO_TEXT: u32 = u32::MAX;
/// Most bytes of a prompt's text.
pub(super) const TEXT_MAX: usize = 1 << 28;
const SPANS_SHIFT: u32 = 8;
/// Most spans of a record.
pub(super) const SPANS_MAX: usize = (1 << (32 - SPANS_SHIFT)) - 1;

/// Bytes of the payload with this body.
pub(super) fn payload_bytes(finished: &Finished, body: &Body<'_>) -> usize {
    let group = if finished.group.is_some() { GROUP } else { 0 };
    let prompt =
        body.prompt.map_or(0, |prompt| 4 * prompt.tokens.len() + 4 + prompt.text.map_or(0, str::len));
    FIXED + SPAN * body.spans.len() + group + 4 * body.tokens.len() + 4 * body.logprobs.len() + prompt
}

/// Appends the payload to `out`, little-endian: the fields at the offsets of `docs/trajectories.md`, then spans, the group's
/// statistics, the tokens, their log-probabilities, and the prompt.
pub(super) fn encode(finished: &Finished, body: &Body<'_>, out: &mut Vec<u8>) {
    let start = out.len();
    out.reserve(payload_bytes(finished, body));
    for wide in [finished.rollout.to_bits(), finished.request, finished.prefix_hash] {
        out.extend_from_slice(&wide.to_le_bytes());
    }
    let mut has = (body.spans.len() as u32) << SPANS_SHIFT;
    if finished.group.is_some() {
        has |= HAS_GROUP;
    }
    if finished.has_logprobs {
        has |= HAS_LOGPROBS;
    }
    if body.prompt.is_some() {
        has |= HAS_PROMPT;
    }
    has |= finished.scorer.map_or(0, |scorer| scorer as u32) << SCORER_SHIFT;
    let narrow = [
        finished.member,
        finished.device_rollout,
        finished.seed,
        finished.prefix_id,
        finished.prompt_tokens,
        finished.answer_tokens,
        finished.score as u32,
        finished.segments,
        u32::from(finished.outcome as u8),
        has,
    ];
    for word in narrow {
        out.extend_from_slice(&word.to_le_bytes());
    }
    debug_assert_eq!(out.len() - start, FIXED);
    for span in body.spans {
        out.extend_from_slice(&span.first.to_le_bytes());
        out.extend_from_slice(&u32::from(span.version).to_le_bytes());
    }
    if let Some(GroupScore { mean, advantage }) = finished.group {
        out.extend_from_slice(&mean.to_le_bytes());
        out.extend_from_slice(&advantage.to_le_bytes());
    }
    append_words(body.tokens.iter().copied(), out);
    append_words(body.logprobs.iter().map(|logprob| logprob.to_bits()), out);
    if let Some(PromptBody { tokens, text }) = body.prompt {
        append_words(tokens.iter().copied(), out);
        let bytes = text.map_or(NO_TEXT, |text| text.len() as u32);
        out.extend_from_slice(&bytes.to_le_bytes());
        out.extend_from_slice(text.unwrap_or_default().as_bytes());
    }
}

fn append_words(words: impl ExactSizeIterator<Item = u32>, out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + 4 * words.len(), 0);
    let (places, _) = out[start..].as_chunks_mut::<4>();
    for (place, word) in places.iter_mut().zip(words) {
        *place = word.to_le_bytes();
    }
}

/// The reverse of [`encode`], of versions 1 to 4 of the format; says what is wrong with a payload that no [`encode`] made.
pub(super) fn decode(number: u64, payload: &[u8]) -> Result<Trajectory, &'static str> {
    let (fixed, rest) = payload.split_at_checked(FIXED).ok_or("it is shorter than its fixed fields")?;
    let wide = |index: usize| wide_at(fixed, 8 * index);
    let narrow = |index: usize| word_at(fixed, 24 + 4 * index);
    let (answer_tokens, has) = (narrow(5), narrow(9));
    if has & ((1 << SPANS_SHIFT) - 1) & !(HAS_GROUP | HAS_LOGPROBS | SCORER_MASK | HAS_PROMPT) != 0 {
        return Err("it has parts that are unknown to this version");
    }
    let count = (has >> SPANS_SHIFT) as usize;
    let (spans, rest) =
        rest.split_at_checked(SPAN * count).ok_or("it does not hold as many spans as it says")?;
    let group = if has & HAS_GROUP == 0 { 0 } else { GROUP };
    let (group, rest) = rest.split_at_checked(group).ok_or("it is shorter than its group's statistics")?;
    let each = if has & HAS_LOGPROBS == 0 { 4 } else { 8 };
    let answer = each * u64::from(answer_tokens);
    if (rest.len() as u64) < answer || (has & HAS_PROMPT == 0 && rest.len() as u64 != answer) {
        return Err("it does not hold as many tokens as it says");
    }
    let (rest, prompt) = rest.split_at(answer as usize);
    let prompt = (has & HAS_PROMPT != 0).then(|| decode_prompt(prompt, narrow(4))).transpose()?;
    let (tokens, logprobs) = rest.split_at(4 * answer_tokens as usize);
    let outcome = u8::try_from(narrow(8))
        .ok()
        .and_then(Outcome::from_code)
        .ok_or("its outcome is unknown to this version")?;
    let spans = spans.chunks_exact(SPAN).map(|span| {
        let version = u16::try_from(word_at(span, 4)).map_err(|_| "a span has a version beyond 16 bits")?;
        Ok(Span { version, first: word_at(span, 0) })
    });
    let spans: Vec<Span> = spans.collect::<Result<_, &str>>()?;
    let double = |at| f64::from_bits(wide_at(group, at));
    let finished = Finished {
        rollout: RolloutId::from_bits(wide(0)),
        request: wide(1),
        prefix_hash: wide(2),
        member: narrow(0),
        device_rollout: narrow(1),
        seed: narrow(2),
        prefix_id: narrow(3),
        prompt_tokens: narrow(4),
        answer_tokens,
        score: narrow(6) as i32,
        scorer: Scorer::ALL.into_iter().find(|&scorer| scorer as u32 == (has & SCORER_MASK) >> SCORER_SHIFT),
        segments: narrow(7),
        outcome,
        spans: spans.len() as u32,
        group: (!group.is_empty()).then(|| GroupScore { mean: double(0), advantage: double(8) }),
        has_logprobs: has & HAS_LOGPROBS != 0,
        shard: 0,
        offset: 0,
    };
    let logprobs = finished.has_logprobs.then(|| words(logprobs).into_iter().map(f32::from_bits).collect());
    Ok(Trajectory { number, finished, tokens: words(tokens), spans, logprobs, prompt })
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect()
}

/// A prompt of so many tokens, with its text.
fn decode_prompt(bytes: &[u8], count: u32) -> Result<Prompt, &'static str> {
    const SHORT: &str = "it does not hold the prompt that it says";
    let count = usize::try_from(4 * u64::from(count)).map_err(|_| SHORT)?;
    let (tokens, text) = bytes.split_at_checked(count).ok_or(SHORT)?;
    let (length, text) = text.split_at_checked(4).ok_or(SHORT)?;
    let text = match word_at(length, 0) {
        NO_TEXT if text.is_empty() => None,
        length if length as usize == text.len() => Some(text),
        _ => return Err(SHORT),
    };
    let text = text.map(|text| String::from_utf8(text.to_vec()));
    let text = text.transpose().map_err(|_| "the text of its prompt is not UTF-8")?;
    Ok(Prompt { tokens: words(tokens), text })
}

fn word_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

fn wide_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(word_at(bytes, at + 4)) << 32 | u64::from(word_at(bytes, at))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    prop_compose! {
        fn finished()(
            (id, request, prefix_hash) in any::<(u64, u64, u64)>(),
            words in any::<[u32; 7]>(),
            outcome in 0usize..Outcome::ALL.len(),
            group in prop::option::of((-1e9f64..1e9, -1e9f64..1e9)),
            has_logprobs in any::<bool>(),
            scorer in prop::option::of(0usize..Scorer::ALL.len()),
        ) -> Finished {
            let [member, device_rollout, seed, prefix_id, prompt_tokens, score, segments] = words;
            Finished {
                rollout: RolloutId::from_bits(id), request, member, device_rollout, seed, prefix_id, prefix_hash,
                prompt_tokens, answer_tokens: 0, score: score as i32, scorer: scorer.map(|code| Scorer::ALL[code]), segments, outcome: Outcome::ALL[outcome], spans: 0,
                group: group.map(|(mean, advantage)| GroupScore { mean, advantage }), has_logprobs, shard: 0, offset: 0,
            }
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            finished in finished(),
            tokens in prop::collection::vec(any::<u32>(), 0..50),
            spans in prop::collection::vec(any::<(u16, u32)>(), 0..9),
            prompt in prop::option::of((prop::collection::vec(any::<u32>(), 0..9), prop::option::of(any::<String>()))),
            cut in 1usize..80,
        ) {
            let spans: Vec<Span> = spans.into_iter().map(|(version, first)| Span { version, first }).collect();
            let logprobs = |&token: &u32| -((token >> 12) as f32) / 65536.0;
            let logprobs: Vec<f32> = if finished.has_logprobs { tokens.iter().map(logprobs).collect() } else { vec![] };
            let finished = Finished { answer_tokens: tokens.len() as u32, spans: spans.len() as u32, ..finished };
            let prompt = prompt.map(|(tokens, text)| Prompt { tokens, text });
            let count = prompt.as_ref().map_or(finished.prompt_tokens, |prompt| prompt.tokens.len() as u32);
            let finished = Finished { prompt_tokens: count, ..finished };
            let stored = prompt.as_ref().map(|Prompt { tokens, text }| PromptBody { tokens, text: text.as_deref() });
            let body = Body { tokens: &tokens, spans: &spans, logprobs: &logprobs, prompt: stored };
            let mut payload = vec![];
            encode(&finished, &body, &mut payload);
            prop_assert_eq!(payload.len(), payload_bytes(&finished, &body));
            let read = decode(9, &payload).unwrap();
            let logprobs = finished.has_logprobs.then_some(logprobs);
            prop_assert_eq!(&read, &Trajectory { number: 9, finished, tokens, spans, logprobs, prompt });
            // Shorter or longer ones are told, never read.
            prop_assert!(decode(9, &payload[..payload.len().saturating_sub(cut)]).is_err());
            payload.push(0);
            prop_assert!(decode(9, &payload).is_err());
        }
    }

    #[test]
    fn what_is_unknown_is_told() {
        let mut payload = vec![0; FIXED];
        payload[56] = Outcome::ALL.len() as u8;
        assert_eq!(decode(0, &payload), Err("its outcome is unknown to this version"));
        let mut payload = vec![0; FIXED];
        payload[60] = 32;
        assert_eq!(decode(0, &payload), Err("it has parts that are unknown to this version"));
    }

    /// A record of version 1 of the format, byte by byte: it has no versions, no group and no log-probabilities.
    #[test]
    fn a_record_of_version_1_is_read() {
        let mut payload = vec![0; FIXED + 8];
        (payload[0], payload[8], payload[44], payload[56]) = (3, 7, 2, 1);
        (payload[64], payload[68]) = (11, 12);
        let read = decode(5, &payload).unwrap();
        assert_eq!((read.finished.rollout.slot(), read.finished.request), (3, 7));
        assert_eq!((read.tokens, read.spans, read.logprobs), (vec![11, 12], vec![], None));
        assert_eq!(
            (read.finished.outcome, read.finished.group, read.finished.scorer),
            (Outcome::Eos, None, None)
        );
    }

    #[test]
    fn advantages_are_in_deviations_from_the_mean() {
        const ONE: i32 = 1 << 16;
        let scores = [ONE, 2 * ONE, 3 * ONE, 6 * ONE];
        let statistics = GroupScore::statistics(scores.iter().copied());
        // By hand: mean 3, squares 4 + 1 + 0 + 9 over 4.
        assert_eq!(statistics, (3.0, 3.5f64.sqrt()));
        let advantages: Vec<f64> = scores.map(|score| GroupScore::of(score, statistics).advantage).to_vec();
        assert_eq!(advantages, [-2.0, -1.0, 0.0, 3.0].map(|above| above / 3.5f64.sqrt()));
        // Who all have the same, or who is alone, is worth nothing more than the others.
        for alike in [&[-ONE; 3][..], &[5]] {
            let statistics = GroupScore::statistics(alike.iter().copied());
            assert_eq!(GroupScore::of(alike[0], statistics).advantage, 0.0);
        }
        assert_eq!(GroupScore::statistics(std::iter::empty()), (0.0, 0.0));
    }
}
