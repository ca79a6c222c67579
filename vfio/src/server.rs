//! Serves a device: a socket for each of its functions, and the device's time.
//!
//! One thread does all of it, so that data moves only between messages and never while a range is given or taken. In its turn each
//! client is served for a bounded number of messages, and between turns the device has a slice of time: who floods a socket takes
//! turns like everybody else.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use doorbell_contract::{Place, Register};
use doorbell_host::ports::is_idle;
use doorbell_host::{DeviceError, Division, FunctionMemory, Platform};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::closing::Closing;
use crate::connection::{Connection, Next};
use crate::function::{Answer, Function};
use crate::protocol::{self, Header, Request};
use crate::refusal::{Refusal, Tally};
use crate::socket::Socket;
use crate::view::View;
use crate::watched::Watched;

/// Messages of a client in its turn.
const QUANTUM: usize = 16;
/// How long a server with nothing to do looks out for the next message before it sleeps. A client that got its answer often sends more at
/// once, and whoever sleeps takes about as long to wake up as to answer.
const WATCH: Duration = Duration::from_micros(50);
/// How long a server with nothing to do sleeps before it looks whether it is to end.
const REST: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
/// The same while it waits for files to be closed.
const SHORT_REST: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
/// Where messages of the device seem to go: nobody is there, because they become eventfds.
const MESSAGE_ADDRESS: u32 = 0xFEE0_0000;

/// Why a server could not start, or ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// A socket that cannot be had.
    #[error("socket {}: {what}: {source}", path.display())]
    Socket {
        /// Its path.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// Another server listens there.
    #[error("socket {}: a server listens there; end it, or choose another path", path.display())]
    Taken {
        /// Its path.
        path: PathBuf,
    },
    /// What the device does not have.
    #[error("{field} is {value}: it must be {expected}")]
    Config {
        /// What was asked for.
        field: &'static str,
        /// How many.
        value: u32,
        /// The range, in words.
        expected: String,
    },
    /// The device has failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// What happened to a client, for a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A client has come.
    Came {
        /// To which function.
        function: u8,
    },
    /// A client has gone, and its function is reset.
    Gone {
        /// Of which function.
        function: u8,
        /// Why, where its connection was ended for a reason.
        refusal: Option<Refusal>,
    },
}

/// A socket and the function behind it.
struct Seat {
    function: Function,
    socket: Socket,
    connection: Option<Connection>,
    closing: Closing,
}

/// A device whose functions are served, each at a socket of its own.
pub struct Server<D> {
    device: Watched<D>,
    seats: Vec<Seat>,
    tallies: Vec<Arc<Tally>>,
    /// Whether a register was written since the device was looked at.
    stirred: bool,
    /// Whether it had something to do then.
    busy: bool,
    /// Whether it had nothing to do when it was looked at before.
    idle: bool,
    /// When a message was served last.
    served: Instant,
}

impl<D: FunctionMemory> Server<D> {
    /// Divides a device after reset among as many functions as there are sockets: each has as many queue pairs as the others, workers
    /// of its own, and as its window its whole own address space, of which the host's ranges are what is there.
    ///
    /// A file of a socket that nobody listens at is replaced.
    ///
    /// # Errors
    /// `Config` for more functions than the device has queue pairs or workers for; `Socket` or `Taken` for the sockets; or a failure
    /// of the device.
    pub fn new(device: D, sockets: &[PathBuf]) -> Result<Self, ServeError> {
        let mut device = Watched::new(device);
        let views = divide(&mut device, sockets.len())?;
        let tallies: Vec<Arc<Tally>> = sockets.iter().map(|_| Arc::default()).collect();
        let seats = sockets.iter().zip(views).zip(&tallies).map(|((path, view), tally)| {
            let socket = Socket::listen(path)?;
            let function = Function::new(view, tally.clone());
            Ok(Seat { function, socket, connection: None, closing: Closing::new() })
        });
        let seats = seats.collect::<Result<_, ServeError>>()?;
        Ok(Self { device, seats, tallies, stirred: false, busy: false, idle: true, served: Instant::now() })
    }

    /// What each function has seen; it may be read while the server runs.
    pub fn tallies(&self) -> &[Arc<Tally>] {
        &self.tallies
    }

    /// The device, to look at.
    pub fn device(&self) -> &D {
        self.device.device()
    }

    /// Serves until `stop`. Who comes and goes is told to `log`.
    ///
    /// # Errors
    /// A failure of the device, and anything that it moves elsewhere than in what the functions were given. Whatever a client does is no
    /// error.
    pub fn run(&mut self, stop: &AtomicBool, mut log: impl FnMut(Notice)) -> Result<(), ServeError> {
        while !stop.load(Ordering::Acquire) {
            self.turn(&mut log)?;
        }
        Ok(())
    }

    /// One turn of each socket, and a slice of the device's time if it has something to do.
    fn turn(&mut self, log: &mut impl FnMut(Notice)) -> Result<(), ServeError> {
        let sleeps = !self.busy && !self.seats.iter().any(Seat::has_work);
        let ready = if sleeps { self.rest() } else { self.wait(false) };
        for place in 0..self.seats.len() {
            let [comes, reads, writes] = ready.get(place).copied().unwrap_or([false; 3]);
            let seat = &mut self.seats[place];
            if writes && seat.connection.as_mut().is_some_and(|connection| !connection.flush()) {
                self.end(place, None, log)?;
            } else if reads || seat.has_work() {
                self.serve(place, log)?;
            }
            // A client that has gone makes room for the next one.
            if comes {
                self.accept(place, log);
            }
        }
        self.busy = self.works()?;
        if self.busy {
            self.device.advance(usize::MAX / 2)?;
        }
        for place in 0..self.seats.len() {
            let Self { device, seats, .. } = self;
            let seat = &mut seats[place];
            seat.function.look(device);
            if let Some(outcome) = seat.function.end_reset(device)? {
                self.reset_ended(place, outcome, log)?;
            }
        }
        Ok(())
    }

    /// Whether the device has something to do. A completion may be there before its message: so it counts as idle only after a slice
    /// in which it had nothing to do.
    fn works(&mut self) -> Result<bool, DeviceError> {
        if self.seats.iter().any(|seat| seat.function.is_resetting()) {
            return Ok(true);
        }
        if !self.stirred && !self.busy {
            return Ok(false);
        }
        let connected = self.seats.iter().filter(|seat| seat.connection.is_some());
        let mut places = connected.flat_map(|seat| seat.function.view().places());
        let idle = is_idle(&mut self.device, &mut places)?;
        let was_idle = std::mem::replace(&mut self.idle, idle) && !std::mem::take(&mut self.stirred);
        Ok(!idle || !was_idle)
    }

    /// Waits for a socket. The processor is left to others between looks: one of them may be the client.
    fn rest(&self) -> Vec<[bool; 3]> {
        while self.served.elapsed() < WATCH {
            let ready = self.wait(false);
            if ready.iter().flatten().any(|is| *is) {
                return ready;
            }
            thread::yield_now();
        }
        self.wait(true)
    }

    /// Which sockets have somebody who comes, something to read, room to write.
    fn wait(&self, sleeps: bool) -> Vec<[bool; 3]> {
        let mut fds = vec![];
        // Asked once: a file may be closed meanwhile. What is quiet is not looked at, as an end that nobody reads would be told at once.
        let quiet: Vec<bool> = self.seats.iter().map(Seat::is_quiet).collect();
        for (seat, _) in self.seats.iter().zip(&quiet).filter(|(_, quiet)| !**quiet) {
            fds.push(PollFd::new(&seat.socket.listener, PollFlags::IN));
            if let Some(connection) = &seat.connection {
                let wanted = if connection.is_blocked() { PollFlags::OUT } else { PollFlags::IN };
                fds.push(PollFd::new(connection.stream(), wanted));
            }
        }
        let rest = match sleeps {
            true if self.seats.iter().any(|seat| seat.closing.is_pending()) => SHORT_REST,
            true => REST,
            false => Timespec { tv_sec: 0, tv_nsec: 0 },
        };
        if poll(&mut fds, Some(&rest)).is_err() {
            return vec![];
        }
        let mut events = fds.iter().map(PollFd::revents);
        let of = |(seat, quiet): (&Seat, &bool)| {
            if *quiet {
                return [false; 3];
            }
            let comes = events.next().is_some_and(|event| !event.is_empty());
            let event = seat.connection.as_ref().and_then(|_| events.next()).unwrap_or(PollFlags::empty());
            // One that has hung up is read, which tells.
            let reads = event.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR);
            [comes, reads, event.contains(PollFlags::OUT)]
        };
        self.seats.iter().zip(&quiet).map(of).collect()
    }

    fn accept(&mut self, place: usize, log: &mut impl FnMut(Notice)) {
        let seat = &mut self.seats[place];
        // Whoever comes while the function is reset waits for its end.
        if seat.is_quiet() {
            return;
        }
        let Ok((stream, _)) = seat.socket.listener.accept() else { return };
        if seat.connection.is_some() {
            // It finds its socket closed.
            seat.function.tally().note_refusal(Refusal::Busy);
            seat.closing.close(1, stream);
            return;
        }
        if let Ok(connection) = Connection::new(stream, seat.closing.clone()) {
            seat.connection = Some(connection);
            seat.function.tally().note_client();
            log(Notice::Came { function: place as u8 });
        }
    }

    /// Serves a client for its quantum.
    fn serve(&mut self, place: usize, log: &mut impl FnMut(Notice)) -> Result<(), ServeError> {
        for _ in 0..QUANTUM {
            let Self { device, seats, .. } = self;
            let Seat { function, connection: Some(connection), closing, .. } = &mut seats[place] else {
                return Ok(());
            };
            if connection.is_blocked() || function.is_resetting() || closing.is_full() {
                return Ok(());
            }
            match connection.next() {
                Ok(Next::Nothing) => return Ok(()),
                Ok(Next::Gone) => return self.end(place, None, log),
                Err((header, refusal)) => {
                    if let Some(header) = header {
                        connection.reply(&protocol::reply(&header, Err(refusal), &[]));
                    }
                    return self.end(place, Some(refusal), log);
                }
                Ok(Next::Message((header, body, files))) => {
                    function.tally().note_message();
                    self.served = Instant::now();
                    // A message that was pending goes once its vector is not masked.
                    self.stirred |= matches!(
                        header.command,
                        protocol::command::REGION_WRITE | protocol::command::SET_IRQS
                    );
                    if let Some(end) = handle(device, function, connection, &header, &body, files)? {
                        return self.end(place, end, log);
                    }
                }
            }
        }
        Ok(())
    }

    /// The client has gone, or is sent away: its function is reset, and what it gave goes.
    fn end(
        &mut self,
        place: usize,
        refusal: Option<Refusal>,
        log: &mut impl FnMut(Notice),
    ) -> Result<(), ServeError> {
        let Self { device, seats, .. } = self;
        let seat = &mut seats[place];
        if let Some(refusal) = refusal {
            seat.function.tally().note_refusal(refusal);
        }
        if let Some(connection) = seat.connection.take() {
            connection.close();
        }
        seat.function.begin_reset(device, true)?;
        log(Notice::Gone { function: place as u8, refusal });
        Ok(())
    }

    fn reset_ended(
        &mut self,
        place: usize,
        outcome: Result<(), Refusal>,
        log: &mut impl FnMut(Notice),
    ) -> Result<(), ServeError> {
        let Seat { function, connection, .. } = &mut self.seats[place];
        if let Err(refusal) = outcome {
            function.tally().note_refusal(refusal);
        }
        let Some(connection) = connection else { return Ok(()) };
        let Some((header, body)) = connection.later.take() else { return Ok(()) };
        if header.wants_reply() && !connection.reply(&protocol::reply(&header, outcome, &body)) {
            return self.end(place, None, log);
        }
        Ok(())
    }
}

impl Seat {
    /// Whether a message has come that was not served.
    fn has_work(&self) -> bool {
        let Some(connection) = &self.connection else { return false };
        !self.is_quiet() && !connection.is_blocked() && connection.has_message()
    }

    /// Whether nothing is taken from its socket now: the function is being reset, or too much of what its clients sent is not closed yet.
    fn is_quiet(&self) -> bool {
        self.function.is_resetting() || self.closing.is_full()
    }
}

/// Serves one message. `Some` ends the connection, with the reason if there is one.
fn handle(
    device: &mut impl FunctionMemory,
    function: &mut Function,
    connection: &mut Connection,
    header: &Header,
    body: &[u8],
    files: Vec<std::os::fd::OwnedFd>,
) -> Result<Option<Option<Refusal>>, DeviceError> {
    let request = Request::decode(header.command, body);
    let outcome = match (&request, connection.agreed) {
        (Ok(Request::Version { major, capabilities, .. }), false) => {
            agree(connection, *major, capabilities).map(|()| Answer::Done(protocol::version("")))
        }
        (_, false) | (Ok(Request::Version { .. }), true) => Err(Refusal::OutOfOrder),
        (Ok(request), true) => {
            let served = function.serve(device, *request, files, connection.tells_refusals)?;
            // Messages that were sent before what is answered come before the answer.
            function.look(device);
            served
        }
        (Err(refusal), true) => Err(*refusal),
    };
    let (outcome, body) = match outcome {
        Ok(Answer::Done(body)) => (Ok(()), body),
        Ok(Answer::Later(body)) => {
            connection.later = Some((*header, body));
            return Ok(None);
        }
        Err(refusal) => {
            if !refusal.ends_connection() {
                function.tally().note_refusal(refusal);
            }
            (Err(refusal), refused_body(&request))
        }
    };
    let gone = header.wants_reply() && !connection.reply(&protocol::reply(header, outcome, &body));
    Ok(match outcome {
        Err(refusal) if refusal.ends_connection() => Some(Some(refusal)),
        _ if gone => Some(None),
        _ => None,
    })
}

/// Clients that read a reply of the length that they expect, whatever it says, get one of that length.
fn refused_body(request: &Result<Request<'_>, Refusal>) -> Vec<u8> {
    match *request {
        Ok(Request::RegionRead { region, offset, count }) => {
            let data = vec![0xFF; (count as usize).min(protocol::MAX_DATA)];
            [&offset.to_le_bytes()[..], &protocol::words(&[region, count]), &data].concat()
        }
        Ok(Request::RegionWrite { region, offset, .. }) => {
            [&offset.to_le_bytes()[..], &protocol::words(&[region, 0])].concat()
        }
        Ok(Request::DmaUnmap { flags, address, .. }) => {
            [&protocol::words(&[24, flags])[..], &address.to_le_bytes(), &0u64.to_le_bytes()].concat()
        }
        _ => vec![],
    }
}

/// Takes the client's version and capabilities.
fn agree(connection: &mut Connection, major: u16, capabilities: &[u8]) -> Result<(), Refusal> {
    if major != 0 {
        return Err(Refusal::BadVersion);
    }
    if !capabilities.is_empty() {
        let value: serde_json::Value =
            serde_json::from_slice(capabilities).map_err(|_| Refusal::BadVersion)?;
        connection.tells_refusals = value["capabilities"][REFUSALS] == true;
    }
    connection.agreed = true;
    Ok(())
}

/// A capability of a client of Doorbell's own: it is told which accesses of registers are refused. On a bus that posts writes nobody
/// is.
pub(crate) const REFUSALS: &str = "doorbell_refusals";

/// Gives each function its queue pairs, workers and window, and sends all messages where they are counted.
fn divide(device: &mut impl FunctionMemory, functions: usize) -> Result<Vec<View>, ServeError> {
    let mut built = |register| device.read_at(Place::FIRST, register);
    let (queues, most) = (built(Register::CapQueues)?, built(Register::CapFunctions)?);
    let workers = built(Register::CapWorkers)?;
    let refuse = |expected| Err(ServeError::Config { field: "functions", value: functions as u32, expected });
    if functions == 0 || functions > most.min(queues) as usize {
        return refuse(format!(
            "1 to {}: {} has {queues} queue pairs and {most} functions",
            most.min(queues),
            device.name()
        ));
    }
    // The golden model runs one descriptor of a queue pair at a time, and says that it has one worker.
    if functions > workers as usize && workers > 1 {
        return refuse(format!(
            "at most {workers}: each function has workers of its own, and {} has so many",
            device.name()
        ));
    }
    let row = queues as u8 / functions as u8;
    let division =
        Division { queues: row * functions as u8, functions: functions as u8, row, ..Division::default() };
    for queue in 0..division.queues {
        let place = division.place(queue);
        device.write_at(place, Register::QueueFunction, place.function.into())?;
        for (register, value) in [
            (Register::MessageAddressLo, MESSAGE_ADDRESS),
            (Register::MessageData, queue.into()),
            (Register::MessageControl, 1),
        ] {
            device.write_at(place, register, value)?;
        }
    }
    let views = (0..division.functions).map(|function| {
        let place = Place { function, ..Place::FIRST };
        let mask = division.worker_mask(function, workers);
        device.write_at(place, Register::FnWorkers, mask)?;
        for (register, value) in [
            (Register::Window0BaseLo, 0),
            (Register::Window0BaseHi, 0),
            (Register::Window0SizeLo, u32::MAX),
            (Register::Window0SizeHi, u32::MAX),
        ] {
            device.write_at(place, register, value)?;
        }
        Ok(View { function, first_queue: function * row, queues: row, workers: mask })
    });
    views.collect()
}
