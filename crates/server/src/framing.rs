//! Framing of HTTP: bytes of a transport on one side, exchanges and sockets on the other.

pub(crate) mod h1;
pub(crate) mod h2;
pub(crate) mod h3;
pub(crate) mod streams;

use std::time::Duration;

use sinews_proto::Time;

use crate::http::HttpConfig;

/// Wait for the client's end after the last answer of a connection and its FIN (RFC 9112 section 9.6): a round trip on
/// a slow network. Afterwards the connection closes at once, which resets it if the client still sends. It bounds the
/// time for which a rejected client, such as one without a complete head, occupies a connection.
pub(crate) const LINGER: Duration = Duration::from_secs(2);

/// The same wait while the server stops, also for a client that takes no bytes of an answer, and for an idle client of
/// HTTP/2 or HTTP/3: other clients have no listener meanwhile.
pub(crate) const LINGER_STOPPING: Duration = Duration::from_secs(1);

/// Returns when a client that takes no bytes of an answer is given up. `progress`: when it last took some. `stopping`:
/// since when the server stops.
pub(crate) fn write_deadline(progress: Time, stopping: Option<Time>, config: &HttpConfig) -> Time {
    let deadline = progress + config.write_timeout;
    stopping.map_or(deadline, |since| deadline.min(progress.max(since) + LINGER_STOPPING))
}
