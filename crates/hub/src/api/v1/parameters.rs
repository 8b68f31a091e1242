//! Parameters that several operations have.

use super::operation::{Parameter, in_head, in_path, in_query};
use crate::model::schema::Schema;

pub(super) const TOPIC: Parameter = in_path("topic", "Name of the topic", "chat.room");
pub(super) const KEY: Parameter = in_path("key", "Name of the key", "anna");
pub(super) const AFTER: Parameter =
    in_query("after", Schema::Text, "Start of the page: the last name of the page before");
pub(super) const IF_MATCH: Parameter =
    in_head("If-Match", "Write only if the key has this ETag; with `*`, only if the key exists");
pub(super) const IF_NONE_MATCH: Parameter =
    in_head("If-None-Match", "With `*`: write only if the key does not exist");
pub(super) const IDEMPOTENCY_KEY: Parameter =
    in_head("Idempotency-Key", "A second write of the key with the same value changes nothing");

pub(super) const CONNECTION: Parameter = in_path("connection", "Id of the connection", "a1b2c3-1");

pub(super) const STREAM_NAME: Parameter = in_path("stream", "Name of the stream", "orders");
pub(super) const GROUP_NAME: Parameter = in_path("group", "Name of the consumer group", "billing");

/// Creates the parameter for the maximum number of items on a page.
pub(super) const fn limit(help: &'static str) -> Parameter {
    in_query("limit", Schema::Integer, help)
}

/// A page of a stream's consumer groups.
pub(super) const GROUPS_PAGE: &[Parameter] = &[
    STREAM_NAME,
    in_query("after", Schema::Text, "Start of the page: `next` of the page before"),
    limit("Groups of a page, at most 1,000, which is the default"),
];
