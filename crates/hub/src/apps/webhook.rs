//! An app's webhooks: its channels' events, in requests of the hosted service's form.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::header::{HeaderName, HeaderValue};
use rustls::pki_types::CertificateDer;
use serde_json::{Value, json};

use crate::apps::channel::{
    PRESENCE_PREFIX, PusherTopic, channel_of_topic, check_channel, dotless, presence_of,
};
use crate::apps::signature::AppKey;
use crate::error::HubError;
use crate::model::brief::brief;
use crate::model::event::client_event_fields;
use crate::model::events::{EventContent, EventDetail, WebhookEventKind};
use crate::model::user_id::{has_number_id, user_id_json};
use crate::outgoing::http::trusted_certificates;
use crate::outgoing::options::HookUrl;
use crate::webhooks::{EventBatch, EventFilter, WebhookAddress, WebhookEncoder, WebhookTarget};

/// Maximum grace for an absence.
const GRACE_MAX: Duration = Duration::from_secs(60);

/// Maximum number of headers that an app adds to a request.
const HEADERS_MAX: usize = 16;

/// Maximum bytes in a header's value.
const HEADER_VALUE_MAX: usize = 1_024;

/// Headers that the server sets, or that describe the connection.
const RESERVED_HEADERS: [&str; 14] = [
    "connection",
    "content-length",
    "content-type",
    "expect",
    "host",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
    "x-pusher-key",
    "x-pusher-signature",
];

/// The events that an app's webhook can receive.
const EVENTS: [WebhookEventKind; 7] = [
    WebhookEventKind::TopicOccupied,
    WebhookEventKind::TopicVacated,
    WebhookEventKind::MemberJoined,
    WebhookEventKind::MemberLeft,
    WebhookEventKind::ClientMessage,
    WebhookEventKind::CacheMiss,
    WebhookEventKind::SubscriptionCount,
];

/// An app's webhook ([`PusherApp::with_webhook`](crate::PusherApp::with_webhook)): a URL that receives its channels'
/// events. The app's first key signs the requests.
#[derive(Clone)]
pub struct PusherWebhook {
    url: String,
    events: Vec<WebhookEventKind>,
    channels: Vec<String>,
    suffixes: Vec<String>,
    has_batches: bool,
    grace: Duration,
    permits_private: bool,
    headers: Vec<(String, String)>,
    roots: Option<Vec<CertificateDer<'static>>>,
}

impl fmt::Debug for PusherWebhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The URL may have a secret.
        f.debug_struct("PusherWebhook").field("events", &self.events).finish_non_exhaustive()
    }
}

impl PusherWebhook {
    /// Creates a webhook for all events of all channels.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            events: Vec::new(),
            channels: Vec::new(),
            suffixes: Vec::new(),
            has_batches: false,
            grace: Duration::from_secs(3),
            permits_private: false,
            headers: Vec::new(),
            roots: None,
        }
    }

    /// Sets the events. Default, and for an empty list: all but [`WebhookEventKind::ConnectionClosed`], which no
    /// channel has. An app without [subscription counts](crate::PusherApp::with_subscription_counts) has no
    /// [`WebhookEventKind::SubscriptionCount`].
    #[must_use]
    pub fn with_events(mut self, events: impl IntoIterator<Item = WebhookEventKind>) -> Self {
        self.events = events.into_iter().collect();
        self
    }

    /// Limits the events to channels whose names begin with one of these texts. Default, and for an empty list: all.
    #[must_use]
    pub fn with_channels<S: Into<String>>(mut self, prefixes: impl IntoIterator<Item = S>) -> Self {
        self.channels = prefixes.into_iter().map(Into::into).collect();
        self
    }

    /// Limits the events to channels whose names end with one of these texts, in addition to
    /// [`with_channels`](Self::with_channels). Default, and for an empty list: all.
    #[must_use]
    pub fn with_channel_suffixes<S: Into<String>>(mut self, suffixes: impl IntoIterator<Item = S>) -> Self {
        self.suffixes = suffixes.into_iter().map(Into::into).collect();
        self
    }

    /// Sends up to 100 events of 100 ms in one request. Default: one event in a request, as at the hosted service.
    #[must_use]
    pub fn with_batches(mut self, has_batches: bool) -> Self {
        self.has_batches = has_batches;
        self
    }

    /// Sets how long a channel must be without subscribers, or a member absent, before it is reported; at most 60 s.
    /// Default: 3 s, as at the hosted service.
    #[must_use]
    pub fn with_grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Permits private and local addresses (RFC 6890). Default: requests go to public addresses only, because an app's
    /// owner may not own this network.
    #[must_use]
    pub fn with_private_addresses(mut self, permitted: bool) -> Self {
        self.permits_private = permitted;
        self
    }

    /// Adds a header to each request: at most 16, with values up to 1 KiB. The protocol's and the connection's headers,
    /// such as `Content-Type` and `X-Pusher-Key`, are reserved. Default: none.
    #[must_use]
    pub fn with_header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
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

    /// Parses the headers. Values may be secrets: no error has one.
    fn parse_headers(&self) -> Result<Vec<(HeaderName, HeaderValue)>, HubError> {
        if self.headers.len() > HEADERS_MAX {
            let count = self.headers.len();
            return Err(HubError::setting(format!("{count} headers exceed the limit of {HEADERS_MAX}")));
        }
        let parse = |(name, value): &(String, String)| {
            let parsed = HeaderName::try_from(&**name);
            let parsed = parsed
                .map_err(|_| HubError::setting(format!("header {:?} is no name of a header", brief(name))))?;
            if RESERVED_HEADERS.contains(&parsed.as_str()) {
                return Err(HubError::setting(format!("header {parsed} is reserved")));
            }
            if value.len() > HEADER_VALUE_MAX {
                let size = value.len();
                let text = format!("value of header {parsed} of {size} bytes exceeds {HEADER_VALUE_MAX}");
                return Err(HubError::setting(text));
            }
            let value = HeaderValue::try_from(&**value);
            let text = || format!("value of header {parsed} has control characters");
            let mut value = value.map_err(|_| HubError::setting(text()))?;
            value.set_sensitive(true);
            Ok((parsed, value))
        };
        self.headers.iter().map(parse).collect()
    }

    fn parse_url(&self) -> Result<HookUrl, HubError> {
        let url = HookUrl::parse("url", &self.url)?;
        if self.permits_private { Ok(url) } else { url.public_only("url") }
    }

    /// Checks the options. The app's channels have names of this many bytes.
    ///
    /// # Errors
    /// The invalid option.
    pub(crate) fn check(&self, channel_name_max: usize) -> Result<(), HubError> {
        self.parse_url()?;
        self.parse_headers()?;
        if let Some(bad) = self.events.iter().find(|event| !EVENTS.contains(event)) {
            return Err(HubError::setting(format!("no channel has the event {}", bad.name())));
        }
        // An empty part matches all channels.
        for part in self.channels.iter().chain(&self.suffixes).filter(|part| !part.is_empty()) {
            check_channel(part, channel_name_max).map_err(|rule| {
                let part = brief(part);
                HubError::setting(format!(
                    "{part:?} is part of no channel's name and has no wildcards: {rule}"
                ))
            })?;
        }
        if self.grace > GRACE_MAX {
            let grace = self.grace;
            return Err(HubError::setting(format!("grace of {grace:?} exceeds the limit of {GRACE_MAX:?}")));
        }
        Ok(())
    }

    /// Whether its events include the subscriber count by name.
    pub(crate) fn wants_counts(&self) -> bool {
        self.events.contains(&WebhookEventKind::SubscriptionCount)
    }

    /// The deliveries' target: an app's webhook with this number.
    ///
    /// # Errors
    /// The URL is invalid, or no certificate is trusted.
    pub(crate) fn target(
        &self,
        app: &str,
        number: usize,
        key: &AppKey,
        has_counts: bool,
    ) -> Result<WebhookTarget, HubError> {
        let events = if self.events.is_empty() { &EVENTS[..] } else { &self.events };
        let is_sent = |event: &WebhookEventKind| has_counts || *event != WebhookEventKind::SubscriptionCount;
        let events: Vec<_> = events.iter().copied().filter(is_sent).collect();
        let mut prefixes: Vec<String> =
            self.channels.iter().map(|channel| presence_of(app, channel)).collect();
        if prefixes.is_empty() {
            prefixes.push(presence_of(app, ""));
        }
        let suffixes = self.suffixes.iter().map(|suffix| dotless(suffix).into_owned()).collect();
        let filter =
            EventFilter::for_channels(&events, prefixes, suffixes, presence_of(app, PRESENCE_PREFIX));
        let name = format!("pusher:{app}:{number}");
        let target = || {
            let (url, headers) = (self.parse_url()?, self.parse_headers()?);
            let encoder = Arc::new(ChannelEncoder { key: key.clone(), headers });
            let roots = self.roots.as_deref();
            let address = WebhookAddress { name: &name, url: &self.url, parsed: url, roots };
            WebhookTarget::with_encoder(address, filter, self.has_batches, self.grace, encoder)
        };
        target().map_err(|error| error.at(format_args!("app {app:?}: webhook {number}")))
    }
}

/// The hosted service's form.
struct ChannelEncoder {
    key: AppKey,
    /// The app's headers.
    headers: Vec<(HeaderName, HeaderValue)>,
}

impl fmt::Debug for ChannelEncoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ChannelEncoder")
    }
}

impl WebhookEncoder for ChannelEncoder {
    fn body(&self, batch: &EventBatch<'_>) -> Bytes {
        let time = batch.events.last().map_or(0, |event| event.time);
        let events: Vec<Value> = batch.events.iter().filter_map(|event| encode(&event.detail)).collect();
        json!({ "time_ms": time, "events": events }).to_string().into()
    }

    fn headers(&self, _: &str, body: &[u8]) -> Vec<(HeaderName, HeaderValue)> {
        let headers = [("x-pusher-key", self.key.name.clone()), ("x-pusher-signature", self.key.sign(body))];
        let pair = |(name, value): (&'static str, String)| {
            // Letters, digits and hyphens are valid values.
            Some((HeaderName::from_static(name), HeaderValue::try_from(value).ok()?))
        };
        headers.into_iter().filter_map(pair).chain(self.headers.iter().cloned()).collect()
    }
}

/// Encodes an event; `None` for an event without a channel.
fn encode(detail: &EventDetail) -> Option<Value> {
    let topic = detail.topic()?;
    let PusherTopic::Channel { channel, .. } = channel_of_topic(topic)? else { return None };
    let mut event = json!({ "channel": channel });
    let name = match detail {
        EventDetail::TopicOccupied { .. } => "channel_occupied",
        EventDetail::TopicVacated { .. } => "channel_vacated",
        EventDetail::MemberJoined { member, .. } => {
            event["user_id"] = user_id(member.id(), has_number_id(member.info()));
            "member_added"
        }
        EventDetail::MemberLeft { id, has_number_id, .. } => {
            event["user_id"] = user_id(id, *has_number_id);
            "member_removed"
        }
        EventDetail::ClientMessage { content: EventContent::Json(content), connection, .. } => {
            let (name, data, user_id) = client_event_fields(content)?;
            event["event"] = json!(name);
            for (field, value) in [("data", &data), ("socket_id", connection)] {
                if let Some(value) = value {
                    event[field] = json!(value);
                }
            }
            if let Some(user_id) = user_id {
                event["user_id"] = user_id;
            }
            "client_event"
        }
        EventDetail::CacheMiss { .. } => "cache_miss",
        EventDetail::SubscriptionCount { count, .. } => {
            event["subscription_count"] = json!(count);
            "subscription_count"
        }
        EventDetail::ClientMessage { .. }
        | EventDetail::ConnectionClosed(_)
        | EventDetail::ServerStarted { .. } => return None,
    };
    event["name"] = json!(name);
    Some(event)
}

/// A user's id in the form in which the application has sent it.
fn user_id(id: &str, has_number_id: bool) -> Value {
    serde_json::from_str(&user_id_json(id, has_number_id)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use sinews_server::Member;

    use super::*;
    use crate::model::event::client_event;

    #[test]
    fn pusher_10_3_events_are_encoded_with_their_fields() {
        let topic: Arc<str> = presence_of("1", "presence-a.b").into();
        let sent = |data, user| EventDetail::ClientMessage {
            topic: topic.clone(),
            content: client_event("client-e", data, user).as_event(),
            user: None,
            connection: Some("1.2".to_owned()),
        };
        for (detail, expected) in [
            (EventDetail::TopicOccupied { topic: topic.clone() }, json!({"name": "channel_occupied"})),
            (EventDetail::TopicVacated { topic: topic.clone() }, json!({"name": "channel_vacated"})),
            (
                EventDetail::MemberJoined { topic: topic.clone(), member: Member::new("u") },
                json!({"name": "member_added", "user_id": "u"}),
            ),
            (
                EventDetail::MemberLeft { topic: topic.clone(), id: "u".into(), has_number_id: false },
                json!({"name": "member_removed", "user_id": "u"}),
            ),
            (
                EventDetail::MemberJoined { topic: topic.clone(), member: Member::new("7").with_info(" {}") },
                json!({"name": "member_added", "user_id": 7}),
            ),
            (
                EventDetail::MemberLeft { topic: topic.clone(), id: "7".into(), has_number_id: true },
                json!({"name": "member_removed", "user_id": 7}),
            ),
            (
                sent(None, Some("7")),
                json!({"name": "client_event", "event": "client-e", "user_id": 7, "socket_id": "1.2"}),
            ),
            (EventDetail::CacheMiss { topic: topic.clone() }, json!({"name": "cache_miss"})),
            (
                EventDetail::SubscriptionCount { topic: topic.clone(), count: 2 },
                json!({"name": "subscription_count", "subscription_count": 2}),
            ),
            (
                sent(Some(r#"{"a": 1}"#), Some("\"u\"")),
                json!({
                    "name": "client_event", "event": "client-e", "data": "{\"a\": 1}", "user_id": "u", "socket_id": "1.2"
                }),
            ),
            (
                sent(Some(r#""text""#), None),
                json!({"name": "client_event", "event": "client-e", "data": "text", "socket_id": "1.2"}),
            ),
            (sent(None, None), json!({"name": "client_event", "event": "client-e", "socket_id": "1.2"})),
        ] {
            let mut event = encode(&detail).unwrap();
            let channel = event.as_object_mut().unwrap().remove("channel");
            assert_eq!((channel, event), (Some(json!("presence-a.b")), expected));
        }
        assert_eq!(encode(&EventDetail::TopicOccupied { topic: "$pusher.1.u.YQ".into() }), None);
    }

    #[test]
    fn pusher_10_7_webhook_receives_events_of_its_channels() {
        let key = AppKey::new("key".to_owned(), "secret");
        let filter = |webhook: PusherWebhook| webhook.target("1", 1, &key, false).unwrap();
        let matches = |webhook: &WebhookTarget, app, channel| {
            let topic = presence_of(app, channel).into();
            webhook.filter().matches(&EventDetail::TopicOccupied { topic })
        };
        let all = filter(PusherWebhook::new("http://app/"));
        assert!(matches(&all, "1", "a") && !matches(&all, "2", "a"));
        let some = filter(PusherWebhook::new("http://app/").with_channels(["chat.", "presence-"]));
        assert!(matches(&some, "1", "chat.a") && matches(&some, "1", "presence-a"));
        assert!(!matches(&some, "1", "chat-a") && !matches(&some, "2", "chat.a"));
        let ends = filter(PusherWebhook::new("http://app/").with_channel_suffixes([".eu", "-us"]));
        assert!(matches(&ends, "1", "chat.eu") && matches(&ends, "1", "a-us"));
        assert!(!matches(&ends, "1", "chat-eu") && !matches(&ends, "2", "chat.eu"));
        let both = PusherWebhook::new("http://app/").with_channels(["private-"]);
        let both = filter(both.with_channel_suffixes([".eu"]));
        assert!(matches(&both, "1", "private-a.eu"));
        assert!(!matches(&both, "1", "a.eu") && !matches(&both, "1", "private-a"));
        let other = filter(PusherWebhook::new("http://app/").with_events([WebhookEventKind::CacheMiss]));
        assert!(!matches(&other, "1", "a"));
    }

    #[test]
    fn invalid_webhooks_are_reported() {
        let webhook = || PusherWebhook::new("http://app/");
        for (bad, expected) in [
            (PusherWebhook::new("app"), "url "),
            (
                PusherWebhook::new("http://10.0.0.1/"),
                "url has an address that is not public: set webhook_private to permit it",
            ),
            (PusherWebhook::new("https://[::1]:8443/"), "url has an address that is not public"),
            (
                webhook().with_events([WebhookEventKind::ConnectionClosed]),
                "no channel has the event connection_closed",
            ),
            (webhook().with_grace(Duration::from_secs(61)), "grace of 61s exceeds"),
            (webhook().with_header("a b", "c"), "header \"a b\" is no name of a header"),
            (webhook().with_header("Content-Type", "text/plain"), "header content-type is reserved"),
            (webhook().with_header("X-Pusher-Key", "other"), "header x-pusher-key is reserved"),
            (webhook().with_header("a", "secret\r\nb: c"), "value of header a has control characters"),
            (webhook().with_header("a", "b".repeat(1_025)), "value of header a of 1025 bytes exceeds 1024"),
            (
                (0..17).fold(webhook(), |webhook, number| webhook.with_header(format!("a{number}"), "b")),
                "17 headers exceed the limit of 16",
            ),
        ] {
            let error = bad.check(200).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
        webhook().with_events(EVENTS).check(200).unwrap();
        let secret = PusherWebhook::new("http://app/?secret").with_header("Authorization", "Bearer secret");
        assert!(!format!("{secret:?}").contains("secret"));
        secret.check(200).unwrap();
        assert!(webhook().with_trusted_certificates(b"none").is_err());
    }
}
