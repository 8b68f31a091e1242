//! Names of Redis keys and channels: `PREFIX{pN}:PART:TOPIC`.
//!
//! The text in braces is the tag by which Redis Cluster places keys. It names one of [`PARTITIONS`] partitions, so that
//! all keys of a topic, and its channels, have one place, and a script may use them together.

use sinews_store::{PartKind, TopicPart};

/// Changing it moves every topic.
pub(super) const PARTITIONS: u32 = 64;

/// Names with a prefix.
#[derive(Clone, Debug)]
pub(super) struct Names {
    pub(super) prefix: String,
}

/// Returns the hash slot of a partition's tag in a Redis Cluster.
pub(super) fn slot(partition: u32) -> u16 {
    /// The polynomial of CRC-16/XMODEM.
    const POLYNOMIAL: u16 = 0x1021;
    const SLOTS: u16 = 16_384;
    let crc = format!("p{partition}").bytes().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ POLYNOMIAL }
        })
    });
    crc % SLOTS
}

/// Returns a topic's partition.
pub(super) fn partition(topic: &str) -> u32 {
    crc32c::crc32c(topic.as_bytes()) % PARTITIONS
}

impl Names {
    /// The beginning of all names in a partition.
    pub(super) fn in_partition(&self, partition: u32) -> String {
        format!("{}{{p{partition}}}:", self.prefix)
    }

    /// The channel for the appends to all logs of a partition, in a Redis Cluster.
    pub(super) fn appends(&self, partition: u32) -> String {
        self.in_partition(partition) + "appends"
    }

    /// The key for a partition's topics with keys that expire.
    pub(super) fn due(&self, partition: u32) -> String {
        self.in_partition(partition) + "due"
    }

    pub(super) fn key(&self, part: &str, topic: &str) -> String {
        format!("{}{part}:{topic}", self.in_partition(partition(topic)))
    }

    /// The key for the first answer to a named append.
    pub(super) fn append_once(&self, topic: &str, id: &str) -> String {
        format!("{}once:{}:{topic}:{id}", self.in_partition(partition(topic)), topic.len())
    }

    /// The key for the first outcome of a named write to a topic's key.
    pub(super) fn write_once(&self, topic: &str, key: &str, id: &str) -> String {
        let (partition, topic_bytes, key_bytes) = (partition(topic), topic.len(), key.len());
        format!("{}keyonce:{topic_bytes}:{topic}:{key_bytes}:{key}:{id}", self.in_partition(partition))
    }

    /// The key for the position of a topic's part.
    pub(super) fn meta(&self, part: &TopicPart) -> String {
        let name = if part.part == PartKind::Log { "logmeta" } else { "keymeta" };
        self.key(name, &part.topic)
    }

    pub(super) fn channel(&self, part: &TopicPart) -> String {
        self.key(if part.part == PartKind::Log { "log" } else { "keys" }, &part.topic)
    }

    /// Returns the part of a topic that has this channel.
    pub(super) fn part(&self, channel: &str) -> Option<TopicPart> {
        let (number, rest) = channel.strip_prefix(&*self.prefix)?.strip_prefix("{p")?.split_once("}:")?;
        let (name, topic) = rest.split_once(':')?;
        let part = match name {
            "log" => PartKind::Log,
            "keys" => PartKind::Keys,
            _ => return None,
        };
        let is_own = number.parse() == Ok(partition(topic));
        is_own.then(|| TopicPart { topic: topic.into(), part })
    }

    /// A glob that matches the channels for the logs of all topics that a pattern matches, and perhaps more channels.
    pub(super) fn glob(&self, pattern: &str) -> String {
        let mut glob = escape(&self.prefix);
        glob.push_str("{p*}:log:");
        for (index, part) in pattern.split('.').enumerate() {
            if index > 0 {
                glob.push('.');
            }
            match part {
                "*" | ">" => glob.push('*'),
                literal => glob.push_str(&escape(literal)),
            }
        }
        glob
    }
}

fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        if matches!(character, '*' | '?' | '[' | ']' | '^' | '\\') {
            escaped.push('\\');
        }
        escaped.push(character);
    }
    escaped
}

/// Whether a pattern matches a topic: its part `*` matches any one part, and `>` at its end one or more.
pub(super) fn matches(pattern: &str, topic: &str) -> bool {
    let (mut pattern, mut topic) = (pattern.split('.'), topic.split('.'));
    loop {
        match (pattern.next(), topic.next()) {
            (Some(">"), Some(_)) | (None, None) => return true,
            (Some("*"), Some(_)) => {}
            (Some(literal), Some(part)) if literal == part => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_name_their_part() {
        let names = Names { prefix: "a:".to_owned() };
        for part in [TopicPart::log("t:1"), TopicPart::keys("log:}x{"), TopicPart::log("")] {
            assert_eq!(names.part(&names.channel(&part)), Some(part));
        }
        let log = names.channel(&TopicPart::log("t"));
        for other in ["", "a:", "b", &log[1..], &log.replace(":log:", ":once:"), &log.replace("{p", "{p1")] {
            assert_eq!(names.part(other), None, "{other}");
        }
    }

    #[test]
    fn partitions_are_spread_over_a_cluster() {
        assert_eq!([slot(0), slot(7), slot(63)], [15_882, 3_821, 12_555]);
        for (servers, least) in [(3, 20), (6, 8)] {
            let at = |server| {
                (0..PARTITIONS).filter(move |&number| u32::from(slot(number)) * servers / 16_384 == server)
            };
            let fewest = (0..servers).map(|server| at(server).count()).min();
            assert_eq!(fewest, Some(least), "{servers} servers");
        }
    }

    #[test]
    fn names_of_first_answers_differ() {
        let names = Names { prefix: String::new() };
        assert_ne!(names.append_once("a:1", "b"), names.append_once("a", "1:b"));
        assert_ne!(names.write_once("a", "b:1", "c"), names.write_once("a", "b", "1:c"));
    }

    #[test]
    fn patterns_are_globs() {
        let names = Names { prefix: "a[:".to_owned() };
        assert_eq!(names.glob("x.*.y?.>"), "a\\[:{p*}:log:x.*.y\\?.*");
        for (pattern, topic, is_match) in [
            ("a.*", "a.b", true),
            ("a.*", "a.b.c", false),
            ("a.>", "a.b.c", true),
            ("a.>", "a", false),
            ("a.*.c", "a.b.c", true),
            ("a*", "a*", true),
            ("a*", "ab", false),
        ] {
            assert_eq!(matches(pattern, topic), is_match, "{pattern} {topic}");
        }
    }
}
