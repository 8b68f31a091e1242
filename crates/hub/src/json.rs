//! What messages in JSON share.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

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
}
