//! Where requests come from.

use doorbell_trace::Request;

use super::{Options, RuntimeError};

/// What a source has at the moment.
#[derive(Clone, Copy, Debug)]
pub enum Next<'a> {
    /// A request, which is to be admitted next.
    Request(&'a Request),
    /// The same, for a request with terms of its own.
    Asks(&'a Request, Terms),
    /// None now: the source is to be asked again.
    Nothing,
    /// None any more.
    End,
}

/// What a request asks for of its own, where others of the same pipeline ask for something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Rollouts, 1 to [`Options::group`].
    pub members: u32,
    /// Tokens between checkpoints; 0 is never.
    pub checkpoint: u32,
    /// Whether an end of sequence ends a rollout.
    pub eos_stops: bool,
    /// With engine 1, how its tokens are drawn.
    pub draws: Draws,
    /// With engine 1, whether the tokens of the prompt are scored (R27), where the pipeline is set up for that
    /// ([`Options::scores_prompts`]).
    pub scored: bool,
    /// With engine 1, keys and values are shared with requests of equal salt only.
    pub salt: u64,
}

/// How the tokens of a request are drawn, in the units of `HwSequence` (R27).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Draws {
    /// log2(e) / temperature with 20 fraction bits; 0 takes the most likely token.
    pub sharpness: u32,
    /// Decides what is drawn, in the place of the seed and the rollout's id: member m draws by this number plus m, where 1 follows 2^64 - 1. With 0
    /// seed and id decide.
    pub key: u64,
    /// Draws among the so many most likely tokens; 0: among all. This and what follows needs CAPABILITY.TRUNCATION.
    pub top_k: u32,
    /// Draws among the most likely tokens that have this share together, in 2^-16; 0: among all.
    pub top_p: u32,
    /// Draws among the tokens at most so far below the most likely one, a power of 2 with 10 fraction bits; 0: among all.
    pub min_p: u32,
}

impl Terms {
    /// Those of no request.
    pub(super) fn none() -> Terms {
        Terms { members: 0, checkpoint: 0, eos_stops: false, draws: Draws::default(), scored: false, salt: 0 }
    }

    /// Those of all requests of a pipeline with these options.
    pub fn of(options: &Options) -> Terms {
        let sharpness = options.language.map_or(0, |language| language.sharpness);
        Terms {
            members: options.group,
            checkpoint: options.checkpoint,
            eos_stops: options.eos_stops,
            draws: Draws { sharpness, ..Draws::default() },
            scored: false,
            salt: 0,
        }
    }
}

impl Terms {
    /// Checks them against the options of the pipeline.
    pub(super) fn check(&self, number: u64, options: &Options) -> Result<(), RuntimeError> {
        let most = options.group;
        if self.scored && !options.scores_prompts {
            let reason =
                "its prompt is to be scored, and the pipeline is not set up for that; set scores_prompts";
            return Err(RuntimeError::Request { request: number, reason: reason.into() });
        }
        if (1..=most).contains(&self.members) {
            return Ok(());
        }
        let reason =
            format!("it asks for {} rollouts, and the pipeline is set up for 1 to {most}", self.members);
        Err(RuntimeError::Request { request: number, reason })
    }
}

impl Draws {
    /// The key of a member.
    #[inline]
    pub(super) fn key_of(&self, member: u32) -> u64 {
        match self.key.overflowing_add(member.into()) {
            _ if self.key == 0 => 0,
            // 0 would be no key.
            (key, wrapped) => key + u64::from(wrapped),
        }
    }
}

/// Requests in order, for as long as there are any: each is admitted as a group of rollouts.
///
/// The hot thread asks it in every turn: it must not wait, and should not allocate.
pub trait Source {
    /// The request that is to be admitted next: the same one until it has been [`admitted`](Self::admitted), or the source withdraws it.
    fn next(&mut self) -> Next<'_>;

    /// The request that [`next`](Self::next) gave last has been admitted, and has this number from now on: no other
    /// request of the pipeline ever has it.
    fn admitted(&mut self, number: u64);
}

/// The requests of a slice, one or several times over.
#[derive(Clone, Debug)]
pub struct Feed<'a> {
    requests: &'a [Request],
    next: usize,
    /// Passes that are left behind the present one.
    left: u64,
}

impl<'a> Feed<'a> {
    /// All of `requests`, from the first to the last.
    pub fn new(requests: &'a [Request]) -> Feed<'a> {
        Feed::repeated(requests, 1)
    }

    /// All of `requests`, `times` times.
    pub fn repeated(requests: &'a [Request], times: u64) -> Feed<'a> {
        let next = if times == 0 { requests.len() } else { 0 };
        Feed { requests, next, left: times.saturating_sub(1) }
    }
}

impl Source for Feed<'_> {
    #[inline]
    fn next(&mut self) -> Next<'_> {
        self.requests.get(self.next).map_or(Next::End, Next::Request)
    }

    #[inline]
    fn admitted(&mut self, _: u64) {
        self.next += 1;
        if self.next == self.requests.len() && self.left > 0 {
            self.left -= 1;
            self.next = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Members of a request draw by keys of their own, and none by 0, which is no key.
    #[test]
    fn members_have_keys_of_their_own() {
        let keys = |key| [0, 1, 2, 3].map(|member| Draws { key, ..Draws::default() }.key_of(member));
        assert_eq!(keys(0), [0; 4]);
        assert_eq!(keys(7), [7, 8, 9, 10]);
        assert_eq!(keys(u64::MAX - 1), [u64::MAX - 1, u64::MAX, 1, 2]);
        assert_eq!(keys(u64::MAX), [u64::MAX, 1, 2, 3]);
    }

    #[test]
    fn a_feed_gives_each_request_as_often_as_it_should() {
        let request =
            |output_tokens| Request { arrival_ms: 0, prompt_tokens: 1, output_tokens, prefix: vec![] };
        let requests = [request(1), request(2)];
        for (times, expected) in [(0, vec![]), (1, vec![1, 2]), (3, vec![1, 2, 1, 2, 1, 2])] {
            let mut feed = Feed::repeated(&requests, times);
            let mut given = vec![];
            while let Next::Request(request) = feed.next() {
                given.push(request.output_tokens);
                feed.admitted(0);
            }
            assert_eq!(given, expected);
        }
        assert!(matches!(Feed::repeated(&[], 5).next(), Next::End));
    }
}
