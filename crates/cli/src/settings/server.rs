//! Limits of the whole server, and its shutdown.

use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

use sinews_server::{Limits, Server, TopicConfig, WebSocketRoute, WhenFull};

use super::Pick;
use crate::args::{Full, LimitArgs, StopArgs};
use crate::config::units::{Bytes, MemoryLimit, Wait};
use crate::config::{LimitValues, StopValues};

/// Limits of the whole server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LimitSettings {
    pub(crate) max_connections: Option<NonZeroUsize>,
    pub(crate) max_connections_per_address: Option<NonZeroUsize>,
    pub(crate) handshakes_per_second: Option<NonZeroU32>,
    pub(crate) messages_per_second: Option<NonZeroU32>,
    pub(crate) max_memory: MemoryLimit,
    pub(crate) when_full: Full,
    pub(crate) max_history_memory: usize,
}

impl LimitSettings {
    pub(super) fn merge(args: &LimitArgs, file: &LimitValues, pick: &mut Pick<'_>) -> Self {
        Self {
            max_connections: pick.one(
                "limits.max_connections",
                &args.limits_max_connections,
                file.max_connections,
            ),
            max_connections_per_address: pick.one(
                "limits.max_connections_per_address",
                &args.limits_max_connections_per_address,
                file.max_connections_per_address,
            ),
            handshakes_per_second: pick.one(
                "limits.handshakes_per_second",
                &args.limits_handshakes_per_second,
                file.handshakes_per_second,
            ),
            messages_per_second: pick.one(
                "limits.messages_per_second",
                &args.limits_messages_per_second,
                file.messages_per_second,
            ),
            max_memory: pick
                .one("limits.max_memory", &args.limits_max_memory, file.max_memory)
                .unwrap_or(MemoryLimit::Percent(50)),
            when_full: pick
                .one("limits.when_full", &args.limits_when_full, file.when_full)
                .unwrap_or(Full::Close),
            max_history_memory: pick
                .one("limits.max_history_memory", &args.limits_max_history_memory, file.max_history_memory)
                .map_or(64 << 20, |Bytes(bytes)| bytes),
        }
    }

    /// Returns the settings for [`Server::limits`].
    pub(crate) fn limits(&self) -> Limits {
        let when_full = match self.when_full {
            Full::Refuse => WhenFull::Refuse,
            Full::Close => WhenFull::Close,
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
        TopicConfig::default().with_max_history_bytes(self.max_history_memory)
    }

    /// Limits the message rate of each connection of the route. After an idle second, the burst equals the rate.
    pub(crate) fn limit_messages(&self, route: WebSocketRoute) -> WebSocketRoute {
        match self.messages_per_second {
            Some(messages) => route.with_message_rate(messages.get(), messages.get()),
            None => route,
        }
    }

    pub(super) fn differs(&self, new: &Self) -> [(&'static str, bool); 7] {
        [
            ("limits.max_connections", self.max_connections != new.max_connections),
            (
                "limits.max_connections_per_address",
                self.max_connections_per_address != new.max_connections_per_address,
            ),
            ("limits.handshakes_per_second", self.handshakes_per_second != new.handshakes_per_second),
            ("limits.messages_per_second", self.messages_per_second != new.messages_per_second),
            ("limits.max_memory", self.max_memory != new.max_memory),
            ("limits.when_full", self.when_full != new.when_full),
            ("limits.max_history_memory", self.max_history_memory != new.max_history_memory),
        ]
    }
}

/// Shutdown settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StopSettings {
    pub(crate) delay: Duration,
    pub(crate) drain_window: Duration,
    pub(crate) grace: Duration,
}

impl StopSettings {
    pub(super) fn merge(args: &StopArgs, file: &StopValues, pick: &mut Pick<'_>) -> Self {
        let mut wait = |key, flag, value, default| {
            pick.one(key, flag, value).map_or_else(|| Duration::from_secs(default), |Wait(wait)| wait)
        };
        Self {
            delay: wait("stop.delay", &args.stop_delay, file.delay, 0),
            drain_window: wait("stop.drain_window", &args.stop_drain_window, file.drain_window, 5),
            grace: wait("stop.grace", &args.stop_grace, file.grace, 10),
        }
    }

    pub(crate) fn apply(&self, server: Server) -> Server {
        server.stop_delay(self.delay).drain_window(self.drain_window).grace(self.grace)
    }

    pub(super) fn differs(&self, new: &Self) -> [(&'static str, bool); 3] {
        [
            ("stop.delay", self.delay != new.delay),
            ("stop.drain_window", self.drain_window != new.drain_window),
            ("stop.grace", self.grace != new.grace),
        ]
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
                    max_memory = \"8k\"\nwhen_full = \"refuse\"\nmax_history_memory = \"9k\"\n[stop]\ndelay = \"9s\"\ndrain_window = \"10s\"";
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
            "when_full: Refuse",
            "max_history_bytes: 9216",
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
