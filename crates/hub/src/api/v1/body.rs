//! Request bodies and parameters.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::value::RawValue;
use sinews_server::Request;

use crate::model::brief::brief_error;
use crate::model::json::read_object;
use crate::model::problem::{Problem, code, problem};
use crate::model::{self, MessageContent};

/// Reads the body.
pub(super) fn read<'a, T: Deserialize<'a>>(request: &Request<'a>) -> Result<T, Problem> {
    parse(request.body())
}

/// Reads a body.
pub(super) fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Problem> {
    read_object(body).map_err(|error| problem(code::MALFORMED, format!("the body: {}", brief_error(&error))))
}

/// Returns the content of the fields `data` and `b64`.
pub(super) fn content_of(data: Option<&RawValue>, b64: Option<&str>) -> Result<MessageContent, Problem> {
    match (data, b64) {
        (Some(data), None) => MessageContent::json(data),
        (None, Some(b64)) => match STANDARD.decode(b64) {
            Ok(bytes) => Ok(MessageContent::Binary(bytes.into())),
            Err(error) => Err(problem(code::MALFORMED, format!("b64: {error}"))),
        },
        _ => Err(problem(code::MALFORMED, "either data or b64 is required")),
    }
}

/// The topic in the path.
pub(super) fn topic_of(request: &Request<'_>) -> Result<String, Problem> {
    let topic =
        request.param("topic").ok_or_else(|| problem(code::TOPIC, "the topic's name is not UTF-8"))?;
    model::check_name(&topic).map_err(|text| problem(code::TOPIC, text))?;
    Ok(topic.into_owned())
}

/// Reads a query parameter as text.
pub(in crate::api) fn text_query<'a>(
    request: &Request<'a>,
    name: &str,
) -> Result<Option<Cow<'a, str>>, Problem> {
    match (request.query(name), request.decoded_query(name)) {
        (None, _) => Ok(None),
        (Some(_), Some(text)) => Ok(Some(text)),
        (Some(_), None) => Err(problem(code::MALFORMED, format!("{name} is not UTF-8"))),
    }
}

/// Reads a query parameter as a switch, which is off by default.
pub(super) fn bool_query(request: &Request<'_>, name: &str) -> Result<bool, Problem> {
    match request.query(name) {
        None | Some("false") => Ok(false),
        Some("true") => Ok(true),
        Some(_) => Err(problem(code::MALFORMED, format!("{name} must be true or false"))),
    }
}

/// Reads a query parameter as a number.
pub(super) fn number_query(request: &Request<'_>, name: &str) -> Result<Option<u64>, Problem> {
    let number = request.query(name).map(str::parse).transpose();
    number.map_err(|_| problem(code::MALFORMED, format!("{name} must be a whole number")))
}

/// Returns the page length: the parameter `limit`, at most `most`, which is the default.
pub(in crate::api) fn limit_of(request: &Request<'_>, most: usize) -> Result<usize, Problem> {
    match number_query(request, "limit")? {
        None => Ok(most),
        Some(0) => Err(problem(code::MALFORMED, "limit must be at least 1")),
        Some(limit) => Ok(usize::try_from(limit).unwrap_or(most).min(most)),
    }
}
