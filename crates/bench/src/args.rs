//! Command-line arguments of `sinews bench`.

mod compare;
mod durable;
mod first_byte;
mod idle;
mod load;
mod plan;

use std::ffi::OsString;

use clap::{Args, FromArgMatches, Subcommand};

pub(crate) use self::compare::CompareArgs;
pub(crate) use self::durable::DurableArgs;
pub(crate) use self::first_byte::FirstByteArgs;
pub(crate) use self::idle::IdleArgs;
pub(crate) use self::load::{LoadArgs, ReportArgs};
pub(crate) use self::plan::load_plan;

/// Measure the performance of a server under load.
///
/// ws:// and wss:// URLs send messages and expect each as an echo; http:// and https:// URLs send requests; tcp://
/// URLs send bytes and expect an echo. Each echo is compared with the bytes sent.
///
/// `sinews bench compare` measures several servers in alternation, `sinews bench durable` measures producers and
/// consumers of streams, `sinews bench first-byte` measures each protocol operation on an idle server, `sinews bench
/// idle` measures the memory of idle connections.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct BenchArgs {
    #[command(subcommand)]
    pub(crate) command: Option<BenchCommand>,

    /// URL of the server: ws://, wss://, http://, https:// or tcp://. A URL without a scheme means ws://
    #[arg(value_name = "URL", required = true)]
    pub(crate) url: Option<String>,

    #[command(flatten)]
    pub(crate) load: LoadArgs,

    #[command(flatten)]
    pub(crate) report: ReportArgs,
}

impl BenchArgs {
    /// Parses the arguments that follow `sinews bench` on a command line.
    ///
    /// # Errors
    ///
    /// Returns the text that the command line prints for wrong arguments.
    pub fn parse(arguments: impl IntoIterator<Item = impl Into<OsString>>) -> Result<Self, String> {
        let command = Self::augment_args(clap::Command::new("bench").no_binary_name(true));
        let matches = command.try_get_matches_from(arguments.into_iter().map(Into::into));
        let parsed = matches.and_then(|mut matches| Self::from_arg_matches_mut(&mut matches));
        parsed.map_err(|error| error.to_string())
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Measure several servers in alternation, and report differences above the noise.
    Compare(Box<CompareArgs>),
    /// Measure durable streams, and the overhead of WebSocket on them.
    Durable(Box<DurableArgs>),
    /// Measure the time to the first byte of each operation on an idle server.
    FirstByte(Box<FirstByteArgs>),
    /// Measure the memory of idle connections, and extrapolate it.
    Idle(Box<IdleArgs>),
}
