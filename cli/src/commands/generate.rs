//! `doorbell generate`.

use std::io::{self, IsTerminal, Read, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use doorbell_contract::{
    BLOCK_TOKENS, Capability, CompletionFlags, DescFlags, ErrorCode, HwCompletion, HwDesc, HwImage,
    HwSequence, PolicyMode, Status, TOKEN_NONE,
};
use doorbell_devices::{Kind, OpenError, Settings};
use doorbell_host::language::{language_policy, sequence_bytes};
use doorbell_host::{Device, DeviceError, LanguageRegions, QueueConfig, TokenRegion};
use doorbell_lm::sample::{Sharpness, Truncation};
use doorbell_lm::text::Text;
use doorbell_npu::Published;
use rayon::ThreadPoolBuilder;

use crate::failure::Failure;
use crate::models;
use crate::output;

/// The version that is published.
const VERSION: u16 = 1;
/// Where its POLICY lies in the token region, and the prompt with the answer behind it.
const POLICY: u64 = 0;
const TOKENS: u64 = 128;

/// Answers a prompt with a language model, token by token, and says on standard error how fast. The same model, prompt, seed
/// and temperature give the same text on every machine.
#[derive(clap::Args)]
pub struct Args {
    /// What is asked; '-' is standard input
    prompt: String,
    /// A name (`doorbell model list`), an image, a GGUF file or a directory of Hugging Face
    #[arg(long, default_value = models::DEFAULT)]
    model: String,
    /// Device to run on; of those that there are the model has an engine for it
    #[arg(long, default_value = "model")]
    device: String,
    /// Most tokens of the answer
    #[arg(long, value_name = "N", default_value_t = 256)]
    tokens: usize,
    /// How freely tokens are drawn; 0 takes the most likely one each time
    #[arg(long, value_name = "T", default_value_t = 0.7)]
    temperature: f64,
    /// Draws among the N most likely tokens; 0 among all
    #[arg(long, value_name = "N", default_value_t = 0)]
    top_k: u32,
    /// Draws among the most likely tokens that have this share together; 1 among all
    #[arg(long, value_name = "P", default_value_t = 1.0)]
    top_p: f64,
    /// Draws among the tokens that have this share of the most likely one's probability; 0 among all
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    min_p: f64,
    /// Decides what is drawn
    #[arg(long, default_value_t = 0)]
    seed: u32,
    /// Decides what is drawn in the place of the seed, if it is not 0: 64 bits
    #[arg(long, value_name = "KEY", default_value_t = 0)]
    draw_key: u64,
    /// Go on with the prompt as it stands, not as a chat
    #[arg(long)]
    raw: bool,
    /// Threads; by default one for each processor
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Print the tokens and their log-probabilities instead of text
    #[arg(long)]
    logprobs: bool,
}

/// Generates.
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    let kind = Kind::parse(&args.device)?;
    let sharpness = models::sharpness(args.temperature)?;
    let truncation = Truncation::new(args.top_k, args.top_p, args.min_p).ok_or_else(|| {
        let (top_p, min_p) = (args.top_p, args.min_p);
        Failure::input(format!(
            "--top-p is {top_p} and --min-p is {min_p}; the first must be above 0 and at most 1, the second 0 to 1"
        ))
    })?;
    if args.threads == Some(0) {
        return Err(Failure::input("--threads is 0; it must be at least 1"));
    }
    let mut prompt = args.prompt;
    if prompt == "-" {
        prompt.clear();
        io::stdin()
            .read_to_string(&mut prompt)
            .map_err(|error| Failure::input(format!("cannot read the prompt: {error}; give a text")))?;
    }
    let image = models::image(&args.model)?;
    let shape = image.model.shape;
    let text = Text::new(&image.about, shape.vocabulary).map_err(Failure::input)?;
    let prompt = models::prompt(&text, shape.context, &prompt, args.raw)?;
    let most = args.tokens.min(shape.context - prompt.len());
    let model = Published::new(image.to_bytes(), &image.about.ends).map_err(Failure::input)?;
    models::fits(&model, kind)?;
    drop(image);
    let pool = ThreadPoolBuilder::new().num_threads(args.threads.unwrap_or(0)).build();
    let pool = pool.map_err(|error| Failure::input(format!("cannot start threads: {error}")))?;
    let ask = Ask {
        text: &text,
        prompt: &prompt,
        most,
        sharpness,
        truncation,
        seed: args.seed,
        key: args.draw_key,
        logprobs: args.logprobs,
    };
    // The model computes on the threads of whoever gives it its time.
    pool.install(|| Session::open(kind, &model, &ask)?.answer(&ask))?;
    Ok(ExitCode::SUCCESS)
}

/// What is asked.
struct Ask<'a> {
    text: &'a Text,
    prompt: &'a [u32],
    most: usize,
    sharpness: Sharpness,
    truncation: Truncation,
    seed: u32,
    key: u64,
    logprobs: bool,
}

/// A device with one sequence.
struct Session {
    device: Box<dyn Device>,
    tokens: TokenRegion,
    regions: LanguageRegions,
    /// Tokens of a DECODE.
    piece: usize,
}

/// Tokens of a DECODE, so that each token is in memory as soon as it is made. Model and GPU write token by token. The RTL writes lines
/// of 16 tokens, and what is left when a DECODE ends: a DECODE for each token costs it a few hundred cycles, where a token of the
/// smallest model takes thousands. Where DECODEs end decides nothing about tokens: seed, rollout and position do.
fn piece(kind: Kind) -> usize {
    match kind {
        Kind::Rtl => 1,
        Kind::Model | Kind::Gpu => usize::MAX,
    }
}

impl Session {
    /// Opens the device with memory for the model and as many tokens as may come, and publishes the model.
    fn open(kind: Kind, model: &Published, ask: &Ask<'_>) -> Result<Self, Failure> {
        let record = model.at(0);
        let positions = (ask.prompt.len() + ask.most) as u64;
        let blocks = positions.div_ceil(BLOCK_TOKENS.into());
        let tokens = TOKENS + 4 * positions;
        // A GPU takes as much memory for a sequence as an arena has, and keeps logits there where draws are truncated.
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
            arena_bytes: [blocks * record.block_bytes() + room, 0, 0, 0],
            ..QueueConfig::default()
        };
        let device = kind.open(&Settings { queue, ..Settings::default() }).map_err(|error| match error {
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
        let mut session = Self { device, tokens, regions, piece: piece(kind) };
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

    fn answer(mut self, ask: &Ask<'_>) -> Result<(), Failure> {
        let length = ask.prompt.len() as u32;
        let began = Instant::now();
        self.tokens.write(TOKENS, ask.prompt)?;
        let answer = TOKENS + 4 * u64::from(length);
        // A token is never torn, so one that is there is one that was made.
        self.tokens.write(answer, &vec![TOKEN_NONE; ask.most])?;
        let blocks = (length + ask.most as u32).div_ceil(BLOCK_TOKENS);
        let Truncation { top_k, top_p, min_p } = ask.truncation;
        let sequence = HwSequence {
            sharpness: ask.sharpness.0,
            prompt: TOKENS,
            // Nobody but the device writes the arena.
            generation: 1,
            draw_key: ask.key,
            top_k,
            top_p,
            min_p,
            ..HwSequence::default()
        };
        self.regions.place_sequence(0, sequence, &(0..blocks).collect::<Vec<_>>())?;
        let of_model =
            |desc: HwDesc| HwDesc { model_id: 1, ..desc }.with_version(VERSION).with_seed(ask.seed);
        if length > 1 {
            self.submit(&of_model(HwDesc::prefill(0, length)))?;
            self.wait(|_| Ok(()))?;
        }
        let prefilled = began.elapsed();
        let mut given =
            Given { text: ask.text, stream: ask.text.stream(), tokens: vec![], most: ask.most, at: answer };
        let flags = DescFlags::EOS_STOPS | if ask.logprobs { DescFlags::LOGP } else { DescFlags::empty() };
        while given.tokens.len() < ask.most {
            let done = given.tokens.len();
            let piece = self.piece.min(ask.most - done);
            let desc = of_model(HwDesc::decode(0, length + done as u32, piece as u32))
                .with_delta_offset(answer + 4 * done as u64);
            self.submit(&desc.with_flags(flags))?;
            let completion = self.wait(|tokens| if ask.logprobs { Ok(()) } else { given.say_new(tokens) })?;
            if ask.logprobs {
                given.say_likely(&self)?;
            }
            let is_over = completion.has(CompletionFlags::EOS);
            if is_over || given.tokens.len() < done + piece {
                break;
            }
        }
        if !ask.logprobs {
            say(&(given.stream.end().map_err(Failure::input)? + "\n"))?;
        }
        if !given.tokens.is_empty() && given.tokens.iter().all(|&token| ask.text.ends(token)) {
            output::tell(
                "the model ended its answer at once, as it takes the prompt for a whole text; give one that it can go on from, as \
                 \"Once upon a time\", or another --seed",
            );
        }
        report(ask.prompt.len(), prefilled, given.tokens.len(), began.elapsed() - prefilled);
        Ok(())
    }
}

/// What of an answer was said.
struct Given<'a> {
    text: &'a Text,
    stream: doorbell_lm::text::Stream<'a>,
    tokens: Vec<u32>,
    most: usize,
    at: u64,
}

impl Given<'_> {
    /// Reads the tokens that have come since the last look.
    fn read(&mut self, region: &TokenRegion) -> Result<usize, Failure> {
        let before = self.tokens.len();
        while self.tokens.len() < self.most {
            let mut next = [0];
            region.read(self.at + 4 * self.tokens.len() as u64, &mut next)?;
            if next[0] == TOKEN_NONE {
                break;
            }
            self.tokens.push(next[0]);
        }
        Ok(before)
    }

    fn say_new(&mut self, region: &TokenRegion) -> Result<(), Failure> {
        for k in self.read(region)?..self.tokens.len() {
            let token = self.tokens[k];
            if !self.text.ends(token) {
                say(&self.stream.next(token).map_err(Failure::input)?)?;
            }
        }
        Ok(())
    }

    /// Tokens and their log-probabilities, of a DECODE that is over.
    fn say_likely(&mut self, session: &Session) -> Result<(), Failure> {
        let before = self.read(&session.tokens)?;
        let new = &self.tokens[before..];
        let mut logps = vec![0; new.len()];
        if let Some(region) = session.device.logp_regions().first() {
            region.read(self.at + 4 * before as u64, &mut logps)?;
        }
        for (token, logp) in new.iter().zip(logps) {
            // 16 digits after the point say a multiple of 2^-16 exactly.
            say(&format!("{token} {:.16}\n", f64::from(logp as i32) / 65_536.0))?;
        }
        Ok(())
    }
}

fn report(prompt: usize, prefilled: Duration, given: usize, decoded: Duration) {
    let rate = |tokens: usize, time: Duration| tokens as f64 / time.as_secs_f64().max(1e-9);
    output::tell(format_args!(
        "prompt: {prompt} tokens, {:.1} a second; answer: {given} tokens, {:.1} a second",
        rate(prompt, prefilled),
        rate(given, decoded)
    ));
}

/// A reader that went away ends the answer. The text is the model's, so nothing in it steers a terminal.
fn say(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    let shown = out.is_terminal().then(|| output::shown(text));
    let text = shown.as_deref().unwrap_or(text);
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::reader_gone(),
        _ => Failure::input(format!("cannot write to standard output: {error}")),
    })
}
