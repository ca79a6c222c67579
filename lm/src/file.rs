//! Files that a model is read from, and what is wrong with them.

use std::fmt;
use std::io::Read;
use std::path::Path;

use crate::limits::Limit;

/// Where something is wrong in a file, what, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileError {
    place: String,
    problem: String,
    remedy: String,
}

impl FileError {
    /// `place` is within the file, and empty where it is all of it; `remedy` is what to do.
    pub fn new(place: impl fmt::Display, problem: impl fmt::Display, remedy: impl fmt::Display) -> Self {
        let [place, problem, remedy] = [place.to_string(), problem.to_string(), remedy.to_string()];
        Self { place, problem, remedy }
    }

    /// The same, in this file.
    #[must_use]
    pub fn within(self, file: &Path) -> Self {
        let place = match self.place.as_str() {
            "" => file.display().to_string(),
            place => format!("{}: {place}", file.display()),
        };
        Self { place, ..self }
    }
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { place, problem, remedy } = self;
        let separator = if place.is_empty() { "" } else { ": " };
        write!(f, "{place}{separator}{problem}; {remedy}")
    }
}

impl std::error::Error for FileError {}

/// Reads a whole file of at most so many bytes.
///
/// # Errors
/// If it cannot be read, is no regular file, or exceeds the limit; if the limit's variable is wrong.
pub fn read(path: &Path, limit: Limit) -> Result<Vec<u8>, FileError> {
    let failed = |problem: String, remedy: &str| FileError::new(path.display(), problem, remedy);
    let most = limit.value().map_err(|problem| FileError::new("", problem, "set it anew, or unset it"))?;
    let cannot =
        |error: std::io::Error| failed(format!("cannot be read: {error}"), "give a file that can be read");
    // Asked before it is opened: a pipe that nobody writes would not open.
    if !std::fs::metadata(path).map_err(cannot)?.is_file() {
        return Err(failed("cannot be read: it is no regular file".into(), "give a file that can be read"));
    }
    let mut bytes = vec![];
    let file = std::fs::File::open(path).map_err(cannot)?;
    let length = file.metadata().map_err(cannot)?.len();
    if length > most {
        return Err(failed(limit.exceeded(most), "give a smaller file"));
    }
    bytes.reserve_exact(usize::try_from(length).unwrap_or(0));
    // A file may grow while it is read.
    file.take(most.saturating_add(1)).read_to_end(&mut bytes).map_err(cannot)?;
    if bytes.len() as u64 > most {
        return Err(failed(limit.exceeded(most), "give a smaller file"));
    }
    Ok(bytes)
}
