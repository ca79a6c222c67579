//! A device that answers one prompt with a language model, through the driver, token by token.

use std::time::{Duration, Instant};

use doorbell_contract::{
    BLOCK_TOKENS, Capability, CompletionFlags, Counter, DescFlags, ErrorCode, HwCompletion, HwDesc, HwImage,
    HwSequence, PolicyMode, Status, TOKEN_NONE,
};
use doorbell_devices::{Kind, OpenError, Settings};
use doorbell_host::language::{language_policy, sequence_bytes};
use doorbell_host::{Device, DeviceError, LanguageRegions, QueueConfig, TokenRegion};
use doorbell_lm::Shape;
use doorbell_lm::sample::{Sharpness, Truncation};
use doorbell_npu::Published;
use doorbell_npu::layout::Block;

use crate::failure::Failure;

/// The version that is published.
const VERSION: u16 = 1;
/// Where its POLICY lies in the token region, and the prompt with the answer after it.
const POLICY: u64 = 0;
const TOKENS: u64 = 128;

/// What is asked.
#[derive(Clone)]
pub struct Ask<'a> {
    pub prompt: &'a [u32],
    /// Most tokens of the answer.
    pub most: usize,
    pub sharpness: Sharpness,
    pub truncation: Truncation,
    pub seed: u32,
    pub key: u64,
    /// Whether the device writes a log-probability for each token.
    pub logprobs: bool,
    /// A fault to put into the device.
    pub fault: Option<String>,
}

/// Is told what comes.
pub trait Listener {
    /// Tokens that have become visible since the last look.
    ///
    /// # Errors
    /// Ends the answer.
    fn tokens(&mut self, new: &[u32]) -> Result<(), Failure> {
        let _ = new;
        Ok(())
    }

    /// A DECODE has ended: all its tokens, and their log-probabilities where they were asked for.
    ///
    /// # Errors
    /// Ends the answer.
    fn decoded(&mut self, tokens: &[u32], logps: &[i32]) -> Result<(), Failure> {
        let _ = (tokens, logps);
        Ok(())
    }
}

/// What a device has answered.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    pub tokens: Vec<u32>,
    /// Of each token, where they were asked for; 16 fraction bits.
    pub logps: Vec<i32>,
    /// How long the prompt took, and the answer.
    pub prefilled: Duration,
    pub decoded: Duration,
}

/// A device with one sequence.
pub struct Session {
    device: Box<dyn Device>,
    tokens: TokenRegion,
    regions: LanguageRegions,
    /// Tokens of a DECODE.
    piece: usize,
    /// Bytes of a block of keys and values.
    block_bytes: u64,
}

/// Tokens of a DECODE, so that each token is in memory as soon as it is made. Model and GPU write token by token. The RTL writes lines
/// of 16 tokens, and what is left when a DECODE ends: a DECODE for each token costs it a few hundred cycles, where a token of the
/// smallest model takes thousands. Where DECODEs end decides nothing about tokens: seed, rollout and position do.
fn piece(kind: Kind) -> usize {
    match kind {
        Kind::Rtl => 1,
        // Of a device in another process, or on a bus, nobody knows what it is.
        Kind::VfioUser | Kind::Pcie => 1,
        Kind::Model | Kind::Gpu => usize::MAX,
    }
}

impl Session {
    /// Opens the device with memory for the model and as many tokens as may come, and publishes the model; `own` are settings of the
    /// device's, as [`Kind::choose`] has them.
    pub fn open(kind: Kind, own: &str, model: &Published, ask: &Ask<'_>) -> Result<Self, Failure> {
        let record = model.at(0);
        let positions = (ask.prompt.len() + ask.most) as u64;
        let blocks = positions.div_ceil(BLOCK_TOKENS.into());
        let tokens = TOKENS + 4 * positions;
        // A GPU keeps logits behind the blocks of a sequence where draws are truncated.
        let room = if ask.truncation.is_none() {
            0
        } else {
            (4 * u64::from(record.vocabulary)).next_multiple_of(64)
        };
        let queue = QueueConfig {
            sq_depth: 4,
            cq_depth: 4,
            token_bytes: tokens,
            logp_bytes: if ask.logprobs { tokens } else { 0 },
            kv_bytes: sequence_bytes(blocks),
            model_bytes: model.memory.len() as u64,
            arena_bytes: [blocks * record.block_bytes(), 0, 0, 0],
            sequence_bytes: blocks * record.block_bytes() + room,
            ..QueueConfig::default()
        };
        let settings = Settings { queue, fault: ask.fault.clone(), ..Settings::default() }.and(own)?;
        let device = kind.open(&settings).map_err(|error| match error {
            OpenError::Device(DeviceError::Config { field: "model_bytes", .. }) => {
                Failure::input(format!("--device {kind} runs no language model yet: give --device model"))
            }
            other => other.into(),
        })?;
        let truncates = device.features().capability.contains(Capability::TRUNCATION);
        if !ask.truncation.is_none() && !truncates {
            let problem = format!("--device {kind} draws among all tokens (CAPABILITY.TRUNCATION is 0)");
            return Err(Failure::input(format!(
                "{problem}; leave out --top-k, --top-p and --min-p, or give --device model"
            )));
        }
        let lacks = || Failure::failed(format!("{kind} has no regions of a language model"));
        let tokens = device.token_regions().into_iter().next().ok_or_else(lacks)?;
        let regions = device.language_regions().into_iter().next().ok_or_else(lacks)?;
        let block_bytes = record.block_bytes();
        let mut session = Self { device, tokens, regions, piece: piece(kind), block_bytes };
        session.publish(model, &record)?;
        Ok(session)
    }

    fn publish(&mut self, model: &Published, record: &HwImage) -> Result<(), Failure> {
        self.regions.model.write(record.offset, &model.memory)?;
        self.tokens.write(POLICY, &language_policy(VERSION, record))?;
        let desc =
            HwDesc { model_id: 1, ..HwDesc::policy(VERSION, PolicyMode::Wait) }.with_delta_offset(POLICY);
        self.submit(&desc)?;
        self.wait(|_| Ok(())).map(|_| ())
    }

    fn submit(&mut self, desc: &HwDesc) -> Result<(), Failure> {
        // The queue is empty: one descriptor after the other.
        self.device.submit(std::slice::from_ref(desc)).map(|_| ()).map_err(Failure::from)
    }

    /// Gives the device time until its descriptor has ended, looking at memory in between.
    fn wait(
        &mut self,
        mut look: impl FnMut(&TokenRegion) -> Result<(), Failure>,
    ) -> Result<HwCompletion, Failure> {
        let mut out = [HwCompletion::default()];
        while self.device.poll(&mut out)? == 0 {
            look(&self.tokens)?;
        }
        look(&self.tokens)?;
        if out[0].status == Status::Done as u8 {
            return Ok(out[0]);
        }
        let error = ErrorCode::try_from(out[0].error)
            .map_or_else(|_| "an unknown error".into(), |code| format!("{code:?}"));
        Err(Failure::failed(format!(
            "{} ended a descriptor with status {:#04x}, {error}; docs/contract.md says why",
            self.device.name(),
            out[0].status
        )))
    }

    /// Reads the prompt, and answers it.
    ///
    /// # Errors
    /// What the device fails with, and what `listener` does.
    pub fn answer(&mut self, ask: &Ask<'_>, listener: &mut dyn Listener) -> Result<Answer, Failure> {
        let length = ask.prompt.len() as u32;
        let began = Instant::now();
        self.tokens.write(TOKENS, ask.prompt)?;
        let at = TOKENS + 4 * u64::from(length);
        // A token is never torn, so one that is there is one that was made.
        self.tokens.write(at, &vec![TOKEN_NONE; ask.most])?;
        let Truncation { top_k, top_p, min_p } = ask.truncation;
        let sequence = HwSequence {
            sharpness: ask.sharpness.0,
            prompt: TOKENS,
            // Only the device writes the arena.
            generation: 1,
            draw_key: ask.key,
            top_k,
            top_p,
            min_p,
            ..HwSequence::default()
        };
        let blocks = (length + ask.most as u32).div_ceil(BLOCK_TOKENS);
        self.regions.place_sequence(0, sequence, &(0..blocks).collect::<Vec<_>>())?;
        let of_model =
            |desc: HwDesc| HwDesc { model_id: 1, ..desc }.with_version(VERSION).with_seed(ask.seed);
        if length > 1 {
            self.submit(&of_model(HwDesc::prefill(0, length)))?;
            self.wait(|_| Ok(()))?;
        }
        let mut answer = Answer { prefilled: began.elapsed(), ..Answer::default() };
        let flags = DescFlags::EOS_STOPS | if ask.logprobs { DescFlags::LOGP } else { DescFlags::empty() };
        while answer.tokens.len() < ask.most {
            let done = answer.tokens.len();
            let piece = self.piece.min(ask.most - done);
            let desc = of_model(HwDesc::decode(0, length + done as u32, piece as u32))
                .with_delta_offset(at + 4 * done as u64);
            self.submit(&desc.with_flags(flags))?;
            let completion = self.wait(|region| {
                let before = answer.tokens.len();
                read(region, at, ask.most, &mut answer.tokens)?;
                match &answer.tokens[before..] {
                    [] => Ok(()),
                    new => listener.tokens(new),
                }
            })?;
            answer.logps.extend(self.logps(at, done..answer.tokens.len())?);
            listener.decoded(&answer.tokens[done..], &answer.logps[answer.logps.len().min(done)..])?;
            if completion.has(CompletionFlags::EOS) || answer.tokens.len() < done + piece {
                break;
            }
        }
        answer.decoded = began.elapsed() - answer.prefilled;
        Ok(answer)
    }

    /// The log-probabilities of some tokens of the answer, if they were asked for.
    fn logps(&self, at: u64, range: std::ops::Range<usize>) -> Result<Vec<i32>, Failure> {
        let Some(region) = self.device.logp_regions().into_iter().next() else { return Ok(vec![]) };
        let mut logps = vec![0; range.len()];
        region.read(at + 4 * range.start as u64, &mut logps)?;
        Ok(logps.into_iter().map(u32::cast_signed).collect())
    }

    /// The keys and values of the first `positions` positions, as the device has them in its blocks (R27): of each the scale and the
    /// mantissas, by position, layer, head, key before value. What no token has written is left out.
    pub fn keys_and_values(&self, shape: &Shape, positions: usize) -> Result<Vec<u8>, Failure> {
        let place = Block { width: shape.head_width as u64 };
        let tokens = BLOCK_TOKENS as usize;
        let mut out = vec![];
        let mut block = vec![0; self.block_bytes as usize];
        for position in 0..positions {
            let token = (position % tokens) as u64;
            if token == 0 {
                let number = (position / tokens) as u64;
                self.regions.arenas[0].read(number * self.block_bytes, &mut block)?;
            }
            for head in 0..shape.kv_layers() * shape.kv_heads {
                let start = head as u64 * place.bytes();
                for part in 0..2 {
                    let scale = (start + place.scale(part, token)) as usize;
                    let mantissas = (start + place.mantissas(part, token)) as usize;
                    out.extend(&block[scale..scale + 2]);
                    out.extend(&block[mantissas..mantissas + shape.head_width]);
                }
            }
        }
        Ok(out)
    }

    /// Clock cycles since the device was enabled, of a device that has a clock.
    pub fn cycles(&mut self) -> Option<u64> {
        self.device.counters().ok().map(|counters| counters.get(Counter::Cycles))
    }
}

/// Reads the tokens that have come since the last look.
fn read(region: &TokenRegion, at: u64, most: usize, tokens: &mut Vec<u32>) -> Result<(), Failure> {
    while tokens.len() < most {
        let mut next = [0];
        region.read(at + 4 * tokens.len() as u64, &mut next)?;
        if next[0] == TOKEN_NONE {
            break;
        }
        tokens.push(next[0]);
    }
    Ok(())
}
