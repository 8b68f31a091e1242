//! A running hub's topics, for the program that embeds the hub.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::Either;
use serde_json::json;
use serde_json::value::RawValue;
use sinews_server::{Context, HistoryQuery, InvalidTopic, Position, Publisher, ReplayFrom};

use crate::access::auth::Rights;
use crate::activity::{Activity, BACKEND};
use crate::background::Background;
use crate::model::history::HistoryRange;
use crate::model::json::check_depth;
use crate::model::json_list::JsonListItem as _;
use crate::model::problem::{Problem, code, problem};
use crate::model::publication::Publication;
use crate::model::{self, MessageContent, is_pattern, presence};
use crate::protocol::raw::encoding::PAYLOADS;
use crate::streams::discovery::PatternInterest;
use crate::streams::service::StreamService;
use crate::streams::topic_append::append_to_topic;
use crate::streams::topic_history::{history_page, stored_history};
use crate::topics::HubTopics;
use crate::topics::recent::StoredPublication;

/// The topics of a running hub for the program that embeds it, with all rights.
/// [`RunningHub::topics`](crate::RunningHub::topics) returns it; clones are cheap.
#[derive(Clone)]
pub struct ProgramTopics {
    pub(super) hub: Arc<HubTopics>,
    pub(super) store: Option<Arc<StreamService>>,
    pub(super) publisher: Publisher,
    pub(super) background: Background,
}

/// A message of the program.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_enums, reason = "the kinds of content that the protocols have")]
pub enum ProgramMessage {
    /// Text.
    Text(String),
    /// Bytes, which JSON protocols carry in base64.
    Binary(Bytes),
    /// JSON, which JSON protocols carry as it is.
    Json(String),
}

/// Why a request of the program has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestFailed {
    status: u16,
    text: String,
}

impl RequestFailed {
    /// The status that a client gets by HTTP, such as 412 if the condition of a key is not met, and 422 for an invalid
    /// topic. After 503, the key or the record may have been written.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.status
    }
}

impl From<Problem> for RequestFailed {
    fn from(problem: Problem) -> Self {
        Self { status: problem.code, text: problem.text }
    }
}

impl fmt::Display for RequestFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for RequestFailed {}

impl fmt::Debug for ProgramTopics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProgramTopics").field("publisher", &self.publisher).finish_non_exhaustive()
    }
}

impl ProgramMessage {
    /// Checks JSON.
    ///
    /// # Errors
    /// [`RequestFailed`] with the status 400: the text is not JSON, or is nested too deeply.
    pub fn check(&self) -> Result<(), RequestFailed> {
        let Self::Json(text) = self else { return Ok(()) };
        let parsed = serde_json::from_str::<&RawValue>(text);
        let parsed = parsed
            .map_err(|error| problem(code::MALFORMED, format!("the message is not valid JSON: {error}")))?;
        Ok(check_depth(parsed.get())?)
    }

    fn content(self) -> MessageContent {
        match self {
            Self::Text(text) => MessageContent::Text(text.into()),
            Self::Binary(bytes) => MessageContent::Binary(bytes),
            Self::Json(text) => MessageContent::Json(text.into()),
        }
    }
}

impl ProgramTopics {
    /// Checks the name of a topic, for a publication.
    ///
    /// # Errors
    /// [`RequestFailed`] with the status 422: the name is invalid, a pattern, or reserved for the server.
    pub fn check_name(topic: &str) -> Result<(), RequestFailed> {
        Ok(model::check_name(topic).map_err(|text| problem(code::TOPIC, text))?)
    }

    /// Checks the name of a topic or a pattern, for a subscription.
    ///
    /// # Errors
    /// As [`check_name`](Self::check_name).
    pub fn check_subscription(topic: &str) -> Result<(), RequestFailed> {
        Ok(model::check_subscription(topic).map_err(|text| problem(code::TOPIC, text))?)
    }

    /// Whether publications from this thread should wait for the server's threads, which have many to deliver.
    #[must_use]
    pub fn is_backlogged(&self) -> bool {
        self.publisher.is_backlogged()
    }

    /// Whether publications to this topic are records of a stream, or messages in a topic store:
    /// [`append`](Self::append).
    #[must_use]
    pub fn is_durable(&self, topic: &str) -> bool {
        self.durable_store(topic).is_some() || self.hub.stored(topic).is_some()
    }

    fn durable_store(&self, topic: &str) -> Option<&Arc<StreamService>> {
        self.store.as_ref().filter(|store| store.topics().is_durable(topic))
    }

    /// Publishes a message to a topic that is not durable: to subscribers of all protocols, of other nodes, and to the
    /// topic's history. Returns how many subscriptions of this process it reaches.
    ///
    /// # Errors
    /// [`RequestFailed`]: the topic's name or the JSON is invalid, or the topic is durable.
    pub fn publish(&mut self, topic: &str, message: ProgramMessage) -> Result<usize, RequestFailed> {
        Self::check_name(topic)?;
        message.check()?;
        let content = message.content();
        if self.durable_store(topic).is_some() {
            return Err(problem(code::TOPIC, "the topic is durable: append the message").into());
        }
        self.observe(topic, &content);
        Ok(self.hub.publish(&mut self.publisher, &Publication::new(topic, &(&content).into())))
    }

    fn observe(&self, topic: &str, content: &MessageContent) {
        let describe = || Activity { path: BACKEND, ..Activity::publication(topic, content) };
        self.hub.activity().observe(describe);
    }

    /// Appends a message to the stream of a durable topic, or to the topic store, from which its subscribers get it.
    /// Returns the position; the default one if the store is away and the message was delivered without it
    /// ([`StoreAway::Deliver`](crate::StoreAway::Deliver)).
    ///
    /// # Errors
    /// [`RequestFailed`]: the topic's name or the JSON is invalid, the topic is not durable, or the stream cannot be
    /// written.
    pub fn append(
        &self,
        topic: &str,
        message: ProgramMessage,
    ) -> Result<impl Future<Output = Result<Position, RequestFailed>> + Send + 'static + use<>, RequestFailed>
    {
        Self::check_name(topic)?;
        message.check()?;
        let content = message.content();
        // A clone shares the bytes.
        let observed = content.clone();
        let appended = match (self.durable_store(topic), self.hub.stored(topic)) {
            (Some(store), _) => {
                let appended = append_to_topic(store, topic, content, None, Rights::all());
                Either::Left(async move { appended.await.map(Some) })
            }
            (None, Some(stored)) => {
                let appended = stored.append_for_client(&Publication::new(topic, &(&content).into()), None);
                Either::Right(async move { Ok(StoredPublication::acknowledged(appended.await?)) })
            }
            (None, None) => return Err(problem(code::TOPIC, "the topic is not durable").into()),
        };
        self.observe(topic, &observed);
        Ok(async move {
            let stored: Option<StoredPublication> = appended.await?;
            Ok(stored.map_or_else(Position::default, |stored| Position {
                epoch: stored.epoch,
                sequence: stored.sequence,
            }))
        })
    }

    /// Reads the retained messages of a topic, at most 1,000 and 1 MiB: a JSON list of the messages as in
    /// `GET /api/v1/topics/{topic}/history`. Those of a durable topic are read from its stream.
    ///
    /// # Errors
    /// [`RequestFailed`]: the topic's name is invalid, or the topic has no history.
    pub fn history(
        &self,
        topic: &str,
        start: ReplayFrom,
    ) -> impl Future<Output = Result<String, RequestFailed>> + Send + 'static + use<> {
        let (topics, topic) = (self.clone(), topic.to_owned());
        let range = HistoryRange::from_start(start);
        async move {
            Self::check_name(&topic)?;
            if let Some(store) = topics.durable_store(&topic) {
                let page = stored_history(Arc::clone(store), topic, range).await?;
                return Ok(format!("[{}]", page.messages));
            }
            if let Some(opening) = topics.hub.opening_of_history(&topic, Some(start)) {
                opening.await?;
            }
            let read = |name: &str, query: &HistoryQuery| topics.publisher.history_page(name, query);
            let page = history_page(&topics.hub, &topic, range, read)?;
            let mut list = "[".to_owned();
            for (at, message) in page.messages.iter().enumerate() {
                list.push_str(if at > 0 { "," } else { "" });
                message.write(&mut list);
            }
            list.push(']');
            Ok(list)
        }
    }

    /// Reads who is present in a topic, as JSON: `subscribers`, and a page of `members` after this one, with `more`.
    ///
    /// # Errors
    /// [`RequestFailed`]: the topic's name is invalid.
    pub fn presence(&self, topic: &str, after: Option<&str>) -> Result<String, RequestFailed> {
        Self::check_name(topic)?;
        let count = self.publisher.presence_count(topic);
        let members = self.publisher.members(topic, after, presence::PAGE_MAX + 1);
        let mut page = json!({ "topic": topic });
        let members = presence::add_page(&mut page, count, members);
        Ok(presence::with_members(&page, Some(&members)))
    }

    /// Creates the subscriptions of a connection to one of the program's routes.
    #[must_use]
    pub fn subscriber(&self) -> ProgramSubscriber {
        ProgramSubscriber { topics: self.clone(), names: HashMap::new() }
    }
}

/// The subscriptions of a connection to one of the program's routes: its messages are the payloads, as at
/// `/topics/{name}`. The handler calls [`end`](Self::end) when the connection closes.
pub struct ProgramSubscriber {
    topics: ProgramTopics,
    /// With the interest of a pattern in a broker's streams.
    names: HashMap<Box<str>, Option<PatternInterest>>,
}

impl fmt::Debug for ProgramSubscriber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.names.keys()).finish()
    }
}

impl ProgramSubscriber {
    /// Subscribes to a topic, and makes the connection present in it, or to a pattern. The name was
    /// [checked](ProgramTopics::check_subscription).
    ///
    /// # Errors
    /// [`InvalidTopic`]: a limit of subscriptions is reached.
    pub fn subscribe(&mut self, topic: &str, cx: &mut Context<'_>) -> Result<(), InvalidTopic> {
        if self.names.contains_key(topic) {
            return Ok(());
        }
        cx.subscribe(&PAYLOADS.topic(topic))?;
        self.topics.hub.add_subscriber(cx, PAYLOADS, topic);
        self.topics.hub.retry_rejected(topic);
        let interest = self.open_stream(topic);
        self.names.insert(topic.into(), interest);
        Ok(())
    }

    /// Opens the stream of a durable topic, or those that a pattern matches at a broker, beside the server's threads.
    fn open_stream(&self, topic: &str) -> Option<PatternInterest> {
        let store = self.topics.store.as_ref()?;
        let failed = |problem: &Problem| tracing::warn!("stream of topic {topic}: {}", problem.text);
        let (interest, opening) = match is_pattern(topic) {
            true if store.discovers(topic) => {
                let (interest, opening) = store.discover(topic).inspect_err(failed).ok()?;
                (Some(interest), Some(opening))
            }
            false if store.topics().is_durable(topic) => (None, store.opening_of_topic(topic)),
            _ => return None,
        };
        if let Some(opening) = opening {
            let topic = topic.to_owned();
            let opened = self.topics.background.spawn("opening", async move {
                if let Err(problem) = opening.await {
                    tracing::warn!("stream of topic {topic}: {}", problem.text);
                }
            });
            drop(opened.inspect_err(|error| tracing::warn!(%error, "a stream cannot be opened")));
        }
        interest
    }

    /// Ends a subscription. Returns whether it existed.
    pub fn unsubscribe(&mut self, topic: &str, cx: &mut Context<'_>) -> bool {
        let existed = self.names.remove(topic).is_some();
        if existed {
            cx.unsubscribe(&PAYLOADS.topic(topic));
            self.topics.hub.remove_subscriber(cx, PAYLOADS, topic);
        }
        existed
    }

    /// Ends all subscriptions of a connection that has closed.
    pub fn end(&mut self, cx: &mut Context<'_>) {
        for (topic, _) in std::mem::take(&mut self.names) {
            self.topics.hub.remove_subscriber(cx, PAYLOADS, &topic);
        }
    }
}
