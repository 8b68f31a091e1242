//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::load::{LOADS, Load};
use crate::target::Target;

/// Measures what an echoed message costs the server: `sinews serve` beside plain TCP echoes.
///
/// Needs two processors, `taskset`, and the scheduler's books in /proc (Linux).
#[derive(Debug, Parser)]
#[command(name = "sinews-loopback", args_conflicts_with_subcommands = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,

    #[command(flatten)]
    pub(crate) measure: MeasureArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// The plain echo on mio: prints its address and serves until its standard input is closed.
    PlainMio {
        /// Port on 127.0.0.1; 0 takes a free one
        #[arg(default_value_t = 0)]
        port: u16,
    },
}

#[derive(Debug, Args)]
pub(crate) struct MeasureArgs {
    /// Quiet rounds of each load; a round measures every target once
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,

    /// Milliseconds that each target is measured in each round
    #[arg(long = "window", value_name = "MS", default_value_t = 400, value_parser = clap::value_parser!(u64).range(1..=600_000))]
    window_ms: u64,

    /// Only this load; may be given several times [default: all]
    #[arg(long = "load", value_name = "NAME", value_parser = load)]
    loads: Vec<&'static Load>,

    /// Only this target; may be given several times [default: all]
    #[arg(long = "target", value_name = "NAME", value_enum)]
    targets: Vec<Target>,

    /// The `sinews` program, instead of building it
    #[arg(long, value_name = "PATH")]
    pub(crate) sinews: Option<PathBuf>,

    /// The engine's `tcp_echo` example, instead of building it
    #[arg(long, value_name = "PATH")]
    pub(crate) tcp_echo: Option<PathBuf>,
}

impl MeasureArgs {
    pub(crate) fn window(&self) -> Duration {
        Duration::from_millis(self.window_ms)
    }

    pub(crate) fn loads(&self) -> Vec<&'static Load> {
        if self.loads.is_empty() { LOADS.iter().collect() } else { self.loads.clone() }
    }

    pub(crate) fn targets(&self) -> Vec<Target> {
        Target::ALL.into_iter().filter(|it| self.targets.is_empty() || self.targets.contains(it)).collect()
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
        let cli = Cli::parse_from(["sinews-loopback", "--load", "64x64x16", "--target", "sinews"]);
        assert_eq!(cli.measure.loads()[0].in_flight, 16);
        assert_eq!(cli.measure.targets(), [Target::Sinews]);
        assert!(Cli::try_parse_from(["sinews-loopback", "--load", "64"]).is_err());
    }
}
