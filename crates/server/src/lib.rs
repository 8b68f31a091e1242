//! HTTP/1.1 and WebSocket on one event loop for each core: routes, handlers, topics.
//!
//! ```text
//!   listener ─▶ shard (a thread) ─▶ HTTP: any method ─▶ Router ─▶ Response, at once or later; Files
//!                 │                   │ upgrade
//!                 │                   ▼
//!                 │                WebSocket ─▶ Handler: open, message, drain, close
//!                 │                   ▲                 │ Context: send, subscribe, publish
//!                 ├─ topics ──────────┴─────────────────┘
//!                 └─ mail to the other shards: what is published, stop
//! ```
//!
//! A connection lives on one thread from its first byte to its last, and so does its [`Handler`]; nothing is
//! shared between threads but the names of topics. What a burst of messages is answered with leaves in one
//! send, and so does what a burst of publications brings a subscriber. A handler that sends more than its
//! peer takes is not asked for more until the peer has caught up ([`Config::high_water`]).
//!
//! ```
//! use sinews_server::{
//!     Context, Handler, Payload, Prepared, Response, Router, Server, WebSocketRoute,
//! };
//!
//! /// What one says, all hear.
//! struct Chat;
//!
//! impl Handler for Chat {
//!     fn open(&mut self, cx: &mut Context<'_>) {
//!         // Fails for names that may not be, and this one may.
//!         let _ = cx.subscribe("room");
//!     }
//!
//!     fn message(&mut self, payload: Payload<'_>, cx: &mut Context<'_>) {
//!         let message = Prepared::new(payload.kind(), payload.detach());
//!         let _ = cx.publish("room", &message);
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
//! A plain request is answered with a [`Response`] that is there, or with an [`Answer`] that comes later: a future on the
//! connection's thread, or work that may block on a pool. [`Files`] serves a directory; [`Router::before`] and
//! [`Router::after`] guard and change what others answer.
//!
//! Browsers may connect from pages of the same origin unless [`ServerOptions::with_origin`] says otherwise.
//! Limits and waits: [`HttpConfig`] before the upgrade, [`Config`] behind it, [`TopicConfig`] for what is published,
//! [`TopicRule`] for those who are slow to take it, [`Limits`] for the server as a whole.
//! Other threads publish with a [`Publisher`]. What happens is counted: [`Monitor`], and [`Router::metrics`] for
//! Prometheus.
#![forbid(unsafe_code)]

mod answer;
mod appends;
mod asset;
mod chunked;
mod client;
mod compress;
mod date;
mod files;
mod handler;
mod hooks;
mod http;
mod inherit;
mod limits;
mod listen;
mod mail;
mod messages;
mod metrics;
mod pool;
mod proxy;
mod request;
mod router;
mod server;
mod shard;
mod tasks;
mod tls;
mod topics;
mod websocket;

pub use answer::Answer;
pub use appends::{AppendJob, Appender};
pub use asset::Asset;
pub use client::TrustedProxies;
pub use files::Files;
pub use handler::{Context, Handler};
pub use hooks::{Compression, Cors, redact_credentials};
pub use http::HttpConfig;
pub use inherit::{ListenAddress, Listeners};
pub use ipnet::IpNet;
pub use limits::{Limit, Limits, WhenFull};
pub use listen::Listen;
pub use messages::MessageRoute;
pub use metrics::{ConnectionEnd, Dropped, Metrics, Monitor, NotReady, Process, Reason, Tally, WebSocketEnd};
pub use pool::{BlockingConfig, BlockingPool, NotRun};
pub use request::{OwnedRequest, Request, Response};
pub use router::{Router, WebSocketRoute};
pub use server::{BindError, BoundServer, Server, StopHandle};
pub use sinews_engine::{BackendChoice, Config as EngineConfig, Stats};
pub use sinews_proto::deflate::{DeflateConfig, DeflateMode};
pub use sinews_proto::handshake::{OriginPolicy, Refusal, ServerOptions};
pub use sinews_proto::http::HeadLimits;
pub use sinews_proto::{
    CloseCode, Config, Expired, InvalidConfig, Kind, Misuse, Overflow, PeerMisbehaved, PingRate,
};
pub use sinews_session::{Cause, Closed, Fragment, Payload, Prepared, Sent, Tx};
pub use tls::{Certificates, InvalidTls, TlsConfig};
pub use topics::backlog::{DropReason, Missed};
pub use topics::{
    History, InvalidTopic, Joined, KeptMessage, KeptTopic, Position, PublishError, Publisher, SlowConsumer,
    Start, SubscriptionChange, TopicConfig, TopicCounters, TopicRule, Topics, Unreached,
};
