//! What a server answers to requests, sound and unsound ones, as data.
//!
//! The requests are facts that others found, named by who did; what the answer must be is said by the section of
//! RFC 9110 or RFC 9112 that stands beside each. Where the section leaves a choice, or our answer is not the one it
//! recommends, the row says why.
//!
//! * `h1spec`: all 33 cases of uNetworking's h1spec;
//! * `garden`: what the HTTP Garden found servers and proxies to disagree about;
//! * `llhttp`: requests of the tests of Node's parser;
//! * `nginx`: requests of nginx's tests: hosts, ranges, conditions;
//! * `rules`: what the standards say and none of these asks.
//!
//! They are asked of a server that echoes the body of any request to any path, but for the few paths that
//! [`subject`] names. `cargo xtask conformance` does so, each whole, cut in every place, byte by byte, twice in one
//! write, and with another request behind that must not be read where the connection has to end.

mod answer;
mod garden;
mod h1spec;
mod llhttp;
mod nginx;
mod rules;
pub mod subject;

pub use answer::{Answered, read};

/// A request, or several, and what must come of them.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// What it is about.
    pub name: &'static str,
    /// Where it is ruled: sections of RFC 9110 and RFC 9112, or another RFC.
    pub rule: &'static str,
    /// What the client sends.
    pub wire: Wire,
    /// What must come of it.
    pub expected: Expected,
    /// Why this, where the rule leaves a choice or recommends another.
    pub why: &'static str,
}

/// Bytes of requests.
#[derive(Clone, Copy, Debug)]
pub enum Wire {
    /// These.
    Bytes(&'static [u8]),
    /// A beginning, something that often, and an end.
    Flood(&'static [u8], &'static [u8], usize, &'static [u8]),
}

/// What must come of a request.
#[derive(Clone, Copy, Debug)]
pub enum Expected {
    /// Nothing, as yet: the request is not whole.
    Waits,
    /// 200 with this body; another request may follow.
    Echoes(&'static [u8]),
    /// 200 with this body, and the end of the connection.
    EchoesLast(&'static [u8]),
    /// This status, and the end of the connection: nothing that follows is a request.
    Refused(u16),
    /// These; another request may follow.
    Answers(&'static [Answer]),
    /// These, and the end of the connection.
    AnswersLast(&'static [Answer]),
}

/// One answer.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// Its status.
    pub status: u16,
    /// Its body. `None`: whatever its length says.
    pub body: Option<&'static [u8]>,
    /// It answers HEAD: its length is of a body that does not come.
    pub of_head: bool,
    /// Headers that it must have, with their values.
    pub headers: &'static [(&'static str, &'static str)],
}

/// Cases of one source.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    /// Who found them.
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
    /// The answers, and whether the connection ends behind them; `None`: nothing comes.
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
    /// Whether every server answers so, whatever its routes: the head cannot be taken.
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

    /// With the reason for what is expected.
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

/// An answer of which only the status is known.
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
