//! Table of the file for TLS.

use std::path::PathBuf;

use serde::Deserialize;

use super::units::OneOrMore;

/// `[tls]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct TlsValues {
    pub(crate) certificate: Option<OneOrMore<PathBuf>>,
    pub(crate) key: Option<OneOrMore<PathBuf>>,
}
