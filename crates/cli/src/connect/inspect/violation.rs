//! Violations, with the standard's section.

use std::fmt;

/// A violation of a standard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    pub(crate) section: &'static str,
    pub(crate) description: String,
    /// Close codes with which the receiver may fail the connection; empty if failing is not required.
    pub(crate) codes: &'static [u16],
}

/// Protocol error.
pub(crate) const PROTOCOL: &[u16] = &[1002];
/// Data inconsistent with the message type.
pub(crate) const DATA: &[u16] = &[1007];
/// Either code is correct.
pub(crate) const EITHER: &[u16] = &[1002, 1007];

impl Violation {
    /// A violation without consequences for the connection.
    pub(crate) fn new(section: &'static str, description: impl Into<String>) -> Self {
        Self { section, description: description.into(), codes: &[] }
    }

    /// A violation that requires failing the connection (RFC 6455 section 7.1.7).
    pub(crate) fn fatal(
        section: &'static str,
        description: impl Into<String>,
        codes: &'static [u16],
    ) -> Self {
        Self { section, description: description.into(), codes }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.section, self.description)
    }
}
