//! HTTP/1.1 and WebSocket server on the Sinews engine.
#![forbid(unsafe_code)]

mod chunked;
mod date;
mod handler;
mod http;
mod mail;
mod request;
mod router;
mod server;
mod shard;
mod topics;
mod websocket;

pub use handler::{Context, Handler};
pub use http::HttpConfig;
pub use request::{Request, Response};
pub use router::{Router, WebSocketRoute};
pub use server::{BindError, BoundServer, Server, StopHandle};
pub use sinews_engine::{BackendChoice, Config as EngineConfig};
pub use sinews_proto::deflate::{DeflateConfig, DeflateMode};
pub use sinews_proto::handshake::{OriginPolicy, Refusal, ServerOptions};
pub use sinews_proto::http::HeadLimits;
pub use sinews_proto::{CloseCode, Config, Expired, Kind, Misuse, Overflow, PeerMisbehaved, PingRate};
pub use sinews_session::{Cause, Closed, Fragment, Payload, Prepared, Sent, Tx};
pub use topics::{InvalidTopic, Topics};
