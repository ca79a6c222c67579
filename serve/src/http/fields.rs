//! How many fields a request has, and how many values these have, counted as they come: kept, each would take many times the bytes that it has in the request.

use std::borrow::Cow;
use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// Values of a field, those that it consists of among them.
const MOST: u32 = 1 << 12;
/// The same of parameters, which may come for each prompt, and of a chat, whose parts are values.
const OF_PARAMETERS: u32 = 1 << 16;
const OF_CHAT: u32 = 1 << 20;
/// Fields of a request.
const FIELDS: u32 = 256;

/// Checks that there are no more fields than any client sends, and that none has more values. Prompts have their own form, in which a token is four bytes.
///
/// # Errors
/// What is wrong: more fields, a field that has more values, or a request that is no object.
pub fn check(bytes: &[u8]) -> Result<(), serde_json::Error> {
    let mut from = serde_json::Deserializer::from_slice(bytes);
    from.deserialize_map(Fields)?;
    integers(bytes).map_err(de::Error::custom)
}

/// Rejects a JSON text with integers of more than 64 bits, anywhere in it: they would be rounded, even inside a message or a tool.
///
/// # Errors
/// The first such integer.
pub fn integers(json: &[u8]) -> Result<(), String> {
    let mut rest = json;
    while let Some(at) = rest.iter().position(|byte| matches!(byte, b'"' | b'-' | b'0'..=b'9')) {
        rest = &rest[at..];
        if rest[0] == b'"' {
            let mut escaped = false;
            let end = rest[1..].iter().position(|&byte| {
                let ends = byte == b'"' && !escaped;
                escaped = byte == b'\\' && !escaped;
                ends
            });
            rest = end.map_or(&[], |end| &rest[end + 2..]);
            continue;
        }
        let inside = |byte: &u8| matches!(byte, b'-' | b'+' | b'.' | b'e' | b'E' | b'0'..=b'9');
        let length = rest.iter().position(|byte| !inside(byte)).unwrap_or(rest.len());
        let (number, after) = rest.split_at(length);
        let number = String::from_utf8_lossy(number);
        let whole = number.strip_prefix('-').unwrap_or(&number).bytes().all(|byte| byte.is_ascii_digit());
        if whole && number.parse::<u64>().is_err() && number.parse::<i64>().is_err() {
            return Err(format!("{number} has more than 64 bits; send it as a text"));
        }
        rest = after;
    }
    Ok(())
}

struct Fields;

impl<'de> Visitor<'de> for Fields {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with the fields of a request")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<(), A::Error> {
        let mut count = 0;
        while let Some(name) = fields.next_key::<Cow<'de, str>>()? {
            count += 1;
            if count > FIELDS {
                return Err(de::Error::custom(format!("it has more than {FIELDS} fields; send fewer")));
            }
            let most = match &*name {
                "prompt" | "input_ids" | "token_ids" | "text" | "tokens" => {
                    fields.next_value::<IgnoredAny>()?;
                    continue;
                }
                "messages" | "tools" => OF_CHAT,
                "sampling_params" => OF_PARAMETERS,
                _ => MOST,
            };
            let mut left = most;
            fields.next_value_seed(Count { name: &name, most, left: &mut left })?;
        }
        Ok(())
    }
}

/// Counts a value and those in it.
struct Count<'a> {
    name: &'a str,
    most: u32,
    left: &'a mut u32,
}

impl Count<'_> {
    fn again(&mut self) -> Count<'_> {
        Count { name: self.name, most: self.most, left: self.left }
    }
}

impl<'de> DeserializeSeed<'de> for Count<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        *self.left = self.left.checked_sub(1).ok_or_else(|| {
            de::Error::custom(format!("{} has more than {} values; send fewer", self.name, self.most))
        })?;
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Count<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<(), A::Error> {
        while list.next_element_seed(self.again())?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut fields: A) -> Result<(), A::Error> {
        while fields.next_key::<IgnoredAny>()?.is_some() {
            fields.next_value_seed(self.again())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parsed as a float, such an integer would change its value.
    #[test]
    fn integers_of_more_than_64_bits_are_told() {
        let told = |text: &str| check(text.as_bytes()).map_err(|error| error.to_string());
        for fits in [
            r#"{"tools": [18446744073709551615, -9223372036854775808, 1e30, 12345678901234567890123.0]}"#,
            r#"{"messages": ["99999999999999999999999", "\"99999999999999999999999", "\\"]}"#,
        ] {
            assert_eq!(told(fits), Ok(()), "{fits}");
        }
        for (beyond, number) in [
            (r#"{"tools": [{"maximum": 18446744073709551616}]}"#, "18446744073709551616"),
            (r#"{"messages": ["\\", -9223372036854775809]}"#, "-9223372036854775809"),
        ] {
            let told = told(beyond).unwrap_err();
            assert!(told.contains(&format!("{number} has more than 64 bits; send it as a text")), "{told}");
        }
    }

    #[test]
    fn what_has_too_many_values_is_told_and_prompts_are_not() {
        let list = |count: usize| format!("[{}1]", "1,".repeat(count - 1));
        let most = MOST as usize - 1;
        assert!(
            check(format!("{{\"prompt\": {}, \"stop\": {}}}", list(100_000), list(most)).as_bytes()).is_ok()
        );
        for bad in [list(most + 1), format!("[[{}]]", list(most)), format!("{{\"a\": {}}}", list(most + 1))] {
            let told = check(format!("{{\"a\": 1, \"junk\": {bad}}}").as_bytes()).unwrap_err().to_string();
            assert!(told.starts_with("junk has more than 4096 values"), "{told}");
        }
        let fields =
            |count: u32| (0..count).map(|field| format!("\"{field}\":1")).collect::<Vec<_>>().join(",");
        assert!(check(format!("{{{}}}", fields(FIELDS)).as_bytes()).is_ok());
        let told = check(format!("{{{}}}", fields(FIELDS + 1)).as_bytes()).unwrap_err().to_string();
        assert!(told.starts_with("it has more than 256 fields"), "{told}");
        assert!(check(b"[1, 2]").unwrap_err().to_string().contains("expected an object"));
        assert!(
            check(b"{}").is_ok() && check(b"{\"a\": [null, true, -1, 1, 1.5, \"x\", {\"b\": []}]}").is_ok()
        );
    }
}
