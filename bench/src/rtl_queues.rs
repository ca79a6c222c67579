//! What several queue pairs cost the RTL: its way of one descriptor, and the cycles that all of them together lose. In
//! simulated cycles, and thus exact.

use doorbell_contract::{HwCompletion, HwDesc, Register};
use doorbell_cosim::{Built, RtlConfig, RtlPlatform, built};
use doorbell_host::queue::{Depth, is_fresh};
use doorbell_host::{Device, DeviceError, Division, Driver, Ports, QueueConfig, QueuePort};
use serde_json::json;

use crate::rtl::Workload;
use crate::{BenchError, Section, percent, table, verdict};

/// Tokens of the DECODEs whose way is measured; 0 is a NOP.
const WAYS: [u32; 4] = [0, 1, 16, 100];
/// Cycles from the doorbell to the visible completion, beside one for each token; a NOP takes as many as one token.
const WAY: u64 = 21;
/// Tokens of each DECODE under load, so long that the port is no limit to four workers.
const LENGTH: u32 = 256;
/// Workers under load, at most.
const LOADED: u32 = 4;
/// Share of the worker cycles that has to bring a token.
const BAR: f64 = 0.99;
/// Cycles of a way before it counts as endless.
const PATIENCE: u64 = 10_000;

type Port = QueuePort<RtlPlatform>;

/// A device that was built, with all its queue pairs, on `workers` workers of it.
struct Pairs {
    ports: Ports<RtlPlatform>,
    drivers: Vec<Driver<Port>>,
}

impl Pairs {
    fn open(built: Built, workers: u32, config: &QueueConfig) -> Result<Self, BenchError> {
        let Built { workers: most, queues, functions, .. } = built;
        let config = QueueConfig { workers: None, ..config.clone() };
        let rtl = RtlConfig { workers: most, queues, functions, ..RtlConfig::default() };
        let platform = RtlPlatform::new(&rtl).map_err(DeviceError::from)?;
        let division = Division {
            queues: queues as u8,
            functions: functions as u8,
            bytes: config.shared_bytes()?,
            workers: Some(workers),
            ..Division::default()
        };
        let ports = Ports::divide(platform, &division)?;
        let drivers = ports.take_all()?.into_iter().map(|port| Driver::new(port, config.clone()));
        Ok(Self { drivers: drivers.collect::<Result<_, _>>()?, ports })
    }

    /// Cycles from the doorbell's beat to the first in which the host finds the completion, of `desc` alone on the device.
    fn way(&mut self, queue: usize, desc: HwDesc) -> Result<u64, BenchError> {
        let driver = &mut self.drivers[queue];
        let (offset, depth) = (driver.layout().cq, Depth::new("cq_depth", driver.config().cq_depth)?);
        let memory = driver.memory().clone();
        let index = driver.read(Register::CqTail)?;
        let rung = self.ports.device().cycles();
        driver.submit(&[desc])?;
        let mut device = self.ports.device();
        while !is_fresh(&memory.slots(offset, depth.slots())?, depth, index) {
            if device.cycles() - rung > PATIENCE {
                let what = format!("no completion within {PATIENCE} cycles");
                return Err(DeviceError::Failed { device: "rtl".to_owned(), what }.into());
            }
            device.run(1).map_err(DeviceError::from)?;
        }
        let cycles = device.cycles() - rung;
        drop(device);
        let mut out = [HwCompletion::default()];
        while self.drivers[queue].poll(&mut out)? == 0 {}
        Ok(cycles)
    }

    /// Cycles in which all queue pairs run `each` DECODEs of [`LENGTH`] tokens.
    fn load(&mut self, each: u32) -> Result<u64, BenchError> {
        let workload = Workload::uniform(each, LENGTH)?;
        let start = self.ports.device().cycles();
        for driver in &mut self.drivers {
            if driver.submit(&workload.descs)? != workload.descs.len() {
                return Err(BenchError::input("the submission queue is too small for this load"));
            }
        }
        let mut out = vec![HwCompletion::default(); 1024];
        while self.drivers.iter().any(|driver| driver.in_flight() > 0) {
            for driver in self.drivers.iter_mut().filter(|driver| driver.in_flight() > 0) {
                driver.poll(&mut out)?;
            }
        }
        Ok(self.ports.device().cycles() - start)
    }
}

/// One device of each number of queue pairs that was built, that with the most workers.
fn devices() -> Vec<Built> {
    let mut devices: Vec<Built> = built().into_iter().filter(|built| built.engines == 1).collect();
    devices.sort_by_key(|built| (built.queues, built.workers));
    devices.dedup_by(|next, kept| {
        let same = next.queues == kept.queues;
        if same {
            *kept = *next;
        }
        same
    });
    devices
}

/// (d) Several queue pairs.
pub fn queue_pairs() -> Result<Section, BenchError> {
    let headers = [
        "queue pairs",
        "functions",
        "workers",
        "NOP",
        "1 token",
        "16 tokens",
        "100 tokens",
        "21 + n",
        "tokens/cycle",
        "limit",
        "of the limit",
        "bar",
        "bar is",
    ];
    let mut table = table(headers, 0);
    let mut rows = vec![];
    for built in devices() {
        let workers = built.workers.min(LOADED);
        let (count, extra) = (64, 64);
        let config =
            QueueConfig { sq_depth: 128, cq_depth: 128, ..Workload::uniform(count + extra, LENGTH)?.config };
        // The way is that of the last queue pair, which scans come to last.
        let mut pairs = Pairs::open(built, built.workers, &config)?;
        let mut ways = [0; WAYS.len()];
        for (way, tokens) in ways.iter_mut().zip(WAYS) {
            let desc = if tokens == 0 { HwDesc::nop() } else { HwDesc::decode(1, 0, tokens) };
            *way = pairs.way(pairs.drivers.len() - 1, desc)?;
        }
        let straight = ways.iter().zip(WAYS).all(|(&way, tokens)| way <= WAY + u64::from(tokens.max(1)));
        // Start and end do not count: what twice the load takes longer.
        let cycles = |each| Pairs::open(built, workers, &config)?.load(each);
        let (short, long) = (cycles(count)?, cycles(count + extra)?);
        let tokens = f64::from(LENGTH * extra * built.queues);
        let measured = tokens / (long as f64 - short as f64);
        let limit = f64::from(workers);
        let met = straight && measured >= BAR * limit;
        table.add_row([
            built.queues.to_string(),
            built.functions.to_string(),
            format!("{workers} of {}", built.workers),
            ways[0].to_string(),
            ways[1].to_string(),
            ways[2].to_string(),
            ways[3].to_string(),
            verdict(straight).to_owned(),
            format!("{measured:.3}"),
            format!("{limit:.3}"),
            percent(measured / limit),
            percent(BAR),
            verdict(met).to_owned(),
        ]);
        rows.push(json!({
            "queues": built.queues, "functions": built.functions, "workers": workers, "cycles_alone": ways,
            "tokens": WAYS, "tokens_per_cycle": measured, "limit": limit,
        }));
    }
    Ok(Section {
        heading: "RTL, several queue pairs: cycles from the doorbell to the completion of a descriptor alone, and tokens per \
                  cycle of all queue pairs under load"
            .to_owned(),
        table,
        notes: vec![format!(
            "The way is from the doorbell's beat to the first cycle in which the host finds the completion, on the last queue pair, \
             with a memory that answers in the next cycle. Under load each queue pair has DECODEs of {LENGTH} tokens; \
             the functions' workers are their own where there are enough, else shared; the limit is a token per worker and cycle."
        )],
        json: rows.into(),
    })
}
