//! Publications: one message, a batch, and a broadcast to many topics.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::{Either, join_all, ready};
use serde_json::json;
use serde_json::value::RawValue;
use sinews_server::{Answer, Publisher, Request, Response};

use super::body::{content_of, parse, read};
use super::context::{ApiContext, Executed, failure, text_success};
use super::topics::matching_topics_of_all_nodes;
use crate::access::auth::{ApiRight, ApiRights, Rights};
use crate::activity::{Activity, BACKEND};
use crate::model::brief::brief;
use crate::model::connection_id::ConnectionId;
use crate::model::json::present;
use crate::model::problem::{Problem, code, problem};
use crate::model::publication::{Publication, PublicationSender};
use crate::model::schema::requests;
use crate::model::{self, MessageContent, push_json};
use crate::session::publishing::publish_once;
use crate::topics::TopicPublisher;
use crate::topics::list::TopicScan;
use crate::topics::recent::{KeyedPublication, Published, StoredPublication, check_key};

/// Maximum messages in a batch.
const BATCH_MAX: usize = 1_000;

/// Maximum topics in a broadcast.
const TOPICS_MAX: usize = 1_000;

requests! {
    one_of[data, b64]
    struct PublishBody<'a> {
        /// Topic to publish to
        #[serde(borrow)]
        topic: Cow<'a, str>,
        /// The message as JSON; either data or b64
        // `null` is a valid payload.
        #[serde(borrow, default, deserialize_with = "present")]
        data: Option<&'a RawValue>,
        /// The message as bytes in base64; either data or b64
        #[serde(borrow)]
        b64: Option<Cow<'a, str>>,
        /// 1 to 128 bytes: a second publication to the topic with the same key within 300 s is not published; of a
        /// durable topic, also after a restart and at another node
        #[serde(borrow)]
        idempotency_key: Option<Cow<'a, str>>,
        /// Id of a connection of any node that does not receive the message, such as that of the sender. Not for
        /// durable topics; a later replay of the topic's history has the message
        #[serde(borrow)]
        exclude: Option<Cow<'a, str>>,
    }

    struct BatchBody<'a> {
        /// The messages, in order
        #[serde(borrow)]
        messages: Vec<PublishBody<'a>>,
    }

    one_of[topics, pattern]
    struct BroadcastBody<'a> {
        /// Names of topics; either topics or pattern
        topics: Option<Vec<String>>,
        /// All topics that match and have subscribers by name or a history, on any node
        pattern: Option<String>,
        /// The message as JSON; either data or b64
        // `null` is a valid payload.
        #[serde(borrow, default, deserialize_with = "present")]
        data: Option<&'a RawValue>,
        /// The message as bytes in base64; either data or b64
        #[serde(borrow)]
        b64: Option<Cow<'a, str>>,
        /// 1 to 128 bytes: a second publication to the topic with the same key within 300 s is not published; of a
        /// durable topic, also after a restart and at another node
        #[serde(borrow)]
        idempotency_key: Option<Cow<'a, str>>,
        /// Id of a connection of any node that does not receive the message, such as that of the sender. Not for
        /// durable topics; a later replay of the topic's history has the message
        #[serde(borrow)]
        exclude: Option<Cow<'a, str>>,
    }
}

/// What a request says of its publications.
#[derive(Clone, Copy, Default)]
struct RequestedPublication<'a> {
    /// The idempotency key.
    key: Option<&'a str>,
    /// The connection that does not receive them.
    exclude: Option<ConnectionId>,
}

/// The connection that a request excludes.
fn excluded(id: Option<&str>) -> Result<Option<ConnectionId>, Problem> {
    let parse = |id| {
        ConnectionId::parse(id).ok_or_else(|| {
            problem(code::MALFORMED, format!("exclude: {:?} is no id of a connection", brief(id)))
        })
    };
    id.map(parse).transpose()
}

/// A publication with its topic, or the error of one message among others.
type PublishOutcome = Result<(KeyedPublication, bool), Problem>;

/// `POST /publish`.
pub(super) fn publish(context: &Arc<ApiContext>, rights: &ApiRights, request: &mut Request<'_>) -> Executed {
    let body: PublishBody<'_> = read(request)?;
    let (publication, repeated) = match unread_topics(context, rights, std::slice::from_ref(&body)) {
        topics if topics.is_empty() => publish_message(context, rights, request.topics(), &body)?,
        topics => {
            let (mut delayed, topic) =
                (DelayedPublication::new(context, rights, request, topics), body.topic.into_owned());
            return Ok(Answer::later(async move {
                let published = async {
                    delayed.read_keys().await?;
                    let body: PublishBody<'_> = parse(&delayed.body)?;
                    let (context, rights, publisher) =
                        (&delayed.context, &delayed.rights, &mut delayed.publisher);
                    let (publication, repeated) = publish_message(context, rights, publisher, &body)?;
                    Ok((publication.result().await?, repeated))
                };
                answer_to_one(&topic, published.await)
            }));
        }
    };
    Ok(match publication {
        KeyedPublication::Done(published) => answer_to_one(&body.topic, Ok((published, repeated))).into(),
        KeyedPublication::Appending(append) => {
            let topic = body.topic.into_owned();
            Answer::later(async move {
                answer_to_one(&topic, append.await.map(|published| (published, repeated)))
            })
        }
    })
}

fn answer_to_one(topic: &str, result: Result<(Published, bool), Problem>) -> Response {
    match result {
        Ok((published, repeated)) => text_success(success_text(topic, published, repeated) + "\n"),
        Err(problem) => failure(&problem),
    }
}

/// `POST /batch`: each message has its own result.
pub(super) fn batch(context: &Arc<ApiContext>, rights: &ApiRights, request: &mut Request<'_>) -> Executed {
    let body: BatchBody<'_> = read(request)?;
    if body.messages.len() > BATCH_MAX {
        let text = format!("batch of {} messages exceeds the limit of {BATCH_MAX}", body.messages.len());
        return Err(problem(code::TOO_LARGE, text));
    }
    let topics = unread_topics(context, rights, &body.messages);
    if topics.is_empty() {
        return Ok(results(execute_batch(context, rights, request.topics(), body)));
    }
    let mut delayed = DelayedPublication::new(context, rights, request, topics);
    Ok(Answer::later(async move {
        let outcomes = match delayed.read_keys().await {
            Ok(()) => parse(&delayed.body)
                .map(|body| execute_batch(&delayed.context, &delayed.rights, &mut delayed.publisher, body)),
            Err(problem) => Err(problem),
        };
        answer_to_all(outcomes).await
    }))
}

fn execute_batch(
    context: &Arc<ApiContext>,
    rights: &ApiRights,
    out: &mut impl TopicPublisher,
    body: BatchBody<'_>,
) -> Vec<(String, PublishOutcome)> {
    let publish = |message: PublishBody<'_>| {
        let outcome = publish_message(context, rights, out, &message);
        (message.topic.into_owned(), outcome)
    };
    body.messages.into_iter().map(publish).collect()
}

async fn answer_to_all(outcomes: Result<Vec<(String, PublishOutcome)>, Problem>) -> Response {
    match outcomes {
        Ok(outcomes) => text_success(results_text(outcomes).await),
        Err(problem) => failure(&problem),
    }
}

/// Durable topics whose last records have to be read before these messages are published.
fn unread_topics(context: &ApiContext, rights: &ApiRights, messages: &[PublishBody<'_>]) -> Vec<String> {
    let with_key = messages.iter().filter(|message| message.idempotency_key.is_some());
    context.unread_topics(rights, with_key.map(|message| &*message.topic))
}

/// A request that is executed when durable topics' last records are read.
struct DelayedPublication {
    context: Arc<ApiContext>,
    rights: ApiRights,
    publisher: Publisher,
    body: Bytes,
    topics: Vec<String>,
}

impl DelayedPublication {
    fn new(
        context: &Arc<ApiContext>,
        rights: &ApiRights,
        request: &Request<'_>,
        topics: Vec<String>,
    ) -> Self {
        Self {
            context: Arc::clone(context),
            rights: rights.clone(),
            publisher: request.publisher(),
            body: Bytes::copy_from_slice(request.body()),
            topics,
        }
    }

    async fn read_keys(&mut self) -> Result<(), Problem> {
        self.context.read_keys(std::mem::take(&mut self.topics)).await
    }
}

/// `POST /broadcast`: one message to many topics.
pub(super) fn broadcast(
    context: &Arc<ApiContext>,
    rights: &ApiRights,
    request: &mut Request<'_>,
) -> Executed {
    let body: BroadcastBody<'_> = read(request)?;
    let content = content_of(body.data, body.b64.as_deref())?;
    let key = body.idempotency_key.as_deref();
    let exclude = excluded(body.exclude.as_deref())?;
    match (body.topics, body.pattern) {
        (Some(topics), None) => {
            if topics.len() > TOPICS_MAX {
                return Err(too_many_topics(topics.len()));
            }
            let names = topics.iter().map(|topic| &**topic).filter(|_| key.is_some());
            let unread = context.unread_topics(rights, names);
            if unread.is_empty() {
                let out = request.topics();
                let requested = RequestedPublication { key, exclude };
                return Ok(results(publish_to_all(context, rights, out, topics, &content, requested)));
            }
            let key = key.map(str::to_owned);
            let mut delayed = DelayedPublication::new(context, rights, request, unread);
            Ok(Answer::later(async move {
                let read = delayed.read_keys().await;
                let (context, rights, out) = (&delayed.context, &delayed.rights, &mut delayed.publisher);
                let requested = RequestedPublication { key: key.as_deref(), exclude };
                let publish = || publish_to_all(context, rights, out, topics, &content, requested);
                answer_to_all(read.map(|()| publish())).await
            }))
        }
        (None, Some(pattern)) => {
            let scan = TopicScan::new(&pattern, context.hub.encodings())?;
            rights.may(ApiRight::Publish, &pattern)?;
            let broadcast = PatternBroadcast {
                context: Arc::clone(context),
                rights: rights.clone(),
                publisher: request.publisher(),
                content,
                key: key.map(str::to_owned),
                exclude,
            };
            Ok(Answer::later(async move {
                match broadcast.run(scan, &pattern).await {
                    Ok(results) => text_success(results),
                    Err(problem) => failure(&problem),
                }
            }))
        }
        _ => Err(problem(code::MALFORMED, "either topics or pattern is required")),
    }
}

/// A broadcast to all topics on all nodes that match a pattern.
struct PatternBroadcast {
    context: Arc<ApiContext>,
    rights: ApiRights,
    publisher: Publisher,
    content: MessageContent,
    key: Option<String>,
    exclude: Option<ConnectionId>,
}

impl PatternBroadcast {
    async fn run(mut self, scan: TopicScan, pattern: &str) -> Result<String, Problem> {
        // Find all topics first, so that a rejected broadcast reaches none.
        let cluster = self.context.cluster.as_ref();
        let topics = matching_topics_of_all_nodes(cluster, &self.publisher, scan, pattern, TOPICS_MAX).await;
        let (topics, missing) = topics.ok_or_else(|| too_many_topics(TOPICS_MAX + 1))?;
        let key = self.key.as_deref();
        let names = topics.iter().map(|topic| &**topic).filter(|_| key.is_some());
        self.context.read_keys(self.context.unread_topics(&self.rights, names)).await?;
        // Once each: the nodes with subscribers receive it from the broker.
        let (context, out) = (&self.context, &mut self.publisher);
        let requested = RequestedPublication { key, exclude: self.exclude };
        let results = publish_to_all(context, &self.rights, out, topics, &self.content, requested);
        let mut text = results_text(results).await;
        if !missing.is_empty() {
            text.truncate(text.trim_end().len() - 1);
            let _ = writeln!(text, ",\"missing_nodes\":{}}}", json!(missing));
        }
        Ok(text)
    }
}

/// Publishes a message to each topic.
fn publish_to_all(
    context: &Arc<ApiContext>,
    rights: &ApiRights,
    out: &mut impl TopicPublisher,
    topics: Vec<String>,
    content: &MessageContent,
    requested: RequestedPublication<'_>,
) -> Vec<(String, PublishOutcome)> {
    let publish = |topic: String| {
        let outcome = publish_to(context, rights, out, &topic, content, requested);
        (topic, outcome)
    };
    topics.into_iter().map(publish).collect()
}

fn too_many_topics(topics: usize) -> Problem {
    problem(
        code::TOO_LARGE,
        format!("broadcast to {topics} topics or more exceeds the limit of {TOPICS_MAX}"),
    )
}

fn publish_message(
    context: &Arc<ApiContext>,
    rights: &ApiRights,
    out: &mut impl TopicPublisher,
    message: &PublishBody<'_>,
) -> PublishOutcome {
    let content = content_of(message.data, message.b64.as_deref())?;
    let key = message.idempotency_key.as_deref();
    let requested = RequestedPublication { key, exclude: excluded(message.exclude.as_deref())? };
    publish_to(context, rights, out, &message.topic, &content, requested)
}

/// Publishes to one topic; returns whether an earlier publication had the same idempotency key.
fn publish_to(
    context: &Arc<ApiContext>,
    rights: &ApiRights,
    out: &mut impl TopicPublisher,
    topic: &str,
    content: &MessageContent,
    RequestedPublication { key, exclude }: RequestedPublication<'_>,
) -> PublishOutcome {
    model::check_name(topic).map_err(|text| problem(code::TOPIC, text))?;
    rights.may(ApiRight::Publish, topic)?;
    key.map_or(Ok(()), check_key)?;
    let store = context.durable_store(topic);
    if store.is_some() && exclude.is_some() {
        let text =
            format!("exclude: {} is a durable topic, whose records reach all subscribers", brief(topic));
        return Err(problem(code::TOPIC, text));
    }
    let observed = || Activity { path: BACKEND, ..Activity::publication(topic, content) };
    context.hub.activity().observe(observed);
    let sender = PublicationSender { exclude, ..PublicationSender::default() };
    let content = content.into();
    let publication = Publication::new(topic, &content).with_sender(sender);
    Ok(publish_once(&context.hub, store, out, &publication, key, &Rights::all()))
}

/// Encodes a publication's result, without building a JSON object first.
fn success_text(topic: &str, published: Published, repeated: bool) -> String {
    // For the names and numbers of the longest result.
    let mut text = String::with_capacity(topic.len() + 96);
    let repeated_field = |is_repeated: bool| if is_repeated { "\"repeated\":true," } else { "" };
    let _ = match published {
        Published::Delivered { subscribers, cluster } => {
            let cluster = match cluster {
                Some(true) => "\"cluster\":true,",
                Some(false) => "\"cluster\":false,",
                None => "",
            };
            write!(text, "{{{cluster}{}\"subscribers\":{subscribers}", repeated_field(repeated))
        }
        Published::Stored(StoredPublication { epoch, sequence, is_repeated }) => {
            let repeated = repeated_field(repeated || is_repeated);
            write!(text, "{{\"epoch\":{epoch},{repeated}\"seq\":{sequence}")
        }
        Published::Elsewhere => write!(text, "{{\"repeated\":true"),
        Published::Unstored => write!(text, "{{{}\"stored\":false", repeated_field(repeated)),
    };
    text.push_str(",\"topic\":");
    push_json(&mut text, topic);
    text.push('}');
    text
}

/// The answer with a result for each message; it waits for appends.
fn results(outcomes: Vec<(String, PublishOutcome)>) -> Answer {
    let is_pending = |outcome: &PublishOutcome| matches!(outcome, Ok((KeyedPublication::Appending(_), _)));
    if outcomes.iter().any(|(_, outcome)| is_pending(outcome)) {
        return Answer::later(async { text_success(results_text(outcomes).await) });
    }
    let results = outcomes.iter().map(|(topic, outcome)| match outcome {
        Ok((KeyedPublication::Done(published), repeated)) => result_text(topic, Ok(*published), *repeated),
        Ok((KeyedPublication::Appending(_), _)) => String::new(),
        Err(problem) => result_text(topic, Err(problem.clone()), false),
    });
    answer_of(results).into()
}

async fn results_text(outcomes: Vec<(String, PublishOutcome)>) -> String {
    let results = outcomes.into_iter().map(|(topic, outcome)| {
        let (published, repeated) = match outcome {
            Ok((KeyedPublication::Done(published), repeated)) => {
                (Either::Left(ready(Ok(published))), repeated)
            }
            Ok((KeyedPublication::Appending(append), repeated)) => (Either::Right(append), repeated),
            Err(problem) => (Either::Left(ready(Err(problem))), false),
        };
        async move { result_text(&topic, published.await, repeated) }
    });
    list_of(join_all(results).await.into_iter())
}

fn answer_of(results: impl Iterator<Item = String>) -> Response {
    text_success(list_of(results))
}

fn list_of(results: impl Iterator<Item = String>) -> String {
    let mut text = "{\"results\":[".to_owned();
    for (at, result) in results.enumerate() {
        if at > 0 {
            text.push(',');
        }
        text.push_str(&result);
    }
    text.push_str("]}\n");
    text
}

fn result_text(topic: &str, result: Result<Published, Problem>, repeated: bool) -> String {
    match result {
        Ok(published) => success_text(topic, published, repeated),
        Err(problem) => {
            let mut failed = problem.fields();
            failed["topic"] = json!(topic);
            failed.to_string()
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn results_of_publications_are_json_objects() {
        let stored =
            |is_repeated| Published::Stored(StoredPublication { epoch: u64::MAX, sequence: 41, is_repeated });
        let delivered = Published::Delivered { subscribers: 2, cluster: None };
        let at_node = |cluster| Published::Delivered { subscribers: 0, cluster: Some(cluster) };
        for (published, repeated, expected) in [
            (delivered, false, json!({ "topic": "a\"b", "subscribers": 2 })),
            (delivered, true, json!({ "topic": "a\"b", "subscribers": 2, "repeated": true })),
            (at_node(true), false, json!({ "topic": "a\"b", "subscribers": 0, "cluster": true })),
            (
                at_node(false),
                true,
                json!({ "topic": "a\"b", "subscribers": 0, "cluster": false, "repeated": true }),
            ),
            (stored(false), false, json!({ "topic": "a\"b", "epoch": u64::MAX, "seq": 41 })),
            (stored(true), false, json!({ "topic": "a\"b", "epoch": u64::MAX, "seq": 41, "repeated": true })),
            (stored(false), true, json!({ "topic": "a\"b", "epoch": u64::MAX, "seq": 41, "repeated": true })),
        ] {
            let text = success_text("a\"b", published, repeated);
            assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), expected, "{text}");
            assert_eq!(text, expected.to_string(), "the fields are sorted, as in all answers");
        }
    }
}
