//! Topic options by pattern.

use std::num::NonZeroU32;
use std::time::Duration;

use clap::ValueEnum;
use sinews_hub::{HookTarget, Namespace, Namespaces, PublishRate, TopicAccess, check_pattern};
use sinews_server::{CloseCode, KeySubscription, PresenceInterval, SlowConsumer};

use super::hooks::{self, HookFailureSetting, HookUrlOrOff};
use super::{KeySource, ServeSettings};
use crate::config::file::ConfigFile;
use crate::config::flags::SettingFlags;
use crate::config::resolver::{SettingGroup, SettingNames, SettingResolver};
use crate::config::schema::settings;
use crate::config::units::{ByteSize, MessagesOrOff, PositiveDuration};
use crate::config::value::choice;

settings! {
    /// Options of the topics that match a pattern. A file may have up to 1,024 of these tables. Each option of a topic comes
    /// from the most specific table that matches the topic and sets the option: patterns are compared part by part, a
    /// name is more specific than `*`, `*` more than `>`, and the first difference decides. Without such a table, the
    /// option has the value of the other settings. The HTTP API is not restricted.
    pub(crate) struct NamespaceKeys in "namespace.*", "chat.>" {
        /// Number of messages that each topic retains, as {history}; `off` retains none.
        history: Option<MessagesOrOff> { unset: "{history}", example: "100" }

        /// Maximum age of retained messages.
        history_age: Option<PositiveDuration> { unset: "no limit", example: "1h" }

        /// Whether the topics are durable, as {streams.durable_topics}. Needs {streams.directory} or {streams.store}.
        durable: Option<bool> { unset: "{streams.durable_topics}", example: "false" }

        /// Whether messages of clients name their sender: `user`, the `sub` of the token or the claims, and `info`, the
        /// claim of this name. Clients cannot write either.
        sender: Option<bool> { unset: "false", example: "true", reloads: true }

        /// Whether messages have `at`, the time of their publication in milliseconds since 1970.
        timestamps: Option<bool> { unset: "true for topics with a history or a stream", example: "true" }

        /// Action for slow subscribers: `close` closes the connection with 1008, `drop-newest` and `drop-oldest` drop
        /// messages, `conflate` queues the last message of each topic only. Limit of the queue of one subscriber: 1,024
        /// messages and 1 MiB.
        slow_consumer: Option<SlowConsumerSetting> {
            unset: "{websocket.overflow}",
            example: "conflate",
            placeholder: "ACTION",
        }

        /// Clients that may publish: `anonymous` permits all clients, `authenticated` clients with a valid token or with
        /// claims of {hooks.connect}, `token` clients whose token or claims grant it (all clients of a server without
        /// tokens and without {hooks.connect}), and `nobody` none.
        publish: Option<AccessSetting> { unset: "token", example: "nobody", reloads: true }

        /// Clients that may subscribe, and read histories, keys and presence; values as of {namespace.*.publish}. A
        /// subscription to a pattern needs the permission of each namespace whose topics it may match.
        subscribe: Option<AccessSetting> { unset: "token", example: "authenticated", reloads: true }

        /// Clients that may write keys; values as of {namespace.*.publish}. `anonymous` and `authenticated` permit all
        /// keys of a topic.
        write_keys: Option<AccessSetting> { unset: "token", example: "nobody", reloads: true }

        /// Whether clients may read and write keys of the topics.
        keyed: Option<bool> { unset: "true", example: "false", reloads: true }

        /// Whether clients may join the topics, and read their members and numbers of subscribers.
        presence: Option<bool> { unset: "true", example: "false", reloads: true }

        /// Minimum interval between two presence updates of a topic; at most 60s. The first change after a quiet interval is
        /// sent at once, later changes together.
        presence_interval: Option<PositiveDuration> { unset: "100ms", example: "250ms", reloads: true }

        /// Maximum interval between two presence updates of a topic with many subscribers with presence; at most 60s. The
        /// interval is 1 ms for each of these subscribers on a node, but at least {namespace.*.presence_interval}.
        presence_interval_max: Option<PositiveDuration> { unset: "5s", example: "1s", reloads: true }

        /// Minimum interval between two updates of keys to one subscriber (conflation); at most 60s.
        key_interval: Option<PositiveDuration> {
            unset: "the interval that the subscriber asks for",
            example: "100ms",
            reloads: true,
        }

        /// Whether the keys of the topics are durable, as {streams.durable_keys}. Needs {streams.directory}.
        durable_keys: Option<bool> { unset: "{streams.durable_keys}", example: "true" }

        /// Maximum number of keys of each topic, at most 10,000. Further keys are rejected with 429, also for the HTTP API.
        max_keys: Option<NonZeroU32> { unset: "10,000", example: "1000", reloads: true }

        /// Time to live of values that are written without one, from 1ms to 366 days. It applies to the HTTP API, too.
        key_ttl: Option<PositiveDuration> { unset: "values do not expire", example: "1h", reloads: true }

        /// Maximum size of a publication or a value of a key, in bytes.
        max_message: Option<ByteSize> { unset: "{max_message}", example: "64k", reloads: true }

        /// Maximum rate of one connection: publications and writes of keys per second, to all topics of the namespace
        /// together. Excess is rejected with 429. A plain HTTP request is not limited: see
        /// {namespace.*.user_publishes_per_second}.
        publishes_per_second: Option<NonZeroU32> { unset: "no limit", example: "10", reloads: true }

        /// Maximum number of publications at once of one connection, after an idle time.
        publish_burst: Option<NonZeroU32> {
            unset: "{namespace.*.publishes_per_second}",
            example: "20",
            reloads: true,
        }

        /// Maximum rate of one user on this node: publications and writes of keys per second, to all topics of the
        /// namespace together, over all connections and HTTP requests. A user is the `sub` of the token, or else the
        /// address of the client (of IPv6: its /64).
        user_publishes_per_second: Option<NonZeroU32> { unset: "no limit", example: "50", reloads: true }

        /// Maximum number of publications at once of one user, after an idle time.
        user_publish_burst: Option<NonZeroU32> {
            unset: "{namespace.*.user_publishes_per_second}",
            example: "100",
            reloads: true,
        }

        /// Maximum rate of one connection: ops `subscribe` per second, to all topics and keys of the namespace together. Excess
        /// is rejected with 429. Subscriptions of plain HTTP requests are not limited.
        subscribes_per_second: Option<NonZeroU32> { unset: "no limit", example: "20", reloads: true }

        /// Maximum number of subscriptions at once of one connection, after an idle time.
        subscribe_burst: Option<NonZeroU32> {
            unset: "{namespace.*.subscribes_per_second}",
            example: "100",
            reloads: true,
        }

        /// Maximum rate of one connection: calls (`rpc`) per second with a topic of the namespace. Excess is rejected with
        /// 429. The plain HTTP calls of a user share one rate of this size.
        calls_per_second: Option<NonZeroU32> { unset: "no limit", example: "10", reloads: true }

        /// Maximum number of calls at once of one connection, after an idle time.
        call_burst: Option<NonZeroU32> {
            unset: "{namespace.*.calls_per_second}",
            example: "20",
            reloads: true,
        }

        /// URL that decides about subscriptions, as {hooks.subscribe}; `off` for no hook.
        subscribe_hook: Option<HookUrlOrOff> { unset: "{hooks.subscribe}", example: "off", reloads: true }

        /// URL that decides about publications, as {hooks.publish}; `off` for no hook.
        publish_hook: Option<HookUrlOrOff> {
            unset: "{hooks.publish}",
            example: "https://app.example.com/chat",
            reloads: true,
        }

        /// URL that answers calls with a topic, as {hooks.rpc}; `off` for no hook.
        rpc_hook: Option<HookUrlOrOff> { unset: "{hooks.rpc}", example: "off", reloads: true }

        /// Decision if the application does not answer a hook of these topics: `closed` or `open`.
        hook_failure: Option<HookFailureSetting> {
            unset: "{hooks.failure}",
            example: "open",
            placeholder: "POLICY",
            reloads: true,
        }
    }
}

/// Action for slow subscribers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SlowConsumerSetting {
    Close,
    DropNewest,
    DropOldest,
    Conflate,
}

/// Clients that may do an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum AccessSetting {
    Anonymous,
    Authenticated,
    Token,
    Nobody,
}

choice!(SlowConsumerSetting, AccessSetting);

/// The namespaces, in pattern order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NamespaceSettings(Vec<NamespaceSection>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct NamespaceSection {
    pattern: String,
    keys: NamespaceKeys,
    names: SettingNames,
}

impl SettingGroup for NamespaceSettings {
    fn resolve(resolver: &mut SettingResolver<'_>) -> Result<Self, String> {
        let tables = resolver.sections(NamespaceKeys::TABLE.name).map(|section| {
            if let Err(error) = check_pattern(&section.name) {
                return Err(format!("{}: namespace.{:?}: {error}", section.location, section.name));
            }
            let (keys, names) = resolve(&section.file)?;
            Ok(NamespaceSection { pattern: section.name.clone(), keys, names })
        });
        tables.collect::<Result<_, _>>().map(Self)
    }

    fn list_restarts(&self, new: &Self, restarts: &mut Vec<&'static str>) {
        let Ok((none, _)) = resolve(&ConfigFile::default()) else { return };
        let of = |settings: &Self, pattern: &str| {
            let found = settings.0.iter().find(|table| table.pattern == pattern);
            found.map_or_else(|| none.clone(), |table| table.keys.clone())
        };
        let mut changed = Vec::new();
        for table in self.0.iter().chain(&new.0) {
            of(self, &table.pattern).list_restarts(&of(new, &table.pattern), &mut changed);
        }
        changed.sort_unstable();
        changed.dedup();
        restarts.extend(changed);
    }
}

/// Reads one table's keys.
fn resolve(file: &ConfigFile) -> Result<(NamespaceKeys, SettingNames), String> {
    let flags = SettingFlags::default();
    let mut resolver = SettingResolver::new(&flags, file);
    let keys = NamespaceKeys::resolve(&mut resolver)?;
    Ok((keys, resolver.names))
}

impl ServeSettings {
    /// Checks the namespaces among each other and against the other settings.
    pub(super) fn check_namespaces(&self) -> Result<(), String> {
        for table in &self.namespaces.0 {
            let NamespaceSection { pattern, keys, names } = table;
            let fault = |key: &str, fault: &str| {
                let name = names.resolve(key).replace("namespace.*", &format!("namespace.{pattern:?}"));
                Err(format!("{name}: {fault}"))
            };
            let has_history = keys.history.is_some_and(|messages| messages > 0);
            if keys.history_age.is_some() && !has_history {
                return fault("namespace.*.history_age", "needs a history in the same table");
            }
            let is_durable = keys.durable == Some(true);
            if is_durable && !self.streams.are_on() {
                return fault("namespace.*.durable", "needs streams.directory (--streams) or streams.store");
            }
            if let Some((key, text)) = self.fault_of_keys(keys) {
                return fault(key, &text);
            }
            for (key, is_set) in [
                ("namespace.*.history", keys.history.is_some()),
                ("namespace.*.slow_consumer", keys.slow_consumer.is_some()),
            ] {
                if is_durable && is_set {
                    return fault(key, "a durable topic reads its stream instead");
                }
            }
            if let Some((burst, rate)) = lone_burst(keys) {
                return fault(&format!("namespace.*.{burst}"), &format!("needs {rate} in the same table"));
            }
            if keys.max_message.is_some_and(|bytes| bytes > self.max_message) {
                return fault(
                    "namespace.*.max_message",
                    &format!("exceeds max_message ({})", self.max_message),
                );
            }
            for (key, access) in [
                ("namespace.*.publish", keys.publish),
                ("namespace.*.subscribe", keys.subscribe),
                ("namespace.*.write_keys", keys.write_keys),
            ] {
                let has_users = self.auth.keys != KeySource::None || self.hooks.connect.is_some();
                if access == Some(AccessSetting::Authenticated) && !has_users {
                    return fault(
                        key,
                        "no client has a token without auth.secret_file, another key or hooks.connect",
                    );
                }
            }
        }
        self.namespace_options().map(drop)
    }

    /// Returns the fault in the key options, if any.
    fn fault_of_keys(&self, keys: &NamespaceKeys) -> Option<(&'static str, String)> {
        let fault = |key, text: &str| Some((key, text.to_owned()));
        if keys.durable_keys == Some(true) && self.streams.directory.is_none() {
            return fault("namespace.*.durable_keys", "needs streams.directory (--streams)");
        }
        if let Some(interval) = keys.key_interval.filter(|it| *it > KeySubscription::INTERVAL_MAX) {
            let (millis, max) = (interval.as_millis(), KeySubscription::INTERVAL_MAX.as_secs());
            let text = format!("{millis} ms exceed the limit of {max} s");
            return fault("namespace.*.key_interval", &text);
        }
        for (key, interval) in [
            ("namespace.*.presence_interval", keys.presence_interval),
            ("namespace.*.presence_interval_max", keys.presence_interval_max),
        ] {
            if let Some(interval) = interval.filter(|it| *it > PresenceInterval::MAX) {
                let (millis, max) = (interval.as_millis(), PresenceInterval::MAX.as_secs());
                return Some((key, format!("{millis} ms exceed the limit of {max} s")));
            }
        }
        if let Some(count) = keys.max_keys.filter(|count| count.get() > KEYS_MAX) {
            return fault("namespace.*.max_keys", &format!("{count} exceeds the limit of {KEYS_MAX}"));
        }
        if keys.key_ttl.is_some_and(|ttl| ttl < Duration::from_millis(1) || ttl > KEY_TTL_MAX) {
            return fault("namespace.*.key_ttl", "must be 1ms to 366d");
        }
        None
    }

    /// The options for the hub.
    pub(crate) fn namespace_options(&self) -> Result<Namespaces, String> {
        let tables = self.namespaces.0.iter();
        Namespaces::new(tables.map(|table| table.options())).map_err(|error| error.to_string())
    }
}

/// Maximum keys in a topic: the server's limit.
const KEYS_MAX: u32 = 10_000;

/// Longest time to live for a key: the server's limit.
const KEY_TTL_MAX: Duration = Duration::from_secs(366 * 86_400);

fn max_keys(keys: NonZeroU32) -> usize {
    keys.get() as usize
}

/// Sets a hook.
type HookSetter = fn(Namespace, HookTarget) -> Namespace;

impl NamespaceSection {
    fn options(&self) -> Namespace {
        let keys = &self.keys;
        let mut options = Namespace::new(&self.pattern);
        /// Sets the options that are given.
        macro_rules! set {
            ($($key:ident => $with:ident($($convert:expr)?);)*) => {
                $(if let Some(value) = keys.$key {
                    options = options.$with($($convert)?(value));
                })*
            };
        }
        set! {
            history => with_history();
            history_age => with_history_age();
            durable => with_durable();
            sender => with_sender();
            timestamps => with_timestamps();
            slow_consumer => with_slow_consumer(slow_consumer);
            publish => with_publish(access);
            subscribe => with_subscribe(access);
            write_keys => with_write_keys(access);
            keyed => with_keyed();
            presence => with_presence();
            presence_interval => with_presence_interval();
            presence_interval_max => with_presence_interval_max();
            key_interval => with_key_interval();
            durable_keys => with_durable_keys();
            max_keys => with_max_keys(max_keys);
            key_ttl => with_key_ttl();
            max_message => with_max_message();
            hook_failure => with_hook_failure(hooks::failure);
        }
        for (target, with) in [
            (&keys.subscribe_hook, Namespace::with_subscribe_hook as HookSetter),
            (&keys.publish_hook, Namespace::with_publish_hook as HookSetter),
            (&keys.rpc_hook, Namespace::with_rpc_hook as HookSetter),
        ] {
            if let Some(target) = target {
                options = with(options, target.clone());
            }
        }
        if let Some(rate) = rate(keys.publishes_per_second, keys.publish_burst) {
            options = options.with_connection_rate(rate);
        }
        if let Some(rate) = rate(keys.user_publishes_per_second, keys.user_publish_burst) {
            options = options.with_user_rate(rate);
        }
        if let Some(rate) = rate(keys.subscribes_per_second, keys.subscribe_burst) {
            options = options.with_subscribe_rate(rate);
        }
        if let Some(rate) = rate(keys.calls_per_second, keys.call_burst) {
            options = options.with_call_rate(rate);
        }
        options
    }
}

/// Finds a burst without its rate; returns both names.
fn lone_burst(keys: &NamespaceKeys) -> Option<(&'static str, &'static str)> {
    let pairs = [
        (keys.publish_burst, keys.publishes_per_second, "publish_burst", "publishes_per_second"),
        (
            keys.user_publish_burst,
            keys.user_publishes_per_second,
            "user_publish_burst",
            "user_publishes_per_second",
        ),
        (keys.subscribe_burst, keys.subscribes_per_second, "subscribe_burst", "subscribes_per_second"),
        (keys.call_burst, keys.calls_per_second, "call_burst", "calls_per_second"),
    ];
    let lone = pairs.into_iter().find(|(burst, rate, ..)| burst.is_some() && rate.is_none());
    lone.map(|(_, _, burst, rate)| (burst, rate))
}

fn slow_consumer(setting: SlowConsumerSetting) -> SlowConsumer {
    match setting {
        SlowConsumerSetting::Close => SlowConsumer::Close(CloseCode::POLICY, TOO_SLOW.to_owned()),
        SlowConsumerSetting::DropNewest => SlowConsumer::DropNewest,
        SlowConsumerSetting::DropOldest => SlowConsumer::DropOldest,
        SlowConsumerSetting::Conflate => SlowConsumer::Conflate,
    }
}

const TOO_SLOW: &str = "the client is too slow for its topics";

fn access(setting: AccessSetting) -> TopicAccess {
    match setting {
        AccessSetting::Anonymous => TopicAccess::Anonymous,
        AccessSetting::Authenticated => TopicAccess::Authenticated,
        AccessSetting::Token => TopicAccess::Token,
        AccessSetting::Nobody => TopicAccess::Nobody,
    }
}

fn rate(per_second: Option<NonZeroU32>, burst: Option<NonZeroU32>) -> Option<PublishRate> {
    let rate = PublishRate::new(per_second?.get());
    Some(match burst {
        Some(burst) => rate.with_burst(burst.get()),
        None => rate,
    })
}

#[cfg(test)]
mod tests {
    use sinews_hub::HookFailure;

    use super::super::tests::settings;
    use super::*;

    #[test]
    fn every_option_reaches_the_hub() {
        let file = "[namespace.\"a.>\"]\nhistory = 5\nhistory_age = \"1h\"\nslow_consumer = \"conflate\"\n\
                    publish = \"anonymous\"\nsubscribe = \"nobody\"\nwrite_keys = \"token\"\nkeyed = false\n\
                    presence = false\npresence_interval = \"3s\"\npresence_interval_max = \"9s\"\nkey_interval = \"2s\"\nmax_message = \"6k\"\npublishes_per_second = 7\n\
                    publish_burst = 8\nuser_publishes_per_second = 9\nuser_publish_burst = 10\n\
                    subscribes_per_second = 11\nsubscribe_burst = 12\ncalls_per_second = 13\ncall_burst = 14\n\
                    subscribe_hook = \"off\"\npublish_hook = \"http://a\"\nrpc_hook = \"http://b\"\nhook_failure = \"open\"\n\
                    max_keys = 11\nkey_ttl = \"3s\"\n\
                    [namespace.b]\ndurable = true\ndurable_keys = true\n[namespace.c]\nhistory = \"off\"\n[streams]\ndirectory = \"d\"";
        let expected = [
            Namespace::new("a.>")
                .with_history(5)
                .with_history_age(Duration::from_secs(3_600))
                .with_slow_consumer(SlowConsumer::Conflate)
                .with_publish(TopicAccess::Anonymous)
                .with_subscribe(TopicAccess::Nobody)
                .with_write_keys(TopicAccess::Token)
                .with_keyed(false)
                .with_presence(false)
                .with_presence_interval(Duration::from_secs(3))
                .with_presence_interval_max(Duration::from_secs(9))
                .with_key_interval(Duration::from_secs(2))
                .with_max_message(6 << 10)
                .with_max_keys(11)
                .with_key_ttl(Duration::from_secs(3))
                .with_connection_rate(PublishRate::new(7).with_burst(8))
                .with_user_rate(PublishRate::new(9).with_burst(10))
                .with_subscribe_rate(PublishRate::new(11).with_burst(12))
                .with_call_rate(PublishRate::new(13).with_burst(14))
                .with_subscribe_hook(HookTarget::Off)
                .with_publish_hook(HookTarget::Url("http://a".to_owned()))
                .with_rpc_hook(HookTarget::Url("http://b".to_owned()))
                .with_hook_failure(HookFailure::Open),
            Namespace::new("b").with_durable(true).with_durable_keys(true),
            Namespace::new("c").with_history(0),
        ];
        let options = settings(&[], file).unwrap().namespace_options();
        assert_eq!(options, Ok(Namespaces::new(expected).unwrap()));
    }

    #[test]
    fn errors_name_the_line_and_the_nearest_key() {
        for (file, expected) in [
            (
                "[namespace.\"a.>\"]\n\nhistroy = 1",
                "sinews.toml:3: unknown key namespace.\"a.>\".histroy; did you mean namespace.\"a.>\".history?",
            ),
            (
                "[namespace.a]\npublish = \"any\"",
                "sinews.toml:2: namespace.\"a\".publish must be \"anonymous\", \"authenticated\", \"token\" or \
                 \"nobody\", not \"any\"",
            ),
            ("\nnamespace = 1", "sinews.toml:2: namespace is a table: [namespace.\"NAME\"]"),
            ("[namespace]\na = 1", "sinews.toml:2: namespace.\"a\" is a table: [namespace.\"a\"]"),
            ("[namespaec.a]\nhistory = 1", "sinews.toml:1: unknown key namespaec; did you mean namespace?"),
            (
                "[namespace.\"a.>.b\"]",
                "sinews.toml:1: namespace.\"a.>.b\": the wildcards `*` and `>` may stand in subscriptions only, and `>` \
                 only at the end",
            ),
            (
                "[namespace.a]\nhistory_age = \"1s\"",
                "sinews.toml:2: namespace.\"a\".history_age: needs a history",
            ),
            (
                "[namespace.a]\ndurable = true",
                "sinews.toml:2: namespace.\"a\".durable: needs streams.directory",
            ),
            (
                "[namespace.a]\npublish_burst = 2",
                "sinews.toml:2: namespace.\"a\".publish_burst: needs publishes_per",
            ),
            (
                "[namespace.a]\npresence_interval_max = \"60001ms\"",
                "sinews.toml:2: namespace.\"a\".presence_interval_max: 60001 ms exceed the limit of 60 s",
            ),
            (
                "[namespace.a]\nkey_interval = \"60001ms\"",
                "sinews.toml:2: namespace.\"a\".key_interval: 60001 ms exceed the limit of 60 s",
            ),
            (
                "[namespace.a]\ndurable_keys = true\n[streams]\nstore = \"redis://a\"",
                "sinews.toml:2: namespace.\"a\".durable_keys: needs streams.directory (--streams)",
            ),
            (
                "[namespace.a]\nmax_keys = 10001",
                "sinews.toml:2: namespace.\"a\".max_keys: 10001 exceeds the limit of 10000",
            ),
            (
                "[namespace.a]\nkey_ttl = \"367d\"",
                "sinews.toml:2: namespace.\"a\".key_ttl: must be 1ms to 366d",
            ),
            (
                "max_message = 5\n[namespace.a]\nmax_message = 6",
                "sinews.toml:3: namespace.\"a\".max_message: exceeds",
            ),
            (
                "[namespace.a]\nsubscribe = \"authenticated\"",
                "sinews.toml:2: namespace.\"a\".subscribe: no client has a token",
            ),
            ("[namespace.a]\n[namespace.a]", "sinews.toml:2: "),
        ] {
            let error = settings(&[], file).unwrap_err();
            assert!(error.starts_with(expected) && error.lines().count() == 1, "{error}");
        }
    }

    #[test]
    fn reload_names_the_keys_that_need_a_restart() {
        let with = |text: &str| settings(&[], &format!("[namespace.a]\n{text}")).unwrap();
        let old = with("history = 1\npublish = \"nobody\"");
        assert!(old.needs_restart(&with("history = 1\npublish = \"token\"\nkeyed = false")).is_empty());
        assert_eq!(old.needs_restart(&with("history = 2")), ["namespace.*.history"]);
        assert_eq!(old.needs_restart(&settings(&[], "").unwrap()), ["namespace.*.history"]);
        let added =
            settings(&[], "[namespace.a]\nhistory = 1\n[namespace.b]\nslow_consumer = \"conflate\"").unwrap();
        assert_eq!(old.needs_restart(&added), ["namespace.*.slow_consumer"]);
    }
}
