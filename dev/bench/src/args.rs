//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::load::{LOADS, Load};
use crate::round::Plan;
use crate::target::Target;

/// Measures what a server's work costs over loopback: `sinews serve` beside plain TCP echoes and other
/// libraries. Without a subcommand: what an echoed message costs.
///
/// Needs two processors, `taskset`, and the scheduler's books in /proc (Linux). The server has core 0, the load
/// core 1. Servers are measured in turns; ratios are taken within a round. Figures are medians.
#[derive(Debug, Parser)]
#[command(name = "sinews-loopback", args_conflicts_with_subcommands = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,

    #[command(flatten)]
    pub(crate) echo: EchoArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// The plain echo on mio: prints its address and serves until its standard input is closed.
    PlainMio {
        /// Port on 127.0.0.1; 0 takes a free one
        #[arg(default_value_t = 0)]
        port: u16,
    },
    /// The plain echo on io_uring, likewise.
    PlainRing {
        /// Port on 127.0.0.1; 0 takes a free one
        #[arg(default_value_t = 0)]
        port: u16,
    },
}

#[derive(Debug, Args)]
pub(crate) struct EchoArgs {
    #[command(flatten)]
    pub(crate) plan: PlanArgs,

    /// Only this load; may be given several times [default: all]
    #[arg(long = "load", value_name = "NAME", value_parser = load)]
    loads: Vec<&'static Load>,

    /// Only this target; may be given several times [default: ours]
    #[arg(long = "target", value_name = "NAME", value_enum)]
    targets: Vec<Target>,

    /// The other libraries, too
    #[arg(long)]
    peers: bool,

    #[command(flatten)]
    pub(crate) programs: ProgramArgs,
}

#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    /// Quiet rounds of each load; a round measures every target once
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,

    /// Milliseconds that each target is measured in each round
    #[arg(long = "window", value_name = "MS", default_value_t = 400, value_parser = clap::value_parser!(u64).range(1..=600_000))]
    window_ms: u64,
}

#[derive(Debug, Args)]
pub(crate) struct ProgramArgs {
    /// The `sinews` program, instead of building it
    #[arg(long, value_name = "PATH")]
    pub(crate) sinews: Option<PathBuf>,

    /// The engine's `tcp_echo` example, instead of building it
    #[arg(long, value_name = "PATH")]
    pub(crate) tcp_echo: Option<PathBuf>,

    /// The `sinews-peers` program (feature `peers`), instead of building it
    #[arg(long, value_name = "PATH")]
    pub(crate) sinews_peers: Option<PathBuf>,
}

impl PlanArgs {
    pub(crate) fn plan(&self) -> Plan {
        Plan { rounds: self.rounds.into(), window: Duration::from_millis(self.window_ms) }
    }
}

impl EchoArgs {
    pub(crate) fn loads(&self) -> Vec<&'static Load> {
        if self.loads.is_empty() { LOADS.iter().collect() } else { self.loads.clone() }
    }

    /// Those that are named, or ours; and the peers, if they are asked for.
    pub(crate) fn targets(&self) -> Vec<Target> {
        let none = self.targets.is_empty() && !self.peers;
        let ours = Target::OURS.into_iter().filter(|it| none || self.targets.contains(it));
        let peers = Target::PEERS.into_iter().filter(|it| self.peers || self.targets.contains(it));
        ours.chain(peers).collect()
    }
}

fn load(name: &str) -> Result<&'static Load, String> {
    LOADS.iter().find(|load| load.name == name).ok_or_else(|| {
        let names: Vec<&str> = LOADS.iter().map(|load| load.name).collect();
        format!("expected one of {}", names.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
        let cli = Cli::parse_from(["sinews-loopback", "--load", "64x64x16", "--target", "sinews-poll"]);
        assert_eq!(cli.echo.loads()[0].in_flight, 16);
        assert_eq!(cli.echo.targets(), [Target::SinewsPoll]);
        assert!(Cli::try_parse_from(["sinews-loopback", "--load", "64"]).is_err());
    }

    #[test]
    fn ours_are_measured_unless_others_are_named() {
        let targets = |arguments: &[&str]| {
            let all = [&["sinews-loopback"], arguments].concat();
            Cli::parse_from(all).echo.targets()
        };
        assert_eq!(targets(&[]), Target::OURS);
        assert_eq!(
            targets(&["--target", "axum", "--target", "plain-ring"]),
            [Target::PlainRing, Target::Axum]
        );
        assert_eq!(targets(&["--peers", "--target", "plain-ring"])[1..], Target::PEERS);
    }
}
