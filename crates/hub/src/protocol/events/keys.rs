//! `GET /topics/{name}/keys` as Server-Sent Events, JSON lines or a long poll: a key snapshot, then changes. The limits
//! and the rules for slow clients are the same as for a subscription at `/ws`: nothing queues for a slow client.

use std::sync::Arc;
use std::time::Duration;

use sinews_server::{Answer, KeySubscription, Position, ReplayFrom, Request, StreamingResponse};

use super::cursor::parse_position;
use super::format::{KEY_ELEMENTS, KEY_EVENTS, LINES};
use super::request::{self, RequestedFormat, RequestedTopic};
use super::{EventReader, FollowedResource, LongPoll, RequestedSubscriptions, TopicsReader};
use crate::access::auth::Denied;
use crate::http::{failure, topic_of};
use crate::model;
use crate::topics::HubTopics;

/// The format for key changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeysFormat(RequestedFormat);

impl KeysFormat {
    /// The format that the client prefers; `None` for a key page as one JSON object. A request for JSON with a position
    /// or a time to wait is a long poll.
    pub(crate) fn from_request(request: &Request<'_>) -> Option<Self> {
        let accept = request.head().header("accept").filter_map(|value| std::str::from_utf8(value).ok());
        let format = request::negotiate_keys(accept)?;
        let is_poll = || ["wait", "from"].into_iter().any(|name| request.query(name).is_some());
        (!matches!(format, RequestedFormat::Poll(_)) || is_poll()).then_some(Self(format))
    }
}

impl TopicsReader<'_> {
    /// Starts the response with a topic's keys.
    ///
    /// # Errors
    /// As [`answer`](Self::answer).
    pub(crate) fn answer_keys(self, request: &Request<'_>, format: KeysFormat) -> Result<Answer, Denied> {
        let config = self.live.config();
        if let Err(rejection) = config.check_origin(request) {
            return Ok(failure(403, rejection.text()).into());
        }
        let topic = match topic_of(request, model::check_name) {
            Ok(topic) => topic,
            Err(problem) => return Ok(failure(400, &problem).into()),
        };
        let wait = request.query_values("wait").next();
        let options = subscription_of(request);
        let (options, position, format) = match (options, format.0.waiting(wait.as_deref())) {
            (Ok((options, position)), Ok(format)) => (options, position, format),
            (Err(problem), _) | (_, Err(problem)) => return Ok(failure(400, &problem).into()),
        };
        let rights = config.rights(request)?;
        let config = Arc::clone(self.config);
        let names = vec![topic.clone()];
        let name = topic.clone();
        let openings = move |hub: &HubTopics| hub.opening_of_keys(&name).into_iter().collect();
        self.respond(request, rights, "/topics/{name}/keys", names, openings, move |client, _| {
            client.check_keys(&topic)?;
            let polled = RequestedTopic { name: topic.clone(), start: position.map(ReplayFrom::After) };
            let requested = Some(Box::new(RequestedSubscriptions::Keys(topic, options)));
            let reader =
                |poll| EventReader { client, requested, followed: FollowedResource::Keys, joins: 0, poll };
            let response = match format {
                RequestedFormat::Events => StreamingResponse::new(request::EVENTS, &KEY_EVENTS, reader(None)),
                RequestedFormat::Lines => StreamingResponse::new(request::LINES, &LINES, reader(None)),
                RequestedFormat::Poll(wait) => {
                    let (poll, prefix) = LongPoll::new(&[polled], wait);
                    StreamingResponse::new(request::JSON, &KEY_ELEMENTS, reader(Some(poll)))
                        .with_prefix(prefix)
                }
            };
            Ok(response.with_config(config))
        })
    }
}

/// The query's options, and an earlier response's position.
fn subscription_of(request: &Request<'_>) -> Result<(KeySubscription, Option<Position>), String> {
    let query = |name| request.query_values(name).next();
    if let Some(name) = ["after", "limit"].into_iter().find(|name| query(name).is_some()) {
        return Err(format!("query parameter `{name}` is for a page of the keys, without `wait` and `from`"));
    }
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
    let position = match (request::last_event_id(request), query("from")) {
        // An id from another server or version: a snapshot follows.
        (Some(id), _) => std::str::from_utf8(&id).ok().and_then(|id| parse_position(id.trim())),
        (None, Some(from)) => {
            let wrong = "query parameter `from` must be a position such as 8100236-44";
            Some(parse_position(&from).ok_or(wrong)?)
        }
        (None, None) => None,
    };
    if let Some(position) = position {
        options = options.with_position(position);
    }
    Ok((options, position))
}
