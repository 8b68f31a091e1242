//! Migration from another library: corresponding names, and differences in behavior.
//!
//! * [`tungstenite`]: tokio-tungstenite 0.30
//! * [`tungstenite_blocking`]: tungstenite 0.30 without a runtime
//! * [`sockudo`]: sockudo-ws 3.1
//! * [`fastwebsockets`]: fastwebsockets 0.10
//! * [`axum`]: `axum::extract::ws` of axum 0.8
//! * [`compio_ws`]: compio-ws 0.4
//!
//! Four differences apply to all of them:
//!
//! * **Keepalive is on.** The connection sends a ping after 25 s without a byte from its peer. It ends 20 s later if
//!   no byte has arrived. So a peer that does not read for 45 s is disconnected. Remove your own timer for pings.
//!   `Config::default().with_ping_interval(None).with_idle_timeout(None)` disables keepalive; see
//!   [`limits`](super::limits).
//! * **A server rejects pages of other origins** with 403 unless they are listed
//!   ([`OriginPolicy`](crate::OriginPolicy)): browsers send the user's cookies for the pages of any origin. Clients
//!   other than browsers send no origin, and are accepted.
//! * **Messages are limited to 16 MiB** by default.
//! * **Receive calls answer a Close and end the transport**: receive until `None`.
//!
//! # The end of a receive loop
//!
//! `None` follows the `Message::Close` once the transport has ended, which the peer may delay: a phone that sleeps, or a
//! client that drops only its sending half. Code behind the loop, which leaves a room or frees a name, then runs up to
//! [`Config::close_timeout`](crate::Config::close_timeout) (5 s) after the Close. Two ways to run it at once:
//!
//! * `Config::default().with_end_at_close(true)` ends the loop once both Closes are exchanged
//!   ([`end_at_close`](crate::Config::end_at_close)). A server with tungstenite ends the same way, and a client with
//!   tungstenite waits for the end of TCP;
//! * leave the loop at `Message::Close`: the reply has left by then. Then drop the connection.
//!
//! # One error for `?`
//!
//! `?` converts each error of the library into [`Error`](crate::Error), also the errors of `connect`, `accept`
//! and the settings. In the other direction, `Error::Connect` contains the [`ConnectError`](crate::ConnectError), and
//! `Error::Accept` the [`AcceptError`](crate::AcceptError).
//!
//! `?` converts once. For an error type of your own with `From<sinews::Error>`, convert the errors of `connect` and
//! `accept` first:
//!
//! ```
//! # #[cfg(feature = "tokio")]
//! # mod program {
//! struct MyError(sinews::Error);
//!
//! impl From<sinews::Error> for MyError {
//!     fn from(error: sinews::Error) -> Self {
//!         Self(error)
//!     }
//! }
//!
//! async fn greet(stream: tokio::net::TcpStream) -> Result<(), MyError> {
//!     let mut ws = sinews::accept(stream).await.map_err(sinews::Error::from)?;
//!     ws.send("hello").await?;
//!     Ok(())
//! }
//! # }
//! ```
//!
//! # Programs moved by these guides
//!
//! Each program was changed by the rows of its guide alone, and compiled. Changed lines are additions and deletions in
//! its sources, without manifests.
//!
//! | program | changed lines | compiler errors after the rows | its tests |
//! |---|---|---|---|
//! | tokio-tungstenite, 8 examples | echo 2, client 4, chat 4, interval 10, Autobahn server 10, Autobahn client 18, headers 29, custom accept 16 | 0 in 6; before their rows were added, 1 in headers and 6 of one cause in custom accept | Autobahn, sections 1 to 10: server and client 301 of 301 cases each. With `.deflate(DeflateConfig::new())` in one more line: server 517 of 517, with 5 messages in each case of sections 12 and 13 |
//! | tokio-tungstenite, 2 test files | 24 | 0 | 3 of 3 |
//! | axum, `chat` | 7 | 0 | none |
//! | axum, `testing-websockets` | 15 | 0 | 2 of 2, with tokio-tungstenite as the client |
//! | axum, `websockets`: server and client | 12 and 17 | 0 | none |
//! | graphql-ws-client, from async-tungstenite | 87: 36 in a copy of its adapter for tungstenite 0.28, 4 around it, 47 in tests | 0 | 8 of 8, with `async-graphql-axum` as the server |
//! | async-wsocket | 112 | before `?` and own error types were described above, 2 of that cause | none; its example's ping and pong over `ws`, and over `wss` by rustls, and by `native-tls` beside `rustls-native-roots` |
//! | binance-rs | 44 | 0 | 58 of 58; a local feed over `ws` and `wss` |

pub mod axum;
pub mod compio_ws;
pub mod fastwebsockets;
pub mod sockudo;
pub mod tungstenite;
pub mod tungstenite_blocking;
