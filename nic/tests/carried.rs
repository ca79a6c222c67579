//! Entries from posters to the collector's file, through drawn loss, reordering and doubling, and through collectors that are killed.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use doorbell_contract::{HwNicEntry, NicFault, NicFlags};
use doorbell_host::queue::Depth;
use doorbell_host::{SharedMemory, memory::SIMULATED_BUS_ADDRESS};
use doorbell_nic::collector::{Collector, CollectorOptions};
use doorbell_nic::device::{Nic, NicError, NicOptions, Port};
use doorbell_nic::link::{Draw, Weather};
use doorbell_nic::poster::{CarryError, Poster};
use doorbell_nic::ring::{Agent, PostError, SendRing, digest, ring_bytes, send};
use doorbell_nic::store::{Records, path_of};
use doorbell_nic::wire::{Frame, Kind};
use rstest::rstest;

const STREAM: u64 = 0xD00B;

fn storm(seed: u64) -> Weather {
    Weather { loss: 0.05, reorder: 0.2, double: 0.05, seed }
}

fn options(address: &str, weather: Weather) -> NicOptions {
    let mut options = NicOptions::new(address);
    options.stream = STREAM;
    options.weather = weather;
    options.patience = Duration::from_secs(60);
    options
}

/// The payload of entry `k`, which only `k` says.
fn payload(k: u64, out: &mut Vec<u8>) {
    let mut draw = Draw::new(k);
    let length = draw.below(97) as usize;
    out.clear();
    while out.len() < length {
        out.extend_from_slice(&draw.bits().to_le_bytes());
    }
    out.truncate(length);
}

/// A collector on a thread, while `run` runs with its address.
fn collecting<R>(directory: &Path, run: impl FnOnce(&str) -> R) -> R {
    let collector = Collector::bind("127.0.0.1:0", directory, CollectorOptions::default()).unwrap();
    let (address, handle) = (collector.address().unwrap().to_string(), collector.handle());
    thread::scope(|scope| {
        scope.spawn(|| collector.serve(|_, _| ()));
        // A test that fails must not wait for the collector.
        let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(&address)));
        handle.stop();
        ran.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn post(poster: &mut Poster, k: u64, bytes: &[u8]) {
    let about = HwNicEntry { user_data: k, rollout_id: k as u32, ..HwNicEntry::default() };
    while let Err(error) = poster.post(about, bytes) {
        assert!(matches!(error, CarryError::Full), "{error}");
        // The other threads have the processor.
        thread::sleep(Duration::from_micros(50));
    }
}

/// Holds the file of `STREAM` to entries 0 to `count` - 1 of one poster.
fn is_whole(directory: &Path, count: u64) {
    let mut records = Records::open(&path_of(directory, STREAM)).unwrap();
    let mut expected = vec![];
    for k in 0..count {
        let record = records.read().unwrap().unwrap_or_else(|| panic!("entry {k} is lost"));
        payload(k, &mut expected);
        assert_eq!((record.number, record.entry.user_data, record.entry.index), (k, k, k as u32));
        assert!(record.payload == expected, "the payload of entry {k}");
    }
    assert_eq!(records.read().unwrap(), None);
}

#[rstest]
fn w10_nothing_is_lost_doubled_or_torn_in_any_weather(#[values(1, 2, 3)] seed: u64) {
    const COUNT: u64 = 10_000;
    let directory = tempfile::tempdir().unwrap();
    let counts = collecting(directory.path(), |address| {
        let (mut poster, port) = Poster::new(Depth::new("depth", 256).unwrap(), 16 << 10, 7).unwrap();
        let nic = Nic::start(options(address, storm(seed)), vec![port]).unwrap();
        let mut bytes = vec![];
        for k in 0..COUNT {
            payload(k, &mut bytes);
            post(&mut poster, k, &bytes);
        }
        let counts = nic.finish().unwrap();
        assert_eq!(poster.completed(), COUNT);
        counts
    });
    assert_eq!(counts.completed, COUNT);
    let drawn = counts.link;
    assert!(drawn.lost > 250 && drawn.held > 1000 && drawn.doubled > 250 && drawn.acks_lost > 0, "{drawn:?}");
    assert!(counts.again >= drawn.lost);
    is_whole(directory.path(), COUNT);
}

/// Several finishers share a ring, and two rings share a NIC.
#[test]
fn w3_each_finishers_entries_come_in_its_order() {
    const COUNT: u64 = 3_000;
    const FINISHERS: u64 = 3;
    let directory = tempfile::tempdir().unwrap();
    collecting(directory.path(), |address| {
        let ports_and_agents: Vec<(Port, Agent)> = (0..2)
            .map(|key| {
                let depth = Depth::new("depth", 8).unwrap();
                let memory = SharedMemory::allocate(ring_bytes(depth), SIMULATED_BUS_ADDRESS).unwrap();
                let region = SharedMemory::allocate(4096, SIMULATED_BUS_ADDRESS).unwrap();
                let ring = SendRing::new(&memory, 0, depth, key).unwrap();
                (Port { ring: ring.clone(), region }, Agent::new(ring))
            })
            .collect();
        let (ports, agents): (Vec<_>, Vec<_>) = ports_and_agents.into_iter().unzip();
        let nic = Nic::start(options(address, storm(9)), ports).unwrap();
        thread::scope(|scope| {
            for (ring, agent) in agents.iter().enumerate() {
                for finisher in 0..FINISHERS {
                    scope.spawn(move || {
                        for k in 0..COUNT {
                            let name = (ring as u64 * FINISHERS + finisher) << 32 | k;
                            while let Err(error) = agent.post(send(name, 0, 0)) {
                                assert_eq!(error, PostError::Full);
                                thread::sleep(Duration::from_micros(50));
                            }
                        }
                    });
                }
            }
        });
        nic.finish().unwrap();
    });
    let mut records = Records::open(&path_of(directory.path(), STREAM)).unwrap();
    let mut next = [0; 2 * FINISHERS as usize];
    let mut of_ring = [0; 2];
    while let Some(record) = records.read().unwrap() {
        let (who, k) = ((record.entry.user_data >> 32) as usize, record.entry.user_data & 0xFFFF_FFFF);
        assert_eq!(k, next[who], "finisher {who}");
        next[who] += 1;
        let ring = &mut of_ring[who / FINISHERS as usize];
        assert_eq!(record.entry.index, *ring, "the ring's order");
        *ring += 1;
    }
    assert_eq!(next, [COUNT; 2 * FINISHERS as usize]);
}

#[rstest]
#[case(NicFault::BadOpcode, |e| HwNicEntry { opcode: 9, ..e })]
#[case(NicFault::ReservedSet, |e| HwNicEntry { flags: 2, ..e })]
#[case(NicFault::ReservedSet, |e| HwNicEntry { reserved_0: 1, ..e })]
#[case(NicFault::ReservedSet, |e| HwNicEntry { reserved_1: 1, ..e })]
#[case(NicFault::ReservedSet, |e| HwNicEntry { digest: 1, ..e })]
#[case(NicFault::BadLength, |e| HwNicEntry { length: (1 << 24) + 1, ..e })]
#[case(NicFault::BadRegion, |e| HwNicEntry { offset: 2, ..e })]
#[case(NicFault::BadRegion, |e| HwNicEntry { offset: 4096 - 4, length: 5, ..e })]
#[case(NicFault::BadRegion, |e| HwNicEntry { offset: u64::MAX - 3, length: 8, ..e })]
#[case(NicFault::BadDigest, |e| HwNicEntry { flags: NicFlags::DIGEST.bits(), digest: digest([1]), length: 4, ..e })]
fn w4_w8_a_bad_entry_stops_its_ring_behind_what_came_before(
    #[case] fault: NicFault,
    #[case] spoil: fn(HwNicEntry) -> HwNicEntry,
) {
    let directory = tempfile::tempdir().unwrap();
    let (mut good, good_port) = Poster::new(Depth::new("depth", 8).unwrap(), 4096, 1).unwrap();
    let (bad, bad_port) = Poster::new(Depth::new("depth", 8).unwrap(), 4096, 1).unwrap();
    let error = collecting(directory.path(), |address| {
        let nic = Nic::start(options(address, storm(1)), vec![bad_port, good_port]).unwrap();
        for k in 0..3 {
            bad.agent().post(send(k, 0, 4)).unwrap();
        }
        bad.agent().post(spoil(send(3, 0, 4))).unwrap();
        let _ = bad.agent().post(send(4, 0, 4));
        for k in 100..200 {
            post(&mut good, k, &[1]);
        }
        nic.finish().unwrap_err()
    });
    assert!(matches!(error, NicError::Faults(1, found) if found == fault), "{error}");
    assert_eq!((bad.agent().ring().completed(), bad.fault()), (3, Some(fault)));
    assert_eq!(bad.agent().post(send(5, 0, 0)), Err(PostError::Stopped(fault)));
    assert_eq!(good.completed(), 100);
    let mut records = Records::open(&path_of(directory.path(), STREAM)).unwrap();
    let count =
        std::iter::from_fn(|| records.read().unwrap()).filter(|record| record.entry.user_data < 100).count();
    assert_eq!(count, 3);
}

/// A finisher that takes a slot and never publishes it holds up what is behind it, and then the ring stops.
#[test]
fn w6_an_abandoned_slot_stops_its_ring() {
    let directory = tempfile::tempdir().unwrap();
    let (poster, port) = Poster::new(Depth::new("depth", 8).unwrap(), 4096, 1).unwrap();
    let error = collecting(directory.path(), |address| {
        let mut options = options(address, Weather::FAIR);
        options.late = Duration::from_millis(200);
        let nic = Nic::start(options, vec![port]).unwrap();
        let agent = poster.agent();
        agent.post(send(0, 0, 0)).unwrap();
        assert_eq!(agent.reserve(), Ok(1));
        agent.post(send(2, 0, 0)).unwrap();
        let begun = Instant::now();
        while poster.fault().is_none() {
            assert!(begun.elapsed() < Duration::from_secs(30), "the ring does not stop");
            thread::sleep(Duration::from_millis(1));
        }
        nic.finish().unwrap_err()
    });
    assert!(matches!(error, NicError::Faults(1, NicFault::Abandoned)), "{error}");
    assert_eq!(poster.agent().ring().completed(), 1);
}

/// A slot that was published and is not whole is told.
#[test]
fn w2_a_slot_that_changed_after_its_publication_is_a_bad_check() {
    let directory = tempfile::tempdir().unwrap();
    let depth = Depth::new("depth", 4).unwrap();
    let memory = SharedMemory::allocate(ring_bytes(depth), SIMULATED_BUS_ADDRESS).unwrap();
    let region = SharedMemory::allocate(4096, SIMULATED_BUS_ADDRESS).unwrap();
    let ring = SendRing::new(&memory, 0, depth, 1).unwrap();
    let agent = Agent::new(ring.clone());
    agent.post(send(7, 0, 0)).unwrap();
    memory.word64(128 + 16).unwrap().fetch_xor(1 << 40, Ordering::Relaxed);
    let error = collecting(directory.path(), |address| {
        Nic::start(options(address, Weather::FAIR), vec![Port { ring, region }])
            .unwrap()
            .finish()
            .unwrap_err()
    });
    assert!(matches!(error, NicError::Faults(1, NicFault::BadCheck)), "{error}");
}

/// In the process that is killed: a collector.
#[test]
fn a_collector_of_its_own() {
    let Ok(directory) = std::env::var("NIC_TEST_DIRECTORY") else { return };
    let address = std::env::var("NIC_TEST_ADDRESS").unwrap();
    let collector = Collector::bind(&address, Path::new(&directory), CollectorOptions::default()).unwrap();
    println!("listening at {}", collector.address().unwrap());
    std::io::stdout().flush().unwrap();
    collector.serve(|_, _| ());
}

fn spawn(directory: &Path, address: &str) -> (Child, String) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_collector_of_its_own", "--nocapture"])
        .env("NIC_TEST_DIRECTORY", directory)
        .env("NIC_TEST_ADDRESS", address)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut told = lines.map_while(Result::ok);
    let address =
        told.find_map(|line| line.split_once("listening at ").map(|(_, address)| address.to_owned()));
    if address.is_none() {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    (child, address.expect("the collector starts"))
}

/// W11: a collector that is killed, again and again and without a word, and comes back gets the rest.
#[test]
fn w11_a_collector_that_is_killed_and_comes_back_gets_the_rest() {
    /// At least so many entries, and as many more as it takes until the collector was killed so often.
    const COUNT: u64 = 60_000;
    const KILLS: u64 = 4;
    let directory = tempfile::tempdir().unwrap();
    let (mut child, address) = spawn(directory.path(), "127.0.0.1:0");
    let (mut poster, port) = Poster::new(Depth::new("depth", 1024).unwrap(), 64 << 10, 7).unwrap();
    let nic = Nic::start(options(&address, storm(4)), vec![port]).unwrap();
    let (over, kills) = (AtomicBool::new(false), AtomicU64::new(0));
    let count = thread::scope(|scope| {
        scope.spawn(|| {
            let mut draw = Draw::new(11);
            while !over.load(Ordering::Acquire) {
                thread::sleep(Duration::from_millis(30 + draw.below(60)));
                child.kill().unwrap();
                child.wait().unwrap();
                kills.fetch_add(1, Ordering::Relaxed);
                child = spawn(directory.path(), &address).0;
            }
        });
        let mut bytes = vec![];
        let mut count = 0;
        while count < COUNT || kills.load(Ordering::Relaxed) < KILLS {
            payload(count, &mut bytes);
            post(&mut poster, count, &bytes);
            count += 1;
        }
        while poster.completed() < count {
            thread::sleep(Duration::from_millis(1));
        }
        over.store(true, Ordering::Release);
        count
    });
    let counts = nic.finish().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(counts.connections > 2, "{kills:?} kills, {} connections", counts.connections);
    is_whole(directory.path(), count);
}

#[test]
fn w12_a_collector_that_lost_its_directory_is_told() {
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (mut child, address) = spawn(one.path(), "127.0.0.1:0");
    let (mut poster, port) = Poster::new(Depth::new("depth", 8).unwrap(), 4096, 7).unwrap();
    let nic = Nic::start(options(&address, Weather::FAIR), vec![port]).unwrap();
    post(&mut poster, 0, b"kept");
    while poster.completed() < 1 {
        thread::sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let (mut child, _) = spawn(other.path(), &address);
    // A NIC with nothing to carry needs no collector.
    post(&mut poster, 1, b"waits");
    let error = nic.finish().unwrap_err();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(matches!(error, NicError::Forgotten { next: 0, acknowledged: 1, .. }), "{error}");
}

#[test]
fn w12_a_collector_that_never_comes_is_an_error_and_stops_the_rings() {
    let (mut poster, port) = Poster::new(Depth::new("depth", 8).unwrap(), 4096, 7).unwrap();
    let mut options = options("127.0.0.1:1", Weather::FAIR);
    options.patience = Duration::from_millis(300);
    let nic = Nic::start(options, vec![port]).unwrap();
    post(&mut poster, 0, b"never");
    let error = nic.finish().unwrap_err();
    assert!(matches!(error, NicError::Unreachable { waiting: 1, .. }), "{error}");
    assert!(error.to_string().contains("doorbell nic collect"), "{error}");
    assert_eq!(poster.fault(), Some(NicFault::Closed));
}

/// W12: a NIC gives up a collector that lies, talks nonsense or says nothing, and its rings stop.
#[rstest]
#[case::silent(vec![])]
#[case::nonsense(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec())]
#[case::another_stream(welcome(STREAM + 1, 0))]
#[case::more_than_was_sent(welcome(STREAM, 1 << 40))]
#[case::no_welcome(ack(STREAM, 0, &[]))]
#[case::an_ack_of_more([welcome(STREAM, 0), ack(STREAM, u64::MAX, &[0xFF; 1000])].concat())]
fn w12_a_hostile_collector_is_given_up(#[case] answer: Vec<u8>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut open = vec![];
            while let Ok((mut peer, _)) = listener.accept() {
                if over.load(Ordering::Acquire) {
                    break;
                }
                let _ = peer.write_all(&answer);
                open.push(peer);
            }
        });
        let (mut poster, port) = Poster::new(Depth::new("depth", 8).unwrap(), 4096, 7).unwrap();
        let mut options = options(&address, Weather::FAIR);
        options.patience = Duration::from_millis(400);
        let nic = Nic::start(options, vec![port]).unwrap();
        post(&mut poster, 0, b"kept");
        let error = nic.finish().unwrap_err();
        assert!(matches!(error, NicError::Unreachable { waiting: 1, .. }), "{error}");
        assert_eq!((poster.completed(), poster.fault()), (0, Some(NicFault::Closed)));
        over.store(true, Ordering::Release);
        let _ = TcpStream::connect(&address);
    });
}

fn welcome(stream: u64, seq: u64) -> Vec<u8> {
    let mut out = vec![];
    Frame { kind: Kind::Welcome, stream, seq, body: &[] }.encode(&mut out);
    out
}

fn ack(stream: u64, seq: u64, body: &[u8]) -> Vec<u8> {
    let mut out = vec![];
    Frame { kind: Kind::Ack, stream, seq, body }.encode(&mut out);
    out
}

/// W12: hostile peers of a collector are sent away, and the stream of a NIC goes on beside them.
#[test]
fn w12_hostile_bytes_end_their_connection_and_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let mut draw = Draw::new(5);
    let frame = |kind, stream, seq, body: &[u8]| {
        let mut out = vec![];
        Frame { kind, stream, seq, body }.encode(&mut out);
        out
    };
    let hello = frame(Kind::Hello, 1, 0, &[]);
    let with_hello = |next: Vec<u8>| [hello.clone(), next].concat();
    let mut entry = send(0, 0, 4);
    (entry.flags, entry.digest) = (NicFlags::DIGEST.bits(), 77);
    let lying = [bytemuck::bytes_of(&entry), &[1, 2, 3, 4]].concat();
    let mut hostile: Vec<Vec<u8>> = vec![
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        frame(Kind::Data, 1, 0, &[0; 64]),
        frame(Kind::Hello, 1, 5, &[]),
        with_hello(frame(Kind::Data, 1, 0, &[0; 63])),
        with_hello(frame(Kind::Data, 1, 0, &[1; 70])),
        with_hello(frame(Kind::Data, 2, 0, &[0; 64])),
        with_hello(frame(Kind::Data, 1, 0, &lying)),
        with_hello(frame(Kind::Welcome, 1, 0, &[])),
        with_hello(hello.clone()),
    ];
    // What is damaged on its way.
    for _ in 0..40 {
        let mut bytes = with_hello(frame(Kind::Data, 1, 0, &lying));
        let at = draw.below(bytes.len() as u64) as usize;
        bytes[at] ^= 1 << draw.below(8);
        hostile.push(bytes);
    }
    collecting(directory.path(), |address| {
        let (mut poster, port) = Poster::new(Depth::new("depth", 8).unwrap(), 4096, 7).unwrap();
        let nic = Nic::start(options(address, Weather::FAIR), vec![port]).unwrap();
        for (k, bytes) in hostile.iter().enumerate() {
            let mut peer = TcpStream::connect(address).unwrap();
            peer.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            peer.write_all(bytes).unwrap();
            // A frame that got longer is waited for; its peer ends it.
            peer.shutdown(std::net::Shutdown::Write).unwrap();
            let mut answer = vec![];
            let _ = peer.read_to_end(&mut answer);
            let mut bytes = vec![];
            payload(k as u64, &mut bytes);
            post(&mut poster, k as u64, &bytes);
        }
        nic.finish().unwrap();
    });
    is_whole(directory.path(), hostile.len() as u64);
    let mut theirs = Records::open(&path_of(directory.path(), 1)).unwrap();
    assert_eq!(theirs.read().unwrap(), None, "nothing of theirs is stored");
}
