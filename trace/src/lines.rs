//! A file cut into lines that know their place, for messages that name it.

use serde::de::DeserializeOwned;

use super::TraceError;

/// The lines of one file, without line ends, byte order mark and trailing blank lines.
pub(super) struct Lines<'a> {
    file: &'a str,
    lines: Vec<&'a str>,
}

impl<'a> Lines<'a> {
    pub(super) fn split(file: &'a str, bytes: &'a [u8]) -> Result<Lines<'a>, TraceError> {
        let bytes = bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(bytes);
        let text = std::str::from_utf8(bytes).map_err(|error| {
            let good = &bytes[..error.valid_up_to()];
            let line_start = good.iter().rposition(|&b| b == b'\n').map_or(0, |newline| newline + 1);
            TraceError::Malformed {
                file: file.into(),
                line: 1 + good.iter().filter(|&&b| b == b'\n').count(),
                column: 1 + good.len() - line_start,
                problem: match packer(bytes) {
                    Some((name, _)) => format!("the file is packed by {name}"),
                    None => format!("byte 0x{:02x} is not UTF-8", bytes[good.len()]),
                },
                expected: match packer(bytes) {
                    Some((_, unpack)) => format!("text; unpack it first, as by `{unpack}`"),
                    None => "text in UTF-8".into(),
                },
            }
        })?;
        let mut lines: Vec<&str> =
            text.split('\n').map(|line| line.strip_suffix('\r').unwrap_or(line)).collect();
        while lines.last().is_some_and(|line| line.trim().is_empty()) {
            lines.pop();
        }
        Ok(Lines { file, lines })
    }

    pub(super) fn file(&self) -> &'a str {
        self.file
    }

    pub(super) fn first(&self) -> Option<&'a str> {
        self.lines.first().copied()
    }

    /// The lines from index `from`, each with its index.
    pub(super) fn enumerate(&self, from: usize) -> impl Iterator<Item = (usize, &'a str)> {
        self.lines.iter().copied().enumerate().skip(from)
    }

    /// An error in the line with this index, at a byte of it counted from 0.
    pub(super) fn malformed(
        &self,
        index: usize,
        byte: usize,
        problem: impl Into<String>,
        expected: impl Into<String>,
    ) -> TraceError {
        TraceError::Malformed {
            file: self.file.into(),
            line: index + 1,
            column: byte + 1,
            problem: problem.into(),
            expected: expected.into(),
        }
    }

    /// The line with this index as one JSON object.
    pub(super) fn json<T: DeserializeOwned>(&self, index: usize, expected: &str) -> Result<T, TraceError> {
        let line = self.lines[index];
        if line.trim().is_empty() {
            return Err(self.malformed(index, 0, "blank line before the end of the file", expected));
        }
        // serde takes an array for a struct as well; the format does not.
        if !line.trim_start().starts_with('{') {
            return Err(self.malformed(index, 0, "not a JSON object", expected));
        }
        serde_json::from_str(line).map_err(|error| {
            let text = error.to_string();
            let problem = text.rsplit_once(" at line ").map_or(text.as_str(), |(problem, _)| problem);
            self.malformed(index, error.column().saturating_sub(1), problem, expected)
        })
    }

    /// Where `key` stands in a JSON line, for errors about its value.
    pub(super) fn byte_of_key(&self, index: usize, key: &str) -> usize {
        self.lines[index].find(&format!("\"{key}\"")).unwrap_or(0)
    }
}

/// What has packed a file, and the command that unpacks it, by the bytes that it begins with.
fn packer(bytes: &[u8]) -> Option<(&'static str, &'static str)> {
    const PACKERS: [(&[u8], &str, &str); 5] = [
        (b"\x1F\x8B", "gzip", "gunzip"),
        (b"\x28\xB5\x2F\xFD", "zstd", "unzstd"),
        (b"\xFD7zXZ", "xz", "unxz"),
        (b"BZh", "bzip2", "bunzip2"),
        (b"PK\x03\x04", "zip", "unzip"),
    ];
    PACKERS.iter().find(|(magic, ..)| bytes.starts_with(magic)).map(|&(_, name, unpack)| (name, unpack))
}
