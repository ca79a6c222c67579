//! Connections: as many as may be, each within limits of time.

use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpSocket, lookup_host};
use tokio::sync::{Semaphore, watch};

use super::Server;

/// Connections that the system keeps until they are let in, if it keeps as many. Of those beyond some clients believe that they are connected, and wait for
/// ever.
const BACKLOG: u32 = 4096;
/// How long connections may take to end once the server is told to.
const GRACE: Duration = Duration::from_secs(5);

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
            Ok((stream, _)) => stream,
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
                .serve_connection(TokioIo::new(stream), service);
            let mut connection = std::pin::pin!(connection);
            tokio::select! {
                _ = connection.as_mut() => {}
                _ = ended.changed() => {
                    connection.as_mut().graceful_shutdown();
                    let _ = connection.await;
                }
            }
            drop(place);
        });
    }
    drop(listener);
    server.engine.stop().await;
    let _ = end.send(true);
    let all = u32::try_from(server.limits.connections).unwrap_or(u32::MAX);
    let _ = tokio::time::timeout(GRACE, places.acquire_many(all)).await;
    Ok(())
}
