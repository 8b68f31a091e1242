//! Topic names.

use sinews_server::{InvalidTopic, TopicName, TopicPattern};

use crate::error::{HubError, HubErrorKind};

/// First part of the topics that only the hub itself names.
pub(crate) const RESERVED: &str = "$pusher";

/// The error for a topic that only the hub itself names.
const IS_RESERVED: &str = "names that begin with $pusher are reserved for channels of apps";

/// Whether only the hub itself names a topic.
pub(crate) fn is_reserved(topic: &str) -> bool {
    topic.strip_prefix(RESERVED).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Longest topic name in bytes: the limit of the server below, less the prefix of the form.
pub(crate) const NAME_MAX: usize = 250;

/// The error for a publication to a pattern.
pub(crate) const PUBLISHES_TO_PATTERN: &str = "wildcards are for subscriptions: name one topic";

/// Whether a part in the name is a wildcard.
pub(crate) fn is_pattern(name: &str) -> bool {
    TopicName::parse(name) == Err(InvalidTopic::Wildcard)
}

/// Checks a publication's topic name.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    if is_pattern(name) {
        return Err(PUBLISHES_TO_PATTERN.to_owned());
    }
    check_subscription(name)
}

/// Checks a pattern of a setting. A part such as `*x` is an ordinary name part, and in a setting a mistake: it matches
/// the topic with this name only.
///
/// # Errors
/// [`HubErrorKind::Pattern`], with the reason why no topic, or no topic but one that is called like the pattern,
/// matches.
pub fn check_pattern(pattern: &str) -> Result<(), HubError> {
    let invalid = |text: String| Err(HubError::new(HubErrorKind::Pattern, text));
    if pattern.len() > NAME_MAX {
        let length = pattern.len();
        return invalid(format!("a topic's name has at most {NAME_MAX} bytes, and the pattern has {length}"));
    }
    TopicPattern::parse(pattern).map_err(|error| HubError::caused(HubErrorKind::Pattern, error))?;
    if is_reserved(pattern) {
        return invalid(IS_RESERVED.to_owned());
    }
    match pattern.split('.').find(|part| part.len() > 1 && part.contains(['*', '>'])) {
        Some(part) => invalid(format!(
            "{part:?} would match the part {part:?} only: a wildcard is a whole part, `*`, or `>` at the end"
        )),
        None => Ok(()),
    }
}

/// Checks a subscription's topic name or pattern.
pub(crate) fn check_subscription(name: &str) -> Result<(), String> {
    if name.is_empty() || name.len() > NAME_MAX || name.chars().any(char::is_control) {
        return Err(format!("a topic's name has 1 to {NAME_MAX} bytes and no control characters"));
    }
    if is_reserved(name) {
        return Err(IS_RESERVED.to_owned());
    }
    match TopicPattern::parse(name) {
        Ok(_) => Ok(()),
        Err(InvalidTopic::Wildcard) => Err("the wildcard > is valid at the end of a pattern only".to_owned()),
        // The other name rules were checked.
        Err(_) => Err("a topic's name has an empty part between its dots".to_owned()),
    }
}

/// Parses patterns that were checked; an invalid pattern would match no topic.
pub(crate) fn parse_patterns(patterns: Vec<String>) -> Vec<TopicPattern<'static>> {
    patterns.into_iter().filter_map(|pattern| TopicPattern::parse(pattern).ok()).collect()
}
