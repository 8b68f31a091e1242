//! The kinds of events and commands, for JavaScript.

use napi_derive::napi;
use sinews_bindings::EventKind;
use sinews_bindings::server::ServerEvent;

/// A text message.
#[napi]
pub const TEXT: u32 = EventKind::Text as u32;

/// A binary message.
#[napi]
pub const BINARY: u32 = EventKind::Binary as u32;

/// A ping.
#[napi]
pub const PING: u32 = EventKind::Ping as u32;

/// A pong.
#[napi]
pub const PONG: u32 = EventKind::Pong as u32;

/// A WebSocket of a server has opened.
#[napi]
pub const OPEN: u32 = ServerEvent::Open as u32;

/// A server's connection has a short queue again.
#[napi]
pub const DRAIN: u32 = ServerEvent::Drain as u32;

/// A request waits for its response.
#[napi]
pub const REQUEST: u32 = ServerEvent::Request as u32;

/// The answer to a question.
#[napi]
pub const ANSWER: u32 = ServerEvent::Answer as u32;

/// A server's connection has a long queue. As a command: a message to it was dropped.
#[napi]
pub const SLOW: u32 = 6;

/// A server's connection has ended. As a command: start the closing handshake.
#[napi]
pub const CLOSE: u32 = ServerEvent::Close as u32;
