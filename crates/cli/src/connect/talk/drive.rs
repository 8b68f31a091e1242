//! One connection of a conversation, and what it says.

use sinews::{Message, Sender, WebSocket};
use tokio::sync::mpsc;

use super::super::dial::Transport;
use super::super::end::{End, Kind};
use super::super::entry::Entry;

/// What a connection says.
pub(crate) enum Event {
    /// A client has come.
    Opened(u32, Sender, Box<Entry>, String),
    /// One that wanted to come could not.
    Failed(String),
    Message(u32, Message),
    /// Sent back already.
    Echoed(u32, Message),
    Over(u32, End),
}
/// Lets a connection live, and tells what it says. With `echo`, each message goes back before the next one is looked
/// at: a Close behind it must not overtake it.
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
                // Why it cannot be sent is told by `next`.
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
            // Nobody listens: the program ends.
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
