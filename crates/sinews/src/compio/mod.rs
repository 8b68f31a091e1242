//! WebSocket on compio: buffers go down to the kernel by value and come home by value.

mod bridge;
mod drive;
mod halves;
mod socket;
mod split;
#[cfg(feature = "rustls")]
mod tls;
mod transport;
mod websocket;

pub use self::bridge::SyncBridge;
pub use self::split::{ReadHalf, ReuniteError, WriteHalf};
#[cfg(feature = "rustls")]
pub use self::tls::TlsStream;
pub use self::transport::Transport;
pub use self::websocket::WebSocket;
