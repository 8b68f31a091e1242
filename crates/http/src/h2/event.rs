//! Connection events.

use super::error::ErrorCode;
use super::frame::StreamId;
use crate::fields::{Fields, RequestFields, RequestShape, ResponseFields, ResponseShape};

/// Result of received bytes.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A valid request.
    Request {
        /// Its stream.
        stream: StreamId,
        /// Its head.
        head: RequestFields<'a>,
        /// It has no content.
        ends: bool,
    },
    /// A valid response, to the client. After an interim one another follows.
    Response {
        /// Its stream.
        stream: StreamId,
        /// Its head.
        head: ResponseFields<'a>,
        /// It has no content.
        ends: bool,
    },
    /// A request whose header list exceeds [`Config::with_head`](super::Config::with_head). Answer 431 (RFC 9113 section
    /// 10.5.1), then [reset](super::H2Connection::reset) the stream unless it has ended.
    HeadTooLarge {
        /// Its stream.
        stream: StreamId,
        /// It has no content.
        ends: bool,
    },
    /// Content of a message, or bytes of a CONNECT tunnel. [Release](super::H2Connection::release) them once they are
    /// consumed. The boundaries have no meaning. The bytes are the last ones that the call consumed, so that a driver with a
    /// mutable buffer finds them there, and can unmask them in place.
    Data {
        /// Its stream.
        stream: StreamId,
        /// The bytes; empty only at the end.
        data: &'a [u8],
        /// The peer sends no more.
        ends: bool,
    },
    /// A message's trailer fields, which end it.
    Trailers {
        /// Its stream.
        stream: StreamId,
        /// The fields.
        fields: Fields<'a>,
    },
    /// A stream ended early, or a server refused it by GOAWAY. It exists no longer.
    Reset {
        /// Its stream.
        stream: StreamId,
        /// The RST_STREAM code.
        code: ErrorCode,
        /// The violated rule, if the stream is reset by this side for a peer error; `None` for a reset by the peer.
        violation: Option<&'static str>,
    },
    /// A send that was cut short may continue.
    WindowOpened {
        /// The stream; `None` for each stream whose send was cut short.
        stream: Option<StreamId>,
    },
    /// Answer to [`ping`](super::H2Connection::ping).
    Pong {
        /// The bytes of the ping.
        data: [u8; 8],
    },
    /// The client opens no more streams, or the server takes no more. Those that the server refuses are reset with
    /// [`ErrorCode::REFUSED_STREAM`] by the next calls.
    GoAway {
        /// Its reason.
        code: ErrorCode,
    },
}

/// An event whose fields are still in their buffer.
#[derive(Clone, Copy, Debug)]
pub(super) enum Notice<'i> {
    Request { stream: StreamId, shape: RequestShape, ends: bool },
    Response { stream: StreamId, shape: ResponseShape, ends: bool },
    HeadTooLarge { stream: StreamId, ends: bool },
    Data { stream: StreamId, data: &'i [u8], ends: bool },
    Trailers { stream: StreamId },
    Reset { stream: StreamId, code: ErrorCode, violation: Option<&'static str> },
    WindowOpened { stream: Option<StreamId> },
    Pong { data: [u8; 8] },
    GoAway { code: ErrorCode },
}
