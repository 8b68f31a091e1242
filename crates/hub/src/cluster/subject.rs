//! Subject names (NATS) and channel names (Redis).
//!
//! A topic has its own subject, so that the broker knows which nodes have subscribers. Tokens of topics are encoded:
//! bytes besides letters, digits, `-` and `_` are `=` and two hexadecimal digits. So no token in a name is a wildcard,
//! and no byte has a meaning for a broker.

use super::message::NodeId;
use super::options::BrokerKind;

/// The names of a cluster.
#[derive(Clone, Debug)]
pub(super) struct Subjects {
    kind: BrokerKind,
    prefix: String,
}

impl Subjects {
    pub(super) fn new(kind: BrokerKind, prefix: &str) -> Self {
        Self { kind, prefix: prefix.to_owned() }
    }

    /// All nodes.
    pub(super) fn all(&self) -> String {
        format!("{}.all", self.prefix)
    }

    /// One node.
    pub(super) fn node(&self, node: NodeId) -> String {
        format!("{}.n.{node}-{:x}", self.prefix, node.start)
    }

    /// Appends a topic's subject.
    pub(super) fn write_topic(&self, out: &mut String, topic: &str) {
        out.push_str(&self.prefix);
        out.push_str(".t");
        for token in topic.split('.') {
            out.push('.');
            write_token(out, token);
        }
    }

    /// Returns the subject for a subscription to a topic or a pattern, and whether it has the broker's wildcards.
    ///
    /// `*` of Redis matches dots, too, so a node may receive topics that its pattern does not match. It delivers by the
    /// pattern.
    pub(super) fn for_subscription(&self, name: &str) -> (String, bool) {
        let mut subject = format!("{}.t", self.prefix);
        let mut is_pattern = false;
        for token in name.split('.') {
            subject.push('.');
            match token {
                "*" | ">" => {
                    is_pattern = true;
                    let is_rest = token == ">" && self.kind == BrokerKind::Nats;
                    subject.push(if is_rest { '>' } else { '*' });
                }
                token => write_token(&mut subject, token),
            }
        }
        (subject, is_pattern)
    }
}

fn write_token(out: &mut String, token: &str) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    for byte in token.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_') {
            out.push(char::from(byte));
        } else {
            out.push('=');
            out.push(char::from(DIGITS[usize::from(byte >> 4)]));
            out.push(char::from(DIGITS[usize::from(byte & 15)]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_encoded_and_wildcards_are_mapped() {
        let subjects = |kind| Subjects::new(kind, "p");
        let (nats, redis) = (subjects(BrokerKind::Nats), subjects(BrokerKind::Redis));
        let topic = |name| {
            let mut subject = String::new();
            nats.write_topic(&mut subject, name);
            assert_eq!(nats.for_subscription(name), (subject.clone(), false));
            subject
        };
        assert_eq!(topic("a.B-1_"), "p.t.a.B-1_");
        assert_eq!(topic("a*.>b c.ü=?[\\"), "p.t.a=2A.=3Eb=20c.=C3=BC=3D=3F=5B=5C");
        assert_eq!(nats.for_subscription("a.*.>"), ("p.t.a.*.>".to_owned(), true));
        assert_eq!(redis.for_subscription("a.*.>"), ("p.t.a.*.*".to_owned(), true));
        assert_eq!(redis.for_subscription(">"), ("p.t.*".to_owned(), true));
    }
}
