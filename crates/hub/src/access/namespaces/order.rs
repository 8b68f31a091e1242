//! Patterns by how specific they are.

use std::cmp::Ordering;

use sinews_server::TopicPattern;

/// Orders patterns: if two patterns match the same topic, the more specific one is first. The first token that differs
/// decides; a name is more specific than `*`, and `*` than `>`.
pub(crate) fn order(a: &str, b: &str) -> Ordering {
    let key = |token: &str| match token {
        "*" => 1,
        ">" => 2,
        _ => 0,
    };
    let (a, b) = (a.split('.'), b.split('.'));
    a.clone().map(key).cmp(b.clone().map(key)).then_with(|| a.cmp(b))
}

/// Whether a topic exists that both patterns match.
pub(crate) fn overlap(a: &str, b: &str) -> bool {
    let (mut a, mut b) = (a.split('.'), b.split('.'));
    loop {
        match (a.next(), b.next()) {
            (None, None) | (Some(">"), Some(_)) | (Some(_), Some(">")) => return true,
            (Some(one), Some(other)) if one == other || one == "*" || other == "*" => {}
            _ => return false,
        }
    }
}

/// Returns whether a pattern matches all topics of another one.
pub(crate) fn covers(pattern: &str, other: &str) -> bool {
    let parse = |text| TopicPattern::parse(text);
    matches!((parse(pattern), parse(other)), (Ok(pattern), Ok(other)) if pattern.covers(&other))
}

/// An option that is on for the topics of some patterns, and off for others: the most specific pattern decides.
#[derive(Clone, Debug, Default)]
pub(crate) struct PatternSet(Vec<(TopicPattern<'static>, bool)>);

impl PatternSet {
    /// Creates the switch from patterns that were checked; among equal patterns, the first one decides.
    pub(crate) fn new(patterns: impl IntoIterator<Item = (String, bool)>) -> Self {
        let parsed =
            patterns.into_iter().filter_map(|(pattern, on)| Some((TopicPattern::parse(pattern).ok()?, on)));
        let mut list: Vec<_> = parsed.collect();
        list.sort_by(|(a, _), (b, _)| order(a.as_str(), b.as_str()));
        Self(list)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The patterns whose topics may have the option on.
    pub(crate) fn patterns(&self) -> Vec<String> {
        self.0.iter().filter(|(_, on)| *on).map(|(pattern, _)| pattern.as_str().to_owned()).collect()
    }

    /// Returns whether the option is on for a topic, or for all topics of a pattern.
    pub(crate) fn is_on(&self, topic: &str) -> bool {
        self.get(topic) == Some(true)
    }

    /// Returns whether the option is on for all topics of a pattern, also for those of more specific patterns.
    pub(crate) fn is_on_throughout(&self, requested: &str) -> bool {
        let Ok(parsed) = TopicPattern::parse(requested) else { return false };
        for (pattern, on) in &self.0 {
            if pattern.covers(&parsed) {
                return *on;
            }
            if !on && overlap(pattern.as_str(), requested) {
                return false;
            }
        }
        false
    }

    /// Returns whether the option is on or off for a topic; `None` if no pattern decides.
    pub(crate) fn get(&self, topic: &str) -> Option<bool> {
        if self.0.is_empty() {
            return None;
        }
        let topic = TopicPattern::parse(topic).ok()?;
        self.0.iter().find(|(pattern, _)| pattern.covers(&topic)).map(|(_, on)| *on)
    }
}

/// Switches an option on for the topics of all patterns.
impl From<Vec<String>> for PatternSet {
    fn from(patterns: Vec<String>) -> Self {
        Self::new(patterns.into_iter().map(|pattern| (pattern, true)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn option_is_on_throughout_a_pattern_without_exceptions() {
        let set =
            PatternSet::new([("chat.>", true), ("chat.tmp.*", false)].map(|(it, on)| (it.to_owned(), on)));
        for (pattern, expected) in [
            ("chat.*", true),
            ("chat.a.*", true),
            ("chat.>", false),
            ("chat.*.a", false),
            (">", false),
            ("a.*", false),
        ] {
            assert_eq!(set.is_on_throughout(pattern), expected, "{pattern}");
        }
    }

    #[test]
    fn first_different_token_decides_how_specific_a_pattern_is() {
        let sorted = ["a.b", "a.*", "a.b.>", "a.*.c", "a.>", "*.b", ">"];
        for pair in sorted.windows(2) {
            let matches = overlap(pair[0], pair[1]);
            assert!(!matches || order(pair[0], pair[1]) == Ordering::Less, "{pair:?}");
        }
        for (first, second) in
            [("a.b", "a.*"), ("a.*.c", "*.b.c"), ("a.*.>", "a.>"), ("a.*", "a.>"), ("*", ">")]
        {
            assert_eq!(order(first, second), Ordering::Less, "{first} {second}");
            assert_eq!(order(second, first), Ordering::Greater, "{first} {second}");
        }
        assert_eq!(order("a.*", "a.*"), Ordering::Equal);
    }

    #[test]
    fn patterns_overlap_if_one_topic_matches_both() {
        for (a, b, both) in [
            ("a.*", "*.b", true),
            ("a.>", "a.*.c", true),
            ("a", "a.>", false),
            ("a.*", "a", false),
            (">", "a.b", true),
            ("a.b", "a.c", false),
            ("*.*", "a.>", true),
            ("*", "a.>", false),
        ] {
            assert_eq!((overlap(a, b), overlap(b, a)), (both, both), "{a} {b}");
        }
    }

    #[test]
    fn most_specific_pattern_switches_an_option() {
        let switch = [("a.>", true), ("a.b.*", false), ("a.b.c", true)];
        let switch = PatternSet::new(switch.map(|(pattern, on)| (pattern.to_owned(), on)));
        for (topic, on) in [("a.x", true), ("a.b.x", false), ("a.b.c", true), ("b", false), ("a.b.*", false)]
        {
            assert_eq!(switch.is_on(topic), on, "{topic}");
        }
    }
}
