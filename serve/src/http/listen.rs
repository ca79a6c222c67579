//! Connections: as many as may be, each within limits of time.

use std::future::{Future, pending};
use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpListener, TcpSocket, TcpStream, lookup_host};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Sleep, sleep, timeout};

use super::Server;

/// Connections that the system keeps until they are let in, if it keeps as many. Of those beyond some clients believe that they are connected, and wait for
/// ever.
const BACKLOG: u32 = 4096;
/// How long connections may take to end once the server is told to.
const GRACE: Duration = Duration::from_secs(5);
/// How long a connection goes on behind a client that hangs up: what is answered at once reaches one that only sends no more.
const LINGER: Duration = Duration::from_millis(100);

/// Listens at an address, `HOST:PORT`.
///
/// # Errors
/// If there is no such address, or it is taken.
pub async fn bind(address: &str) -> std::io::Result<TcpListener> {
    let mut failed = std::io::Error::new(std::io::ErrorKind::InvalidInput, "it stands for no address");
    for address in lookup_host(address).await? {
        let listened = || {
            let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
            socket.set_reuseaddr(true)?;
            socket.bind(address)?;
            socket.listen(BACKLOG)
        };
        match listened() {
            Ok(listener) => return Ok(listener),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

/// Serves whoever connects until `over` completes; then lets no one in, ends the engine, and gives answers that are on their way a few seconds.
///
/// # Errors
/// If the listener fails for good.
pub async fn serve(
    server: Arc<Server>,
    listener: TcpListener,
    over: impl Future<Output = ()>,
) -> std::io::Result<()> {
    let router = server.router();
    let places = Arc::new(Semaphore::new(server.limits.connections));
    let (end, ended) = watch::channel(false);
    let patience = server.limits.patience;
    let mut over = std::pin::pin!(over);
    loop {
        // Who finds no place waits in the kernel's queue.
        let place = tokio::select! {
            () = &mut over => break,
            place = places.clone().acquire_owned() => place,
        };
        let connection = tokio::select! {
            () = &mut over => break,
            connection = listener.accept() => connection,
        };
        let stream = match connection {
            Ok((stream, _)) => Arc::new(stream),
            // No more files, or a client that has gone already: others may do better.
            Err(_) => {
                tokio::time::sleep(Duration::from_millis(10)).await;
                continue;
            }
        };
        let _ = stream.set_nodelay(true);
        let service = TowerToHyperService::new(router.clone());
        let mut ended = ended.clone();
        tokio::spawn(async move {
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(patience)
                .serve_connection(TokioIo::new(Patient::new(stream.clone(), patience)), service);
            let mut connection = std::pin::pin!(connection);
            tokio::select! {
                _ = connection.as_mut() => {}
                // While a request is answered hyper looks for this only if nothing lies behind that request.
                () = hangs_up(&stream) => drop(timeout(LINGER, connection).await),
                _ = ended.changed() => {
                    connection.as_mut().graceful_shutdown();
                    let _ = connection.await;
                }
            }
            drop(place);
        });
    }
    drop(listener);
    server.ending.send_replace(true);
    server.engine.stop().await;
    let _ = end.send(true);
    let all = u32::try_from(server.limits.connections).unwrap_or(u32::MAX);
    let _ = timeout(GRACE, places.acquire_many(all)).await;
    Ok(())
}

/// Waits until the client sends no more.
async fn hangs_up(stream: &TcpStream) {
    // Data makes a stream readable without end if nobody reads it. Nobody asks the system for priority, so only an end is told by this.
    match stream.ready(Interest::PRIORITY).await {
        Ok(ready) if ready.is_read_closed() => {}
        _ => pending().await,
    }
}

/// A stream that gives up if the client takes nothing for some time.
struct Patient {
    stream: Arc<TcpStream>,
    patience: Duration,
    /// Until when it waits for the client, if it does.
    waits: Option<Pin<Box<Sleep>>>,
}

impl Patient {
    fn new(stream: Arc<TcpStream>, patience: Duration) -> Patient {
        Patient { stream, patience, waits: None }
    }

    fn write(
        &mut self,
        context: &mut Context<'_>,
        write: impl Fn(&TcpStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        while let Poll::Ready(ready) = self.stream.poll_write_ready(context) {
            ready?;
            match write(&self.stream) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                written => {
                    self.waits = None;
                    return Poll::Ready(written);
                }
            }
        }
        let waits = self.waits.get_or_insert_with(|| Box::pin(sleep(self.patience)));
        ready!(waits.as_mut().poll(context));
        Poll::Ready(Err(ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Patient {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.stream.poll_read_ready(context))?;
            match self.stream.try_read(buffer.initialize_unfilled()) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                read => {
                    buffer.advance(read?);
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }
}

impl AsyncWrite for Patient {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.write(context, |stream| stream.try_write(bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.write(context, |stream| stream.try_write_vectored(bytes))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// The connection's end closes the stream.
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
