//! Streaming responses: answers whose body is the messages of a handler.

use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, LazyLock};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sinews_http::{EVENT_STREAM_TYPE, end_event, write_event_data, write_event_field};
use sinews_proto::{BodyFormat, BodyPrefix, CloseCode, Config, Kind};

use crate::answer::{Answer, AnswerKind};
use crate::handler::Handler;
use crate::request::Response;

/// A response that stays open: its body is the messages that a [`Handler`] sends and the publications to its
/// subscriptions, such as Server-Sent Events for browsers without a WebSocket.
///
/// The handler and its environment are as for a WebSocket: threads, topics, histories, slow subscribers, wakers,
/// deadlines, limits, stop. [`Handler::message`] is never called, since a response receives nothing. Messages cannot be
/// sent in fragments ([`Misuse::Prefixed`](crate::Misuse::Prefixed)). A [Close](crate::Tx::close) ends the body; the
/// connection then takes the next request. A publication is encoded once for all responses of a format.
///
/// A request with HEAD gets the head alone. Pings become the keepalive of the format
/// ([`Config::ping_interval`]), and a client need not answer them. A client that sends more while it receives the
/// response has to open another connection for its next request.
///
/// ```
/// use sinews_server::{Answer, Context, Handler, Payload, Router, StreamingResponse};
///
/// struct News;
///
/// impl Handler for News {
///     fn open(&mut self, cx: &mut Context<'_>) {
///         // Fails for invalid names; this name is valid.
///         let _ = cx.subscribe("news");
///     }
///
///     fn message(&mut self, _: Payload<'_>, _: &mut Context<'_>) {}
/// }
///
/// let router = Router::new().get("/news", |_| StreamingResponse::events(News));
/// # drop(router);
/// ```
pub struct StreamingResponse {
    pub(crate) response: Response,
    pub(crate) format: &'static BodyFormat,
    pub(crate) handler: Box<dyn Handler>,
    pub(crate) config: Arc<Config>,
    pub(crate) prefix: Option<Box<dyn BodyPrefix>>,
}

impl StreamingResponse {
    /// `Cache-Control` of streaming responses, and of other answers with the same content: a cache must not store a
    /// part of the stream, and a proxy must not compress it, since it would wait for more input (RFC 9111 section
    /// 5.2.2.6).
    pub const CACHE_CONTROL: &'static str = "no-store, no-transform";

    /// Server-Sent Events (HTML standard, section 9.2): a text message is the data of an event, a binary message the
    /// data of an event of the type `binary`, in base64. A Close with a code is an event of the type `close` with the
    /// code, a space and the reason. The keepalive is a comment.
    #[must_use]
    pub fn events(handler: impl Handler + 'static) -> Self {
        Self::new(EVENT_STREAM_TYPE, &EVENTS, handler)
    }

    /// A body of this media type and format.
    #[must_use]
    pub fn new(
        media_type: &'static str,
        format: &'static BodyFormat,
        handler: impl Handler + 'static,
    ) -> Self {
        let response = Response::new(200)
            .with_header("Content-Type", media_type)
            // nginx must not wait for the end of the stream.
            .with_header("Cache-Control", Self::CACHE_CONTROL)
            .with_header("X-Accel-Buffering", "no");
        static CONFIG: LazyLock<Arc<Config>> = LazyLock::new(Arc::default);
        let (handler, config) = (Box::new(handler), Arc::clone(&CONFIG));
        Self { response, format, handler, config, prefix: None }
    }

    /// Adds a header, as [`Response::with_header`] does.
    #[must_use]
    pub fn with_header(
        mut self,
        name: impl Into<Cow<'static, str>>,
        value: impl Into<Cow<'static, str>>,
    ) -> Self {
        self.response.add_header(name, value);
        self
    }

    /// Sets queues and timeouts; responses share them. Settings of received messages have no effect, and neither has
    /// [`idle_timeout`](Config::idle_timeout). Default: [`Config::default`]. Invalid settings
    /// ([`Config::check`]) are answered with 500.
    #[must_use]
    pub fn with_config(mut self, config: Arc<Config>) -> Self {
        self.config = config;
        self
    }

    /// Sets the bytes that this response has between its messages, such as ids or commas. Default: none.
    #[must_use]
    pub fn with_prefix(mut self, prefix: impl BodyPrefix + 'static) -> Self {
        self.prefix = Some(Box::new(prefix));
        self
    }
}

impl From<StreamingResponse> for Answer {
    fn from(streaming: StreamingResponse) -> Self {
        Self(AnswerKind::Streaming(Box::new(streaming)))
    }
}

impl fmt::Debug for StreamingResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamingResponse").field("response", &self.response).finish_non_exhaustive()
    }
}

/// The format of [`StreamingResponse::events`].
static EVENTS: BodyFormat = BodyFormat::new(write_event).with_keepalive(b":\n\n").with_close(write_close);

fn write_event(kind: Kind, payload: &[u8], out: &mut Vec<u8>) {
    match kind {
        Kind::Text => write_event_data(payload, out),
        Kind::Binary => {
            write_event_field("event", b"binary", out);
            write_event_data(STANDARD.encode(payload).as_bytes(), out);
        }
    }
    end_event(out);
}

fn write_close(code: Option<CloseCode>, reason: &str, out: &mut Vec<u8>) {
    let Some(code) = code else { return };
    write_event_field("event", b"close", out);
    write_event_data(format!("{} {reason}", code.as_u16()).as_bytes(), out);
    end_event(out);
}
