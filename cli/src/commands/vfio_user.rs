//! `doorbell vfio-user`.

mod log;
mod stop;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use doorbell_devices::{Kind, Served};
use doorbell_host::Platform as _;
use doorbell_vfio::{Notice, ServeError, Server};

use crate::failure::Failure;
use crate::output;
use log::Log;
use stop::Stopping;

/// Serves a device as functions of PCI Express over the protocol vfio-user, until it is ended: each at a socket of its own, to a virtual
/// machine (QEMU's vfio-user-pci) or to a driver in another process (--devices vfio-user:SOCKET). Clients may come and go.
#[derive(clap::Args)]
pub struct Args {
    /// Device to serve: rtl or model
    #[arg(long, value_name = "NAME", default_value = "rtl")]
    device: String,
    /// Socket to listen at; of several functions each has one, SOCKET.0, SOCKET.1 and so on
    #[arg(long, value_name = "SOCKET")]
    socket: PathBuf,
    /// Functions to divide the device among, 1 to 16; each has queue pairs, workers and memory of its own
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=16))]
    functions: u8,
    /// Queue pairs of each function
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=16))]
    queues: u8,
    /// Workers of the rtl, for all functions together; by default all that are built for one function, else one for each
    #[arg(long, value_name = "N")]
    workers: Option<u32>,
    /// Serve an rtl that runs language models (engine 1); the golden model always does
    #[arg(long)]
    language: bool,
    /// Stop at the Nth write of this register, by any client, until you press Enter: the client that wrote waits, and the device's clock stops.
    /// The cycle is printed
    #[arg(long, value_name = "REGISTER[:N]", value_parser = stop::parse)]
    stop: Option<stop::Stop>,
    /// Record a waveform of the rtl to this file, and end 2,000 cycles after the stop
    #[cfg(feature = "rtl")]
    #[arg(long, value_name = "FILE", requires = "stop")]
    wave: Option<PathBuf>,
}

/// Serves.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let &Args { functions, queues, workers, language, stop, .. } = args;
    if functions.checked_mul(queues).is_none_or(|queues| queues > 16) {
        return Err(Failure::input(format!(
            "--functions {functions} with --queues {queues} are {} queue pairs; a device has at most 16",
            u32::from(functions) * u32::from(queues)
        )));
    }
    let kind = Kind::parse(&args.device)?;
    #[cfg(feature = "rtl")]
    let recording = args.wave.as_deref().map(output::Recording::open).transpose()?;
    #[cfg(feature = "rtl")]
    let wave = recording.as_ref().map(|recording| recording.path().to_owned());
    #[cfg(not(feature = "rtl"))]
    let wave = None;
    // Nothing but a failure of the device, and a waveform that is whole, ends it: else a signal does.
    let over = Arc::new(AtomicBool::new(false));
    let end = wave.is_some().then(|| over.clone());
    let device = kind.open_by_function(&Served { functions, queues, workers, language, wave })?;
    let name = device.name().to_owned();
    let device = Stopping::new(device, stop, end);
    let sockets: Vec<PathBuf> = match functions {
        1 => vec![args.socket.clone()],
        _ => (0..functions).map(|function| numbered(&args.socket, function)).collect(),
    };
    let mut server = Server::new(device, &sockets).map_err(failed)?;
    for (function, socket) in sockets.iter().enumerate() {
        output::note(format_args!("{name}, function {function}: {}", socket.display()));
    }
    let tallies = server.tallies().to_vec();
    let mut log = Log::new(tallies.len(), Instant::now());
    let served = server.run(&over, |notice| {
        let (Notice::Came { function } | Notice::Gone { function, .. }) = notice;
        if let Some(line) = log.line(&notice, &tallies[usize::from(function)], Instant::now()) {
            output::note(line);
        }
    });
    served.map_err(failed)?;
    #[cfg(feature = "rtl")]
    if let Some(recording) = recording {
        // The recorder closes its file with the device.
        drop(server);
        recording.finish()?;
    }
    Ok(ExitCode::SUCCESS)
}

fn numbered(socket: &std::path::Path, function: u8) -> PathBuf {
    let mut name = socket.as_os_str().to_owned();
    name.push(format!(".{function}"));
    name.into()
}

fn failed(error: ServeError) -> Failure {
    match error {
        ServeError::Device(error) => Failure::from(doorbell_devices::OpenError::from(error)),
        other => Failure::input(other.to_string()),
    }
}
