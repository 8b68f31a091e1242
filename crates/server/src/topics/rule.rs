//! Topic settings by pattern.

use sinews_proto::CloseCode;

use super::history::policy::HistoryPolicy;
use super::name::{self, InvalidTopic};

/// Action when a slow subscriber's queue reaches its limit. Other subscribers are not affected.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SlowConsumer {
    /// Drops the publication: queued messages are delivered without a gap, then a gap follows.
    DropNewest,
    /// Drops the oldest queued message: the subscriber gets the newest messages, after a gap.
    DropOldest,
    /// Queues only each topic's last value; it replaces the previous value. Without capacity for another topic, the
    /// oldest value is dropped.
    Conflate,
    /// Closes the connection with this code and reason, at most 123 bytes long, after the queued messages.
    Close(CloseCode, String),
}

/// Settings for the topics that match a pattern.
///
/// Publications to a subscriber are queued while its outbound buffer holds more than
/// [`Config::high_water`](crate::Config::high_water) bytes. Subscribers share the payload: a queued message costs each
/// of them some 50 bytes regardless of its size, and the payload stays in memory until its last subscriber has taken
/// it. The limits apply to one subscriber and all topics under a rule together. Without a policy here, the subscriber's
/// route applies: [`Config::overflow`](crate::Config::overflow) and
/// [`Config::max_outbound`](crate::Config::max_outbound).
///
/// The connection's own sends do not overtake queued messages: a send first moves all queued messages to the outbound
/// buffer, which may hold up to the same limit again; messages there are not dropped any more. Conflated values are the
/// exception: they stay queued and are still replaced.
///
/// ```
/// use sinews_server::{Router, Server, SlowConsumer, TopicRule};
///
/// let prices = TopicRule::new("prices.>").with_slow_consumer(SlowConsumer::Conflate);
/// let server = Server::new(Router::new()).topic_rule(prices);
/// # drop(server);
/// ```
#[derive(Clone, Debug)]
pub struct TopicRule {
    pattern: String,
    slow: Option<SlowConsumer>,
    max_queued_messages: usize,
    max_queued_bytes: usize,
    history: Option<HistoryPolicy>,
    has_no_history: bool,
    inherits: bool,
}

impl TopicRule {
    /// Creates a rule for the topics that match `pattern`, a name or a pattern with wildcards
    /// ([`Topics`](crate::Topics)); without further settings it has no effect.
    #[must_use]
    pub fn new(pattern: impl Into<String>) -> Self {
        Self {
            pattern: pattern.into(),
            slow: None,
            max_queued_messages: 1_024,
            max_queued_bytes: 1 << 20,
            history: None,
            has_no_history: false,
            inherits: false,
        }
    }

    /// Sets the action for slow subscribers. Default: their route's policy.
    #[must_use]
    pub fn with_slow_consumer(mut self, slow: SlowConsumer) -> Self {
        self.slow = Some(slow);
        self
    }

    /// Maximum messages queued for one subscriber, at least 1. Default 1,024: with
    /// [`Conflate`](SlowConsumer::Conflate), this many topics. Applies with a policy only.
    #[must_use]
    pub fn with_max_queued_messages(mut self, messages: usize) -> Self {
        self.max_queued_messages = messages;
        self
    }

    /// Maximum payload queued for one subscriber in bytes, at least 1; a larger message is queued alone. Default 1
    /// MiB, as [`Config::max_outbound`](crate::Config::max_outbound). Applies with a policy only.
    #[must_use]
    pub fn with_max_queued_bytes(mut self, bytes: usize) -> Self {
        self.max_queued_bytes = bytes;
        self
    }

    /// Retains messages in each matching topic for late subscribers
    /// ([`Context::subscribe_from`](crate::Context::subscribe_from)). Default: none.
    #[must_use]
    pub fn with_history(mut self, history: HistoryPolicy) -> Self {
        self.history = Some(history);
        self
    }

    /// Retains no messages, even if the rule [inherits](Self::with_inheritance) a history.
    #[must_use]
    pub fn without_history(mut self) -> Self {
        (self.history, self.has_no_history) = (None, true);
        self
    }

    /// Takes a setting that this rule does not have, the slow-consumer policy with its limits or the history, from the
    /// next rule that matches the topic. Default: the first matching rule applies alone.
    #[must_use]
    pub fn with_inheritance(mut self) -> Self {
        self.inherits = true;
        self
    }
}

/// Maximum Close reason length in bytes (RFC 6455 section 5.5).
const REASON_MAX: usize = 123;

impl TopicRule {
    fn check(&self) -> Result<(), &'static str> {
        match name::check_subscription(&self.pattern) {
            Err(InvalidTopic::Wildcard) => return Err("`>` may stand at the end of a pattern only"),
            Err(_) => return Err("the pattern is no name of topics"),
            Ok(()) => {}
        }
        let too_long =
            matches!(&self.slow, Some(SlowConsumer::Close(_, reason)) if reason.len() > REASON_MAX);
        let faults = [
            (self.max_queued_messages == 0, "max_queued_messages must be at least 1"),
            (self.max_queued_bytes == 0, "max_queued_bytes must be at least 1"),
            (self.history.is_some_and(|history| history.messages == 0), "a history has at least 1 message"),
            (too_long, "the reason of a Close has at most 123 bytes"),
        ];
        let fault = faults.into_iter().find(|(at_fault, _)| *at_fault);
        fault.map_or(Ok(()), |(_, fault)| Err(fault))
    }
}

/// A rule's index, or none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RuleId(u16);

impl RuleId {
    /// No rule: the policy on the subscriber's route.
    pub(crate) const NONE: Self = Self(0);
}

/// A server's rules; the first match applies, and the next ones for settings that it inherits.
#[derive(Debug, Default)]
pub(crate) struct TopicRules(Vec<TopicRule>);

/// Queue limits, and the action beyond them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueLimits<'a> {
    pub(crate) slow: &'a SlowConsumer,
    pub(crate) messages: usize,
    pub(crate) bytes: usize,
}

impl TopicRules {
    pub(crate) fn new(rules: Vec<TopicRule>) -> Self {
        Self(rules)
    }

    /// Checks every rule; returns an invalid one's pattern and the fault.
    pub(crate) fn check(rules: &[TopicRule]) -> Result<(), (&str, &'static str)> {
        if rules.len() >= usize::from(u16::MAX) {
            return Err(("", "there are more than 65,534 rules"));
        }
        rules.iter().try_for_each(|rule| rule.check().map_err(|fault| (&*rule.pattern, fault)))
    }

    /// Returns the rule whose setting applies to a topic: the first match that has the setting, or does not inherit it.
    fn rule_for(&self, name: &str, has_setting: impl Fn(&TopicRule) -> bool) -> RuleId {
        if name::watched_topic(name).is_some() {
            // An update must not replace another, and a watcher lists the members rather than a history.
            return RuleId::NONE;
        }
        let applies =
            |rule: &TopicRule| name::matches(&rule.pattern, name) && (!rule.inherits || has_setting(rule));
        self.0.iter().position(applies).map_or(RuleId::NONE, |index| RuleId(index as u16 + 1))
    }

    /// Returns a topic's rule, if it has a policy for slow subscribers.
    pub(crate) fn slow(&self, name: &str) -> RuleId {
        let rule = self.rule_for(name, |rule| rule.slow.is_some());
        if self.limits(rule).is_some() { rule } else { RuleId::NONE }
    }

    /// Returns a topic's history policy.
    pub(crate) fn history(&self, name: &str) -> Option<&HistoryPolicy> {
        let rule = self.rule_for(name, |rule| rule.history.is_some() || rule.has_no_history);
        self.0.get(usize::from(rule.0).checked_sub(1)?)?.history.as_ref()
    }

    /// Returns whether any rule has a history policy.
    pub(crate) fn any_history(&self) -> bool {
        self.0.iter().any(|rule| rule.history.is_some())
    }

    pub(crate) fn limits(&self, rule: RuleId) -> Option<QueueLimits<'_>> {
        let rule = self.0.get(usize::from(rule.0).checked_sub(1)?)?;
        let slow = rule.slow.as_ref()?;
        Some(QueueLimits { slow, messages: rule.max_queued_messages, bytes: rule.max_queued_bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_matching_rule_applies() {
        let slow = |pattern: &str| TopicRule::new(pattern).with_slow_consumer(SlowConsumer::DropNewest);
        let rules =
            TopicRules::new(vec![slow("a.b"), TopicRule::new("a.c"), slow("a.*"), slow("b.>"), slow("b.c")]);
        for (name, rule) in [("a.b", 1), ("a.c", 2), ("a.d", 3), ("a", 0), ("b.c", 4), ("b", 0), ("a.b.c", 0)]
        {
            assert_eq!(rules.rule_for(name, |_| false), RuleId(rule), "{name}");
        }
        assert_eq!(rules.slow("a.c"), RuleId::NONE, "the rule has no policy for slow subscribers");
        assert_eq!(rules.slow("a.b"), RuleId(1));
    }

    #[test]
    fn inheriting_rules_take_missing_settings_from_the_next_match() {
        let rule = |pattern: &str| TopicRule::new(pattern).with_inheritance();
        let rules = TopicRules::new(vec![
            rule("a.b").without_history(),
            rule("a.*").with_history(HistoryPolicy::new(2)),
            rule("a.>").with_slow_consumer(SlowConsumer::Conflate).with_history(HistoryPolicy::new(3)),
            TopicRule::new("b.>"),
            rule(">").with_slow_consumer(SlowConsumer::DropNewest).with_history(HistoryPolicy::new(4)),
        ]);
        for (name, slow, history) in [
            ("a.b", 3, None),
            ("a.c", 3, Some(2)),
            ("a.b.c", 3, Some(3)),
            ("b.c", 0, None),
            ("c", 5, Some(4)),
        ] {
            assert_eq!(rules.slow(name), RuleId(slow), "{name}");
            assert_eq!(rules.history(name).map(|history| history.messages), history, "{name}");
        }
    }

    #[test]
    fn invalid_rules_are_reported() {
        let close = |reason: &str| SlowConsumer::Close(CloseCode::POLICY, reason.to_owned());
        let a = || TopicRule::new("a");
        for rule in [
            TopicRule::new(""),
            TopicRule::new("a.>.b"),
            a().with_max_queued_messages(0),
            a().with_max_queued_bytes(0),
            a().with_history(HistoryPolicy::new(0)),
            a().with_slow_consumer(close(&"x".repeat(124))),
        ] {
            assert!(TopicRules::check(&[a(), rule.clone()]).is_err(), "{rule:?}");
        }
        assert_eq!(TopicRules::check(&[a().with_slow_consumer(close(&"x".repeat(123)))]), Ok(()));
    }
}
