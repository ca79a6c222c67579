//! What another machine told before, as `demo --json` wrote it.

use std::path::Path;

use serde::Deserialize;

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
    /// On what, and when, in a few words.
    #[serde(default)]
    recorded: String,
    devices: Vec<Device>,
}

/// A device of it.
#[derive(Debug, Deserialize)]
pub struct Device {
    device: String,
    text: String,
    tokens: Vec<u32>,
    log_probabilities: Vec<i32>,
    sha256: String,
    cycles: Option<u64>,
    /// As the recording has it.
    #[serde(skip)]
    recorded: String,
}

impl Recording {
    /// Reads the file of a recording of the same story.
    pub fn read(path: &Path, args: &Args) -> Result<Self, Failure> {
        let shown = output::plain(&path.display().to_string());
        let text = inputs::text("the recording", path)?;
        let mut recording: Self = serde_json::from_str(&text).map_err(|error| {
            Failure::input(format!("{shown} is not what `doorbell demo --json` wrote: {error}"))
        })?;
        let Self { model, prompt, seed, temperature, .. } = &recording;
        if (model, prompt, *seed) != (&args.model, &args.prompt, args.seed)
            || *temperature != args.temperature
        {
            return Err(Failure::input(format!(
                "{shown} has another story: model {}, seed {seed}, temperature {temperature}, \"{}\"; ask for the same",
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
        pane.text += &output::shown(&self.text);
        pane.state = State::Ended { tokens: self.tokens.len(), cycles: self.cycles };
        pane
    }

    /// Where it parts from a device of this machine.
    pub fn difference(&self, told: &Told) -> Option<String> {
        let answer = &told.answer;
        if let Some(at) = (0..self.tokens.len().max(answer.tokens.len()))
            .find(|&at| self.tokens.get(at) != answer.tokens.get(at))
        {
            return Some(format!("token {at} is another"));
        }
        if self.log_probabilities != answer.logps {
            return Some("a log-probability is another".to_owned());
        }
        (self.sha256 != told.sha256()).then(|| "the sha256 of all that it made is another".to_owned())
    }
}
