//! Blocking sockets.
#![cfg(feature = "blocking")]

mod absence;
mod sockets;
#[cfg(all(feature = "url-connect", any(feature = "rustls", feature = "native-tls")))]
mod tls;
