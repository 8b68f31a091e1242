//! Requests and connections that are rejected: how the client learns the reason, the log and the metrics.
//!
//! Scripts see only code 1006 when a handshake fails. So a script's WebSocket is accepted and closed at once, with a
//! code (4000 and the status) and a reason.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use sinews_server::{CloseCode, Context, Handler, LogLimit, Payload, Refusal, Request};

use crate::access::auth::{self, Denied};
use crate::activity::{Activity, ActivityKind, ActivityMonitor};
use crate::closing::close;
use crate::model::brief::brief;

/// Why a request is rejected, with its name in metrics and the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RejectionReason {
    /// The name in `Host` is not this server's.
    Host,
    /// Pages with this `Origin` may not connect.
    Origin,
    /// The token is malformed, expired, or signed by another key.
    Token,
    /// The token does not grant what the path needs, or there is none.
    Rights,
    /// The path or the query is wrong.
    Request,
}

impl RejectionReason {
    const ALL: [Self; 5] = [Self::Host, Self::Origin, Self::Token, Self::Rights, Self::Request];

    const fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Origin => "origin",
            Self::Token => "token",
            Self::Rights => "rights",
            Self::Request => "request",
        }
    }
}

/// A WebSocket handshake that is rejected.
#[derive(Clone, Debug)]
pub(crate) struct HandshakeRejection {
    pub(crate) reason: RejectionReason,
    text: String,
    /// The answer to a client that is not a browser.
    pub(crate) refusal: Refusal,
}

impl HandshakeRejection {
    /// The request itself is wrong; `status` is 400 or 404.
    pub(crate) fn request(status: u16, text: &str) -> Self {
        Self::new(RejectionReason::Request, status, text)
    }

    pub(crate) fn origin(origin: &str) -> Self {
        let text =
            format!("pages of the origin {} may not connect: see `origin`", brief(origin).escape_debug());
        Self::new(RejectionReason::Origin, 403, &text)
    }

    fn new(reason: RejectionReason, status: u16, text: &str) -> Self {
        let refusal = Refusal::new(status).expect("400, 403 and 404 are among the statuses of a refusal");
        Self { reason, text: text.to_owned(), refusal: refusal.with_body(format!("{text}\n")) }
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Takes a browser's connection, to close it.
    pub(crate) fn handler(&self) -> RejectedClient {
        let code = CloseCode::new(CODES + self.refusal.status()).unwrap_or(CloseCode::POLICY);
        RejectedClient { code, reason: self.text.clone() }
    }
}

/// Base of the application's close codes; the status is added.
const CODES: u16 = 4000;

impl From<HandshakeRejection> for Refusal {
    fn from(rejection: HandshakeRejection) -> Self {
        rejection.refusal
    }
}

impl From<Denied> for HandshakeRejection {
    fn from(denied: Denied) -> Self {
        let reason = if denied.lacks_right() { RejectionReason::Rights } else { RejectionReason::Token };
        Self { reason, refusal: denied.refusal(), text: denied.problem }
    }
}

/// A browser's connection that is closed as soon as it is open.
pub(crate) struct RejectedClient {
    code: CloseCode,
    reason: String,
}

impl Handler for RejectedClient {
    fn open(&mut self, cx: &mut Context<'_>) {
        close(cx, self.code, &self.reason);
    }

    fn message(&mut self, _: Payload<'_>, _: &mut Context<'_>) {}
}

/// Whether a script sends the request with the browser's `WebSocket`, which hides the status of a failed handshake: in
/// a page, whose browser adds `Origin`, or in another runtime with a token that can only be a subprotocol.
pub(crate) fn is_script(request: &Request<'_>) -> bool {
    request.head().header("origin").next().is_some() || auth::offers_token(request)
}

/// The origin of a rejected request, cut to the length that the log may repeat.
pub(crate) struct RejectedRequest {
    client: IpAddr,
    path: String,
    origin: Option<String>,
}

impl RejectedRequest {
    pub(crate) fn from_request(request: &Request<'_>) -> Self {
        let origin = request.head().header("origin").next();
        Self {
            client: request.client(),
            path: brief(request.head().path()),
            origin: origin.map(|origin| brief(&String::from_utf8_lossy(origin))),
        }
    }

    /// A connection that is open already.
    pub(crate) fn connection(client: IpAddr, protocol: &str) -> Self {
        Self { client: client.to_canonical(), path: protocol.to_owned(), origin: None }
    }
}

/// Counts rejections, and logs them at a limited rate.
#[derive(Debug, Default)]
pub(crate) struct RejectionLog {
    counts: [AtomicU64; RejectionReason::ALL.len()],
    /// Browser WebSockets that were accepted to be closed.
    closed: AtomicU64,
    log: LogLimit,
    activity: Arc<ActivityMonitor>,
}

impl RejectionLog {
    pub(crate) fn note(&self, reason: RejectionReason, source: &RejectedRequest, text: &str) {
        self.counts[reason as usize].fetch_add(1, Ordering::Relaxed);
        self.activity.observe(|| Activity {
            kind: ActivityKind::Reject,
            path: &source.path,
            address: Some(source.client),
            op: Some(reason.name()),
            reason: Some(text),
            ..Activity::default()
        });
        let Some(suppressed) = self.log.permit(Instant::now()) else { return };
        let RejectedRequest { client, path, origin } = source;
        // Fields without a value are left out.
        let (origin, suppressed) = (origin.as_deref(), (suppressed > 0).then_some(suppressed));
        let remedy = origin.filter(|_| reason == RejectionReason::Origin).and_then(origin_setting);
        tracing::info!(reason = reason.name(), %client, path, origin, suppressed, remedy, "rejected: {text}");
    }

    /// Observes rejections, and other actions of clients.
    pub(crate) fn activity(&self) -> &Arc<ActivityMonitor> {
        &self.activity
    }

    /// Counts a browser's WebSocket that is accepted to be closed.
    pub(crate) fn note_closed(&self) {
        self.closed.fetch_add(1, Ordering::Relaxed);
    }

    /// Browser WebSockets that were accepted to be closed.
    pub(crate) fn closed(&self) -> u64 {
        self.closed.load(Ordering::Relaxed)
    }
}

/// The rejection metrics.
#[derive(Debug)]
pub(crate) struct RejectionMetrics(pub(crate) Arc<RejectionLog>);

impl Collector for RejectionMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Requests and WebSockets rejected for their host, origin, token, rights or path";
        let mut family = encoder.encode_descriptor("sinews_rejections", help, None, MetricType::Counter)?;
        RejectionReason::ALL.iter().try_for_each(|reason| {
            let count = self.0.counts[*reason as usize].load(Ordering::Relaxed);
            ConstCounter::new(count).encode(family.encode_family(&[("reason", reason.name())])?)
        })
    }
}

/// The option that permits an origin. An operator may paste it into a shell, and the client has chosen the text.
fn origin_setting(origin: &str) -> Option<String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b":/.-_".contains(&byte);
    (origin.contains("://") && origin.bytes().all(is_plain)).then(|| format!("--origin {origin}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_has_an_option_for_an_origin_but_no_command_of_a_client() {
        let expected = Some("--origin http://127.0.0.1:22002".to_owned());
        assert_eq!(origin_setting("http://127.0.0.1:22002"), expected);
        for origin in ["http://a;reboot", "http://a b", "http://$(x)", "null", "http://aaaa…"] {
            assert_eq!(origin_setting(origin), None, "{origin}");
        }
    }

    #[test]
    fn browser_receives_status_and_reason_in_the_close() {
        for (rejection, code) in [
            (HandshakeRejection::origin("https://a.example"), 4403),
            (HandshakeRejection::request(400, "no name"), 4400),
            (HandshakeRejection::request(404, "no streams"), 4404),
        ] {
            assert_eq!(rejection.handler().code, CloseCode::new(code).unwrap());
        }
        assert!(HandshakeRejection::origin(&"Q".repeat(200)).text().matches('Q').count() <= 64);
    }
}
