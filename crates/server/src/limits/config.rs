//! Settings for a server's limits.

use super::memory;

/// Limits for the server as a whole. Without them, the limits are memory, the system's limits, and each connection's
/// limits ([`Config`](crate::Config), [`HttpConfig`](crate::HttpConfig)).
///
/// Excess connections and handshakes are rejected with the HTTP status for the case: 503 if the server is full, 429 if
/// one client exceeds its share, both with `Retry-After`. Each rejection is counted
/// ([`Metrics::limited`](crate::Metrics::limited)). A log line, at most every ten seconds, names the limit and the
/// setting. [`Server::bind`](crate::Server::bind) rejects zero limits.
///
/// ```
/// use sinews_server::{Limits, Router, Server};
///
/// let limits = Limits::default()
///     .with_max_connections(100_000)
///     .with_max_connections_per_address(100)
///     .with_handshakes_per_second(5_000)
///     .with_max_memory(4 << 30);
/// let server = Server::new(Router::new()).limits(limits);
/// # drop(server);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Limits {
    pub(crate) max_connections: Option<usize>,
    pub(crate) max_connections_per_address: Option<usize>,
    pub(crate) handshakes_per_second: Option<u32>,
    pub(crate) max_memory: MaxMemory,
    pub(crate) when_full: WhenFull,
}

/// Memory limit for queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MaxMemory {
    /// Percentage of available memory.
    Share(u8),
    Bytes(usize),
    Unlimited,
}

impl Default for MaxMemory {
    fn default() -> Self {
        Self::Share(50)
    }
}

impl Limits {
    /// Maximum open TCP connections, over all threads and listeners. Default: none but the descriptor limit, at which
    /// further connections wait in the kernel without an answer. Below that, this limit rejects them with 503. An
    /// HTTP/2 or HTTP/3 connection counts as one with its first WebSocket or streaming response, and each further one
    /// counts as one more.
    #[must_use]
    pub fn with_max_connections(mut self, connections: usize) -> Self {
        self.max_connections = Some(connections);
        self
    }

    /// Maximum open TCP connections from one client: from an IPv4 address, or from the first 64 bits of an IPv6
    /// address, the prefix of one household or one machine. Default: none, since a whole company may share an IPv4
    /// address, and all clients behind a proxy share its address. Excess connections are rejected with 429. WebSockets
    /// over HTTP/2 and HTTP/3 count as for [`with_max_connections`](Self::with_max_connections).
    #[must_use]
    pub fn with_max_connections_per_address(mut self, connections: usize) -> Self {
        self.max_connections_per_address = Some(connections);
        self
    }

    /// Maximum WebSocket handshakes per second, over all threads; after a quiet second, that many at once. Default:
    /// none. Excess handshakes are rejected with 503. The limit protects handlers from mass reconnects, since most
    /// handlers authenticate clients at a backend.
    #[must_use]
    pub fn with_handshakes_per_second(mut self, handshakes: u32) -> Self {
        self.handshakes_per_second = Some(handshakes);
        self
    }

    /// Maximum memory for all queues in bytes: outbound queues ([`Metrics::queued_bytes`](crate::Metrics)), and
    /// incomplete messages and requests. Default: a [share](Self::with_memory_share) of the memory. The count is an
    /// estimate, in which a message counts once for each recipient; the limit is exceeded only when the process's
    /// resident memory exceeds it, too. The process's other memory is extra. [`when_full`](Self::with_when_full) sets
    /// the action beyond the limit.
    #[must_use]
    pub fn with_max_memory(mut self, bytes: usize) -> Self {
        self.max_memory = MaxMemory::Bytes(bytes);
        self
    }

    /// The same as a percentage of the memory available at bind: the machine's, or the control group's (version 1 or 2)
    /// if that has less, as in a container. Default: 50, which leaves as much for the process's other memory and for
    /// the sockets. If the system does not report its memory, there is no limit.
    #[must_use]
    pub fn with_memory_share(mut self, percent: u8) -> Self {
        self.max_memory = MaxMemory::Share(percent);
        self
    }

    /// Removes the common queue limit; each connection's limits remain.
    #[must_use]
    pub fn without_max_memory(mut self) -> Self {
        self.max_memory = MaxMemory::Unlimited;
        self
    }

    /// Returns the memory limit for queues in bytes.
    pub(crate) fn memory_bytes(&self) -> Option<u64> {
        match self.max_memory {
            MaxMemory::Bytes(bytes) => Some(bytes as u64),
            MaxMemory::Unlimited => None,
            MaxMemory::Share(percent) => {
                let Some((bytes, of)) = memory::available() else {
                    tracing::warn!("cannot read the available memory: queues have no common limit");
                    return None;
                };
                let max_memory = bytes / 100 * u64::from(percent) + bytes % 100 * u64::from(percent) / 100;
                tracing::debug!(max_memory, percent, of, "memory limit of all queues");
                Some(max_memory)
            }
        }
    }

    /// Action while queues exceed [`max_memory`](Self::with_max_memory). Default: [`WhenFull::Close`].
    #[must_use]
    pub fn with_when_full(mut self, when_full: WhenFull) -> Self {
        self.when_full = when_full;
        self
    }

    /// Checks the settings; names the invalid one.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        let zeros = [
            (self.max_connections == Some(0), "max_connections must be at least 1"),
            (self.max_connections_per_address == Some(0), "max_connections_per_address must be at least 1"),
            (self.handshakes_per_second == Some(0), "handshakes_per_second must be at least 1"),
            (self.max_memory == MaxMemory::Bytes(0), "max_memory must be at least 1"),
            (
                matches!(self.max_memory, MaxMemory::Share(percent) if !(1..=100).contains(&percent)),
                "memory_share must be 1 to 100 percent",
            ),
        ];
        let zero = zeros.into_iter().find(|(zero, _)| *zero);
        zero.map_or(Ok(()), |(_, fault)| Err(fault))
    }
}

/// Server action while the queues exceed [`Limits::with_max_memory`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum WhenFull {
    /// Rejects new connections and handshakes with 503. Open connections go on, within their own limits.
    Reject,
    /// Rejects as above, and closes the connection with the largest queues at once, repeatedly, until queues are
    /// below the limit. Only connections that hold more than 64 KiB are closed, so fast readers are not affected. No
    /// Close frame is sent: it would wait for the queue.
    #[default]
    Close,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_of_zero_is_named_in_the_error() {
        let limits = Limits::default;
        for (wrong, name) in [
            (limits().with_max_connections(0), "max_connections "),
            (limits().with_max_connections_per_address(0), "max_connections_per_address "),
            (limits().with_handshakes_per_second(0), "handshakes_per_second "),
            (limits().with_max_memory(0), "max_memory "),
            (limits().with_memory_share(0), "memory_share "),
            (limits().with_memory_share(101), "memory_share "),
        ] {
            assert!(wrong.check().is_err_and(|fault| fault.starts_with(name)), "{wrong:?}");
        }
        assert_eq!(limits().check(), Ok(()));
    }
}
