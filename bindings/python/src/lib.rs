//! The native part of the PyPI package `sinews`: a WebSocket connection in the caller's asyncio loop.
//!
//! [`Connection`](connection::Connection) reads its socket when the loop says that it is readable. One call from the
//! loop receives a burst, parses it and calls the handlers; one system call then sends the handlers' messages.
//! Connections that have no plain socket (TLS) are asyncio protocols on the loop's transport.
#![forbid(unsafe_code)]

use pyo3::prelude::*;

mod config;
mod connection;
mod driver;
mod events;
mod handshake;
#[cfg(target_os = "linux")]
mod poller;
mod protocol;
mod receiver;
mod server;
mod socket;
mod steps;

/// The native module of `sinews`.
#[pymodule]
mod _native {
    #[pymodule_export]
    use crate::config::Config;
    #[pymodule_export]
    use crate::connection::Connection;
    #[pymodule_export]
    use crate::handshake::{
        ClientHandshake, HandshakeError, Negotiation, accept, parse_request, parse_response,
    };
    #[cfg(target_os = "linux")]
    #[pymodule_export]
    use crate::poller::Poller;
    #[pymodule_export]
    use crate::receiver::Receiver;
    #[pymodule_export]
    use crate::server::NativeServer;
    use pyo3::prelude::*;
    use sinews_bindings::server::ServerEvent;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        for (name, kind) in [
            ("TEXT", ServerEvent::Text),
            ("BINARY", ServerEvent::Binary),
            ("OPEN", ServerEvent::Open),
            ("DRAIN", ServerEvent::Drain),
            ("REQUEST", ServerEvent::Request),
            ("ANSWER", ServerEvent::Answer),
            ("CLOSE", ServerEvent::Close),
            ("PONG", ServerEvent::Pong),
        ] {
            module.add(name, kind as u32)?;
        }
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
