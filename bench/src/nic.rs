//! The modelled NIC: posts to completions, beside a flag that two threads hand to and fro, and entries carried to a collector that is
//! killed on the way.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use doorbell_contract::HwNicEntry;
use doorbell_host::queue::Depth;
use doorbell_nic::MODELLED;
use doorbell_nic::device::{Nic, NicCounts, NicOptions};
use doorbell_nic::link::{Draw, Weather};
use doorbell_nic::poster::{CarryError, Poster};
use doorbell_nic::store::{Records, path_of};
use serde_json::json;

use crate::handoff::{quantile, round_trips};
use crate::leftovers::{Folder, Program};
use crate::{BenchError, Section, median, table};

/// Slots of the ring: more than the NIC has on its way.
const DEPTH: u32 = 2048;
/// Bytes of the payload region.
const REGION: usize = 1 << 20;
/// Longest payload of the entries that are carried; the mean is half of it.
const LONGEST: u64 = 48;
/// Stream of the entries that are carried.
const STREAM: u64 = 0xD00B_E110;

/// What is drawn where it is.
fn storm(seed: u64) -> Weather {
    Weather { loss: 0.01, reorder: 0.05, double: 0.01, seed }
}

/// A collector: this program, in a process of its own.
struct Collecting {
    program: Program,
    address: String,
}

impl Collecting {
    fn start(directory: &Path, address: &str) -> Result<Self, BenchError> {
        let program = std::env::current_exe().map_err(BenchError::failed)?;
        let mut command = Command::new(program);
        command.args(["--quiet", "nic", "collect", "--listen", address, "--store"]).arg(directory);
        let mut program = Program::start(command.stdout(Stdio::piped()))
            .map_err(|error| BenchError::failed(format!("no collector could be started: {error}")))?;
        let output =
            program.stdout.take().ok_or_else(|| BenchError::failed("the collector has no output"))?;
        let lines = BufReader::new(output).lines().map_while(Result::ok);
        let mut address = None;
        for line in lines {
            address = line.split_once("listening at ").map(|(_, rest)| rest.trim().to_owned());
            if address.is_some() {
                break;
            }
        }
        let address = address.ok_or_else(|| BenchError::failed("the collector ended before it listened"))?;
        Ok(Self { program, address })
    }

    /// Ends it as a machine does that loses its power: without a word.
    fn kill(&mut self) -> Result<(), BenchError> {
        self.program.kill().map_err(BenchError::failed)
    }
}

/// The payload of entry `k`, which only `k` says.
fn payload(k: u64, out: &mut Vec<u8>) {
    let mut draw = Draw::new(k);
    let length = draw.below(LONGEST + 1) as usize;
    out.clear();
    while out.len() < length {
        out.extend_from_slice(&draw.bits().to_le_bytes());
    }
    out.truncate(length);
}

fn options(address: &str, stream: u64, weather: Weather) -> NicOptions {
    let mut options = NicOptions::new(address);
    (options.stream, options.weather) = (stream, weather);
    options.patience = Duration::from_secs(60);
    options
}

fn poster() -> Result<(Poster, doorbell_nic::device::Port), BenchError> {
    Ok(Poster::new(Depth::new("slots of the send ring", DEPTH)?, REGION, 0xD00B)?)
}

/// Posts, as soon as there is room.
fn post(poster: &mut Poster, k: u64, bytes: &[u8]) -> Result<(), BenchError> {
    let about = HwNicEntry { user_data: k, rollout_id: k as u32, ..HwNicEntry::default() };
    loop {
        match poster.post(about, bytes) {
            Ok(_) => return Ok(()),
            Err(CarryError::Full) => thread::yield_now(),
            Err(error) => return Err(BenchError::failed(error)),
        }
    }
}

/// Entries per second from post to completion, in this weather.
fn rate(address: &str, stream: u64, weather: Weather, count: u64) -> Result<(f64, NicCounts), BenchError> {
    let (mut poster, port) = poster()?;
    let nic = Nic::start(options(address, stream, weather), vec![port]).map_err(BenchError::failed)?;
    let mut bytes = vec![];
    let start = Instant::now();
    for k in 0..count {
        payload(k, &mut bytes);
        post(&mut poster, k, &bytes)?;
    }
    while poster.completed() < count && !nic.has_ended() {
        thread::yield_now();
    }
    let elapsed = start.elapsed();
    let counts = nic.finish().map_err(BenchError::failed)?;
    Ok((count as f64 / elapsed.as_secs_f64(), counts))
}

/// How long an entry takes from its post to its completion while no other is on its way, sorted.
fn one_at_a_time(address: &str, stream: u64, rounds: u64) -> Result<Vec<Duration>, BenchError> {
    let (mut poster, port) = poster()?;
    let nic = Nic::start(options(address, stream, Weather::FAIR), vec![port]).map_err(BenchError::failed)?;
    let (mut times, mut bytes) = (vec![], vec![]);
    for k in 0..rounds {
        payload(k, &mut bytes);
        let start = Instant::now();
        post(&mut poster, k, &bytes)?;
        while poster.completed() <= k && !nic.has_ended() {
            thread::yield_now();
        }
        times.push(start.elapsed());
    }
    nic.finish().map_err(BenchError::failed)?;
    times.sort_unstable();
    Ok(times)
}

/// A flag that two threads hand to and fro: a store, and a look at it.
fn flags(rounds: u64) -> Result<Vec<Duration>, BenchError> {
    let (there, back) = (AtomicU64::new(0), AtomicU64::new(0));
    // A key is shown as the key and one, once.
    let look = |flag: &AtomicU64| flag.swap(0, Ordering::Acquire).checked_sub(1);
    round_trips(
        rounds,
        |key| there.store(key + 1, Ordering::Release),
        || look(&back),
        || look(&there),
        |key| back.store(key + 1, Ordering::Release),
    )
}

/// Posts to completions, beside a flag.
pub fn posts(quick: bool) -> Result<Section, BenchError> {
    let (rounds, count, repeats) = if quick { (1 << 9, 20_000, 1) } else { (1 << 13, 500_000, 5) };
    let directory = Folder::new()?;
    let collector = Collecting::start(directory.path(), "127.0.0.1:0")?;
    let mut all: [Vec<f64>; 6] = Default::default();
    for repeat in 0..repeats {
        // No two NICs have the same.
        let streams = 3 * repeat;
        let flag = flags(rounds)?;
        let single = one_at_a_time(&collector.address, streams, rounds.min(1 << 11))?;
        let (fair, _) = rate(&collector.address, streams + 1, Weather::FAIR, count)?;
        let (drawn, _) = rate(&collector.address, streams + 2, storm(streams), count)?;
        let figures =
            [quantile(&flag, 0.5), quantile(&flag, 0.99), quantile(&single, 0.5), quantile(&single, 0.99)];
        for (all, figure) in all.iter_mut().zip(figures.into_iter().chain([fair, drawn])) {
            all.push(figure);
        }
    }
    let [flag, flag_99, single, single_99, fair, drawn] = all.map(median);
    let mut table = table(["from post to completion", "p50", "p99", "entries a second", "of the flag"], 1);
    let mut row = |name: &str, p50: Option<f64>, p99: Option<f64>, rate: f64| {
        let time = |time: Option<f64>| time.map_or(String::new(), |ns| format!("{:.2} µs", ns / 1e3));
        let (rate, of_flag) = (format!("{:.3} M", rate / 1e6), format!("{:.3}", rate * flag / 1e9));
        table.add_row([format!("{MODELLED}: {name}"), time(p50), time(p99), rate, of_flag]);
    };
    row("a flag, there and back", Some(flag), Some(flag_99), 1e9 / flag);
    row("the NIC, one entry at a time", Some(single), Some(single_99), 1e9 / single);
    row("the NIC, as many as fit", None, None, fair);
    row("the NIC, with loss, reordering and doubling", None, None, drawn);
    Ok(Section {
        heading: format!(
            "The {MODELLED} NIC, to a collector in a process of its own that stores each payload: medians of {repeats} runs of {count} entries"
        ),
        table,
        notes: vec![format!(
            "{MODELLED}: a thread plays the NIC, over TCP on this machine. Payloads have 0 to {LONGEST} bytes; 1 % of frames are lost, 5 % held up, \
             1 % doubled where that is drawn."
        )],
        json: json!({
            "modelled": true, "flag_p50_ns": flag, "flag_p99_ns": flag_99, "one_p50_ns": single, "one_p99_ns": single_99,
            "fair_per_second": fair, "drawn_per_second": drawn,
        }),
    })
}

/// What is wrong with what the collector has.
#[derive(Debug, Default, PartialEq, Eq)]
struct Wrong {
    lost: u64,
    doubled: u64,
    torn: u64,
}

/// Holds the file at `path` to entries 0 to `count` - 1.
fn judge(path: &Path, count: u64) -> Result<(Wrong, u64), BenchError> {
    let mut records = Records::open(path).map_err(BenchError::failed)?;
    let (mut wrong, mut next, mut bytes) = (Wrong::default(), 0, 0);
    let mut expected = vec![];
    while let Some(record) = records.read().map_err(BenchError::failed)? {
        let k = record.entry.user_data;
        payload(k, &mut expected);
        if k >= count || record.payload != expected || record.entry.rollout_id != k as u32 {
            wrong.torn += 1;
        } else if k < next {
            wrong.doubled += 1;
        } else {
            wrong.lost += k - next;
            next = k + 1;
        }
        bytes += record.payload.len() as u64;
    }
    wrong.lost += count - next;
    Ok((wrong, bytes))
}

/// Carries `count` entries through drawn loss, reordering and doubling, to a collector that is killed `kills` times on the way, and
/// holds what it has to what was posted.
pub fn entries(quick: bool, count: Option<u64>) -> Result<Section, BenchError> {
    let count = count.unwrap_or(if quick { 50_000 } else { 1_000_000 });
    // As many as there are entries to kill it between.
    let kills = 8.min(count - 1);
    let mut killed = 0;
    let directory = Folder::new()?;
    let mut collector = Collecting::start(directory.path(), "127.0.0.1:0")?;
    let (mut poster, port) = poster()?;
    let nic = Nic::start(options(&collector.address, STREAM, storm(STREAM)), vec![port])
        .map_err(BenchError::failed)?;
    let start = Instant::now();
    let mut bytes = vec![];
    for k in 0..count {
        if killed < kills && k == (killed + 1) * count / (kills + 1) {
            killed += 1;
            collector.kill()?;
            let address = collector.address.clone();
            collector = Collecting::start(directory.path(), &address)?;
        }
        payload(k, &mut bytes);
        post(&mut poster, k, &bytes)?;
    }
    while poster.completed() < count && !nic.has_ended() {
        thread::yield_now();
    }
    let elapsed = start.elapsed();
    let counts = nic.finish().map_err(BenchError::failed)?;
    collector.kill()?;
    let path: PathBuf = path_of(directory.path(), STREAM);
    let (wrong, payload_bytes) = judge(&path, count)?;
    if wrong != Wrong::default() {
        return Err(BenchError::failed(format!(
            "{MODELLED}: of {count} entries the collector has {wrong:?}"
        )));
    }
    let link = counts.link;
    let mut table = table(["entries", "count"], 1);
    let rate = count as f64 / elapsed.as_secs_f64();
    for (name, value) in [
        ("posted, completed, and stored in order", count),
        ("lost, doubled or torn at the collector", wrong.lost + wrong.doubled + wrong.torn),
        ("bytes of payload, each compared", payload_bytes),
        ("frames lost on the way", link.lost),
        ("frames held up", link.held),
        ("frames doubled", link.doubled),
        ("acknowledgements lost", link.acks_lost),
        ("frames sent again", counts.again),
        ("times that the collector was killed", killed),
        ("connections", counts.connections),
        ("entries a second", rate as u64),
    ] {
        table.add_row([format!("{MODELLED}: {name}"), value.to_string()]);
    }
    Ok(Section {
        heading: format!(
            "{count} entries through the {MODELLED} NIC, with loss, reordering and doubling drawn, to a collector that is killed {killed} times"
        ),
        table,
        notes: vec![],
        json: json!({
            "modelled": true, "entries": count, "lost": wrong.lost, "doubled": wrong.doubled, "torn": wrong.torn,
            "payload_bytes": payload_bytes, "frames_lost": link.lost, "frames_held": link.held,
            "frames_doubled": link.doubled, "acks_lost": link.acks_lost, "frames_again": counts.again,
            "kills": killed, "connections": counts.connections, "seconds": elapsed.as_secs_f64(),
        }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use doorbell_nic::store::{Store, body};

    #[test]
    fn a_flag_goes_there_and_back() {
        assert_eq!(flags(50).unwrap().len(), 50);
    }

    #[test]
    fn what_is_wrong_at_the_collector_is_counted() {
        let directory = tempfile::tempdir().unwrap();
        let mut store = Store::open(directory.path(), 1, false).unwrap();
        let mut bytes = vec![];
        for (k, is_torn) in [(0, false), (2, false), (2, false), (3, true)] {
            payload(k, &mut bytes);
            if is_torn {
                bytes.push(0);
            }
            let entry = HwNicEntry { user_data: k, rollout_id: k as u32, ..HwNicEntry::default() };
            store.append(&body(&entry, &bytes));
        }
        store.commit().unwrap();
        let (wrong, _) = judge(&path_of(directory.path(), 1), 4).unwrap();
        assert_eq!(wrong, Wrong { lost: 2, doubled: 1, torn: 1 });
    }
}
