//! Requests that are wrong, slow or hostile.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use rstest::rstest;
use serde_json::{Value, json};

use crate::running::{Running, limits, send, size};

#[rstest]
#[case("/v1/completions", json!({}), 400, "missing field `prompt`")]
#[case("/v1/completions", json!({ "prompt": { "a": 1 } }), 400, "Prompt")]
#[case("/v1/completions", json!({ "prompt": [], "max_tokens": 3 }), 400, "prompt")]
#[case("/v1/completions", json!({ "prompt": [[1], []] }), 400, "no tokens")]
#[case("/v1/completions", json!({ "prompt": [1], "temperature": -1 }), 400, "temperature is -1")]
#[case("/v1/completions", json!({ "prompt": [1], "temperature": "hot" }), 400, "expected f64")]
#[case("/v1/completions", json!({ "prompt": [1], "top_p": 0.0 }), 400, "top_p is 0")]
#[case("/v1/completions", json!({ "prompt": [1], "top_p": 1.5 }), 400, "top_p is 1.5")]
#[case("/v1/completions", json!({ "prompt": [1], "min_p": -0.1 }), 400, "min_p is -0.1")]
#[case("/v1/completions", json!({ "prompt": [1], "top_k": -2 }), 400, "top_k is -2")]
#[case("/v1/completions", json!({ "prompt": [1], "n": 0 }), 400, "n is 0")]
#[case("/v1/completions", json!({ "prompt": [1], "n": 9 }), 400, "n is 9; it must be 1 to 8")]
#[case("/v1/completions", json!({ "prompt": [1], "max_tokens": 0 }), 400, "max_tokens is 0")]
#[case("/v1/completions", json!({ "prompt": [1], "max_tokens": 65 }), 400, "max_tokens is 65; it must be 1 to 64")]
#[case("/v1/completions", json!({ "prompt": [1], "max_tokens": 4294967295u32 }), 400, "positions")]
#[case("/v1/completions", json!({ "prompt": [1], "stop": "" }), 400, "stop has an empty text")]
#[case("/v1/completions", json!({ "prompt": [1], "stop_token_ids": [1 << 20] }), 400, "is no token")]
#[case("/v1/completions", json!({ "prompt": [1 << 20] }), 400, "is no token")]
#[case("/v1/completions", json!({ "prompt": vec![1; 33] }), 400, "there is room for 32")]
#[case("/v1/completions", json!({ "prompt": [1], "logprobs": 5 }), 400, "logprobs must be 0 or 1")]
#[case("/v1/completions", json!({ "prompt": [1], "presence_penalty": 0.5 }), 400, "presence_penalty is 0.5; only 0 can be had")]
#[case("/v1/completions", json!({ "prompt": [1], "echo": true, "stream": true }), 400, "leave out stream")]
#[case("/v1/completions", json!({ "prompt": [1], "prompt_logprobs": 5 }), 400, "prompt_logprobs is 5")]
#[case("/v1/completions", json!({ "prompt": [1], "logit_bias": { "3": 1 } }), 400, "logit_bias cannot be had")]
#[case("/v1/completions", json!({ "prompt": [1], "model": "other" }), 404, "micro is")]
#[case("/v1/chat/completions", json!({ "messages": [] }), 400, "there are no messages")]
#[case("/v1/chat/completions", json!({ "messages": [{ "role": "user", "content": [{ "image": 1 }] }] }), 400, "is no text")]
#[case("/generate", json!({}), 400, "give either input_ids or text")]
#[case("/generate", json!({ "input_ids": [[1], [2]], "sampling_params": [{}] }), 400, "fewer of these than prompts")]
#[case("/inference/v1/generate", json!({ "token_ids": [] }), 400, "no tokens")]
#[case("/pause?mode=soon", json!({}), 400, "mode is soon")]
#[case("/abort_request", json!({}), 400, "give rid, or abort_all")]
#[case("/nowhere", json!({}), 404, "there is no door /nowhere")]
#[case("/health", json!({}), 405, "another method")]
fn what_is_wrong_is_said(
    #[case] door: &str,
    #[case] body: Value,
    #[case] status: u16,
    #[case] expected: &str,
) {
    let server = Running::start();
    let (code, told) = server.post(door, &body);
    let message = told["error"]["message"].as_str().unwrap_or_else(|| panic!("{door}: {told}"));
    assert_eq!((code, &told["error"]["code"]), (status, &json!(status)), "{message}");
    assert!(message.contains(expected), "{message}");
    // It serves on.
    server.ok(
        "/v1/completions",
        &json!({ "prompt": [1], "max_tokens": 2, "presence_penalty": 0, "logit_bias": null, "best_of": 1 }),
    );
    server.is_empty_soon();
}

#[test]
fn who_has_no_key_gets_nothing() {
    let server = Running::with(size(), limits(), Some("secret"));
    let body = json!({ "prompt": [1], "max_tokens": 2 });
    let url = server.url("/v1/completions");
    for key in [None, Some("secreT"), Some(""), Some("secret2")] {
        let (status, told) = send(&url, &body, key);
        assert_eq!((status, told["error"]["type"].as_str()), (401, Some("authentication_error")));
    }
    assert_eq!(send(&url, &body, Some("secret")).0, 200);
    assert_eq!(server.get("/health"), json!({}));
}

/// What waits for room is bounded, and what comes beyond is told to come again.
#[test]
fn too_many_requests_are_told_to_come_again() {
    let server = Running::with(doorbell_serve::engine::Size { waiting: 2, ..size() }, limits(), None);
    server.ok("/pause?mode=wait", &json!({}));
    std::thread::scope(|scope| {
        let (of, body) = (&server, json!({ "prompt": [1], "max_tokens": 2 }));
        let waiting: Vec<_> = (0..3)
            .map(|_| {
                let body = body.clone();
                scope.spawn(move || of.post("/v1/completions", &body).0)
            })
            .collect();
        let since = std::time::Instant::now();
        while of.server.engine.load().waiting < 2 || !waiting.iter().any(|one| one.is_finished()) {
            assert!(since.elapsed() < Duration::from_secs(10));
        }
        server.ok("/resume", &json!({}));
        let mut codes: Vec<u16> = waiting.into_iter().map(|one| one.join().unwrap()).collect();
        codes.sort_unstable();
        assert_eq!(codes, [200, 200, 429]);
    });
    server.is_empty_soon();
}

/// Raw bytes to the server, and what it answers until it hangs up.
fn raw(server: &Running, bytes: &[u8], wait: Duration) -> String {
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    // It may hang up before all is sent.
    let _ = stream.write_all(bytes);
    std::thread::sleep(wait);
    let mut told = vec![];
    let _ = stream.read_to_end(&mut told);
    String::from_utf8_lossy(&told).into_owned()
}

/// Half requests, slow ones, long ones and nonsense end with an error or a hang-up within the limits, and others are answered rightly meanwhile.
#[test]
fn hostile_clients_disturb_nobody() {
    let server = Running::start();
    let reference = json!({ "prompt": [2, 3], "seed": 8, "max_tokens": 30, "return_token_ids": true });
    let expected = server.ok("/v1/completions", &reference)["choices"].clone();
    let head = |length: usize| {
        format!(
            "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n"
        )
    };
    let huge = format!("{}{}", head(100 << 20), "x".repeat(1 << 17));
    let deep = format!("{}1{}", "[".repeat(20_000), "]".repeat(20_000));
    let deep = format!("{{\"prompt\":{deep}}}");
    let chunked =
        "POST /generate HTTP/1.1\r\nhost: x\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n";
    let attacks: Vec<(String, &[&str])> = vec![
        ("GET".into(), &[""]),
        (head(50), &["408"]),
        (format!("{}{{\"prompt\"", head(50)), &["408"]),
        (huge, &["413"]),
        (
            format!(
                "{}{}",
                chunked,
                "10000\r\n".to_owned() + &"y".repeat(1 << 16) + "\r\n10000\r\n" + &"y".repeat(1 << 16)
            ),
            &["413", "400"],
        ),
        (format!("{}{deep}", head(deep.len())), &["400"]),
        (format!("{}\u{0}\u{1}\u{2}", head(3)), &["400"]),
        (format!("{}[1,2]", head(5)), &["400"]),
        ("NONSENSE / HTTP/9\r\n\r\n".into(), &["400", ""]),
        (format!("GET /{} HTTP/1.1\r\nhost: x\r\n\r\n", "a".repeat(1 << 20)), &["414", "431", "400", ""]),
    ];
    std::thread::scope(|scope| {
        let server = &server;
        for (attack, codes) in &attacks {
            for _ in 0..3 {
                scope.spawn(move || {
                    let told = raw(server, attack.as_bytes(), Duration::ZERO);
                    let code = told.split(' ').nth(1).unwrap_or("");
                    assert!(codes.contains(&code), "{:.60}: {told}", attack);
                });
            }
        }
        for _ in 0..4 {
            let (reference, expected) = (reference.clone(), expected.clone());
            scope.spawn(move || {
                for _ in 0..20 {
                    assert_eq!(server.ok("/v1/completions", &reference)["choices"], expected);
                }
            });
        }
    });
    server.is_empty_soon();
}
