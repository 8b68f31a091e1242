//! Response caching.

use sinews_server::StreamingResponse;

/// `Cache-Control` of all answers with content that changes: no cache stores them, and no proxy transforms them.
pub(crate) const UNCACHED: &str = StreamingResponse::CACHE_CONTROL;
