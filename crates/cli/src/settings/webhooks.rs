//! Webhooks: event reports to the application.

use std::fs;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use sinews_hub::{WebhookEventKind, WebhookOptions};

use super::ServeSettings;
use super::hooks::HookUrlSetting;
use crate::config::flags::SettingFlags;
use crate::config::resolver::{SettingGroup, SettingNames, SettingResolver};
use crate::config::schema::settings;
use crate::config::units::{DurationSetting, PositiveDuration, Redacted};
use crate::config::value::choice;

settings! {
    /// A webhook: a URL of the application that receives events, in signed requests. A file may have up to 64 of these
    /// tables. The name is a label of metrics and a word of the log: letters, digits, `-`, `_` and `.`.
    pub(crate) struct WebhookKeys in "webhook.*", "app" {
        /// URL that receives the events. Required.
        url: Option<HookUrlSetting> { example: "https://app.example.com/webhooks", reloads: true }

        /// Secret key that signs requests (HMAC-SHA256, header `Sinews-Signature`). It or {webhook.*.secret_file} is required.
        secret: Option<Redacted> {
            expected: "a string of at least 32 bytes",
            example: "at least 32 random bytes",
            reloads: true,
        }

        /// File with the secret key; one line break at its end is ignored.
        secret_file: Option<PathBuf> { example: "/etc/sinews/webhook", reloads: true }

        /// Events to send.
        events: Option<Vec<WebhookEventSetting>> {
            unset: "all",
            example: "topic_occupied,topic_vacated",
            placeholder: "EVENT",
            reloads: true,
        }

        /// Patterns of the topics whose events to send.
        topics: Option<Vec<String>> {
            unset: "all topics",
            example: "chat.>,orders.*",
            placeholder: "PATTERN",
            expected: "a pattern such as \"chat.>\"",
            reloads: true,
        }

        /// Maximum number of events in a request, at most 1,000.
        batch: Option<NonZeroUsize> { unset: "100", example: "1", reloads: true }

        /// Time to wait for further events of a request, at most 60s.
        delay: Option<DurationSetting> { unset: "100ms", example: "1s", reloads: true }

        /// Maximum number of events that wait, at most 1,000,000, and together at most 64 MiB. Further events are dropped.
        queue: Option<NonZeroUsize> { unset: "10,000", example: "100000", reloads: true }

        /// Time for an answer, at most 60s.
        timeout: Option<PositiveDuration> { unset: "5s", example: "10s", reloads: true }

        /// Time in which a failed request is repeated, with delays from 0.5 s to 30 s; at most 1d.
        retry_time: Option<DurationSetting> { unset: "5m", example: "1h", reloads: true }

        /// Time for which a topic must be without subscribers, or a member absent, before this is an event; at most 60s.
        grace: Option<DurationSetting> { unset: "3s", example: "10s", reloads: true }

        /// File with the certificates, in PEM, that an `https` URL must be signed by.
        ca_file: Option<PathBuf> {
            unset: "the certificates that the system trusts",
            example: "/etc/sinews/app-ca.pem",
            reloads: true,
        }
    }
}

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum WebhookEventSetting {
    TopicOccupied,
    TopicVacated,
    MemberJoined,
    MemberLeft,
    ClientMessage,
    ConnectionClosed,
    ServerStarted,
}

choice!(WebhookEventSetting);

impl From<WebhookEventSetting> for WebhookEventKind {
    fn from(setting: WebhookEventSetting) -> Self {
        match setting {
            WebhookEventSetting::TopicOccupied => Self::TopicOccupied,
            WebhookEventSetting::TopicVacated => Self::TopicVacated,
            WebhookEventSetting::MemberJoined => Self::MemberJoined,
            WebhookEventSetting::MemberLeft => Self::MemberLeft,
            WebhookEventSetting::ClientMessage => Self::ClientMessage,
            WebhookEventSetting::ConnectionClosed => Self::ConnectionClosed,
            WebhookEventSetting::ServerStarted => Self::ServerStarted,
        }
    }
}

/// The webhooks, in name order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WebhookSettings(Vec<WebhookSection>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct WebhookSection {
    name: String,
    location: String,
    keys: WebhookKeys,
    names: SettingNames,
}

impl SettingGroup for WebhookSettings {
    fn resolve(resolver: &mut SettingResolver<'_>) -> Result<Self, String> {
        let mut tables = Vec::new();
        for section in resolver.sections(WebhookKeys::TABLE.name) {
            let flags = SettingFlags::default();
            let mut of_section = SettingResolver::new(&flags, &section.file);
            let keys = WebhookKeys::resolve(&mut of_section)?;
            let (name, location) = (section.name.clone(), section.location.clone());
            let shown = format!("webhook.{name:?}");
            resolver.files.add_section(of_section.files, WebhookKeys::TABLE.name, &shown);
            tables.push(WebhookSection { name, location, keys, names: of_section.names });
        }
        Ok(Self(tables))
    }

    /// All keys are reloaded.
    fn list_restarts(&self, _: &Self, _: &mut Vec<&'static str>) {}
}

impl ServeSettings {
    /// The webhooks for the hub; reads the files that they name.
    ///
    /// # Errors
    /// The invalid setting, and the reason.
    pub(crate) fn webhook_options(&self) -> Result<Vec<WebhookOptions>, String> {
        self.webhooks.0.iter().map(WebhookSection::options).collect()
    }
}

impl WebhookSection {
    fn options(&self) -> Result<WebhookOptions, String> {
        let keys = &self.keys;
        let table = format!("webhook.{:?}", self.name);
        let fault = |key: &str, fault: String| {
            format!("{}: {fault}", self.names.resolve(key).replace("webhook.*", &table))
        };
        let missing = |key: &str| Err(format!("{}: {table}: {key} is missing", self.location));
        let read = |key, path: &PathBuf| {
            fs::read(path).map_err(|error| fault(key, format!("{}: {error}", path.display())))
        };
        let Some(url) = &keys.url else { return missing("url") };
        let secret = match (&keys.secret, &keys.secret_file) {
            (Some(_), Some(_)) => {
                return Err(fault("webhook.*.secret_file", "secret is set, too: set one of them".to_owned()));
            }
            (Some(Redacted(secret)), None) => secret.clone().into_bytes(),
            (None, Some(path)) => {
                let mut secret = read("webhook.*.secret_file", path)?;
                for end in [b'\n', b'\r'] {
                    secret.pop_if(|byte| *byte == end);
                }
                secret
            }
            (None, None) => return missing("secret or secret_file"),
        };
        let mut options = WebhookOptions::new(&self.name, url, secret)
            .with_events(keys.events.iter().flatten().map(|event| (*event).into()))
            .with_topics(keys.topics.iter().flatten().cloned())
            .with_batch(
                keys.batch.map_or(100, NonZeroUsize::get),
                keys.delay.unwrap_or(Duration::from_millis(100)),
            );
        if let Some(queue) = keys.queue {
            options = options.with_queue(queue.get());
        }
        if let Some(timeout) = keys.timeout {
            options = options.with_timeout(timeout);
        }
        if let Some(time) = keys.retry_time {
            options = options.with_retry_time(time);
        }
        if let Some(grace) = keys.grace {
            options = options.with_grace(grace);
        }
        if let Some(path) = &keys.ca_file {
            let trusted = options.with_trusted_certificates(&read("webhook.*.ca_file", path)?);
            options = trusted
                .map_err(|error| fault("webhook.*.ca_file", format!("{}: {error}", path.display())))?;
        }
        options.check().map_err(|error| format!("{}: {table}: {error}", self.location))?;
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::settings;

    const SECRET: &str = "secret = \"0123456789abcdef0123456789abcdef\"";

    #[test]
    fn every_option_is_read() {
        let file = format!(
            "[webhook.app]\nurl = \"http://app/\"\n{SECRET}\nevents = [\"client_message\"]\ntopics = \"chat.>\"\n\
             batch = 5\ndelay = \"0s\"\nqueue = 7\ntimeout = \"9s\"\nretry_time = \"1h\"\ngrace = \"0s\"\n\
             [webhook.other]\nurl = \"http://b/\"\n{SECRET}"
        );
        let read = settings(&[], &file).unwrap();
        assert_eq!(read.webhook_options().unwrap().len(), 2);
        assert!(read.needs_restart(&settings(&[], "").unwrap()).is_empty());
        assert!(!format!("{read:?}").contains("0123456789"), "secrets are not shown");
    }

    #[test]
    fn invalid_webhooks_are_reported_with_their_source() {
        for (file, expected) in [
            ("[webhook.app]\nurl = \"app\"", "sinews.toml:2: webhook.\"app\".url must be a string such as"),
            (
                "[webhook.app]\nevents = \"topic\"",
                "sinews.toml:2: webhook.\"app\".events must be \"topic_occupied\", \"topic_vacated\", ",
            ),
            (
                "[webhook.app]\nurls = \"app\"",
                "sinews.toml:2: unknown key webhook.\"app\".urls; did you mean webhook.\"app\".url?",
            ),
            ("webhook = 1", "sinews.toml:1: webhook is a table: [webhook.\"NAME\"]"),
        ] {
            let error = settings(&[], file).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
        let url = "url = \"http://app/\"\n";
        for (file, expected) in [
            ("\n[webhook.app]".to_owned(), "sinews.toml:2: webhook.\"app\": url is missing"),
            (
                format!("[webhook.app]\n{url}"),
                "sinews.toml:1: webhook.\"app\": secret or secret_file is missing",
            ),
            (
                format!("[webhook.app]\n{url}secret = \"short\""),
                "sinews.toml:1: webhook.\"app\": the secret of 5 bytes is too short",
            ),
            (
                format!("[webhook.app]\n{url}{SECRET}\nsecret_file = \"a\""),
                "sinews.toml:4: webhook.\"app\".secret_file: secret is set, too",
            ),
            (
                format!("[webhook.app]\n{url}secret_file = \"/nowhere/a\""),
                "sinews.toml:3: webhook.\"app\".secret_file: /nowhere/a: ",
            ),
            (
                format!("[webhook.\"a b\"]\n{url}{SECRET}"),
                "sinews.toml:1: webhook.\"a b\": a name has 1 to 64 letters",
            ),
            (
                format!("[webhook.app]\n{url}{SECRET}\ntopics = [\"a.>.b\"]"),
                "sinews.toml:1: webhook.\"app\": topics: \"a.>.b\": ",
            ),
            (
                format!("[webhook.app]\n{url}{SECRET}\ngrace = \"61s\""),
                "sinews.toml:1: webhook.\"app\": grace of 61s must be",
            ),
        ] {
            let error = settings(&[], &file).unwrap().webhook_options().unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
