//! The opening handshake (RFC 6455 section 4, RFC 7692 section 5, RFC 8441).
//!
//! One pure function, [`accept`], decides for every server front: our own HTTP/1.1 head
//! ([`RequestHead`](crate::http::RequestHead)), the header maps of another HTTP stack, and extended
//! CONNECT of HTTP/2 and HTTP/3. A front shows its request as a [`RequestView`] and gets an [`Accepted`] to
//! answer with, or a [`Refusal`]. A client makes a [`ClientRequest`] and reads the answer with a
//! [`ClientHandshake`]. Either way the result is a [`Negotiated`], which nothing else can make and without
//! which there is no connection.
//!
//! ```
//! use sinews_proto::handshake::{accept, ClientRequest, ClientStep, ServerOptions};
//! use sinews_proto::http::{HeadLimits, HeaderSlots, RequestHead};
//!
//! // The key is random bytes that the caller supplies: nothing here reads a generator.
//! let mut client = ClientRequest::new("example.com", "/chat")?.with_subprotocol("v2.chat")?.start([7; 16]);
//! let mut request = Vec::new();
//! client.write_request(&mut request);
//!
//! let mut slots = HeaderSlots::new();
//! let head = RequestHead::parse(&request, &HeadLimits::new(), &mut slots)?;
//! let options = ServerOptions::new().with_subprotocol("v2.chat")?;
//! let accepted = accept(&head, &options).expect("a sound request");
//! let mut response = Vec::new();
//! accepted.write_response(&[("Server", "example")], &mut response)?;
//!
//! let ClientStep::Done(done) = client.read_response(&response)? else { panic!("all of it is there") };
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

/// The version of the protocol, the only one there is (RFC 6455 section 4.1).
pub(crate) const VERSION: &str = "13";

/// Which end of the connection we are: it decides who masks and who closes the transport first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(clippy::exhaustive_enums, reason = "a connection has two ends")]
pub enum Role {
    /// We answered the handshake.
    Server,
    /// We began the handshake.
    Client,
}

/// What a completed handshake agreed on: the ticket into a connection.
///
/// Only the handshake makes one, so a connection cannot use an extension that was never negotiated; or
/// [`prefixed`](Self::prefixed), which uses none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiated {
    pub(crate) role: Role,
    pub(crate) deflate: Option<DeflateSetup>,
    pub(crate) framing: Framing,
}

/// How messages are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    /// RFC 6455.
    WebSocket,
    /// Each behind its length.
    Prefixed,
}

impl Negotiated {
    pub(crate) const fn new(role: Role, deflate: Option<DeflateSetup>) -> Self {
        Self { role, deflate, framing: Framing::WebSocket }
    }

    /// No handshake, and no WebSocket: messages over a plain stream, each behind its length, four bytes with the lowest
    /// first. It is the same connection without masks, UTF-8, control frames and fragments: every message is binary,
    /// and what there would be a Close is the end of the stream. So an application can be had over both, and what
    /// WebSocket itself costs can be seen. There are no pings: set
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

    /// Which end we are.
    #[must_use]
    pub const fn role(&self) -> Role {
        self.role
    }

    /// The parameters of permessage-deflate, if both ends want it.
    #[must_use]
    pub const fn deflate(&self) -> Option<DeflateParams> {
        match self.deflate {
            Some(setup) => Some(setup.params),
            None => None,
        }
    }
}
