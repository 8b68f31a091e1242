//! HPACK: header field compression (RFC 7541), both directions.

pub(crate) mod decoder;
pub(crate) mod encoder;
mod static_table;
mod table;
#[cfg(test)]
mod tests;

/// Size of a dynamic table without settings (RFC 9113 section 6.5.2), and the maximum of our encoder.
pub(crate) const TABLE_SIZE: usize = 4096;
