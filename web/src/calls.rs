//! The tab as texts in JSON: what crosses into the module.

use std::panic::{self, AssertUnwindSafe};

use doorbell_cosim::strip::PINS;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::ask::Ask;
use crate::tab::{Flip, Hold, Step, Tab, TabError};

/// One call. Each answers with an object; one that fails has a member `error` in it, which says why, beside the others.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Call {
    /// The tokens of a text, and the text of each.
    Encode(String),
    Ask(Ask),
    Step(Step),
    Latency(u32),
    Hold(Hold),
    Flip(Flip),
    Reset,
    /// Nothing but a look.
    Look,
}

/// Behind the module's exported functions: a tab, once it is open.
#[derive(Default)]
pub struct Calls {
    tab: Option<Tab>,
}

impl Calls {
    /// Opens a device with the model of this image; of none, with `micro`. Answers with its name, and what each pin of a
    /// snapshot's strip is: the lowest bit, and how many there are.
    pub fn open(&mut self, image: &[u8]) -> String {
        // What is there gives its memory back first.
        self.tab = None;
        let opened = contained(|| Tab::open(image).map_err(|error| error.to_string()));
        let answer = match opened {
            Ok(tab) => {
                let answer = json!({ "model": tab.model(), "pins": pins() });
                self.tab = Some(tab);
                answer
            }
            Err(error) => json!({ "error": error }),
        };
        answer.to_string()
    }

    /// Answers a call: `{"call": …, "from": N}`, where N is the first token that the answer is to have. Every answer but that of `encode`
    /// has a [`Snapshot`](crate::Snapshot) in its member `now`.
    pub fn call(&mut self, text: &str) -> String {
        #[derive(Deserialize)]
        struct Asked {
            call: Call,
            #[serde(default)]
            from: usize,
        }
        let Some(tab) = &mut self.tab else {
            return json!({ "error": "no device is open: open one first" }).to_string();
        };
        let answer = contained(|| {
            let Asked { call, from } = serde_json::from_str(text).map_err(|error| error.to_string())?;
            Ok(answer(tab, call, from))
        });
        answer.unwrap_or_else(|error| json!({ "error": error })).to_string()
    }
}

fn pins() -> Value {
    PINS.iter().map(|pin| (pin.name.to_owned(), json!([pin.bit, pin.bits]))).collect()
}

fn answer(tab: &mut Tab, call: Call, from: usize) -> Value {
    let mut answer = json!({});
    if let Err(error) = apply(tab, call, &mut answer) {
        answer["error"] = error.to_string().into();
    }
    if answer.get("tokens").is_none() {
        match tab.snapshot(from) {
            Ok(now) => answer["now"] = json!(now),
            Err(error) => answer["error"] = error.to_string().into(),
        }
        answer["command"] = tab.command().into();
    }
    answer
}

fn apply(tab: &mut Tab, call: Call, answer: &mut Value) -> Result<(), TabError> {
    match call {
        Call::Encode(text) => {
            answer["tokens"] = json!([]);
            answer["tokens"] = tab.encode(&text)?.into();
        }
        Call::Ask(ask) => tab.ask(ask)?,
        Call::Step(step) => tab.step(step)?,
        Call::Latency(cycles) => tab.set_latency(cycles)?,
        Call::Hold(hold) => tab.hold(hold)?,
        Call::Flip(flip) => answer["flipped"] = tab.flip(flip)?.into(),
        Call::Reset => tab.reset()?,
        Call::Look => {}
    }
    Ok(())
}

/// A panic within is an answer too: the page can say it, and open the device anew.
fn contained<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    panic::catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned()));
        Err(format!("the program failed: {}; open the device anew", text.unwrap_or_default()))
    })
}
