//! `doorbell generate`.

use std::io::{self, Read, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use doorbell_lm::fast::Runner;
use doorbell_lm::sample::{Draw, Sharpness, sample};
use doorbell_lm::text::Text;
use doorbell_lm::{Cache, Model};
use rayon::ThreadPoolBuilder;

use crate::failure::Failure;
use crate::models;

/// Prompt tokens in one pass over the weights.
const AT_ONCE: usize = 128;

/// Answers a prompt with a language model, token by token, and says on standard error how fast. The same model, prompt, seed
/// and temperature give the same text on every machine.
#[derive(clap::Args)]
pub struct Args {
    /// What is asked; '-' is standard input
    prompt: String,
    /// A name (`doorbell model list`), an image, a GGUF file or a directory of Hugging Face
    #[arg(long, default_value = "smollm2")]
    model: String,
    /// Device to run on; so far only the model of the devices, in Rust
    #[arg(long, default_value = "model")]
    device: String,
    /// Most tokens of the answer
    #[arg(long, value_name = "N", default_value_t = 256)]
    tokens: usize,
    /// How freely tokens are drawn; 0 takes the most likely one each time
    #[arg(long, value_name = "T", default_value_t = 0.7)]
    temperature: f64,
    /// Decides what is drawn
    #[arg(long, default_value_t = 0)]
    seed: u32,
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
    if args.device != "model" {
        return Err(Failure::input(format!(
            "--device {} runs no language model yet: give --device model",
            args.device
        )));
    }
    let sharpness = Sharpness::of(args.temperature).ok_or_else(|| {
        Failure::input(format!("--temperature is {}; it must be 0, or 0.006 to 1000000", args.temperature))
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
    let prompt =
        if args.raw || !text.chats() { prompt } else { text.chat(&prompt).map_err(Failure::input)? };
    let prompt = text.encode(&prompt).map_err(Failure::input)?;
    if prompt.is_empty() {
        return Err(Failure::input("the prompt is empty: give at least a letter"));
    }
    if prompt.len() >= shape.context {
        return Err(Failure::input(format!(
            "the prompt has {} tokens, and the model a context of {}: give a shorter one",
            prompt.len(),
            shape.context
        )));
    }
    let most = args.tokens.min(shape.context - prompt.len());
    let pool = ThreadPoolBuilder::new().num_threads(args.threads.unwrap_or(0)).build();
    let pool = pool.map_err(|error| Failure::input(format!("cannot start threads: {error}")))?;
    let answer =
        Answer { model: &image.model, text: &text, sharpness, seed: args.seed, logprobs: args.logprobs };
    pool.install(|| answer.give(&prompt, most))?;
    Ok(ExitCode::SUCCESS)
}

struct Answer<'a> {
    model: &'a Model,
    text: &'a Text,
    sharpness: Sharpness,
    seed: u32,
    logprobs: bool,
}

impl Answer<'_> {
    fn give(&self, prompt: &[u32], most: usize) -> Result<(), Failure> {
        let runner = Runner::new(self.model);
        let mut cache = Cache::new(self.model);
        let began = Instant::now();
        let mut stream = self.text.stream();
        let mut last = vec![];
        for part in prompt.chunks(AT_ONCE) {
            last = runner.extend(&mut cache, part).pop().into_iter().collect();
        }
        let prefilled = began.elapsed();
        let mut given = 0;
        while given < most {
            let logits = runner.logits(&last);
            // A token's position is where it will stand.
            let position = (prompt.len() + given) as u32;
            let sampled = sample(&logits[0], self.sharpness, Draw::new(self.seed, 0, position));
            given += 1;
            let token = sampled.token;
            if self.logprobs {
                say(&format!("{token} {:.4}\n", f64::from(sampled.log_probability) / 65_536.0))?;
            } else if !self.text.ends(token) {
                say(&stream.next(token).map_err(Failure::input)?)?;
            }
            if self.text.ends(token) {
                break;
            }
            if given < most {
                last = runner.extend(&mut cache, &[token]);
            }
        }
        if !self.logprobs {
            say(&(stream.end().map_err(Failure::input)? + "\n"))?;
        }
        self.report(prompt.len(), prefilled, given, began.elapsed() - prefilled);
        Ok(())
    }

    fn report(&self, prompt: usize, prefilled: Duration, given: usize, decoded: Duration) {
        let rate = |tokens: usize, time: Duration| tokens as f64 / time.as_secs_f64().max(1e-9);
        eprintln!(
            "prompt: {prompt} tokens, {:.1} a second; answer: {given} tokens, {:.1} a second",
            rate(prompt, prefilled),
            rate(given, decoded)
        );
    }
}

/// A reader that went away ends the answer.
fn say(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|error| Failure::input(format!("cannot write to standard output: {error}")))
}
