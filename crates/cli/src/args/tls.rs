//! Whom the server shows itself as.

use std::path::PathBuf;

use clap::Args;

/// `[tls]` of the configuration file.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "TLS")]
pub(crate) struct TlsArgs {
    /// File with a certificate and its chain in PEM: every address then speaks TLS. May be given several times,
    /// each with its key; clients are shown the first one for the name they ask for
    #[arg(long, value_name = "FILE", env = "SINEWS_TLS_CERTIFICATE", value_delimiter = ',')]
    pub(crate) tls_certificate: Option<Vec<PathBuf>>,

    /// File with the certificate's private key in PEM; may be given several times, in the order of the
    /// certificates
    #[arg(long, value_name = "FILE", env = "SINEWS_TLS_KEY", value_delimiter = ',')]
    pub(crate) tls_key: Option<Vec<PathBuf>>,
}
