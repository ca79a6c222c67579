//! A client that keeps to nothing: it never ends the server, and touches nothing of others.

mod common;

use std::io::{Read, Write};
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use doorbell_contract::{
    ErrorCode, HwCompletion, HwDesc, HwImage, HwPolicy, Place, PolicyMode, Register, SqKey, State, TOKEN_NONE,
};
use doorbell_host::memory::{PAGE, SIMULATED_BUS_ADDRESS};
use doorbell_host::{Device, Driver};
use doorbell_trace::Generator;
use doorbell_verify::ModelPlatform;
use doorbell_verify::compare::compare;
use doorbell_verify::replay::{ReplayOptions, ReplayPlan};
use doorbell_vfio::memory::shared;
use doorbell_vfio::protocol::{self, Header, command, dma, irq};
use doorbell_vfio::{Refusal, VfioUser};
use rstest::rstest;

use common::Served;
use common::rage::{Draw, rage};
use common::raw::{Raw, errno, map_body};

fn plan(seed: u64) -> ReplayPlan {
    let trace = Generator::new(40, seed, 3).generate().unwrap();
    ReplayPlan::new(&trace, ReplayOptions { checkpoint: 16, ..ReplayOptions::default() }).unwrap()
}

/// Compares one trace after the other on function `function`, until `over`; how many.
fn compare_until(served: &Served, function: usize, over: &dyn Fn() -> bool) -> u32 {
    let mut rounds = 0;
    let plan = plan(function as u64);
    let mut own: Box<dyn Device> = served.device(function, plan.queue_config());
    while !over() || rounds == 0 {
        let model = Box::new(Driver::new(ModelPlatform::new(), plan.queue_config()).unwrap());
        let mut devices: Vec<Box<dyn Device>> = vec![model, own];
        for outcome in compare(&plan, &mut devices, &|_, _| ControlFlow::Continue(())) {
            assert!(outcome.agrees(), "function {function}, round {rounds}: {outcome:?}");
        }
        own = devices.pop().unwrap();
        rounds += 1;
    }
    rounds
}

/// Writes anything to any register, gives rings anywhere, maps and unmaps under that; beside it another function's answers stay right. The
/// monitor: pages of the hostile host that are not mapped, or are read-only, and all memory of the neighbour but what its own function writes, do not change.
#[rstest]
fn a_hostile_host_ends_nothing_and_touches_nothing(#[values("model", "rtl")] kind: &str) {
    let writes: u64 = std::env::var("DOORBELL_HOSTILE").map_or(4_000, |text| text.parse().expect("a number"));
    let seed: u64 = std::env::var("DOORBELL_SEED").map_or(1, |text| text.parse().expect("a number"));
    println!("DOORBELL_SEED={seed} DOORBELL_HOSTILE={writes}");
    let served = match kind {
        "model" => Served::new(common::model(2), 2),
        _ => Served::new(common::rtl(2), 2),
    };
    let done = std::sync::atomic::AtomicBool::new(false);
    let over = || done.load(std::sync::atomic::Ordering::Acquire);
    std::thread::scope(|scope| {
        let neighbour = scope.spawn(|| compare_until(&served, 0, &over));
        let ends = scope.spawn(|| {
            rage(&served, writes, &mut Draw(seed), &[]);
            done.store(true, std::sync::atomic::Ordering::Release);
        });
        let ended = ends.join();
        done.store(true, std::sync::atomic::Ordering::Release);
        ended.expect("the hostile host was answered");
        println!("{kind}: {} rounds of the neighbour", neighbour.join().expect("its answers are right"));
    });
    let tally = &served.tallies[1];
    println!("{kind}: {tally}");
    assert!(tally.refused(Refusal::Register) > writes / 20, "{tally}");
    assert!(tally.outside() > writes / 200, "too little was tried outside: {tally}");
    served.end();
}

/// Each malformed message is answered with its errno, and the server goes on with the same connection, or the next one.
#[test]
fn malformed_messages_are_answered_and_counted() {
    let served = Served::new(common::model(1), 1);
    let mut raw = Raw::connect(&served, 0);
    let tally = &served.tallies[0];
    for (command, body, refusal) in [
        (99, vec![], Refusal::UnknownCommand),
        (command::DMA_MAP, vec![0; 31], Refusal::Malformed),
        (command::DMA_MAP, vec![0; 33], Refusal::Malformed),
        (command::DMA_MAP, map_body(3, 0, 0, 4096), Refusal::MapWithoutDescriptor),
        (command::REGION_READ, vec![0; 15], Refusal::Malformed),
        (command::REGION_READ, [vec![0; 8], protocol::words(&[0, u32::MAX])].concat(), Refusal::BadRegion),
        (command::REGION_READ, [vec![0xFF; 8], protocol::words(&[7, 4])].concat(), Refusal::BadRegion),
        (command::REGION_READ, [vec![0; 8], protocol::words(&[3, 4])].concat(), Refusal::BadRegion),
        (
            command::REGION_WRITE,
            [vec![0; 8], protocol::words(&[0, 8]), vec![0; 4]].concat(),
            Refusal::Malformed,
        ),
        (
            command::GET_REGION_INFO,
            [vec![0; 8], protocol::words(&[9]), vec![0; 20]].concat(),
            Refusal::BadRegion,
        ),
        (command::GET_IRQ_INFO, protocol::words(&[16, 0, 5, 0]), Refusal::BadInterrupt),
        (command::SET_IRQS, protocol::words(&[20, 36, 2, u32::MAX, 1]), Refusal::BadInterrupt),
        (command::SET_IRQS, protocol::words(&[20, 36, 2, 0, u32::MAX]), Refusal::BadInterrupt),
        (command::SET_IRQS, protocol::words(&[20, 0, 2, 0, 1]), Refusal::BadInterrupt),
    ] {
        let before = tally.refused(refusal);
        assert_eq!(raw.ask(command, &body).0, errno(refusal), "command {command}, {body:02x?}");
        assert_eq!(tally.refused(refusal), before + 1, "{refusal}");
    }
    // Files with what takes none, more than one with a map, no eventfd.
    let (_, file) = shared(PAGE, 0).unwrap();
    let two = [file.as_fd(); 2];
    assert_eq!(
        raw.ask_with(command::GET_INFO, &[0; 16], &two[..1]),
        Some(errno(Refusal::UnwantedDescriptors))
    );
    let set = protocol::words(&[20, irq::EVENTFD | irq::TRIGGER, protocol::MSIX, 0, 1]);
    assert_eq!(raw.ask_with(command::SET_IRQS, &set, &two[..1]), Some(errno(Refusal::NotAnEventfd)));
    assert_eq!(raw.ask_with(command::SET_IRQS, &set, &two), Some(errno(Refusal::UnwantedDescriptors)));
    // It still serves.
    assert_eq!(raw.ask(command::GET_INFO, &[0; 16]).0, 0);
    served.end();
}

/// Where nobody can tell where the next message begins the connection ends, and the next client is served.
#[test]
fn a_connection_that_cannot_go_on_ends_and_the_next_one_is_served() {
    let served = Served::new(common::model(1), 1);
    let header = |size, flags| Header { size, flags, ..Header::command(1, command::GET_INFO, 0) };
    for (bytes, refusal) in [
        (header(15, 0).encode().to_vec(), Refusal::ShortMessage),
        (header(u32::MAX, 0).encode().to_vec(), Refusal::OversizedMessage),
        (header(4097, 0).encode().to_vec(), Refusal::OversizedMessage),
        (header(16, 1).encode().to_vec(), Refusal::NotACommand),
        ([&Header::command(1, command::VERSION, 4).encode()[..], &[0; 4]].concat(), Refusal::OutOfOrder),
    ] {
        let mut raw = Raw::connect(&served, 0);
        raw.0.write_all(&bytes).unwrap();
        assert_eq!(raw.reply().map(|(errno, _)| errno), Some(errno(refusal)), "{refusal}");
        assert_eq!(raw.reply(), None, "{refusal}: the connection ends");
        assert!(served.tallies[0].refused(refusal) >= 1, "{refusal}");
    }
    // A flood of files.
    let mut raw = Raw::connect(&served, 0);
    let (_, file) = shared(PAGE, 0).unwrap();
    let many = vec![file.as_fd(); 100];
    assert_eq!(raw.ask_with(command::DMA_MAP, &map_body(3, 0, 0, 4096), &many), None);
    assert_eq!(served.tallies[0].refused(Refusal::DescriptorFlood), 1);
    // Another command first, and garbage for a version.
    for body in [protocol::version("")[4..].to_vec(), [&[0, 0, 0, 0][..], b"{\0"].concat()] {
        let mut raw = UnixStream::connect(served.socket(0)).map(Raw).unwrap();
        raw.0.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let _ = raw.try_ask(command::VERSION, &body);
        assert_eq!(raw.reply(), None);
    }
    Raw::connect(&served, 0);
    served.end();
}

/// Half a message, a client that reads no replies, a second client, one that goes in the middle: the neighbour is served all the while.
#[test]
fn half_messages_and_clients_that_do_not_read_hold_up_nobody() {
    let served = Served::new(common::rtl(2), 2);
    std::thread::scope(|scope| {
        let mut raw = Raw::connect(&served, 1);
        raw.enable();
        // A second client of the socket is closed at once.
        let mut second = UnixStream::connect(served.socket(1)).unwrap();
        second.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        assert!(matches!(second.read(&mut [0; 16]), Ok(0) | Err(_)));
        assert_eq!(served.tallies[1].refused(Refusal::Busy), 1);
        // Half a header stays.
        raw.0.write_all(&Header::command(1, command::GET_INFO, 16).encode()[..9]).unwrap();
        let neighbour = scope.spawn(|| compare_until(&served, 0, &|| true));
        assert_eq!(neighbour.join().unwrap(), 1);
        raw.0.write_all(&Header::command(1, command::GET_INFO, 16).encode()[9..]).unwrap();
        raw.0.write_all(&[0; 16]).unwrap();
        assert_eq!(raw.reply().map(|(errno, _)| errno), Some(0), "the other half ends it");
        // Reads register after register, and no reply.
        raw.0.set_nonblocking(true).unwrap();
        let body = [0u64.to_le_bytes().to_vec(), protocol::words(&[0, 4])].concat();
        let ask = [&Header::command(1, command::REGION_READ, 16).encode()[..], &body].concat();
        let neighbour = scope.spawn(|| compare_until(&served, 0, &|| true));
        while !neighbour.is_finished() {
            if raw.0.write(&ask).is_err() {
                std::thread::yield_now();
            }
        }
        assert_eq!(neighbour.join().unwrap(), 1);
        // And goes.
        drop(raw);
        Raw::connect(&served, 1);
    });
    served.end();
}

/// A TCP socket whose close takes as long as its other end, which reads nothing, lets it: 30 s at most.
fn lingering() -> (std::net::TcpStream, std::net::TcpStream) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let ours = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (theirs, _) = listener.accept().unwrap();
    ours.set_nonblocking(true).unwrap();
    while (&ours).write(&[0; 1 << 16]).is_ok() {}
    rustix::net::sockopt::set_socket_linger(&ours, Some(Duration::from_secs(30))).unwrap();
    (ours, theirs)
}

/// A file whose close takes long, with a message that takes none, in a flood, and with half a message of a client that goes: the neighbour is
/// served all the while.
#[rstest]
fn a_file_that_does_not_close_holds_up_nobody(#[values("unwanted", "a flood", "its client goes")] how: &str) {
    let served = Served::new(common::model(2), 2);
    let mut neighbour = Raw::connect(&served, 0);
    neighbour.enable();
    let mut raw = Raw::connect(&served, 1);
    let (ours, theirs) = lingering();
    let message = [&Header::command(1, command::GET_INFO, 16).encode()[..], &[0; 16]].concat();
    let files = vec![ours.as_fd(); if how == "a flood" { 200 } else { 1 }];
    // The server's copy is the last one when it is closed: a whole message comes only once this one has gone.
    raw.send_with(&message[..8], &files);
    drop(files);
    std::thread::sleep(Duration::from_millis(50));
    let closes = std::thread::spawn(move || drop(ours));
    if how == "unwanted" {
        raw.0.write_all(&message[8..]).unwrap();
        assert_eq!(raw.reply().map(|(errno, _)| errno), Some(errno(Refusal::UnwantedDescriptors)));
    }
    drop(raw);
    let start = Instant::now();
    let mut reads = 0;
    while start.elapsed() < Duration::from_millis(200) {
        neighbour.read_register(Register::Id, Place::FIRST);
        reads += 1;
    }
    assert!(start.elapsed() < Duration::from_secs(3), "{reads} reads took {:?}", start.elapsed());
    drop(theirs);
    closes.join().unwrap();
    Raw::connect(&served, 1);
    served.end();
}

/// Where the rings and regions of a client that publishes one descriptor lie in its memory.
const RINGS: (u64, u64) = (0, 4096);
const TOKENS: u64 = 8192;
const MODEL: u64 = 1 << 20;

/// A client with so much memory, of which nothing is there before it is touched, in a function with registers of its choice.
fn client(served: &Served, bytes: u64, registers: &[(Register, u64)]) -> (Raw, doorbell_host::SharedMemory) {
    let mut raw = Raw::connect(served, 1);
    raw.enable();
    let base = SIMULATED_BUS_ADDRESS;
    let memory = raw.map(bytes as usize, base, dma::READ | dma::WRITE);
    for (low, high, at) in [
        (Register::SqBaseLo, Register::SqBaseHi, RINGS.0),
        (Register::CqBaseLo, Register::CqBaseHi, RINGS.1),
        (Register::TokenBaseLo, Register::TokenBaseHi, TOKENS),
        (Register::ModelBaseLo, Register::ModelBaseHi, MODEL),
    ] {
        raw.write_register(low, Place::FIRST, (base + at) as u32);
        raw.write_register(high, Place::FIRST, ((base + at) >> 32) as u32);
    }
    for &(register, value) in registers {
        raw.write_register(register, Place::FIRST, value as u32);
    }
    for (register, value) in [(Register::SqSize, 8), (Register::CqSize, 8), (Register::Control, 1)] {
        raw.write_register(register, Place::FIRST, value);
    }
    (raw, memory)
}

/// Publishes a descriptor, and lets a neighbour read a register over and over for a tenth of a second: the longest of it.
fn beside(
    raw: &mut Raw,
    memory: &doorbell_host::SharedMemory,
    desc: HwDesc,
    neighbour: &mut Raw,
) -> Duration {
    let desc = desc.seal(&SqKey::new(0), 0);
    memory.slots::<8>(RINGS.0 as usize, 8).unwrap().store(0, bytemuck::cast(desc));
    raw.write_register(Register::Doorbell, Place::FIRST, 1);
    let start = Instant::now();
    let mut longest = Duration::ZERO;
    while start.elapsed() < Duration::from_millis(100) {
        let asked = Instant::now();
        neighbour.read_register(Register::Id, Place::FIRST);
        longest = longest.max(asked.elapsed());
    }
    println!("the longest access of a register: {longest:?}");
    longest
}

/// Whether what was published is not at its end.
fn runs(raw: &mut Raw) -> bool {
    let state = raw.read_register(Register::State, Place::FIRST);
    state & (State::ACTIVE | State::IDLE).bits() == State::ACTIVE.bits()
}

/// One descriptor that reads 4 GiB: the device comes to it in pieces, and answers others between them.
#[rstest]
fn a_reward_of_everything_holds_up_nobody(#[values("model", "rtl")] kind: &str) {
    const COUNT: u32 = (1 << 30) - (1 << 16);
    let served = match kind {
        "model" => Served::new(common::model(2), 2),
        _ => Served::new(common::rtl(2), 2),
    };
    let mut neighbour = Raw::connect(&served, 0);
    neighbour.enable();
    let sizes = [(Register::TokenSizeLo, u64::from(COUNT) * 4), (Register::LengthLimit, COUNT.into())];
    let (mut raw, memory) = client(&served, 4 << 30, &sizes);
    let longest = beside(&mut raw, &memory, HwDesc::reward(0, 0, COUNT), &mut neighbour);
    assert!(longest < Duration::from_secs(3), "a register took {longest:?}");
    assert!(runs(&mut raw), "it is not read to its end");
    served.end();
}

/// A POLICY of engine 1 whose image says that it has so many bytes: it is read in pieces, or refused where the device has no room.
#[rstest]
#[case::pieces(4 << 30, None)]
#[case::no_room(1 << 39, Some(ErrorCode::BadPolicy))]
fn a_policy_of_everything_holds_up_nobody(#[case] bytes: u64, #[case] ends: Option<ErrorCode>) {
    let served = Served::new(common::model(2), 2);
    let mut neighbour = Raw::connect(&served, 0);
    neighbour.enable();
    let size = bytes + 4096;
    let sizes =
        [(Register::TokenSizeLo, 4096), (Register::ModelSizeLo, size), (Register::ModelSizeHi, size >> 32)];
    let (mut raw, memory) = client(&served, size + MODEL, &sizes);
    let policy = HwPolicy::new(1, 1, 0, 64);
    // A layer with one head, 32 wide: two times 32 rows, and their exponents, a block.
    let image = HwImage {
        length: size,
        program_at: bytes,
        words: 1,
        vocabulary: 64,
        positions: 1024,
        block_lines: 34,
        end_0: TOKEN_NONE,
        end_1: TOKEN_NONE,
        end_2: TOKEN_NONE,
        end_3: TOKEN_NONE,
        ..HwImage::default()
    };
    let words: [u32; 4] = bytemuck::cast(policy);
    memory.store_u32s(TOKENS as usize, &words).unwrap();
    let words: [u32; 16] = bytemuck::cast(image.seal());
    memory.store_u32s(TOKENS as usize + 64, &words).unwrap();
    let mut header = [0; 32];
    header[..2].copy_from_slice(&[u32::from_le_bytes(*b"Door"), u32::from_le_bytes(*b"bLM\0")]);
    (header[2], header[4], header[5]) = (2, bytes as u32, (bytes >> 32) as u32);
    header[6..14].copy_from_slice(&[32, 1, 1, 1, 32, 32, 64, 1024]);
    memory.store_u32s(MODEL as usize, &header).unwrap();

    let desc = HwDesc { model_id: 1, ..HwDesc::policy(1, PolicyMode::Wait) };
    let longest = beside(&mut raw, &memory, desc, &mut neighbour);
    assert!(longest < Duration::from_secs(3), "a register took {longest:?}");
    assert_eq!(runs(&mut raw), ends.is_none());
    if let Some(code) = ends {
        let mut words = [0; 4];
        memory.slots::<4>(RINGS.1 as usize, 8).unwrap().load(0, &mut words);
        let completion: HwCompletion = bytemuck::cast(words);
        assert_eq!(completion.error, code as u8, "{completion:?}");
    }
    served.end();
}

/// A client whose own end of the connection waits in the server with half a message: it goes all the same, and the next one is served.
#[test]
fn a_client_that_sends_its_own_socket_does_not_keep_its_function() {
    let served = Served::new(common::model(1), 1);
    let raw = Raw::connect(&served, 0);
    raw.send_with(&[1, 0, 4], &[raw.0.as_fd()]);
    drop(raw);
    Raw::connect(&served, 0);
    served.end();
}

/// Whoever comes while the function is reset after its last client waits for that, and is served.
#[test]
fn the_next_client_need_not_ask_twice() {
    let served = Served::new(common::rtl(1), 1);
    for round in 0..50 {
        if let Err(error) = VfioUser::open(served.socket(0)) {
            panic!("client {round} was sent away: {error}");
        }
    }
    assert_eq!(served.tallies[0].refused(Refusal::Busy), 0);
    served.end();
}

/// The server goes while a driver runs: the driver says so.
#[test]
fn a_driver_whose_server_goes_says_so() {
    let served = Served::new(common::model(1), 1);
    let mut driver = served.driver(0, plan(1).queue_config());
    served.end();
    let error = driver.read(Register::State).unwrap_err().to_string();
    assert!(error.contains("its server has gone"), "{error}");
    let error = VfioUser::open(std::path::Path::new("/nowhere/socket")).err().unwrap().to_string();
    assert!(error.contains("no server listens there"), "{error}");
}
