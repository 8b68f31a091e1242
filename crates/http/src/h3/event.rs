//! Connection events.

use super::error::{Error, H3Code};
use super::settings::PeerSettings;
use super::stream::QuicStreamId;
use crate::fields::{Fields, RequestFields, RequestShape, ResponseFields, ResponseShape};

/// Result of received bytes.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The peer's SETTINGS, once.
    Settings {
        /// The settings.
        settings: PeerSettings,
    },
    /// A valid request.
    Request {
        /// Its stream.
        stream: QuicStreamId,
        /// Its head.
        head: RequestFields<'a>,
    },
    /// A request whose field section exceeds [`Config::with_head`](super::Config::with_head). Answer 431 (RFC 9114 section
    /// 4.2.2), then [reset](super::H3Connection::reset) the stream.
    HeadTooLarge {
        /// Its stream.
        stream: QuicStreamId,
    },
    /// A valid response, to the client. After an interim one another follows.
    Response {
        /// Its stream.
        stream: QuicStreamId,
        /// Its head.
        head: ResponseFields<'a>,
    },
    /// Content of a message, or bytes of a CONNECT tunnel or of a stream of WebTransport. The boundaries have no meaning. The
    /// bytes are the last ones that the call consumed, so that a driver with a mutable buffer finds them there, and can
    /// unmask them in place.
    Data {
        /// Its stream.
        stream: QuicStreamId,
        /// The bytes, never empty.
        data: &'a [u8],
    },
    /// A message's trailer fields.
    Trailers {
        /// Its stream.
        stream: QuicStreamId,
        /// The fields.
        fields: Fields<'a>,
    },
    /// The peer sends no more on a stream: the message is complete, or the tunnel is half-closed.
    End {
        /// Its stream.
        stream: QuicStreamId,
    },
    /// A message or a tunnel ended early. Its stream exists no longer.
    Reset {
        /// Its stream.
        stream: QuicStreamId,
        /// The code.
        code: H3Code,
        /// The violated rule, if this side ends the stream for a peer error; `None` for a reset by the peer.
        violation: Option<&'static str>,
    },
    /// The peer opens no more requests, or accepts none.
    GoAway {
        /// The first identifier that is not processed.
        id: u64,
    },
    /// The peer opened a stream in a WebTransport session. Its bytes follow as [`Event::Data`].
    SessionStream {
        /// The stream.
        stream: QuicStreamId,
        /// Its session.
        session: QuicStreamId,
    },
    /// The peer asks for the session to end soon.
    SessionDraining {
        /// The session.
        session: QuicStreamId,
    },
    /// A session ended. Reset its streams with [`H3Code::WEBTRANSPORT_SESSION_GONE`], and end its stream. The connection
    /// stops the streams that it receives.
    SessionClosed {
        /// The session.
        session: QuicStreamId,
        /// The application's code; 0 without CLOSE_WEBTRANSPORT_SESSION.
        code: u32,
        /// The reason.
        reason: &'a str,
    },
}

/// An event whose fields are still in their buffer.
#[derive(Clone, Copy, Debug)]
pub(super) enum H3Notice<'i> {
    Settings,
    Request { stream: QuicStreamId, shape: RequestShape },
    HeadTooLarge { stream: QuicStreamId },
    Response { stream: QuicStreamId, shape: ResponseShape },
    Data { stream: QuicStreamId, data: &'i [u8] },
    Trailers { stream: QuicStreamId },
    End { stream: QuicStreamId },
    Reset { stream: QuicStreamId, code: H3Code, violation: Option<&'static str> },
    GoAway { id: u64 },
    SessionStream { stream: QuicStreamId, session: QuicStreamId },
    SessionDraining { session: QuicStreamId },
    SessionClosed { session: QuicStreamId, code: u32 },
}

pub(super) type Received<'i> = Result<Option<H3Notice<'i>>, Error>;
