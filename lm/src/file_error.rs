//! What is wrong with a file that a model is read from.

use std::fmt;
use std::path::Path;

/// Where something is wrong in a file, what, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileError {
    place: String,
    problem: String,
    remedy: String,
}

impl FileError {
    pub(crate) fn new(
        place: impl fmt::Display,
        problem: impl fmt::Display,
        remedy: impl fmt::Display,
    ) -> Self {
        let [place, problem, remedy] = [place.to_string(), problem.to_string(), remedy.to_string()];
        Self { place, problem, remedy }
    }

    /// The same, in this file.
    pub(crate) fn within(self, file: &Path) -> Self {
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

/// Reads a whole file.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, FileError> {
    std::fs::read(path).map_err(|error| {
        FileError::new(path.display(), format!("cannot be read: {error}"), "give a file that can be read")
    })
}
