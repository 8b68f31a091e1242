//! Headers of the opening handshake.

/// The only protocol version (RFC 6455 section 4.1).
pub(super) const VERSION: &str = "13";

/// Headers that the handshake writes, in addition to the framing headers.
pub(super) const HANDSHAKE_HEADERS: [&str; 7] = [
    "Host",
    "Upgrade",
    "Sec-WebSocket-Accept",
    "Sec-WebSocket-Extensions",
    "Sec-WebSocket-Key",
    "Sec-WebSocket-Protocol",
    "Sec-WebSocket-Version",
];
