//! Trajectories to a collector, by a modelled NIC (`--nic`).

use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use doorbell_contract::HwNicEntry;
use doorbell_host::queue::Depth;
use doorbell_nic::MODELLED;
use doorbell_nic::device::{Nic, NicOptions};
use doorbell_nic::poster::{CarryError, Poster};
use doorbell_runtime::trajectory::{Carrier, Finished};

use crate::failure::Failure;
use crate::output;

/// Slots of the send ring.
const DEPTH: u32 = 1024;
/// Bytes of the region that payloads wait in: a few of the longest.
const REGION: usize = 64 << 20;

/// The writer's end of a send ring, and the NIC that serves it.
pub struct NicCarrier {
    poster: Poster,
    /// Taken where it has ended.
    nic: Option<Nic>,
}

/// Whether there is a collector. A run is long, and its collector may go and come back. One that is not there at first will not come.
///
/// # Errors
/// When there is none.
pub fn reach(address: &str) -> Result<(), Failure> {
    connect(address).map_err(|error| {
        Failure::input(format!(
            "{MODELLED} NIC: no collector at {address} ({error}); start `doorbell nic collect --listen {address} --store DIR`"
        ))
    })
}

/// Connects to the collector, and hangs up.
fn connect(address: &str) -> io::Result<()> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, Duration::from_secs(5)) {
            Ok(_) => return Ok(()),
            Err(error) => last = error,
        }
    }
    Err(last)
}

impl NicCarrier {
    /// A NIC that carries to the collector at `address`.
    ///
    /// # Errors
    /// When memory or thread are refused.
    pub fn new(address: &str) -> Result<Self, Failure> {
        let depth = Depth::new("slots of the send ring", DEPTH).map_err(Failure::failed)?;
        let options = NicOptions::new(address);
        let (poster, port) = Poster::new(depth, REGION, options.stream as u32).map_err(Failure::failed)?;
        output::note(format_args!("{MODELLED} NIC: stream {:016x} to {address}", options.stream));
        let nic = Nic::start(options, vec![port]).map_err(Failure::failed)?;
        Ok(Self { poster, nic: Some(nic) })
    }

    /// Why the NIC has ended.
    fn reason(&mut self, error: impl std::fmt::Display) -> String {
        match self.nic.take().map(Nic::finish) {
            Some(Err(reason)) => format!("{MODELLED} NIC: {reason}"),
            _ => format!("{MODELLED} NIC: {error}"),
        }
    }
}

impl Carrier for NicCarrier {
    fn carry(&mut self, finished: &Finished, payload: &[u8]) -> Result<bool, String> {
        let about = HwNicEntry {
            user_data: finished.request,
            rollout_id: finished.device_rollout,
            seq_len: finished.prompt_tokens.saturating_add(finished.answer_tokens),
            result: finished.outcome as u32,
            ..HwNicEntry::default()
        };
        match self.poster.post(about, payload) {
            Ok(_) => Ok(true),
            Err(CarryError::Full) => Ok(false),
            Err(error) => Err(self.reason(error)),
        }
    }

    fn arrived(&mut self) -> Result<u64, String> {
        let arrived = self.poster.completed();
        match self.poster.fault() {
            Some(fault) => Err(self.reason(fault)),
            None => Ok(arrived),
        }
    }
}

impl Drop for NicCarrier {
    fn drop(&mut self) {
        match self.nic.take().map(Nic::finish) {
            Some(Ok(counts)) => output::note(format_args!(
                "{MODELLED} NIC: {} payloads with {} bytes carried, in {} frames",
                counts.completed, counts.bytes, counts.frames
            )),
            Some(Err(error)) => output::tell(format_args!("{MODELLED} NIC: {error}")),
            // It has ended before, and why was told.
            None => {}
        }
    }
}
