//! Encodes the head of an answer.

use std::borrow::Cow;

use crate::chunked::is_token;
use crate::request::Response;

/// Writes the head of an answer.
pub(super) fn write_head(response: &Response, connection: Option<&str>, date: &str, out: &mut Vec<u8>) {
    let status = response.status;
    let mut line = |parts: [&str; 3]| {
        for part in parts {
            out.extend_from_slice(part.as_bytes());
        }
        out.extend_from_slice(b"\r\n");
    };
    line(["HTTP/1.1 ", &decimal(u64::from(status)), reason_phrase(status)]);
    line(["Date", ": ", date]);
    for (name, value) in response.headers.iter().filter(|(name, value)| may_be_written(name, value)) {
        line([name, ": ", value]);
    }
    if response.may_have_body() {
        line(["Content-Length", ": ", &decimal(response.body.len())]);
    }
    if let Some(connection) = connection {
        line(["Connection", ": ", connection]);
    }
    line(["", "", ""]);
}

fn decimal(number: u64) -> Cow<'static, str> {
    match number {
        200 => Cow::Borrowed("200"),
        number => Cow::Owned(number.to_string()),
    }
}

/// Returns whether a header is valid: the name is a token, the value has no control characters, and the header does
/// not concern framing, which the server sets.
fn may_be_written(name: &str, value: &str) -> bool {
    const OURS: [&str; 4] = ["Connection", "Content-Length", "Date", "Transfer-Encoding"];
    !name.is_empty()
        && name.bytes().all(is_token)
        && !value.bytes().any(|byte| byte.is_ascii_control() && byte != b'\t')
        && !OURS.iter().any(|ours| ours.eq_ignore_ascii_case(name))
}

const fn reason_phrase(status: u16) -> &'static str {
    match status {
        200 => " OK",
        201 => " Created",
        202 => " Accepted",
        204 => " No Content",
        206 => " Partial Content",
        301 => " Moved Permanently",
        302 => " Found",
        303 => " See Other",
        304 => " Not Modified",
        307 => " Temporary Redirect",
        308 => " Permanent Redirect",
        400 => " Bad Request",
        401 => " Unauthorized",
        403 => " Forbidden",
        404 => " Not Found",
        405 => " Method Not Allowed",
        408 => " Request Timeout",
        409 => " Conflict",
        410 => " Gone",
        412 => " Precondition Failed",
        413 => " Content Too Large",
        415 => " Unsupported Media Type",
        416 => " Range Not Satisfiable",
        421 => " Misdirected Request",
        422 => " Unprocessable Content",
        429 => " Too Many Requests",
        500 => " Internal Server Error",
        503 => " Service Unavailable",
        _ => " ",
    }
}
