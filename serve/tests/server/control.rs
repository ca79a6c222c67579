//! Pause, abort, update and resume under load.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use doorbell_lm::sample::Truncation;
use doorbell_serve::engine::Size;
use rstest::rstest;
use serde_json::{Value, json};

use crate::running::{Running, TURNS, begin, limits, noted, sampling, size};

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

/// Asks that decode for some time, whose answers nobody reads.
fn load(server: &Running) -> Vec<TcpStream> {
    let body = json!({ "prompt": [1], "n": 8, "max_tokens": 64, "ignore_eos": true });
    (0..16).map(|_| begin(server, "/v1/completions", &body, "")).collect()
}

/// Waits until `is` holds.
fn soon(what: &str, mut is: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is() {
        assert!(since.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// A client that hangs up during a pause leaves a server that is paused and says so, or runs and says so; what is asked of it next is done.
#[rstest]
fn a_pause_whose_client_hangs_up_is_whole(#[values("abort", "wait", "keep")] mode: &str) {
    let server = Running::start();
    let is_paused = || server.get("/is_paused")["is_paused"] == true;
    let mut paused = 0;
    for round in 0..24u64 {
        let asked = load(&server);
        let pause = begin(&server, &format!("/pause?mode={mode}"), &json!({}), "");
        std::thread::sleep(Duration::from_micros(150 * (round % 12)));
        drop(pause);
        // If the server sees the end together with the request, it does not take that.
        let since = Instant::now();
        while !is_paused() && since.elapsed() < Duration::from_millis(200) {}
        if is_paused() {
            paused += 1;
            let tokens = || server.server.engine.metrics().counters.values().tokens_generated;
            if mode == "keep" {
                let before = tokens();
                std::thread::sleep(Duration::from_millis(2));
                assert_eq!(tokens(), before, "a token was made in a pause");
            }
        }
        if round % 2 == 0 {
            server.ok("/pause?mode=wait", &json!({}));
            assert!(is_paused());
        }
        server.ok("/resume", &json!({}));
        drop(asked);
        std::thread::scope(|scope| {
            let next =
                scope.spawn(|| server.ok("/v1/completions", &json!({ "prompt": [2], "max_tokens": 2 })));
            soon("it goes on", || {
                server.ok("/resume", &json!({}));
                next.is_finished()
            });
        });
    }
    assert!(paused > 0);
    server.ok("/resume", &json!({}));
    server.is_empty_soon();
}

/// While a pause waits for what runs, others are answered; who resumes before its end is obeyed, and whoever paused hears of it.
#[test]
fn a_pause_that_waits_holds_up_nobody() {
    let server = Running::start();
    let mut overtaken = 0;
    for _ in 0..20 {
        let asked = load(&server);
        soon("they are taken", || server.server.engine.load().live > 8);
        std::thread::scope(|scope| {
            let pause = scope.spawn(|| server.post("/pause?mode=wait", &json!({})));
            soon("it says that it is paused", || server.get("/is_paused")["is_paused"] == true);
            server.get("/health_generate");
            server.ok("/resume", &json!({}));
            let (status, told) = pause.join().unwrap();
            overtaken += u64::from(status == 409);
            assert!(status == 200 || told.to_string().contains("was resumed"), "{told}");
        });
        assert_eq!(server.get("/is_paused")["is_paused"], false);
        drop(asked);
    }
    assert!(overtaken > 0);
    server.is_empty_soon();
}

/// A pause with `keep` behind an update with `wait` comes to rest too, while rollouts still decode under the version before; then these go on under it.
#[test]
fn a_pause_that_keeps_needs_no_free_version() {
    // Long answers: they are not whole by the time of the second pause.
    let server = Running::with(Size { answer_tokens: 400, ..size() }, limits(), None);
    let body = json!({ "token_ids": [3], "sampling_params": { "n": 2, "seed": 5, "max_tokens": 400, "ignore_eos": true, "logprobs": 1 } });
    let mut between = 0;
    for round in 1..=6u64 {
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| server.ok("/inference/v1/generate", &body));
            soon("it runs", || server.server.engine.load().live > 0 || asked.is_finished());
            server.ok("/pause?mode=keep", &json!({}));
            let update = json!({ "model_path": format!("turn-{}", round % 4), "weight_version": format!("{}.{round}", round % 4), "mode": "wait" });
            server.ok("/update_weights", &update);
            server.ok("/resume", &json!({}));
            server.ok("/pause?mode=keep", &json!({}));
            assert_eq!(server.get("/is_paused")["is_paused"], true);
            let tokens = || server.server.engine.metrics().counters.values().tokens_generated;
            let before = tokens();
            std::thread::sleep(Duration::from_millis(2));
            assert_eq!(tokens(), before, "a token was made in a pause");
            between += server.server.engine.load().live;
            server.ok("/resume", &json!({}));
            let told = asked.join().unwrap();
            for (member, choice) in (0..).zip(told["choices"].as_array().unwrap()) {
                server.check(&[3], choice, sampling(5, member, 1.0, Truncation::NONE)).unwrap();
            }
        });
    }
    assert!(between > 0, "no rollout was left under the version before");
    server.is_empty_soon();
}

/// A client that hangs up during an update leaves the name and the weights of one version, and updates without a name each have a name of their own.
#[test]
fn an_update_whose_client_hangs_up_is_whole() {
    let server = Running::start();
    let mut updated = 0;
    for round in 0..24u64 {
        let asked = load(&server);
        let before = server.get("/weight_info")["version"].clone();
        let body = json!({ "model_path": format!("turn-{}", (round + 1) % 4) });
        let update = begin(&server, "/update_weights", &body, "");
        std::thread::sleep(Duration::from_micros(100 * (round % 12)));
        drop(update);
        // If the server sees the end together with the request, it does not take that.
        let now = || server.get("/weight_info")["version"].clone();
        let since = Instant::now();
        while now() == before && since.elapsed() < Duration::from_millis(200) {}
        let after = now();
        updated += u64::from(after != before);
        let told =
            server.ok("/generate", &json!({ "input_ids": [1], "sampling_params": { "max_new_tokens": 1 } }));
        // Unless the update came in between.
        assert!(told["meta_info"]["weight_version"] == after || now() != after, "{after}: {told}");
        drop(asked);
    }
    assert!(updated > 0);
    std::thread::scope(|scope| {
        let update =
            || server.ok("/update_weights", &json!({ "model_path": "turn-1" }))["weight_version"].clone();
        let updates: Vec<_> = (0..6).map(|_| scope.spawn(update)).collect();
        let mut names: Vec<String> = updates.into_iter().map(|one| one.join().unwrap().to_string()).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 6, "{names:?}");
    });
    server.is_empty_soon();
}

/// A name stands for all requests that have it, for each of a list its own prompt, and the server's id for its request.
#[test]
fn an_abort_by_name_finds_all_that_have_it() {
    let server = Running::start();
    let live = |count: usize| soon("so many live", || server.server.engine.load().live == count);
    server.ok("/pause?mode=keep", &json!({}));
    let body = json!({ "prompt": [1], "max_tokens": 4, "request_id": "same" });
    let one = begin(&server, "/v1/completions", &body, "");
    live(1);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| server.ok("/v1/completions", &body));
        live(2);
        drop(one);
        live(1);
        server.ok("/abort_requests", &json!({ "request_ids": ["same"] }));
        assert_eq!(server.server.engine.load().live, 0);
        assert_eq!(other.join().unwrap()["choices"][0]["finish_reason"], "abort");
    });
    std::thread::scope(|scope| {
        let body = json!({ "input_ids": [[1], [2], [3]], "rid": ["r1", "r2", "r3"], "sampling_params": { "max_new_tokens": 4 } });
        let of = &server;
        let asked = scope.spawn(move || of.ok("/generate", &body));
        live(3);
        server.ok("/abort_request", &json!({ "rid": "r2" }));
        assert_eq!(server.server.engine.load().live, 2);
        server.ok("/resume", &json!({}));
        let told = asked.join().unwrap();
        let of = |key: &str| [0, 1, 2].map(|place| told[place]["meta_info"][key].clone());
        assert_eq!(of("id"), ["r1", "r2", "r3"]);
        let aborted =
            told.as_array().unwrap().iter().map(|one| one["meta_info"]["finish_reason"]["type"] == "abort");
        assert_eq!(aborted.collect::<Vec<_>>(), [false, true, false]);
    });
    // The server's own ids, as the first line of an answer has them. Some answers end before they can be held.
    for (endpoint, body) in [
        (
            "/v1/completions",
            json!({ "prompt": [1], "n": 8, "max_tokens": 64, "ignore_eos": true, "stream": true }),
        ),
        (
            "/inference/v1/generate",
            json!({ "token_ids": [1], "stream": true, "sampling_params": { "n": 8, "max_tokens": 64, "ignore_eos": true } }),
        ),
        (
            "/generate",
            json!({ "input_ids": [1], "stream": true, "sampling_params": { "n": 8, "max_new_tokens": 64, "ignore_eos": true } }),
        ),
    ] {
        let mut found = false;
        for _ in 0..50 {
            let mut asked = BufReader::new(begin(&server, endpoint, &body, ""));
            let mut line = String::new();
            while !line.contains("data: ") {
                line.clear();
                assert!(asked.read_line(&mut line).unwrap() > 0);
            }
            server.ok("/pause?mode=keep", &json!({}));
            let told: Value = serde_json::from_str(line.trim().strip_prefix("data: ").unwrap()).unwrap();
            let id = [&told["id"], &told["request_id"], &told["meta_info"]["id"]]
                .into_iter()
                .find_map(Value::as_str);
            if server.server.engine.load().live == 1 {
                server.ok("/abort_requests", &json!({ "request_ids": [id.unwrap()] }));
                assert_eq!(server.server.engine.load().live, 0, "{endpoint}");
                found = true;
            }
            server.ok("/resume", &json!({}));
            drop(asked);
            if found {
                break;
            }
        }
        assert!(found, "{endpoint}: every answer ended before the pause");
    }
    server.is_empty_soon();
}

/// Two sets of weights are told apart, whatever they are called: spans of one name stay apart, and nobody gives the scores of the one for those of the
/// other. Names that the server makes are new.
#[test]
fn weights_of_one_name_stay_apart() {
    let server = Running::with(Size { prompt_tokens: 500, answer_tokens: 400, ..size() }, limits(), None);
    let spans = |choice: &Value| -> Vec<(u64, u64)> {
        let spans = choice["weight_versions"].as_array().unwrap();
        assert!(spans.iter().all(|span| span["version"] == "7"), "{spans:?}");
        spans.iter().map(|span| (span["start"].as_u64().unwrap(), span["end"].as_u64().unwrap())).collect()
    };
    let update = |turn: u64| {
        let body = json!({ "model_path": format!("turn-{turn}"), "weight_version": "7", "mode": "keep" });
        assert_eq!(server.ok("/update_weights", &body)["weight_version"], "7");
    };
    update(0);
    let mut apart = 0;
    for round in 1..=20u64 {
        std::thread::scope(|scope| {
            let body = json!({ "prompt": [3, round], "max_tokens": 400, "ignore_eos": true, "seed": round, "logprobs": 0, "logprobs_mode": "raw_logprobs" });
            let of = &server;
            let asked = scope.spawn(move || of.ok("/v1/completions", &body));
            soon("it runs", || server.server.engine.load().live > 0 || asked.is_finished());
            // A rest publishes the same weights anew, which is no seam.
            server.ok("/pause?mode=keep", &json!({}));
            server.ok("/resume", &json!({}));
            let updates = round % 2 == 0;
            if updates {
                update(round / 2);
            }
            let told = asked.join().unwrap()["choices"][0].clone();
            let spans = spans(&told);
            if spans.len() > 1 {
                assert!(updates, "{spans:?}");
                assert_eq!(told["logprobs"], Value::Null, "{spans:?}");
                apart += 1;
            }
            assert!(spans.len() <= 2 && spans.last().unwrap().1 == 400, "{spans:?}");
        });
    }
    assert!(apart > 0, "no answer was made by both");
    let given = |body: Value| server.ok("/update_weights", &body)["weight_version"].clone();
    let mut names = vec![];
    for name in [None, None, Some("x"), None, Some("3"), None] {
        names.push(given(json!({ "model_path": "turn-1", "weight_version": name })));
    }
    server.ok("/finish_weight_update", &json!({ "weight_version": "best" }));
    names.push(given(json!({ "model_path": "turn-1" })));
    assert_eq!(names, ["8", "9", "x", "10", "3", "11", "12"]);
    server.is_empty_soon();
}

/// A server that sleeps wakes once all that was put to sleep is awake, so that what waits begins under weights that come in between.
#[test]
fn a_server_wakes_once_all_of_it_is_awake() {
    let server = Running::start();
    let sleeps = || server.get("/is_sleeping")["is_sleeping"].clone();
    assert_eq!(sleeps(), false);
    for last in ["kv_cache", "weights"] {
        let first = if last == "weights" { "kv_cache" } else { "weights" };
        server.ok("/sleep?level=2", &json!({}));
        assert_eq!((sleeps(), server.get("/is_paused")["is_paused"].clone()), (json!(true), json!(true)));
        std::thread::scope(|scope| {
            let body = json!({ "prompt": [1], "max_tokens": 4, "ignore_eos": true });
            let of = &server;
            let asked = scope.spawn(move || of.ok("/v1/completions", &body));
            soon("it waits", || server.server.engine.load().waiting == 1);
            let woken = server.ok(&format!("/wake_up?tags={first}"), &json!({}));
            assert_eq!((&woken["status"], sleeps()), (&json!("sleeping"), json!(true)));
            let update = json!({ "model_path": "turn-1", "weight_version": format!("1.{last}") });
            server.ok("/update_weights", &update);
            assert!(!asked.is_finished(), "it began before the server was awake");
            assert_eq!(server.ok(&format!("/wake_up?tags={last}"), &json!({}))["status"], "resumed");
            let told = asked.join().unwrap();
            assert_eq!(
                told["choices"][0]["weight_versions"],
                json!([{ "version": format!("1.{last}"), "start": 0, "end": 4 }])
            );
        });
        assert_eq!(sleeps(), false);
    }
    // SkyRL's client has them in a body.
    server.ok("/sleep", &json!({ "level": 2 }));
    assert_eq!(server.ok("/wake_up", &json!({ "tags": ["weights"] }))["status"], "sleeping");
    assert_eq!(server.ok("/wake_up", &json!({ "tags": ["kv_cache"] }))["status"], "resumed");
    server.ok("/sleep", &json!({ "level": 1, "tags": ["kv_cache"] }));
    assert_eq!(server.ok("/wake_up", &json!({ "tags": "kv_cache" }))["status"], "resumed");
    for wake in ["/wake_up", "/wake_up?tags=weights&tags=kv_cache", "/resume"] {
        server.ok("/sleep", &json!({}));
        assert_eq!(server.ok(wake, &json!({}))["status"], "resumed");
        assert_eq!((sleeps(), server.get("/is_paused")["is_paused"].clone()), (json!(false), json!(false)));
    }
    server.is_empty_soon();
}

/// What a control request says that is not known aborts nobody: it is refused where the rest would abort all, and named where it changes nothing.
#[test]
fn a_slip_in_a_control_request_aborts_nobody() {
    let server = Running::start();
    server.ok("/pause?mode=keep", &json!({}));
    std::thread::scope(|scope| {
        let of = &server;
        let asked = scope.spawn(move || {
            of.ok(
                "/v1/completions",
                &json!({ "prompt": [1], "max_tokens": 3, "ignore_eos": true, "request_id": "mine" }),
            )
        });
        soon("it waits", || server.server.engine.load().live == 1);
        for (endpoint, body, says) in [
            ("/abort_requests", json!({ "request_idz": ["mine"] }), "request_idz"),
            ("/abort_requests", json!({ "request_ids": "mine", "rid": "mine" }), "more than one of"),
            ("/pause?mod=keep", json!({}), "mod"),
            ("/pause", json!({ "mod": "keep" }), "mod"),
            ("/pause?mode=keep&mode=abort", json!({}), "mode is given twice"),
            ("/pause?clear_cache=perhaps", json!({}), "clear_cache is perhaps"),
            ("/pause?mode=keep&wait_for_inflight_requests=true", json!({}), "wait_for_inflight_requests"),
            ("/pause", json!({ "mode": 5 }), "mode"),
            ("/pause_generation", json!({ "mod": "in_place" }), "mod"),
            ("/sleep?lvl=1", json!({}), "lvl"),
            ("/wake_up?tags=wights", json!({}), "tags is wights"),
        ] {
            let (status, told) = server.post(endpoint, &body);
            let message =
                told["error"]["message"].as_str().unwrap_or_else(|| panic!("{endpoint} {body}: {told}"));
            assert!(status == 400 && message.contains(says), "{endpoint} {body}: {message}");
            assert!(told["error"]["param"].is_string(), "{endpoint} {body}: {told}");
        }
        for body in [json!({ "request_id": "nope" }), json!({ "rid": "nope" }), json!({ "rid": ["nope"] })] {
            server.ok("/abort_requests", &body);
        }
        // Python's own spelling, and modes in a body.
        for (endpoint, body) in [
            ("/pause?mode=keep&clear_cache=False", None),
            ("/pause?mode=keep&clear_cache=0", None),
            ("/pause", Some(json!({ "mode": "keep", "clear_cache": false }))),
            ("/pause?mode=keep", Some(json!({}))),
        ] {
            assert_eq!(noted(&server, endpoint, body.as_ref()).0, 200, "{endpoint}");
        }
        let (status, ignored, _) =
            noted(&server, "/update_weights", Some(&json!({ "model_path": "turn-0", "flush_cach": true })));
        assert_eq!((status, ignored.as_deref()), (200, Some("flush_cach")));
        let (_, ignored, _) =
            noted(&server, "/abort_request", Some(&json!({ "rid": "nope", "abort_message": "x" })));
        assert_eq!(ignored.as_deref(), Some("abort_message"));
        assert!(!asked.is_finished() && server.server.engine.load().live == 1, "it was aborted");
        server.ok("/resume", &json!({}));
        assert_eq!(asked.join().unwrap()["choices"][0]["finish_reason"], "length");
    });
    // vLLM's older name of `wait`.
    std::thread::scope(|scope| {
        let of = &server;
        let asked = scope.spawn(move || {
            of.ok("/v1/completions", &json!({ "prompt": [1], "n": 8, "max_tokens": 64, "ignore_eos": true }))
        });
        soon("it runs", || server.server.engine.load().live > 0 || asked.is_finished());
        server.ok("/pause?wait_for_inflight_requests=true", &json!({}));
        server.ok("/resume", &json!({}));
        let told = asked.join().unwrap();
        assert!(
            told["choices"].as_array().unwrap().iter().all(|choice| choice["finish_reason"] == "length"),
            "{told}"
        );
    });
    for body in
        [json!({ "request_id": "mine" }), json!({ "rid": ["mine"] }), json!({ "request_ids": [] }), json!({})]
    {
        server.ok("/pause?mode=keep", &json!({}));
        std::thread::scope(|scope| {
            let of = &server;
            let asked = scope.spawn(move || {
                of.ok("/v1/completions", &json!({ "prompt": [1], "max_tokens": 3, "request_id": "mine" }))
            });
            soon("it waits", || server.server.engine.load().live == 1);
            server.ok("/abort_requests", &body);
            assert_eq!(asked.join().unwrap()["choices"][0]["finish_reason"], "abort", "{body}");
        });
        server.ok("/resume", &json!({}));
    }
    server.is_empty_soon();
}

/// Weights are read one set at a time, as each takes as much memory as a model.
#[test]
fn weights_are_read_one_set_at_a_time() {
    let server = Running::start();
    std::thread::scope(|scope| {
        let update = || server.post("/update_weights", &json!({ "model_path": "one-at-a-time" }));
        let updates: Vec<_> = (0..4).map(|_| scope.spawn(update)).collect();
        for one in updates {
            let (status, told) = one.join().unwrap();
            assert_eq!(status, 200, "{told}");
        }
    });
}

/// A version's name is bounded, as each answer has it, and one that rollouts hold is told by its name.
#[test]
fn names_of_versions_are_bounded_and_told() {
    let server = Running::with(Size { answer_tokens: 400, ..size() }, limits(), None);
    for name in ["v".repeat(1025), String::new()] {
        for (endpoint, body) in [
            ("/finish_weight_update", json!({ "weight_version": name })),
            ("/update_weights", json!({ "model_path": "turn-1", "weight_version": name })),
        ] {
            let (status, told) = server.post(endpoint, &body);
            assert_eq!((status, &told["error"]["param"]), (400, &json!("weight_version")), "{told}");
        }
    }
    assert_eq!(server.get("/get_weight_version")["weight_version"], "0");
    server.ok("/finish_weight_update", &json!({ "weight_version": "v".repeat(1024) }));
    // A third version while rollouts decode under the first.
    let mut refused = 0;
    for round in 0..40 {
        server.ok(
            "/update_weights",
            &json!({ "model_path": "turn-0", "weight_version": format!("first-{round}") }),
        );
        std::thread::scope(|scope| {
            let body = json!({ "prompt": [9], "n": 4, "max_tokens": 400, "ignore_eos": true });
            let of = &server;
            let asked = scope.spawn(move || of.ok("/v1/completions", &body));
            soon("it runs", || server.server.engine.load().live > 0 || asked.is_finished());
            for turn in 1..3 {
                let name = format!("later-{round}-{turn}");
                let (status, told) = server.post(
                    "/update_weights",
                    &json!({ "model_path": "turn-1", "weight_version": name, "mode": "wait" }),
                );
                if status == 409 {
                    let message = told["error"]["message"].as_str().unwrap();
                    assert!(
                        message.contains(&format!("version first-{round},"))
                            && message.contains("abort_all_requests"),
                        "{message}"
                    );
                    refused += 1;
                }
            }
            asked.join().unwrap();
        });
        server.is_empty_soon();
        if refused > 0 {
            break;
        }
    }
    assert!(refused > 0, "nothing was refused");
}

/// An update that is under way when the server is told to end hears of that.
#[test]
fn an_update_hears_that_the_server_ends() {
    let mut server = Running::start();
    let mut update = begin(&server, "/update_weights", &json!({ "model_path": "takes-long" }), "");
    std::thread::sleep(Duration::from_millis(200));
    let since = Instant::now();
    server.stop();
    let mut told = String::new();
    update.read_to_string(&mut told).unwrap();
    assert!(told.starts_with("HTTP/1.1 503") && told.contains("\"code\":503"), "{told}");
    assert!(since.elapsed() < Duration::from_secs(1), "it took {:?}", since.elapsed());
}
