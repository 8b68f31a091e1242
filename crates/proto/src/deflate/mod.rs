//! permessage-deflate (RFC 7692): what is negotiated, and the codec behind it.

mod params;

pub use params::{DeflateConfig, DeflateMode, DeflateParams, InvalidDeflateConfig};
