//! A topic's members by plain requests: `/topics/{name}/members`.

use std::borrow::Cow;

use serde_json::json;
use sinews_server::{Answer, Request, Response};

use super::read_topic::read_topic;
use crate::access::auth::{Denied, Rights};
use crate::config::ConfigHandle;
use crate::http::{failure, topic_of};
use crate::model;
use crate::model::presence;
use crate::uncached::UNCACHED;

/// `GET /topics/{name}/members`: a page of the members.
pub(crate) fn list(live: &ConfigHandle, request: &Request<'_>) -> Result<Answer, Denied> {
    let topic = match topic_of(request, model::check_name) {
        Ok(topic) => topic,
        Err(problem) => return Ok(failure(400, &problem).into()),
    };
    let after = request.decoded_query("after").map(Cow::into_owned);
    let publisher = request.publisher();
    let read = move |topic: &str| {
        let count = publisher.presence_count(topic);
        let members = publisher.members(topic, after.as_deref(), presence::PAGE_MAX + 1);
        let mut page = json!({ "topic": topic });
        let members = presence::add_page(&mut page, count, members);
        let page = presence::with_members(&page, Some(&members));
        Response::json(format!("{page}\n")).with_header("Cache-Control", UNCACHED)
    };
    read_topic(live, request, topic, "/topics/{name}/members", Rights::check_presence, |_| None, read)
}
