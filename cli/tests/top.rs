//! `doorbell top` beside a run, without one, and beside something that is none.
#![cfg(feature = "runtime")]

mod common;

use std::io::Write;
use std::net::TcpListener;
use std::sync::Arc;
use std::thread;

use common::doorbell;
use doorbell_runtime::events::Clock;
use doorbell_runtime::metrics::{Metrics, Server};
use rstest::rstest;

#[test]
fn once_prints_what_the_run_tells() {
    let metrics = Arc::new(Metrics::new("a run of the test", Clock::simulated(), None));
    metrics.counters.hot.rollouts_completed.add(4711);
    let server = Server::start("127.0.0.1:0", metrics).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let run = doorbell(folder.path(), &format!("top --once {}", server.address()));
    assert_eq!((run.code, run.stderr.as_str()), (0, ""));
    for text in ["a run of the test", "completed 4711", "REWARD_PENDING", "running"] {
        assert!(run.stdout.contains(text), "{text} is not in\n{}", run.stdout);
    }
    assert!(!run.stdout.contains('\u{1b}'), "no escape sequences");
}

#[test]
fn without_a_run_it_says_so() {
    // A port that was free a moment ago.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let folder = tempfile::tempdir().unwrap();
    for once in ["--once", ""] {
        let run = doorbell(folder.path(), &format!("top {once} {address}"));
        assert_eq!(run.code, 3, "{}", run.stderr);
        assert!(run.stderr.contains(&format!("no run at {address}")), "{}", run.stderr);
        assert_eq!(run.stdout, "");
    }
}

#[rstest]
#[case::not_http("what?\r\n\r\n")]
#[case::not_found("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")]
#[case::not_json("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")]
#[case::not_a_status("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")]
#[case::nothing("")]
fn something_else_that_listens_is_no_run(#[case] answer: &'static str) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let listening = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(answer.as_bytes()).unwrap();
    });
    let folder = tempfile::tempdir().unwrap();
    let run = doorbell(folder.path(), &format!("top --once {address}"));
    listening.join().unwrap();
    assert_eq!(run.code, 3, "{}", run.stderr);
    assert!(run.stderr.contains(&format!("no run at {address}")), "{}", run.stderr);
}

#[test]
fn without_a_terminal_it_points_to_once() {
    let server = Server::start("127.0.0.1:0", Arc::new(Metrics::new("", Clock::simulated(), None))).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let run = doorbell(folder.path(), &format!("top {}", server.address()));
    assert_eq!(run.code, 2, "{}", run.stderr);
    assert!(run.stderr.contains("--once"), "{}", run.stderr);
}
