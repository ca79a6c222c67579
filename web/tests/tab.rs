//! The tab without a browser: the same calls over the RTL that other tests verilate.

use doorbell_checkpoint::text::Text;
use doorbell_contract::HwDesc;
use doorbell_lm::sample::Sharpness;
use doorbell_lm::tiny;
use doorbell_verify::language::{Reference, Sampling, Version};
use doorbell_web::{Calls, STORY, texts};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// What `doorbell generate --logprobs` prints of [`STORY`], through `sha256sum`; a test of the program holds it to the same.
const SHA256: &str = "9976b2f6010e62bbf39ef33ba1801550cb14055da5804a45eecc0240976c7ccc";
const BUSY: [&str; 3] = ["publish", "prefill", "decode"];

/// A tab with a device whose model is published.
struct Page(Calls);

impl Page {
    fn open(image: &[u8]) -> Self {
        let mut page = Self(Calls::default());
        let opened: Value = serde_json::from_str(&page.0.open(image)).unwrap();
        assert_eq!(opened.get("error"), None);
        page.rest();
        page
    }

    fn asked(&mut self, call: &Value) -> Value {
        serde_json::from_str(&self.0.call(&json!({ "call": call }).to_string())).unwrap()
    }

    fn call(&mut self, call: &Value) -> Value {
        let answer = self.asked(call);
        assert_eq!(answer.get("error"), None, "{call}");
        answer
    }

    fn error(&mut self, call: &Value) -> String {
        self.asked(call)["error"].as_str().expect("it is refused").to_owned()
    }

    fn ask(&mut self, prompt: &str, tokens: u64, seed: u64) {
        self.call(
            &json!({ "ask": { "prompt": prompt, "tokens": tokens, "seed": seed, "temperature": 0.8 } }),
        );
    }

    /// Gives the device time until it has nothing to do, or waits.
    fn rest(&mut self) -> Value {
        loop {
            let answer = self.call(&json!({ "step": { "run": 20_000 } }));
            let now = &answer["now"];
            if !BUSY.contains(&now["phase"].as_str().unwrap()) || !now["chain"].as_array().unwrap().is_empty()
            {
                return answer["now"].clone();
            }
        }
    }

    fn story(&mut self) -> Value {
        let (prompt, tokens, seed) = STORY;
        self.ask(prompt, tokens, seed);
        self.rest()
    }
}

#[test]
fn a_story_is_the_oracles_and_the_command_lines() {
    let mut page = Page::open(&tiny().to_bytes());
    let now = page.story();
    assert_eq!(
        now["verdict"],
        "oracle: same bytes: 64 tokens, their log-probabilities, and all keys and values"
    );
    // The oracle's own steps, one by one, as lines of `doorbell generate --logprobs`.
    let image = tiny();
    let (prompt, tokens, seed) = STORY;
    let prompt = Text::new(&image.about, image.model.shape.vocabulary).unwrap().encode(prompt).unwrap();
    let version = Version { model: image.model, ends: image.about.ends };
    let mut reference = Reference::new(&version, &prompt);
    reference.prefill(&version, prompt.len() - 1);
    let sampling = Sampling::new(Sharpness::of(0.8).unwrap(), seed as u32, 0);
    let lines: String = (0..tokens)
        .map(|_| {
            let step = reference.step(&version, sampling);
            format!("{} {:.16}\n", step.token, f64::from(step.logp) / 65_536.0)
        })
        .collect();
    let sha256: String = Sha256::digest(lines).iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!((now["sha256"].as_str().unwrap(), sha256.as_str()), (SHA256, SHA256));
    let command = page.call(&json!("look"))["command"].as_str().unwrap().to_owned();
    assert!(
        command.starts_with(
            "doorbell generate --model tiny --device rtl --tokens 64 --seed 3 --temperature 0.8 --logprobs"
        ),
        "{command}"
    );
}

#[test]
fn texts_are_encoded_as_by_the_tokeniser() {
    let mut page = Page::open(&tiny().to_bytes());
    let image = tiny();
    let text = Text::new(&image.about, image.model.shape.vocabulary).unwrap();
    let texts = texts();
    assert_eq!(texts.len(), 1000);
    for sample in texts {
        let answer = page.call(&json!({ "encode": sample }));
        assert_eq!(answer["tokens"], json!(text.encode(&sample).unwrap()), "{sample:?}");
    }
}

#[test]
fn steps_go_as_far_as_they_say() {
    let mut page = Page::open(&[]);
    page.ask("once upon", 4, 1);
    let mut before = page.call(&json!("look"))["now"].clone();
    for (step, member, some) in [
        ("cycle", "cycle", 1),
        ("cycle", "cycle", 1),
        ("instruction", "words", 1),
        ("descriptor", "completions", 1),
        ("token", "made", 1),
        ("descriptor", "completions", 1),
    ] {
        let after = page.call(&json!({ "step": step }))["now"].clone();
        let number = |now: &Value| now[member].as_u64().unwrap();
        assert_eq!(number(&after) - number(&before), some, "a step of a {step}");
        // What the last descriptor was is what lies in its slot.
        assert_eq!(after["bytes"].as_str().unwrap().len(), 128);
        before = after;
    }
    assert_eq!(before["strip"].as_array().unwrap().len(), 256);
    let fields = before["descriptor"].as_array().unwrap();
    assert_eq!(fields.len(), HwDesc::FIELDS.len());
    assert_eq!((&fields[0]["name"], &fields[0]["value"]), (&json!("opcode"), &json!("0x1")));
    assert_eq!(
        page.rest()["verdict"],
        "oracle: same bytes: 4 tokens, their log-probabilities, and all keys and values"
    );
    // At rest no step gives the device time.
    let now = |page: &mut Page| page.call(&json!("look"))["now"]["cycle"].clone();
    let cycle = now(&mut page);
    for step in [json!("cycle"), json!("instruction"), json!("token"), json!("descriptor")] {
        page.call(&json!({ "step": step }));
    }
    let registers = now(&mut page).as_u64().unwrap() - cycle.as_u64().unwrap();
    assert!(registers < 200, "reading registers takes a few cycles, not {registers}");
}

#[test]
fn a_flipped_bit_is_named_by_its_token_and_mended_by_a_reset() {
    let mut page = Page::open(&tiny().to_bytes());
    let flipped = page.call(&json!({ "flip": "weight" }));
    assert!(flipped["flipped"].as_str().unwrap().contains("a weight of the queries of layer 0"));
    let (prompt, _, seed) = STORY;
    page.ask(prompt, 8, seed);
    let now = page.rest();
    let verdict = now["verdict"].as_str().unwrap();
    assert!(verdict.starts_with("first wrong token: number 0 (\" Milo\") has log-probability"), "{verdict}");

    page.call(&json!("reset"));
    page.rest();
    // A key that is flipped in the middle of an answer is named by the next token.
    page.ask(prompt, 8, seed);
    for _ in 0..3 {
        page.call(&json!({ "step": "token" }));
    }
    page.call(&json!({ "flip": "key" }));
    let now = page.rest();
    let wrong = &now["checked"]["wrong"];
    assert!(wrong["place"].as_u64().is_some_and(|place| place >= 3), "{wrong}");

    page.call(&json!("reset"));
    page.rest();
    page.ask(prompt, 8, seed);
    assert_eq!(page.rest()["checked"], json!({ "tokens": 8, "whole": true, "wrong": null }));
}

#[test]
fn a_held_answer_is_found_by_who_waits_for_whom() {
    let mut page = Page::open(&[]);
    for (hold, root) in
        [("reads", "the memory holds back read data"), ("writes", "the memory holds back write responses")]
    {
        page.ask("once upon", 6, 1);
        page.call(&json!({ "step": "token" }));
        page.call(&json!({ "hold": hold }));
        let now = page.rest();
        let chain: Vec<&str> =
            now["chain"].as_array().unwrap().iter().map(|link| link.as_str().unwrap()).collect();
        assert!(chain.len() >= 3, "{chain:?}");
        let slot = chain[0].strip_prefix("the host waits for the completion of ").unwrap();
        let slot = slot.split(',').next().unwrap();
        // The descriptor itself is found among those whose slots the ring still holds, however often it has wrapped.
        let link = format!("{slot} (DECODE of rollout 0) was read, and nothing of its queue pair holds it");
        assert_eq!(chain[1], link, "{chain:?}");
        assert!(chain.last().unwrap().ends_with(root), "{chain:?}");
        // Let go, it ends as if nothing had been.
        page.call(&json!({ "hold": "nothing" }));
        assert_eq!(page.rest()["checked"], json!({ "tokens": 6, "whole": true, "wrong": null }));
        // Wedged, it is reset.
        page.ask("once upon", 6, 1);
        page.call(&json!({ "hold": hold }));
        assert!(!page.rest()["chain"].as_array().unwrap().is_empty());
        page.call(&json!("reset"));
        page.rest();
        page.ask("once upon", 6, 1);
        assert_eq!(page.rest()["checked"], json!({ "tokens": 6, "whole": true, "wrong": null }));
    }
}

#[test]
fn latency_slows_and_changes_nothing() {
    let mut page = Page::open(&[]);
    let mut took = |latency: u64| {
        page.call(&json!({ "latency": latency }));
        let before = page.call(&json!("look"))["now"]["cycle"].as_u64().unwrap();
        page.ask("once upon", 4, 1);
        let now = page.rest();
        (now["cycle"].as_u64().unwrap() - before, now["sha256"].clone())
    };
    let ((quick, one), (slow, other)) = (took(0), took(400));
    assert!(slow > 2 * quick, "{quick} and {slow} cycles");
    assert_eq!(one, other);
    assert!(page.error(&json!({ "latency": 401 })).contains("at most 400"));
}

#[test]
fn what_cannot_be_answered_says_why() {
    let mut page = Page::open(&tiny().to_bytes());
    let ask = |prompt: &str, temperature: f64| json!({ "ask": { "prompt": prompt, "tokens": 8, "seed": 1, "temperature": temperature } });
    assert!(page.error(&ask("", 0.8)).contains("empty"));
    assert!(page.error(&ask(&"a ".repeat(400), 0.8)).contains("give at most 128"));
    assert!(page.error(&ask("a", -1.0)).contains("temperature"));
    assert!(page.error(&json!("nonsense")).contains("nonsense"));
    page.ask("The end.", 8, 1);
    assert!(page.error(&ask("a", 0.8)).contains("busy"));
    let note = page.rest()["note"].as_str().unwrap().to_owned();
    assert!(note.contains("it tells stories"), "{note}");
    let answer: Value = serde_json::from_str(&page.0.open(b"no image")).unwrap();
    assert!(answer["error"].is_string());
    assert!(page.error(&json!("look")).contains("open one first"));
}
