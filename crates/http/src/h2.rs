//! HTTP/2 without I/O (RFC 9113), with HPACK (RFC 7541) and extended CONNECT (RFC 8441): both sides.
//!
//! A driver passes received bytes to [`H2Connection::receive`], which returns one [`Event`] a call, and borrows both the
//! input and the caller's [`FieldBuffer`]. Calls that send append frames to the driver's output. Content is never
//! buffered: received DATA is a range of the input, and [`H2Connection::start_data`] returns only the header of a DATA
//! frame for a payload that the driver owns, so that many streams can share it.
//!
//! Answers that the machine owes by itself (SETTINGS, PING, WINDOW_UPDATE, RST_STREAM) are queued. Each sending call
//! writes them first, and [`H2Connection::write_control`] writes them alone. Call it only when the transport takes more
//! bytes: the queue is limited, so that a peer that causes answers and does not read them is disconnected.
//!
//! [`H2Connection::client`] is the other side: it [sends requests](H2Connection::send_request), and refuses pushed responses.
//!
//! ```
//! use std::time::Duration;
//! use sinews_http::h2::{Config, Event, FieldBuffer, H2Connection, PREFACE};
//!
//! let mut connection = H2Connection::server(Config::new());
//! let (mut fields, mut out) = (FieldBuffer::new(), Vec::new());
//! // An empty SETTINGS frame, and HEADERS with END_STREAM and END_HEADERS: GET https://a/
//! let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
//! let request = [0, 0, 6, 1, 5, 0, 0, 0, 1, 0x82, 0x84, 0x87, 0x41, 1, b'a'];
//! let received = [&PREFACE[..], &settings, &request].concat();
//!
//! let mut input = &received[..];
//! while let Some(event) = connection.receive(&mut input, &mut fields, Duration::ZERO)? {
//!     let Event::Request { stream, head, ends: true } = event else { continue };
//!     assert_eq!((head.method(), head.authority(), head.target()), ("GET", Some("a"), Some("/")));
//!     connection.send_head(stream, 200, [("content-type", "text/plain")], false, &mut out).expect("the stream is open");
//!     assert_eq!(connection.send_data(stream, b"hello", true, &mut out), Ok(5));
//! }
//! assert!(out.ends_with(b"\x00\x00\x05\x00\x01\x00\x00\x00\x01hello"));
//! # Ok::<(), sinews_http::h2::Error>(())
//! ```

mod blocks;
mod client;
mod config;
mod connection;
mod error;
mod event;
mod frame;
mod hpack;
mod receive;
mod send;
mod settings;
mod stream;
mod window;

pub use config::Config;
pub use connection::H2Connection;
pub use error::{Error, ErrorCode, SendMisuse};
pub use event::Event;
pub use frame::{FRAME_HEADER_LEN, PREFACE, StreamId};
pub use send::DataFrame;
pub use settings::ServerSettings;

pub use crate::budget::{AbuseLimits, Allowance};
pub use crate::fields::{FieldBuffer, Fields, RequestFields, RequestTarget, ResponseFields};
