//! A chat on axum: `/rooms/{room}` is a page for browsers and a WebSocket for what runs in it.
//!
//! [`serve`] is the whole server, so that tests can run it too. What there is to see:
//!
//! * one path for page and WebSocket, by `Option<WebSocketUpgrade>`
//! * state that is shared, one lock that is never held while waiting
//! * one task for each connection, that waits for its room, its client and the end of the server at once, without
//!   halves or channels between them: `WebSocket::next` may be dropped at any point
//! * a bounded queue for each connection, and what happens to those who do not read: [`Options::slow_consumer`]
//! * a shutdown that tells every client, which axum's own does not: it knows nothing of connections once they are
//!   upgraded
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

/// The limits of a chat. All have defaults that suit a public server.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Rooms at once. Default 1,000. When there are so many, those where nobody is are forgotten.
    pub rooms_max: usize,
    /// People in one room. Default 500: each message is sent to all of them.
    pub people_max: usize,
    /// Messages that a room remembers for those who come later. Default 50.
    pub history_max: usize,
    /// Characters of a name. Default 32.
    pub name_max: usize,
    /// Characters of what is said at once. Default 2,000. More is refused, politely.
    pub text_max: usize,
    /// Bytes of a message from a client. Default 32 KiB, above what `text_max` characters can take in JSON. More ends
    /// the connection with 1009, before it is held in memory.
    pub message_max: u64,
    /// Messages that one client may send in a burst, and seconds until one more is allowed. Default 20, then 2 a
    /// second: faster than people write. More is refused, politely.
    pub pace: (u32, Duration),
    /// Bytes that wait for one client beyond what the network has taken. Default 256 KiB.
    pub queue_max: usize,
    /// What happens when so many wait. Default: the connection closes with 1008, and the page comes back and gets the
    /// history; the other choice is [`Overflow::DropNewest`], a gap in what that one client sees.
    pub slow_consumer: Overflow,
    /// Whose pages may connect. Default: our own.
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
            origins: OriginPolicy::same_origin(),
        }
    }
}

/// Serves a chat until `shutdown` is over and everybody has been told.
///
/// # Errors
/// The listener failed.
pub async fn serve(
    listener: TcpListener,
    options: Options,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    /// A little more than [`Config::close_timeout`], after which a connection is over anyway.
    const GOODBYE_MAX: Duration = Duration::from_secs(6);
    let stop = Arc::new(watch::Sender::new(false));
    let chat = Chat {
        config: Arc::new(
            Config::default()
                .with_max_message(options.message_max)
                .with_max_frame(options.message_max)
                .with_max_outbound(options.queue_max)
                .with_write_timeout(Duration::from_secs(10))
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
    // Without this, a message may wait 40 ms for the acknowledgement of the one before.
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
    /// Becomes `true` when the server goes.
    stop: Arc<watch::Sender<bool>>,
}

#[derive(Deserialize)]
struct Join {
    /// A page is asked for without.
    #[serde(default)]
    name: String,
}

/// The page of a room, or its WebSocket: the page connects to its own address.
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

/// The page: everything is in it, and it may load nothing else.
fn page() -> Response {
    const POLICY: &str = "default-src 'none'; connect-src 'self'; style-src 'unsafe-inline'; \
        script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
    ([(header::CONTENT_SECURITY_POLICY, POLICY)], Html(include_str!("page.html"))).into_response()
}

async fn healthz(State(chat): State<Chat>) -> Response {
    let (rooms, people) = chat.rooms.count();
    Json(serde_json::json!({ "status": "ok", "rooms": rooms, "people": people })).into_response()
}

/// A name on one line, if there is one that is short enough.
fn clean_name(raw: &str, max: usize) -> Option<String> {
    let name = raw.trim();
    let fits = !name.is_empty() && name.chars().count() <= max && !name.chars().any(char::is_control);
    fits.then(|| name.to_owned())
}
