//! The kernel on the CPU: threads that play its roles over the same mailboxes and memory, step by step and with the same
//! memory orders, so that a mistake in the protocol shows where there is no GPU. It is built to be tested, not to be fast.
//!
//! Names follow `kernels/`. A warp that takes 32 descriptors at a time is a thread that takes up to [`state::BATCH`]; what
//! the kernel accesses plainly is a relaxed atomic here. Beside that the emulation differs where a CPU has to: it writes
//! 16 bytes as two words, the one with the phase last, and reads the mailbox a word at a time.

mod descriptor;
mod fault;
mod front_end;
mod pace;
mod running_table;
mod state;
mod worker;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use doorbell_host::memory::{PAGE, SIMULATED_BUS_ADDRESS};
use doorbell_host::{DeviceError, SharedMemory};

use crate::cuda::MAX_QUEUES;
use crate::engine::Engine;
use crate::mailbox::{KernelSide, Mailbox};
pub use fault::Fault;
use pace::{Dead, Pace};
use state::Shared;

/// What an emulation calls itself.
const NAME: &str = "gpu emulation";

/// The most threads of a kind: more only wait for the processor.
const MAX_THREADS: usize = 64;

/// How an emulation is set up.
#[derive(Clone, Copy, Debug)]
pub struct EmulationOptions {
    /// Queue pairs, 1 to [`MAX_QUEUES`].
    pub queues: usize,
    /// Bytes of shared memory of each queue pair.
    pub bytes: usize,
    /// Threads of each queue pair that fetch descriptors, beside its scout.
    pub fetchers: usize,
    /// Threads that run rollouts, of all queue pairs.
    pub workers: usize,
    /// Seed of what is left to chance: the order of a completion's halves, and delays.
    pub seed: u64,
    /// Whether steps are delayed at random.
    pub stress: bool,
    /// What it does wrong.
    pub fault: Option<Fault>,
}

impl Default for EmulationOptions {
    fn default() -> Self {
        Self { queues: 1, bytes: 32 << 20, fetchers: 2, workers: 2, seed: 0, stress: false, fault: None }
    }
}

/// Threads that serve queue pairs as the kernel does.
#[derive(Debug)]
pub struct Emulation {
    shared: Arc<Shared>,
    mailboxes: SharedMemory,
    memory: SharedMemory,
    bytes: usize,
    threads: Vec<JoinHandle<()>>,
}

impl Emulation {
    /// Starts the threads: per queue pair one that listens to the host, one that posts completions, a scout, and those
    /// that fetch; and the workers.
    ///
    /// # Errors
    /// `Config` for options out of range, `Memory` if memory or a thread cannot be had.
    pub fn start(options: EmulationOptions) -> Result<Self, DeviceError> {
        let EmulationOptions { queues, fetchers, workers, .. } = options;
        let within = |field, value: usize, least: usize, most: usize| {
            if (least..=most).contains(&value) {
                return Ok(());
            }
            let expected = format!("{least} to {most}");
            Err(DeviceError::Config { field, value: value as u64, expected })
        };
        within("queues", queues, 1, MAX_QUEUES)?;
        within("fetchers", fetchers, 1, MAX_THREADS)?;
        within("workers", workers, 1, MAX_THREADS)?;

        let bytes = options.bytes.max(1).next_multiple_of(PAGE);
        let mailboxes = SharedMemory::allocate(queues * PAGE, 0)?;
        let memory = SharedMemory::allocate(queues * bytes, SIMULATED_BUS_ADDRESS)?;
        let parts = (0..queues).map(|queue| {
            let mailbox = KernelSide::new(&mailboxes.part(queue * PAGE, PAGE)?)?;
            Ok((mailbox, memory.part(queue * bytes, bytes)?))
        });
        let shared = Arc::new(Shared::new(options, parts.collect::<Result<_, DeviceError>>()?));
        let mut emulation = Self { shared, mailboxes, memory, bytes, threads: Vec::new() };
        for queue in 0..queues {
            emulation.spawn(format!("control {queue}"), move |shared, pace| {
                front_end::control(shared, queue, pace)
            })?;
            emulation.spawn(format!("completion {queue}"), move |shared, pace| {
                front_end::completion(shared, queue, pace)
            })?;
            for warp in 0..fetchers {
                emulation.spawn(format!("fetch {queue}.{warp}"), move |shared, pace| {
                    front_end::fetch(shared, queue, pace);
                })?;
            }
            emulation
                .spawn(format!("scout {queue}"), move |shared, pace| front_end::scout(shared, queue, pace))?;
        }
        for id in 0..workers {
            emulation
                .spawn(format!("worker {id}"), move |shared, pace| worker::role(shared, id as u16, pace))?;
        }
        Ok(emulation)
    }

    fn spawn(
        &mut self,
        name: String,
        role: impl FnOnce(&Shared, &mut Pace<'_>) + Send + 'static,
    ) -> Result<(), DeviceError> {
        let (shared, seat) = (self.shared.clone(), self.threads.len());
        let refused =
            |error: std::io::Error| DeviceError::Memory { bytes: 0, reason: format!("a thread: {error}") };
        let body = move || {
            let _dead = Dead(&shared);
            role(&shared, &mut Pace::new(&shared, seat));
        };
        self.threads.push(std::thread::Builder::new().name(name).spawn(body).map_err(refused)?);
        Ok(())
    }
}

impl Engine for Emulation {
    fn name(&self) -> &str {
        NAME
    }

    fn mailbox(&self, queue: usize) -> Result<SharedMemory, DeviceError> {
        self.mailboxes.part(queue * PAGE, PAGE)
    }

    fn memory(&self, queue: usize) -> Result<SharedMemory, DeviceError> {
        self.memory.part(queue * self.bytes, self.bytes)
    }

    /// Gives the threads the processor: each goes on by some steps.
    fn check(&self) -> Result<(), DeviceError> {
        let failed = |what: String| DeviceError::Failed { device: NAME.to_owned(), what };
        self.shared.beats.advance(&self.threads);
        match self.shared.complaint() {
            Some(what) => Err(failed(what)),
            None => Ok(()),
        }
    }
}

impl Drop for Emulation {
    fn drop(&mut self) {
        for queue in 0..self.shared.options.queues {
            if let Ok(mailbox) = self.mailbox(queue).and_then(Mailbox::new) {
                mailbox.exit();
            }
        }
        // Started in part, it has nobody who would tell the workers.
        if self.threads.len() < self.shared.beats.len() {
            self.shared.dead.store(true, Ordering::Relaxed);
        }
        for thread in &self.threads {
            thread.thread().unpark();
        }
        for thread in self.threads.drain(..) {
            // A thread that panicked has said so.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use doorbell_contract::{Counter, HwDesc};
    use doorbell_host::device::Device;
    use doorbell_host::{Driver, QueueConfig};
    use rstest::rstest;

    use super::*;
    use crate::platform::GpuPlatform;

    const SMALL: EmulationOptions = EmulationOptions {
        queues: 1,
        bytes: 1 << 20,
        fetchers: 1,
        workers: 1,
        seed: 0,
        stress: false,
        fault: None,
    };

    #[rstest]
    #[case(EmulationOptions { queues: 0, ..SMALL }, "queues is 0: it must be 1 to 16")]
    #[case(EmulationOptions { queues: 17, ..SMALL }, "queues is 17: it must be 1 to 16")]
    #[case(EmulationOptions { fetchers: 0, ..SMALL }, "fetchers is 0: it must be 1 to 64")]
    #[case(EmulationOptions { workers: 65, ..SMALL }, "workers is 65: it must be 1 to 64")]
    fn options_out_of_range_are_errors(#[case] options: EmulationOptions, #[case] message: &str) {
        assert_eq!(Emulation::start(options).unwrap_err().to_string(), message);
    }

    #[test]
    fn one_thread_of_each_kind_is_enough() {
        let engine = Arc::new(Emulation::start(SMALL).unwrap());
        assert!(engine.memory(1).is_err() && engine.mailbox(1).is_err());
        let config = QueueConfig { token_bytes: 1 << 16, ..Default::default() };
        let mut driver = Driver::new(GpuPlatform::new(engine, 0).unwrap(), config).unwrap();
        driver.submit(&[HwDesc::decode(1, 0, 100), HwDesc::decode(1, 100, 2)]).unwrap();
        let mut completions = [Default::default(); 2];
        let mut taken = 0;
        while taken < 2 {
            taken += driver.poll(&mut completions[taken..]).unwrap();
        }
        assert_eq!(completions.map(|completion| completion.final_seq_len), [100, 102]);
    }

    #[test]
    fn r12_it_ends_in_the_middle_of_a_rollout() {
        const TOKENS: u32 = 100_000;
        let engine = Arc::new(Emulation::start(SMALL).unwrap());
        let config = QueueConfig { token_bytes: 1 << 19, wait_states: 0xFFFF, ..Default::default() };
        let mut driver = Driver::new(GpuPlatform::new(engine.clone(), 0).unwrap(), config).unwrap();
        driver.submit(&[HwDesc::decode(1, 0, TOKENS)]).unwrap();
        driver.poll(&mut [Default::default()]).unwrap();
        drop(driver);
        let mailbox = Mailbox::new(engine.mailbox(0).unwrap()).unwrap();
        assert!(mailbox.is_reached());
        assert!(mailbox.counter(Counter::Tokens) < TOKENS.into());
    }
}
