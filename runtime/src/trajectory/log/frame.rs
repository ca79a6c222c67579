//! The frames of the log: the head of a file, and the head of a record. All little-endian; `docs/trajectories.md` has the
//! tables.

use crc32c::{crc32c, crc32c_append};

/// Version of the format, in the head of each file.
pub(super) const VERSION: u32 = 4;
/// The oldest version that is read: its records are records of this one, too, without what came since.
const OLDEST: u32 = 1;

/// Most tokens in a record: so many that a payload fits 32 bits, and more than the length limit of any queue pair in use.
pub const MAX_TOKENS: usize = 1 << 28;

/// Bytes of a file's head: magic, version, a zero word, number of the first record, a zero word, CRC32C of all that.
pub(super) const FILE_HEAD: usize = 32;
/// Bytes of a record's head: magic, bytes of the payload, number, CRC32C of all that, CRC32C of head and payload.
pub(super) const RECORD_HEAD: usize = 24;

const FILE_MAGIC: [u8; 8] = *b"DBTRAJEC";
pub(super) const RECORD_MAGIC: [u8; 4] = *b"DbTr";

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].iter().rev().fold(0, |word, &byte| word << 8 | u32::from(byte))
}

fn wide(bytes: &[u8], at: usize) -> u64 {
    u64::from(word(bytes, at + 4)) << 32 | u64::from(word(bytes, at))
}

/// The head of a file whose first record is number `first`.
pub(super) fn file_head(first: u64) -> [u8; FILE_HEAD] {
    let mut head = [0; FILE_HEAD];
    head[..8].copy_from_slice(&FILE_MAGIC);
    head[8..12].copy_from_slice(&VERSION.to_le_bytes());
    head[16..24].copy_from_slice(&first.to_le_bytes());
    let check = crc32c(&head[..28]);
    head[28..].copy_from_slice(&check.to_le_bytes());
    head
}

/// What a file's head says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileHead {
    /// The number of the first record, and whether the file is of this version, so that it may be written on.
    First { first: u64, current: bool },
    /// A whole head of another version.
    Version(u32),
    /// None of ours, or damaged.
    Damaged,
}

pub(super) fn read_file_head(head: &[u8; FILE_HEAD]) -> FileHead {
    if head[..8] != FILE_MAGIC || word(head, 28) != crc32c(&head[..28]) {
        return FileHead::Damaged;
    }
    match word(head, 8) {
        version @ OLDEST..=VERSION => FileHead::First { first: wide(head, 16), current: version == VERSION },
        other => FileHead::Version(other),
    }
}

/// What a record's head says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordHead {
    /// Bytes of the payload.
    pub payload: u32,
    /// Number of the record.
    pub number: u64,
    check: u32,
    /// CRC32C of the bytes before `check`, to go on from.
    begun: u32,
}

impl RecordHead {
    /// The head, if it is whole; whether the payload is, [`matches`](Self::matches) tells.
    pub fn read(head: &[u8; RECORD_HEAD]) -> Option<Self> {
        let whole = head[..4] == RECORD_MAGIC && word(head, 16) == crc32c(&head[..16]);
        whole.then(|| Self {
            payload: word(head, 4),
            number: wide(head, 8),
            check: word(head, 20),
            begun: crc32c(&head[..20]),
        })
    }

    /// Whether `payload` is the one that was written.
    pub fn matches(&self, payload: &[u8]) -> bool {
        crc32c_append(self.begun, payload) == self.check
    }
}

/// Fills in the head of the record in `frame`, which is room for a head and then the payload.
pub(super) fn seal(frame: &mut [u8], number: u64) {
    let payload = (frame.len() - RECORD_HEAD) as u32;
    frame[..4].copy_from_slice(&RECORD_MAGIC);
    frame[4..8].copy_from_slice(&payload.to_le_bytes());
    frame[8..16].copy_from_slice(&number.to_le_bytes());
    let head_check = crc32c(&frame[..16]);
    frame[16..20].copy_from_slice(&head_check.to_le_bytes());
    let check = crc32c_append(crc32c(&frame[..20]), &frame[RECORD_HEAD..]);
    frame[20..RECORD_HEAD].copy_from_slice(&check.to_le_bytes());
}
