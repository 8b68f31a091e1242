//! The server over real sockets of the loopback.

mod http;
mod support;
mod upgrade;
