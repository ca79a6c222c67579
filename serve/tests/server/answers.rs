//! What is answered.

use doorbell_lm::sample::Truncation;
use rstest::rstest;
use serde_json::{Value, json};

use crate::running::{Running, noted, sampling};

/// Tokens and log-probabilities of many clients at a time, in groups of any size and drawn in any way, are those of the oracle: whatever else runs, a
/// request with the same seed draws the same.
#[test]
fn many_clients_get_what_the_oracle_says() {
    let server = Running::start();
    let client = |number: u64| {
        let server = &server;
        move || {
            for round in 0..4u64 {
                let seed = number * 100 + round;
                let n = 1 + (seed % 8) as u32;
                let prompt: Vec<u32> =
                    (0..1 + seed % 20).map(|place| ((seed * 7 + place * 3) % 60) as u32).collect();
                let temperature = [0.0, 0.7, 1.0, 1.3][(seed % 4) as usize];
                let (top_k, top_p, min_p) =
                    [(0, 1.0, 0.0), (5, 1.0, 0.0), (0, 0.8, 0.0), (9, 0.9, 0.05)][(seed / 4 % 4) as usize];
                let told = server.ok(
                    "/inference/v1/generate",
                    &json!({
                        "token_ids": prompt, "model": "micro", "stream": false,
                        "sampling_params": {
                            "n": n, "temperature": temperature, "seed": seed, "logprobs": 1, "max_tokens": 1 + seed % 40,
                            "top_k": top_k, "top_p": top_p, "min_p": min_p,
                        },
                    }),
                );
                let choices = told["choices"].as_array().unwrap();
                assert_eq!(choices.len(), n as usize);
                let truncation = Truncation::new(top_k, top_p, min_p).unwrap();
                for (member, choice) in (0..).zip(choices) {
                    assert_eq!(choice["index"], member);
                    let sampling = sampling(seed, member, temperature, truncation);
                    server
                        .check(&prompt, choice, sampling)
                        .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
                }
            }
        }
    };
    std::thread::scope(|scope| {
        (0..12).for_each(|number| drop(scope.spawn(client(number))));
    });
    server.is_empty_soon();
}

/// The same answer by each endpoint, whole and as it comes: texts, tokens, log-probabilities and reasons.
#[rstest]
fn all_doors_give_the_same_answer(
    #[values(json!({}), json!({"stop": ["e"]}), json!({"stop_token_ids": [7, 9]}), json!({"ignore_eos": true}))]
    extra: Value,
    #[values(1, 2, 3)] seed: u64,
) {
    let server = Running::start();
    let prompt = json!([3, 1, 4, 1, 5]);
    let mut params = json!({ "n": 2, "seed": seed, "max_tokens": 40, "temperature": 1.0 });
    params.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    let mut body = params.clone();
    let fields = json!({ "prompt": prompt, "logprobs": 0, "return_token_ids": true, "return_tokens_as_token_ids": true });
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let whole = server.ok("/v1/completions", &body)["choices"].clone();

    body["stream"] = json!(true);
    let mut joined =
        json!([{ "text": "", "token_ids": [], "logps": [] }, { "text": "", "token_ids": [], "logps": [] }]);
    for line in server.streamed("/v1/completions", &body) {
        for choice in line["choices"].as_array().unwrap() {
            let all = &mut joined[choice["index"].as_u64().unwrap() as usize];
            all["text"] =
                json!(format!("{}{}", all["text"].as_str().unwrap(), choice["text"].as_str().unwrap()));
            for (key, from) in
                [("token_ids", &choice["token_ids"]), ("logps", &choice["logprobs"]["token_logprobs"])]
            {
                all[key].as_array_mut().unwrap().extend(from.as_array().unwrap().clone());
            }
            all["finish_reason"] = choice["finish_reason"].clone();
            all["weight_versions"] = choice["weight_versions"].clone();
        }
    }
    params.as_object_mut().unwrap().insert("logprobs".into(), json!(1));
    let tokens =
        server.ok("/inference/v1/generate", &json!({ "token_ids": prompt, "sampling_params": params }));
    params.as_object_mut().unwrap().remove("logprobs");
    let sglang = server
        .ok("/generate", &json!({ "input_ids": prompt, "sampling_params": params, "return_logprob": true }));
    for index in 0..2 {
        let of = &whole[index];
        for key in ["text", "token_ids", "finish_reason", "weight_versions"] {
            assert_eq!(joined[index][key], of[key], "{key}");
        }
        assert_eq!(joined[index]["logps"], of["logprobs"]["token_logprobs"]);
        let names =
            of["token_ids"].as_array().unwrap().iter().map(|token| json!(format!("token_id:{token}")));
        assert_eq!(of["logprobs"]["tokens"], names.collect::<Value>());

        let tokens = &tokens["choices"][index];
        assert_eq!(tokens["token_ids"], of["token_ids"]);
        assert_eq!(tokens["finish_reason"], of["finish_reason"]);

        let sglang = &sglang[index];
        assert_eq!((&sglang["text"], &sglang["output_ids"]), (&of["text"], &of["token_ids"]));
        assert_eq!(sglang["meta_info"]["finish_reason"]["type"], of["finish_reason"]);
        let each = sglang["meta_info"]["output_token_logprobs"].as_array().unwrap();
        assert_eq!(
            each.iter().map(|one| one[0].clone()).collect::<Value>(),
            of["logprobs"]["token_logprobs"]
        );
    }
    server.is_empty_soon();
}

/// A stop ends the answer at its first place, wherever checkpoints and pieces of text lie: the text ends before it, the tokens with the one that
/// completes it.
#[test]
fn a_stop_ends_the_answer_where_it_first_comes() {
    let server = Running::start();
    for seed in 0..40u64 {
        let ask = json!({ "prompt": [seed % 50], "seed": seed, "max_tokens": 40, "return_token_ids": true });
        let free = server.ok("/v1/completions", &ask)["choices"][0].clone();
        let (text, tokens) = (free["text"].as_str().unwrap(), free["token_ids"].as_array().unwrap());
        let letters: Vec<char> = text.chars().collect();
        if letters.len() < 8 {
            continue;
        }
        let from = (seed as usize * 5) % (letters.len() - 3);
        let stop: String = letters[from..from + 1 + seed as usize % 3].iter().collect();
        let mut stopped = ask.clone();
        stopped["stop"] = json!([stop]);
        let told = server.ok("/v1/completions", &stopped)["choices"][0].clone();
        let at = text.find(&stop).unwrap();
        assert_eq!(told["text"], text[..at], "seed {seed}");
        assert_eq!((&told["finish_reason"], &told["stop_reason"]), (&json!("stop"), &json!(stop)));
        let given = told["token_ids"].as_array().unwrap();
        assert_eq!(given[..], tokens[..given.len()], "seed {seed}");
        stopped["include_stop_str_in_output"] = json!(true);
        let kept = server.ok("/v1/completions", &stopped)["choices"][0].clone();
        assert_eq!(kept["text"], text[..at + stop.len()], "seed {seed}");
    }
    server.is_empty_soon();
}

#[test]
fn a_chat_is_answered_as_its_template_says() {
    let server = Running::start();
    let message = json!([{ "role": "user", "content": [{ "type": "text", "text": "abc" }] }]);
    let body = json!({ "messages": message, "seed": 3, "max_tokens": 12, "logprobs": true, "return_token_ids": true });
    let told = server.ok("/v1/chat/completions", &body);
    let prompt =
        server.ok("/tokenize", &json!({ "prompt": "abc", "add_special_tokens": false }))["tokens"].clone();
    assert_eq!(told["prompt_token_ids"], prompt);
    let same = server.ok(
        "/v1/completions",
        &json!({ "prompt": prompt, "seed": 3, "max_tokens": 12, "return_token_ids": true }),
    );
    let (chat, plain) = (&told["choices"][0], &same["choices"][0]);
    assert_eq!((&chat["message"]["content"], &chat["token_ids"]), (&plain["text"], &plain["token_ids"]));
    assert_eq!(
        chat["logprobs"]["content"].as_array().unwrap().len(),
        plain["token_ids"].as_array().unwrap().len()
    );
    let mut streams = body;
    streams["stream"] = json!(true);
    streams["stream_options"] = json!({ "include_usage": true });
    let lines = server.streamed("/v1/chat/completions", &streams);
    assert_eq!(lines[0]["choices"][0]["delta"]["role"], "assistant");
    let joined: String =
        lines.iter().filter_map(|line| line["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(joined, chat["message"]["content"]);
    assert_eq!(lines.last().unwrap()["usage"], told["usage"]);
}

/// Requests without a seed each draw something else, and a server with the same seed draws it again.
#[test]
fn without_a_seed_each_request_draws_something_else() {
    let draw = |server: &Running| {
        let body = json!({ "prompt": [1, 2], "max_tokens": 24, "return_token_ids": true });
        server.ok("/v1/completions", &body)["choices"][0]["token_ids"].clone()
    };
    let (one, other) = (Running::start(), Running::start());
    let drawn: Vec<Value> = (0..6).map(|_| draw(&one)).collect();
    assert!((1..6).all(|place| drawn[place] != drawn[0]), "{drawn:?}");
    assert_eq!(drawn, (0..6).map(|_| draw(&other)).collect::<Vec<_>>());
}

/// The log-probabilities of a prompt's tokens are those with which they were drawn at temperature 1, to the last bit, by each endpoint.
#[test]
fn a_prompt_is_scored_as_it_was_drawn() {
    let server = Running::start();
    for seed in 0..12u64 {
        let first: Vec<u32> = (0..1 + seed % 5).map(|place| ((seed + place) % 60) as u32).collect();
        let params = json!({ "seed": seed, "max_tokens": 20, "logprobs": 1, "ignore_eos": true });
        let drawn =
            server.ok("/inference/v1/generate", &json!({ "token_ids": first, "sampling_params": params }));
        let choice = &drawn["choices"][0];
        let tokens: Vec<u32> = serde_json::from_value(choice["token_ids"].clone()).unwrap();
        let drawn = choice["logprobs"]["content"].as_array().unwrap();
        let drawn: Vec<Value> = drawn.iter().map(|each| each["logprob"].clone()).collect();
        let prompt = [&first[..], &tokens].concat();

        let params = json!({ "max_tokens": 1, "prompt_logprobs": 0, "temperature": 0.7 });
        let told =
            server.ok("/inference/v1/generate", &json!({ "token_ids": prompt, "sampling_params": params }));
        let scored = told["prompt_logprobs"].as_array().unwrap();
        assert_eq!((scored.len(), &scored[0]), (prompt.len(), &Value::Null));
        let of = |place: usize| scored[place][prompt[place].to_string()]["logprob"].clone();
        assert_eq!((first.len()..prompt.len()).map(of).collect::<Vec<_>>(), drawn, "seed {seed}");

        let echo = json!({ "prompt": prompt, "max_tokens": 1, "echo": true, "logprobs": 0, "n": 2 });
        for choice in server.ok("/v1/completions", &echo)["choices"].as_array().unwrap() {
            let values = choice["logprobs"]["token_logprobs"].as_array().unwrap();
            assert_eq!((values.len(), &values[0]), (prompt.len() + 1, &Value::Null));
            assert_eq!(values[first.len()..prompt.len()], drawn[..]);
            let text = server.ok("/detokenize", &json!({ "tokens": prompt }))["prompt"].clone();
            assert!(choice["text"].as_str().unwrap().starts_with(text.as_str().unwrap()));
        }
        let body = json!({ "input_ids": prompt, "return_logprob": true, "logprob_start_len": first.len(), "sampling_params": { "max_new_tokens": 1 } });
        let told = server.ok("/generate", &body);
        let scored = told["meta_info"]["input_token_logprobs"].as_array().unwrap();
        assert_eq!(scored.iter().map(|each| each[0].clone()).collect::<Vec<_>>(), drawn);
        assert_eq!(
            scored.iter().map(|each| each[1].clone()).collect::<Vec<_>>(),
            tokens.iter().map(|token| json!(token)).collect::<Vec<_>>()
        );
    }
    server.is_empty_soon();
}

/// A prompt that is scored has its scores however its answers end: by a stop at a checkpoint, by their length, or by an abort once they have begun.
#[test]
fn a_prompt_is_scored_however_its_answers_end() {
    let server = Running::start();
    let prompt = [3, 1, 4, 1, 5, 9, 2, 6];
    let params = json!({ "max_tokens": 1, "prompt_logprobs": 0 });
    let scores = server.ok("/inference/v1/generate", &json!({ "token_ids": prompt, "sampling_params": params }))["prompt_logprobs"].clone();
    assert_eq!(scores.as_array().unwrap().len(), prompt.len());
    let values: Vec<Value> =
        (1..prompt.len()).map(|place| scores[place][prompt[place].to_string()]["logprob"].clone()).collect();
    let mut stopped = 0;
    for seed in 0..24u64 {
        let stop =
            [json!({ "stop": ["e"] }), json!({ "stop_token_ids": [7, 9, 12] })][seed as usize % 2].clone();
        let mut params = json!({ "seed": seed, "n": 1 + seed % 3, "max_tokens": 60, "ignore_eos": true, "logprobs": 0, "prompt_logprobs": 0 });
        params.as_object_mut().unwrap().extend(stop.as_object().unwrap().clone());
        let tokens =
            server.ok("/inference/v1/generate", &json!({ "token_ids": prompt, "sampling_params": params }));
        assert_eq!(tokens["prompt_logprobs"], scores, "seed {seed}");
        let mut body = params.clone();
        body["prompt"] = json!(prompt);
        body["echo"] = json!(true);
        body["return_token_ids"] = json!(true);
        for choice in server.ok("/v1/completions", &body)["choices"].as_array().unwrap() {
            assert_eq!(choice["prompt_logprobs"], scores, "seed {seed}");
            let told = choice["logprobs"]["token_logprobs"].as_array().unwrap();
            assert_eq!(told[1..prompt.len()], values[..], "seed {seed}");
            assert_eq!(told.len(), prompt.len() + choice["token_ids"].as_array().unwrap().len());
            stopped += u64::from(choice["finish_reason"] == "stop");
        }
        let mut params = params;
        params.as_object_mut().unwrap().remove("prompt_logprobs");
        let body = json!({ "input_ids": prompt, "sampling_params": params, "return_logprob": true, "logprob_start_len": 0 });
        let told = server.ok("/generate", &body);
        let told = if told.is_array() { told[0].clone() } else { told };
        let told = told["meta_info"]["input_token_logprobs"].as_array().unwrap();
        assert_eq!(told[1..].iter().map(|one| one[0].clone()).collect::<Vec<_>>(), values, "seed {seed}");
    }
    assert!(stopped > 20, "{stopped} answers were stopped");

    // An answer that an abort ends has them, or is told to have none.
    let body = json!({ "prompt": prompt, "n": 4, "max_tokens": 64, "ignore_eos": true, "logprobs": 0, "echo": true, "prompt_logprobs": 0, "return_token_ids": true });
    let mut aborted = 0;
    for round in 0..200u64 {
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| server.ok("/v1/completions", &body));
            std::thread::sleep(std::time::Duration::from_micros(20 * round));
            server.ok("/abort_requests", &json!({}));
            for choice in asked.join().unwrap()["choices"].as_array().unwrap() {
                let count = choice["token_ids"].as_array().unwrap().len();
                if choice["finish_reason"] != "abort" {
                    continue;
                }
                let lacks = choice["prompt_logprobs"].is_null() && choice["logprobs"].is_null();
                assert!(
                    lacks && count == 0 || choice["prompt_logprobs"] == scores,
                    "{count} tokens: {choice}"
                );
                aborted += u64::from(count > 0);
            }
        });
    }
    assert!(aborted > 0, "no answer was aborted between its first token and its last");
    server.is_empty_soon();
}

/// A token that was drawn is not told as the most likely one, by anyone who asks for that.
#[test]
fn a_drawn_token_is_not_called_the_top_one() {
    let server = Running::start();
    let body = json!({ "prompt": [3, 1, 4], "max_tokens": 4, "logprobs": 1, "echo": true, "temperature": 0 });
    let (status, ignored, told) = noted(&server, "/v1/completions", Some(&body));
    assert_eq!((status, ignored.as_deref()), (200, Some("top_logprobs")));
    let told = &told["choices"][0]["logprobs"];
    assert_eq!((&told["top_logprobs"], told["token_logprobs"].as_array().unwrap().len()), (&Value::Null, 7));
    let mut streams = body.clone();
    streams["stream"] = json!(true);
    streams["echo"] = json!(false);
    assert!(
        server
            .streamed("/v1/completions", &streams)
            .iter()
            .all(|line| line["choices"][0]["logprobs"]["top_logprobs"].is_null())
    );
    // As with vLLM, 0 stands for the token itself.
    let mut body = body;
    body["logprobs"] = json!(0);
    let (_, ignored, told) = noted(&server, "/v1/completions", Some(&body));
    let tops = told["choices"][0]["logprobs"]["top_logprobs"].as_array().unwrap();
    assert!(
        ignored.is_none() && tops.len() == 7 && tops[0].is_null() && tops[1].as_object().unwrap().len() == 1
    );
    let params = json!({ "logprobs": 1, "max_tokens": 2 });
    let (status, ignored, _) = noted(
        &server,
        "/inference/v1/generate",
        Some(&json!({ "token_ids": [1], "sampling_params": params })),
    );
    assert_eq!((status, ignored.as_deref()), (200, Some("top_logprobs")));
}
