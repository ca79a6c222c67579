//! The built-in model `tiny` with its tokeniser.

use doorbell_checkpoint::text::Text;
use doorbell_lm::fast::Runner;
use doorbell_lm::float::log_softmax;
use doorbell_lm::{Cache, tiny};

/// It was trained, and its integers know it: a story that it has not seen is likely, word for word, and the same words in another order are not.
#[test]
fn stories_are_likely() {
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
