//! WebSocket on compio: buffers go down to the kernel by value and come home by value.

mod accept;
mod bridge;
mod connect;
mod drive;
mod halves;
mod socket;
mod split;
#[cfg(feature = "url-connect")]
mod stream;
#[cfg(feature = "rustls")]
mod tls;
mod transport;
mod websocket;
mod wire;

pub use self::accept::accept;
pub use self::bridge::SyncBridge;
pub use self::connect::{Compio, connect};
pub use self::split::{ReadHalf, ReuniteError, WriteHalf};
#[cfg(feature = "url-connect")]
pub use self::stream::Stream;
#[cfg(feature = "rustls")]
pub use self::tls::TlsStream;
pub use self::transport::Transport;
pub use self::websocket::WebSocket;
