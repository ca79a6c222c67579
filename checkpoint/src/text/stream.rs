//! Text of tokens as they come: what the decoder of crate `tokenizers` makes of all of them, a few tokens at a time.
//!
//! A decoder is a chain of stages. What one makes of a token depends on other tokens in a few ways only: on whether it is the first or the
//! last one, on the one before it, or on the run of bytes that it is in. So each stage here keeps what is not decided yet, passes on the rest, and
//! takes each token once. A stage that reads a whole text keeps it until the end.

use std::mem;

use tokenizers::decoders::DecoderWrapper;
use tokenizers::{Decoder, Result as Decoded};

use super::{Text, TextError};
use crate::contained::contained;

/// Text of tokens as they come. All that it gives, put together, is the text that [`Text::decode`] gives of all tokens.
#[derive(Clone, Debug)]
pub struct Stream<'t> {
    text: &'t Text,
    stages: Vec<Stage<'t>>,
    /// Text of the earlier tokens that was still undecided when the stream began. It is part of their text, and the stream does not yield
    /// it.
    before: String,
    /// After an error the stages may have lost tokens.
    failed: Option<TextError>,
}

impl<'t> Stream<'t> {
    pub(super) fn new(text: &'t Text) -> Self {
        let mut stages = vec![];
        match text.tokenizer.get_decoder() {
            Some(decoder) => {
                put(decoder, &mut false, &mut stages);
            }
            None => stages.push(Stage::Blanks { first: true }),
        }
        Self { text, stages, before: String::new(), failed: None }
    }

    /// A stream that continues `tokens`: it yields only the text that later tokens add. That depends on the last tokens only.
    pub(super) fn behind(text: &'t Text, tokens: &[u32]) -> Self {
        let mut stream = Stream::new(text);
        let last = &tokens[tokens.len().saturating_sub(LOOKS_BACK)..];
        let left = stream.take(last).and_then(|_| stream.clone().end());
        match left {
            Ok(before) => Self { before, ..stream },
            // Earlier tokens that cannot be decoded do not affect later ones.
            Err(_) => Stream::new(text),
        }
    }

    /// What one more token adds; nothing as long as that is not decided, as within a letter or a run of bytes.
    ///
    /// # Errors
    /// If the tokeniser fails; then each further call gives that error.
    pub fn next(&mut self, token: u32) -> Result<String, TextError> {
        self.take(&[token])
    }

    /// What several more tokens add.
    ///
    /// # Errors
    /// As [`Stream::next`].
    pub fn take(&mut self, tokens: &[u32]) -> Result<String, TextError> {
        self.pass(tokens, false)
    }

    /// What is left: a letter that never became whole, or what waited for the next token.
    ///
    /// # Errors
    /// As [`Stream::next`].
    pub fn end(mut self) -> Result<String, TextError> {
        self.pass(&[], true)
    }

    fn pass(&mut self, tokens: &[u32], ends: bool) -> Result<String, TextError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let tokenizer = &self.text.tokenizer;
        let special = tokenizer.get_added_vocabulary();
        let stages = &mut self.stages;
        let said = contained(|| {
            let texts = tokens.iter().filter_map(|&token| tokenizer.id_to_token(token));
            let mut pieces: Vec<String> = texts.filter(|text| !special.is_special_token(text)).collect();
            for stage in stages {
                pieces = stage.pass(pieces, ends)?;
            }
            Ok(pieces.concat())
        });
        let said = said.and_then(|said: Decoded<String>| said.map_err(|error| error.to_string()));
        let mut said = said.map_err(|problem| self.failed.insert(TextError::Tokenizer(problem)).clone())?;
        if !self.before.is_empty() {
            let same = self.before.chars().zip(said.chars()).take_while(|(one, other)| one == other);
            let same: usize = same.map(|(letter, _)| letter.len_utf8()).sum();
            let is_whole = same == said.len();
            said.drain(..same);
            if is_whole {
                self.before.drain(..same);
            } else {
                // Either all of it has been removed, or the decoded text differs.
                self.before.clear();
            }
        }
        Ok(said)
    }
}

/// How many earlier tokens a decoder can depend on, unless all of them belong to one character or run.
const LOOKS_BACK: usize = 32;

impl Text {
    /// The bytes that the token's name stands for, if any. Bytes that are not a whole character have no text.
    pub fn bytes(&self, token: u32) -> Option<Vec<u8>> {
        let name = self.tokenizer.id_to_token(token)?;
        for stage in Stream::new(self).stages {
            match stage {
                Stage::Run { .. } if is_byte(&name) => {
                    return u8::from_str_radix(&name[3..5], 16).ok().map(|byte| vec![byte]);
                }
                Stage::Bytes(_) => return name.chars().map(stood_for).collect(),
                _ => {}
            }
        }
        None
    }
}

/// A stage of a decoder, and what it keeps.
#[derive(Clone, Debug)]
enum Stage<'t> {
    /// No decoder: tokens have blanks between them.
    Blanks { first: bool },
    /// Takes each piece for itself.
    Each(&'t DecoderWrapper),
    /// Takes the first piece otherwise than the rest.
    First { decoder: &'t DecoderWrapper, first: bool },
    /// Takes the last piece otherwise than the rest.
    Last { decoder: &'t DecoderWrapper, kept: Option<String> },
    /// Leaves out a piece that is the one before it.
    Once { decoder: &'t DecoderWrapper, before: Option<String> },
    /// Makes a text of a run of pieces that are bytes, if it is one.
    Run { decoder: &'t DecoderWrapper, run: Vec<String> },
    /// The letters of all pieces stand for bytes of one text; keeps the beginning of a letter.
    Bytes(Vec<u8>),
    /// Strips each piece.
    Strip { content: char, start: usize, stop: usize },
    /// Strips one text that comes in parts; keeps how many of the last letters it may have to strip.
    Ends { content: char, start: usize, stop: usize, kept: usize },
    /// Reads one text that comes in parts.
    Whole { decoder: &'t DecoderWrapper, text: String },
}

/// Puts a decoder's stages behind others; `fused` tells whether these make one text of all pieces.
fn put<'t>(decoder: &'t DecoderWrapper, fused: &mut bool, stages: &mut Vec<Stage<'t>>) {
    let stage = match decoder {
        DecoderWrapper::Sequence(sequence) => {
            for decoder in sequence.get_decoders() {
                put(decoder, fused, stages);
            }
            return;
        }
        DecoderWrapper::Fuse(_) => {
            *fused = true;
            return;
        }
        DecoderWrapper::Strip(strip) => {
            let (content, start, stop) = (strip.content, strip.start, strip.stop);
            match *fused {
                true => Stage::Ends { content, start, stop, kept: 0 },
                false => Stage::Strip { content, start, stop },
            }
        }
        _ if *fused => Stage::Whole { decoder, text: String::new() },
        DecoderWrapper::ByteLevel(_) => {
            *fused = true;
            Stage::Bytes(vec![])
        }
        DecoderWrapper::Replace(_) => Stage::Each(decoder),
        DecoderWrapper::WordPiece(_) | DecoderWrapper::Metaspace(_) => Stage::First { decoder, first: true },
        DecoderWrapper::BPE(_) => Stage::Last { decoder, kept: None },
        DecoderWrapper::CTC(_) => Stage::Once { decoder, before: None },
        DecoderWrapper::ByteFallback(_) => Stage::Run { decoder, run: vec![] },
    };
    stages.push(stage);
}

impl Stage<'_> {
    /// What it makes of more pieces, and of what it kept if these are the last.
    fn pass(&mut self, mut pieces: Vec<String>, ends: bool) -> Decoded<Vec<String>> {
        match self {
            Self::Blanks { first } => {
                for piece in &mut pieces {
                    if !mem::replace(first, false) {
                        piece.insert(0, ' ');
                    }
                }
                Ok(pieces)
            }
            Self::Each(decoder) => decoder.decode_chain(pieces),
            Self::First { first: true, .. } if pieces.is_empty() => Ok(pieces),
            Self::First { decoder, first } => {
                if mem::replace(first, false) {
                    return decoder.decode_chain(pieces);
                }
                pieces.insert(0, String::new());
                let mut pieces = decoder.decode_chain(pieces)?;
                pieces.remove(0);
                Ok(pieces)
            }
            Self::Last { decoder, kept } => {
                pieces.splice(..0, kept.take());
                if ends {
                    // It has no place for a last piece where there is none.
                    return if pieces.is_empty() { Ok(pieces) } else { decoder.decode_chain(pieces) };
                }
                *kept = pieces.pop();
                pieces.push(String::new());
                let mut pieces = decoder.decode_chain(pieces)?;
                pieces.pop();
                Ok(pieces)
            }
            Self::Once { decoder, before } => {
                pieces.retain(|piece| {
                    let new = before.as_ref() != Some(piece);
                    if new {
                        *before = Some(piece.clone());
                    }
                    new
                });
                decoder.decode_chain(pieces)
            }
            Self::Run { decoder, run } => {
                let mut texts = vec![];
                for piece in pieces {
                    if is_byte(&piece) {
                        run.push(piece);
                    } else {
                        texts.extend(decoder.decode_chain(mem::take(run))?);
                        texts.push(piece);
                    }
                }
                if ends {
                    texts.extend(decoder.decode_chain(mem::take(run))?);
                }
                Ok(texts)
            }
            Self::Bytes(kept) => {
                for piece in pieces {
                    let before = kept.len();
                    for letter in piece.chars() {
                        let Some(byte) = stood_for(letter) else {
                            kept.truncate(before);
                            kept.extend_from_slice(piece.as_bytes());
                            break;
                        };
                        kept.push(byte);
                    }
                }
                Ok(vec![letters(kept, ends)])
            }
            Self::Strip { content, start, stop } => {
                for piece in &mut pieces {
                    let mut text = piece.as_str();
                    strip(&mut text, *start, |text| text.strip_prefix(*content));
                    strip(&mut text, *stop, |text| text.strip_suffix(*content));
                    *piece = text.to_owned();
                }
                Ok(pieces)
            }
            Self::Ends { content, start, stop, kept } => {
                let mut said = String::new();
                for piece in pieces {
                    let mut text = piece.as_str();
                    *start -= strip(&mut text, *start, |text| text.strip_prefix(*content));
                    if text.is_empty() {
                        continue;
                    }
                    *start = 0;
                    let body = text.trim_end_matches(*content);
                    if !body.is_empty() {
                        said.extend(std::iter::repeat_n(*content, mem::take(kept)));
                        said.push_str(body);
                    }
                    *kept += (text.len() - body.len()) / content.len_utf8();
                    let decided = kept.saturating_sub(*stop);
                    said.extend(std::iter::repeat_n(*content, decided));
                    *kept -= decided;
                }
                Ok(vec![said])
            }
            Self::Whole { decoder, text } => {
                text.extend(pieces);
                if ends { decoder.decode_chain(vec![mem::take(text)]) } else { Ok(vec![]) }
            }
        }
    }
}

/// Strips at most so many letters, and tells how many.
fn strip<'t>(text: &mut &'t str, most: usize, one: impl Fn(&'t str) -> Option<&'t str>) -> usize {
    let mut stripped = 0;
    while stripped < most
        && let Some(rest) = one(text)
    {
        *text = rest;
        stripped += 1;
    }
    stripped
}

/// Whether a token stands for a byte, as `<0x0A>` does, in the eyes of crate `tokenizers`.
fn is_byte(token: &str) -> bool {
    let digits = token.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
    digits.is_some_and(|digits| digits.len() == 2 && u8::from_str_radix(digits, 16).is_ok())
}

/// The byte that a letter stands for in vocabularies of GPT-2's kind: printable ones for themselves, the rest for letters from U+0100 on.
fn stood_for(letter: char) -> Option<u8> {
    let byte = match u32::from(letter) {
        code @ (0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF) => code,
        code @ 0x100..=0x120 => code - 0x100,
        code @ 0x121..=0x142 => code - 0x121 + 0x7F,
        0x143 => 0xAD,
        _ => return None,
    };
    u8::try_from(byte).ok()
}

/// The text of bytes, where U+FFFD stands for those that are no letter. The beginning of a letter stays, unless the bytes end.
fn letters(bytes: &mut Vec<u8>, ends: bool) -> String {
    let mut text = String::new();
    let mut rest = 0;
    let mut place = 0;
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        place += chunk.valid().len() + chunk.invalid().len();
        let begun = std::str::from_utf8(chunk.invalid()).is_err_and(|error| error.error_len().is_none());
        if begun && !ends && place == bytes.len() {
            rest = chunk.invalid().len();
        } else if !chunk.invalid().is_empty() {
            text.push('\u{FFFD}');
        }
    }
    bytes.drain(..bytes.len() - rest);
    text
}
