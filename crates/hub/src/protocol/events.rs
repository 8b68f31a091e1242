//! `GET /topics/{name}` and `GET /topics?topic=…`: the messages of topics for clients without WebSocket, as Server-Sent
//! Events, as lines of JSON, or by long polls.
//!
//! A response subscribes as a client of [`/ws`](super::json) does, and gets the same messages; its format encodes each
//! of them once for all responses.

mod cursor;
mod format;
pub(crate) mod keys;
mod request;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;

use sinews_server::{
    Answer, CloseCode, Closed, Config, Context, DroppedMessages, Handler, Payload, Request, StreamingResponse,
};

use self::format::{
    ELEMENTS, EventIds, LINES, MESSAGE_EVENTS, PAYLOAD_EVENTS, PollAnswer, PollWaker, Positions,
};
use self::request::{RequestedFormat, RequestedTopic, TopicsRequest};
use super::json::JsonClient;
use super::json::streams::JsonStreams;
use crate::auth::{Action, Denied};
use crate::closing::close;
use crate::http::failure;
use crate::policy::LivePolicy;
use crate::topics::HubTopics;

/// Answers requests for the messages of topics.
pub(crate) struct TopicsReader<'a> {
    pub(crate) live: &'a LivePolicy,
    pub(crate) hub: &'a Arc<HubTopics>,
    pub(crate) streams: JsonStreams,
    pub(crate) config: &'a Arc<Config>,
    pub(crate) max_message: usize,
}

impl TopicsReader<'_> {
    /// Starts the response.
    ///
    /// # Errors
    /// [`Denied`] if the token is invalid, or does not grant the right to subscribe.
    pub(crate) fn answer(self, request: &Request<'_>) -> Result<Answer, Denied> {
        let policy = self.live.policy();
        if let Err(rejection) = policy.check_origin(request) {
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
        let rights = policy.rights(request)?;
        wanted.topics.iter().try_for_each(|topic| {
            rights.may(Action::Subscribe, &topic.name)?;
            rights.check_without_hooks(Action::Subscribe, &topic.name)
        })?;
        let client =
            JsonClient::with_rights(rights, self.live, Arc::clone(self.hub), self.max_message, self.streams);
        let response = response(client, wanted).with_config(Arc::clone(self.config));
        Ok(with_origin(response, request))
    }
}

/// The page of an allowed origin may read the response.
fn with_origin(response: StreamingResponse, request: &Request<'_>) -> Answer {
    match request.head().header("origin").next().and_then(|origin| std::str::from_utf8(origin).ok()) {
        Some(origin) => response
            .with_header("Access-Control-Allow-Origin", origin.to_owned())
            .with_header("Vary", "Origin")
            .into(),
        None => response.into(),
    }
}

/// The topics of a request: the name in the path, or each `topic` of the query.
fn names_of<'a>(request: &Request<'a>) -> Result<Vec<Cow<'a, str>>, &'static str> {
    if request.head().path() == "/topics" {
        return Ok(request.query_values("topic").take(request::TOPICS_MAX + 1).collect());
    }
    request.param("name").map(|name| vec![name]).ok_or("the topic's name is not UTF-8")
}

/// Creates the response in the requested format.
fn response(client: JsonClient, wanted: TopicsRequest) -> StreamingResponse {
    let positions = || Positions::new(&wanted.topics);
    let reader = |poll| TopicReader {
        client,
        expected: wanted.topics.len(),
        topics: wanted.topics.as_slice().into(),
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
            let waker = PollWaker::default();
            let prefix = PollAnswer::new(positions(), waker.clone());
            let poll = Box::new(LongPoll { waker, until: Instant::now() + wait });
            StreamingResponse::new(request::JSON, &ELEMENTS, reader(Some(poll))).with_prefix(prefix)
        }
    }
}

/// The subscriptions of one response.
struct TopicReader {
    client: JsonClient,
    /// The topics to subscribe to; empty once the response has begun.
    topics: Box<[RequestedTopic]>,
    /// Number of topics. If a subscription ends, so does the response, and the client resumes with another one.
    expected: usize,
    poll: Option<Box<LongPoll>>,
}

/// A response that ends with the first messages.
struct LongPoll {
    waker: PollWaker,
    /// When it ends without any.
    until: Instant,
}

impl TopicReader {
    /// Ends the response if a subscription has ended, or if a poll has its answer.
    fn end_if_due(&self, cx: &mut Context<'_>) {
        if self.client.subscriptions() < self.expected {
            return close(cx, CloseCode::TRY_AGAIN_LATER, "a subscription has ended");
        }
        if self.poll.as_ref().is_some_and(|poll| poll.waker.has_messages()) {
            close(cx, CloseCode::NORMAL, "");
        }
    }
}

impl Handler for TopicReader {
    fn open(&mut self, cx: &mut Context<'_>) {
        if let Some(poll) = &self.poll {
            poll.waker.register(cx.waker());
        }
        self.client.register_reader(cx);
        self.client.expect_subscriptions(self.expected);
        for RequestedTopic { name, start } in std::mem::take(&mut self.topics) {
            if let Err(problem) = self.client.subscribe_reader(&name, start, cx) {
                return close(cx, CloseCode::TRY_AGAIN_LATER, &problem.text);
            }
        }
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
