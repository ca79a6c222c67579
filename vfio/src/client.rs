//! The platform of a driver in another process than its device: the other end of a [`Server`](crate::Server)'s socket.
//!
//! rust-vmm's `vfio_user::Client` would be it, but it takes no note of the error in a reply: a refused range would look like one that
//! was given.

use std::fs::File;
use std::io::{self, IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use doorbell_contract::{Place, Register};
use doorbell_host::memory::SIMULATED_BUS_ADDRESS;
use doorbell_host::{Awaited, DeviceError, Platform, SharedDevice, SharedMemory};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use crate::config_space::{COMMAND, ENABLE};
use crate::interrupt::Interrupt;
use crate::protocol::{self, HEADER, Header, command, dma, irq};
use crate::server::REFUSALS;

/// How long a reply may take (R15): far more than a reset, or the turns of others.
const PATIENCE: Duration = Duration::from_secs(5);
/// MSI-X Enable, in the upper byte of its message control.
const MSIX_ENABLE: [u8; 1] = [0x80];

/// A queue pair, the first of its function, of a device behind a socket.
pub struct VfioUser {
    name: String,
    stream: UnixStream,
    id: u16,
    interrupt: Interrupt,
    key: SharedDevice,
    memory: Option<SharedMemory>,
    /// Whether each write waits for its answer.
    waits: bool,
}

impl VfioUser {
    /// Connects to the server at `socket`, which is the function's only client then.
    ///
    /// Writes of DOORBELL, CQ_HEAD and ARM are posted, as on PCI Express: nobody waits for them, and of one that the device refuses
    /// nobody is told (docs/contract.md, posted writes). All others are answered.
    ///
    /// # Errors
    /// `Unavailable` with the reason.
    pub fn open(socket: &Path) -> Result<Self, DeviceError> {
        Self::connect(socket, false)
    }

    /// The same, and every write is answered: one that the device refuses is `WriteRefused`, as of a device in the same process.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_answered(socket: &Path) -> Result<Self, DeviceError> {
        Self::connect(socket, true)
    }

    fn connect(socket: &Path, waits: bool) -> Result<Self, DeviceError> {
        let name = format!("vfio-user:{}", socket.display());
        let unavailable = |reason: String| DeviceError::Unavailable { device: name.clone(), reason };
        let stream = UnixStream::connect(socket).map_err(|error| {
            unavailable(format!(
                "no server listens there ({error}); start `doorbell vfio-user --socket {}`",
                socket.display()
            ))
        })?;
        let timeouts = stream.set_read_timeout(Some(PATIENCE)).and(stream.set_write_timeout(Some(PATIENCE)));
        timeouts.map_err(|error| unavailable(error.to_string()))?;
        let interrupt = Interrupt::new().map_err(|error| unavailable(format!("no eventfd: {error}")))?;
        let key = SharedDevice::next();
        let mut platform = Self { name: name.clone(), stream, id: 0, interrupt, key, memory: None, waits };
        platform.start()?;
        Ok(platform)
    }

    fn start(&mut self) -> Result<(), DeviceError> {
        self.ask(command::VERSION, &protocol::version(&format!(",\"{REFUSALS}\":true")), &[])?;
        self.write_region(protocol::CONFIG, COMMAND as u64, &ENABLE.to_le_bytes())?;
        let trigger = self.interrupt.eventfd().try_clone_to_owned().map_err(|error| self.lost(&error))?;
        let flags = irq::EVENTFD | irq::TRIGGER;
        self.ask(
            command::SET_IRQS,
            &protocol::words(&[20, flags, protocol::MSIX, 0, 1]),
            &[trigger.as_fd()],
        )?;
        // Upper byte of the message control of MSI-X.
        self.write_region(protocol::CONFIG, 0x83, &MSIX_ENABLE)
    }

    /// Sends a command, and gives the body of its reply.
    fn ask(&mut self, command: u16, body: &[u8], files: &[BorrowedFd<'_>]) -> Result<Vec<u8>, DeviceError> {
        match self.exchange(command, body, files) {
            Ok(Ok(body)) => Ok(body),
            Ok(Err(errno)) => Err(DeviceError::Unavailable {
                device: self.name.clone(),
                reason: format!("it refuses command {command}: {errno}"),
            }),
            Err(error) => Err(self.lost(&error)),
        }
    }

    /// The same; inside, the errno of a reply that says no.
    fn exchange(
        &mut self,
        command: u16,
        body: &[u8],
        files: &[BorrowedFd<'_>],
    ) -> io::Result<Result<Vec<u8>, io::Error>> {
        self.id = self.id.wrapping_add(1);
        self.send(&Header::command(self.id, command, body.len()), body, files)?;
        let mut reply = [0; protocol::MAX_MESSAGE];
        let mut got = 0;
        let mut size = HEADER;
        while got < size {
            match self.stream.read(&mut reply[got..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(bytes) => got += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if got >= HEADER {
                size = reply.first_chunk().map(Header::decode).map_or(0, |header| header.size as usize);
                if !(HEADER..=reply.len()).contains(&size) {
                    return Err(io::ErrorKind::InvalidData.into());
                }
            }
        }
        let header = reply.first_chunk().map(Header::decode).ok_or(io::ErrorKind::InvalidData)?;
        if header.id != self.id || got != size {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(match header.failure() {
            Some(errno) => Err(io::Error::from_raw_os_error(errno as i32)),
            None => Ok(reply[HEADER..size].to_vec()),
        })
    }

    fn send(&mut self, header: &Header, body: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
        let message = [&header.encode()[..], body].concat();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() && !control.push(SendAncillaryMessage::ScmRights(files)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // A socket takes a message of this size whole. One that is full of posted writes is waited for. A signal ends that wait, even one that
        // nobody handles and that stops the process, because it is bounded (signal(7)).
        let sent = loop {
            match sendmsg(&self.stream, &[IoSlice::new(&message)], &mut control, SendFlags::NOSIGNAL) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Err(io::ErrorKind::TimedOut.into()),
                sent => break sent?,
            }
        };
        if sent != message.len() {
            return Err(io::ErrorKind::WriteZero.into());
        }
        Ok(())
    }

    fn lost(&self, error: &io::Error) -> DeviceError {
        let what = match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
                "its server has gone, or has closed the connection (it serves one client at a time)"
                    .to_owned()
            }
            io::ErrorKind::WouldBlock => {
                format!("the driver waited for a reply of its server, {PATIENCE:?} (R15)")
            }
            io::ErrorKind::TimedOut => {
                format!("the driver waited for its server to read what it sent before, {PATIENCE:?} (R15)")
            }
            _ => format!("the connection to its server failed: {error}"),
        };
        DeviceError::Failed { device: self.name.clone(), what }
    }

    fn write_region(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        let body = [&offset.to_le_bytes()[..], &protocol::words(&[region, data.len() as u32]), data].concat();
        self.ask(command::REGION_WRITE, &body, &[]).map(drop)
    }

    /// Sleeps until the eventfd rings, or `deadline`, or the server goes.
    fn sleep(&mut self, deadline: Instant) -> Result<(), DeviceError> {
        let woken = self.interrupt.sleep(deadline, Some(self.stream.as_fd()));
        let woken = woken.map_err(|error| self.lost(&error))?;
        if woken.rang {
            self.interrupt.look()?;
        } else if woken.other {
            // Nothing was asked: what can be read is the end.
            return Err(self.lost(&io::ErrorKind::UnexpectedEof.into()));
        }
        Ok(())
    }
}

impl Platform for VfioUser {
    fn name(&self) -> &str {
        &self.name
    }

    fn map(&mut self, bytes: usize) -> Result<SharedMemory, DeviceError> {
        if let Some(before) = self.memory.take() {
            let at = before.bus_address().to_le_bytes();
            let body = [&protocol::words(&[24, 0])[..], &at, &(before.len() as u64).to_le_bytes()].concat();
            self.ask(command::DMA_UNMAP, &body, &[])?;
        }
        let refused = |error: io::Error| DeviceError::Memory { bytes, reason: error.to_string() };
        let (memory, file): (SharedMemory, File) =
            crate::memory::shared(bytes, SIMULATED_BUS_ADDRESS).map_err(refused)?;
        let body = [
            &protocol::words(&[32, dma::READ | dma::WRITE])[..],
            &0u64.to_le_bytes(),
            &memory.bus_address().to_le_bytes(),
            &(memory.len() as u64).to_le_bytes(),
        ]
        .concat();
        self.ask(command::DMA_MAP, &body, &[file.as_fd()])?;
        self.memory = Some(memory.clone());
        Ok(memory)
    }

    fn write_register(&mut self, register: Register, value: u32) -> Result<(), DeviceError> {
        let offset = u64::from(register.address(Place::FIRST));
        let mut body = [0; 20];
        body[..8].copy_from_slice(&offset.to_le_bytes());
        body[12] = 4;
        body[16..].copy_from_slice(&value.to_le_bytes());
        if !self.waits && matches!(register, Register::Doorbell | Register::CqHead | Register::Arm) {
            self.id = self.id.wrapping_add(1);
            let header = Header::posted(self.id, command::REGION_WRITE, body.len());
            return self.send(&header, &body, &[]).map_err(|error| self.lost(&error));
        }
        match self.exchange(command::REGION_WRITE, &body, &[]) {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) => Err(DeviceError::WriteRefused { device: self.name.clone(), register, value }),
            Err(error) => Err(self.lost(&error)),
        }
    }

    fn read_register(&mut self, register: Register) -> Result<u32, DeviceError> {
        let offset = u64::from(register.address(Place::FIRST));
        let mut body = [0; 16];
        body[..8].copy_from_slice(&offset.to_le_bytes());
        body[12] = 4;
        match self.exchange(command::REGION_READ, &body, &[]) {
            Ok(Ok(reply)) => match reply.last_chunk() {
                Some(word) if reply.len() == 20 => {
                    let value = u32::from_le_bytes(*word);
                    // As on PCI: what the device has sent before it answers a read has come with the answer.
                    self.interrupt.look()?;
                    Ok(value)
                }
                _ => Err(self.lost(&io::ErrorKind::InvalidData.into())),
            },
            Ok(Err(_)) => Err(DeviceError::ReadRefused { device: self.name.clone(), register }),
            Err(error) => Err(self.lost(&error)),
        }
    }

    fn advance(&mut self, _: usize) -> Result<(), DeviceError> {
        // Without polling the socket: whoever waits reads a register now and then.
        self.interrupt.pause()
    }

    /// The messages come as an eventfd, and the word is written here.
    fn route(&mut self, memory: &SharedMemory, offset: usize) -> Result<(), DeviceError> {
        self.interrupt.route(memory, offset);
        Ok(())
    }

    fn wait(&mut self, awaited: Awaited, deadline: Instant) -> Result<(), DeviceError> {
        match awaited {
            Awaited::Interrupt { .. } => self.sleep(deadline),
            Awaited::Completion => self.advance(1),
        }
    }

    fn shows_workers(&self) -> bool {
        false
    }

    fn runs_alone(&self) -> bool {
        true
    }

    fn shared_device(&self) -> Option<SharedDevice> {
        Some(self.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use vmm_sys_util::signal::{Killable, SIGRTMIN, register_signal_handler};

    extern "C" fn nothing<A, B>(_: i32, _: *mut A, _: *mut B) {}

    /// A server that reads nothing for a while, and a client that waits for room meanwhile and gets signals.
    #[test]
    fn a_signal_ends_no_posted_write() {
        const WRITES: u32 = 5_000;
        const BYTES: usize = WRITES as usize * (HEADER + 20);
        let (stream, mut server) = UnixStream::pair().unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        let mut client = VfioUser {
            name: "client".into(),
            stream,
            id: 0,
            interrupt: Interrupt::new().unwrap(),
            key: SharedDevice::next(),
            memory: None,
            waits: false,
        };
        register_signal_handler(SIGRTMIN(), nothing).unwrap();
        let posted = Arc::new(AtomicUsize::new(0));
        let counted = posted.clone();
        let writer = thread::spawn(move || {
            (0..WRITES).try_for_each(|value| {
                counted.fetch_add(1, Ordering::Relaxed);
                client.write_register(Register::Doorbell, value)
            })
        });
        let mut before = 0;
        while before == 0 || before != posted.load(Ordering::Relaxed) {
            before = posted.load(Ordering::Relaxed);
            thread::sleep(Duration::from_millis(100));
        }
        assert!(before < WRITES as usize, "the socket took all of it");
        for _ in 0..10 {
            writer.kill(SIGRTMIN()).unwrap();
            thread::sleep(Duration::from_millis(5));
        }
        let (mut bytes, mut buffer) = (0, [0; 4096]);
        while bytes < BYTES {
            match server.read(&mut buffer).unwrap() {
                0 => break,
                more => bytes += more,
            }
        }
        writer.join().unwrap().unwrap();
        assert_eq!(bytes, BYTES);
    }
}
