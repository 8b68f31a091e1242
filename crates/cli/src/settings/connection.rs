//! Limits and timeouts of each connection.

use std::time::Duration;

use sinews_server::{Config, HttpConfig, Overflow};

use super::Pick;
use crate::args::{HttpArgs, Slow, WebSocketArgs};
use crate::config::units::{Bytes, SomeWait, WaitOrOff};
use crate::config::{HttpValues, WebSocketValues};

/// Settings of plain HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HttpSettings {
    /// Default: the maximum message size.
    max_body: Option<usize>,
    head_timeout: Duration,
    keep_alive_timeout: Duration,
    min_upload_rate: u64,
}

impl HttpSettings {
    pub(super) fn merge(args: &HttpArgs, file: &HttpValues, pick: &mut Pick<'_>) -> Self {
        let max_body = pick.one("http.max_body", &args.http_max_body, file.max_body);
        let mut wait = |key, flag, value, default| {
            pick.one(key, flag, value).map_or_else(|| Duration::from_secs(default), |SomeWait(wait)| wait)
        };
        Self {
            max_body: max_body.map(|Bytes(bytes)| bytes),
            head_timeout: wait("http.head_timeout", &args.http_head_timeout, file.head_timeout, 10),
            keep_alive_timeout: wait(
                "http.keep_alive_timeout",
                &args.http_keep_alive_timeout,
                file.keep_alive_timeout,
                75,
            ),
            min_upload_rate: pick
                .one("http.min_upload_rate", &args.http_min_upload_rate, file.min_upload_rate)
                .unwrap_or(500),
        }
    }

    /// Returns the settings for `Server::http`.
    pub(crate) fn config(&self, max_message: usize) -> HttpConfig {
        HttpConfig::default()
            .with_max_body(self.max_body.unwrap_or(max_message))
            .with_head_timeout(self.head_timeout)
            .with_keep_alive_timeout(self.keep_alive_timeout)
            .with_min_upload_rate(self.min_upload_rate, UPLOAD_GRACE)
    }

    pub(super) fn differs(&self, new: &Self) -> [(&'static str, bool); 4] {
        [
            ("http.max_body", self.max_body != new.max_body),
            ("http.head_timeout", self.head_timeout != new.head_timeout),
            ("http.keep_alive_timeout", self.keep_alive_timeout != new.keep_alive_timeout),
            ("http.min_upload_rate", self.min_upload_rate != new.min_upload_rate),
        ]
    }
}

/// Time after which the upload rate is checked: the server's default.
const UPLOAD_GRACE: Duration = Duration::from_secs(20);

/// Settings of WebSockets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WebSocketSettings {
    ping_interval: Option<Duration>,
    pong_timeout: Duration,
    idle_timeout: Option<Duration>,
    high_water: usize,
    max_outbound: usize,
    overflow: Slow,
}

impl WebSocketSettings {
    pub(super) fn merge(args: &WebSocketArgs, file: &WebSocketValues, pick: &mut Pick<'_>) -> Self {
        let mut wait = |key, flag, value, default| {
            let given = pick.one(key, flag, value);
            given.map_or_else(|| Some(Duration::from_secs(default)), |WaitOrOff(wait)| wait)
        };
        let ping_interval =
            wait("websocket.ping_interval", &args.websocket_ping_interval, file.ping_interval, 25);
        let idle_timeout =
            wait("websocket.idle_timeout", &args.websocket_idle_timeout, file.idle_timeout, 120);
        let mut bytes =
            |key, flag, value, default| pick.one(key, flag, value).map_or(default, |Bytes(bytes)| bytes);
        let high_water = bytes("websocket.high_water", &args.websocket_high_water, file.high_water, 64 << 10);
        let max_outbound =
            bytes("websocket.max_outbound", &args.websocket_max_outbound, file.max_outbound, 1 << 20);
        Self {
            ping_interval,
            pong_timeout: pick
                .one("websocket.pong_timeout", &args.websocket_pong_timeout, file.pong_timeout)
                .map_or(Duration::from_secs(20), |SomeWait(wait)| wait),
            idle_timeout,
            high_water,
            max_outbound,
            overflow: pick
                .one("websocket.overflow", &args.websocket_overflow, file.overflow)
                .unwrap_or(Slow::Close),
        }
    }

    /// Returns the settings for every route.
    pub(crate) fn config(&self) -> Config {
        Config::default()
            .with_ping_interval(self.ping_interval)
            .with_pong_timeout(self.pong_timeout)
            .with_idle_timeout(self.idle_timeout)
            .with_high_water(self.high_water)
            .with_max_outbound(self.max_outbound)
            .with_overflow(match self.overflow {
                Slow::Close => Overflow::Close,
                Slow::DropNewest => Overflow::DropNewest,
                Slow::DropOldest => Overflow::DropOldest,
            })
    }

    pub(super) fn differs(&self, new: &Self) -> [(&'static str, bool); 6] {
        [
            ("websocket.ping_interval", self.ping_interval != new.ping_interval),
            ("websocket.pong_timeout", self.pong_timeout != new.pong_timeout),
            ("websocket.idle_timeout", self.idle_timeout != new.idle_timeout),
            ("websocket.high_water", self.high_water != new.high_water),
            ("websocket.max_outbound", self.max_outbound != new.max_outbound),
            ("websocket.overflow", self.overflow != new.overflow),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::settings;
    use super::*;

    /// The documented defaults must match the server's.
    #[test]
    fn defaults_match_the_server() {
        let settings = settings(&[], "").unwrap();
        let http = HttpConfig::default().with_max_body(7);
        assert_eq!(format!("{:?}", settings.http.config(7)), format!("{http:?}"));
        assert_eq!(format!("{:?}", settings.websocket.config()), format!("{:?}", Config::default()));
    }

    #[test]
    fn settings_reach_the_connection_config() {
        let file = "[http]\nmax_body = 1\nhead_timeout = \"2s\"\nkeep_alive_timeout = \"3s\"\n[websocket]\n\
                    ping_interval = \"off\"\npong_timeout = \"5s\"\nhigh_water = \"6k\"\noverflow = \"drop-oldest\"";
        let flags = ["--http-min-upload-rate", "0", "--websocket-idle-timeout", "off"];
        let flags = [&flags[..], &["--websocket-max-outbound", "7k"]].concat();
        let settings = settings(&flags, file).unwrap();
        let http = HttpConfig::default()
            .with_max_body(1)
            .with_head_timeout(Duration::from_secs(2))
            .with_keep_alive_timeout(Duration::from_secs(3))
            .with_min_upload_rate(0, UPLOAD_GRACE);
        assert_eq!(format!("{:?}", settings.http.config(9)), format!("{http:?}"));
        let config = settings.websocket.config();
        assert_eq!((config.ping_interval(), config.idle_timeout()), (None, None));
        assert_eq!((config.pong_timeout(), config.high_water()), (Duration::from_secs(5), 6 << 10));
        assert_eq!((config.max_outbound(), config.overflow()), (7 << 10, Overflow::DropOldest));
    }
}
