//! A model as a device takes it: its image and its program as they lie in the MODEL region, and the record that says so (rule R25 of
//! docs/contract.md).

use doorbell_contract::{HwImage, TOKEN_NONE};
use doorbell_lm::image::{Header, entries, header};
use doorbell_lm::{FileError, KvCap};
use thiserror::Error;

use crate::compile::{CompileError, compile};

/// Why a model cannot be published.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PublishError {
    /// The bytes are no image, or a damaged one.
    #[error(transparent)]
    Image(#[from] FileError),
    /// There is no program for it.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// A device knows four tokens that end a sequence.
    #[error("the model has {0} tokens that end a sequence, and a device takes 4 at most")]
    Ends(usize),
    /// A number that no field of the record holds.
    #[error("a block of keys and values has {0} bytes, more than the record of an image can say")]
    Block(u64),
}

/// A model that is ready to be laid into a MODEL region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    /// What lies there: the image, the layers' words, the program.
    pub memory: Vec<u8>,
    /// Lines of on-chip memory that the program takes of a context.
    pub lines: u32,
    /// What its layers see of a sequence, if that is bounded: whoever gives it blocks of keys and values may let those come again that no
    /// token sees any more.
    pub kv_cap: Option<KvCap>,
    image: HwImage,
}

impl Published {
    /// From the bytes of an image, and the tokens that end its sequences.
    ///
    /// # Errors
    /// If they are none, or no device runs it.
    pub fn new(image: Vec<u8>, ends: &[u32]) -> Result<Self, PublishError> {
        let Header { shape, epsilon, check, .. } = header(&image)?;
        let program = compile(&shape, epsilon, &entries(&image)?, image.len() as u64)?;
        let block_lines =
            u32::try_from(program.block / 64).map_err(|_| PublishError::Block(program.block))?;
        if ends.len() > 4 {
            return Err(PublishError::Ends(ends.len()));
        }
        let end = |k: usize| ends.get(k).copied().unwrap_or(TOKEN_NONE);
        let lines = program.lines();
        let (program_at, words) = (program.start, program.words.len() as u32);
        let memory = program.memory(image);
        let image = HwImage {
            offset: 0,
            length: memory.len() as u64,
            program_at,
            words,
            image_check: check,
            vocabulary: shape.vocabulary as u32,
            positions: shape.context as u32,
            block_lines,
            end_0: end(0),
            end_1: end(1),
            end_2: end(2),
            end_3: end(3),
            check: 0,
        };
        Ok(Self { memory, lines, kv_cap: shape.kv_cap, image })
    }

    /// The record of the model where it lies `offset` bytes into the MODEL region, a multiple of 64.
    pub fn at(&self, offset: u64) -> HwImage {
        HwImage { offset, ..self.image }.seal()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use doorbell_lm::micro;

    #[test]
    fn micro_is_published_as_it_lies() {
        let bytes = micro().to_bytes();
        let published = Published::new(bytes.clone(), &[0]).unwrap();
        let image = published.at(4096);
        assert!(image.verify() && image.offset == 4096);
        assert_eq!((image.vocabulary, image.positions, image.image_check), (64, 1024, 0x996A_CFDC));
        assert_eq!(image.ends(), [0, TOKEN_NONE, TOKEN_NONE, TOKEN_NONE]);
        // Four layers of one head, 32 wide.
        assert_eq!(image.block_bytes(), 4 * 2 * (64 + 32 * 32));
        assert_eq!(published.memory[..bytes.len()], bytes);
        assert_eq!(published.lines, 36);
        let end = image.program_at + 8 * u64::from(image.words);
        assert!(
            end <= image.length && image.length - end < 64 && image.length == published.memory.len() as u64
        );
        assert!(matches!(Published::new(bytes[..100].to_vec(), &[]), Err(PublishError::Image(_))));
        assert!(matches!(Published::new(bytes, &[0, 1, 2, 3, 4]), Err(PublishError::Ends(5))));
    }
}
