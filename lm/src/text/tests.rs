use proptest::prelude::*;

use super::*;
use crate::micro;

fn text() -> Text {
    let image = micro();
    Text::new(&image.about, image.model.shape.vocabulary).unwrap()
}

#[test]
fn letters_are_tokens_and_back() {
    let text = text();
    let tokens = text.encode("Once upon a time, x=7?").unwrap();
    assert_eq!(tokens.len(), 22);
    assert_eq!(tokens[..5], [18, 17, 6, 8, 2]);
    let mut stream = text.stream();
    let said: String = tokens.iter().map(|&token| stream.next(token).unwrap()).collect();
    assert_eq!(said + &stream.end().unwrap(), "once upon a time, x=7?");
    assert_eq!(text.decode(&tokens).unwrap(), "once upon a time, x=7?");
    assert_eq!(text.decode(&[18, 0, 17]).unwrap(), "on", "an end is no text");
    assert_eq!(text.encode("é").unwrap(), [1]);
    assert!(text.ends(0) && !text.ends(1) && !text.chats());
}

#[test]
fn what_cannot_be_used_is_told() {
    let image = micro();
    let broken = About { tokenizer: "{}".into(), ..image.about.clone() };
    assert!(matches!(Text::new(&broken, 64), Err(TextError::Tokenizer(_))));
    let small = Text::new(&image.about, 10).unwrap();
    assert_eq!(small.encode("az"), Err(TextError::Beyond { token: 29, vocabulary: 10 }));
}

#[test]
fn a_chat_is_what_its_template_says() {
    let mut image = micro();
    image.about.chat = "{% for m in messages %}<{{ m['role'] }}>{{ m.content }}{% endfor %}\
                        {% if add_generation_prompt %}{{ eos_token }}answer:{% endif %}"
        .into();
    let of = |about: &About| Text::new(about, 64).unwrap().chat("why?");
    assert_eq!(of(&image.about).unwrap(), "<user>why?<end>answer:");
    image.about.chat = "{{ raise_exception('no users') }}".into();
    let error = of(&image.about).unwrap_err().to_string();
    assert!(error.contains("no users") && error.ends_with("with --raw"), "{error}");
    image.about.chat = "{% for".into();
    assert!(of(&image.about).is_err());
}

proptest! {
    #[test]
    fn a_stream_says_what_all_tokens_say(letters in "[a-z ,.0-9]{0,80}") {
        let text = text();
        let tokens = text.encode(&letters).unwrap();
        let mut stream = text.stream();
        let said: String = tokens.iter().map(|&token| stream.next(token).unwrap()).collect();
        prop_assert_eq!(said + &stream.end().unwrap(), letters);
    }
}
