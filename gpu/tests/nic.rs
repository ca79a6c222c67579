//! Finishers on a GPU post into a send ring of the modelled NIC, which carries their payloads to a collector with loss and reordering
//! drawn (W1 to W11). Skipped where there is no GPU. `DOORBELL_GPU` sets the GPU, `DOORBELL_NIC` how many entries each test has in all
//! (default 1,000,000), `DOORBELL_NIC_FINISHERS` how many warps post them (default 64). Every five seconds a line on standard error says
//! how far a test has come.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use doorbell_contract::{GOLDEN, NIC_BELL_AT, NIC_COMPLETED_AT, mix};
use doorbell_gpu::probes::{NIC_PAYLOAD, Probes};
use doorbell_host::queue::Depth;
use doorbell_host::{DeviceError, SharedMemory};
use doorbell_nic::collector::{Collector, CollectorOptions};
use doorbell_nic::device::{Nic, NicOptions, Port};
use doorbell_nic::link::Weather;
use doorbell_nic::ring::SendRing;
use doorbell_nic::store::{Records, path_of};
use libtest_mimic::{Arguments, Failed, Trial};

const SLOTS: u32 = 1024;
const KEY: u32 = 0xD00B;
const STREAM: u64 = 0x6B75;
/// Where this program, run as a collector, listens and stores.
const COLLECTS: [&str; 2] = ["DOORBELL_NIC_ADDRESS", "DOORBELL_NIC_DIRECTORY"];
/// Entries a second that 64 warps or more post at least: a thirtieth of what they do on an H200. Each looking across the bus for itself, they made 10,000.
const LEAST_PER_SECOND: f64 = 20_000.0;

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a number"))
}

/// Payload `k` of a finisher, as `payload_word` of `kernels/nic_ring.cuh` makes it.
fn payload(finisher: u32, k: u32) -> Vec<u8> {
    let words = (0..NIC_PAYLOAD as u32 / 4)
        .map(|j| mix(finisher.wrapping_mul(GOLDEN) ^ k.wrapping_mul(NIC_PAYLOAD as u32 / 4).wrapping_add(j)));
    words.flat_map(u32::to_le_bytes).collect()
}

/// A collector: this program, in a process of its own, so that it can be killed.
struct Collecting {
    child: Child,
    address: String,
}

impl Collecting {
    fn start(directory: &Path, address: &str) -> Result<Self, Failed> {
        let mut child = Command::new(std::env::current_exe()?)
            .env(COLLECTS[0], address)
            .env(COLLECTS[1], directory)
            .stdout(Stdio::piped())
            .spawn()?;
        let lines = child.stdout.take().map(|output| BufReader::new(output).lines());
        let address = lines.and_then(|mut lines| lines.next()).transpose();
        let started = |address| Self { child, address };
        match address {
            Ok(Some(address)) => Ok(started(address)),
            other => {
                drop(started(String::new()));
                Err(format!("the collector did not say where it listens: {other:?}").into())
            }
        }
    }

    /// Ends it without a word, and starts it again where it was.
    fn kill(&mut self, directory: &Path) -> Result<(), Failed> {
        self.child.kill()?;
        self.child.wait()?;
        let address = std::mem::take(&mut self.address);
        *self = Self::start(directory, &address)?;
        Ok(())
    }
}

impl Drop for Collecting {
    fn drop(&mut self) {
        // It may have been killed before.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What this program does as a collector.
fn collect(address: &str, directory: &Path) -> ! {
    let collector = Collector::bind(address, directory, CollectorOptions::default()).expect("a collector");
    println!("{}", collector.address().expect("an address"));
    collector.serve(|peer, refusal| eprintln!("{peer}: {refusal}"));
    std::process::exit(0)
}

/// Watches a ring until `ends`: tells how far it is, and kills the collector `kills` times on the way.
fn watch(
    memory: &SharedMemory,
    directory: &Path,
    mut collecting: Collecting,
    (total, kills): (u64, u64),
    ends: &AtomicBool,
) -> Result<Collecting, Failed> {
    let word = |at: u32| memory.word64(at as usize).map(|word| word.load(Ordering::Acquire));
    let (start, mut told, mut killed) = (Instant::now(), 0, 0);
    while !ends.load(Ordering::Acquire) {
        thread::sleep(Duration::from_millis(1));
        let completed = word(NIC_COMPLETED_AT)?;
        if killed < kills && completed >= (killed + 1) * total / (kills + 1) {
            killed += 1;
            collecting.kill(directory)?;
        }
        let elapsed = start.elapsed().as_secs();
        if elapsed >= told + 5 {
            told = elapsed;
            let bell = word(NIC_BELL_AT)?;
            eprintln!("{elapsed} s: of {total} entries {bell} are posted and {completed} completed");
        }
    }
    // Few entries are carried between two looks.
    if killed == kills || total < 100_000 {
        Ok(collecting)
    } else {
        Err(format!("killed {killed} times of {kills}").into())
    }
}

/// Posts as many entries as `DOORBELL_NIC` says, to a collector that is killed `kills` times on the way, and holds what it has to what was
/// posted.
fn posts(gpu: usize, kills: u64) -> Result<(), Failed> {
    let finishers = number("DOORBELL_NIC_FINISHERS", 64) as u32;
    let each = number("DOORBELL_NIC", 1_000_000).div_ceil(finishers.into()) as u32;
    let total = u64::from(each) * u64::from(finishers);
    let directory = Arc::new(tempfile::tempdir()?);
    let collecting = Collecting::start(directory.path(), "127.0.0.1:0")?;
    let probes = Probes::open(gpu)?;
    let ends = Arc::new(AtomicBool::new(false));
    let mut started = None;
    let start = Instant::now();
    let posted = probes.nic(SLOTS, KEY, finishers, each, |memory, region| {
        let failed = |error: &dyn std::fmt::Display| DeviceError::Failed {
            device: "the NIC".into(),
            what: error.to_string(),
        };
        let ring = SendRing::new(&memory, 0, Depth::new("slots", SLOTS)?, KEY)?;
        let mut options = NicOptions::new(collecting.address.clone());
        options.stream = STREAM;
        options.weather = Weather { loss: 0.01, reorder: 0.05, double: 0.01, seed: 1 };
        let nic = Nic::start(options, vec![Port { ring, region }]).map_err(|error| failed(&error))?;
        let (directory, ends) = (directory.clone(), ends.clone());
        let watching =
            thread::spawn(move || watch(&memory, directory.path(), collecting, (total, kills), &ends));
        started = Some((nic, watching));
        Ok(())
    });
    let (nic, watching) = started.ok_or("the NIC did not start")?;
    let counts = nic.finish();
    let elapsed = start.elapsed();
    ends.store(true, Ordering::Release);
    let watched = watching.join().expect("what watches does not panic");
    let (posted, counts) = (posted?, counts?);
    drop(watched?);
    if posted.iter().any(|&posted| posted != each) {
        return Err(format!("of {each} entries the finishers posted {posted:?}").into());
    }
    let mut records = Records::open(&path_of(directory.path(), STREAM))?;
    let mut next = vec![0; finishers as usize];
    while let Some(record) = records.read()? {
        let (finisher, k) = ((record.entry.user_data >> 32) as u32, record.entry.user_data as u32);
        let due = next.get_mut(finisher as usize).ok_or("a finisher that is none")?;
        if k != *due || record.payload != payload(finisher, k) {
            return Err(format!("finisher {finisher}: entry {k} came in place of {due}, or torn").into());
        }
        *due += 1;
    }
    if next.iter().any(|&next| next != each) {
        return Err(format!("of {each} entries of each finisher the collector has {next:?}").into());
    }
    let rate = counts.completed as f64 / elapsed.as_secs_f64();
    println!(
        "modelled NIC: {} entries from {finishers} warps of {} in {:.2} s, {:.3} M a second; {} frames lost, {} sent again, {} silences; the \
         collector was killed {kills} times",
        counts.completed,
        probes.describe()?,
        elapsed.as_secs_f64(),
        rate / 1e6,
        counts.link.lost,
        counts.again,
        counts.silences
    );
    if rate < LEAST_PER_SECOND && finishers >= 64 && total >= 100_000 {
        return Err(format!("{rate:.0} entries a second, and {LEAST_PER_SECOND} are the least").into());
    }
    Ok(())
}

fn main() {
    if let [Ok(address), Ok(directory)] = COLLECTS.map(std::env::var) {
        collect(&address, Path::new(&directory));
    }
    let arguments = Arguments::from_args();
    let gpu = number("DOORBELL_GPU", 0) as usize;
    let missing = doorbell_gpu::missing();
    if let Some(reason) = &missing {
        println!("skipping the GPU's posts to a NIC: {reason}");
    }
    let trials = [
        ("w1_w10_what_a_gpu_posts_arrives_whole_in_order_and_once", 0),
        ("w11_a_receiver_that_is_killed_and_comes_back_gets_the_rest", 8),
    ];
    let trial =
        |(name, kills)| Trial::test(name, move || posts(gpu, kills)).with_ignored_flag(missing.is_some());
    // One after the other: each has the GPU for itself.
    let arguments = Arguments { test_threads: Some(1), ..arguments };
    libtest_mimic::run(&arguments, trials.map(trial).into()).exit();
}
