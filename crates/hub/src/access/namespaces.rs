//! Namespaces: topic options by pattern.

mod live;
pub(crate) mod order;
mod rates;
mod table;

use std::time::Duration;

use sinews_server::{KeySubscription, PresenceInterval, SlowConsumer};

pub(crate) use self::live::LiveNamespaces;
use self::order::order;
pub(crate) use self::rates::{ClientIdentity, ConnectionRates};
pub(crate) use self::table::{AmbiguousHook, NamespaceTable, TopicHook};
use crate::error::HubError;
use crate::model::check_pattern;
use crate::outgoing::options::{HookFailure, HookTarget};

/// Options for the topics that a pattern matches.
///
/// Each topic option comes from the most specific namespace that matches the topic and sets the option. Patterns are
/// compared part by part: a name is more specific than `*`, and `*` than `>`; the first difference decides. So
/// `chat.team.>` overrides `chat.*.news`, and `chat.>` overrides `>`. An option that no namespace sets has the default
/// that its method states.
///
/// ```
/// use sinews_hub::{Namespace, TopicAccess};
///
/// let alerts = Namespace::new("alerts.>").with_history(100).with_publish(TopicAccess::Nobody);
/// # drop(alerts);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    pub(crate) pattern: String,
    /// 0: no history.
    pub(crate) history: Option<usize>,
    pub(crate) history_age: Option<Duration>,
    pub(crate) durable: Option<bool>,
    pub(crate) sender: Option<bool>,
    pub(crate) timestamps: Option<bool>,
    pub(crate) slow_consumer: Option<SlowConsumer>,
    pub(crate) publish: Option<TopicAccess>,
    pub(crate) subscribe: Option<TopicAccess>,
    pub(crate) write_keys: Option<TopicAccess>,
    pub(crate) keyed: Option<bool>,
    pub(crate) presence: Option<bool>,
    pub(crate) presence_interval: Option<Duration>,
    pub(crate) presence_interval_max: Option<Duration>,
    pub(crate) key_interval: Option<Duration>,
    pub(crate) durable_keys: Option<bool>,
    pub(crate) max_keys: Option<usize>,
    pub(crate) key_ttl: Option<Duration>,
    pub(crate) max_message: Option<usize>,
    pub(crate) connection_rate: Option<PublishRate>,
    pub(crate) user_rate: Option<PublishRate>,
    pub(crate) subscribe_rate: Option<PublishRate>,
    pub(crate) call_rate: Option<PublishRate>,
    pub(crate) subscribe_hook: Option<HookTarget>,
    pub(crate) publish_hook: Option<HookTarget>,
    pub(crate) rpc_hook: Option<HookTarget>,
    pub(crate) hook_failure: Option<HookFailure>,
}

/// Clients that may do an action on a namespace's topics. Backends use the HTTP API, which no namespace restricts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum TopicAccess {
    /// Every client, also without a token.
    Anonymous,
    /// Every client with a valid token, whatever topics the token names, and every client to which a connection hook
    /// has granted claims with a `sub` or an `exp`.
    Authenticated,
    /// Clients whose token or claims grant the right, and the public topics of
    /// [`AuthOptions`](crate::access::auth::AuthOptions). Without token keys and without a connection hook, every
    /// client.
    #[default]
    Token,
    /// No client.
    Nobody,
}

/// A publication rate, with a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublishRate {
    pub(crate) per_second: u32,
    pub(crate) burst: u32,
}

impl PublishRate {
    /// Permits this many publications a second, at least 1, and as many at once after an idle second.
    #[must_use]
    pub fn new(per_second: u32) -> Self {
        let per_second = per_second.max(1);
        Self { per_second, burst: per_second }
    }

    /// Sets how many publications are permitted at once after an idle time, at least 1. Default: those of one second.
    #[must_use]
    pub fn with_burst(mut self, burst: u32) -> Self {
        self.burst = burst.max(1);
        self
    }
}

impl Namespace {
    /// Creates a namespace for the topics that a pattern matches ([`TopicPattern`](sinews_server::TopicPattern)),
    /// without options.
    #[must_use]
    pub fn new(pattern: impl Into<String>) -> Self {
        Self {
            pattern: pattern.into(),
            history: None,
            history_age: None,
            durable: None,
            sender: None,
            timestamps: None,
            slow_consumer: None,
            publish: None,
            subscribe: None,
            write_keys: None,
            keyed: None,
            presence: None,
            presence_interval: None,
            presence_interval_max: None,
            key_interval: None,
            durable_keys: None,
            max_keys: None,
            key_ttl: None,
            max_message: None,
            connection_rate: None,
            user_rate: None,
            subscribe_rate: None,
            call_rate: None,
            subscribe_hook: None,
            publish_hook: None,
            rpc_hook: None,
            hook_failure: None,
        }
    }

    /// Retains this many messages in each topic; 0 retains none. Default: none. A durable topic has its stream instead.
    #[must_use]
    pub fn with_history(mut self, messages: usize) -> Self {
        self.history = Some(messages);
        self
    }

    /// Sets the maximum age of retained messages, together with the namespace's [`with_history`](Self::with_history).
    /// Default: no limit.
    #[must_use]
    pub fn with_history_age(mut self, age: Duration) -> Self {
        self.history_age = Some(age);
        self
    }

    /// Makes the topics durable: publications are appended to the stream with the same name. Needs
    /// [`HubBuilder::streams`](crate::HubBuilder::streams). Default: not durable.
    #[must_use]
    pub fn with_durable(mut self, durable: bool) -> Self {
        self.durable = Some(durable);
        self
    }

    /// Sets whether messages of clients name their sender: `user`, the `sub` of the token or the claims of the client
    /// that has published, and `info`, its claim of this name. Clients cannot write either. Default: they do not.
    #[must_use]
    pub fn with_sender(mut self, sender: bool) -> Self {
        self.sender = Some(sender);
        self
    }

    /// Sets whether messages have `at`, the time of their publication. Default: those of topics with a history or a
    /// stream.
    #[must_use]
    pub fn with_timestamps(mut self, timestamps: bool) -> Self {
        self.timestamps = Some(timestamps);
        self
    }

    /// Sets the action for slow subscribers. Default: the policy in the WebSocket's
    /// [`Config`](sinews_server::Config). Durable topics have their own policy: a slow subscriber reads the stream.
    #[must_use]
    pub fn with_slow_consumer(mut self, slow: SlowConsumer) -> Self {
        self.slow_consumer = Some(slow);
        self
    }

    /// Sets the clients that may publish. Default: [`TopicAccess::Token`].
    #[must_use]
    pub fn with_publish(mut self, access: TopicAccess) -> Self {
        self.publish = Some(access);
        self
    }

    /// Sets the clients that may subscribe, and read histories, keys and presence. A subscription to a pattern needs
    /// permission from each namespace whose topics it may match. Default: [`TopicAccess::Token`].
    #[must_use]
    pub fn with_subscribe(mut self, access: TopicAccess) -> Self {
        self.subscribe = Some(access);
        self
    }

    /// Sets the clients that may write keys. Default: [`TopicAccess::Token`].
    #[must_use]
    pub fn with_write_keys(mut self, access: TopicAccess) -> Self {
        self.write_keys = Some(access);
        self
    }

    /// Sets whether clients may write keys and subscribe to keys. Default: they may.
    #[must_use]
    pub fn with_keyed(mut self, keyed: bool) -> Self {
        self.keyed = Some(keyed);
        self
    }

    /// Sets whether clients may join topics and see others' presence. Default: they may.
    #[must_use]
    pub fn with_presence(mut self, presence: bool) -> Self {
        self.presence = Some(presence);
        self
    }

    /// Sets the minimum interval between two presence updates for a topic, at most [`PresenceInterval::MAX`]. The first
    /// change after a quiet interval is sent at once. Default: 100 ms.
    #[must_use]
    pub fn with_presence_interval(mut self, min: Duration) -> Self {
        self.presence_interval = Some(min);
        self
    }

    /// Sets the maximum interval between two presence updates for a topic with many watchers, at most
    /// [`PresenceInterval::MAX`]: the interval is 1 ms for each watcher on a node, but at least the
    /// [minimum](Self::with_presence_interval). Default: 5 s.
    #[must_use]
    pub fn with_presence_interval_max(mut self, max: Duration) -> Self {
        self.presence_interval_max = Some(max);
        self
    }

    /// Sets the shortest interval between two key updates to one subscriber, at most [`KeySubscription::INTERVAL_MAX`];
    /// between them, only a key's last value is kept. Default: the interval that the subscriber asks for, or none.
    #[must_use]
    pub fn with_key_interval(mut self, interval: Duration) -> Self {
        self.key_interval = Some(interval);
        self
    }

    /// Makes the topics' keys durable: each topic's changes are stored in a compacted stream. Needs
    /// [`HubBuilder::streams`](crate::HubBuilder::streams) in a directory. Default: keys are in memory.
    #[must_use]
    pub fn with_durable_keys(mut self, durable: bool) -> Self {
        self.durable_keys = Some(durable);
        self
    }

    /// Sets the maximum number of keys in each topic, at most 10,000. Default: 10,000.
    #[must_use]
    pub fn with_max_keys(mut self, keys: usize) -> Self {
        self.max_keys = Some(keys);
        self
    }

    /// Sets the time to live for values whose writer gives none, from 1 ms to 366 days. Default: they do not expire.
    #[must_use]
    pub fn with_key_ttl(mut self, ttl: Duration) -> Self {
        self.key_ttl = Some(ttl);
        self
    }

    /// Sets the maximum size of a publication and a key value, in bytes. Default: the hub's limit.
    #[must_use]
    pub fn with_max_message(mut self, bytes: usize) -> Self {
        self.max_message = Some(bytes);
        self
    }

    /// Limits one connection's publications and key writes, to all topics of the namespace together. Default: no limit.
    #[must_use]
    pub fn with_connection_rate(mut self, rate: PublishRate) -> Self {
        self.connection_rate = Some(rate);
        self
    }

    /// Limits one user's publications and key writes on this node, to all topics of the namespace together. The user is
    /// the token's `sub`, or else the client's address (for IPv6: its /64). Default: no limit.
    #[must_use]
    pub fn with_user_rate(mut self, rate: PublishRate) -> Self {
        self.user_rate = Some(rate);
        self
    }

    /// Limits one connection's `subscribe` ops, to all topics and keys of the namespace together. Default: no limit.
    #[must_use]
    pub fn with_subscribe_rate(mut self, rate: PublishRate) -> Self {
        self.subscribe_rate = Some(rate);
        self
    }

    /// Limits one connection's calls (`rpc`) with a topic in the namespace. A user's plain HTTP calls share one rate
    /// with the same limit. Default: no limit.
    #[must_use]
    pub fn with_call_rate(mut self, rate: PublishRate) -> Self {
        self.call_rate = Some(rate);
        self
    }

    /// Sets the hook that decides about subscriptions. Default: [`HookOptions::with_subscribe`].
    ///
    /// [`HookOptions::with_subscribe`]: crate::HookOptions::with_subscribe
    #[must_use]
    pub fn with_subscribe_hook(mut self, target: HookTarget) -> Self {
        self.subscribe_hook = Some(target);
        self
    }

    /// Sets the hook that decides about publications. Default: [`HookOptions::with_publish`].
    ///
    /// [`HookOptions::with_publish`]: crate::HookOptions::with_publish
    #[must_use]
    pub fn with_publish_hook(mut self, target: HookTarget) -> Self {
        self.publish_hook = Some(target);
        self
    }

    /// Sets the hook that answers calls with a topic. Default: [`HookOptions::with_rpc`].
    ///
    /// [`HookOptions::with_rpc`]: crate::HookOptions::with_rpc
    #[must_use]
    pub fn with_rpc_hook(mut self, target: HookTarget) -> Self {
        self.rpc_hook = Some(target);
        self
    }

    /// Sets what happens if the application does not answer a hook for these topics. Default:
    /// [`HookOptions::with_failure`].
    ///
    /// [`HookOptions::with_failure`]: crate::HookOptions::with_failure
    #[must_use]
    pub fn with_hook_failure(mut self, failure: HookFailure) -> Self {
        self.hook_failure = Some(failure);
        self
    }

    /// The hooks that it sets.
    fn hooks(&self) -> impl Iterator<Item = &HookTarget> {
        [&self.subscribe_hook, &self.publish_hook, &self.rpc_hook].into_iter().flatten()
    }

    /// Checks the options.
    fn check(&self, is_twice: bool) -> Result<(), HubError> {
        let invalid = |text: &str| Err(HubError::setting(text));
        check_pattern(&self.pattern)?;
        if is_twice {
            return invalid("the pattern is given twice");
        }
        self.hooks().try_for_each(HookTarget::check)?;
        if let Some(interval) = self.key_interval.filter(|it| *it > KeySubscription::INTERVAL_MAX) {
            return invalid(&format!("the interval of keys {interval:?} exceeds the limit of 60 s"));
        }
        let intervals = [self.presence_interval, self.presence_interval_max];
        if let Some(interval) = intervals.into_iter().flatten().find(|it| *it > PresenceInterval::MAX) {
            return invalid(&format!("the interval of presence {interval:?} exceeds the limit of 60 s"));
        }
        if let Some(keys) = self.max_keys.filter(|keys| !(1..=KEYS_MAX).contains(keys)) {
            return invalid(&format!("{keys} keys of a topic: the limit is 1 to {KEYS_MAX}"));
        }
        if self.key_ttl.is_some_and(|ttl| ttl < Duration::from_millis(1) || ttl > KEY_TTL_MAX) {
            return invalid("a time to live of keys is 1 ms to 366 days");
        }
        if self.history_age.is_some() && self.history.is_none_or(|messages| messages == 0) {
            return invalid("an age of messages needs a history of messages");
        }
        if self.durable == Some(true) && (self.history.is_some() || self.slow_consumer.is_some()) {
            return invalid(
                "a durable topic has its stream in place of a history and a slow-consumer policy",
            );
        }
        Ok(())
    }
}

/// The namespaces of a hub.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Namespaces(Vec<Namespace>);

/// Maximum namespaces.
const NAMESPACES_MAX: usize = 1_024;

/// Maximum keys in a topic, the server's limit.
const KEYS_MAX: usize = 10_000;

/// Maximum key lifetime, the server's limit.
const KEY_TTL_MAX: Duration = Duration::from_secs(366 * 86_400);

impl Namespaces {
    /// Checks namespaces.
    ///
    /// # Errors
    /// [`HubErrorKind::Pattern`], [`HubErrorKind::Url`] for a hook, or [`HubErrorKind::Setting`], with the invalid
    /// namespace's pattern, and the fault.
    ///
    /// [`HubErrorKind::Pattern`]: crate::HubErrorKind::Pattern
    /// [`HubErrorKind::Url`]: crate::HubErrorKind::Url
    /// [`HubErrorKind::Setting`]: crate::HubErrorKind::Setting
    pub fn new(namespaces: impl IntoIterator<Item = Namespace>) -> Result<Self, HubError> {
        let mut list: Vec<Namespace> = namespaces.into_iter().collect();
        if list.len() > NAMESPACES_MAX {
            let count = list.len();
            return Err(HubError::setting(format!(
                "{count} namespaces exceed the limit of {NAMESPACES_MAX}"
            )));
        }
        list.sort_by(|a, b| order(&a.pattern, &b.pattern));
        for (at, namespace) in list.iter().enumerate() {
            let is_twice = list.get(at + 1).is_some_and(|next| next.pattern == namespace.pattern);
            let checked = namespace.check(is_twice);
            checked.map_err(|error| error.at(format_args!("namespace {:?}", namespace.pattern)))?;
        }
        Ok(Self(list))
    }

    /// The namespaces, the most specific first.
    pub(crate) fn list(&self) -> &[Namespace] {
        &self.0
    }

    /// Returns the URLs of hooks.
    pub(crate) fn urls(&self) -> impl Iterator<Item = &str> {
        self.0.iter().flat_map(Namespace::hooks).filter_map(|target| match target {
            HookTarget::Off => None,
            HookTarget::Url(url) => Some(&**url),
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
