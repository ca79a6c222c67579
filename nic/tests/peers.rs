//! What a NIC does with a peer that plays the collector: one that makes no progress, one that sees frames twice, one that refuses.

use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use doorbell_contract::{HwNicEntry, NicFault};
use doorbell_host::queue::Depth;
use doorbell_nic::collector::{Collector, CollectorOptions};
use doorbell_nic::device::{Nic, NicCounts, NicError, NicOptions, Port};
use doorbell_nic::poster::Poster;
use doorbell_nic::ring::send;
use doorbell_nic::store::path_of;
use doorbell_nic::wire::{Frame, Incoming, Kind};
use rstest::rstest;

const STREAM: u64 = 0xD00B;

fn frame(kind: Kind, seq: u64) -> Vec<u8> {
    let mut out = vec![];
    Frame { kind, stream: STREAM, seq, body: &[] }.encode(&mut out);
    out
}

/// Plays a collector by `play`, for each connection on a thread of its own that outlives the test. Returns its address.
fn playing(play: impl Fn(usize, TcpStream) + Clone + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for (number, peer) in listener.incoming().map_while(Result::ok).enumerate() {
            let play = play.clone();
            thread::spawn(move || play(number, peer));
        }
    });
    address
}

/// Gives each whole frame that comes to `each`, until the connection ends or `each` says `false`.
fn frames(peer: &TcpStream, mut each: impl FnMut(&Frame<'_>) -> bool) {
    let (mut incoming, mut reader) = (Incoming::default(), peer);
    while incoming.fill(&mut reader).is_ok_and(|came| came != 0) {
        while let Ok(Some(frame)) = incoming.frame() {
            if !each(&frame) {
                return;
            }
        }
    }
}

fn start(address: &str, patience: Duration) -> (Nic, Poster, Port) {
    let (poster, port) = Poster::new(Depth::new("depth", 8).unwrap(), 4096, 7).unwrap();
    let mut options = NicOptions::new(address);
    options.stream = STREAM;
    options.patience = patience;
    let again = Port { ring: port.ring.clone(), region: port.region.clone() };
    (Nic::start(options, vec![port]).unwrap(), poster, again)
}

fn post(poster: &mut Poster, bytes: &[u8]) {
    poster.post(HwNicEntry::default(), bytes).unwrap();
}

/// What a NIC ends with within `limit`: one that does not end fails the test instead of holding it up.
fn ended(nic: Nic, limit: Duration) -> Result<NicCounts, NicError> {
    let (tell, told) = std::sync::mpsc::channel();
    thread::spawn(move || tell.send(nic.finish()));
    told.recv_timeout(limit).expect("the NIC ends")
}

fn is_silent(mut peer: TcpStream) {
    let _ = peer.write_all(&frame(Kind::Welcome, 0));
    frames(&peer, |_| true);
}

/// Answers each frame, and has never stored anything.
fn stores_nothing(mut peer: TcpStream) {
    let _ = peer.write_all(&frame(Kind::Welcome, 0));
    let reader = peer.try_clone().unwrap();
    frames(&reader, |_| peer.write_all(&frame(Kind::Ack, 0)).is_ok());
}

fn trickles(mut peer: TcpStream, bytes: &[u8]) {
    for byte in bytes {
        if peer.write_all(&[*byte]).is_err() {
            return;
        }
        thread::sleep(Duration::from_millis(300));
    }
}

/// W12: whatever a collector does that does not store an entry, the NIC waits for it no longer than its patience, which here is
/// longer than any of the NIC's own times.
#[rstest]
#[case::silence_after_welcome(is_silent)]
#[case::answers_without_progress(stores_nothing)]
#[case::bytes_of_a_welcome(|peer| trickles(peer, &frame(Kind::Welcome, 0)))]
#[case::bytes_after_welcome(|mut peer: TcpStream| {
    let _ = peer.write_all(&frame(Kind::Welcome, 0));
    trickles(peer, &frame(Kind::Ack, 0));
})]
#[case::ends_behind_welcome(|mut peer: TcpStream| {
    // In one piece, so that the NIC takes no entry in between.
    let _ = peer.write_all(&[frame(Kind::Welcome, 0), frame(Kind::Refused, 0)].concat());
    frames(&peer, |_| true);
})]
#[case::ends_after_a_while(|mut peer: TcpStream| {
    // As one whose disk takes long and fails then.
    let _ = peer.write_all(&frame(Kind::Welcome, 0));
    thread::sleep(Duration::from_millis(1300));
})]
fn w12_a_collector_without_progress_is_given_up(#[case] play: fn(TcpStream)) {
    let address = playing(move |_, peer| play(peer));
    let (nic, mut poster, _) = start(&address, Duration::from_millis(1500));
    post(&mut poster, b"kept");
    let begun = Instant::now();
    // Nobody asks it to end.
    while !nic.has_ended() {
        assert!(begun.elapsed() < Duration::from_secs(12), "the NIC goes on");
        thread::sleep(Duration::from_millis(5));
    }
    let error = ended(nic, Duration::from_secs(12)).unwrap_err();
    assert!(matches!(error, NicError::Unreachable { waiting: 1, .. }), "{error}");
    assert!(begun.elapsed() > Duration::from_millis(1400), "{:?}", begun.elapsed());
    assert_eq!((poster.completed(), poster.fault()), (0, Some(NicFault::Closed)));
}

/// W12: a NIC that has nothing to carry stays, as long as the collector answers. What lies in a ring that has stopped is nothing to
/// carry.
#[rstest]
fn w12_an_idle_nic_stays(#[values(false, true)] with_fault: bool) {
    let address = playing(|_, peer| stores_nothing(peer));
    let (nic, poster, _) = start(&address, Duration::from_millis(400));
    if with_fault {
        poster.agent().post(send(0, 2, 0)).unwrap();
    }
    thread::sleep(Duration::from_millis(1600));
    assert!(!nic.has_ended());
    assert_eq!(poster.fault(), with_fault.then_some(NicFault::BadRegion));
    match ended(nic, Duration::from_secs(12)) {
        Ok(counts) => assert_eq!((counts.connections, with_fault), (1, false)),
        Err(error) => assert!(matches!(error, NicError::Faults(1, NicFault::BadRegion)), "{error}"),
    }
}

/// W4: what the NIC has verified is what it sends, each time, whatever becomes of the payload meanwhile.
#[test]
fn w4_a_payload_that_changes_after_it_was_taken_is_sent_as_it_was() {
    let (tell, told) = std::sync::mpsc::channel();
    let address = playing(move |number, mut peer| {
        let _ = peer.write_all(&frame(Kind::Welcome, 0));
        let reader = peer.try_clone().unwrap();
        frames(&reader, |frame| {
            let is_data = frame.kind == Kind::Data;
            if is_data {
                tell.send(frame.body.to_vec()).unwrap();
            }
            !is_data
        });
        if number == 0 {
            // The payload changes while the connection is down.
            thread::sleep(Duration::from_millis(100));
            let _ = peer.shutdown(Shutdown::Both);
        } else {
            let _ = peer.write_all(&frame(Kind::Ack, 1));
            let _ = peer.read_to_end(&mut vec![]);
        }
    });
    let (nic, mut poster, port) = start(&address, Duration::from_secs(10));
    post(&mut poster, b"as it was");
    let first = told.recv_timeout(Duration::from_secs(10)).unwrap();
    port.region.store_u32s(0, &[0; 3]).unwrap();
    let second = told.recv_timeout(Duration::from_secs(10)).unwrap();
    assert!(first[64..] == *b"as it was" && second == first);
    ended(nic, Duration::from_secs(12)).unwrap();
    assert_eq!((poster.completed(), poster.fault()), (1, Some(NicFault::Closed)));
}

/// W12: a NIC whose entries are all stored needs no collector to end.
#[rstest]
#[case::gone(|_| ())]
#[case::silent(|peer: TcpStream| frames(&peer, |_| true))]
fn w12_a_nic_ends_well_without_a_collector_when_all_is_stored(#[case] play: fn(TcpStream)) {
    let address = playing(move |number, mut peer| {
        if number > 0 {
            return play(peer);
        }
        let _ = peer.write_all(&frame(Kind::Welcome, 0));
        let reader = peer.try_clone().unwrap();
        frames(&reader, |frame| frame.kind != Kind::Data);
        let _ = peer.write_all(&frame(Kind::Ack, 1));
    });
    let (nic, mut poster, _) = start(&address, Duration::from_secs(20));
    post(&mut poster, b"stored");
    while poster.completed() == 0 {
        thread::sleep(Duration::from_millis(1));
    }
    thread::sleep(Duration::from_millis(100));
    let counts = ended(nic, Duration::from_secs(5)).unwrap();
    assert_eq!((counts.completed, poster.fault()), (1, Some(NicFault::Closed)));
}

/// W12: why a collector refuses a NIC reaches the NIC's error.
#[test]
fn w12_a_nic_tells_why_it_was_refused() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(path_of(directory.path(), STREAM), [7; 100]).unwrap();
    let collector = Collector::bind("127.0.0.1:0", directory.path(), CollectorOptions::default()).unwrap();
    let (address, handle) = (collector.address().unwrap().to_string(), collector.handle());
    let serving = thread::spawn(move || collector.serve(|_, _| ()));
    let (nic, mut poster, _) = start(&address, Duration::from_millis(300));
    post(&mut poster, b"kept");
    let error = ended(nic, Duration::from_secs(12)).unwrap_err().to_string();
    handle.stop();
    serving.join().unwrap();
    assert!(
        error.contains("the collector refused it: ") && error.contains("is no file of version"),
        "{error}"
    );
}

/// W12: the reason is read although the connection takes nothing more, and it is text.
#[test]
fn w12_a_reason_is_read_behind_what_the_collector_did_not_take() {
    let address = playing(|_, mut peer| {
        let _ = peer.write_all(&frame(Kind::Welcome, 0));
        thread::sleep(Duration::from_millis(100));
        let mut bytes = vec![];
        Frame { kind: Kind::Refused, stream: 0, seq: 0, body: b"no\x1b[2J\xFF\nroom" }.encode(&mut bytes);
        // The bytes of the NIC that nobody reads reset the connection behind the reason.
        let _ = peer.write_all(&bytes);
    });
    let (nic, mut poster, _) = start(&address, Duration::from_millis(400));
    for _ in 0..4 {
        post(&mut poster, &[1; 1000]);
    }
    let error = ended(nic, Duration::from_secs(12)).unwrap_err().to_string();
    assert!(error.contains("the collector refused it: no [2J\u{FFFD} room"), "{error}");
}

/// The answer of a collector to the HELLO of `stream`.
fn hello(address: &str, stream: u64) -> (TcpStream, Kind, u64) {
    let peer = TcpStream::connect(address).unwrap();
    peer.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut bytes = vec![];
    Frame { kind: Kind::Hello, stream, seq: 0, body: &[] }.encode(&mut bytes);
    (&peer).write_all(&bytes).unwrap();
    let answer = answer(&peer);
    (peer, answer.0, answer.1)
}

fn answer(peer: &TcpStream) -> (Kind, u64) {
    let mut found = None;
    frames(peer, |frame| {
        found = Some((frame.kind, frame.seq));
        false
    });
    found.expect("the collector answers")
}

fn collecting(directory: &Path, options: CollectorOptions, run: impl FnOnce(&str)) {
    let collector = Collector::bind("127.0.0.1:0", directory, options).unwrap();
    let (address, handle) = (collector.address().unwrap().to_string(), collector.handle());
    let serving = thread::spawn(move || collector.serve(|_, _| ()));
    run(&address);
    handle.stop();
    serving.join().unwrap();
}

/// W11: a NIC that comes back waits for no file to be read, however long the file is.
#[rstest]
fn w11_a_stream_goes_on_where_its_file_was_closed(#[values(false, true)] sync: bool) {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path().join("made/for/it");
    let mut options = CollectorOptions::default();
    options.sync = sync;
    collecting(&directory, options, |address| {
        for next in 0..3 {
            let (mut peer, kind, seq) = hello(address, STREAM);
            assert_eq!((kind, seq), (Kind::Welcome, next));
            let mut bytes = vec![];
            Frame { kind: Kind::Data, stream: STREAM, seq: next, body: &[0; 64] }.encode(&mut bytes);
            peer.write_all(&bytes).unwrap();
            assert_eq!(answer(&peer), (Kind::Ack, next + 1));
            peer.shutdown(Shutdown::Both).unwrap();
            thread::sleep(Duration::from_millis(300));
            if next == 1 {
                // Damage in the first record, which nobody would miss who reads the file.
                let path = path_of(&directory, STREAM);
                let mut bytes = std::fs::read(&path).unwrap();
                bytes[60] ^= 1;
                std::fs::write(&path, bytes).unwrap();
            }
        }
    });
}

/// W11: while the file of a stream is read, the other streams go on.
#[test]
fn w11_a_stream_whose_file_is_read_holds_up_no_other_one() {
    let directory = tempfile::tempdir().unwrap();
    let pipe = path_of(directory.path(), 1);
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    collecting(directory.path(), CollectorOptions::default(), |address| {
        thread::scope(|scope| {
            let slow = scope.spawn(|| hello(address, 1).1);
            thread::sleep(Duration::from_millis(300));
            let other = std::panic::catch_unwind(|| hello(address, 2).1);
            // The bytes that the collector reads from the pipe: no head of a file.
            std::fs::OpenOptions::new().write(true).open(&pipe).unwrap().write_all(&[7; 32]).unwrap();
            assert_eq!(slow.join().unwrap(), Kind::Refused);
            assert_eq!(other.unwrap(), Kind::Welcome);
        });
    });
}

/// W12: peers that store nothing keep no NIC out, and a newcomer ends no connection that has stored something.
#[test]
fn w12_idle_peers_make_room_for_a_nic() {
    let directory = tempfile::tempdir().unwrap();
    let mut options = CollectorOptions::default();
    options.connections = 2;
    collecting(directory.path(), options, |address| {
        let _first = TcpStream::connect(address).unwrap();
        let (_second, ..) = hello(address, 1);
        let nics: Vec<_> = (2..4)
            .map(|stream| {
                let (mut peer, kind, _) = hello(address, stream);
                assert_eq!(kind, Kind::Welcome);
                let mut bytes = vec![];
                Frame { kind: Kind::Data, stream, seq: 0, body: &[0; 64] }.encode(&mut bytes);
                peer.write_all(&bytes).unwrap();
                assert_eq!(answer(&peer), (Kind::Ack, 1));
                peer
            })
            .collect();
        // The two that had to go have gone.
        thread::sleep(Duration::from_millis(200));
        assert_eq!(hello(address, 4).1, Kind::Refused);
        for (stream, mut peer) in (2..4).zip(&nics) {
            let mut bytes = vec![];
            Frame { kind: Kind::Ping, stream, seq: 1, body: &[] }.encode(&mut bytes);
            peer.write_all(&bytes).unwrap();
            assert_eq!(answer(peer), (Kind::Ack, 1));
        }
    });
}

/// W12: the collector ends a connection without a HELLO, and one that says nothing behind it.
#[rstest]
fn w12_a_peer_that_says_nothing_is_refused(#[values(false, true)] with_hello: bool) {
    let directory = tempfile::tempdir().unwrap();
    let mut options = CollectorOptions::default();
    options.patience = Duration::from_millis(400);
    collecting(directory.path(), options, |address| {
        let peer = if with_hello {
            let (peer, kind, _) = hello(address, STREAM);
            assert_eq!(kind, Kind::Welcome);
            peer
        } else {
            TcpStream::connect(address).unwrap()
        };
        peer.set_read_timeout(Some(Duration::from_secs(6))).unwrap();
        // Bytes of a frame that does not come to its end within the patience are no word.
        let writer = peer.try_clone().unwrap();
        thread::spawn(move || trickles(writer, &frame(Kind::Hello, 0)));
        assert_eq!(answer(&peer).0, Kind::Refused);
    });
}

/// W12: time in which a NIC's process is stopped is none in which its collector stored nothing.
#[rstest]
#[case::the_connection_stays(Duration::from_secs(30))]
#[case::the_collector_ends_it(Duration::from_millis(500))]
fn w12_a_nic_that_was_stopped_goes_on(#[case] silence: Duration) {
    const PATIENCE: Duration = Duration::from_secs(2);
    const ADDRESS: &str = "DOORBELL_STOPPED_NIC";
    if let Ok(address) = std::env::var(ADDRESS) {
        let (nic, mut poster, _) = start(&address, PATIENCE);
        println!("runs");
        // Stopped here, with nothing posted.
        std::io::stdin().read_line(&mut String::new()).unwrap();
        post(&mut poster, b"after all");
        println!("ended with {:?}", ended(nic, Duration::from_secs(20)).map(|counts| counts.connections > 0));
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let mut options = CollectorOptions::default();
    options.patience = silence;
    collecting(directory.path(), options, |address| {
        let name = thread::current().name().unwrap().to_owned();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([&name, "--exact", "--nocapture"])
            .env(ADDRESS, address)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        assert!(lines.any(|line| line.ends_with("runs")));
        // Connected, and idle.
        thread::sleep(Duration::from_millis(300));
        let signal = |name: &str| {
            let sent = Command::new("kill").args([name, &child.id().to_string()]).status().unwrap();
            assert!(sent.success(), "kill {name}");
        };
        signal("-STOP");
        thread::sleep(PATIENCE + Duration::from_secs(1));
        signal("-CONT");
        child.stdin.take().unwrap().write_all(b"\n").unwrap();
        let end = lines.find(|line| line.contains("ended with"));
        assert_eq!(end.as_deref(), Some("ended with Ok(true)"));
        assert!(child.wait().unwrap().success());
    });
}
