//! Parts of requests and answers that all routes share.

use serde_json::json;
use sinews_server::{Request, Response};

use crate::model;
use crate::problem::{Problem, code, problem};

/// An answer with an error as JSON.
pub(crate) fn failure(status: u16, problem: &str) -> Response {
    Response::json(format!("{}\n", json!({ "error": problem }))).with_status(status)
}

/// The type of a request's body in lower case, without parameters.
pub(crate) fn media_type(request: &Request<'_>) -> String {
    let kind = request.head().header("content-type").next().unwrap_or_default();
    let kind = std::str::from_utf8(kind).unwrap_or_default();
    kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// The topic that the path names.
pub(crate) fn topic_of(
    request: &Request<'_>,
    check: fn(&str) -> Result<(), String>,
) -> Result<String, String> {
    let topic = request.param("name").ok_or("the topic's name is not UTF-8")?;
    check(&topic)?;
    Ok(topic.into_owned())
}

/// The stream that the path names.
pub(crate) fn stream_name_of(request: &Request<'_>) -> Result<String, Problem> {
    let name = request.param("name").ok_or_else(|| problem(code::TOPIC, "the stream's name is not UTF-8"))?;
    model::check_name(&name).map_err(|text| problem(code::TOPIC, text))?;
    Ok(name.into_owned())
}
