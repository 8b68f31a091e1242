//! How much a server takes on, and how much of it one client may have.

mod gate;
mod memory;
mod rate;
mod refused;

use sinews_proto::handshake::Refusal;

pub(crate) use self::gate::Gate;
pub(crate) use self::rate::Pace;
pub(crate) use self::refused::Refused;
use crate::metrics::reason_enum;

/// How much a server takes on in all. Without a setting there is no limit but that of memory, the system's, and those of
/// each connection ([`Config`](crate::Config), [`HttpConfig`](crate::HttpConfig)).
///
/// What is beyond a limit is refused in words that HTTP has for it: 503 where the server is full, 429 where one
/// client wants too much, both with `Retry-After`. Each refusal is counted
/// ([`Metrics::limited`](crate::Metrics::limited)), and one line of the log every ten seconds names the limit and the
/// setting. [`Server::bind`](crate::Server::bind) refuses limits of zero.
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

/// How much queues may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MaxMemory {
    /// So many hundredths of the memory that there is.
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
    /// TCP connections at a time, over all threads and listeners. Default: none but the limit of descriptors, at
    /// which further ones wait in the kernel unanswered; below that, this one answers them with 503.
    #[must_use]
    pub fn with_max_connections(mut self, connections: usize) -> Self {
        self.max_connections = Some(connections);
        self
    }

    /// TCP connections at a time of one client: of an IPv4 address, or of the first 64 bits of an IPv6 address, which
    /// is what one household or one machine gets. Default: none, since a whole company may share an IPv4 address, and
    /// behind a proxy everybody has the proxy's. Beyond it: 429.
    #[must_use]
    pub fn with_max_connections_per_address(mut self, connections: usize) -> Self {
        self.max_connections_per_address = Some(connections);
        self
    }

    /// WebSockets opened in a second, over all threads; after a quiet second that many at once. Default: none. Beyond
    /// it: 503. It holds the rush of clients that come back all at once off the handlers, which mostly ask others who
    /// somebody is.
    #[must_use]
    pub fn with_handshakes_per_second(mut self, handshakes: u32) -> Self {
        self.handshakes_per_second = Some(handshakes);
        self
    }

    /// Bytes that queues may hold in all: what waits to be sent ([`Metrics::queued_bytes`](crate::Metrics)), and what
    /// has come of messages and requests that are not whole. Default: a [share](Self::with_memory_share). It is an
    /// estimate, in which a message that waits for many counts for each of them; the limit is exceeded when the process
    /// holds as much, too. The rest of the process comes beside it. What happens beyond it is said by
    /// [`when_full`](Self::with_when_full).
    #[must_use]
    pub fn with_max_memory(mut self, bytes: usize) -> Self {
        self.max_memory = MaxMemory::Bytes(bytes);
        self
    }

    /// The same, in hundredths of the memory that there is when the server is bound: that of the machine, or of the
    /// control group (version 1 or 2) where that has less, as in a container. Default: 50, so that as much is left for
    /// the rest of the process and for the sockets. Where the system does not tell how much there is, there is no limit.
    #[must_use]
    pub fn with_memory_share(mut self, percent: u8) -> Self {
        self.max_memory = MaxMemory::Share(percent);
        self
    }

    /// Queues may hold what their connections' own limits let them.
    #[must_use]
    pub fn without_max_memory(mut self) -> Self {
        self.max_memory = MaxMemory::Unlimited;
        self
    }

    /// Bytes that queues may hold in all, here and now.
    fn memory_bytes(&self) -> Option<u64> {
        match self.max_memory {
            MaxMemory::Bytes(bytes) => Some(bytes as u64),
            MaxMemory::Unlimited => None,
            MaxMemory::Share(percent) => {
                let Some((bytes, of)) = memory::available() else {
                    tracing::warn!("how much memory there is cannot be read: queues have no common limit");
                    return None;
                };
                let max_memory = bytes / 100 * u64::from(percent) + bytes % 100 * u64::from(percent) / 100;
                tracing::debug!(max_memory, percent, of, "the memory that queues may hold in all");
                Some(max_memory)
            }
        }
    }

    /// What happens while queues hold more than [`max_memory`](Self::with_max_memory). Default:
    /// [`WhenFull::Close`].
    #[must_use]
    pub fn with_when_full(mut self, when_full: WhenFull) -> Self {
        self.when_full = when_full;
        self
    }

    /// Whether the settings make sense; otherwise what does not.
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

/// What a server does while its queues hold more than [`Limits::with_max_memory`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum WhenFull {
    /// New connections and handshakes are refused with 503. Those that are open go on, within their own limits.
    Refuse,
    /// And of all connections that hold more than 64 KiB the one that holds most is closed at once, without a Close frame,
    /// which would wait behind all the rest, and then the next one until they hold less: connections that take what they
    /// are sent are left alone.
    #[default]
    Close,
}

reason_enum! {
    /// A limit that something was beyond.
    Limit {
        /// [`Limits::with_max_connections`]: a connection was refused with 503.
        Connections = "connections",
        /// [`Limits::with_max_connections_per_address`]: a connection was refused with 429.
        Address = "address",
        /// [`Limits::with_handshakes_per_second`]: a handshake was refused with 503.
        Handshakes = "handshakes",
        /// [`WebSocketRoute::with_message_rate`](crate::WebSocketRoute::with_message_rate): a WebSocket was closed
        /// with 1008.
        Messages = "messages",
        /// [`Limits::with_max_memory`]: a connection or a handshake was refused with 503, or a connection closed.
        Memory = "memory",
    }
}

impl Limit {
    const fn status(self) -> u16 {
        match self {
            Self::Address | Self::Messages => 429,
            Self::Connections | Self::Handshakes | Self::Memory => 503,
        }
    }

    /// Whole seconds, for `Retry-After`: the rate's second, or what it may take until others have gone.
    const fn retry_after(self) -> &'static str {
        match self {
            Self::Handshakes => "1",
            _ => "10",
        }
    }

    const fn setting(self) -> &'static str {
        match self {
            Self::Connections => "Limits::with_max_connections",
            Self::Address => "Limits::with_max_connections_per_address",
            Self::Handshakes => "Limits::with_handshakes_per_second",
            Self::Messages => "WebSocketRoute::with_message_rate",
            Self::Memory => "Limits::with_max_memory",
        }
    }

    /// What the client is told.
    pub(crate) fn refusal(self) -> Refusal {
        let body = match self {
            Self::Address => "too many connections from this address\n",
            _ => "the server is at its limit\n",
        };
        let refusal = Refusal::new(self.status()).and_then(|refusal| {
            refusal.with_header("Retry-After", self.retry_after())?.with_header("Content-Type", "text/plain")
        });
        refusal.expect("status and headers are constants that may be sent").with_body(body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Reason;

    #[test]
    fn every_limit_has_an_answer() {
        for limit in Limit::ALL {
            let mut out = Vec::new();
            limit.refusal().write_response(&mut out);
            let text = String::from_utf8(out).unwrap();
            assert!(text.starts_with("HTTP/1.1 503 ") || text.starts_with("HTTP/1.1 429 "), "{text}");
            assert!(text.contains("\r\nRetry-After: ") && limit.setting().contains("::with_"), "{text}");
        }
    }

    #[test]
    fn a_limit_of_zero_is_named() {
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
