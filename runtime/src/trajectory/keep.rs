//! Where the writer puts trajectories: a log, and whoever carries them away.

use std::time::Duration;

use super::log::{Log, Sync, Volume};
use super::record::{self, Body, Finished};
use super::writer::WriterError;
use crate::threads::Backoff;

/// When a group is to be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// It is as long as a group may be.
    pub is_full: bool,
    /// How long it may wait for more.
    pub delay: Duration,
}

/// What the writer puts trajectories into. It asks on its own thread.
pub trait Keep: Send {
    /// Takes a record, and returns its number: one more than that of the record before.
    ///
    /// # Errors
    /// When it takes nothing more.
    fn append(&mut self, finished: &Finished, body: &Body<'_>) -> Result<u64, WriterError>;
    /// Stores what was taken.
    ///
    /// # Errors
    /// As [`append`](Self::append).
    fn commit(&mut self) -> Result<(), WriterError>;
    /// Number of the first record that is not stored.
    ///
    /// # Errors
    /// When those that were taken will not all be stored.
    fn stored(&mut self) -> Result<u64, WriterError>;
    /// When what was taken is to be stored.
    fn pace(&self) -> Pace;
    /// Groups stored.
    fn groups(&self) -> u64;
}

impl<V: Volume> Keep for Log<V>
where
    V::File: Send,
    V: Send,
{
    fn append(&mut self, finished: &Finished, body: &Body<'_>) -> Result<u64, WriterError> {
        Ok(Log::append(self, finished, body)?)
    }

    fn commit(&mut self) -> Result<(), WriterError> {
        Ok(Log::commit(self)?)
    }

    fn stored(&mut self) -> Result<u64, WriterError> {
        Ok(Log::stored(self))
    }

    fn pace(&self) -> Pace {
        let options = self.options();
        let delay = if options.sync == Sync::Never { Duration::ZERO } else { options.group_delay };
        Pace { is_full: self.group_len() >= options.group_bytes, delay }
    }

    fn groups(&self) -> u64 {
        Log::groups(self)
    }
}

/// Who carries the payloads of records away, in the order in which they are given.
pub trait Carrier: Send {
    /// Takes the payload of a record, or says by `false` that there is no room now.
    ///
    /// # Errors
    /// What to tell when nothing more is carried.
    fn carry(&mut self, finished: &Finished, payload: &[u8]) -> Result<bool, String>;
    /// How many have arrived.
    ///
    /// # Errors
    /// As [`carry`](Self::carry).
    fn arrived(&mut self) -> Result<u64, String>;
}

/// Gives each record to a [`Carrier`], and to a log if there is one: it is stored once both have it.
#[derive(Debug)]
pub struct Carried<C> {
    carrier: C,
    log: Option<Log>,
    /// Number of the first record, which is the log's.
    first: u64,
    taken: u64,
    payload: Vec<u8>,
}

impl<C: Carrier> Carried<C> {
    /// By this carrier, beside this log.
    pub fn new(carrier: C, log: Option<Log>) -> Self {
        let first = log.as_ref().map_or(0, Log::stored);
        Self { carrier, log, first, taken: 0, payload: vec![] }
    }
}

impl<C: Carrier> Keep for Carried<C> {
    fn append(&mut self, finished: &Finished, body: &Body<'_>) -> Result<u64, WriterError> {
        if let Some(log) = &mut self.log {
            log.append(finished, body)?;
        }
        self.payload.clear();
        record::encode(finished, body, &mut self.payload);
        let mut idle = Backoff::default();
        while !self.carrier.carry(finished, &self.payload).map_err(WriterError::Carrier)? {
            idle.wait();
        }
        self.taken += 1;
        Ok(self.first + self.taken - 1)
    }

    fn commit(&mut self) -> Result<(), WriterError> {
        self.log.as_mut().map_or(Ok(()), |log| Ok(log.commit()?))
    }

    fn stored(&mut self) -> Result<u64, WriterError> {
        let arrived = self.first + self.carrier.arrived().map_err(WriterError::Carrier)?;
        Ok(self.log.as_ref().map_or(arrived, |log| arrived.min(log.stored())))
    }

    fn pace(&self) -> Pace {
        self.log.as_ref().map_or(Pace { is_full: false, delay: Duration::ZERO }, Keep::pace)
    }

    fn groups(&self) -> u64 {
        self.log.as_ref().map_or(0, Log::groups)
    }
}
