//! Fuzz targets, each with an oracle.
//!
//! A target is a function over bytes that panics when the code under test is wrong. [`libFuzzer`] drives
//! it through `cargo fuzz`, and the test `brief` drives it in every ordinary test run, over the seeds and
//! some thousands of inputs derived from them.
//!
//! | target | code under test | oracle |
//! |---|---|---|
//! | [`frames`] | `Connection`, receiving | a decoder written from the RFCs for clarity |
//! | [`handshake`] | heads, `accept`, `ClientHandshake` | the lists of RFC 6455 section 4, checked again |
//! | [`deflate`] | negotiation, both codecs | RFC 7692 section 7.1, an inflater written from RFC 1951 |
//! | [`session`] | `Session` over a hostile link | messages arrive as sent, and every wait ends |
//! | [`http2`] | `H2Connection`, the server of HTTP/2 | a ledger of windows; any split gives the same events |
//! | [`http3`] | `H3Connection`, the server of HTTP/3 | a reader of whole streams; any split gives the same events |
//! | [`pusher`] | the server of the Pusher protocol | models of answers, statuses and events of others |
//! | [`records`] | records and batches of streams | a decoder written from their tables, a checksum bit by bit |
//!
//! [`libFuzzer`]: https://llvm.org/docs/LibFuzzer.html
#![forbid(unsafe_code)]

mod agree;
mod blocks;
mod deflate;
mod extensions;
mod frames;
mod handshake;
mod heads;
mod http2;
mod http3;
mod inflate;
mod input;
mod pusher;
mod records;
mod reference;
mod session;

pub use deflate::deflate;
pub use frames::frames;
pub use handshake::handshake;
pub use http2::http2;
pub use http3::http3;
pub use pusher::pusher;
pub use records::records;
pub use session::session;
