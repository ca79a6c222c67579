//! Names of requests that live, so that they can be aborted: those that clients gave, and ids that the server gave.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Server;
use super::error::Wrong;
use crate::engine::{Answers, Refused};

/// Bytes of the longest name.
const LONGEST: usize = 1024;

/// Which requests have which names: several may have one.
#[derive(Debug, Default)]
pub struct Names(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    owners: HashMap<String, Vec<Owner>>,
    next: u64,
}

/// One request, or a part of it, under its name.
#[derive(Debug)]
struct Owner {
    number: u64,
    tickets: Vec<u64>,
    aborted: bool,
}

impl Names {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks the requests of these names, or all, as aborted: they ask nothing any more. Returns the tickets of what they have asked.
    pub fn mark_aborted(&self, names: Option<&[String]>) -> Vec<u64> {
        let mut inner = self.lock();
        let mut tickets = vec![];
        let mut abort = |owners: &mut Vec<Owner>| {
            for owner in owners {
                owner.aborted = true;
                tickets.extend(&owner.tickets);
            }
        };
        match names {
            None => inner.owners.values_mut().for_each(abort),
            Some(names) => names.iter().for_each(|name| {
                inner.owners.get_mut(name).map(&mut abort);
            }),
        }
        tickets
    }
}

/// A name of a request, for as long as that lives.
pub struct Named {
    server: Arc<Server>,
    name: String,
    number: u64,
}

impl Named {
    /// Has the prompts of a request asked, and gives them these names: one for all, one for each, or none. Whoever aborts one of the names meanwhile finds
    /// all that is asked, or nothing yet.
    pub fn begin(
        server: &Arc<Server>,
        names: Vec<String>,
        ask: impl FnOnce() -> Result<Vec<Answers>, Refused>,
    ) -> Result<(Vec<Answers>, Vec<Named>), Refused> {
        let mut inner = server.names.lock();
        let answers = ask()?;
        let mut tickets = vec![vec![]; names.len()];
        for (prompt, of_prompt) in answers.iter().enumerate() {
            if let Some(own) = tickets.get_mut(prompt * names.len() / answers.len()) {
                own.push(of_prompt.ticket);
            }
        }
        let mut named = vec![];
        for (name, tickets) in names.into_iter().zip(tickets) {
            let number = inner.next;
            inner.next += 1;
            let owner = Owner { number, tickets, aborted: false };
            inner.owners.entry(name.clone()).or_default().push(owner);
            named.push(Named { server: server.clone(), name, number });
        }
        Ok((answers, named))
    }

    /// Has more asked under this name, unless it was aborted.
    pub fn ask(&self, ask: impl FnOnce() -> Result<Answers, Refused>) -> Result<Option<Answers>, Refused> {
        let mut inner = self.server.names.lock();
        let mut owners = inner.owners.get_mut(&self.name).into_iter().flatten();
        let Some(owner) = owners.find(|owner| owner.number == self.number && !owner.aborted) else {
            return Ok(None);
        };
        let answers = ask()?;
        owner.tickets.push(answers.ticket);
        Ok(Some(answers))
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        let mut inner = self.server.names.lock();
        if let Some(owners) = inner.owners.get_mut(&self.name) {
            owners.retain(|owner| owner.number != self.number);
            if owners.is_empty() {
                inner.owners.remove(&self.name);
            }
        }
    }
}

/// Refuses a name that is longer than any client needs, as it is kept and told with each piece of an answer.
pub fn check(field: &str, name: String) -> Result<String, Wrong> {
    if name.len() > LONGEST {
        let message = format!("{field} has {} bytes; give a name of at most {LONGEST}", name.len());
        return Err(Wrong::field(field, message));
    }
    Ok(name)
}
