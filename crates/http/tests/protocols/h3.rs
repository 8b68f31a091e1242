//! HTTP/3: rules of RFC 9114, RFC 9204, RFC 9220, RFC 9297 and WebTransport, attacks, splits of the input, both sides with
//! each other, and bytes of another implementation.

mod allocations;
mod attacks;
mod frames;
mod messages;
mod pair;
mod peers;
mod sessions;
mod splits;
mod streams;
mod support;
