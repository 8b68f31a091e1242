//! The part of HTTP/1.1 that a WebSocket handshake needs, and no leniency beyond it.
//!
//! A head is found by [`HeadScanner`], which looks at each byte once however the head arrives, and then
//! parsed once by [`RequestHead`] or [`ResponseHead`]. Both borrow: nothing is copied or allocated.
//!
//! ```
//! use sinews_proto::http::{HeadLimits, HeadScanner, HeaderSlots, RequestHead};
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
//! # Ok::<(), sinews_proto::http::HeadError>(())
//! ```
//!
//! What is refused here although RFC 9112 lets a recipient be kind: a line feed without a carriage return
//! (section 2.2), folded header lines (5.2), more than one empty line before the request line (2.2), a
//! repeated `Content-Length` even with equal values, and `Content-Length` beside `Transfer-Encoding`
//! (6.3). Each of them is a way in which two HTTP parsers in a row can disagree about where a request
//! ends.

mod error;
mod framing;
mod head;
mod scan;
pub(crate) mod text;

pub use error::HeadError;
pub use head::{HeaderSlots, RequestHead, ResponseHead};
pub use scan::{HeadLimits, HeadScanner};

/// The version of HTTP that a request came with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Version {
    /// HTTP/1.0.
    Http10,
    /// HTTP/1.1.
    Http11,
    /// HTTP/2 (RFC 9113).
    Http2,
    /// HTTP/3 (RFC 9114).
    Http3,
}
