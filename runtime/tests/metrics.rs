//! Counters and everything that shows them.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use doorbell_runtime::events::{BUCKET_BOUNDS, Clock, Collector, EventKind, Pair, Perfetto, STAGES, Ticks};
use doorbell_runtime::metrics::{CollectorThread, CounterValues, Counters, Kind, Metrics, Server, Status};
use doorbell_runtime::rollout::RolloutId;
use rstest::rstest;
use serde_json::Value;

/// A status in which every number differs from every other.
fn status() -> Status {
    let mut next = 1000;
    let mut fresh = || {
        next += 1;
        Value::from(next)
    };
    let Value::Object(zeros) = serde_json::to_value(CounterValues::default()).unwrap() else {
        unreachable!()
    };
    let values = zeros
        .into_iter()
        .map(|(name, value)| match value {
            Value::Array(stages) => (name, stages.iter().map(|_| fresh()).collect()),
            _ => (name, fresh()),
        })
        .collect();
    let counters: CounterValues = serde_json::from_value(Value::Object(values)).unwrap();
    let (mut collector, mut hot) = Collector::new(Clock::simulated(), 4, 4);
    for (kind, at) in
        [(EventKind::DescPosted, 0), (EventKind::DescConsumed, 130), (EventKind::DescCommitted, 10)]
    {
        hot.record(kind, RolloutId::new(0, 1), 3, 0, Ticks::new(at));
    }
    let events = collector.finish(|_| {});
    Status { counters, events, ..Metrics::new("a run", Clock::simulated(), None).status() }
}

/// Samples of an OpenMetrics text by name and labels, and the types of the metrics. The format, not our writer, is what is
/// read here.
fn parse(text: &str) -> (BTreeMap<String, f64>, BTreeMap<String, String>) {
    let (mut samples, mut types) = (BTreeMap::new(), BTreeMap::new());
    let body = text.strip_suffix("# EOF\n").expect("it ends with EOF");
    for line in body.lines() {
        if let Some(comment) = line.strip_prefix("# ") {
            let mut words = comment.splitn(3, ' ');
            let (what, name, rest) =
                (words.next().unwrap(), words.next().unwrap(), words.next().unwrap_or(""));
            assert!(["HELP", "TYPE", "UNIT"].contains(&what), "{line}");
            if what == "TYPE" {
                assert!(types.insert(name.to_owned(), rest.to_owned()).is_none(), "{name} is there twice");
            }
            continue;
        }
        let (sample, value) = line.rsplit_once(' ').unwrap();
        let known = samples.insert(sample.to_owned(), value.parse().unwrap());
        assert!(known.is_none(), "{sample} is there twice");
    }
    (samples, types)
}

#[test]
fn every_counter_is_in_the_prometheus_text() {
    let status = status();
    let (samples, types) = parse(&status.prometheus());
    for (row, values) in status.counters.rows() {
        let name = format!("doorbell_{}", row.name);
        let (kind, suffix) = match row.kind {
            Kind::Counter => ("counter", "_total"),
            Kind::Gauge => ("gauge", ""),
        };
        assert_eq!(types.get(&name).map(String::as_str), Some(kind), "{name}");
        for (k, value) in values.iter().enumerate() {
            let labels = if row.by_stage { format!("{{stage=\"{}\"}}", STAGES[k]) } else { String::new() };
            let sample = format!("{name}{suffix}{labels}");
            assert_eq!(samples.get(&sample), Some(&(*value as f64)), "{sample}");
        }
    }
}

#[test]
fn latencies_are_histograms_in_seconds_that_say_what_bounds_them() {
    let (samples, types) = parse(&status().prometheus());
    assert_eq!(types["doorbell_latency_seconds"], "histogram");
    let consumed = r#"pair="DESC_POSTED→DESC_CONSUMED",bound="at_most""#;
    assert_eq!(samples[&format!("doorbell_latency_seconds_sum{{{consumed}}}")], 130e-9);
    let bucket = |le: &str| samples[&format!("doorbell_latency_seconds_bucket{{le=\"{le}\",{consumed}}}")];
    assert_eq!([bucket("1e-7"), bucket("2e-7"), bucket("+Inf")], [0.0, 1.0, 1.0]);
    assert_eq!(samples[r#"doorbell_latency_unpaired_total{pair="DESC_POSTED→COMPLETION_POLLED"}"#], 1.0);
    let of_a_pair = |sample: &&String| sample.starts_with("doorbell_latency_seconds_bucket{");
    assert_eq!(samples.keys().filter(of_a_pair).count(), Pair::ALL.len() * (BUCKET_BOUNDS.len() + 1));
}

#[test]
fn the_table_in_the_docs_is_the_table() {
    let rows: String = Counters::TABLE
        .iter()
        .map(|row| {
            let kind = if row.kind == Kind::Counter { "counter" } else { "gauge" };
            let by_stage = if row.by_stage { ", by stage" } else { "" };
            format!("| `{}` | {kind}{by_stage} | {} | {} |\n", row.name, row.writer, row.help)
        })
        .collect();
    let docs = include_str!("../../docs/metrics.md");
    assert!(docs.contains(&rows), "put this table into docs/metrics.md:\n{rows}");
}

#[test]
fn status_survives_json_and_older_and_newer_versions() {
    let status = status();
    let mut json = serde_json::to_value(&status).unwrap();
    assert_eq!(serde_json::from_value::<Status>(json.clone()).unwrap(), status);
    let counters = json["counters"].as_object_mut().unwrap();
    counters.remove("segments").unwrap();
    counters.insert("added_later".to_owned(), 1.into());
    let read: Status = serde_json::from_value(json).unwrap();
    assert_eq!(read.counters, CounterValues { segments: 0, ..status.counters });
}

#[test]
fn what_one_thread_counts_another_reads() {
    let metrics = Metrics::new("", Clock::simulated(), None);
    thread::scope(|scope| {
        scope.spawn(|| {
            let hot = &metrics.counters.hot;
            for k in 0..1000u64 {
                hot.segments.add(1);
                hot.tokens_generated.add(k);
                hot.decode_batch_peak.raise(k % 700);
                hot.credit_stalls[3].add(2);
                hot.stage_occupancy[2].set(k);
            }
            metrics.hot_time.busy.add(30);
            metrics.hot_time.idle.add(10);
        });
    });
    let Status { counters, threads, .. } = metrics.status();
    let expected = CounterValues {
        segments: 1000,
        tokens_generated: 499_500,
        decode_batch_peak: 699,
        credit_stalls: [0, 0, 0, 2000, 0, 0],
        stage_occupancy: [0, 0, 999, 0, 0, 0],
        ..CounterValues::default()
    };
    assert_eq!(counters, expected);
    assert_eq!(threads.iter().map(|time| time.idle_share()).collect::<Vec<_>>(), [Some(0.25)]);
}

/// A trace file on a disk that is full after `left` bytes.
struct Disk {
    left: usize,
}

impl Write for Disk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.left.checked_sub(bytes.len()) {
            Some(left) => self.left = left,
            None => return Err(io::ErrorKind::StorageFull.into()),
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[rstest]
#[case::no_trace(None, true)]
#[case::room(Some(usize::MAX), true)]
#[case::full_at_some_time(Some(100_000), false)]
fn the_collector_takes_in_everything(#[case] disk: Option<usize>, #[case] whole: bool) {
    const EVENTS: u32 = 20_000;
    let clock = Clock::new();
    let (collector, mut recorder) = Collector::new(clock.clone(), 4, 1 << 16);
    let metrics = Arc::new(Metrics::new("", clock.clone(), None));
    let trace = disk.map(|left| Perfetto::new(Disk { left }, clock.clone(), 4).expect("room for the head"));
    let thread = CollectorThread::start(collector, metrics.clone(), trace).unwrap();
    for k in 0..EVENTS {
        let kind = if k % 2 == 0 { EventKind::RewardPosted } else { EventKind::RewardScored };
        recorder.record(kind, RolloutId::new(k / 2 % 4, k / 8), k / 2, 0, clock.now());
    }
    let (report, written) = thread.finish();
    assert_eq!((report.recorded, report.dropped), (EVENTS.into(), 0));
    assert_eq!(written.is_ok(), whole, "{written:?}");
    assert_eq!(metrics.status().events, report);
    assert_eq!(metrics.status().counters.events_recorded, report.recorded);
}

/// What the server answers to these bytes: status line and body; nothing if it closes without an answer.
fn ask(server: &Server, request: &[u8]) -> Option<(String, String)> {
    let mut stream = TcpStream::connect(server.address()).unwrap();
    // It may close before it has read everything.
    let _ = stream.write_all(request);
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.lines().next()?.to_owned(), body.to_owned()))
}

fn get(server: &Server, path: &str) -> (String, String) {
    let accept = "application/openmetrics-text;version=1.0.0";
    ask(server, format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\n\r\n").as_bytes())
        .expect("an answer")
}

#[test]
fn the_server_shows_the_run() {
    let metrics = Arc::new(Metrics::new("a run", Clock::simulated(), None));
    let server = Server::start("127.0.0.1:0", metrics.clone()).unwrap();
    metrics.counters.hot.segments.add(5);
    let (head, body) = get(&server, "/metrics");
    assert_eq!(head, "HTTP/1.1 200 OK");
    assert_eq!(parse(&body).0["doorbell_segments_total"], 5.0);
    metrics.counters.hot.segments.add(1);
    metrics.end();
    let (head, body) = get(&server, "/status.json?pretty");
    assert_eq!(head, "HTTP/1.1 200 OK");
    let status: Status = serde_json::from_str(&body).unwrap();
    assert_eq!((status.counters.segments, status.ended), (6, true));
    assert_eq!(status, metrics.status());
}

#[rstest]
#[case::not_http(b"\x16\x03\x01\x02\x00\r\n\r\n".to_vec(), Some("400"))]
#[case::not_a_header(b"GET / HTTP/1.1\r\nno header\r\n\r\n".to_vec(), Some("400"))]
#[case::too_long([b"GET /".as_slice(), &[b'x'; 1 << 20]].concat(), Some("431"))]
#[case::too_many_headers([b"GET / HTTP/1.1\r\n".as_slice(), &b"a: b\r\n".repeat(100), b"\r\n"].concat(), Some("431"))]
#[case::another_method(b"POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc".to_vec(), Some("405"))]
#[case::another_path(b"GET /etc/passwd HTTP/1.1\r\n\r\n".to_vec(), Some("404"))]
#[case::half_a_request(b"GET /metrics HT".to_vec(), Some("408"))]
#[case::nothing(vec![], Some("408"))]
#[case::two_at_once(b"GET /metrics HTTP/1.1\r\n\r\nPOST / HTTP/1.1\r\n\r\n".to_vec(), Some("200"))]
#[case::of_a_proxy(b"GET http://host:1/metrics?x HTTP/1.1\r\n\r\n".to_vec(), Some("200"))]
#[case::http_2(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), Some("400"))]
fn a_bad_request_does_not_hurt_the_next(#[case] request: Vec<u8>, #[case] code: Option<&str>) {
    let metrics = Arc::new(Metrics::new("", Clock::simulated(), None));
    let server = Server::start("127.0.0.1:0", metrics).unwrap();
    // One that went away, one that does not, and one that waits for its answer: the last is closed after a while.
    let gone = TcpStream::connect(server.address()).and_then(|mut stream| {
        stream.write_all(&request)?;
        stream.shutdown(Shutdown::Both)
    });
    drop(gone);
    let answer = ask(&server, &request);
    match (&answer, code) {
        (Some((head, _)), Some(code)) => assert!(head.starts_with(&format!("HTTP/1.1 {code} ")), "{head}"),
        // The kernel may have thrown the answer away with the input that nobody read.
        (None, Some("431") | None) => {}
        _ => panic!("{answer:?}"),
    }
    assert_eq!(get(&server, "/metrics").0, "HTTP/1.1 200 OK");
}

/// Head and body of the answer, whose length the head must tell.
fn answer(server: &Server, request: &str) -> (String, String) {
    let mut stream = TcpStream::connect(server.address()).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    (head.to_owned(), body.to_owned())
}

#[test]
fn accept_decides_the_format() {
    let server = Server::start("127.0.0.1:0", Arc::new(Metrics::new("", Clock::simulated(), None))).unwrap();
    for (accept, kind, end) in [
        (
            "Accept: application/openmetrics-text;version=1.0.0,*/*;q=0.1\r\n",
            "application/openmetrics-text; version=1.0.0",
            true,
        ),
        (
            "ACCEPT: text/plain\r\naccept: application/openmetrics-text;q=0.5\r\n",
            "text/plain; version=0.0.4",
            false,
        ),
        ("", "text/plain; version=0.0.4", false),
    ] {
        let (head, body) = answer(&server, &format!("GET /metrics HTTP/1.1\r\n{accept}\r\n"));
        assert!(head.contains(&format!("Content-Type: {kind}; charset=utf-8\r\n")), "{head}");
        assert_eq!(body.ends_with("# EOF\n"), end, "{accept}");
    }
}

#[test]
fn plain_text_has_the_same_samples_and_names_counters_by_their_samples() {
    let status = status();
    let plain = status.prometheus_plain();
    let samples = |text: &str| {
        text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(samples(&plain), samples(&status.prometheus()));
    let mut types = BTreeMap::new();
    for line in plain.lines().filter_map(|line| line.strip_prefix("# ")) {
        let words: Vec<&str> = line.splitn(3, ' ').collect();
        assert!(["HELP", "TYPE"].contains(&words[0]), "{line}");
        if words[0] == "TYPE" {
            types.insert(words[1].to_owned(), words[2].to_owned());
        }
    }
    for sample in samples(&plain) {
        let name = sample.split(['{', ' ']).next().unwrap();
        let of_histogram = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix));
        let found = types.get(name).or_else(|| types.get(of_histogram?)).unwrap_or_else(|| panic!("{name}"));
        assert_eq!(name.ends_with("_total"), found == "counter", "{name}");
    }
    let help = "# HELP doorbell_segments_total DECODE descriptors that completed\n# TYPE doorbell_segments_total counter\n";
    assert!(plain.contains(help), "{plain}");
}

#[test]
fn head_is_get_without_the_body() {
    let server = Server::start("127.0.0.1:0", Arc::new(Metrics::new("", Clock::simulated(), None))).unwrap();
    for path in ["/metrics", "/status.json", "/elsewhere"] {
        let (head, body) = answer(&server, &format!("HEAD {path} HTTP/1.1\r\n\r\n"));
        assert!(body.is_empty(), "{body}");
        let status = if path == "/elsewhere" { "404" } else { "200" };
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
        let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).unwrap();
        assert!(length.parse::<usize>().unwrap() > 10, "{head}");
    }
    let (head, _) = answer(&server, "DELETE /metrics HTTP/1.1\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 405 ") && head.contains("Allow: GET, HEAD\r\n"), "{head}");
}

/// Clients that connect and send nothing, or little, or read nothing, cost nobody else time; and they are let go.
#[rstest]
#[case::idle(b"", 40)]
#[case::slow(b"GET /met", 40)]
#[case::more_than_there_is_room_for(b"", 300)]
#[case::that_read_nothing(b"GET /metrics HTTP/1.1\r\n\r\n", 40)]
fn other_clients_do_not_delay_a_scrape(#[case] sent: &[u8], #[case] count: usize) {
    let metrics = Arc::new(Metrics::new("", Clock::simulated(), None));
    let server = Server::start("127.0.0.1:0", metrics.clone()).unwrap();
    let mut others: Vec<TcpStream> = (0..count)
        .map(|_| {
            let mut stream = TcpStream::connect(server.address()).unwrap();
            // At the bound, the server may have ended it.
            let _ = stream.write_all(sent);
            stream
        })
        .collect();
    let began = Instant::now();
    for _ in 0..3 {
        assert_eq!(get(&server, "/metrics").0, "HTTP/1.1 200 OK");
    }
    // All of them together, on a machine that does other things too; it took a second for each of the others.
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    // Each is ended within its time: nothing is left to read.
    let mut rest = vec![];
    let _ = others.pop().unwrap().read_to_end(&mut rest);
    let began = Instant::now();
    drop(server);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert_eq!(Arc::strong_count(&metrics), 1, "all threads are gone");
}

#[rstest]
#[case("nowhere")]
#[case("127.0.0.1:99999")]
#[case("192.0.2.1:80")]
fn an_address_that_cannot_be_is_an_error(#[case] address: &str) {
    let error = Server::start(address, Arc::new(Metrics::new("", Clock::simulated(), None))).unwrap_err();
    assert!(error.to_string().contains(address) && error.to_string().contains("another address"), "{error}");
}

#[test]
fn a_server_that_is_dropped_gives_its_port_back() {
    let metrics = Arc::new(Metrics::new("", Clock::simulated(), None));
    let server = Server::start("0.0.0.0:0", metrics.clone()).unwrap();
    let address = server.address().to_string();
    drop(server);
    assert_eq!(Arc::strong_count(&metrics), 1, "its thread is gone");
    Server::start(&address, metrics).unwrap();
}
