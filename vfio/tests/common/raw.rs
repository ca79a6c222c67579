//! A client that sends what it likes.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use doorbell_contract::{Place, Register};
use doorbell_host::SharedMemory;
use doorbell_vfio::Refusal;
use doorbell_vfio::memory::shared;
use doorbell_vfio::protocol::{self, HEADER, Header, command};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::Served;

/// A socket to write anything to.
pub struct Raw(pub UnixStream);

impl Raw {
    pub fn connect(served: &Served, function: usize) -> Self {
        let deadline = Instant::now() + Duration::from_secs(5);
        loop {
            let mut raw = Self(UnixStream::connect(served.socket(function)).unwrap());
            raw.0.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            // While the function is reset after the last client, the next one is sent away.
            if raw.try_ask(command::VERSION, &protocol::version("")).is_some() {
                return raw;
            }
            assert!(Instant::now() < deadline, "no server");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Errno and body of the reply; `None`: the connection has ended.
    pub fn try_ask(&mut self, command: u16, body: &[u8]) -> Option<(u32, Vec<u8>)> {
        let header = Header::command(7, command, body.len());
        self.0.write_all(&[&header.encode()[..], body].concat()).ok()?;
        self.reply()
    }

    pub fn reply(&mut self) -> Option<(u32, Vec<u8>)> {
        let mut bytes = [0; HEADER];
        self.0.read_exact(&mut bytes).ok()?;
        let header = Header::decode(&bytes);
        let mut body = vec![0; header.size as usize - HEADER];
        self.0.read_exact(&mut body).ok()?;
        Some((header.failure().unwrap_or(0), body))
    }

    pub fn ask(&mut self, command: u16, body: &[u8]) -> (u32, Vec<u8>) {
        self.try_ask(command, body).expect("a reply")
    }

    pub fn ask_with(
        &mut self,
        command: u16,
        body: &[u8],
        files: &[std::os::fd::BorrowedFd<'_>],
    ) -> Option<u32> {
        self.send_with(&[&Header::command(7, command, body.len()).encode()[..], body].concat(), files);
        Some(self.reply()?.0)
    }

    /// Sends bytes, which need not be a message, with files.
    pub fn send_with(&self, bytes: &[u8], files: &[std::os::fd::BorrowedFd<'_>]) {
        let mut space = vec![std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(200))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(files)));
        sendmsg(&self.0, &[std::io::IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL).unwrap();
    }

    pub fn map(&mut self, bytes: usize, address: u64, flags: u32) -> SharedMemory {
        let (memory, file) = shared(bytes, address).unwrap();
        let body = map_body(flags, 0, address, memory.len() as u64);
        assert_eq!(self.ask_with(command::DMA_MAP, &body, &[file.as_fd()]), Some(0));
        memory
    }

    pub fn write(&mut self, region: u32, offset: u64, data: &[u8]) -> u32 {
        let body = [&offset.to_le_bytes()[..], &protocol::words(&[region, data.len() as u32]), data].concat();
        self.ask(command::REGION_WRITE, &body).0
    }

    pub fn write_register(&mut self, register: Register, place: Place, value: u32) {
        assert_eq!(self.write(protocol::BAR0, register.address(place).into(), &value.to_le_bytes()), 0);
    }

    pub fn read(&mut self, region: u32, offset: u64, count: u32) -> (u32, Vec<u8>) {
        let body = [&offset.to_le_bytes()[..], &protocol::words(&[region, count])].concat();
        let (errno, body) = self.ask(command::REGION_READ, &body);
        (errno, body[16..].to_vec())
    }

    pub fn read_register(&mut self, register: Register, place: Place) -> u32 {
        let (errno, data) = self.read(protocol::BAR0, register.address(place).into(), 4);
        assert_eq!(errno, 0);
        u32::from_le_bytes(data.try_into().unwrap())
    }

    /// Memory space and bus master.
    pub fn enable(&mut self) {
        assert_eq!(self.write(protocol::CONFIG, 4, &[6, 0]), 0);
    }
}

pub fn map_body(flags: u32, offset: u64, address: u64, size: u64) -> Vec<u8> {
    let longs = [offset, address, size].map(u64::to_le_bytes);
    [&protocol::words(&[32, flags])[..], &longs.concat()].concat()
}

pub fn errno(refusal: Refusal) -> u32 {
    refusal.errno().raw_os_error() as u32
}
