//! Framing of HTTP: bytes of a transport on one side, exchanges and sockets on the other.

pub(crate) mod h1;
pub(crate) mod h2;
pub(crate) mod h3;
pub(crate) mod streams;
