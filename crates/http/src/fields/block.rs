//! Encoded field lists.

/// The reason for rejecting an encoded field list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockError {
    /// The list is invalid (RFC 7541, RFC 9204).
    Invalid(&'static str),
    /// The decoded fields exceed the limit by so much that the list is an attack.
    Flood,
}

/// Overhead of an entry in a table and of a field in a list (RFC 7541 section 4.1, RFC 9114 section 4.2.2).
pub(crate) const ENTRY_OVERHEAD: usize = 32;
