//! Request and answer parts that all routes share.

use serde_json::json;
use sinews_server::{Request, Response};

use crate::model;
use crate::model::problem::{Problem, code, problem};
use crate::uncached::UNCACHED;

/// An answer with an error as JSON.
pub(crate) fn failure(status: u16, problem: &str) -> Response {
    Response::json(format!("{}\n", json!({ "error": problem }))).with_status(status)
}

/// The answer to a failed request.
pub(crate) fn error_response(problem: &Problem) -> Response {
    let mut body = json!({ "error": problem.text });
    if let Some(needs) = &problem.needs {
        body["needs"] = needs.clone();
    }
    if problem.unknown {
        body["unknown"] = json!(true);
    }
    let response = Response::json(format!("{body}\n")).with_status(problem.code);
    let response = response.with_header("Cache-Control", UNCACHED);
    match problem.code {
        code::TOO_MANY | code::STORE => response.with_header("Retry-After", RETRY_AFTER),
        401 => response.with_header("WWW-Authenticate", "Bearer realm=\"sinews\""),
        _ => response,
    }
}

/// `Retry-After` in seconds, for a full queue or a failed store.
const RETRY_AFTER: &str = "1";

/// A request body's type in lower case, without parameters.
pub(crate) fn media_type(request: &Request<'_>) -> String {
    let kind = request.head().header("content-type").next().unwrap_or_default();
    let kind = std::str::from_utf8(kind).unwrap_or_default();
    kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// Returns the value of a header that is given once at most.
///
/// # Errors
/// There are two, or it is not UTF-8.
pub(crate) fn single_header<'a>(request: &Request<'a>, name: &str) -> Result<Option<&'a str>, Problem> {
    let mut values = request.head().header(name);
    match (values.next().map(std::str::from_utf8), values.next()) {
        (None, _) => Ok(None),
        (Some(Ok(value)), None) => Ok(Some(value.trim())),
        _ => Err(problem(code::MALFORMED, format!("{name} must be given once, as text"))),
    }
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
