//! HPACK: compression of header fields (RFC 7541), both directions.

pub(crate) mod decoder;
pub(crate) mod encoder;
mod huffman;
mod integer;
mod static_table;
mod table;
#[cfg(test)]
mod tests;

/// The reason for rejecting a header block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockError {
    /// The block is invalid (RFC 7541).
    Invalid(&'static str),
    /// The decoded fields exceed the limit by so much that the block is an attack.
    Flood,
}

/// Overhead of an entry in a table and of a field in a header list (RFC 7541 section 4.1).
pub(crate) const ENTRY_OVERHEAD: usize = 32;

/// Size of a dynamic table without settings (RFC 9113 section 6.5.2), and the maximum of our encoder.
pub(crate) const TABLE_SIZE: usize = 4096;
