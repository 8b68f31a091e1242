//! A connection in a conversation, and its events.

use sinews::{Message, Sender, WebSocket};
use tokio::sync::mpsc;

use super::super::dial::ByteStream;
use super::super::end::{EndKind, RunEnd};
use super::super::entry::RecordEntry;

/// A connection's event.
pub(crate) enum ConnectionEvent {
    /// A client connected.
    Opened(u32, Sender, Box<RecordEntry>, String),
    /// A client failed to connect.
    Failed(String),
    Message(u32, Message),
    /// A message that was already echoed.
    Echoed(u32, Message),
    Closed(u32, RunEnd),
}
/// Drives a connection, and reports its events. With `echo`, each message is sent back before the next message is
/// handled, so that a Close cannot overtake it.
pub(crate) fn drive<S: ByteStream + 'static>(
    id: u32,
    mut ws: WebSocket<S>,
    events: mpsc::Sender<ConnectionEvent>,
    echo: bool,
) -> Sender {
    let sender = ws.sender();
    tokio::spawn(async move {
        let mut end = None;
        while let Some(message) = ws.next().await {
            let event = match message {
                // `next` reports why a send failed.
                Ok(message) if echo && message.is_data() => {
                    let _ = ws.send(message.clone()).await;
                    ConnectionEvent::Echoed(id, message)
                }
                Ok(message) => ConnectionEvent::Message(id, message),
                Err(error) => {
                    end = Some(RunEnd::from(&error));
                    continue;
                }
            };
            // The receiver is gone: the program is exiting.
            if events.send(event).await.is_err() {
                return;
            }
        }
        let end = end.or_else(|| ws.closed().map(RunEnd::from));
        let end = end.unwrap_or_else(|| RunEnd::new(EndKind::Abnormal, "transport ended"));
        let _ = events.send(ConnectionEvent::Closed(id, end)).await;
    });
    sender
}
