//! Weights of language models, and what the oracle says of given tokens.

use std::ffi::{c_char, c_int};
use std::path::Path;
use std::ptr;
use std::sync::Arc;

use doorbell_checkpoint::import;
use doorbell_lm::fast::Runner;
use doorbell_lm::sample::{Sharpness, log_probability};
use doorbell_lm::{Cache, Image, Model, quantise};

use crate::code::{Code, Refusal};
use crate::exports::{array, array_mut, bad, call, store, text};
use crate::handle::Table;

static WEIGHTS: Table<Model> = Table::new(
    "no open weights have this handle: they were closed, or never came from doorbell_weights_open",
);

/// Positions whose logits are there at once: a vocabulary may have a million tokens.
const AT_ONCE: usize = 32;

/// `doorbell_weights *`: a key, never an address.
type Handle = *mut Weights;

/// `doorbell_weights`.
#[repr(C)]
pub struct Weights {
    _opaque: [u8; 0],
}

/// `struct doorbell_span`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Span {
    weights: Handle,
    end: usize,
}

/// See `doorbell.h`.
///
/// # Safety
/// `path` ends with a 0; `weights` is NULL, misaligned, or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doorbell_weights_open(path: *const c_char, weights: *mut Handle) -> c_int {
    call(|| {
        // SAFETY: by the caller's word.
        unsafe { store(weights, ptr::null_mut(), "weights") }?;
        // SAFETY: by the caller's word.
        let path = unsafe { text(path, "path") }?;
        let key = WEIGHTS.insert(read(Path::new(path))?);
        // SAFETY: by the caller's word.
        unsafe { store(weights, ptr::without_provenance_mut(key), "weights") }
    })
}

fn read(path: &Path) -> Result<Model, Refusal> {
    let unfit = |error: &dyn std::fmt::Display| Refusal::new(Code::BadWeights, error.to_string());
    if !path.is_dir() {
        return Ok(Image::read(path).map_err(|error| unfit(&error))?.model);
    }
    let imported = import(path).map_err(|error| unfit(&error))?;
    quantise(&imported.model).map_err(|error| unfit(&format!("{}: {error}", path.display())))
}

/// See `doorbell.h`.
#[unsafe(no_mangle)]
pub extern "C" fn doorbell_weights_close(weights: Handle) -> c_int {
    call(|| WEIGHTS.remove(weights.addr()))
}

/// See `doorbell.h`.
///
/// # Safety
/// `spans` and `tokens` are NULL, misaligned, or valid for reads of as many as are told; `logps` the same for writes of `count` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doorbell_score(
    spans: *const Span,
    span_count: usize,
    temperature: f64,
    tokens: *const u32,
    count: usize,
    logps: *mut i32,
) -> c_int {
    call(|| {
        // SAFETY: by the caller's word.
        let (spans, tokens) =
            unsafe { (array(spans, span_count, "spans")?, array(tokens, count, "tokens")?) };
        // SAFETY: by the caller's word.
        let out = unsafe { array_mut(logps, count, "logps") }?;
        let sharpness = Sharpness::of(temperature).ok_or_else(|| {
            bad(&format!("temperature is {temperature}: it must be 0, or 0.006 to 1000000"))
        })?;
        let models = spans.iter().map(|span| Ok((WEIGHTS.get(span.weights.addr())?, span.end)));
        score(&models.collect::<Result<Vec<_>, Refusal>>()?, sharpness, tokens, out)
    })
}

fn score(
    spans: &[(Arc<Model>, usize)],
    sharpness: Sharpness,
    tokens: &[u32],
    out: &mut [i32],
) -> Result<(), Refusal> {
    if !spans.is_sorted_by_key(|&(_, end)| end) || spans.last().map_or(0, |&(_, end)| end) != tokens.len() {
        let ends: Vec<usize> = spans.iter().map(|&(_, end)| end).collect();
        return Err(bad(&format!(
            "spans end at {ends:?}: each ends behind the one before, the last at {}",
            tokens.len()
        )));
    }
    let Some((first, _)) = spans.first() else { return Ok(()) };
    let shape = first.shape;
    if let Some(place) = spans.iter().position(|(model, _)| model.shape != shape) {
        let text = format!("the weights of span {place} are of another shape than those of the first");
        return Err(Refusal::new(Code::BadWeights, text));
    }
    if let Some(place) = tokens.iter().position(|&token| token as usize >= shape.vocabulary) {
        let (token, most) = (tokens[place], shape.vocabulary);
        return Err(bad(&format!("token {place} is {token}, beyond the vocabulary of {most}")));
    }
    if tokens.len() > shape.context {
        return Err(bad(&format!("{} tokens are more than the context of {}", tokens.len(), shape.context)));
    }
    out[..tokens.len().min(1)].fill(0);
    let mut cache = Cache::new(first);
    for (model, end) in spans {
        // The steps that add its tokens take those before.
        let (from, to) = (cache.len(), end.saturating_sub(1));
        let runner = Runner::new(model);
        let streams = runner.extend(&mut cache, &tokens[from.min(to)..to]);
        let logits = streams.chunks(AT_ONCE).flat_map(|streams| runner.logits(streams));
        for (place, logits) in (from + 1..).zip(logits) {
            out[place] = log_probability(&logits, sharpness, tokens[place]);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use doorbell_lm::sample::{Draw, sample};
    use doorbell_lm::{Oracle, micro, micro_gemma};

    use super::*;

    /// A prompt and tokens that the oracle draws, span by span, with the log-probabilities of all but the first token.
    fn drawn(spans: &[(Arc<Model>, usize)], prompt: &[u32], sharpness: Sharpness) -> (Vec<u32>, Vec<i32>) {
        let (mut tokens, mut logps) = (prompt.to_vec(), vec![0]);
        let mut cache = Cache::new(&spans[0].0);
        for (model, end) in spans {
            let oracle = Oracle::new(model);
            while cache.len() + 1 < *end {
                let place = cache.len();
                let logits = oracle.logits(&oracle.step(&mut cache, tokens[place]));
                if place + 1 == tokens.len() {
                    tokens.push(sample(&logits, sharpness, Draw::new(7, 3, place as u32 + 1)).token);
                }
                logps.push(log_probability(&logits, sharpness, tokens[place + 1]));
            }
        }
        (tokens, logps)
    }

    #[test]
    fn scores_are_those_of_the_draw_under_the_versions_that_made_it() {
        for image in [micro(), micro_gemma()] {
            let [a, b] = [0, 1].map(|turn| Arc::new(image.model.clone().turned(turn)));
            for temperature in [0.0, 0.7, 1.0] {
                let sharpness = Sharpness::of(temperature).unwrap();
                let spans = [(a.clone(), 5), (b.clone(), 19), (a.clone(), 40)];
                let (tokens, logps) = drawn(&spans, &[9, 17, 4], sharpness);
                let scored = |spans: &[(Arc<Model>, usize)]| {
                    let mut out = vec![1; tokens.len()];
                    score(spans, sharpness, &tokens, &mut out).unwrap();
                    out
                };
                assert_eq!(scored(&spans), logps);
                assert_ne!(scored(&[(a.clone(), 5), (b.clone(), 40)]), logps, "a label that is wrong shows");
                assert_ne!(scored(&[(a.clone(), 40)]), logps);
            }
        }
    }

    /// The most memory that this process has had, in bytes.
    fn peak() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    }

    /// All logits of this span together are 512 MiB.
    #[test]
    fn the_logits_of_a_span_are_never_there_together() {
        let mut model = micro().model;
        let matrix = &mut model.tokens;
        let times = (1 << 17) / model.shape.vocabulary;
        matrix.weights = matrix.weights.repeat(times);
        matrix.rows = matrix.rows.repeat(times);
        model.shape.vocabulary *= times;
        let tokens: Vec<u32> = (0..1024).map(|place| place * 127).collect();
        let spans = [(Arc::new(model), tokens.len())];
        let before = peak();
        let mut out = vec![1; tokens.len()];
        score(&spans, Sharpness::ONE, &tokens, &mut out).unwrap();
        let more = peak() - before;
        assert!(more < 200 << 20, "{more} bytes more");
        // Of 2,048 tokens each that are alike.
        assert!(out[1..].iter().all(|&logp| logp < -7 << 16), "{:?}", &out[..9]);
    }

    #[test]
    fn what_cannot_be_scored_is_refused() {
        let [llama, gemma] = [Arc::new(micro().model), Arc::new(micro_gemma().model)];
        let refused = |spans: &[(Arc<Model>, usize)], tokens: &[u32]| {
            let mut out = vec![0; tokens.len()];
            let refusal = score(spans, Sharpness::ONE, tokens, &mut out).unwrap_err();
            (refusal.code, refusal.text)
        };
        let one = |end| (llama.clone(), end);
        let long = vec![1; 1025];
        for (spans, tokens, code, words) in [
            (vec![one(2)], &[1, 2, 3][..], Code::BadArgument, "spans end at [2]"),
            (vec![one(3), one(2)], &[1, 2], Code::BadArgument, "spans end at [3, 2]"),
            (vec![], &[1], Code::BadArgument, "spans end at []"),
            (vec![one(2)], &[1, 64], Code::BadArgument, "token 1 is 64, beyond the vocabulary of 64"),
            (vec![one(1025)], &long, Code::BadArgument, "more than the context of 1024"),
            (vec![one(1), (gemma, 2)], &[1, 2], Code::BadWeights, "weights of span 1 are of another shape"),
        ] {
            let (found, text) = refused(&spans, tokens);
            assert_eq!(found, code, "{text}");
            assert!(text.contains(words), "{text}");
        }
        assert!(score(&[], Sharpness::ONE, &[], &mut []).is_ok());
        // A span that made nothing changes nothing.
        let mut out = [[1; 2]; 2];
        score(&[one(2)], Sharpness::ONE, &[1, 2], &mut out[0]).unwrap();
        score(&[one(0), one(1), one(2)], Sharpness::ONE, &[1, 2], &mut out[1]).unwrap();
        assert_eq!(out[0], out[1]);
    }
}
