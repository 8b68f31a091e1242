//! The grammar of `Sec-WebSocket-Extensions` (RFC 6455 section 9.1):
//!
//! ```text
//! extension-list = 1#extension
//! extension      = token *( ";" token [ "=" ( token | quoted-string ) ] )
//! ```
//!
//! Spaces may surround each separator, the list may be spread over several lines, and a quoted string must
//! be a token after unquoting. A recipient of any other content must fail the connection (same section), so
//! a server answers with 400. This applies to the header as a whole; a well-formed offer with unsupported
//! parameters is merely declined (RFC 7692 section 5).

use sinews_http::text::is_token_byte;

/// The header violates the grammar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MalformedExtensions;

/// An item of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListItem<'a> {
    /// Start of an extension.
    Extension(&'a [u8]),
    /// A parameter of the current extension.
    Parameter(&'a [u8], Option<Value<'a>>),
}

/// The value of a parameter, a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Value<'a> {
    /// Inside a quoted string, backslashes may precede characters.
    raw: &'a [u8],
}

impl<'a> Value<'a> {
    /// The unescaped characters. A backslash is not a token character, so it only escapes.
    pub(super) fn characters(self) -> impl Iterator<Item = u8> + use<'a> {
        self.raw.iter().copied().filter(|&byte| byte != b'\\')
    }
}

/// Iterates over the lists of all header lines. Ends at the first error.
pub(super) fn items<'a>(
    lines: impl Iterator<Item = &'a [u8]>,
) -> impl Iterator<Item = Result<ListItem<'a>, MalformedExtensions>> {
    lines.flat_map(|line| Items { rest: line, inside: false })
}

/// Iterates over the list of one header line.
struct Items<'a> {
    rest: &'a [u8],
    /// After the name or a parameter of an extension, where only a separator or the end may follow.
    inside: bool,
}

impl<'a> Iterator for Items<'a> {
    type Item = Result<ListItem<'a>, MalformedExtensions>;

    fn next(&mut self) -> Option<Self::Item> {
        self.skip(|byte| matches!(byte, b' ' | b'\t'));
        if self.inside {
            match self.rest.split_first()? {
                (b';', rest) => {
                    self.rest = rest;
                    return Some(self.parameter());
                }
                (b',', _) => self.inside = false,
                _ => return Some(self.fail()),
            }
        }
        // Empty elements of a list are skipped (RFC 9110 section 5.6.1.2).
        self.skip(|byte| matches!(byte, b' ' | b'\t' | b','));
        if self.rest.is_empty() {
            return None;
        }
        self.inside = true;
        Some(self.token().map(ListItem::Extension))
    }
}

impl<'a> Items<'a> {
    fn parameter(&mut self) -> Result<ListItem<'a>, MalformedExtensions> {
        self.skip(|byte| matches!(byte, b' ' | b'\t'));
        let name = self.token()?;
        self.skip(|byte| matches!(byte, b' ' | b'\t'));
        let Some(rest) = self.rest.strip_prefix(b"=") else {
            return Ok(ListItem::Parameter(name, None));
        };
        self.rest = rest;
        self.skip(|byte| matches!(byte, b' ' | b'\t'));
        let raw = if self.rest.first() == Some(&b'"') { self.quoted()? } else { self.token()? };
        Ok(ListItem::Parameter(name, Some(Value { raw })))
    }

    fn token(&mut self) -> Result<&'a [u8], MalformedExtensions> {
        let len = self.rest.iter().take_while(|&&byte| is_token_byte(byte)).count();
        if len == 0 {
            return self.fail();
        }
        Ok(self.take(len))
    }

    /// The content of the quotes, if it is a token with or without backslashes.
    fn quoted(&mut self) -> Result<&'a [u8], MalformedExtensions> {
        self.take(1);
        let mut escaped = false;
        for (at, &byte) in self.rest.iter().enumerate() {
            match byte {
                b'\\' if !escaped => escaped = true,
                b'"' if !escaped && at > 0 => {
                    let text = self.take(at);
                    self.take(1);
                    return Ok(text);
                }
                _ if is_token_byte(byte) => escaped = false,
                _ => break,
            }
        }
        self.fail()
    }

    fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.rest.split_at(len);
        self.rest = rest;
        taken
    }

    fn skip(&mut self, blank: impl Fn(u8) -> bool) {
        let len = self.rest.iter().take_while(|&&byte| blank(byte)).count();
        self.take(len);
    }

    /// Ends the iteration after an error.
    fn fail<T>(&mut self) -> Result<T, MalformedExtensions> {
        self.rest = &[];
        Err(MalformedExtensions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The list as text: extensions by name, parameters behind a `;`, errors as `!`.
    fn read(lines: &[&str]) -> String {
        let mut text = String::new();
        for item in items(lines.iter().map(|line| line.as_bytes())) {
            match item {
                Ok(ListItem::Extension(name)) => text += &format!("[{}]", name.escape_ascii()),
                Ok(ListItem::Parameter(name, None)) => text += &format!("{};", name.escape_ascii()),
                Ok(ListItem::Parameter(name, Some(value))) => {
                    let value: Vec<u8> = value.characters().collect();
                    text += &format!("{}={};", name.escape_ascii(), value.escape_ascii());
                }
                Err(MalformedExtensions) => text.push('!'),
            }
        }
        text
    }

    #[test]
    fn lists_follow_rfc_6455_section_9_1() {
        for (line, expected) in [
            ("foo", "[foo]"),
            ("foo; a; b=1, bar;c=\"2\"", "[foo]a;b=1;[bar]c=2;"),
            ("foo;a, foo;b", "[foo]a;[foo]b;"),
            (" foo\t; a = 1 ,\tbar ", "[foo]a=1;[bar]"),
            ("foo;a=\"\\1\\0\"", "[foo]a=10;"),
            (",foo,,bar,", "[foo][bar]"),
            ("", ""),
            (" , ", ""),
        ] {
            assert_eq!(read(&[line]), expected, "{line}");
        }
        assert_eq!(read(&["foo;a", "bar", "foo;b=1"]), "[foo]a;[bar][foo]b=1;");
    }

    #[test]
    fn grammar_violations_are_malformed() {
        for (line, expected) in [
            (";a", "!"),
            ("foo;", "[foo]!"),
            ("foo;;a", "[foo]!"),
            ("foo bar", "[foo]!"),
            ("foo;a=", "[foo]!"),
            ("foo;=1", "[foo]!"),
            ("foo;a=1=2", "[foo]a=1;!"),
            ("foo;a b", "[foo]a;!"),
            ("foo;a=\"1", "[foo]!"),
            ("foo;a=\"1\\\"", "[foo]!"),
            ("foo;a=\"1\"2", "[foo]a=1;!"),
            ("foo/bar", "[foo]!"),
            ("f\u{f6}\u{f6}", "[f]!"),
        ] {
            assert_eq!(read(&[line]), expected, "{line}");
        }
    }

    #[test]
    fn a_quoted_string_must_be_a_token_once_unquoted() {
        for line in ["foo;a=\"\"", "foo;a=\"1 2\"", "foo;a=\"\\\\\"", "foo;a=\"\\\"\"", "foo;a=\"\u{e4}\""] {
            assert_eq!(read(&[line]), "[foo]!", "{line}");
        }
    }

    #[test]
    fn a_comma_inside_quotes_does_not_split_the_list() {
        // Without handling of quotes it would be two extensions; a comma is not a token character.
        assert_eq!(read(&["foo;a=\"1,bar\", baz"]), "[foo]!");
    }
}
