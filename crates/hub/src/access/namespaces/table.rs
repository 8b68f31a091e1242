//! Topic options, resolved from the namespaces.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sinews_server::{KeyWrite, PresenceInterval, TopicName, TopicPattern, Topics};

use crate::access::namespaces::order::overlap;
use crate::access::namespaces::rates::{RateKind, RateScope, User, UserRates};
use crate::access::namespaces::{
    ClientIdentity, ConnectionRates, Namespace, Namespaces, PublishRate, TopicAccess,
};
use crate::model::HookKind;
use crate::model::brief::brief;
use crate::model::problem::{Problem, code, problem};
use crate::model::stamp::VerifiedSender;
use crate::outgoing::options::{HookFailure, HookOptions, HookTarget};

/// The options of one topic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TopicOptions {
    pub(crate) publish: TopicAccess,
    pub(crate) subscribe: TopicAccess,
    pub(crate) write_keys: TopicAccess,
    pub(crate) has_no_keys: bool,
    pub(crate) has_no_presence: bool,
    /// Messages name their sender.
    pub(crate) has_sender: bool,
    pub(crate) presence_interval: PresenceInterval,
    pub(crate) key_interval: Option<Duration>,
    max_keys: Option<usize>,
    key_ttl: Option<Duration>,
    max_message: Option<usize>,
    connection_rate: Option<(RateScope, PublishRate)>,
    user_rate: Option<(RateScope, PublishRate)>,
    subscribe_rate: Option<(RateScope, PublishRate)>,
    call_rate: Option<(RateScope, PublishRate)>,
    subscribe_hook: Option<Arc<TopicHook>>,
    publish_hook: Option<Arc<TopicHook>>,
    rpc_hook: Option<Arc<TopicHook>>,
}

/// A topic hook.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TopicHook {
    pub(crate) url: String,
    pub(crate) failure: HookFailure,
}

/// A pattern matches topics with different hooks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AmbiguousHook;

impl TopicOptions {
    /// Whether publications have a largest size or a rate.
    pub(crate) fn has_limits(&self) -> bool {
        self.max_message.is_some() || self.connection_rate.is_some() || self.user_rate.is_some()
    }

    /// Checks a publication's size.
    ///
    /// # Errors
    /// It exceeds the limit.
    pub(crate) fn check_size(&self, topic: &str, bytes: usize) -> Result<(), Problem> {
        match self.max_message.filter(|max| bytes > *max) {
            None => Ok(()),
            Some(max) => {
                let text =
                    format!("message of {bytes} bytes exceeds max_message ({max}) of {}", brief(topic));
                Err(problem(code::TOO_LARGE, text))
            }
        }
    }

    /// Adds a topic's limits to a key write.
    pub(crate) fn limit_key(&self, mut write: KeyWrite) -> KeyWrite {
        if let Some(keys) = self.max_keys {
            write = write.with_max_keys(keys);
        }
        match self.key_ttl {
            Some(ttl) => write.with_default_ttl(ttl),
            None => write,
        }
    }

    pub(crate) fn hook(&self, kind: HookKind) -> Option<&Arc<TopicHook>> {
        match kind {
            HookKind::Subscribe => self.subscribe_hook.as_ref(),
            HookKind::Publish => self.publish_hook.as_ref(),
            HookKind::Rpc => self.rpc_hook.as_ref(),
            HookKind::Connect | HookKind::Refresh => None,
        }
    }
}

/// Namespaces in the form in which rights use them.
#[derive(Debug)]
pub(crate) struct NamespaceTable {
    /// The most specific first.
    list: Vec<(TopicPattern<'static>, Namespace)>,
    /// Distinguishes the tables of a process, for the cache of each thread.
    id: u64,
    users: UserRates,
    /// Hooks for all topics.
    hooks: HookOptions,
}

/// Checks that messages can name a user.
fn check_sender(topic: &str, user: &str) -> Result<(), Problem> {
    let (bytes, limit) = (user.len(), VerifiedSender::USER_MAX);
    if bytes <= limit {
        return Ok(());
    }
    let text = format!(
        "the token's sub of {bytes} bytes exceeds the limit of {limit} bytes of topics with sender, such as {}",
        brief(topic)
    );
    Err(problem(code::TOO_LARGE, text))
}

/// Topics that a thread has resolved; when the cache is full, it is emptied.
const RESOLVED_MAX: usize = 4_096;

thread_local! {
    static RESOLVED: RefCell<(u64, HashMap<String, Arc<TopicOptions>>)> = RefCell::default();
}

impl NamespaceTable {
    /// Creates the table; `None` if no topic has an option.
    pub(crate) fn new(namespaces: &Namespaces, hooks: &HookOptions) -> Option<Arc<Self>> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let parsed = namespaces.list().iter().filter_map(|namespace| {
            let pattern = TopicPattern::parse(namespace.pattern.clone()).ok()?;
            Some((pattern, namespace.clone()))
        });
        let (list, id) = (parsed.collect(), NEXT.fetch_add(1, Ordering::Relaxed));
        let has_hooks = hooks.subscribe.is_some() || hooks.publish.is_some() || hooks.rpc.is_some();
        let (users, hooks) = (UserRates::default(), hooks.clone());
        (has_hooks || !namespaces.is_empty()).then(|| Arc::new(Self { list, id, users, hooks }))
    }

    /// The namespaces, the most specific first.
    pub(crate) fn namespaces(&self) -> impl Iterator<Item = &Namespace> {
        self.list.iter().map(|(_, namespace)| namespace)
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// Returns a topic's options, resolved once on each thread.
    pub(crate) fn options_for(&self, topic: &str) -> Arc<TopicOptions> {
        RESOLVED.with_borrow_mut(|(id, resolved)| {
            if *id != self.id {
                (*id, *resolved) = (self.id, HashMap::new());
            }
            if let Some(options) = resolved.get(topic) {
                return Arc::clone(options);
            }
            if resolved.len() >= RESOLVED_MAX {
                resolved.clear();
            }
            let options = Arc::new(self.resolve(topic));
            resolved.insert(topic.to_owned(), Arc::clone(&options));
            options
        })
    }

    fn resolve(&self, topic: &str) -> TopicOptions {
        let Ok(name) = TopicName::parse(topic) else { return TopicOptions::default() };
        let matching = || self.list.iter().enumerate().filter(|(_, (pattern, _))| pattern.matches(&name));
        /// The first value that is set.
        macro_rules! first {
            ($field:ident) => {
                matching().find_map(|(_, (_, namespace))| namespace.$field)
            };
        }
        let rate = |get: fn(&Namespace) -> Option<PublishRate>| {
            matching().find_map(|(at, (_, namespace))| Some((at as RateScope, get(namespace)?)))
        };
        let failure = first!(hook_failure).unwrap_or(self.hooks.failure);
        let hook = |get: fn(&Namespace) -> Option<&HookTarget>, all: &Option<String>| {
            let target = matching().find_map(|(_, (_, namespace))| get(namespace));
            url_of(target, all).map(|url| Arc::new(TopicHook { url, failure }))
        };
        TopicOptions {
            subscribe_hook: hook(|namespace| namespace.subscribe_hook.as_ref(), &self.hooks.subscribe),
            publish_hook: hook(|namespace| namespace.publish_hook.as_ref(), &self.hooks.publish),
            rpc_hook: hook(|namespace| namespace.rpc_hook.as_ref(), &self.hooks.rpc),
            publish: first!(publish).unwrap_or_default(),
            subscribe: first!(subscribe).unwrap_or_default(),
            write_keys: first!(write_keys).unwrap_or_default(),
            has_no_keys: first!(keyed) == Some(false),
            has_no_presence: first!(presence) == Some(false),
            has_sender: first!(sender) == Some(true),
            presence_interval: PresenceInterval::new(
                first!(presence_interval).unwrap_or(Topics::PRESENCE_INTERVAL),
                first!(presence_interval_max).unwrap_or(PresenceInterval::DEFAULT_MAX),
            ),
            key_interval: first!(key_interval),
            max_keys: first!(max_keys),
            key_ttl: first!(key_ttl),
            max_message: first!(max_message),
            connection_rate: rate(|namespace| namespace.connection_rate),
            user_rate: rate(|namespace| namespace.user_rate),
            subscribe_rate: rate(|namespace| namespace.subscribe_rate),
            call_rate: rate(|namespace| namespace.call_rate),
        }
    }

    /// Returns the clients that may subscribe to a topic or pattern: each returned rule must permit it.
    pub(crate) fn subscribe_access(&self, topic: &str) -> Vec<TopicAccess> {
        let Ok(requested) = TopicPattern::parse(topic) else { return vec![TopicAccess::Token] };
        if !requested.has_wildcard() {
            return vec![self.options_for(topic).subscribe];
        }
        let mut rules = Vec::new();
        for (pattern, namespace) in &self.list {
            let Some(access) = namespace.subscribe else { continue };
            if pattern.covers(&requested) {
                rules.push(access);
                return rules;
            }
            if overlap(pattern.as_str(), topic) {
                rules.push(access);
            }
        }
        rules.push(TopicAccess::default());
        rules
    }

    /// Returns the hook for subscriptions to a topic or pattern.
    ///
    /// # Errors
    /// A more specific namespace, to which some of the pattern's topics belong, has another hook.
    pub(crate) fn subscribe_hook(&self, topic: &str) -> Result<Option<Arc<TopicHook>>, AmbiguousHook> {
        let Ok(requested) = TopicPattern::parse(topic) else { return Ok(None) };
        if !requested.has_wildcard() {
            return Ok(self.options_for(topic).subscribe_hook.clone());
        }
        let covering = || self.list.iter().filter(|(pattern, _)| pattern.covers(&requested));
        let governing = covering().find_map(|(_, namespace)| namespace.subscribe_hook.as_ref());
        let url = url_of(governing, &self.hooks.subscribe);
        for (pattern, namespace) in &self.list {
            let Some(target) = &namespace.subscribe_hook else { continue };
            if pattern.covers(&requested) {
                break;
            }
            let other = url_of(Some(target), &None);
            if overlap(pattern.as_str(), topic) && other.is_some() && other != url {
                return Err(AmbiguousHook);
            }
        }
        let failure = if self.may_fail_open(&requested) { HookFailure::Open } else { HookFailure::Closed };
        Ok(url.map(|url| Arc::new(TopicHook { url, failure })))
    }

    /// Returns whether all topics of a pattern are available without an answer of the hook.
    fn may_fail_open(&self, requested: &TopicPattern<'_>) -> bool {
        for (pattern, namespace) in &self.list {
            let Some(failure) = namespace.hook_failure else { continue };
            if pattern.covers(requested) {
                return failure == HookFailure::Open;
            }
            if failure == HookFailure::Closed && overlap(pattern.as_str(), requested.as_str()) {
                return false;
            }
        }
        self.hooks.failure == HookFailure::Open
    }

    /// Checks a publication's size, and takes it from the rates of the connection and the user.
    ///
    /// # Errors
    /// The exceeded limit.
    pub(crate) fn check_publication(
        &self,
        topic: &str,
        bytes: usize,
        client: ClientIdentity<'_>,
        rates: &mut ConnectionRates,
    ) -> Result<(), Problem> {
        let options = self.options_for(topic);
        options.check_size(topic, bytes)?;
        if let Some(user) = client.subject.filter(|_| options.has_sender) {
            check_sender(topic, user)?;
        }
        if options.connection_rate.is_none() && options.user_rate.is_none() {
            return Ok(());
        }
        let now = self.users.now();
        let exceeded = |key: &str, rate: PublishRate| {
            let text = format!("publications to {} exceed {key} ({})", brief(topic), rate.per_second);
            Err(problem(code::TOO_MANY, text))
        };
        if let Some((scope, rate)) = options.connection_rate
            && !rates.take(self.id, (RateKind::Publish, scope), rate, now)
        {
            return exceeded("publishes_per_second", rate);
        }
        if let Some((scope, rate)) = options.user_rate
            && !self.users.take((RateKind::Publish, scope), User::new(client), rate, now)
        {
            return exceeded("user_publishes_per_second", rate);
        }
        Ok(())
    }

    /// Takes a subscription from the connection's rate. A pattern counts for the first namespace with a rate whose
    /// topics it may match.
    ///
    /// # Errors
    /// The exceeded limit.
    pub(crate) fn check_subscription(&self, topic: &str, rates: &mut ConnectionRates) -> Result<(), Problem> {
        let is_name = TopicName::parse(topic).is_ok();
        let of_pattern = || {
            let mut list = self.list.iter().enumerate();
            list.find_map(|(at, (pattern, namespace))| {
                let rate = namespace.subscribe_rate?;
                overlap(pattern.as_str(), topic).then_some((at as RateScope, rate))
            })
        };
        let limit = if is_name { self.options_for(topic).subscribe_rate } else { of_pattern() };
        self.take(RateKind::Subscribe, limit, rates).map_err(|rate| {
            exceeded(&format!("subscriptions to {} exceed subscribes_per_second", brief(topic)), rate)
        })
    }

    /// Takes a call from the connection's rate: that for the topic's namespace, or else that for all calls, which also
    /// has one for the user. A user's plain requests, which have no connection, share one connection's rate.
    ///
    /// # Errors
    /// The exceeded limit.
    pub(crate) fn check_call(
        &self,
        topic: Option<&str>,
        client: ClientIdentity<'_>,
        rates: Option<&mut ConnectionRates>,
    ) -> Result<(), Problem> {
        let now = self.users.now();
        let take_user = |kind, rate| self.users.take(kind, User::new(client), rate, now);
        let take = |kind, rate| match rates {
            Some(rates) => rates.take(self.id, kind, rate, now),
            None => take_user(kind, rate),
        };
        if let Some(topic) = topic
            && let Some((scope, rate)) = self.options_for(topic).call_rate
        {
            return match take((RateKind::Call, scope), rate) {
                true => Ok(()),
                false => Err(exceeded(&format!("calls of {} exceed calls_per_second", brief(topic)), rate)),
            };
        }
        let [rate, user_rate] = self.hooks.call_rates.map(PublishRate::new);
        if !take((RateKind::OtherCall, ALL_TOPICS), rate) {
            return Err(exceeded("calls exceed hooks.calls_per_second", rate));
        }
        if !take_user((RateKind::UserCall, ALL_TOPICS), user_rate) {
            return Err(exceeded("calls of the user exceed hooks.user_calls_per_second", user_rate));
        }
        Ok(())
    }

    /// Takes an operation from the connection's rate; returns the rate if it is exceeded.
    fn take(
        &self,
        kind: RateKind,
        limit: Option<(RateScope, PublishRate)>,
        rates: &mut ConnectionRates,
    ) -> Result<(), PublishRate> {
        match limit {
            Some((scope, rate)) if !rates.take(self.id, (kind, scope), rate, self.users.now()) => Err(rate),
            _ => Ok(()),
        }
    }
}

/// Scope for a rate that belongs to no namespace.
const ALL_TOPICS: RateScope = 0;

fn exceeded(what: &str, rate: PublishRate) -> Problem {
    problem(code::TOO_MANY, format!("{what} ({})", rate.per_second))
}

/// Returns the URL of a namespace's hook, or else of the hook for all topics.
fn url_of(target: Option<&HookTarget>, all: &Option<String>) -> Option<String> {
    match target {
        None => all.clone(),
        Some(HookTarget::Off) => None,
        Some(HookTarget::Url(url)) => Some(url.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::auth::{Action, Rights};
    use crate::access::namespaces::LiveNamespaces;

    fn table(namespaces: Vec<Namespace>) -> Arc<NamespaceTable> {
        NamespaceTable::new(&Namespaces::new(namespaces).unwrap(), &HookOptions::new()).unwrap()
    }

    #[test]
    fn each_option_comes_from_the_most_specific_namespace_that_sets_it() {
        let table = table(vec![
            Namespace::new(">").with_max_message(10).with_publish(TopicAccess::Nobody),
            Namespace::new("a.>").with_publish(TopicAccess::Anonymous).with_keyed(false),
            Namespace::new("a.b").with_max_message(20),
        ]);
        let options = table.options_for("a.b");
        assert_eq!((options.publish, options.max_message), (TopicAccess::Anonymous, Some(20)));
        assert!(options.has_no_keys && !options.has_no_presence);
        assert_eq!(
            (table.options_for("a.c").max_message, table.options_for("c").publish),
            (Some(10), TopicAccess::Nobody)
        );
        assert!(Arc::ptr_eq(&options, &table.options_for("a.b")), "a topic is resolved once");
        let other = self::table(vec![Namespace::new("x")]);
        assert_eq!(*other.options_for("a.b"), TopicOptions::default(), "tables share no options");
    }

    #[test]
    fn pattern_subscription_needs_each_namespace_that_it_may_match() {
        use TopicAccess::{Anonymous, Authenticated, Nobody, Token};
        let table = table(vec![
            Namespace::new("a.secret").with_subscribe(Nobody),
            Namespace::new("a.*").with_subscribe(Anonymous),
            Namespace::new("b.>").with_subscribe(Authenticated),
            Namespace::new("c.>").with_max_message(1),
        ]);
        for (topic, rules) in [
            ("a.x", vec![Anonymous]),
            ("a.*", vec![Nobody, Anonymous]),
            ("a.>", vec![Nobody, Anonymous, Token]),
            ("b.*", vec![Authenticated]),
            ("c.*", vec![Token]),
            (">", vec![Nobody, Anonymous, Authenticated, Token]),
        ] {
            assert_eq!(table.subscribe_access(topic), rules, "{topic}");
        }
    }

    #[test]
    fn pattern_subscription_is_denied_if_a_less_specific_namespace_denies_it() {
        let live = LiveNamespaces::default();
        live.replace(Some(table(vec![
            Namespace::new("a.b").with_subscribe(TopicAccess::Anonymous),
            Namespace::new("a.*").with_subscribe(TopicAccess::Nobody),
        ])));
        let rights = Rights::none().under(Arc::new(live));
        let may = |topic| rights.may(Action::Subscribe, topic).map_err(|denied| denied.status);
        assert_eq!(["a.b", "a.c", "a.*"].map(may), [Ok(()), Err(403), Err(403)]);
    }

    #[test]
    fn addresses_of_one_ipv6_network_share_the_rate_of_a_user() {
        let table = table(vec![Namespace::new("a").with_user_rate(PublishRate::new(1))]);
        let publish = |address: &str| {
            let address = address.parse().unwrap();
            let client = ClientIdentity { subject: None, address: Some(address) };
            table.check_publication("a", 1, client, &mut ConnectionRates::default())
        };
        assert!(publish("2001:db8:0:1::1").is_ok());
        assert!(publish("2001:db8:0:1:ffff::2").is_err(), "the same customer");
        assert!(publish("2001:db8:0:2::1").is_ok() && publish("192.0.2.1").is_ok());
        assert!(publish("::ffff:192.0.2.1").is_err() && publish("192.0.2.2").is_ok());
    }

    #[test]
    fn calls_of_a_namespace_of_a_connection_and_of_a_user_have_rates() {
        let table = |rate, user_rate| {
            let namespaces = Namespaces::new([Namespace::new("own").with_call_rate(PublishRate::new(2))]);
            let hooks = HookOptions::new().with_call_rates(rate, user_rate);
            NamespaceTable::new(&namespaces.unwrap(), &hooks).unwrap()
        };
        let named = |user| ClientIdentity { subject: Some(user), address: None };
        // The rates refill while the test runs: the first rejection is awaited.
        let rejection = |table: &NamespaceTable, user, topic, mut rates: Option<&mut ConnectionRates>| {
            let call = || table.check_call(topic, named(user), rates.as_deref_mut()).err();
            std::iter::repeat_with(call).take(1_000).flatten().next().map(|problem| problem.text)
        };
        let [mut one, mut other] = [(); 2].map(|()| ConnectionRates::default());
        let of_connections = table(1, 1_000_000);
        for (topic, text) in [
            (None, "calls exceed hooks.calls_per_second (1)"),
            (Some("other"), "calls exceed hooks.calls_per_second (1)"),
            (Some("own"), "calls of own exceed calls_per_second (2)"),
        ] {
            assert_eq!(rejection(&of_connections, "anna", topic, Some(&mut one)).as_deref(), Some(text));
        }
        assert!(of_connections.check_call(None, named("anna"), Some(&mut other)).is_ok());
        let of_users = table(1_000_000, 1);
        for rates in [Some(&mut one), Some(&mut other), None] {
            let text = rejection(&of_users, "anna", None, rates);
            assert_eq!(text.as_deref(), Some("calls of the user exceed hooks.user_calls_per_second (1)"));
        }
        assert!(of_users.check_call(None, named("ben"), None).is_ok());
    }

    #[test]
    fn hooks_of_topics_and_patterns() {
        let url = |url: &str| HookTarget::Url(url.to_owned());
        let namespaces = [
            Namespace::new("a.>").with_subscribe_hook(url("http://a")).with_hook_failure(HookFailure::Open),
            Namespace::new("a.free.>").with_subscribe_hook(HookTarget::Off),
            Namespace::new("a.closed.secret").with_hook_failure(HookFailure::Closed),
            Namespace::new("b.>").with_publish_hook(HookTarget::Off),
        ];
        let hooks = HookOptions::new().with_publish("http://all");
        let table = NamespaceTable::new(&Namespaces::new(namespaces).unwrap(), &hooks).unwrap();
        let publish =
            |topic: &str| table.options_for(topic).hook(HookKind::Publish).map(|hook| hook.url.clone());
        assert_eq!((publish("a.x").as_deref(), publish("b.x")), (Some("http://all"), None));
        let subscribe = |topic: &str| table.subscribe_hook(topic).map(|hook| hook.map(|hook| hook.failure));
        for (topic, hook) in [
            ("a.x", Ok(Some(HookFailure::Open))),
            ("a.free.x", Ok(None)),
            ("a.free.*", Ok(None)),
            ("a.*", Ok(Some(HookFailure::Open))),
            ("a.closed.x", Ok(Some(HookFailure::Open))),
            ("a.closed.secret", Ok(Some(HookFailure::Closed))),
            ("a.closed.*", Ok(Some(HookFailure::Closed))),
            ("a.>", Ok(Some(HookFailure::Closed))),
            ("b.*", Ok(None)),
            (">", Err(AmbiguousHook)),
            ("*.x", Err(AmbiguousHook)),
        ] {
            assert_eq!(subscribe(topic), hook, "{topic}");
        }
    }

    #[test]
    fn resolved_topics_of_a_thread_are_bounded() {
        let table = table(vec![Namespace::new(">").with_keyed(false)]);
        for number in 0..2 * RESOLVED_MAX {
            assert!(table.options_for(&number.to_string()).has_no_keys);
        }
        assert!(RESOLVED.with_borrow(|(_, resolved)| resolved.len()) <= RESOLVED_MAX);
    }
}
