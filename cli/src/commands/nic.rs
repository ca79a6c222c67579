//! `doorbell nic …`: the collector of modelled NICs.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use doorbell_nic::MODELLED;
use doorbell_nic::collector::{Collector, CollectorOptions};
use doorbell_nic::store::{Records, StoreError};
use doorbell_runtime::trajectory::Trajectory;
use doorbell_runtime::trajectory::log::{Log, LogOptions, Run as LogRun};
use serde_json::json;

use crate::failure::Failure;
use crate::lines::Lines;
use crate::output;
use crate::signals::Signals;

/// The collector of modelled NICs: threads that carry payloads over TCP, from send rings that finishers of rollouts post into.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Store what modelled NICs send, each payload once and in order, until you end the command
    Collect {
        /// Address to listen at; port 0 takes a free one. Every client that reaches it is trusted
        #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7700")]
        listen: String,
        /// Directory with a file for each stream; files that exist are continued
        #[arg(long, value_name = "DIR")]
        store: PathBuf,
        /// Acknowledge a payload once the disk has it, instead of once the system has it
        #[arg(long)]
        sync: bool,
        /// Connections at a time, at most
        #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024))]
        connections: u16,
        /// Streams in the directory, at most
        #[arg(long, value_name = "N", default_value_t = 1024)]
        streams: usize,
    },
    /// Write the trajectories that were collected into a log of their own, in which each stream is a run
    Extract {
        /// The directory of the collector
        directory: PathBuf,
        /// Directory for the log, which must not have records yet
        #[arg(long, value_name = "DIR")]
        store: PathBuf,
    },
    /// Read all that was collected, and tell what each stream has
    Show {
        /// The directory of the collector
        directory: PathBuf,
        /// Print JSON instead of text
        #[arg(long)]
        json: bool,
    },
}

/// Runs the command.
pub fn run(command: Command) -> Result<ExitCode, Failure> {
    match command {
        Command::Collect { listen, store, sync, connections, streams } => {
            let mut options = CollectorOptions::default();
            (options.sync, options.connections, options.streams) = (sync, connections.into(), streams);
            collect(&listen, &store, options)
        }
        Command::Extract { directory, store } => extract(&directory, &store),
        Command::Show { directory, json } => show(&directory, json),
    }
}

fn collect(listen: &str, store: &Path, options: CollectorOptions) -> Result<ExitCode, Failure> {
    let signals = Signals::catch()?;
    let collector = Collector::bind(listen, store, options).map_err(Failure::input)?;
    let address = collector.address().map_err(Failure::input)?;
    output::print(&format!("{MODELLED} NIC: collector listening at {address}\n"))?;
    let handle = collector.handle();
    let lines = Mutex::new(Lines::new(Instant::now()));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !signals.come() {
                thread::sleep(Duration::from_millis(20));
            }
            handle.stop();
        });
        collector.serve(|peer, refusal| {
            let before = lines.lock().unwrap_or_else(PoisonError::into_inner).take(Instant::now());
            if let Some(before) = before {
                output::tell(format_args!(
                    "{MODELLED} NIC: the connection of {peer} was ended: {refusal}{before}"
                ));
            }
        });
    });
    let collected = handle.collected();
    output::print(&format!(
        "{MODELLED} NIC: {} payloads with {} bytes stored in {}\n{MODELLED} NIC: {} frames came twice, {} early; {} connections were refused\n",
        collected.records,
        collected.bytes,
        store.display(),
        collected.doubles,
        collected.early,
        collected.refused
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// What a stream's file has.
struct Held {
    stream: u64,
    records: u64,
    bytes: u64,
    /// A write that was cut off.
    torn: u64,
}

fn held(path: &Path) -> Result<Held, StoreError> {
    let mut records = Records::open(path)?;
    let mut held = Held { stream: records.stream(), records: 0, bytes: 0, torn: 0 };
    while let Some(record) = records.read()? {
        held.records += 1;
        held.bytes += record.payload.len() as u64;
    }
    let size =
        std::fs::metadata(path).map_err(|error| StoreError::Io { path: path.to_owned(), error })?.len();
    held.torn = size.saturating_sub(records.end());
    Ok(held)
}

/// The files of a collector's streams, in the order of their names.
fn streams(directory: &Path) -> Result<Vec<PathBuf>, Failure> {
    let unreadable = |error: std::io::Error| Failure::input(format!("{}: {error}", directory.display()));
    let mut paths = vec![];
    for file in std::fs::read_dir(directory).map_err(unreadable)? {
        let path = file.map_err(unreadable)?.path();
        if path.extension().is_some_and(|extension| extension == "nic") {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

/// Tells of all files that could not be read, and fails by the last.
fn told(mut failures: Vec<StoreError>) -> Result<ExitCode, Failure> {
    let Some(last) = failures.pop() else { return Ok(ExitCode::SUCCESS) };
    failures.iter().for_each(output::tell);
    Err(match last {
        StoreError::Damaged { .. } => Failure::failed(last),
        last => Failure::input(last),
    })
}

fn extract(directory: &Path, store: &Path) -> Result<ExitCode, Failure> {
    let paths = streams(directory)?;
    // A process that ends between the log's groups leaves a part; what was collected is still there, so it begins anew elsewhere.
    let (mut log, recovery) = Log::open(store, LogOptions::default()).map_err(Failure::input)?;
    if recovery.next > 0 {
        return Err(Failure::input(format!(
            "{} has records, and those that are there could come twice; give a directory of its own",
            store.display()
        )));
    }
    let (mut failures, mut written) = (vec![], 0);
    for path in &paths {
        match extract_stream(path, &mut log)? {
            Ok(records) => written += records,
            Err(error) => failures.push(error),
        }
    }
    log.commit().map_err(Failure::failed)?;
    output::print(&format!(
        "{MODELLED} NIC: {written} trajectories written to {}, of {} files of streams\n",
        store.display(),
        paths.len()
    ))?;
    told(failures)
}

/// Appends the trajectories of a stream, as far as its file is whole.
fn extract_stream(path: &Path, log: &mut Log) -> Result<Result<u64, StoreError>, Failure> {
    let mut records = match Records::open(path) {
        Ok(records) => records,
        Err(error) => return Ok(Err(error)),
    };
    let mut written = 0;
    loop {
        let record = match records.read() {
            Ok(Some(record)) => record,
            Ok(None) => return Ok(Ok(written)),
            Err(error) => return Ok(Err(error)),
        };
        let trajectory = Trajectory::decode(record.number, &record.payload).map_err(|what| {
            Failure::failed(format!(
                "{}: record {} is no trajectory: {what}; `doorbell nic extract` takes what `doorbell run --nic` carried",
                path.display(),
                record.number
            ))
        })?;
        if written == 0 {
            let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            let run = LogRun {
                id: format!("{:016x}", records.stream()),
                started_ms: since.as_millis() as u64,
                seed: trajectory.finished.seed.into(),
                doorbell: env!("CARGO_PKG_VERSION").to_owned(),
                device: format!("{MODELLED} NIC"),
                ..LogRun::default()
            };
            log.begin_run(run).map_err(Failure::input)?;
        }
        log.append(&trajectory.finished, &trajectory.body()).map_err(Failure::failed)?;
        written += 1;
    }
}

fn show(directory: &Path, json: bool) -> Result<ExitCode, Failure> {
    let paths = streams(directory)?;
    let mut lines = String::new();
    let mut figures = vec![];
    let mut failures = vec![];
    for path in &paths {
        let Held { stream, records, bytes, torn } = match held(path) {
            Ok(held) => held,
            // The others are shown all the same.
            Err(error) => {
                failures.push(error);
                continue;
            }
        };
        let cut = if torn == 0 {
            String::new()
        } else {
            format!(", then {torn} bytes of a write that was cut off")
        };
        lines +=
            &format!("{MODELLED} NIC: stream {stream:016x}: {records} payloads with {bytes} bytes{cut}\n");
        figures.push(
            json!({ "stream": format!("{stream:016x}"), "payloads": records, "bytes": bytes, "torn": torn }),
        );
    }
    if paths.is_empty() {
        lines = format!("{MODELLED} NIC: no stream in {}\n", directory.display());
    }
    let report = json!({ "modelled": true, "streams": figures });
    output::print(&if json { output::json(&report) } else { lines })?;
    told(failures)
}
