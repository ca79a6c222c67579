//! Tool calls in earlier messages, in the form that chat templates expect.

use serde_json::{Map, Value};

use super::error::Wrong;
use super::fields;

/// Parses the arguments of tool calls. OpenAI's clients send them as a string that holds a JSON object, and templates expect the object.
/// Like vLLM, this parses such a string. An empty string becomes an empty object, and any other string stays unchanged.
///
/// # Errors
/// If an integer in the arguments has more than 64 bits, and so would be rounded.
pub fn read(message: &mut Value) -> Result<(), Wrong> {
    if message["role"] != "assistant" {
        return Ok(());
    }
    for call in message.get_mut("tool_calls").and_then(Value::as_array_mut).into_iter().flatten() {
        let Some(arguments) = call.get_mut("function").and_then(|function| function.get_mut("arguments"))
        else {
            continue;
        };
        let Some(text) = arguments.as_str() else { continue };
        if text.trim().is_empty() {
            *arguments = Value::Object(Map::new());
        } else if let Ok(object @ Value::Object(_)) = serde_json::from_str(text) {
            fields::integers(text.as_bytes()).map_err(|problem| Wrong::field("messages", problem))?;
            *arguments = object;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn arguments_are_read_once() {
        let of = |role: &str, arguments: Value| {
            let mut message =
                json!({"role": role, "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]});
            read(&mut message).map_err(|error| format!("{error:?}"))?;
            Ok::<_, String>(message["tool_calls"][0]["function"]["arguments"].clone())
        };
        let object = of("assistant", json!("{\"b\": 1, \"a\": [2.0, null]}")).unwrap();
        assert_eq!(object.to_string(), "{\"b\":1,\"a\":[2.0,null]}", "in its order");
        assert_eq!(of("assistant", json!("")).unwrap(), json!({}));
        for other in [json!({"a": 1}), json!("{"), json!("[1]"), json!("text"), json!(null), json!(7)] {
            assert_eq!(of("assistant", other.clone()).unwrap(), other);
        }
        assert_eq!(of("user", json!("{}")).unwrap(), json!("{}"));
        let told = of("assistant", json!("{\"a\": 12345678901234567890123}")).unwrap_err();
        assert!(told.contains("12345678901234567890123 has more than 64 bits"), "{told}");
        for mut message in
            [json!(null), json!("a"), json!({"role": "assistant", "tool_calls": [1, {"function": 1}]})]
        {
            assert!(read(&mut message).is_ok());
        }
    }
}
