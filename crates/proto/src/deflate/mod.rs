//! permessage-deflate (RFC 7692): negotiation parameters and codec.
//!
//! Without the feature `deflate` no [`DeflateConfig`] can be created, so the extension is never negotiated.

#[cfg(feature = "deflate")]
mod codec;
mod contexts;
#[cfg(not(feature = "deflate"))]
mod no_codec;
mod outcome;
mod params;
#[cfg(all(test, feature = "deflate"))]
mod tests;

#[cfg(feature = "deflate")]
pub(crate) use codec::{Deflater, Inflater};
pub(crate) use contexts::Contexts;
pub use contexts::DeflateClass;
#[cfg(not(feature = "deflate"))]
pub(crate) use no_codec::{NoDeflater as Deflater, NoInflater as Inflater};
pub(crate) use params::DeflateSetup;
pub use params::{DeflateConfig, DeflateMode, DeflateParams, InvalidDeflateConfig};
