//! Durable-stream clients and a temporary server, for `durable` and `first-byte`.

pub(crate) mod connection;
mod server;
mod transport;

pub(crate) use self::server::StreamServer;
pub(crate) use self::transport::{ProducerAck, StreamTransport};
