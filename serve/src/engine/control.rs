//! What is asked of the pipeline beside answers: aborts, versions and pauses. One thread does it, in order. Only this thread changes whether
//! the engine decodes, and which version is resident. So whoever asked may go at any moment; what was asked is done whole.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use doorbell_contract::PolicyMode;
use doorbell_host::DeviceError;
use doorbell_npu::Published;
use doorbell_runtime::pipeline::{
    AbortHandle, Busy, Gate, PublishAnswer, PublishRefusal, Publisher, Weights,
};
use tokio::sync::{oneshot, watch};

use super::intake::Intake;
use super::versions::{Name, Names};
use super::{How, Pause};
use crate::fault::Fault;

/// How long the thread waits before it looks again for an answer of the pipeline.
const LOOK: Duration = Duration::from_micros(200);
const ENDED: &str = "the engine has ended";

/// Something to do.
pub(super) enum Command {
    /// Aborts the request with this number.
    Abort(u64),
    /// Publishes weights under a name, or under the next one; tells it.
    Publish {
        weights: Box<Published>,
        name: Option<String>,
        mode: PolicyMode,
        done: oneshot::Sender<Result<String, String>>,
    },
    /// Gives the version that is resident another name.
    Rename(String, oneshot::Sender<()>),
    /// Lets nothing new begin, and does to what decodes as it says. Tells which asks are to end before nothing decodes.
    Pause(How, oneshot::Sender<Vec<u64>>),
    /// Lets everything go on.
    Resume(oneshot::Sender<()>),
    /// Opens the gate, for an engine that ends.
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
    pub pause: watch::Sender<Pause>,
    pub fault: Option<Fault>,
    /// The version that is resident: its number, weights, and where they lie.
    pub current: u16,
    pub published: Option<(Box<Published>, u64)>,
    /// The number of sets of weights that were published.
    pub sets: u64,
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

    /// Whoever asked may have gone: it is done all the same.
    fn obey(&mut self, command: Command) {
        match command {
            Command::Abort(number) => self.abort(number),
            Command::Publish { weights, name, mode, done } => {
                let name = name.unwrap_or_else(|| self.names.next());
                let _ = done.send(self.update(weights, &name, mode).map(|()| name));
            }
            Command::Rename(name, done) => {
                self.names.set_resident(&name);
                let Name { weights, .. } = self.names.of(self.current);
                self.names.set(self.current, Name { text: name, weights });
                let _ = done.send(());
            }
            Command::Pause(how, done) => {
                // Without an answer whoever asked hears that the engine has ended.
                if let Some(ends) = self.pause(how) {
                    let _ = done.send(ends);
                }
            }
            Command::Resume(done) => {
                self.gate.open();
                self.intake.hold(false);
                self.pause.send_replace(Pause::Running);
                let _ = done.send(());
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

    /// Publishes weights, or does what is planted instead.
    fn update(&mut self, weights: Box<Published>, name: &str, mode: PolicyMode) -> Result<(), String> {
        match self.fault.filter(|_| self.published.is_some()) {
            Some(Fault::UpdateNotResident) => {
                self.names.set_resident(name);
                Ok(())
            }
            Some(Fault::ResumeOldWeights) if *self.pause.borrow() != Pause::Running => {
                let Name { weights, .. } = self.names.of(self.current);
                self.publish_again(Name { text: name.to_owned(), weights }, mode)
            }
            _ => self.publish(weights, name, mode),
        }
    }

    /// Publishes weights, and waits until they are resident.
    fn publish(&mut self, weights: Box<Published>, name: &str, mode: PolicyMode) -> Result<(), String> {
        let told = |error: DeviceError| error.to_string();
        let offset = self.weights.lay(&weights.memory).map_err(told)?;
        self.sets += 1;
        let name = Name { text: name.to_owned(), weights: self.sets };
        self.announce(&weights, offset, name, mode)?;
        self.weights.published();
        self.published = Some((weights, offset));
        Ok(())
    }

    fn announce(
        &mut self,
        weights: &Published,
        offset: u64,
        name: Name,
        mode: PolicyMode,
    ) -> Result<(), String> {
        let version = self.current.wrapping_add(1);
        self.names.set(version, name.clone());
        self.publisher
            .publish_weights(version, weights.at(offset), mode)
            .map_err(|Busy| "too many versions wait to be published".to_owned())?;
        self.intake.ring();
        loop {
            match self.publisher.answer() {
                Some((_, PublishAnswer::Resident)) => break,
                Some((_, PublishAnswer::Refused(PublishRefusal::InUse { version }))) => {
                    let Name { text, .. } = self.names.of(version);
                    return Err(format!(
                        "rollouts still decode under version {text}, whose place it would take (R19); send it again once they have ended, or with abort_all_requests"
                    ));
                }
                Some((_, PublishAnswer::Refused(refusal))) => return Err(refusal.to_string()),
                None if self.publisher.is_over() => return Err(ENDED.into()),
                None => thread::sleep(LOOK),
            }
        }
        self.current = version;
        self.names.set_resident(&name.text);
        Ok(())
    }

    /// Publishes once more, as they lie, the weights that are resident.
    fn publish_again(&mut self, name: Name, mode: PolicyMode) -> Result<(), String> {
        let Some((weights, offset)) = self.published.take() else {
            return Err("nothing is published yet".into());
        };
        let announced = self.announce(&weights, offset, name, mode);
        self.published = Some((weights, offset));
        announced
    }

    /// The asks that are to end before nothing decodes, or `None` if the engine ends first.
    fn pause(&mut self, how: How) -> Option<Vec<u64>> {
        self.intake.hold(true);
        if how == How::Keep {
            self.rest()?;
            self.pause.send_replace(Pause::Resting);
            return Some(vec![]);
        }
        // What waits at the gate ends only behind it, unless it is aborted.
        if how == How::Wait {
            self.gate.open();
        }
        self.pause.send_replace(Pause::Holding);
        // From then on nothing is admitted.
        if !self.intake.wait_until_seen(|| thread::sleep(LOOK)) {
            return None;
        }
        let running = self.intake.running();
        match (how, self.fault) {
            (How::Wait, Some(Fault::WaitReturnsEarly)) => return Some(vec![]),
            // What waits for room stays for later.
            (How::Wait, _) => return Some(running),
            _ => {}
        }
        let mut ends = self.intake.tickets();
        if self.fault == Some(Fault::PauseLeaks) {
            let oldest = running.into_iter().min();
            ends.retain(|&ticket| Some(ticket) != oldest);
        }
        for &ticket in &ends {
            if let Some(number) = self.intake.cancel(ticket) {
                self.abort(number);
            }
        }
        Some(ends)
    }

    /// Nothing decodes from now on. A POLICY with KEEP ends what is in flight between two tokens (R20), so the weights are published once more, as
    /// they lie, under the name that they have. That is refused while rollouts decode under the version before, as after an update that
    /// waits for them. Then each DECODE in flight comes to its checkpoint.
    fn rest(&mut self) -> Option<()> {
        self.gate.close();
        self.intake.ring();
        if self.gate.is_at_rest() {
            return Some(());
        }
        let name = self.names.of(self.current);
        let _ = self.publish_again(name, PolicyMode::Keep);
        while !self.gate.is_at_rest() {
            if self.publisher.is_over() {
                return None;
            }
            thread::sleep(LOOK);
        }
        Some(())
    }
}
