//! permessage-deflate (RFC 7692): negotiation parameters and codec.
//!
//! Without the feature `deflate` no [`DeflateConfig`] can be created, so the extension is never negotiated.

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
