//! Webhook options.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ring::hmac;
use rustls::pki_types::CertificateDer;

use super::encoder::{JsonEncoder, WebhookEncoder};
use super::filter::EventFilter;
use crate::error::HubError;
use crate::model::events::WebhookEventKind;
use crate::model::{check_pattern, parse_patterns};
use crate::outgoing::http::{HttpClient, trusted_certificates};
use crate::outgoing::options::HookUrl;

/// Maximum webhooks: each is a metrics label, and has a queue.
const WEBHOOKS_MAX: usize = 64;

/// Maximum number of events in a request.
const BATCH_MAX: usize = 1_000;

/// Maximum events that wait for one webhook.
const QUEUE_MAX: usize = 1_000_000;

/// Maximum time for an answer.
const TIMEOUT_MAX: Duration = Duration::from_secs(60);

/// Maximum delay of a batch, and maximum grace of an absence.
const DELAY_MAX: Duration = Duration::from_secs(60);

/// Maximum retry time.
const RETRY_TIME_MAX: Duration = Duration::from_secs(86_400);

/// Minimum secret length in bytes: the length of the hash.
const SECRET_MIN: usize = 32;

/// Maximum name length in bytes.
const NAME_MAX: usize = 64;

/// A webhook: an application URL that receives events.
#[derive(Clone)]
pub struct WebhookOptions {
    name: String,
    url: String,
    secret: Vec<u8>,
    events: Vec<WebhookEventKind>,
    topics: Vec<String>,
    limits: DeliveryLimits,
    grace: Duration,
    roots: Option<Vec<CertificateDer<'static>>>,
}

/// Limits of a webhook's deliveries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeliveryLimits {
    /// Maximum number of events in a request.
    pub(crate) batch: usize,
    /// Time to wait for further events of a batch.
    pub(crate) delay: Duration,
    /// Maximum events that wait.
    pub(crate) queue: usize,
    /// Time for an answer.
    pub(crate) timeout: Duration,
    /// Age from which an event is not sent again.
    pub(crate) retry_time: Duration,
}

impl Default for DeliveryLimits {
    fn default() -> Self {
        Self {
            batch: 100,
            delay: Duration::from_millis(100),
            queue: 10_000,
            timeout: Duration::from_secs(5),
            retry_time: Duration::from_secs(300),
        }
    }
}

impl fmt::Debug for WebhookOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The secret must not be logged, and the URL may have one.
        f.debug_struct("WebhookOptions").field("name", &self.name).finish_non_exhaustive()
    }
}

impl WebhookOptions {
    /// Creates a webhook for all events. The name is a metrics label and a word in the log: 1 to 64 letters, digits,
    /// `-`, `_` and `.`. The secret has at least 32 bytes (HMAC-SHA256).
    #[must_use]
    pub fn new(name: impl Into<String>, url: impl Into<String>, secret: impl Into<Vec<u8>>) -> Self {
        Self {
            name: name.into(),
            url: url.into(),
            secret: secret.into(),
            events: Vec::new(),
            topics: Vec::new(),
            limits: DeliveryLimits::default(),
            grace: Duration::from_secs(3),
            roots: None,
        }
    }

    /// Sets the events. Default, and for an empty list: all.
    #[must_use]
    pub fn with_events(mut self, events: impl IntoIterator<Item = WebhookEventKind>) -> Self {
        self.events = events.into_iter().collect();
        self
    }

    /// Limits topic events to topics with these patterns. Default, and for an empty list: all topics.
    #[must_use]
    pub fn with_topics<S: Into<String>>(mut self, patterns: impl IntoIterator<Item = S>) -> Self {
        self.topics = patterns.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the maximum number of events in a request, 1 to 1,000, and the time to wait for them, at most 60 s.
    /// Default: 100 events and 100 ms, so that a burst is one request and nobody notices the delay.
    #[must_use]
    pub fn with_batch(mut self, events: usize, delay: Duration) -> Self {
        (self.limits.batch, self.limits.delay) = (events, delay);
        self
    }

    /// Sets the maximum number of events that wait, 1 to 1,000,000; further ones are dropped. Default: 10,000. Together
    /// they also have at most 64 MiB.
    #[must_use]
    pub fn with_queue(mut self, events: usize) -> Self {
        self.limits.queue = events;
        self
    }

    /// Sets the time for an answer, at most 60 s. Default: 5 s.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.limits.timeout = timeout;
        self
    }

    /// Sets how long a failed request is repeated, at most 24 h. Default: 5 minutes, longer than the restart of an
    /// application.
    #[must_use]
    pub fn with_retry_time(mut self, time: Duration) -> Self {
        self.limits.retry_time = time;
        self
    }

    /// Sets how long a topic must be without subscribers, or a member absent, before it is reported; at most 60 s.
    /// Default: 3 s, in which clients reconnect.
    #[must_use]
    pub fn with_grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Trusts only these certificates, in PEM, for an `https` URL. Default: the certificates that the system trusts.
    ///
    /// # Errors
    /// [`HubErrorKind::Certificates`](crate::HubErrorKind::Certificates): the text has no certificate, or an invalid
    /// one.
    pub fn with_trusted_certificates(mut self, pem: &[u8]) -> Result<Self, HubError> {
        self.roots = Some(trusted_certificates(pem)?);
        Ok(self)
    }

    /// Checks the options.
    ///
    /// # Errors
    /// [`HubErrorKind::Url`]: an invalid URL, which the error does not repeat. [`HubErrorKind::Key`]: the secret is too
    /// short. [`HubErrorKind::Pattern`]: an invalid pattern of topics. [`HubErrorKind::Setting`]: another invalid
    /// option, and its limit.
    ///
    /// [`HubErrorKind::Url`]: crate::HubErrorKind::Url
    /// [`HubErrorKind::Key`]: crate::HubErrorKind::Key
    /// [`HubErrorKind::Pattern`]: crate::HubErrorKind::Pattern
    /// [`HubErrorKind::Setting`]: crate::HubErrorKind::Setting
    pub fn check(&self) -> Result<(), HubError> {
        let invalid = |text: String| Err(HubError::setting(text));
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if !(1..=NAME_MAX).contains(&self.name.len()) || !self.name.bytes().all(is_name) {
            return invalid(format!("a name has 1 to {NAME_MAX} letters, digits, `-`, `_` and `.`"));
        }
        HookUrl::parse("url", &self.url)?;
        if let Some(bad) = self.events.iter().find(|event| WebhookEventKind::OF_CHANNELS.contains(event)) {
            return invalid(format!("events: only webhooks of apps receive {}", bad.name()));
        }
        if self.secret.len() < SECRET_MIN {
            let bytes = self.secret.len();
            let fault = format!("the secret of {bytes} bytes is too short (at least {SECRET_MIN})");
            return Err(HubError::key(fault));
        }
        let limits = &self.limits;
        if !(1..=BATCH_MAX).contains(&limits.batch) {
            return invalid(format!("batch must be from 1 to {BATCH_MAX}"));
        }
        if !(1..=QUEUE_MAX).contains(&limits.queue) {
            return invalid(format!("queue must be from 1 to {QUEUE_MAX}"));
        }
        for (name, time, min, max) in [
            ("delay", limits.delay, Duration::ZERO, DELAY_MAX),
            ("grace", self.grace, Duration::ZERO, DELAY_MAX),
            ("timeout", limits.timeout, Duration::from_millis(1), TIMEOUT_MAX),
            ("retry_time", limits.retry_time, Duration::ZERO, RETRY_TIME_MAX),
        ] {
            if time < min || time > max {
                return invalid(format!("{name} of {time:?} must be from {min:?} to {max:?}"));
            }
        }
        self.topics.iter().try_for_each(|pattern| {
            check_pattern(pattern).map_err(|error| error.at(format_args!("topics: {pattern:?}")))
        })
    }

    /// Returns the target of the deliveries.
    ///
    /// # Errors
    /// The invalid option.
    pub(crate) fn target(&self) -> Result<WebhookTarget, HubError> {
        self.check()?;
        let key = hmac::Key::new(hmac::HMAC_SHA256, &self.secret);
        let filter = EventFilter::new(&self.events, parse_patterns(self.topics.clone()));
        let parsed = HookUrl::parse("url", &self.url)?;
        let roots = self.roots.as_deref();
        let address = WebhookAddress { name: &self.name, url: &self.url, parsed, roots };
        let encoder = Arc::new(JsonEncoder::new(key));
        WebhookTarget::new(address, filter, self.limits, self.grace, encoder)
    }
}

/// Name and URL of a target, and the root certificates that its connections trust, if not the system's.
pub(crate) struct WebhookAddress<'a> {
    pub(crate) name: &'a str,
    pub(crate) url: &'a str,
    pub(crate) parsed: HookUrl,
    pub(crate) roots: Option<&'a [CertificateDer<'static>]>,
}

/// Where events go, and in which form.
pub(crate) struct WebhookTarget {
    name: Arc<str>,
    /// The URL for the log: the query may have a secret.
    pub(super) shown_url: String,
    pub(super) client: HttpClient,
    pub(super) filter: EventFilter,
    pub(super) limits: DeliveryLimits,
    pub(super) grace: Duration,
    pub(super) encoder: Arc<dyn WebhookEncoder>,
}

impl fmt::Debug for WebhookTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebhookTarget").field("name", &self.name).finish_non_exhaustive()
    }
}

impl WebhookTarget {
    fn new(
        WebhookAddress { name, url, parsed, roots }: WebhookAddress<'_>,
        filter: EventFilter,
        limits: DeliveryLimits,
        grace: Duration,
        encoder: Arc<dyn WebhookEncoder>,
    ) -> Result<Self, HubError> {
        Ok(Self {
            name: name.into(),
            shown_url: url.split('?').next().unwrap_or_default().to_owned(),
            client: HttpClient::trusting(parsed, roots)?,
            filter,
            limits,
            grace,
            encoder,
        })
    }

    /// Creates a target with requests of another form. Its name is no valid name of [`WebhookOptions`]. A request has
    /// one event if there are no batches, and otherwise as many as by default.
    ///
    /// # Errors
    /// No certificate is trusted.
    pub(crate) fn with_encoder(
        address: WebhookAddress<'_>,
        filter: EventFilter,
        has_batches: bool,
        grace: Duration,
        encoder: Arc<dyn WebhookEncoder>,
    ) -> Result<Self, HubError> {
        let mut limits = DeliveryLimits::default();
        if !has_batches {
            (limits.batch, limits.delay) = (1, Duration::ZERO);
        }
        Self::new(address, filter, limits, grace, encoder)
    }

    /// The events that it receives.
    #[cfg(test)]
    pub(crate) fn filter(&self) -> &EventFilter {
        &self.filter
    }

    /// The name, unique in a hub.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

/// Returns the targets of webhooks.
///
/// # Errors
/// The invalid webhook: a name is not unique, or there are too many.
pub(crate) fn targets(all: &[WebhookOptions]) -> Result<Vec<WebhookTarget>, HubError> {
    if all.len() > WEBHOOKS_MAX {
        let count = all.len();
        return Err(HubError::setting(format!("{count} webhooks exceed the limit of {WEBHOOKS_MAX}")));
    }
    let mut targets: Vec<WebhookTarget> = Vec::with_capacity(all.len());
    for options in all {
        let target = match targets.iter().any(|target| target.name() == options.name) {
            true => Err(HubError::setting("the name is not unique")),
            false => options.target(),
        };
        targets.push(target.map_err(|error| error.at(format_args!("webhook {:?}", options.name)))?);
    }
    Ok(targets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_options_are_reported() {
        let options = || WebhookOptions::new("app", "http://app/", [7; 32]);
        let second = Duration::from_secs(1);
        for (bad, expected) in [
            (WebhookOptions::new("a b", "http://app/", [7; 32]), "a name has"),
            (WebhookOptions::new("", "http://app/", [7; 32]), "a name has"),
            (WebhookOptions::new("a", "ftp://app/", [7; 32]), "url must begin with"),
            (WebhookOptions::new("a", "http://app/", *b"short"), "the secret of 5 bytes is too short"),
            (options().with_batch(0, second), "batch must be"),
            (options().with_batch(1_001, second), "batch must be"),
            (options().with_batch(1, second * 61), "delay of 61s must be"),
            (options().with_queue(0), "queue must be"),
            (options().with_timeout(Duration::ZERO), "timeout of 0ns must be"),
            (options().with_grace(second * 61), "grace of 61s must be"),
            (options().with_retry_time(second * 86_401), "retry_time of 86401s"),
            (options().with_topics(["a.>.b"]), "topics: \"a.>.b\": "),
            (options().with_events([WebhookEventKind::CacheMiss]), "events: only webhooks of apps"),
        ] {
            let error = bad.check().unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
        options().with_topics(["chat.>"]).check().unwrap();
        let twice = targets(&[options(), options()]).unwrap_err();
        assert_eq!(twice.to_string(), "webhook \"app\": the name is not unique");
        let many: Vec<_> =
            (0..65).map(|number| WebhookOptions::new(format!("a{number}"), "http://a/", [7; 32])).collect();
        assert_eq!(targets(&many).unwrap_err().to_string(), "65 webhooks exceed the limit of 64");
        assert!(!format!("{:?}", options()).contains('7'), "the secret is not shown");
    }
}
