//! Keys and values that are kept for later requests.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use doorbell_lm::KvCap;
use doorbell_lm::sample::Truncation;
use doorbell_serve::engine::Size;
use rstest::rstest;
use serde_json::{Value, json};

use crate::running::{Running, TURNS, limits, sampling, size};

/// A server for longer prompts.
fn start(blocks: u32) -> Running {
    Running::with(Size { prompt_tokens: 300, blocks, ..size() }, limits(), None)
}

/// A prompt of which `kind` tells the first 70 tokens, and `own` the others.
fn prompt(kind: u64, own: u64, tokens: u64) -> Vec<u32> {
    (0..tokens)
        .map(|place| ((kind * 7 + place * 3 + if place < 70 { 0 } else { own * 11 }) % 60) as u32)
        .collect()
}

/// What `/inference/v1/generate` tells, held to the oracle, of prompts and answers that one version made; and how many of its prompt's tokens were
/// kept.
fn ask(server: &Running, prompt: &[u32], seed: u64, extra: &Value) -> (Value, u64) {
    let params = json!({ "seed": seed, "logprobs": 1, "max_tokens": 40, "ignore_eos": true, "n": 2 });
    let mut body = json!({ "token_ids": prompt, "sampling_params": params });
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    let told = server.ok("/inference/v1/generate", &body);
    for (member, choice) in (0..).zip(told["choices"].as_array().unwrap()) {
        let checked = server.check_alone(prompt, choice, sampling(seed, member, 1.0, Truncation::NONE));
        checked.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
    let cached = told["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    (told, cached)
}

fn tokens(choice: &Value) -> Vec<u32> {
    serde_json::from_value(choice["token_ids"].clone()).unwrap()
}

/// Of a prompt that was answered all whole blocks before its last token are found: by each endpoint, and until something forgets them.
#[test]
fn a_prompt_is_made_once() {
    let server = start(256);
    let (p, none) = (prompt(1, 1, 100), json!({}));
    let cached = |server: &Running| ask(server, &p, 5, &none).1;
    assert_eq!(cached(&server), 0);
    let prefills = || server.server.engine.metrics().counters.values();
    let before = prefills();
    assert_eq!(cached(&server), 96);
    let after = prefills();
    assert_eq!(after.prompt_tokens - before.prompt_tokens, 100);
    assert_eq!(after.prompt_tokens_cached - before.prompt_tokens_cached, 96);
    let metrics = ureq::get(server.url("/metrics")).call().unwrap().into_body().read_to_string().unwrap();
    assert!(metrics.contains("doorbell_prompt_tokens_cached_total 96"), "{metrics}");
    assert_eq!(ask(&server, &prompt(1, 2, 100), 5, &none).1, 64, "70 tokens are the same");
    // A whole number of blocks before the last token.
    assert_eq!(ask(&server, &p[..65], 5, &none).1, 64);
    assert_eq!(ask(&server, &p[..64], 5, &none).1, 32);

    let body = json!({ "prompt": [p, p], "max_tokens": 2, "n": 3 });
    let usage = server.ok("/v1/completions", &body)["usage"].clone();
    assert_eq!(
        (&usage["prompt_tokens"], &usage["prompt_tokens_details"]["cached_tokens"]),
        (&json!(200), &json!(192))
    );
    let mut streams = body;
    streams["stream"] = json!(true);
    streams["stream_options"] = json!({ "include_usage": true });
    assert_eq!(server.streamed("/v1/completions", &streams).last().unwrap()["usage"], usage);
    let told = server.ok("/generate", &json!({ "input_ids": p, "sampling_params": { "max_new_tokens": 2 } }));
    assert_eq!(told["meta_info"]["cached_tokens"], 96);
    let text = server.ok("/detokenize", &json!({ "tokens": p }))["prompt"].clone();
    let chat = json!({ "messages": [{ "role": "user", "content": text }], "max_tokens": 2 });
    let first = server.ok("/v1/chat/completions", &chat)["usage"]["prompt_tokens"].as_u64().unwrap();
    let told =
        server.ok("/v1/chat/completions", &chat)["usage"]["prompt_tokens_details"]["cached_tokens"].clone();
    assert_eq!(told, (first - 1) / 32 * 32);

    // Salts share nothing.
    for (salt, expected) in [("a", 0), ("b", 0), ("a", 96)] {
        assert_eq!(ask(&server, &p, 5, &json!({ "cache_salt": salt })).1, expected, "{salt}");
    }
    for endpoint in ["/reset_prefix_cache", "/flush_cache", "/pause?mode=wait", "/pause?mode=keep"] {
        assert_eq!(cached(&server), 96, "before {endpoint}");
        server.ok(endpoint, &json!({}));
        let blocks = server.server.engine.metrics().counters.values();
        assert_eq!(blocks.kv_blocks_in_use, 0, "{endpoint} leaves blocks");
        server.ok("/resume", &json!({}));
        assert_eq!(cached(&server), 0, "behind {endpoint}");
    }
    // A pause that keeps what is kept, though the weights are published anew, as they lie.
    std::thread::scope(|scope| {
        let running = scope.spawn(|| ask(&server, &prompt(3, 3, 80), 9, &json!({})));
        while server.server.engine.load().live == 0 {
            std::thread::yield_now();
        }
        server.ok("/pause?mode=keep&clear_cache=false", &json!({}));
        server.ok("/resume", &json!({}));
        running.join().unwrap();
    });
    assert_eq!(cached(&server), 96, "behind a pause");
    for mode in ["keep", "wait", "abort"] {
        server.ok(
            "/update_weights_from_disk",
            &json!({ "model_path": "turn-1", "weight_version": "1", "mode": mode }),
        );
        assert_eq!(cached(&server), 0, "behind an update with {mode}");
        assert_eq!(cached(&server), 96);
    }
    // A prompt that is scored is made anew, and its scores are those that it had.
    let scored = json!({ "token_ids": p, "sampling_params": { "max_tokens": 1, "prompt_logprobs": 0 } });
    let told = server.ok("/inference/v1/generate", &scored);
    assert_eq!(told["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    server.ok("/flush_cache", &json!({}));
    assert_eq!(server.ok("/inference/v1/generate", &scored)["prompt_logprobs"], told["prompt_logprobs"]);
    server.is_empty_soon();
}

/// A request whose prompt is a prompt, its answer and what a tool said goes on with the keys and values of both: but for the last block, which
/// was not whole.
#[rstest]
fn a_request_goes_on_from_an_answer(#[values("stop", "length", "abort")] ends: &str) {
    let server = start(256);
    let none = json!({});
    let mut sequence = prompt(2, 2, 45);
    let mut whole = 0;
    for turn in 0..4u64 {
        let extra = match ends {
            // The text of a token ends the answer somewhere.
            "stop" => {
                let params = json!({ "seed": turn, "logprobs": 1, "max_tokens": 40, "stop": ["e", "a"], "include_stop_str_in_output": true });
                json!({ "sampling_params": params })
            }
            _ => none.clone(),
        };
        let (told, cached) = ask(&server, &sequence, turn, &extra);
        assert_eq!(cached, whole, "turn {turn}");
        let answer = tokens(&told["choices"][0]);
        sequence.extend(&answer);
        whole = (sequence.len() as u64 - 1) / 32 * 32;
        if ends == "abort" {
            // An answer that is cut leaves what it has, too.
            let mut body = json!({ "token_ids": sequence, "request_id": "cut", "stream": true });
            body["sampling_params"] = json!({ "seed": 9, "max_tokens": 60, "ignore_eos": true });
            std::thread::scope(|scope| {
                let cut = scope.spawn(|| server.streamed("/inference/v1/generate", &body));
                while server.server.engine.load().live == 0 {
                    std::thread::yield_now();
                }
                server.ok("/abort_requests", &json!({ "request_ids": ["cut"] }));
                let told = cut.join().unwrap();
                let cut: Vec<u32> = told.iter().flat_map(|line| tokens(&line["choices"][0])).collect();
                sequence.extend(&cut);
                // If it had begun.
                if !cut.is_empty() {
                    whole = (sequence.len() as u64 - 1) / 32 * 32;
                }
            });
        }
        sequence.extend([7, 8, 9]);
        if sequence.len() > 230 {
            break;
        }
    }
    assert!(whole > 64);
    server.is_empty_soon();
}

/// Set once the one that has it ends, by a panic too: others do not wait for it for ever.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Clients share prompts and go on from answers while weights are updated, what is kept is flushed, and blocks are short: each answer is made of
/// keys and values of its own version alone, and of its own tokens.
#[rstest]
fn what_is_kept_is_of_the_same_version_and_tokens(#[values("abort", "wait")] mode: &str) {
    // Two requests of two answers need 2 (10 + 2) blocks at most.
    let server = start(48);
    let (over, asked, kept) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let client = || {
        let _ends = Ends(&over);
        while !over.load(Ordering::Relaxed) {
            let seed = asked.fetch_add(1, Ordering::Relaxed);
            let mut sequence = prompt(seed % 2, seed / 2 % 3, 60 + seed % 41);
            for turn in 0..2 {
                let (told, cached) = ask(&server, &sequence, seed + turn, &json!({}));
                kept.fetch_add(cached, Ordering::Relaxed);
                sequence.extend(tokens(&told["choices"][turn as usize]));
                sequence.push(3);
            }
        }
    };
    std::thread::scope(|scope| {
        (0..6).for_each(|_| drop(scope.spawn(client)));
        let _ends = Ends(&over);
        for update in 1..=24 {
            let turn = update % TURNS;
            if update % 4 == 0 {
                server.ok("/flush_cache", &json!({}));
            }
            let body = json!({ "model_path": format!("turn-{turn}"), "weight_version": format!("{turn}.{update}"), "mode": mode });
            // A third version is refused while the first is in use.
            let (status, told) = server.post("/update_weights_from_disk", &body);
            assert!(status == 200 || mode == "wait" && status == 409, "{told}");
            let before = asked.load(Ordering::Relaxed);
            while asked.load(Ordering::Relaxed) < before + 8 && !over.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
        }
    });
    assert!(kept.load(Ordering::Relaxed) > 64 * 20, "{kept:?}");
    server.is_empty_soon();
}

/// With a cap on keys and values answers are the capped oracle's, of any length in few blocks. What is kept is only what was not written over: the blocks
/// of prompts, and those of answers that were too short to take turns.
#[test]
fn with_a_cap_nothing_is_found_that_was_written_over() {
    // Two answers to 100 tokens need 3 + 1 + 2 * 3 blocks at a time; without turns they would be 3 + 1 + 2 * 10.
    let cap = KvCap { window: 40, sinks: 32 };
    let size = Size { prompt_tokens: 400, answer_tokens: 300, blocks: 16, ..size() };
    let server = Running::capped(Some(cap), size, limits(), None);
    let of = |tokens: u64| {
        let params = json!({ "seed": 5, "logprobs": 1, "max_tokens": tokens, "ignore_eos": true, "n": 2 });
        json!({ "sampling_params": params })
    };
    let p = prompt(1, 1, 100);
    let (told, cached) = ask(&server, &p, 5, &of(280));
    assert_eq!(cached, 0);
    let (long, _) = ask(&server, &p, 5, &of(280));
    assert_eq!(long["choices"], told["choices"], "over kept keys and values the same");
    // Its answer is not kept, and its prompt is.
    let mut next = [&p[..], &tokens(&told["choices"][0])].concat();
    next.push(3);
    assert_eq!(ask(&server, &next, 5, &of(20)).1, 96);
    // One of two blocks did not take turns.
    server.ok("/flush_cache", &json!({}));
    let (told, _) = ask(&server, &p, 5, &of(40));
    let mut next = [&p[..], &tokens(&told["choices"][0])].concat();
    next.push(3);
    assert_eq!(ask(&server, &next, 5, &of(20)).1, 128);

    // What it needs is counted with the cap.
    let body = json!({ "prompt": p, "max_tokens": 280, "n": 8 });
    let (status, told) = server.post("/v1/completions", &body);
    let message = told["error"]["message"].as_str().unwrap();
    assert!(status == 400 && message.contains("need 28 KV blocks, and there are 16"), "{told}");
    let info = server.get("/server_info");
    assert_eq!((&info["kv_window"], &info["kv_sinks"]), (&json!(40), &json!(32)));

    // Weights that see more would find blocks written over.
    let update = |path: &str| {
        server.post("/update_weights_from_disk", &json!({ "model_path": path, "weight_version": "1" }))
    };
    let (status, told) = update("whole-1");
    assert!(status == 409 && told.to_string().contains("another cap on keys and values"), "{told}");
    assert_eq!(update("turn-1").0, 200);
    ask(&server, &p, 5, &of(280));
    server.is_empty_soon();
}

/// A server that keeps nothing finds nothing.
#[test]
fn nothing_is_kept_where_that_is_off() {
    let server = Running::with(Size { prompt_tokens: 300, keeps: false, ..size() }, limits(), None);
    for _ in 0..2 {
        assert_eq!(ask(&server, &prompt(1, 1, 100), 1, &json!({})).1, 0);
    }
    assert_eq!(server.server.engine.metrics().counters.values().kv_blocks_in_use, 0);
}

/// Raw log-probabilities are those of the same tokens at temperature 1 among all tokens, to the last bit, by each endpoint.
#[test]
fn raw_log_probabilities_are_those_at_temperature_1() {
    let server = start(256);
    for seed in 0..8u64 {
        let p = prompt(seed, 0, 1 + seed * 9);
        let mut params = json!({ "seed": seed, "max_tokens": 1 + seed * 4, "temperature": 0.6, "top_k": 9, "n": 2, "logprobs": 0 });
        let drawn =
            server.ok("/inference/v1/generate", &json!({ "token_ids": p, "sampling_params": params }));
        params["logprobs_mode"] = json!("raw_logprobs");
        let told = server.ok("/inference/v1/generate", &json!({ "token_ids": p, "sampling_params": params }));
        let mut body = params.clone();
        body["prompt"] = json!(p);
        let plain = server.ok("/v1/completions", &body);
        params.as_object_mut().unwrap().remove("logprobs");
        let sglang = server
            .ok("/generate", &json!({ "input_ids": p, "sampling_params": params, "return_logprob": true }));
        for index in 0..2 {
            let (raw, drawn) = (&told["choices"][index], &drawn["choices"][index]);
            assert_eq!(raw["token_ids"], drawn["token_ids"]);
            let logps = |choice: &Value| -> Vec<Value> {
                let content = choice["logprobs"]["content"].as_array().unwrap();
                content.iter().map(|each| each["logprob"].clone()).collect()
            };
            let answer = tokens(raw);
            let sequence = [&p[..], &answer].concat();
            let params = json!({ "max_tokens": 1, "prompt_logprobs": 0 });
            let scored = server
                .ok("/inference/v1/generate", &json!({ "token_ids": sequence, "sampling_params": params }));
            let of = |place: usize| {
                scored["prompt_logprobs"][place][sequence[place].to_string()]["logprob"].clone()
            };
            let expected: Vec<Value> = (p.len()..sequence.len()).map(of).collect();
            assert_eq!(logps(raw), expected, "seed {seed}");
            assert_ne!(logps(drawn), expected, "seed {seed}");
            assert_eq!(plain["choices"][index]["logprobs"]["token_logprobs"], json!(expected));
            let each = sglang[index]["meta_info"]["output_token_logprobs"].as_array().unwrap();
            assert_eq!(each.iter().map(|one| one[0].clone()).collect::<Vec<_>>(), expected);
        }
    }
    let refused = |extra: Value| {
        let mut body =
            json!({ "prompt": [1], "logprobs": 0, "max_tokens": 4, "logprobs_mode": "raw_logprobs" });
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let (status, told) = server.post("/v1/completions", &body);
        assert_eq!((status, &told["error"]["param"]), (400, &json!("logprobs_mode")));
        told["error"]["message"].as_str().unwrap().to_owned()
    };
    assert!(refused(json!({ "stream": true })).contains("leave out stream"));
    assert!(refused(json!({ "logprobs_mode": "raw_logits" })).contains("raw_logits; it must be"));
    assert!(refused(json!({ "prompt": vec![1; 290], "max_tokens": 20 })).contains("300 can be scored"));
    server.is_empty_soon();
}

/// Raw log-probabilities of answers that were taken come however few may wait, and whoever aborts their request by its name ends them too.
#[test]
fn raw_log_probabilities_are_never_too_many() {
    let server = Running::with(Size { prompt_tokens: 300, waiting: 2, ..size() }, limits(), None);
    let body = json!({ "prompt": [1, 2], "n": 8, "max_tokens": 3, "logprobs": 0, "logprobs_mode": "raw_logprobs", "ignore_eos": true, "request_id": "raw" });
    for _ in 0..3 {
        let told = server.ok("/v1/completions", &body);
        let choices = told["choices"].as_array().unwrap();
        assert!(
            choices.iter().all(|choice| choice["logprobs"]["token_logprobs"].as_array().unwrap().len() == 3)
        );
    }
    // What could not be scored is refused before it is drawn.
    let small = Running::with(Size { prompt_tokens: 300, blocks: 4, ..size() }, limits(), None);
    let mut long = json!({ "prompt": vec![1; 65], "max_tokens": 64, "ignore_eos": true });
    assert_eq!(small.post("/v1/completions", &long).0, 200);
    long["logprobs_mode"] = json!("raw_logprobs");
    let (status, told) = small.post("/v1/completions", &long);
    assert!(status == 400 && told.to_string().contains("could not be scored"), "{told}");

    // Aborted at any moment, its drawing and its scores among them, it ends, and nothing of it lives.
    let long = json!({ "prompt": [1, 2], "n": 8, "max_tokens": 40, "logprobs": 0, "logprobs_mode": "raw_logprobs", "request_id": "raw" });
    for round in 0..40u64 {
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| server.ok("/v1/completions", &long));
            std::thread::sleep(std::time::Duration::from_micros(250 * round));
            let lived = !asked.is_finished() && server.server.engine.load().live > 0;
            server.ok("/abort_requests", &json!({ "request_ids": ["raw"] }));
            // Nothing else runs: what lives behind the abort was asked after it.
            assert!(!lived || server.server.engine.load().live == 0, "round {round}");
            asked.join().unwrap();
        });
    }
    server.is_empty_soon();
}

/// Raw log-probabilities that cannot be had are null: each where a list has all tokens, the list as a whole where the tokens are beside it.
#[test]
fn raw_log_probabilities_that_cannot_be_had_are_null() {
    let server = Running::with(Size { prompt_tokens: 300, ..size() }, limits(), None);
    let raw = json!({ "n": 8, "max_tokens": 60, "ignore_eos": true, "logprobs_mode": "raw_logprobs" });
    let mut found = [0; 3];
    for round in 0..300u64 {
        let kind = round as usize % 3;
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| {
                let mut body = raw.clone();
                match kind {
                    0 => server.ok("/generate", &json!({ "input_ids": [1, 2], "return_logprob": true, "sampling_params": raw })),
                    _ => {
                        let fields = json!({ "prompt": [1, 2], "logprobs": 0, "echo": kind == 1, "return_token_ids": true });
                        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
                        server.ok("/v1/completions", &body)["choices"].clone()
                    }
                }
            });
            std::thread::sleep(std::time::Duration::from_micros(100 * (round / 3)));
            server.ok("/abort_requests", &json!({}));
            for choice in asked.join().unwrap().as_array().unwrap() {
                match kind {
                    0 => {
                        let ids = choice["output_ids"].as_array().unwrap();
                        let told = choice["meta_info"]["output_token_logprobs"].as_array().unwrap();
                        let each: Vec<&Value> = told.iter().map(|one| &one[1]).collect();
                        assert_eq!(each, ids.iter().collect::<Vec<_>>());
                        found[kind] += u32::from(told.first().is_some_and(|one| one[0].is_null()));
                    }
                    _ => {
                        let count = choice["token_ids"].as_array().unwrap().len();
                        match choice["logprobs"]["token_logprobs"].as_array() {
                            Some(told) => assert_eq!(told.len(), count + if kind == 1 { 2 } else { 0 }),
                            None => found[kind] += u32::from(count > 0),
                        }
                    }
                }
            }
        });
        if found.iter().all(|&found| found > 0) {
            break;
        }
    }
    assert!(found.iter().all(|&found| found > 0), "{found:?}");
    server.is_empty_soon();
}
