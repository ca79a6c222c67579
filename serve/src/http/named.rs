//! Deserialises the values of fields so that an error names its field.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, Unexpected, Visitor};

/// Reads a value. An error begins with the name of the field, unless it already begins with the name of an inner field.
fn of<'de, D: Deserializer<'de>, T: Deserialize<'de>>(name: &str, from: D) -> Result<T, D::Error> {
    T::deserialize(from).map_err(|error| {
        let text = error.to_string();
        if field(&text).is_some() {
            return error;
        }
        let text = placeless(&text);
        de::Error::custom(format!("{name}: {text}"))
    })
}

/// An error message without the position at its end.
pub fn placeless(error: &str) -> &str {
    let is_place =
        |place: &str| place.bytes().all(|byte| byte.is_ascii_digit() || b" column".contains(&byte));
    error.rsplit_once(" at line ").filter(|(_, place)| is_place(place)).map_or(error, |(text, _)| text)
}

/// Reads an integer, or null.
fn whole<'de, D: Deserializer<'de>, T: TryFrom<i128>>(name: &str, from: D) -> Result<Option<T>, D::Error> {
    let Some(Whole(number)) = of(name, from)? else { return Ok(None) };
    let number = T::try_from(number);
    number.map(Some).map_err(|_| de::Error::custom(format!("{name}: the number is out of range")))
}

/// The field that an error message begins with, or reports as missing.
pub fn field(error: &str) -> Option<&str> {
    if let Some(rest) = error.strip_prefix("missing field `") {
        return rest.split_once('`').map(|(name, _)| name);
    }
    let (name, _) = error.split_once(": ")?;
    let is_name = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
    is_name.then_some(name)
}

/// An integer, which may be written with a decimal point or an exponent.
struct Whole(i128);

impl<'de> Deserialize<'de> for Whole {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Whole, D::Error> {
        from.deserialize_any(OfWhole)
    }
}

struct OfWhole;

impl Visitor<'_> for OfWhole {
    type Value = Whole;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number")
    }

    fn visit_i64<E>(self, number: i64) -> Result<Whole, E> {
        Ok(Whole(number.into()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Whole, E> {
        Ok(Whole(number.into()))
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<Whole, E> {
        match number.fract() == 0.0 && number.abs() < 1e30 {
            true => Ok(Whole(number as i128)),
            false => Err(E::invalid_value(Unexpected::Float(number), &self)),
        }
    }
}

/// A seed of 64 bits, signed or unsigned.
#[derive(Clone, Copy, Debug)]
pub struct Seed(pub u64);

impl TryFrom<i128> for Seed {
    type Error = ();

    fn try_from(number: i128) -> Result<Seed, ()> {
        u64::try_from(number)
            .or_else(|_| i64::try_from(number).map(|number| number as u64))
            .map(Seed)
            .map_err(|_| ())
    }
}

macro_rules! named {
    ($($name:ident)*) => {$(
        pub fn $name<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<T, D::Error> {
            of(stringify!($name), from)
        }
    )*};
}

macro_rules! whole {
    ($($name:ident)*) => {$(
        pub fn $name<'de, D: Deserializer<'de>, T: TryFrom<i128>>(from: D) -> Result<Option<T>, D::Error> {
            whole(stringify!($name), from)
        }
    )*};
}

named! {
    abort_all abort_all_requests add_special_tokens cache_salt echo ignore_eos include_stop_str_in_output input_ids logprob_start_len logprobs_mode
    messages min_p mode model model_path no_stop_trim prompt request_id return_logprob return_token_ids return_tokens_as_token_ids rid
    sampling_params stop stop_token_ids stream stream_options temperature text token_ids tokens tools top_p update_info weight_version
}
whole! { max_completion_tokens max_new_tokens max_tokens n prompt_logprobs sampling_seed seed top_k top_logprobs logprobs }

/// Fields of a chat request whose type differs: `logprobs` is a boolean there.
pub mod chat {
    use super::{Deserialize, Deserializer, of};

    named! { logprobs }
}
