//! Programs that are measured with TLS.

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct TlsProgramArgs {
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
