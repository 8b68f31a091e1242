//! Changes to the rights of open connections, by the backend.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A change to the rights of open connections, as cluster nodes exchange it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RightsChange {
    /// Claims, as in a token, replace the rights.
    Claims(Map<String, Value>),
    /// The rights remain, and expire at this time in seconds since 1970.
    Expiry(f64),
}
