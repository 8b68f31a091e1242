//! Possibly invalid requests.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::super::extension::{self, ExtensionHeader};
use super::values;
use crate::connect::args::ConnectArgs;
use crate::connect::dial::{self, ServerUrl};
use crate::connect::end::RunEnd;

/// A handshake request.
pub(crate) struct InspectRequest {
    pub(super) target: String,
    pub(super) headers: Vec<(String, String)>,
    /// Number of the handshake's own headers, which come first.
    pub(super) own: usize,
}

impl InspectRequest {
    /// Builds the request from the options: a given header replaces the handshake's own, or removes it if its value
    /// is empty.
    pub(crate) fn new(args: &ConnectArgs, url: &ServerUrl, key: &[u8; 16]) -> Self {
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

    /// Replaces a handshake header, or adds a header.
    pub(crate) fn replace(&mut self, name: &str, value: &str) {
        let known =
            self.headers.iter().take(self.own).position(|(known, _)| known.eq_ignore_ascii_case(name));
        match (known, value) {
            (Some(at), "") => self.headers[at].1.clear(),
            (Some(at), value) => value.clone_into(&mut self.headers[at].1),
            (None, value) => self.headers.push((name.to_owned(), value.to_owned())),
        }
    }

    pub(crate) fn write(&self) -> Result<String, RunEnd> {
        let mut head = format!("GET {} HTTP/1.1\r\n", self.target);
        for (name, value) in self.headers.iter().filter(|(_, value)| !value.is_empty()) {
            head += &format!("{name}: {value}\r\n");
        }
        // Reject request splitting: a handshake never contains two requests.
        let lines = 1 + self.headers.iter().filter(|(_, value)| !value.is_empty()).count();
        match head.matches(['\r', '\n']).count() == 2 * lines {
            true => Ok(head + "\r\n"),
            false => Err(RunEnd::failed("a header or the URL contains a line break")),
        }
    }

    pub(super) fn values(&self, name: &str) -> impl Iterator<Item = &str> {
        values(&self.headers, name).filter(|value| !value.is_empty())
    }

    pub(super) fn tokens(&self, name: &str) -> Vec<&str> {
        self.values(name).flat_map(|value| value.split(',')).map(str::trim).collect()
    }

    pub(super) fn extensions(&self) -> Vec<ExtensionHeader> {
        extension::parse(self.values("sec-websocket-extensions"))
    }

    /// Returns violations that a server must not answer with 101 (RFC 6455 section 4.2.1).
    pub(super) fn violations(&self) -> Vec<(&'static str, String)> {
        let has =
            |name: &str, token: &str| self.tokens(name).iter().any(|found| found.eq_ignore_ascii_case(token));
        let mut violations = Vec::new();
        if self.values("host").count() != 1 {
            violations.push(("RFC 6455 section 4.2.1 item 2", "one Host".to_owned()));
        }
        if !has("upgrade", "websocket") {
            violations.push(("RFC 6455 section 4.2.1 item 3", "`Upgrade: websocket`".to_owned()));
        }
        if !has("connection", "upgrade") {
            violations.push(("RFC 6455 section 4.2.1 item 4", "`Connection: Upgrade`".to_owned()));
        }
        let keys: Vec<&str> = self.values("sec-websocket-key").collect();
        let is_key = |key: &&str| STANDARD.decode(key.trim()).is_ok_and(|key| key.len() == 16);
        if keys.len() != 1 || !keys.iter().all(is_key) {
            violations.push((
                "RFC 6455 section 4.2.1 item 5",
                "one Sec-WebSocket-Key of 16 bytes in base64".to_owned(),
            ));
        }
        if !self.speaks_13() {
            violations.push(("RFC 6455 section 4.2.1 item 6", "`Sec-WebSocket-Version: 13`".to_owned()));
        }
        violations
    }

    /// Whether a server may answer with 101.
    pub(crate) fn is_sound(&self) -> bool {
        self.violations().is_empty()
    }

    pub(super) fn speaks_13(&self) -> bool {
        self.values("sec-websocket-version").eq(["13"])
    }
}
