//! Answers of a server to valid and invalid requests, as data.
//!
//! The requests are findings of other projects, grouped by project. Each case names the section of RFC 9110
//! or RFC 9112 that determines the answer. Where the section leaves a choice, or our answer deviates from its
//! recommendation, the case has the reason.
//!
//! * `h1spec`: all 33 cases of uNetworking's h1spec;
//! * `garden`: disagreements of servers and proxies, found by the HTTP Garden;
//! * `llhttp`: requests of the tests of Node's parser;
//! * `nginx`: requests of nginx's tests: hosts, ranges, conditions;
//! * `rules`: rules of the standards that the other groups do not cover.
//!
//! The server under test echoes the body of any request to any path, except the few paths in [`subject`].
//! `cargo xtask conformance` runs each case whole, cut at every byte, byte by byte, twice in one write, and
//! with another request behind it that must not be read where the connection has to end.

mod answer;
mod garden;
mod h1spec;
mod llhttp;
mod nginx;
mod rules;
pub mod subject;

pub use answer::{Answered, read};

/// One or several requests, and the expected result.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Its subject.
    pub name: &'static str,
    /// The sections that determine the result: of RFC 9110 and RFC 9112, or another RFC.
    pub rule: &'static str,
    /// The bytes from the client.
    pub wire: Wire,
    /// The expected result.
    pub expected: Expected,
    /// The reason for the result, where the rule leaves a choice or recommends another result.
    pub why: &'static str,
}

/// Bytes of requests.
#[derive(Clone, Copy, Debug)]
pub enum Wire {
    /// Literal bytes.
    Bytes(&'static [u8]),
    /// A beginning, a repeated part with its count, and an end.
    Flood(&'static [u8], &'static [u8], usize, &'static [u8]),
}

/// Expected result of a request.
#[derive(Clone, Copy, Debug)]
pub enum Expected {
    /// No answer yet: the request is incomplete.
    Waits,
    /// 200 with this body; another request may follow.
    Echoes(&'static [u8]),
    /// 200 with this body, and the end of the connection.
    EchoesLast(&'static [u8]),
    /// This status, and the end of the connection: no further request is read.
    Refused(u16),
    /// These answers; another request may follow.
    Answers(&'static [Answer]),
    /// These answers, and the end of the connection.
    AnswersLast(&'static [Answer]),
}

/// One answer.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// Its status.
    pub status: u16,
    /// Its body; `None` accepts any body of the declared length.
    pub body: Option<&'static [u8]>,
    /// It answers HEAD: it declares a length and has no body.
    pub of_head: bool,
    /// Required headers, with their values.
    pub headers: &'static [(&'static str, &'static str)],
}

/// Cases of one source.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    /// The project that found them.
    pub source: &'static str,
    /// The cases.
    pub cases: &'static [Case],
}

/// All of them.
pub const GROUPS: [Group; 8] = [
    Group { source: "h1spec", cases: h1spec::CASES },
    Group { source: "http-garden", cases: garden::CASES },
    Group { source: "llhttp", cases: llhttp::HEADS },
    Group { source: "llhttp", cases: llhttp::BODIES },
    Group { source: "nginx-tests", cases: nginx::HOSTS },
    Group { source: "nginx-tests", cases: nginx::FILES },
    Group { source: "RFC 9112", cases: rules::MESSAGES },
    Group { source: "RFC 9110", cases: rules::SEMANTICS },
];

impl Wire {
    /// The bytes.
    #[must_use]
    pub fn bytes(self) -> Vec<u8> {
        match self {
            Self::Bytes(bytes) => bytes.to_vec(),
            Self::Flood(before, unit, times, after) => [before, &unit.repeat(times), after].concat(),
        }
    }
}

impl Expected {
    /// Returns the answers, and whether the connection ends after them; `None` if there is no answer yet.
    #[must_use]
    pub fn answers(self) -> Option<(Vec<Answer>, bool)> {
        let echo = |body| vec![Answer { body: Some(body), ..answer(200) }];
        match self {
            Self::Waits => None,
            Self::Echoes(body) => Some((echo(body), false)),
            Self::EchoesLast(body) => Some((echo(body), true)),
            Self::Refused(status) => Some((vec![answer(status)], true)),
            Self::Answers(answers) => Some((answers.to_vec(), false)),
            Self::AnswersLast(answers) => Some((answers.to_vec(), true)),
        }
    }
}

impl Case {
    /// Whether every server gives this answer, independent of its routes, because the head is invalid.
    #[must_use]
    pub fn is_refused_head(&self) -> bool {
        let bytes = self.wire.bytes();
        let body =
            bytes.windows(4).position(|window| window == b"\r\n\r\n").is_some_and(|at| at + 4 < bytes.len());
        match self.expected {
            Expected::Waits => true,
            Expected::Refused(status) => [400, 414, 431, 501, 505].contains(&status) && !body,
            _ => false,
        }
    }

    /// Adds the reason for the expected result.
    pub(crate) const fn because(mut self, why: &'static str) -> Self {
        self.why = why;
        self
    }
}

pub(crate) const fn case(
    name: &'static str,
    rule: &'static str,
    wire: &'static [u8],
    expected: Expected,
) -> Case {
    Case { name, rule, wire: Wire::Bytes(wire), expected, why: "" }
}

pub(crate) const fn flood(name: &'static str, rule: &'static str, wire: Wire, expected: Expected) -> Case {
    Case { name, rule, wire, expected, why: "" }
}

/// An answer with a known status only.
pub(crate) const fn answer(status: u16) -> Answer {
    Answer { status, body: None, of_head: false, headers: &[] }
}

impl Answer {
    pub(crate) const fn body(mut self, body: &'static [u8]) -> Self {
        self.body = Some(body);
        self
    }

    pub(crate) const fn of_head(mut self) -> Self {
        self.of_head = true;
        self
    }

    pub(crate) const fn with(mut self, headers: &'static [(&'static str, &'static str)]) -> Self {
        self.headers = headers;
        self
    }
}
