//! A model as one file: what `doorbell model import` writes, and what a device is given. Its layout is in docs/engine.md.

mod layout;
mod read;
mod write;

use std::path::Path;

use crate::about::About;
use crate::file::{self, FileError};
use crate::shape::Shape;
use crate::weights::Model;

pub use layout::{Entry, HEADER, Kind};
pub use read::{Header, entries, header, is_image};

/// Where an image of this shape has what, and how many bytes it has, before there are weights: exponents are 0. Its texts have `about` and
/// `tokenizer` bytes.
///
/// # Panics
/// For a shape that [`Shape::refusal`] does not take.
pub fn directory(shape: &Shape, about: u32, tokenizer: u32) -> (Vec<Entry>, u64) {
    assert_eq!(shape.refusal(), None);
    let entries = layout::layout(shape, about, tokenizer);
    let length = layout::length(&entries);
    (entries, length)
}

/// A model with what surrounds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// The weights.
    pub model: Model,
    /// Name, tokeniser, prompts.
    pub about: About,
}

impl Image {
    /// The bytes of the file: the same for the same model.
    pub fn to_bytes(&self) -> Vec<u8> {
        write::write(self)
    }

    /// The model of a file's bytes.
    ///
    /// # Errors
    /// If they are no image, are damaged, or could make a sum overflow: where, what, and what to do.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, FileError> {
        read::read(bytes)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// As [`Image::from_bytes`].
    pub fn read(path: &Path) -> Result<Self, FileError> {
        Self::from_bytes(&file::read(path, crate::limits::WEIGHT_BYTES)?).map_err(|error| error.within(path))
    }
}

#[cfg(test)]
mod tests;
