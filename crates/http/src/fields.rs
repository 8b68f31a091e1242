//! Header fields of HTTP/2 and HTTP/3: decoded lists and their limits, the rules of messages, and the coding that HPACK and
//! QPACK share.

mod buffer;
pub(crate) mod huffman;
pub(crate) mod integer;
mod outgoing;
mod request;
mod response;
pub(crate) mod static_table;
pub(crate) mod string;

pub use buffer::{FieldBuffer, Fields};
pub(crate) use outgoing::{for_each_field, is_secret, status_digits};
pub use request::RequestFields;
pub(crate) use request::{Malformed, RequestShape, check_trailers};
pub use response::ResponseFields;
pub(crate) use response::ResponseShape;

/// The reason for rejecting an encoded list of fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockError {
    /// The list is invalid (RFC 7541, RFC 9204).
    Invalid(&'static str),
    /// The decoded fields exceed the limit by so much that the list is an attack.
    Flood,
}

/// Overhead of an entry in a table and of a field in a list (RFC 7541 section 4.1, RFC 9114 section 4.2.2).
pub(crate) const ENTRY_OVERHEAD: usize = 32;
