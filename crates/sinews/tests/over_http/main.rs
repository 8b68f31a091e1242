//! Sockets that other HTTP servers hand over, and WebSockets over HTTP/2.

#[cfg(feature = "axum")]
mod axum;
#[cfg(any(feature = "axum", feature = "hyper"))]
mod client;
#[cfg(feature = "http2")]
mod http2;
#[cfg(all(feature = "http2-client", feature = "http2", feature = "url-connect"))]
mod http2_client;
#[cfg(feature = "http2")]
mod http2_servers;
#[cfg(all(feature = "http2-client", feature = "http2", feature = "tokio-rustls"))]
mod http2_tls;
#[cfg(feature = "hyper")]
mod hyper;
#[path = "../on_tokio/spawn.rs"]
mod spawn;
