//! The socket that a server listens at, and its file.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use crate::server::ServeError;

/// How often, and at what intervals, a server that starts asks for its turn.
const ASKS: u32 = 100;
const BETWEEN: Duration = Duration::from_millis(10);

/// A socket that is listened at. Its file goes with it, if it still is its own.
#[derive(Debug)]
pub struct Socket {
    pub listener: UnixListener,
    path: PathBuf,
    /// Device and inode. No other file has them while the listener is there.
    file: Option<(u64, u64)>,
}

impl Socket {
    /// Listens at `path`, also where a server that is no more has left its file.
    pub fn listen(path: &Path) -> Result<Self, ServeError> {
        let failed = |what| move |source| ServeError::Socket { path: path.to_owned(), what, source };
        let _turn = turn(path);
        let listener = match UnixListener::bind(path) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                let is_socket = fs::symlink_metadata(path).is_ok_and(|about| about.file_type().is_socket());
                match listens(ask(path)) {
                    Ok(true) => return Err(ServeError::Taken { path: path.to_owned() }),
                    _ if !is_socket => return Err(failed("a file that is no socket is there")(error)),
                    Ok(false) => {}
                    Err(error) => {
                        let what = "a socket is there, and whether a server listens at it cannot be asked; choose another path";
                        return Err(failed(what)(error));
                    }
                }
                match fs::remove_file(path) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => {
                        return Err(failed("cannot remove the file of a server that is no more")(error));
                    }
                    _ => UnixListener::bind(path).map_err(failed("cannot listen"))?,
                }
            }
            bound => bound.map_err(failed("cannot listen"))?,
        };
        listener.set_nonblocking(true).map_err(failed("cannot be set to not block"))?;
        Ok(Self { listener, path: path.to_owned(), file: file(path) })
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _turn = turn(&self.path);
        if self.file.is_some() && self.file == file(&self.path) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn file(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|about| (about.dev(), about.ino()))
}

/// Servers of one directory come and go one after another, so that none removes the file of another that starts at the same time. Best effort: a
/// directory that this user may not read has no turns, and who holds one too long is not waited for.
fn turn(path: &Path) -> Option<File> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let directory = File::open(directory).ok()?;
    for _ in 0..ASKS {
        if directory.try_lock().is_ok() {
            return Some(directory);
        }
        thread::sleep(BETWEEN);
    }
    None
}

/// Connects, if that needs no waiting, and hangs up.
fn ask(path: &Path) -> Result<(), Errno> {
    let address = SocketAddrUnix::new(path)?;
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    connect(socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?, &address)
}

/// What the answer says: only a refusal says that nobody listens.
fn listens(answer: Result<(), Errno>) -> io::Result<bool> {
    match answer {
        // Those who wait for a server to accept them are as many as may.
        Ok(()) | Err(Errno::AGAIN) => Ok(true),
        Err(Errno::CONNREFUSED | Errno::NOENT) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn only_a_refusal_says_that_nobody_listens() {
        assert!(listens(Ok(())).unwrap() && listens(Err(Errno::AGAIN)).unwrap());
        assert!(!listens(Err(Errno::CONNREFUSED)).unwrap());
        for error in [Errno::ACCESS, Errno::PERM, Errno::PROTOTYPE, Errno::MFILE, Errno::NOMEM] {
            listens(Err(error)).unwrap_err();
        }
    }

    /// A server that may not be asked keeps its address, as does one that accepts nobody for the moment.
    #[test]
    fn a_live_servers_file_stays() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let live = Socket::listen(&path).unwrap();
        let before = file(&path);
        // Until nobody more may wait.
        let address = SocketAddrUnix::new(&path).unwrap();
        let client = || {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
            connect(&socket, &address).map(|()| socket)
        };
        let waiting: Vec<_> = std::iter::from_fn(|| client().ok()).take(100_000).collect();
        assert_eq!(client().unwrap_err(), Errno::AGAIN);
        assert!(matches!(Socket::listen(&path), Err(ServeError::Taken { .. })));
        drop(waiting);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
        // Root may ask all the same.
        Socket::listen(&path).unwrap_err();
        assert_eq!(file(&path), before);
        drop(live);
        assert_eq!(file(&path), None);
    }

    #[test]
    fn a_file_is_removed_by_its_own_server_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        // Left over by a server that was killed.
        drop(UnixListener::bind(&path).unwrap());
        let first = Socket::listen(&path).unwrap();
        // Somebody else removes it, and serves there.
        fs::remove_file(&path).unwrap();
        let second = Socket::listen(&path).unwrap();
        drop(first);
        UnixStream::connect(&path).expect("the second server is there");
        drop(second);
        assert!(!path.exists());
        fs::write(&path, "no socket").unwrap();
        let error = Socket::listen(&path).unwrap_err().to_string();
        assert!(error.contains("no socket is there"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "no socket");
    }

    /// Of servers that start at once over the file of one that was killed one has the address, and keeps it.
    #[test]
    fn of_servers_that_start_at_once_one_listens() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        for _ in 0..300 {
            drop(UnixListener::bind(&path).unwrap());
            // A barrier would wake one after the other.
            let missing = AtomicUsize::new(2);
            let servers: Vec<_> = thread::scope(|scope| {
                let server = || {
                    missing.fetch_sub(1, Ordering::SeqCst);
                    while missing.load(Ordering::SeqCst) > 0 {
                        std::hint::spin_loop();
                    }
                    Socket::listen(&path).ok()
                };
                let all: Vec<_> = (0..2).map(|_| scope.spawn(server)).collect();
                all.into_iter().filter_map(|server| server.join().unwrap()).collect()
            });
            assert_eq!(servers.len(), 1);
            assert_eq!(servers[0].file, file(&path));
        }
    }
}
