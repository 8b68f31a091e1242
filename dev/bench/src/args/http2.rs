//! Arguments of the measurement of HTTP/2.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::{PlanArgs, connections};
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

    /// Path of the `sinews` program, instead of building it
    #[arg(long, value_name = "PATH")]
    pub(crate) sinews: Option<PathBuf>,

    /// Path of the server's `hello_http` example, instead of building it
    #[arg(long, value_name = "PATH")]
    pub(crate) hello: Option<PathBuf>,

    /// Path of the `sinews-peers` program (feature `peers`), instead of building it
    #[arg(long, value_name = "PATH")]
    pub(crate) sinews_peers: Option<PathBuf>,
}

impl Http2Args {
    pub(crate) fn parts(&self) -> Vec<Http2Part> {
        if self.parts.is_empty() { Http2Part::value_variants().to_vec() } else { self.parts.clone() }
    }

    pub(crate) fn connections(&self) -> Vec<usize> {
        if self.connections.is_empty() { vec![1, 8] } else { self.connections.clone() }
    }
}
