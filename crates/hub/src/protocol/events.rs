//! `GET /topics/{name}` and `GET /topics?topic=…`: topic messages for clients without WebSocket, as Server-Sent Events,
//! as JSON lines, or by long polls.
//!
//! A response subscribes as a [`/ws`](super::json) client does, and gets the same messages; its format encodes each of
//! them once for all responses.

mod cursor;
mod format;
mod joins;
pub(crate) mod keys;
mod request;
mod streams;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sinews_server::{
    Answer, CloseCode, Closed, Config, Context, DroppedMessages, Handler, KeySubscription, Payload, Request,
    StreamingResponse,
};

use self::format::{
    ELEMENTS, EventIds, LINES, MESSAGE_EVENTS, PAYLOAD_EVENTS, PollAnswer, PollWaker, Positions,
};
use self::joins::RequestedJoin;
use self::request::{RequestedFormat, RequestedTopic, TopicsRequest};
use super::json::JsonClient;
use super::json::members::PresenceDetail;
use super::json::streams::JsonStreams;
use crate::access::auth::{Action, Denied, Rights};
use crate::closing::close;
use crate::config::ConfigHandle;
use crate::http::{error_response, failure};
use crate::model;
use crate::model::opening::SharedOpening;
use crate::model::problem::Problem;
use crate::session::request_hooks::{MemberAnswer, RequestHooks, RequestRejection};
use crate::topics::HubTopics;

/// Answers requests for topic messages.
pub(crate) struct TopicsReader<'a> {
    pub(crate) live: &'a ConfigHandle,
    pub(crate) hub: &'a Arc<HubTopics>,
    pub(crate) streams: JsonStreams,
    pub(crate) config: &'a Arc<Config>,
    pub(crate) max_message: usize,
}

/// Whether a page of another origin has embedded the request's address like a picture's: browsers then send no
/// `Origin`, which would be checked.
fn is_embedded(request: &Request<'_>) -> bool {
    let is_foreign = |site: &[u8]| !matches!(site, b"same-origin" | b"none");
    let head = request.head();
    head.header("origin").next().is_none() && head.header("sec-fetch-site").any(is_foreign)
}

impl TopicsReader<'_> {
    /// Starts the response.
    ///
    /// # Errors
    /// [`Denied`] if the token is invalid, or does not grant the right to subscribe.
    pub(crate) fn answer(self, request: &Request<'_>) -> Result<Answer, Denied> {
        let config = self.live.config();
        if let Err(rejection) = config.check_origin(request) {
            return Ok(failure(403, rejection.text()).into());
        }
        let names = match names_of(request) {
            Ok(names) => names,
            Err(problem) => return Ok(failure(400, problem).into()),
        };
        let wanted = match TopicsRequest::read(request, names) {
            Ok(wanted) => wanted,
            Err((status, problem)) => return Ok(failure(status, &problem).into()),
        };
        if !wanted.joins.is_empty() && is_embedded(request) {
            let problem =
                "a page of another origin can join only by a request with `Origin`, such as one of `fetch`";
            return Ok(failure(403, problem).into());
        }
        let rights = config.rights(request)?;
        let mut names: Vec<String> = wanted.topics.iter().map(|topic| topic.name.clone()).collect();
        // The application decides about members as about subscribers.
        let joined = wanted.joins.iter().map(|join| join.topic.clone());
        names.extend(joined.filter(|topic| wanted.topics.iter().all(|known| known.name != *topic)));
        let config = Arc::clone(self.config);
        let has_presence = wanted.presence > PresenceDetail::None;
        let path = if request.param("name").is_some() { "/topics/{name}" } else { "/topics" };
        let topics = wanted.topics.clone();
        let openings = move |hub: &HubTopics| {
            let names = topics.iter().filter(|topic| model::check_name(&topic.name).is_ok());
            names.filter_map(|topic| hub.opening_of_history(&topic.name, topic.start)).collect()
        };
        self.respond(request, rights, path, names, openings, move |client, assigned| {
            if has_presence {
                wanted.topics.iter().try_for_each(|topic| client.check_presence(&topic.name))?;
            }
            wanted.joins.iter().try_for_each(|join| client.check_join(&join.topic, join.member.as_ref()))?;
            Ok(response(client, wanted, assigned).with_config(config))
        })
    }

    /// Starts a response once the rights and the hooks permit its subscriptions, and this node has the topics.
    fn respond(
        self,
        request: &Request<'_>,
        rights: Rights,
        path: &'static str,
        topics: Vec<String>,
        openings: impl FnOnce(&HubTopics) -> Vec<SharedOpening> + 'static,
        make: impl FnOnce(JsonClient, Vec<String>) -> Result<StreamingResponse, Problem> + 'static,
    ) -> Result<Answer, Denied> {
        let has_hook = |topic: &String| !matches!(rights.subscribe_hook(topic), Ok(None));
        let hooks = RequestHooks::for_request(self.live, request)
            .filter(|hooks| hooks.has_connect() || topics.iter().any(has_hook));
        let may = |rights: &Rights, topics: &[String]| {
            topics.iter().try_for_each(|topic| rights.may(Action::Subscribe, topic))
        };
        let (live, hub, max_message) = (self.live.clone(), Arc::clone(self.hub), self.max_message);
        let streams = self.streams;
        let opened = Arc::clone(&hub);
        let client = move |rights| JsonClient::with_rights(rights, &live, hub, max_message, streams);
        let Some(hooks) = hooks else {
            may(&rights, &topics)?;
            let openings = openings(&opened);
            let respond = move || {
                let made = make(client(rights), Vec::new());
                made.map_err(|problem| failure(problem.code, &problem.text))
            };
            return Ok(match openings.is_empty() {
                true => respond().map_or_else(Answer::from, Answer::from),
                false => Answer::later_streaming(async move {
                    wait_for_all(openings).await.map_err(|problem| error_response(&problem))?;
                    respond()
                }),
            });
        };
        Ok(Answer::later_streaming(async move {
            let decided = async {
                let accepted = hooks.connect(rights, path).await?;
                may(&accepted.rights, &topics)?;
                let mut answer = accepted.answer;
                let names = topics.iter().map(|topic| &**topic);
                hooks.subscribe(&accepted.rights, names, &mut answer).await?;
                wait_for_all(openings(&opened)).await?;
                let MemberAnswer { topics: assigned, info, topic_infos } = answer;
                let (client, headers) = (client(accepted.rights), hooks.into_headers());
                let client = client.with_hooks(headers, accepted.is_granted, info, topic_infos);
                Ok::<_, RequestRejection>(make(client, assigned)?)
            };
            decided.await.map_err(|rejection| rejection.response())
        }))
    }
}

async fn wait_for_all(openings: Vec<SharedOpening>) -> Result<(), Problem> {
    for opening in openings {
        opening.await?;
    }
    Ok(())
}

/// A request's topics: the name in the path, or each `topic` in the query.
fn names_of<'a>(request: &Request<'a>) -> Result<Vec<Cow<'a, str>>, &'static str> {
    if request.head().path() == "/topics" {
        return Ok(request.query_values("topic").take(request::TOPICS_MAX + 1).collect());
    }
    request.param("name").map(|name| vec![name]).ok_or("the topic's name is not UTF-8")
}

/// Creates the response in the requested format.
fn response(client: JsonClient, wanted: TopicsRequest, assigned: Vec<String>) -> StreamingResponse {
    let positions = || Positions::new(&wanted.topics);
    let reader = |poll| EventReader {
        client,
        requested: Some(Box::new(RequestedSubscriptions::Topics {
            topics: wanted.topics.clone(),
            presence: wanted.presence,
            assigned: wanted.assigned.then_some(assigned),
            joins: wanted.joins.clone(),
        })),
        followed: FollowedResource::Topics(u8::try_from(wanted.topics.len()).unwrap_or(u8::MAX)),
        joins: u8::try_from(wanted.joins.len()).unwrap_or(u8::MAX),
        poll,
    };
    match wanted.format {
        RequestedFormat::Events if wanted.is_single() => {
            StreamingResponse::new(request::EVENTS, &PAYLOAD_EVENTS, reader(None))
        }
        RequestedFormat::Events => StreamingResponse::new(request::EVENTS, &MESSAGE_EVENTS, reader(None))
            .with_prefix(EventIds(positions())),
        RequestedFormat::Lines => StreamingResponse::new(request::LINES, &LINES, reader(None)),
        RequestedFormat::Poll(wait) => {
            let (poll, prefix) = LongPoll::new(&wanted.topics, wait);
            StreamingResponse::new(request::JSON, &ELEMENTS, reader(Some(poll))).with_prefix(prefix)
        }
    }
}

/// One response's subscriptions. If one ends, so does the response, and the client resumes with another one.
struct EventReader {
    client: JsonClient,
    /// `None` once the response has begun.
    requested: Option<Box<RequestedSubscriptions>>,
    followed: FollowedResource,
    /// Number of joined topics.
    joins: u8,
    poll: Option<Box<LongPoll>>,
}

/// What a response follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FollowedResource {
    /// This number of topics.
    Topics(u8),
    /// A topic's keys.
    Keys,
    /// A stream's records.
    Stream,
}

/// A response's subscriptions.
enum RequestedSubscriptions {
    Topics {
        topics: Vec<RequestedTopic>,
        /// Each topic's presence, as far as the client requests it.
        presence: PresenceDetail,
        /// Set if the client wants the topics that the server assigns to it: those of the application's answer.
        assigned: Option<Vec<String>>,
        joins: Vec<RequestedJoin>,
    },
    Keys(String, KeySubscription),
    /// The op of a stream's consumption.
    Records(String),
}

/// A response that ends with the first messages.
struct LongPoll {
    waker: PollWaker,
    /// When it ends without any.
    until: Instant,
}

impl LongPoll {
    /// Creates a poll's state, and what writes its answer.
    fn new(topics: &[RequestedTopic], wait: Duration) -> (Box<Self>, PollAnswer) {
        let waker = PollWaker::default();
        let answer = PollAnswer::new(Positions::new(topics), waker.clone());
        (Box::new(Self { waker, until: Instant::now() + wait }), answer)
    }
}

impl EventReader {
    /// Ends the response if a subscription or a membership has ended, or if a poll has its answer.
    fn end_if_due(&self, cx: &mut Context<'_>) {
        let has_all = match self.followed {
            FollowedResource::Keys => self.client.is_subscribed_to_keys(),
            FollowedResource::Topics(topics) => self.client.subscriptions() >= usize::from(topics),
            FollowedResource::Stream => self.client.is_consuming(),
        };
        let has_all = has_all && self.client.joined_topics() >= usize::from(self.joins);
        if self.requested.is_none() && !has_all {
            return close(cx, CloseCode::TRY_AGAIN_LATER, "a subscription has ended");
        }
        if self.poll.as_ref().is_some_and(|poll| poll.waker.has_messages()) {
            close(cx, CloseCode::NORMAL, "");
        }
    }

    fn subscribe(&mut self, cx: &mut Context<'_>) {
        let Some(requested) = self.requested.take() else { return };
        let mut all_assigned = None;
        let subscribed = match *requested {
            RequestedSubscriptions::Topics { topics, presence, assigned, joins } => {
                all_assigned = assigned;
                let mut topics = topics.into_iter();
                let subscribed = topics.try_for_each(|RequestedTopic { name, start }| {
                    self.client.subscribe_reader(&name, presence, start, cx)
                });
                // Behind the subscriptions: other members may answer a new member at once.
                let mut joins = joins.into_iter();
                subscribed.and_then(|()| {
                    joins.try_for_each(|join| self.client.join_reader(&join.topic, join.member, cx))
                })
            }
            RequestedSubscriptions::Keys(topic, options) => {
                self.client.subscribe_to_keys(&topic, options, cx)
            }
            RequestedSubscriptions::Records(op) => self.client.consume_reader(op, cx),
        };
        if let Err(problem) = subscribed {
            close(cx, CloseCode::TRY_AGAIN_LATER, &problem.text);
        }
        if let Some(assigned) = all_assigned {
            self.client.accept_assigned(&assigned, cx);
        }
    }
}

impl Handler for EventReader {
    fn open(&mut self, cx: &mut Context<'_>) {
        if let Some(poll) = &self.poll {
            poll.waker.register(cx.waker());
            self.client.register_poll(cx);
        } else {
            self.client.register_reader(cx);
        }
        self.client.expect_subscriptions(match self.followed {
            FollowedResource::Topics(topics) => usize::from(topics),
            FollowedResource::Keys | FollowedResource::Stream => 0,
        });
        self.subscribe(cx);
    }

    fn message(&mut self, _: Payload<'_>, _: &mut Context<'_>) {}

    fn dropped(&mut self, missed: &DroppedMessages, cx: &mut Context<'_>) {
        self.client.dropped(missed, cx);
    }

    fn woken(&mut self, cx: &mut Context<'_>) {
        self.client.woken(cx);
        self.end_if_due(cx);
    }

    fn drain(&mut self, cx: &mut Context<'_>) {
        self.client.drain(cx);
        self.end_if_due(cx);
    }

    fn deadline(&self) -> Option<Instant> {
        let polled = self.poll.as_ref().map(|poll| poll.until);
        [self.client.deadline(), polled].into_iter().flatten().min()
    }

    fn expired(&mut self, cx: &mut Context<'_>) {
        if self.client.deadline().is_some_and(|deadline| deadline <= Instant::now()) {
            return self.client.expired(cx);
        }
        close(cx, CloseCode::NORMAL, "");
    }

    fn queued(&mut self, bytes: usize) {
        self.client.queued(bytes);
    }

    fn close(&mut self, closed: &Closed, cx: &mut Context<'_>) {
        self.client.close(closed, cx);
    }
}
