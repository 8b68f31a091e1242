//! The server's topics: the engine's, or, with a configuration, those of the whole server.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use bytes::Bytes;
use sinews_hub::{ProgramMessage, ProgramTopics, RequestFailed};
use sinews_proto::Kind;
use sinews_server::{
    InvalidTopic, Prepared, PublishError, PublishOptions, Publisher, ReplayFrom, TopicPattern,
};

use super::{ServerEvent, Shared};

/// Requests to topics that wait for their answers, such as publications to a stream.
pub const REQUESTS_MAX: usize = 64 << 10;

/// An invalid argument: the text names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidArgument(pub(super) String);

impl fmt::Display for InvalidArgument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InvalidArgument {}

impl From<InvalidTopic> for InvalidArgument {
    fn from(error: InvalidTopic) -> Self {
        Self(format!("topic: {error}"))
    }
}

/// Names the argument of an error.
fn named(name: &str) -> impl Fn(RequestFailed) -> InvalidArgument {
    move |error| InvalidArgument(format!("{name}: {error}"))
}

/// The topics of a server.
#[derive(Debug)]
pub(super) enum ServerTopics {
    Plain(Publisher),
    Whole(ProgramTopics),
}

/// A message that waits for the next turn.
#[derive(Debug)]
pub(super) enum QueuedMessage {
    Plain(Prepared),
    Whole(ProgramMessage),
}

impl ServerTopics {
    /// The topics of the whole server.
    pub(super) fn whole(&self) -> Result<&ProgramTopics, InvalidArgument> {
        match self {
            Self::Plain(_) => Err(InvalidArgument(
                "the server was started without config, which this call needs".to_owned(),
            )),
            Self::Whole(topics) => Ok(topics),
        }
    }

    pub(super) fn check_subscription(&self, topic: &str) -> Result<(), InvalidArgument> {
        match self {
            Self::Plain(_) => TopicPattern::parse(topic).map(drop).map_err(Into::into),
            Self::Whole(_) => ProgramTopics::check_subscription(topic).map_err(named("topic")),
        }
    }

    /// Checks a publication, and copies its message.
    pub(super) fn message(
        &self,
        topic: &str,
        kind: Kind,
        payload: &[u8],
    ) -> Result<QueuedMessage, InvalidArgument> {
        match self {
            Self::Plain(_) => {
                TopicPattern::parse(topic)?;
                if topic.split('.').any(|part| matches!(part, "*" | ">")) {
                    return Err(InvalidTopic::Wildcard.into());
                }
                Ok(QueuedMessage::Plain(Prepared::new(kind, Bytes::copy_from_slice(payload))))
            }
            Self::Whole(_) => {
                ProgramTopics::check_name(topic).map_err(named("topic"))?;
                Ok(QueuedMessage::Whole(match (kind, std::str::from_utf8(payload)) {
                    (Kind::Text, Ok(text)) => ProgramMessage::Text(text.to_owned()),
                    _ => ProgramMessage::Binary(Bytes::copy_from_slice(payload)),
                }))
            }
        }
    }

    /// Checks a publication of JSON.
    pub(super) fn json(&self, topic: &str, text: &str) -> Result<QueuedMessage, InvalidArgument> {
        self.whole()?;
        ProgramTopics::check_name(topic).map_err(named("topic"))?;
        let message = ProgramMessage::Json(text.to_owned());
        message.check().map_err(named("data"))?;
        Ok(QueuedMessage::Whole(message))
    }

    /// Whether publications to a topic wait for the answer of a stream.
    pub(super) fn is_durable(&self, topic: &str) -> bool {
        matches!(self, Self::Whole(topics) if topics.is_durable(topic))
    }

    /// Whether a turn should precede a further publication.
    pub(super) fn is_backlogged(&self) -> bool {
        matches!(self, Self::Whole(topics) if topics.is_backlogged())
    }

    /// Publishes a message. Returns it if it must be published again after a turn.
    pub(super) fn publish(
        &mut self,
        topic: &str,
        message: QueuedMessage,
        requests: &mut Requests,
    ) -> Option<QueuedMessage> {
        match (self, message) {
            (Self::Plain(publisher), QueuedMessage::Plain(message)) => {
                match publisher.publish(topic, &message, PublishOptions::new()) {
                    Err(PublishError::Undelivered(_)) => Some(QueuedMessage::Plain(message)),
                    _ => None,
                }
            }
            (Self::Whole(topics), QueuedMessage::Whole(message)) if topics.is_durable(topic) => {
                // Both were checked.
                if let Ok(append) = topics.append(topic, message) {
                    requests.push(async move { append.await.map(|_| None) });
                }
                None
            }
            (Self::Whole(topics), QueuedMessage::Whole(message)) => {
                // Both were checked.
                let _ = topics.publish(topic, message);
                None
            }
            // Messages are made for these topics.
            (_, _) => None,
        }
    }

    /// Reads a topic's history: the last messages, or those after a position.
    pub(super) fn history(
        &self,
        topic: &str,
        start: ReplayFrom,
    ) -> Result<impl Future<Output = Answer> + Send + 'static + use<>, InvalidArgument> {
        ProgramTopics::check_name(topic).map_err(named("topic"))?;
        let messages = self.whole()?.history(topic, start);
        Ok(async move { messages.await.map(Some) })
    }

    /// Reads who is present in a topic.
    pub(super) fn presence(&self, topic: &str, after: Option<&str>) -> Result<String, InvalidArgument> {
        self.whole()?.presence(topic, after).map_err(named("topic"))
    }
}

/// The answer to a request: JSON, or nothing to report.
type Answer = Result<Option<String>, RequestFailed>;

/// Requests to topics that are answered later.
pub(super) struct Requests {
    waiting: HashMap<u32, Pin<Box<dyn Future<Output = Answer> + Send>>>,
    last: u32,
    woken: Arc<WokenRequests>,
}

/// Requests to poll.
struct WokenRequests {
    /// In order: records of a stream have the order of their publications.
    ids: Mutex<VecDeque<u32>>,
    waker: Waker,
}

/// The waker of a request.
struct RequestWaker {
    id: u32,
    woken: Arc<WokenRequests>,
}

impl Wake for RequestWaker {
    fn wake(self: Arc<Self>) {
        self.woken.ids.lock().unwrap_or_else(PoisonError::into_inner).push_back(self.id);
        self.woken.waker.wake_by_ref();
    }
}

impl fmt::Debug for Requests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.waiting.keys()).finish()
    }
}

impl Requests {
    /// Creates an empty list. The waker starts a turn.
    pub(super) fn new(waker: Waker) -> Self {
        let woken = WokenRequests { ids: Mutex::default(), waker };
        Self { waiting: HashMap::new(), last: 0, woken: Arc::new(woken) }
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Adds a request, which the next turn polls. Returns its id.
    pub(super) fn push(&mut self, request: impl Future<Output = Answer> + Send + 'static) -> u32 {
        self.last = self.last.wrapping_add(1);
        self.waiting.insert(self.last, Box::pin(request));
        let waker = RequestWaker { id: self.last, woken: Arc::clone(&self.woken) };
        Arc::new(waker).wake();
        self.last
    }

    /// Polls the requests that were woken, and reports answers, as long as the events are not full.
    pub(super) fn poll(&mut self, shared: &Mutex<Shared>) {
        loop {
            if super::lock(shared).events.is_full() {
                return;
            }
            let Some(id) = self.woken.ids.lock().unwrap_or_else(PoisonError::into_inner).pop_front() else {
                return;
            };
            let Some(request) = self.waiting.get_mut(&id) else { continue };
            let waker = Waker::from(Arc::new(RequestWaker { id, woken: Arc::clone(&self.woken) }));
            let Poll::Ready(answer) = request.as_mut().poll(&mut Context::from_waker(&waker)) else {
                continue;
            };
            self.waiting.remove(&id);
            let kind = ServerEvent::Answer as u32;
            let events = &mut super::lock(shared).events;
            // An answer has a megabyte at most, and the events are not full.
            match answer {
                Ok(None) => true,
                Ok(Some(text)) => events.push_numbered(kind, id, &[text.as_bytes()]),
                Err(error) => {
                    let status = u32::from(error.status()) << 8;
                    events.push_numbered(kind | status, id, &[error.to_string().as_bytes()])
                }
            };
        }
    }

    /// Whether a turn has requests to poll.
    pub(super) fn is_woken(&self) -> bool {
        !self.woken.ids.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }
}
