//! Apps: their keys, limits and features, from the configuration.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use sinews_server::OriginPolicy;

use crate::access::namespaces::PublishRate;
use crate::apps::channel::TopicSpace;
use crate::apps::signature::AppKey;
use crate::apps::webhook::PusherWebhook;
use crate::error::{HubError, HubErrorKind};
use crate::model::check_name;
use crate::webhooks::WebhookTarget;

/// Maximum number of apps.
const APPS_MAX: usize = 10_000;

/// Maximum keys per app: enough for rotations, and a bound on the work of a wrong signature.
const KEYS_MAX: usize = 8;

/// Maximum webhooks per app.
const WEBHOOKS_MAX: usize = 8;

/// Maximum webhooks in all apps: each is a label of metrics, and has a queue.
const ALL_WEBHOOKS_MAX: usize = 256;

/// Maximum timeout of an app.
const TIMEOUT_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Maximum of [`PusherLimits::recovery_time`]: each recovery that is read reserves memory that others wait for.
const RECOVERY_TIME_MAX: Duration = Duration::from_secs(60);

/// An app's limits. The defaults are the hosted service's, where it has one.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PusherLimits {
    /// Connections on this node. Default: no limit.
    pub connections: Option<usize>,
    /// Channels per connection, at most 500: a presence channel takes two of a connection's 1,024 subscriptions.
    /// Default 500.
    pub channels: usize,
    /// A channel name's length in bytes, at most 200. Default 164.
    pub channel_name: usize,
    /// An event name's length in bytes. Default 200.
    pub event_name: usize,
    /// An event's data size in bytes. Default 10,240.
    pub event_data: usize,
    /// Channels per trigger. Default 100.
    pub event_channels: usize,
    /// Events per batch. Default 10.
    pub batch: usize,
    /// Members per presence channel. Default 100.
    pub members: usize,
    /// Client events a second for each connection; the burst is the same number. Default 10.
    pub client_events_per_second: u32,
    /// Requests a second to the HTTP API on this node; the burst is the same number. Default: no limit.
    pub requests_per_second: Option<u32>,
    /// Time for which a cache channel retains its last event. Default 30 minutes.
    pub cache_time: Duration,
    /// Cache channels on this node that retain an event. Their messages have this number times
    /// [`event_data`](Self::event_data) bytes at most, by default 100 MB; beyond, the oldest event is dropped. Default
    /// 10,000.
    pub cached_channels: usize,
    /// Users per watchlist. Default 100.
    pub watchlist: usize,
    /// Time in which a client answers the server's ping, at most one day; after it, the connection is closed with 4201.
    /// Default 30 s.
    pub pong_time: Duration,
    /// Time in which a channel's missed events are read from a stream, at most one minute; after it, the client
    /// recovers none. Default 5 s.
    pub recovery_time: Duration,
}

impl Default for PusherLimits {
    fn default() -> Self {
        Self {
            connections: None,
            channels: CHANNELS_MAX,
            channel_name: 164,
            event_name: 200,
            event_data: 10_240,
            event_channels: 100,
            batch: 10,
            members: 100,
            client_events_per_second: 10,
            requests_per_second: None,
            cache_time: Duration::from_secs(30 * 60),
            cached_channels: 10_000,
            watchlist: 100,
            pong_time: Duration::from_secs(30),
            recovery_time: Duration::from_secs(5),
        }
    }
}

/// An app's features. By default, its clients have all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PusherFeatures {
    /// Presence channels. Otherwise, subscriptions to them are rejected with the status 403.
    pub presence_channels: bool,
    /// Cache channels. Otherwise, subscriptions to them are rejected with the status 403, and no event is retained.
    pub cache_channels: bool,
    /// User sign-in. Otherwise, connections that sign in are closed with 4009.
    pub users: bool,
    /// Watchlists. Otherwise, users sign in without theirs.
    pub watchlists: bool,
}

impl Default for PusherFeatures {
    fn default() -> Self {
        Self { presence_channels: true, cache_channels: true, users: true, watchlists: true }
    }
}

/// Largest [`PusherLimits::channels`].
const CHANNELS_MAX: usize = 500;

/// Largest [`PusherLimits::channel_name`]: the hub's topic name has 250 bytes, with the app's id.
const CHANNEL_NAME_MAX: usize = 200;

/// A Pusher Channels app: a channel namespace with its own keys.
///
/// ```
/// use sinews_hub::{PusherApp, PusherApps};
///
/// let app = PusherApp::new("1", "key", "secret").with_client_events(true);
/// assert!(PusherApps::new([app.clone()]).is_ok());
/// assert!(PusherApps::new([app.clone(), app]).is_err(), "the id must be unique");
/// ```
#[derive(Clone)]
pub struct PusherApp {
    pub(crate) id: String,
    pub(crate) name: Option<String>,
    pub(crate) keys: Vec<AppKey>,
    pub(crate) is_enabled: bool,
    pub(crate) topics: Option<String>,
    origin_names: Vec<String>,
    pub(crate) origins: Option<OriginPolicy>,
    pub(crate) client_events: bool,
    pub(crate) subscription_counts: bool,
    pub(crate) tls_only: bool,
    pub(crate) strict_protocol: bool,
    pub(crate) activity_timeout: Duration,
    pub(crate) authorization_timeout: Option<Duration>,
    pub(crate) limits: PusherLimits,
    pub(crate) features: PusherFeatures,
    webhooks: Vec<PusherWebhook>,
}

impl fmt::Debug for PusherApp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Keys are secrets.
        f.debug_struct("PusherApp")
            .field("id", &self.id)
            .field("keys", &self.keys.len())
            .finish_non_exhaustive()
    }
}

impl PusherApp {
    /// Creates an app with its first key. The id has 1 to 20 letters, digits, `-` and `_`; libraries for Python accept
    /// digits only.
    #[must_use]
    pub fn new(id: impl Into<String>, key: impl Into<String>, secret: &str) -> Self {
        Self {
            id: id.into(),
            name: None,
            keys: vec![AppKey::new(key.into(), secret)],
            is_enabled: true,
            topics: None,
            origin_names: Vec::new(),
            origins: None,
            client_events: false,
            subscription_counts: false,
            tls_only: false,
            strict_protocol: false,
            activity_timeout: Duration::from_secs(120),
            authorization_timeout: None,
            limits: PusherLimits::default(),
            features: PusherFeatures::default(),
            webhooks: Vec::new(),
        }
    }

    /// Sets the app's name for people, which the dashboard shows with the id. Default: none.
    #[must_use]
    pub fn with_name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Adds a key, for a rotation: all of an app's keys are valid.
    #[must_use]
    pub fn with_key(mut self, key: impl Into<String>, secret: &str) -> Self {
        self.keys.push(AppKey::new(key.into(), secret));
        self
    }

    /// Sets whether the app serves. A disabled app closes connections with 4003, and answers requests with 403.
    /// Default: it serves.
    #[must_use]
    pub fn with_enabled(mut self, is_enabled: bool) -> Self {
        self.is_enabled = is_enabled;
        self
    }

    /// Makes channels reachable as topics below this prefix: with `chat`, the channel `room` is the topic `chat.room`
    /// of all other protocols, whose rights apply there. Default: only clients of this app reach its channels.
    #[must_use]
    pub fn with_topics(mut self, prefix: impl Into<String>) -> Self {
        self.topics = Some(prefix.into());
        self
    }

    /// Sets the origins whose pages may connect. Default: all, because app keys are public in pages, and signatures
    /// protect private channels.
    #[must_use]
    pub fn with_origins(mut self, origins: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.origin_names = origins.into_iter().map(Into::into).collect();
        self
    }

    /// Permits client events. Default: they are rejected with 4301, as at the hosted service.
    #[must_use]
    pub fn with_client_events(mut self, are_permitted: bool) -> Self {
        self.client_events = are_permitted;
        self
    }

    /// Sends the subscriber count to subscribers of channels without presence, and adds it to HTTP API answers on
    /// request. Default: no.
    #[must_use]
    pub fn with_subscription_counts(mut self, are_sent: bool) -> Self {
        self.subscription_counts = are_sent;
        self
    }

    /// Closes connections without TLS with 4000. A proxy that terminates TLS has to set `X-Forwarded-Proto: https`.
    /// Default: no.
    #[must_use]
    pub fn with_tls_only(mut self, is_required: bool) -> Self {
        self.tls_only = is_required;
        self
    }

    /// Requires a connection's parameter `protocol`. Default: without it, the protocol is the major number in the
    /// parameter `version`, as the hosted service's documentation says.
    #[must_use]
    pub fn with_strict_protocol(mut self, is_strict: bool) -> Self {
        self.strict_protocol = is_strict;
        self
    }

    /// Sets the time without a message after which a client sends a ping: one second to one day. The server sends a
    /// ping after [`PusherLimits::pong_time`] more, and closes the connection with 4201 after the same time again.
    /// Default 120 seconds.
    #[must_use]
    pub fn with_activity_timeout(mut self, timeout: Duration) -> Self {
        self.activity_timeout = timeout;
        self
    }

    /// Closes a connection with 4009 that has neither signed in nor subscribed to a private or presence channel in this
    /// time, at most one day. Default: no.
    #[must_use]
    pub fn with_authorization_timeout(mut self, timeout: Option<Duration>) -> Self {
        self.authorization_timeout = timeout;
        self
    }

    /// Sets the limits. Default: [`PusherLimits::default`].
    #[must_use]
    pub fn with_limits(mut self, limits: PusherLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets the features. Default: [`PusherFeatures::default`].
    #[must_use]
    pub fn with_features(mut self, features: PusherFeatures) -> Self {
        self.features = features;
        self
    }

    /// Adds a webhook: at most 8 per app, and 256 in all apps. Default: none.
    #[cfg(feature = "webhooks")]
    #[must_use]
    pub fn with_webhook(mut self, webhook: PusherWebhook) -> Self {
        self.webhooks.push(webhook);
        self
    }

    /// Returns where its channels' topics are.
    pub(crate) fn topic_space(&self) -> TopicSpace<'_> {
        TopicSpace { app: &self.id, prefix: self.topics.as_deref() }
    }

    /// The index of a key among [`keys`](Self::keys).
    pub(crate) fn key_index(&self, name: &str) -> Option<u8> {
        let index = self.keys.iter().position(|key| key.name == name)?;
        // An app has at most `KEYS_MAX` keys.
        u8::try_from(index).ok()
    }

    /// Seals an event for one of its channels' topics: another program cannot, unless it has the secret.
    pub(crate) fn seal(&self, topic: &str, event: &[u8]) -> String {
        self.keys.first().map_or_else(String::new, |key| key.seal(topic, event))
    }

    /// The client-event rate.
    pub(crate) fn client_event_rate(&self) -> PublishRate {
        PublishRate::new(self.limits.client_events_per_second)
    }

    /// Checks the options, and parses the origins.
    fn check(&mut self) -> Result<(), HubError> {
        let fault = |text: String| Err(HubError::setting(text));
        if !is_app_id(&self.id) {
            return fault("the id has 1 to 20 letters, digits, '-' and '_'".to_owned());
        }
        if self.keys.len() > KEYS_MAX {
            return fault(format!("{} keys exceed the limit of {KEYS_MAX}", self.keys.len()));
        }
        if let Some(bad) = self.keys.iter().find(|key| !key.is_valid()) {
            return Err(HubError::key("a key has 1 to 64 letters, digits, '-' and '_', and a secret")
                .at(format_args!("key {:?}", bad.name)));
        }
        if let Some(prefix) = &self.topics
            && (check_name(prefix).is_err() || prefix.len() > PREFIX_MAX)
        {
            return fault(format!("topics {prefix:?} is not a topic name of at most {PREFIX_MAX} bytes"));
        }
        if !(Duration::from_secs(1)..=TIMEOUT_MAX).contains(&self.activity_timeout) {
            return fault("activity_timeout must be one second to one day".to_owned());
        }
        if self.authorization_timeout.is_some_and(|timeout| timeout > TIMEOUT_MAX) {
            return fault("authorization_timeout must be at most one day".to_owned());
        }
        if self.limits.pong_time > TIMEOUT_MAX {
            return fault("pong_time must be at most one day".to_owned());
        }
        if self.limits.recovery_time > RECOVERY_TIME_MAX {
            return fault("recovery_time must be at most one minute".to_owned());
        }
        if self.webhooks.len() > WEBHOOKS_MAX {
            return fault(format!("{} webhooks exceed the limit of {WEBHOOKS_MAX}", self.webhooks.len()));
        }
        let checked = self.webhooks.iter().try_for_each(|webhook| webhook.check(self.limits.channel_name));
        checked.map_err(|error| error.at("webhook"))?;
        if !self.subscription_counts && self.webhooks.iter().any(PusherWebhook::wants_counts) {
            return fault("webhook: subscription_count needs subscription_counts".to_owned());
        }
        let limits = &self.limits;
        for (name, value, most) in [
            ("channels", limits.channels, CHANNELS_MAX),
            ("channel_name", limits.channel_name, CHANNEL_NAME_MAX),
            ("watchlist", limits.watchlist, WATCHLIST_MAX),
        ] {
            if value > most {
                return fault(format!("{name} of {value} exceeds the limit of {most}"));
            }
        }
        if !self.origin_names.is_empty() && self.origin_names != ["any"] {
            let parsed = OriginPolicy::list(self.origin_names.iter().cloned());
            let fault = |error| HubError::caused(HubErrorKind::Setting, error).at("origins");
            self.origins = Some(parsed.map_err(fault)?);
        }
        Ok(())
    }
}

/// Longest app id.
const APP_MAX: usize = 20;

/// Whether a text can be an app's id: one token in a topic's name.
fn is_app_id(id: &str) -> bool {
    let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    (1..=APP_MAX).contains(&id.len()) && id.bytes().all(is_valid)
}

/// Largest [`PusherLimits::watchlist`]: each user takes one of a connection's 1,024 subscriptions.
const WATCHLIST_MAX: usize = 100;

/// Longest [prefix](PusherApp::with_topics): with the longest channel name, a topic has at most 250 bytes.
const PREFIX_MAX: usize = 49;

/// A server's apps.
#[derive(Clone, Debug, Default)]
pub struct PusherApps {
    pub(crate) by_id: BTreeMap<String, Arc<PusherApp>>,
    /// The id of the app with a key.
    pub(crate) by_key: HashMap<String, String>,
    /// The id of the app with a prefix for its topics.
    pub(crate) by_topics: HashMap<String, String>,
}

impl PusherApps {
    /// Collects apps.
    ///
    /// # Errors
    /// An option is invalid, or two apps have the same id, key or topics: [`HubErrorKind::Setting`], or
    /// [`HubErrorKind::Url`] and [`HubErrorKind::Key`]. The place is the app.
    pub fn new(apps: impl IntoIterator<Item = PusherApp>) -> Result<Self, HubError> {
        let mut all = Self::default();
        for app in apps {
            let id = app.id.clone();
            all.add(app).map_err(|error| error.at(format_args!("app {id:?}")))?;
            if all.by_id.len() > APPS_MAX {
                return Err(HubError::setting(format!("more than {APPS_MAX} apps")));
            }
        }
        let webhooks: usize = all.by_id.values().map(|app| app.webhooks.len()).sum();
        if webhooks > ALL_WEBHOOKS_MAX {
            let fault = format!("{webhooks} webhooks exceed the limit of {ALL_WEBHOOKS_MAX}");
            return Err(HubError::setting(fault));
        }
        Ok(all)
    }

    /// Checks an app, also against the others, and adds it.
    fn add(&mut self, mut app: PusherApp) -> Result<(), HubError> {
        let fault = |text: String| Err(HubError::setting(text));
        app.check()?;
        for key in &app.keys {
            if self.by_key.insert(key.name.clone(), app.id.clone()).is_some() {
                return fault(format!("key {:?} is the key of another app", key.name));
            }
        }
        if let Some(prefix) = &app.topics {
            if let Some(other) = self.overlapping(prefix) {
                return fault(format!("topics overlap those of app {other:?}"));
            }
            self.by_topics.insert(prefix.clone(), app.id.clone());
        }
        match self.by_id.insert(app.id.clone(), Arc::new(app)) {
            None => Ok(()),
            Some(_) => fault("another app has this id".to_owned()),
        }
    }

    /// The app whose topics a prefix would share.
    fn overlapping(&self, prefix: &str) -> Option<&String> {
        let is_below = |inner: &str, outer: &str| {
            inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        let mut known = self.by_topics.iter();
        known.find(|(other, _)| is_below(prefix, other) || is_below(other, prefix)).map(|(_, id)| id)
    }

    /// Where channel events go.
    ///
    /// # Errors
    /// No certificate is trusted.
    pub(crate) fn webhook_targets(&self) -> Result<Vec<WebhookTarget>, HubError> {
        let of_app = |app: &Arc<PusherApp>| {
            let app = Arc::clone(app);
            (0..app.webhooks.len()).map(move |at| {
                app.webhooks[at].target(&app.id, at + 1, &app.keys[0], app.subscription_counts)
            })
        };
        self.by_id.values().flat_map(of_app).collect()
    }

    /// Whether there is no app.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::events::WebhookEventKind;

    #[test]
    fn invalid_apps_are_rejected_with_their_id() {
        let app = |id: &str| PusherApp::new(id, format!("key-{id}"), "secret");
        let limits = |channels| PusherLimits { channels, ..PusherLimits::default() };
        let recovery_time = Duration::from_secs(61);
        let slow = PusherLimits { recovery_time, ..PusherLimits::default() };
        let webhooks = |id: &str, count: usize| {
            (0..count).fold(app(id), |app, _| app.with_webhook(PusherWebhook::new("http://a/")))
        };
        for (apps, expected) in [
            (vec![app("a.b")], "app \"a.b\": the id has"),
            (vec![app("1"), PusherApp::new("1", "other", "secret")], "another app has this id"),
            (vec![app("1"), PusherApp::new("2", "key-1", "secret")], "is the key of another app"),
            (vec![PusherApp::new("1", "k", "")], "and a secret"),
            (vec![app("1").with_topics("a.*")], "is not a topic name"),
            (
                vec![app("1").with_topics("a"), app("2").with_topics("a.b")],
                "topics overlap those of app \"1\"",
            ),
            (vec![app("1").with_limits(limits(501))], "channels of 501 exceeds the limit of 500"),
            (vec![app("1").with_limits(slow)], "recovery_time must be at most one minute"),
            (vec![app("1").with_origins(["no origin"])], "origins:"),
            (vec![app("1").with_activity_timeout(Duration::ZERO)], "activity_timeout"),
            (vec![app("1").with_activity_timeout(Duration::MAX)], "activity_timeout must be one second to"),
            (
                vec![app("1").with_authorization_timeout(Some(Duration::MAX))],
                "authorization_timeout must be at most one day",
            ),
            (vec![app("1").with_webhook(PusherWebhook::new("app"))], "app \"1\": webhook: url"),
            (
                vec![app("1").with_webhook(
                    PusherWebhook::new("http://a/").with_events([WebhookEventKind::SubscriptionCount]),
                )],
                "subscription_count needs subscription_counts",
            ),
            (vec![webhooks("1", 9)], "9 webhooks exceed the limit of 8"),
            (
                (0..33).map(|id| webhooks(&id.to_string(), 8)).collect(),
                "264 webhooks exceed the limit of 256",
            ),
        ] {
            let error = PusherApps::new(apps).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        let apps =
            [app("1").with_topics("a"), app("2").with_topics("ab").with_origins(["https://a.example"])];
        assert!(PusherApps::new(apps).is_ok());
        assert!(!format!("{:?}", app("1")).contains("secret"), "secrets are not shown");
    }
}
