//! The events that a webhook wants.

use sinews_server::{TopicName, TopicPattern};

use crate::model::events::{EventDetail, WebhookEventKind};
use crate::model::is_reserved;

/// The events that a webhook wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EventFilter {
    /// Bits of the kinds.
    kinds: u16,
    topics: TopicSelection,
}

/// The topics whose events a webhook wants.
#[derive(Clone, Debug, PartialEq, Eq)]
enum TopicSelection {
    /// Client topics with these patterns. Empty: all.
    Patterns(Vec<TopicPattern<'static>>),
    /// Topics whose names begin with one of the prefixes, and end with one of the suffixes, if there are any; those
    /// that begin with the other text have no subscriber count.
    Channels { prefixes: Vec<String>, suffixes: Vec<String>, uncounted: String },
}

impl EventFilter {
    /// Creates a filter for events of these kinds; topic events only of topics with these patterns. Empty: all.
    pub(crate) fn new(kinds: &[WebhookEventKind], topics: Vec<TopicPattern<'static>>) -> Self {
        let kinds = if kinds.is_empty() { &WebhookEventKind::ALL[..] } else { kinds };
        let kinds = bits(kinds) & !bits(&WebhookEventKind::OF_CHANNELS);
        Self { kinds, topics: TopicSelection::Patterns(topics) }
    }

    /// Creates a filter for events of these kinds, of topics whose names begin with one of the prefixes, and end with
    /// one of the suffixes, if there are any. Subscriber counts of topics that begin with `uncounted` are no events.
    pub(crate) fn for_channels(
        kinds: &[WebhookEventKind],
        prefixes: Vec<String>,
        suffixes: Vec<String>,
        uncounted: String,
    ) -> Self {
        Self { kinds: bits(kinds), topics: TopicSelection::Channels { prefixes, suffixes, uncounted } }
    }

    /// Whether it wants a topic's subscriber count.
    pub(super) fn counts(&self, topic: &str) -> bool {
        let is_counted = match &self.topics {
            TopicSelection::Patterns(_) => false,
            TopicSelection::Channels { uncounted, .. } => !topic.starts_with(&**uncounted),
        };
        is_counted && self.kinds & WebhookEventKind::SubscriptionCount.bit() != 0 && self.matches_topic(topic)
    }

    pub(super) fn kinds(&self) -> u16 {
        self.kinds
    }

    /// Whether topic states matter.
    pub(super) fn has_states(&self) -> bool {
        self.kinds & bits(&WebhookEventKind::STATES) != 0
    }

    pub(super) fn matches_topic(&self, topic: &str) -> bool {
        let patterns = match &self.topics {
            TopicSelection::Patterns(_) if is_reserved(topic) => return false,
            TopicSelection::Patterns(patterns) => patterns,
            TopicSelection::Channels { prefixes, suffixes, .. } => {
                let begins = prefixes.iter().any(|prefix| topic.starts_with(&**prefix));
                let ends = || suffixes.is_empty() || suffixes.iter().any(|suffix| topic.ends_with(&**suffix));
                return begins && ends();
            }
        };
        if patterns.is_empty() {
            return true;
        }
        TopicName::parse(topic).is_ok_and(|name| patterns.iter().any(|pattern| pattern.matches(&name)))
    }

    pub(crate) fn matches(&self, detail: &EventDetail) -> bool {
        if let EventDetail::SubscriptionCount { topic, .. } = detail {
            return self.counts(topic);
        }
        self.kinds & detail.kind().bit() != 0 && detail.topic().is_none_or(|topic| self.matches_topic(topic))
    }
}

fn bits(kinds: &[WebhookEventKind]) -> u16 {
    kinds.iter().fold(0, |bits, kind| bits | kind.bit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_of_apps_are_no_topics_of_other_webhooks() {
        let vacated = |topic: &str| EventDetail::TopicVacated { topic: topic.into() };
        let pattern = TopicPattern::parse("$pusher.>").unwrap();
        for filter in [EventFilter::new(&[], Vec::new()), EventFilter::new(&[], vec![pattern])] {
            assert!(!filter.matches(&vacated("$pusher.1.c.a")));
            assert!(!filter.matches(&EventDetail::CacheMiss { topic: "a".into() }));
        }
        assert!(EventFilter::new(&[], Vec::new()).matches(&vacated("$pushers.a")));
        let kinds = [WebhookEventKind::TopicVacated, WebhookEventKind::SubscriptionCount];
        let prefixes = vec!["$pusher.1.c.".to_owned()];
        let filter =
            EventFilter::for_channels(&kinds, prefixes, Vec::new(), "$pusher.1.c.presence-".to_owned());
        for (topic, is_wanted) in [("$pusher.1.c.a", true), ("$pusher.11.c.a", false), ("a", false)] {
            assert_eq!(filter.matches(&vacated(topic)), is_wanted, "{topic}");
        }
        assert!(!filter.matches(&EventDetail::TopicOccupied { topic: "$pusher.1.c.a".into() }));
        let count = |topic: &str| EventDetail::SubscriptionCount { topic: topic.into(), count: 1 };
        assert!(filter.matches(&count("$pusher.1.c.a")));
        assert!(
            !filter.matches(&count("$pusher.1.c.presence-a")) && !filter.matches(&count("$pusher.2.c.a"))
        );
    }
}
