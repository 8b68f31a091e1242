//! A chat on axum: `/rooms/{room}` is a page for browsers and the WebSocket of its script.
//!
//! [`serve`] is the whole server, so that tests can run it too. It demonstrates:
//!
//! * one path for page and WebSocket, by `Option<WebSocketUpgrade>`
//! * shared state behind one lock, which is never held across an await
//! * one task for each connection, which waits for its room, its client and the shutdown at once, without
//!   halves or channels between them: `WebSocket::next` is cancel-safe
//! * a bounded queue for each connection, and a policy for clients that do not read:
//!   [`Options::slow_consumer`]
//! * a shutdown that closes every WebSocket, unlike axum's own, which does not track upgraded connections
#![forbid(unsafe_code)]

mod client;
mod room;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{Html, IntoResponse, Redirect, Response};
use axum::routing::{any, get};
use axum::serve::ListenerExt as _;
use axum::{Json, Router};
use serde::Deserialize;
use sinews::axum::WebSocketUpgrade;
use sinews::{Config, OriginPolicy, Overflow};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::room::{Rooms, is_room_name};

/// The limits of a chat. The defaults suit a public server.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Maximum number of rooms. Default 1,000. At the limit, empty rooms are removed.
    pub rooms_max: usize,
    /// Maximum number of people in one room. Default 500: each message is sent to all of them.
    pub people_max: usize,
    /// Messages in the history of a room, for new members. Default 50.
    pub history_max: usize,
    /// Maximum characters of a name. Default 32.
    pub name_max: usize,
    /// Maximum characters of a chat message. Default 2,000. A longer message is rejected, and the connection
    /// stays open.
    pub text_max: usize,
    /// Maximum bytes of a message from a client. Default 32 KiB, above the JSON size of `text_max`
    /// characters. A longer message closes the connection with 1009, before it is buffered.
    pub message_max: u64,
    /// Messages that one client may send in a burst, and the time until one more is allowed. Default 20, then
    /// 2 a second: faster than people write. A further message is rejected, and the connection stays open.
    pub pace: (u32, Duration),
    /// Maximum bytes in the outbound queue of a client, beyond the network's buffers. Default 256 KiB.
    pub queue_max: usize,
    /// Action when the queue of a client is full. By default the connection closes with 1008, and the page
    /// reconnects and receives the history. The alternative is [`Overflow::DropNewest`], which drops messages
    /// to that client only.
    pub slow_consumer: Overflow,
    /// Time until a client that accepts no bytes is disconnected. Default 10 s.
    pub write_timeout: Duration,
    /// Allowed origins of pages. Default: the server's own origin.
    pub origins: OriginPolicy,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            rooms_max: 1000,
            people_max: 500,
            history_max: 50,
            name_max: 32,
            text_max: 2000,
            message_max: 32 << 10,
            pace: (20, Duration::from_millis(500)),
            queue_max: 256 << 10,
            slow_consumer: Overflow::Close,
            write_timeout: Duration::from_secs(10),
            origins: OriginPolicy::same_origin(),
        }
    }
}

/// Serves a chat until `shutdown` completes and all clients are disconnected.
///
/// # Errors
/// The listener failed.
pub async fn serve(
    listener: TcpListener,
    options: Options,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    /// A little more than [`Config::close_timeout`], after which every connection has ended.
    const GOODBYE_MAX: Duration = Duration::from_secs(6);
    let stop = Arc::new(watch::Sender::new(false));
    let chat = Chat {
        config: Arc::new(
            Config::default()
                .with_max_message(options.message_max)
                .with_max_frame(options.message_max)
                .with_max_outbound(options.queue_max)
                .with_write_timeout(options.write_timeout)
                .with_overflow(options.slow_consumer),
        ),
        rooms: Arc::new(Rooms::new(options)),
        stop: stop.clone(),
    };
    let app = Router::new()
        .route("/", get(Redirect::temporary("/rooms/lobby")))
        .route("/rooms/{room}", any(room))
        .route("/healthz", get(healthz))
        .with_state(chat);
    // Without this, a message may wait 40 ms for the acknowledgement of the previous message.
    let listener = listener.tap_io(|tcp| {
        if let Err(error) = tcp.set_nodelay(true) {
            tracing::debug!("TCP_NODELAY: {error}");
        }
    });
    let stopping = stop.clone();
    axum::serve(listener, app)
        .with_graceful_shutdown(async move {
            shutdown.await;
            stopping.send_replace(true);
        })
        .await?;
    // Each connection holds a receiver until it is closed.
    if tokio::time::timeout(GOODBYE_MAX, stop.closed()).await.is_err() {
        tracing::warn!("{} clients did not say goodbye", stop.receiver_count());
    }
    Ok(())
}

#[derive(Clone)]
struct Chat {
    rooms: Arc<Rooms>,
    config: Arc<Config>,
    /// Becomes `true` on shutdown.
    stop: Arc<watch::Sender<bool>>,
}

#[derive(Deserialize)]
struct Join {
    /// Requests for the page have no name.
    #[serde(default)]
    name: String,
}

/// Serves the page of a room, or its WebSocket: the page connects to its own address.
async fn room(
    State(chat): State<Chat>,
    Path(room): Path<String>,
    Query(join): Query<Join>,
    upgrade: Option<WebSocketUpgrade>,
) -> Response {
    if !is_room_name(&room) {
        return (StatusCode::NOT_FOUND, "rooms have names of a-z, 0-9 and -").into_response();
    }
    let Some(upgrade) = upgrade else { return page() };
    let options = chat.rooms.options();
    let Some(name) = clean_name(&join.name, options.name_max) else {
        let why = format!("add ?name=, 1 to {} characters", options.name_max);
        return (StatusCode::BAD_REQUEST, why).into_response();
    };
    let stop = chat.stop.subscribe();
    upgrade
        .config(chat.config)
        .origin(options.origins.clone())
        .on_upgrade(move |websocket| client::run(websocket, chat.rooms, room, name, stop))
}

/// The page: it is self-contained, and its policy forbids it to load anything else.
fn page() -> Response {
    const POLICY: &str = "default-src 'none'; connect-src 'self'; style-src 'unsafe-inline'; \
        script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
    ([(header::CONTENT_SECURITY_POLICY, POLICY)], Html(include_str!("page.html"))).into_response()
}

async fn healthz(State(chat): State<Chat>) -> Response {
    let (rooms, people) = chat.rooms.count();
    Json(serde_json::json!({ "status": "ok", "rooms": rooms, "people": people })).into_response()
}

/// Returns a name without line breaks, if it is short enough.
fn clean_name(raw: &str, max: usize) -> Option<String> {
    let name = raw.trim();
    let fits = !name.is_empty() && name.chars().count() <= max && !name.chars().any(char::is_control);
    fits.then(|| name.to_owned())
}
