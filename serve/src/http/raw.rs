//! Raw log-probabilities: those at temperature 1 among all tokens, however a token was drawn.

use doorbell_runtime::pipeline::Draws;

use super::Server;
use super::answers::{Asked, Choice};
use super::error::Wrong;
use crate::engine::{Ask, Finish, Pause, Stops};

/// Scores answers once they are whole (R27), as prompts of requests of their own.
pub struct Raw {
    /// Prompts, each with the salt of its ask.
    prompts: Vec<(Vec<u32>, u64)>,
    members: u32,
}

impl Raw {
    /// For the answers to these asks.
    ///
    /// # Errors
    /// If one of them streams, or its longest answer is too long to be scored behind its prompt.
    pub fn new(server: &Server, asks: &[Ask]) -> Result<Raw, Wrong> {
        let longest = server.engine.size().prompt_tokens.min(server.positions - 1);
        for ask in asks {
            if ask.streams {
                return Err(Wrong::field("logprobs_mode", "raw_logprobs come whole; leave out stream"));
            }
            let tokens = ask.prompt.len() as u64 + u64::from(ask.most);
            if tokens > u64::from(longest) {
                return Err(Wrong::field(
                    "logprobs_mode",
                    format!(
                        "prompt and answer may have {tokens} tokens, and {longest} can be scored for raw_logprobs; shorten either, or raise --max-prompt"
                    ),
                ));
            }
            let scoring = scoring(vec![0; tokens as usize], ask.salt);
            server.engine.check(&scoring).map_err(|error| {
                Wrong::field(
                    "logprobs_mode",
                    format!("prompt and answer could not be scored for raw_logprobs: {error}"),
                )
            })?;
        }
        let prompts = asks.iter().map(|ask| (ask.prompt.clone(), ask.salt)).collect();
        Ok(Raw { prompts, members: asks.first().map_or(1, |ask| ask.members) })
    }

    /// Replaces the log-probabilities of these answers. An answer keeps none if the version that made it is not resident any more, or if it was
    /// aborted by its name before it was scored, or by a pause that lasts, so that whoever paused it need not wait for scores. However many wait,
    /// the scores of answers that were taken are not refused.
    ///
    /// # Errors
    /// If the engine has ended.
    pub async fn score(&self, server: &Server, asked: &Asked, choices: &mut [Choice]) -> Result<(), Wrong> {
        let (mut places, mut asks) = (vec![], vec![]);
        for (place, choice) in choices.iter_mut().enumerate() {
            choice.logps.clear();
            let holds = choice.end.finish == Finish::Aborted && server.engine.pause_of() != Pause::Running;
            if choice.tokens.is_empty() || holds {
                continue;
            }
            let prompt = (choice.index / self.members) as usize;
            let (tokens, salt) = &self.prompts[prompt];
            places.push(place);
            asks.push((prompt, scoring([&tokens[..], &choice.tokens].concat(), *salt)));
        }
        let scores = asked.more(self.prompts.len(), asks).await?;
        for (place, score) in places.into_iter().zip(scores) {
            let (choice, Some(score)) = (&mut choices[place], score) else { continue };
            let by = score.end.versions.first().map(|span| span.weights);
            // The prompt was scored by the version of the first token behind it, as a request is of one version unless it is kept over an update.
            let same = score.end.versions.len() == 1
                && score.end.prompt_versions.iter().all(|span| Some(span.weights) == by)
                && choice.end.versions.iter().all(|span| Some(span.weights) == by);
            let first = score.end.prompt_logps.len().checked_sub(choice.tokens.len());
            if let Some(own) = first.and_then(|first| score.end.prompt_logps.get(first..)).filter(|_| same) {
                choice.logps = own.to_vec();
            }
        }
        Ok(())
    }
}

/// Has the tokens of a prompt scored.
fn scoring(prompt: Vec<u32>, salt: u64) -> Ask {
    let (draws, stops) = (Draws::default(), Stops::default());
    Ask { prompt, members: 1, most: 1, draws, ends: true, stops, streams: false, scored: true, salt }
}
