//! How vectors lie in memory: everything begins at a line of 64 bytes, four words of 128 bits, and what stands behind the last
//! element of its last line is 0. Numbers are little-endian.

use doorbell_lm::ops::BLOCK;

/// Bytes of a line, the beat of every memory.
pub const LINE: usize = 64;

/// Bytes of a word, the unit of on-chip addresses.
pub const WORD: usize = 16;

/// Words of a line.
pub const LINE_WORDS: u32 = (LINE / WORD) as u32;

/// Lines of on-chip memory that a context of the RTL has: `Lines` of `rtl/npu/engine_npu.sv`.
pub const CHIP_LINES: u32 = 1024;

/// Lines of `count` numbers of 32 bits with a sign.
pub const fn integers(count: u64) -> u64 {
    count.div_ceil(16)
}

/// Lines of the products of a matrix of `rows`, filled up to 32 numbers with 0.
pub const fn products(rows: u64) -> u64 {
    integers(rows.next_multiple_of(BLOCK as u64))
}

/// Lines of an activation of `count` channels: its head (scale of 16 bits, exponent of 16 with a sign), a byte of shift for each 32
/// channels, a byte of mantissa for each.
pub const fn activation(count: u64) -> u64 {
    1 + shifts(count) + count.div_ceil(64)
}

/// Lines of an activation's shifts.
pub const fn shifts(count: u64) -> u64 {
    count.div_ceil(BLOCK as u64 * LINE as u64)
}

/// Lines of a gain of `count` factors: its head (exponent of 16 bits with a sign), 16 bits with a sign for each.
pub const fn gain(count: u64) -> u64 {
    1 + count.div_ceil(32)
}

/// Lines of the turns of a head: cosine and sine, 16 bits with a sign each, of each pair of channels.
pub const fn turns(width: u64) -> u64 {
    width.div_ceil(32)
}

/// Lines of stored heads: 16 bits of scale for each, a byte of mantissa for each channel.
pub const fn stored(heads: u64, width: u64) -> u64 {
    stored_scales(heads) + (heads * width).div_ceil(64)
}

/// Lines of the scales of stored heads.
pub const fn stored_scales(heads: u64) -> u64 {
    heads.div_ceil(32)
}

/// Bytes of a row of a matrix of `columns`.
pub const fn row(columns: u64) -> u64 {
    columns.div_ceil(LINE as u64) * LINE as u64
}

/// Where what is kept of a head lies in its block: 32 tokens of one layer and one head of keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Channels of a head.
    pub width: u64,
}

impl Block {
    /// Bytes of all of it: scales of keys, keys, scales of values, values.
    pub const fn bytes(self) -> u64 {
        2 * self.half()
    }

    const fn half(self) -> u64 {
        LINE as u64 + BLOCK as u64 * self.width
    }

    /// First byte of a token's scale; `part` is 0 for keys, 1 for values.
    pub const fn scale(self, part: u64, token: u64) -> u64 {
        part * self.half() + 2 * token
    }

    /// First byte of a token's mantissas.
    pub const fn mantissas(self, part: u64, token: u64) -> u64 {
        part * self.half() + LINE as u64 + token * self.width
    }
}

/// A number of 16 bits at a byte.
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// The same with a sign.
pub(crate) fn i16_at(bytes: &[u8], at: usize) -> i16 {
    u16_at(bytes, at) as i16
}

/// Numbers of 32 bits with a sign.
pub(crate) fn read_integers(bytes: &[u8]) -> impl Iterator<Item = i32> + '_ {
    bytes.chunks_exact(4).map(|four| i32::from_le_bytes(four.try_into().expect("four bytes")))
}

/// Numbers of 32 bits with a sign, as lines.
pub(crate) fn write_integers(values: impl IntoIterator<Item = i32>) -> Vec<u8> {
    whole(values.into_iter().flat_map(i32::to_le_bytes).collect())
}

/// Bytes, filled up to whole lines.
pub(crate) fn whole(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.resize(bytes.len().next_multiple_of(LINE), 0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_page() {
        assert_eq!((integers(32), integers(576)), (2, 36));
        assert_eq!((products(1), products(32), products(33)), (2, 2, 4));
        assert_eq!((activation(32), activation(576), activation(1536), activation(4096)), (3, 11, 26, 67));
        assert_eq!((gain(32), gain(576)), (2, 19));
        assert_eq!((turns(32), turns(64)), (1, 2));
        assert_eq!((stored(1, 32), stored(9, 64), stored(33, 64)), (2, 10, 35));
        assert_eq!((row(32), row(64), row(576)), (64, 64, 576));
        let block = Block { width: 64 };
        assert_eq!(block.bytes(), 4224);
        assert_eq!((block.scale(0, 31), block.mantissas(0, 31)), (62, 64 + 31 * 64));
        assert_eq!((block.scale(1, 0), block.mantissas(1, 0)), (2112, 2176));
    }
}
