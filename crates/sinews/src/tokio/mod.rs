//! WebSocket on Tokio: over anything that is `AsyncRead + AsyncWrite`.

mod drive;
mod pieces;
mod websocket;

pub use self::pieces::{MessageReader, MessageWriter};
pub use self::websocket::WebSocket;
