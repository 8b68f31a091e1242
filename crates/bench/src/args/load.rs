//! Arguments of a load: amount, content, connections, mode and output.

use std::net::IpAddr;
use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use sinews_engine::BackendChoice;

use crate::payload::MessageSizes;
use crate::plan::LoadMode;

/// The names of the engine's backends, as the server has them.
pub(crate) fn backends() -> impl TypedValueParser<Value = BackendChoice> {
    PossibleValuesParser::new(["auto", "poll", "uring"]).try_map(|name| name.parse::<BackendChoice>())
}

/// Load parameters, shared with `compare`.
#[derive(Clone, Debug, Args)]
pub(crate) struct LoadArgs {
    #[command(flatten)]
    pub(crate) amount: AmountArgs,
    #[command(flatten)]
    pub(crate) content: ContentArgs,
    #[command(flatten)]
    pub(crate) connection: ConnectionArgs,
    #[command(flatten)]
    pub(crate) mode: ModeArgs,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Amount of load")]
pub(crate) struct AmountArgs {
    /// Connections, distributed over all threads
    #[arg(short, long, value_name = "N", default_value = "64")]
    pub(crate) connections: NonZeroUsize,

    /// Load generator threads, each with its own event loop
    #[arg(short, long, value_name = "N", default_value = "1")]
    pub(crate) threads: NonZeroUsize,

    /// Unanswered messages or requests per connection (for http:// the pipelining depth), or per WebSocket with --http2 and --http3. With --rate, further due
    /// messages are queued, and the queueing time counts as latency [default: 1; with --rate 1024]
    #[arg(short, long, value_name = "N")]
    pub(crate) in_flight: Option<NonZeroU32>,

    /// Send the next --in-flight messages of a connection together, when all of them are answered. In fan-out mode, a
    /// publisher sends the next burst when all subscribers have received the last. Without --burst, each answer
    /// triggers the next message
    #[arg(long, conflicts_with = "rate")]
    pub(crate) burst: bool,

    /// Measurement time, such as `10s` or `500ms`
    #[arg(short, long, value_name = "TIME", value_parser = time, default_value = "10s")]
    pub(crate) duration: Duration,

    /// Total number of messages or requests to send, instead of --duration
    #[arg(short = 'n', long, value_name = "N", conflicts_with = "duration")]
    pub(crate) count: Option<NonZeroU64>,

    /// Send at a fixed rate of messages per second over all connections, independent of the answers. Latency counts
    /// from the due time of each message, so that a stalled server cannot hide its delay. Without --rate, each answer
    /// triggers the next message
    #[arg(short, long, value_name = "N", value_parser = rate)]
    pub(crate) rate: Option<f64>,

    /// Time under load before the measurement starts
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "1s")]
    pub(crate) warm_up: Duration,

    /// Time over which connections are opened
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "0s")]
    pub(crate) ramp_up: Duration,

    /// Time after the last answers in which the connections stay open without traffic, before the server's memory is read
    /// (with --pid)
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "0s")]
    pub(crate) settle: Duration,

    /// Requests of a connection of HTTP/1.1, the last one with `Connection: close`; a new connection replaces it
    #[arg(long, value_name = "N")]
    pub(crate) requests_per_connection: Option<NonZeroU32>,

    /// Timeout of connecting, and of the last answers after the measurement
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "10s")]
    pub(crate) timeout: Duration,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Content")]
pub(crate) struct ContentArgs {
    /// Message size in bytes: a number (64, 16k, 1m), a range (10-200), or a mix with weights (64:90,16k:10)
    #[arg(short, long, value_name = "SIZES", default_value = "64")]
    pub(crate) size: MessageSizes,

    /// Send the lines of this file, one message per line, instead of generated messages
    #[arg(long, value_name = "FILE", conflicts_with = "size")]
    pub(crate) file: Option<PathBuf>,

    /// Send text messages (the default); --file must contain valid UTF-8
    #[arg(long, conflicts_with = "binary")]
    pub(crate) text: bool,

    /// Send binary messages
    #[arg(long)]
    pub(crate) binary: bool,

    /// Method of http:// requests. POST, PUT and PATCH send a message as the body
    #[arg(long, value_name = "METHOD", default_value = "GET")]
    pub(crate) method: String,

    /// Expected body of each http:// response: a text, `@FILE`, or `echo` for the request body. Without --expect,
    /// only status and framing are checked
    #[arg(long, value_name = "BODY")]
    pub(crate) expect: Option<String>,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Connections")]
pub(crate) struct ConnectionArgs {
    /// Offer compression (permessage-deflate)
    #[arg(long)]
    pub(crate) deflate: bool,

    /// Open WebSockets (RFC 8441) or send requests over HTTP/2: with wss:// and https:// by ALPN, with ws:// and http:// by prior
    /// knowledge. For https:// and http:// URLs, --in-flight sets the concurrent requests of a connection
    #[arg(long)]
    pub(crate) http2: bool,

    /// Open WebSockets (RFC 9220) or send requests over HTTP/3, on QUIC. The host of the URL must accept UDP on the port, and
    /// this program needs the Cargo feature http3.
    /// For https:// URLs, --in-flight sets the concurrent requests of a connection
    #[arg(long, conflicts_with_all = ["http2", "unix"])]
    pub(crate) http3: bool,

    /// Open sessions of WebTransport over HTTP/3 instead of WebSockets. Messages use the stream that the server opens in a
    /// session, in the format of `sinews serve`; in fan-out mode datagrams are received, too. Needs the Cargo feature http3
    #[arg(long, conflicts_with_all = ["http2", "unix", "http3_protocol", "deflate", "subprotocol"])]
    pub(crate) webtransport: bool,

    /// Value of `:protocol` with --http3, for servers that do not follow RFC 9220
    #[arg(long, value_name = "NAME", default_value = "websocket", requires = "http3", hide = true)]
    pub(crate) http3_protocol: String,

    /// WebSockets or sessions on each of the --connections, with --http2, --http3 or --webtransport. The server limits the streams of a connection
    #[arg(long, value_name = "N", default_value = "1")]
    pub(crate) sockets_per_connection: NonZeroUsize,

    /// Header of each request or handshake, such as `Authorization: Bearer 1234`; repeatable
    #[arg(short = 'H', long, value_name = "NAME: VALUE")]
    pub(crate) header: Vec<String>,

    /// Subprotocol to offer; repeatable
    #[arg(long, value_name = "NAME")]
    pub(crate) subprotocol: Vec<String>,

    /// Accept any server certificate
    #[arg(short = 'k', long, conflicts_with = "ca")]
    pub(crate) insecure: bool,

    /// CA certificates (PEM) to trust in addition to the system's; repeatable
    #[arg(long, value_name = "FILE")]
    pub(crate) ca: Vec<PathBuf>,

    /// Unix socket to connect to instead of the URL's host
    #[arg(long, value_name = "PATH")]
    pub(crate) unix: Option<PathBuf>,

    /// Source addresses of connections, used in rotation: one address has about 28,000 ports. Comma-separated, or a
    /// range of the last number, such as 127.0.0.1-20
    #[arg(long, value_name = "ADDRESSES", value_delimiter = ',', value_parser = sources)]
    pub(crate) source: Vec<Vec<IpAddr>>,

    /// Wait for answers without sleeping: otherwise the server spends CPU time on waking the load generator. Each
    /// thread keeps a processor busy
    #[arg(long)]
    pub(crate) busy_poll: bool,

    /// I/O backend: `uring` is io_uring, `poll` is epoll or kqueue, `auto` is the best available
    #[arg(long, value_parser = backends(), value_name = "NAME", default_value = "auto")]
    pub(crate) backend: BackendChoice,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Load modes other than echo")]
pub(crate) struct ModeArgs {
    /// Load mode. `echo`: messages or requests, each answered. `storm`: connections, each closed once open and
    /// replaced. `idle`: open connections without traffic, for --duration. `fan-out`: messages to topics
    #[arg(short, long, value_enum, value_name = "MODE", default_value = "echo")]
    pub(crate) mode: LoadMode,

    /// Number of --connections that publish in fan-out mode; the rest subscribe
    #[arg(long, value_name = "N", default_value = "1")]
    pub(crate) publishers: NonZeroUsize,

    /// URL that publishers connect to in fan-out mode, in place of <URL>: another node of the same cluster. It has the
    /// scheme of <URL>
    #[arg(long, value_name = "URL")]
    pub(crate) publish_url: Option<String>,

    /// Number of --connections that subscribe and do not read, in fan-out mode. Their deliveries do not count, and the server may
    /// disconnect them
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) stalled: usize,

    /// Number of topics in fan-out mode. Publishers and subscribers are assigned in rotation
    #[arg(long, value_name = "N", default_value = "1")]
    pub(crate) topics: NonZeroUsize,

    /// Message that each connection sends first in fan-out mode, for servers that require a login
    #[arg(long, value_name = "MESSAGE", requires = "publish")]
    pub(crate) login: Option<String>,

    /// Message that each subscriber sends after connecting; `{topic}` stands for its topic. A template without `{topic}`
    /// subscribes to a pattern that matches all topics. Without --subscribe and --publish, connections use
    /// /topics/{topic}, which broadcasts each message
    #[arg(long, value_name = "TEMPLATE", requires = "publish")]
    pub(crate) subscribe: Option<String>,

    /// Message that a publisher sends, with `{topic}` and `{payload}`
    #[arg(long, value_name = "TEMPLATE")]
    pub(crate) publish: Option<String>,
}

#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct ReportArgs {
    /// Process ID of the server, to measure its CPU time and memory; repeatable
    #[arg(long, value_name = "PID")]
    pub(crate) pid: Vec<u32>,

    /// Include child processes of each --pid
    #[arg(long, requires = "pid")]
    pub(crate) children: bool,

    /// Count the server's system calls in an extra second after the measurement; needs strace and --pid
    #[arg(long, requires = "pid")]
    pub(crate) trace: bool,

    /// Print the result as JSON
    #[arg(long, conflicts_with = "csv")]
    pub(crate) json: bool,

    /// Print the result as CSV: a line of names and a line of values
    #[arg(long)]
    pub(crate) csv: bool,

    /// Write an HTML report with charts
    #[arg(long, value_name = "FILE.html")]
    pub(crate) report: Option<PathBuf>,

    /// Show no progress
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

/// Parses a time with a unit: `500ms`, `10s`, `2m`.
pub(crate) fn time(text: &str) -> Result<Duration, String> {
    let at = text.find(|char: char| !(char.is_ascii_digit() || char == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(at);
    let factor = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" | "" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err("expected a time such as 500ms, 10s or 2m".to_owned()),
    };
    let number: f64 = number.parse().map_err(|_| "expected a time such as 500ms, 10s or 2m".to_owned())?;
    Duration::try_from_secs_f64(number * factor).map_err(|error| error.to_string())
}

pub(crate) fn rate(text: &str) -> Result<f64, String> {
    let (number, factor) = match text.strip_suffix(['k', 'K']) {
        Some(number) => (number, 1e3),
        None => (text, 1.0),
    };
    match number.parse::<f64>() {
        Ok(rate) if rate > 0.0 && rate.is_finite() => Ok(rate * factor),
        _ => Err("expected a number of messages per second, above 0".to_owned()),
    }
}

/// Parses an address or a range such as `127.0.0.1-20`.
pub(crate) fn sources(text: &str) -> Result<Vec<IpAddr>, String> {
    let wrong = || format!("{text}: expected an address, or a range such as 127.0.0.1-20");
    let Some((first, last)) = text.split_once('-') else {
        return Ok(vec![text.parse().map_err(|_| wrong())?]);
    };
    let first: std::net::Ipv4Addr = first.parse().map_err(|_| wrong())?;
    let last: u8 = last.parse().map_err(|_| wrong())?;
    let [a, b, c, from] = first.octets();
    if last < from {
        return Err(wrong());
    }
    Ok((from..=last).map(|d| IpAddr::from([a, b, c, d])).collect())
}
