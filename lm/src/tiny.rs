//! The built-in model `tiny`: of Gemma 3N's shape, and trained, so that it tells small stories. Its weights are in this crate.

use crate::image::Image;

/// The bytes of its image, as `doorbell model import` wrote them.
const BYTES: &[u8] = include_bytes!("../models/tiny.doorbell");

/// The model, its tokeniser, and no chat.
///
/// # Panics
/// Never: a test reads the same bytes.
pub fn tiny() -> Image {
    Image::from_bytes(BYTES).expect("the image in this crate is whole")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::{Gemma, Shape};

    #[test]
    fn tiny_is_small_and_of_gemma_3ns_shape() {
        assert!(BYTES.len() <= 1 << 20, "{} bytes", BYTES.len());
        let image = tiny();
        assert_eq!(image.to_bytes(), BYTES);
        let gemma = Gemma { embedding: 64, laurel: 32, window: 64, global: 3, own: 4, cut: 2 };
        let shape = Shape {
            width: 64,
            layers: 6,
            heads: 2,
            kv_heads: 1,
            head_width: 32,
            hidden: 192,
            vocabulary: 1024,
            context: 512,
            gemma: Some(gemma),
            kv_cap: None,
        };
        assert_eq!(image.model.shape, shape);
        assert_eq!((image.about.name.as_str(), image.about.licence.as_str()), ("tiny", "MIT"));
        assert_eq!((&image.about.ends[..], image.about.begin), (&[0][..], None));
    }
}
