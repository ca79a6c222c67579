//! Requests that are wrong, slow or hostile.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rstest::rstest;
use serde_json::{Value, json};

use crate::running::{self, Running, begin, begin_raw, limits, send, size};

#[rstest]
#[case("/v1/completions", json!({}), 400, "missing field `prompt`")]
#[case("/v1/completions", json!({ "prompt": { "a": 1 } }), 400, "Prompt")]
#[case("/v1/completions", json!({ "prompt": [], "max_tokens": 3 }), 400, "prompt")]
#[case("/v1/completions", json!({ "prompt": [[1], []] }), 400, "no tokens")]
#[case("/v1/completions", json!({ "prompt": [1], "temperature": -1 }), 400, "temperature is -1")]
#[case("/v1/completions", json!({ "prompt": [1], "temperature": "hot" }), 400, "temperature: invalid type: string \"hot\", expected f64")]
#[case("/v1/completions", json!({ "prompt": [1], "max_tokens": "x" }), 400, "max_tokens: invalid type: string \"x\", expected a whole number")]
#[case("/v1/completions", json!({ "prompt": [1], "n": 1.5 }), 400, "n: invalid value: floating point `1.5`")]
#[case("/v1/completions", json!({ "prompt": [1], "stop": 5 }), 400, "stop: ")]
#[case("/v1/completions", json!({ "prompt": [1], "stream": "x" }), 400, "stream: ")]
#[case("/v1/completions", json!({ "prompt": [1], "logprobs": true }), 400, "logprobs: ")]
#[case("/generate", json!({ "input_ids": [1], "sampling_params": { "max_new_tokens": "x" } }), 400, "max_new_tokens: ")]
#[case("/generate", json!({ "input_ids": [1], "return_logprob": "x" }), 400, "return_logprob: ")]
#[case("/inference/v1/generate", json!({ "token_ids": [1], "sampling_params": { "top_k": "x" } }), 400, "top_k: ")]
#[case("/update_weights", json!({ "model_path": "turn-1", "weight_version": -1 }), 400, "weight_version: expected a text, or a number from 0 on")]
#[case("/v1/chat/completions", json!({ "messages": [{ "role": "user", "content": "a" }], "top_logprobs": 1 }), 400, "ask for 0")]
#[case("/v1/completions", json!({ "prompt": [1], "prompt_logprobs": 1 }), 400, "ask for 0")]
#[case("/v1/chat/completions", json!({ "messages": [5] }), 400, "messages[0] is no object")]
#[case("/v1/chat/completions", json!({ "messages": [{ "role": "user", "content": "a" }, null] }), 400, "messages[1] is no object")]
#[case("/v1/chat/completions", json!({ "messages": ["x"] }), 400, "messages[0] is no object")]
#[case("/v1/chat/completions", json!({ "messages": [{ "content": "x" }] }), 400, "messages[0] has no role")]
#[case("/v1/chat/completions", json!({ "messages": [{ "role": "user" }] }), 400, "messages[0] has no content")]
#[case("/v1/chat/completions", json!({ "messages": [{ "role": "user", "contents": "ab" }] }), 400, "messages[0] has no content")]
#[case("/v1/chat/completions", json!({ "messages": [{ "role": "user", "content": { "text": "ab" } }] }), 400, "messages[0]: content is no text")]
#[case("/v1/chat/completions", json!({ "messages": [{ "role": "user", "content": [{ "type": "image_url", "text": "ab" }] }] }), 400, "messages[0]: a part of its content is no text")]
#[case("/detokenize", json!({ "tokens": vec![9; 1025] }), 400, "there are 1025 tokens, and the model has 1024 positions")]
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
#[case("/generate", json!({ "input_ids": [1], "sampling_params": [{}, {}] }), 400, "more of these than prompts")]
#[case("/generate", json!({ "input_ids": [[1], [2]], "return_logprob": [true] }), 400, "fewer of these than prompts")]
#[case("/generate", json!({ "input_ids": [[1], [2]], "rid": ["a"] }), 400, "fewer of these than prompts")]
#[case("/generate", json!({ "input_ids": [[1], [2]], "sampling_params": [{}, { "logprobs_mode": "raw_logprobs" }] }), 400, "logprobs_mode must be the same")]
#[case("/generate", json!({ "input_ids": [1], "top_logprobs_num": 5 }), 400, "top_logprobs_num is 5; only 0 can be had")]
#[case("/generate", json!({ "input_ids": [1], "lora_path": "a" }), 400, "lora_path cannot be had")]
#[case("/generate", json!({ "input_ids": [1], "rid": "a".repeat(2000) }), 400, "rid has 2000 bytes")]
#[case("/inference/v1/generate", json!({ "token_ids": [1], "sampling_params": { "logprobs": 5 } }), 400, "logprobs is 5")]
#[case("/inference/v1/generate", json!({ "token_ids": [1], "sampling_params": { "truncate_prompt_tokens": 1 } }), 400, "truncate_prompt_tokens is 1")]
#[case("/v1/completions", json!({ "prompt": [1], "truncate_prompt_tokens": 1 }), 400, "truncate_prompt_tokens is 1")]
#[case("/v1/completions", json!({ "prompt": [1], "request_id": "a".repeat(2000) }), 400, "request_id has 2000 bytes")]
#[case("/v1/completions", json!({ "prompt": vec!["a".repeat(900); 65] }), 400, "there are 65 prompts; give 1 to 64")]
#[case("/v1/completions", json!({ "prompt": "a".repeat(60_000) }), 400, "more than 32 tokens can stand for")]
#[case("/tokenize", json!({ "prompt": "a".repeat(60_000), "add_special_tokens": false }), 400, "more than 32 tokens can stand for")]
#[case("/v1/chat/completions", json!({ "messages": [{ "role": "user", "content": "a".repeat(60_000) }] }), 400, "more than 32 tokens can stand for")]
#[case("/v1/chat/completions", json!({ "messages": [{ "role": "user", "content": "a" }], "chat_template_kwargs": { "a": 1 } }), 400, "chat_template_kwargs cannot be had")]
#[case("/v1/chat/completions", json!({ "messages": [{ "role": "user", "content": "a" }], "add_generation_prompt": false }), 400, "add_generation_prompt cannot be had")]
#[case("/v1/chat/completions", json!({ "messages": [{ "role": "user", "content": "a" }], "continue_final_message": true }), 400, "continue_final_message cannot be had")]
#[case("/v1/chat/completions", json!({ "messages": [{ "role": "user", "content": "a" }], "tool_choice": "required" }), 400, "tool_choice cannot be had")]
#[case("/v1/chat/completions", json!({ "messages": [{ "role": "user", "content": "a" }], "documents": [{}] }), 400, "documents cannot be had")]
#[case("/inference/v1/generate", json!({ "token_ids": [] }), 400, "no tokens")]
#[case("/pause?mode=soon", json!({}), 400, "mode is soon")]
#[case("/abort_request", json!({}), 400, "give rid, or abort_all")]
#[case("/nowhere", json!({}), 404, "there is no endpoint /nowhere")]
#[case("/health", json!({}), 405, "another method")]
fn what_is_wrong_is_said(
    #[case] endpoint: &str,
    #[case] body: Value,
    #[case] status: u16,
    #[case] expected: &str,
) {
    let server = Running::start();
    let (code, told) = server.post(endpoint, &body);
    let message = told["error"]["message"].as_str().unwrap_or_else(|| panic!("{endpoint}: {told}"));
    assert_eq!((code, &told["error"]["code"]), (status, &json!(status)), "{message}");
    assert!(message.contains(expected), "{message}");
    // It serves on.
    server.ok(
        "/v1/completions",
        &json!({
            "prompt": [1], "max_tokens": 2, "n": null, "presence_penalty": 0, "logit_bias": null, "best_of": 1, "truncate_prompt_tokens": -1,
            "chat_template_kwargs": {}, "documents": [], "tool_choice": "auto", "add_generation_prompt": true, "continue_final_message": false,
        }),
    );
    server.is_empty_soon();
}

/// What is wrong with a field is told with its name, which programs find in `param`.
#[rstest]
#[case("/v1/completions", json!({ "prompt": [1], "temperature": "hot" }), "temperature")]
#[case("/generate", json!({ "input_ids": [1], "sampling_params": [{ "stop": 5 }] }), "stop")]
#[case("/update_weights", json!({ "weight_version": -1 }), "weight_version")]
#[case("/detokenize", json!({ "tokens": "x" }), "tokens")]
fn errors_name_their_field(#[case] endpoint: &str, #[case] body: Value, #[case] field: &str) {
    let server = Running::start();
    let (status, told) = server.post(endpoint, &body);
    assert_eq!((status, &told["error"]["param"]), (400, &json!(field)), "{told}");
    let message = told["error"]["message"].as_str().unwrap();
    assert!(!message.contains("untagged") && !message.contains("column"), "{message}");
}

/// What clients send that dump their models: nulls of fields that have several names, whole numbers with a point, and seeds of 64 bits.
#[test]
fn values_that_clients_write_in_other_ways_are_taken() {
    let server = Running::start();
    let ask = |extra: Value| {
        let mut body = json!({ "prompt": [1], "ignore_eos": true, "return_token_ids": true });
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        server.ok("/v1/completions", &body)["choices"][0]["token_ids"].clone()
    };
    let plain = ask(json!({ "max_tokens": 4, "seed": 5 }));
    assert_eq!(plain.as_array().unwrap().len(), 4);
    for extra in [
        json!({ "max_tokens": 4, "max_completion_tokens": null, "max_new_tokens": null, "seed": 5, "sampling_seed": null }),
        json!({ "max_tokens": null, "max_completion_tokens": 4, "seed": null, "sampling_seed": 5 }),
        json!({ "max_tokens": 4.0, "seed": 5.0, "n": 1.0, "top_k": -1.0 }),
    ] {
        assert_eq!(ask(extra.clone()), plain, "{extra}");
    }
    let largest = ask(json!({ "max_tokens": 30, "seed": u64::MAX }));
    assert_eq!(largest, ask(json!({ "max_tokens": 30, "seed": -1 })));
    assert_ne!(largest, ask(json!({ "max_tokens": 30, "seed": u64::MAX - 1 })));
    assert!(server.post("/v1/completions", &json!({ "prompt": [1], "seed": 1e20 })).0 == 400);
}

/// Messages as OpenAI has them: texts, parts of text, which vLLM puts on lines of their own, and calls of tools without a text.
#[test]
fn messages_are_read_as_vllm_reads_them() {
    let server = Running::start();
    let prompt = |messages: Value| {
        let body = json!({ "messages": messages, "max_tokens": 1, "return_token_ids": true });
        server.ok("/v1/chat/completions", &body)["prompt_token_ids"].clone()
    };
    let lines = prompt(json!([{ "role": "user", "content": "a\nb" }]));
    let parts = json!([{ "type": "text", "text": "a" }, { "type": "text", "text": "b" }]);
    assert_eq!(prompt(json!([{ "role": "user", "content": parts }])), lines);
    assert_eq!(prompt(json!([{ "role": "user", "content": ["a", { "text": "b" }] }])), lines);
    let call = json!({ "role": "assistant", "tool_calls": [{ "id": "1", "type": "function", "function": { "name": "f", "arguments": "{}" } }] });
    prompt(
        json!([{ "role": "user", "content": "a" }, call, { "role": "tool", "content": "b", "tool_call_id": "1" }]),
    );
    prompt(json!([{ "role": "user", "content": "a" }, { "role": "assistant", "content": null }]));
}

/// Clients that announce long requests and send little of them hold room for what they sent alone.
#[test]
fn slow_clients_keep_nobodys_long_request_out() {
    let limits = doorbell_serve::http::Limits { body: 1 << 20, patience: Duration::from_secs(4), ..limits() };
    let server = Running::with(size(), limits, None);
    let head =
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 1048576\r\n\r\n";
    let slow: Vec<TcpStream> = (0..12)
        .map(|_| begin_raw(&server, &format!("{head}{{\"prompt\": \"{}", "a".repeat(70_000))))
        .collect();
    std::thread::sleep(Duration::from_millis(200));
    let since = Instant::now();
    server.ok("/v1/completions", &json!({ "prompt": [1], "max_tokens": 1, "user": "a".repeat(900_000) }));
    assert!(since.elapsed() < Duration::from_secs(2), "it took {:?}", since.elapsed());
    drop(slow);
    // More long requests at a time than there is room for: one after the other is read, and none is refused.
    std::thread::scope(|scope| {
        let ask = || {
            let body = json!({ "prompt": [1], "max_tokens": 1, "user": "a".repeat(1_000_000) });
            server.post("/v1/completions", &body).0
        };
        let asked: Vec<_> = (0..32).map(|_| scope.spawn(ask)).collect();
        asked.into_iter().for_each(|one| assert_eq!(one.join().unwrap(), 200));
    });
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
        let since = Instant::now();
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

/// Fields that are left alone are named by each endpoint, in a header that no client makes long; those that change nothing are not.
#[test]
fn what_is_left_alone_is_named() {
    let server = Running::start();
    let ignored = |endpoint: &str, body: &Value| {
        let response = ureq::post(server.url(endpoint)).send_json(body).unwrap();
        response.headers().get("x-doorbell-ignored").map(|names| names.to_str().unwrap().to_owned())
    };
    let params = json!({ "max_tokens": 1, "skip_special_tokens": false, "new": 1, "spaces_between_special_tokens": false });
    for (endpoint, body) in [
        ("/inference/v1/generate", json!({ "token_ids": [1], "sampling_params": params, "other": 1 })),
        ("/generate", json!({ "input_ids": [[1], [2]], "sampling_params": params, "other": 1 })),
    ] {
        let mut names: Vec<String> =
            ignored(endpoint, &body).unwrap().split(',').map(str::to_owned).collect();
        names.sort();
        assert_eq!(names, ["new", "other", "skip_special_tokens"], "{endpoint}");
    }
    let mut body = json!({ "prompt": [1], "max_tokens": 1, "user": "me", "skip_special_tokens": true });
    assert_eq!(ignored("/v1/completions", &body), None);
    body["not a name"] = json!(1);
    for name in 0..200 {
        body[format!("field-{name}-{}", "x".repeat(60))] = json!(1);
    }
    let names = ignored("/v1/completions", &body).unwrap();
    assert!(names.starts_with("field-0-x") && names.ends_with(",...") && names.len() < 1100, "{names}");
    for name in 200..300 {
        body[format!("field-{name}")] = json!(1);
    }
    let (status, told) = server.post("/v1/completions", &body);
    assert!(status == 400 && told.to_string().contains("more than 256 fields"), "{told}");
}

/// SGLang's name of a stop text that stays in the text; texts without what a tokeniser puts before them; log-probabilities for the prompts that want
/// them.
#[test]
fn fields_that_change_an_answer_are_obeyed() {
    let server = Running::start();
    let mut found = false;
    for seed in 0..20 {
        let params = json!({ "max_new_tokens": 40, "seed": seed, "stop": ["e"] });
        let mut body = json!({ "input_ids": [1], "sampling_params": params });
        let cut = server.ok("/generate", &body);
        body["sampling_params"]["no_stop_trim"] = json!(true);
        let kept = server.ok("/generate", &body);
        let stops = cut["meta_info"]["finish_reason"]["type"] == "stop"
            && cut["meta_info"]["finish_reason"]["matched"] == "e";
        let end = if stops { "e" } else { "" };
        assert_eq!(kept["text"].as_str().unwrap(), cut["text"].as_str().unwrap().to_owned() + end);
        found |= stops;
    }
    assert!(found, "no answer stops");

    for begins in [true, false] {
        let text = json!({ "prompt": "abc", "add_special_tokens": begins });
        let tokens = server.ok("/tokenize", &text)["tokens"].clone();
        let mut body = json!({ "max_tokens": 1, "return_token_ids": true });
        body.as_object_mut().unwrap().extend(text.as_object().unwrap().clone());
        assert_eq!(server.ok("/v1/completions", &body)["choices"][0]["prompt_token_ids"], tokens);
    }

    let body = json!({ "input_ids": [[1], [2]], "return_logprob": [false, true], "sampling_params": { "max_new_tokens": 1 } });
    let told = server.ok("/generate", &body);
    let has = [0, 1].map(|place| told[place]["meta_info"].get("output_token_logprobs").is_some());
    assert_eq!(has, [false, true]);
}

/// Clients that take nothing of their answers give their connections back.
#[test]
fn who_reads_nothing_holds_no_connection() {
    let connections = 4;
    let server = Running::with(size(), doorbell_serve::http::Limits { connections, ..limits() }, None);
    let silent: Vec<TcpStream> = (0..connections)
        .map(|_| {
            let mut stream = TcpStream::connect(server.address).unwrap();
            stream.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
            let requests = "GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n".repeat(1000);
            let written = (0..1000).try_for_each(|_| stream.write_all(requests.as_bytes()));
            assert!(written.is_err(), "the server takes requests without end");
            stream
        })
        .collect();
    assert_eq!(server.get("/health"), json!({}));
    drop(silent);
}

/// A client that hangs up ends its rollouts, also if something lies behind its request that nobody reads.
#[rstest]
fn who_hangs_up_is_seen(#[values("", "\r\n", "GET /health HTTP/1.1\r\nhost: x\r\n\r\n")] behind: &str) {
    let server = Running::start();
    server.ok("/pause?mode=keep", &json!({}));
    for stream in [false, true] {
        let body = json!({ "prompt": [1], "max_tokens": 2, "stream": stream });
        let asked = begin(&server, "/v1/completions", &body, behind);
        let live = |count: usize| {
            let since = Instant::now();
            while server.server.engine.load().live != count {
                assert!(since.elapsed() < Duration::from_secs(20), "{count} were to live");
            }
        };
        live(1);
        drop(asked);
        live(0);
    }
    server.ok("/resume", &json!({}));
}

/// Resident memory of this process, in MiB: `VmRSS` now, `VmHWM` at its highest.
fn resident(which: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(which)?.strip_prefix(':')).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() >> 10
}

/// What a request gives once for all of its prompts is there once.
#[test]
fn what_is_for_all_prompts_is_not_copied() {
    let prompts = 1024;
    let limits = doorbell_serve::http::Limits {
        body: 8 << 20,
        patience: Duration::from_secs(20),
        prompts,
        ..limits()
    };
    let server = Running::with(size(), limits, None);
    let before = resident("VmHWM");
    let params = json!({ "max_new_tokens": 1, "junk": "a".repeat(4 << 20) });
    let answer =
        server.ok("/generate", &json!({ "input_ids": vec![[1]; prompts], "sampling_params": params }));
    assert_eq!(answer.as_array().map(Vec::len), Some(prompts));
    let more = resident("VmHWM").saturating_sub(before);
    assert!(more < 1 << 10, "{prompts} prompts with one text of 4 MiB took {more} MiB");
}

/// Of a request that waits only what its answer needs is kept.
#[rstest]
fn what_came_along_is_not_kept(
    #[values("/v1/completions", "/inference/v1/generate", "/generate")] endpoint: &str,
) {
    let limits =
        doorbell_serve::http::Limits { body: 32 << 20, patience: Duration::from_secs(20), ..limits() };
    let server = Running::with(size(), limits, None);
    server.ok("/pause?mode=keep", &json!({}));
    let long = "a".repeat(12 << 20);
    let body = json!({ "prompt": [1], "token_ids": [1], "input_ids": [1], "sampling_params": {}, "user": long, "text": null, long.clone(): 1 });
    let request = running::raw(endpoint, &body);
    let (mut asked, mut before) = (vec![], 0);
    for count in 1..=10 {
        asked.push(begin_raw(&server, &request));
        let since = Instant::now();
        while server.server.engine.load().live < count {
            assert!(since.elapsed() < Duration::from_secs(20));
            std::thread::sleep(Duration::from_millis(1));
        }
        // What is freed may stay with the process: the first two show how much does.
        if count == 2 {
            before = resident("VmRSS");
        }
    }
    let more = resident("VmRSS").saturating_sub(before);
    assert!(more < 96, "8 requests, each with 24 MiB of what nobody needs, hold {more} MiB");
    drop(asked);
    server.is_empty_soon();
}

/// Texts that take long to be cut into tokens hold up nobody else.
#[test]
fn long_texts_hold_up_nobody() {
    let limits = doorbell_serve::http::Limits {
        body: 32 << 20,
        patience: Duration::from_secs(20),
        prompts: 1 << 16,
        ..limits()
    };
    let server = Running::with(size(), limits, None);
    // The last one is too long, so that nothing is asked.
    let texts: Vec<String> =
        (0..60_000).map(|text| "once upon a time ".repeat(1 + usize::from(text == 59_999) * 5000)).collect();
    let body = json!({ "prompt": texts });
    let began = Instant::now();
    let (mut worst, mut looks) = (Duration::ZERO, 0);
    std::thread::scope(|scope| {
        let asked: Vec<_> = (0..3).map(|_| scope.spawn(|| server.post("/v1/completions", &body).0)).collect();
        while asked.iter().any(|one| !one.is_finished()) {
            let since = Instant::now();
            server.get("/health");
            (worst, looks) = (worst.max(since.elapsed()), looks + 1);
            std::thread::sleep(Duration::from_millis(1));
        }
        asked.into_iter().for_each(|one| assert_eq!(one.join().unwrap(), 400));
    });
    let all = began.elapsed();
    assert!(looks > 3 && worst < all / 3, "the longest look took {worst:?} of {all:?}");
}
