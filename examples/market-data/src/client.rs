//! One client: what it asks for, and what it is sent.

use std::collections::BTreeMap;

use compio::net::TcpStream;
use serde::{Deserialize, Serialize};
use sinews::compio::WebSocket;
use sinews::{CloseCode, Error, Message};
use tokio::sync::watch;

use crate::Quote;

/// Symbols that one client may follow.
const SUBSCRIBED_MAX: usize = 100;

/// What a client sends: the symbols to follow from now on, instead of those before.
#[derive(Debug, Serialize, Deserialize)]
pub struct Subscribe {
    /// Those that the market does not have are told in [`Update::unknown`].
    pub subscribe: Vec<String>,
}

/// What a client is sent: a snapshot of what it has subscribed to, later what has changed since the last message.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Update {
    /// The newest prices.
    pub quotes: Vec<Quote>,
    /// Symbols of the subscription that there are not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<String>,
}

/// Serves a client until it goes, or `stop` is true.
pub(crate) async fn serve(
    websocket: &mut WebSocket<TcpStream>,
    mut market: watch::Receiver<Vec<Quote>>,
    mut stop: watch::Receiver<bool>,
) -> Result<(), Error> {
    let mut subscription = Subscription::default();
    loop {
        let update = subscription.changes(&market.borrow_and_update());
        if let Some(update) = update {
            // While a slow client takes this, prices go on, and what is sent next is the newest of each.
            websocket.send(update).await?;
        }
        tokio::select! {
            // Prices that came meanwhile are one change.
            _ = market.changed() => {}
            // `next` may be dropped at any point: nothing that comes is lost.
            message = websocket.next() => match message.transpose()? {
                Some(message) if message.is_data() => match subscribe(&message) {
                    Ok(new) => subscription = new,
                    Err((code, reason)) => return websocket.close(code, reason).await.map(drop),
                },
                // Pings are answered already, and behind a Close comes `None`.
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

/// What a client follows, and what it has seen of it.
#[derive(Default)]
struct Subscription {
    /// The round of the last quote that was sent, by symbol; `None` before the snapshot.
    seen: BTreeMap<String, Option<u64>>,
    is_new: bool,
}

impl Subscription {
    fn new(symbols: Vec<String>) -> Self {
        Self { seen: symbols.into_iter().map(|symbol| (symbol, None)).collect(), is_new: true }
    }

    /// What the client has not seen, if there is anything.
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
