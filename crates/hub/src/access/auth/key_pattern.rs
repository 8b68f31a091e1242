//! Rights to write keys of topics: `topic/key`, both patterns, such as `players/{sub}`.

use sinews_server::{TopicName, TopicPattern};

/// Placeholder for the token's `sub`.
const SUBJECT: &str = "{sub}";

/// Keys that a client may write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KeyPattern {
    topic: TopicPattern<'static>,
    key: TopicPattern<'static>,
}

impl KeyPattern {
    /// Reads a claim's pattern: a topic pattern and a key pattern, with a slash between. The subject replaces its
    /// placeholder literally: it must have no wildcard, so that a client cannot choose a name that covers other names.
    ///
    /// # Errors
    /// The fault.
    pub(super) fn parse(text: &str, subject: Option<&str>) -> Result<Self, &'static str> {
        let (topic, key) = text.split_once('/').ok_or("it has no slash between topic and key")?;
        let replace = |part: &str| match subject {
            _ if !part.contains(SUBJECT) => Ok(part.to_owned()),
            None => Err("it has {sub}, and the token has no sub"),
            Some(subject) if TopicName::parse(subject).is_err() => {
                Err("the token's sub is no name, which {sub} needs")
            }
            Some(subject) => Ok(part.replace(SUBJECT, subject)),
        };
        let parse = |part: String| {
            TopicPattern::parse(part).map_err(|_| "it is not a topic pattern, a slash and a key pattern")
        };
        Ok(Self { topic: parse(replace(topic)?)?, key: parse(replace(key)?)? })
    }

    /// Returns the text of a claim.
    pub(super) fn text(&self) -> String {
        format!("{}/{}", self.topic.as_str(), self.key.as_str())
    }

    pub(super) fn covers(&self, topic: &str, key: &str) -> bool {
        let covers = |granted: &TopicPattern<'_>, name| {
            TopicPattern::parse(name).is_ok_and(|requested| granted.covers(&requested))
        };
        covers(&self.topic, topic) && covers(&self.key, key)
    }
}

/// Returns whether a key pattern is valid in a token with a subject.
#[must_use]
pub fn is_valid(text: &str) -> bool {
    KeyPattern::parse(text, Some("subject")).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subject_stands_for_itself_only() {
        let covers = |text: &str, subject: Option<&str>, topic: &str, key: &str| {
            KeyPattern::parse(text, subject).map(|pattern| pattern.covers(topic, key))
        };
        let anna = Some("anna");
        for (text, topic, key, expected) in [
            ("players/{sub}", "players", "anna", true),
            ("players/{sub}", "players", "ben", false),
            ("players/{sub}", "other", "anna", false),
            ("players/{sub}", "players", "anna.x", false),
            ("players/{sub}.>", "players", "anna.x", true),
            ("room.*/cursor-{sub}", "room.7", "cursor-anna", true),
            ("user.{sub}/>", "user.anna", "a.b", true),
            ("user.{sub}/>", "user.ben", "a.b", false),
            (">/>", "a.b", "c.d", true),
            ("a/b/c", "a", "b/c", true),
        ] {
            assert_eq!(covers(text, anna, topic, key), Ok(expected), "{text} {topic} {key}");
        }
        assert_eq!(covers("t/{sub}", Some("a.b"), "t", "a.b"), Ok(true));
        for subject in [">", "*", "a.*", "a.>", "", ".", "a."] {
            assert!(covers("t/{sub}", Some(subject), "t", "ben").is_err(), "{subject}");
            assert!(covers("t/x{sub}", Some(subject), "t", "ben").is_err(), "{subject}");
        }
        for bad in ["t", "t/", "/k", "t/a..b", "t/>.a", ""] {
            assert!(KeyPattern::parse(bad, anna).is_err(), "{bad}");
        }
        assert!(KeyPattern::parse("t/{sub}", None).is_err());
    }
}
