//! HTTP and WebSocket server on one event loop per core: routes, handlers, topics. It speaks HTTP/1.1, HTTP/2 (over TLS
//! by default) and HTTP/3 (experimental, off by default).
//!
//! ```text
//!   listener ─▶ worker (a thread) ▶ HTTP: any method ─▶ Router ─▶ Response, at once or later; Files
//!                 │                   │ upgrade
//!                 │                   ▼
//!                 │                WebSocket ─▶ Handler: open, message, drain, close
//!                 │                   ▲                 │ Context: send, subscribe, publish
//!                 ├─ topics ──────────┴─────────────────┘
//!                 └─ mail to the other workers: publications, stop
//! ```
//!
//! A connection and its [`Handler`] stay on one thread. Threads share only the directory of topics. All answers to a
//! burst of messages leave in one send, and so do all publications of a burst to a subscriber. When a handler sends
//! more than its peer takes, reads of its connection pause until the peer has caught up ([`Config::high_water`]).
//!
//! ```
//! use sinews_server::{
//!     Context, Handler, Payload, Prepared, PublishOptions, Response, Router, Server, WebSocketRoute,
//! };
//!
//! /// Broadcasts each message to all clients.
//! struct Chat;
//!
//! impl Handler for Chat {
//!     fn open(&mut self, cx: &mut Context<'_>) {
//!         // Fails for an invalid name, or beyond the limit of subscriptions.
//!         let _ = cx.subscribe("room");
//!     }
//!
//!     fn message(&mut self, payload: Payload<'_>, cx: &mut Context<'_>) {
//!         let message = Prepared::new(payload.kind(), payload.detach());
//!         let _ = cx.publish("room", &message, PublishOptions::new());
//!     }
//! }
//!
//! let router = Router::new()
//!     .get("/", |_| Response::text("open a WebSocket at /chat\n"))
//!     .websocket("/chat", WebSocketRoute::new(|_request| Ok(Chat)));
//! let server = Server::new(router).listen("127.0.0.1:0".parse()?).bind()?;
//! println!("listening on {}", server.addresses()[0]);
//! # server.stop_handle().stop();
//! server.run()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A plain request is answered with a [`Response`], or with an [`Answer`] that completes later: a future on the
//! connection's thread, or blocking work on a pool. A [`StreamingResponse`] stays open and carries the messages of a
//! [`Handler`], for clients without WebSocket. `Files` serves a directory. [`Router::before`] and
//! [`Router::after`] guard routes and change their answers.
//!
//! Browsers may connect from pages of the same origin unless [`ServerOptions::with_origin`] allows more. Limits and
//! timeouts: [`HttpConfig`] for HTTP, [`Config`] for WebSocket, [`TopicConfig`] for publications, [`TopicRule`] for
//! slow subscribers, [`Limits`] for the server as a whole. Other threads publish with a [`Publisher`]. Metrics:
//! [`Monitor`], and [`Router::metrics`] for Prometheus.
//!
//! # Features
//!
//! * `files` (default): `Files` and `Router::files`, which serve a directory.
//! * `http3`: HTTP/3 over QUIC, which is experimental. Without it, a listener of HTTP/3 cannot be bound.
#![forbid(unsafe_code)]
// What only an omitted feature uses is dead code. The build with all features finds dead code.
#![cfg_attr(not(feature = "files"), allow(dead_code))]

mod answer;
mod appends;
mod asset;
mod client;
mod compress;
mod date;
mod decode;
pub mod escape;
mod exchange;
#[cfg(feature = "files")]
mod files;
mod fixed;
mod framing;
mod handler;
mod hooks;
mod http;
mod http3;
mod inherit;
mod limits;
mod listen;
mod log_limit;
mod messages;
mod metrics;
mod monitor;
mod peer;
mod pool;
mod proxy;
mod request;
mod router;
mod server;
mod shared;
mod socket;
mod subscriber;
mod tasks;
mod timer;
mod tls;
mod topics;
mod worker;

pub use answer::Answer;
pub use answer::streaming::StreamingResponse;
pub use appends::{AppendJob, Appender};
pub use asset::Asset;
pub use client::TrustedProxies;
#[cfg(feature = "files")]
pub use files::Files;
pub use handler::{Context, Handler};
pub use hooks::{Compression, Cors, describe_pem_error, redact_credentials, redact_urls};
pub use http::HttpConfig;
pub use http3::Http3Limits;
pub use inherit::Listeners;
pub use ipnet::IpNet;
pub use limits::{Limits, WhenFull};
pub use listen::{Listen, ListenAddress};
pub use log_limit::LogLimit;
pub use messages::MessageRoute;
pub use metrics::limit::Limit;
pub use metrics::{
    ConnectionEnd, Dropped, Http2Fault, MetricReason, Metrics, ProcessMetrics, ReasonCounts, WebSocketEnd,
};
pub use monitor::{Monitor, NotReady};
pub use pool::{BlockingConfig, BlockingPool, JobRejected};
pub use request::{BodySource, OwnedRequest, Request, Response, query_pairs};
pub use router::{Router, WebSocketRoute};
pub use server::{BindError, BoundServer, EmbeddedServer, Server, StopHandle};
pub use sinews_engine::{BackendChoice, EngineConfig, NextTurn, Stats};
pub use sinews_http::{HeadLimits, end_event, write_event_data, write_event_field};
pub use sinews_proto::deflate::{DeflateConfig, DeflateMode};
pub use sinews_proto::handshake::{OriginPolicy, Refusal, ServerOptions};
pub use sinews_proto::{
    BodyFormat, BodyPrefix, CloseCode, Config, Expired, InvalidConfig, Kind, Misuse, Overflow,
    PeerMisbehaved, PingRate,
};
pub use sinews_session::{Cause, Closed, Fragment, Payload, Prepared, Sent, Tx};
pub use tls::{Certificates, InvalidTls, TlsConfig};
pub use topics::{
    DropReason, DroppedMessages, HistoryPage, HistoryPolicy, HistoryQuery, InvalidTopic, KeyChange,
    KeyCondition, KeyError, KeyLog, KeyLogError, KeyPage, KeySnapshot, KeySubscription, KeyWrite, KeyWritten,
    KeyedConfig, KeyedSnapshot, KeyedUpdate, KeysSubscribed, ListedKeyedTopic, ListedTopic, LoggedChange,
    Member, MemberPage, OwnChanges, OwnPresence, Position, PresenceChangeList, PresenceCount, PresenceError,
    PresenceInterval, PresenceMessage, PresencePart, PresenceSnapshot, PresenceTransition, PresenceUpdate,
    PublishError, PublishOptions, Publisher, RecentKeyWrite, ReplayFrom, ReplicaError, RetainedMessage,
    SlowConsumer, StoredHistory, StoredMessage, Subscribed, SubscriberId, SubscriptionObserver, TopicConfig,
    TopicCounters, TopicName, TopicPattern, TopicPresence, TopicRule, TopicSnapshot, Topics, Undelivered,
};
