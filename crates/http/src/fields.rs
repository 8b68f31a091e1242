//! HTTP/2 and HTTP/3 header fields: decoded lists and their limits, message rules, and the coding that HPACK and QPACK
//! share.

mod block;
mod buffer;
pub(crate) mod huffman;
pub(crate) mod integer;
mod outgoing;
mod request;
mod response;
pub(crate) mod static_table;
pub(crate) mod string;
mod target;

pub(crate) use block::{BlockError, ENTRY_OVERHEAD};
pub use buffer::{FieldBuffer, Fields};
pub(crate) use outgoing::{for_each_field, is_secret, status_digits};
pub use request::RequestFields;
pub(crate) use request::{Malformed, RequestShape, check_trailers};
pub use response::ResponseFields;
pub(crate) use response::ResponseShape;
pub use target::RequestTarget;
