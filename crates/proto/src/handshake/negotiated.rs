//! The result of a handshake.

use crate::Role;
use crate::connection::{BodyFormat, BodySetup};
use crate::deflate::{DeflateParams, DeflateSetup};

/// The result of a handshake, required to create a connection.
///
/// Only a handshake creates it with extensions, so a connection cannot use an extension that was not negotiated.
/// [`websocket`](Self::websocket), [`prefixed`](Self::prefixed), [`tagged`](Self::tagged) and
/// [`response_body`](Self::response_body) have no extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiated {
    pub(crate) role: Role,
    pub(crate) deflate: Option<DeflateSetup>,
    pub(crate) framing: WireFormat,
    pub(crate) body: Option<BodySetup>,
}

/// The framing of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WireFormat {
    /// RFC 6455.
    WebSocket,
    /// Each message after its length.
    Prefixed,
    /// Each message after its kind and its length.
    Tagged,
    /// Only output, as the body of an HTTP response.
    Body,
}

impl Negotiated {
    pub(crate) const fn new(role: Role, deflate: Option<DeflateSetup>) -> Self {
        Self { role, deflate, framing: WireFormat::WebSocket, body: None }
    }

    /// A WebSocket after a handshake that another program or library has made, without extensions: frames
    /// begin with the next byte. `role` is that of this end: a client masks what it sends, and a server
    /// requires masks (RFC 6455 section 5.1).
    ///
    /// The peer must not have an extension either: permessage-deflate that another handshake has accepted is
    /// [`PeerMisbehaved::ReservedBits`](crate::PeerMisbehaved::ReservedBits) with the first compressed message.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use sinews_proto::{Config, Connection, Event, Kind, Negotiated, PayloadLocation, PerThread, Role, Time};
    ///
    /// let mut connection = Connection::new(Negotiated::websocket(Role::Client), Arc::new(Config::default()), Time::ZERO);
    /// let mut shared = PerThread::new(|| [0; 4]); // unpredictable, really
    /// let mut input = *b"\x81\x05hello";
    /// let received = connection.receive(&mut input, &mut Vec::new(), &mut shared, Time::ZERO)?;
    /// assert_eq!(received.event, Event::Message { kind: Kind::Text, at: PayloadLocation::Input(2..7) });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub const fn websocket(role: Role) -> Self {
        Self::new(role, None)
    }

    /// Without a handshake and without WebSocket: messages over a plain stream, each after its length in four bytes,
    /// little-endian. It is the same connection without masks, UTF-8, control frames and fragments: every message is
    /// binary, and the stream's end replaces the Close. So an application can run over both, and the cost of WebSocket
    /// itself can be measured. There are no pings: set [`ping_interval`](crate::Config::with_ping_interval) to `None`.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use sinews_proto::{Config, Connection, Event, Kind, Negotiated, PerThread, PayloadLocation, Role, Time};
    ///
    /// let config = Arc::new(Config::default().with_ping_interval(None));
    /// let mut connection = Connection::new(Negotiated::prefixed(Role::Server), config, Time::ZERO);
    /// let (mut shared, mut out) = (PerThread::new(|| [0; 4]), Vec::new());
    /// let mut input = *b"\x05\0\0\0hello";
    /// let received = connection.receive(&mut input, &mut Vec::new(), &mut shared, Time::ZERO)?;
    /// assert_eq!(received.event, Event::Message { kind: Kind::Binary, at: PayloadLocation::Input(4..9) });
    /// connection.send(Kind::Binary, b"hi", &mut shared, &mut out)?;
    /// assert_eq!(out, b"\x02\0\0\0hi");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub const fn prefixed(role: Role) -> Self {
        Self { role, deflate: None, framing: WireFormat::Prefixed, body: None }
    }

    /// Without WebSocket, but with its kinds: messages over a stream in a WebTransport session, each after its kind in
    /// one byte (1 text, 2 binary, 8 Close) and its length in four, big-endian. A Close payload is as in RFC 6455
    /// section 5.5.1, and the stream's end follows it. There are neither masks nor pings nor fragments, since the
    /// transport below encrypts and detects lost peers; so a silent peer is no fault, and there is no
    /// [`idle_timeout`](crate::Config::idle_timeout).
    ///
    /// ```
    /// use std::sync::Arc;
    /// use sinews_proto::{CloseCode, Config, Connection, Event, Kind, Negotiated, PayloadLocation, PerThread, Role, Time};
    ///
    /// let config = Arc::new(Config::default());
    /// let mut connection = Connection::new(Negotiated::tagged(Role::Server), config, Time::ZERO);
    /// let (mut shared, mut out) = (PerThread::new(|| [0; 4]), Vec::new());
    /// let mut input = *b"\x01\0\0\0\x05hello";
    /// let received = connection.receive(&mut input, &mut Vec::new(), &mut shared, Time::ZERO)?;
    /// assert_eq!(received.event, Event::Message { kind: Kind::Text, at: PayloadLocation::Input(5..10) });
    /// connection.send(Kind::Binary, b"hi", &mut shared, &mut out)?;
    /// connection.close(CloseCode::NORMAL, "", Time::ZERO)?;
    /// connection.write_control(&mut shared, &mut out, Time::ZERO);
    /// assert_eq!(out, b"\x02\0\0\0\x02hi\x08\0\0\0\x02\x03\xe8");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub const fn tagged(role: Role) -> Self {
        Self { role, deflate: None, framing: WireFormat::Tagged, body: None }
    }

    /// A server's streaming HTTP response: messages in the body, encoded by `format`, and no input. The body is sent in
    /// chunks for HTTP/1.1. It is the same connection without frames: the format's keepalive replaces the ping and
    /// needs no pong, and the body's end replaces the Close. Received bytes are discarded. The peer's silence has no
    /// meaning, so there is no [`idle_timeout`](crate::Config::idle_timeout).
    ///
    /// ```
    /// use std::sync::Arc;
    /// use sinews_proto::{BodyFormat, CloseCode, Config, Connection, Kind, Negotiated, PerThread, Time};
    ///
    /// static LINES: BodyFormat = BodyFormat::new(|_, payload, out| {
    ///     out.extend_from_slice(payload);
    ///     out.push(b'\n');
    /// });
    ///
    /// let config = Arc::new(Config::default());
    /// let mut connection = Connection::new(Negotiated::response_body(&LINES, true), config, Time::ZERO);
    /// let (mut shared, mut out) = (PerThread::new(|| [0; 4]), Vec::new());
    /// connection.send(Kind::Text, b"hello", &mut shared, &mut out)?;
    /// connection.close(CloseCode::NORMAL, "", Time::ZERO)?;
    /// connection.write_control(&mut shared, &mut out, Time::ZERO);
    /// assert_eq!(out, b"6\r\nhello\n\r\n0\r\n\r\n");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub const fn response_body(format: &'static BodyFormat, chunked: bool) -> Self {
        let body = Some(BodySetup { format, chunked });
        Self { role: Role::Server, deflate: None, framing: WireFormat::Body, body }
    }

    /// The role of this end.
    #[must_use]
    pub const fn role(&self) -> Role {
        self.role
    }

    /// The parameters of permessage-deflate, if both ends support it.
    #[must_use]
    pub const fn deflate(&self) -> Option<DeflateParams> {
        match self.deflate {
            Some(setup) => Some(setup.params),
            None => None,
        }
    }
}
