//! Prices and their changes.

use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use tokio::sync::watch;

/// The newest price of a symbol.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quote {
    /// Four letters or fewer.
    pub symbol: String,
    /// In cents.
    pub price: u64,
    /// The round of the market in which the price was set; a slow client misses rounds.
    pub round: u64,
}

/// Symbols with prices that change a little in each round.
///
/// The prices are in a `watch` channel, which holds one value and wakes every receiver with an older version:
/// this conflates updates.
#[derive(Debug)]
pub struct Market {
    quotes: watch::Sender<Vec<Quote>>,
    random: Mutex<Random>,
}

impl Market {
    /// Creates a market with these symbols, at 100.00 each. The same seed produces the same prices.
    pub fn new<S: Into<String>>(symbols: impl IntoIterator<Item = S>, seed: u64) -> Self {
        let quote = |symbol: S| Quote { symbol: symbol.into(), price: 10_000, round: 0 };
        let quotes = symbols.into_iter().map(quote).collect();
        Self { quotes: watch::Sender::new(quotes), random: Mutex::new(Random(seed)) }
    }

    /// Runs one round: about every second price moves by up to 0.50, or not at all.
    pub fn tick(&self) {
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        self.quotes.send_modify(|quotes| {
            let round = 1 + quotes.iter().map(|quote| quote.round).max().unwrap_or_default();
            for quote in quotes.iter_mut() {
                let step = random.below(202);
                if step <= 100 {
                    // A price of zero would delist the symbol.
                    quote.price = (quote.price + step).saturating_sub(50).max(1);
                    quote.round = round;
                }
            }
        });
    }

    /// Returns the newest price of a symbol.
    pub fn quote(&self, symbol: &str) -> Option<Quote> {
        self.quotes.borrow().iter().find(|quote| quote.symbol == symbol).cloned()
    }

    pub(crate) fn watch(&self) -> watch::Receiver<Vec<Quote>> {
        self.quotes.subscribe()
    }
}

/// SplitMix64.
#[derive(Debug)]
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }
}
