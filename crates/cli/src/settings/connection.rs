//! Limits and timeouts of each connection.

use std::num::NonZeroU32;
use std::time::Duration;

use clap::ValueEnum;
use sinews_server::{Config, HttpConfig, Overflow};

use crate::config::schema::settings;
use crate::config::units::{ByteSize, DurationOrOff, PositiveDuration};
use crate::config::value::choice;

settings! {
    /// Limits and timeouts of plain HTTP.
    pub(crate) struct HttpSettings in "http", "HTTP" {
        /// Maximum size of a request body, in bytes.
        max_body: Option<ByteSize> { unset: "that of {max_message}", example: "1m" }

        /// Timeout of a request's head, including the handshakes of WebSocket and TLS.
        head_timeout: PositiveDuration { default: "10s" }

        /// Timeout of an idle HTTP connection after a response: choose a value above the proxy's.
        keep_alive_timeout: PositiveDuration { default: "75s" }

        /// Minimum average upload rate of a request body, in bytes per second, after its first 20 seconds; 0 for no
        /// limit.
        min_upload_rate: u64 { default: "500", placeholder: "BYTES", expected: "a whole number of bytes" }

        /// Timeout of an answer that waits for a disk or a broker, such as the acknowledgement of a record. On timeout
        /// the client gets 503; the record may have been stored.
        handler_timeout: PositiveDuration { default: "30s" }

        /// Serve HTTP/2 too: by ALPN over TLS, and in clear text to clients that begin with it. Requests, WebSockets (RFC
        /// 8441) and Server-Sent Events share its connections.
        http2: bool { default: "false" }

        /// Maximum of concurrent streams on a connection of HTTP/2, each a request, an event stream or a WebSocket; further
        /// ones are refused.
        http2_max_streams: NonZeroU32 { default: "128" }

        /// Time without data from the client after which a connection of HTTP/2 with open streams is pinged; `off` sends no
        /// pings. The pongs of its WebSockets count as data.
        http2_ping_interval: DurationOrOff { default: "30s" }

        /// Timeout of the answer to such a ping: any received byte counts. It begins when output ahead of the ping has left, or
        /// makes no progress. The connection then ends with all its streams.
        http2_ping_timeout: PositiveDuration { default: "20s" }

        /// Serve HTTP/3 too, experimentally: over QUIC on the UDP port with the number of each TCP port, which answers of
        /// earlier versions announce. Requests, WebSockets (RFC 9220), Server-Sent Events and sessions of WebTransport share its
        /// connections. Requires {tls.certificate}; listen addresses that expect a PROXY header have no HTTP/3.
        http3: bool { default: "false" }
    }
}

impl HttpSettings {
    /// Returns the settings for `Server::http`.
    pub(crate) fn config(&self, max_message: usize) -> HttpConfig {
        HttpConfig::default()
            .with_max_body(self.max_body.unwrap_or(max_message))
            .with_head_timeout(self.head_timeout)
            .with_keep_alive_timeout(self.keep_alive_timeout)
            .with_min_upload_rate(self.min_upload_rate, UPLOAD_GRACE)
            .with_handler_timeout(self.handler_timeout)
            .with_http2(self.http2)
            .with_http3(self.http3)
            .with_http2_max_streams(self.http2_max_streams.get())
            .with_http2_ping_interval(self.http2_ping_interval)
            .with_http2_ping_timeout(self.http2_ping_timeout)
    }
}

/// Time after which the upload rate is checked: the server's default.
const UPLOAD_GRACE: Duration = Duration::from_secs(20);

settings! {
    /// Limits and timeouts of WebSockets; max_message and deflate are top-level keys.
    pub(crate) struct WebSocketSettings in "websocket", "WebSocket" {
        /// Time without data from the client before a ping is sent; `off` sends no pings.
        ping_interval: DurationOrOff { default: "25s" }

        /// Timeout of the answer to a ping: any received byte counts. The connection closes with 1011.
        pong_timeout: PositiveDuration { default: "20s" }

        /// Timeout without data in either direction except pings; `off` for no timeout. The connection closes with
        /// 1001.
        idle_timeout: DurationOrOff { default: "120s" }

        /// High-water mark of a client's outbound queue in bytes, above which reads from the client are paused.
        high_water: ByteSize { default: "64k" }

        /// Maximum size of a client's outbound queue in bytes; {websocket.overflow} selects the action above it.
        max_outbound: ByteSize { default: "1m" }

        /// Action when a client's outbound queue exceeds {websocket.max_outbound}: `close` closes the connection with
        /// 1008, so that no message is lost unnoticed; `drop-newest` and `drop-oldest` drop publications to it.
        overflow: SlowClientAction { default: "close", placeholder: "ACTION" }

        /// Rejection of a browser's WebSocket because of its origin, token or path: `close` accepts it and closes it
        /// with 4400, 4401, 4403 or 4404 and the reason; `status` rejects the handshake with 400, 401, 403 or 404,
        /// which scripts cannot read. Clients that send neither an Origin header nor a token among their subprotocols
        /// always get the status.
        reject_browsers: RejectBrowsers { default: "close", placeholder: "METHOD", reloads: true }
    }
}

/// Rejection of a browser's WebSocket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RejectBrowsers {
    Close,
    Status,
}

/// Action on a client whose outbound queue is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SlowClientAction {
    Close,
    DropNewest,
    DropOldest,
}

choice!(RejectBrowsers, SlowClientAction);

impl WebSocketSettings {
    /// Returns the settings for every route.
    pub(crate) fn config(&self) -> Config {
        Config::default()
            .with_ping_interval(self.ping_interval)
            .with_pong_timeout(self.pong_timeout)
            .with_idle_timeout(self.idle_timeout)
            .with_high_water(self.high_water)
            .with_max_outbound(self.max_outbound)
            .with_overflow(match self.overflow {
                SlowClientAction::Close => Overflow::Close,
                SlowClientAction::DropNewest => Overflow::DropNewest,
                SlowClientAction::DropOldest => Overflow::DropOldest,
            })
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
        let file = "[http]\nmax_body = 1\nhttp2 = true\nhttp3 = true\nhttp2_max_streams = 200\nhttp2_ping_interval = \"off\"\nhead_timeout = \"2s\"\nkeep_alive_timeout = \"3s\"\n[websocket]\n\
                    ping_interval = \"off\"\npong_timeout = \"5s\"\nhigh_water = \"6k\"\noverflow = \"drop-oldest\"";
        let flags = ["--http-min-upload-rate", "0", "--websocket-idle-timeout", "off"];
        let flags = [
            &flags[..],
            &[
                "--websocket-max-outbound",
                "7k",
                "--http-handler-timeout",
                "8s",
                "--http-http2-ping-timeout",
                "4s",
            ],
        ]
        .concat();
        let without_tls = settings(&flags, file).unwrap_err();
        assert_eq!(without_tls, "sinews.toml:4: http.http3 requires tls.certificate: QUIC includes TLS");
        let file = format!("{file}\n[tls]\ncertificate = \"a\"\nkey = \"b\"");
        let settings = settings(&flags, &file).unwrap();
        let http = HttpConfig::default()
            .with_max_body(1)
            .with_http2(true)
            .with_http3(true)
            .with_http2_max_streams(200)
            .with_http2_ping_interval(None)
            .with_http2_ping_timeout(Duration::from_secs(4))
            .with_head_timeout(Duration::from_secs(2))
            .with_keep_alive_timeout(Duration::from_secs(3))
            .with_min_upload_rate(0, UPLOAD_GRACE)
            .with_handler_timeout(Duration::from_secs(8));
        assert_eq!(format!("{:?}", settings.http.config(9)), format!("{http:?}"));
        let config = settings.websocket.config();
        assert_eq!((config.ping_interval(), config.idle_timeout()), (None, None));
        assert_eq!((config.pong_timeout(), config.high_water()), (Duration::from_secs(5), 6 << 10));
        assert_eq!((config.max_outbound(), config.overflow()), (7 << 10, Overflow::DropOldest));
    }
}
