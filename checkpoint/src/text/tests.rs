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

proptest! {
    #[test]
    fn a_stream_says_what_all_tokens_say(letters in "[a-z ,.0-9]{0,80}", together in 1..40usize) {
        let text = text();
        let tokens = text.encode(&letters).unwrap();
        let mut stream = text.stream();
        let said: String = tokens.iter().map(|&token| stream.next(token).unwrap()).collect();
        prop_assert_eq!(said + &stream.end().unwrap(), letters.as_str());
        let mut stream = text.stream();
        let said: String = tokens.chunks(together).map(|tokens| stream.take(tokens).unwrap()).collect();
        prop_assert_eq!(said + &stream.end().unwrap(), letters);
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

/// The tokeniser of a model with these stages in it, and what becomes of a text.
fn staged(part: &str, stage: &serde_json::Value) -> Result<(), String> {
    let mut tokenizer: serde_json::Value = serde_json::from_str(&micro().about.tokenizer).unwrap();
    tokenizer[part] = stage.clone();
    let about = About { tokenizer: tokenizer.to_string(), ..micro().about };
    Text::new(&about, 64).and_then(Text::tried).map(drop).map_err(|error| error.to_string())
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
