//! Weights as files pack them, to numbers. Every block is as ggml lays it out.

use half::{bf16, f16};

/// How a tensor's values are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packing {
    F32,
    F16,
    Bf16,
    Q4_0,
    Q4_1,
    Q8_0,
    Q6K,
}

impl Packing {
    /// Values of a block, and its bytes.
    fn block(self) -> (usize, usize) {
        match self {
            Self::F32 => (1, 4),
            Self::F16 | Self::Bf16 => (1, 2),
            Self::Q4_0 => (32, 18),
            Self::Q4_1 => (32, 20),
            Self::Q8_0 => (32, 34),
            Self::Q6K => (256, 210),
        }
    }

    /// Bytes of `values` values; `None` if they are no whole blocks, or too many.
    pub(super) fn bytes(self, values: usize) -> Option<usize> {
        let (each, bytes) = self.block();
        values.is_multiple_of(each).then(|| (values / each).checked_mul(bytes)).flatten()
    }

    /// The values of whole blocks.
    pub(super) fn unpack(self, bytes: &[u8]) -> Vec<f32> {
        let (each, length) = self.block();
        let mut values = Vec::with_capacity(bytes.len() / length * each);
        for block in bytes.chunks_exact(length) {
            match self {
                Self::F32 => values.push(f32::from_le_bytes([block[0], block[1], block[2], block[3]])),
                Self::F16 => values.push(half(block)),
                Self::Bf16 => values.push(bf16::from_le_bytes([block[0], block[1]]).to_f32()),
                Self::Q4_0 => {
                    let scale = half(block);
                    values.extend(nibbles(&block[2..]).map(|nibble| (f32::from(nibble) - 8.0) * scale));
                }
                Self::Q4_1 => {
                    let (scale, least) = (half(block), half(&block[2..]));
                    values.extend(nibbles(&block[4..]).map(|nibble| f32::from(nibble) * scale + least));
                }
                Self::Q8_0 => {
                    let scale = half(block);
                    values.extend(block[2..].iter().map(|&byte| f32::from(byte as i8) * scale));
                }
                Self::Q6K => values.extend(six_bits(block)),
            }
        }
        values
    }
}

fn half(bytes: &[u8]) -> f32 {
    f16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
}

/// The lower halves of the bytes, then the upper ones.
fn nibbles(bytes: &[u8]) -> impl Iterator<Item = u8> {
    bytes.iter().map(|byte| byte & 15).chain(bytes.iter().map(|byte| byte >> 4))
}

/// 256 values of six bits: four in `low`, two in `high`, a scale of 8 bits for each 16.
fn six_bits(block: &[u8]) -> [f32; 256] {
    let (low, rest) = block.split_at(128);
    let (high, rest) = rest.split_at(64);
    let (scales, scale) = rest.split_at(16);
    let scale = half(scale);
    std::array::from_fn(|index| {
        let (part, within) = (index / 128, index % 128);
        let (quarter, column) = (within / 32, within % 32);
        let nibble = low[64 * part + 32 * (quarter % 2) + column] >> (4 * (quarter / 2)) & 15;
        let upper = high[32 * part + column] >> (2 * quarter) & 3;
        let value = i32::from(nibble | upper << 4) - 32;
        // The order of ggml: the scale of 16 values is applied to the block's own first.
        scale * f32::from(scales[index / 16] as i8) * value as f32
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks that gguf-py 0.19 reads so: bytes 0, 7, 14, … modulo 256 behind scales of 0.5 (and a least value of -2).
    fn bytes(count: usize) -> impl Iterator<Item = u8> {
        (0..count).map(|k| (k * 7 % 256) as u8)
    }

    #[test]
    fn blocks_are_those_of_ggml() {
        let scale = f16::from_f32(0.5).to_le_bytes();
        let least = f16::from_f32(-2.0).to_le_bytes();
        let block: Vec<u8> = scale.into_iter().chain(bytes(16)).collect();
        let values = Packing::Q4_0.unpack(&block);
        assert_eq!((values.len(), values[1], values[2], values[17], values[31]), (32, -0.5, 3.0, -4.0, -1.0));
        let block: Vec<u8> = scale.into_iter().chain(least).chain(bytes(16)).collect();
        let values = Packing::Q4_1.unpack(&block);
        assert_eq!((values.len(), values[1], values[2], values[31]), (32, 1.5, 5.0, 1.0));
        let block: Vec<u8> = scale.into_iter().chain(bytes(32)).collect();
        let values = Packing::Q8_0.unpack(&block);
        assert_eq!((values.len(), values[1], values[31]), (32, 3.5, -19.5));
        assert_eq!(Packing::F16.unpack(&scale), [0.5]);
        assert_eq!(Packing::Bf16.unpack(&0x3fc0u16.to_le_bytes()), [1.5]);
        assert_eq!(Packing::F32.unpack(&2.5f32.to_le_bytes()), [2.5]);
        assert_eq!(Packing::Q4_1.bytes(33), None);
        assert_eq!(Packing::Q8_0.bytes(64), Some(68));
    }

    #[test]
    fn six_bits_are_those_of_ggml() {
        let block: Vec<u8> = bytes(208).chain(f16::from_f32(0.5).to_le_bytes()).collect();
        let values = Packing::Q6K.unpack(&block);
        assert_eq!(values.len(), 256);
        let held = [0, 1, 40, 77, 100, 128, 200, 255].map(|index| values[index]);
        assert_eq!(held, SIX_BITS);
    }
    const SIX_BITS: [f32; 8] = [-1024.0, 736.0, 312.0, -506.0, 795.0, -1920.0, 54.0, 1087.5];
}
