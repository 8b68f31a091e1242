//! All violations in a response.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};

use super::super::extension::{self, OfferParams};
use super::super::violation::Violation;
use super::request::InspectRequest;
use super::values;

/// A parsed response.
pub(crate) struct InspectResponse {
    pub(crate) status: u16,
    /// permessage-deflate parameters, if accepted.
    pub(crate) deflate: Option<OfferParams>,
    pub(crate) violations: Vec<Violation>,
}

impl InspectResponse {
    /// Parses any head, and checks it against the request.
    pub(crate) fn read(head: &str, request: &InspectRequest) -> Self {
        let mut violations = Vec::new();
        let (status, headers) = read_head(head, &mut violations);
        let mut answer = Self { status, deflate: None, violations };
        if status == 101 {
            answer.check_101(&headers, request);
        } else {
            answer.check_refusal(&headers, request);
        }
        answer
    }

    /// Whether another response follows.
    pub(crate) fn is_interim(&self) -> bool {
        (100..200).contains(&self.status) && self.status != 101
    }

    fn violation(&mut self, section: &'static str, description: impl Into<String>) {
        self.violations.push(Violation::new(section, description));
    }

    /// Checks RFC 6455 section 4.1, the list at its end.
    fn check_101(&mut self, headers: &[(String, String)], request: &InspectRequest) {
        for (section, what) in request.violations() {
            self.violation(section, format!("101 to a request without {what}"));
        }
        let upgrade: Vec<&str> = values(headers, "upgrade").collect();
        if !matches!(&upgrade[..], [value] if value.eq_ignore_ascii_case("websocket")) {
            self.violation(
                "RFC 6455 section 4.1 item 2",
                format!("Upgrade is {upgrade:?}, and not `websocket` once"),
            );
        }
        let mut connection = values(headers, "connection").flat_map(|value| value.split(','));
        if !connection.any(|token| token.trim().eq_ignore_ascii_case("upgrade")) {
            self.violation("RFC 6455 section 4.1 item 3", "Connection does not name Upgrade");
        }
        let expected = request.values("sec-websocket-key").next().map(accept);
        let accepts: Vec<&str> = values(headers, "sec-websocket-accept").collect();
        match (&accepts[..], expected) {
            ([], _) => self.violation("RFC 6455 section 4.1 item 4", "Sec-WebSocket-Accept is missing"),
            ([found], Some(expected)) if *found != expected => {
                self.violation(
                    "RFC 6455 section 4.1 item 4",
                    format!("Sec-WebSocket-Accept is {found:?}, and not {expected:?}"),
                );
            }
            ([_], _) => {}
            _ => self.violation("RFC 6455 section 11.3.3", "Sec-WebSocket-Accept appears more than once"),
        }
        self.check_extensions(headers, request);
        self.check_subprotocol(headers, request);
        for (name, section) in
            [("content-length", "RFC 9110 section 8.6"), ("transfer-encoding", "RFC 9112 section 6.1")]
        {
            if values(headers, name).next().is_some() {
                self.violation(section, format!("{name} in a 101, which has no body"));
            }
        }
    }

    fn check_extensions(&mut self, headers: &[(String, String)], request: &InspectRequest) {
        if values(headers, "sec-websocket-extensions").count() > 1 {
            self.violation("RFC 6455 section 11.3.2", "Sec-WebSocket-Extensions appears more than once");
        }
        let answered = extension::parse(values(headers, "sec-websocket-extensions"));
        let (deflate, violations) = extension::check(&request.extensions(), &answered);
        self.deflate = deflate;
        self.violations.extend(violations);
    }

    fn check_subprotocol(&mut self, headers: &[(String, String)], request: &InspectRequest) {
        let chosen: Vec<&str> = values(headers, "sec-websocket-protocol").collect();
        if chosen.len() > 1 {
            self.violation("RFC 6455 section 11.3.4", "Sec-WebSocket-Protocol appears more than once");
        }
        let offered = request.tokens("sec-websocket-protocol");
        for name in chosen {
            if name.contains(',') {
                self.violation(
                    "RFC 6455 section 4.2.2 item 5",
                    format!("{name:?} contains several subprotocols, not one"),
                );
            } else if !offered.contains(&name) {
                self.violation(
                    "RFC 6455 section 4.1 item 6",
                    format!("the subprotocol {name:?} was not offered"),
                );
            }
        }
    }

    fn check_refusal(&mut self, headers: &[(String, String)], request: &InspectRequest) {
        // A rejection for another reason may omit the version.
        let asks_for_another =
            request.values("sec-websocket-version").next().is_some() && !request.speaks_13();
        if asks_for_another && self.status != 0 {
            if values(headers, "sec-websocket-version").next().is_none() {
                let description =
                    "the version is rejected without Sec-WebSocket-Version, which lists supported versions";
                self.violation("RFC 6455 section 4.4", description);
            }
        } else if self.status == 426 && values(headers, "upgrade").next().is_none() {
            self.violation("RFC 9110 section 15.5.22", "426 without Upgrade");
        }
        if request.is_sound() {
            self.violation(
                "RFC 6455 section 4.1 item 1",
                format!("the status is {}, and not 101", self.status),
            );
        }
    }
}

/// Returns a possibly invalid head's status and headers. Status 0: no valid status line.
fn read_head(head: &str, violations: &mut Vec<Violation>) -> (u16, Vec<(String, String)>) {
    let mut add = |section, description: String| violations.push(Violation::new(section, description));
    if head.replace("\r\n", "").contains(['\r', '\n']) {
        add("RFC 9112 section 2.2", "a line does not end with CRLF".to_owned());
    }
    let mut lines = head.split('\n').map(|line| line.trim_end_matches('\r'));
    let status_line = lines.next().unwrap_or_default();
    let mut description = status_line.splitn(3, ' ');
    let (version, status) = (description.next().unwrap_or_default(), description.next().unwrap_or_default());
    if !version.starts_with("HTTP/") {
        add("RFC 9112 section 4", format!("{status_line:?} is not a status line"));
    } else if version != "HTTP/1.1" {
        add("RFC 6455 section 4.2.2 item 5", format!("the version is {version}, and not HTTP/1.1"));
    }
    let status = if status.len() == 3 { status.parse().unwrap_or(0) } else { 0 };
    let mut headers: Vec<(String, String)> = Vec::new();
    for line in lines.take_while(|line| !line.is_empty()) {
        if line.starts_with([' ', '\t']) {
            add("RFC 9112 section 5.2", "a header continues on the next line".to_owned());
            if let Some((_, value)) = headers.last_mut() {
                *value = format!("{value} {}", line.trim());
            }
            continue;
        }
        let Some((name, value)) = line.split_once(':') else {
            add("RFC 9112 section 5", format!("{line:?} is not a header"));
            continue;
        };
        if name.ends_with([' ', '\t']) {
            add("RFC 9112 section 5.1", format!("a space after the header name {:?}", name.trim()));
        } else if name.is_empty()
            || !name.chars().all(|c| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c))
        {
            add("RFC 9110 section 5.1", format!("{name:?} is not a header name"));
        }
        headers.push((name.trim().to_ascii_lowercase(), value.trim().to_owned()));
    }
    (status, headers)
}

/// Computes the proof that a server has read the key (RFC 6455 section 4.2.2 item 5).
fn accept(key: &str) -> String {
    let text = format!("{}258EAFA5-E914-47DA-95CA-C5AB0DC85B11", key.trim());
    STANDARD.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, text.as_bytes()))
}
