//! Arguments of the measurement of HTTP/3.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::{PlanArgs, TlsProgramArgs};
use crate::http3::Http3Part;

#[derive(Debug, Args)]
pub(crate) struct Http3Args {
    #[command(flatten)]
    pub(crate) plan: PlanArgs,

    /// Part to measure; may be given several times [default: all]
    #[arg(long = "part", value_name = "NAME", value_enum)]
    parts: Vec<Http3Part>,

    #[command(flatten)]
    pub(crate) programs: TlsProgramArgs,

    /// Folder with the Python packages aioquic and wsproto (`pip install --target PATH aioquic wsproto`), to measure
    /// aioquic too
    #[arg(long, value_name = "PATH")]
    pub(crate) python_packages: Option<PathBuf>,
}

impl Http3Args {
    pub(crate) fn parts(&self) -> Vec<Http3Part> {
        if self.parts.is_empty() { Http3Part::value_variants().to_vec() } else { self.parts.clone() }
    }
}
