//! A poster that copies payloads into its region: one thread of the host, in whose order the ring completes.

use std::collections::VecDeque;

use doorbell_contract::{HwNicEntry, NIC_LENGTH_MAX, NicFault, NicFlags};
use doorbell_host::{DeviceError, SharedMemory, queue::Depth};

use crate::device::Port;
use crate::ring::{Agent, PostError, SendRing, digest, ring_bytes, send, words};

/// Why a payload was not posted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CarryError {
    /// No slot, or no room for the payload: post again when more is completed.
    #[error("the send ring or its payload region is full; post again when more is completed")]
    Full,
    /// The ring has stopped.
    #[error("the send ring stopped with {0}")]
    Stopped(NicFault),
    /// It can never be posted.
    #[error("a payload of {bytes} bytes; a ring with this region carries at most {most}")]
    Length {
        /// Its length.
        bytes: usize,
        /// What fits.
        most: usize,
    },
    /// A bug.
    #[error(transparent)]
    Memory(#[from] DeviceError),
}

/// A ring, a region, and where in it payloads lie.
#[derive(Debug)]
pub struct Poster {
    agent: Agent,
    region: SharedMemory,
    /// Bytes of the region given out since the beginning, and of those given back.
    taken: u64,
    freed: u64,
    /// Of each of its entries that is not completed, the index and how many bytes were given out with it.
    spans: VecDeque<(u64, u64)>,
    words: Vec<u32>,
}

impl Poster {
    /// A ring of `depth` slots with a region of at least `region_bytes`, and the port by which a NIC serves it.
    ///
    /// # Errors
    /// `Memory` if the system refuses.
    pub fn new(depth: Depth, region_bytes: usize, key: u32) -> Result<(Self, Port), DeviceError> {
        let memory = SharedMemory::allocate(ring_bytes(depth), doorbell_host::memory::SIMULATED_BUS_ADDRESS)?;
        let region = SharedMemory::allocate(region_bytes, doorbell_host::memory::SIMULATED_BUS_ADDRESS)?;
        let ring = SendRing::new(&memory, 0, depth, key)?;
        let port = Port { ring: ring.clone(), region: region.clone() };
        let agent = Agent::new(ring);
        let poster = Self { agent, region, taken: 0, freed: 0, spans: VecDeque::new(), words: vec![] };
        Ok((poster, port))
    }

    /// Posts `payload` with the fields of `about` that are carried, and its digest. Returns the entry's running index.
    ///
    /// # Errors
    /// `Full`, `Stopped`, or `Length`.
    pub fn post(&mut self, about: HwNicEntry, payload: &[u8]) -> Result<u64, CarryError> {
        let size = self.region.len() as u64;
        let most = (size as usize).min(NIC_LENGTH_MAX as usize);
        if payload.len() > most {
            return Err(CarryError::Length { bytes: payload.len(), most });
        }
        let bytes = (payload.len() as u64).next_multiple_of(4);
        // A payload lies in one piece: one that would reach beyond the end begins anew at the start.
        let at = self.taken % size;
        let skipped = if at + bytes > size { size - at } else { 0 };
        let span = skipped + bytes;
        if self.taken - self.freed + span > size {
            self.completed();
            if self.taken - self.freed + span > size {
                // Nothing is on its way, and what is skipped is in the way of nobody.
                if self.taken != self.freed || bytes > size {
                    return Err(self.agent.ring().fault().map_or(CarryError::Full, CarryError::Stopped));
                }
                self.taken = self.taken.next_multiple_of(size);
                self.freed = self.taken;
                return self.post(about, payload);
            }
        }
        let index = self.agent.reserve().map_err(|error| match error {
            PostError::Full => CarryError::Full,
            PostError::Stopped(fault) => CarryError::Stopped(fault),
        })?;
        self.words.clear();
        self.words.extend(words(payload));
        let offset = (self.taken + skipped) % size;
        // Before the entry that names it is published, with release order.
        let stored = self.region.store_u32s(offset as usize, &self.words);
        let entry = HwNicEntry {
            flags: NicFlags::DIGEST.bits(),
            digest: digest(self.words.iter().copied()),
            ..send(about.user_data, offset, payload.len() as u32)
        };
        let HwNicEntry { poster, rollout_id, seq_len, result, .. } = about;
        // A slot that was reserved is published, whatever became of its payload.
        self.agent.publish(index, HwNicEntry { poster, rollout_id, seq_len, result, ..entry });
        self.taken += span;
        self.spans.push_back((index, span));
        stored?;
        Ok(index)
    }

    /// Entries completed so far: those of lower index are stored at the collector.
    pub fn completed(&mut self) -> u64 {
        let now = self.agent.ring().completed();
        // Others may have posted by the agent.
        while let Some(&(index, span)) = self.spans.front()
            && index < now
        {
            self.freed += span;
            self.spans.pop_front();
        }
        now
    }

    /// Why the ring stopped, if it has.
    pub fn fault(&self) -> Option<NicFault> {
        self.agent.ring().fault()
    }

    /// The agent.
    pub fn agent(&self) -> &Agent {
        &self.agent
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::{Looked, Taker};

    /// Entries that others post by the agent complete among the poster's, and give back nothing of its region.
    #[test]
    fn w7_others_may_post_by_the_agent() {
        let (mut poster, port) = Poster::new(Depth::new("depth", 8).unwrap(), 4096, 7).unwrap();
        let mut taker = Taker::new(port.ring);
        poster.agent().post(send(0, 0, 0)).unwrap();
        assert_eq!(poster.post(HwNicEntry::default(), &[1; 4000]).unwrap(), 1);
        for completed in 1..=2 {
            assert!(matches!(taker.look(), Ok(Looked::Entry(..))));
            taker.complete(1);
            let room = poster.post(HwNicEntry::default(), &[1; 200]);
            assert!(
                if completed == 1 { matches!(room, Err(CarryError::Full)) } else { room.is_ok() },
                "{room:?}"
            );
            assert_eq!(poster.completed(), completed);
        }
    }
}
