//! HTTP/1.1 without I/O, parsed strictly: heads, chunked bodies, header lists, conditions and ranges. [`h2`] is HTTP/2, [`h3`] is HTTP/3.
//!
//! [`HeadScanner`] finds the end of a head and examines each byte once for any segmentation.
//! [`RequestHead`] or [`ResponseHead`] then parses the head once. Both borrow: no byte is copied.
//! [`ChunkedBody`] decodes a body in chunks. [`write_response_head`] encodes the head of an answer from its
//! [`HeaderMap`], and [`EncodedResponse`] encodes a response for many answers. [`write_event_data`] encodes Server-Sent Events.
//!
//! ```
//! use sinews_http::{HeadLimits, HeadScanner, HeaderSlots, RequestHead};
//!
//! let received = b"GET /chat?room=7 HTTP/1.1\r\nHost: example.com\r\n\r\nnext";
//! let limits = HeadLimits::new();
//! let mut scanner = HeadScanner::new();
//! assert_eq!(scanner.scan(&received[..20], &limits)?, None);
//! let end = scanner.scan(received, &limits)?.expect("the head is complete");
//!
//! let mut slots = HeaderSlots::new();
//! let head = RequestHead::parse(&received[..end], &limits, &mut slots)?;
//! assert_eq!((head.method(), head.path(), head.query()), ("GET", "/chat", Some("room=7")));
//! assert_eq!(&received[head.wire_len()..], b"next");
//! # Ok::<(), sinews_http::HeadError>(())
//! ```
//!
//! Rejected although RFC 9112 permits a recipient to accept them: a line feed without a carriage return
//! (section 2.2), folded header lines (5.2), more than one empty line before the request line (2.2), a
//! repeated `Content-Length` even with equal values, and `Content-Length` together with `Transfer-Encoding`
//! (6.3). With each of them, two HTTP parsers in a row can disagree about the end of a request.
//!
//! # Features
//!
//! `conditions`: conditional requests and ranges; their dates require `std`. Without the feature the crate
//! needs only `core` and `alloc`.
#![cfg_attr(not(any(test, feature = "conditions")), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod budget;
#[cfg(feature = "conditions")]
mod conditions;
mod encoding;
mod error;
mod event_stream;
mod fields;
mod h1;
pub mod h2;
pub mod h3;
mod head;
mod headers;
mod limits;
mod lines;
mod owned;
mod protocol_error;
mod status;
pub mod text;
mod version;

#[cfg(feature = "conditions")]
pub use conditions::{ByteRange, RequestedRange, Validators, Verdict};
pub use encoding::{AcceptedEncodings, is_compressible};
pub use error::HeadError;
pub use event_stream::{EVENT_STREAM_TYPE, end_event, write_event_data, write_event_field};
pub use h1::chunked::{ChunkError, ChunkedBody};
pub use h1::encoded::EncodedResponse;
pub use h1::scan::HeadScanner;
pub use h1::write::{LAST_CHUNK, write_chunk, write_chunked_head, write_response_head};
pub use head::{RequestHead, ResponseHead};
pub use headers::HeaderMap;
pub use limits::HeadLimits;
pub use lines::HeaderSlots;
pub use owned::OwnedHead;
pub use protocol_error::ProtocolError;
pub use status::reason_phrase;
pub use version::Version;
