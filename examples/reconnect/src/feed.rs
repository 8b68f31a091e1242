//! The server's part: events with numbers, the newest of which can be had again.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sinews::server::{Reject, Reply, Request};
use sinews::{CloseCode, Message};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;

use crate::Event;

/// A bounded log of numbered events, for any number of readers.
///
/// The log is the only queue: each connection knows the number of the event that it sends next, and takes it from
/// here when its client can take more. A client that falls behind by more than the log holds is cut off.
#[derive(Debug)]
pub struct Feed {
    log: Mutex<Log>,
    /// Tells connections that wait that there is something new.
    news: watch::Sender<()>,
}

#[derive(Debug)]
struct Log {
    /// The number of the oldest event that is kept.
    first: u64,
    /// Written once for all readers: a clone is a count.
    events: VecDeque<Message>,
    keep: usize,
    over: bool,
}

/// What a connection does next.
enum Step {
    Send(Vec<Message>),
    Wait,
    /// All is sent, and nothing more will come.
    Over,
    /// The events that it should send are no longer kept.
    TooLate,
}

impl Feed {
    /// A feed whose first event has the number `first`, and that keeps the newest `keep` events.
    ///
    /// A server that forgets its log when it restarts has to go on above all numbers that it ever gave, or clients of
    /// its earlier life would resume in a log that is not theirs. Microseconds since 1970 do.
    pub fn new(first: u64, keep: usize) -> Self {
        let log = Log { first, events: VecDeque::new(), keep, over: false };
        Self { log: Mutex::new(log), news: watch::Sender::new(()) }
    }

    /// Adds an event, and answers its number.
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

    /// Nothing more will come: connections that have sent everything close with 1000.
    pub fn finish(&self) {
        self.log().over = true;
        self.news.send_replace(());
    }

    /// Serves one client until it goes, or the feed is over.
    ///
    /// # Errors
    /// There was no WebSocket, or it did not end in order.
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
                        // Clients have nothing to say here.
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

    /// The number of the first event for this client.
    fn start(&self, request: &Request) -> Result<u64, Reject> {
        let log = self.log();
        let Some(last) = request.header("last-event-id") else { return Ok(log.first) };
        let last: u64 = last.parse().map_err(|_| Reject::new(400).body("Last-Event-ID is no number"))?;
        let next = last.saturating_add(1);
        if next < log.first || next > log.next() {
            return Err(Reject::new(410).body("the log does not reach back to there"));
        }
        Ok(next)
    }

    fn step(&self, next: u64) -> Step {
        /// Events that are taken at once: the lock is held for as long as it takes to count them up.
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
        // Nothing in here panics half way through a change.
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Log {
    /// The number of the next event that comes.
    fn next(&self) -> u64 {
        self.first + self.events.len() as u64
    }
}
