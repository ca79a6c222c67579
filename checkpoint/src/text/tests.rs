use proptest::prelude::*;

use super::*;
use doorbell_lm::micro;

fn text() -> Text {
    let image = micro();
    Text::new(&image.about, image.model.shape.vocabulary).unwrap()
}

#[test]
fn letters_are_tokens_and_back() {
    let text = text();
    let tokens = text.encode("Once upon a time, x=7?").unwrap();
    assert_eq!(tokens.len(), 22);
    assert_eq!(tokens[..5], [18, 17, 6, 8, 2]);
    let mut stream = text.stream();
    let said: String = tokens.iter().map(|&token| stream.next(token).unwrap()).collect();
    assert_eq!(said + &stream.end().unwrap(), "once upon a time, x=7?");
    assert_eq!(text.decode(&tokens).unwrap(), "once upon a time, x=7?");
    assert_eq!(text.decode(&[18, 0, 17]).unwrap(), "on", "an end is no text");
    assert_eq!(text.encode("é").unwrap(), [1]);
    assert!(text.ends(0) && !text.ends(1) && !text.chats());
}

#[test]
fn what_cannot_be_used_is_told() {
    let image = micro();
    let broken = About { tokenizer: "{}".into(), ..image.about.clone() };
    assert!(matches!(Text::new(&broken, 64), Err(TextError::Tokenizer(_))));
    let small = Text::new(&image.about, 10).unwrap();
    assert_eq!(small.encode("az"), Err(TextError::Beyond { token: 29, vocabulary: 10 }));
}

#[test]
fn a_chat_is_what_its_template_says() {
    let mut image = micro();
    image.about.chat = "{% for m in messages %}<{{ m['role'] }}>{{ m.content }}{% endfor %}\
                        {% if add_generation_prompt %}{{ eos_token }}answer:{% endif %}"
        .into();
    let of = |about: &About| Text::new(about, 64).unwrap().chat("why?");
    assert_eq!(of(&image.about).unwrap(), "<user>why?<end>answer:");
    image.about.chat = "{{ raise_exception('no users') }}".into();
    let error = of(&image.about).unwrap_err().to_string();
    assert!(error.contains("no users") && error.ends_with("with --raw"), "{error}");
    image.about.chat = "{% for".into();
    assert!(of(&image.about).is_err());
}

/// A model whose tokens are these texts, the first one special, with this decoder.
fn decoding(decoder: &serde_json::Value, tokens: &[&str]) -> Text {
    let vocabulary: serde_json::Map<_, _> =
        tokens.iter().zip(0..).map(|(&token, id)| (token.into(), id.into())).collect();
    let tokenizer = serde_json::json!({
        "version": "1.0", "decoder": decoder,
        "added_tokens": [{"id": 0, "content": tokens[0], "single_word": false, "lstrip": false, "rstrip": false,
                          "normalized": false, "special": true}],
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": tokens[0]},
    });
    Text::new(&About { tokenizer: tokenizer.to_string(), ..About::default() }, tokens.len()).unwrap()
}

/// What a stream says of tokens that come so many at a time.
fn streamed(text: &Text, tokens: &[u32], together: usize) -> String {
    let mut stream = text.stream();
    let said: String = tokens.chunks(together).map(|tokens| stream.take(tokens).unwrap()).collect();
    said + &stream.end().unwrap()
}

fn decoders() -> Vec<serde_json::Value> {
    use serde_json::json;
    let all = |stages: &[serde_json::Value]| json!({"type": "Sequence", "decoders": stages});
    let blanks = json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "});
    let letters = json!({"type": "Replace", "pattern": {"Regex": "[ab]+|$"}, "content": "xy"});
    let (bytes, fuse) = (json!({"type": "ByteFallback"}), json!({"type": "Fuse"}));
    let level =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    let strip = |content: &str, start: u64, stop: u64| json!({"type": "Strip", "content": content, "start": start, "stop": stop});
    let metaspace = |scheme: &str| json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": true});
    let pieces = |cleanup: bool| json!({"type": "WordPiece", "prefix": "##", "cleanup": cleanup});
    let ctc = json!({"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": true});
    let bpe = |suffix: &str| json!({"type": "BPEDecoder", "suffix": suffix});
    vec![
        serde_json::Value::Null,
        // Those of Llama 2 and Gemma.
        all(&[blanks.clone(), bytes.clone(), fuse.clone(), strip(" ", 1, 0)]),
        all(&[blanks.clone(), bytes.clone(), fuse.clone()]),
        level.clone(),
        metaspace("always"),
        metaspace("never"),
        pieces(true),
        pieces(false),
        ctc.clone(),
        bpe("</w>"),
        bpe(""),
        bytes.clone(),
        fuse.clone(),
        letters.clone(),
        strip("a", 2, 0),
        strip("▁", 1, 1),
        all(&[]),
        all(&[all(std::slice::from_ref(&bytes)), metaspace("first")]),
        all(&[ctc, bytes.clone(), bpe("</w>")]),
        all(&[pieces(true), fuse.clone(), strip(" ", 3, 2)]),
        all(&[level.clone(), strip("a", 1, 1), letters.clone()]),
        all(&[fuse.clone(), letters]),
        all(&[fuse.clone(), level, bytes]),
        all(&[fuse.clone(), fuse, metaspace("first"), pieces(true), blanks, bpe("")]),
    ]
}

/// Tokens at which decoders look back, or ahead: bytes, whole letters and parts of one, blanks, and their own marks.
const PIECES: [&str; 36] = [
    "</s>",
    "<0xE2>",
    "<0x82>",
    "<0xAC>",
    "<0xFF>",
    "<0x41>",
    "<0xF0>",
    "<0x9F>",
    "<0x98>",
    "<0x80>",
    "<0x0a>",
    "<0x+5>",
    "<0xé>",
    "a",
    "b",
    "aa",
    "▁",
    "▁a",
    "▁▁b",
    "##c",
    "##",
    " ",
    "  d ",
    " .",
    "n't",
    " do not",
    "</w>",
    "e</w>",
    "<pad>",
    "|",
    "â",
    "Ĥ¬",
    "ðŁĺ",
    "Ģ",
    "é日",
    "Ġ\u{AD}Ń",
];

/// Crate `tokenizers` decodes all tokens at once; where it panics it says nothing to compare with.
fn decoded(text: &Text, tokens: &[u32]) -> Option<String> {
    contained(|| text.tokenizer.decode(tokens, true).unwrap()).ok()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn a_stream_says_what_all_tokens_say(
        decoder in proptest::sample::select(decoders()),
        tokens in proptest::collection::vec((0..PIECES.len() as u32 + 1, 1..4usize), 0..40),
        bytes in any::<bool>(),
        together in 1..9usize,
    ) {
        let text = decoding(&decoder, &PIECES);
        // Runs of a token, and answers that are bytes for the most part.
        let of = |token: u32| if bytes && token > 14 { token % 14 } else { token };
        let tokens: Vec<u32> =
            tokens.iter().flat_map(|&(token, times)| std::iter::repeat_n(of(token), times)).collect();
        let said = streamed(&text, &tokens, together);
        prop_assert_eq!(&text.decode(&tokens).unwrap(), &said);
        if let Some(decoded) = decoded(&text, &tokens) {
            prop_assert_eq!(decoded, said, "{}", decoder);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    /// The text of all tokens is the text of the first ones and what a stream after them yields, unless the first ones end within a
    /// character or a run of bytes.
    #[test]
    fn a_stream_behind_others_says_what_is_added(
        decoder in proptest::sample::select(decoders()),
        tokens in proptest::collection::vec(0..PIECES.len() as u32, 0..20),
        before in 0..20usize,
        together in 1..9usize,
    ) {
        let text = decoding(&decoder, &PIECES);
        let (first, rest) = tokens.split_at(before.min(tokens.len()));
        let mut stream = text.stream_behind(first);
        let mut said = String::new();
        for tokens in rest.chunks(together) {
            said.push_str(&stream.take(tokens).unwrap());
        }
        said.push_str(&stream.end().unwrap());
        let (all, first) = (text.decode(&tokens).unwrap(), text.decode(first).unwrap());
        if let Some(rest) = all.strip_prefix(&first) {
            prop_assert!(rest == said || first.ends_with('\u{FFFD}') || rest.starts_with('\u{FFFD}'), "{}: {:?} behind {:?}, not {:?}", decoder, said, first, rest);
        }
    }
}

/// Tokens that are parts of characters have their own bytes.
#[test]
fn tokens_of_bytes_have_these() {
    let all = decoders();
    let of = |decoder: usize, token: &str| {
        let token = PIECES.iter().position(|piece| *piece == token).unwrap() as u32;
        decoding(&all[decoder], &PIECES).bytes(token)
    };
    let byte = PIECES[1];
    let value = u8::from_str_radix(&byte[3..5], 16).unwrap();
    assert_eq!((of(1, byte), of(2, byte)), (Some(vec![value]), Some(vec![value])));
    assert_eq!(of(4, byte), None, "Metaspace knows none");
    assert_eq!(of(1, "a"), None);
    assert_eq!(of(3, "a"), Some(b"a".to_vec()));
}

/// Nothing of a run of bytes is said before it is known to be a text; then all of it is, and what follows.
#[test]
fn a_run_of_bytes_is_said_once_it_has_ended() {
    let gemma = &decoders()[2];
    let text = decoding(gemma, &PIECES);
    let euro: Vec<u32> = [1, 2, 3].repeat(20);
    let mut stream = text.stream();
    assert!(euro.iter().all(|&token| stream.next(token).unwrap().is_empty()));
    assert_eq!(stream.next(13).unwrap(), "€".repeat(20) + "a");
    assert_eq!(stream.next(16).unwrap(), " ", "and then each token as it comes");
    assert_eq!(streamed(&text, &[13, 4, 13, 17], 1), "a\u{FFFD}a a", "a byte that is no letter ends nothing");
    assert_eq!(streamed(&text, &[&euro[..], &[1]].concat(), 1), "\u{FFFD}".repeat(61));
}

/// Letters are said as soon as they are whole, and blanks as soon as they are not to be stripped.
#[test]
fn a_stream_waits_for_no_more_than_it_must() {
    let all = decoders();
    let each = |decoder: usize, tokens: &[u32]| -> Vec<String> {
        let text = decoding(&all[decoder], &PIECES);
        let mut stream = text.stream();
        tokens.iter().map(|&token| stream.next(token).unwrap()).collect()
    };
    assert_eq!(each(3, &[30, 31, 13, 32, 33]), ["", "€", "a", "", "😀"]);
    assert_eq!(each(1, &[16, 16, 17, 13]), ["", " ", " a", "a"]);
    assert_eq!(each(19, &[13, 21, 21, 21]), ["a", "", "  ", "  "], "the last two may end the answer");
}

/// A stream takes each token once. If it took all of them anew at each step, this would take a minute.
#[test]
fn a_long_run_of_bytes_takes_no_longer_for_each() {
    let text = decoding(&decoders()[2], &PIECES);
    let tokens = [1, 2, 3].repeat(10_000);
    let start = std::time::Instant::now();
    assert_eq!(streamed(&text, &tokens, 1), "€".repeat(10_000));
    let taken = start.elapsed();
    assert!(taken.as_secs() < 5, "{taken:?}");
}

/// Crate `tokenizers` panics where a token has fewer letters than are to be stripped.
#[test]
fn a_decoder_that_strips_more_than_there_is_fails_at_nothing() {
    let most = u64::MAX;
    let strip = serde_json::json!({"type": "Strip", "content": "a", "start": most, "stop": most});
    let text = decoding(&strip, &PIECES);
    assert_eq!(decoded(&text, &[13]), None);
    assert_eq!(streamed(&text, &[13, 15, 34, 17], 1), "é日▁");
}

proptest! {
    #[test]
    fn a_text_is_tokens_and_back(letters in "[a-z ,.0-9]{0,80}", together in 1..40usize) {
        let text = text();
        let tokens = text.encode(&letters).unwrap();
        prop_assert_eq!(streamed(&text, &tokens, 1), letters.as_str());
        prop_assert_eq!(streamed(&text, &tokens, together), letters);
    }
}

/// A file asks for other tokens of the same text each time.
#[test]
fn merges_are_never_left_out() {
    let mut tokenizer: serde_json::Value = serde_json::from_str(&micro().about.tokenizer).unwrap();
    tokenizer["model"] = serde_json::json!({
        "type": "BPE", "dropout": 0.5, "vocab": {"a": 0, "b": 1, "ab": 2, "abab": 3},
        "merges": [["a", "b"], ["ab", "ab"]],
    });
    let about = About { tokenizer: tokenizer.to_string(), ..About::default() };
    let text = Text::new(&about, 64).unwrap();
    let letters = "ab".repeat(20);
    for _ in 0..20 {
        assert_eq!(text.encode(&letters).unwrap(), [3; 10]);
    }
}

/// A chat with this template.
fn chat(template: &str) -> Result<String, String> {
    let about = About { chat: template.into(), ..micro().about };
    Text::new(&about, 64).unwrap().chat("why?").map_err(|error| error.to_string())
}

/// Time, memory and output of a template are bounded, whatever takes them.
#[test]
fn a_template_that_takes_too_much_is_refused() {
    let lists = "{% set x = [1] %}{% set ns = namespace(x=x) %}{% for i in range(40) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}";
    let texts = "{% set ns = namespace(s='x' * 1000) %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}";
    let loops = "{% for i in range(99999) %}{% for j in range(99999) %}";
    for (template, variable) in [
        (format!("{loops}{{{{ j }}}}{{% endfor %}}{{% endfor %}}"), "STEPS"),
        (format!("{loops}{{% endfor %}}{{% endfor %}}"), "STEPS"),
        (format!("{texts}{{{{ ns.s }}}}"), "MEMORY"),
        (format!("{texts}{{{{ ns.s|length }}}}"), "MEMORY"),
        (texts.replace('~', "+"), "MEMORY"),
        (texts.replace("ns.s ~ ns.s", "ns.s.replace('x', ns.s)"), "MEMORY"),
        (texts.replace("ns.s ~ ns.s", "[ns.s, ns.s]|join"), "MEMORY"),
        (format!("{lists}{{{{ ns.x|tojson }}}}"), "DOORBELL_LIMIT_TEMPLATE_"),
        ("{{ 'x' * 17000000 }}".into(), "OUTPUT"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}".into(), "recursion"),
        ("x".repeat((1 << 20) + 1), "TEMPLATE_BYTES"),
    ] {
        let told = chat(&template).unwrap_err();
        let short: String = template.chars().take(200).collect();
        assert!(told.contains(variable) && told.ends_with("with --raw"), "{short}: {told}");
    }
    // As long as it is within all of them, nothing is said.
    assert_eq!(chat("{{ 'x' * 1000000 }}").unwrap().len(), 1_000_000);
}

/// What does not end is told as the parser tells it, wherever a letter of several bytes ends.
#[test]
fn a_tag_that_does_not_end_is_told() {
    for template in
        ["{%éa", "{%日", "{%", "{%é", "{{ 'a' }}{%日本", "{{é", "{#é", "a{% if x %}{% éé", "{%-éa"]
    {
        let told = chat(template).unwrap_err();
        assert!(!told.contains("char boundary") && !told.contains("range"), "{template}: {told}");
    }
    assert_eq!(chat("{% generation %}é{%- endgeneration %}").unwrap(), "é");
}

/// What takes its time within one step ends by the clock.
#[test]
fn a_step_that_does_not_end_is_ended() {
    let lists = "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(60) %}\
                 {% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% endfor %}";
    let told = chat(&format!("{lists}{{{{ ns.x == ns.y }}}}")).unwrap_err();
    assert!(told.contains("DOORBELL_LIMIT_TEMPLATE_SECONDS=N raises"), "{told}");
}

/// Threads that render at once do not disturb each other.
#[test]
fn chats_of_many_threads() {
    std::thread::scope(|scope| {
        for thread in 0..8 {
            scope.spawn(move || {
                for turn in 0..20 {
                    let template = format!("{{{{ {thread} * 100 + {turn} }}}}");
                    assert_eq!(chat(&template).unwrap(), (thread * 100 + turn).to_string());
                }
            });
        }
    });
}

/// At these, crate `tokenizers` panics.
#[test]
fn merges_that_come_to_no_token_are_refused() {
    let with = |prefix: serde_json::Value, merges: serde_json::Value| {
        let tokenizer = serde_json::json!({
            "version": "1.0", "added_tokens": [],
            "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "##b": 2, "ab": 3}, "merges": merges,
                      "continuing_subword_prefix": prefix},
        });
        let about = About { tokenizer: tokenizer.to_string(), ..About::default() };
        Text::new(&about, 64).map(drop).map_err(|error| error.to_string())
    };
    let none = serde_json::Value::Null;
    assert_eq!(with(none.clone(), serde_json::json!([["a", "b"]])), Ok(()));
    assert_eq!(with(none.clone(), serde_json::json!(["a b"])), Ok(()));
    assert_eq!(with("##".into(), serde_json::json!([["a", "##b"]])), Ok(()));
    for (prefix, merges) in [
        (none.clone(), serde_json::json!([["ab", "ab"]])),
        (none.clone(), serde_json::json!(["ab ab"])),
        (none, serde_json::json!([["a", "##b"]])),
        ("##".into(), serde_json::json!([["a", "b"]])),
        ("é".into(), serde_json::json!([["a", "#é"]])),
    ] {
        let told = with(prefix, merges).unwrap_err();
        assert!(told.contains("is no token of the vocabulary; import the model again"), "{told}");
    }
}

/// The tokeniser of a model with other fields, and what becomes of a text.
fn changed(change: impl FnOnce(&mut serde_json::Value)) -> Result<(), String> {
    let mut tokenizer: serde_json::Value = serde_json::from_str(&micro().about.tokenizer).unwrap();
    change(&mut tokenizer);
    read(tokenizer.to_string())
}

fn read(tokenizer: String) -> Result<(), String> {
    let about = About { tokenizer, ..micro().about };
    Text::new(&about, 64).and_then(Text::tried).map(drop).map_err(|error| error.to_string())
}

/// With these stages in a part of it.
fn staged(part: &str, stage: &serde_json::Value) -> Result<(), String> {
    changed(|tokenizer| tokenizer[part] = stage.clone())
}

/// A map of SentencePiece with one key, and its text.
fn charsmap(key: &[u8], text: &str) -> serde_json::Value {
    let mut tree = vec![0_u32; 4096];
    let mut place = 0;
    let mut word = 0;
    for (&byte, block) in key.iter().zip(1_u32..) {
        // Each node has a block of 256 words for its children.
        tree[word] |= (block << 8 ^ place) << 10;
        word = (block << 8 ^ u32::from(byte)) as usize;
        place = word as u32;
        tree[word] = u32::from(byte);
    }
    // The leaf's value is the word where its node is.
    tree[word] |= 1 << 8 | (3840 ^ place) << 10;
    tree[3840] = 0;
    let mut map = (tree.len() as u32 * 4).to_le_bytes().to_vec();
    map.extend(tree.iter().flat_map(|word| word.to_le_bytes()));
    map.extend(text.as_bytes());
    map.extend(b"\0and the next one, which is long, but for no key that there is\0");
    let map = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, map);
    serde_json::json!({"type": "Precompiled", "precompiled_charsmap": map})
}

/// Where a stage has no type, or one that crate `tokenizers` does not know, its reader goes by the fields.
#[test]
fn a_stage_without_a_type_is_refused() {
    use serde_json::json;
    let long = "e".repeat(3000);
    let replace = json!({"pattern": {"String": "e"}, "content": long});
    let prepend = |kind: &str| json!({"type": kind, "prepend": long});
    let within = |inner: &str, stage: &serde_json::Value| json!({"type": "Sequence", inner: [{"type": "Sequence", inner: [stage]}]});
    for (part, stage, at) in [
        ("normalizer", replace.clone(), "normalizer has no type"),
        ("normalizer", json!({"normalizers": [replace]}), "normalizer has no type"),
        ("normalizer", json!({"prepend": long}), "normalizer has no type"),
        ("normalizer", json!([long]), "normalizer has no type"),
        ("normalizer", json!({"type": 1, "prepend": long}), "normalizer has no type"),
        ("normalizer", json!({"type": {"Prepend": null}, "prepend": long}), "normalizer has no type"),
        ("normalizer", json!({"precompiled_charsmap": "/////wAAAAA="}), "normalizer has no type"),
        (
            "normalizer",
            within("normalizers", &replace),
            "normalizer.normalizers[0].normalizers[0] has no type",
        ),
        (
            "normalizer",
            within("normalizers", &json!(null)),
            "normalizer.normalizers[0].normalizers[0] has no type",
        ),
        ("normalizer", prepend("prepend"), "normalizer is of type \"prepend\", which is unknown"),
        ("normalizer", prepend("Metaspace"), "normalizer is of type \"Metaspace\", which is unknown"),
        ("pre_tokenizer", json!({"length": 0}), "pre_tokenizer has no type"),
        (
            "pre_tokenizer",
            within("pretokenizers", &json!({"type": "Fixed", "length": 0})),
            "[0] is of type \"Fixed\"",
        ),
        ("decoder", json!({"decoders": [replace]}), "decoder has no type"),
        ("decoder", within("decoders", &replace), "decoder.decoders[0].decoders[0] has no type"),
        (
            "post_processor",
            json!({"single": [], "pair": [], "special_tokens": {}}),
            "post_processor has no type",
        ),
        ("post_processor", within("processors", &json!({"type": "Template"})), "[0] is of type \"Template\""),
        ("model", json!({"vocab": {"a": 0}, "unk_token": "a"}), "model has no type"),
        ("model", json!({"type": "Word", "vocab": {"a": 0}, "unk_token": "a"}), "model is of type \"Word\""),
    ] {
        let told = staged(part, &stage).unwrap_err();
        assert!(told.contains("tokenizer.json: ") && told.contains(at), "{part} {stage}: {told}");
    }
    // Files of before there were types are of one kind.
    let old = json!({"vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]});
    assert_eq!(staged("model", &old), Ok(()));
    // A field that is there twice keeps the crate's reader from seeing the type: the last one counts.
    let twice = |types: &str| {
        let stage = format!(r#"{{{types}, "prepend": "{long}"}}"#);
        read(micro().about.tokenizer.replace(r#"{"type":"Lowercase"}"#, &stage))
    };
    assert!(micro().about.tokenizer.contains(r#"{"type":"Lowercase"}"#));
    assert_eq!(twice(r#""type": "ByteLevel", "type": "ByteLevel""#), Ok(()));
    let told = twice(r#""type": "Prepend", "type": "Prepend""#).unwrap_err();
    assert!(told.contains("normalizer 3001 times"), "{told}");
}

/// Whatever stage makes a text longer is counted, and so are all of them together.
#[test]
fn no_stage_lengthens_a_text_uncounted() {
    use serde_json::json;
    let limit = "DOORBELL_LIMIT_TOKENIZER_GROWTH=N raises this limit";
    let all = |inner: &str, stage: serde_json::Value, times: usize| json!({"type": "Sequence", inner: vec![stage; times]});
    let piece = |kind: &str, id: &str| json!({kind: {"id": id, "type_id": 0}});
    let template = |pieces: Vec<serde_json::Value>, ids: usize| {
        let token = json!({"id": "a", "ids": vec![2; ids], "tokens": vec!["a"; ids]});
        json!({"type": "TemplateProcessing", "single": pieces, "pair": [], "special_tokens": {"a": token}})
    };
    let text = || piece("Sequence", "A");
    let special = || piece("SpecialToken", "a");
    let blank = |letters: usize| json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": letters > 0});
    let level =
        json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true});
    let unicode = |kind: &str| json!({"type": kind});
    for (part, stage) in [
        ("normalizer", charsmap(b"e", &"x".repeat(300))),
        ("normalizer", charsmap("é".as_bytes(), &"x".repeat(600))),
        ("normalizer", all("normalizers", charsmap(b"e", "ee"), 9)),
        ("normalizer", all("normalizers", unicode("ByteLevel"), 9)),
        ("normalizer", all("normalizers", unicode("NFKD"), 3)),
        ("normalizer", all("normalizers", unicode("Nmt"), 257)),
        ("pre_tokenizer", all("pretokenizers", blank(1), 5)),
        ("pre_tokenizer", all("pretokenizers", level, 5)),
        ("decoder", json!({"type": "Replace", "pattern": {"Regex": "|e"}, "content": "x".repeat(256)})),
        ("decoder", all("decoders", json!({"type": "BPEDecoder", "suffix": ""}), 6)),
        ("post_processor", template(vec![text(); 257], 1)),
        ("post_processor", template([vec![text()], vec![special(); 257]].concat(), 1)),
        ("post_processor", template([vec![text()], vec![special(); 20]].concat(), 20)),
        ("post_processor", template(vec![text(), json!({"SpecialToken": ["a", 0]})], 257)),
        ("post_processor", all("processors", template(vec![text(); 20], 1), 2)),
        (
            "post_processor",
            json!({"type": "ByteLevel", "single": vec![text(); 257], "pair": [], "special_tokens": {}}),
        ),
        (
            "post_processor",
            json!({"type": "BertProcessing", "sep": ["a", 2], "cls": ["x".repeat(64 * 200), 2]}),
        ),
        ("model", json!({"type": "WordLevel", "vocab": {}, "unk_token": "x".repeat(257 * 64)})),
        ("model", json!({"type": "BPE", "merges": [], "vocab": {}, "unk_token": "x".repeat(257 * 64)})),
        ("model", json!({"type": "Unigram", "vocab": [["x".repeat(257 * 256), 0.0]]})),
    ] {
        let told = staged(part, &stage).unwrap_err();
        let short: String = stage.to_string().chars().take(200).collect();
        assert!(told.contains(limit) && told.contains("tokenizer.json"), "{part} {short}: {told}");
    }
    // Each of these is within the limit.
    let told = changed(|tokenizer| {
        tokenizer["normalizer"] = charsmap(b"e", &"x".repeat(20));
        tokenizer["post_processor"] = template(vec![text(); 20], 1);
    });
    let told = told.unwrap_err();
    assert!(told.contains("normalizer 20 times, pre_tokenizer 1, model 1, post_processor 20"), "{told}");
    let told = changed(|tokenizer| {
        let token = json!({"id": 0, "content": "e".repeat(2 << 20), "single_word": false, "lstrip": false,
                           "rstrip": false, "normalized": true, "special": false});
        tokenizer["added_tokens"] = json!([token]);
        tokenizer["normalizer"] = charsmap(b"e", &"x".repeat(200));
        tokenizer["model"]["unk_token"] = json!(null);
    });
    assert!(told.as_ref().is_err_and(|told| told.contains("its added_tokens longer")), "{told:?}");
    // It takes a word apart by the third power of its letters.
    let words = json!({"type": "WordPiece", "unk_token": "a", "continuing_subword_prefix": "##", "vocab": {"a": 0},
                       "max_input_chars_per_word": 100_000_000});
    let told = staged("model", &words).unwrap_err();
    assert!(told.contains("max_input_chars_per_word is 100000000, expected at most 1000"), "{told}");
}

/// The stages that published models have.
#[test]
fn tokenisers_as_published_are_read() {
    use serde_json::json;
    let sequence = |inner: &str, stages: Vec<serde_json::Value>| json!({"type": "Sequence", inner: stages});
    let replace = |kind: &str, pattern: &str, content: &str| json!({"type": "Replace", "pattern": {kind: pattern}, "content": content});
    let template = |texts: &[&str]| {
        let piece = |&id: &&str| match id {
            "A" | "B" => json!({"Sequence": {"id": id, "type_id": 0}}),
            id => json!({"SpecialToken": {"id": id, "type_id": 0}}),
        };
        let pieces: Vec<_> = texts.iter().map(piece).collect();
        let token = json!({"id": "<s>", "ids": [0], "tokens": ["<s>"]});
        json!({"type": "TemplateProcessing", "single": pieces, "pair": pieces, "special_tokens": {"<s>": token}})
    };
    let level =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let metaspace = json!({"type": "Metaspace", "replacement": "▁", "add_prefix_space": true, "prepend_scheme": "always"});
    let none = || serde_json::Value::Null;
    let split =
        json!({"type": "Split", "pattern": {"Regex": "\\p{L}+"}, "behavior": "Isolated", "invert": false});
    let bert = json!({"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null, "lowercase": true});
    let prepend = json!({"type": "Prepend", "prepend": "▁"});
    let ends = json!({"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 0], "trim_offsets": true, "add_prefix_space": false});
    for (family, normalizer, pre_tokenizer, post_processor) in [
        (
            "Llama 2",
            sequence("normalizers", vec![prepend, replace("String", " ", "▁")]),
            none(),
            template(&["<s>", "A"]),
        ),
        ("Gemma", replace("String", " ", "▁"), none(), template(&["<s>", "A"])),
        (
            "Llama 3",
            none(),
            sequence("pretokenizers", vec![split, level.clone()]),
            sequence("processors", vec![level.clone(), template(&["<s>", "A"])]),
        ),
        ("Qwen", json!({"type": "NFC"}), level.clone(), level),
        (
            "T5",
            sequence(
                "normalizers",
                vec![charsmap("ﷺ".as_bytes(), &"x".repeat(33)), replace("Regex", " {2,}", "▁")],
            ),
            sequence("pretokenizers", vec![json!({"type": "WhitespaceSplit"}), metaspace]),
            template(&["A", "<s>"]),
        ),
        ("BERT", bert, json!({"type": "BertPreTokenizer"}), ends),
        ("a character", none(), json!({"type": "CharDelimiterSplit", "delimiter": "x"}), none()),
    ] {
        let read = changed(|tokenizer| {
            tokenizer["normalizer"] = normalizer;
            tokenizer["pre_tokenizer"] = pre_tokenizer;
            tokenizer["post_processor"] = post_processor;
            tokenizer["truncation"] =
                json!({"max_length": 2, "strategy": "LongestFirst", "stride": 0, "direction": "Right"});
        });
        assert_eq!(read, Ok(()), "{family}");
    }
}

/// A map's growth is that of its longest text for a key that is looked up, as crate `tokenizers` looks it up.
#[test]
fn a_map_is_counted_as_it_is_used() {
    let norm = |map: serde_json::Value, letters: &str| {
        let mut tokenizer: serde_json::Value = serde_json::from_str(&micro().about.tokenizer).unwrap();
        tokenizer["normalizer"] = map;
        let about = About { tokenizer: tokenizer.to_string(), ..micro().about };
        Text::new(&about, 64).unwrap().encode(letters).unwrap().len()
    };
    assert_eq!(norm(charsmap(b"e", "xyz"), "eel"), 7);
    assert_eq!(norm(charsmap("é".as_bytes(), "xyz"), "éé"), 6);
    // As long as the limit allows, and one byte longer.
    let most = 256;
    for (key, bytes) in [("e", 1), ("é", 2), ("ﷺ", 3), ("😀", 4), ("éée", 5)] {
        let read = |letters: usize| staged("normalizer", &charsmap(key.as_bytes(), &"x".repeat(letters)));
        assert_eq!(read(most * bytes), Ok(()), "{key}");
        assert!(read(most * bytes + 1).is_err_and(|told| told.contains("normalizer 257 times")), "{key}");
    }
}

/// At these, crate `tokenizers` panics, asks for gigabytes, or makes a text so long that it does not end.
#[test]
fn stages_that_break_a_tokeniser_are_refused() {
    let replace = |pattern: serde_json::Value, content: &str| serde_json::json!({"type": "Replace", "pattern": pattern, "content": content});
    let string = |text: &str| serde_json::json!({"String": text});
    let map = |map: &str| serde_json::json!({"type": "Precompiled", "precompiled_charsmap": map});
    let all =
        |part: &str, stages: Vec<serde_json::Value>| serde_json::json!({"type": "Sequence", part: stages});
    let long = "x".repeat(300);
    for (part, stage, problem) in [
        ("normalizer", map("/////wAAAAA="), "announces a tree of 4294967295 bytes, and 4 follow"),
        ("normalizer", map("AAAA"), "has 3 bytes, expected at least 4"),
        ("normalizer", map("AAAAAA=="), "has an empty tree"),
        ("normalizer", all("normalizers", vec![map("AAAA")]), "has 3 bytes, expected at least 4"),
        ("normalizer", replace(string(""), "x"), "the pattern of Replace in its normalizer is empty"),
        (
            "normalizer",
            replace(serde_json::json!({"Regex": ""}), "x"),
            "the pattern of Replace in its normalizer is empty",
        ),
        ("decoder", replace(string(""), "x"), "the pattern of Replace in its decoder is empty"),
        (
            "pre_tokenizer",
            serde_json::json!({"type": "FixedLength", "length": 0}),
            "the length of FixedLength in its pre_tokenizer is 0",
        ),
        (
            "normalizer",
            serde_json::json!({"type": "Prepend", "prepend": long}),
            "DOORBELL_LIMIT_TOKENIZER_GROWTH=N raises this limit",
        ),
        ("normalizer", replace(string("e"), &long), "DOORBELL_LIMIT_TOKENIZER_GROWTH=N raises this limit"),
        (
            "normalizer",
            all("normalizers", (0..9).map(|_| replace(string("e"), "ee")).collect()),
            "DOORBELL_LIMIT_TOKENIZER_GROWTH=N raises this limit",
        ),
    ] {
        let told = staged(part, &stage).unwrap_err();
        assert!(told.contains(problem), "{part} {stage}: {told}");
    }
    // As usual ones are.
    for (part, stage) in [
        (
            "normalizer",
            all(
                "normalizers",
                vec![serde_json::json!({"type": "Prepend", "prepend": "▁"}), replace(string(" "), "▁")],
            ),
        ),
        ("normalizer", serde_json::json!({"type": "Lowercase"})),
        ("decoder", all("decoders", vec![replace(string("▁"), " "), serde_json::json!({"type": "Fuse"})])),
    ] {
        assert_eq!(staged(part, &stage), Ok(()), "{part} {stage}");
    }
}
