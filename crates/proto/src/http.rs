//! The heads of HTTP/1.1 that a WebSocket handshake needs, from [`sinews-http`](sinews_http).
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
//! let end = HeadScanner::new().scan(received, &limits)?.expect("the head is complete");
//!
//! let mut slots = HeaderSlots::new();
//! let head = RequestHead::parse(&received[..end], &limits, &mut slots)?;
//! assert_eq!((head.method(), head.path(), head.query()), ("GET", "/chat", Some("room=7")));
//! # Ok::<(), sinews_proto::http::HeadError>(())
//! ```

pub use sinews_http::{HeadError, HeadLimits, HeadScanner, HeaderSlots, RequestHead, ResponseHead, Version};
