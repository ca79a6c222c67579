//! Pause, abort, update and resume under load.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use doorbell_lm::sample::Truncation;
use rstest::rstest;
use serde_json::{Value, json};

use crate::running::{Running, TURNS, sampling};

/// Updates under load, by default 60 of each mode by 8 clients, or `DOORBELL_UPDATES`, by 32.
fn updates() -> u64 {
    std::env::var("DOORBELL_UPDATES").ok().and_then(|text| text.parse().ok()).unwrap_or(60)
}

/// Weights are updated while clients ask: each token is the oracle's for the version that its span names, none is lost and none comes twice.
#[rstest]
fn each_token_is_of_the_version_that_its_span_names(#[values("keep", "abort")] mode: &str) {
    let server = Running::start();
    let over = AtomicBool::new(false);
    // Answers that several versions made, and those of which others made the prompt's keys and values.
    let [asked, spanned, crossed, aborted] = [const { AtomicU64::new(0) }; 4];
    let client = |number: u64| {
        let (server, over, asked, spanned, crossed, aborted) =
            (&server, &over, &asked, &spanned, &crossed, &aborted);
        move || {
            while !over.load(Ordering::Relaxed) {
                let seed = asked.fetch_add(1, Ordering::Relaxed);
                let prompt: Vec<u32> =
                    (0..1 + seed % 20).map(|place| ((seed * 5 + place) % 60) as u32).collect();
                let n = 1 + (number % 3) as u32;
                let told = server.ok(
                    "/inference/v1/generate",
                    &json!({ "token_ids": prompt, "sampling_params": {
                        "n": n, "seed": seed, "logprobs": 1, "max_tokens": 40, "ignore_eos": seed % 2 == 0,
                        "stop_token_ids": if seed % 4 == 3 { vec![5] } else { vec![] },
                    } }),
                );
                let choices = told["choices"].as_array().unwrap();
                assert_eq!(choices.len(), n as usize);
                for (member, choice) in (0..).zip(choices) {
                    let sampling = sampling(seed, member, 1.0, Truncation::NONE);
                    server
                        .check(&prompt, choice, sampling)
                        .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
                    spanned.fetch_add(
                        u64::from(choice["weight_versions"].as_array().unwrap().len() > 1),
                        Ordering::Relaxed,
                    );
                    let first = |key: &str| choice[key][0]["version"].as_str();
                    let of = first("prompt_weight_versions").zip(first("weight_versions"));
                    crossed.fetch_add(u64::from(of.is_some_and(|(a, b)| a != b)), Ordering::Relaxed);
                    match choice["finish_reason"].as_str().unwrap() {
                        "length" => assert_eq!(choice["token_ids"].as_array().unwrap().len(), 40),
                        "abort" => _ = aborted.fetch_add(1, Ordering::Relaxed),
                        _ => {}
                    }
                }
            }
        }
    };
    std::thread::scope(|scope| {
        let clients = if updates() > 60 { 32 } else { 8 };
        (0..clients).for_each(|number| drop(scope.spawn(client(number))));
        for update in 1..=updates() {
            let turn = update as usize % TURNS;
            let body = json!({ "model_path": format!("turn-{turn}"), "weight_version": format!("{turn}.{update}"), "mode": mode });
            let told = server.ok("/update_weights_from_disk", &body);
            assert_eq!(told["success"], true);
            assert_eq!(server.get("/get_weight_version")["weight_version"], format!("{turn}.{update}"));
            std::thread::sleep(Duration::from_micros(500 * (update % 7)));
        }
        over.store(true, Ordering::Relaxed);
    });
    assert_eq!(server.server.engine.metrics().counters.values().publishes, 1 + updates());
    match mode {
        "keep" => {
            assert!(spanned.load(Ordering::Relaxed) > 0 && aborted.load(Ordering::Relaxed) == 0);
            // Of 60 updates some come between a prompt and its answer, but none has to.
            assert!(crossed.load(Ordering::Relaxed) > 0 || updates() <= 60);
        }
        _ => assert!(aborted.load(Ordering::Relaxed) > 0),
    }
    server.is_empty_soon();
}

/// Between a pause with `keep` and the next resume no token is made; then answers go on, and are what they would have been without.
#[test]
fn a_pause_that_keeps_changes_no_token() {
    let server = Running::start();
    let ask = |seed: u64| json!({ "token_ids": [seed % 60], "sampling_params": { "n": 2, "seed": seed, "max_tokens": 60, "logprobs": 1, "ignore_eos": true } });
    let pauses = AtomicU64::new(0);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for number in 0..6u64 {
            let (server, over, ask) = (&server, &over, &ask);
            scope.spawn(move || {
                let mut seed = number * 1000;
                while !over.load(Ordering::Relaxed) {
                    seed += 1;
                    let told = server.ok("/inference/v1/generate", &ask(seed));
                    for (member, choice) in (0..).zip(told["choices"].as_array().unwrap()) {
                        assert_eq!(
                            choice["weight_versions"],
                            json!([{ "version": "0", "start": 0, "end": 60 }])
                        );
                        server
                            .check(
                                &[(seed % 60) as u32],
                                choice,
                                sampling(seed, member, 1.0, Truncation::NONE),
                            )
                            .unwrap();
                    }
                }
            });
        }
        for _ in 0..20 {
            assert_eq!(server.ok("/pause?mode=keep", &json!({}))["status"], "paused");
            assert_eq!(server.get("/is_paused")["is_paused"], true);
            let tokens = || server.server.engine.metrics().counters.values().tokens_generated;
            let before = tokens();
            std::thread::sleep(Duration::from_millis(3));
            assert_eq!(tokens(), before, "a token was made in a pause");
            pauses.fetch_add(1, Ordering::Relaxed);
            server.ok("/resume", &json!({}));
            std::thread::sleep(Duration::from_millis(2));
        }
        over.store(true, Ordering::Relaxed);
    });
    assert_eq!(server.get("/is_paused")["is_paused"], false);
    server.is_empty_soon();
}

/// `abort` answers what runs with what it has, and `wait` lets it end; in both nothing lives once the pause is told, and what is asked meanwhile is
/// answered after the resume.
#[rstest]
fn a_pause_leaves_nothing_running(#[values("abort", "wait", "keep")] mode: &str) {
    let server = Running::start();
    for round in 0..10u64 {
        std::thread::scope(|scope| {
            let body = json!({ "prompt": [1, 2, 3], "n": 4, "seed": round, "max_tokens": 60, "ignore_eos": true, "return_token_ids": true });
            let reference = server.ok("/v1/completions", &body)["choices"].clone();
            let (of, asks) = (&server, body.clone());
            let running = scope.spawn(move || of.ok("/v1/completions", &asks)["choices"].clone());
            std::thread::sleep(Duration::from_micros(300 * round));
            server.ok(&format!("/pause?mode={mode}"), &json!({}));
            if mode != "keep" {
                let running = server.get("/v1/loads")["num_running_reqs"].clone();
                assert_eq!(running, 0, "round {round}");
            }
            let (of, asks) = (&server, body.clone());
            let late = scope.spawn(move || of.ok("/v1/completions", &asks)["choices"].clone());
            std::thread::sleep(Duration::from_millis(2));
            assert!(!late.is_finished(), "an answer in a pause");
            server.ok("/resume", &json!({}));
            assert_eq!(late.join().unwrap(), reference);
            let told = running.join().unwrap();
            for member in 0..4 {
                let (has, all) = (&told[member], &reference[member]);
                let count = has["token_ids"].as_array().unwrap().len();
                assert_eq!(
                    has["token_ids"].as_array().unwrap()[..],
                    all["token_ids"].as_array().unwrap()[..count]
                );
                if mode != "abort" {
                    assert_eq!(has, all, "round {round}");
                } else if count < 60 {
                    assert_eq!(has["finish_reason"], "abort");
                }
            }
        });
    }
    server.is_empty_soon();
}

/// A client that hangs up ends its rollouts and gives back their blocks; one that is named ends by its name, and the others go on.
#[test]
fn who_hangs_up_or_is_aborted_holds_nothing() {
    let server = Running::start();
    for round in 0..20u64 {
        let mut stream = std::net::TcpStream::connect(server.address).unwrap();
        let body = json!({ "prompt": [round], "n": 8, "max_tokens": 60, "ignore_eos": true, "stream": round % 2 == 0 }).to_string();
        let head = format!(
            "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        std::io::Write::write_all(&mut stream, head.as_bytes()).unwrap();
        std::thread::sleep(Duration::from_micros(200 * round));
        drop(stream);
    }
    server.is_empty_soon();

    server.ok("/pause?mode=keep", &json!({}));
    std::thread::scope(|scope| {
        let ask = |name: &str| {
            let body = json!({ "token_ids": [4], "request_id": name, "sampling_params": { "max_tokens": 20, "seed": 1 } });
            let server = &server;
            move || server.ok("/inference/v1/generate", &body)["choices"][0]["finish_reason"].clone()
        };
        let (one, other) = (scope.spawn(ask("one")), scope.spawn(ask("other")));
        let since = Instant::now();
        while server.server.engine.load().live < 2 {
            assert!(since.elapsed() < Duration::from_secs(10));
        }
        server.ok("/abort_requests", &json!({ "request_ids": ["one", "nobody"] }));
        assert_eq!(one.join().unwrap(), "abort");
        server.ok("/resume", &json!({}));
        assert_ne!(other.join().unwrap(), "abort");
    });
    server.is_empty_soon();
}

/// What a trainer left that is wrong is refused whole, and the version before serves on. So is a third version while rollouts decode under the first.
#[test]
fn an_update_that_cannot_be_is_refused_and_changes_nothing() {
    let server = Running::start();
    let ask = json!({ "prompt": [9], "seed": 5, "max_tokens": 30, "return_token_ids": true });
    let before = server.ok("/v1/completions", &ask)["choices"][0].clone();
    for body in
        [json!({}), json!({ "model_path": "nothing" }), json!({ "model_path": "turn-1", "mode": "soon" })]
    {
        let (status, told) = server.post("/update_weights_from_disk", &body);
        assert_eq!(status, 400, "{told}");
        assert!(told["error"]["message"].is_string());
    }
    assert_eq!(server.ok("/v1/completions", &ask)["choices"][0], before);
    assert_eq!(server.get("/get_weight_version")["weight_version"], "0");

    // Rollouts that wait at the gate decode under their version for as long as that takes.
    std::thread::scope(|scope| {
        let (of, long) = (
            &server,
            json!({ "prompt": [9], "seed": 5, "max_tokens": 60, "ignore_eos": true, "stream": true }),
        );
        let mut ended = vec![];
        let mut third: Option<(u16, Value)> = None;
        for round in 0..50 {
            ended.push(scope.spawn({
                let long = long.clone();
                move || of.streamed("/v1/completions", &long).len()
            }));
            let body = |turn: usize| json!({ "model_path": format!("turn-{turn}"), "weight_version": format!("{turn}.{round}"), "mode": "wait" });
            for turn in 1..4 {
                let (status, told) = server.post("/update_weights_from_disk", &body(turn));
                match status {
                    200 => {}
                    _ => third = Some((status, told)),
                }
            }
        }
        if let Some((status, told)) = third {
            assert_eq!(status, 409, "{told}");
            assert!(told["error"]["message"].as_str().unwrap().contains("R19"), "{told}");
        }
        ended.into_iter().for_each(|ended| assert!(ended.join().unwrap() > 1));
    });
    server.is_empty_soon();
}

/// A pause aborts what waits for room too, the request that would be next among it.
#[test]
fn a_pause_aborts_what_waits_for_room() {
    let server = Running::start();
    let ask = |seed: u64| {
        let server = &server;
        move || {
            let sampling = json!({ "seed": seed, "max_tokens": 64, "ignore_eos": true, "n": 4 });
            server.ok("/inference/v1/generate", &json!({ "token_ids": [1, 2], "sampling_params": sampling }))
        }
    };
    for _ in 0..20 {
        std::thread::scope(|scope| {
            let asked: Vec<_> = (0..24).map(|seed| scope.spawn(ask(seed))).collect();
            std::thread::sleep(Duration::from_millis(2));
            server.ok("/pause?mode=abort", &json!({}));
            server.ok("/resume", &json!({}));
            for answer in asked {
                answer.join().unwrap();
            }
        });
    }
    server.is_empty_soon();
}

/// SGLang's clients call a seed `sampling_seed`.
#[test]
fn sampling_seed_is_a_seed() {
    let server = Running::start();
    let draw = |name: &str| {
        let body = json!({ "input_ids": [1, 2, 3], "sampling_params": { name: 7, "max_new_tokens": 32, "ignore_eos": true } });
        server.ok("/generate", &body)["output_ids"].clone()
    };
    assert_eq!(draw("seed"), draw("sampling_seed"));
}
