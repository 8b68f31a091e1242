//! The payload encoding.

use std::sync::Arc;

use sinews_server::{Position, Prepared};

use crate::model::encoding::{EncodedTopics, Encoding};
use crate::model::publication::Publication;

/// Payloads as they are published.
pub(crate) const PAYLOADS: EncodedTopics = EncodedTopics::new("r.");

#[derive(Debug)]
struct Payloads;

/// Returns the payload encoding.
pub(crate) fn encodings() -> [Arc<dyn Encoding>; 1] {
    [Arc::new(Payloads)]
}

impl Encoding for Payloads {
    fn topics(&self) -> EncodedTopics {
        PAYLOADS
    }

    fn encode(&self, publication: &Publication<'_, '_>, _: &str, _: Option<Position>) -> Prepared {
        publication.content.message().plain()
    }
}
