//! The runs of a page without one: what the tests of the page compare with.

use std::env;
use std::process::ExitCode;
use std::time::Instant;

use doorbell_web::{Calls, STORY, texts};
use serde_json::{Value, json};

const USAGE: &str = "usage: doorbell-web run micro|tiny PROMPT [TOKENS [SEED]]\n       doorbell-web expect";
/// Cycles of a step, as the page's worker gives them.
const SLICE: u64 = 20_000;

/// `run` answers a prompt and says how fast; `expect` prints what the page must show and encode.
pub fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let number = |at: usize, default: u64| {
        words
            .get(at)
            .map_or(Ok(default), |word| word.parse().map_err(|_| format!("{word} is no number\n{USAGE}")))
    };
    let report = match words[..] {
        ["run", model @ ("micro" | "tiny"), prompt, ..] if words.len() <= 5 => {
            number(3, 64).and_then(|tokens| run(model, prompt, tokens, number(4, 1)?, false))
        }
        ["expect"] => expect(),
        _ => Err(USAGE.to_owned()),
    };
    match report {
        Ok(report) => {
            println!("{report}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A run, the same with a bit of a weight flipped, and tokens of texts.
fn expect() -> Result<Value, String> {
    let (prompt, tokens, seed) = STORY;
    let mut calls = Calls::default();
    parsed(&calls.open(&image("tiny")))?;
    let encoded = texts().into_iter().map(|text| {
        let answer = parsed(&calls.call(&json!({ "call": { "encode": text } }).to_string()))?;
        Ok(json!([text, answer["tokens"]]))
    });
    let encoded = encoded.collect::<Result<Vec<_>, String>>()?;
    Ok(json!({
        "prompt": prompt, "tokens": tokens, "seed": seed, "run": run("tiny", prompt, tokens, seed, false)?,
        "flipped": run("tiny", prompt, tokens, seed, true)?, "encoded": encoded,
    }))
}

fn image(model: &str) -> Vec<u8> {
    // Of micro the module makes the weights itself.
    if model == "tiny" { doorbell_lm::tiny().to_bytes() } else { vec![] }
}

fn run(model: &str, prompt: &str, tokens: u64, seed: u64, flipped: bool) -> Result<Value, String> {
    let mut calls = Calls::default();
    parsed(&calls.open(&image(model)))?;
    let published = to_rest(&mut calls)?;
    if flipped {
        parsed(&calls.call(&json!({ "call": { "flip": "weight" } }).to_string()))?;
    }
    let ask = json!({ "prompt": prompt, "tokens": tokens, "seed": seed, "temperature": 0.8 });
    parsed(&calls.call(&json!({ "call": { "ask": ask } }).to_string()))?;
    let (began, before) = (Instant::now(), processor_seconds());
    let answer = to_rest(&mut calls)?;
    let processor = processor_seconds().zip(before).map(|(after, before)| after - before);
    let seconds = began.elapsed().as_secs_f64();
    let now = &answer["now"];
    let cycle = |now: &Value| now["cycle"].as_u64().unwrap_or_default();
    let cycles = cycle(now) - cycle(&published["now"]);
    let text = |tokens: &Value| {
        let tokens = tokens.as_array().into_iter().flatten();
        tokens.filter_map(|token| token["text"].as_str()).collect::<String>()
    };
    Ok(json!({
        "command": answer["command"], "sha256": now["sha256"], "verdict": now["verdict"], "note": now["note"], "made": now["made"],
        "text": text(&now["tokens"]), "cycles": cycles, "seconds": seconds, "processor_seconds": processor, "cycles_per_second": cycles as f64 / seconds,
    }))
}

/// Processor seconds of this thread, which alone gives the device its time; `None` where the system does not say.
fn processor_seconds() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let nanoseconds: u64 = text.split_whitespace().next()?.parse().ok()?;
    Some(nanoseconds as f64 / 1e9)
}

/// Gives the device cycles until it has nothing to do.
fn to_rest(calls: &mut Calls) -> Result<Value, String> {
    loop {
        let answer = parsed(&calls.call(&json!({ "call": { "step": { "run": SLICE } } }).to_string()))?;
        let phase = answer["now"]["phase"].as_str().unwrap_or_default();
        if !["publish", "prefill", "decode"].contains(&phase) {
            return Ok(answer);
        }
    }
}

fn parsed(text: &str) -> Result<Value, String> {
    let answer: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    match answer.get("error") {
        Some(error) => Err(error.as_str().unwrap_or_default().to_owned()),
        None => Ok(answer),
    }
}
