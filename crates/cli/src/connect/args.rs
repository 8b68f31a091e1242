//! Command-line arguments for `sinews connect`.

mod values;

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use sinews_bench::url::with_scheme;

pub(crate) use self::values::{BinaryFormat, ConnectTo, Delimiter, HeaderArg, ResolveArg, Speed};
use crate::config::network::tcp;
use crate::config::units::{ByteSize, DurationOrOff, DurationSetting, PositiveDuration};

/// Talk to a WebSocket server, or act as one: in a terminal, in a pipe, or frame by frame.
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct ConnectArgs {
    /// URL of the server: ws:// or wss://, or the equivalent http:// and https://. A URL without a scheme means ws://
    #[arg(value_name = "URL", value_parser = url, required_unless_present = "listen", conflicts_with = "listen")]
    pub(crate) url: Option<String>,

    /// Address to listen on as a server, with a console for its clients: HOST:PORT, PORT or :PORT
    #[arg(long, value_name = "ADDR", value_parser = tcp)]
    pub(crate) listen: Option<SocketAddr>,

    #[command(flatten)]
    pub(crate) request: RequestArgs,
    #[command(flatten)]
    pub(crate) dial: DialArgs,
    #[command(flatten)]
    pub(crate) tls: ConnectTlsArgs,
    #[command(flatten)]
    pub(crate) limits: ConnectLimitArgs,
    #[command(flatten)]
    pub(crate) input: InputArgs,
    #[command(flatten)]
    pub(crate) exit: ExitArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    #[command(flatten)]
    pub(crate) session: SessionArgs,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    #[command(flatten)]
    pub(crate) inspect: InspectArgs,
}

/// Never fails: an invalid URL is reported on connecting.
fn url(text: &str) -> Result<String, std::convert::Infallible> {
    Ok(with_scheme(text).into_owned())
}

impl ConnectArgs {
    /// Returns a conflict between options that clap's rules cannot express.
    pub(crate) fn misuse(&self) -> Option<&'static str> {
        let (inspect, probe) = (self.inspect.inspect, !self.inspect.probe.is_empty());
        let is_bytes = self.input.binary || self.input.length_prefixed;
        let wrong = [
            (inspect && self.listen.is_some(), "--inspect examines a server, and --listen is one"),
            (
                inspect && self.session.record.is_some(),
                "--inspect keeps the beginning of each payload, and --record needs all of it: record without \
                 --inspect, and inspect the recording with --replay FILE --inspect",
            ),
            (
                inspect && self.output.jsonl,
                "--inspect shows bytes and frames, and --jsonl has no fields for them",
            ),
            (
                inspect && is_bytes,
                "--inspect does not write raw messages: leave --binary and \
              --length-prefixed out",
            ),
            (probe && self.listen.is_some(), "--probe tests a server, and --listen is one"),
            (probe && self.session.replay.is_some(), "--probe sends its own faults, and no recording"),
            (
                probe && (self.session.record.is_some() || self.output.jsonl),
                "--probe opens a connection per fault, and a recording has one connection: --verbose shows the wire",
            ),
        ];
        wrong.into_iter().find_map(|(is_wrong, why)| is_wrong.then_some(why))
    }
}

const EXIT_CODES: &str = "\
Exit codes:
  0  closed by the peer with 1000, 1001 or no code, or closed by this side
  1  connecting failed, or an error of input, output or a file
  2  invalid command line
  3  the server rejected the handshake: a status other than 101 (200 with --http2 and --http3), or an invalid response with it
  4  closed by the peer with another code, or the transport ended without a Close
  5  the peer violated the protocol or a limit; with --inspect and --probe, a violation was found
  6  a timeout expired: --connect-timeout, --timeout, --idle-timeout, --pong-timeout, or --count not reached
  7  --replay --check: answers differ from the recording";

#[derive(Debug, Args)]
#[command(next_help_heading = "Request")]
pub(crate) struct RequestArgs {
    /// Header to add, `Name: value`; repeatable. With --inspect, a header of the handshake is replaced, or omitted by
    /// `Name:`
    #[arg(short = 'H', long, value_name = "HEADER")]
    pub(crate) header: Vec<HeaderArg>,

    /// Subprotocol to offer, in order of preference; repeatable. With --listen: subprotocol to accept
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) subprotocol: Vec<String>,

    /// Origin of the request (`Origin` header), such as `https://example.com`
    #[arg(long, value_name = "ORIGIN", conflicts_with = "listen")]
    pub(crate) origin: Option<String>,

    /// Bearer token, sent as `Authorization: Bearer TOKEN`
    #[arg(long, value_name = "TOKEN", conflicts_with_all = ["user", "listen"])]
    pub(crate) bearer: Option<String>,

    /// Basic authentication, equivalent to name and password in the URL
    #[arg(short, long, value_name = "NAME:PASSWORD", conflicts_with = "listen")]
    pub(crate) user: Option<String>,

    /// Offer compression (permessage-deflate). With --listen: accept compression
    #[arg(long)]
    pub(crate) deflate: bool,

    /// Maximum number of redirects to follow
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with_all = ["listen", "unix", "inspect"])]
    pub(crate) redirects: u8,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Connecting")]
pub(crate) struct DialArgs {
    /// Use HTTP/2 (RFC 8441): by ALPN over TLS, without negotiation in clear text. Fails if the server offers no
    /// WebSockets over HTTP/2
    #[arg(long, conflicts_with_all = ["listen", "inspect", "probe"])]
    pub(crate) http2: bool,

    /// Use HTTP/3 (RFC 9220), on QUIC: the server must accept UDP on the port of the URL. Fails if it offers no WebSockets
    /// over HTTP/3. Proxies are not used. Needs the Cargo feature http3
    #[arg(long, conflicts_with_all = ["listen", "inspect", "probe", "http2", "unix", "proxy", "connect_to", "redirects"])]
    pub(crate) http3: bool,

    /// Proxy URL: http://, socks5:// or socks5h:// with host and port [default: from https_proxy, http_proxy,
    /// all_proxy and no_proxy]
    #[arg(long, value_name = "URL", conflicts_with_all = ["listen", "unix"])]
    pub(crate) proxy: Option<String>,

    /// Connect without a proxy, regardless of environment variables
    #[arg(long, conflicts_with = "proxy")]
    pub(crate) no_proxy: bool,

    /// Unix socket to connect to; the URL only sets the request
    #[arg(long, value_name = "PATH", conflicts_with_all = ["listen", "resolve", "connect_to"])]
    pub(crate) unix: Option<PathBuf>,

    /// Address to use for a host name and port; repeatable
    #[arg(long, value_name = "HOST:PORT:ADDR", conflicts_with = "listen")]
    pub(crate) resolve: Vec<ResolveArg>,

    /// Connect to another host and port; repeatable. Empty parts match any value, or keep the original
    #[arg(long, value_name = "HOST:PORT:HOST:PORT", conflicts_with = "listen")]
    pub(crate) connect_to: Vec<ConnectTo>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "TLS")]
pub(crate) struct ConnectTlsArgs {
    /// Accept any certificate, with a warning: an attacker on the network can read and change all data
    #[arg(short = 'k', long, conflicts_with_all = ["ca", "listen"])]
    pub(crate) insecure: bool,

    /// CA certificates (PEM) to trust in addition to the system's; repeatable
    #[arg(long, value_name = "FILE", conflicts_with = "listen")]
    pub(crate) ca: Vec<PathBuf>,

    /// Certificate and its chain (PEM) to present. With --listen: enables TLS
    #[arg(long, value_name = "FILE", requires = "key")]
    pub(crate) cert: Option<PathBuf>,

    /// Private key of --cert (PEM)
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub(crate) key: Option<PathBuf>,

    /// Server name (SNI) to request and verify, instead of the URL's host
    #[arg(long, value_name = "NAME", conflicts_with = "listen")]
    pub(crate) server_name: Option<String>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Limits and timeouts")]
pub(crate) struct ConnectLimitArgs {
    /// Maximum message size in bytes, received or piped in; `k`, `m` and `g` mean KiB, MiB and GiB
    #[arg(long, value_name = "BYTES", default_value = "16m")]
    pub(crate) max_message: ByteSize,

    /// Timeout of connecting, including the handshake
    #[arg(long, value_name = "TIME", default_value = "20s")]
    pub(crate) connect_timeout: PositiveDuration,

    /// Idle time before a ping is sent, or `off`
    #[arg(long, value_name = "TIME", default_value = "25s")]
    pub(crate) ping_interval: DurationOrOff,

    /// Timeout of the answer to a ping
    #[arg(long, value_name = "TIME", default_value = "20s")]
    pub(crate) pong_timeout: PositiveDuration,

    /// Timeout without any received data, pongs included, or `off`
    #[arg(long, value_name = "TIME", default_value = "off")]
    pub(crate) idle_timeout: DurationOrOff,

    /// Timeout of the peer's answer to Close
    #[arg(long, value_name = "TIME", default_value = "5s")]
    pub(crate) close_timeout: PositiveDuration,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Input (not from a terminal: a line is a message)")]
pub(crate) struct InputArgs {
    /// Interpret lines as console commands (`/ping`, `/hex 00 ff`, `/close 1000 bye`; `//` sends a slash)
    #[arg(long)]
    pub(crate) commands: bool,

    /// Send binary messages, and write received messages as raw bytes
    #[arg(short, long, conflicts_with = "commands")]
    pub(crate) binary: bool,

    /// Delimiter of messages, in input and output: characters, `\n`, `\r`, `\t`, `\0` or `\xff` [default: \n]
    #[arg(long, value_name = "BYTES", conflicts_with_all = ["commands", "length_prefixed"])]
    pub(crate) delimiter: Option<Delimiter>,

    /// Prefix each message, in input and output, with its length: 4 bytes, big-endian
    #[arg(long, conflicts_with = "commands")]
    pub(crate) length_prefixed: bool,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Ending (input not from a terminal)")]
pub(crate) struct ExitArgs {
    /// Close after this time without a message once the input has ended [default: 1s, or as soon as the number of
    /// received messages equals the number of sent messages]
    #[arg(long, value_name = "TIME")]
    pub(crate) wait: Option<DurationSetting>,

    /// Close after this number of received messages, and fail if fewer arrive
    #[arg(long, value_name = "N")]
    pub(crate) count: Option<u64>,

    /// Maximum time of the whole run, after which it closes and fails
    #[arg(long, value_name = "TIME")]
    pub(crate) timeout: Option<PositiveDuration>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct OutputArgs {
    /// Format of binary messages [default: dump in a terminal, raw in a pipe]
    #[arg(long, value_enum, value_name = "FORM", conflicts_with = "jsonl")]
    pub(crate) show: Option<BinaryFormat>,

    /// Print each event as a JSON object per line, with times
    #[arg(long, conflicts_with_all = ["binary", "delimiter", "length_prefixed"])]
    pub(crate) jsonl: bool,

    /// Report events other than messages on standard error: connection, pings, end
    #[arg(short, long)]
    pub(crate) verbose: bool,

    /// History file of the console, or `none` [default: ~/.local/state/sinews/connect-history]
    #[arg(long, value_name = "FILE")]
    pub(crate) history: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Record and replay")]
pub(crate) struct SessionArgs {
    /// Write all events to a file, in the format of --jsonl
    #[arg(long, value_name = "FILE")]
    pub(crate) record: Option<PathBuf>,

    /// Replay the messages that a recording sent, at their recorded times, instead of input
    #[arg(long, value_name = "FILE", conflicts_with = "listen")]
    pub(crate) replay: Option<PathBuf>,

    /// Speed of --replay: `2x`, `0.5x`, or `max`
    #[arg(long, value_name = "SPEED", default_value = "1x", requires = "replay")]
    pub(crate) speed: Speed,

    /// Compare answers with the recording, and wait for each answer before the message that followed it
    #[arg(long, requires = "replay", conflicts_with_all = ["count", "inspect"])]
    pub(crate) check: bool,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Server")]
pub(crate) struct ServerArgs {
    /// Maximum number of concurrent connections; further connections are rejected with 503
    #[arg(long, value_name = "N", default_value_t = 64, requires = "listen")]
    pub(crate) max_clients: u32,

    /// Serve one client, and exit when it disconnects
    #[arg(long, requires = "listen")]
    pub(crate) once: bool,

    /// Echo each message
    #[arg(long, requires = "listen")]
    pub(crate) echo: bool,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Wire inspection")]
pub(crate) struct InspectArgs {
    /// Show both heads and each frame as bytes, in both directions, and name every violation with its section (RFC
    /// 6455, RFC 7692). Enables deliberately invalid commands: `/raw 81 05 …`, `/frame`
    #[arg(long)]
    pub(crate) inspect: bool,

    /// Send faults of clients, one connection per fault, and check the server's reactions; all faults, or a
    /// comma-separated list (`--probe=list` prints the names)
    #[arg(long, value_name = "NAMES", num_args = 0..=1, require_equals = true, default_missing_value = "all",
          value_delimiter = ',')]
    pub(crate) probe: Vec<String>,

    /// Bytes of each payload that --inspect shows
    #[arg(long, value_name = "BYTES", default_value_t = 64)]
    pub(crate) excerpt: usize,

    /// Timeout of the server's reaction to a fault of --probe
    #[arg(long, value_name = "TIME", default_value = "2s")]
    pub(crate) probe_wait: PositiveDuration,
}
