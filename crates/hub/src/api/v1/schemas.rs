//! Answer fields and schemas.

use crate::model::schema::{Described as _, Field, Schema, optional, required};
use crate::streams::json::{GroupLags, ListedStream, OffsetLag};

/// Fields of a publication's result.
pub(super) const RESULT: Schema = Schema::Object(&[
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
    optional(
        "stored",
        Schema::Boolean,
        "`false`: the topic store is away, and the message was delivered without it",
    ),
    optional("repeated", Schema::Boolean, "An earlier publication had the same idempotency key"),
    optional("code", Schema::Integer, "Status of a message that was not published, in a list of results"),
    optional("error", Schema::Text, "What failed"),
    optional("needs", Schema::Any, "The right that the key lacks"),
]);
pub(super) const RESULTS: Schema = Schema::Object(&[required(
    "results",
    Schema::List(&RESULT),
    "Results in the order of the messages or topics",
)]);

pub(super) const BROADCAST_RESULTS: Schema = Schema::Object(&[
    required(
        "results",
        Schema::List(&RESULT),
        "A result for each topic: in the order of the names, or of all topics that match, on all nodes",
    ),
    MISSING,
]);

pub(super) const COMMANDED: Schema = Schema::Object(&[
    required(
        "results",
        Schema::List(&Schema::Object(&[
            required("connection", Schema::Text, "Id of the connection"),
            optional("code", Schema::Integer, "Status of a connection that did not execute the command"),
            optional("error", Schema::Text, "What failed"),
        ])),
        "A result for each open connection, on all nodes; none if the user has no connection",
    ),
    MISSING,
]);

pub(super) const NEXT: Field =
    optional("next", Schema::Text, "`after` of the next page; missing on the last page");

pub(super) const MISSING: Field = optional(
    "missing_nodes",
    Schema::List(&Schema::Text),
    "Nodes of the cluster that have not answered in time",
);

pub(super) const KEY_FIELDS: Schema = Schema::Object(&[
    required("key", Schema::Text, "Name of the key"),
    required("version", Schema::Integer, "Sequence of its last change"),
    optional("data", Schema::Any, "Value as JSON"),
    optional("b64", Schema::Text, "Value as bytes in base64"),
]);
pub(super) const KEY_WRITTEN: Schema = Schema::Object(&[
    required("topic", Schema::Text, "The topic"),
    required("key", Schema::Text, "The key"),
    required("epoch", Schema::Integer, "Epoch of the topic's keys"),
    required("seq", Schema::Integer, "Sequence of the change"),
    optional("changed", Schema::Boolean, "`false`: the key did not exist, so nothing was deleted"),
    optional("repeated", Schema::Boolean, "An earlier write had the same idempotency key"),
]);

/// Results of several key writes.
pub(super) const KEYS_WRITTEN: Schema = Schema::Object(&[required(
    "results",
    Schema::List(&Schema::Object(&[
        required("key", Schema::Text, "The key"),
        optional("epoch", Schema::Integer, "Epoch of the topic's keys"),
        optional("seq", Schema::Integer, "Sequence of the change"),
        optional("changed", Schema::Boolean, "`false`: the key did not exist, so nothing was deleted"),
        optional("repeated", Schema::Boolean, "An earlier write had the same idempotency key"),
        optional("code", Schema::Integer, "Status of a write that has failed"),
        optional("error", Schema::Text, "What failed"),
    ])),
    "Results in the order of the writes",
)]);

/// A message as subscribers receive it.
pub(super) const HISTORY_MESSAGE: Schema = Schema::Object(&[
    required("op", Schema::Text, "Always `message`"),
    required("topic", Schema::Text, "The topic"),
    optional("epoch", Schema::Integer, "Epoch of the message's position"),
    optional("seq", Schema::Integer, "Sequence of the message"),
    optional("at", Schema::Integer, "Time of the publication in milliseconds since 1970"),
    optional("user", Schema::Text, "The user that has published, of a namespace with `sender`"),
    optional("info", Schema::Any, "The claim `info` of the token of this user"),
    optional("data", Schema::Any, "Content as JSON"),
    optional("b64", Schema::Text, "Content as bytes in base64"),
]);

/// What a client does, in the live view.
pub(super) const ACTIVITY: Schema = Schema::Object(&[
    required(
        "kind",
        Schema::Text,
        "`start` first; connect, close, subscribe, unsubscribe, subscribe_keys, unsubscribe_keys, publish, set, delete, \
         join, leave or reject; `omitted` each second if there was more than the rate",
    ),
    optional("at", Schema::Integer, "Time in milliseconds since 1970"),
    optional(
        "path",
        Schema::Text,
        "Route of the client; `backend` for the HTTP API and the embedding program",
    ),
    optional("connection", Schema::Text, "Id of the connection"),
    optional("user", Schema::Text, "User: the `sub` of the token"),
    optional("address", Schema::Text, "Address of the client"),
    optional("topic", Schema::Text, "Topic or pattern"),
    optional("key", Schema::Text, "Key of the topic"),
    optional("member", Schema::Text, "Id of the member"),
    optional("bytes", Schema::Integer, "Size of the message or value"),
    optional("json", Schema::Text, "Beginning of the message or value, as JSON text"),
    optional("text", Schema::Text, "Beginning of a message that is text"),
    optional("b64", Schema::Text, "Beginning of a binary message, in base64"),
    optional("cut", Schema::Boolean, "The message or value has more bytes"),
    optional("op", Schema::Text, "Rejected operation, or the reason of a rejected handshake"),
    optional("code", Schema::Integer, "Close code, or the status of the rejection"),
    optional("reason", Schema::Text, "Reason of the rejection"),
    optional("counts", Schema::Any, "With `omitted`: the numbers of actions that were left out, by kind"),
    optional("node", Schema::Text, "With `start`: the node, whose clients the view shows"),
    optional("nodes", Schema::Integer, "With `start`: the number of nodes"),
    optional("rate", Schema::Integer, "With `start`: actions of one kind in a second; of more, a sample"),
    optional("preview", Schema::Integer, "With `start`: bytes of a message that the view contains"),
]);

/// A connection in a list.
const LISTED_CONNECTION: Schema = Schema::Object(CONNECTION_FIELDS);

pub(super) const CONNECTIONS: Schema = Schema::List(&LISTED_CONNECTION);

const CONNECTION_FIELDS: &[Field] = &[
    required("connection", Schema::Text, "Id of the connection"),
    required("path", Schema::Text, "Route of the connection"),
    required("opened", Schema::Integer, "Time of opening in milliseconds since 1970"),
    required("queued", Schema::Integer, "Bytes that wait for a slow client; 0 if they are fewer than 16 KiB"),
    optional("user", Schema::Text, "User: the `sub` of the token"),
    optional("address", Schema::Text, "Address of the client"),
];

/// One connection.
pub(super) const CONNECTION_DETAILS: Schema = Schema::Extended(
    &LISTED_CONNECTION,
    &[
        optional("claims", Schema::Any, "Rights of the token or of a hook's claims; null: all rights"),
        optional(
            "subscriptions",
            Schema::List(&Schema::Object(&[
                required("topic", Schema::Text, "Topic or pattern"),
                optional("presence", Schema::Boolean, "The client follows the presence of the topic"),
                optional("keys", Schema::Boolean, "The subscription is one to the keys of the topic"),
                optional("by_server", Schema::Boolean, "The backend has subscribed the client"),
            ])),
            "Subscriptions of the client",
        ),
        optional(
            "joined",
            Schema::List(&Schema::Object(&[
                required("topic", Schema::Text, "The topic"),
                required("id", Schema::Text, "Id of the member"),
            ])),
            "Topics in which the client is a member",
        ),
    ],
);

/// The options of a topic.
pub(super) const TOPIC_OPTIONS: Schema = Schema::Object(&[
    required("topic", Schema::Text, "The topic"),
    required("namespaces", Schema::List(&Schema::Text), "Namespaces of the topic, the most specific first"),
    required("publish", Schema::Text, "Clients that may publish: anonymous, authenticated, token or nobody"),
    required("subscribe", Schema::Text, "Clients that may subscribe"),
    required("write_keys", Schema::Text, "Clients that may write keys"),
    required("keyed", Schema::Boolean, "Clients may use keys"),
    required("presence", Schema::Boolean, "Clients may join and see presence"),
    required("hooks", Schema::List(&Schema::Text), "Hooks that decide: subscribe, publish, rpc"),
    optional("history", Schema::Integer, "Messages that are retained"),
    optional("history_age", Schema::Integer, "Milliseconds for which they are retained"),
    optional("durable", Schema::Boolean, "Messages are stored in a stream"),
    optional("durable_keys", Schema::Boolean, "Keys are stored in a stream"),
    optional("key_interval", Schema::Integer, "Milliseconds between two updates of keys"),
    optional("key_ttl", Schema::Integer, "Milliseconds until a key expires"),
    optional("max_keys", Schema::Integer, "Maximum number of keys"),
    optional("max_message", Schema::Integer, "Maximum bytes of a message"),
    optional("publishes_per_second", Schema::Integer, "Rate of a connection's publications"),
    optional("user_publishes_per_second", Schema::Integer, "Rate of a user's publications"),
    optional("subscribes_per_second", Schema::Integer, "Rate of a connection's subscriptions"),
    optional("calls_per_second", Schema::Integer, "Rate of a connection's calls"),
]);

/// A stream with its configuration.
pub(super) const STREAM_INFO: Schema = Schema::Extended(
    &ListedStream::SCHEMA,
    &[
        optional("created", Schema::Integer, "Time of creation in milliseconds since 1970; not at a broker"),
        optional("retain_bytes", u64::OR_NULL, "Bytes of each partition that are retained"),
        optional("retain_seconds", u64::OR_NULL, "Age up to which records are retained"),
        optional("compact", Schema::Boolean, "The newest record of each key is retained"),
    ],
);

/// A stream's consumer groups.
pub(super) const STREAM_GROUPS_LISTED: Schema = Schema::Object(&[
    required("stream", Schema::Text, "Name of the stream"),
    required("groups", Schema::List(&GroupLags::SCHEMA), "Consumer groups by name"),
    NEXT,
]);

/// A consumer group's changed offsets.
pub(super) const OFFSETS_SET: Schema = Schema::Object(&[
    required("stream", Schema::Text, "Name of the stream"),
    required("group", Schema::Text, "Name of the consumer group"),
    required("partitions", Schema::List(&OffsetLag::SCHEMA), "The changed partitions"),
]);

pub(super) const NODE: Schema = Schema::Object(&[
    required("id", Schema::Text, "Random id of the process"),
    required("name", Schema::Text, "Name in the configuration, or the host name"),
    required("version", Schema::Text, "Version of the program"),
    required("uptime", Schema::Integer, "Seconds since the start"),
    required("connections", Schema::Integer, "Open connections of clients"),
    required("users", Schema::Integer, "Users of these connections: a user of two nodes counts at both"),
    required("topics", Schema::Integer, "Topics and patterns with subscribers"),
    required("store", Schema::Text, "The topic store and its promises; empty without one"),
    required("store_away", Schema::Boolean, "The topic store does not answer"),
    required("self", Schema::Boolean, "The node that answers"),
]);
