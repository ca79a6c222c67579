//! The socket of a function's host: messages in, replies out, and never a wait for either.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags, recvmsg, send,
};

use crate::protocol::{HEADER, Header, MAX_DESCRIPTORS, MAX_MESSAGE};
use crate::refusal::Refusal;

/// A message: its header, its body, and the file descriptors that it brought.
pub(crate) type Message = (Header, Vec<u8>, Vec<OwnedFd>);

/// What looking for a message has found.
pub(crate) enum Next {
    /// One.
    Message(Message),
    /// None yet.
    Nothing,
    /// None any more.
    Gone,
}

/// A connection, and what has come of a message that is not whole.
pub(crate) struct Connection {
    stream: UnixStream,
    input: Vec<u8>,
    /// Bytes of all messages before those in `input`.
    taken: u64,
    /// File descriptors by the place of the last byte of what they came with: they belong to the message that has it.
    files: Vec<(u64, OwnedFd)>,
    output: Vec<u8>,
    /// Whether the version was agreed on.
    pub agreed: bool,
    /// Whether the client wants to be told which accesses of registers are refused.
    pub tells_refusals: bool,
    /// The reply that waits for the end of a reset.
    pub later: Option<(Header, Vec<u8>)>,
}

impl Connection {
    /// # Errors
    /// The system's.
    pub fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            input: Vec::new(),
            taken: 0,
            files: Vec::new(),
            output: Vec::new(),
            agreed: false,
            tells_refusals: false,
            later: None,
        })
    }

    pub fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// Whether a reply has not gone: nothing more is read until it has.
    pub fn is_blocked(&self) -> bool {
        !self.output.is_empty()
    }

    /// Whether what was read holds a whole message, or the start of one that is refused.
    pub fn has_message(&self) -> bool {
        self.length()
            .is_some_and(|length| length.is_err() || length.is_ok_and(|size| size <= self.input.len()))
    }

    fn length(&self) -> Option<Result<usize, Refusal>> {
        Some(Header::decode(self.input.first_chunk::<HEADER>()?).length())
    }

    /// The next message, of what has been read or can be read now.
    ///
    /// # Errors
    /// Why the connection ends; with the header that was to be answered, if there is one.
    pub fn next(&mut self) -> Result<Next, (Option<Header>, Refusal)> {
        loop {
            if self.has_message() {
                return self.take().map(Next::Message);
            }
            match self.receive() {
                Ok(0) => return Ok(Next::Gone),
                Ok(_) => {}
                Err(Err(refusal)) => return Err((None, refusal)),
                Err(Ok(Errno::AGAIN | Errno::INTR)) => return Ok(Next::Nothing),
                Err(Ok(_)) => return Ok(Next::Gone),
            }
        }
    }

    fn take(&mut self) -> Result<Message, (Option<Header>, Refusal)> {
        let header = self.input.first_chunk::<HEADER>().map(Header::decode).expect("a whole message");
        let size = header.length().map_err(|refusal| (Some(header), refusal))?;
        let body = self.input[HEADER..size].to_vec();
        self.input.drain(..size);
        self.taken += size as u64;
        let mine = self.files.iter().take_while(|(at, _)| *at < self.taken).count();
        let files = self.files.drain(..mine).map(|(_, file)| file).collect();
        Ok((header, body, files))
    }

    /// Reads what is there, at most one message's worth; how much it was.
    fn receive(&mut self) -> Result<usize, Result<Errno, Refusal>> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut bytes = [0; MAX_MESSAGE];
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let got =
            recvmsg(&self.stream, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags).map_err(Ok)?;
        self.input.extend_from_slice(&bytes[..got.bytes]);
        let last = self.taken + self.input.len() as u64 - 1;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(files) = message {
                self.files.extend(files.map(|file| (last, file)));
            }
        }
        // The system has closed those for which there was no room.
        if self.files.len() > MAX_DESCRIPTORS || got.flags.contains(ReturnFlags::CTRUNC) {
            return Err(Err(Refusal::DescriptorFlood));
        }
        Ok(got.bytes)
    }

    /// Sends a reply, or keeps what does not go now; false: the client has gone.
    pub fn reply(&mut self, reply: &[u8]) -> bool {
        if self.is_blocked() {
            self.output.extend_from_slice(reply);
            return true;
        }
        self.output.extend_from_slice(reply);
        self.flush()
    }

    /// Sends what was kept; false: the client has gone.
    pub fn flush(&mut self) -> bool {
        while !self.output.is_empty() {
            match send(&self.stream, &self.output, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(sent) => drop(self.output.drain(..sent)),
                Err(Errno::AGAIN | Errno::INTR) => return true,
                Err(_) => return false,
            }
        }
        true
    }
}
