//! Many descriptors on every queue pair of a GPU, across the wraps of ring, phase and 2^32: nothing lost, nothing
//! doubled, nothing out of place, and every token there when its completion is seen (R3, R5, R6, R13). Skipped where there
//! is no GPU. `DOORBELL_STRESS` sets how many descriptors in all (default 2,000,000), `DOORBELL_QUEUES` on how many queue pairs (default 16), `DOORBELL_SEED` the
//! seed, `DOORBELL_GPU` the GPU, `DOORBELL_SLICE` the microseconds that the host gives it at a time.

use std::thread;
use std::time::Duration;

use doorbell_contract::{HwCompletion, HwDesc};
use doorbell_gpu::{GpuDevice, GpuOptions};
use doorbell_host::{Device, DeviceError, Division, Driver, Ports, QueueConfig, QueuePort};
use doorbell_verify::oracle::Oracle;
use libtest_mimic::{Arguments, Failed, Trial};

/// Slots of the submission queue: also how many rollouts there are, and how far completions may pass each other.
const DEPTH: u32 = 1024;
/// Token space of a descriptor, in tokens.
const SPACE: u32 = 64;
/// Token spaces of a rollout, used in turn: how many of its descriptors may be submitted before the completion of the
/// first has been seen, and its tokens checked.
const SPACES: u32 = 4;

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a number"))
}

/// A number that `seed` and `k` decide.
fn draw(seed: u32, k: u64) -> u32 {
    const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
    let mixed = (k ^ u64::from(seed) << 40).wrapping_mul(GOLDEN);
    ((mixed ^ mixed >> 32).wrapping_mul(GOLDEN) >> 32) as u32
}

/// Descriptor `k` of a queue: mostly DECODEs of one token, some longer, some NOPs and some malformed.
fn desc(seed: u32, k: u64) -> HwDesc {
    let draw = draw(seed, k);
    let rollout = (k % u64::from(DEPTH)) as u32;
    let space = rollout + DEPTH * (k / u64::from(DEPTH) % u64::from(SPACES)) as u32;
    let decode = |max_tokens| {
        HwDesc::decode(rollout, draw & 0xFFFF, max_tokens)
            .with_seed(seed)
            .with_delta_offset(4 * u64::from(SPACE) * u64::from(space))
    };
    let made = match draw % 64 {
        0 => HwDesc { rollout_id: rollout, ..HwDesc::nop() },
        1 => decode(0),
        2 => decode(1 + draw / 64 % SPACE),
        3..8 => decode(1 + draw / 64 % 4),
        _ => decode(1),
    };
    made.with_user_data(k)
}

fn run(driver: &mut Driver<QueuePort<GpuDevice>>, seed: u32, count: u64) -> Result<(), String> {
    let failed = |error: DeviceError| error.to_string();
    let (mut submitted, mut completed) = (0u64, 0u64);
    // The number that each rollout's next completion has to carry: R5 keeps their order.
    let mut due: Vec<u64> = (0..u64::from(DEPTH)).collect();
    let mut batch = Vec::new();
    let mut out = vec![HwCompletion::default(); 256];
    let mut found = [0; SPACE as usize];
    let oracle = Oracle::new(driver.config());
    while completed < count {
        if batch.is_empty() {
            let size = 1 + u64::from(draw(!seed, submitted) % 256);
            let until = count.min(submitted + size);
            // A token space is used again when what was in it has been checked.
            let is_free =
                |&k: &u64| k < due[(k % u64::from(DEPTH)) as usize] + u64::from(SPACES) * u64::from(DEPTH);
            batch.extend((submitted..until).take_while(is_free).map(|k| desc(seed, k)));
        }
        let taken = driver.submit(&batch).map_err(failed)?;
        batch.drain(..taken);
        submitted += taken as u64;
        let mut fresh = driver.collect(&mut out).map_err(failed)?;
        if taken + fresh == 0 {
            fresh = driver.poll(&mut out).map_err(failed)?;
        }
        for completion in &out[..fresh] {
            let rollout = completion.rollout_id as usize;
            let expected = due.get_mut(rollout).ok_or_else(|| format!("no such rollout: {completion:?}"))?;
            let desc = desc(seed, *expected);
            let answer = oracle.answer(&desc);
            if completion.without_timing() != answer.completion {
                return Err(format!("completion {completed}: found {completion:?}, expected {answer:?}"));
            }
            // Now, not at the end: they must be there as soon as the completion is.
            let found = &mut found[..answer.tokens.len()];
            driver.tokens(if found.is_empty() { 0 } else { desc.delta_offset }, found).map_err(failed)?;
            if *found != *answer.tokens {
                return Err(format!(
                    "R6: tokens of {desc:?} when its completion is seen: found {found:?}, expected {:?}",
                    answer.tokens
                ));
            }
            *expected += u64::from(DEPTH);
        }
        completed += fresh as u64;
    }
    if driver.in_flight() != 0 || driver.collect(&mut out).map_err(failed)? != 0 {
        return Err("R3: more completions than descriptors".to_owned());
    }
    Ok(())
}

fn stress(queues: usize) -> Result<(), Failed> {
    let config = |queue: u32| QueueConfig {
        sq_depth: DEPTH,
        cq_depth: DEPTH >> (queue % 4),
        // The wrap of 2^32 comes early, and at another place in each queue.
        sq_start: u32::MAX - 1000 * queue,
        cq_start: u32::MAX - 777 * queue,
        token_bytes: 4 * u64::from(SPACE * SPACES * DEPTH),
        patience: 20_000,
        ..QueueConfig::default()
    };
    let options = GpuOptions {
        gpu: number("DOORBELL_GPU", 0) as usize,
        queues,
        bytes: config(0).shared_bytes()?,
        ..GpuOptions::default()
    };
    let (seed, all) = (number("DOORBELL_SEED", 1) as u32, number("DOORBELL_STRESS", 2_000_000));
    let each = all.div_ceil(queues as u64);
    println!("{queues} queue pairs, {each} descriptors each, seed {seed}");
    let mut device = doorbell_gpu::open(options)?;
    device.set_slice(Duration::from_micros(number("DOORBELL_SLICE", 100)));
    // Functions of one queue pair and of several.
    let (queues, functions) = (queues as u8, queues.div_ceil(2) as u8);
    let division = Division { queues, functions, bytes: options.bytes, ..Division::default() };
    let drivers: Vec<_> = (0..)
        .zip(Ports::divide(device, &division)?.take_all()?)
        .map(|(queue, port)| Driver::new(port, config(queue)))
        .collect::<Result<_, _>>()?;
    let results: Vec<Result<(), String>> = thread::scope(|scope| {
        let running: Vec<_> = (seed..)
            .zip(drivers)
            .map(|(seed, mut driver)| scope.spawn(move || run(&mut driver, seed, each)))
            .collect();
        running.into_iter().map(|thread| thread.join().expect("a stress thread does not panic")).collect()
    });
    for (queue, result) in results.into_iter().enumerate() {
        result.map_err(|error| format!("queue {queue}: {error}"))?;
    }
    Ok(())
}

fn main() {
    let arguments = Arguments::from_args();
    let missing = doorbell_gpu::missing();
    if let Some(reason) = &missing {
        println!("skipping the GPU's stress test: {reason}");
    }
    let queues = number("DOORBELL_QUEUES", 16) as usize;
    let name = "r03_r05_r06_r13_nothing_is_lost_doubled_or_out_of_place";
    let trial = Trial::test(name, move || stress(queues)).with_ignored_flag(missing.is_some());
    libtest_mimic::run(&arguments, vec![trial]).exit();
}
