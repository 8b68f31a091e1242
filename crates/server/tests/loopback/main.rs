//! The server over real sockets of the loopback.

mod flow;
mod http;
mod lifetime;
mod stop;
mod support;
mod topics;
mod upgrade;
mod websocket;
