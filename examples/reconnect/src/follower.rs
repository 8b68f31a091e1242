//! The client's part: connects again, and resumes.

use std::fmt;
use std::pin::Pin;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sinews::{CloseCode, ConnectError, WebSocket};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, sleep_until};

use crate::Backoff;

/// An event of a feed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// One more than that of the event before.
    pub number: u64,
    /// What happened.
    pub data: String,
}

/// Follows a feed over as many connections as it takes.
///
/// `D` opens a connection: a function of the number of the last event that was seen, if there was one. It answers a
/// future `F`, and that a WebSocket over `S`.
#[derive(Debug)]
pub struct Follower<D, F, S> {
    dial: D,
    backoff: Backoff,
    last: Option<u64>,
    /// An attempt under way is kept here, so that it outlives a `next` that is dropped.
    dialing: Option<Pin<Box<F>>>,
    websocket: Option<WebSocket<S>>,
    /// Not before then is the next attempt.
    retry_at: Option<Instant>,
    over: bool,
}

impl<D, F, S> Follower<D, F, S>
where
    D: FnMut(Option<u64>) -> F,
    F: Future<Output = Result<WebSocket<S>, ConnectError>>,
    S: AsyncRead + AsyncWrite + Unpin,
{
    /// Begins behind the event `last`, or with what the server begins with.
    pub fn new(dial: D, backoff: Backoff, last: Option<u64>) -> Self {
        Self { dial, backoff, last, dialing: None, websocket: None, retry_at: None, over: false }
    }

    /// The number of the last event that [`next`](Self::next) gave. Store it together with what you made of the
    /// event, and you can resume in another process.
    pub fn last(&self) -> Option<u64> {
        self.last
    }

    /// The next event, however long that takes; `None` when the server has closed the feed with 1000.
    ///
    /// Cancel-safe: a future that is dropped loses nothing.
    ///
    /// # Errors
    /// Once, what no further attempt would change; then `None`.
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

    /// One step: a connection, or a message of it.
    async fn advance(&mut self) -> Result<Option<Event>, FollowError> {
        let Some(websocket) = &mut self.websocket else {
            self.connect().await?;
            return Ok(None);
        };
        match websocket.next().await {
            Some(Ok(message)) if message.is_data() => self.take(message.as_bytes()),
            // Pings are answered already, and behind a Close comes `None`.
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

    /// Looks at a message: the next event, or one that was seen already.
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

    /// Connects again after the back-off, or when the server says, but within the longest wait.
    fn retry(&mut self, server_says: Option<Duration>, why: &dyn fmt::Display) {
        self.websocket = None;
        let wait = self.backoff.next_wait().max(server_says.unwrap_or_default().min(self.backoff.max()));
        tracing::info!(last = self.last, ?wait, "connecting again: {why}");
        self.retry_at = Some(Instant::now() + wait);
    }
}

/// Why a feed cannot be followed any longer.
#[derive(Debug)]
#[non_exhaustive]
pub enum FollowError {
    /// The server no longer has what comes behind the last event: load the state anew, then follow from there.
    Gone {
        /// The number of the last event.
        last: Option<u64>,
    },
    /// The server does not want us, or cannot be asked.
    Refused(ConnectError),
    /// The server left events out.
    Gap {
        /// The number that should have come.
        expected: u64,
        /// The number that came.
        found: u64,
    },
    /// A message is no event.
    NoEvent(serde_json::Error),
}

impl fmt::Display for FollowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone { last } => write!(f, "the server no longer has what comes behind event {last:?}"),
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
