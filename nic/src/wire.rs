//! Frames of the transport (docs/nic.md, "Frames"), little-endian.

use doorbell_contract::NIC_LENGTH_MAX;

/// First four bytes of a frame.
pub const MAGIC: u32 = 0x3143_4E44;
/// Version of the transport.
pub const VERSION: u8 = 1;
/// Bytes of a frame's head.
pub const HEAD: usize = 32;
/// Most bytes of a frame's body: an entry and the longest payload.
pub const BODY_MAX: usize = 64 + NIC_LENGTH_MAX as usize;
/// Frames beyond the next one that a collector may hold, and that an ACK tells of.
pub const AHEAD: u64 = 1024;
/// Bytes of the reason in a frame that refuses, at most.
pub const REASON_MAX: usize = 1024;

/// What a frame says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// NIC: this stream begins or goes on; `seq` is the first that it can still send.
    Hello = 1,
    /// Collector: `seq` is the next that it has not stored.
    Welcome = 2,
    /// NIC: entry and payload number `seq`.
    Data = 3,
    /// Collector: all below `seq` are stored; the body has a bit for each frame from `seq` on that it holds.
    Ack = 4,
    /// NIC: asks for an ACK.
    Ping = 5,
    /// Collector: ends the connection; the body says why, in UTF-8.
    Refused = 6,
}

impl Kind {
    fn of(code: u8) -> Option<Self> {
        [Self::Hello, Self::Welcome, Self::Data, Self::Ack, Self::Ping, Self::Refused]
            .into_iter()
            .find(|kind| *kind as u8 == code)
    }
}

/// A frame within the bytes that it came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// What it says.
    pub kind: Kind,
    /// The NIC's stream.
    pub stream: u64,
    /// Its number, see [`Kind`].
    pub seq: u64,
    /// What follows the head.
    pub body: &'a [u8],
}

/// Why bytes are no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// No frame begins here.
    #[error("the peer speaks another protocol: a frame begins with {found:#010x} instead of {MAGIC:#010x}")]
    Magic {
        /// What is there.
        found: u32,
    },
    /// Another version.
    #[error(
        "the peer speaks version {0} of the transport, and this one {VERSION}; use the same build on both sides"
    )]
    Version(u8),
    /// No such kind.
    #[error("a frame of kind {0}, which this version does not have")]
    Kind(u8),
    /// A bit is set that this version does not have.
    #[error("a frame whose reserved word is {0:#06x} instead of 0")]
    Reserved(u16),
    /// A body where none belongs.
    #[error("a {0:?} frame with a body of {1} bytes, which has none")]
    Body(Kind, u32),
    /// Too long.
    #[error("a frame with a body of {0} bytes; at most {BODY_MAX} are taken")]
    Length(u32),
    /// Its checksum does not match.
    #[error(
        "a frame whose CRC-32C is {found:#010x} and should be {expected:#010x}: it was damaged on its way"
    )]
    Crc {
        /// Of the bytes that came.
        found: u32,
        /// As the frame says.
        expected: u32,
    },
}

impl Frame<'_> {
    /// Appends its bytes to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        encode(self.kind, self.stream, self.seq, out, |out| out.extend_from_slice(self.body));
    }
}

/// Appends a frame whose body `fill` appends.
pub fn encode(kind: Kind, stream: u64, seq: u64, out: &mut Vec<u8>, fill: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&MAGIC.to_le_bytes());
    out.extend_from_slice(&[kind as u8, VERSION, 0, 0]);
    out.extend_from_slice(&[0; 8]);
    out.extend_from_slice(&stream.to_le_bytes());
    out.extend_from_slice(&seq.to_le_bytes());
    fill(out);
    let length = (out.len() - start - HEAD) as u32;
    out[start + 8..start + 12].copy_from_slice(&length.to_le_bytes());
    let crc = crc32c::crc32c(&out[start..]);
    out[start + 12..start + 16].copy_from_slice(&crc.to_le_bytes());
}

/// The 32-bit word at byte `at`, which is there.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// The 64-bit word at byte `at`, which is there.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// The first frame of `bytes` and how long it is; `None` if its end has not come.
///
/// # Errors
/// When no frame begins there.
pub fn decode(bytes: &[u8]) -> Result<Option<(Frame<'_>, usize)>, FrameError> {
    // Told as soon as it is known: a peer that sends little must not wait for a time-out to learn of it.
    if let Some(found) = bytes.first_chunk::<4>().map(|b| u32::from_le_bytes(*b))
        && found != MAGIC
    {
        return Err(FrameError::Magic { found });
    }
    let Some(head) = bytes.first_chunk::<HEAD>() else { return Ok(None) };
    if head[5] != VERSION {
        return Err(FrameError::Version(head[5]));
    }
    let kind = Kind::of(head[4]).ok_or(FrameError::Kind(head[4]))?;
    let length = u32_at(head, 8);
    if length as usize > BODY_MAX {
        return Err(FrameError::Length(length));
    }
    let reserved = u16::from_le_bytes([head[6], head[7]]);
    if reserved != 0 {
        return Err(FrameError::Reserved(reserved));
    }
    if length != 0 && matches!(kind, Kind::Hello | Kind::Welcome | Kind::Ping) {
        return Err(FrameError::Body(kind, length));
    }
    let end = HEAD + length as usize;
    let Some(body) = bytes.get(HEAD..end) else { return Ok(None) };
    let expected = u32_at(head, 12);
    let mut clear = *head;
    clear[12..16].fill(0);
    let found = crc32c::crc32c_append(crc32c::crc32c(&clear), body);
    if found != expected {
        return Err(FrameError::Crc { found, expected });
    }
    Ok(Some((Frame { kind, stream: u64_at(head, 16), seq: u64_at(head, 24), body }, end)))
}

/// Bytes that came, of which frames are taken from the front.
#[derive(Debug, Default)]
pub struct Incoming {
    bytes: Vec<u8>,
    taken: usize,
}

impl Incoming {
    /// Reads once from `from`, and returns how many bytes came.
    ///
    /// # Errors
    /// As the reader.
    pub fn fill(&mut self, from: &mut impl std::io::Read) -> std::io::Result<usize> {
        const CHUNK: usize = 1 << 16;
        if self.taken > 0 {
            self.bytes.drain(..self.taken);
            self.taken = 0;
        }
        let had = self.bytes.len();
        self.bytes.resize(had + CHUNK, 0);
        let came = from.read(&mut self.bytes[had..]);
        self.bytes.truncate(had + *came.as_ref().unwrap_or(&0));
        came
    }

    /// The next whole frame.
    ///
    /// # Errors
    /// As [`decode`].
    pub fn frame(&mut self) -> Result<Option<Frame<'_>>, FrameError> {
        let Some((frame, length)) = decode(&self.bytes[self.taken..])? else { return Ok(None) };
        self.taken += length;
        Ok(Some(frame))
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.taken = 0;
    }
}

/// Whether the ACK with this body says that the collector holds the frame `ahead` behind the next one.
pub fn holds(body: &[u8], ahead: u64) -> bool {
    body.get((ahead / 8) as usize).is_some_and(|byte| byte >> (ahead % 8) & 1 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes_of(frame: &Frame<'_>) -> Vec<u8> {
        let mut out = vec![];
        frame.encode(&mut out);
        out
    }

    proptest! {
        #[test]
        fn w9_frames_come_back_and_damage_is_told(
            body in proptest::collection::vec(any::<u8>(), 0..200), stream: u64, seq: u64, at: usize, bit in 0..8u32,
        ) {
            let frame = Frame { kind: Kind::Data, stream, seq, body: &body };
            let mut bytes = bytes_of(&frame);
            prop_assert_eq!(decode(&bytes), Ok(Some((frame, bytes.len()))));
            for cut in 0..bytes.len() {
                prop_assert_eq!(decode(&bytes[..cut]), Ok(None));
            }
            let at = at % bytes.len();
            bytes[at] ^= 1 << bit;
            // A length that grew waits for more bytes; nothing else passes.
            let passed = matches!(decode(&bytes), Ok(Some(_)));
            prop_assert!(!passed, "byte {} bit {}", at, bit);
        }

        #[test]
        fn w9_no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), lead: bool) {
            let mut all = if lead { MAGIC.to_le_bytes().to_vec() } else { vec![] };
            all.extend(bytes);
            let _ = decode(&all);
        }
    }

    #[test]
    fn w9_a_body_beyond_the_limit_is_refused_before_it_comes() {
        let mut bytes = bytes_of(&Frame { kind: Kind::Data, stream: 1, seq: 2, body: &[] });
        bytes[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(decode(&bytes), Err(FrameError::Length(u32::MAX)));
        bytes[5] = 9;
        assert_eq!(decode(&bytes), Err(FrameError::Version(9)));
    }

    #[test]
    fn w9_what_this_version_does_not_have_is_refused() {
        let mut bytes = vec![];
        encode(Kind::Data, 1, 2, &mut bytes, |_| ());
        bytes[7] = 1;
        bytes[12..16].fill(0);
        let crc = crc32c::crc32c(&bytes);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(decode(&bytes), Err(FrameError::Reserved(0x100)));
        for kind in [Kind::Hello, Kind::Welcome, Kind::Ping] {
            let bytes = bytes_of(&Frame { kind, stream: 1, seq: 2, body: &[0] });
            assert_eq!(decode(&bytes), Err(FrameError::Body(kind, 1)));
        }
    }
}
