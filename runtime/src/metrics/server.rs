//! A small HTTP endpoint for those who watch a run.
//!
//! One connection at a time, one request each, and bounds on its size and time: whatever a client does, the next one waits
//! at most two seconds for it, and the run notices nothing.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use thiserror::Error;

use super::Metrics;

/// Where a run is served, and looked for, unless said otherwise.
pub const DEFAULT_ADDRESS: &str = "127.0.0.1:9464";

/// How long a client may take for its request, and again for the answer.
const DEADLINE: Duration = Duration::from_secs(1);
/// Longest request, in bytes.
const LONGEST: usize = 8192;

/// Answers `GET /metrics` with the text of [`Status::prometheus`](super::Status::prometheus) and `GET /status.json` with
/// [`Status`](super::Status) as JSON, until it is dropped.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Why there is no server.
#[derive(Debug, Error)]
#[error("cannot serve metrics at {address}: {source}; give another address, or port 0 for any that is free")]
pub struct ServerError {
    /// The address that was asked for.
    pub address: String,
    /// What the system said.
    pub source: io::Error,
}

impl Server {
    /// Listens at `address` (`127.0.0.1:9090`, or with port 0 for a free one) and serves `metrics` on a new thread.
    ///
    /// # Errors
    /// If the address is none, or not free.
    pub fn start(address: &str, metrics: Arc<Metrics>) -> Result<Self, ServerError> {
        let failed = |source| ServerError { address: address.to_owned(), source };
        let addresses: Vec<_> = address.to_socket_addrs().map_err(failed)?.collect();
        let listener = TcpListener::bind(&addresses[..]).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = thread::Builder::new()
            .name("metrics".to_owned())
            .spawn(move || serve(&listener, &metrics, &stopped))
            .map_err(failed)?;
        Ok(Self { address, stop, thread: Some(thread) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // The thread waits for a connection, so it gets one. Where it listens everywhere, that is reached as the local host.
        let mut address = self.address;
        if address.ip().is_unspecified() {
            address.set_ip(match address {
                SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
                SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
            });
        }
        // If it cannot be woken it is left alone: it holds nothing that would be lost.
        if TcpStream::connect_timeout(&address, DEADLINE).is_ok()
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}

fn serve(listener: &TcpListener, metrics: &Metrics, stopped: &AtomicBool) {
    for connection in listener.incoming() {
        if stopped.load(Ordering::Acquire) {
            return;
        }
        match connection {
            // A client that goes away, or sends nothing, is its own affair.
            Ok(mut stream) => drop(converse(&mut stream, metrics)),
            // The process is out of files, say: others may close theirs.
            Err(_) => thread::sleep(Duration::from_millis(10)),
        }
    }
}

struct Answer {
    status: &'static str,
    kind: &'static str,
    body: String,
}

impl Answer {
    fn error(status: &'static str, body: &str) -> Self {
        Self { status, kind: "text/plain; charset=utf-8", body: format!("{body}\n") }
    }
}

fn converse(stream: &mut TcpStream, metrics: &Metrics) -> io::Result<()> {
    let end = Instant::now() + DEADLINE;
    let answer = match read_request(stream, end)? {
        Ok(path) => answer(&path, metrics),
        Err(answer) => answer,
    };
    let Answer { status, kind, body } = answer;
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    write_until(stream, end + DEADLINE, format!("{head}{body}").as_bytes())?;
    // Closing with unread input would reset the connection, and the client might lose the answer.
    stream.shutdown(Shutdown::Write)?;
    let mut rest = [0; 1024];
    while read_until(stream, end, &mut rest)? != 0 {}
    Ok(())
}

/// The path that is asked for, or what is wrong with the request.
fn read_request(stream: &mut TcpStream, end: Instant) -> io::Result<Result<String, Answer>> {
    let mut buffer = [0; LONGEST];
    let mut filled = 0;
    loop {
        if filled == LONGEST {
            let bound = format!("the request is longer than {LONGEST} bytes");
            return Ok(Err(Answer::error("431 Request Header Fields Too Large", &bound)));
        }
        let read = read_until(stream, end, &mut buffer[filled..])?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        filled += read;
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut request = httparse::Request::new(&mut headers);
        return Ok(match request.parse(&buffer[..filled]) {
            Ok(httparse::Status::Partial) => continue,
            Ok(httparse::Status::Complete(_)) => match (request.method, request.path) {
                (Some("GET"), Some(path)) => Ok(path.to_owned()),
                (method, _) => {
                    let method = method.unwrap_or_default();
                    Err(Answer::error("405 Method Not Allowed", &format!("{method}: only GET is answered")))
                }
            },
            Err(error) => Err(Answer::error("400 Bad Request", &format!("not an HTTP request: {error}"))),
        });
    }
}

/// Reads what comes, but not beyond `end`.
fn read_until(stream: &mut TcpStream, end: Instant, buffer: &mut [u8]) -> io::Result<usize> {
    stream.set_read_timeout(Some(left(end)?))?;
    stream.read(buffer)
}

/// Writes all, but not beyond `end`, however slowly the client reads.
fn write_until(stream: &mut TcpStream, end: Instant, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.set_write_timeout(Some(left(end)?))?;
        match stream.write(bytes)? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            written => bytes = &bytes[written..],
        }
    }
    Ok(())
}

fn left(end: Instant) -> io::Result<Duration> {
    let left = end.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

fn answer(path: &str, metrics: &Metrics) -> Answer {
    match path.split('?').next() {
        Some("/metrics") => Answer {
            status: "200 OK",
            kind: "application/openmetrics-text; version=1.0.0; charset=utf-8",
            body: metrics.status().prometheus(),
        },
        Some("/status.json") => match serde_json::to_string(&metrics.status()) {
            Ok(body) => Answer { status: "200 OK", kind: "application/json", body },
            Err(error) => Answer::error("500 Internal Server Error", &error.to_string()),
        },
        _ => Answer::error("404 Not Found", "there are /metrics and /status.json"),
    }
}
