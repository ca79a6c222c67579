//! The RTL behind a socket, beside the same socket with nothing behind it.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use doorbell_contract::{DescFlags, HwCompletion, HwDesc, Register};
use doorbell_cosim::{RtlConfig, RtlPlatform};
use doorbell_host::{Device, Driver, FunctionMemory, Platform, QueueConfig};
use doorbell_verify::ModelPlatform;
use doorbell_vfio::{Server, VfioUser};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use serde_json::json;

use crate::leftovers::Folder;
use crate::{BenchError, Section, median, table, verdict};

/// Bytes of a message that reads a register, and of its reply.
const MESSAGE: usize = 32;
const REPLY: usize = 36;
/// What a socket with a device behind it may take, of what it takes without.
const BAR: f64 = 2.0;
/// Tokens of the DECODE.
const TOKENS: u32 = 16;
/// Cycles of a slice of the device's time, as `doorbell vfio-user` has it.
const SLICE: u64 = 64;
/// Longest sleep.
const SLEEP: Duration = Duration::from_secs(5);

/// Medians, in microseconds.
struct Figures {
    socket: f64,
    wake: f64,
    register: f64,
    decode: f64,
    /// The same two of the golden model.
    model: (f64, f64),
    /// The DECODE on the RTL in this process.
    alone: f64,
}

/// How long a register of the RTL takes through a socket, and a DECODE that its driver sleeps for.
pub fn times(quick: bool) -> Result<Section, BenchError> {
    let rounds = if quick { 500 } else { 5_000 };
    let (socket, wake) = bare(rounds)?;
    let config = RtlConfig { workers: 4, by_function: true, slice: SLICE, ..RtlConfig::default() };
    let (register, decode) = served(RtlPlatform::new(&config).map_err(BenchError::failed)?, rounds)?;
    let model = served(ModelPlatform::with_queues(1, 1)?.by_function()?, rounds)?;
    let alone = alone(rounds)?;
    Ok(section(&Figures { socket, wake, register, decode, model, alone }, rounds))
}

fn section(figures: &Figures, rounds: usize) -> Section {
    let &Figures { socket, wake, register, decode, model, alone } = figures;
    let mut table = table(["what", "microseconds", "of the bare socket"], 1);
    let rows = [
        ("the bare socket: a message and its reply", socket, 1.0),
        ("the bare socket: a message, its reply, and an eventfd that is slept for", wake, wake / socket),
        ("a register of the RTL", register, register / socket),
        ("a DECODE of 16 tokens, armed, slept for and collected", decode, decode / socket),
        ("a register of the golden model", model.0, model.0 / socket),
        ("the same DECODE on the golden model", model.1, model.1 / socket),
        ("the same DECODE, polled, on the RTL in this process", alone, alone / socket),
    ];
    for (what, time, share) in rows {
        table.add_row([what.to_owned(), format!("{time:.1}"), format!("{share:.2}")]);
    }
    let notes = vec![
        format!("a register within {BAR} x the message and its reply: {}", verdict(register <= BAR * socket)),
        format!(
            "a DECODE within {BAR} x the same with an eventfd: golden model {:.1} x, {}; RTL {:.1} x, {}",
            model.1 / wake,
            verdict(model.1 <= BAR * wake),
            decode / wake,
            verdict(decode <= BAR * wake)
        ),
        format!(
            "a DECODE takes three messages that are posted, DOORBELL, ARM and CQ_HEAD; the RTL's cycles by themselves take {:.1} x",
            alone / wake
        ),
    ];
    Section {
        heading: format!("the RTL behind a socket, {rounds} of each: medians, beside the socket alone"),
        table,
        notes,
        json: json!({ "socket_us": socket, "wake_us": wake, "register_us": register, "decode_us": decode,
            "model_register_us": model.0, "model_decode_us": model.1, "alone_us": alone }),
    }
}

/// The socket with nobody behind it but a thread that answers: a message and its reply, and the same with an eventfd.
fn bare(rounds: usize) -> Result<(f64, f64), BenchError> {
    let (mut ours, mut theirs) = UnixStream::pair().map_err(BenchError::failed)?;
    let event = eventfd(0, EventfdFlags::NONBLOCK).map_err(BenchError::failed)?;
    let rings = event.try_clone().map_err(BenchError::failed)?;
    let echo = thread::spawn(move || {
        let mut message = [0; MESSAGE];
        // Ends when the other end goes. The first byte says whether to ring.
        while theirs.read_exact(&mut message).is_ok() {
            if message[0] == 1 {
                let _ = rustix::io::write(&rings, &1u64.to_ne_bytes());
            }
            if theirs.write_all(&[0; REPLY]).is_err() {
                break;
            }
        }
    });
    let socket = microseconds(rounds, || ask(&mut ours, 0))?;
    let wake = microseconds(rounds, || {
        ask(&mut ours, 1)?;
        sleep(&event)
    })?;
    drop(ours);
    echo.join().map_err(|_| BenchError::failed("the echo panicked"))?;
    Ok((socket, wake))
}

fn ask(socket: &mut UnixStream, rings: u8) -> Result<(), BenchError> {
    let mut message = [0; MESSAGE];
    message[0] = rings;
    socket.write_all(&message).map_err(BenchError::failed)?;
    socket.read_exact(&mut [0; REPLY]).map_err(BenchError::failed)
}

fn sleep(event: &OwnedFd) -> Result<(), BenchError> {
    poll(&mut [PollFd::new(event, PollFlags::IN)], None).map_err(BenchError::failed)?;
    rustix::io::read(event, &mut [0; 8][..]).map(drop).map_err(BenchError::failed)
}

/// A register of a device that is served, and a DECODE that is slept for.
fn served(device: impl FunctionMemory + Send, rounds: usize) -> Result<(f64, f64), BenchError> {
    let folder = Folder::new()?;
    let socket = folder.path().join("socket");
    let mut server = Server::new(device, std::slice::from_ref(&socket)).map_err(BenchError::failed)?;
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let serving = scope.spawn(|| server.run(&stop, |_| {}));
        let times = drive(&socket, rounds);
        stop.store(true, Ordering::Release);
        let ended = serving.join().map_err(|_| BenchError::failed("the server panicked"))?;
        ended.map_err(BenchError::failed)?;
        times
    })
}

fn drive(socket: &std::path::Path, rounds: usize) -> Result<(f64, f64), BenchError> {
    let queue = QueueConfig { sq_depth: 64, cq_depth: 64, patience: 100_000, ..QueueConfig::default() };
    let mut driver = Driver::new(VfioUser::open(socket)?, queue)?;
    let register = microseconds(rounds, || {
        driver.platform_mut().read_register(Register::State).map(drop).map_err(BenchError::from)
    })?;
    let mut out = [HwCompletion::default(); 4];
    let mut rollout = 0;
    let decode = microseconds(rounds, || {
        rollout += 1;
        let desc = HwDesc::decode(rollout, 0, TOKENS).with_flags(DescFlags::INTERRUPT);
        if driver.submit(&[desc])? != 1 || !driver.arm()? || !driver.wait(Instant::now() + SLEEP)? {
            return Err(BenchError::failed("R14: a DECODE was not taken, or its message did not come"));
        }
        match driver.collect(&mut out)? {
            1 => Ok(()),
            count => Err(BenchError::failed(format!("R3: {count} completions of one DECODE"))),
        }
    })?;
    Ok((register, decode))
}

/// The DECODE on an RTL of its own, without socket and interrupt: what the simulation takes.
fn alone(rounds: usize) -> Result<f64, BenchError> {
    let config = RtlConfig { workers: 4, ..RtlConfig::default() };
    let device = RtlPlatform::new(&config).map_err(BenchError::failed)?;
    let queue = QueueConfig { sq_depth: 64, cq_depth: 64, ..QueueConfig::default() };
    let mut driver = Driver::new(device, queue)?;
    let mut out = [HwCompletion::default(); 4];
    let mut rollout = 0;
    microseconds(rounds, || {
        rollout += 1;
        driver.submit(&[HwDesc::decode(rollout, 0, TOKENS)])?;
        while driver.poll(&mut out)? == 0 {}
        Ok(())
    })
}

/// The median of so many runs.
fn microseconds(rounds: usize, mut run: impl FnMut() -> Result<(), BenchError>) -> Result<f64, BenchError> {
    let mut times = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let start = Instant::now();
        run()?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    Ok(median(times))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_figure_is_taken_beside_its_floor() {
        let Section { json, table, .. } = times(true).unwrap();
        for key in ["socket_us", "wake_us", "register_us", "decode_us", "model_decode_us", "alone_us"] {
            assert!(json[key].as_f64().is_some_and(|time| time > 0.1), "{key}: {json}");
        }
        assert_eq!(table.row_count(), 7);
    }
}
