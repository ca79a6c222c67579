//! `doorbell top`: watches a run over its endpoint.

mod view;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use doorbell_runtime::metrics::{DEFAULT_ADDRESS, Status};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};

use self::view::View;
use crate::failure::Failure;
use crate::output;

/// How long the endpoint may take to answer: it is given up then.
const PATIENCE: Duration = Duration::from_secs(3);
/// Columns of `--once`.
const WIDTH: u16 = 120;

/// Shows a run as it goes: how full its stages are, rates, latencies, idle threads. 'q' quits.
#[derive(clap::Args)]
pub struct Args {
    /// Where the run serves its metrics
    #[arg(value_name = "ADDR", default_value = DEFAULT_ADDRESS)]
    address: String,
    /// Print what there is to see now, once, as plain text; rates are averages since the run began
    #[arg(long)]
    once: bool,
    /// Print what the run serves, once, as JSON
    #[arg(long, conflicts_with = "once")]
    json: bool,
    /// Time between two looks, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(50..=60_000))]
    interval: u64,
}

/// Watches until the user quits.
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    let endpoint = Endpoint::new(&args.address);
    if args.json {
        let status =
            endpoint.ask().and_then(|text| serde_json::from_str(&text).map_err(|error| error.to_string()));
        let status = status.map_err(|reason| absent(&args.address, &reason))?;
        output::print_raw(&output::json(&status))?;
        return Ok(ExitCode::SUCCESS);
    }
    // Before anything is drawn, so that a run that is not there is told as an error.
    let first = endpoint.fetch().map_err(|reason| absent(&args.address, &reason))?;
    let mut view = View::new(&args.address, first);
    if args.once {
        output::print(&view.text(WIDTH))?;
        return Ok(ExitCode::SUCCESS);
    }
    let failed = |error| Failure::input(format!("cannot draw on this terminal: {error}; try --once"));
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let result = watch(&mut terminal, &mut view, &endpoint, Duration::from_millis(args.interval));
    let restored = ratatui::try_restore();
    result.and(restored).map_err(failed)?;
    Ok(ExitCode::SUCCESS)
}

fn absent(address: &str, reason: &str) -> Failure {
    Failure::unavailable(format!(
        "no run at {address}: {reason}; give the address that the run serves its metrics at"
    ))
}

fn watch(
    terminal: &mut ratatui::DefaultTerminal,
    view: &mut View,
    endpoint: &Endpoint,
    interval: Duration,
) -> std::io::Result<()> {
    let mut due = Instant::now() + interval;
    loop {
        terminal.draw(|frame| view.draw(frame))?;
        // A key, or a new size of the terminal, is answered at once.
        if event::poll(due.saturating_duration_since(Instant::now()))? {
            match event::read()? {
                Event::Key(key) if key.kind == KeyEventKind::Press && quits(key.code, key.modifiers) => {
                    return Ok(());
                }
                _ => continue,
            }
        }
        due = Instant::now() + interval;
        match endpoint.fetch() {
            Ok(status) => view.update(status),
            Err(reason) => view.lost(reason),
        }
    }
}

fn quits(code: KeyCode, modifiers: KeyModifiers) -> bool {
    matches!(code, KeyCode::Char('q') | KeyCode::Esc)
        || (code == KeyCode::Char('c') && modifiers.contains(KeyModifiers::CONTROL))
}

/// Where a run answers.
struct Endpoint {
    agent: ureq::Agent,
    url: String,
}

impl Endpoint {
    fn new(address: &str) -> Self {
        let config = ureq::Agent::config_builder().timeout_global(Some(PATIENCE)).proxy(None).build();
        Self { agent: config.into(), url: format!("http://{address}/status.json") }
    }

    /// What it answers.
    fn ask(&self) -> Result<String, String> {
        let mut answer = self.agent.get(&self.url).call().map_err(|error| error.to_string())?;
        answer.body_mut().read_to_string().map_err(|error| error.to_string())
    }

    /// The run as it is now, or why that cannot be told.
    fn fetch(&self) -> Result<Status, String> {
        let text = self.ask()?;
        serde_json::from_str(&text).map_err(|error| format!("not the status of a run: {error}"))
    }
}
