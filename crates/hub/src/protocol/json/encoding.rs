//! The encoding for the protocol's messages.

use std::sync::Arc;

use serde_json::json;
use sinews_server::{Position, Prepared};

use crate::model::encoding::{EncodedTopics, Encoding, MESSAGES};
use crate::model::publication::Publication;

#[derive(Debug)]
struct Messages;

/// Returns the message encoding.
pub(crate) fn encodings() -> [Arc<dyn Encoding>; 1] {
    [Arc::new(Messages)]
}

impl Encoding for Messages {
    fn topics(&self) -> EncodedTopics {
        MESSAGES
    }

    fn encode(&self, publication: &Publication<'_, '_>, topic: &str, position: Option<Position>) -> Prepared {
        publication.content.message().framed(topic, publication.stamp(position))
    }

    fn reset(&self, topic: &str) -> Option<Prepared> {
        Some(Prepared::text(json!({ "op": "reset", "topic": topic }).to_string()))
    }
}
