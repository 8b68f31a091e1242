//! Stream and subject names.
//!
//! A log's subject has the topic's parts as tokens, so that patterns have the broker's wildcards. A key's subject has the
//! topic as one token, and the key as another. Each subject of a stream has the stream's epoch: a message for a stream that
//! was deleted reaches no other stream of that name, and a notification names the stream that it is from.

/// Longest subject that a server accepts by default, with space for the other arguments of a line
/// (`max_control_line`, 4,096).
pub(super) const SUBJECT_MAX: usize = 3_000;

/// Names below a prefix.
#[derive(Clone, Debug)]
pub(super) struct StoreSubjects {
    pub(super) prefix: String,
}

impl StoreSubjects {
    /// A stream's subjects, without the part behind the epoch.
    pub(super) fn stream(&self, kind: &str, epoch: &str) -> String {
        format!("{}.{kind}.{epoch}.", self.prefix)
    }

    /// Notifications from logs of one epoch, without the topic.
    pub(super) fn announced(&self, epoch: u64) -> String {
        format!("{}.r.{epoch}.", self.prefix)
    }

    /// Subscription to a topic's or a pattern's notifications, from any epoch.
    pub(super) fn followed(&self, pattern: &str) -> String {
        let mut subject = format!("{}.r.*", self.prefix);
        for part in pattern.split('.') {
            subject.push('.');
            match part {
                "*" | ">" => subject.push_str(part),
                part => write_token(&mut subject, part),
            }
        }
        subject
    }

    /// The epoch and topic in a notification's subject.
    pub(super) fn parse_announced(&self, subject: &str) -> Option<(u64, String)> {
        let rest = subject.strip_prefix(&*self.prefix)?.strip_prefix(".r.")?;
        let (epoch, topic) = rest.split_once('.')?;
        Some((epoch.parse().ok()?, parse_tokens(topic)?))
    }
}

/// Appends a topic, each part a token.
pub(super) fn with_topic(mut subject: String, topic: &str) -> String {
    for (number, part) in topic.split('.').enumerate() {
        if number > 0 {
            subject.push('.');
        }
        write_token(&mut subject, part);
    }
    subject
}

/// Encodes a text as one token. Bytes other than letters, digits, `-` and `_` are `=` and two hexadecimal digits; a token
/// is not empty, so that an empty text is `=`.
pub(super) fn write_token(subject: &mut String, text: &str) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    if text.is_empty() {
        subject.push('=');
    }
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_') {
            subject.push(char::from(byte));
        } else {
            subject.push('=');
            subject.push(char::from(DIGITS[usize::from(byte >> 4)]));
            subject.push(char::from(DIGITS[usize::from(byte & 15)]));
        }
    }
}

pub(super) fn token(text: &str) -> String {
    let mut token = String::with_capacity(text.len());
    write_token(&mut token, text);
    token
}

/// Decodes a token.
pub(super) fn parse_token(token: &str) -> Option<String> {
    if token == "=" {
        return Some(String::new());
    }
    let mut parts = token.split('=');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(bytes).ok()
}

fn parse_tokens(tokens: &str) -> Option<String> {
    let parts: Option<Vec<String>> = tokens.split('.').map(parse_token).collect();
    Some(parts?.join("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_are_encoded_and_decoded() {
        let subjects = StoreSubjects { prefix: "p".to_owned() };
        for (topic, encoded) in [
            ("a.B-1_", "a.B-1_"),
            ("a*.>b c.ü=?", "a=2A.=3Eb=20c.=C3=BC=3D=3F"),
            ("\u{1}chat.7", "=01chat.7"),
        ] {
            let subject = with_topic(subjects.announced(7), topic);
            assert_eq!(subject, format!("p.r.7.{encoded}"));
            assert_eq!(subjects.parse_announced(&subject), Some((7, topic.to_owned())));
            assert_eq!(subjects.followed(topic), format!("p.r.*.{encoded}"));
        }
        assert_eq!(subjects.followed("a.*.>"), "p.r.*.a.*.>");
        for other in ["p.r.7", "p.r.x.a", "p.h.7.a", "q.r.7.a", "p.r.7.=Z", "p.r.7.=FF"] {
            assert_eq!(subjects.parse_announced(other), None, "{other}");
        }
    }

    #[test]
    fn every_text_is_one_token() {
        for text in ["", "=", "a.b", "*", ">", "ä\r\n "] {
            let token = token(text);
            assert!(!token.is_empty() && !token.contains(['.', '*', '>', ' ', '\r', '\n']), "{token}");
            assert_eq!(parse_token(&token).as_deref(), Some(text));
        }
    }
}
