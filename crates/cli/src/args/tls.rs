//! Certificates of the server.

use std::path::PathBuf;

use clap::Args;

/// `[tls]` of the configuration file.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "TLS")]
pub(crate) struct TlsArgs {
    /// File with a certificate and its chain in PEM; enables TLS on every address. Repeatable, each with its key;
    /// clients get the first certificate for the requested name
    #[arg(long, value_name = "FILE", env = "SINEWS_TLS_CERTIFICATE", value_delimiter = ',')]
    pub(crate) tls_certificate: Option<Vec<PathBuf>>,

    /// File with a certificate's private key in PEM; repeatable, in the order of the certificates
    #[arg(long, value_name = "FILE", env = "SINEWS_TLS_KEY", value_delimiter = ',')]
    pub(crate) tls_key: Option<Vec<PathBuf>>,
}
