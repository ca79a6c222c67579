//! Where a token's K and V lie in a block: layout `fixed128`.
//!
//! One block holds [`TOKENS`] tokens of one head of [`HEAD_DIM`] fp16 values: a plane of K rows, then a plane of V rows.
//! The scores of a query read the K plane alone, as one run, and the weighted sum then reads the V plane.

/// Values of a head.
pub const HEAD_DIM: usize = 128;
/// Tokens of a block.
pub const TOKENS: usize = 32;
/// Bytes of an fp16 value.
pub const VALUE_BYTES: usize = 2;
/// Bytes of a row, one token's K or V: 256.
pub const ROW_BYTES: usize = HEAD_DIM * VALUE_BYTES;
/// Bytes of a plane: 8192.
pub const PLANE_BYTES: usize = TOKENS * ROW_BYTES;
/// Bytes of a block: 16,384.
pub const BLOCK_BYTES: usize = 2 * PLANE_BYTES;
/// Planes and rows are aligned to this many bytes, a memory transaction of a GPU.
pub const ALIGN: usize = 128;

const _: () = assert!(ROW_BYTES.is_multiple_of(ALIGN) && PLANE_BYTES.is_multiple_of(ALIGN));

/// Half of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plane {
    /// Keys.
    K,
    /// Values.
    V,
}

/// Byte offset of block `index` in a region of blocks.
///
/// # Panics
/// If it is beyond the address space.
pub const fn block(index: usize) -> usize {
    match index.checked_mul(BLOCK_BYTES) {
        Some(offset) => offset,
        None => panic!("the block is beyond the address space"),
    }
}

/// Byte offset of a token's row in its block.
///
/// # Panics
/// If `token` is not below [`TOKENS`].
pub const fn row(plane: Plane, token: usize) -> usize {
    assert!(token < TOKENS, "the token is beyond the block");
    let base = match plane {
        Plane::K => 0,
        Plane::V => PLANE_BYTES,
    };
    base + token * ROW_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_of_fixed128() {
        assert_eq!((ROW_BYTES, PLANE_BYTES, BLOCK_BYTES, ALIGN), (256, 8192, 16_384, 128));
        assert_eq!((block(0), block(3)), (0, 49_152));
        assert_eq!((row(Plane::K, 0), row(Plane::K, 7)), (0, 1792));
        assert_eq!((row(Plane::V, 0), row(Plane::V, 7), row(Plane::V, 31)), (8192, 9984, 16_128));
    }

    #[test]
    fn the_rows_of_a_block_fill_it() {
        let mut rows: Vec<usize> = [Plane::K, Plane::V]
            .into_iter()
            .flat_map(|plane| (0..TOKENS).map(move |token| row(plane, token)))
            .collect();
        rows.sort_unstable();
        assert_eq!(rows, (0..2 * TOKENS).map(|k| k * ROW_BYTES).collect::<Vec<_>>());
    }

    #[test]
    #[should_panic = "beyond the block"]
    fn a_token_beyond_the_block_panics() {
        row(Plane::K, TOKENS);
    }

    #[test]
    fn blocks_follow_each_other_and_every_row_is_aligned() {
        for plane in [Plane::K, Plane::V] {
            for token in 0..TOKENS {
                let at = block(5) + row(plane, token);
                assert!(at.is_multiple_of(ALIGN) && at >= block(5) && at + ROW_BYTES <= block(6));
            }
        }
    }
}
