//! The opening handshake (RFC 6455 section 4, RFC 7692 section 5, RFC 8441).
//!
//! One pure function, [`accept`], decides for every HTTP stack: this crate's HTTP/1.1 head
//! ([`RequestHead`](crate::http::RequestHead)), another HTTP stack's header maps, and HTTP/2 and HTTP/3 extended
//! CONNECT. A stack exposes its request as a [`RequestView`] and gets an [`Accepted`] or a [`Refusal`] to send. A
//! client creates a [`ClientRequest`] and reads the response with a [`ClientHandshake`], or with [`ExtendedConnect`] on
//! an HTTP/2 or HTTP/3 stream. Either way the result is a [`Negotiated`], which every connection requires and only a
//! handshake creates.
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
mod extended_connect;
mod extensions;
mod headers;
mod key;
mod misuse;
mod negotiated;
mod origin;
mod refusal;
mod request;
mod server;
mod subprotocol;

pub use client::{ClientError, ClientHandshake, ClientRequest, ClientStep, Established, Rejection};
pub use extended_connect::ExtendedConnect;
pub use key::accept_key;
pub use misuse::HandshakeMisuse;
pub use negotiated::Negotiated;
pub(crate) use negotiated::WireFormat;
pub use origin::{OriginPolicy, same_origin};
pub use refusal::Refusal;
pub use request::RequestView;
pub use server::{Accepted, ServerOptions, accept, accept_session};

pub use crate::role::Role;
