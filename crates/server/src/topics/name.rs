//! Rules for topic names and subscriptions.

use std::fmt;

use super::Topics;

/// Error of a topic name or a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidTopic {
    /// Empty, longer than [`Topics::NAME_MAX`] bytes, with a control character, or with an empty token, as in `a.` or
    /// `a..b`.
    Name,
    /// A wildcard in an invalid place: in the name of a publication, or `>` before the end of a pattern.
    Wildcard,
    /// The topic has no history: no [`TopicRule`](crate::TopicRule) enables it, or the name is a pattern.
    NotKept,
    /// The connection already has [`Topics::SUBSCRIPTIONS_MAX`] subscriptions.
    TooMany,
    /// A pattern of more than [`Topics::FREE_TOKENS`] tokens that could raise the matching of a name against all
    /// patterns above [`Topics::MATCH_STEPS_MAX`] steps.
    TooAmbiguous,
}

impl fmt::Display for InvalidTopic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name => {
                write!(
                    f,
                    "a topic name has 1 to {} bytes, no control characters, and a token between its dots",
                    Topics::NAME_MAX
                )
            }
            Self::Wildcard => f.write_str(
                "the wildcards `*` and `>` may stand in subscriptions only, and `>` only at the end",
            ),
            Self::NotKept => f.write_str("topic has no history; patterns have none"),
            Self::TooMany => {
                write!(f, "a connection has at most {} subscriptions", Topics::SUBSCRIPTIONS_MAX)
            }
            Self::TooAmbiguous => write!(
                f,
                "with this pattern, matching a name against the patterns of all subscribers could take more than {} \
                 steps; patterns of at most {} tokens are always accepted",
                Topics::MATCH_STEPS_MAX,
                Topics::FREE_TOKENS
            ),
        }
    }
}

impl std::error::Error for InvalidTopic {}

/// Matches one token.
pub(crate) const ONE: &str = "*";

/// Matches one or more tokens at the end.
pub(crate) const REST: &str = ">";

/// Checks whether `name` may be published to.
pub(crate) fn check(name: &str) -> Result<(), InvalidTopic> {
    if is_pattern(name) { Err(InvalidTopic::Wildcard) } else { check_text(name) }
}

/// Checks whether `name` may be subscribed to.
pub(crate) fn check_subscription(name: &str) -> Result<(), InvalidTopic> {
    check_text(name)?;
    let before_last = name.rsplit('.').skip(1);
    if before_last.into_iter().any(|token| token == REST) { Err(InvalidTopic::Wildcard) } else { Ok(()) }
}

fn check_text(name: &str) -> Result<(), InvalidTopic> {
    let fits = name.len() <= Topics::NAME_MAX && !name.chars().any(char::is_control);
    if fits && !has_empty_token(name) { Ok(()) } else { Err(InvalidTopic::Name) }
}

/// Returns whether a token is empty. An empty name is one empty token.
fn has_empty_token(name: &str) -> bool {
    name.split('.').any(str::is_empty)
}

/// Returns whether a token is a wildcard.
pub(crate) fn is_pattern(name: &str) -> bool {
    // Fast path: most names contain neither character.
    name.contains(['*', '>']) && name.split('.').any(|token| token == ONE || token == REST)
}

/// Returns whether a pattern matches a name. For few of either; many patterns are in a trie.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    let (mut pattern, mut name) = (pattern.split('.'), name.split('.'));
    loop {
        match (pattern.next(), name.next()) {
            (Some(REST), Some(_)) | (None, None) => return true,
            (Some(ONE), Some(_)) => {}
            (Some(literal), Some(token)) if literal == token => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_are_whole_tokens() {
        for name in ["a", "a.b", "a b", "a*", "*a.b", "a.>b", "a->b", "**"] {
            assert_eq!((check(name), check_subscription(name)), (Ok(()), Ok(())), "{name}");
        }
        for pattern in ["*", ">", "a.*", "*.a", "a.>", "*.*.>", "a.*.b"] {
            assert_eq!((check(pattern), check_subscription(pattern)), (Err(InvalidTopic::Wildcard), Ok(())));
        }
        for neither in [">.a", "a.>.b", ">.>"] {
            assert_eq!(check(neither), Err(InvalidTopic::Wildcard));
            assert_eq!(check_subscription(neither), Err(InvalidTopic::Wildcard));
        }
        let long = "a".repeat(Topics::NAME_MAX);
        assert_eq!(check(&long), Ok(()));
        for bad in ["", "a\n", "\0", &(long + "a"), "a.", ".a", "a..b", ".", ".."] {
            assert_eq!(
                (check(bad), check_subscription(bad)),
                (Err(InvalidTopic::Name), Err(InvalidTopic::Name))
            );
        }
        for bad in ["*.", ".>", "a..>"] {
            assert_eq!(check_subscription(bad), Err(InvalidTopic::Name), "{bad}");
        }
    }
}
