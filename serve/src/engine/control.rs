//! What is asked of the pipeline beside answers: aborts, versions and rests. One thread does it, in order.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use doorbell_contract::PolicyMode;
use doorbell_host::DeviceError;
use doorbell_npu::Published;
use doorbell_runtime::pipeline::{AbortHandle, Busy, Gate, PublishAnswer, Publisher, Weights};
use tokio::sync::oneshot;

use super::intake::Intake;
use super::versions::Names;

/// How long the thread waits before it looks again for an answer of the pipeline.
const LOOK: Duration = Duration::from_micros(200);

/// Something to do.
pub(super) enum Command {
    /// Aborts the request with this number.
    Abort(u64),
    /// Publishes weights under a name.
    Publish {
        weights: Box<Published>,
        name: String,
        mode: PolicyMode,
        done: oneshot::Sender<Result<(), String>>,
    },
    /// Gives the version that is resident another name.
    Rename(String),
    /// Closes the gate, and brings what decodes to rest.
    Rest(oneshot::Sender<Result<(), String>>),
    /// Opens the gate.
    GoOn,
}

/// The thread's state.
pub(super) struct Control {
    pub commands: Receiver<Command>,
    pub aborts: AbortHandle,
    pub publisher: Publisher,
    pub weights: Weights,
    pub gate: Gate,
    pub names: Names,
    pub intake: Arc<Intake>,
    /// The version that is resident: its number, weights, and where they lie.
    pub current: u16,
    pub published: Option<(Box<Published>, u64)>,
}

impl Control {
    /// Does what is asked until nobody asks any more, or the pipeline is gone.
    pub fn run(mut self) {
        loop {
            while self.aborts.answer().is_some() {}
            match self.commands.recv_timeout(Duration::from_millis(20)) {
                Ok(command) => self.obey(command),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if self.publisher.is_over() {
                return;
            }
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Abort(number) => self.abort(number),
            Command::Publish { weights, name, mode, done } => {
                let published = self.publish(weights, &name, mode);
                // Whoever asked may have gone: it is published all the same.
                let _ = done.send(published);
            }
            Command::Rename(name) => self.names.set(self.current, &name),
            Command::Rest(done) => {
                let rested = self.rest();
                let _ = done.send(rested);
            }
            Command::GoOn => {
                self.gate.open();
                self.intake.ring();
            }
        }
    }

    fn abort(&mut self, number: u64) {
        while self.aborts.abort(number) == Err(Busy) {
            if self.publisher.is_over() {
                return;
            }
            while self.aborts.answer().is_some() {}
            thread::sleep(LOOK);
        }
        self.intake.ring();
    }

    /// Publishes weights, and waits until they are resident.
    fn publish(&mut self, weights: Box<Published>, name: &str, mode: PolicyMode) -> Result<(), String> {
        let told = |error: DeviceError| error.to_string();
        let offset = self.weights.lay(&weights.memory).map_err(told)?;
        self.announce(&weights, offset, name, mode)?;
        self.weights.published();
        self.published = Some((weights, offset));
        Ok(())
    }

    fn announce(
        &mut self,
        weights: &Published,
        offset: u64,
        name: &str,
        mode: PolicyMode,
    ) -> Result<(), String> {
        let version = self.current.wrapping_add(1);
        self.names.set(version, name);
        self.publisher
            .publish_weights(version, weights.at(offset), mode)
            .map_err(|Busy| "too many versions wait to be published".to_owned())?;
        self.intake.ring();
        loop {
            match self.publisher.answer() {
                Some((_, PublishAnswer::Resident)) => break,
                Some((_, PublishAnswer::Refused(refusal))) => return Err(refusal.to_string()),
                None if self.publisher.is_over() => return Err("the engine has ended".into()),
                None => thread::sleep(LOOK),
            }
        }
        self.current = version;
        Ok(())
    }

    /// Nothing decodes from now on. A POLICY with KEEP ends what is in flight between two tokens (R20), so the weights are published once more, as
    /// they lie, under the name that they have.
    fn rest(&mut self) -> Result<(), String> {
        self.gate.close();
        self.intake.ring();
        if self.gate.is_at_rest() {
            return Ok(());
        }
        let Some((weights, offset)) = self.published.take() else {
            return Err("nothing is published yet".into());
        };
        let name = self.names.of(self.current);
        let announced = self.announce(&weights, offset, &name, PolicyMode::Keep);
        self.published = Some((weights, offset));
        announced?;
        while !self.gate.is_at_rest() {
            if self.publisher.is_over() {
                return Err("the engine has ended".into());
            }
            thread::sleep(LOOK);
        }
        Ok(())
    }
}
