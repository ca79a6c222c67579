//! What it costs to wait: a host that looks, one that sleeps until it is interrupted (R14), and by what it is.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use comfy_table::Table;
use doorbell_contract::{CompletionFlags, HwCompletion, HwDesc, Place, Register, Status};
use doorbell_devices::{Kind, Settings};
use doorbell_host::{
    Device, DeviceError, Division, Driver, Pages, Platform, Ports, QueueConfig, SharedMemory,
};
use doorbell_verify::ModelPlatform;
use serde_json::{Value, json};

use crate::{BenchError, Elapsed, Section, cpu_now, median, percent, table, verdict};

/// Members of a group.
const MEMBERS: u32 = 8;
/// How long a group is to take on the device.
const GROUP_TIME: Duration = Duration::from_millis(3);
/// What sleeping may add to the time from the end of a group to when it is seen.
const ADDED_BAR: f64 = 10.0;
/// What part of the CPU time of looking it may take.
const CPU_BAR: f64 = 0.02;
/// What part of the time a host that looks runs, at least: else it waits for something else.
const LOOKS: f64 = 0.5;
/// Longest sleep.
const SLEEP: Duration = Duration::from_secs(1);

/// How a host waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Host {
    /// It looks.
    Polls,
    /// It sleeps until the end of the group.
    Group,
    /// It sleeps until so many completions are there.
    Count(u32),
    /// It sleeps until so many ticks have passed since the first one.
    Time(u32),
}

impl Host {
    fn name(self) -> String {
        match self {
            Host::Polls => "looks".into(),
            Host::Group => "sleeps, woken by GROUP_DONE".into(),
            Host::Count(1) => "sleeps, woken by each completion".into(),
            Host::Count(count) => format!("sleeps, woken by {count} completions"),
            Host::Time(ticks) => format!("sleeps, woken {ticks} ticks after the first"),
        }
    }

    fn config(self) -> QueueConfig {
        let (coalesce_count, coalesce_time) = match self {
            Host::Count(count) => (count, 0),
            Host::Time(ticks) => (0, ticks),
            Host::Polls | Host::Group => (0, 0),
        };
        QueueConfig {
            sq_depth: 64,
            cq_depth: 64,
            coalesce_count,
            coalesce_time,
            token_bytes: 64 << 20,
            ..QueueConfig::default()
        }
    }
}

/// A device that notes when it last posted a completion.
struct Stamped<D> {
    device: D,
    start: Instant,
    posted: u32,
    /// When the slice of time ended in which it did, in ns from the start.
    at: Arc<AtomicU64>,
}

impl<D: Pages> Stamped<D> {
    fn new(device: D, start: Instant) -> Self {
        Self { device, start, posted: 0, at: Arc::default() }
    }
}

impl<D: Pages> Platform for Stamped<D> {
    fn name(&self) -> &str {
        self.device.name()
    }

    fn map(&mut self, bytes: usize) -> Result<SharedMemory, DeviceError> {
        self.device.map(bytes)
    }

    fn write_register(&mut self, register: Register, value: u32) -> Result<(), DeviceError> {
        self.device.write_register(register, value)
    }

    fn read_register(&mut self, register: Register) -> Result<u32, DeviceError> {
        self.device.read_register(register)
    }

    fn advance(&mut self, want: usize) -> Result<(), DeviceError> {
        self.device.advance(want)?;
        let now = self.start.elapsed().as_nanos() as u64;
        let posted = self.device.read_register(Register::CqTail)?;
        if posted != self.posted {
            self.posted = posted;
            self.at.store(now, Ordering::Release);
        }
        Ok(())
    }
}

impl<D: Pages> Pages for Stamped<D> {
    fn write_at(&mut self, place: Place, register: Register, value: u32) -> Result<(), DeviceError> {
        self.device.write_at(place, register, value)
    }

    fn read_at(&mut self, place: Place, register: Register) -> Result<u32, DeviceError> {
        self.device.read_at(place, register)
    }
}

/// A device that runs by itself.
struct Alone {
    device: Box<dyn Device>,
    /// When it posted last, of one that says so.
    posted: Option<Arc<AtomicU64>>,
    start: Instant,
}

impl Alone {
    fn new<D: Pages + 'static>(device: D, config: QueueConfig) -> Result<Self, BenchError> {
        let start = Instant::now();
        let device = Stamped::new(device, start);
        let posted = Some(device.at.clone());
        let division = Division { bytes: config.shared_bytes()?, ..Division::default() };
        let ports = Ports::divide(device, &division)?.attended()?;
        let device = Box::new(Driver::new(ports.take(0)?, config)?);
        Ok(Self { device, posted, start })
    }

    fn open(kind: Kind, host: Host) -> Result<Self, BenchError> {
        match kind {
            Kind::Model => Self::new(ModelPlatform::new(), host.config()),
            #[cfg(feature = "rtl")]
            Kind::Rtl => {
                let slice = doorbell_cosim::SHARED_SLICE;
                let config =
                    doorbell_cosim::RtlConfig { workers: 4, slice, ..doorbell_cosim::RtlConfig::default() };
                let device = doorbell_cosim::RtlPlatform::new(&config).map_err(BenchError::failed)?;
                Self::new(device, host.config())
            }
            _ => {
                let settings = Settings { queue: host.config(), ..Settings::default() };
                let device = kind.open(&settings).map_err(BenchError::failed)?;
                Ok(Self { device, posted: None, start: Instant::now() })
            }
        }
    }

    /// Runs a group of members with so many tokens each.
    fn group(&mut self, number: u32, tokens: u32, host: Host) -> Result<Round, BenchError> {
        let mut batch = vec![HwDesc::open_group(number, 0, MEMBERS)];
        batch.extend((0..MEMBERS).map(|member| {
            HwDesc::decode(number * MEMBERS + member, 0, tokens)
                .with_member(number, member as u16)
                .with_delta_offset(u64::from(4 * member * tokens))
        }));
        let start = Instant::now();
        let cpu = cpu_now();
        if self.device.submit(&batch)? != batch.len() {
            return Err(BenchError::failed("a group was not taken whole"));
        }
        let (mut wakes, mut ended, mut out) = (0, 0, [HwCompletion::default(); 16]);
        let mut seen = start;
        while ended < batch.len() {
            let taken = if host == Host::Polls {
                self.device.poll(&mut out)?
            } else {
                self.device.arm()?;
                wakes += u32::from(self.device.wait(Instant::now() + SLEEP)?);
                self.device.collect(&mut out)?
            };
            seen = Instant::now();
            ended += taken;
            for completion in &out[..taken] {
                if completion.status != Status::Done as u8 {
                    return Err(BenchError::failed(format!("a member ended otherwise: {completion:x?}")));
                }
            }
            if taken > 0 && ended == batch.len() && !out[taken - 1].has(CompletionFlags::GROUP_DONE) {
                return Err(BenchError::failed("R17: the last completion of a group is not GROUP_DONE"));
            }
        }
        let behind = self.posted.as_ref().map(|posted| {
            let posted = Duration::from_nanos(posted.load(Ordering::Acquire));
            (seen - self.start).saturating_sub(posted)
        });
        Ok(Round { trip: Elapsed { wall: seen - start, cpu: cpu_now() - cpu }, behind, wakes })
    }
}

/// One group.
struct Round {
    /// From before its doorbell to when its end was seen.
    trip: Elapsed,
    /// From its end, on the device's thread, to when it was seen.
    behind: Option<Duration>,
    wakes: u32,
}

/// How long it takes from telling a thread that sleeps to when it runs: the system's part of each wake-up.
fn wake_up(rounds: u32) -> f64 {
    let told: Mutex<Option<Instant>> = Mutex::new(None);
    let (wake, ready) = (Condvar::new(), Mutex::new(false));
    let asleep = Condvar::new();
    let lock = |mutex| Mutex::lock(mutex).unwrap_or_else(PoisonError::into_inner);
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..rounds {
                let guard = ready.lock().unwrap_or_else(PoisonError::into_inner);
                let mut guard =
                    asleep.wait_while(guard, |ready| !*ready).unwrap_or_else(PoisonError::into_inner);
                *guard = false;
                drop(guard);
                // As long as a group takes: the other's processor has gone to sleep as it would.
                let until = Instant::now() + GROUP_TIME;
                while Instant::now() < until {
                    std::hint::spin_loop();
                }
                let mut told = lock(&told);
                *told = Some(Instant::now());
                wake.notify_one();
            }
        });
        median((0..rounds).map(|_| {
            let mut guard = lock(&told);
            *ready.lock().unwrap_or_else(PoisonError::into_inner) = true;
            asleep.notify_one();
            guard = wake.wait_while(guard, |told| told.is_none()).unwrap_or_else(PoisonError::into_inner);
            guard.take().map_or(0.0, |told| told.elapsed().as_secs_f64() * 1e6)
        }))
    })
}

/// A row's figures.
struct Figures {
    /// From the end of a group to when it is seen, in microseconds; of a device that does not tell, the whole trip.
    behind: f64,
    tells: bool,
    trip: f64,
    cpu: f64,
    wakes: f64,
}

fn measure(kind: Kind, host: Host, tokens: u32, groups: u32) -> Result<Figures, BenchError> {
    let mut alone = Alone::open(kind, host)?;
    let mut rounds = Vec::with_capacity(groups as usize);
    for number in 0..groups + 3 {
        let round = alone.group(number, tokens, host)?;
        // Those before warm up.
        if number >= 3 {
            rounds.push(round);
        }
    }
    let micros = |duration: Duration| duration.as_secs_f64() * 1e6;
    let wall: f64 = rounds.iter().map(|round| round.trip.wall.as_secs_f64()).sum();
    let cpu: f64 = rounds.iter().map(|round| round.trip.cpu.as_secs_f64()).sum();
    let trip = median(rounds.iter().map(|round| micros(round.trip.wall)));
    Ok(Figures {
        behind: median(rounds.iter().map(|round| round.behind.map_or(micros(round.trip.wall), micros))),
        tells: rounds[0].behind.is_some(),
        trip,
        cpu: cpu / wall,
        wakes: f64::from(rounds.iter().map(|round| round.wakes).sum::<u32>()) / f64::from(groups),
    })
}

/// Tokens of a member with which a group takes about [`GROUP_TIME`].
fn tokens(kind: Kind) -> Result<u32, BenchError> {
    let mut tokens = 64;
    loop {
        let trip = measure(kind, Host::Polls, tokens, 5)?.trip / 1e6;
        let wanted = GROUP_TIME.as_secs_f64() / trip;
        if wanted < 1.5 || tokens >= 1 << 20 {
            return Ok(tokens);
        }
        tokens = (f64::from(tokens) * wanted.min(16.0)).min(f64::from(1 << 20)) as u32;
    }
}

/// A host that looks against one that sleeps, on each device that there is.
pub fn waiting(quick: bool) -> Result<Section, BenchError> {
    let groups = if quick { 30 } else { 300 };
    let wake_up = wake_up(groups);
    let mut table: Table = table(
        [
            "device",
            "host",
            "wakes per group",
            "per descriptor",
            "seen after its end, us",
            "more than looking",
            "CPU, of looking",
        ],
        2,
    );
    let (mut rows, mut notes): (Vec<Value>, Vec<String>) = (vec![], vec![]);
    notes.push(format!("this machine wakes a thread that sleeps in {wake_up:.1} us (median)"));
    for kind in Kind::ALL {
        if let Some(reason) = kind.missing() {
            notes.push(format!("{}: left out, {reason}", kind.name()));
            continue;
        }
        let tokens = tokens(kind)?;
        let ticks = 1000;
        let hosts: &[Host] = match kind {
            // It has no coalescing.
            Kind::Gpu => &[Host::Polls, Host::Group],
            _ => &[Host::Polls, Host::Group, Host::Count(MEMBERS + 1), Host::Time(ticks), Host::Count(1)],
        };
        let mut looking = None;
        for &host in hosts {
            let figures = measure(kind, host, tokens, groups)?;
            let first = looking.get_or_insert((figures.behind, figures.cpu));
            let (added, cpu) = (figures.behind - first.0, figures.cpu / first.1);
            let behind = if figures.tells { format!("{:.1}", figures.behind) } else { "not told".into() };
            table.add_row([
                kind.name().to_owned(),
                host.name(),
                format!("{:.2}", figures.wakes),
                format!("{:.3}", figures.wakes / f64::from(MEMBERS + 1)),
                behind,
                format!("{added:+.1}"),
                percent(figures.cpu),
            ]);
            rows.push(json!({
                "device": kind.name(), "host": host.name(), "wakes_per_group": figures.wakes,
                "behind_us": figures.tells.then_some(figures.behind), "added_us": added, "cpu": figures.cpu,
                "trip_us": figures.trip,
            }));
            if host == Host::Group {
                let beyond = added - wake_up;
                notes.push(format!(
                    "{}: sleeping on a group of {MEMBERS} adds {added:.1} us (bar {ADDED_BAR}: {}), {beyond:+.1} to the machine's own wake-up, with \
                     {:.2} wakes (bar 1: {})",
                    kind.name(),
                    verdict(added <= ADDED_BAR),
                    figures.wakes,
                    verdict(figures.wakes == 1.0)
                ));
                notes.push(if first.1 >= LOOKS {
                    format!(
                        "{}: it takes {} of the CPU time of looking (bar {}: {})",
                        kind.name(),
                        percent(cpu),
                        percent(CPU_BAR),
                        verdict(cpu <= CPU_BAR)
                    )
                } else {
                    format!(
                        "{}: looking takes {} of the time alone, as each release waits for the simulated device's slice to end; no ratio is given",
                        kind.name(),
                        percent(first.1)
                    )
                });
            }
        }
    }
    #[cfg(feature = "gpu")]
    if Kind::Gpu.missing().is_none() {
        let probes = doorbell_gpu::probes::Probes::open(0)?;
        let interrupted = probes.interrupts(groups, GROUP_TIME)?;
        let interrupted = median(interrupted.iter().map(|time| time.as_secs_f64() * 1e6));
        notes.push(format!(
            "gpu: a host that sleeps until the GPU interrupts it (a stream that waits for a word of the kernel's, an event after it) runs {interrupted:.1} us \
             after the word, even of a kernel of one thread"
        ));
        rows.push(json!({ "device": "gpu", "host": "sleeps, woken by an event after a word", "behind_us": interrupted }));
    }
    Ok(Section {
        heading: format!(
            "waiting for groups of {MEMBERS} that take about {} ms, {groups} of each",
            GROUP_TIME.as_millis()
        ),
        table,
        notes,
        json: json!({ "wake_up_us": wake_up, "rows": rows }),
    })
}
