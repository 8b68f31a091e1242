//! Limits and timeouts for each connection.

use std::num::{NonZeroU16, NonZeroU32, NonZeroUsize};
use std::time::Duration;

use clap::ValueEnum;
use sinews_server::{Config, Http3Limits, HttpConfig, Overflow};

use crate::config::schema::settings;
use crate::config::units::{ByteSize, DurationOrOff, PositiveDuration};
use crate::config::value::{Count, choice};

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
        response_timeout: PositiveDuration { default: "30s" }

        /// Maximum bytes of answers that a connection of HTTP/2 or HTTP/3 has queued for a client that does not take them. Above it,
        /// further requests of the connection wait, in order. Opening handshakes of WebSockets do not wait.
        max_queued_answers: ByteSize { default: "1m" }

        /// Serve HTTP/2 over TLS too, to clients that choose it by ALPN, such as browsers. Requests, WebSockets (RFC 8441) and
        /// Server-Sent Events share its connections.
        http2: bool { default: "true" }

        /// Serve HTTP/2 without TLS too, to clients that begin with it, such as proxies that terminate TLS.
        http2_clear_text: bool { default: "false" }

        /// Maximum of concurrent streams on a connection of HTTP/2, each a request, a streaming response or a WebSocket; further
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
        /// connections. Requires {tls.certificate} and a program with the Cargo feature http3; listen addresses that expect a PROXY
        /// header have no HTTP/3.
        http3: bool { default: "false" }

        /// Port that answers of earlier versions announce for HTTP/3, where it is another for clients, such as that of a container's
        /// host.
        http3_announced_port: Option<Count<65535>> { unset: "that of the listen address", example: "443" }

        /// Maximum of concurrent streams on a connection of HTTP/3, each a request, a streaming response or a WebSocket; the client waits
        /// with further ones. QUIC takes memory for each permitted stream.
        http3_max_streams: NonZeroU32 { default: "100" }

        /// Maximum of concurrent sessions of WebTransport on a connection of HTTP/3; further ones are rejected. Browsers
        /// open a connection for each session; other clients may share one.
        http3_max_sessions: NonZeroU32 { default: "4" }

        /// Bytes that a client may send ahead on a stream of HTTP/3. A larger window permits faster uploads over long distances,
        /// and takes more memory for a stream whose handler is slow.
        http3_stream_window: ByteSize { default: "64k" }

        /// Bytes that a client may send ahead on all streams of a connection of HTTP/3: at least {http.http3_stream_window}. Streams
        /// whose handlers are slow take at most half of it; the window grows by the rest.
        http3_receive_window: ByteSize { default: "1m" }

        /// Bytes that a connection of HTTP/3 sends ahead of the client's acknowledgements, and keeps in memory until then; it
        /// begins with 128k. A larger window permits faster downloads over long distances.
        http3_send_window: ByteSize { default: "1m" }

        /// Time without a packet of the client after which a connection of HTTP/3 is lost. The client may ask for less.
        http3_idle_timeout: PositiveDuration { default: "60s" }

        /// Interval of pings on a quiet connection of HTTP/3, shorter than {http.http3_idle_timeout}: translators of addresses
        /// forget a UDP flow after 30 s. `off` sends no pings, so that a quiet WebSocket is lost after the timeout.
        http3_ping_interval: DurationOrOff { default: "20s" }

        /// Maximum of unfinished handshakes of HTTP/3 at each thread and listen address; further clients are refused.
        http3_max_handshakes: NonZeroUsize { default: "1000" }

        /// Maximum of unfinished handshakes of HTTP/3 of one client address (of IPv6: its /64) at each thread and listen address,
        /// once the client has proved its address.
        http3_max_handshakes_per_address: NonZeroUsize { default: "100" }

        /// Number of unfinished handshakes of HTTP/3 at a thread and listen address from which on clients must prove their address
        /// first (Retry), which takes a round trip; 0 for all clients. Forged addresses occupy no more handshakes.
        http3_retry_handshakes: u64 { default: "100", placeholder: "NUMBER", expected: "a whole number" }
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
            .with_response_timeout(self.response_timeout)
            .with_max_queued_answers(self.max_queued_answers)
            .with_http2(self.http2)
            .with_http2_clear_text(self.http2_clear_text)
            .with_http3(self.http3)
            .with_http3_limits(self.http3_limits())
            .with_http3_announced_port(self.http3_announced_port.and_then(port))
            .with_http2_max_streams(self.http2_max_streams.get())
            .with_http2_ping_interval(self.http2_ping_interval)
            .with_http2_ping_timeout(self.http2_ping_timeout)
    }
}

impl HttpSettings {
    /// Returns the HTTP/3 limits. Windows beyond 4 GiB become invalid.
    fn http3_limits(&self) -> Http3Limits {
        let window = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
        Http3Limits::default()
            .with_max_streams(self.http3_max_streams.get())
            .with_max_sessions(self.http3_max_sessions.get())
            .with_stream_window(window(self.http3_stream_window))
            .with_receive_window(window(self.http3_receive_window))
            .with_send_window(window(self.http3_send_window))
            .with_idle_timeout(self.http3_idle_timeout)
            .with_ping_interval(self.http3_ping_interval)
            .with_max_handshakes(self.http3_max_handshakes.get())
            .with_max_handshakes_per_address(self.http3_max_handshakes_per_address.get())
            .with_retry_handshakes(usize::try_from(self.http3_retry_handshakes).unwrap_or(usize::MAX))
    }

    /// # Errors
    /// Returns an error if HTTP/3 limits contradict each other, or exceed QUIC's limits. `name` returns a key's name.
    pub(crate) fn check_http3<'n>(&self, name: impl Fn(&'static str) -> &'n str) -> Result<(), String> {
        const MOST: usize = Http3Limits::WINDOW_MAX as usize;
        let (stream, receive) = ("http.http3_stream_window", "http.http3_receive_window");
        for (key, bytes) in [
            (stream, self.http3_stream_window),
            (receive, self.http3_receive_window),
            ("http.http3_send_window", self.http3_send_window),
        ] {
            if bytes > MOST {
                return Err(format!("{} {bytes} exceeds {MOST} bytes", name(key)));
            }
        }
        if self.http3_receive_window < self.http3_stream_window {
            let (stream, least, bytes) = (name(stream), self.http3_stream_window, self.http3_receive_window);
            return Err(format!("{} {bytes} is less than {stream} ({least})", name(receive)));
        }
        let (streams, most) = (self.http3_max_streams, Http3Limits::STREAMS_MAX);
        if streams.get() > most {
            return Err(format!("{} {streams} exceeds {most}", name("http.http3_max_streams")));
        }
        let (idle, ping) = (name("http.http3_idle_timeout"), name("http.http3_ping_interval"));
        match self.http3_ping_interval {
            Some(wait) if wait >= self.http3_idle_timeout => {
                Err(format!("{ping} {wait:?} is not shorter than {idle} ({:?})", self.http3_idle_timeout))
            }
            _ => Ok(()),
        }
    }
}

fn port(number: u32) -> Option<NonZeroU16> {
    u16::try_from(number).ok().and_then(NonZeroU16::new)
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
    fn contradicting_limits_of_http3_are_errors() {
        let base = "[tls]\ncertificate = \"a\"\nkey = \"b\"\n[http]\n";
        for (lines, error) in [
            ("http3_send_window = \"2g\"", "http.http3_send_window 2147483648 exceeds 1073741824 bytes"),
            (
                "http3_receive_window = 9",
                "http.http3_receive_window 9 is less than http.http3_stream_window (65536)",
            ),
            ("http3_max_streams = 65537", "http.http3_max_streams 65537 exceeds 65536"),
            (
                "http3_idle_timeout = \"20s\"",
                "http.http3_ping_interval 20s is not shorter than sinews.toml:6: http.http3_idle_timeout (20s)",
            ),
        ] {
            let file = |on| format!("{base}http3 = {on}\n{lines}\n");
            let found = settings(&[], &file(true)).unwrap_err();
            assert!(found.ends_with(error), "{found}");
            assert!(settings(&[], &file(false)).is_ok(), "{lines}");
        }
    }

    #[test]
    fn settings_reach_the_connection_config() {
        let file = "[http]\nmax_body = 1\nmax_queued_answers = \"9k\"\nhttp2 = false\nhttp2_clear_text = true\nhttp3 = true\nhttp2_max_streams = 200\n\
                    http3_max_streams = 201\nhttp3_max_sessions = 202\nhttp3_stream_window = \"2k\"\nhttp3_receive_window = \"3k\"\nhttp3_send_window = \"4k\"\n\
                    http3_idle_timeout = \"205s\"\nhttp3_ping_interval = \"106s\"\nhttp3_max_handshakes = 207\n\
                    http3_max_handshakes_per_address = 208\nhttp3_retry_handshakes = 0\nhttp3_announced_port = 443\nhttp2_ping_interval = \"off\"\nhead_timeout = \"2s\"\nkeep_alive_timeout = \"3s\"\n[websocket]\n\
                    ping_interval = \"off\"\npong_timeout = \"5s\"\nhigh_water = \"6k\"\noverflow = \"drop-oldest\"";
        let flags = ["--http-min-upload-rate", "0", "--websocket-idle-timeout", "off"];
        let flags = [
            &flags[..],
            &[
                "--websocket-max-outbound",
                "7k",
                "--http-response-timeout",
                "8s",
                "--http-http2-ping-timeout",
                "4s",
            ],
        ]
        .concat();
        let without_tls = settings(&flags, file).unwrap_err();
        assert_eq!(without_tls, "sinews.toml:6: http.http3 requires tls.certificate: QUIC includes TLS");
        let file = format!("{file}\n[tls]\ncertificate = \"a\"\nkey = \"b\"");
        let settings = settings(&flags, &file).unwrap();
        let not_built = settings.check_http3(false).unwrap_err();
        assert_eq!(
            not_built,
            "sinews.toml:6: http.http3: this program is built without HTTP/3 (the Cargo feature http3)"
        );
        let http = HttpConfig::default()
            .with_max_body(1)
            .with_max_queued_answers(9 << 10)
            .with_http2(false)
            .with_http2_clear_text(true)
            .with_http3(true)
            .with_http3_limits(
                Http3Limits::default()
                    .with_max_streams(201)
                    .with_max_sessions(202)
                    .with_stream_window(2 << 10)
                    .with_receive_window(3 << 10)
                    .with_send_window(4 << 10)
                    .with_idle_timeout(Duration::from_secs(205))
                    .with_ping_interval(Some(Duration::from_secs(106)))
                    .with_max_handshakes(207)
                    .with_max_handshakes_per_address(208)
                    .with_retry_handshakes(0),
            )
            .with_http3_announced_port(NonZeroU16::new(443))
            .with_http2_max_streams(200)
            .with_http2_ping_interval(None)
            .with_http2_ping_timeout(Duration::from_secs(4))
            .with_head_timeout(Duration::from_secs(2))
            .with_keep_alive_timeout(Duration::from_secs(3))
            .with_min_upload_rate(0, UPLOAD_GRACE)
            .with_response_timeout(Duration::from_secs(8));
        assert_eq!(format!("{:?}", settings.http.config(9)), format!("{http:?}"));
        let config = settings.websocket.config();
        assert_eq!((config.ping_interval(), config.idle_timeout()), (None, None));
        assert_eq!((config.pong_timeout(), config.high_water()), (Duration::from_secs(5), 6 << 10));
        assert_eq!((config.max_outbound(), config.overflow()), (7 << 10, Overflow::DropOldest));
    }
}
