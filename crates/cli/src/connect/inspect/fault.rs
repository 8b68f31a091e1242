//! What is wrong, and which section says so.

use std::fmt;

/// Something that a standard forbids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) section: &'static str,
    pub(crate) words: String,
    /// Codes of a Close with which whoever receives it may fail the connection; empty if it need not.
    pub(crate) codes: &'static [u16],
}

/// Of a broken protocol.
pub(crate) const PROTOCOL: &[u16] = &[1002];
/// Of data that are not what they are said to be.
pub(crate) const DATA: &[u16] = &[1007];
/// Where both are right.
pub(crate) const EITHER: &[u16] = &[1002, 1007];

impl Fault {
    /// One that is only to be named.
    pub(crate) fn new(section: &'static str, words: impl Into<String>) -> Self {
        Self { section, words: words.into(), codes: &[] }
    }

    /// One for which the connection must be failed (RFC 6455 section 7.1.7).
    pub(crate) fn fatal(section: &'static str, words: impl Into<String>, codes: &'static [u16]) -> Self {
        Self { section, words: words.into(), codes }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.section, self.words)
    }
}
