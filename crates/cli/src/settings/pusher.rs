//! Pusher apps.

mod directory;

use std::collections::HashMap;
use std::fs;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;

use clap::ValueEnum;
use sinews_hub::{PusherApp, PusherApps, PusherFeatures, PusherLimits, PusherWebhook, WebhookEventKind};

use self::directory::AppDirectory;
use crate::config::file::FileSection;
use crate::config::flags::SettingFlags;
use crate::config::resolver::{SettingFiles, SettingGroup, SettingResolver};
use crate::config::schema::settings;
use crate::config::units::{ByteSize, DurationSetting, PositiveDuration, Redacted};
use crate::config::value::choice;

settings! {
    /// Apps of the Pusher Channels protocol that are files of a directory.
    pub(crate) struct PusherKeys in "pusher", "Pusher protocol" {
        /// Directory of apps, besides the apps of the configuration file. Each file `*.toml` has one app, with the keys of
        /// `[[pusher.app]]` and without this header. Changes of the directory take effect within two seconds, without a
        /// signal. Hidden files and files with other suffixes are ignored.
        apps_directory: Option<PathBuf> {
            placeholder: "DIR",
            expected: "the path of a directory",
            example: "/etc/sinews/apps",
            reloads: true,
        }

        /// Prefix of paths at which apps are served, too: with `/broadcast`, also at `/broadcast/app/KEY` and
        /// `/broadcast/apps/ID/…`. Signatures may cover paths with and without it. For a proxy with a path, whether it removes
        /// the path or not.
        path_prefix: Option<String> {
            expected: "a path such as \"/broadcast\"",
            example: "/broadcast",
        }

        /// Memory that recoveries reserve while they read missed events of durable topics, 1 MiB each. Further recoveries wait;
        /// a recovery that has waited and read for the `recovery_timeout` of its app is answered with `"recovered": false`.
        max_recovery_bytes: ByteSize { default: "64m" }
    }
}

settings! {
    /// An app of the Pusher Channels protocol: clients connect to `/app/KEY`, and servers send requests to `/apps/ID/…`. A
    /// server may have up to 10,000 apps; `sinews app new NAME` prints one. Open connections follow a reload.
    pub(crate) struct PusherAppKeys in "pusher.app[]", "" {
        /// Id of the app: 1 to 20 letters, digits, `-` and `_`. Some libraries accept digits only.
        id: Option<String> { unset: "none; it is required", example: "1", reloads: true }

        /// Name of the app for people, which the dashboard shows.
        name: Option<String> { example: "shop", reloads: true }

        /// Key of the app, which clients know.
        key: Option<String> { unset: "none; it is required", example: "278d425bdf160c739803", reloads: true }

        /// Secret of the key, which signs requests and subscriptions.
        secret: Option<Redacted> { expected: "a string", example: "7ad3773142a6692b25b8", reloads: true }

        /// File with the secret of the key; one line break at its end is ignored.
        secret_file: Option<PathBuf> { example: "/etc/sinews/shop.secret", reloads: true }

        /// Further valid keys, each as `KEY:SECRET`, for a rotation.
        more_keys: Vec<Redacted> { expected: "a string such as \"KEY:SECRET\"", example: "key:secret", reloads: true }

        /// Whether the app serves. Connections of a disabled app are closed with 4003.
        enabled: Option<bool> { unset: "true", example: "false", reloads: true }

        /// Prefix of topics for other protocols: with `chat`, the channel `room` is the topic `chat.room`, with the rights
        /// that apply there.
        topics: Option<String> { unset: "other protocols do not reach the channels", example: "chat", reloads: true }

        /// Origins whose pages may connect, such as `https://example.com`, or `any`.
        origins: Vec<String> { expected: "\"any\", an origin such as \"https://example.com\"", example: "any", reloads: true }

        /// Whether clients may send events to members of private and presence channels.
        client_events: Option<bool> { unset: "false", example: "true", reloads: true }

        /// Whether subscribers of channels without presence receive the number of subscribers, and requests may ask for it.
        subscription_counts: Option<bool> { unset: "false", example: "true", reloads: true }

        /// Whether clients may subscribe to presence channels.
        presence_channels: Option<bool> { unset: "true", example: "false", reloads: true }

        /// Whether clients may subscribe to cache channels, and the server retains their events.
        cache_channels: Option<bool> { unset: "true", example: "false", reloads: true }

        /// Whether users may sign in. Otherwise, connections that sign in are closed with 4009.
        users: Option<bool> { unset: "true", example: "false", reloads: true }

        /// Whether users that sign in may have a watchlist. Otherwise, watchlists are ignored.
        watchlists: Option<bool> { unset: "true", example: "false", reloads: true }

        /// Whether connections without TLS are closed with 4000. A proxy that terminates TLS has to set `X-Forwarded-Proto`.
        tls_only: Option<bool> { unset: "false", example: "true", reloads: true }

        /// Whether the parameter `protocol` is required; otherwise the library's version may stand for it.
        strict_protocol: Option<bool> { unset: "false", example: "true", reloads: true }

        /// Time without a message after which clients send a ping; one second to one day. The server sends one after
        /// {pusher.app[].pong_timeout} more.
        activity_timeout: Option<PositiveDuration> { unset: "120s", example: "60s", reloads: true }

        /// Time in which a client has to answer a ping of the server; at most one day. After it, the connection is closed with
        /// 4201.
        pong_timeout: Option<PositiveDuration> { unset: "30s", example: "10s", reloads: true }

        /// Time in which a client has to sign in or to subscribe to a private or presence channel; at most one day.
        authorization_timeout: Option<PositiveDuration> { unset: "no limit", example: "10s", reloads: true }

        /// Maximum number of connections on this node. Further ones are closed with 4004.
        max_connections: Option<NonZeroUsize> { unset: "no limit", example: "10000", reloads: true }

        /// Maximum number of channels of a connection, at most 500.
        max_channels: Option<NonZeroUsize> { unset: "500", example: "100", reloads: true }

        /// Maximum length of a channel's name in bytes, at most 200.
        max_channel_name: Option<NonZeroUsize> { unset: "164", example: "200", reloads: true }

        /// Maximum length of an event's name in bytes.
        max_event_name: Option<NonZeroUsize> { unset: "200", example: "100", reloads: true }

        /// Maximum size of an event's data in bytes.
        max_event_data: Option<ByteSize> { unset: "10k", example: "100k", reloads: true }

        /// Maximum number of channels of one event.
        max_event_channels: Option<NonZeroUsize> { unset: "100", example: "1000", reloads: true }

        /// Maximum number of events of a batch.
        max_batch: Option<NonZeroUsize> { unset: "10", example: "100", reloads: true }

        /// Maximum number of members of a presence channel.
        max_members: Option<NonZeroUsize> { unset: "100", example: "1000", reloads: true }

        /// Client events a second of a connection, and at once after an idle second. Further ones are rejected with 4301.
        client_events_per_second: Option<NonZeroU32> { unset: "10", example: "50", reloads: true }

        /// Requests a second on this node, and at once after an idle second. Further ones are rejected with 429.
        requests_per_second: Option<NonZeroU32> { unset: "no limit", example: "1000", reloads: true }

        /// Time for which a cache channel retains its last event.
        cache_time: Option<PositiveDuration> { unset: "30m", example: "5m", reloads: true }

        /// Maximum number of cache channels on this node that retain an event. Their messages have this number times
        /// {pusher.app[].max_event_data} bytes at most. Beyond either, the oldest event is dropped.
        max_cached_channels: Option<NonZeroUsize> { unset: "10000", example: "1000", reloads: true }

        /// Time in which the missed events of a durable topic are read for a recovery; at most one minute. After it, the recovery
        /// is answered with `"recovered": false`.
        recovery_timeout: Option<PositiveDuration> { unset: "5s", example: "10s", reloads: true }

        /// Maximum number of users in a watchlist, at most 100.
        max_watchlist: Option<NonZeroUsize> { unset: "100", example: "50", reloads: true }

        /// URLs that receive events of the channels, in requests that the first key signs (`X-Pusher-Signature`); at most 8.
        webhooks: Vec<String> {
            expected: "a string such as \"https://app.example.com/hooks\"",
            example: "https://app.example.com/pusher",
            reloads: true,
        }

        /// Events to send. `subscription_count` needs {pusher.app[].subscription_counts}.
        webhook_events: Option<Vec<PusherEventSetting>> {
            unset: "all",
            example: "channel_occupied,channel_vacated",
            placeholder: "EVENT",
            reloads: true,
        }

        /// Beginnings of the names of the channels whose events to send.
        webhook_channels: Option<Vec<String>> { unset: "all channels", example: "private-,presence-", reloads: true }

        /// Whether a request has up to 100 events of 100 ms; otherwise, it has one.
        webhook_batches: Option<bool> { unset: "false", example: "true", reloads: true }

        /// Time for which a channel must be without subscribers, or a member absent, before this is an event; at most 60s.
        webhook_grace: Option<DurationSetting> { unset: "3s", example: "10s", reloads: true }

        /// Endings of the names of the channels whose events to send, in addition to {pusher.app[].webhook_channels}.
        webhook_channel_suffixes: Option<Vec<String>> { unset: "all channels", example: "-eu,-us", reloads: true }

        /// Whether webhooks may go to private and local addresses. Otherwise such addresses are rejected, of a name whenever
        /// a connection is opened.
        webhook_private: Option<bool> { unset: "false", example: "true", reloads: true }

        /// Headers of each request to a webhook besides those of the protocol, each as `NAME: VALUE`; at most 16.
        webhook_headers: Vec<Redacted> {
            expected: "a string such as \"NAME: VALUE\"",
            example: "Authorization: Bearer TOKEN",
            reloads: true,
        }

        /// File with the certificates, in PEM, that `https` URLs of webhooks must be signed by.
        webhook_ca_file: Option<PathBuf> {
            unset: "the certificates that the system trusts",
            example: "/etc/sinews/app-ca.pem",
            reloads: true,
        }
    }
}

/// An event of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum PusherEventSetting {
    ChannelOccupied,
    ChannelVacated,
    MemberAdded,
    MemberRemoved,
    ClientEvent,
    CacheMiss,
    SubscriptionCount,
}

choice!(PusherEventSetting);

impl From<PusherEventSetting> for WebhookEventKind {
    fn from(setting: PusherEventSetting) -> Self {
        match setting {
            PusherEventSetting::ChannelOccupied => Self::TopicOccupied,
            PusherEventSetting::ChannelVacated => Self::TopicVacated,
            PusherEventSetting::MemberAdded => Self::MemberJoined,
            PusherEventSetting::MemberRemoved => Self::MemberLeft,
            PusherEventSetting::ClientEvent => Self::ClientMessage,
            PusherEventSetting::CacheMiss => Self::CacheMiss,
            PusherEventSetting::SubscriptionCount => Self::SubscriptionCount,
        }
    }
}

/// The apps, in the configuration file's order, and then by file in the directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PusherSettings {
    keys: PusherKeys,
    /// Apps from the configuration file.
    sections: Vec<PusherSection>,
    directory: Option<AppDirectory>,
    /// Apps from the directory.
    files: Vec<PusherSection>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct PusherSection {
    /// Position in the file.
    location: String,
    keys: PusherAppKeys,
}

impl SettingGroup for PusherSettings {
    fn resolve(resolver: &mut SettingResolver<'_>) -> Result<Self, String> {
        let keys = PusherKeys::resolve(resolver)?;
        let directory = keys.apps_directory.clone().map(AppDirectory::new);
        let mut sections = Vec::new();
        for section in resolver.sections(PusherAppKeys::TABLE.name) {
            sections.push(PusherSection::resolve(section, &mut resolver.files)?);
        }
        Ok(Self { keys, sections, directory, files: Vec::new() })
    }

    /// All app keys take effect on reload.
    fn list_restarts(&self, new: &Self, restarts: &mut Vec<&'static str>) {
        self.keys.list_restarts(&new.keys, restarts);
    }
}

impl PusherSettings {
    /// Returns the memory for recoveries.
    pub(crate) fn max_recovery_bytes(&self) -> usize {
        self.keys.max_recovery_bytes
    }

    /// Returns the path prefix.
    pub(crate) fn path_prefix(&self) -> Option<&str> {
        self.keys.path_prefix.as_deref()
    }

    /// Returns the app directory.
    pub(crate) fn directory(&self) -> Option<&AppDirectory> {
        self.directory.as_ref()
    }

    /// Returns the app count.
    pub(crate) fn len(&self) -> usize {
        self.all().count()
    }

    fn all(&self) -> impl Iterator<Item = &PusherSection> {
        self.sections.iter().chain(&self.files)
    }

    /// Reads the directory's files, and checks all apps. `name` is the setting's name, for errors. The directory's
    /// state is that of this call, also after an error.
    ///
    /// # Errors
    /// The directory cannot be read, a file is invalid, or two apps contradict each other.
    pub(crate) fn read_directory(&mut self, name: &str) -> Result<(), String> {
        let Some(directory) = &mut self.directory else { return Ok(()) };
        let files = directory.read(PusherAppKeys::TABLE).map_err(|fault| format!("{name}: {fault}"))?;
        let mut faults = Vec::new();
        self.files.clear();
        for file in files {
            let mut files = SettingFiles::default();
            match file.and_then(|section| PusherSection::resolve(&section, &mut files)) {
                Ok(section) => self.files.push(section),
                Err(fault) => faults.push(fault),
            }
        }
        if faults.is_empty() { self.check() } else { Err(faults.join("\n")) }
    }

    /// Takes over the directory's state from settings that were rejected, so that their fault is reported once.
    pub(crate) fn note_state(&mut self, rejected: &Self) {
        self.directory.clone_from(&rejected.directory);
    }

    /// Checks that each app has an id, a key and a secret, and that no other app has the id, the key or the topics.
    ///
    /// # Errors
    /// The app's position, and that of the app with the same id, key or topics.
    pub(super) fn check(&self) -> Result<(), String> {
        let mut known = HashMap::new();
        for section in self.all() {
            section.check()?;
            for (kind, name) in section.names() {
                if let Some(other) = known.insert((kind, name), section) {
                    return Err(format!(
                        "{}: pusher.app: the {kind} {name:?} is also that of the app at {}",
                        section.location, other.location
                    ));
                }
            }
        }
        self.check_topics()
    }

    /// Checks that no two apps have `topics` of which one is the other, or is below it.
    fn check_topics(&self) -> Result<(), String> {
        let with_topics =
            || self.all().filter_map(|section| Some((section.keys.topics.as_deref()?, section)));
        let overlap = |(inner, section): (&str, &PusherSection), (outer, other): (&str, &PusherSection)| {
            Err(format!(
                "{}: pusher.app: topics = {inner:?} overlaps topics = {outer:?} of the app at {}",
                section.location, other.location
            ))
        };
        let mut known: HashMap<&str, &PusherSection> = HashMap::new();
        for (topics, section) in with_topics() {
            if let Some(other) = known.insert(topics, section) {
                return overlap((topics, section), (topics, other));
            }
        }
        for (topics, section) in with_topics() {
            let outer = topics.match_indices('.').map(|(dot, _)| &topics[..dot]);
            for outer in outer {
                if let Some(other) = known.get(outer) {
                    return overlap((topics, section), (outer, other));
                }
            }
        }
        Ok(())
    }

    /// Returns the apps for the hub. Reads the secret files.
    pub(crate) fn apps(&self) -> Result<PusherApps, String> {
        let apps = self.all().map(PusherSection::app).collect::<Result<Vec<_>, _>>()?;
        PusherApps::new(apps).map_err(|error| format!("pusher.app: {error}"))
    }
}

impl PusherSection {
    /// Reads one table's keys.
    fn resolve(section: &FileSection, files: &mut SettingFiles) -> Result<Self, String> {
        let flags = SettingFlags::default();
        let mut resolver = SettingResolver::new(&flags, &section.file);
        let keys = PusherAppKeys::resolve(&mut resolver)?;
        files.add_section(resolver.files, PusherAppKeys::TABLE.name, "pusher.app");
        Ok(Self { location: section.location.clone(), keys })
    }

    fn check(&self) -> Result<(), String> {
        let PusherAppKeys { id, key, secret, secret_file, .. } = &self.keys;
        let fault = |fault: &str| Err(format!("{}: pusher.app {fault}", self.location));
        match (id, key, secret, secret_file) {
            (None, ..) => fault("needs an id"),
            (_, None, ..) => fault("needs a key"),
            (_, _, None, None) => fault("needs a secret or a secret_file"),
            (_, _, Some(_), Some(_)) => fault("has a secret and a secret_file: only one of these may be set"),
            _ => Ok(()),
        }
    }

    /// The names that no other app has, each with its kind.
    fn names(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let PusherAppKeys { id, key, more_keys, .. } = &self.keys;
        let more = more_keys.iter().filter_map(|Redacted(pair)| Some(pair.split_once(':')?.0));
        let keys = key.iter().map(String::as_str).chain(more).map(|key| ("key", key));
        id.iter().map(|id| ("id", id.as_str())).chain(keys)
    }

    fn app(&self) -> Result<PusherApp, String> {
        let keys = &self.keys;
        let fault = |fault: String| format!("{}: pusher.app: {fault}", self.location);
        let secret = match (&keys.secret, &keys.secret_file) {
            (Some(Redacted(secret)), _) => secret.clone(),
            (None, Some(path)) => {
                let read = fs::read_to_string(path);
                let read = read.map_err(|error| fault(format!("secret_file {}: {error}", path.display())))?;
                let line = read.strip_suffix('\n').unwrap_or(&read);
                line.strip_suffix('\r').unwrap_or(line).to_owned()
            }
            (None, None) => String::new(),
        };
        let text = |value: &Option<String>| value.clone().unwrap_or_default();
        let mut app = PusherApp::new(text(&keys.id), text(&keys.key), &secret);
        for Redacted(pair) in &keys.more_keys {
            let (key, secret) = pair
                .split_once(':')
                .ok_or_else(|| fault("more_keys must have strings such as \"KEY:SECRET\"".to_owned()))?;
            app = app.with_key(key, secret);
        }
        if let Some(name) = &keys.name {
            app = app.with_name(name);
        }
        if let Some(prefix) = &keys.topics {
            app = app.with_topics(prefix);
        }
        if let Some(timeout) = keys.activity_timeout {
            app = app.with_activity_timeout(timeout);
        }
        for webhook in webhooks(keys).map_err(fault)? {
            app = app.with_webhook(webhook);
        }
        let app = app
            .with_enabled(keys.enabled.unwrap_or(true))
            .with_origins(keys.origins.iter().cloned())
            .with_client_events(keys.client_events.unwrap_or(false))
            .with_subscription_counts(keys.subscription_counts.unwrap_or(false))
            .with_tls_only(keys.tls_only.unwrap_or(false))
            .with_strict_protocol(keys.strict_protocol.unwrap_or(false))
            .with_authorization_timeout(keys.authorization_timeout)
            .with_features(features(keys))
            .with_limits(limits(keys));
        // All apps are checked together later: an error from this check has the position.
        PusherApps::new([app.clone()]).map_err(|error| fault(error.to_string()))?;
        Ok(app)
    }
}

/// Returns an app's webhooks. Reads the certificate file.
///
/// # Errors
/// The file cannot be read, or a header is no pair.
fn webhooks(keys: &PusherAppKeys) -> Result<Vec<PusherWebhook>, String> {
    let fault = |path: &PathBuf, error: String| format!("webhook_ca_file {}: {error}", path.display());
    let roots = match &keys.webhook_ca_file {
        Some(path) => Some((path, fs::read(path).map_err(|error| fault(path, error.to_string()))?)),
        None => None,
    };
    let mut all = Vec::with_capacity(keys.webhooks.len());
    for url in &keys.webhooks {
        let mut webhook = webhook(url, keys);
        for Redacted(pair) in &keys.webhook_headers {
            let (name, value) =
                pair.split_once(':').ok_or("webhook_headers must have strings such as \"NAME: VALUE\"")?;
            webhook = webhook.with_header(name, value.trim());
        }
        if let Some((path, pem)) = &roots {
            webhook =
                webhook.with_trusted_certificates(pem).map_err(|error| fault(path, error.to_string()))?;
        }
        all.push(webhook);
    }
    Ok(all)
}

fn webhook(url: &str, keys: &PusherAppKeys) -> PusherWebhook {
    let webhook = PusherWebhook::new(url)
        .with_events(keys.webhook_events.iter().flatten().map(|event| (*event).into()))
        .with_channels(keys.webhook_channels.iter().flatten().cloned())
        .with_channel_suffixes(keys.webhook_channel_suffixes.iter().flatten().cloned())
        .with_batches(keys.webhook_batches.unwrap_or(false))
        .with_private_addresses(keys.webhook_private.unwrap_or(false));
    match keys.webhook_grace {
        Some(grace) => webhook.with_grace(grace),
        None => webhook,
    }
}

fn features(keys: &PusherAppKeys) -> PusherFeatures {
    let mut features = PusherFeatures::default();
    for (feature, key) in [
        (&mut features.presence_channels, keys.presence_channels),
        (&mut features.cache_channels, keys.cache_channels),
        (&mut features.users, keys.users),
        (&mut features.watchlists, keys.watchlists),
    ] {
        *feature = key.unwrap_or(*feature);
    }
    features
}

fn limits(keys: &PusherAppKeys) -> PusherLimits {
    let mut limits = PusherLimits::default();
    let set = |limit: &mut usize, value: Option<NonZeroUsize>| {
        if let Some(value) = value {
            *limit = value.get();
        }
    };
    set(&mut limits.channels, keys.max_channels);
    set(&mut limits.channel_name, keys.max_channel_name);
    set(&mut limits.event_name, keys.max_event_name);
    set(&mut limits.event_channels, keys.max_event_channels);
    set(&mut limits.batch, keys.max_batch);
    set(&mut limits.members, keys.max_members);
    set(&mut limits.cached_channels, keys.max_cached_channels);
    set(&mut limits.watchlist, keys.max_watchlist);
    limits.event_data = keys.max_event_data.unwrap_or(limits.event_data);
    for (limit, value) in [
        (&mut limits.cache_time, keys.cache_time),
        (&mut limits.pong_time, keys.pong_timeout),
        (&mut limits.recovery_time, keys.recovery_timeout),
    ] {
        *limit = value.unwrap_or(*limit);
    }
    limits.connections = keys.max_connections.map(NonZeroUsize::get);
    limits.requests_per_second = keys.requests_per_second.map(NonZeroU32::get);
    if let Some(rate) = keys.client_events_per_second {
        limits.client_events_per_second = rate.get();
    }
    limits
}

#[cfg(test)]
mod tests {
    use super::super::tests::settings;

    #[test]
    fn apps_are_read_from_a_list_of_tables() {
        let file = "[[pusher.app]]\nid = \"1\"\nkey = \"a\"\nsecret = \"not shown\"\nmore_keys = \"b:c\"\n\
                    origins = [\"https://a.example\"]\nclient_events = true\nmax_event_data = \"20k\"\n\
                    cache_time = \"1m\"\npong_timeout = \"3s\"\nrecovery_timeout = \"2s\"\n\
                    topics = \"chat\"\nmax_connections = 5\n\
                    webhooks = [\"http://a/\", \"http://b/\"]\nwebhook_events = [\"cache_miss\"]\n\
                    webhook_channels = \"private-\"\nwebhook_batches = true\nwebhook_grace = \"0s\"\n\
                    webhook_headers = [\"Authorization: Bearer not shown\", \"X-A:b\"]\n\
                    [[pusher.app]]\nid = \"2\"\nkey = \"d\"\nsecret = \"e\"\n";
        let settings = settings(&[], file).unwrap();
        assert!(!settings.pusher.apps().unwrap().is_empty());
        assert!(!format!("{settings:?}").contains("not shown"), "secrets are not shown");
        assert_eq!(settings.pusher.len(), 2);
        let times = |section: &super::PusherSection| {
            let limits = super::limits(&section.keys);
            [limits.cache_time, limits.pong_time, limits.recovery_time].map(|time| time.as_secs())
        };
        let times: Vec<_> = settings.pusher.sections.iter().map(times).collect();
        assert_eq!(times, [[60, 3, 2], [1_800, 30, 5]]);
    }

    #[test]
    fn invalid_apps_are_reported_with_their_line() {
        for (file, expected) in [
            ("[[pusher.app]]\nkey = \"a\"", "sinews.toml:1: pusher.app needs an id"),
            ("\n[[pusher.app]]\nid = \"1\"\nkey = \"a\"", "sinews.toml:2: pusher.app needs a secret"),
            (
                "[[pusher.app]]\nids = \"1\"",
                "sinews.toml:2: unknown key pusher.app.ids; did you mean pusher.app.id?",
            ),
            ("[pusher.app]\nid = \"1\"", "unknown key; did you mean [[pusher.app]]?"),
            ("[pusher]\napps = []", "sinews.toml:2: unknown key pusher.apps; did you mean [[pusher.app]]?"),
            ("[[pusher.apps]]", "sinews.toml:1: unknown key pusher.apps; did you mean [[pusher.app]]?"),
            ("[pusher.apps]", "sinews.toml:1: unknown key pusher.apps; did you mean [[pusher.app]]?"),
            (
                "pusher.app_directory = \"a\"",
                "sinews.toml:1: unknown key pusher.app_directory; did you mean pusher.apps_directory?",
            ),
            ("pusher = 1", "sinews.toml:1: pusher is a table: [pusher]"),
            (
                "[pusher]\napps_directory = 1\n[[pusher.app]]",
                "sinews.toml:2: pusher.apps_directory must be the path",
            ),
            ("[[pusher.app]]\nid = 1", "sinews.toml:2: pusher.app.id must be"),
            (
                "[[pusher.app]]\nwebhook_events = \"all\"",
                "pusher.app.webhook_events must be \"channel_occupied\", \"channel_vacated\", ",
            ),
        ] {
            let error = settings(&[], file).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        let app = |id: &str, more: &str| {
            format!("[[pusher.app]]\nid = \"{id}\"\nkey = \"a{id}\"\nsecret = \"b\"\n{more}\n")
        };
        for (second, expected) in [
            (
                app("1", ""),
                "sinews.toml:6: pusher.app: the id \"1\" is also that of the app at sinews.toml:1",
            ),
            (
                app("2", "more_keys = \"a1:hidden\""),
                "sinews.toml:6: pusher.app: the key \"a1\" is also that of the app at sinews.toml:1",
            ),
            (
                app("2", "topics = \"c\""),
                "sinews.toml:6: pusher.app: topics = \"c\" overlaps topics = \"c\" of the app at sinews.toml:1",
            ),
            (
                app("2", "topics = \"c.d.e\""),
                "sinews.toml:6: pusher.app: topics = \"c.d.e\" overlaps topics = \"c\" of the app at sinews.toml:1",
            ),
        ] {
            let error = settings(&[], &format!("{}{second}", app("1", "topics = \"c\""))).unwrap_err();
            assert_eq!(error, expected);
        }
        let grace = "[[pusher.app]]\nid = \"1\"\nkey = \"a\"\nsecret = \"b\"\nwebhooks = \"http://a/\"\n\
                     webhook_grace = \"61s\"\n";
        let error = settings(&[], grace).unwrap().pusher.apps().unwrap_err();
        assert!(error.contains("app \"1\": webhook: grace of 61s exceeds"), "{error}");
        let missing = "[[pusher.app]]\nid = \"1\"\nkey = \"a\"\nsecret_file = \"/nowhere/a\"";
        let error = settings(&[], missing).unwrap().pusher.apps().unwrap_err();
        assert!(error.contains("sinews.toml:1: pusher.app: secret_file /nowhere/a: "), "{error}");
    }

    #[test]
    fn invalid_webhooks_are_reported_without_their_secrets() {
        for (keys, expected) in [
            (
                "webhook_headers = \"not shown\"",
                "sinews.toml:1: pusher.app: webhook_headers must have strings",
            ),
            (
                "webhook_headers = \"Host: not shown\"",
                "sinews.toml:1: pusher.app: app \"1\": webhook: header host is reserved",
            ),
            ("webhook_ca_file = \"/nowhere/a\"", "sinews.toml:1: pusher.app: webhook_ca_file /nowhere/a: "),
        ] {
            let file = format!(
                "[[pusher.app]]\nid = \"1\"\nkey = \"a\"\nsecret = \"b\"\nwebhooks = \"http://a/\"\n{keys}\n"
            );
            let error = settings(&[], &file).unwrap().pusher.apps().unwrap_err();
            assert!(error.contains(expected) && !error.contains("not shown"), "{error}");
        }
    }
}
