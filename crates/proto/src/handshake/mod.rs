//! The opening handshake (RFC 6455 section 4, RFC 7692 section 5, RFC 8441).
//!
//! One pure function, [`accept`], decides for every HTTP stack: the HTTP/1.1 head of this crate
//! ([`RequestHead`](crate::http::RequestHead)), the header maps of another HTTP stack, and extended CONNECT
//! of HTTP/2 and HTTP/3. A stack exposes its request as a [`RequestView`] and gets an [`Accepted`] or a
//! [`Refusal`] to send. A client creates a [`ClientRequest`] and reads the response with a
//! [`ClientHandshake`]. Either way the result is a [`Negotiated`], which every connection requires and only
//! a handshake creates.
//!
//! ```
//! use sinews_proto::handshake::{accept, ClientRequest, ClientStep, ServerOptions};
//! use sinews_proto::http::{HeadLimits, HeaderSlots, RequestHead};
//!
//! // The caller supplies a random key: the crate has no random number generator.
//! let mut client = ClientRequest::new("example.com", "/chat")?.with_subprotocol("v2.chat")?.start([7; 16]);
//! let mut request = Vec::new();
//! client.write_request(&mut request);
//!
//! let mut slots = HeaderSlots::new();
//! let head = RequestHead::parse(&request, &HeadLimits::new(), &mut slots)?;
//! let options = ServerOptions::new().with_subprotocol("v2.chat")?;
//! let accepted = accept(&head, &options).expect("a valid request");
//! let mut response = Vec::new();
//! accepted.write_response(&[("Server", "example")], &mut response)?;
//!
//! let ClientStep::Done(done) = client.read_response(&response)? else { panic!("the response is complete") };
//! assert_eq!(done.subprotocol(), Some("v2.chat"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod client;
mod deflate;
mod extensions;
mod key;
mod misuse;
mod origin;
mod refusal;
mod request;
mod server;
mod subprotocol;

pub use client::{ClientError, ClientHandshake, ClientRequest, ClientStep, Established, Rejection};
pub use misuse::HandshakeMisuse;
pub use origin::{OriginPolicy, same_origin};
pub use refusal::Refusal;
pub use request::RequestView;
pub use server::{Accepted, ServerOptions, accept};

use crate::deflate::{DeflateParams, DeflateSetup};

/// The only protocol version (RFC 6455 section 4.1).
pub(crate) const VERSION: &str = "13";

/// The role of this end: it determines masking and which end closes the transport first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(clippy::exhaustive_enums, reason = "a connection has two ends")]
pub enum Role {
    /// This end answered the handshake.
    Server,
    /// This end started the handshake.
    Client,
}

/// The result of a handshake, required to create a connection.
///
/// Only a handshake creates it, so a connection cannot use an extension that was not negotiated; or
/// [`prefixed`](Self::prefixed), which has no extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiated {
    pub(crate) role: Role,
    pub(crate) deflate: Option<DeflateSetup>,
    pub(crate) framing: Framing,
}

/// The framing of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    /// RFC 6455.
    WebSocket,
    /// Each message after its length.
    Prefixed,
}

impl Negotiated {
    pub(crate) const fn new(role: Role, deflate: Option<DeflateSetup>) -> Self {
        Self { role, deflate, framing: Framing::WebSocket }
    }

    /// Without a handshake and without WebSocket: messages over a plain stream, each after its length in
    /// four bytes, little-endian. It is the same connection without masks, UTF-8, control frames and
    /// fragments: every message is binary, and the end of the stream replaces the Close. So an application
    /// can run over both, and the cost of WebSocket itself can be measured. There are no pings: set
    /// [`ping_interval`](crate::Config::with_ping_interval) to `None`.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use sinews_proto::{Config, Connection, Event, Kind, Negotiated, PerThread, Place, Role, Time};
    ///
    /// let config = Arc::new(Config::default().with_ping_interval(None));
    /// let mut connection = Connection::new(Negotiated::prefixed(Role::Server), config, Time::ZERO);
    /// let (mut shared, mut out) = (PerThread::new(|| [0; 4]), Vec::new());
    /// let mut input = *b"\x05\0\0\0hello";
    /// let received = connection.receive(&mut input, &mut Vec::new(), &mut shared, Time::ZERO)?;
    /// assert_eq!(received.event, Event::Message { kind: Kind::Binary, at: Place::Input(4..9) });
    /// connection.send(Kind::Binary, b"hi", &mut shared, &mut out)?;
    /// assert_eq!(out, b"\x02\0\0\0hi");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub const fn prefixed(role: Role) -> Self {
        Self { role, deflate: None, framing: Framing::Prefixed }
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
