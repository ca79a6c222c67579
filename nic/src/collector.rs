//! The collector: takes streams of NICs over TCP, and stores each payload once (W9 to W12).

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use doorbell_contract::{HwNicEntry, NicFlags};

use crate::ring::{digest, words};
use crate::store::{Mark, Store, StoreError};
use crate::wire::{self, AHEAD, Frame, FrameError, Incoming, Kind, REASON_MAX};

/// How a collector is set up.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CollectorOptions {
    /// Whether a record is on the disk before it is acknowledged: it survives the end of the machine, too.
    pub sync: bool,
    /// Connections at a time, at most. For one more the oldest one ends whose stream has no record; without one, the newcomer is
    /// refused.
    pub connections: usize,
    /// Streams in all, at most: each has a file.
    pub streams: usize,
    /// How long a peer may say nothing: at first, until its HELLO, and behind that.
    pub patience: Duration,
    /// Bytes of frames that came early and are held for a stream, at most.
    pub held_bytes: usize,
}

impl Default for CollectorOptions {
    fn default() -> Self {
        Self {
            sync: false,
            connections: 16,
            streams: 1024,
            patience: Duration::from_secs(30),
            held_bytes: 64 << 20,
        }
    }
}

/// What a collector tells of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// Records stored since it started.
    pub records: u64,
    /// Bytes of their payloads.
    pub bytes: u64,
    /// Frames that it had already.
    pub doubles: u64,
    /// Frames that came before one that is missing.
    pub early: u64,
    /// Connections that it ended because of what came.
    pub refused: u64,
}

#[derive(Debug, Default)]
struct Counts {
    records: AtomicU64,
    bytes: AtomicU64,
    doubles: AtomicU64,
    early: AtomicU64,
    refused: AtomicU64,
    connections: AtomicUsize,
}

/// Why a collector is not there.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CollectorError {
    /// No socket.
    #[error("no collector can listen at {address}: {error}; give another address with --listen")]
    Listen {
        /// The address that was asked for.
        address: String,
        /// Why.
        error: io::Error,
    },
    /// No directory.
    #[error("{directory}: {error}", directory = directory.display())]
    Directory {
        /// The directory.
        directory: PathBuf,
        /// Why.
        error: io::Error,
    },
}

/// Why a connection was ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The system, or the peer that went.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// No frame.
    #[error("{0}")]
    Frame(#[from] FrameError),
    /// The store.
    #[error("{0}")]
    Store(#[from] StoreError),
    /// A frame that does not belong here.
    #[error("{0}")]
    Protocol(&'static str),
    /// Its payload is not what the entry says.
    #[error("entry {seq}: the payload's digest is not the entry's: it changed between poster and collector")]
    Digest {
        /// Its number in the stream.
        seq: u64,
    },
    /// Nothing came for too long.
    #[error("the peer said nothing for {0:?}")]
    Silent(Duration),
    /// Too many streams.
    #[error("{0} streams have a file already; raise --streams, or give another directory")]
    Streams(usize),
}

/// A stream as the collector has it.
#[derive(Debug, Default)]
struct Stream {
    /// Its file, while a connection has it.
    store: Option<Store>,
    /// How far the file was written when it was closed.
    mark: Option<Mark>,
    /// Records and bytes of payloads that are appended and not stored.
    appended: (u64, u64),
    /// Frames that came early, by number: entry and payload.
    held: BTreeMap<u64, Vec<u8>>,
    held_bytes: usize,
    /// The connection that it belongs to: the newest.
    owner: u64,
    connection: Option<TcpStream>,
}

#[derive(Debug)]
struct Shared {
    directory: PathBuf,
    options: CollectorOptions,
    streams: Mutex<HashMap<u64, Arc<Mutex<Stream>>>>,
    counts: Counts,
    stop: AtomicBool,
    next_connection: AtomicU64,
    /// Connections whose stream has no record yet, by number.
    fresh: Mutex<BTreeMap<u64, TcpStream>>,
}

/// A collector that listens.
#[derive(Debug)]
pub struct Collector {
    listener: TcpListener,
    shared: Arc<Shared>,
}

/// Ends a collector from another thread, and tells of it.
#[derive(Clone, Debug)]
pub struct CollectorHandle(Arc<Shared>);

impl CollectorHandle {
    /// Ends [`Collector::serve`].
    pub fn stop(&self) {
        self.0.stop.store(true, Ordering::Release);
    }

    /// What it has done.
    pub fn collected(&self) -> Collected {
        let counts = &self.0.counts;
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Collected {
            records: of(&counts.records),
            bytes: of(&counts.bytes),
            doubles: of(&counts.doubles),
            early: of(&counts.early),
            refused: of(&counts.refused),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How often a thread that waits looks whether the collector ends.
const LOOK: Duration = Duration::from_millis(50);

impl Collector {
    /// Listens at `address` and stores in `directory`, which it makes. With `sync` the names of the directories that it makes are
    /// on the disk, too.
    ///
    /// # Errors
    /// `Listen`, or `Directory`.
    pub fn bind(address: &str, directory: &Path, options: CollectorOptions) -> Result<Self, CollectorError> {
        let missing =
            directory.ancestors().skip(1).take_while(|path| !path.as_os_str().is_empty() && !path.exists());
        // Each is a name in the one behind it.
        let parents: Vec<_> = std::iter::once(directory).chain(missing).filter_map(Path::parent).collect();
        let made = std::fs::create_dir_all(directory).and_then(|()| {
            let named =
                |path: &Path| if path.as_os_str().is_empty() { PathBuf::from(".") } else { path.to_owned() };
            let mut parents = parents.iter().filter(|_| options.sync);
            parents.try_for_each(|parent| std::fs::File::open(named(parent))?.sync_all())
        });
        made.map_err(|error| CollectorError::Directory { directory: directory.to_owned(), error })?;
        let listen = |error| CollectorError::Listen { address: address.to_owned(), error };
        let addresses: Vec<SocketAddr> = address.to_socket_addrs().map_err(listen)?.collect();
        let listener = TcpListener::bind(&addresses[..]).map_err(listen)?;
        listener.set_nonblocking(true).map_err(listen)?;
        let shared = Shared {
            directory: directory.to_owned(),
            options,
            streams: Mutex::default(),
            counts: Counts::default(),
            stop: AtomicBool::new(false),
            next_connection: AtomicU64::new(0),
            fresh: Mutex::default(),
        };
        Ok(Self { listener, shared: Arc::new(shared) })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// As the system.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// To end it.
    pub fn handle(&self) -> CollectorHandle {
        CollectorHandle(self.shared.clone())
    }

    /// Takes connections until it is stopped, and tells `refused` why it ends one.
    pub fn serve(self, refused: impl Fn(SocketAddr, &Refusal) + Sync) {
        thread::scope(|scope| {
            while !self.shared.stop.load(Ordering::Acquire) {
                let Ok((connection, peer)) = self.listener.accept() else {
                    thread::sleep(Duration::from_millis(5));
                    continue;
                };
                let counts = &self.shared.counts;
                let (open, most) =
                    (counts.connections.load(Ordering::Relaxed), self.shared.options.connections);
                if open >= most {
                    // The thread of one that has to go may take a while to end; more of them than there are places wait for it.
                    let oldest = if open < 2 * most { lock(&self.shared.fresh).pop_first() } else { None };
                    let leaves = oldest.as_ref().map_or(&connection, |(_, oldest)| oldest);
                    let from = leaves.peer_addr().unwrap_or(peer);
                    counts.refused.fetch_add(1, Ordering::Relaxed);
                    let refusal = Refusal::Protocol("as many connections as --connections allows are open");
                    // This thread waits for no peer: what does not fit into the socket is not told.
                    if leaves.set_nonblocking(true).is_ok() {
                        tell(leaves, 0, &refusal);
                    }
                    let _ = leaves.shutdown(Shutdown::Both);
                    refused(from, &refusal);
                    if oldest.is_none() {
                        continue;
                    }
                }
                let id = 1 + self.shared.next_connection.fetch_add(1, Ordering::Relaxed);
                if let Ok(handle) = connection.try_clone() {
                    lock(&self.shared.fresh).insert(id, handle);
                }
                counts.connections.fetch_add(1, Ordering::Relaxed);
                let (shared, refused) = (&self.shared, &refused);
                scope.spawn(move || {
                    let mut stream = None;
                    let ended = converse(shared, &connection, id, &mut stream);
                    lock(&shared.fresh).remove(&id);
                    if let Err(refusal) = &ended {
                        tell(&connection, stream.as_ref().map_or(0, |(number, ..)| *number), refusal);
                    }
                    if let Some((_, id, own)) = stream {
                        leave(id, &own);
                    }
                    // The peer learns that it is over even where another handle of the socket lives on.
                    let _ = connection.shutdown(Shutdown::Both);
                    if let Err(refusal) = ended {
                        shared.counts.refused.fetch_add(1, Ordering::Relaxed);
                        refused(peer, &refusal);
                    }
                    shared.counts.connections.fetch_sub(1, Ordering::Relaxed);
                });
            }
        });
    }
}

/// Tells the peer why its connection ends, as far as it listens.
fn tell(connection: &TcpStream, stream: u64, refusal: &Refusal) {
    let reason = refusal.to_string();
    let end = (0..=reason.len().min(REASON_MAX)).rev().find(|&end| reason.is_char_boundary(end)).unwrap_or(0);
    let reason = &reason[..end];
    let mut bytes = vec![];
    Frame { kind: Kind::Refused, stream, seq: 0, body: reason.as_bytes() }.encode(&mut bytes);
    let mut writer = connection;
    let _ = writer.write_all(&bytes);
}

/// A stream's number, the connection's, and the stream.
type Owned = (u64, u64, Arc<Mutex<Stream>>);

/// Lets go of a stream whose connection has ended, if no other one has taken it over: what it held is sent again, and its file is
/// closed. So payloads and open files are as many as there are connections.
fn leave(id: u64, own: &Mutex<Stream>) {
    let mut own = lock(own);
    if own.owner == id {
        own.close();
    }
}

impl Stream {
    /// Closes the file. What was appended and not written was acknowledged to nobody. A file whose write failed says what it has
    /// when it is read again.
    fn close(&mut self) {
        let mark = self.store.take().and_then(|store| store.mark());
        *self = Self { mark, owner: self.owner, ..Self::default() };
    }

    /// Number of the next record.
    fn next(&self) -> u64 {
        self.store.as_ref().map_or(0, Store::next)
    }

    /// Closes a file that failed: what it would acknowledge is not there. Opened again, it says what is.
    fn keep<T>(&mut self, with: impl FnOnce(&mut Self) -> Result<T, Refusal>) -> Result<T, Refusal> {
        let done = with(self);
        if let Err(Refusal::Store(_)) = done {
            self.close();
        }
        done
    }

    /// Its file, which is opened if it is not: a file that this collector closed is not read again.
    fn open(&mut self, shared: &Shared, number: u64) -> Result<&mut Store, StoreError> {
        let (directory, sync) = (&shared.directory, shared.options.sync);
        if self.store.is_none() {
            let reopened = match self.mark.take() {
                Some(mark) => Store::reopen(directory, number, sync, mark)?,
                None => None,
            };
            self.store = Some(match reopened {
                Some(store) => store,
                None => Store::open(directory, number, sync)?,
            });
        }
        Ok(self.store.as_mut().expect("it was opened"))
    }
}

/// One connection, until it ends. `stream` is what it had.
fn converse(
    shared: &Shared,
    connection: &TcpStream,
    id: u64,
    stream: &mut Option<Owned>,
) -> Result<(), Refusal> {
    let patience = shared.options.patience;
    connection.set_nonblocking(false)?;
    connection.set_nodelay(true)?;
    connection.set_read_timeout(Some(LOOK))?;
    // A peer that takes no answers holds its thread no longer than this.
    connection.set_write_timeout(Some(patience))?;
    let mut incoming = Incoming::default();
    let mut heard = Instant::now();
    let mut answer = vec![];
    loop {
        let mut reader = connection;
        match incoming.fill(&mut reader) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                if shared.stop.load(Ordering::Acquire) {
                    return Ok(());
                }
                if heard.elapsed() > patience {
                    return Err(Refusal::Silent(patience));
                }
                continue;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            // A peer that ends without a word, as one does that is killed.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        if shared.stop.load(Ordering::Acquire) {
            return Ok(());
        }
        if stream.is_none() {
            let Some(Frame { kind, stream: number, seq, .. }) = incoming.frame()? else {
                // Bytes of a HELLO that never comes to its end are no word.
                if heard.elapsed() > patience {
                    return Err(Refusal::Silent(patience));
                }
                continue;
            };
            if kind != Kind::Hello {
                return Err(Refusal::Protocol("the first frame is no HELLO"));
            }
            let (_, _, found) = stream.insert((number, id, find(shared, number)?));
            let mut own = lock(found);
            own.open(shared, number)?;
            // The connection before may have appended something: a WELCOME acknowledges as an ACK does.
            own.keep(|own| Ok(commit(shared, own)?))?;
            if let Some(former) = own.connection.replace(connection.try_clone()?) {
                let _ = former.shutdown(Shutdown::Both);
            }
            own.owner = id;
            let next = own.next();
            drop(own);
            if next > 0 {
                lock(&shared.fresh).remove(&id);
            }
            answer.clear();
            wire::encode(Kind::Welcome, number, next, &mut answer, |_| {});
            let mut writer = connection;
            writer.write_all(&answer)?;
            // The NIC learns of it, too, by the WELCOME.
            if next < seq {
                return Err(Refusal::Protocol(
                    "the NIC was told that records are stored which are not here: give the directory that has them",
                ));
            }
        }
        let Some((number, _, own)) = &*stream else { continue };
        let mut own = lock(own);
        if own.owner != id || own.store.is_none() {
            // The NIC has come back by another connection.
            return Ok(());
        }
        let mut came = false;
        while let Some(frame) = incoming.frame()? {
            came = true;
            if frame.stream != *number {
                return Err(Refusal::Protocol("a frame of another stream than that of the HELLO"));
            }
            match frame.kind {
                Kind::Data => {
                    own.keep(|own| take(shared, own, frame.seq, frame.body))?;
                }
                Kind::Ping => {}
                _ => return Err(Refusal::Protocol("a frame that only a collector sends, or a second HELLO")),
            }
        }
        if !came {
            if heard.elapsed() > patience {
                return Err(Refusal::Silent(patience));
            }
            continue;
        }
        heard = Instant::now();
        // Stored, then acknowledged (W10).
        own.keep(|own| Ok(commit(shared, own)?))?;
        let next = own.next();
        if next > 0 {
            lock(&shared.fresh).remove(&id);
        }
        answer.clear();
        wire::encode(Kind::Ack, *number, next, &mut answer, |out| {
            let start = out.len();
            for &seq in own.held.keys() {
                let ahead = (seq - next) as usize;
                out.resize(out.len().max(start + ahead / 8 + 1), 0);
                out[start + ahead / 8] |= 1 << (ahead % 8);
            }
        });
        drop(own);
        let mut writer = connection;
        writer.write_all(&answer)?;
    }
}

/// The stream. Its file is there then, and not open: to open it may take as long as to read it, and other streams do not wait.
fn find(shared: &Shared, number: u64) -> Result<Arc<Mutex<Stream>>, Refusal> {
    let mut streams = lock(&shared.streams);
    if let Some(found) = streams.get(&number) {
        return Ok(found.clone());
    }
    let path = crate::store::path_of(&shared.directory, number);
    if !path.exists() {
        let files = std::fs::read_dir(&shared.directory)?.count();
        if files >= shared.options.streams {
            return Err(Refusal::Streams(files));
        }
        // Counted from here on.
        std::fs::File::create_new(path)?;
    }
    Ok(streams.entry(number).or_default().clone())
}

/// Stores what was appended.
fn commit(shared: &Shared, stream: &mut Stream) -> Result<(), StoreError> {
    let (records, bytes) = std::mem::take(&mut stream.appended);
    if let Some(store) = &mut stream.store {
        store.commit()?;
    }
    shared.counts.records.fetch_add(records, Ordering::Relaxed);
    shared.counts.bytes.fetch_add(bytes, Ordering::Relaxed);
    Ok(())
}

/// Bytes after which what was appended is stored, in the middle of what came.
const GROUP: usize = 4 << 20;

/// One frame of data: stored if it is next, held if it is early, dropped if it is there.
fn take(shared: &Shared, stream: &mut Stream, seq: u64, body: &[u8]) -> Result<(), Refusal> {
    let counts = &shared.counts;
    let Some(entry) = body.get(..64) else {
        return Err(Refusal::Protocol("a DATA frame that is shorter than an entry"));
    };
    let entry: HwNicEntry = bytemuck::pod_read_unaligned(entry);
    let payload = &body[64..];
    if entry.length as usize != payload.len() {
        return Err(Refusal::Protocol("a DATA frame whose entry has another length than its payload"));
    }
    let next = stream.next();
    if seq < next || stream.held.contains_key(&seq) {
        counts.doubles.fetch_add(1, Ordering::Relaxed);
        return Ok(());
    }
    if entry.flags & NicFlags::DIGEST.bits() != 0 && digest(words(payload)) != entry.digest {
        return Err(Refusal::Digest { seq });
    }
    if seq != next {
        // What is not held is sent again.
        if seq - next < AHEAD && stream.held_bytes + body.len() <= shared.options.held_bytes {
            counts.early.fetch_add(1, Ordering::Relaxed);
            stream.held_bytes += body.len();
            stream.held.insert(seq, body.to_vec());
        }
        return Ok(());
    }
    let store = |stream: &mut Stream, body: &[u8]| {
        let Some(file) = &mut stream.store else { return Ok(()) };
        file.append(body);
        stream.appended.0 += 1;
        stream.appended.1 += body.len() as u64 - 64;
        if file.waiting() >= GROUP { commit(shared, stream) } else { Ok(()) }
    };
    store(stream, body)?;
    while let Some(body) = stream.held.remove(&stream.next()) {
        stream.held_bytes -= body.len();
        store(stream, &body)?;
    }
    Ok(())
}
