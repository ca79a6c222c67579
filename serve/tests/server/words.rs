//! Texts of tokens: between a prompt and its answer, and of tokens that are parts of letters.

use rstest::rstest;
use serde_json::{Map, Value, json};

use crate::running::Running;

/// A tokeniser of 64 tokens: two special ones, blanks before words, and bytes.
fn tokenizer(decoder: &Value, token: impl Fn(u32) -> String) -> Value {
    let vocabulary: Map<String, Value> = (0..64).map(|id| (token(id), json!(id))).collect();
    let special = |id: u32| {
        json!({ "id": id, "content": token(id), "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true })
    };
    json!({
        "version": "1.0", "decoder": decoder, "added_tokens": [special(0), special(1)],
        "pre_tokenizer": { "type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true },
        "model": { "type": "WordLevel", "vocab": vocabulary, "unk_token": token(1) },
    })
}

/// Words of SentencePiece's kind, and the bytes of `ë` as 2 and 3, of a new line as 4.
fn sentence(decoder: &Value) -> Value {
    tokenizer(decoder, |id| match id {
        0 | 1 => format!("<{id}>"),
        2 => "<0xC3>".into(),
        3 => "<0xAB>".into(),
        4 => "<0x0A>".into(),
        id => format!("▁w{id}"),
    })
}

fn metaspace() -> Value {
    json!({ "type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true })
}

fn llama() -> Value {
    json!({ "type": "Sequence", "decoders": [
        { "type": "Replace", "pattern": { "String": "▁" }, "content": " " }, { "type": "ByteFallback" },
        { "type": "Fuse" }, { "type": "Strip", "content": " ", "start": 1, "stop": 0 },
    ] })
}

/// The text of an answer is what it adds to that of its prompt: by each endpoint, whole and as it comes, for `echo`, offsets and stop texts.
#[rstest]
fn an_answer_goes_on_where_its_prompt_ends(#[values(metaspace(), llama())] decoder: Value) {
    let server = Running::speaking(&sentence(&decoder));
    let all = |tokens: &Value| {
        let told = server.ok("/detokenize", &json!({ "tokens": tokens }));
        told["prompt"].as_str().unwrap().to_owned()
    };
    let prompt = json!([9, 10, 11]);
    let before = all(&prompt);
    assert_eq!(before, "w9 w10 w11");
    let mut begins = 0;
    for seed in 0..8 {
        let params = json!({ "seed": seed, "max_tokens": 12, "ignore_eos": true });
        let mut body = params.clone();
        body.as_object_mut().unwrap().extend(
            json!({ "prompt": prompt, "logprobs": 0, "return_token_ids": true }).as_object().unwrap().clone(),
        );
        let told = server.ok("/v1/completions", &body)["choices"][0].clone();
        let tokens: Vec<u32> = serde_json::from_value(told["token_ids"].clone()).unwrap();
        let whole = all(&json!([&[9, 10, 11], &tokens[..]].concat()));
        let text = told["text"].as_str().unwrap().to_owned();
        assert_eq!(before.clone() + &text, whole, "seed {seed}");
        let sglang = server.ok("/generate", &json!({ "input_ids": prompt, "sampling_params": params }));
        assert_eq!(sglang["text"], text);
        let chat = json!({ "messages": [{ "role": "user", "content": "w9 w10 w11" }], "seed": seed, "max_tokens": 12, "ignore_eos": true });
        assert_eq!(server.ok("/v1/chat/completions", &chat)["choices"][0]["message"]["content"], text);

        let mut streams = body.clone();
        streams["stream"] = json!(true);
        let joined: String = server
            .streamed("/v1/completions", &streams)
            .iter()
            .map(|line| line["choices"][0]["text"].as_str().unwrap())
            .collect();
        assert_eq!(joined, text);

        let mut echoes = body.clone();
        echoes["echo"] = json!(true);
        let echo = server.ok("/v1/completions", &echoes)["choices"][0].clone();
        assert_eq!(echo["text"], whole);
        let letters: Vec<char> = whole.chars().collect();
        let names = echo["logprobs"]["tokens"].as_array().unwrap();
        let offsets = echo["logprobs"]["text_offset"].as_array().unwrap();
        for (place, (name, offset)) in names.iter().zip(offsets).enumerate() {
            // The blank before the first word of all is stripped; bytes are parts of letters.
            let name = name.as_str().unwrap();
            let name = if place == 0 { name.trim_start() } else { name };
            let found: String =
                letters[offset.as_u64().unwrap() as usize..].iter().take(name.chars().count()).collect();
            assert!(
                found == name || name.contains('\u{FFFD}'),
                "seed {seed}: {name:?} at {offset} of {whole:?}"
            );
        }

        // A stop text may begin with the blank.
        if tokens[0] > 4 {
            body["stop"] = json!([" w"]);
            let stopped = server.ok("/v1/completions", &body)["choices"][0].clone();
            assert_eq!((&stopped["text"], &stopped["finish_reason"]), (&json!(""), &json!("stop")));
            assert_eq!(stopped["token_ids"].as_array().unwrap().len(), 1);
            begins += 1;
        }
    }
    assert!(begins > 0);
    server.is_empty_soon();
}

/// What a prompt ends with is not told again: a byte that is a new line, and half a letter.
#[test]
fn an_answer_tells_nothing_of_its_prompt() {
    let server = Running::speaking(&sentence(&llama()));
    for seed in 0..8 {
        let body = json!({ "prompt": [9, 4], "seed": seed, "max_tokens": 6, "ignore_eos": true, "return_token_ids": true });
        let told = server.ok("/v1/completions", &body)["choices"][0].clone();
        let tokens: Vec<u32> = serde_json::from_value(told["token_ids"].clone()).unwrap();
        if tokens.contains(&2) || tokens.contains(&3) || tokens[0] == 4 {
            continue;
        }
        let all = [&[9, 4], &tokens[..]].concat();
        let whole = server.ok("/detokenize", &json!({ "tokens": all }));
        let text = told["text"].as_str().unwrap();
        assert_eq!(whole["prompt"], format!("w9\n{text}"), "seed {seed}");
    }
    server.is_empty_soon();
}

/// A token that is a part of a letter has its own bytes, and the offsets behind it are those of the text, with vocabularies of GPT-2's and of
/// SentencePiece's kind.
#[rstest]
fn parts_of_letters_have_their_bytes(#[values(false, true)] sentences: bool) {
    // `ë` is C3 AB, which GPT-2 writes `Ã` and `«`.
    let level =
        json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true });
    let tokenizer = match sentences {
        true => sentence(&llama()),
        false => tokenizer(&level, |id| match id {
            0 | 1 => format!("<{id}>"),
            2 => "Ã".into(),
            3 => "«".into(),
            id => format!("w{id}"),
        }),
    };
    let server = Running::speaking(&tokenizer);
    let prompt = json!([9, 2, 3, 10, 2, 3, 2, 3, 11]);
    let body = json!({ "prompt": prompt, "max_tokens": 1, "echo": true, "logprobs": 0, "ignore_eos": true, "seed": 1 });
    let told = server.ok("/v1/completions", &body)["choices"][0].clone();
    let (text, offsets) = (told["text"].as_str().unwrap(), &told["logprobs"]["text_offset"]);
    let letters: Vec<char> = text.chars().collect();
    for (place, word) in [(0, "w9"), (3, "w10"), (8, "w11")] {
        let at = offsets[place].as_u64().unwrap() as usize;
        let found: String = letters[at..].iter().collect();
        assert!(found.trim_start().starts_with(word), "{word} at {at} of {text}");
    }
    // Bytes of answers, put together, are those of the text.
    let mut parts = 0;
    for seed in 0..40 {
        let chat = json!({ "messages": [{ "role": "user", "content": "w9" }], "seed": seed, "max_tokens": 40, "ignore_eos": true, "logprobs": true, "temperature": 3.0 });
        let told = server.ok("/v1/chat/completions", &chat)["choices"][0].clone();
        let text = told["message"]["content"].as_str().unwrap();
        let bytes = |choice: &Value| -> Vec<Vec<u8>> {
            let all = choice["logprobs"]["content"].as_array().unwrap();
            all.iter().map(|one| serde_json::from_value(one["bytes"].clone()).unwrap()).collect()
        };
        let each = bytes(&told);
        parts += each.iter().filter(|bytes| bytes[..] == [0xC3] || bytes[..] == [0xAB]).count();
        let all = String::from_utf8_lossy(&each.concat()).into_owned();
        if !text.contains('\u{FFFD}') && !all.contains('\u{FFFD}') {
            assert_eq!(all, text, "seed {seed}");
        }
        let prompt =
            server.ok("/tokenize", &json!({ "prompt": "w9", "add_special_tokens": false }))["tokens"].clone();
        let params =
            json!({ "seed": seed, "max_tokens": 40, "ignore_eos": true, "logprobs": 0, "temperature": 3.0 });
        let same =
            server.ok("/inference/v1/generate", &json!({ "token_ids": prompt, "sampling_params": params }));
        assert_eq!(bytes(&same["choices"][0]), each);
    }
    assert!(parts > 0, "no part of a letter was drawn");
    server.is_empty_soon();
}
