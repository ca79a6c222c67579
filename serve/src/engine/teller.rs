//! What becomes of rollouts, told to whoever asked: the reward stage, which lets answers go on at their checkpoints, and the trajectory stage,
//! which hears of their ends. Both hand to one thread, which reads tokens, makes text of them and looks for what ends an answer.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use doorbell_checkpoint::text::{Stream, Text};
use doorbell_host::TokenRegion;
use doorbell_runtime::pipeline::{
    Lost, Options, Partial, PromptSpans, RewardStage, RuntimeError, TrajectoryStage, Unstored,
};
use doorbell_runtime::reward::{self, GroupPostError, JudgeFailure, Judged, Moment, Shutdown, Verdict};
use doorbell_runtime::rollout::RolloutId;
use doorbell_runtime::trajectory::{self, Finished, Outcome, Span, Spans, Stored, WriterError};

use super::ask::{End, Finish, Job, Piece, Stops, VersionSpan};
use super::intake::Intake;
use super::versions::{Name, Names};
use crate::fault::{self, Fault};

/// What the hot thread tells.
pub(super) enum Told {
    /// An ask was admitted, under this number.
    Admitted(u64, Job),
    /// An answer is at a checkpoint, with how many positions of its prompt were there before it, and what it has more than at the checkpoint
    /// before: its memory may be another's by the time that the teller hears.
    Checkpoint(reward::Request, u32, Result<Read, String>),
    /// The log-probabilities of the prompt's tokens, without the first.
    Scored(u64, Vec<i32>),
    /// A rollout has ended.
    Finished(Finished),
    /// A rollout has ended without a trajectory, with what it has come to.
    Lost(Lost, Read, Made),
}

/// Tokens, and their log-probabilities if there are any.
type Read = (Vec<u32>, Vec<i32>);

/// Where the device leaves tokens and log-probabilities, and the pipeline their versions.
#[derive(Clone)]
pub(super) struct Memory {
    pub tokens: Vec<TokenRegion>,
    pub logps: Vec<TokenRegion>,
    pub spans: Spans,
    pub made: PromptSpans,
    pub options: Options,
}

/// Which versions made an answer, and the keys and values of its prompt.
pub(super) struct Made {
    answer: Vec<Span>,
    prompt: Vec<Span>,
    /// Positions of the prompt that were made for earlier requests.
    cached: u32,
}

impl Memory {
    /// Tokens of an answer from `from` to `to`, and their log-probabilities if there are any.
    fn read(&self, shard: u32, offset: u64, from: u32, to: u32) -> Result<Read, String> {
        let at = offset + 4 * u64::from(from);
        let words = |regions: &[TokenRegion]| {
            let mut words = vec![0; to.saturating_sub(from) as usize];
            let region = regions.get(shard as usize).ok_or("there is no such token region")?;
            region.read(at, &mut words).map_err(|error| error.to_string())?;
            Ok::<_, String>(words)
        };
        let logps = if self.logps.is_empty() { vec![] } else { words(&self.logps)? };
        Ok((words(&self.tokens)?, logps.into_iter().map(|word| word as i32).collect()))
    }

    /// Log-probabilities of a prompt's tokens but the first.
    fn prompt_logps(&self, shard: u32, group: u32, prompt_tokens: u32) -> Vec<i32> {
        let mut words = vec![0; prompt_tokens.saturating_sub(1) as usize];
        let at = self.options.prompt_offset(group) + 4;
        let read = self.logps.get(shard as usize).map(|region| region.read(at, &mut words));
        if matches!(read, Some(Ok(()))) {
            words.into_iter().map(|word| word as i32).collect()
        } else {
            vec![]
        }
    }

    fn made(&self, rollout: RolloutId, count: u32) -> Made {
        let answer = self.spans.read(rollout.slot(), count as usize).into_iter().flatten().collect();
        Made { answer, prompt: self.made.read(rollout.slot()), cached: self.made.found(rollout.slot()) }
    }
}

/// The reward stage of the pipeline.
pub(super) struct Checkpoints {
    to: Sender<Told>,
    from: Receiver<Judged>,
    memory: Memory,
    /// Verdicts on ends, which nobody has to think about.
    ends: VecDeque<Judged>,
    posted: usize,
}

/// The trajectory stage of the pipeline.
pub(super) struct Answers {
    to: Sender<Told>,
    from: Receiver<RolloutId>,
    memory: Memory,
    sum: Stored,
    thread: Option<JoinHandle<()>>,
}

/// Starts the teller's thread; gives what reaches it, and the two stages.
pub(super) fn start(
    text: Arc<Text>,
    names: Names,
    intake: Arc<Intake>,
    memory: &Memory,
) -> std::io::Result<(Sender<Told>, Checkpoints, Answers)> {
    let (to, told) = channel();
    let (judge, from) = channel();
    let (store, stored) = channel();
    let checkpoints =
        Checkpoints { to: to.clone(), from, memory: memory.clone(), ends: VecDeque::new(), posted: 0 };
    let of = memory.clone();
    let run = move || {
        let _leaves = Leaves(intake.clone());
        let mut teller = Teller { text: &text, names, intake, memory: of, asks: HashMap::new() };
        for told in told {
            match told {
                Told::Admitted(number, job) => teller.admitted(number, job),
                Told::Checkpoint(request, cached, read) => {
                    let _ = judge.send(teller.checkpoint(&request, cached, read));
                }
                Told::Scored(number, logps) => teller.scored(number, logps),
                Told::Finished(finished) => {
                    teller.finished(&finished);
                    let _ = store.send(finished.rollout);
                }
                Told::Lost(lost, read, made) => teller.lost(&lost, read, &made),
            }
        }
        teller.fail_all();
    };
    let thread = Some(thread::Builder::new().name("teller".into()).spawn(run)?);
    let answers =
        Answers { to: to.clone(), from: stored, memory: memory.clone(), sum: Stored::default(), thread };
    Ok((to, checkpoints, answers))
}

/// Says that the teller has gone, also if it panicked: whoever waits for an end waits no more.
struct Leaves(Arc<Intake>);

impl Drop for Leaves {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl RewardStage for Checkpoints {
    fn post(&mut self, request: reward::Request) -> Result<(), reward::PostError> {
        // Read them while they are still the prompt's own, before anything can end the answer.
        if request.scored && request.segment_start == 0 {
            let logps = self.memory.prompt_logps(request.shard, request.group, request.prompt_tokens);
            let sent = self.to.send(Told::Scored(request.request, logps));
            sent.map_err(|_| reward::PostError::NoJudges(request))?;
        }
        if request.moment == Moment::Checkpoint {
            let reward::Request { shard, offset, segment_start, answer_tokens, .. } = request;
            let read = self.memory.read(shard, offset, segment_start, answer_tokens);
            let cached = self.memory.made.found(request.rollout.slot());
            let sent = self.to.send(Told::Checkpoint(request, cached, read));
            sent.map_err(|_| reward::PostError::NoJudges(request))?;
        } else {
            self.ends.push_back(judged(&request, Ok(Verdict { score: 0, proceed: false })));
        }
        self.posted += 1;
        Ok(())
    }

    fn post_group(&mut self, requests: &[reward::Request]) -> Result<(), GroupPostError> {
        requests.iter().try_for_each(|&request| self.post(request)).map_err(|_| GroupPostError::NoJudges)
    }

    fn collect(&mut self, out: &mut [Judged]) -> Result<usize, RuntimeError> {
        let mut count = 0;
        for place in out {
            let judged = match self.ends.pop_front() {
                Some(judged) => judged,
                None => match self.from.try_recv() {
                    Ok(judged) => judged,
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return Err(RuntimeError::NoJudges),
                },
            };
            *place = judged;
            count += 1;
        }
        self.posted -= count;
        Ok(count)
    }

    fn pending(&self) -> usize {
        self.posted
    }

    fn shutdown(self: Box<Self>, _: Duration) -> Shutdown {
        Shutdown { loads: vec![], faults: vec![], more_faults: 0, uncollected: self.posted }
    }
}

fn judged(request: &reward::Request, verdict: Result<Verdict, JudgeFailure>) -> Judged {
    Judged { ticket: request.ticket, rollout: request.rollout, judge: 0, verdict }
}

impl TrajectoryStage for Answers {
    fn post(&mut self, finished: Finished) -> Result<(), trajectory::PostError> {
        self.sum.trajectories += 1;
        self.sum.tokens += u64::from(finished.answer_tokens);
        self.to.send(Told::Finished(finished)).map_err(|_| trajectory::PostError::Failed(finished))
    }

    fn stored(&mut self, out: &mut [RolloutId]) -> usize {
        let mut count = 0;
        for (place, id) in out.iter_mut().zip(self.from.try_iter()) {
            *place = id;
            count += 1;
        }
        count
    }

    fn lost(&mut self, lost: Lost, partial: Partial) {
        // The slot is used again once this returns.
        let read = self.memory.read(partial.shard, partial.offset, 0, partial.answer_tokens);
        let made = self.memory.made(lost.rollout, partial.spans);
        if partial.scored {
            let logps = self.memory.prompt_logps(partial.shard, partial.group, partial.prompt_tokens);
            let _ = self.to.send(Told::Scored(lost.request, logps));
        }
        let _ = self.to.send(Told::Lost(lost, read.unwrap_or_default(), made));
    }

    fn has_failed(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    fn finish(self: Box<Self>) -> Result<Stored, WriterError> {
        let Answers { to, thread, sum, .. } = *self;
        drop(to);
        match thread.map(JoinHandle::join) {
            Some(Err(_)) => Err(WriterError::Panicked("the teller panicked".into())),
            _ => Ok(sum),
        }
    }
}

/// What the teller's thread knows.
struct Teller<'t> {
    text: &'t Text,
    names: Names,
    intake: Arc<Intake>,
    memory: Memory,
    asks: HashMap<u64, Asked<'t>>,
}

struct Asked<'t> {
    job: Job,
    stop_tokens: HashSet<u32>,
    /// Bytes of the longest text that ends an answer.
    longest_stop: usize,
    answers: Vec<Answer<'t>>,
    prompt_logps: Vec<i32>,
    cached: u32,
    left: u32,
}

/// One of them, as far as it was read.
struct Answer<'t> {
    /// Its tokens and log-probabilities that were read, up to what ends it.
    tokens: Vec<u32>,
    logps: Vec<i32>,
    /// Those that were told.
    told: usize,
    /// `None` once its text is whole.
    stream: Option<Stream<'t>>,
    text: String,
    /// Bytes of it that were told.
    shown: usize,
    /// What ended it, if that was not the device.
    stopped: Option<Finish>,
}

impl<'t> Teller<'t> {
    fn admitted(&mut self, number: u64, job: Job) {
        // A decoder treats the first tokens of a text differently from tokens that follow a prompt.
        let stream = self.text.stream_behind(&job.ask.prompt);
        let answer = |_| Answer {
            tokens: vec![],
            logps: vec![],
            told: 0,
            stream: Some(stream.clone()),
            text: String::new(),
            shown: 0,
            stopped: None,
        };
        let asked = Asked {
            stop_tokens: job.ask.stops.tokens.iter().copied().collect(),
            longest_stop: job.ask.stops.texts.iter().map(String::len).max().unwrap_or(0),
            answers: (0..job.ask.members).map(answer).collect(),
            prompt_logps: vec![],
            cached: 0,
            left: job.ask.members,
            job,
        };
        self.asks.insert(number, asked);
    }

    fn checkpoint(&mut self, request: &reward::Request, cached: u32, read: Result<Read, String>) -> Judged {
        let reward::Request { request: number, member, segment_start, .. } = *request;
        let proceed = match self.asks.get_mut(&number) {
            None => false,
            Some(asked) => {
                asked.cached = cached;
                let known = asked.answers[member as usize].tokens.len();
                match read {
                    Ok((tokens, logps)) if known == segment_start as usize => {
                        asked.read(self.text, member, &tokens, &logps);
                    }
                    _ => return judged(request, Err(JudgeFailure::Tokens)),
                }
                if asked.job.ask.streams {
                    asked.tell(member, None);
                }
                // Who has gone wants no more; the abort is on its way.
                asked.answers[member as usize].stopped.is_none() && !asked.job.to.is_closed()
            }
        };
        judged(request, Ok(Verdict { score: 0, proceed }))
    }

    fn scored(&mut self, number: u64, logps: Vec<i32>) {
        // All answers have one prompt.
        if let Some(asked) = self.asks.get_mut(&number)
            && asked.prompt_logps.is_empty()
        {
            asked.prompt_logps = logps;
        }
    }

    fn finished(&mut self, finished: &Finished) {
        let Finished { request, member, answer_tokens, shard, offset, .. } = *finished;
        let Some(asked) = self.asks.get_mut(&request) else { return };
        let answer = &asked.answers[member as usize];
        let mut finish = match finished.outcome {
            Outcome::Eos => Finish::EndToken,
            _ => Finish::Length,
        };
        if answer.stopped.is_none() {
            let known = answer.tokens.len() as u32;
            match self.memory.read(shard, offset, known, answer_tokens) {
                Ok((tokens, logps)) => asked.read(self.text, member, &tokens, &logps),
                Err(error) => finish = Finish::Failed(error),
            }
        }
        let made = self.memory.made(finished.rollout, finished.spans);
        asked.cached = made.cached;
        self.end(request, member, finish, &made);
    }

    fn lost(&mut self, lost: &Lost, (mut tokens, mut logps): Read, made: &Made) {
        let Some(asked) = self.asks.get_mut(&lost.request) else { return };
        asked.cached = made.cached;
        if asked.job.fault == Some(Fault::AbortLosesTokens) {
            (tokens, logps) = (vec![], vec![]);
            let answer = &mut asked.answers[lost.member as usize];
            answer.tokens.truncate(answer.told);
            answer.logps.truncate(answer.told);
        }
        let answer = &asked.answers[lost.member as usize];
        if answer.stopped.is_none() {
            let known = answer.tokens.len().min(tokens.len());
            let logps = logps.get(known..).unwrap_or_default();
            asked.read(self.text, lost.member, &tokens[known..], logps);
        }
        let answer = &asked.answers[lost.member as usize];
        let finish = match lost.why {
            // It was whole when the abort came.
            Unstored::Aborted
                if asked.job.ask.ends && answer.tokens.last().is_some_and(|&t| self.text.ends(t)) =>
            {
                Finish::EndToken
            }
            Unstored::Aborted if answer.tokens.len() as u32 == asked.job.ask.most => Finish::Length,
            why => why.into(),
        };
        self.end(lost.request, lost.member, finish, made);
    }

    /// The last that is told of an answer.
    fn end(&mut self, number: u64, member: u32, finish: Finish, made: &Made) {
        let Some(asked) = self.asks.get_mut(&number) else { return };
        let answer = &mut asked.answers[member as usize];
        let finish = answer.stopped.take().unwrap_or(finish);
        let finish = match answer.stream.take().map(Stream::end) {
            // A stop may be in what waited for the next token. It is no reason for an answer that failed.
            Some(Ok(left)) => match answer.says(&left, &asked.job.ask.stops, asked.longest_stop) {
                Some(stop) if !matches!(finish, Finish::Failed(_)) => stop,
                _ => finish,
            },
            Some(Err(error)) => Finish::Failed(error.to_string()),
            None => finish,
        };
        fault::keep(asked.job.fault, &made.answer, answer.told, &mut answer.tokens, &mut answer.logps);
        let versions = self.names.spans(&made.answer, answer.tokens.len() as u32);
        let shared = asked.job.ask.prompt.len().saturating_sub(1);
        let prompt_versions = self.names.spans(&made.prompt, shared as u32);
        let prompt_logps = asked.prompt_logps.clone();
        asked.tell(member, Some(End { finish, versions, prompt_versions, prompt_logps }));
        asked.left -= 1;
        if asked.left == 0
            && let Some(asked) = self.asks.remove(&number)
        {
            self.intake.end(asked.job.ticket);
        }
    }

    /// The run is over.
    fn fail_all(&mut self) {
        for (_, asked) in self.asks.drain() {
            asked.job.end(&Finish::Failed("the engine has ended".into()));
            self.intake.end(asked.job.ticket);
        }
    }
}

impl Answer<'_> {
    /// Adds text, up to the first text that ends the answer, if there is one; none is longer than `longest`.
    fn says(&mut self, new: &str, stops: &Stops, longest: usize) -> Option<Finish> {
        // A stop may have begun before what is new.
        let mut from = self.text.len().saturating_sub(longest);
        while !self.text.is_char_boundary(from) {
            from -= 1;
        }
        self.text.push_str(new);
        let found = stops.texts.iter().filter_map(|stop| {
            let at = from + self.text[from..].find(stop.as_str())?;
            Some((at, stop))
        });
        let (at, stop) = found.min_by_key(|&(at, _)| at)?;
        self.text.truncate(if stops.keeps_text { at + stop.len() } else { at });
        Some(Finish::StopText(stop.clone()))
    }
}

impl Asked<'_> {
    /// Takes tokens in, up to the one that ends the answer.
    fn read(&mut self, text: &Text, member: u32, tokens: &[u32], logps: &[i32]) {
        let stops = &self.job.ask.stops;
        let answer = &mut self.answers[member as usize];
        // Where no text ends an answer nobody asks which token adds what.
        let mut together = vec![];
        for (place, &token) in tokens.iter().enumerate() {
            answer.tokens.push(token);
            answer.logps.extend(logps.get(place));
            if self.stop_tokens.contains(&token) {
                answer.stopped = Some(Finish::StopToken(token));
                break;
            }
            if self.job.ask.ends && text.ends(token) {
                continue;
            }
            if stops.texts.is_empty() {
                together.push(token);
                continue;
            }
            let new = match answer.stream.as_mut().map(|stream| stream.next(token)) {
                Some(Ok(new)) if !new.is_empty() => new,
                // An error is told again, and ends the answer, when the stream ends.
                _ => continue,
            };
            if let Some(stop) = answer.says(&new, stops, self.longest_stop) {
                answer.stopped = Some(stop);
                answer.stream = None;
                return;
            }
        }
        if let Some(stream) = answer.stream.as_mut().filter(|_| !together.is_empty()) {
            // As above.
            answer.text.push_str(&stream.take(&together).unwrap_or_default());
        }
    }

    /// Tells what was not told yet.
    fn tell(&mut self, member: u32, end: Option<End>) {
        let answer = &mut self.answers[member as usize];
        let mut until = answer.text.len();
        if end.is_none() && self.longest_stop > 0 {
            // What may be the beginning of a stop waits.
            until = until.saturating_sub(self.longest_stop - 1).max(answer.shown);
            while !answer.text.is_char_boundary(until) {
                until -= 1;
            }
        }
        let mut piece = Piece {
            member,
            tokens: answer.tokens[answer.told..].to_vec(),
            logps: answer.logps.get(answer.told..).unwrap_or_default().to_vec(),
            text: answer.text.get(answer.shown..until).unwrap_or_default().to_owned(),
            cached: self.cached,
            end,
        };
        fault::logps(self.job.fault, self.job.ask.draws.sharpness, &mut piece.logps);
        (answer.told, answer.shown) = (answer.tokens.len(), until);
        if piece.end.is_some() || !piece.tokens.is_empty() {
            // Whoever has gone does not hear it.
            let _ = self.job.to.send(piece);
        }
    }
}

impl Names {
    /// The spans of an answer or a prompt of `tokens` tokens, by name. Adjacent spans of the same weights are merged.
    fn spans(&self, spans: &[Span], tokens: u32) -> Vec<VersionSpan> {
        let mut named: Vec<VersionSpan> = vec![];
        for (place, span) in spans.iter().enumerate() {
            let end = spans.get(place + 1).map_or(tokens, |next| next.first.min(tokens));
            if span.first >= end {
                continue;
            }
            let Name { text: version, weights } = self.of(span.version);
            match named.last_mut() {
                Some(last) if last.weights == weights => last.end = end,
                _ => named.push(VersionSpan { version, weights, start: span.first, end }),
            }
        }
        named
    }
}

#[cfg(test)]
mod tests {
    use doorbell_lm::micro;
    use doorbell_runtime::pipeline::Draws;
    use tokio::sync::mpsc::unbounded_channel;

    use super::*;
    use crate::engine::ask::Ask;

    /// How an answer that is aborted with these tokens says that it ended, of 4 at most.
    fn ended(tokens: &[u32], ends: bool) -> Finish {
        let image = micro();
        let text = Text::new(&image.about, image.model.shape.vocabulary).unwrap();
        last(&text, tokens, ends, Stops::default()).0
    }

    /// The same, with its text.
    fn last(text: &Text, tokens: &[u32], ends: bool, stops: Stops) -> (Finish, String) {
        let options = Options::default();
        let memory = Memory {
            tokens: vec![],
            logps: vec![],
            spans: Spans::new(1, 1),
            made: PromptSpans::new(&options),
            options,
        };
        let mut teller =
            Teller { text, names: Names::default(), intake: Arc::default(), memory, asks: HashMap::new() };
        let (to, mut pieces) = unbounded_channel();
        let draws = Draws::default();
        let ask = Ask {
            prompt: vec![1],
            members: 1,
            most: 4,
            draws,
            ends,
            stops,
            streams: false,
            scored: false,
            salt: 0,
        };
        teller.admitted(7, Job { ticket: 0, ask, to, cancelled: Arc::default(), fault: None, wait: None });
        let lost = Lost { rollout: RolloutId::from_bits(0), request: 7, member: 0, why: Unstored::Aborted };
        teller.lost(&lost, (tokens.to_vec(), vec![]), &Made { answer: vec![], prompt: vec![], cached: 0 });
        let piece = pieces.try_recv().unwrap();
        assert_eq!(piece.tokens, tokens);
        (piece.end.unwrap().finish, piece.text)
    }

    /// With this decoder the text of a token waits for the next one.
    #[test]
    fn a_stop_in_the_text_that_comes_last_ends_an_answer() {
        let mut about = micro().about;
        about.tokenizer =
            about.tokenizer.replace(r#"{"type":"Fuse"}"#, r#"{"type":"BPEDecoder","suffix":"_"}"#);
        let text = Text::new(&about, 64).unwrap();
        let tokens = text.encode("abcd").unwrap();
        let stops = |stop: &str| Stops { texts: vec![stop.into()], ..Stops::default() };
        let stopped = |stop: &str| Finish::StopText(stop.into());
        assert_eq!(last(&text, &tokens, true, stops("x")), (Finish::Length, "abcd".into()));
        assert_eq!(last(&text, &tokens, true, stops("d")), (stopped("d"), "abc".into()));
        assert_eq!(last(&text, &tokens, true, stops("cd")), (stopped("cd"), "ab".into()));
    }

    /// An answer that was whole when an abort came says how it ended.
    #[test]
    fn an_answer_that_was_whole_was_not_aborted() {
        let end = micro().about.ends[0];
        assert_eq!(ended(&[5, 6, 7, 8], true), Finish::Length);
        assert_eq!(ended(&[5, end], true), Finish::EndToken);
        assert_eq!(ended(&[5, end], false), Finish::Aborted);
        assert_eq!(ended(&[5, 6, 7], true), Finish::Aborted);
        assert_eq!(ended(&[], true), Finish::Aborted);
    }
}
