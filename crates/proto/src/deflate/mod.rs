//! permessage-deflate (RFC 7692): what is negotiated, and the codec behind it.

mod codec;
mod contexts;
mod params;
#[cfg(test)]
mod tests;

pub(crate) use codec::{Deflater, Inflater};
pub(crate) use contexts::Contexts;
pub use contexts::DeflateClass;
pub(crate) use params::DeflateSetup;
pub use params::{DeflateConfig, DeflateMode, DeflateParams, InvalidDeflateConfig};
