//! What a page draws of a tab.

use std::fmt::Write as _;
use std::sync::atomic::Ordering;

use doorbell_contract::{Field as Described, HwCompletion, HwDesc};
use sha2::{Digest as _, Sha256};

use super::{DEPTH, Tab, TabError};
use crate::ask::{Ask, Phase};
use crate::check::{Checked, Wrong};
use crate::snapshot::{Field, Ring, Snapshot};
use crate::units::Units;

impl Tab {
    /// The command that gives the same sha256 on any machine.
    pub fn command(&self) -> Option<String> {
        let Ask { prompt, tokens, seed, temperature } = &self.answer.as_ref()?.ask;
        let quoted = prompt.replace('\'', r"'\''");
        Some(format!(
            "doorbell generate --model {} --device rtl --tokens {tokens} --seed {seed} --temperature {temperature} --logprobs -- \
             '{quoted}' | sha256sum",
            self.model()
        ))
    }

    /// What the oracle says, as a sentence.
    fn verdict(&self, checked: &Checked) -> Result<String, TabError> {
        let Checked { tokens, whole, wrong } = checked;
        let logp = |logp: i32| f64::from(logp) / 65_536.0;
        Ok(match wrong {
            None if *whole => {
                format!(
                    "oracle: same bytes: {tokens} tokens, their log-probabilities, and all keys and values"
                )
            }
            None => format!("oracle: same bytes so far: {tokens} tokens"),
            Some(Wrong::Token { place, found, expected }) => {
                let (wrong, right) = (self.text.decode(&[*found])?, self.text.decode(&[*expected])?);
                format!(
                    "first wrong token: number {place} is {found} ({wrong:?}), and the oracle has {expected} ({right:?})"
                )
            }
            Some(Wrong::Logp { place, found, expected }) => {
                let text = self.answer.as_ref().and_then(|answer| answer.tokens.get(*place));
                let text = text.map_or("", |token| &token.text);
                format!(
                    "first wrong token: number {place} ({text:?}) has log-probability {:.5}, and the oracle has {:.5}",
                    logp(*found),
                    logp(*expected)
                )
            }
            Some(Wrong::KeyValue { place }) => {
                format!("the tokens are right, but not what they left: {place}")
            }
        })
    }

    /// What a page draws, with the answer's tokens from number `from` on.
    ///
    /// # Errors
    /// If the tokeniser fails.
    pub fn snapshot(&mut self, from: usize) -> Result<Snapshot, TabError> {
        let Units { busy, words, .. } = *self.seen.units();
        let word = self.seen.units().last();
        let queue = self.driver.submission_queue();
        let slot = queue.tail().wrapping_sub(1);
        let submission = Ring { depth: DEPTH, head: queue.head(), tail: queue.tail() };
        // The host takes and releases a completion as soon as it sees it.
        let taken = self.completions as u32;
        let completed = Ring { depth: DEPTH, head: taken, tail: taken };
        let mut line = [0; 64];
        for (at, eight) in (0..).zip(line.chunks_exact_mut(8)) {
            let offset = self.driver.layout().sq + 64 * (slot % DEPTH) as usize + 8 * at;
            let word = self.driver.memory().word64(offset)?;
            eight.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
        let answer = self.answer.as_ref();
        let descriptor = match self.descriptor {
            Some(_) => fields(&bytemuck::pod_read_unaligned(&line), &HwDesc::FIELDS),
            None => vec![],
        };
        Ok(Snapshot {
            phase: self.phase,
            cycle: self.cycle(),
            prompt: answer.map_or(vec![], |answer| answer.texts.clone()),
            tokens: answer.map_or(vec![], |answer| answer.tokens.iter().skip(from).cloned().collect()),
            made: self.made(),
            descriptor,
            bytes: hex(&line),
            slot,
            completion: self
                .completion
                .as_ref()
                .map_or(vec![], |completion| fields(completion, &HwCompletion::FIELDS)),
            completions: self.completions,
            submission,
            completed,
            registers: self.registers.clone(),
            registers_at: self.registers_at,
            busy,
            words,
            word,
            strip: self.driver.platform().strip().into_iter().map(|pins| pins.0).collect(),
            verdict: answer.map(|answer| self.verdict(&answer.check.checked)).transpose()?,
            checked: answer.map(|answer| answer.check.checked.clone()),
            sha256: answer
                .filter(|_| self.phase == Phase::Done)
                .map(|answer| hex(&Sha256::digest(answer.lines.as_bytes()))),
            note: self.note.clone(),
            chain: self.chain.clone(),
        })
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn fields<R>(record: &R, described: &[Described<R>]) -> Vec<Field> {
    let field = |field: &Described<R>| Field {
        name: field.name,
        offset: field.offset,
        size: field.size,
        value: format!("{:#x}", (field.get)(record)),
    };
    described.iter().map(field).collect()
}
