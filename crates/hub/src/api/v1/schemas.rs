//! Fields and schemas that several operations share.

use super::operation::{Field, Schema, optional, required};

pub(super) const DATA: Field = optional("data", Schema::Any, "The message as JSON; either data or b64");
pub(super) const B64: Field =
    optional("b64", Schema::Text, "The message as bytes in base64; either data or b64");
pub(super) const ONCE: Field = optional(
    "idempotency_key",
    Schema::Text,
    "1 to 128 bytes: a second publication to the topic with the same key within 300 s is not published; of a durable topic, \
     also after a restart and at another node",
);
pub(super) const EXCLUDE: Field = optional(
    "exclude",
    Schema::Text,
    "Id of a connection of any node that does not receive the message, such as that of the sender. Not for durable topics; \
     a later replay of the topic's history has the message",
);
pub(super) const MESSAGE: Schema = Schema::Object(
    &[required("topic", Schema::Text, "Topic to publish to"), DATA, B64, ONCE, EXCLUDE],
    &["data", "b64"],
);

/// Fields of the result of a publication.
pub(super) const RESULT: Schema = Schema::Object(
    &[
        required("topic", Schema::Text, "The topic"),
        optional(
            "subscribers",
            Schema::Integer,
            "Number of subscriptions of the node that answers, to which the message was delivered",
        ),
        optional(
            "cluster",
            Schema::Boolean,
            "In a cluster: the message was also passed to the other nodes, whose subscriptions do not count; `false` while \
             the broker is unreachable",
        ),
        optional("epoch", Schema::Integer, "Epoch of the message's position, of a durable topic"),
        optional("seq", Schema::Integer, "Sequence of the message, of a durable topic"),
        optional("repeated", Schema::Boolean, "An earlier publication had the same idempotency key"),
        optional("code", Schema::Integer, "Status of a message that was not published, in a list of results"),
        optional("error", Schema::Text, "What failed"),
        optional("needs", Schema::Any, "The right that the key lacks"),
    ],
    &[],
);
pub(super) const RESULTS: Schema = Schema::Object(
    &[required("results", Schema::List(&RESULT), "Results in the order of the messages or topics")],
    &[],
);

pub(super) const BROADCAST_RESULTS: Schema = Schema::Object(
    &[
        required(
            "results",
            Schema::List(&RESULT),
            "A result for each topic: in the order of the names, or of all topics that match, on all nodes",
        ),
        MISSING,
    ],
    &[],
);

pub(super) const USER: Field =
    optional("user", Schema::Text, "All connections of the user: the `sub` of their tokens");
pub(super) const CONNECTION: Field = optional("connection", Schema::Text, "One connection by its id");

/// Body of subscribe and unsubscribe.
pub(super) const SUBSCRIPTION: Schema = Schema::Object(
    &[required("topic", Schema::Text, "Topic or pattern"), USER, CONNECTION],
    &["user", "connection"],
);
pub(super) const COMMANDED: Schema = Schema::Object(
    &[
        required(
            "results",
            Schema::List(&Schema::Object(
                &[
                    required("connection", Schema::Text, "Id of the connection"),
                    optional(
                        "code",
                        Schema::Integer,
                        "Status of a connection that did not execute the command",
                    ),
                    optional("error", Schema::Text, "What failed"),
                ],
                &[],
            )),
            "A result for each open connection, on all nodes; none if the user has no connection",
        ),
        MISSING,
    ],
    &[],
);

pub(super) const NEXT: Field =
    optional("next", Schema::Text, "`after` of the next page; missing on the last page");

pub(super) const MISSING: Field = optional(
    "missing_nodes",
    Schema::List(&Schema::Text),
    "Nodes of the cluster that have not answered in time",
);

pub(super) const KEY_FIELDS: Schema = Schema::Object(
    &[
        required("key", Schema::Text, "Name of the key"),
        required("version", Schema::Integer, "Sequence of its last change"),
        optional("data", Schema::Any, "Value as JSON"),
        optional("b64", Schema::Text, "Value as bytes in base64"),
    ],
    &[],
);
pub(super) const KEY_WRITTEN: Schema = Schema::Object(
    &[
        required("topic", Schema::Text, "The topic"),
        required("key", Schema::Text, "The key"),
        required("epoch", Schema::Integer, "Epoch of the topic's keys"),
        required("seq", Schema::Integer, "Sequence of the change"),
        optional("changed", Schema::Boolean, "`false`: the key did not exist, so nothing was deleted"),
        optional("repeated", Schema::Boolean, "An earlier write had the same idempotency key"),
    ],
    &[],
);

/// One of several writes of keys.
pub(super) const KEY_WRITE: Schema = Schema::Object(
    &[
        required("key", Schema::Text, "Name of the key"),
        optional("data", Schema::Any, "The value as JSON; either data, b64 or delete"),
        optional("b64", Schema::Text, "The value as bytes in base64"),
        optional("delete", Schema::Boolean, "`true`: delete the key"),
        optional("ttl", Schema::Integer, "Milliseconds until the key expires"),
        optional("if_new", Schema::Boolean, "`true`: write only if the key does not exist"),
        optional("if_exists", Schema::Boolean, "`true`: write only if the key exists"),
        optional("version", Schema::Integer, "Write only if the key has this version"),
        optional("epoch", Schema::Integer, "With version: the epoch of the version"),
        optional(
            "idempotency_key",
            Schema::Text,
            "1 to 128 bytes: a second write of the key with it changes nothing",
        ),
    ],
    &["data", "b64", "delete"],
);

/// Results of several writes of keys.
pub(super) const KEYS_WRITTEN: Schema = Schema::Object(
    &[required(
        "results",
        Schema::List(&Schema::Object(
            &[
                required("key", Schema::Text, "The key"),
                optional("epoch", Schema::Integer, "Epoch of the topic's keys"),
                optional("seq", Schema::Integer, "Sequence of the change"),
                optional(
                    "changed",
                    Schema::Boolean,
                    "`false`: the key did not exist, so nothing was deleted",
                ),
                optional("repeated", Schema::Boolean, "An earlier write had the same idempotency key"),
                optional("code", Schema::Integer, "Status of a write that has failed"),
                optional("error", Schema::Text, "What failed"),
            ],
            &[],
        )),
        "Results in the order of the writes",
    )],
    &[],
);

/// A message as subscribers receive it.
pub(super) const HISTORY_MESSAGE: Schema = Schema::Object(
    &[
        required("op", Schema::Text, "Always `message`"),
        required("topic", Schema::Text, "The topic"),
        optional("epoch", Schema::Integer, "Epoch of the message's position"),
        optional("seq", Schema::Integer, "Sequence of the message"),
        optional("data", Schema::Any, "Content as JSON"),
        optional("b64", Schema::Text, "Content as bytes in base64"),
    ],
    &[],
);

const STREAM_NAME: Field = required("stream", Schema::Text, "Name of the stream");
const STREAM_PARTITIONS: Field = required(
    "partitions",
    Schema::List(&Schema::Object(
        &[
            required("partition", Schema::Integer, "Number of the partition"),
            required("earliest", Schema::Integer, "Offset of the first record"),
            required("end", Schema::Integer, "Offset of the next record"),
            required("bytes", Schema::Integer, "Bytes on the disk of this node"),
        ],
        &[],
    )),
    "Partitions by number",
);
const STREAM_GROUPS: Field = required(
    "groups",
    Schema::List(&Schema::Object(
        &[
            required("group", Schema::Text, "Name of the consumer group"),
            required(
                "partitions",
                Schema::List(&Schema::Object(
                    &[
                        required("partition", Schema::Integer, "Number of the partition"),
                        required("offset", Schema::Integer, "Committed offset"),
                    ],
                    &[],
                )),
                "Partitions with a committed offset",
            ),
        ],
        &[],
    )),
    "Consumer groups by name",
);
const MORE_GROUPS: Field = optional(
    "more_groups",
    Schema::Integer,
    "Number of further groups; all of them: `/streams/{stream}/groups`",
);
const STREAM_DAMAGE: Field = optional("error", Schema::Text, "Damage of a stream that cannot be opened");

/// A durable stream and its offsets.
pub(super) const STREAM: Schema =
    Schema::Object(&[STREAM_NAME, STREAM_PARTITIONS, STREAM_GROUPS, MORE_GROUPS, STREAM_DAMAGE], &[]);

/// The same with its configuration.
pub(super) const STREAM_INFO: Schema = Schema::Object(
    &[
        STREAM_NAME,
        STREAM_PARTITIONS,
        STREAM_GROUPS,
        MORE_GROUPS,
        STREAM_DAMAGE,
        optional("created", Schema::Integer, "Time of creation in milliseconds since 1970; not at a broker"),
        optional("retain_bytes", Schema::IntegerOrNull, "Bytes of each partition that are retained"),
        optional("retain_seconds", Schema::IntegerOrNull, "Age up to which records are retained"),
        optional("compact", Schema::Boolean, "The newest record of each key is retained"),
    ],
    &[],
);

/// The offset of a consumer group in a partition.
const GROUP_OFFSET: Schema = Schema::Object(
    &[
        required("partition", Schema::Integer, "Number of the partition"),
        required("offset", Schema::Integer, "Committed offset"),
        required("lag", Schema::Integer, "Offsets between it and the end"),
    ],
    &[],
);

/// A change of a stream's configuration.
pub(super) const STREAM_CHANGE: Schema = Schema::Object(
    &[
        optional("partitions", Schema::Integer, "Number of partitions; it never decreases"),
        optional(
            "retain_bytes",
            Schema::IntegerOrNull,
            "Bytes of each partition that are retained; `null`: all",
        ),
        optional(
            "retain_seconds",
            Schema::IntegerOrNull,
            "Age up to which records are retained; `null`: all",
        ),
        optional("compact", Schema::Boolean, "Retain the newest record of each key; for a new stream only"),
    ],
    &[],
);

/// The consumer groups of a stream.
pub(super) const STREAM_GROUPS_LISTED: Schema = Schema::Object(
    &[
        required("stream", Schema::Text, "Name of the stream"),
        required(
            "groups",
            Schema::List(&Schema::Object(
                &[
                    required("group", Schema::Text, "Name of the consumer group"),
                    required("partitions", Schema::List(&GROUP_OFFSET), "Partitions with an offset"),
                ],
                &[],
            )),
            "Consumer groups by name",
        ),
        NEXT,
    ],
    &[],
);

/// A new offset of a consumer group.
pub(super) const NEW_OFFSET: Schema = Schema::Object(
    &[
        optional("partition", Schema::Integer, "One partition; without it, all"),
        optional("offset", Schema::Integer, "Offset of the next record that the group gets"),
        optional("to", Schema::Text, "`earliest` or `latest`; either offset or to"),
    ],
    &["offset", "to"],
);

/// The changed offsets of a consumer group.
pub(super) const OFFSETS_SET: Schema = Schema::Object(
    &[
        required("stream", Schema::Text, "Name of the stream"),
        required("group", Schema::Text, "Name of the consumer group"),
        required("partitions", Schema::List(&GROUP_OFFSET), "The changed partitions"),
    ],
    &[],
);

pub(super) const NODE: Schema = Schema::Object(
    &[
        required("id", Schema::Text, "Random id of the process"),
        required("name", Schema::Text, "Name in the configuration, or the host name"),
        required("version", Schema::Text, "Version of the program"),
        required("uptime", Schema::Integer, "Seconds since the start"),
        required("connections", Schema::Integer, "Open connections of clients"),
        required("users", Schema::Integer, "Users of these connections: a user of two nodes counts at both"),
        required("topics", Schema::Integer, "Topics and patterns with subscribers"),
        required("self", Schema::Boolean, "The node that answers"),
    ],
    &[],
);
