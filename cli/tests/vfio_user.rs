//! `doorbell vfio-user`, and what drives the functions that it serves from processes of their own.
#![cfg(all(feature = "vfio", feature = "variants", feature = "runtime"))]

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use assert_cmd::cargo::cargo_bin;
use rstest::rstest;

/// A server that ends with this.
struct Server {
    child: Child,
    folder: tempfile::TempDir,
}

impl Server {
    /// Serves with these arguments, the socket being that of [`socket`](Self::socket); `last` is what its last socket ends with.
    fn start(arguments: &str, last: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(cargo_bin("doorbell"));
        command
            .arg("vfio-user")
            .args(arguments.split_whitespace())
            .arg("--socket")
            .arg(folder.path().join("s"));
        let child = command.stderr(Stdio::null()).spawn().unwrap();
        let server = Self { child, folder };
        let deadline = Instant::now() + Duration::from_secs(20);
        while !std::path::Path::new(&server.socket(last)).exists() {
            assert!(Instant::now() < deadline, "no socket");
            std::thread::sleep(Duration::from_millis(5));
        }
        server
    }

    fn socket(&self, end: &str) -> String {
        format!("{}/s{end}", self.folder.path().display())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn doorbell(arguments: &str) -> (i32, String) {
    let output = Command::new(cargo_bin("doorbell")).args(arguments.split_whitespace()).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap_or(-1), String::from_utf8(text).unwrap())
}

/// One client after the other, and four at once; then the server is killed while one is connected, and the next is told.
#[rstest]
#[case("--device model", &[""])]
#[case("--device rtl", &[""])]
#[case("--device rtl --functions 4", &[".0", ".1", ".2", ".3"])]
fn drivers_in_processes_of_their_own_agree_with_the_golden_model(
    #[case] arguments: &str,
    #[case] ends: &[&str],
) {
    let mut server = Server::start(arguments, ends[ends.len() - 1]);
    for _ in 0..2 {
        std::thread::scope(|scope| {
            for end in ends {
                let socket = server.socket(end);
                scope.spawn(move || {
                    let (code, text) =
                        doorbell(&format!("compare --limit 100 --devices model,vfio-user:{socket}"));
                    assert_eq!(code, 0, "{text}");
                    assert!(text.contains("identical"), "{text}");
                });
            }
        });
    }
    let (code, text) =
        doorbell(&format!("run --limit 20 --wait sleep --device vfio-user:{}", server.socket(ends[0])));
    assert_eq!(code, 0, "{text}");
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    let (code, text) = doorbell(&format!("compare --devices model,vfio-user:{}", server.socket(ends[0])));
    assert_eq!(code, 3, "{text}");
    assert!(text.contains("no server listens there"), "{text}");
}

/// A write of a client stops the device, and its client waits; with Enter it goes on, and the server ends once its waveform is whole.
#[test]
fn a_write_stops_the_device_until_enter() {
    let folder = tempfile::tempdir().unwrap();
    let [socket, wave] = ["s", "w.fst"].map(|name| folder.path().join(name).display().to_string());
    let mut server = Command::new(cargo_bin("doorbell"));
    server.args(["vfio-user", "--socket", &socket, "--stop", "doorbell:5", "--wave", &wave]);
    let mut server = server.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut told = BufReader::new(server.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(told.next().unwrap().contains("function 0"));
    std::thread::scope(|scope| {
        let client =
            scope.spawn(|| doorbell(&format!("run --in-flight 1 --limit 50 --device vfio-user:{socket}")));
        let stopped = told.find(|line| line.contains("Enter")).unwrap();
        assert!(stopped.contains("queue pair 0: DOORBELL is written 0x5 in cycle "), "{stopped}");
        // It waits.
        std::thread::sleep(Duration::from_millis(200));
        assert!(!client.is_finished() && !std::path::Path::new(&wave).exists());
        server.stdin.take().unwrap().write_all(b"\n").unwrap();
        assert!(server.wait().unwrap().success());
        let (code, text) = client.join().unwrap();
        assert!(code == 1 && text.contains("its server has gone"), "{code}: {text}");
    });
    assert!(std::fs::metadata(&wave).unwrap().len() > 10_000);
}

/// What --stop is for is told with --quiet too: the server waits, and its client will not wait long.
#[test]
fn a_stop_is_told_by_a_quiet_server() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s");
    let mut command = Command::new(cargo_bin("doorbell"));
    command
        .args(["--quiet", "vfio-user", "--device", "model", "--stop", "doorbell:2", "--socket"])
        .arg(&socket);
    let child = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut server = Server { child, folder };
    let deadline = Instant::now() + Duration::from_secs(20);
    while !socket.exists() {
        assert!(Instant::now() < deadline, "no socket");
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut told = BufReader::new(server.child.stderr.take().unwrap()).lines().map(Result::unwrap);
    std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            doorbell(&format!("run --in-flight 1 --limit 20 --device vfio-user:{}", socket.display()))
        });
        let stop = scope.spawn(move || told.next());
        while !stop.is_finished() && !client.is_finished() {
            std::thread::sleep(Duration::from_millis(5));
        }
        server.child.stdin.take().unwrap().write_all(b"\n").unwrap();
        let (code, text) = client.join().unwrap();
        // Nothing comes from a server that has said nothing until then.
        server.child.kill().unwrap();
        let line = stop.join().unwrap();
        assert!(line.as_deref().is_some_and(|line| line.ends_with("Enter goes on")), "{line:?}; {text}");
        assert_eq!(code, 0, "{text}");
    });
}

#[rstest]
#[case("vfio-user --socket s --stop BELL", 2, "'BELL' is no register")]
#[case("vfio-user --socket s --wave w.fst", 2, "--stop")]
#[case("vfio-user --device model --socket s --stop ARM --wave w.fst", 3, "it has no signals to record")]
#[case("vfio-user --socket /nowhere/s --device model", 2, "socket /nowhere/s: cannot listen")]
#[case(
    "vfio-user --socket s --device gpu",
    3,
    "functions with hosts of their own are those of model and rtl"
)]
#[case(
    "vfio-user --socket s --functions 4 --queues 5",
    2,
    "--functions 4 with --queues 5 are 20 queue pairs"
)]
#[case("compare --devices model,vfio-user", 2, "give the socket of its server, as in vfio-user:PATH")]
#[case("compare --devices model,pcie", 2, "give the address of the function, as in pcie:0000:00:03.0")]
#[case(
    "compare --devices model,pcie:ffff:ff:1f.7",
    3,
    "pcie:ffff:ff:1f.7 is not available: no PCI device has this address"
)]
#[case("compare --devices model,pcie:0000:00:03.0:queues=2", 2, "its driver takes the first queue pair")]
fn bad_usage_is_told(#[case] arguments: &str, #[case] code: i32, #[case] message: &str) {
    let (ended, text) = doorbell(arguments);
    assert!(ended == code && text.contains(message), "{ended}: {text}");
}
