//! The command line of `sinews connect`.

mod values;

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use sinews_bench::url::with_scheme;

pub(crate) use self::values::{ConnectTo, Delimiter, Header, Resolve, Show, Speed};
use crate::config::network::tcp;
use crate::config::units::{Bytes, SomeWait, Wait, WaitOrOff};

/// Talk to a WebSocket server, or be one: from a terminal, in a pipe, or looking at the wire.
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct ConnectArgs {
    /// URL of the server: ws:// or wss://, or http:// and https:// with the same meaning; ws:// if it has no scheme
    #[arg(value_name = "URL", value_parser = url, required_unless_present = "listen", conflicts_with = "listen")]
    pub(crate) url: Option<String>,

    /// Listen for one client on this address, with the same console: HOST:PORT, PORT or :PORT
    #[arg(long, value_name = "ADDR", value_parser = tcp)]
    pub(crate) listen: Option<SocketAddr>,

    #[command(flatten)]
    pub(crate) request: RequestArgs,
    #[command(flatten)]
    pub(crate) way: WayArgs,
    #[command(flatten)]
    pub(crate) tls: TlsArgs,
    #[command(flatten)]
    pub(crate) limits: LimitArgs,
    #[command(flatten)]
    pub(crate) input: InputArgs,
    #[command(flatten)]
    pub(crate) end: EndArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    #[command(flatten)]
    pub(crate) session: SessionArgs,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    #[command(flatten)]
    pub(crate) inspect: InspectArgs,
}

/// Never fails: a wrong URL is reported when it is dialed.
fn url(text: &str) -> Result<String, std::convert::Infallible> {
    Ok(with_scheme(text).into_owned())
}

impl ConnectArgs {
    /// Why the options do not go together, where that cannot be told by their names.
    pub(crate) fn misuse(&self) -> Option<&'static str> {
        let (inspect, probe) = (self.inspect.inspect, !self.inspect.probe.is_empty());
        let is_bytes = self.input.binary || self.input.length_prefixed;
        let wrong = [
            (inspect && self.listen.is_some(), "--inspect looks at what a server does, and --listen is one"),
            (
                inspect && self.session.record.is_some(),
                "--inspect keeps the beginning of each payload, and --record needs all of it: record without \
                 --inspect, and look at it with --replay FILE --inspect",
            ),
            (
                inspect && self.output.jsonl,
                "--inspect shows bytes and frames, and --jsonl has no fields for them",
            ),
            (
                inspect && is_bytes,
                "--inspect prints for a person, and no messages as they are: leave --binary and \
              --length-prefixed out",
            ),
            (
                probe && self.listen.is_some(),
                "--probe sees what a server does about faults, and --listen is one",
            ),
            (probe && self.session.replay.is_some(), "--probe sends what it knows, and no recording"),
            (
                probe && (self.session.record.is_some() || self.output.jsonl),
                "--probe has a connection for each fault, and a recording is of one: --verbose shows the wire",
            ),
        ];
        wrong.into_iter().find_map(|(is_wrong, why)| is_wrong.then_some(why))
    }
}

const EXIT_CODES: &str = "\
Exit codes:
  0  closed in order (1000, 1001 or without a code), or by this end
  1  no connection, or trouble with input, output or a file
  2  the command line is wrong
  3  the server refused: another status than 101, or a 101 that is no valid handshake
  4  closed by the peer with another code, or the transport ended without a Close
  5  the peer broke the protocol or a limit; with --inspect, at least one violation was named
  6  a wait was over: --connect-timeout, --timeout, --idle-timeout, --pong-timeout, or --count not reached
  7  --replay --check: other answers than recorded";

#[derive(Debug, Args)]
#[command(next_help_heading = "Request")]
pub(crate) struct RequestArgs {
    /// Add a header, `Name: value`; may be given several times. With --inspect one of the handshake's own is
    /// replaced, or left out by `Name:`
    #[arg(short = 'H', long, value_name = "HEADER")]
    pub(crate) header: Vec<Header>,

    /// Offer a subprotocol, the preferred one first; may be given several times. With --listen: speak it
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) subprotocol: Vec<String>,

    /// The page that asks (`Origin`), such as `https://example.com`
    #[arg(long, value_name = "ORIGIN", conflicts_with = "listen")]
    pub(crate) origin: Option<String>,

    /// `Authorization: Bearer TOKEN`
    #[arg(long, value_name = "TOKEN", conflicts_with_all = ["user", "listen"])]
    pub(crate) bearer: Option<String>,

    /// Basic authentication, as name and password in the URL
    #[arg(short, long, value_name = "NAME:PASSWORD", conflicts_with = "listen")]
    pub(crate) user: Option<String>,

    /// Offer compression (permessage-deflate). With --listen: accept it
    #[arg(long)]
    pub(crate) deflate: bool,

    /// Follow so many redirects
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with_all = ["listen", "unix", "inspect"])]
    pub(crate) redirects: u8,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "The way there")]
pub(crate) struct WayArgs {
    /// http://, socks5:// or socks5h:// with host and port [default: what https_proxy, http_proxy, all_proxy
    /// and no_proxy say]
    #[arg(long, value_name = "URL", conflicts_with_all = ["listen", "unix"])]
    pub(crate) proxy: Option<String>,

    /// No proxy, whatever the environment says
    #[arg(long, conflicts_with = "proxy")]
    pub(crate) no_proxy: bool,

    /// Connect to this Unix socket; the URL says only what to ask for
    #[arg(long, value_name = "PATH", conflicts_with_all = ["listen", "resolve", "connect_to"])]
    pub(crate) unix: Option<PathBuf>,

    /// Take this address for a name; may be given several times
    #[arg(long, value_name = "HOST:PORT:ADDR", conflicts_with = "listen")]
    pub(crate) resolve: Vec<Resolve>,

    /// Connect to another host and port; may be given several times. Empty parts stand for the same
    #[arg(long, value_name = "HOST:PORT:HOST:PORT", conflicts_with = "listen")]
    pub(crate) connect_to: Vec<ConnectTo>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "TLS")]
pub(crate) struct TlsArgs {
    /// Take any certificate, and say so: whoever is in between reads and changes everything
    #[arg(short = 'k', long, conflicts_with_all = ["ca", "listen"])]
    pub(crate) insecure: bool,

    /// Trust these certificates (PEM) besides the system's; may be given several times
    #[arg(long, value_name = "FILE", conflicts_with = "listen")]
    pub(crate) ca: Vec<PathBuf>,

    /// Show this certificate and its chain (PEM). With --listen: speak TLS
    #[arg(long, value_name = "FILE", requires = "key")]
    pub(crate) cert: Option<PathBuf>,

    /// The private key of --cert (PEM)
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub(crate) key: Option<PathBuf>,

    /// Ask for this name (SNI), and expect its certificate, instead of the URL's host
    #[arg(long, value_name = "NAME", conflicts_with = "listen")]
    pub(crate) server_name: Option<String>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Limits and waits")]
pub(crate) struct LimitArgs {
    /// Largest message, received or piped in; `k`, `m` and `g` mean KiB, MiB and GiB
    #[arg(long, value_name = "BYTES", default_value = "16m")]
    pub(crate) max_message: Bytes,

    /// How long everything up to the end of the handshake may take
    #[arg(long, value_name = "TIME", default_value = "20s")]
    pub(crate) connect_timeout: SomeWait,

    /// Ping after so long a silence, or `off`
    #[arg(long, value_name = "TIME", default_value = "25s")]
    pub(crate) ping_interval: WaitOrOff,

    /// How long a ping may stay unanswered
    #[arg(long, value_name = "TIME", default_value = "20s")]
    pub(crate) pong_timeout: SomeWait,

    /// How long nothing at all may come, pongs included, or `off`
    #[arg(long, value_name = "TIME", default_value = "off")]
    pub(crate) idle_timeout: WaitOrOff,

    /// How long the peer may take to answer our Close
    #[arg(long, value_name = "TIME", default_value = "5s")]
    pub(crate) close_timeout: SomeWait,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Input (not from a terminal: a line is a message)")]
pub(crate) struct InputArgs {
    /// Lines are commands as in the console (`/ping`, `/hex 00 ff`, `/close 1000 bye`; `//` sends a slash)
    #[arg(long)]
    pub(crate) commands: bool,

    /// Messages are binary, and what comes is written as bytes
    #[arg(short, long, conflicts_with = "commands")]
    pub(crate) binary: bool,

    /// What ends a message, in and out: characters, `\n`, `\r`, `\t`, `\0` or `\xff` [default: \n]
    #[arg(long, value_name = "BYTES", conflicts_with_all = ["commands", "length_prefixed"])]
    pub(crate) delimiter: Option<Delimiter>,

    /// Each message, in and out, stands behind its length: 4 bytes, big-endian
    #[arg(long, conflicts_with = "commands")]
    pub(crate) length_prefixed: bool,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "When to end (input that is no terminal)")]
pub(crate) struct EndArgs {
    /// Behind the input's end, close after so long without a message [default: 1s, and before that once there
    /// came as many messages as were sent]
    #[arg(long, value_name = "TIME")]
    pub(crate) wait: Option<Wait>,

    /// Close when so many messages have come, and fail if it were less
    #[arg(long, value_name = "N")]
    pub(crate) count: Option<u64>,

    /// Close and fail when all of it takes longer
    #[arg(long, value_name = "TIME")]
    pub(crate) timeout: Option<SomeWait>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct OutputArgs {
    /// How binary messages are shown [default: dump in a terminal, raw in a pipe]
    #[arg(long, value_enum, value_name = "FORM", conflicts_with = "jsonl")]
    pub(crate) show: Option<Show>,

    /// One JSON object a line for everything that happens, with times
    #[arg(long, conflicts_with_all = ["binary", "delimiter", "length_prefixed"])]
    pub(crate) jsonl: bool,

    /// Tell on standard error what happens beside messages: the connection, pings, the end
    #[arg(short, long)]
    pub(crate) verbose: bool,

    /// Where the console keeps its lines from run to run, or `none` [default:
    /// ~/.local/state/sinews/connect-history]
    #[arg(long, value_name = "FILE")]
    pub(crate) history: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Record and replay")]
pub(crate) struct SessionArgs {
    /// Write everything that happens to a file, as --jsonl does
    #[arg(long, value_name = "FILE")]
    pub(crate) record: Option<PathBuf>,

    /// Send what was sent in a recording, when it was sent, in place of input
    #[arg(long, value_name = "FILE", conflicts_with = "listen")]
    pub(crate) replay: Option<PathBuf>,

    /// How fast: `2x`, `0.5x`, or `max`
    #[arg(long, value_name = "SPEED", default_value = "1x", requires = "replay")]
    pub(crate) speed: Speed,

    /// Expect the answers of the recording, and each before what was sent behind it
    #[arg(long, requires = "replay", conflicts_with_all = ["count", "inspect"])]
    pub(crate) check: bool,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Being a server")]
pub(crate) struct ServerArgs {
    /// Connections at a time; others are told 503
    #[arg(long, value_name = "N", default_value_t = 64, requires = "listen")]
    pub(crate) max_clients: u32,

    /// Serve one client, and end with it
    #[arg(long, requires = "listen")]
    pub(crate) once: bool,

    /// Send each message back
    #[arg(long, requires = "listen")]
    pub(crate) echo: bool,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Looking at the wire")]
pub(crate) struct InspectArgs {
    /// Show both heads and each frame as the wire has them, in both directions, and name every violation by its
    /// section (RFC 6455, RFC 7692). Commands may then be wrong on purpose: `/raw 81 05 …`, `/frame`
    #[arg(long)]
    pub(crate) inspect: bool,

    /// Send what faulty clients send, a connection for each fault, and judge the answers; all of them, or these
    /// by name (`--probe=list` names them)
    #[arg(long, value_name = "NAMES", num_args = 0..=1, require_equals = true, default_missing_value = "all",
          value_delimiter = ',')]
    pub(crate) probe: Vec<String>,

    /// Bytes of a payload that --inspect shows
    #[arg(long, value_name = "BYTES", default_value_t = 64)]
    pub(crate) excerpt: usize,

    /// How long a server may take to answer a fault before --probe judges it
    #[arg(long, value_name = "TIME", default_value = "2s")]
    pub(crate) probe_wait: SomeWait,
}
