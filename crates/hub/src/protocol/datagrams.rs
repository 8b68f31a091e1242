//! Topics whose publications leave as datagrams, in WebTransport sessions.

use sinews_server::{Context, Request};

use crate::admission::HandshakeRejection;
use crate::model;
use crate::model::encoding::EncodedTopics;

/// Topics and patterns in one session's `datagrams`.
const DATAGRAM_TOPICS_MAX: usize = 64;

/// The topics and patterns whose publications a WebTransport client wants as datagrams: `datagrams=true` for all its
/// subscriptions, or names.
///
/// # Errors
/// A name is invalid, there are too many, or the request is for a WebSocket, which has no datagrams.
pub(crate) fn datagram_topics(request: &Request<'_>) -> Result<Box<[String]>, HandshakeRejection> {
    let mut topics = Vec::new();
    for value in request.query_values("datagrams").filter(|value| value != "false") {
        let topic = if value == "true" { ">".into() } else { value };
        model::check_subscription(&topic)
            .map_err(|text| HandshakeRejection::request(400, &format!("datagrams: {text}")))?;
        topics.push(topic.into_owned());
    }
    if topics.len() > DATAGRAM_TOPICS_MAX {
        let text = format!("more than {DATAGRAM_TOPICS_MAX} topics in `datagrams`");
        return Err(HandshakeRejection::request(400, &text));
    }
    if !topics.is_empty() && !request.has_datagrams() {
        let text = "query parameter `datagrams` requires WebTransport: a WebSocket has no datagrams";
        return Err(HandshakeRejection::request(400, text));
    }
    Ok(topics.into())
}

/// Sends topic publications to a client as datagrams.
pub(crate) fn use_datagrams(encoded: EncodedTopics, topics: Box<[String]>, cx: &mut Context<'_>) {
    for topic in topics {
        cx.deliver_datagrams(&encoded.topic(&topic));
    }
}
