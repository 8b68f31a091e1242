//! Parts of requests, which several operations pass on.

use std::borrow::Cow;
use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::value::RawValue;
use sinews_server::{Position, ReplayFrom};

use super::members::PresenceDetail;
use crate::model::MessageContent;
use crate::model::problem::{Problem, code, problem};

/// Topics in one request, and in one answer.
pub(super) const TOPICS_MAX: usize = 1_024;

/// Options of a subscription.
#[derive(Clone, Debug, Default)]
pub(super) struct SubscribeOptions {
    pub(super) presence: PresenceDetail,
    pub(super) start: Option<ReplayFrom>,
    /// For a pattern.
    pub(super) recovery: Option<Box<PatternRecovery>>,
}

/// A publication's data.
#[derive(Debug)]
pub(super) enum PublishedData<'a> {
    Json(&'a RawValue),
    Base64(Cow<'a, str>),
}

impl PublishedData<'_> {
    /// # Errors
    /// The data is nested too deeply, or is not base64.
    pub(super) fn content(&self) -> Result<MessageContent, Problem> {
        match self {
            Self::Json(data) => MessageContent::json(data),
            Self::Base64(b64) => {
                let bytes = STANDARD.decode(b64.as_bytes());
                let bytes = bytes.map_err(|error| problem(code::MALFORMED, format!("b64: {error}")))?;
                Ok(MessageContent::Binary(bytes.into()))
            }
        }
    }
}

/// Requests of a subscription to a pattern.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PatternRecovery {
    /// The positions of the topics that match.
    pub(super) wants_positions: bool,
    /// The client's positions; the pattern's other topics are newer than its last acknowledgement.
    pub(super) from: Option<BTreeMap<String, Position>>,
}

/// A topic whose messages were replayed for a pattern.
pub(super) struct RecoveredTopic {
    pub(super) pattern: String,
    pub(super) topic: String,
}

/// The topics whose messages were replayed for patterns.
#[derive(Default)]
pub(super) struct RecoveredTopics {
    pub(super) topics: Vec<RecoveredTopic>,
}

/// A client's publication.
#[derive(Clone, Copy)]
pub(super) struct ClientPublication<'a> {
    pub(super) topic: &'a str,
    pub(super) content: &'a MessageContent,
    /// The client's idempotency key.
    pub(super) idempotency_key: Option<&'a str>,
}
