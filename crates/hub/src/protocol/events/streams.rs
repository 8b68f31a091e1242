//! `GET /streams/{name}/records?follow=true`: a stream's records as JSON lines, from a position on, and then each new
//! one. The messages, the limits and the pace for slow clients are the same as for the op `consume` at `/ws`.

use std::sync::Arc;

use serde_json::{Value, json};
use sinews_server::{Answer, Request, StreamingResponse};

use super::format::LINES;
use super::{EventReader, FollowedResource, RequestedSubscriptions, TopicsReader, request};
use crate::access::auth::{Action, Denied};
use crate::http::{failure, stream_name_of};
use crate::protocol::json::JsonClient;
use crate::streams::errors::STREAMS_DISABLED;

impl TopicsReader<'_> {
    /// Starts the response with a stream's records.
    ///
    /// # Errors
    /// [`Denied`] if the token is invalid, or does not grant the right to read the stream.
    pub(crate) fn answer_records(self, request: &Request<'_>) -> Result<Answer, Denied> {
        let config = self.live.config();
        if let Err(rejection) = config.check_origin(request) {
            return Ok(failure(403, rejection.text()).into());
        }
        let name = match stream_name_of(request) {
            Ok(name) => name,
            Err(problem) => return Ok(failure(problem.code, &problem.text).into()),
        };
        let message = match consumption_of(request, &name) {
            Ok(message) => message,
            Err(problem) => return Ok(failure(400, problem).into()),
        };
        let rights = config.rights(request)?;
        rights.may(Action::Subscribe, &name)?;
        if self.streams.store().is_none() {
            return Ok(failure(404, STREAMS_DISABLED).into());
        }
        let (hub, config) = (Arc::clone(self.hub), Arc::clone(self.config));
        let client = JsonClient::with_rights(rights, self.live, hub, self.max_message, self.streams);
        let requested = Some(Box::new(RequestedSubscriptions::Records(message)));
        let reader =
            EventReader { client, requested, followed: FollowedResource::Stream, joins: 0, poll: None };
        Ok(StreamingResponse::new(request::LINES, &LINES, reader).with_config(config).into())
    }
}

/// A request's op.
fn consumption_of(request: &Request<'_>, name: &str) -> Result<String, &'static str> {
    let query = |name| request.query_values(name).next();
    let number = |text: &str| text.parse::<u64>().map(Value::from);
    let mut message = json!({ "op": "consume", "stream": name });
    message["from"] = match (query("from").as_deref(), query("time").as_deref()) {
        (None, None) => json!("latest"),
        (Some(word @ ("earliest" | "latest")), None) => json!(word),
        (Some(offset), None) => {
            let offset = number(offset);
            json!({ "offset": offset.map_err(|_| "query parameter `from` must be earliest, latest or an offset")? })
        }
        (None, Some(time)) => {
            let time = number(time);
            json!({ "time": time.map_err(|_| "query parameter `time` must be a number of microseconds")? })
        }
        (Some(_), Some(_)) => return Err("query parameters `from` and `time` exclude each other"),
    };
    if let Some(partition) = query("partition") {
        let partition = partition.parse::<u32>();
        message["partition"] = json!(partition.map_err(|_| "query parameter `partition` must be a number")?);
    }
    if query("group").is_some() {
        return Err("a consumer group needs a WebSocket: a response cannot commit offsets");
    }
    Ok(message.to_string())
}
