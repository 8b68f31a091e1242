//! Arguments of the measurement of HTTP/2.

use clap::{Args, ValueEnum};

use super::{PlanArgs, TlsProgramArgs, connections};
use crate::http2::Http2Part;

#[derive(Debug, Args)]
pub(crate) struct Http2Args {
    #[command(flatten)]
    pub(crate) plan: PlanArgs,

    /// Part to measure; may be given several times [default: all]
    #[arg(long = "part", value_name = "NAME", value_enum)]
    parts: Vec<Http2Part>,

    /// Connections of h2load; may be given several times [default: 1 and 8]
    #[arg(long, value_name = "N", value_parser = connections)]
    connections: Vec<usize>,

    #[command(flatten)]
    pub(crate) programs: TlsProgramArgs,
}

impl Http2Args {
    pub(crate) fn parts(&self) -> Vec<Http2Part> {
        if self.parts.is_empty() { Http2Part::value_variants().to_vec() } else { self.parts.clone() }
    }

    pub(crate) fn connections(&self) -> Vec<usize> {
        if self.connections.is_empty() { vec![1, 8] } else { self.connections.clone() }
    }
}
