//! What another machine told before, as `demo --json` wrote it.

use std::path::Path;

use doorbell_devices::Kind;
use serde::Deserialize;
use serde_json::Value;

use super::panes::{Pane, State};
use super::{Args, Told};
use crate::failure::Failure;
use crate::inputs;
use crate::output;

/// Devices of another machine, and the story that they told.
#[derive(Debug, Deserialize)]
pub struct Recording {
    model: String,
    prompt: String,
    seed: u32,
    temperature: f64,
    /// Tokens that were asked for. Older recordings have none.
    most: Option<u32>,
    /// On what, and when, in a few words.
    #[serde(default)]
    recorded: String,
    devices: Vec<Device>,
}

/// A device of it.
#[derive(Debug, Deserialize)]
#[serde(try_from = "Value")]
pub struct Device {
    device: String,
    /// What it told, or why it failed.
    told: Result<Story, String>,
    /// As the recording has it.
    recorded: String,
}

/// What a device told.
#[derive(Debug, Deserialize)]
struct Story {
    text: String,
    tokens: Vec<u32>,
    log_probabilities: Vec<i32>,
    sha256: String,
    cycles: Option<u64>,
}

impl TryFrom<Value> for Device {
    type Error = serde_json::Error;

    fn try_from(value: Value) -> Result<Self, Self::Error> {
        #[derive(Deserialize)]
        struct Named {
            device: String,
            failure: Option<String>,
        }
        let Named { device, failure } = Named::deserialize(&value)?;
        let told = match failure {
            Some(failure) => Err(failure),
            None => Ok(Story::deserialize(&value)?),
        };
        Ok(Self { device, told, recorded: String::new() })
    }
}

impl Recording {
    /// Reads the file of a recording of the same story.
    pub fn read(path: &Path, args: &Args) -> Result<Self, Failure> {
        let shown = output::plain(&path.display().to_string());
        let text = inputs::text("the recording", path)?;
        let mut recording: Self = serde_json::from_str(&text).map_err(|error| {
            Failure::input(format!("{shown} is not what `doorbell demo --json` wrote: {error}"))
        })?;
        let Self { model, prompt, seed, temperature, most, .. } = &recording;
        if (model, prompt, *seed) != (&args.model, &args.prompt, args.seed)
            || *temperature != args.temperature
            || most.is_some_and(|most| most != args.tokens)
        {
            let tokens = most.map_or_else(String::new, |most| format!(" {most} tokens,"));
            return Err(Failure::input(format!(
                "{shown} has another story: model {}, seed {seed}, temperature {temperature},{tokens} \"{}\"; ask for the same",
                output::plain(model),
                output::shown(prompt)
            )));
        }
        let about = if recording.recorded.is_empty() { "recorded" } else { &recording.recorded };
        let about = output::plain(about);
        recording.devices.iter_mut().for_each(|device| device.recorded.clone_from(&about));
        Ok(recording)
    }

    /// Its devices.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }
}

impl Device {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.device
    }

    /// A pane that shows it.
    pub fn pane(&self, prompt: &str) -> Pane {
        let mut pane = Pane::new(&output::plain(&self.device), &self.recorded, prompt);
        pane.state = match &self.told {
            Ok(story) => {
                pane.text += &output::shown(&story.text);
                State::Ended { tokens: story.tokens.len(), cycles: story.cycles }
            }
            Err(failure) => State::Failed(output::plain(failure)),
        };
        pane
    }

    /// What is wrong with it beside `first`, the first device of this machine, if anything is.
    pub fn problem(&self, first: Kind, told: &Told) -> Option<String> {
        let name = output::plain(&self.device);
        match &self.told {
            Ok(story) => {
                let difference = story.difference(first, told)?;
                Some(format!("different: {name} differs from {first}: {difference}"))
            }
            Err(failure) => Some(format!("failed: {name}, recorded: {}", output::plain(failure))),
        }
    }
}

impl Story {
    /// Where it parts from what a device of this machine told.
    fn difference(&self, first: Kind, told: &Told) -> Option<String> {
        let answer = &told.answer;
        if let Some(at) = self.tokens.iter().zip(&answer.tokens).position(|(own, other)| own != other) {
            return Some(format!("token {at} is another"));
        }
        let (own, other) = (self.tokens.len(), answer.tokens.len());
        if own != other {
            return Some(format!("it ends after {own} tokens, and {first} after {other}"));
        }
        if self.log_probabilities != answer.logps {
            return Some("a log-probability is another".to_owned());
        }
        (self.sha256 != told.sha256()).then(|| "the sha256 of all that it made is another".to_owned())
    }
}
