//! One connection of a conversation, and its events.

use sinews::{Message, Sender, WebSocket};
use tokio::sync::mpsc;

use super::super::dial::Transport;
use super::super::end::{End, Kind};
use super::super::entry::Entry;

/// An event of a connection.
pub(crate) enum Event {
    /// A client connected.
    Opened(u32, Sender, Box<Entry>, String),
    /// A client failed to connect.
    Failed(String),
    Message(u32, Message),
    /// A message that was already echoed.
    Echoed(u32, Message),
    Over(u32, End),
}
/// Drives a connection, and reports its events. With `echo`, each message is sent back before the next message is
/// handled, so that a Close cannot overtake it.
pub(crate) fn drive<S: Transport + 'static>(
    id: u32,
    mut ws: WebSocket<S>,
    events: mpsc::Sender<Event>,
    echo: bool,
) -> Sender {
    let sender = ws.sender();
    tokio::spawn(async move {
        let mut end = None;
        while let Some(message) = ws.next().await {
            let event = match message {
                // `next` reports the reason of a failed send.
                Ok(message) if echo && message.is_data() => {
                    let _ = ws.send(message.clone()).await;
                    Event::Echoed(id, message)
                }
                Ok(message) => Event::Message(id, message),
                Err(error) => {
                    end = Some(End::from(&error));
                    continue;
                }
            };
            // The receiver is gone: the program is exiting.
            if events.send(event).await.is_err() {
                return;
            }
        }
        let end = end.or_else(|| ws.closed().map(End::from));
        let end = end.unwrap_or_else(|| End::new(Kind::Abnormal, "transport ended"));
        let _ = events.send(Event::Over(id, end)).await;
    });
    sender
}
