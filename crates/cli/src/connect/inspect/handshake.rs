//! The opening handshake: a request that may be wrong on purpose, and everything that is wrong with the answer
//! (RFC 6455 sections 4.1 and 4.2).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};

use super::extension::{self, Extension, Params};
use super::fault::Fault;
use crate::connect::args::ConnectArgs;
use crate::connect::dial::{self, Url};
use crate::connect::end::End;

/// A head of more than so many bytes is no head: what most clients and servers take at most.
pub(crate) const HEAD_MAX: usize = 64 << 10;

/// The request.
pub(crate) struct Request {
    target: String,
    headers: Vec<(String, String)>,
    /// The first so many are the handshake's own.
    own: usize,
}

impl Request {
    /// As the options say: a header of the handshake's own is replaced, or left out if its value is empty.
    pub(crate) fn new(args: &ConnectArgs, url: &Url, key: &[u8; 16]) -> Self {
        let mut headers = vec![
            ("Host".to_owned(), url.host_header()),
            ("Upgrade".to_owned(), "websocket".to_owned()),
            ("Connection".to_owned(), "Upgrade".to_owned()),
            ("Sec-WebSocket-Key".to_owned(), STANDARD.encode(key)),
            ("Sec-WebSocket-Version".to_owned(), "13".to_owned()),
        ];
        if !args.request.subprotocol.is_empty() {
            headers.push(("Sec-WebSocket-Protocol".to_owned(), args.request.subprotocol.join(", ")));
        }
        if args.request.deflate {
            let offer = format!("{}; client_max_window_bits", extension::DEFLATE);
            headers.push(("Sec-WebSocket-Extensions".to_owned(), offer));
        }
        let own = headers.len();
        let further = dial::headers(args);
        if let Some(credentials) = &url.credentials
            && !further.iter().any(|(name, _)| name.eq_ignore_ascii_case("authorization"))
        {
            headers.push(("Authorization".to_owned(), format!("Basic {}", STANDARD.encode(credentials))));
        }
        let mut request = Self { target: url.path.clone(), headers, own };
        for (name, value) in further {
            request.replace(&name, &value);
        }
        request
    }

    /// Replaces a header of the handshake's own, or adds another.
    pub(crate) fn replace(&mut self, name: &str, value: &str) {
        let known =
            self.headers.iter().take(self.own).position(|(known, _)| known.eq_ignore_ascii_case(name));
        match (known, value) {
            (Some(at), "") => self.headers[at].1.clear(),
            (Some(at), value) => value.clone_into(&mut self.headers[at].1),
            (None, value) => self.headers.push((name.to_owned(), value.to_owned())),
        }
    }

    pub(crate) fn write(&self) -> Result<String, End> {
        let mut head = format!("GET {} HTTP/1.1\r\n", self.target);
        for (name, value) in self.headers.iter().filter(|(_, value)| !value.is_empty()) {
            head += &format!("{name}: {value}\r\n");
        }
        // Two requests in one are nothing that a handshake has a use for.
        let lines = 1 + self.headers.iter().filter(|(_, value)| !value.is_empty()).count();
        match head.matches(['\r', '\n']).count() == 2 * lines {
            true => Ok(head + "\r\n"),
            false => Err(End::trouble("a line break in a header or in the URL")),
        }
    }

    fn values(&self, name: &str) -> impl Iterator<Item = &str> {
        values(&self.headers, name).filter(|value| !value.is_empty())
    }

    fn tokens(&self, name: &str) -> Vec<&str> {
        self.values(name).flat_map(|value| value.split(',')).map(str::trim).collect()
    }

    fn extensions(&self) -> Vec<Extension> {
        extension::parse(self.values("sec-websocket-extensions"))
    }

    /// What a server must not answer with 101 (RFC 6455 section 4.2.1).
    fn faults(&self) -> Vec<(&'static str, String)> {
        let has =
            |name: &str, token: &str| self.tokens(name).iter().any(|found| found.eq_ignore_ascii_case(token));
        let mut faults = Vec::new();
        if self.values("host").count() != 1 {
            faults.push(("RFC 6455 section 4.2.1 item 2", "one Host".to_owned()));
        }
        if !has("upgrade", "websocket") {
            faults.push(("RFC 6455 section 4.2.1 item 3", "`Upgrade: websocket`".to_owned()));
        }
        if !has("connection", "upgrade") {
            faults.push(("RFC 6455 section 4.2.1 item 4", "`Connection: Upgrade`".to_owned()));
        }
        let keys: Vec<&str> = self.values("sec-websocket-key").collect();
        let is_key = |key: &&str| STANDARD.decode(key.trim()).is_ok_and(|key| key.len() == 16);
        if keys.len() != 1 || !keys.iter().all(is_key) {
            faults.push((
                "RFC 6455 section 4.2.1 item 5",
                "one Sec-WebSocket-Key of 16 bytes in base64".to_owned(),
            ));
        }
        if !self.speaks_13() {
            faults.push(("RFC 6455 section 4.2.1 item 6", "`Sec-WebSocket-Version: 13`".to_owned()));
        }
        faults
    }

    /// Whether a server may answer with 101.
    pub(crate) fn is_sound(&self) -> bool {
        self.faults().is_empty()
    }

    fn speaks_13(&self) -> bool {
        self.values("sec-websocket-version").eq(["13"])
    }
}

/// The answer.
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// permessage-deflate, if it was agreed on.
    pub(crate) deflate: Option<Params>,
    pub(crate) faults: Vec<Fault>,
}

/// Where the head ends, once it is there. Bare line feeds end it, too.
pub(crate) fn head_end(received: &[u8]) -> Option<usize> {
    let mut line = 0;
    for (at, _) in received.iter().enumerate().filter(|(_, byte)| **byte == b'\n') {
        if matches!(&received[line..at], b"" | b"\r") {
            return Some(at + 1);
        }
        line = at + 1;
    }
    None
}

impl Answer {
    /// Reads a head, whatever it is, against the request.
    pub(crate) fn read(head: &str, request: &Request) -> Self {
        let mut faults = Vec::new();
        let (status, headers) = read_head(head, &mut faults);
        let mut answer = Self { status, deflate: None, faults };
        if status == 101 {
            answer.check_101(&headers, request);
        } else {
            answer.check_refusal(&headers, request);
        }
        answer
    }

    /// Another one follows.
    pub(crate) fn is_interim(&self) -> bool {
        (100..200).contains(&self.status) && self.status != 101
    }

    fn fault(&mut self, section: &'static str, words: impl Into<String>) {
        self.faults.push(Fault::new(section, words));
    }

    /// RFC 6455 section 4.1, the list at its end.
    fn check_101(&mut self, headers: &[(String, String)], request: &Request) {
        for (section, what) in request.faults() {
            self.fault(section, format!("101 to a request without {what}"));
        }
        let upgrade: Vec<&str> = values(headers, "upgrade").collect();
        if !matches!(&upgrade[..], [value] if value.eq_ignore_ascii_case("websocket")) {
            self.fault(
                "RFC 6455 section 4.1 item 2",
                format!("Upgrade is {upgrade:?}, and not `websocket` once"),
            );
        }
        let mut connection = values(headers, "connection").flat_map(|value| value.split(','));
        if !connection.any(|token| token.trim().eq_ignore_ascii_case("upgrade")) {
            self.fault("RFC 6455 section 4.1 item 3", "Connection does not name Upgrade");
        }
        let expected = request.values("sec-websocket-key").next().map(accept);
        let accepts: Vec<&str> = values(headers, "sec-websocket-accept").collect();
        match (&accepts[..], expected) {
            ([], _) => self.fault("RFC 6455 section 4.1 item 4", "Sec-WebSocket-Accept is missing"),
            ([found], Some(expected)) if *found != expected => {
                self.fault(
                    "RFC 6455 section 4.1 item 4",
                    format!("Sec-WebSocket-Accept is {found:?}, and not {expected:?}"),
                );
            }
            ([_], _) => {}
            _ => self.fault("RFC 6455 section 11.3.3", "Sec-WebSocket-Accept is there more than once"),
        }
        self.check_extensions(headers, request);
        self.check_subprotocol(headers, request);
        for (name, section) in
            [("content-length", "RFC 9110 section 8.6"), ("transfer-encoding", "RFC 9112 section 6.1")]
        {
            if values(headers, name).next().is_some() {
                self.fault(section, format!("{name} in a 101, which has no body"));
            }
        }
    }

    fn check_extensions(&mut self, headers: &[(String, String)], request: &Request) {
        if values(headers, "sec-websocket-extensions").count() > 1 {
            self.fault("RFC 6455 section 11.3.2", "Sec-WebSocket-Extensions is there more than once");
        }
        let answered = extension::parse(values(headers, "sec-websocket-extensions"));
        let (deflate, faults) = extension::check(&request.extensions(), &answered);
        self.deflate = deflate;
        self.faults.extend(faults);
    }

    fn check_subprotocol(&mut self, headers: &[(String, String)], request: &Request) {
        let chosen: Vec<&str> = values(headers, "sec-websocket-protocol").collect();
        if chosen.len() > 1 {
            self.fault("RFC 6455 section 11.3.4", "Sec-WebSocket-Protocol is there more than once");
        }
        let offered = request.tokens("sec-websocket-protocol");
        for name in chosen {
            if name.contains(',') {
                self.fault(
                    "RFC 6455 section 4.2.2 item 5",
                    format!("{name:?} is several subprotocols, and not one"),
                );
            } else if !offered.contains(&name) {
                self.fault(
                    "RFC 6455 section 4.1 item 6",
                    format!("the subprotocol {name:?} was not offered"),
                );
            }
        }
    }

    fn check_refusal(&mut self, headers: &[(String, String)], request: &Request) {
        // One that is refused for something else need not say it.
        let asks_for_another =
            request.values("sec-websocket-version").next().is_some() && !request.speaks_13();
        if asks_for_another && self.status != 0 {
            if values(headers, "sec-websocket-version").next().is_none() {
                let words =
                    "a refusal of the version without Sec-WebSocket-Version, which says what is spoken";
                self.fault("RFC 6455 section 4.4", words);
            }
        } else if self.status == 426 && values(headers, "upgrade").next().is_none() {
            self.fault("RFC 9110 section 15.5.22", "426 without Upgrade");
        }
        if request.is_sound() {
            self.fault("RFC 6455 section 4.1 item 1", format!("the status is {}, and not 101", self.status));
        }
    }
}

/// The status and the headers of a head that may be wrong. Status 0: there is none.
fn read_head(head: &str, faults: &mut Vec<Fault>) -> (u16, Vec<(String, String)>) {
    let mut add = |section, words: String| faults.push(Fault::new(section, words));
    if head.replace("\r\n", "").contains(['\r', '\n']) {
        add("RFC 9112 section 2.2", "a line does not end with CRLF".to_owned());
    }
    let mut lines = head.split('\n').map(|line| line.trim_end_matches('\r'));
    let status_line = lines.next().unwrap_or_default();
    let mut words = status_line.splitn(3, ' ');
    let (version, status) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    if !version.starts_with("HTTP/") {
        add("RFC 9112 section 4", format!("{status_line:?} is no status line"));
    } else if version != "HTTP/1.1" {
        add("RFC 6455 section 4.2.2 item 5", format!("the version is {version}, and not HTTP/1.1"));
    }
    let status = if status.len() == 3 { status.parse().unwrap_or(0) } else { 0 };
    let mut headers: Vec<(String, String)> = Vec::new();
    for line in lines.take_while(|line| !line.is_empty()) {
        if line.starts_with([' ', '\t']) {
            add("RFC 9112 section 5.2", "a header goes on on the next line".to_owned());
            if let Some((_, value)) = headers.last_mut() {
                *value = format!("{value} {}", line.trim());
            }
            continue;
        }
        let Some((name, value)) = line.split_once(':') else {
            add("RFC 9112 section 5", format!("{line:?} is no header"));
            continue;
        };
        if name.ends_with([' ', '\t']) {
            add("RFC 9112 section 5.1", format!("a space behind the header name {:?}", name.trim()));
        } else if name.is_empty()
            || !name.chars().all(|c| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c))
        {
            add("RFC 9110 section 5.1", format!("{name:?} is no header name"));
        }
        headers.push((name.trim().to_ascii_lowercase(), value.trim().to_owned()));
    }
    (status, headers)
}

fn values<'h>(headers: &'h [(String, String)], name: &str) -> impl Iterator<Item = &'h str> {
    let name = name.to_owned();
    headers
        .iter()
        .filter(move |(found, _)| found.eq_ignore_ascii_case(&name))
        .map(|(_, value)| value.as_str())
}

/// What proves that a server has read the key (RFC 6455 section 4.2.2 item 5).
fn accept(key: &str) -> String {
    let text = format!("{}258EAFA5-E914-47DA-95CA-C5AB0DC85B11", key.trim());
    STANDARD.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, text.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWER: &str = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
        Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n";

    fn request(further: &[(&str, &str)]) -> Request {
        let headers = [
            ("Host", "example.com"),
            ("Upgrade", "websocket"),
            ("Connection", "keep-alive, Upgrade"),
            ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
            ("Sec-WebSocket-Version", "13"),
        ];
        let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
        let mut request = Request { target: "/".to_owned(), headers, own: 5 };
        for (name, value) in further {
            request.replace(name, value);
        }
        request
    }

    fn sections(head: &str, request: &Request) -> Vec<&'static str> {
        Answer::read(head, request).faults.iter().map(|fault| fault.section).collect()
    }

    #[test]
    fn a_sound_answer_has_no_fault() {
        assert_eq!(sections(&format!("{ANSWER}\r\n"), &request(&[])), [""; 0]);
        let offer = request(&[("Sec-WebSocket-Protocol", "a, b")]);
        assert_eq!(sections(&format!("{ANSWER}Sec-WebSocket-Protocol: b\r\n\r\n"), &offer), [""; 0]);
        assert_eq!(head_end(b"HTTP/1.1 101 a\r\nb: c\r\n\r\nrest"), Some(24));
        assert_eq!(head_end(b"HTTP/1.1 101 a\n\nrest"), Some(16));
        assert_eq!(head_end(b"HTTP/1.1 101 a\r\nb: c\r\n"), None);
    }

    #[test]
    fn every_fault_of_an_answer_is_named() {
        let without = |name: &str| {
            let lines = ANSWER.split_inclusive("\r\n").filter(|line| !line.starts_with(name));
            lines.collect::<String>() + "\r\n"
        };
        let with = |line: &str| format!("{ANSWER}{line}\r\n\r\n");
        for (head, section) in [
            ("HTTP/1.1 200 OK\r\n\r\n".to_owned(), "RFC 6455 section 4.1 item 1"),
            (without("Upgrade"), "RFC 6455 section 4.1 item 2"),
            (with("Upgrade: websocket"), "RFC 6455 section 4.1 item 2"),
            (with("").replace(": websocket", ": h2c"), "RFC 6455 section 4.1 item 2"),
            (without("Connection"), "RFC 6455 section 4.1 item 3"),
            (without("Sec-WebSocket-Accept"), "RFC 6455 section 4.1 item 4"),
            (with("").replace("s3pP", "s3pQ"), "RFC 6455 section 4.1 item 4"),
            (with("Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), "RFC 6455 section 11.3.3"),
            (with("Sec-WebSocket-Extensions: x"), "RFC 6455 section 4.1 item 5"),
            (with("Sec-WebSocket-Protocol: x"), "RFC 6455 section 4.1 item 6"),
            (with("Sec-WebSocket-Protocol: x, y"), "RFC 6455 section 4.2.2 item 5"),
            (with("Content-Length: 0"), "RFC 9110 section 8.6"),
            (with("Transfer-Encoding: chunked"), "RFC 9112 section 6.1"),
            (with("").replacen("\r\n", "\n", 1), "RFC 9112 section 2.2"),
            (with("a b: c"), "RFC 9110 section 5.1"),
            (with("a : c"), "RFC 9112 section 5.1"),
            (with("a: b\r\n c"), "RFC 9112 section 5.2"),
            (with("nonsense"), "RFC 9112 section 5"),
            (with("").replace("HTTP/1.1", "HTTP/1.0"), "RFC 6455 section 4.2.2 item 5"),
        ] {
            assert_eq!(sections(&head, &request(&[])), [section], "{head}");
        }
        let both = "Sec-WebSocket-Extensions: permessage-deflate\r\nSec-WebSocket-Extensions: x";
        let offer = request(&[("Sec-WebSocket-Extensions", "permessage-deflate, x")]);
        assert_eq!(sections(&with(both), &offer), ["RFC 6455 section 11.3.2"]);
        assert!(sections("SSH-2.0-OpenSSH\r\n\r\n", &request(&[])).contains(&"RFC 9112 section 4"));
    }

    #[test]
    fn a_faulty_request_must_not_be_accepted() {
        let answer = format!("{ANSWER}\r\n");
        for (name, value, section) in [
            ("Host", "", "RFC 6455 section 4.2.1 item 2"),
            ("Upgrade", "", "RFC 6455 section 4.2.1 item 3"),
            ("Connection", "close", "RFC 6455 section 4.2.1 item 4"),
            ("Sec-WebSocket-Version", "8", "RFC 6455 section 4.2.1 item 6"),
        ] {
            assert_eq!(sections(&answer, &request(&[(name, value)])), [section]);
            let refusal =
                "HTTP/1.1 426 Upgrade Required\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\r\n";
            assert_eq!(sections(refusal, &request(&[(name, value)])), [""; 0]);
        }
        let found = sections(&answer, &request(&[("Sec-WebSocket-Key", "not base64, 24 letters!!")]));
        assert_eq!(found, ["RFC 6455 section 4.2.1 item 5", "RFC 6455 section 4.1 item 4"]);
        let old = request(&[("Sec-WebSocket-Version", "8")]);
        assert_eq!(sections("HTTP/1.1 400 Bad Request\r\n\r\n", &old), ["RFC 6455 section 4.4"]);
    }
}
