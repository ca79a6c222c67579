//! What a collector keeps of a stream (docs/nic.md, "What a collector keeps").
//!
//! One file for each stream: a head, then records in the order of their numbers, without a gap. A record's number is its place, so
//! a collector that comes back needs nothing but the file to know what is next.

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use bytemuck::{bytes_of, pod_read_unaligned};
use doorbell_contract::{HwNicEntry, NIC_LENGTH_MAX};

use crate::wire::{u32_at, u64_at};

/// First eight bytes of a file.
const MAGIC: u64 = u64::from_le_bytes(*b"DBNICREC");
const VERSION: u32 = 1;
const FILE_HEAD: usize = 32;
/// Length of the payload, CRC-32C of entry and payload, number, CRC-32C of these three, zeros. The head has a checksum of its own: a
/// length that can be trusted tells a write that was cut off from damage.
const RECORD_HEAD: usize = 24;
const ENTRY: usize = size_of::<HwNicEntry>();

/// Why a file of records is not read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The system refuses.
    #[error("{path}: {error}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// It is not one.
    #[error("{path} is no file of version {VERSION} that a collector wrote; give another directory", path = path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// It is damaged before its end. A process that is killed leaves no such file. A machine that loses power may, as it may write
    /// the end of a group of records before its beginning; nothing of that group was acknowledged with `sync`.
    #[error(
        "{path} is damaged at byte {offset}, in record {number}, and other bytes follow: nothing is appended to it; move it away to \
         begin anew",
        path = path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where the record begins.
        offset: u64,
        /// Its number.
        number: u64,
    },
    /// Another process writes it.
    #[error("{path} is open in another collector; stop that one, or give another directory", path = path.display())]
    Locked {
        /// The file.
        path: PathBuf,
    },
}

/// A record: an entry, and its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its number in the stream, from 0.
    pub number: u64,
    /// The entry as it was posted.
    pub entry: HwNicEntry,
    /// Its payload.
    pub payload: Vec<u8>,
}

/// The file of a stream in `directory`.
pub fn path_of(directory: &Path, stream: u64) -> PathBuf {
    directory.join(format!("{stream:016x}.nic"))
}

fn head(stream: u64) -> [u8; FILE_HEAD] {
    let mut head = [0; FILE_HEAD];
    head[..8].copy_from_slice(&MAGIC.to_le_bytes());
    head[8..12].copy_from_slice(&VERSION.to_le_bytes());
    head[16..24].copy_from_slice(&stream.to_le_bytes());
    let crc = crc32c::crc32c(&head[..24]);
    head[24..28].copy_from_slice(&crc.to_le_bytes());
    head
}

/// Whether these bytes may be what a collector that was killed in the head of a file has left.
fn is_begun(bytes: &[u8], stream: u64) -> bool {
    head(stream).starts_with(bytes) || bytes.iter().all(|&byte| byte == 0)
}

fn record_head(length: u32, crc: u32, number: u64) -> [u8; RECORD_HEAD] {
    let mut head = [0; RECORD_HEAD];
    head[..4].copy_from_slice(&length.to_le_bytes());
    head[4..8].copy_from_slice(&crc.to_le_bytes());
    head[8..16].copy_from_slice(&number.to_le_bytes());
    let own = crc32c::crc32c(&head[..16]);
    head[16..20].copy_from_slice(&own.to_le_bytes());
    head
}

/// The records of a file, in order.
#[derive(Debug)]
pub struct Records {
    path: PathBuf,
    file: BufReader<File>,
    size: u64,
    /// Where the next record begins.
    offset: u64,
    number: u64,
    stream: u64,
    over: bool,
}

impl Records {
    /// Opens `path`.
    ///
    /// # Errors
    /// `Io`, or `Foreign`.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let io = |error| StoreError::Io { path: path.to_owned(), error };
        let file = File::open(path).map_err(io)?;
        Self::over(path, file)
    }

    fn over(path: &Path, mut file: File) -> Result<Self, StoreError> {
        let io = |error| StoreError::Io { path: path.to_owned(), error };
        let size = file.metadata().map_err(io)?.len();
        let mut found = [0; FILE_HEAD];
        file.seek(SeekFrom::Start(0)).map_err(io)?;
        if size < FILE_HEAD as u64 {
            // A collector that was killed while it began the file. Its name has the stream.
            let name = path.file_stem().and_then(|name| name.to_str());
            let named = name.and_then(|name| u64::from_str_radix(name, 16).ok());
            let mut begun = vec![];
            (&file).take(FILE_HEAD as u64).read_to_end(&mut begun).map_err(io)?;
            let Some(stream) = named.filter(|&stream| is_begun(&begun, stream)) else {
                return Err(StoreError::Foreign { path: path.to_owned() });
            };
            let file = BufReader::new(file);
            return Ok(Self { path: path.to_owned(), file, size, offset: 0, number: 0, stream, over: true });
        }
        file.read_exact(&mut found).map_err(io)?;
        let stream = u64_at(&found, 16);
        if found != head(stream) {
            return Err(StoreError::Foreign { path: path.to_owned() });
        }
        let file = BufReader::with_capacity(1 << 20, file);
        Ok(Self {
            path: path.to_owned(),
            file,
            size,
            offset: FILE_HEAD as u64,
            number: 0,
            stream,
            over: false,
        })
    }

    /// The stream that it is of.
    pub fn stream(&self) -> u64 {
        self.stream
    }

    /// Where what was read ends: behind it is a write that was cut off, or nothing.
    pub fn end(&self) -> u64 {
        self.offset
    }

    /// The next record; `None` at the end, and before a write that was cut off.
    ///
    /// # Errors
    /// `Io`, or `Damaged`.
    pub fn read(&mut self) -> Result<Option<Record>, StoreError> {
        let record = if self.over { None } else { self.record()? };
        self.over = record.is_none();
        Ok(record)
    }

    fn record(&mut self) -> Result<Option<Record>, StoreError> {
        let Self { path, file, offset, number, .. } = self;
        let io = |error| StoreError::Io { path: path.clone(), error };
        let left = self.size - *offset;
        let damaged = StoreError::Damaged { path: path.clone(), offset: *offset, number: *number };
        let mut head = [0; RECORD_HEAD];
        if left < RECORD_HEAD as u64 {
            return Ok(None);
        }
        file.read_exact(&mut head).map_err(io)?;
        let (length, crc, found) = (u32_at(&head, 0), u32_at(&head, 4), u64_at(&head, 8));
        let bytes = ENTRY as u64 + u64::from(length);
        let whole = RECORD_HEAD as u64 + bytes;
        // What a system that stopped leaves of a write may be zeros.
        let mut rest_is_zero = |mut seen: Vec<u8>| -> Result<bool, StoreError> {
            loop {
                if seen.iter().any(|&byte| byte != 0) {
                    return Ok(false);
                }
                seen.resize(1 << 16, 0);
                match file.read(&mut seen).map_err(io)? {
                    0 => return Ok(true),
                    came => seen.truncate(came),
                }
            }
        };
        if head != record_head(length, crc, found) || length > NIC_LENGTH_MAX || found != *number {
            return if rest_is_zero(head.to_vec())? { Ok(None) } else { Err(damaged) };
        }
        if whole > left {
            return Ok(None);
        }
        let mut body = vec![0; bytes as usize];
        file.read_exact(&mut body).map_err(io)?;
        if crc32c::crc32c(&body) != crc {
            // The last one may have been cut off within: a system that stops may have written its end first.
            return if whole == left { Ok(None) } else { Err(damaged) };
        }
        let entry = pod_read_unaligned(&body[..ENTRY]);
        body.drain(..ENTRY);
        let record = Record { number: *number, entry, payload: body };
        *offset += whole;
        *number += 1;
        Ok(Some(record))
    }
}

/// How far a file was written by a collector that has closed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Number of the first record that it does not have.
    pub next: u64,
    /// How long it is.
    pub length: u64,
}

/// A stream's file, to append to.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    file: File,
    sync: bool,
    /// Appended and not written.
    group: Vec<u8>,
    next: u64,
    /// Number of the first record that is not stored, and where it will begin.
    mark: Mark,
    /// Why nothing more is taken: what a write that failed has left is not known.
    failed: bool,
}

impl Store {
    /// Opens the file of `stream` in `directory`, or begins it. A write that was cut off is removed: what it would have held was
    /// not acknowledged. With `sync`, [`commit`](Self::commit) waits for the disk.
    ///
    /// # Errors
    /// As [`Records::read`], and `Locked`.
    pub fn open(directory: &Path, stream: u64, sync: bool) -> Result<Self, StoreError> {
        let (path, mut file) = locked(directory, stream)?;
        let io = |error| StoreError::Io { path: path.clone(), error };
        // A file is killed in its head, too; nothing was acknowledged then.
        let size = file.metadata().map_err(io)?.len();
        let (mut next, mut length) = (0, FILE_HEAD as u64);
        if size < FILE_HEAD as u64 {
            let mut begun = vec![];
            (&file).take(FILE_HEAD as u64).read_to_end(&mut begun).map_err(io)?;
            if !is_begun(&begun, stream) {
                return Err(StoreError::Foreign { path });
            }
            file.set_len(0).map_err(io)?;
            file.seek(SeekFrom::Start(0)).map_err(io)?;
            file.write_all(&head(stream)).map_err(io)?;
        } else {
            let mut records = Records::over(&path, file.try_clone().map_err(io)?)?;
            if records.stream != stream {
                return Err(StoreError::Foreign { path });
            }
            while records.read()?.is_some() {}
            next = records.number;
            length = records.end();
            file.set_len(length).map_err(io)?;
            file.seek(SeekFrom::Start(length)).map_err(io)?;
        }
        if sync {
            file.sync_all().map_err(io)?;
            // The name of a new file is the directory's.
            File::open(directory).and_then(|directory| directory.sync_all()).map_err(io)?;
        }
        Ok(Self { path, file, sync, group: vec![], next, mark: Mark { next, length }, failed: false })
    }

    /// Opens the file that this process closed at `mark`, without reading it. `None` if it is not as long as that: it is read then.
    ///
    /// # Errors
    /// `Io`, or `Locked`.
    pub fn reopen(directory: &Path, stream: u64, sync: bool, mark: Mark) -> Result<Option<Self>, StoreError> {
        let (path, mut file) = locked(directory, stream)?;
        let io = |error| StoreError::Io { path: path.clone(), error };
        if file.seek(SeekFrom::End(0)).map_err(io)? != mark.length {
            return Ok(None);
        }
        Ok(Some(Self { path, file, sync, group: vec![], next: mark.next, mark, failed: false }))
    }

    /// How far it is stored; `None` if a write failed, so that nobody knows.
    pub fn mark(&self) -> Option<Mark> {
        (!self.failed).then_some(self.mark)
    }

    /// Number of the next record.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Appends the next record; [`commit`](Self::commit) stores it. `body` is the entry and its payload.
    pub fn append(&mut self, body: &[u8]) {
        let length = (body.len() - ENTRY) as u32;
        self.group.extend_from_slice(&record_head(length, crc32c::crc32c(body), self.next));
        self.group.extend_from_slice(body);
        self.next += 1;
    }

    /// Bytes appended and not stored.
    pub fn waiting(&self) -> usize {
        self.group.len()
    }

    /// Stores what was appended: behind it, all records below [`next`](Self::next) survive the end of the process, and with
    /// `sync` that of the machine.
    ///
    /// # Errors
    /// `Io`. The file takes nothing more then; opened again, it has what was stored.
    pub fn commit(&mut self) -> Result<(), StoreError> {
        let refused = || io::Error::other("an earlier write to it failed");
        let Self { path, file, group, sync, failed, next, mark } = self;
        let written = if *failed { Err(refused()) } else { file.write_all(group) };
        let stored =
            written.and_then(|()| if *sync && !group.is_empty() { file.sync_data() } else { Ok(()) });
        *failed |= stored.is_err();
        *mark = Mark { next: *next, length: mark.length + group.len() as u64 };
        group.clear();
        stored.map_err(|error| StoreError::Io { path: path.clone(), error })
    }
}

/// The file of `stream` in `directory`, made if it is not there, for this process only.
fn locked(directory: &Path, stream: u64) -> Result<(PathBuf, File), StoreError> {
    let path = path_of(directory, stream);
    let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
    let file = match opened {
        Ok(file) => file,
        Err(error) => return Err(StoreError::Io { path, error }),
    };
    match file.try_lock() {
        Ok(()) => Ok((path, file)),
        Err(std::fs::TryLockError::WouldBlock) => Err(StoreError::Locked { path }),
        Err(std::fs::TryLockError::Error(error)) => Err(StoreError::Io { path, error }),
    }
}

/// What a file has for these: its entry and payload as one body.
pub fn body(entry: &HwNicEntry, payload: &[u8]) -> Vec<u8> {
    [bytes_of(entry), payload].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(directory: &Path, count: u64) -> Vec<u8> {
        let mut store = Store::open(directory, 7, false).unwrap();
        for k in 0..count {
            let payload = vec![k as u8; (5 * k % 23) as usize];
            store.append(&body(&HwNicEntry { user_data: k, ..HwNicEntry::default() }, &payload));
        }
        store.commit().unwrap();
        std::fs::read(path_of(directory, 7)).unwrap()
    }

    /// W11: whatever byte the collector was killed at, it has a prefix of the records, goes on behind it, and ends with the same file.
    #[test]
    fn w11_a_file_cut_at_any_byte_goes_on_without_a_double() {
        let directory = tempfile::tempdir().unwrap();
        let whole = filled(directory.path(), 6);
        let path = path_of(directory.path(), 7);
        let mut numbers = vec![];
        for cut in 0..=whole.len() {
            std::fs::write(&path, &whole[..cut]).unwrap();
            // Whoever only reads finds the same.
            let mut records = Records::open(&path).unwrap();
            let seen = std::iter::from_fn(|| records.read().unwrap()).count() as u64;
            assert_eq!(records.stream(), 7);
            let mut store = Store::open(directory.path(), 7, false).unwrap();
            numbers.push(store.next());
            assert_eq!(seen, store.next(), "cut at {cut}");
            for k in store.next()..6 {
                let payload = vec![k as u8; (5 * k % 23) as usize];
                store.append(&body(&HwNicEntry { user_data: k, ..HwNicEntry::default() }, &payload));
            }
            store.commit().unwrap();
            assert!(std::fs::read(&path).unwrap() == whole, "cut at {cut}");
        }
        assert!(numbers.is_sorted() && numbers[0] == 0 && numbers[whole.len()] == 6);
    }

    #[test]
    fn w11_damage_before_the_end_is_told_and_nothing_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let whole = filled(directory.path(), 4);
        let path = path_of(directory.path(), 7);
        let third = whole.len() - (RECORD_HEAD + ENTRY + 15);
        for at in FILE_HEAD..third {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x10;
            std::fs::write(&path, &bytes).unwrap();
            // A length that reaches beyond the end is a write that was cut off, if what is there is its beginning.
            match Store::open(directory.path(), 7, false) {
                Err(StoreError::Damaged { .. }) => assert!(std::fs::read(&path).unwrap() == bytes),
                other => panic!("byte {at}: {other:?}"),
            }
        }
        for at in 0..28 {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            std::fs::write(&path, &bytes).unwrap();
            let opened = Store::open(directory.path(), 7, false);
            assert!(matches!(opened, Err(StoreError::Foreign { .. })), "byte {at}: {opened:?}");
        }
    }

    #[test]
    fn w11_zeros_at_the_end_are_a_write_that_was_cut_off() {
        let directory = tempfile::tempdir().unwrap();
        let mut bytes = filled(directory.path(), 4);
        let whole = bytes.clone();
        bytes.resize(bytes.len() + 200_000, 0);
        std::fs::write(path_of(directory.path(), 7), &bytes).unwrap();
        assert_eq!(Store::open(directory.path(), 7, false).unwrap().next(), 4);
        assert!(std::fs::read(path_of(directory.path(), 7)).unwrap() == whole);
    }

    #[test]
    fn w11_one_collector_has_a_file() {
        let directory = tempfile::tempdir().unwrap();
        let _held = Store::open(directory.path(), 7, false).unwrap();
        assert!(matches!(Store::open(directory.path(), 7, false), Err(StoreError::Locked { .. })));
    }

    #[test]
    fn w11_a_file_that_was_closed_is_opened_at_its_mark() {
        let directory = tempfile::tempdir().unwrap();
        let whole = filled(directory.path(), 4);
        let mut store = Store::open(directory.path(), 7, false).unwrap();
        let before = store.mark().unwrap();
        assert_eq!(before, Mark { next: 4, length: whole.len() as u64 });
        store.append(&body(&HwNicEntry::default(), b"fifth"));
        assert_eq!(store.mark(), Some(before), "it is not stored yet");
        store.commit().unwrap();
        let mark = store.mark().unwrap();
        assert_eq!(mark.next, 5);
        assert!(matches!(Store::reopen(directory.path(), 7, false, mark), Err(StoreError::Locked { .. })));
        drop(store);
        assert!(Store::reopen(directory.path(), 7, false, before).unwrap().is_none(), "it has grown");
        let mut store = Store::reopen(directory.path(), 7, false, mark).unwrap().unwrap();
        store.append(&body(&HwNicEntry::default(), b"sixth"));
        store.commit().unwrap();
        drop(store);
        assert_eq!(Store::open(directory.path(), 7, false).unwrap().next(), 6);
    }
}
