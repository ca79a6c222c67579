//! `doorbell generate`.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use doorbell_checkpoint::text::{Stream, Text};
use doorbell_devices::Kind;
use doorbell_lm::sample::Truncation;
use doorbell_npu::Published;
use rayon::ThreadPoolBuilder;
use serde_json::json;

use crate::busy::Busy;
use crate::failure::Failure;
use crate::inputs;
use crate::models;
use crate::output;
use crate::session::{Answer, Ask, Listener, Session};

/// Answers a prompt with a language model, token by token, and says on standard error how fast. The same model, prompt, seed
/// and temperature give the same text on every machine.
#[derive(clap::Args)]
pub struct Args {
    /// What is asked; '-' is standard input, at most 16 MiB
    prompt: String,
    /// A name (`doorbell model list`), an image, a GGUF file or a directory of Hugging Face
    #[arg(long, default_value = models::DEFAULT)]
    model: String,
    #[command(flatten)]
    cap: models::CapArgs,
    /// Device to run on: model, rtl, gpu, pcie:ADDRESS, or vfio-user:SOCKET, which `doorbell vfio-user --language` serves
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
    /// Draws among the most likely tokens that together have this probability; 1 among all
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
    /// Threads, at most 1024; by default one for each processor
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Print the tokens and their log-probabilities instead of text
    #[arg(long)]
    logprobs: bool,
    /// Print JSON instead of text, when the answer is whole
    #[arg(long)]
    json: bool,
}

/// Generates.
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    let (kind, own) = Kind::choose(&args.device)?;
    let sharpness = models::sharpness(args.temperature)?;
    let truncation = Truncation::new(args.top_k, args.top_p, args.min_p).ok_or_else(|| {
        let (top_p, min_p) = (args.top_p, args.min_p);
        Failure::input(format!(
            "--top-p is {top_p} and --min-p is {min_p}; the first must be above 0 and at most 1, the second 0 to 1"
        ))
    })?;
    let mut prompt = args.prompt;
    if prompt == "-" {
        prompt = inputs::standard("the prompt")?;
    }
    let image = args.cap.apply(models::image(&args.model)?)?;
    let shape = image.model.shape;
    let text = Text::new(&image.about, shape.vocabulary).map_err(Failure::input)?;
    let prompt = models::prompt(&text, shape.context, &prompt, args.raw)?;
    let most = args.tokens.min(shape.context - prompt.len());
    let model = Published::new(image.to_bytes(), &image.about.ends).map_err(Failure::input)?;
    models::fits(&model, kind)?;
    drop(image);
    let pool = ThreadPoolBuilder::new().num_threads(args.threads.unwrap_or(0).into()).build();
    let pool = pool.map_err(|error| Failure::input(format!("cannot start threads: {error}")))?;
    let ask = Ask {
        prompt: &prompt,
        most,
        sharpness,
        truncation,
        seed: args.seed,
        key: args.draw_key,
        logprobs: args.logprobs || args.json,
        fault: None,
    };
    // The model computes on the threads of whoever gives it its time.
    let answer = pool.install(|| {
        let mut session =
            Busy::during(format!("opening {kind}"), || Session::open(kind, &own, &model, &ask))?;
        let busy = Busy::new(format!("{kind} reads the prompt"));
        let form = match (args.json, args.logprobs) {
            (true, _) => Form::Json,
            (false, true) => Form::LogProbabilities,
            (false, false) => Form::Text,
        };
        let mut given = Given { text: &text, stream: Some(text.stream()), form, busy };
        let answer = session.answer(&ask, &mut given)?;
        given.end().map(|()| answer)
    })?;
    let Answer { tokens, logps, prefilled, decoded } = answer;
    if tokens.len() == most && most < args.tokens && tokens.last().is_none_or(|&token| !text.ends(token)) {
        output::tell(format_args!(
            "the answer ends before its {} tokens: the model's context of {} is full",
            args.tokens, shape.context
        ));
    }
    if args.json {
        let told: Vec<u32> = tokens.iter().copied().filter(|&token| !text.ends(token)).collect();
        let value = json!({
            "model": args.model, "device": kind.name(), "seed": args.seed, "prompt_tokens": prompt, "tokens": tokens,
            "text": text.decode(&told).map_err(Failure::input)?,
            "log_probabilities": logps.iter().map(|&logp| f64::from(logp) / 65_536.0).collect::<Vec<_>>(),
            "prompt_seconds": prefilled.as_secs_f64(), "seconds": decoded.as_secs_f64(),
        });
        output::print_raw(&output::json(&value))?;
        return Ok(ExitCode::SUCCESS);
    }
    if !tokens.is_empty() && tokens.iter().all(|&token| text.ends(token)) {
        output::note(
            "the model ended its answer at once, as it takes the prompt for a whole text; give one that it can go on from, as \
             \"Once upon a time\", or another --seed",
        );
    }
    report(prompt.len(), prefilled, tokens.len(), decoded);
    Ok(ExitCode::SUCCESS)
}

/// What is said of an answer as it comes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Text,
    LogProbabilities,
    /// Nothing, until it is whole.
    Json,
}

/// Says an answer as it comes.
struct Given<'a> {
    text: &'a Text,
    stream: Option<Stream<'a>>,
    form: Form,
    /// Until the first token.
    busy: Busy,
}

impl Given<'_> {
    fn end(&mut self) -> Result<(), Failure> {
        self.busy.clear();
        match self.stream.take().filter(|_| self.form == Form::Text) {
            Some(stream) => say(&(stream.end().map_err(Failure::input)? + "\n")),
            None => Ok(()),
        }
    }
}

impl Listener for Given<'_> {
    fn tokens(&mut self, new: &[u32]) -> Result<(), Failure> {
        let Some(stream) = self.stream.as_mut().filter(|_| self.form == Form::Text) else { return Ok(()) };
        self.busy.clear();
        for &token in new {
            if !self.text.ends(token) {
                say(&stream.next(token).map_err(Failure::input)?)?;
            }
        }
        Ok(())
    }

    fn decoded(&mut self, tokens: &[u32], logps: &[i32]) -> Result<(), Failure> {
        if self.form != Form::LogProbabilities {
            return Ok(());
        }
        self.busy.clear();
        for (token, &logp) in tokens.iter().zip(logps) {
            // 16 digits after the point say a multiple of 2^-16 exactly.
            say(&format!("{token} {:.16}\n", f64::from(logp) / 65_536.0))?;
        }
        Ok(())
    }
}

fn report(prompt: usize, prefilled: Duration, given: usize, decoded: Duration) {
    let rate = |tokens: usize, time: Duration| tokens as f64 / time.as_secs_f64().max(1e-9);
    output::note(format_args!(
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
