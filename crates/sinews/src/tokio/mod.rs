//! WebSocket on Tokio: over anything that is `AsyncRead + AsyncWrite`.

mod accept;
mod connect;
mod driver;
mod pieces;
mod sender;
mod split;
#[cfg(feature = "url-connect")]
mod stream;
mod websocket;

pub use self::accept::{Accepting, accept};
pub use self::connect::{Tokio, connect};
pub use self::pieces::{MessageReader, MessageWriter};
#[cfg(any(feature = "url-connect", feature = "hyper"))]
pub(crate) use self::split::sides::{MaybeTcp, reunite_sides, split_maybe_tcp, split_sides};
pub use self::split::{Locked, ReadHalf, ReuniteError, Split, WriteHalf};
#[cfg(any(feature = "url-connect", feature = "hyper"))]
pub use self::split::{ReadSide, WriteSide};
#[cfg(feature = "url-connect")]
pub use self::stream::Stream;
pub use self::websocket::WebSocket;
