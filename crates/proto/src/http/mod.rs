//! The subset of HTTP/1.1 that a WebSocket handshake needs, parsed strictly.
//!
//! [`HeadScanner`] finds the end of a head and examines each byte once for any segmentation.
//! [`RequestHead`] or [`ResponseHead`] then parses the head once. Both borrow: no byte is copied or
//! allocated.
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
//! Rejected although RFC 9112 permits a recipient to accept them: a line feed without a carriage return
//! (section 2.2), folded header lines (5.2), more than one empty line before the request line (2.2), a
//! repeated `Content-Length` even with equal values, and `Content-Length` together with `Transfer-Encoding`
//! (6.3). With each of them, two HTTP parsers in a row can disagree about the end of a request.

mod error;
mod framing;
mod head;
mod scan;
pub(crate) mod text;

pub use error::HeadError;
pub use head::{HeaderSlots, RequestHead, ResponseHead};
pub use scan::{HeadLimits, HeadScanner};

/// The HTTP version of a request.
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
