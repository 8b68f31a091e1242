//! HTTP/3 without I/O (RFC 9114), with QPACK (RFC 9204), extended CONNECT (RFC 9220), datagrams (RFC 9297) and WebTransport:
//! both sides. The driver has QUIC.
//!
//! A driver reports opened streams by [`H3Connection::open`], and passes a stream's received bytes to
//! [`H3Connection::receive`], which returns one [`Event`] a call, and borrows both the input and the caller's
//! [`FieldBuffer`]. Calls that send append the bytes of one stream to the driver's output. Content is never buffered:
//! received DATA is a range of the input, and [`H3Connection::start_data`] returns only the header of a DATA frame for
//! a payload that the driver owns.
//!
//! After each call the driver executes [`H3Connection::next_signal`] until it returns `None`, and writes
//! [`H3Connection::write_control`] to a unidirectional stream that it opens for this purpose. QUIC's flow control is
//! the backpressure: a stream that the driver does not read, or that the connection [holds](H3Connection::is_held),
//! closes its window. QUIC's limits on open streams must not exceed [`Config::with_max_streams`].
//!
//! ```
//! use std::time::Duration;
//! use sinews_http::h3::{Config, Event, FieldBuffer, H3Connection, QuicStreamId};
//!
//! let mut connection = H3Connection::server(Config::new());
//! let (mut fields, mut out, now) = (FieldBuffer::new(), Vec::new(), Duration::ZERO);
//! let (request, control) = (QuicStreamId::new(0), QuicStreamId::new(2));
//! // The client's control stream with empty SETTINGS.
//! connection.open(control, now)?;
//! assert!(matches!(
//!     connection.receive(control, &mut &[0, 4, 0][..], false, &mut fields, now)?,
//!     Some(Event::Settings { .. }),
//! ));
//! // HEADERS: GET https://a/
//! let mut input = &[1, 8, 0, 0, 0xd1, 0xc1, 0xd7, 0x50, 1, b'a'][..];
//! connection.open(request, now)?;
//! while let Some(event) = connection.receive(request, &mut input, true, &mut fields, now)? {
//!     match event {
//!         Event::Request { head, .. } => assert_eq!((head.method(), head.authority()), ("GET", Some("a"))),
//!         Event::End { stream } => {
//!             connection.send_head(stream, 200, [], false, &mut out).expect("the stream is open");
//!             connection.send_data(stream, b"hello", true, &mut out).expect("the stream is open");
//!         }
//!         _ => {}
//!     }
//! }
//! assert_eq!(out, b"\x01\x40\x03\0\0\xd9\x00\x05hello");
//! # Ok::<(), sinews_http::h3::Error>(())
//! ```

mod blocks;
mod capsule;
mod config;
mod connection;
mod control;
mod early;
mod error;
mod event;
mod frame;
mod qpack;
mod receive;
mod send;
mod session;
mod settings;
mod stream;
mod varint;

pub use config::Config;
pub use connection::{H3Connection, StreamSignal};
pub use error::{Error, H3Code, H3SendError};
pub use event::Event;
pub use settings::PeerSettings;
pub use stream::QuicStreamId;
pub use varint::FramePrefix;

pub use crate::budget::{AbuseLimits, Allowance};
pub use crate::fields::{FieldBuffer, Fields, RequestFields, RequestTarget, ResponseFields};
