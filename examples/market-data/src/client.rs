//! One client: its subscription and its updates.

use std::collections::BTreeMap;

use compio::net::TcpStream;
use serde::{Deserialize, Serialize};
use sinews::compio::WebSocket;
use sinews::{CloseCode, Error, Message};
use tokio::sync::watch;

use crate::Quote;

/// Maximum symbols of one client.
const SUBSCRIBED_MAX: usize = 100;

/// A message from a client: the symbols to follow from now on, instead of the previous symbols.
#[derive(Debug, Serialize, Deserialize)]
pub struct Subscribe {
    /// Symbols that the market does not have are listed in [`Update::unknown`].
    pub subscribe: Vec<String>,
}

/// A message to a client: a snapshot of its subscription, later the changes since the last message.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Update {
    /// The newest prices.
    pub quotes: Vec<Quote>,
    /// Unknown symbols of the subscription.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<String>,
}

/// Serves a client until it disconnects, or `stop` is true.
pub(crate) async fn serve(
    websocket: &mut WebSocket<TcpStream>,
    mut market: watch::Receiver<Vec<Quote>>,
    mut stop: watch::Receiver<bool>,
) -> Result<(), Error> {
    let mut subscription = Subscription::default();
    loop {
        let update = subscription.changes(&market.borrow_and_update());
        if let Some(update) = update {
            // While a slow client receives this, prices continue to change. The next message has the newest
            // price of each symbol.
            websocket.send(update).await?;
        }
        tokio::select! {
            // Price changes since the last message count as one change.
            _ = market.changed() => {}
            // `next` is cancel-safe: no message is lost.
            message = websocket.next() => match message.transpose()? {
                Some(message) if message.is_data() => match subscribe(&message) {
                    Ok(new) => subscription = new,
                    Err((code, reason)) => return websocket.close(code, reason).await.map(drop),
                },
                // The library has answered pings already; after a Close, `next` returns `None`.
                Some(_) => {}
                None => return Ok(()),
            },
            _ = stop.wait_for(|stop| *stop) => {
                return websocket.close(CloseCode::GOING_AWAY, "the market closes").await.map(drop);
            }
        }
    }
}

fn subscribe(message: &Message) -> Result<Subscription, (CloseCode, &'static str)> {
    let Subscribe { subscribe } = serde_json::from_slice(message.as_bytes())
        .map_err(|_| (CloseCode::UNSUPPORTED, r#"expected {"subscribe": ["AAA"]}"#))?;
    if subscribe.len() > SUBSCRIBED_MAX {
        return Err((CloseCode::POLICY, "too many symbols"));
    }
    Ok(Subscription::new(subscribe))
}

/// A client's subscription, and the prices that it has received.
#[derive(Default)]
struct Subscription {
    /// The round of the last sent quote, by symbol; `None` before the snapshot.
    seen: BTreeMap<String, Option<u64>>,
    is_new: bool,
}

impl Subscription {
    fn new(symbols: Vec<String>) -> Self {
        Self { seen: symbols.into_iter().map(|symbol| (symbol, None)).collect(), is_new: true }
    }

    /// Returns the changes that the client has not received, if any.
    fn changes(&mut self, market: &[Quote]) -> Option<Message> {
        let mut update = Update::default();
        for quote in market {
            if let Some(seen) = self.seen.get_mut(&quote.symbol)
                && *seen != Some(quote.round)
            {
                *seen = Some(quote.round);
                update.quotes.push(quote.clone());
            }
        }
        let is_snapshot = std::mem::take(&mut self.is_new);
        if is_snapshot {
            self.seen.retain(|symbol, seen| {
                seen.is_some() || {
                    update.unknown.push(symbol.clone());
                    false
                }
            });
        }
        let is_worth_it = is_snapshot || !update.quotes.is_empty();
        is_worth_it.then(|| serde_json::json!(update).to_string().into())
    }
}
