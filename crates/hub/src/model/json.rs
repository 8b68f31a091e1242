//! What messages in JSON share.

use std::borrow::Cow;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Error;
use serde_json::value::RawValue;

use crate::model::problem::{Problem, code, problem};

/// Reads an object. A derived `Deserialize` alone would also accept a list of the fields in their order.
///
/// # Errors
/// The text is no object, or not of this type.
pub(crate) fn read_object<'a, T: Deserialize<'a>>(text: &'a [u8]) -> serde_json::Result<T> {
    if !text.trim_ascii_start().starts_with(b"{") {
        return Err(Error::custom("expected a JSON object"));
    }
    // One check of the whole text takes less time than one of each string. The second call reports the position of
    // bytes that are no UTF-8, unless they are in a field that it ignores.
    match std::str::from_utf8(text) {
        Ok(text) => serde_json::from_str(text),
        Err(_) => serde_json::from_slice(text),
    }
}

/// Maximum depth of nested arrays and objects in a client's or an application's data. Other clients get this data, and
/// many parsers are recursive: some stop at 100 to 1,000 levels, others overflow their stack.
pub(crate) const DEPTH_MAX: usize = 128;

/// The error of deeper data.
pub(crate) const TOO_DEEP: &str = "JSON is nested deeper than max_json_depth (128)";

/// Checks the depth of valid JSON.
///
/// # Errors
/// The depth exceeds [`DEPTH_MAX`].
pub(crate) fn check_depth(json: &str) -> Result<(), Problem> {
    if exceeds_depth(json.as_bytes()) { Err(problem(code::MALFORMED, TOO_DEEP)) } else { Ok(()) }
}

/// Whether arrays and objects in valid JSON are nested deeper than [`DEPTH_MAX`].
pub(crate) fn exceeds_depth(json: &[u8]) -> bool {
    // Most data is shorter, or has fewer brackets.
    if json.len() <= DEPTH_MAX || !exceeds_brackets(json) {
        return false;
    }
    let (mut depth, mut bytes) = (0_usize, json.iter());
    while let Some(byte) = bytes.next() {
        match byte {
            b'[' | b'{' => {
                depth += 1;
                if depth > DEPTH_MAX {
                    return true;
                }
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            b'"' => {
                while let Some(byte) = bytes.next().filter(|byte| **byte != b'"') {
                    if *byte == b'\\' {
                        bytes.next();
                    }
                }
            }
            _ => {}
        }
    }
    false
}

/// The same for JSON whose strings may be JSON again, as the data of a Pusher event, which clients parse.
pub(crate) fn exceeds_depth_in_text(json: &str) -> bool {
    if !json.starts_with('"') {
        return exceeds_depth(json.as_bytes());
    }
    // Brackets need no escape, and may have one.
    let may_exceed = json.len() > DEPTH_MAX && (json.contains("\\u") || exceeds_brackets(json.as_bytes()));
    may_exceed && serde_json::from_str::<Cow<'_, str>>(json).is_ok_and(|text| exceeds_depth(text.as_bytes()))
}

/// Whether the number of opening brackets, which bounds the depth, exceeds [`DEPTH_MAX`]. The loop is vectorized.
fn exceeds_brackets(json: &[u8]) -> bool {
    json.iter().filter(|byte| matches!(byte, b'[' | b'{')).count() > DEPTH_MAX
}

/// Whether a text is JSON that clients may get as such.
pub(crate) fn is_deliverable(text: &str) -> bool {
    serde_json::from_str::<&RawValue>(text).is_ok() && !exceeds_depth(text.as_bytes())
}

/// Encodes a value. Takes half as long as its `Display`, which passes each piece through a formatter.
pub(crate) fn encode(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// Deserializes a field whose value may be `null`: only a missing field is `None`.
pub(crate) fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    Deserialize::deserialize(deserializer).map(Some)
}

/// Deserializes a text that may be missing. A text without escapes is borrowed from the message; the plain
/// implementation for `Option` would copy it.
pub(crate) fn borrowed<'de: 'a, 'a, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Cow<'a, str>>, D::Error> {
    #[derive(Deserialize)]
    struct BorrowedText<'a>(#[serde(borrow)] Cow<'a, str>);

    let text = Option::<BorrowedText<'a>>::deserialize(deserializer)?;
    Ok(text.map(|BorrowedText(text)| text))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[derive(Deserialize)]
    struct Fields<'a> {
        #[serde(borrow, default, deserialize_with = "borrowed")]
        text: Option<Cow<'a, str>>,
    }

    fn text(json: &str) -> Option<Cow<'_, str>> {
        serde_json::from_str::<Fields<'_>>(json).unwrap().text
    }

    #[test]
    fn text_without_escapes_is_borrowed() {
        assert!(matches!(text(r#"{"text":"h\u00e9"}"#), Some(Cow::Owned(text)) if text == "hé"));
        assert!(matches!(text(r#"{"text":"hé"}"#), Some(Cow::Borrowed("hé"))));
        assert_eq!((text(r#"{"text":null}"#), text("{}")), (None, None));
    }

    #[test]
    fn depth_of_json_is_that_of_brackets_outside_of_strings() {
        let nested = |depth: usize| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
        let objects = |depth: usize| format!("{}1{}", "{\"a\":".repeat(depth), "}".repeat(depth));
        for depth in [0, 1, DEPTH_MAX] {
            assert!(!exceeds_depth(nested(depth).as_bytes()) && !exceeds_depth(objects(depth).as_bytes()));
        }
        for depth in [DEPTH_MAX + 1, 200_000] {
            assert!(exceeds_depth(nested(depth).as_bytes()) && exceeds_depth(objects(depth).as_bytes()));
        }
        let wide = format!("[{}[]]", "[{}],".repeat(1_000));
        let in_strings = format!("[{}]", json!("[{\\\"[".repeat(200)));
        for shallow in [&wide, &in_strings, &format!("[{in_strings},{}]", nested(DEPTH_MAX - 1))] {
            serde_json::from_str::<&RawValue>(shallow).unwrap();
            assert!(!exceeds_depth(shallow.as_bytes()), "{shallow}");
        }
        let deep = format!("[{in_strings},{}]", nested(DEPTH_MAX));
        assert!(exceeds_depth(deep.as_bytes()));
    }

    #[test]
    fn depth_counts_also_in_a_string_of_json() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        let text = |depth| json!(nested(depth)).to_string();
        assert!(!exceeds_depth_in_text(&text(DEPTH_MAX)) && exceeds_depth_in_text(&text(DEPTH_MAX + 1)));
        assert!(exceeds_depth_in_text(&nested(DEPTH_MAX + 1)));
        assert!(exceeds_depth_in_text(&format!("\"{}\"", "\\u005b".repeat(DEPTH_MAX + 1))));
    }

    #[test]
    fn list_of_the_fields_is_no_object() {
        assert!(serde_json::from_str::<Fields<'_>>("[\"a\"]").is_ok_and(|fields| fields.text.is_some()));
        for bad in ["[\"a\"]", " [\"a\"]", "\"a\"", "", "null"] {
            assert!(read_object::<Fields<'_>>(bad.as_bytes()).is_err(), "{bad}");
        }
        assert!(read_object::<Fields<'_>>(b" \n{\"text\":\"a\"} ").is_ok());
    }

    #[test]
    fn bytes_that_are_no_utf_8_are_an_error_with_their_position_or_in_an_ignored_field() {
        for bytes in [&b"{\"text\":\"ab\xff\"}"[..], b"{\xff}", b"{\"text\":\"a\",\"b\":\"\xff\"}"] {
            let read = |result: serde_json::Result<Fields<'_>>| {
                result.map(|fields| fields.text.map(Cow::into_owned)).map_err(|error| error.to_string())
            };
            let (result, expected) = (read(read_object(bytes)), read(serde_json::from_slice(bytes)));
            assert_eq!(result, expected);
            assert_eq!(result.is_ok(), bytes.starts_with(b"{\"text\":\"a\""), "{result:?}");
        }
    }
}
