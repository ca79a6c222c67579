//! Finishers on a GPU post into a send ring of the modelled NIC, which carries their payloads to a collector with loss and reordering
//! drawn (W1 to W10). Skipped where there is no GPU. `DOORBELL_GPU` sets the GPU, `DOORBELL_NIC` how many entries in all (default
//! 1,000,000).

use std::thread;
use std::time::Instant;

use doorbell_contract::{GOLDEN, mix};
use doorbell_gpu::probes::{NIC_PAYLOAD, Probes};
use doorbell_host::DeviceError;
use doorbell_host::queue::Depth;
use doorbell_nic::collector::{Collector, CollectorOptions};
use doorbell_nic::device::{Nic, NicOptions, Port};
use doorbell_nic::link::Weather;
use doorbell_nic::ring::SendRing;
use doorbell_nic::store::{Records, path_of};
use libtest_mimic::{Arguments, Failed, Trial};

const FINISHERS: u32 = 64;
const SLOTS: u32 = 1024;
const KEY: u32 = 0xD00B;
const STREAM: u64 = 0x6B75;

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a number"))
}

/// Payload `k` of a finisher, as `payload_word` of `kernels/nic_ring.cuh` makes it.
fn payload(finisher: u32, k: u32) -> Vec<u8> {
    let words = (0..NIC_PAYLOAD as u32 / 4)
        .map(|j| mix(finisher.wrapping_mul(GOLDEN) ^ k.wrapping_mul(NIC_PAYLOAD as u32 / 4).wrapping_add(j)));
    words.flat_map(u32::to_le_bytes).collect()
}

fn posts(gpu: usize) -> Result<(), Failed> {
    let each = number("DOORBELL_NIC", 1_000_000).div_ceil(FINISHERS.into()) as u32;
    let directory = tempfile::tempdir()?;
    let collector = Collector::bind("127.0.0.1:0", directory.path(), CollectorOptions::default())?;
    let (address, handle) = (collector.address()?.to_string(), collector.handle());
    let probes = Probes::open(gpu)?;
    let serving = thread::spawn(move || collector.serve(|peer, refusal| println!("{peer}: {refusal}")));
    let mut nic = None;
    let start = Instant::now();
    let posted = probes.nic(SLOTS, KEY, FINISHERS, each, |memory, region| {
        let ring = SendRing::new(&memory, 0, Depth::new("slots", SLOTS)?, KEY)?;
        let mut options = NicOptions::new(address);
        options.stream = STREAM;
        options.weather = Weather { loss: 0.01, reorder: 0.05, double: 0.01, seed: 1 };
        let started = Nic::start(options, vec![Port { ring, region }]);
        nic =
            Some(started.map_err(|error| DeviceError::Failed {
                device: "the NIC".into(),
                what: error.to_string(),
            })?);
        Ok(())
    });
    let counts = nic.ok_or("the NIC did not start")?.finish();
    let elapsed = start.elapsed();
    handle.stop();
    serving.join().expect("the collector does not panic");
    let (posted, counts) = (posted?, counts?);
    if posted.iter().any(|&posted| posted != each) {
        return Err(format!("of {each} entries the finishers posted {posted:?}").into());
    }
    let mut records = Records::open(&path_of(directory.path(), STREAM))?;
    let mut next = vec![0; FINISHERS as usize];
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
    println!(
        "modelled NIC: {} entries from {FINISHERS} warps of {} in {:.2} s, {:.3} M a second; {} frames lost, {} sent again",
        counts.completed,
        probes.describe()?,
        elapsed.as_secs_f64(),
        counts.completed as f64 / elapsed.as_secs_f64() / 1e6,
        counts.link.lost,
        counts.again
    );
    Ok(())
}

fn main() {
    let arguments = Arguments::from_args();
    let gpu = number("DOORBELL_GPU", 0) as usize;
    let missing = Probes::open(gpu).err();
    if let Some(reason) = &missing {
        println!("skipping the GPU's posts to a NIC: {reason}");
    }
    let trial = Trial::test("w1_w10_what_a_gpu_posts_arrives_whole_in_order_and_once", move || posts(gpu))
        .with_ignored_flag(missing.is_some());
    libtest_mimic::run(&arguments, vec![trial]).exit();
}
