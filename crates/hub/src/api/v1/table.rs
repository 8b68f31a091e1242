//! The operations.

use super::operation::{
    Operation, OperationHandler, Parameter, RequestBody, Schema, in_head, in_path, in_query, optional,
    required,
};
use super::schemas::{
    B64, BROADCAST_RESULTS, COMMANDED, CONNECTION, DATA, HISTORY_MESSAGE, KEY_FIELDS, KEY_WRITE, KEY_WRITTEN,
    KEYS_WRITTEN, MESSAGE, MISSING, NEW_OFFSET, NEXT, NODE, OFFSETS_SET, ONCE, RESULT, RESULTS, STREAM,
    STREAM_CHANGE, STREAM_GROUPS_LISTED, STREAM_INFO, SUBSCRIPTION, USER,
};
use super::{connections, keys, openapi, publish, server, streams, topics};
use crate::auth::ApiRight;

const TOPIC: Parameter = in_path("topic", "Name of the topic", "chat.room");
const KEY: Parameter = in_path("key", "Name of the key", "anna");
const AFTER: Parameter =
    in_query("after", Schema::Text, "Start of the page: the last name of the page before");
const IF_MATCH: Parameter =
    in_head("If-Match", "Write only if the key has this ETag; with `*`, only if the key exists");
const IF_NONE_MATCH: Parameter = in_head("If-None-Match", "With `*`: write only if the key does not exist");
const IDEMPOTENCY_KEY: Parameter =
    in_head("Idempotency-Key", "A second write of the key with the same value changes nothing");

const STREAM_NAME: Parameter = in_path("stream", "Name of the stream", "orders");
const GROUP_NAME: Parameter = in_path("group", "Name of the consumer group", "billing");

const fn limit(help: &'static str) -> Parameter {
    in_query("limit", Schema::Integer, help)
}

/// All operations, in the order of the document.
pub(super) static OPERATIONS: &[Operation] = &[
    Operation {
        method: "GET",
        path: "/openapi.json",
        name: "getDocument",
        summary: "This document",
        right: None,
        parameters: &[],
        body: None,
        answer: &Schema::Any,
        execute: OperationHandler::Open(openapi::get),
    },
    Operation {
        method: "POST",
        path: "/publish",
        name: "publish",
        summary: "Publish a message to a topic",
        right: Some(ApiRight::Publish),
        parameters: &[],
        body: Some(RequestBody {
            schema: MESSAGE,
            example: r#"{"topic":"chat.room","data":{"text":"hello"}}"#,
        }),
        answer: &RESULT,
        execute: OperationHandler::WithRights(publish::publish),
    },
    Operation {
        method: "POST",
        path: "/batch",
        name: "publishBatch",
        summary: "Publish up to 1,000 messages; each has its own result",
        right: Some(ApiRight::Publish),
        parameters: &[],
        body: Some(RequestBody {
            schema: Schema::Object(
                &[required("messages", Schema::List(&MESSAGE), "The messages, in order")],
                &[],
            ),
            example: r#"{"messages":[{"topic":"chat.room","data":"one"},{"topic":"chat.hall","b64":"AP8="}]}"#,
        }),
        answer: &RESULTS,
        execute: OperationHandler::WithRights(publish::batch),
    },
    Operation {
        method: "POST",
        path: "/broadcast",
        name: "broadcast",
        summary: "Publish a message to up to 1,000 topics, by name or by pattern",
        right: Some(ApiRight::Publish),
        parameters: &[],
        body: Some(RequestBody {
            schema: Schema::Object(
                &[
                    optional(
                        "topics",
                        Schema::List(&Schema::Text),
                        "Names of topics; either topics or pattern",
                    ),
                    optional(
                        "pattern",
                        Schema::Text,
                        "All topics that match and have subscribers by name or a history, on any node",
                    ),
                    DATA,
                    B64,
                    ONCE,
                ],
                &["topics", "pattern"],
            ),
            example: r#"{"topics":["chat.room","chat.hall"],"data":"maintenance at noon"}"#,
        }),
        answer: &BROADCAST_RESULTS,
        execute: OperationHandler::WithRights(publish::broadcast),
    },
    Operation {
        method: "GET",
        path: "/topics",
        name: "listTopics",
        summary: "List topics that have subscribers by name or a history",
        right: Some(ApiRight::Read),
        parameters: &[
            in_query("filter", Schema::Text, "Only topics that match this pattern"),
            AFTER,
            limit("Topics of a page, at most 1,000, which is the default"),
        ],
        body: None,
        answer: &Schema::Object(
            &[
                required(
                    "topics",
                    Schema::List(&Schema::Object(
                        &[
                            required("topic", Schema::Text, "Name of the topic"),
                            required("subscribers", Schema::Integer, "Number of subscriptions by name"),
                        ],
                        &[],
                    )),
                    "Topics in order of their names",
                ),
                NEXT,
                MISSING,
            ],
            &[],
        ),
        execute: OperationHandler::WithRights(topics::list),
    },
    Operation {
        method: "GET",
        path: "/topics/{topic}/presence",
        name: "getPresence",
        summary: "Number of subscribers and members of a topic",
        right: Some(ApiRight::Presence),
        parameters: &[TOPIC],
        body: None,
        answer: &Schema::Object(
            &[
                required("topic", Schema::Text, "The topic"),
                required("subscribers", Schema::Integer, "Number of present connections"),
                required("members", Schema::Integer, "Number of members"),
                required("at", Schema::Integer, "Number of changes so far"),
            ],
            &[],
        ),
        execute: OperationHandler::WithRights(topics::presence),
    },
    Operation {
        method: "GET",
        path: "/topics/{topic}/members",
        name: "listMembers",
        summary: "List the members of a topic",
        right: Some(ApiRight::Presence),
        parameters: &[TOPIC, AFTER, limit("Members of a page, at most 256, which is the default")],
        body: None,
        answer: &Schema::Object(
            &[
                required("topic", Schema::Text, "The topic"),
                required(
                    "members",
                    Schema::List(&Schema::Object(
                        &[
                            required("id", Schema::Text, "Id of the member"),
                            optional("info", Schema::Any, "Info of the member"),
                        ],
                        &[],
                    )),
                    "Members in order of their ids",
                ),
                NEXT,
            ],
            &[],
        ),
        execute: OperationHandler::WithRights(topics::members),
    },
    Operation {
        method: "GET",
        path: "/topics/{topic}/history",
        name: "getHistory",
        summary: "Retained messages of a topic, at most 1,000",
        right: Some(ApiRight::Read),
        parameters: &[
            TOPIC,
            in_query("last", Schema::Integer, "Number of messages before the end; without it, all"),
            in_query("epoch", Schema::Integer, "With seq: messages after this position"),
            in_query("seq", Schema::Integer, "With epoch: messages after this position"),
        ],
        body: None,
        answer: &Schema::Object(
            &[
                required("topic", Schema::Text, "The topic"),
                required("messages", Schema::List(&HISTORY_MESSAGE), "Messages as subscribers receive them"),
            ],
            &[],
        ),
        execute: OperationHandler::WithRights(topics::history),
    },
    Operation {
        method: "GET",
        path: "/topics/{topic}/keys",
        name: "listKeys",
        summary: "List the keys of a topic",
        right: Some(ApiRight::Read),
        parameters: &[
            TOPIC,
            in_query("filter", Schema::Text, "Only keys that match this pattern"),
            AFTER,
            limit("Keys of a page, at most 1,000, which is the default"),
        ],
        body: None,
        answer: &Schema::Object(
            &[
                required("topic", Schema::Text, "The topic"),
                required("epoch", Schema::Integer, "Epoch of the topic's keys"),
                required("seq", Schema::Integer, "Sequence of the last change"),
                required("keys", Schema::List(&KEY_FIELDS), "Keys in order of their names"),
                required("more", Schema::Boolean, "More keys follow: pass the last key as `after`"),
            ],
            &[],
        ),
        execute: OperationHandler::WithRights(topics::keys),
    },
    Operation {
        method: "POST",
        path: "/topics/{topic}/keys",
        name: "writeKeys",
        summary: "Set and delete up to 1,000 keys of a topic; each has its own result",
        right: Some(ApiRight::Keys),
        parameters: &[TOPIC],
        body: Some(RequestBody {
            schema: Schema::Object(
                &[required("writes", Schema::List(&KEY_WRITE), "The writes, in order")],
                &[],
            ),
            example: r#"{"writes":[{"key":"anna","data":{"x":10}},{"key":"ben","delete":true}]}"#,
        }),
        answer: &KEYS_WRITTEN,
        execute: OperationHandler::WithRights(keys::write),
    },
    Operation {
        method: "PUT",
        path: "/topics/{topic}/keys/{key}",
        name: "setKey",
        summary: "Set a key of a topic",
        right: Some(ApiRight::Keys),
        parameters: &[TOPIC, KEY, IF_MATCH, IF_NONE_MATCH, IDEMPOTENCY_KEY],
        body: Some(RequestBody {
            schema: Schema::Object(
                &[
                    optional("data", Schema::Any, "The value as JSON; either data or b64"),
                    optional("b64", Schema::Text, "The value as bytes in base64; either data or b64"),
                    optional("ttl", Schema::Integer, "Milliseconds until the key expires"),
                ],
                &["data", "b64"],
            ),
            example: r#"{"data":{"x":10,"y":20},"ttl":60000}"#,
        }),
        answer: &KEY_WRITTEN,
        execute: OperationHandler::WithRights(topics::set_key),
    },
    Operation {
        method: "GET",
        path: "/topics/{topic}/keys/{key}",
        name: "getKey",
        summary: "Read a key of a topic",
        right: Some(ApiRight::Read),
        parameters: &[TOPIC, KEY],
        body: None,
        answer: &Schema::Object(
            &[
                required("topic", Schema::Text, "The topic"),
                required("epoch", Schema::Integer, "Epoch of the topic's keys"),
                required("key", Schema::Text, "Name of the key"),
                required("version", Schema::Integer, "Sequence of its last change"),
                optional("data", Schema::Any, "Value as JSON"),
                optional("b64", Schema::Text, "Value as bytes in base64"),
            ],
            &[],
        ),
        execute: OperationHandler::WithRights(topics::key),
    },
    Operation {
        method: "DELETE",
        path: "/topics/{topic}/keys/{key}",
        name: "deleteKey",
        summary: "Delete a key of a topic",
        right: Some(ApiRight::Keys),
        parameters: &[TOPIC, KEY, IF_MATCH, IDEMPOTENCY_KEY],
        body: None,
        answer: &KEY_WRITTEN,
        execute: OperationHandler::WithRights(topics::delete_key),
    },
    Operation {
        method: "GET",
        path: "/connections",
        name: "listConnections",
        summary: "List connections in the order of their opening",
        right: Some(ApiRight::Disconnect),
        parameters: &[
            in_query("user", Schema::Text, "Only connections of this user"),
            in_query("after", Schema::Text, "Start of the page: `next` of the page before"),
            in_query(
                "slow",
                Schema::Boolean,
                "Only connections with at least 16 KiB that wait for the client, the most bytes first, without pages",
            ),
            limit("Connections of a page, at most 1,000, which is the default"),
        ],
        body: None,
        answer: &Schema::Object(
            &[
                required(
                    "connections",
                    Schema::List(&Schema::Object(
                        &[
                            required("connection", Schema::Text, "Id of the connection"),
                            required("path", Schema::Text, "Route of the connection"),
                            required("opened", Schema::Integer, "Time of opening in milliseconds since 1970"),
                            required(
                                "queued",
                                Schema::Integer,
                                "Bytes that wait for a slow client; 0 if they are fewer than 16 KiB",
                            ),
                            optional("user", Schema::Text, "User: the `sub` of the token"),
                            optional("address", Schema::Text, "Address of the client"),
                        ],
                        &[],
                    )),
                    "The connections",
                ),
                NEXT,
                MISSING,
            ],
            &[],
        ),
        execute: OperationHandler::WithRights(connections::list),
    },
    Operation {
        method: "POST",
        path: "/subscribe",
        name: "subscribe",
        summary: "Subscribe the connections of a user, or one connection, to a topic",
        right: Some(ApiRight::Subscribe),
        parameters: &[],
        body: Some(RequestBody { schema: SUBSCRIPTION, example: r#"{"topic":"orders.7","user":"anna"}"# }),
        answer: &COMMANDED,
        execute: OperationHandler::WithRights(connections::subscribe),
    },
    Operation {
        method: "POST",
        path: "/unsubscribe",
        name: "unsubscribe",
        summary: "End a subscription of the connections of a user, or of one connection",
        right: Some(ApiRight::Subscribe),
        parameters: &[],
        body: Some(RequestBody { schema: SUBSCRIPTION, example: r#"{"topic":"orders.7","user":"anna"}"# }),
        answer: &COMMANDED,
        execute: OperationHandler::WithRights(connections::unsubscribe),
    },
    Operation {
        method: "POST",
        path: "/disconnect",
        name: "disconnect",
        summary: "Close the connections of a user, or one connection",
        right: Some(ApiRight::Disconnect),
        parameters: &[],
        body: Some(RequestBody {
            schema: Schema::Object(
                &[
                    USER,
                    CONNECTION,
                    optional("code", Schema::Integer, "Close code from 4000 to 4999; default: 4410"),
                    optional("reason", Schema::Text, "Reason of the Close, at most 123 bytes"),
                ],
                &["user", "connection"],
            ),
            example: r#"{"user":"anna","reason":"the account is closed"}"#,
        }),
        answer: &Schema::Object(
            &[required("connections", Schema::Integer, "Number of connections that are closed"), MISSING],
            &[],
        ),
        execute: OperationHandler::WithRights(connections::disconnect),
    },
    Operation {
        method: "POST",
        path: "/refresh",
        name: "refresh",
        summary: "Change the rights of the connections of a user, of one connection, or of the connections of one token",
        right: Some(ApiRight::Refresh),
        parameters: &[],
        body: Some(RequestBody {
            schema: Schema::Object(
                &[
                    USER,
                    CONNECTION,
                    optional("token", Schema::Text, "The connections of the token with this id (`jti`)"),
                    optional(
                        "claims",
                        Schema::Any,
                        "Claims, as of a token, that replace the rights; either claims or exp",
                    ),
                    optional(
                        "exp",
                        Schema::Integer,
                        "New expiry of the rights in seconds since 1970; either claims or exp",
                    ),
                ],
                &["user", "connection", "token"],
            ),
            example: r#"{"user":"anna","claims":{"sub":"anna","subscribe":"news.>","exp":1900000000}}"#,
        }),
        answer: &Schema::Object(
            &[required("connections", Schema::Integer, "Number of connections whose rights change"), MISSING],
            &[],
        ),
        execute: OperationHandler::WithRights(connections::refresh),
    },
    Operation {
        method: "POST",
        path: "/revoke",
        name: "revoke",
        summary: "Revoke the tokens of a user, or one token, and close their connections",
        right: Some(ApiRight::Disconnect),
        parameters: &[],
        body: Some(RequestBody {
            schema: Schema::Object(
                &[
                    optional(
                        "user",
                        Schema::Text,
                        "The user's tokens (`sub`) that were issued (`iat`) until now",
                    ),
                    optional("token", Schema::Text, "The token with this id (`jti`)"),
                    optional(
                        "until",
                        Schema::Integer,
                        "End of the revocation in seconds since 1970, within 366 days; default: in 24 hours",
                    ),
                ],
                &["user", "token"],
            ),
            example: r#"{"user":"anna"}"#,
        }),
        answer: &Schema::Object(
            &[
                required("connections", Schema::Integer, "Number of connections that are closed"),
                required("until", Schema::Integer, "End of the revocation in seconds since 1970"),
                MISSING,
            ],
            &[],
        ),
        execute: OperationHandler::WithRights(connections::revoke),
    },
    Operation {
        method: "GET",
        path: "/info",
        name: "getInfo",
        summary: "Version and load of the server",
        right: Some(ApiRight::Admin),
        parameters: &[],
        body: None,
        answer: &Schema::Object(
            &[
                required("version", Schema::Text, "Version of the server"),
                required("commit", Schema::Text, "Commit of the server; empty if unknown"),
                required("node", Schema::Text, "Host name"),
                required("uptime", Schema::Integer, "Seconds since the start"),
                required("threads", Schema::Integer, "Number of event loops"),
                required("connections", Schema::Integer, "Open TCP connections"),
                required("websockets", Schema::Integer, "Open WebSockets"),
                required("messages_sent", Schema::Integer, "Messages sent since the start"),
                required("messages_received", Schema::Integer, "Messages received since the start"),
                required(
                    "resident_bytes",
                    Schema::IntegerOrNull,
                    "Memory of the process in bytes; null if unknown",
                ),
                required("streams", Schema::Boolean, "Durable streams are enabled"),
            ],
            &[],
        ),
        execute: OperationHandler::WithRights(server::info),
    },
    Operation {
        method: "GET",
        path: "/nodes",
        name: "listNodes",
        summary: "List the nodes of the cluster; one if the server is alone",
        right: Some(ApiRight::Admin),
        parameters: &[],
        body: None,
        answer: &Schema::Object(
            &[
                required("connected", Schema::Boolean, "The broker of the cluster is connected"),
                required("nodes", Schema::List(&NODE), "Nodes by name"),
            ],
            &[],
        ),
        execute: OperationHandler::WithRights(server::nodes),
    },
    Operation {
        method: "GET",
        path: "/streams",
        name: "listStreams",
        summary: "List durable streams and their offsets",
        right: Some(ApiRight::Read),
        parameters: &[],
        body: None,
        answer: &Schema::Object(&[required("streams", Schema::List(&STREAM), "Streams by name")], &[]),
        execute: OperationHandler::WithRights(streams::list),
    },
    Operation {
        method: "DELETE",
        path: "/streams/{stream}",
        name: "deleteStream",
        summary: "Delete a durable stream with its records",
        right: Some(ApiRight::Admin),
        parameters: &[STREAM_NAME],
        body: None,
        answer: &Schema::Object(
            &[
                required("stream", Schema::Text, "Name of the stream"),
                required("deleted", Schema::Boolean, "Always true"),
            ],
            &[],
        ),
        execute: OperationHandler::WithRights(streams::delete),
    },
    Operation {
        method: "GET",
        path: "/streams/{stream}",
        name: "getStream",
        summary: "Offsets and configuration of a durable stream",
        right: Some(ApiRight::Read),
        parameters: &[STREAM_NAME],
        body: None,
        answer: &STREAM_INFO,
        execute: OperationHandler::WithRights(streams::get),
    },
    Operation {
        method: "PUT",
        path: "/streams/{stream}",
        name: "putStream",
        summary: "Create a durable stream, or change its configuration; a field that is missing stays as it is",
        right: Some(ApiRight::Admin),
        parameters: &[STREAM_NAME],
        body: Some(RequestBody {
            schema: STREAM_CHANGE,
            example: r#"{"partitions":2,"retain_seconds":604800}"#,
        }),
        answer: &STREAM_INFO,
        execute: OperationHandler::WithRights(streams::put),
    },
    Operation {
        method: "GET",
        path: "/streams/{stream}/groups",
        name: "listGroups",
        summary: "List the consumer groups of a durable stream with their offsets and lags",
        right: Some(ApiRight::Read),
        parameters: &[STREAM_NAME],
        body: None,
        answer: &STREAM_GROUPS_LISTED,
        execute: OperationHandler::WithRights(streams::groups),
    },
    Operation {
        method: "PUT",
        path: "/streams/{stream}/groups/{group}",
        name: "setGroupOffset",
        summary: "Set the committed offset of a consumer group without members",
        right: Some(ApiRight::Admin),
        parameters: &[STREAM_NAME, GROUP_NAME],
        body: Some(RequestBody { schema: NEW_OFFSET, example: r#"{"partition":0,"offset":1}"# }),
        answer: &OFFSETS_SET,
        execute: OperationHandler::WithRights(streams::set_offset),
    },
    Operation {
        method: "DELETE",
        path: "/streams/{stream}/groups/{group}",
        name: "deleteGroup",
        summary: "Delete the committed offsets of a consumer group without members",
        right: Some(ApiRight::Admin),
        parameters: &[STREAM_NAME, GROUP_NAME],
        body: None,
        answer: &Schema::Object(
            &[
                required("stream", Schema::Text, "Name of the stream"),
                required("group", Schema::Text, "Name of the consumer group"),
                required("deleted", Schema::Boolean, "Always true"),
            ],
            &[],
        ),
        execute: OperationHandler::WithRights(streams::delete_group),
    },
];
