//! Client input in errors, cut to 64 bytes.

use std::fmt::Display;

use crate::model::json::TOO_DEEP;

/// Maximum input bytes that an error repeats.
pub(crate) const ECHO_MAX: usize = 64;

/// Returns the beginning of an input, with `…` if it exceeds [`ECHO_MAX`] bytes.
pub(crate) fn brief(input: &str) -> String {
    if input.len() <= ECHO_MAX {
        return input.to_owned();
    }
    let end = (0..=ECHO_MAX).rev().find(|&at| input.is_char_boundary(at)).unwrap_or(0);
    format!("{}…", &input[..end])
}

/// Formats a serde error with shortened quotes of input.
///
/// Its errors that quote input have the form "unknown field `INPUT`, expected …" or "invalid type: string \"INPUT\",
/// expected …", so that all input lies between the first quote and the last ", expected".
pub(crate) fn brief_error(error: &impl Display) -> String {
    let text = error.to_string();
    // Of values that serde builds, which have the same limit.
    if text.starts_with("recursion limit exceeded") {
        return TOO_DEEP.to_owned();
    }
    let quote = text.find(['`', '"']).map_or(text.len(), |at| at + 1);
    let (head, rest) = text.split_at(quote);
    let (input, tail) = rest.split_at(rest.rfind(", expected").unwrap_or(rest.len()));
    if input.len() <= ECHO_MAX { text } else { [head, &brief(input), tail].concat() }
}

/// Replaces a secret in a server's text, which may repeat the command that it rejects.
pub(crate) fn without_secret(text: &str, secret: Option<&str>) -> String {
    match secret.filter(|secret| !secret.is_empty()) {
        Some(secret) => text.replace(secret, "***"),
        None => text.to_owned(),
    }
}

/// Describes a JSON error by its place, without the input, which may be a secret.
pub(crate) fn describe_json_error(error: &serde_json::Error) -> String {
    let fault =
        if error.is_data() { "a member of another type, or without a required member" } else { "not JSON" };
    format!("{fault}, at line {} column {}", error.line(), error.column())
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct TestFields {
        #[expect(dead_code, reason = "only parse errors are tested")]
        number: u32,
    }

    #[test]
    fn input_is_cut_at_64_bytes_between_characters() {
        assert_eq!(brief("short"), "short");
        assert_eq!(brief(&"a".repeat(64)), "a".repeat(64));
        assert_eq!(brief(&"a".repeat(65)), format!("{}…", "a".repeat(64)));
        assert_eq!(brief(&"é".repeat(40)), format!("{}…", "é".repeat(32)));
        assert_eq!(brief(&format!("a{}", "é".repeat(40))), format!("a{}…", "é".repeat(31)));
    }

    #[test]
    fn errors_of_serde_quote_at_most_64_bytes() {
        let error = |json: &str| brief_error(&serde_json::from_str::<TestFields>(json).unwrap_err());
        let long = "Q".repeat(1000);
        for (json, begins, ends) in [
            (format!("{{\"{long}\":1}}"), "unknown field `QQ", "…, expected `number` at line 1 column 1003"),
            (
                format!("{{\"number\":\"{long}\"}}"),
                "invalid type: string \"QQ",
                "…, expected u32 at line 1 column 1012",
            ),
            (
                format!("{{\"number\":\"`, expected Q{long}\"}}"),
                "invalid type: string \"`, exp",
                "…, expected u32 at line 1 column 1025",
            ),
            ("{\"no\":1}".to_owned(), "unknown field `no`, expected `number`", " at line 1 column 5"),
            ("{}".to_owned(), "missing field `number`", "at line 1 column 2"),
        ] {
            let error = error(&json);
            assert!(error.starts_with(begins) && error.ends_with(ends), "{error}");
            assert!(error.matches('Q').count() <= ECHO_MAX, "{error}");
        }
    }
}
