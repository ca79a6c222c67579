//! `doorbell demo`: one story from every device, side by side.

mod panes;
mod recording;
mod svg;

use std::fmt::Write as _;
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use doorbell_checkpoint::text::{Stream, Text};
use doorbell_devices::Kind;
use doorbell_lm::Shape;
use doorbell_lm::sample::Truncation;
use doorbell_npu::Published;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::failure::{DIFFERENT, Failure};
use crate::models;
use crate::output::{self, Output, Sink};
use crate::paint::{self, Style};
use crate::session::{Answer, Ask, Listener, Session};
use panes::{Line, Pane, State};
use recording::Recording;

/// Columns without a terminal, and at most.
const WIDTH: usize = 80;
const WIDEST: usize = 120;
/// Before how long each device took.
const TIME: &str = "time";
/// How often a terminal is drawn anew.
const TICK: Duration = Duration::from_millis(50);

/// Tells one story on every device of this machine, token by token and side by side, and compares all that they made: tokens,
/// log-probabilities, and the keys and values in memory. Ends with code 1 if any byte differs.
#[derive(clap::Args)]
pub struct Args {
    /// What the story begins with
    #[arg(default_value = "Once upon a time")]
    prompt: String,
    /// A name (`doorbell model list`), an image, a GGUF file or a directory of Hugging Face
    #[arg(long, default_value = models::DEFAULT)]
    model: String,
    /// Devices that tell it; by default all that are there. Settings of one follow its name, as in rtl:latency=40; vfio-user:SOCKET is one that
    /// `doorbell vfio-user --language` serves
    #[arg(long, value_delimiter = ',', value_name = "NAME,NAME")]
    devices: Vec<String>,
    /// Most tokens of the story, at least 1
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    tokens: u32,
    /// How freely tokens are drawn; 0 takes the most likely one each time
    #[arg(long, value_name = "T", default_value_t = 0.7)]
    temperature: f64,
    /// Decides what is drawn
    #[arg(long, default_value_t = 0)]
    seed: u32,
    /// Put a fault into the last device that takes one, to see the stories diverge; the faults are those of `compare --inject`
    #[arg(long, value_name = "FAULT")]
    inject: Option<String>,
    /// Write what was compared as JSON; '-' is standard output, and the story goes to standard error then
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Compare with what `--json` wrote on another machine, and show it beside the devices of this one
    #[arg(long, value_name = "FILE.json")]
    beside: Option<PathBuf>,
    /// Draw what a terminal shows as a picture, for a light page
    #[arg(long, value_name = "FILE.svg")]
    svg: Option<PathBuf>,
    /// The same for a dark page
    #[arg(long, value_name = "FILE.svg")]
    svg_dark: Option<PathBuf>,
}

/// A device, and the settings that follow its name.
type Chosen = (Kind, String);

/// A device that is not there, and why.
type Skipped = (Kind, String);

/// What a device's thread tells.
enum Event {
    /// More of the story, and the tokens so far.
    Text(String, usize),
    Ended(Box<Result<Told, Failure>>),
}

/// What a device has made.
struct Told {
    answer: Answer,
    text: String,
    /// Of the positions that have them.
    keys_and_values: Vec<u8>,
    cycles: Option<u64>,
}

impl Told {
    /// Over the text, the tokens, their log-probabilities, and keys and values.
    fn sha256(&self) -> String {
        let mut hash = Sha256::new();
        hash.update(&self.text);
        self.answer.tokens.iter().for_each(|token| hash.update(token.to_le_bytes()));
        self.answer.logps.iter().for_each(|logp| hash.update(logp.to_le_bytes()));
        hash.update(&self.keys_and_values);
        hash.finalize().iter().fold(String::new(), |mut out, byte| {
            let _ = write!(out, "{byte:02x}");
            out
        })
    }

    /// Where it parts from the first device's.
    fn difference(&self, first: &Told) -> Option<String> {
        let (own, other) = (&self.answer, &first.answer);
        if let Some(at) = (0..own.tokens.len().max(other.tokens.len()))
            .find(|&at| own.tokens.get(at) != other.tokens.get(at))
        {
            let token = |answer: &Answer| answer.tokens.get(at).map_or("none".into(), ToString::to_string);
            return Some(format!("token {at} is {}, expected {}", token(own), token(other)));
        }
        if let Some(at) =
            (0..own.logps.len().max(other.logps.len())).find(|&at| own.logps.get(at) != other.logps.get(at))
        {
            return Some(format!("the log-probability of token {at} is another"));
        }
        let differs = self.keys_and_values != first.keys_and_values;
        differs.then(|| "the keys and values in memory are others".to_owned())
    }
}

/// Tells of an answer while it comes.
struct Voice<'a> {
    text: &'a Text,
    stream: Stream<'a>,
    said: String,
    tokens: usize,
    place: usize,
    events: Sender<(usize, Event)>,
}

impl Listener for Voice<'_> {
    fn tokens(&mut self, new: &[u32]) -> Result<(), Failure> {
        let mut said = String::new();
        for &token in new.iter().filter(|&&token| !self.text.ends(token)) {
            said += &self.stream.next(token).map_err(Failure::input)?;
        }
        self.tokens += new.len();
        self.said += &said;
        // The command has ended, if nobody hears it.
        let _ = self.events.send((self.place, Event::Text(said, self.tokens)));
        Ok(())
    }
}

/// What all devices are asked.
struct Story<'a> {
    text: &'a Text,
    model: &'a Published,
    shape: &'a Shape,
    ask: Ask<'a>,
}

impl Story<'_> {
    /// Has one device tell it.
    fn tell(
        &self,
        (kind, own): (Kind, &str),
        fault: Option<&String>,
        place: usize,
        events: &Sender<(usize, Event)>,
    ) -> Result<Told, Failure> {
        let ask = Ask { fault: fault.cloned(), ..self.ask.clone() };
        let mut session = Session::open(kind, own, self.model, &ask)?;
        let stream = self.text.stream();
        let events = events.clone();
        let mut voice = Voice { text: self.text, stream, said: String::new(), tokens: 0, place, events };
        let answer = session.answer(&ask, &mut voice)?;
        let Voice { stream, mut said, .. } = voice;
        said += &stream.end().map_err(Failure::input)?;
        // The last token was made, and not yet read.
        let positions = ask.prompt.len() + answer.tokens.len().saturating_sub(1);
        let keys_and_values = session.keys_and_values(self.shape, positions)?;
        // A GPU's clock runs on while the host is busy, and the golden model has none.
        let cycles = session.cycles().filter(|_| kind == Kind::Rtl);
        Ok(Told { answer, text: said, keys_and_values, cycles })
    }
}

/// Runs the command.
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    let sharpness = models::sharpness(args.temperature)?;
    let (chosen, skipped) = select(&args)?;
    let (kinds, settings): (Vec<Kind>, Vec<String>) = chosen.into_iter().unzip();
    let image = models::image(&args.model)?;
    let shape = image.model.shape;
    let text = Text::new(&image.about, shape.vocabulary).map_err(Failure::input)?;
    let prompt = models::prompt(&text, shape.context, &args.prompt, true)?;
    let most = (args.tokens as usize).min(shape.context - prompt.len());
    let model = Published::new(image.to_bytes(), &image.about.ends).map_err(Failure::input)?;
    kinds.iter().try_for_each(|&kind| models::fits(&model, kind))?;
    let recorded = args.beside.as_deref().map(|path| Recording::read(path, &args)).transpose()?;
    let json = args.json.as_deref().map(|path| Sink::open("JSON", path)).transpose()?;
    let light = args.svg.as_deref().map(|path| Output::open("picture", path)).transpose()?;
    let dark = args.svg_dark.as_deref().map(|path| Output::open("picture", path)).transpose()?;
    let faulty = kinds.iter().rposition(|kind| kind.takes_faults());
    if args.inject.is_some() && faulty.is_none() {
        return Err(Failure::input("none of these devices takes a fault: model and rtl do"));
    }

    let (sharpness, truncation) = (sharpness, Truncation::default());
    let ask = Ask {
        prompt: &prompt,
        most,
        sharpness,
        truncation,
        seed: args.seed,
        key: 0,
        logprobs: true,
        fault: None,
    };
    let story = Story { text: &text, model: &model, shape: &shape, ask };
    let recorded = recorded.as_ref().map_or(&[][..], Recording::devices);
    let mut screen = Screen::new(&args, &kinds, recorded, matches!(json, Some(Sink::Standard)));
    let told = thread::scope(|scope| -> Result<Vec<_>, Failure> {
        let (events, heard) = mpsc::channel();
        for (place, device) in kinds.iter().copied().zip(settings.iter().map(String::as_str)).enumerate() {
            let fault = args.inject.as_ref().filter(|_| faulty == Some(place));
            let (story, events) = (&story, events.clone());
            scope.spawn(move || {
                let told = story.tell(device, fault, place, &events);
                let _ = events.send((place, Event::Ended(Box::new(told))));
            });
        }
        drop(events);
        let mut told: Vec<Option<Result<Told, Failure>>> = kinds.iter().map(|_| None).collect();
        loop {
            match heard.recv_timeout(TICK) {
                Ok((place, Event::Text(more, tokens))) => screen.said(place, &more, tokens),
                Ok((place, Event::Ended(ended))) => {
                    screen.ended(place, &ended);
                    told[place] = Some(*ended);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            screen.show()?;
        }
        // A thread that ended without a word has panicked, which the scope tells.
        Ok(told.into_iter().flatten().collect())
    })?;
    let ending = Ending { kinds: &kinds, told: &told, recorded, skipped: &skipped };
    let lines = ending.lines();
    screen.end(&lines)?;
    for (picture, theme) in [(light, svg::LIGHT), (dark, svg::DARK)] {
        if let Some(picture) = picture {
            // What a machine has measured belongs to no picture.
            let is_time = |line: &Line| line.first().is_some_and(|(_, text)| text.starts_with(TIME));
            let shown =
                [screen.frame(WIDTH), lines.iter().filter(|line| !is_time(line)).cloned().collect()].concat();
            picture.write(svg::draw("doorbell demo", &shown, &theme).as_bytes())?;
        }
    }
    if let Some(json) = json {
        json.write(&ending.json(&args, &prompt))?;
    }
    Ok(if ending.agrees() { ExitCode::SUCCESS } else { ExitCode::from(DIFFERENT) })
}

/// The devices asked for, or all that are there, each with its own settings; and why one is not.
fn select(args: &Args) -> Result<(Vec<Chosen>, Vec<Skipped>), Failure> {
    let choose = |text: &String| Kind::choose(text);
    let mut chosen = args.devices.iter().map(choose).collect::<Result<Vec<_>, _>>()?;
    let mut skipped = vec![];
    if chosen.is_empty() {
        for kind in Kind::ALL {
            match kind.missing() {
                None => chosen.push((kind, String::new())),
                Some(reason) => skipped.push((kind, reason)),
            }
        }
    }
    Ok((chosen, skipped))
}

/// What is seen while devices tell.
struct Screen {
    panes: Vec<Pane>,
    title: String,
    /// On a terminal, what is drawn anew.
    bar: Option<ProgressBar>,
    /// Without one, lines that were printed.
    printed: usize,
    to_stderr: bool,
}

impl Screen {
    fn new(args: &Args, kinds: &[Kind], recorded: &[recording::Device], to_stderr: bool) -> Self {
        let pane = |kind: &Kind| Pane::new(kind.name(), about(*kind), &args.prompt);
        let mut panes: Vec<Pane> = kinds.iter().map(pane).collect();
        panes.extend(recorded.iter().map(|device| device.pane(&args.prompt)));
        let machines = match panes.len() {
            1 => "one machine".to_owned(),
            2 => "two machines".to_owned(),
            3 => "three machines".to_owned(),
            many => format!("{many} machines"),
        };
        let title = format!(
            "{machines}, one story: {} tokens of {}, seed {}",
            args.tokens,
            output::plain(&args.model),
            args.seed
        );
        let is_live = !to_stderr && io::stdout().is_terminal();
        let bar = is_live.then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stdout());
            bar.with_style(ProgressStyle::with_template("{msg}").expect("the template is valid"))
        });
        Self { panes, title, bar, printed: 0, to_stderr }
    }

    fn said(&mut self, place: usize, more: &str, tokens: usize) {
        self.panes[place].text += &output::shown(more);
        self.panes[place].state = State::Telling(tokens);
    }

    fn ended(&mut self, place: usize, told: &Result<Told, Failure>) {
        let pane = &mut self.panes[place];
        pane.state = match told {
            Ok(Told { answer, text, cycles, .. }) => {
                pane.text = pane.prompt.clone() + &output::shown(text);
                State::Ended { tokens: answer.tokens.len(), cycles: *cycles }
            }
            Err(failure) => State::Failed(output::plain(&failure.to_string())),
        };
    }

    /// The panes in so many columns.
    fn frame(&self, width: usize) -> Vec<Line> {
        let mut lines = vec![vec![(Style::Bold, self.title.clone())], vec![]];
        lines.extend(panes::side_by_side(&self.panes, width));
        lines
    }

    /// Shows what has come.
    fn show(&mut self) -> Result<(), Failure> {
        if let Some(bar) = &self.bar {
            let width = output::width().unwrap_or(WIDTH).clamp(20, WIDEST);
            bar.set_message(panes::painted(&self.frame(width), paint::is_on(&io::stdout())));
            return Ok(());
        }
        // A line that stays as it is may be printed.
        let frame = self.frame(WIDTH);
        let sure = 2 + panes::sure(&self.panes, WIDTH);
        self.print(&frame, sure.min(frame.len()))
    }

    fn print(&mut self, lines: &[Line], until: usize) -> Result<(), Failure> {
        for line in &lines[self.printed.min(until)..until] {
            self.put(std::slice::from_ref(line))?;
        }
        self.printed = self.printed.max(until);
        Ok(())
    }

    fn put(&self, lines: &[Line]) -> Result<(), Failure> {
        if self.to_stderr {
            output::note(panes::painted(lines, false).trim_end_matches('\n'));
            return Ok(());
        }
        output::print_raw(&panes::painted(lines, paint::is_on(&io::stdout())))
    }

    /// The last state, and what follows from it.
    fn end(&mut self, lines: &[Line]) -> Result<(), Failure> {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
        let frame = self.frame(output::width().unwrap_or(WIDTH).clamp(20, WIDEST));
        self.print(&frame, frame.len())?;
        self.put(lines)
    }
}

/// A device in a few words.
fn about(kind: Kind) -> &'static str {
    match kind {
        Kind::Model => "golden model, in Rust",
        Kind::Rtl => "SystemVerilog, in Verilator",
        Kind::Gpu => "CUDA kernel",
        Kind::VfioUser => "another process",
        Kind::Pcie => "PCI Express",
    }
}

/// What became of it.
struct Ending<'a> {
    kinds: &'a [Kind],
    told: &'a [Result<Told, Failure>],
    recorded: &'a [recording::Device],
    skipped: &'a [Skipped],
}

impl Ending<'_> {
    /// The first that differs or failed, and how.
    fn problem(&self) -> Option<String> {
        let first = self.told.first()?;
        let of_this_machine = self.kinds.iter().zip(self.told).find_map(|(kind, told)| match (first, told) {
            (_, Err(failure)) => Some(format!("failed: {kind}: {}", output::plain(&failure.to_string()))),
            (Ok(first), Ok(told)) => {
                let difference = told.difference(first)?;
                Some(format!("different: {kind} differs from {}: {difference}", self.kinds[0]))
            }
            (Err(_), Ok(_)) => None,
        });
        of_this_machine.or_else(|| {
            let first = first.as_ref().ok()?;
            self.recorded.iter().find_map(|device| device.problem(self.kinds[0], first))
        })
    }

    fn agrees(&self) -> bool {
        self.problem().is_none()
    }

    fn lines(&self) -> Vec<Line> {
        let mut lines = vec![vec![]];
        let plain = |text: String| vec![(Style::Plain, text)];
        match (self.problem(), self.told.first()) {
            (Some(problem), _) => {
                let (verdict, rest) = problem.split_once(':').unwrap_or((&problem, ""));
                lines.push(vec![(Style::Bad, verdict.to_owned()), (Style::Plain, format!(":{rest}"))]);
            }
            (None, Some(Ok(told))) => {
                let names: Vec<&str> = self.kinds.iter().map(|kind| kind.name()).collect();
                let what = "text, tokens, log-probabilities, keys and values";
                if names.len() > 1 {
                    let rest = format!(": {what} on {}", names.join(", "));
                    lines.push(vec![(Style::Good, "identical".to_owned()), (Style::Plain, rest)]);
                }
                for device in self.recorded {
                    let rest = format!(": {what} recorded on {}", output::plain(device.name()));
                    lines.push(vec![(Style::Good, "the same".to_owned()), (Style::Plain, rest)]);
                }
                lines.push(plain(format!("sha256    {}", told.sha256())));
            }
            _ => {}
        }
        let time = |(kind, told): (&Kind, &Result<Told, Failure>)| {
            let Answer { prefilled, decoded, .. } = &told.as_ref().ok()?.answer;
            Some(format!("{kind} {:.2} s", (*prefilled + *decoded).as_secs_f64()))
        };
        let times: Vec<String> = self.kinds.iter().zip(self.told).filter_map(time).collect();
        lines.push(vec![(Style::Dim, format!("{TIME}      {}", times.join(", ")))]);
        for (kind, reason) in self.skipped {
            let width = WIDTH - 10;
            let reason = panes::wrapped(&format!("{kind}: {}", output::plain(reason)), width);
            let heads = std::iter::once("not here").chain(std::iter::repeat(""));
            lines.extend(
                heads.zip(reason).map(|(head, text)| vec![(Style::Dim, format!("{head:<10}{text}"))]),
            );
        }
        lines.push(vec![]);
        lines.push(vec![(Style::Bold, "what next".to_owned())]);
        lines
            .extend(next().map(|(who, command)| {
                vec![(Style::Plain, format!("  {who:<18}  ")), (Style::Good, command)]
            }));
        if let Some(program) = std::env::args().next().filter(|program| program.contains('/')) {
            let text = format!("  here, `doorbell` is {}", output::plain(&program));
            lines.push(vec![(Style::Dim, text)]);
        }
        lines
    }

    fn json(&self, args: &Args, prompt: &[u32]) -> String {
        let device = |(kind, told): (&Kind, &Result<Told, Failure>)| match told {
            Ok(told) => json!({
                "device": kind.name(), "text": told.text, "tokens": told.answer.tokens, "log_probabilities": told.answer.logps,
                "key_value_bytes": told.keys_and_values.len(), "sha256": told.sha256(), "cycles": told.cycles,
                "prompt_seconds": told.answer.prefilled.as_secs_f64(), "seconds": told.answer.decoded.as_secs_f64(),
            }),
            Err(failure) => json!({ "device": kind.name(), "failure": failure.to_string() }),
        };
        let skipped = |(kind, reason): &Skipped| json!({ "device": kind.name(), "reason": reason });
        output::json(&json!({
            "identical": self.agrees(), "model": args.model, "prompt": args.prompt, "prompt_tokens": prompt, "seed": args.seed,
            "temperature": args.temperature, "most": args.tokens,
            "devices": self.kinds.iter().zip(self.told).map(device).collect::<Vec<_>>(),
            "skipped": self.skipped.iter().map(skipped).collect::<Vec<_>>(),
        }))
    }
}

/// Who goes on with what: with a command of this program, or with one that builds what is missing.
fn next() -> [(&'static str, String); 4] {
    let run = "--group 8 --checkpoint 64 --store log";
    [
        (
            "RTL engineers",
            if compares() {
                "doorbell compare --inject token".to_owned()
            } else {
                "make compare ARGS=\"--inject token\"".to_owned()
            },
        ),
        (
            "RL infrastructure",
            if cfg!(feature = "runtime") {
                format!("doorbell run {run}")
            } else {
                format!("make run ARGS=\"{run}\"")
            },
        ),
        ("CUDA engineers", "cargo xtask gpu-check".to_owned()),
        ("students", "cargo xtask lab 1 --quick".to_owned()),
    ]
}

/// Whether this program has an RTL device without a language model's engine, as `compare` takes by default.
fn compares() -> bool {
    #[cfg(feature = "rtl")]
    return !doorbell_cosim::built_workers().is_empty();
    #[cfg(not(feature = "rtl"))]
    false
}
