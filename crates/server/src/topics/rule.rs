//! What holds for some topics: settings by pattern.

use sinews_proto::CloseCode;

use super::history::History;
use super::name::{self, InvalidTopic};

/// What happens to a publication when as much waits for a subscriber as may: it reads more slowly than others
/// publish. Nothing of it concerns other subscribers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SlowConsumer {
    /// The publication is dropped: what waits is delivered without a gap, then one follows.
    DropNewest,
    /// What has waited longest is dropped: the subscriber gets the newest, behind a gap.
    DropOldest,
    /// Of each topic only the last value waits; it takes the place of the one before. When there is no place for
    /// another topic, what has waited longest is dropped.
    Conflate,
    /// The connection closes with this code and reason, of at most 123 bytes, behind what waits.
    Close(CloseCode, String),
}

/// What holds for the topics that match a pattern.
///
/// Publications wait for a subscriber when more than [`Config::high_water`](crate::Config::high_water) bytes are on
/// their way to it already. They are shared with all other subscribers, so that each costs some 50 bytes however
/// large it is, and memory of its payload as long as any subscriber waits for it. How much may wait for one subscriber,
/// of all topics of a rule together, is the rule's to say. Without a policy here, what the subscriber's route says
/// holds for its topics: [`Config::overflow`](crate::Config::overflow) and
/// [`Config::max_outbound`](crate::Config::max_outbound).
///
/// What a connection sends itself does not overtake what waits: whatever it sends puts everything that waits in front
/// of it on its way, where as much as here may wait once more, and can be dropped no more. Conflated values are the
/// exception: they go on waiting, and changing.
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
    max_waiting_messages: usize,
    max_waiting_bytes: usize,
    history: Option<History>,
    presence: bool,
}

impl TopicRule {
    /// A rule for the topics that match `pattern`, a name or one with wildcards ([`Topics`](crate::Topics)); it changes
    /// nothing yet.
    #[must_use]
    pub fn new(pattern: impl Into<String>) -> Self {
        Self {
            pattern: pattern.into(),
            slow: None,
            max_waiting_messages: 1_024,
            max_waiting_bytes: 1 << 20,
            history: None,
            presence: false,
        }
    }

    /// What happens when as much waits for a subscriber as may. Default: what its route says.
    #[must_use]
    pub fn with_slow_consumer(mut self, slow: SlowConsumer) -> Self {
        self.slow = Some(slow);
        self
    }

    /// Messages that may wait for one subscriber, at least 1. Default 1,024: with
    /// [`Conflate`](SlowConsumer::Conflate), so many topics. It counts with a policy only.
    #[must_use]
    pub fn with_max_waiting_messages(mut self, messages: usize) -> Self {
        self.max_waiting_messages = messages;
        self
    }

    /// Bytes of payload that may wait for one subscriber, at least 1; one message that is larger waits alone. Default
    /// 1 MiB, as [`Config::max_outbound`](crate::Config::max_outbound). It counts with a policy only.
    #[must_use]
    pub fn with_max_waiting_bytes(mut self, bytes: usize) -> Self {
        self.max_waiting_bytes = bytes;
        self
    }

    /// Tells those who subscribe to its topics by name, or leave them, how many there are
    /// ([`Handler::subscription`](crate::Handler::subscription)). That takes one number for each topic that all threads
    /// change. Default: nobody is told.
    #[must_use]
    pub fn with_presence(mut self, presence: bool) -> Self {
        self.presence = presence;
        self
    }

    /// Keeps messages of each of its topics for those who come later
    /// ([`Context::subscribe_from`](crate::Context::subscribe_from)). Default: none are kept.
    #[must_use]
    pub fn with_history(mut self, history: History) -> Self {
        self.history = Some(history);
        self
    }
}

/// How many bytes the reason of a Close may have (RFC 6455 section 5.5).
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
            (self.max_waiting_messages == 0, "max_waiting_messages must be at least 1"),
            (self.max_waiting_bytes == 0, "max_waiting_bytes must be at least 1"),
            (self.history.is_some_and(|history| history.messages == 0), "a history has at least 1 message"),
            (too_long, "the reason of a Close has at most 123 bytes"),
        ];
        let fault = faults.into_iter().find(|(at_fault, _)| *at_fault);
        fault.map_or(Ok(()), |(_, fault)| Err(fault))
    }
}

/// Names a rule by its place, or none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RuleId(u16);

impl RuleId {
    /// No rule: what the subscriber's route says.
    pub(crate) const NONE: Self = Self(0);
}

/// The rules of a server, the first that matches first.
#[derive(Debug, Default)]
pub(crate) struct Rules(Vec<TopicRule>);

/// How much may wait, and what happens then.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits<'a> {
    pub(crate) slow: &'a SlowConsumer,
    pub(crate) messages: usize,
    pub(crate) bytes: usize,
}

impl Rules {
    pub(crate) fn new(rules: Vec<TopicRule>) -> Self {
        Self(rules)
    }

    /// Whether every rule makes sense; the pattern of one that does not, and why.
    pub(crate) fn check(rules: &[TopicRule]) -> Result<(), (&str, &'static str)> {
        if rules.len() >= usize::from(u16::MAX) {
            return Err(("", "there are more than 65,534 rules"));
        }
        rules.iter().try_for_each(|rule| rule.check().map_err(|fault| (&*rule.pattern, fault)))
    }

    /// The rule of a topic.
    pub(crate) fn of(&self, name: &str) -> RuleId {
        let place = self.0.iter().position(|rule| name::matches(&rule.pattern, name));
        place.map_or(RuleId::NONE, |place| RuleId(place as u16 + 1))
    }

    /// The same, if it says what happens to slow subscribers.
    pub(crate) fn slow(&self, name: &str) -> RuleId {
        let rule = self.of(name);
        if self.limits(rule).is_some() { rule } else { RuleId::NONE }
    }

    /// Whether those who subscribe to a topic are told how many there are.
    pub(crate) fn presence(&self, name: &str) -> bool {
        let rule = usize::from(self.of(name).0).checked_sub(1);
        rule.and_then(|rule| self.0.get(rule)).is_some_and(|rule| rule.presence)
    }

    /// How much of a topic is kept.
    pub(crate) fn history(&self, name: &str) -> Option<&History> {
        self.0.get(usize::from(self.of(name).0).checked_sub(1)?)?.history.as_ref()
    }

    /// Whether anything of any topic is kept.
    pub(crate) fn keep(&self) -> bool {
        self.0.iter().any(|rule| rule.history.is_some())
    }

    pub(crate) fn limits(&self, rule: RuleId) -> Option<Limits<'_>> {
        let rule = self.0.get(usize::from(rule.0).checked_sub(1)?)?;
        let slow = rule.slow.as_ref()?;
        Some(Limits { slow, messages: rule.max_waiting_messages, bytes: rule.max_waiting_bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_rule_that_matches_holds() {
        let slow = |pattern: &str| TopicRule::new(pattern).with_slow_consumer(SlowConsumer::DropNewest);
        let rules =
            Rules::new(vec![slow("a.b"), TopicRule::new("a.c"), slow("a.*"), slow("b.>"), slow("b.c")]);
        for (name, rule) in [("a.b", 1), ("a.c", 2), ("a.d", 3), ("a", 0), ("b.c", 4), ("b", 0), ("a.b.c", 0)]
        {
            assert_eq!(rules.of(name), RuleId(rule), "{name}");
        }
        assert_eq!(rules.slow("a.c"), RuleId::NONE, "it says nothing about slow ones");
        assert_eq!(rules.slow("a.b"), RuleId(1));
    }

    #[test]
    fn rules_that_make_no_sense_are_told() {
        let close = |reason: &str| SlowConsumer::Close(CloseCode::POLICY, reason.to_owned());
        let a = || TopicRule::new("a");
        for rule in [
            TopicRule::new(""),
            TopicRule::new("a.>.b"),
            a().with_max_waiting_messages(0),
            a().with_max_waiting_bytes(0),
            a().with_history(History::new(0)),
            a().with_slow_consumer(close(&"x".repeat(124))),
        ] {
            assert!(Rules::check(&[a(), rule.clone()]).is_err(), "{rule:?}");
        }
        assert_eq!(Rules::check(&[a().with_slow_consumer(close(&"x".repeat(123)))]), Ok(()));
    }
}
