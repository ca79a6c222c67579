//! The socket of a function's host: messages in, replies out, and never a wait for either.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::fcntl_get_seals;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags, recvmsg, send,
};

use crate::closing::Closing;
use crate::protocol::{HEADER, Header, MAX_DESCRIPTORS, MAX_MESSAGE};
use crate::refusal::Refusal;
use crate::vectors::is_any_eventfd;

/// File descriptors that the system hands over at once, at most (SCM_MAX_FD). With room for fewer it would close the others itself, on
/// the server's thread.
const MOST_DESCRIPTORS: usize = 253;

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
    closing: Closing,
    /// Stands for each file that no message takes, and that was closed when it came: it is refused in its place.
    stand_in: OwnedFd,
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
    pub fn new(stream: UnixStream, closing: Closing) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        // An eventfd that blocks is no trigger, and no memory.
        let stand_in = eventfd(0, EventfdFlags::CLOEXEC)?;
        Ok(Self {
            closing,
            stand_in,
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
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut bytes = [0; MAX_MESSAGE];
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let got =
            recvmsg(&self.stream, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags).map_err(Ok)?;
        self.input.extend_from_slice(&bytes[..got.bytes]);
        // The end of the connection brings no file.
        let last = (self.taken + self.input.len() as u64).saturating_sub(1);
        let mut floods = got.flags.contains(ReturnFlags::CTRUNC);
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(files) = message {
                for file in files {
                    match self.sift(file) {
                        Ok(file) => self.files.push((last, file)),
                        Err(_) => floods = true,
                    }
                }
            }
        }
        // Where this process may have no more files, the system has closed some.
        if self.files.len() > MAX_DESCRIPTORS || floods {
            return Err(Err(Refusal::DescriptorFlood));
        }
        Ok(got.bytes)
    }

    /// A file that some message takes, memory or an eventfd, whose closing takes no time; any other one is closed elsewhere, and at once: it
    /// may be the client's own end of this connection, which would never end.
    fn sift(&self, file: OwnedFd) -> Result<OwnedFd, Errno> {
        if fcntl_get_seals(&file).is_ok() || is_any_eventfd(&file) {
            return Ok(file);
        }
        self.closing.close(1, file);
        self.stand_in.try_clone().map_err(|_| Errno::MFILE)
    }

    /// Ends it. What has come and was not read may hold files, too.
    pub fn close(self) {
        let closing = self.closing.clone();
        closing.close(1 + self.files.len(), (self.stream, self.files));
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
