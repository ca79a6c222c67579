//! R23: every LIFE event agrees with its completion, of queue pairs that share a ring: on the kernel's text on the CPU, and on a
//! GPU, where there is one. `DOORBELL_LIVES` is the number of descriptors (default 3,000 on the CPU, 1,000,000 on a GPU), `DOORBELL_SEED` the seed,
//! `DOORBELL_GPU` the GPU.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use doorbell_contract::{DescFlags, EventKind, HwCompletion, HwDesc, HwEvent, Register, mix};
use doorbell_gpu::{GpuDevice, GpuOptions};
use doorbell_gpu_cpu::{CpuKernel, Options};
use doorbell_host::{Device, DeviceError, Division, Driver, Ports, QueueConfig, QueuePort};
use libtest_mimic::{Arguments, Failed, Trial};

/// Slots of the ring.
const SLOTS: u32 = 4096;

/// How long nothing may complete.
const PATIENCE: Duration = Duration::from_secs(20);

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a number"))
}

/// Descriptor number `k` of a mixture: nothing to do, few tokens, many, errors, scores, fences.
fn desc(seed: u64, k: u64) -> HwDesc {
    let draw = mix(k as u32 ^ mix(seed as u32));
    let rollout = draw >> 24;
    let desc = match draw % 32 {
        0..4 => HwDesc::nop(),
        4 => HwDesc::decode(rollout, 0, 0),
        5 => HwDesc::stop(rollout),
        6 => HwDesc::nop().with_flags(DescFlags::FENCE),
        7 => HwDesc::reward(rollout, 0, 1 + draw % 40),
        8..12 => HwDesc::decode(rollout, 0, 1 + (draw >> 8) % 90),
        _ => HwDesc::decode(rollout, 0, 1 + (draw >> 8) % 4),
    };
    desc.with_user_data(k)
}

/// What is known of one queue pair.
#[derive(Default)]
struct Seen {
    submitted: u64,
    /// By index: user_data, worker.
    ends: Vec<(u64, u16)>,
    /// The last event's index, and when its completion was visible.
    last: Option<(u32, u64)>,
    told: u64,
    /// Events with each moment behind the one before it.
    stepped: u64,
}

/// Looks at an event.
fn look(seen: &mut Seen, driver: &Driver<QueuePort<GpuDevice>>, event: &HwEvent) -> Result<(), String> {
    // R23: behind the visibility of its completion.
    let index = event.index as usize;
    if index >= seen.ends.len() && driver.answered(event).is_none() {
        return Err(format!("{event:?} came before its completion"));
    }
    let moments = [0, event.start, event.first_token, event.ended, event.visible];
    if !moments.is_sorted() {
        return Err(format!("moments of {event:?} are out of order"));
    }
    let visible = event.stamp + u64::from(event.visible);
    if seen.last.is_some_and(|(last, before)| event.index <= last || visible < before) {
        return Err(format!("{event:?} after {:?}", seen.last));
    }
    seen.last = Some((event.index, visible));
    seen.told += 1;
    seen.stepped += u64::from(event.first_token < event.ended && event.ended < event.visible);
    Ok(())
}

/// Runs `lives` descriptors on queue pairs of one function, whose ring the first of them has laid out.
fn run(drivers: &mut [Driver<QueuePort<GpuDevice>>], seed: u64, lives: u64) -> Result<String, String> {
    let failed = |error: DeviceError| error.to_string();
    let each = lives.div_ceil(drivers.len() as u64);
    let mut seen: Vec<Seen> = drivers.iter().map(|_| Seen::default()).collect();
    let mut out = [HwCompletion::default(); 64];
    let mut events = [HwEvent::default(); 256];
    // Whose worker is to be compared once the completion has been taken.
    let mut waiting: VecDeque<HwEvent> = VecDeque::new();
    let (mut last_news, mut quiet) = (Instant::now(), 0);
    while quiet < 4 {
        let mut news = 0;
        for (queue, (driver, seen)) in (seed..).zip(drivers.iter_mut().zip(&mut seen)) {
            let more = (each - seen.submitted).min(32);
            let descs: Vec<HwDesc> =
                (seen.submitted..seen.submitted + more).map(|k| desc(queue, k)).collect();
            seen.submitted += driver.submit(&descs).map_err(failed)? as u64;
            let mut taken = driver.collect(&mut out).map_err(failed)?;
            if taken == 0 && (seen.ends.len() as u64) < each {
                taken = driver.poll(&mut out).map_err(failed)?;
            }
            seen.ends.extend(out[..taken].iter().map(|end| (end.user_data, end.worker_id)));
            news += taken;
        }
        let told = drivers[0].events(&mut events).map_err(failed)?;
        for event in &events[..told] {
            let queue = usize::from(event.queue_id);
            if event.kind != EventKind::Life as u8 || queue >= seen.len() {
                return Err(format!("{event:?}"));
            }
            look(&mut seen[queue], &drivers[queue], event)?;
            waiting.push_back(*event);
        }
        for _ in 0..waiting.len() {
            let Some(event) = waiting.pop_front() else { break };
            match seen[usize::from(event.queue_id)].ends.get(event.index as usize) {
                Some(&(user_data, worker)) => {
                    if worker != event.worker_id || user_data >= each {
                        return Err(format!("{event:?} of a completion of worker {worker}"));
                    }
                }
                None => waiting.push_back(event),
            }
        }
        if news + told > 0 {
            (last_news, quiet) = (Instant::now(), 0);
        } else if seen.iter().all(|seen| seen.ends.len() as u64 == each) {
            quiet += 1;
        } else if last_news.elapsed() > PATIENCE {
            return Err("nothing completes".to_owned());
        }
    }
    let told: u64 = seen.iter().map(|seen| seen.told).sum();
    let stepped: u64 = seen.iter().map(|seen| seen.stepped).sum();
    let dropped = u64::from(drivers[0].read(Register::EventsDropped).map_err(failed)?);
    let all = each * drivers.len() as u64;
    if told + dropped != all || !waiting.is_empty() {
        return Err(format!("{told} events and {dropped} dropped of {all} completions"));
    }
    if told < all / 2 || stepped == 0 {
        return Err(format!("{told} of {all} lives were told, {stepped} of them with moments that differ"));
    }
    Ok(format!("{told} of {all} lives told, {dropped} dropped, {stepped} with moments that differ"))
}

fn config() -> QueueConfig {
    QueueConfig {
        sq_depth: 256,
        cq_depth: 256,
        event_slots: SLOTS,
        life_events: true,
        token_bytes: 1 << 16,
        ..QueueConfig::default()
    }
}

/// The drivers of all queue pairs of a device, of one function.
fn divide(device: GpuDevice, queues: usize) -> Result<Vec<Driver<QueuePort<GpuDevice>>>, DeviceError> {
    let bytes = config().shared_bytes()?;
    let division = Division { queues: queues as u8, functions: 1, bytes, ..Division::default() };
    Ports::divide(device, &division)?
        .take_all()?
        .into_iter()
        .map(|port| Driver::new(port, config()))
        .collect()
}

fn on_the_cpu(options: Options, lives: u64) -> Result<String, String> {
    let engine = Arc::new(CpuKernel::start(options).map_err(|error| error.to_string())?);
    let device = GpuDevice::new(engine).map_err(|error| error.to_string())?;
    let mut drivers = divide(device, options.queues).map_err(|error| error.to_string())?;
    run(&mut drivers, options.seed, lives)
}

fn on_a_gpu(queues: usize) -> Result<(), Failed> {
    let gpu = number("DOORBELL_GPU", 0) as usize;
    let bytes = config().shared_bytes()?;
    let device = doorbell_gpu::open(GpuOptions { gpu, queues, bytes, ..GpuOptions::default() })?;
    let said =
        run(&mut divide(device, queues)?, number("DOORBELL_SEED", 1), number("DOORBELL_LIVES", 1_000_000))?;
    println!("{queues} queue pairs: {said}");
    Ok(())
}

fn main() {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let missing = doorbell_gpu::missing();
    if let Some(reason) = &missing {
        println!("skipping the lives of a GPU: {reason}");
    }
    let seed = number("DOORBELL_SEED", 1);
    let mut trials = Vec::new();
    for queues in [1, 3] {
        let name = format!("r23_lives_agree_with_their_completions on a GPU, {queues} queue pairs");
        trials.push(Trial::test(name, move || on_a_gpu(queues)).with_ignored_flag(missing.is_some()));
        for (pace, stress, weak) in [("calm", false, false), ("stress", true, false), ("weak", true, true)] {
            let options = Options { queues, seed, stress, weak, ..Options::default() };
            let name =
                format!("r23_lives_agree_with_their_completions on the CPU, {queues} queue pairs, {pace}");
            trials.push(Trial::test(name, move || {
                println!("{}", on_the_cpu(options, number("DOORBELL_LIVES", 3000))?);
                Ok(())
            }));
        }
    }
    for fault in ["ClaimsApart", "TellsEarly", "TellsTogether"] {
        let name = format!("r23_lives_agree_with_their_completions notices {fault}");
        trials.push(Trial::test(name, move || {
            let found = (seed..seed + 20).find_map(|seed| {
                let options = Options { queues: 3, seed, fault: Some(fault), ..Options::default() };
                on_the_cpu(options, 3000).err()
            });
            println!("{fault}: {}", found.as_deref().unwrap_or("nothing"));
            if found.is_some() { Ok(()) } else { Err(Failed::from("every run passed")) }
        }));
    }
    libtest_mimic::run(&arguments, trials).exit();
}
