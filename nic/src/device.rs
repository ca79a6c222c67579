//! The NIC: one thread that takes entries from send rings in order, carries them to a collector, and completes them in order.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bytemuck::bytes_of;
use doorbell_contract::{HwNicEntry, NIC_LENGTH_MAX, NicFault, NicFlags};
use doorbell_host::SharedMemory;

use crate::link::{Link, LinkCounts, Weather};
use crate::ring::{Looked, SendRing, Taker, digest, judge};
use crate::wire::{self, AHEAD, FrameError, Incoming, Kind, REASON_MAX};

/// How a NIC is set up.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NicOptions {
    /// Where the collector listens, as HOST:PORT.
    pub collector: String,
    /// Number of the stream; no two NICs of a collector have the same.
    pub stream: u64,
    /// What the network does to frames.
    pub weather: Weather,
    /// How long the NIC goes on without progress. Progress is that entries are completed or, while none is posted, that the
    /// collector answers.
    pub patience: Duration,
    /// How long a slot may stay unpublished while a later one was rung for (W6).
    pub late: Duration,
}

impl NicOptions {
    /// To this collector, in fair weather, with a stream number that is drawn.
    pub fn new(collector: impl Into<String>) -> Self {
        use std::hash::{BuildHasher, Hasher};
        let drawn = std::collections::hash_map::RandomState::new().build_hasher().finish();
        Self {
            collector: collector.into(),
            stream: drawn,
            weather: Weather::FAIR,
            patience: Duration::from_secs(30),
            late: Duration::from_secs(5),
        }
    }
}

/// A send ring with the memory that its payloads are in.
#[derive(Debug)]
pub struct Port {
    /// The ring.
    pub ring: SendRing,
    /// Its payload region. The NIC reads it in 32-bit words.
    pub region: SharedMemory,
}

/// Why a NIC ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NicError {
    /// No collector, or none that stores anything.
    #[error(
        "no collector at {address} has stored anything for {patience:?} ({error}): {waiting} entries were not carried; start `doorbell nic collect --listen \
         {address}` with the directory that it had"
    )]
    Unreachable {
        /// Where it should be.
        address: String,
        /// How long none of them was stored.
        patience: Duration,
        /// How the last connection ended.
        error: String,
        /// Entries posted and not completed.
        waiting: u64,
    },
    /// The collector does not have what it had acknowledged.
    #[error(
        "the collector at {address} has {next} records of this stream and had acknowledged {acknowledged}: its directory is another"
    )]
    Forgotten {
        /// Where it is.
        address: String,
        /// What it says is next.
        next: u64,
        /// What was acknowledged.
        acknowledged: u64,
    },
    /// Rings that stopped.
    #[error("{0} send rings stopped, the first with {1}: the entries behind were not carried")]
    Faults(usize, NicFault),
    /// No thread.
    #[error("the NIC's thread could not be started: {0}")]
    Start(io::Error),
    /// A bug.
    #[error("the NIC's thread panicked, which is a bug")]
    Panicked,
}

/// What a NIC has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NicCounts {
    /// Entries completed.
    pub completed: u64,
    /// Bytes of their payloads.
    pub bytes: u64,
    /// Frames of data given to the link, those sent again included.
    pub frames: u64,
    /// Those that were sent again.
    pub again: u64,
    /// Connections made.
    pub connections: u64,
    /// Looks that found a slot unpublished which was rung past.
    pub late: u64,
    /// Times that nothing was acknowledged for so long that frames were sent again for that reason.
    pub silences: u64,
    /// What the link has drawn.
    pub link: LinkCounts,
}

/// A NIC that runs.
#[derive(Debug)]
pub struct Nic {
    stop: Arc<AtomicBool>,
    completed: Arc<AtomicU64>,
    thread: JoinHandle<Result<NicCounts, NicError>>,
}

impl Nic {
    /// Starts the thread. It serves the rings in turn.
    ///
    /// # Errors
    /// `Start`.
    pub fn start(options: NicOptions, ports: Vec<Port>) -> Result<Self, NicError> {
        let stop = Arc::new(AtomicBool::new(false));
        let completed = Arc::new(AtomicU64::new(0));
        let (asked, told) = (stop.clone(), completed.clone());
        let thread = thread::Builder::new().name("nic".into());
        let thread = thread
            .spawn(move || {
                let mut worker = Worker::new(options, ports, told);
                worker.run(&asked).and_then(|()| worker.counts())
            })
            .map_err(NicError::Start)?;
        Ok(Self { stop, completed, thread })
    }

    /// Entries completed, of all rings.
    pub fn completed(&self) -> u64 {
        self.completed.load(Ordering::Relaxed)
    }

    /// Whether it has ended by an error: its rings are stopped.
    pub fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Ends it once all that was rung for is completed.
    ///
    /// # Errors
    /// Why it ended before.
    pub fn finish(self) -> Result<NicCounts, NicError> {
        self.stop.store(true, Ordering::Release);
        self.thread.join().unwrap_or(Err(NicError::Panicked))
    }
}

/// An entry on its way.
#[derive(Debug)]
struct Flight {
    port: usize,
    entry: HwNicEntry,
    /// Its payload's words as they were verified: the region is not read again, so that what its poster writes there too early
    /// harms no frame.
    words: Vec<u32>,
    /// Which sending the last one of it was; 0: none on this connection.
    sent: u64,
    /// The collector holds it.
    held: bool,
}

/// Entries on their way, at most: the collector holds as many that came early.
const WINDOW: usize = AHEAD as usize;
/// Bytes of payload on their way, at most, beside one entry.
const WINDOW_BYTES: u64 = 32 << 20;
/// Sendings that may overtake a frame before it counts as lost.
const OVERTAKEN: u64 = crate::link::HELD + 2;
/// Bytes that wait for the socket, beside one frame.
const OUT: usize = 1 << 18;
/// How long nothing may be acknowledged before frames are sent again, at first and at most.
const AGAIN: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// Frames that are sent again then.
const AGAIN_FRAMES: usize = 32;
/// How often an idle NIC says that it is there, at least, so that both sides know.
const PING: Duration = Duration::from_secs(5);

/// How long it takes to connect, of addresses that do not answer too.
const CONNECTING: Duration = Duration::from_secs(10);
/// What passes between two looks at the time without progress, at most.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);

struct PortState {
    taker: Taker,
    region: SharedMemory,
    /// Why it takes nothing more; written to the ring once what came before is completed.
    fault: Option<NicFault>,
    told: bool,
    /// Since when its next slot is late.
    late: Option<Instant>,
}

struct Worker {
    options: NicOptions,
    ports: Vec<PortState>,
    turn: usize,
    flights: VecDeque<Flight>,
    flight_bytes: u64,
    /// Number of the first of them.
    base: u64,
    /// Numbers to send again.
    again: VecDeque<u64>,
    /// How many of the flights were sent on this connection, or are in `again`.
    begun: usize,
    sendings: u64,
    /// Number of the first entry that was never sent.
    unsent: u64,
    link: Link,
    out: Vec<u8>,
    told: Arc<AtomicU64>,
    sums: NicCounts,
    /// When there was progress last (W12), later by the time in which the process did not run.
    progress: Instant,
    /// When that was last looked at.
    looked: Instant,
}

/// Why a connection ended.
enum Broken {
    /// Another one may do.
    Connection(String),
    /// Nothing came of it for as long as the NIC's patience is.
    Patience(&'static str),
    /// None will.
    For(NicError),
}

impl From<io::Error> for Broken {
    fn from(error: io::Error) -> Self {
        Self::Connection(error.to_string())
    }
}

impl From<FrameError> for Broken {
    fn from(error: FrameError) -> Self {
        Self::Connection(error.to_string())
    }
}

fn would_block(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}

/// Why a collector refuses, as it says: one line of text, whatever bytes it sent.
fn reason(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(&body[..body.len().min(REASON_MAX)]);
    text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
}

/// Waits longer the longer nothing happens: an idle NIC notices a bell up to 200 µs late.
#[derive(Default)]
struct Idle(u32);

impl Idle {
    fn wait(&mut self) {
        match self.0 {
            0..16 => (0..64).for_each(|_| std::hint::spin_loop()),
            16..32 => thread::yield_now(),
            _ => thread::sleep(Duration::from_micros((10 << (self.0 - 32).min(5)).min(200))),
        }
        self.0 = self.0.saturating_add(1);
    }
}

/// Stops the rings, so that nobody waits for a NIC that is not there, whatever it ended by.
impl Drop for Worker {
    fn drop(&mut self) {
        for port in self.ports.iter_mut().filter(|port| !port.told) {
            // The entry at fault has the index `completed` (W8): where others before it are not completed, the NIC has just ended.
            let fault = port.fault.filter(|_| port.taker.outstanding() == 0);
            port.taker.stop(fault.unwrap_or(NicFault::Closed));
        }
    }
}

impl Worker {
    fn new(options: NicOptions, ports: Vec<Port>, told: Arc<AtomicU64>) -> Self {
        let state = |Port { ring, region }| PortState {
            taker: Taker::new(ring),
            region,
            fault: None,
            told: false,
            late: None,
        };
        Self {
            link: Link::new(options.weather),
            options,
            ports: ports.into_iter().map(state).collect(),
            turn: 0,
            flights: VecDeque::new(),
            flight_bytes: 0,
            base: 0,
            again: VecDeque::new(),
            begun: 0,
            sendings: 0,
            unsent: 0,
            out: Vec::with_capacity(2 * OUT),
            told,
            sums: NicCounts::default(),
            progress: Instant::now(),
            looked: Instant::now(),
        }
    }

    /// Whether there was no progress for as long as the NIC's patience is. Between two looks pass at most `most`, if the process runs: whatever else passed it was
    /// stopped (SIGSTOP, a machine that was paused), and waited for nobody.
    fn is_out_of_patience(&mut self, most: Duration) -> bool {
        let now = Instant::now();
        let stopped = (now - self.looked).saturating_sub(most);
        (self.progress, self.looked) = ((self.progress + stopped).min(now), now);
        now - self.progress > self.options.patience
    }

    /// What may pass between two looks, of which a patience has several.
    fn between_looks(&self) -> Duration {
        BETWEEN_LOOKS.min(self.options.patience / 4)
    }

    fn counts(&self) -> Result<NicCounts, NicError> {
        let mut faults = self.ports.iter().filter_map(|port| port.fault);
        match faults.next() {
            Some(first) => Err(NicError::Faults(1 + faults.count(), first)),
            None => Ok(NicCounts { link: self.link.counts, ..self.sums }),
        }
    }

    fn run(&mut self, stop: &AtomicBool) -> Result<(), NicError> {
        let mut last: Option<String> = None;
        loop {
            let before = self.base;
            let most = self.between_looks();
            self.is_out_of_patience(most);
            let connection = self.connect();
            self.is_out_of_patience(CONNECTING);
            let error = match connection {
                Err(error) => error.to_string(),
                Ok(connection) => match self.serve(&connection, stop) {
                    Ok(()) => return Ok(()),
                    Err(Broken::For(error)) => return Err(error),
                    Err(Broken::Connection(error)) => error,
                    // Why the connections before ended says more, such as that they were refused.
                    Err(Broken::Patience(waited)) => {
                        last.filter(|_| self.base == before).unwrap_or_else(|| waited.into())
                    }
                },
            };
            if self.is_over(stop) {
                return Ok(());
            }
            if self.is_out_of_patience(most) {
                let NicOptions { collector, patience, .. } = &self.options;
                let waiting = self.ports.iter().map(|port| port.taker.waiting()).sum();
                return Err(NicError::Unreachable {
                    address: collector.clone(),
                    patience: *patience,
                    error,
                    waiting,
                });
            }
            last = Some(error);
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn connect(&self) -> io::Result<TcpStream> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in self.options.collector.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, Duration::from_secs(2)) {
                Ok(connection) => {
                    connection.set_nodelay(true)?;
                    connection.set_nonblocking(true)?;
                    return Ok(connection);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// One connection: until all is done, or it breaks.
    fn serve(&mut self, connection: &TcpStream, stop: &AtomicBool) -> Result<(), Broken> {
        let stream = self.options.stream;
        let (mut incoming, mut idle) = (Incoming::default(), Idle::default());
        self.out.clear();
        self.link.cut();
        wire::encode(Kind::Hello, stream, self.base, &mut self.out, |_| {});
        let mut written = 0;
        let mut welcome = false;
        let (mut moved, mut pinged) = (Instant::now(), Instant::now());
        let mut wait = AGAIN.0;
        // A connection that takes nothing more may have brought why.
        let mut closed: Option<io::Error> = None;
        let most = self.between_looks();
        loop {
            let mut busy = false;
            // What came.
            let mut reader = connection;
            match incoming.fill(&mut reader) {
                Ok(0) => {
                    let error = closed.map(|error| error.to_string());
                    return Err(Broken::Connection(
                        error.unwrap_or_else(|| "the collector ended the connection".into()),
                    ));
                }
                Ok(_) => busy = true,
                Err(error) if would_block(&error) => {}
                Err(error) => return Err(error.into()),
            }
            while let Some(frame) = incoming.frame()? {
                if frame.kind == Kind::Refused {
                    return Err(Broken::Connection(format!(
                        "the collector refused it: {}",
                        reason(frame.body)
                    )));
                }
                if frame.stream != stream {
                    return Err(Broken::Connection("a frame of another stream".into()));
                }
                // While entries are posted only completions count: a collector that answers and stores nothing is none.
                let none = |port: &PortState| port.fault.is_some() || port.taker.waiting() == 0;
                if self.flights.is_empty() && self.ports.iter().all(none) {
                    self.progress = Instant::now();
                }
                match frame.kind {
                    Kind::Welcome if !welcome => {
                        welcome = true;
                        self.welcomed(frame.seq)?;
                        moved = Instant::now();
                    }
                    Kind::Ack if welcome => {
                        if !self.link.loses_ack() {
                            let before = self.base;
                            self.acknowledged(frame.seq, frame.body)?;
                            if self.base != before {
                                moved = Instant::now();
                                wait = AGAIN.0;
                            }
                        }
                    }
                    _ => {
                        return Err(Broken::Connection(
                            "a frame that no collector sends at this point".into(),
                        ));
                    }
                }
            }
            // Without anything to carry the end needs no WELCOME.
            if self.is_over(stop) {
                return Ok(());
            }
            // What goes.
            if welcome {
                busy |= self.take();
                busy |= self.send();
                if self.flights.is_empty() {
                    moved = Instant::now();
                } else if moved.elapsed() > wait && written == self.out.len() {
                    // Nothing is acknowledged: what is on its way may be lost, or the ACK.
                    self.sums.silences += 1;
                    let (base, begun) = (self.base, self.begun);
                    let lost = self.flights.iter().take(begun).enumerate().filter(|(_, flight)| !flight.held);
                    self.again = lost.take(AGAIN_FRAMES).map(|(k, _)| base + k as u64).collect();
                    self.link.calm(&mut self.out);
                    wait = (2 * wait).min(AGAIN.1);
                    moved = Instant::now();
                    busy = true;
                }
                if pinged.elapsed() > PING.min(self.options.patience / 4) {
                    pinged = Instant::now();
                    wire::encode(Kind::Ping, stream, self.base, &mut self.out, |_| {});
                }
            }
            while written < self.out.len() && closed.is_none() {
                let mut writer = connection;
                match writer.write(&self.out[written..]) {
                    Ok(0) => closed = Some(io::ErrorKind::WriteZero.into()),
                    Ok(count) => {
                        written += count;
                        busy = true;
                    }
                    Err(error) if would_block(&error) => break,
                    Err(error) => closed = Some(error),
                }
            }
            if written == self.out.len() {
                self.out.clear();
                written = 0;
            } else if written > OUT {
                self.out.drain(..written);
                written = 0;
            }
            if self.is_out_of_patience(most) {
                let error =
                    if welcome { "it answers with nothing that was stored" } else { "it does not answer" };
                return Err(Broken::Patience(error));
            }
            if busy {
                idle = Idle::default();
            } else {
                idle.wait();
            }
        }
    }

    /// The collector has all below `next`; all others are sent anew.
    fn welcomed(&mut self, next: u64) -> Result<(), Broken> {
        if next < self.base {
            let address = self.options.collector.clone();
            return Err(Broken::For(NicError::Forgotten { address, next, acknowledged: self.base }));
        }
        self.sums.connections += 1;
        self.advance(next)?;
        self.again.clear();
        self.begun = 0;
        for flight in &mut self.flights {
            (flight.sent, flight.held) = (0, false);
        }
        Ok(())
    }

    /// All below `next` are stored: completes them.
    fn advance(&mut self, next: u64) -> Result<(), Broken> {
        if next > self.unsent {
            let said = format!("the collector acknowledges {next}, and {} were sent", self.unsent);
            return Err(Broken::Connection(said));
        }
        let count = next.saturating_sub(self.base);
        for flight in self.flights.drain(..count as usize) {
            self.ports[flight.port].taker.complete(1);
            self.flight_bytes -= u64::from(flight.entry.length);
            self.sums.completed += 1;
            self.sums.bytes += u64::from(flight.entry.length);
        }
        self.base += count;
        if count > 0 {
            self.progress = Instant::now();
        }
        self.begun = self.begun.saturating_sub(count as usize);
        self.told.store(self.sums.completed, Ordering::Relaxed);
        // A ring that is at fault stops once all before the entry at fault are completed (W8).
        for port in self.ports.iter_mut().filter(|port| !port.told && port.taker.outstanding() == 0) {
            if let Some(fault) = port.fault {
                port.taker.stop(fault);
                port.told = true;
            }
        }
        Ok(())
    }

    /// An ACK: what it does not say to be there, and what frames have overtaken that were sent long after it, is lost.
    fn acknowledged(&mut self, next: u64, body: &[u8]) -> Result<(), Broken> {
        // One that a later ACK has overtaken tells nothing new.
        if next < self.base {
            return Ok(());
        }
        let acknowledged = (next - self.base).min(self.flights.len() as u64) as usize;
        let mut newest = self.flights.iter().take(acknowledged).map(|flight| flight.sent).max().unwrap_or(0);
        self.advance(next)?;
        let known = (8 * body.len()).min(self.begun);
        for (ahead, flight) in self.flights.iter_mut().take(known).enumerate() {
            if wire::holds(body, ahead as u64) {
                flight.held = true;
                newest = newest.max(flight.sent);
            }
        }
        for (ahead, flight) in self.flights.iter_mut().take(known).enumerate() {
            if !flight.held && flight.sent + OVERTAKEN < newest && flight.sent != 0 {
                // Until it is sent again it is not found lost again.
                flight.sent = 0;
                self.again.push_back(self.base + ahead as u64);
            }
        }
        Ok(())
    }

    /// Whether the end was asked for and all that was rung for by then is completed.
    fn is_over(&mut self, stop: &AtomicBool) -> bool {
        // Asked before the rings are looked at for the last time, whose look says which slot is late.
        stop.load(Ordering::Acquire)
            && self.flights.is_empty()
            && !self.take()
            && self.ports.iter().all(|port| port.fault.is_some() || port.late.is_none())
    }

    /// Takes entries from the rings in turn, as far as the window has room. Whether there was one.
    fn take(&mut self) -> bool {
        let mut took = false;
        for _ in 0..self.ports.len() {
            let number = self.turn;
            self.turn = (self.turn + 1) % self.ports.len();
            let port = &mut self.ports[number];
            // A turn is as many entries as are there, up to a share of the window.
            for _ in 0..64 {
                if port.fault.is_some()
                    || self.flights.len() >= WINDOW
                    || self.flight_bytes > WINDOW_BYTES - u64::from(NIC_LENGTH_MAX)
                {
                    break;
                }
                let entry = match port.taker.look() {
                    Ok(Looked::Entry(_, entry)) => entry,
                    Ok(Looked::Quiet) => {
                        port.late = None;
                        break;
                    }
                    Ok(Looked::Late) => {
                        self.sums.late += 1;
                        let since = *port.late.get_or_insert_with(Instant::now);
                        if since.elapsed() > self.options.late {
                            port.fault = Some(NicFault::Abandoned);
                        }
                        break;
                    }
                    Err(fault) => {
                        port.fault = Some(fault);
                        break;
                    }
                };
                port.late = None;
                let judged = judge(&entry, port.region.len() as u64);
                let words = match judged.and_then(|()| load(&entry, &port.region)) {
                    Ok(words) => words,
                    Err(fault) => {
                        port.fault = Some(fault);
                        port.taker.put_back();
                        break;
                    }
                };
                took = true;
                if self.flights.is_empty() {
                    self.progress = Instant::now();
                }
                self.flight_bytes += u64::from(entry.length);
                self.flights.push_back(Flight { port: number, entry, words, sent: 0, held: false });
            }
            if port.fault.is_some() && !port.told && port.taker.outstanding() == 0 {
                port.taker.stop(port.fault.unwrap_or(NicFault::Closed));
                port.told = true;
            }
        }
        took
    }

    /// Gives frames to the link: those that are lost first, then those that were not sent. Whether there was one.
    fn send(&mut self) -> bool {
        let mut sent = false;
        while self.out.len() < OUT {
            let number = match self.again.pop_front() {
                Some(number) => number,
                None if self.begun < self.flights.len() => {
                    self.begun += 1;
                    self.base + self.begun as u64 - 1
                }
                None => break,
            };
            // What was acknowledged meanwhile is below the base.
            let Some(flight) = number.checked_sub(self.base).and_then(|k| self.flights.get_mut(k as usize))
            else {
                continue;
            };
            if flight.held {
                continue;
            }
            self.sendings += 1;
            flight.sent = self.sendings;
            let (entry, words, stream) = (flight.entry, &flight.words, self.options.stream);
            self.link.pass(&mut self.out, |out| {
                wire::encode(Kind::Data, stream, number, out, |out| {
                    out.extend_from_slice(bytes_of(&entry));
                    let payload: &[u8] = bytemuck::cast_slice(words);
                    out.extend_from_slice(&payload[..entry.length as usize]);
                });
            });
            self.sums.frames += 1;
            self.sums.again += u64::from(number < self.unsent);
            self.unsent = self.unsent.max(number + 1);
            sent = true;
        }
        if !sent && self.again.is_empty() && self.begun == self.flights.len() {
            self.link.calm(&mut self.out);
        }
        sent
    }
}

/// Reads the payload's words, the bytes behind its end as zeros, and holds them against the digest that the poster made (W4).
fn load(entry: &HwNicEntry, region: &SharedMemory) -> Result<Vec<u32>, NicFault> {
    let mut words = vec![0; entry.length.div_ceil(4) as usize];
    if let Err(error) = region.load_u32s(entry.offset as usize, &mut words) {
        unreachable!("an entry was held against its region: {error}");
    }
    if let (Some(last), rest @ 1..) = (words.last_mut(), entry.length % 4) {
        *last &= (1 << (8 * rest)) - 1;
    }
    let is_verified =
        entry.flags & NicFlags::DIGEST.bits() == 0 || digest(words.iter().copied()) == entry.digest;
    if is_verified { Ok(words) } else { Err(NicFault::BadDigest) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::poster::Poster;
    use crate::ring::send;
    use doorbell_host::queue::Depth;

    fn worker() -> (Worker, Poster) {
        let (poster, port) = Poster::new(Depth::new("depth", 8).unwrap(), 4096, 7).unwrap();
        (Worker::new(NicOptions::new("127.0.0.1:1"), vec![port], Arc::default()), poster)
    }

    /// W6: an entry that was rung for behind a slot that is not published yet is waited for, even if the last look is the first one
    /// that finds it.
    #[test]
    fn w6_no_end_is_found_behind_an_unpublished_slot() {
        let (mut worker, poster) = worker();
        let stop = AtomicBool::new(true);
        assert!(worker.is_over(&stop));
        let slot = poster.agent().reserve().unwrap();
        poster.agent().post(send(1, 0, 0)).unwrap();
        assert!(!worker.is_over(&stop));
        poster.agent().publish(slot, send(0, 0, 0));
        assert!(!worker.is_over(&stop));
        assert_eq!(worker.flights.len(), 2);
    }

    /// W10: nobody has stored what was never sent.
    #[test]
    fn w10_an_acknowledgement_of_what_was_not_sent_completes_nothing() {
        let (mut worker, poster) = worker();
        for k in 0..3 {
            poster.agent().post(send(k, 0, 0)).unwrap();
        }
        assert!(worker.welcomed(0).is_ok() && worker.take() && worker.send());
        poster.agent().post(send(3, 0, 0)).unwrap();
        assert!(worker.take());
        assert!(worker.acknowledged(4, &[]).is_err() && worker.welcomed(4).is_err());
        assert_eq!(poster.agent().ring().completed(), 0);
        assert!(worker.acknowledged(3, &[]).is_ok());
        assert_eq!(poster.agent().ring().completed(), 3);
    }

    /// W8: the entry at fault has the index `completed`. Entries before it that are not completed are at no fault.
    #[test]
    fn w8_a_nic_that_ends_blames_no_good_entry() {
        let (mut worker, poster) = worker();
        poster.agent().post(send(0, 0, 0)).unwrap();
        // Outside of the payload region.
        poster.agent().post(send(1, 1 << 40, 64)).unwrap();
        assert!(worker.take());
        assert_eq!(worker.ports[0].fault, Some(NicFault::BadRegion));
        drop(worker);
        assert_eq!((poster.fault(), poster.agent().ring().completed()), (Some(NicFault::Closed), 0));
    }

    #[test]
    fn w8_a_panic_stops_the_rings() {
        let (worker, poster) = worker();
        let panicked = thread::spawn(move || {
            let _worker = worker;
            panic!("as a bug would");
        });
        panicked.join().unwrap_err();
        assert_eq!(poster.fault(), Some(NicFault::Closed));
    }
}
