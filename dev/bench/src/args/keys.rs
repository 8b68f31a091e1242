//! Arguments of the measurement of keys.

use std::path::PathBuf;

use clap::Args;

use super::{ProgramArgs, TargetArgs};
use crate::target::Target;

#[derive(Debug, Args)]
pub(crate) struct KeysArgs {
    /// Subscribers
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u16).range(1..=15_000))]
    pub(crate) subscribers: u16,

    /// Percentage of the subscribers that are slow
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(0..=100))]
    pub(crate) slow_percent: u16,

    /// Rate of each slow subscriber in bits a second
    #[arg(long, value_name = "N", default_value_t = 64_000, value_parser = clap::value_parser!(u32).range(1_000..=100_000_000))]
    pub(crate) slow_bits: u32,

    /// Keys
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) keys: u32,

    /// Changes a second, of all keys together
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) changes: u32,

    /// Interval of each subscription in milliseconds; 0: each change at once
    #[arg(long, value_name = "MS", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=60_000))]
    pub(crate) interval: u32,

    /// Seconds of measurement
    #[arg(long = "seconds", value_name = "S", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=600))]
    pub(crate) seconds: u32,

    /// Seconds before the measurement, at most 60 by default: 1.5 times the time of the snapshot at a slow subscriber
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u32).range(1..=600))]
    pub(crate) warm_up: Option<u32>,

    /// Program of Centrifugo, to measure its map subscriptions too
    #[arg(long, value_name = "PROGRAM")]
    pub(crate) centrifugo: Option<PathBuf>,

    #[command(flatten)]
    targets: TargetArgs,

    #[command(flatten)]
    pub(crate) programs: ProgramArgs,
}

impl KeysArgs {
    pub(crate) fn targets(&self) -> Vec<Target> {
        self.targets.among(&Target::SINEWS, &[])
    }
}
