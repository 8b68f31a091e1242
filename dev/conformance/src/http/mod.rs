//! A server's answers to valid and invalid requests, as data: `http-cases.jsonl` beside the sources.
//!
//! The requests are other projects' findings. Each case names the section in RFC 9110 or RFC 9112 that determines the
//! answer. Where the section leaves a choice, or our answer deviates from its recommendation, the case has the reason
//! (`why`).
//!
//! * `h1spec`: all 33 cases from uNetworking's h1spec;
//! * `http-garden`: disagreements between servers and proxies, found by the HTTP Garden;
//! * `llhttp`: requests from the tests of Node's parser, with a `Host` added where they omit it for another purpose;
//! * `nginx-tests`: requests from nginx's tests: hosts, ranges, conditions;
//! * `RFC 9112`, `RFC 9110`: rules from the standards that the other sources do not cover.
//!
//! Each character of `wire` and `body` is a byte. A `wire` in brackets has a beginning, a repeated part with its count, and an
//! end. Without `answers` the request is incomplete. With `ends` the connection ends after the answers, and no further request is
//! read; otherwise another request may follow.
//!
//! The server under test echoes any request's body on any path, except the few paths in [`subject`]. `cargo xtask
//! conformance` runs each case whole, cut at every byte, byte by byte, twice in one write, and with another request
//! behind it that must not be read where the connection has to end.

mod answer;
pub mod subject;

use serde_json::Value;

pub use answer::{Answered, read};

/// One or several requests, and the expected result.
#[derive(Clone, Debug)]
pub struct Case {
    /// The project that found it.
    pub source: String,
    /// Its subject.
    pub name: String,
    /// The sections that determine the result: of RFC 9110 and RFC 9112, or another RFC.
    pub rule: String,
    /// The bytes from the client.
    pub wire: Vec<u8>,
    /// The answers; none to an incomplete request.
    pub answers: Vec<Answer>,
    /// The connection ends after the answers.
    pub ends: bool,
}

/// One answer.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// Its status.
    pub status: u16,
    /// Its body; `None` accepts any body of the declared length.
    pub body: Option<Vec<u8>>,
    /// It answers HEAD: it declares a length and has no body.
    pub of_head: bool,
    /// Required headers, with their values.
    pub headers: Vec<(String, String)>,
}

/// All cases.
///
/// # Panics
/// If the data are wrong.
#[must_use]
pub fn cases() -> Vec<Case> {
    include_str!("../../http-cases.jsonl").lines().map(Case::parse).collect()
}

impl Case {
    fn parse(line: &str) -> Self {
        let case: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        let wire = &case["wire"];
        let part = |at: usize| bytes(&wire[at]);
        let wire = match wire[2].as_u64() {
            Some(times) => [part(0), part(1).repeat(times as usize), part(3)].concat(),
            None => bytes(wire),
        };
        Self {
            source: text(&case["source"]),
            name: text(&case["name"]),
            rule: text(&case["rule"]),
            wire,
            answers: case["answers"].as_array().into_iter().flatten().map(Answer::parse).collect(),
            ends: case["ends"] == true,
        }
    }

    /// The body that one answer with 200 repeats.
    #[must_use]
    pub fn echo(&self) -> Option<&[u8]> {
        match &self.answers[..] {
            [Answer { status: 200, body: Some(body), of_head: false, headers }] if headers.is_empty() => {
                Some(body)
            }
            _ => None,
        }
    }

    /// Whether every server gives this answer, on any routes, because the head is invalid.
    #[must_use]
    pub fn is_refused_head(&self) -> bool {
        let head = self.wire.windows(4).position(|window| window == b"\r\n\r\n");
        let has_body = head.is_some_and(|at| at + 4 < self.wire.len());
        match &self.answers[..] {
            [] => true,
            [one] => self.ends && [400, 414, 431, 501, 505].contains(&one.status) && !has_body,
            _ => false,
        }
    }
}

impl Answer {
    fn parse(answer: &Value) -> Self {
        let headers = answer["headers"].as_object().into_iter().flatten();
        Self {
            status: answer["status"].as_u64().and_then(|status| status.try_into().ok()).expect("a status"),
            body: answer.get("body").map(bytes),
            of_head: answer["head"] == true,
            headers: headers.map(|(name, value)| (name.clone(), text(value))).collect(),
        }
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text")).to_owned()
}

/// Returns the bytes of a text with a character for each byte.
fn bytes(value: &Value) -> Vec<u8> {
    text(value).chars().map(|char| u8::try_from(char).expect("a byte")).collect()
}
