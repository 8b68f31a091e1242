//! `GET /topics/{name}/keys` as Server-Sent Events or lines of JSON: a snapshot of the keys, then each change. The
//! limits and the rules for slow clients are those of a subscription at `/ws`: nothing queues for a slow client.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sinews_server::{
    Answer, CloseCode, Closed, Context, Handler, KeySubscription, Payload, Request, StreamingResponse,
};

use super::cursor::parse_position;
use super::format::{KEY_EVENTS, LINES};
use super::request::{self, RequestedFormat};
use super::{TopicsReader, with_origin};
use crate::auth::{Action, Denied};
use crate::closing::close;
use crate::http::{failure, topic_of};
use crate::protocol::json::JsonClient;
use crate::topics;

/// The format of the changes of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeysFormat {
    Events,
    Lines,
}

impl KeysFormat {
    /// The format that the client prefers; `None` for a page of the keys as one JSON object.
    pub(crate) fn of(request: &Request<'_>) -> Option<Self> {
        let accept = request.head().header("accept").filter_map(|value| std::str::from_utf8(value).ok());
        match request::negotiate_keys(accept)? {
            RequestedFormat::Events => Some(Self::Events),
            RequestedFormat::Lines => Some(Self::Lines),
            RequestedFormat::Poll(_) => None,
        }
    }
}

impl TopicsReader<'_> {
    /// Starts the response with the keys of a topic.
    ///
    /// # Errors
    /// As [`answer`](Self::answer).
    pub(crate) fn answer_keys(self, request: &Request<'_>, format: KeysFormat) -> Result<Answer, Denied> {
        let policy = self.live.policy();
        if let Err(rejection) = policy.check_origin(request) {
            return Ok(failure(403, rejection.text()).into());
        }
        let topic = match topic_of(request, topics::check_name) {
            Ok(topic) => topic,
            Err(problem) => return Ok(failure(400, &problem).into()),
        };
        let options = match subscription_of(request) {
            Ok(options) => options,
            Err(problem) => return Ok(failure(400, &problem).into()),
        };
        let rights = policy.rights(request)?;
        rights.may(Action::Subscribe, &topic)?;
        rights.check_without_hooks(Action::Subscribe, &topic)?;
        if let Err(problem) = rights.check_keyed(&topic) {
            return Ok(failure(problem.code, &problem.text).into());
        }
        let client =
            JsonClient::with_rights(rights, self.live, Arc::clone(self.hub), self.max_message, self.streams);
        if let Err(problem) = client.check_keys(&topic) {
            return Ok(failure(problem.code, &problem.text).into());
        }
        let reader = KeysReader { client, requested: Some(Box::new((topic, options))) };
        let response = match format {
            KeysFormat::Events => StreamingResponse::new(request::EVENTS, &KEY_EVENTS, reader),
            KeysFormat::Lines => StreamingResponse::new(request::LINES, &LINES, reader),
        };
        Ok(with_origin(response.with_config(Arc::clone(self.config)), request))
    }
}

/// The options of the query, and the position of an earlier response.
fn subscription_of(request: &Request<'_>) -> Result<KeySubscription, String> {
    let query = |name| request.query_values(name).next();
    let mut options = KeySubscription::new();
    if let Some(filter) = query("filter") {
        options = options.with_filter(filter);
    }
    if let Some(interval) = query("interval") {
        let millis =
            interval.parse().map_err(|_| "query parameter `interval` must be a number of milliseconds")?;
        options = options.with_interval(Duration::from_millis(millis));
    }
    // A browser repeats the query when it connects again, and adds the header.
    let event_id = request.head().header("last-event-id").next();
    let position = match (event_id, query("from")) {
        // An id of another server or version: a snapshot follows.
        (Some(id), _) => std::str::from_utf8(id).ok().and_then(|id| parse_position(id.trim())),
        (None, Some(from)) => {
            let wrong = "query parameter `from` must be a position such as 8100236-44";
            Some(parse_position(&from).ok_or(wrong)?)
        }
        (None, None) => None,
    };
    Ok(match position {
        Some(position) => options.with_position(position),
        None => options,
    })
}

/// The subscription of one response.
struct KeysReader {
    client: JsonClient,
    /// `None` once the response has begun.
    requested: Option<Box<(String, KeySubscription)>>,
}

impl KeysReader {
    /// Ends the response if the subscription has ended.
    fn end_if_due(&self, cx: &mut Context<'_>) {
        if self.requested.is_none() && !self.client.is_subscribed_to_keys() {
            close(cx, CloseCode::TRY_AGAIN_LATER, "the subscription has ended");
        }
    }
}

impl Handler for KeysReader {
    fn open(&mut self, cx: &mut Context<'_>) {
        self.client.register_reader(cx);
        // The backend adds none: the response has the messages of the keys only.
        self.client.expect_subscriptions(0);
        let Some(requested) = self.requested.take() else { return };
        if let Err(problem) = self.client.subscribe_to_keys(&requested.0, requested.1, cx) {
            close(cx, CloseCode::TRY_AGAIN_LATER, &problem.text);
        }
    }

    fn message(&mut self, _: Payload<'_>, _: &mut Context<'_>) {}

    fn woken(&mut self, cx: &mut Context<'_>) {
        self.client.woken(cx);
        self.end_if_due(cx);
    }

    fn drain(&mut self, cx: &mut Context<'_>) {
        self.client.drain(cx);
    }

    fn deadline(&self) -> Option<Instant> {
        self.client.deadline()
    }

    fn expired(&mut self, cx: &mut Context<'_>) {
        self.client.expired(cx);
    }

    fn queued(&mut self, bytes: usize) {
        self.client.queued(bytes);
    }

    fn close(&mut self, closed: &Closed, cx: &mut Context<'_>) {
        self.client.close(closed, cx);
    }
}
