//! What messages in JSON share.

use std::borrow::Cow;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Error, Value};

/// Reads an object. A derived `Deserialize` alone would also accept a list of the fields in their order.
///
/// # Errors
/// The text is no object, or not of this type.
pub(crate) fn read_object<'a, T: Deserialize<'a>>(text: &'a [u8]) -> serde_json::Result<T> {
    if !text.trim_ascii_start().starts_with(b"{") {
        return Err(Error::custom("expected a JSON object"));
    }
    // One check of the whole text takes less time than one of each string. The second call reports the position of bytes that are no
    // UTF-8, unless they are in a field that it ignores.
    match std::str::from_utf8(text) {
        Ok(text) => serde_json::from_str(text),
        Err(_) => serde_json::from_slice(text),
    }
}

/// Encodes a value. Takes half of the time of its `Display`, which passes each piece through a formatter.
pub(crate) fn encode(value: &Value) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// Deserializes a field whose value may be `null`: only a missing field is `None`.
pub(crate) fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    Deserialize::deserialize(deserializer).map(Some)
}

/// Deserializes a text that may be missing. A text without escapes is borrowed from the message; the plain implementation
/// for `Option` would copy it.
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
