//! WebSocket on Tokio: over anything that is `AsyncRead + AsyncWrite`.

mod drive;
mod websocket;

pub use self::websocket::WebSocket;
