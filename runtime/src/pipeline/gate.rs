//! Holding rollouts where they are.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use super::{Pipeline, RuntimeError};

/// Holds the rollouts of a pipeline where they are, from any thread. While the gate is closed the pipeline makes no PREFILL and no DECODE. What is
/// in flight comes to its end, versions are published, and aborted rollouts end. Whoever wants DECODEs in flight to end soon publishes a
/// version with KEEP.
#[derive(Clone, Debug, Default)]
pub struct Gate(Arc<AtomicU8>);

const OPEN: u8 = 0;
const CLOSED: u8 = 1;
const AT_REST: u8 = 2;

impl Gate {
    /// Holds rollouts from the pipeline's next turn on.
    pub fn close(&self) {
        // One that is closed may be at rest already.
        let _ = self.0.compare_exchange(OPEN, CLOSED, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Lets them go on.
    pub fn open(&self) {
        self.0.store(OPEN, Ordering::Release);
    }

    /// Whether they are held.
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.0.load(Ordering::Acquire) != OPEN
    }

    /// Whether they are held, and the completions of all PREFILLs and DECODEs were seen: no token is added until the gate is opened.
    pub fn is_at_rest(&self) -> bool {
        self.0.load(Ordering::Acquire) == AT_REST
    }

    /// Nothing is in flight behind it any more.
    fn rest(&self) {
        let _ = self.0.compare_exchange(CLOSED, AT_REST, Ordering::AcqRel, Ordering::Relaxed);
    }
}

impl Pipeline {
    /// The gate of this pipeline: open at first.
    pub fn gate(&self) -> Gate {
        self.gate.clone()
    }

    /// What moves behind the closed gate: rollouts that were aborted while they wait for it end.
    #[cold]
    pub(super) fn wait_at_gate(&mut self) -> Result<bool, RuntimeError> {
        if self.batch.is_empty() && !self.versions.has_in_flight() {
            self.gate.rest();
        }
        let moved = self.end_unwanted_parts()?;
        if !std::mem::take(&mut self.aborted_at_gate) {
            return Ok(moved);
        }
        while let Some(id) = self.queues.decode.pop() {
            let candidate = self.candidate(id)?;
            self.policy.push(candidate);
        }
        for _ in 0..self.policy.len() {
            let Some(candidate) = self.policy.pop() else { break };
            if self.lives.get(candidate.id)?.aborted {
                self.end_waiting(candidate.id)?;
            } else {
                self.queues.decode.push(candidate.id)?;
            }
        }
        self.end_aborted_returning()?;
        for _ in 0..self.queues.prefill.len() {
            let Some(id) = self.queues.prefill.pop() else { break };
            if self.lives.get(id)?.aborted {
                self.end_waiting(id)?;
            } else {
                self.queues.prefill.push(id)?;
            }
        }
        Ok(true)
    }
}
