//! Escapes the characters with which a peer's text could control a terminal, or appear as another line: control
//! characters of ASCII and of Latin 1 (C1), line and paragraph separators, and marks of the direction of text.

use std::fmt::Write as _;

/// Escapes a text of several lines: line breaks and tabs remain.
#[must_use]
pub fn escape_controls(text: &str) -> String {
    escape(text, |char| char != '\n' && char != '\t', |shown, char| shown.extend(char.escape_default()))
}

/// Escapes a text within a line: line breaks are escaped, too.
#[must_use]
pub fn escape_line(text: &str) -> String {
    escape(text, |char| char != '\t', |shown, char| shown.extend(char.escape_default()))
}

/// Escapes a text of JSON, whose strings mean the same afterwards. Encoders of JSON escape only the control characters
/// of ASCII.
#[must_use]
pub fn escape_json(json: &str) -> String {
    escape(
        json,
        |char| char != '\n',
        |shown, char| {
            // Writing to a string never fails. All these characters are in the basic plane.
            let _ = write!(shown, "\\u{:04x}", u32::from(char));
        },
    )
}

/// Returns whether a character may control a terminal or the order of text.
#[must_use]
pub fn controls_terminal(char: char) -> bool {
    char.is_control()
        || matches!(
            char,
            '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
        )
}

fn escape(text: &str, is_escaped: impl Fn(char) -> bool, write: impl Fn(&mut String, char)) -> String {
    let mut shown = String::with_capacity(text.len());
    for char in text.chars() {
        if controls_terminal(char) && is_escaped(char) { write(&mut shown, char) } else { shown.push(char) }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: &str = "a\x1b]0;t\x07\x1b[2J\u{9b}31m\r\nb\x7f\u{202e}\u{2028}é";

    #[test]
    fn text_cannot_control_a_terminal() {
        for shown in [escape_controls(HOSTILE), escape_line(HOSTILE), escape_json(HOSTILE)] {
            assert!(!shown.chars().any(|char| controls_terminal(char) && char != '\n'), "{shown:?}");
            assert!(shown.starts_with('a') && shown.ends_with('é'), "{shown:?}");
        }
        assert!(escape_controls(HOSTILE).contains("\\r\nb") && escape_line(HOSTILE).contains("\\r\\nb"));
        assert_eq!(escape_line("plain\ttext"), "plain\ttext");
    }

    #[test]
    fn escaped_json_has_the_same_content() {
        let json = serde_json::json!({ "a": HOSTILE, "b": [1, null] });
        let escaped = escape_json(&format!("{json:#}"));
        assert_eq!(serde_json::from_str::<serde_json::Value>(&escaped).unwrap(), json);
    }
}
