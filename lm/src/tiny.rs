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
        };
        assert_eq!(image.model.shape, shape);
        assert_eq!((image.about.name.as_str(), image.about.licence.as_str()), ("tiny", "MIT"));
        assert_eq!((&image.about.ends[..], image.about.begin), (&[0][..], None));
    }

    /// It was trained, and its integers know it: a story that it has not seen is likely, word for word, and the same words in another order are not.
    #[cfg(feature = "text")]
    #[test]
    fn stories_are_likely() {
        use crate::float::log_softmax;
        use crate::{Cache, fast::Runner, text::Text};

        const STORY: &str = "Once upon a time, there was a little dog named Max. He lived in a small house near a lake. One sunny day, \
                             Max went to the park to play with a ball. He saw a sad bunny under a tree. \"Why are you sad?\" asked Max.";
        let image = tiny();
        let text = Text::new(&image.about, image.model.shape.vocabulary).unwrap();
        let perplexity = |story: &str| {
            let tokens = text.encode(story).unwrap();
            let runner = Runner::new(&image.model);
            let logits = runner.logits(&runner.extend(&mut Cache::new(&image.model), &tokens));
            let logs = logits.iter().zip(&tokens[1..]).map(|(logits, &next)| {
                log_softmax(&logits.iter().map(|&x| f64::from(x) / 1024.0).collect::<Vec<_>>())[next as usize]
            });
            (-logs.sum::<f64>() / (tokens.len() - 1) as f64).exp()
        };
        assert_eq!(text.decode(&text.encode(STORY).unwrap()).unwrap(), STORY);
        let backwards: Vec<&str> = STORY.split(' ').rev().collect();
        let [forwards, backwards] = [STORY, &backwards.join(" ")].map(perplexity);
        println!("{forwards}, backwards {backwards}");
        assert!(forwards < 12.0 && backwards > 100.0, "{forwards}, backwards {backwards}");
    }
}
