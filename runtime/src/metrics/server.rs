//! A small HTTP endpoint for those who watch a run.
//!
//! Each connection has a thread, a single request, and bounds on its size and time. There is a bound on connections too: at the
//! bound, a new connection ends the oldest one. So no client delays another one, and the run notices nothing.

use std::collections::VecDeque;
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
/// How long the hot thread may take to read the device's counters for an answer, which then has those of the look before.
const LOOK: Duration = Duration::from_millis(50);
/// Longest request, in bytes.
const LONGEST: usize = 8192;
/// Most header lines of a request.
const HEADERS: usize = 64;
/// Connections at a time.
const CONNECTIONS: usize = 64;
/// Stack of a connection's thread, in bytes: memory that a run with locked pages may have to pay for.
const STACK: usize = 256 << 10;

/// Answers `GET /metrics` with the text of [`Status::prometheus`](super::Status::prometheus) for clients that accept OpenMetrics,
/// else of [`Status::prometheus_plain`](super::Status::prometheus_plain), and `GET /status.json` with
/// [`Status`](super::Status) as JSON, until it is dropped.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// An address that is taken: it is served once there is something to tell ([`Bound::serve`]). Until then clients wait.
#[derive(Debug)]
pub struct Bound {
    listener: TcpListener,
    address: SocketAddr,
    asked: String,
}

/// Why there is no server.
#[derive(Debug, Error)]
#[error("cannot serve metrics at {address}: {source}; give another address, or port 0 for any that is free")]
#[non_exhaustive]
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
        Self::bind(address)?.serve(metrics)
    }

    /// Takes `address` as [`start`](Self::start) does, and serves nothing there yet: whoever has work to do first learns before it
    /// that the address is not free.
    ///
    /// # Errors
    /// If the address is none, or not free.
    pub fn bind(address: &str) -> Result<Bound, ServerError> {
        let failed = |source| ServerError { address: address.to_owned(), source };
        let addresses: Vec<_> = address.to_socket_addrs().map_err(failed)?.collect();
        let listener = TcpListener::bind(&addresses[..]).map_err(failed)?;
        let local = listener.local_addr().map_err(failed)?;
        Ok(Bound { listener, address: local, asked: address.to_owned() })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Bound {
    /// Serves `metrics` there, on a new thread.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn serve(self, metrics: Arc<Metrics>) -> Result<Server, ServerError> {
        let Bound { listener, address, asked } = self;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = thread::Builder::new()
            .name("metrics".to_owned())
            .spawn(move || serve(&listener, &metrics, &stopped))
            .map_err(|source| ServerError { address: asked, source })?;
        Ok(Server { address, stop, thread: Some(thread) })
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

/// A connection that is served.
struct Client {
    stream: TcpStream,
    thread: JoinHandle<()>,
}

impl Client {
    fn start(stream: TcpStream, metrics: &Arc<Metrics>) -> io::Result<Self> {
        let (mut own, metrics) = (stream.try_clone()?, metrics.clone());
        let thread =
            thread::Builder::new().name("metrics client".to_owned()).stack_size(STACK).spawn(move || {
                // A client that goes away, or sends nothing, harms only itself.
                let _ = converse(&mut own, &metrics);
                // The other handle keeps the connection open.
                let _ = own.shutdown(Shutdown::Both);
            })?;
        Ok(Self { stream, thread })
    }

    /// Ends the connection: its thread reads and writes no more.
    fn end(self) {
        let _ = self.stream.shutdown(Shutdown::Both);
        let _ = self.thread.join();
    }
}

fn serve(listener: &TcpListener, metrics: &Arc<Metrics>, stopped: &AtomicBool) {
    // The oldest first.
    let mut clients = VecDeque::with_capacity(CONNECTIONS);
    for connection in listener.incoming() {
        if stopped.load(Ordering::Acquire) {
            break;
        }
        clients.retain(|client: &Client| !client.thread.is_finished());
        if clients.len() == CONNECTIONS {
            clients.pop_front().into_iter().for_each(Client::end);
        }
        match connection.and_then(|stream| Client::start(stream, metrics)) {
            Ok(client) => clients.push_back(client),
            // The process may be out of files or threads. Ending a connection gives one back.
            Err(_) => {
                clients.pop_front().into_iter().for_each(Client::end);
                thread::sleep(Duration::from_millis(10));
            }
        }
    }
    clients.into_iter().for_each(Client::end);
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

/// What is asked for.
struct Request {
    path: String,
    /// Without the body (HEAD).
    head: bool,
    /// In OpenMetrics.
    open_metrics: bool,
}

fn converse(stream: &mut TcpStream, metrics: &Metrics) -> io::Result<()> {
    let end = Instant::now() + DEADLINE;
    let (answer, head) = match read_request(stream, end)? {
        Ok(request) => (answer(&request, metrics), request.head),
        Err(answer) => (answer, false),
    };
    let Answer { status, kind, body } = answer;
    let length = body.len();
    let allow = if status.starts_with("405") { "Allow: GET, HEAD\r\n" } else { "" };
    let mut bytes = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n{allow}Vary: Accept\r\nConnection: close\r\n\r\n"
    );
    if !head {
        bytes.push_str(&body);
    }
    let end = Instant::now() + DEADLINE;
    write_until(stream, end, bytes.as_bytes())?;
    // Closing with unread input would reset the connection, and the client might lose the answer.
    stream.shutdown(Shutdown::Write)?;
    let mut rest = [0; 1024];
    while read_until(stream, end, &mut rest)? != 0 {}
    Ok(())
}

/// What is asked for, or what is wrong with the request.
fn read_request(stream: &mut TcpStream, end: Instant) -> io::Result<Result<Request, Answer>> {
    let mut buffer = [0; LONGEST];
    let mut filled = 0;
    loop {
        if filled == LONGEST {
            let bound = format!("the request is longer than {LONGEST} bytes; send a shorter one");
            return Ok(Err(Answer::error("431 Request Header Fields Too Large", &bound)));
        }
        match read_until(stream, end, &mut buffer[filled..]) {
            Ok(0) if filled == 0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(0) => return Ok(Err(Answer::error("400 Bad Request", "the request has no end"))),
            Ok(read) => filled += read,
            Err(error) if matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock) => {
                let late = format!("no whole request came within {} s", DEADLINE.as_secs());
                return Ok(Err(Answer::error("408 Request Timeout", &late)));
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        }
        let mut headers = [httparse::EMPTY_HEADER; HEADERS];
        let mut request = httparse::Request::new(&mut headers);
        return Ok(match request.parse(&buffer[..filled]) {
            Ok(httparse::Status::Partial) => continue,
            Ok(httparse::Status::Complete(_)) => understood(&request),
            Err(httparse::Error::TooManyHeaders) => {
                let bound = format!("the request has more than {HEADERS} header lines; send fewer");
                Err(Answer::error("431 Request Header Fields Too Large", &bound))
            }
            Err(error) => Err(Answer::error("400 Bad Request", &format!("not an HTTP request: {error}"))),
        });
    }
}

fn understood(request: &httparse::Request<'_, '_>) -> Result<Request, Answer> {
    let head = match request.method {
        Some("GET") => false,
        Some("HEAD") => true,
        method => {
            let told = format!("{}: only GET and HEAD are answered", method.unwrap_or_default());
            return Err(Answer::error("405 Method Not Allowed", &told));
        }
    };
    let target = request.path.unwrap_or_default();
    // Proxies may send the whole URL.
    let target =
        target.strip_prefix("http://").map_or(target, |rest| rest.find('/').map_or("/", |at| &rest[at..]));
    let path = target.split(['?', '#']).next().unwrap_or_default().to_owned();
    let accept = request.headers.iter().filter(|header| header.name.eq_ignore_ascii_case("accept"));
    let ranges: Vec<&str> = accept.filter_map(|header| str::from_utf8(header.value).ok()).collect();
    Ok(Request { path, head, open_metrics: prefers_open_metrics(&ranges.join(",")) })
}

/// Whether the header Accept prefers OpenMetrics to plain text (RFC 9110, section 12.5.1). Only a client that names OpenMetrics
/// gets it: browsers and old collectors do not.
fn prefers_open_metrics(accept: &str) -> bool {
    const OPEN: &str = "application/openmetrics-text";
    const PLAIN: [&str; 3] = ["text/plain", "text/*", "*/*"];
    let mut open = 0.0f32;
    // The most specific range counts.
    let mut plain = (PLAIN.len(), 0.0f32);
    for range in accept.split(',') {
        let mut parts = range.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default().to_ascii_lowercase();
        let mut quality = 1.0;
        let mut version = None;
        for (key, value) in parts.filter_map(|part| part.split_once('=')) {
            match key.trim().to_ascii_lowercase().as_str() {
                "q" => quality = value.trim().parse().unwrap_or(0.0),
                "version" => version = Some(value.trim().trim_matches('"')),
                _ => {}
            }
        }
        if name == OPEN && version.is_none_or(|version| matches!(version, "1.0.0" | "0.0.1")) {
            open = open.max(quality);
        }
        let is_known = version.is_none_or(|version| version == "0.0.4");
        if let Some(rank) =
            PLAIN.iter().position(|plain| *plain == name).filter(|rank| is_known && *rank <= plain.0)
        {
            plain = (rank, if rank == plain.0 { plain.1.max(quality) } else { quality });
        }
    }
    open > 0.0 && open >= plain.1
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

fn answer(request: &Request, metrics: &Metrics) -> Answer {
    match request.path.as_str() {
        "/metrics" if request.open_metrics => Answer {
            status: "200 OK",
            kind: "application/openmetrics-text; version=1.0.0; charset=utf-8",
            body: metrics.status().prometheus(),
        },
        "/metrics" => Answer {
            status: "200 OK",
            kind: "text/plain; version=0.0.4; charset=utf-8",
            body: metrics.status().prometheus_plain(),
        },
        "/status.json" => match serde_json::to_string(&metrics.status_within(LOOK)) {
            Ok(body) => Answer { status: "200 OK", kind: "application/json", body },
            Err(error) => Answer::error("500 Internal Server Error", &error.to_string()),
        },
        _ => Answer::error("404 Not Found", "there are /metrics and /status.json"),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::prefers_open_metrics;

    #[rstest]
    #[case("", false)]
    #[case("*/*", false)]
    #[case("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", false)]
    #[case("application/openmetrics-text", true)]
    #[case("Application/OpenMetrics-Text; Version=1.0.0; charset=utf-8", true)]
    #[case("application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1", true)]
    #[case(
        "application/openmetrics-text;version=1.0.0;q=0.2,text/plain;version=0.0.4;q=0.3,*/*;q=0.1",
        false
    )]
    #[case("application/openmetrics-text;q=0", false)]
    #[case("application/openmetrics-text;q=0.4, */*", false)]
    #[case("application/openmetrics-text;q=0.4, */*, text/plain;q=0.1", true)]
    #[case("application/openmetrics-text;version=2.0.0", false)]
    #[case("application/openmetrics-text;q=junk, text/plain", false)]
    #[case("application/openmetrics-texts", false)]
    fn accept_decides_the_format(#[case] header: &str, #[case] expected: bool) {
        assert_eq!(prefers_open_metrics(header), expected);
    }
}
