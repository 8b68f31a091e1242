//! HTTP/1.1 framing (RFC 9112): the ends of heads and bodies, and response heads.

pub(crate) mod chunked;
pub(crate) mod encoded;
pub(crate) mod framing;
pub(crate) mod parse;
pub(crate) mod scan;
pub(crate) mod write;
