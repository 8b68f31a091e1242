//! permessage-deflate (RFC 7692): what is negotiated, and the codec behind it.
//!
//! Without the feature `deflate` no [`DeflateConfig`] can be made, so that nothing is ever negotiated.

#[cfg(feature = "deflate")]
mod codec;
#[cfg(not(feature = "deflate"))]
#[path = "no_codec.rs"]
mod codec;
mod contexts;
mod params;
#[cfg(all(test, feature = "deflate"))]
mod tests;

pub(crate) use codec::{Deflater, Inflater};
pub(crate) use contexts::Contexts;
pub use contexts::DeflateClass;
pub(crate) use params::DeflateSetup;
pub use params::{DeflateConfig, DeflateMode, DeflateParams, InvalidDeflateConfig};
