//! The server's part: numbered events with a replay of the newest.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sinews::server::{Reject, Reply, Request};
use sinews::{CloseCode, Message};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;

use crate::Event;

/// A bounded log of numbered events, for any number of readers.
///
/// The log is the only queue. Each connection stores the number of its next event, and takes the event from
/// here when its client can receive more. A client that falls behind by more than the log is disconnected.
#[derive(Debug)]
pub struct Feed {
    log: Mutex<Log>,
    /// Wakes waiting connections when there is a new event.
    news: watch::Sender<()>,
}

#[derive(Debug)]
struct Log {
    /// The log's oldest event number.
    first: u64,
    /// Serialized once for all readers: a clone increments a counter.
    events: VecDeque<Message>,
    keep: usize,
    over: bool,
}

/// A connection's next step.
enum Step {
    Send(Vec<Message>),
    Wait,
    /// All events are sent, and the feed is finished.
    Over,
    /// The next events are no longer in the log.
    TooLate,
}

impl Feed {
    /// Creates a feed with first event number `first` and a log of the newest `keep` events.
    ///
    /// A server that loses its log on restart has to continue above all numbers that it ever used. Otherwise
    /// clients of its earlier run would resume in a different log. Microseconds since 1970 satisfy this.
    pub fn new(first: u64, keep: usize) -> Self {
        let log = Log { first, events: VecDeque::new(), keep, over: false };
        Self { log: Mutex::new(log), news: watch::Sender::new(()) }
    }

    /// Adds an event, and returns its number.
    pub fn publish(&self, data: impl Into<String>) -> u64 {
        let mut log = self.log();
        let number = log.next();
        log.events.push_back(Event { number, data: data.into() }.to_message());
        if log.events.len() > log.keep {
            log.events.pop_front();
            log.first += 1;
        }
        drop(log);
        self.news.send_replace(());
        number
    }

    /// Finishes the feed: connections that have sent all events close with 1000.
    pub fn finish(&self) {
        self.log().over = true;
        self.news.send_replace(());
    }

    /// Serves one client until it disconnects, or the feed is finished.
    ///
    /// # Errors
    /// The handshake failed, or the connection did not close cleanly.
    pub async fn serve<S>(&self, stream: S) -> Result<(), Box<dyn std::error::Error + Send + Sync>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let mut next = 0;
        let accept = sinews::accept(stream).on_request(|request| {
            next = self.start(request)?;
            Ok(Reply::new())
        });
        let mut websocket = accept.await?;
        let mut news = self.news.subscribe();
        loop {
            match self.step(next) {
                Step::Send(events) => {
                    next += events.len() as u64;
                    for event in events {
                        websocket.feed(event).await?;
                    }
                    websocket.flush().await?;
                }
                Step::Wait => tokio::select! {
                    _ = news.changed() => {}
                    message = websocket.next() => match message {
                        // Messages from clients are ignored.
                        Some(message) => drop(message?),
                        None => return Ok(()),
                    },
                },
                Step::Over => return Ok(websocket.close(CloseCode::NORMAL, "").await.map(drop)?),
                Step::TooLate => {
                    return Ok(websocket.close(CloseCode::POLICY, "too slow").await.map(drop)?);
                }
            }
        }
    }

    /// Returns this client's first event number.
    fn start(&self, request: &Request) -> Result<u64, Reject> {
        let log = self.log();
        let Some(last) = request.header("last-event-id") else { return Ok(log.first) };
        let last: u64 =
            last.parse().map_err(|_| Reject::new(400).with_body("Last-Event-ID is not a number"))?;
        let next = last.saturating_add(1);
        if next < log.first || next > log.next() {
            return Err(Reject::new(410).with_body("the event is no longer in the log"));
        }
        Ok(next)
    }

    fn step(&self, next: u64) -> Step {
        /// Events that are taken at once: this bounds the time under the lock.
        const BATCH_MAX: usize = 64;
        let log = self.log();
        let Some(skip) = next.checked_sub(log.first) else { return Step::TooLate };
        let events = log.events.iter().skip(skip as usize).take(BATCH_MAX);
        match events.cloned().collect::<Vec<_>>() {
            none if none.is_empty() && log.over => Step::Over,
            none if none.is_empty() => Step::Wait,
            events => Step::Send(events),
        }
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        // No code panics while a change is incomplete.
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Log {
    /// Returns the next event's number.
    fn next(&self) -> u64 {
        self.first + self.events.len() as u64
    }
}
