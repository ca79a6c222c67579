//! Where requests come from.

use doorbell_trace::Request;

/// What a source has at the moment.
#[derive(Clone, Copy, Debug)]
pub enum Next<'a> {
    /// A request, which is to be admitted next.
    Request(&'a Request),
    /// None now: the source is to be asked again.
    Nothing,
    /// None any more.
    End,
}

/// Requests in order, for as long as there are any: each is admitted as a group of rollouts.
///
/// The hot thread asks it in every turn: it must not wait, and should not allocate.
pub trait Source {
    /// The request that is to be admitted next: the same one until it has been [`admitted`](Self::admitted).
    fn next(&mut self) -> Next<'_>;

    /// The request that [`next`](Self::next) gave last has been admitted, and has this number from now on: no other
    /// request of the pipeline ever has it.
    fn admitted(&mut self, number: u64);
}

/// The requests of a slice, some times over.
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
