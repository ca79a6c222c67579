//! Reading a log: every whole record, and what is wrong with the rest.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use super::frame::{FILE_HEAD, FileHead, RECORD_HEAD, RECORD_MAGIC, RecordHead, read_file_head};
use super::{LogError, MAX_NUMBER, files};
use crate::trajectory::record::{self, Trajectory};

/// What may be read in vain in search of the next record, in multiples of the bytes that are searched.
const READ_AGAIN: u64 = 16;

/// What lies next in a log.
#[derive(Clone, Debug, PartialEq)]
pub enum Piece {
    /// A whole record.
    Record(Trajectory),
    /// Records that were there and cannot be read any more.
    Damage(Damage),
    /// A write that did not come to its end, behind the last whole record of the last file: nothing of it was ever stored.
    Torn(Torn),
}

/// Records that were there and cannot be read any more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {bytes} bytes at offset {offset} are lost, {lost} record{} from number {number}: {kind}",
        file.display(), if *lost == 1 { "" } else { "s" })]
pub struct Damage {
    /// The file.
    pub file: PathBuf,
    /// Byte in the file where reading failed.
    pub offset: u64,
    /// Bytes up to where reading goes on: the next whole record, or the end of the file.
    pub bytes: u64,
    /// Number of the first record that is lost.
    pub number: u64,
    /// How many are; 0 if nothing but the head of the file is, or what no record was written over. If the damage ends the
    /// last file, one is assumed.
    pub lost: u64,
    /// What was found.
    pub kind: DamageKind,
}

/// How a record is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DamageKind {
    /// The file's head.
    #[error("the head of the file does not match its checksum")]
    FileHead,
    /// The record's head.
    #[error("no record begins there, or its head does not match its checksum")]
    Head,
    /// Head or payload.
    #[error("the record does not match its checksum")]
    Checksum,
    /// The file ends within a record, and is not the last one.
    #[error("the file ends within the record")]
    CutOff,
    /// The record before and the one behind are whole.
    #[error("the numbers of the records leave a gap; is a file missing?")]
    Gap,
    /// Written by another version, or by somebody else.
    #[error("the checksum is right, but {0}")]
    Malformed(&'static str),
}

/// A write that did not come to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Torn {
    /// The file, which is the last one.
    pub file: PathBuf,
    /// Where the last whole record ends.
    pub offset: u64,
    /// Bytes behind it.
    pub bytes: u64,
}

/// All of a log's pieces, in order. Memory is bounded by the longest record.
///
/// What is damaged is skipped: a record whose head is whole tells where the next one begins. Otherwise reading goes on at
/// the next place where a whole record begins, which is sure as its head and its content have checksums of their own, and
/// its number lies between that of the record before and that of the next file.
#[derive(Debug)]
pub struct Reader {
    files: std::vec::IntoIter<(u64, PathBuf)>,
    scan: Option<Scan>,
    /// Number of the next record, once a file has told the first one.
    next: Option<u64>,
}

impl Reader {
    /// The log in `directory`.
    ///
    /// # Errors
    /// `Io` if the directory cannot be read, `NoLog` if there is none in it.
    pub fn open(directory: &Path) -> Result<Self, LogError> {
        let files = files(directory)?;
        if files.is_empty() {
            return Err(LogError::NoLog { directory: directory.to_owned() });
        }
        Ok(Self { files: files.into_iter(), scan: None, next: None })
    }

    /// Reads on. After an error there is nothing more.
    ///
    /// # Errors
    /// `Io`, or `Version`.
    fn read(&mut self) -> Result<Option<Piece>, LogError> {
        loop {
            if self.scan.is_none() {
                let Some((first, path)) = self.files.next() else { return Ok(None) };
                let limit = self.files.as_slice().first().map(|&(next, _)| next);
                self.scan = Some(Scan::open(&path, first, limit)?);
                // The file before may have ended with a whole record.
                if let Some(number) = self.next.replace(first)
                    && number < first
                {
                    let (lost, kind) = (first - number, DamageKind::Gap);
                    return Ok(Some(Piece::Damage(Damage {
                        file: path,
                        offset: 0,
                        bytes: 0,
                        number,
                        lost,
                        kind,
                    })));
                }
            }
            let Some(scan) = &mut self.scan else { continue };
            match scan.read()? {
                Some(piece) => return Ok(Some(piece)),
                None => {
                    self.next = Some(scan.next);
                    self.scan = None;
                }
            }
        }
    }

    /// Reads the whole log and adds it up.
    ///
    /// # Errors
    /// `Io`, or `Version`.
    pub fn verify(self) -> Result<Verified, LogError> {
        self.verify_each(|_| Ok(()))
    }

    /// The same, and hands every whole record to `each`.
    ///
    /// # Errors
    /// `Io` or `Version`, or the first that `each` returns.
    pub fn verify_each<E: From<LogError>>(
        self,
        mut each: impl FnMut(Trajectory) -> Result<(), E>,
    ) -> Result<Verified, E> {
        let mut verified = Verified { files: self.files.len(), ..Verified::default() };
        for piece in self {
            match piece? {
                Piece::Record(trajectory) => {
                    verified.records += 1;
                    verified.tokens += trajectory.tokens.len() as u64;
                    verified.bytes += (RECORD_HEAD
                        + record::payload_bytes(&trajectory.finished, &trajectory.body()))
                        as u64;
                    each(trajectory)?;
                }
                Piece::Damage(damage) => verified.damage.push(damage),
                Piece::Torn(torn) => verified.torn = Some(torn),
            }
        }
        Ok(verified)
    }
}

impl Iterator for Reader {
    type Item = Result<Piece, LogError>;

    fn next(&mut self) -> Option<Self::Item> {
        let read = self.read();
        if read.is_err() {
            self.files = vec![].into_iter();
            self.scan = None;
        }
        read.transpose()
    }
}

/// What a log holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Files.
    pub files: usize,
    /// Whole records.
    pub records: u64,
    /// Tokens in them.
    pub tokens: u64,
    /// Bytes of them, frames included.
    pub bytes: u64,
    /// What is lost.
    pub damage: Vec<Damage>,
    /// What was never stored.
    pub torn: Option<Torn>,
}

/// One file.
#[derive(Debug)]
pub(super) struct Scan {
    path: PathBuf,
    file: BufReader<File>,
    /// As it was when the file was opened: a writer may be appending.
    bytes: u64,
    /// Where the next frame begins.
    position: u64,
    /// Where the file stands.
    cursor: u64,
    /// Number of the next record.
    pub next: u64,
    /// Number of the first record of the next file: all of this one's are below. `None` in the log's last file, in which a
    /// write may have been cut off.
    limit: Option<u64>,
    payload: Vec<u8>,
    /// Whether the head was looked at.
    begun: bool,
    /// Whether the file is of an older version of the format: nothing more is written to it.
    pub older: bool,
}

/// What one attempt to read a frame found. One lives at a time, in the loop that reads.
#[expect(clippy::large_enum_variant, reason = "a box would allocate for each record")]
enum Frame {
    End,
    /// One whose head is whole.
    Framed {
        number: u64,
        end: u64,
        content: Result<Trajectory, DamageKind>,
    },
    /// The file ends before the frame does, or there are but zeros.
    Cut,
    Bad(DamageKind),
}

impl Scan {
    /// The file at `path`, which is named after its first record, `first`; the next one's first is `limit`.
    pub fn open(path: &Path, first: u64, limit: Option<u64>) -> Result<Self, LogError> {
        let file = File::open(path).map_err(LogError::io("read", path))?;
        let bytes = file.metadata().map_err(LogError::io("look at", path))?.len();
        Ok(Self {
            path: path.to_owned(),
            file: BufReader::with_capacity(1 << 16, file),
            bytes,
            position: 0,
            cursor: 0,
            next: first,
            limit,
            payload: vec![],
            begun: false,
            older: false,
        })
    }

    /// Where the last frame that was read ends.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The next piece; `None` at the end.
    pub fn read(&mut self) -> Result<Option<Piece>, LogError> {
        if !std::mem::replace(&mut self.begun, true)
            && let Some(piece) = self.read_head()?
        {
            return Ok(Some(piece));
        }
        let (start, expected) = (self.position, self.next);
        match self.frame_at(start)? {
            Frame::End => Ok(None),
            Frame::Framed { number, .. } if number > expected => {
                // The record itself comes next.
                self.next = number;
                Ok(Some(self.damage(DamageKind::Gap, start, start, expected, number - expected)))
            }
            Frame::Framed { number, end, content } => {
                self.position = end;
                self.next = number + 1;
                Ok(Some(match content {
                    Ok(trajectory) => Piece::Record(trajectory),
                    Err(kind) => self.damage(kind, start, end, number, 1),
                }))
            }
            Frame::Cut if self.limit.is_none() => {
                self.position = self.bytes;
                Ok(Some(Piece::Torn(Torn {
                    file: self.path.clone(),
                    offset: start,
                    bytes: self.bytes - start,
                })))
            }
            Frame::Cut => self.resume(DamageKind::CutOff, start).map(Some),
            Frame::Bad(kind) => self.resume(kind, start).map(Some),
        }
    }

    /// The head of the file, if something is wrong with it.
    fn read_head(&mut self) -> Result<Option<Piece>, LogError> {
        let mut head = [0; FILE_HEAD];
        let whole = self.bytes >= FILE_HEAD as u64;
        if whole {
            self.read_at(0, &mut head)?;
        }
        if self.limit.is_none() && (!whole || head == [0; FILE_HEAD] && self.zeros_from(0)?) {
            // Made, but not yet written.
            self.position = self.bytes;
            let torn = Torn { file: self.path.clone(), offset: 0, bytes: self.bytes };
            return Ok((self.bytes > 0).then_some(Piece::Torn(torn)));
        }
        match read_file_head(&head) {
            FileHead::First { first, current } if first == self.next => {
                self.position = FILE_HEAD as u64;
                self.older = !current;
                Ok(None)
            }
            FileHead::Version(found) => Err(LogError::Version { path: self.path.clone(), found }),
            _ => self.resume(DamageKind::FileHead, 0).map(Some),
        }
    }

    fn damage(&self, kind: DamageKind, start: u64, end: u64, number: u64, lost: u64) -> Piece {
        let file = self.path.clone();
        Piece::Damage(Damage { file, offset: start, bytes: end - start, number, lost, kind })
    }

    /// Goes on at the next whole record after `start`, and says what lies between.
    ///
    /// A text of a record may hold the bytes of another one, by accident or on purpose. So the number of the next record is at most what
    /// the bytes between leave room for, and what is read in vain is bounded.
    fn resume(&mut self, kind: DamageKind, start: u64) -> Result<Piece, LogError> {
        let expected = self.next;
        let mut from = start + 1;
        let mut in_vain = 0;
        while in_vain <= READ_AGAIN * (self.bytes - start)
            && let Some(candidate) = self.find_magic(from)?
        {
            let most = expected + (candidate - start) / RECORD_HEAD as u64;
            match self.frame_at(candidate)? {
                Frame::Framed { number, content: Ok(_), .. } if number <= most => {
                    self.position = candidate;
                    self.next = number;
                    return Ok(self.damage(kind, start, candidate, expected, number - expected));
                }
                Frame::Framed { end, .. } => in_vain += end - candidate,
                _ => {}
            }
            from = candidate + 1;
        }
        self.position = self.bytes;
        self.next = self.limit.unwrap_or(expected + 1);
        Ok(self.damage(kind, start, self.bytes, expected, self.next - expected))
    }

    /// Reads the frame at `start`.
    fn frame_at(&mut self, start: u64) -> Result<Frame, LogError> {
        let left = self.bytes - start;
        if left == 0 {
            return Ok(Frame::End);
        }
        let mut head = [0; RECORD_HEAD];
        let there = left.min(RECORD_HEAD as u64) as usize;
        self.read_at(start, &mut head[..there])?;
        if there < RECORD_HEAD {
            let begun = there.min(RECORD_MAGIC.len());
            let cut = head[..begun] == RECORD_MAGIC[..begun] || head == [0; RECORD_HEAD];
            return Ok(if cut { Frame::Cut } else { Frame::Bad(DamageKind::Head) });
        }
        let Some(record) = RecordHead::read(&head) else {
            // A file system may have made room for what it never wrote.
            let zeros = head == [0; RECORD_HEAD] && self.zeros_from(start)?;
            return Ok(if zeros { Frame::Cut } else { Frame::Bad(DamageKind::Head) });
        };
        if !(self.next..self.limit.unwrap_or(MAX_NUMBER)).contains(&record.number) {
            return Ok(Frame::Bad(DamageKind::Head));
        }
        let end = start + RECORD_HEAD as u64 + u64::from(record.payload);
        if end > self.bytes {
            return Ok(Frame::Cut);
        }
        let mut payload = std::mem::take(&mut self.payload);
        payload.resize(record.payload as usize, 0);
        let read = self.read_at(start + RECORD_HEAD as u64, &mut payload);
        let content = read.map(|()| match record.matches(&payload) {
            false => Err(DamageKind::Checksum),
            true => record::decode(record.number, &payload).map_err(DamageKind::Malformed),
        });
        self.payload = payload;
        Ok(Frame::Framed { number: record.number, end, content: content? })
    }

    fn zeros_from(&mut self, start: u64) -> Result<bool, LogError> {
        let mut chunk = [0; 4096];
        let mut at = start;
        while at < self.bytes {
            let count = chunk.len().min((self.bytes - at) as usize);
            self.read_at(at, &mut chunk[..count])?;
            if chunk[..count].iter().any(|&byte| byte != 0) {
                return Ok(false);
            }
            at += count as u64;
        }
        Ok(true)
    }

    /// Where a record may begin, from `start` on.
    fn find_magic(&mut self, start: u64) -> Result<Option<u64>, LogError> {
        let mut chunk = [0; 4096];
        let mut at = start;
        while at + RECORD_MAGIC.len() as u64 <= self.bytes {
            let count = chunk.len().min((self.bytes - at) as usize);
            self.read_at(at, &mut chunk[..count])?;
            if let Some(found) =
                chunk[..count].windows(RECORD_MAGIC.len()).position(|bytes| bytes == RECORD_MAGIC)
            {
                return Ok(Some(at + found as u64));
            }
            at += (count - RECORD_MAGIC.len() + 1) as u64;
        }
        Ok(None)
    }

    fn read_at(&mut self, at: u64, out: &mut [u8]) -> Result<(), LogError> {
        let path = &self.path;
        // Within the buffer this costs nothing; a file's offsets fit 63 bits.
        let moved = self.file.seek_relative(at as i64 - self.cursor as i64);
        let read = moved.and_then(|()| self.file.read_exact(out));
        self.cursor = at + out.len() as u64;
        read.map_err(LogError::io("read", path))
    }
}
