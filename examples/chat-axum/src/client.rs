//! One client, from its welcome to the end of its connection.

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use sinews::axum::WebSocket;
use sinews::{CloseCode, Message};
use tokio::sync::{broadcast, watch};
use tokio::time::Instant;

use crate::Options;
use crate::room::{Event, Full, Place, Rooms, Seat};

/// Close of a slow client; the server does not wait for the answer.
const TOO_SLOW: (CloseCode, &str) = (CloseCode::POLICY, "too slow");

/// A message from a client.
#[derive(Deserialize)]
struct Say {
    say: String,
}

pub(crate) async fn run(
    mut websocket: WebSocket,
    rooms: Arc<Rooms>,
    room: String,
    name: String,
    stop: watch::Receiver<bool>,
) {
    let (code, reason) = match rooms.join(room, &name) {
        Ok(seat) => converse(&mut websocket, seat, rooms.options(), stop.clone()).await,
        Err(Full(why)) => (CloseCode::TRY_AGAIN_LATER, why),
    };
    // If the connection has ended already, the result says how.
    match websocket.close(code, reason).await {
        Ok(closed) => tracing::debug!("{name}: {closed}"),
        Err(error) => tracing::info!("{name}: {error}"),
    }
}

/// Runs until there is a reason to close. The seat is released before the closing handshake begins.
async fn converse(
    websocket: &mut WebSocket,
    seat: Seat,
    options: &Options,
    mut stop: watch::Receiver<bool>,
) -> (CloseCode, &'static str) {
    let Seat { welcome, mut events, place } = seat;
    let (burst, refill) = options.pace;
    let mut pace = Pace::new(burst, refill);
    // Queued messages are sent while `next` waits, so that this loop never waits for a slow client. A slow
    // client reaches the limit of its queue, and `Options::slow_consumer` determines the result.
    let _ = websocket.try_send(welcome);
    loop {
        tokio::select! {
            // In this order: all available events leave in one write.
            biased;
            _ = stop.wait_for(|stop| *stop) => return (CloseCode::GOING_AWAY, "the server is going down"),
            event = events.recv() => match event {
                Ok(event) => {
                    let _ = websocket.try_send(event);
                    if websocket.closed().is_some() {
                        return TOO_SLOW;
                    }
                }
                Err(broadcast::error::RecvError::Lagged(_)) => return TOO_SLOW,
                Err(broadcast::error::RecvError::Closed) => return (CloseCode::NORMAL, ""),
            },
            message = websocket.next() => match message {
                Some(Ok(message)) if message.is_data() => {
                    if let Err(why) = hear(&message, &place, &mut pace, options) {
                        let _ = websocket.try_send(Event::Refused { why: &why }.to_message());
                    }
                }
                // The library has answered pings already; after a Close, `next` returns `None`.
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return (CloseCode::NORMAL, ""),
            },
        }
    }
}

/// Publishes a client's message, or answers with the reason for its rejection.
fn hear(message: &Message, place: &Place, pace: &mut Pace, options: &Options) -> Result<(), String> {
    let Say { say } = serde_json::from_slice(message.as_bytes())
        .map_err(|error| format!("expected {{\"say\": \"some text\"}}: {error}"))?;
    let text = say.trim();
    if text.is_empty() {
        return Ok(());
    }
    if text.chars().count() > options.text_max {
        return Err(format!("at most {} characters at once", options.text_max));
    }
    if !pace.allows() {
        return Err("too fast: that was not sent".to_owned());
    }
    place.say(text.to_owned());
    Ok(())
}

/// A token bucket, with one token for each message.
struct Pace {
    tokens: u32,
    burst: u32,
    refill: Duration,
    refilled: Instant,
}

impl Pace {
    fn new(burst: u32, refill: Duration) -> Self {
        Self { tokens: burst, burst, refill, refilled: Instant::now() }
    }

    fn allows(&mut self) -> bool {
        while self.tokens < self.burst && self.refilled.elapsed() >= self.refill {
            self.tokens += 1;
            self.refilled += self.refill;
        }
        if self.tokens == self.burst {
            self.refilled = Instant::now();
        }
        self.tokens.checked_sub(1).inspect(|left| self.tokens = *left).is_some()
    }
}
