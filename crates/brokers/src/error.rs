//! Broker configuration errors.

use std::fmt;

/// Broker configuration error.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BrokerConfigError {
    /// The text is not a valid broker URL.
    Url {
        /// The part before `://`; the rest may hold a password.
        scheme: String,
        /// The defect.
        reason: String,
    },
    /// The program was built without the engine for this scheme.
    NotBuilt {
        /// The missing feature.
        feature: &'static str,
    },
    /// A setting is unknown, or its value is invalid.
    Setting {
        /// The broker's URL, without credentials.
        broker: String,
        /// The setting's name.
        setting: String,
        /// The defect, and a correction if known.
        reason: String,
    },
    /// The engine's client could not be created.
    Client {
        /// The broker's URL, without credentials.
        broker: String,
        /// The client's error.
        reason: String,
    },
}

impl fmt::Display for BrokerConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url { scheme, reason } => write!(f, "invalid broker URL ({scheme}://…): {reason}"),
            Self::NotBuilt { feature } => write!(f, "this program was built without the feature `{feature}`"),
            Self::Setting { broker, setting, reason } => write!(f, "{broker}: setting `{setting}`: {reason}"),
            Self::Client { broker, reason } => write!(f, "{broker}: {reason}"),
        }
    }
}

impl std::error::Error for BrokerConfigError {}
