//! axum: WebSockets, a page, and topics on Tokio's broadcast channel.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::extract::{Path, State};
use axum::response::Response;
use axum::routing::{any, get};
use axum::serve::ListenerExt;
use tokio::net::TcpListener;
use tokio::sync::broadcast::{self, Sender, error::RecvError};

use crate::tokio::runtime;
use crate::{Error, HELLO, MESSAGE_MAX, Threads, announce, feed};

/// Echo form for `/echo`.
#[derive(Clone, Copy)]
pub(crate) enum Echo {
    Send,
    /// Uses its WebSocket, which is tungstenite's, as a `Sink`.
    Feed {
        read_buffer: usize,
    },
}

/// Serves `/echo`, `/topics/{name}`, `/healthz` and `/hello` forever.
pub(crate) fn run(address: SocketAddr, threads: Threads, echo: Echo) -> Result<(), Error> {
    runtime(threads)?.block_on(async {
        let listener = TcpListener::bind(address).await?;
        announce(listener.local_addr()?)?;
        let listener = listener.tap_io(|stream| {
            let _ = stream.set_nodelay(true);
        });
        Ok(axum::serve(listener, routes(echo)).await?)
    })
}

pub(crate) fn routes(echo: Echo) -> Router {
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/hello", get(|| async { HELLO }))
        .route("/echo", any(async move |upgrade| echo.answer(upgrade)))
        .route("/topics/{name}", any(topic))
        .with_state(Topics::default())
}

impl Echo {
    fn answer(self, upgrade: WebSocketUpgrade) -> Response {
        let upgrade = open(upgrade);
        match self {
            Self::Send => upgrade.on_upgrade(send),
            Self::Feed { read_buffer } => upgrade.read_buffer_size(read_buffer).on_upgrade(|socket| async {
                // The result of a connection is irrelevant here.
                let _ = feed::at_once(socket, is_data).await;
            }),
        }
    }
}

fn is_data(message: &Message) -> bool {
    matches!(message, Message::Text(_) | Message::Binary(_))
}

fn open(upgrade: WebSocketUpgrade) -> WebSocketUpgrade {
    upgrade.max_message_size(MESSAGE_MAX).max_frame_size(MESSAGE_MAX)
}

async fn send(mut socket: WebSocket) {
    while let Some(Ok(message)) = socket.recv().await {
        if is_data(&message) && socket.send(message).await.is_err() {
            return;
        }
    }
}

/// A message, and its publisher's connection.
type Published = (u64, Message);

#[derive(Clone, Debug, Default)]
struct Topics(Arc<Mutex<HashMap<String, Sender<Published>>>>);

impl Topics {
    fn sender(&self, name: String) -> Sender<Published> {
        let mut topics = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        topics.entry(name).or_insert_with(|| broadcast::channel(WAITING_MAX).0).clone()
    }
}

async fn topic(
    upgrade: WebSocketUpgrade,
    Path(name): Path<String>,
    State(topics): State<Topics>,
) -> Response {
    let sender = topics.sender(name);
    open(upgrade).on_upgrade(|socket| subscribe(socket, sender))
}

/// Publishes this connection's messages to all other connections, and sends their messages to it.
async fn subscribe(mut socket: WebSocket, sender: Sender<Published>) {
    static CONNECTIONS: AtomicU64 = AtomicU64::new(0);
    let own = CONNECTIONS.fetch_add(1, Ordering::Relaxed);
    let mut receiver = sender.subscribe();
    loop {
        tokio::select! {
            received = socket.recv() => match received {
                Some(Ok(message @ (Message::Text(_) | Message::Binary(_)))) => {
                    let _ = sender.send((own, message));
                }
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return,
            },
            published = receiver.recv() => match published {
                Ok((from, message)) if from != own => {
                    if socket.send(message).await.is_err() {
                        return;
                    }
                }
                Ok(_) => {}
                // A slow subscriber loses messages; the load would detect that.
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return,
            },
        }
    }
}

/// A slow subscriber's maximum backlog, in messages.
const WAITING_MAX: usize = 1024;
