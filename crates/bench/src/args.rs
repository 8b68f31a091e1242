//! The command line of `sinews bench`.

use std::net::IpAddr;
use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand, ValueEnum};
use sinews_engine::BackendChoice;

use super::payload::Sizes;

/// Load a server and measure what it does.
///
/// ws:// and wss:// URLs send messages and expect each of them back; http:// and https:// URLs send requests; tcp://
/// URLs send bytes and expect them back. Each echo is compared with what was sent.
///
/// `sinews bench compare` measures several servers by turns, `sinews bench durable` producers and consumers of streams,
/// `sinews bench first-byte` each operation of the protocols on a server that has nothing else to do.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct BenchArgs {
    #[command(subcommand)]
    pub(crate) command: Option<BenchCommand>,

    /// URL of the server to load: ws://, wss://, http://, https:// or tcp://; ws:// if it has no scheme
    #[arg(value_name = "URL", required = true)]
    pub(crate) url: Option<String>,

    #[command(flatten)]
    pub(crate) load: LoadArgs,

    #[command(flatten)]
    pub(crate) report: ReportArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Measure several servers by turns, and say which differences are more than noise.
    Compare(Box<super::compare::CompareArgs>),
    /// Measure durable streams, and what WebSocket itself costs them.
    Durable(Box<super::durable::DurableArgs>),
    /// Measure how long an idle server takes for the first byte of each operation.
    FirstByte(Box<super::first_byte::FirstByteArgs>),
}

/// The names of the engine's backends, as the server has them.
pub(crate) fn backends() -> impl TypedValueParser<Value = BackendChoice> {
    PossibleValuesParser::new(["auto", "poll", "uring"]).try_map(|name| name.parse::<BackendChoice>())
}

/// What is sent, how often and for how long. `compare` takes the same.
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
#[command(next_help_heading = "How much")]
pub(crate) struct AmountArgs {
    /// Connections, over all threads
    #[arg(short, long, value_name = "N", default_value = "64")]
    pub(crate) connections: NonZeroUsize,

    /// Threads, each with an event loop of its own
    #[arg(short, long, value_name = "N", default_value = "1")]
    pub(crate) threads: NonZeroUsize,

    /// Messages or requests of each connection that are sent and not answered (for http://: the depth of pipelining).
    /// With --rate, what is due beyond that waits, and its latency counts [default: 1; with --rate 1024]
    #[arg(short, long, value_name = "N")]
    pub(crate) in_flight: Option<NonZeroU32>,

    /// How long to measure, such as `10s` or `500ms`
    #[arg(short, long, value_name = "TIME", value_parser = time, default_value = "10s")]
    pub(crate) duration: Duration,

    /// Send this many messages or requests in all, in place of --duration
    #[arg(short = 'n', long, value_name = "N", conflicts_with = "duration")]
    pub(crate) count: Option<NonZeroU64>,

    /// Send at this rate, in messages a second over all connections, however fast the answers come. Latency counts
    /// from when each message was due, so that a server that stalls cannot hide it. Without this, each answer is
    /// followed by the next message
    #[arg(short, long, value_name = "N", value_parser = rate)]
    pub(crate) rate: Option<f64>,

    /// Load for this long before measuring
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "1s")]
    pub(crate) warm_up: Duration,

    /// Spread the opening of connections over this time
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "0s")]
    pub(crate) ramp_up: Duration,

    /// How long a connection may take to be made, and the last answers to come
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "10s")]
    pub(crate) timeout: Duration,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "What is sent")]
pub(crate) struct ContentArgs {
    /// Bytes of each message: a number (64, 16k, 1m), a range (10-200), or a mix with weights (64:90,16k:10)
    #[arg(short, long, value_name = "SIZES", default_value = "64")]
    pub(crate) size: Sizes,

    /// Send the lines of this file, one message each, in place of made-up ones
    #[arg(long, value_name = "FILE", conflicts_with = "size")]
    pub(crate) file: Option<PathBuf>,

    /// Text messages (the default; --file takes only lines of valid UTF-8 then)
    #[arg(long, conflicts_with = "binary")]
    pub(crate) text: bool,

    /// Binary messages
    #[arg(long)]
    pub(crate) binary: bool,

    /// Method of http:// requests; with POST, PUT or PATCH a message is the body
    #[arg(long, value_name = "METHOD", default_value = "GET")]
    pub(crate) method: String,

    /// Body that every answer to http:// requests must have: a text, `@FILE`, or `echo` for the body that was sent.
    /// Without this only their status and framing are checked
    #[arg(long, value_name = "BODY")]
    pub(crate) expect: Option<String>,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Connections")]
pub(crate) struct ConnectionArgs {
    /// Offer compression (permessage-deflate)
    #[arg(long)]
    pub(crate) deflate: bool,

    /// Header of each request or handshake, such as `Authorization: Bearer 1234`; may be given several times
    #[arg(short = 'H', long, value_name = "NAME: VALUE")]
    pub(crate) header: Vec<String>,

    /// Subprotocol to offer; may be given several times
    #[arg(long, value_name = "NAME")]
    pub(crate) subprotocol: Vec<String>,

    /// Take whatever certificate the server has
    #[arg(short = 'k', long, conflicts_with = "ca")]
    pub(crate) insecure: bool,

    /// Trust these certificates (PEM) besides the system's; may be given several times
    #[arg(long, value_name = "FILE")]
    pub(crate) ca: Vec<PathBuf>,

    /// Connect to this path in place of the URL's host
    #[arg(long, value_name = "PATH")]
    pub(crate) unix: Option<PathBuf>,

    /// Addresses to connect from, by turns: one has some 28,000 ports. Separated by commas, or a range of the last
    /// number, such as 127.0.0.1-20
    #[arg(long, value_name = "ADDRESSES", value_delimiter = ',', value_parser = sources)]
    pub(crate) source: Vec<Vec<IpAddr>>,

    /// What drives the sockets: io_uring, epoll or kqueue (`poll`), or what there is
    #[arg(long, value_parser = backends(), value_name = "NAME", default_value = "auto")]
    pub(crate) backend: BackendChoice,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Other loads than echo")]
pub(crate) struct ModeArgs {
    /// `echo`: messages or requests, each answered. `storm`: connections, each closed when it is open, and made anew.
    /// `idle`: connections that are held, for --duration. `fan-out`: messages to topics
    #[arg(short, long, value_enum, value_name = "MODE", default_value = "echo")]
    pub(crate) mode: Mode,

    /// Of --connections, how many publish in fan-out; the others subscribe
    #[arg(long, value_name = "N", default_value = "1")]
    pub(crate) publishers: NonZeroUsize,

    /// Topics of fan-out. Publishers and subscribers take them by turns
    #[arg(long, value_name = "N", default_value = "1")]
    pub(crate) topics: NonZeroUsize,

    /// What a subscriber sends when it is open, with `{topic}` for its topic. Without this and --publish, connections
    /// go to /topics/{topic}, where what comes goes to all
    #[arg(long, value_name = "TEMPLATE", requires = "publish")]
    pub(crate) subscribe: Option<String>,

    /// What a publisher sends, with `{topic}` and `{payload}`
    #[arg(long, value_name = "TEMPLATE")]
    pub(crate) publish: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    Echo,
    Storm,
    Idle,
    FanOut,
}

impl Mode {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Echo => "echo",
            Self::Storm => "storm",
            Self::Idle => "idle",
            Self::FanOut => "fan-out",
        }
    }
}

#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "What is shown")]
pub(crate) struct ReportArgs {
    /// Process of the server, to measure its processor time and memory; may be given several times
    #[arg(long, value_name = "PID")]
    pub(crate) pid: Vec<u32>,

    /// Count the processes too that those have started
    #[arg(long, requires = "pid")]
    pub(crate) children: bool,

    /// Count the server's system calls, in a second of their own behind the measurement; needs strace and --pid
    #[arg(long, requires = "pid")]
    pub(crate) trace: bool,

    /// Print the result as JSON
    #[arg(long, conflicts_with = "csv")]
    pub(crate) json: bool,

    /// Print the result as CSV: a line of names and a line of values
    #[arg(long)]
    pub(crate) csv: bool,

    /// Write a page with charts
    #[arg(long, value_name = "FILE.html")]
    pub(crate) report: Option<PathBuf>,

    /// Show nothing while it runs
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

/// A time with a unit: `500ms`, `10s`, `2m`.
pub(super) fn time(text: &str) -> Result<Duration, String> {
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

fn rate(text: &str) -> Result<f64, String> {
    let (number, factor) = match text.strip_suffix(['k', 'K']) {
        Some(number) => (number, 1e3),
        None => (text, 1.0),
    };
    match number.parse::<f64>() {
        Ok(rate) if rate > 0.0 && rate.is_finite() => Ok(rate * factor),
        _ => Err("expected a number of messages a second, above 0".to_owned()),
    }
}

/// An address, or `127.0.0.1-20`.
fn sources(text: &str) -> Result<Vec<IpAddr>, String> {
    let wrong = || format!("expected an address, or a range such as 127.0.0.1-20, in place of {text}");
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
