//! Limits for the whole server, and its shutdown.

use std::num::{NonZeroU32, NonZeroUsize};

use clap::ValueEnum;
use sinews_server::{KeyedConfig, Limits, Server, TopicConfig, WhenFull};

use crate::config::schema::settings;
use crate::config::units::{ByteSize, DurationSetting, MemoryLimit};
use crate::config::value::choice;

settings! {
    /// Limits of the server. Excess is rejected with an HTTP status, and clients of the Pusher protocol with the close code
    /// 4100. It is counted at /metrics, and logged.
    pub(crate) struct LimitSettings in "limits", "Limits of the server" {
        /// Maximum number of connections; further connections are rejected with 503.
        max_connections: Option<NonZeroUsize> {
            unset: "no limit; without a free file descriptor, connections wait in the kernel",
            example: "100000",
        }

        /// Maximum number of connections per address, or per IPv6 network of 64 bits; further connections are rejected
        /// with 429. Many users may share an address, and all share the address of a proxy.
        max_connections_per_address: Option<NonZeroUsize> { unset: "no limit", example: "100" }

        /// Maximum number of WebSocket handshakes per second, and burst after an idle second; further handshakes are
        /// rejected with 503.
        handshakes_per_second: Option<NonZeroU32> { unset: "no limit", example: "5000" }

        /// Maximum number of messages per second of each WebSocket, and burst after an idle second; faster connections
        /// are closed with 1008.
        messages_per_second: Option<NonZeroU32> { unset: "no limit", example: "100" }

        /// Memory for outbound queues, and incomplete messages and requests, of all connections: bytes such as `512m`,
        /// or a share such as `25%` of the memory of the machine or of its control group (v1 or v2), whichever is less.
        /// With `off`, only the limits of each connection apply.
        max_memory: MemoryLimit { default: "50%" }

        /// Action when connections hold more than {limits.max_memory}: `reject` rejects new connections and handshakes
        /// with 503; `close` also closes the connections that hold most, until the limit is met.
        when_full: MemoryFullAction { default: "close", placeholder: "ACTION" }

        /// Memory for the histories of all topics ({history}), in bytes; each message counts 256 bytes of overhead,
        /// each topic 512. Above it, whole histories are evicted: first of topics without subscribers, least recently
        /// published first. A warning in the log and `sinews_histories_evicted_total` report evictions.
        max_history_memory: ByteSize { default: "64m" }

        /// Memory for the keys of all topics, in bytes; each key counts its name, its value and 256 bytes, each topic with
        /// keys its name and 2,048, and each remembered idempotency key its names and 160. Above it, new keys and larger
        /// values are rejected with error 429. A topic has at most 10,000 keys and 16 MiB, and a value at most 64 KiB. The
        /// snapshots that subscribers read have a limit of their own, twice this number.
        max_keyed_memory: ByteSize { default: "64m" }

        /// Memory for the keys of one client in all topics, in bytes: of one user, or of one address for clients without a
        /// token. Keys count toward the client that has written them last, until they are deleted or expire. Above it,
        /// new keys and larger values of this client are rejected with error 429. Keys that a backend writes with the HTTP
        /// API, and keys in {cluster.store}, have no such limit.
        max_keyed_memory_per_client: ByteSize { default: "16m" }
    }
}

/// Action while queues exceed the memory limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MemoryFullAction {
    Reject,
    Close,
}

choice!(MemoryFullAction);

impl LimitSettings {
    /// Returns the settings for [`Server::limits`].
    pub(crate) fn limits(&self) -> Limits {
        let when_full = match self.when_full {
            MemoryFullAction::Reject => WhenFull::Reject,
            MemoryFullAction::Close => WhenFull::Close,
        };
        let mut limits = Limits::default().with_when_full(when_full);
        if let Some(connections) = self.max_connections {
            limits = limits.with_max_connections(connections.get());
        }
        if let Some(connections) = self.max_connections_per_address {
            limits = limits.with_max_connections_per_address(connections.get());
        }
        if let Some(handshakes) = self.handshakes_per_second {
            limits = limits.with_handshakes_per_second(handshakes.get());
        }
        match self.max_memory {
            MemoryLimit::Bytes(bytes) => limits.with_max_memory(bytes),
            MemoryLimit::Percent(percent) => limits.with_memory_share(percent),
            MemoryLimit::Off => limits.without_max_memory(),
        }
    }

    /// Returns the settings for [`Server::topics`].
    pub(crate) fn topics(&self) -> TopicConfig {
        let keyed = KeyedConfig::default()
            .with_max_total_bytes(self.max_keyed_memory)
            .with_max_client_bytes(self.max_keyed_memory_per_client);
        TopicConfig::default().with_max_history_bytes(self.max_history_memory).with_keyed(keyed)
    }
}

settings! {
    /// Graceful shutdown on SIGTERM or SIGINT. A second signal stops the server immediately.
    pub(crate) struct StopSettings in "stop", "Shutdown" {
        /// Time to keep accepting connections after `/readyz` starts to fail, so that load balancers can react: two of
        /// their check intervals.
        readiness_delay: DurationSetting { default: "0s" }

        /// Time over which the Close frames to all WebSockets are spread, so that clients do not reconnect elsewhere
        /// all at once. A thread closes at least 64 clients every 20 ms, so that few clients take less time.
        drain_window: DurationSetting { default: "5s" }

        /// Timeout of the clients' answers to Close during shutdown. Remaining connections are closed without an
        /// answer.
        grace: DurationSetting { default: "10s" }
    }
}

impl StopSettings {
    pub(crate) fn apply(&self, server: Server) -> Server {
        server.readiness_delay(self.readiness_delay).drain_window(self.drain_window).grace(self.grace)
    }
}

#[cfg(test)]
mod tests {
    use sinews_server::Router;

    use super::super::tests::settings;
    use super::*;

    #[test]
    fn settings_reach_the_server() {
        let file = "[limits]\nmax_connections = 5\nhandshakes_per_second = 6\nmessages_per_second = 7\n\
                    max_memory = \"8k\"\nwhen_full = \"reject\"\nmax_history_memory = \"9k\"\nmax_keyed_memory = \"7k\"\nmax_keyed_memory_per_client = \"3k\"\n[stop]\nreadiness_delay = \"9s\"\ndrain_window = \"10s\"";
        let settings =
            settings(&["--limits-max-connections-per-address", "4", "--stop-grace", "11s"], file).unwrap();
        let server =
            Server::new(Router::new()).limits(settings.limits.limits()).topics(settings.limits.topics());
        let server = format!("{:?}", settings.stop.apply(server));
        for part in [
            "max_connections: Some(5)",
            "max_connections_per_address: Some(4)",
            "handshakes_per_second: Some(6)",
            "max_memory: Bytes(8192)",
            "when_full: Reject",
            "max_history_bytes: 9216",
            "total_bytes: 7168",
            "client_bytes: 3072",
            "delay: 9s",
            "window: 10s",
            "grace: 11s",
        ] {
            assert!(server.contains(part), "{part} in {server}");
        }
        assert_eq!(settings.limits.messages_per_second, NonZeroU32::new(7));
    }

    /// The documented defaults must match the server's.
    #[test]
    fn defaults_match_the_server() {
        let settings = settings(&[], "").unwrap();
        let plain = || Server::new(Router::new());
        let set =
            settings.stop.apply(plain()).limits(settings.limits.limits()).topics(settings.limits.topics());
        assert_eq!(format!("{set:?}"), format!("{:?}", plain()));
    }
}
