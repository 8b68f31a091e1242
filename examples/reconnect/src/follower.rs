//! The client's part: reconnects, and resumes.

use std::fmt;
use std::pin::Pin;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sinews::{CloseCode, ConnectError, WebSocket};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, sleep_until};

use crate::Backoff;

/// A feed's event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// The number of the previous event plus one.
    pub number: u64,
    /// The event's content.
    pub data: String,
}

/// Follows a feed across any number of connections.
///
/// `D` opens a connection: a function of the number of the last received event, if any. It returns a future
/// `F`, which resolves to a WebSocket over `S`.
#[derive(Debug)]
pub struct Follower<D, F, S> {
    dial: D,
    backoff: Backoff,
    last: Option<u64>,
    /// The attempt in flight, stored here so that it survives a cancelled `next`.
    dialing: Option<Pin<Box<F>>>,
    websocket: Option<WebSocket<S>>,
    /// Earliest time of the next attempt.
    retry_at: Option<Instant>,
    over: bool,
}

impl<D, F, S> Follower<D, F, S>
where
    D: FnMut(Option<u64>) -> F,
    F: Future<Output = Result<WebSocket<S>, ConnectError>>,
    S: AsyncRead + AsyncWrite + Unpin,
{
    /// Starts after the event `last`, or at the server's default.
    pub fn new(dial: D, backoff: Backoff, last: Option<u64>) -> Self {
        Self { dial, backoff, last, dialing: None, websocket: None, retry_at: None, over: false }
    }

    /// Returns the number of the last event that [`next`](Self::next) returned. Store it together with the
    /// result of the event to resume in another process.
    pub fn last(&self) -> Option<u64> {
        self.last
    }

    /// Waits for the next event, for any time; returns `None` after the server has closed the feed with 1000.
    ///
    /// Cancel-safe: dropping the future loses no event.
    ///
    /// # Errors
    /// A permanent failure, once; then `None`.
    pub async fn next(&mut self) -> Option<Result<Event, FollowError>> {
        while !self.over {
            match self.advance().await {
                Ok(Some(event)) => return Some(Ok(event)),
                Ok(None) => {}
                Err(error) => {
                    self.over = true;
                    return Some(Err(error));
                }
            }
        }
        None
    }

    /// Performs one step: a connection attempt, or one message.
    async fn advance(&mut self) -> Result<Option<Event>, FollowError> {
        let Some(websocket) = &mut self.websocket else {
            self.connect().await?;
            return Ok(None);
        };
        match websocket.next().await {
            Some(Ok(message)) if message.is_data() => self.take(message.as_bytes()),
            // The library has answered pings already; after a Close, `next` returns `None`.
            Some(Ok(_)) => Ok(None),
            Some(Err(error)) => {
                self.retry(None, &error);
                Ok(None)
            }
            None => {
                match websocket.closed() {
                    Some(closed) if closed.code() == Some(CloseCode::NORMAL) => self.over = true,
                    Some(closed) => {
                        let closed = closed.clone();
                        self.retry(None, &closed);
                    }
                    None => self.retry(None, &"closed"),
                }
                Ok(None)
            }
        }
    }

    async fn connect(&mut self) -> Result<(), FollowError> {
        if let Some(at) = self.retry_at {
            sleep_until(at).await;
        }
        let dialing = self.dialing.get_or_insert_with(|| Box::pin((self.dial)(self.last)));
        let dialed = dialing.as_mut().await;
        self.dialing = None;
        match dialed {
            Ok(websocket) => self.websocket = Some(websocket),
            Err(ConnectError::Rejected(response)) if response.status().as_u16() == 410 => {
                return Err(FollowError::Gone { last: self.last });
            }
            Err(error) if error.is_transient() => self.retry(error.retry_after(), &error),
            Err(error) => return Err(FollowError::Refused(error)),
        }
        Ok(())
    }

    /// Parses a message: the next event, or a repeated event.
    fn take(&mut self, message: &[u8]) -> Result<Option<Event>, FollowError> {
        let event: Event = serde_json::from_slice(message).map_err(FollowError::NoEvent)?;
        let expected = self.last.map_or(event.number, |last| last.saturating_add(1));
        if event.number < expected {
            return Ok(None);
        }
        if event.number > expected {
            return Err(FollowError::Gap { expected, found: event.number });
        }
        self.last = Some(event.number);
        self.backoff.reset();
        Ok(Some(event))
    }

    /// Schedules a reconnect after the back-off, or after the server's delay, within the maximum delay.
    fn retry(&mut self, server_says: Option<Duration>, why: &dyn fmt::Display) {
        self.websocket = None;
        let wait = self.backoff.next_wait().max(server_says.unwrap_or_default().min(self.backoff.max()));
        tracing::info!(last = self.last, ?wait, "connecting again: {why}");
        self.retry_at = Some(Instant::now() + wait);
    }
}

/// Reason why a feed cannot be followed any longer.
#[derive(Debug)]
#[non_exhaustive]
pub enum FollowError {
    /// The server no longer has the events after the last event: load the state anew, then follow from there.
    Gone {
        /// The last event's number.
        last: Option<u64>,
    },
    /// The server rejected the request, or is unreachable for good.
    Refused(ConnectError),
    /// The server skipped events.
    Gap {
        /// The expected number.
        expected: u64,
        /// The received number.
        found: u64,
    },
    /// A message is not an event.
    NoEvent(serde_json::Error),
}

impl fmt::Display for FollowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone { last } => write!(f, "the server no longer has the events after event {last:?}"),
            Self::Refused(error) => error.fmt(f),
            Self::Gap { expected, found } => write!(f, "event {found} came in place of {expected}"),
            Self::NoEvent(error) => write!(f, "a message is no event: {error}"),
        }
    }
}

impl std::error::Error for FollowError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Refused(error) => Some(error),
            Self::NoEvent(error) => Some(error),
            Self::Gone { .. } | Self::Gap { .. } => None,
        }
    }
}

impl Event {
    pub(crate) fn to_message(&self) -> sinews::Message {
        serde_json::json!(self).to_string().into()
    }
}
