//! Integration tests of the server over loopback sockets.

mod appends;
mod attacks;
#[path = "../shared/backend.rs"]
mod backend;
mod embedded;
mod examples;
mod files;
mod flow;
mod history;
mod hooks;
mod http;
mod http2;
mod http3;
mod keyed;
mod later;
mod lifetime;
mod limits;
mod messages;
mod metrics;
mod million;
mod patterns;
mod presence;
mod proxies;
mod routes;
mod settings;
mod slow;
mod stalled;
mod stop;
mod streaming;
mod support;
mod tls;
mod topics;
mod unix;
mod upgrade;
mod websocket;
mod woken;
