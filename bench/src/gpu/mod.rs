//! The GPU: round trips, descriptors per second, and what a token costs in control, each beside its floor or rival.

use std::time::Duration;

use doorbell_contract::HwDesc;
use doorbell_gpu::probes::{Copies, Probes, launches};
use doorbell_gpu::{GpuDevice, GpuOptions};
use doorbell_host::{DeviceError, Division, Driver, Ports, QueuePort};
use serde_json::json;

use crate::{BenchError, Section, table, verdict};
use load::{
    Load, Rate, Think, Times, eventfd_round_trips, looks_per_second, queue_config, round_trips, throughput,
    transport,
};

pub mod decode;
mod load;

/// Round trip of a descriptor over that of a flag.
const ROUND_TRIP_BAR: f64 = 1.10;
/// Descriptors per second over those of the bare transport.
const TRANSPORT_BAR: f64 = 0.75;
/// Descriptors per second of one queue and one thread, in the largest batches.
const QUEUE_BAR: f64 = 100e6;
/// Control per token of a persistent worker, in ns.
const TOKEN_BAR_NS: f64 = 50.0;
/// Tokens of the rollout whose control is spread over its tokens: the mean of the Mooncake conversation trace.
const ROLLOUT: u32 = 343;
/// Tokens of a rollout so long that its round trip does not count.
const LONG: u32 = 100_000;
const GPU: usize = 0;

/// What is measured in one go, so that floors and figures see the same machine.
pub fn sections(quick: bool, functions: u8) -> Result<Vec<Section>, BenchError> {
    let probes = Probes::open(GPU)?;
    let gpu = probes.describe()?;
    let rounds = if quick { 5_000 } else { 50_000 };
    let rollouts = if quick { 20 } else { 200 };

    let flag = |think: Think| probes.ping_pong(rounds, |round| think.pass(round)).map(Times::new);
    let ping_pong = flag(Think::Nothing)?;
    let paused_ping_pong = flag(Think::Random)?;
    let few = rounds / 5;
    let launch = Stepped::count(few, || probes.launches(few).map(Times::new))?;
    let graph = Stepped::count(few, || probes.graph_launches(few).map(Times::new))?;
    let back_to_back =
        Stepped::count(rounds, || probes.launches_back_to_back(rounds).map(|time| Times::new(vec![time])))?;
    let eventfd = Stepped::count(rounds, || eventfd_round_trips(rounds))?;

    let mut alone = open_alone()?;
    let driver = &mut alone;
    let nop = round_trips(driver, HwDesc::nop(), Think::Nothing, rounds)?;
    let paused_nop = round_trips(driver, HwDesc::nop(), Think::Random, rounds)?;
    let one =
        Stepped::count(rounds, || round_trips(driver, HwDesc::decode(1, 0, 1), Think::Nothing, rounds))?;
    let rollout = Stepped::count(few * ROLLOUT, || {
        round_trips(driver, HwDesc::decode(1, 0, ROLLOUT), Think::Nothing, few)
    })?;
    let long = Stepped::count(rollouts * LONG, || {
        round_trips(driver, HwDesc::decode(1, 0, LONG), Think::Nothing, rollouts)
    })?;
    drop(alone);
    let ping_pong_again = flag(Think::Nothing)?;

    // The floor drifts within a run: the figures lie between its two measurements.
    let floor = (ping_pong.quantile(0.5) + ping_pong_again.quantile(0.5)) / 2;
    let paused_floor = paused_ping_pong.quantile(0.5);
    let round_trip_rows = [
        ("flag ping-pong, before: the floor", &ping_pong, floor),
        ("flag ping-pong, after: the floor", &ping_pong_again, floor),
        ("NOP", &nop, floor),
        ("DECODE, 1 token (with its fence)", &one.times, floor),
        ("kernel launch and synchronise", &launch.times, floor),
        ("graph launch and synchronise", &graph.times, floor),
        ("eventfd to a thread and back", &eventfd.times, floor),
        ("flag ping-pong, with pauses: the floor of", &paused_ping_pong, paused_floor),
        ("NOP, with pauses", &paused_nop, paused_floor),
    ];
    Ok(vec![
        round_trip_section(&gpu, &round_trip_rows, &nop),
        rate_section(&probes, &gpu, quick, functions)?,
        token_section(&gpu, &Tokens { eventfd, launch, graph, back_to_back, one, rollout, long }),
        idle_section(&probes, &gpu)?,
    ])
}

/// Nanoseconds of a token: launched and waited for, by a graph, asked for by a host that polls, and of a persistent worker's rollout, all in.
pub fn per_token(quick: bool) -> Result<[f64; 4], BenchError> {
    let rounds = if quick { 1_000 } else { 10_000 };
    let probes = Probes::open(GPU)?;
    let each = |times: &Times, tokens: u32| times.quantile(0.5).as_secs_f64() * 1e9 / f64::from(tokens);
    let launch = Times::new(probes.launches(rounds)?);
    let graph = Times::new(probes.graph_launches(rounds)?);
    let mut driver = open_alone()?;
    let one = round_trips(&mut driver, HwDesc::decode(1, 0, 1), Think::Nothing, rounds)?;
    let rollout = round_trips(&mut driver, HwDesc::decode(1, 0, ROLLOUT), Think::Nothing, rounds)?;
    Ok([each(&launch, 1), each(&graph, 1), each(&one, 1), each(&rollout, ROLLOUT)])
}

/// A device with one queue pair, which its driver has alone.
fn open_alone() -> Result<Driver<GpuDevice>, DeviceError> {
    let bytes = queue_config().shared_bytes()?;
    let device = doorbell_gpu::open(GpuOptions { gpu: GPU, queues: 1, bytes, ..GpuOptions::default() })?;
    Driver::new(device, queue_config())
}

/// A device with several queue pairs, and a driver for each.
struct Opened {
    ports: Ports<GpuDevice>,
    drivers: Vec<Driver<QueuePort<GpuDevice>>>,
}

/// A device of which so many functions, or as many as there are queue pairs, share the queue pairs.
fn open(queues: usize, functions: u8) -> Result<Opened, DeviceError> {
    let bytes = queue_config().shared_bytes()?;
    let device = doorbell_gpu::open(GpuOptions { gpu: GPU, queues, bytes, ..GpuOptions::default() })?;
    let queues = queues as u8;
    let division = Division { queues, functions: functions.min(queues), bytes, ..Division::default() };
    let ports = Ports::divide(device, &division)?;
    let taken = ports.take_all()?.into_iter();
    let drivers = taken.map(|port| Driver::new(port, queue_config())).collect::<Result<_, _>>()?;
    Ok(Opened { ports, drivers })
}

/// The two queue pairs of a function, the first of which has its event ring.
pub(crate) fn open_function(
    queue: doorbell_host::QueueConfig,
) -> Result<[Driver<QueuePort<GpuDevice>>; 2], DeviceError> {
    let bytes = queue.shared_bytes()?;
    let device = doorbell_gpu::open(GpuOptions { gpu: GPU, queues: 2, bytes, ..GpuOptions::default() })?;
    let ports = Ports::divide(device, &Division { queues: 2, functions: 1, bytes, ..Division::default() })?;
    let other = doorbell_host::QueueConfig { event_slots: 0, life_events: false, ..queue.clone() };
    Ok([Driver::new(ports.take(0)?, queue)?, Driver::new(ports.take(1)?, other)?])
}

fn micros(time: Duration) -> String {
    format!("{:.2} us", time.as_secs_f64() * 1e6)
}

fn nanos(time: f64) -> String {
    format!("{time:.1} ns")
}

/// Each row with its floor.
fn round_trip_section(gpu: &str, rows: &[(&str, &Times, Duration)], judged: &Times) -> Section {
    let mut table = table(["round trip", "p50", "p99", "p99.9", "of the floor", "bar", "bar is"], 1);
    let mut figures = vec![];
    for &(name, times, floor) in rows {
        let [p50, p99, p999] = [0.5, 0.99, 0.999].map(|share| times.quantile(share));
        let ratio = p50.as_secs_f64() / floor.as_secs_f64();
        let (bar, stands) = if std::ptr::eq(times, judged) {
            (format!("{ROUND_TRIP_BAR:.2}"), verdict(ratio <= ROUND_TRIP_BAR))
        } else {
            (String::new(), "")
        };
        table.add_row([
            name.to_owned(),
            micros(p50),
            micros(p99),
            micros(p999),
            format!("{ratio:.2}"),
            bar,
            stands.to_owned(),
        ]);
        figures.push(json!({
            "round_trip": name, "p50_ns": p50.as_nanos() as u64, "p99_ns": p99.as_nanos() as u64,
            "p999_ns": p999.as_nanos() as u64, "of_the_floor": ratio,
        }));
    }
    Section {
        heading: format!("{gpu}: round trips of one descriptor at a time, one host thread"),
        table,
        notes: vec![
            "The floor is a flag that the host writes and the GPU answers; the mean of both runs.".to_owned(),
            "With pauses: the host waits for 0 to 4 us before each, at random, and finds the GPU anywhere in its rhythm."
                .to_owned(),
        ],
        json: figures.into(),
    }
}

fn rate_section(probes: &Probes, gpu: &str, quick: bool, functions: u8) -> Result<Section, BenchError> {
    let descriptors = if quick { 1 << 20 } else { 1 << 23 };
    let mut table = table(
        [
            "queues",
            "threads",
            "batch",
            "descriptors/s",
            "bare transport",
            "of it",
            "looks in vain",
            "PCIe, both ways",
            "bar",
            "bar is",
        ],
        0,
    );
    let mut figures = vec![];
    for (queues, threads) in [(1, 1), (2, 2), (4, 4), (8, 8), (16, 8)] {
        let loads: Vec<Load> =
            [1, 32, 256].map(|batch| Load { queues, threads, batch, descriptors }).to_vec();
        let bare = loads.iter().map(|load| transport(probes, load)).collect::<Result<Vec<f64>, _>>()?;
        let Opened { mut drivers, .. } = open(queues, functions)?;
        let rates = loads.iter().map(|load| throughput(&mut drivers, load)).collect::<Result<Vec<_>, _>>()?;
        drop(drivers);
        for ((load, bare), rate) in loads.iter().zip(bare).zip(rates) {
            let Rate { per_second: rate, in_vain } = rate;
            let million = |rate: f64| format!("{:.1} M", rate / 1e6);
            // A descriptor of 64 bytes one way; a completion of 32 and a token of 4 the other.
            let bus = format!("{:.1} / {:.1} GB/s", rate * 64.0 / 1e9, rate * 36.0 / 1e9);
            let alone = (queues == 1 && load.batch == 256).then_some(QUEUE_BAR);
            let (ratio, bar) = (rate / bare, format!("{TRANSPORT_BAR:.2}"));
            table.add_row([
                queues.to_string(),
                threads.to_string(),
                load.batch.to_string(),
                million(rate),
                million(bare),
                format!("{ratio:.2}"),
                format!("{:.0} %", 100.0 * in_vain),
                bus,
                alone.map_or(bar.clone(), |alone| format!("{bar}, {}", million(alone))),
                verdict(ratio >= TRANSPORT_BAR && alone.is_none_or(|alone| rate >= alone)).to_owned(),
            ]);
            figures.push(json!({
                "queues": queues, "threads": threads, "batch": load.batch, "per_second": rate,
                "bare_transport_per_second": bare, "of_it": ratio, "looks_in_vain": in_vain,
                "bar_per_second": alone,
            }));
        }
    }
    Ok(Section {
        heading: format!("{gpu}: descriptors per second, each a DECODE of one token, all rules on"),
        table,
        notes: vec![
            "The bare transport polls the same slots and answers each as soon as it is there, with a completion that says \
             nothing: no driver, no doorbell, no order, no tokens and no fence. A PCIe 5 link of 16 lanes carries 63 GB/s \
             each way, headers included."
                .to_owned(),
            "Looks in vain: of the host's looks at a completion queue, those that found nothing. Where they are few, it is \
             the host that holds up the device."
                .to_owned(),
        ],
        json: figures.into(),
    })
}

/// What a kernel that has nothing to do takes from the others.
fn idle_section(probes: &Probes, gpu: &str) -> Result<Section, BenchError> {
    let copies = Copies::new(probes)?;
    // The first copies of a process are slower.
    copies.bandwidths()?;
    let mut table = table(
        ["idle kernel", "looks at host memory", "bytes read", "copies to the GPU", "copies from it"],
        1,
    );
    let mut figures = vec![];
    let mut row = |name: String, looks: f64, [to, from]: [f64; 2]| {
        // A control warp reads 16 bytes, a scout 64.
        let bytes = looks * (16.0 + 64.0) / 2.0;
        table.add_row([
            name.clone(),
            format!("{:.2} M/s", looks / 1e6),
            format!("{:.2} GB/s", bytes / 1e9),
            format!("{:.1} GB/s", to / 1e9),
            format!("{:.1} GB/s", from / 1e9),
        ]);
        figures.push(json!({
            "kernel": name, "looks_per_second": looks, "bytes_per_second": bytes,
            "to_gpu_bytes_per_second": to, "from_gpu_bytes_per_second": from,
        }));
    };
    row("none".to_owned(), 0.0, copies.bandwidths()?);
    for queues in [1, 16] {
        let opened = open(queues, 1)?;
        let looks = looks_per_second(&opened.ports);
        row(format!("{queues} queues"), looks, copies.bandwidths()?);
    }
    row("none, again".to_owned(), 0.0, copies.bandwidths()?);
    Ok(Section {
        heading: format!("{gpu}: what an idle persistent kernel costs"),
        table,
        notes: vec![
            "It holds every multiprocessor: another kernel has to wait or share time. The host spends nothing.".to_owned(),
        ],
        json: figures.into(),
    })
}

/// What a token costs, by who steps it.
struct Tokens {
    eventfd: Stepped,
    launch: Stepped,
    graph: Stepped,
    back_to_back: Stepped,
    one: Stepped,
    rollout: Stepped,
    long: Stepped,
}

/// Times of tokens, and how many launches each of them took, as counted meanwhile.
struct Stepped {
    times: Times,
    launches_per_token: f64,
}

impl Stepped {
    fn count(tokens: u32, work: impl FnOnce() -> Result<Times, DeviceError>) -> Result<Self, DeviceError> {
        let before = launches();
        let times = work()?;
        Ok(Self { times, launches_per_token: (launches() - before) as f64 / f64::from(tokens) })
    }

    /// Nanoseconds per token, where a time is that of `tokens`, and launches per token.
    fn each(&self, tokens: u32) -> (f64, f64) {
        (self.times.quantile(0.5).as_secs_f64() * 1e9 / f64::from(tokens), self.launches_per_token)
    }
}

fn token_section(gpu: &str, tokens: &Tokens) -> Section {
    let (in_rollout, in_long) = (tokens.rollout.each(ROLLOUT), tokens.long.each(LONG));
    // Everything that is not the token itself: what the rollout took beyond as many tokens of a long one.
    let control = (in_rollout.0 - in_long.0, in_rollout.1);
    let mut table = table(["who steps a token", "per token", "launches per token", "bar", "bar is"], 1);
    let mut figures = vec![];
    let rows = [
        ("launch per token, waited for".to_owned(), tokens.launch.each(1), None),
        ("graph launch per token, waited for".to_owned(), tokens.graph.each(1), None),
        ("launches back to back".to_owned(), tokens.back_to_back.each(1), None),
        ("eventfd to a thread and back".to_owned(), tokens.eventfd.each(1), None),
        ("host polls: a DECODE of 1 token each".to_owned(), tokens.one.each(1), None),
        (format!("persistent worker, rollout of {ROLLOUT}, all in"), in_rollout, None),
        (format!("persistent worker, rollout of {LONG}, all in"), in_long, None),
        (format!("persistent worker, rollout of {ROLLOUT}, control alone"), control, Some(TOKEN_BAR_NS)),
    ];
    for (name, (time, launches), bar) in rows {
        table.add_row([
            name.clone(),
            nanos(time),
            format!("{launches:.2}"),
            bar.map(nanos).unwrap_or_default(),
            bar.map_or("", |bar| verdict(time <= bar)).to_owned(),
        ]);
        figures.push(json!({
            "who": name, "ns_per_token": time, "launches_per_token": launches,
            "bar_ns": bar,
        }));
    }
    Section {
        heading: format!("{gpu}: the control plane's tax on a token"),
        table,
        notes: vec![format!(
            "All in: the round trip of one rollout over its tokens. Control alone: that, less as many tokens of the \
             rollout of {LONG}."
        )],
        json: figures.into(),
    }
}
