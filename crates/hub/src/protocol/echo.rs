//! `WS /echo`: returns each message.

use sinews_server::{Context, Handler, Payload};

/// `WS /echo`: returns each message.
pub(crate) struct EchoHandler;

impl Handler for EchoHandler {
    fn message(&mut self, payload: Payload<'_>, cx: &mut Context<'_>) {
        // After a Close from either side, the message is dropped.
        let _ = cx.send_payload(payload);
    }
}
