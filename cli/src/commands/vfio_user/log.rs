//! What the server says of clients that come and go. A flood of connections gives no flood of lines.

use std::fmt::Display;
use std::time::Instant;

use doorbell_vfio::Notice;

use crate::lines::Lines;

/// The lines of all functions.
pub struct Log(Vec<Lines>);

impl Log {
    pub fn new(functions: usize, now: Instant) -> Log {
        Log((0..functions).map(|_| Lines::new(now)).collect())
    }

    /// The line of a notice, if it is to be said; `tally` is what its function has counted.
    pub fn line(&mut self, notice: &Notice, tally: &dyn Display, now: Instant) -> Option<String> {
        let (function, said) = match notice {
            Notice::Came { function } => (*function, "a client has come".to_owned()),
            Notice::Gone { function, refusal } => {
                let why = refusal.map(|refusal| format!(", sent away for {refusal}")).unwrap_or_default();
                (*function, format!("its client has gone{why}; so far {tally}"))
            }
        };
        let before = self.0[usize::from(function)].take(now)?;
        Some(format!("function {function}: {said}{before}"))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A thousand connections a second, for a minute, of one function; the other one's are said.
    #[test]
    fn a_flood_of_connections_is_counted() {
        let start = Instant::now();
        let mut log = Log::new(2, start);
        let mut said = vec![];
        for k in 0..60_000 {
            let now = start + Duration::from_millis(k);
            for notice in [Notice::Came { function: 1 }, Notice::Gone { function: 1, refusal: None }] {
                said.extend(log.line(&notice, &k, now));
            }
        }
        assert_eq!(said.len(), 32 + 5, "{said:?}");
        assert_eq!(said[..2], ["function 1: a client has come", "function 1: its client has gone; so far 0"]);
        assert_eq!(
            said[32],
            "function 1: a client has come (19968 lines before this one were left out: after 32 there is one in 10 s)"
        );
        assert!(said[33..].iter().all(|line| line.contains("(19999 lines before this one")), "{said:?}");
        // The other function's are said, and those of the first are again once it is calm.
        let came = |function| Notice::Came { function };
        assert!(log.line(&came(0), &0, start).is_some());
        let calm = start + Duration::from_secs(10_000);
        assert_eq!((0..100).filter_map(|_| log.line(&came(1), &0, calm)).count(), 32);
    }
}
