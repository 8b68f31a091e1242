//! Topic names and subscription patterns: their rules, and how they match.

use std::borrow::Cow;
use std::fmt;

/// Maximum length in bytes for a name or pattern.
pub(crate) const NAME_MAX: usize = 256;

/// Maximum subscriptions for one connection.
pub(crate) const SUBSCRIPTIONS_MAX: usize = 1_024;

/// Maximum steps to match a name against all subscribers' patterns.
pub(crate) const MATCH_STEPS_MAX: usize = 2_048;

/// Parts in a pattern that is never rejected for its matching steps.
pub(crate) const FREE_PARTS: usize = 9;

/// Topic name: the form in which a message is published.
///
/// A name has 1 to [`Topics::NAME_MAX`](crate::Topics::NAME_MAX) bytes, no control character, and parts separated by
/// dots, of which none is empty. No part is a wildcard (`*` or `>`); `a*` is an ordinary part. It borrows or owns
/// its text.
///
/// ```
/// use sinews_server::{InvalidTopic, TopicName};
///
/// let name = TopicName::parse("prices.gold.eur")?;
/// assert_eq!(name.as_str(), "prices.gold.eur");
/// assert_eq!(TopicName::parse("prices.*"), Err(InvalidTopic::Wildcard));
/// assert_eq!(TopicName::parse("prices..eur"), Err(InvalidTopic::Name));
/// # Ok::<(), InvalidTopic>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TopicName<'a>(Cow<'a, str>);

/// Pattern for topic names: the form in which a connection subscribes, and in which rights are granted.
///
/// The wildcards are the same as in NATS: the part `*` matches any one part, `>` at the end matches one or more. A name
/// is a pattern that matches itself only. It borrows or owns its text.
///
/// ```
/// use sinews_server::{InvalidTopic, TopicName, TopicPattern};
///
/// let prices = TopicPattern::parse("prices.>")?;
/// assert!(prices.matches(&TopicName::parse("prices.gold.eur")?));
/// assert!(!prices.matches(&TopicName::parse("prices")?));
/// assert!(prices.covers(&TopicPattern::parse("prices.*.eur")?));
/// assert!(!prices.covers(&TopicPattern::parse("*.gold")?));
/// assert_eq!(TopicPattern::parse("prices.>.eur"), Err(InvalidTopic::Wildcard));
/// # Ok::<(), InvalidTopic>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TopicPattern<'a>(Cow<'a, str>);

impl<'a> TopicName<'a> {
    /// Parses a name.
    ///
    /// # Errors
    /// [`InvalidTopic::Wildcard`] if a part is a wildcard, otherwise [`InvalidTopic::Name`].
    pub fn parse(name: impl Into<Cow<'a, str>>) -> Result<Self, InvalidTopic> {
        let name = name.into();
        check(&name).map(|()| Self(name))
    }

    /// Returns the text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the name with its own text.
    #[must_use]
    pub fn into_owned(self) -> TopicName<'static> {
        TopicName(Cow::Owned(self.0.into_owned()))
    }
}

impl<'a> TopicPattern<'a> {
    /// Parses a pattern or a name.
    ///
    /// # Errors
    /// [`InvalidTopic::Name`], or [`InvalidTopic::Wildcard`] if `>` stands before the end.
    pub fn parse(pattern: impl Into<Cow<'a, str>>) -> Result<Self, InvalidTopic> {
        let pattern = pattern.into();
        check_subscription(&pattern).map(|()| Self(pattern))
    }

    /// Returns whether a part is a wildcard; otherwise it is a name.
    #[must_use]
    pub fn has_wildcard(&self) -> bool {
        is_pattern(&self.0)
    }

    /// Returns whether it matches a topic.
    #[must_use]
    pub fn matches(&self, name: &TopicName<'_>) -> bool {
        matches(&self.0, &name.0)
    }

    /// Returns whether it matches every topic that the other pattern matches.
    #[must_use]
    pub fn covers(&self, other: &TopicPattern<'_>) -> bool {
        covers(&self.0, &other.0)
    }

    /// Returns the text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the pattern with its own text.
    #[must_use]
    pub fn into_owned(self) -> TopicPattern<'static> {
        TopicPattern(Cow::Owned(self.0.into_owned()))
    }
}

/// Every name is a pattern.
impl<'a> From<TopicName<'a>> for TopicPattern<'a> {
    fn from(name: TopicName<'a>) -> Self {
        Self(name.0)
    }
}

impl<'a> TryFrom<&'a str> for TopicName<'a> {
    type Error = InvalidTopic;

    fn try_from(name: &'a str) -> Result<Self, InvalidTopic> {
        Self::parse(name)
    }
}

impl<'a> TryFrom<&'a str> for TopicPattern<'a> {
    type Error = InvalidTopic;

    fn try_from(pattern: &'a str) -> Result<Self, InvalidTopic> {
        Self::parse(pattern)
    }
}

impl fmt::Display for TopicName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Display for TopicPattern<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// Error in a topic name or a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidTopic {
    /// Empty, longer than [`Topics::NAME_MAX`](crate::Topics::NAME_MAX) bytes, with a control character, or with an
    /// empty part, as in `a.` or `a..b`.
    Name,
    /// A wildcard in an invalid place: in a publication's name, or `>` before a pattern's end.
    Wildcard,
    /// The topic has no history: no [`TopicRule`](crate::TopicRule) enables it, or the name is a pattern.
    NoHistory,
    /// The connection already has [`Topics::SUBSCRIPTIONS_MAX`](crate::Topics::SUBSCRIPTIONS_MAX) subscriptions.
    TooManySubscriptions,
    /// A pattern with more than [`Topics::FREE_PARTS`](crate::Topics::FREE_PARTS) parts that could raise the matching
    /// of a name against all patterns above [`Topics::MATCH_STEPS_MAX`](crate::Topics::MATCH_STEPS_MAX) steps.
    TooAmbiguous,
}

impl fmt::Display for InvalidTopic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name => {
                write!(
                    f,
                    "a topic name has 1 to {NAME_MAX} bytes, no control characters, and no empty part between its dots"
                )
            }
            Self::Wildcard => f.write_str(
                "the wildcards `*` and `>` may stand in subscriptions only, and `>` only at the end",
            ),
            Self::NoHistory => f.write_str("topic has no history; patterns have none"),
            Self::TooManySubscriptions => {
                write!(f, "a connection has at most {SUBSCRIPTIONS_MAX} subscriptions")
            }
            Self::TooAmbiguous => write!(
                f,
                "with this pattern, matching a name against the patterns of all subscribers could take more than \
                 {MATCH_STEPS_MAX} steps; patterns of at most {FREE_PARTS} parts are always accepted"
            ),
        }
    }
}

impl std::error::Error for InvalidTopic {}

/// Prefix for an internal topic, to which a topic's presence updates are published. No name that a client may use
/// begins so.
const PRESENCE_PREFIX: char = '\u{1}';

/// Returns the internal topic for a topic's presence updates.
pub(crate) fn presence_topic(name: &str) -> String {
    format!("{PRESENCE_PREFIX}{name}")
}

/// Returns the topic whose presence updates are published to an internal topic.
pub(crate) fn watched_topic(name: &str) -> Option<&str> {
    name.strip_prefix(PRESENCE_PREFIX)
}

/// Matches one part.
pub(crate) const ONE: &str = "*";

/// Matches one or more parts at the end.
pub(crate) const REST: &str = ">";

/// Checks whether `name` may be published to.
pub(crate) fn check(name: &str) -> Result<(), InvalidTopic> {
    if is_pattern(name) { Err(InvalidTopic::Wildcard) } else { check_text(name) }
}

/// Checks whether `name` may be subscribed to.
pub(crate) fn check_subscription(name: &str) -> Result<(), InvalidTopic> {
    check_text(name)?;
    let before_last = name.rsplit('.').skip(1);
    if before_last.into_iter().any(|part| part == REST) { Err(InvalidTopic::Wildcard) } else { Ok(()) }
}

fn check_text(name: &str) -> Result<(), InvalidTopic> {
    let fits = name.len() <= NAME_MAX && !has_control(name);
    if fits && !has_empty_token(name) { Ok(()) } else { Err(InvalidTopic::Name) }
}

fn has_control(name: &str) -> bool {
    // Fast path: characters are decoded for names with bytes that no visible ASCII character has.
    let is_visible = |byte: u8| matches!(byte, b' '..=b'~');
    !name.bytes().all(is_visible) && name.chars().any(char::is_control)
}

/// Returns whether a part is empty. An empty name is one empty part.
fn has_empty_token(name: &str) -> bool {
    let (mut previous, mut found) = (b'.', false);
    for byte in name.bytes() {
        found |= byte == b'.' && previous == b'.';
        previous = byte;
    }
    found || previous == b'.'
}

/// Returns whether a part is a wildcard.
pub(crate) fn is_pattern(name: &str) -> bool {
    // Fast path: most names contain neither character.
    name.bytes().any(|byte| matches!(byte, b'*' | b'>'))
        && name.split('.').any(|part| part == ONE || part == REST)
}

/// Returns whether a pattern matches a name. For few of either; many patterns are in a trie.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    // A name is a pattern without wildcards.
    covers(pattern, name)
}

/// Returns whether a pattern matches every name that another pattern matches.
fn covers(pattern: &str, other: &str) -> bool {
    // Fast path: most patterns and names differ in their first byte.
    if pattern.bytes().next() != other.bytes().next() && !pattern.starts_with(['*', '>']) {
        return false;
    }
    let (mut pattern, mut other) = (pattern.split('.'), other.split('.'));
    loop {
        match (pattern.next(), other.next()) {
            (Some(REST), Some(_)) | (None, None) => return true,
            (Some(ONE), Some(part)) if part != REST => {}
            (Some(literal), Some(part)) if literal == part => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests;
