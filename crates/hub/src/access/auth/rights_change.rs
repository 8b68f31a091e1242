//! Changes of the rights of open connections, by the backend.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A change of the rights of open connections, as nodes of a cluster exchange it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RightsChange {
    /// Claims, as of a token, replace the rights.
    Claims(Map<String, Value>),
    /// The rights remain, and expire at this time in seconds since 1970.
    Expiry(f64),
}
