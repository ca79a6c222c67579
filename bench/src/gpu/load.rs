//! What is measured on the GPU, and under which load.

use std::hint;
use std::os::fd::OwnedFd;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use doorbell_contract::{GOLDEN, HwCompletion, HwDesc, Status};
use doorbell_gpu::GpuDevice;
use doorbell_gpu::probes::{LOOKS, PATIENCE, Probes, TRANSPORT_SLOT};
use doorbell_host::queue::{CompletionQueue, Depth, SubmissionQueue};
use doorbell_host::{Device, DeviceError, Driver, Ports, QueueConfig, QueuePort};

/// Samples of a time.
#[derive(Clone, Debug)]
pub struct Times(Vec<Duration>);

impl Times {
    /// At least one.
    pub fn new(mut samples: Vec<Duration>) -> Self {
        samples.sort_unstable();
        Self(samples)
    }

    /// The sample below which lie `share` of them, 0 to 1.
    ///
    /// # Panics
    /// Without samples.
    pub fn quantile(&self, share: f64) -> Duration {
        let last = self.0.len() - 1;
        self.0[((last as f64 * share).round() as usize).min(last)]
    }
}

/// What a host does between two round trips.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Think {
    /// Nothing: it starts the next at once, so that both sides fall into step.
    Nothing,
    /// It spins for 0 to 4,095 ns, another time in each round, and meets the GPU at any point of its rhythm.
    Random,
}

impl Think {
    pub fn pass(self, round: u32) {
        if self == Self::Random {
            let (start, time) =
                (Instant::now(), Duration::from_nanos(u64::from(round.wrapping_mul(GOLDEN) >> 20)));
            while start.elapsed() < time {
                hint::spin_loop();
            }
        }
    }
}

/// How often per second the front ends of an idle device look at host memory: each control warp at its mailbox, and each
/// scout, in the same rhythm, at a slot.
pub fn looks_per_second(ports: &Ports<GpuDevice>) -> f64 {
    let queues = usize::from(ports.division().queues);
    let beats = || -> Vec<u32> { (0..queues).map(|queue| ports.device().heartbeat(queue)).collect() };
    let (before, start) = (beats(), Instant::now());
    thread::sleep(Duration::from_millis(300));
    let (after, elapsed) = (beats(), start.elapsed());
    let looks: u32 = before.iter().zip(&after).map(|(before, after)| after.wrapping_sub(*before)).sum();
    2.0 * f64::from(looks) / elapsed.as_secs_f64()
}

/// One queue pair of the bare transport; a thread's own, as `Queue` is.
#[repr(align(128))]
struct Bare {
    sq: SubmissionQueue,
    cq: CompletionQueue,
    submitted: u32,
    completed: u32,
}

/// Descriptors per second of bare rings: the same slots and completions, with no driver, no dispatch and no rules.
///
/// # Panics
/// If `load.queues` is no multiple of `load.threads`.
pub fn transport(probes: &Probes, load: &Load) -> Result<f64, DeviceError> {
    let Load { queues, threads, batch, descriptors } = *load;
    // A warp takes 32 at a time and waits for all.
    let total = descriptors.next_multiple_of(32 * batch.max(1) as u64) as u32;
    let memory = probes.transport(queues, DEPTH, total)?;
    let bytes = DEPTH as usize * TRANSPORT_SLOT;
    let depth = Depth::new("depth", DEPTH)?;
    let mut pairs = Vec::new();
    for k in 0..queues {
        let part = memory.part(k * bytes, bytes)?;
        pairs.push(Bare {
            sq: SubmissionQueue::new(&part, 0, depth, 0, 0)?,
            cq: CompletionQueue::new(&part, size_of::<HwDesc>() * DEPTH as usize, depth, 0)?,
            submitted: 0,
            completed: 0,
        });
    }
    let pool = one_token_batch(DEPTH as usize);
    let elapsed = in_threads(pairs, threads, |pairs| {
        let mut out = vec![HwCompletion::default(); LOOK];
        let (mut idle, mut since) = (0u32, Instant::now());
        while pairs.iter().any(|pair| pair.completed < total) {
            let before: u32 = pairs.iter().fold(0, |sum, pair| sum.wrapping_add(pair.completed));
            for pair in &mut *pairs {
                if pair.submitted < total {
                    let head = pair.completed;
                    pair.sq.consumed_to(head, head);
                    pair.submitted += pair.sq.push(part(&pool, pair.submitted.into(), batch))? as u32;
                }
                pair.completed += pair.cq.pop(&mut out)? as u32;
            }
            if pairs.iter().fold(0, |sum: u32, pair| sum.wrapping_add(pair.completed)) != before {
                idle = 0;
                continue;
            }
            idle += 1;
            if idle == 1 {
                since = Instant::now();
            } else if idle.is_multiple_of(LOOKS) && since.elapsed() > PATIENCE {
                return Err(probes.silent("the bare transport"));
            }
        }
        Ok(())
    })
    .inspect_err(|_| probes.abandon(&memory))?;
    probes.wait()?;
    Ok(f64::from(total) * queues as f64 / elapsed.as_secs_f64())
}

/// Slots of each ring that is measured for its rate.
pub const DEPTH: u32 = 4096;

/// Completions taken at a time.
const LOOK: usize = 256;

/// What a rate is measured under.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Queue pairs.
    pub queues: usize,
    /// Host threads; each serves as many queue pairs.
    pub threads: usize,
    /// Descriptors per submit.
    pub batch: usize,
    /// Descriptors in all, per queue pair.
    pub descriptors: u64,
}

/// DECODEs of one token each, of different rollouts, their tokens side by side.
fn one_token_batch(size: usize) -> Vec<HwDesc> {
    (0..size as u32).map(|k| HwDesc::decode(k, 0, 1).with_delta_offset(4 * u64::from(k))).collect()
}

/// The next `size` of them at most, when so many have been submitted.
fn part(pool: &[HwDesc], submitted: u64, size: usize) -> &[HwDesc] {
    let from = (submitted % pool.len() as u64) as usize;
    &pool[from..(from + size).min(pool.len())]
}

/// The configuration of queue pairs that are measured.
pub fn queue_config() -> QueueConfig {
    QueueConfig {
        sq_depth: DEPTH,
        cq_depth: DEPTH,
        token_bytes: 1 << 20,
        patience: 20_000,
        ..QueueConfig::default()
    }
}

/// Runs `work` on equal shares of `items`, a thread each, and returns the time from the first start to the last end.
fn in_threads<T: Send>(
    mut items: Vec<T>,
    threads: usize,
    work: impl Fn(&mut [T]) -> Result<(), DeviceError> + Sync,
) -> Result<Duration, DeviceError> {
    assert!(threads > 0 && items.len().is_multiple_of(threads), "each thread serves as many queues");
    let share = items.len() / threads;
    let barrier = Barrier::new(threads + 1);
    thread::scope(|scope| {
        let (barrier, work) = (&barrier, &work);
        let running: Vec<_> = items
            .chunks_mut(share)
            .map(|share| {
                scope.spawn(move || {
                    barrier.wait();
                    work(share)
                })
            })
            .collect();
        barrier.wait();
        let start = Instant::now();
        for thread in running {
            thread.join().expect("a bench thread does not panic")?;
        }
        Ok(start.elapsed())
    })
}

/// What drivers come to.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// Descriptors per second.
    pub per_second: f64,
    /// Share of the looks at a completion queue that found nothing: near 0, the host holds up the device.
    pub in_vain: f64,
}

/// Descriptors per second through drivers, every one a DECODE of one token that has to end as DONE.
///
/// # Panics
/// If `load` is not about as many queue pairs as `drivers`, or these are no multiple of its threads.
pub fn throughput(drivers: &mut [Driver<QueuePort<GpuDevice>>], load: &Load) -> Result<Rate, DeviceError> {
    let Load { queues, threads, batch, descriptors } = *load;
    assert_eq!(drivers.len(), queues, "a driver per queue pair");
    // Different rollouts: those of one would have to wait for each other (R5).
    let pool = one_token_batch(DEPTH as usize);
    let start = |driver| Queue { driver, submitted: 0, completed: 0, done: 0, looks: 0, in_vain: 0 };
    let queues: Vec<Queue<'_>> = drivers.iter_mut().map(start).collect();
    let count = queues.len();
    let (looks, in_vain) = (AtomicU64::new(0), AtomicU64::new(0));
    let elapsed = in_threads(queues, threads, |queues| {
        let mut out = vec![HwCompletion::default(); LOOK];
        while queues.iter().any(|queue| queue.completed < descriptors || queue.driver.in_flight() > 0) {
            for queue in &mut *queues {
                let mut moved = 0;
                if queue.submitted < descriptors {
                    moved = queue.driver.submit(part(&pool, queue.submitted, batch))?;
                    queue.submitted += moved as u64;
                }
                let mut taken = queue.driver.collect(&mut out)?;
                queue.looks += 1;
                queue.in_vain += u64::from(taken == 0);
                if moved + taken == 0 && queue.driver.in_flight() > 0 {
                    taken = queue.driver.poll(&mut out)?;
                }
                queue.completed += taken as u64;
                queue.done +=
                    out[..taken].iter().filter(|done| done.status == Status::Done as u8).count() as u64;
            }
        }
        for queue in &*queues {
            looks.fetch_add(queue.looks, Ordering::Relaxed);
            in_vain.fetch_add(queue.in_vain, Ordering::Relaxed);
        }
        match queues.iter().find(|queue| queue.done != queue.submitted) {
            None => Ok(()),
            Some(queue) => Err(DeviceError::Protocol {
                device: "gpu".to_owned(),
                rule: "R10",
                what: format!(
                    "only {} of {} well-formed descriptors completed as DONE",
                    queue.done, queue.submitted
                ),
            }),
        }
    })?;
    Ok(Rate {
        per_second: descriptors as f64 * count as f64 / elapsed.as_secs_f64(),
        in_vain: in_vain.into_inner() as f64 / looks.into_inner() as f64,
    })
}

/// A queue pair and what its thread counts, on cache lines that no other thread writes.
#[repr(align(128))]
struct Queue<'a> {
    driver: &'a mut Driver<QueuePort<GpuDevice>>,
    submitted: u64,
    completed: u64,
    done: u64,
    looks: u64,
    in_vain: u64,
}

/// Round trips of one descriptor, one at a time, through a driver.
pub fn round_trips(
    driver: &mut dyn Device,
    desc: HwDesc,
    think: Think,
    rounds: u32,
) -> Result<Times, DeviceError> {
    let mut out = [HwCompletion::default()];
    let trip = |round| {
        think.pass(round);
        let start = Instant::now();
        driver.submit(&[desc])?;
        while driver.poll(&mut out)? == 0 {}
        Ok(start.elapsed())
    };
    (0..rounds).map(trip).collect::<Result<Vec<_>, _>>().map(Times::new)
}

/// A token handed to another thread and back by two eventfds: what a host pays that sleeps between tokens.
pub fn eventfd_round_trips(rounds: u32) -> Result<Times, DeviceError> {
    let failed = |error: rustix::io::Errno| DeviceError::Failed {
        device: "eventfd".to_owned(),
        what: error.to_string(),
    };
    let make = || rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).map_err(failed);
    let (there, back) = (make()?, make()?);
    let signal = |fd: &OwnedFd| rustix::io::write(fd, &1u64.to_ne_bytes()).map(|_| ());
    let wait = |fd: &OwnedFd| rustix::io::read(fd, &mut [0u8; 8]).map(|_| ());
    thread::scope(|scope| {
        let peer = scope.spawn(|| (0..rounds).try_for_each(|_| wait(&there).and_then(|()| signal(&back))));
        let trip = |_| {
            let start = Instant::now();
            signal(&there).and_then(|()| wait(&back)).map_err(failed)?;
            Ok(start.elapsed())
        };
        let times = (0..rounds).map(trip).collect::<Result<Vec<_>, DeviceError>>()?;
        peer.join().expect("the peer does not panic").map_err(failed)?;
        Ok(Times::new(times))
    })
}
