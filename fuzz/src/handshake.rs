//! The opening handshake, as read by either end.

use sinews_proto::Role;
use sinews_proto::deflate::DeflateConfig;
use sinews_proto::handshake::{
    Accepted, ClientHandshake, ClientRequest, ClientStep, Established, OriginPolicy, Refusal, ServerOptions,
    accept,
};
use sinews_proto::http::{HeadLimits, HeadScanner, HeaderSlots, RequestHead, Version};

use crate::extensions;
use crate::heads::{self, Head};
use crate::input::{Chunks, Input};

/// Fuzzes a request or response head, in chunks and with bytes behind it.
///
/// The accepted heads are exactly the heads that the lists of RFC 6455 sections 4.1 and 4.2.1 allow.
pub fn handshake(data: &[u8]) {
    let mut input = Input::new(data);
    if input.flag() { client(&mut input) } else { server(&mut input) }
}

fn read_limits(input: &mut Input<'_>) -> HeadLimits {
    let max_bytes = [16 << 10, 16 << 10, 300, 180][input.below(4)];
    HeadLimits::new().with_max_bytes(max_bytes).with_max_headers([100, 100, 8, 5][input.below(4)])
}

/// The origins that a server accepts.
#[derive(Clone, Copy, Debug)]
struct Origins {
    rule: usize,
    required: bool,
}

impl Origins {
    fn policy(self) -> OriginPolicy {
        let policy = match self.rule {
            0 => OriginPolicy::same_origin(),
            1 => OriginPolicy::any(),
            _ => OriginPolicy::list(["https://a.example", "null"]).expect("two origins"),
        };
        if self.required { policy.require_origin() } else { policy }
    }

    fn admit(self, head: &Head<'_>, authority: &[u8]) -> bool {
        let origins = head.all("origin");
        let Some(first) = origins.first() else { return !self.required };
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).to_ascii_lowercase();
        let sole = text(first);
        match self.rule {
            1 => true,
            _ if origins.len() > 1 => false,
            0 => {
                let Some((scheme, host)) = sole.split_once("://") else { return false };
                let port = match scheme {
                    "http" => ":80",
                    "https" => ":443",
                    _ => return false,
                };
                let authority = text(authority);
                let bare = |text: &str| text.strip_suffix(port).unwrap_or(text).to_owned();
                !host.is_empty() && bare(host) == bare(&authority)
            }
            _ => ["https://a.example", "null"].contains(&sole.as_str()),
        }
    }
}

const OURS: [&str; 3] = ["v2.chat", "chat", "Mqtt"];

fn server(input: &mut Input<'_>) {
    let limits = read_limits(input);
    let origins = Origins { rule: input.below(3), required: input.below(4) == 3 };
    let flags = input.byte();
    let mut options = ServerOptions::new().with_origin(origins.policy());
    for name in &OURS[..usize::from(flags & 3)] {
        options = options.with_subprotocol(*name).expect("distinct tokens");
    }
    if flags & 4 != 0 {
        options = options.with_deflate(DeflateConfig::new());
    }
    let chunks = Chunks::read(input);
    let bytes = if flags & 8 == 0 { build(input, &REQUEST, &REQUEST_LINES) } else { input.rest().to_vec() };
    let Some(end) = scan(&bytes, &limits, chunks) else { return };
    let mut slots = HeaderSlots::new();
    let parsed = RequestHead::parse(&bytes[..end], &limits, &mut slots);
    let mut more_slots = HeaderSlots::new();
    let with_more = RequestHead::parse(&bytes, &limits, &mut more_slots).err();
    assert_eq!(parsed.as_ref().err(), with_more.as_ref(), "bytes behind: {}", bytes.escape_ascii());
    let split = heads::split(&bytes);
    let request = match parsed {
        Ok(request) => request,
        Err(error) => {
            let sound = split.is_some_and(|head| is_sound(&head, &limits));
            assert!(!sound, "{error}: {}", bytes.escape_ascii());
            return;
        }
    };
    let head = split.expect("a parsed head can be split");
    check_parsed(&request, &head, end);
    let expected = judge_request(&head, request.authority(), origins);
    match (accept(&request, &options), &expected[..]) {
        (Ok(accepted), []) => check_accepted(&accepted, &head, &options),
        (Err(refusal), why @ [_, ..]) => check_refusal(&refusal, why, &bytes),
        (decision, why) => panic!("{decision:?} instead of {why:?}: {}", bytes.escape_ascii()),
    }
}

/// Finds the end of a head at once and in chunks, with the same result.
fn scan(bytes: &[u8], limits: &HeadLimits, mut chunks: Chunks) -> Option<usize> {
    let whole = HeadScanner::new().scan(bytes, limits);
    let mut scanner = HeadScanner::new();
    let mut rest = bytes;
    let mut in_pieces = Ok(None);
    while !rest.is_empty() && in_pieces == Ok(None) {
        chunks.cut(&mut rest);
        in_pieces = scanner.scan(&bytes[..bytes.len() - rest.len()], limits);
    }
    assert_eq!(in_pieces, whole, "the end of a head depends on how it is cut");
    if let Ok(Some(end)) = whole {
        assert!(end <= limits.max_bytes(), "a head beyond the limit");
        assert_eq!(heads::split(bytes).map_or(end, |head| head.len), end, "where the head ends");
    } else if whole == Ok(None) {
        assert!(bytes.len() < limits.max_bytes(), "waiting beyond the limit");
    }
    whole.unwrap_or(None)
}

/// Whether a head is valid, independent of its request.
fn is_sound(head: &Head<'_>, limits: &HeadLimits) -> bool {
    let [method, target, version] = head.first;
    let token = |bytes: &[u8]| std::str::from_utf8(bytes).is_ok_and(extensions::is_token);
    let visible = |byte: &u8| byte.is_ascii_alphanumeric() || b"/-._~?&=%".contains(byte);
    let text = |byte: &u8| *byte == b'\t' || *byte >= b' ' && *byte != 0x7f;
    token(method)
        && method != b"CONNECT"
        && target.starts_with(b"/")
        && target.iter().all(visible)
        && version == b"HTTP/1.1"
        && head.lines.len() <= limits.max_headers()
        && head.lines.iter().all(|(name, value)| token(name) && value.iter().all(text))
        && head.only("host").is_some_and(|host| host.iter().all(|byte| byte.is_ascii_alphanumeric()))
        && head.all("content-length").is_empty()
        && head.all("transfer-encoding").is_empty()
}

fn check_parsed(request: &RequestHead<'_>, head: &Head<'_>, end: usize) {
    let [method, target, version] = head.first;
    assert_eq!((request.method().as_bytes(), request.target().as_bytes()), (method, target));
    let minor = if request.version() == Version::Http11 { &b"HTTP/1.1"[..] } else { b"HTTP/1.0" };
    assert_eq!(minor, version);
    let lines: Vec<(&[u8], &[u8])> =
        request.headers().map(|(name, value)| (name.as_bytes(), value)).collect();
    assert_eq!(lines, head.lines, "header lines");
    assert_eq!(request.wire_len(), end, "the length of the head");
}

/// Returns the statuses with which a request may be rejected, none if it is to be accepted (RFC 6455 section
/// 4.2.1, sections 9.1 and 11.3.4, and RFC 9110 section 7.8).
fn judge_request(head: &Head<'_>, authority: Option<&str>, origins: Origins) -> Vec<u16> {
    let [method, _, version] = head.first;
    let is_zero = |value: &[u8]| value == b"0";
    let checks = [
        (method == b"GET", 405),
        (head.only("host").is_some(), 400),
        (
            version == b"HTTP/1.1"
                && head.lists("upgrade", "websocket")
                && head.lists("connection", "upgrade"),
            426,
        ),
        (head.only("sec-websocket-version") == Some(b"13"), 426),
        (head.only("sec-websocket-key").is_some_and(heads::is_key), 400),
        (
            head.all("transfer-encoding").is_empty() && head.all("content-length").into_iter().all(is_zero),
            400,
        ),
        (origins.admit(head, authority.unwrap_or_default().as_bytes()), 403),
        (names(head).is_some() && extensions::parse(head.all("sec-websocket-extensions")).is_ok(), 400),
    ];
    checks.into_iter().filter(|(holds, _)| !holds).map(|(_, status)| status).collect()
}

/// Returns the subprotocols that a client offers; `None` if the header is not a list of distinct tokens.
fn names(head: &Head<'_>) -> Option<Vec<String>> {
    let present = !head.all("sec-websocket-protocol").is_empty();
    let mut names = Vec::new();
    for element in head.elements("sec-websocket-protocol") {
        let name = String::from_utf8(element.to_vec()).ok()?;
        if !extensions::is_token(&name) || names.contains(&name) {
            return None;
        }
        names.push(name);
    }
    let fits = names.len() <= ServerOptions::SUBPROTOCOLS_MAX && (!present || !names.is_empty());
    fits.then_some(names)
}

/// Checks that the answer proves the receipt of the key and contains only requested values.
fn check_accepted(accepted: &Accepted, head: &Head<'_>, options: &ServerOptions) {
    assert_eq!(accepted.negotiated().role(), Role::Server);
    let mut answer = Vec::new();
    accepted.write_response(&[("Server", "fuzz")], &mut answer).expect("nothing reserved");
    let reply = heads::split(&answer).expect("an answer is a head");
    assert_eq!((reply.first[..2].to_vec(), reply.len), (vec![&b"HTTP/1.1"[..], b"101"], answer.len()));
    let key = head.only("sec-websocket-key").expect("it was accepted");
    assert_eq!(reply.only("sec-websocket-accept"), Some(heads::proof(key).as_bytes()));
    assert!(reply.lists("upgrade", "websocket") && reply.lists("connection", "upgrade"));
    let offered = names(head).expect("it was accepted");
    let expected = options.subprotocols().find(|ours| offered.iter().any(|offer| offer == ours));
    assert_eq!(accepted.subprotocol(), expected, "the first of ours that was offered");
    assert_eq!(reply.only("sec-websocket-protocol"), expected.map(str::as_bytes));
    let chosen = reply.only("sec-websocket-extensions").is_some();
    let offers = extensions::parse(head.all("sec-websocket-extensions")).expect("it was accepted");
    let asked = offers.iter().any(|offer| extensions::meaning(offer).is_some());
    assert!(!chosen || asked && options.deflate().is_some(), "an extension without an offer");
    assert_eq!(chosen, accepted.negotiated().deflate().is_some());
}

/// Checks that a rejection is a complete response with a defined end of its body.
fn check_refusal(refusal: &Refusal, why: &[u16], head: &[u8]) {
    assert!(why.contains(&refusal.status()), "{refusal:?} instead of {why:?}: {}", head.escape_ascii());
    let mut answer = Vec::new();
    refusal.write_response(&mut answer);
    let reply = heads::split(&answer).expect("a refusal is a head");
    assert_eq!(reply.first[1], refusal.status().to_string().as_bytes());
    let len: Option<usize> = reply
        .only("content-length")
        .and_then(|len| std::str::from_utf8(len).ok())
        .and_then(|len| len.parse().ok());
    assert!(len.is_some_and(|len| len == answer.len() - reply.len || answer.len() == reply.len));
    assert!(refusal.status() != 426 || reply.lists("upgrade", "websocket"));
}

fn client(input: &mut Input<'_>) {
    let limits = read_limits(input);
    let flags = input.byte();
    let offered = &OURS[..usize::from(flags & 3)];
    let mut request = ClientRequest::new("host.example", "/path").expect("both are sound");
    for name in offered {
        request = request.with_subprotocol(*name).expect("distinct tokens");
    }
    if flags & 4 != 0 {
        request = request.with_deflate(DeflateConfig::new());
    }
    let handshake = request.with_response_limits(limits).start([7; 16]);
    let chunks = Chunks::read(input);
    let bytes = if flags & 8 == 0 { build(input, &RESPONSE, &RESPONSE_LINES) } else { input.rest().to_vec() };
    let whole = Outcome::of(handshake.clone().read_response(&bytes));
    assert_eq!(in_pieces(handshake.clone(), &bytes, chunks), whole, "{}", bytes.escape_ascii());
    let Outcome::Done(consumed, subprotocol, deflate) = whole else {
        let refused = !may_establish(&bytes, &limits, offered, flags & 4 != 0);
        assert!(refused, "{whole:?}: {}", bytes.escape_ascii());
        return;
    };
    let head = final_head(&bytes).expect("an answer is a head");
    assert_eq!(head.1 + head.0.len, consumed, "bytes behind the head");
    assert!(consumed <= limits.max_bytes());
    let sound = judge_response(&head.0, offered, flags & 4 != 0);
    assert!(sound, "accepted: {}", bytes.escape_ascii());
    let chosen = head.0.only("sec-websocket-protocol");
    assert_eq!(subprotocol.as_deref().map(str::as_bytes), chosen);
    assert_eq!(deflate, head.0.only("sec-websocket-extensions").is_some());
}

/// The client's result for an answer, without the parts that depend on the chunking of the answer.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    NeedMore,
    Done(usize, Option<String>, bool),
    Failed(String),
}

impl Outcome {
    fn of(step: Result<ClientStep, sinews_proto::handshake::ClientError>) -> Self {
        match step {
            Ok(ClientStep::NeedMore) => Self::NeedMore,
            Ok(ClientStep::Done(done)) => Self::done(&done),
            Err(error) => Self::Failed(error.to_string()),
        }
    }

    fn done(done: &Established) -> Self {
        assert_eq!(done.negotiated().role(), Role::Client);
        let deflate = done.negotiated().deflate().is_some();
        Self::Done(done.consumed(), done.subprotocol().map(str::to_owned), deflate)
    }
}

fn in_pieces(mut handshake: ClientHandshake, bytes: &[u8], mut chunks: Chunks) -> Outcome {
    let mut rest = bytes;
    while !rest.is_empty() {
        chunks.cut(&mut rest);
        let outcome = Outcome::of(handshake.read_response(&bytes[..bytes.len() - rest.len()]));
        if outcome != Outcome::NeedMore {
            return outcome;
        }
    }
    Outcome::NeedMore
}

/// Returns the final head behind interim heads, and its offset.
fn final_head(bytes: &[u8]) -> Option<(Head<'_>, usize)> {
    let mut at = 0;
    loop {
        let head = heads::split(&bytes[at..])?;
        match head.first[1] {
            b"101" => return Some((head, at)),
            [b'1', _, _] => at += head.len,
            _ => return Some((head, at)),
        }
    }
}

/// Checks the list at the end of RFC 6455 section 4.1.
fn judge_response(head: &Head<'_>, offered: &[&str], deflate: bool) -> bool {
    let proof = heads::proof(b"BwcHBwcHBwcHBwcHBwcHBw==");
    let [version, status, _] = head.first;
    let name = head.only("sec-websocket-protocol");
    let known = name.is_some_and(|name| offered.iter().any(|offer| offer.as_bytes() == name));
    let lines = head.all("sec-websocket-extensions");
    let extensions = match (&lines[..], extensions::parse(lines.iter().copied()).as_deref()) {
        ([], _) => true,
        // The deflate target tests the content of the extension.
        ([_], Ok([extension])) => deflate && extensions::meaning(extension).is_some(),
        _ => false,
    };
    (version, status) == (b"HTTP/1.1", b"101")
        && head.only("upgrade").is_some_and(|value| value.eq_ignore_ascii_case(b"websocket"))
        && head.lists("connection", "upgrade")
        && head.only("sec-websocket-accept") == Some(proof.as_bytes())
        && (known || head.all("sec-websocket-protocol").is_empty())
        && extensions
}

/// Whether the answer is valid.
fn may_establish(bytes: &[u8], limits: &HeadLimits, offered: &[&str], deflate: bool) -> bool {
    let Some((head, 0)) = final_head(bytes) else { return false };
    let token = |bytes: &[u8]| std::str::from_utf8(bytes).is_ok_and(extensions::is_token);
    let text = |byte: &u8| *byte >= b' ' && *byte < 0x7f;
    head.len <= limits.max_bytes()
        && !bytes.starts_with(b"\r\n")
        && head.lines.len() <= limits.max_headers()
        && head.first[2].iter().all(text)
        && head.lines.iter().all(|(name, value)| token(name) && value.iter().all(text))
        && head.all("sec-websocket-extensions").is_empty()
        && judge_response(&head, offered, deflate)
}

/// Builds a head from decisions: expected lines, some left out, further lines added, and bytes behind it.
fn build(input: &mut Input<'_>, sound: &[&str], others: &[&str]) -> Vec<u8> {
    let mut head = Vec::new();
    let missing = input.byte();
    for (at, line) in sound.iter().enumerate() {
        if at == 0 && missing & 0xc0 == 0xc0 {
            head.extend_from_slice(others[input.below(others.len())].as_bytes());
        } else if missing >> at & 1 == 0 || at > 5 {
            head.extend_from_slice(line.as_bytes());
        }
        head.extend_from_slice(if missing >> at & 1 == 0 || at > 5 { b"\r\n" } else { b"" });
    }
    for _ in 0..input.below(6) {
        match input.below(others.len() + 2) {
            0 => {
                let len = input.below(40);
                head.extend_from_slice(input.take(len));
            }
            1 => {
                let at = input.below(head.len().max(1)).min(head.len());
                head.truncate(at);
                continue;
            }
            other => head.extend_from_slice(others[other - 2].as_bytes()),
        }
        head.extend_from_slice(b"\r\n");
    }
    head.extend_from_slice(b"\r\n");
    head.extend_from_slice(input.rest());
    head
}

const REQUEST: [&str; 6] = [
    "GET /chat?room=7 HTTP/1.1",
    "Host: a.example",
    "Upgrade: websocket",
    "Connection: keep-alive, Upgrade",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
];

const REQUEST_LINES: [&str; 38] = [
    "Origin: https://a.example",
    "Origin: http://A.example:80",
    "Origin: https://evil.example",
    "Origin: null",
    "Sec-WebSocket-Protocol: chat, v2.chat",
    "sec-websocket-protocol: Mqtt",
    "Sec-WebSocket-Protocol: chat chat",
    "Sec-WebSocket-Protocol:",
    "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits",
    "Sec-WebSocket-Extensions: permessage-deflate; server_max_window_bits=9, permessage-deflate",
    "Sec-WebSocket-Extensions: permessage-deflate; x=\"a",
    "Sec-WebSocket-Extensions: foo; bar=baz",
    "Content-Length: 0",
    "Content-Length: 5",
    "Content-Length: 00",
    "Transfer-Encoding: chunked",
    "Transfer-Encoding: gzip, chunked",
    "Host: b.example:8080",
    "Upgrade: h2c, WebSocket",
    "Upgrade: websocket/13",
    "Connection: upgrade",
    "Connection: close",
    "Sec-WebSocket-Version: 8",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAB==",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZWFi",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZWE=",
    "POST /chat HTTP/1.1",
    "HEAD / HTTP/1.1",
    "GET http://a.example/x HTTP/1.1",
    "GET /x HTTP/1.0",
    "GET * HTTP/1.1",
    "GET /x HTTP/2.0",
    " folded",
    "Name : value",
    "Cookie: a=\u{e4}",
    "X: 1\n",
];

/// The last line proves the key of sixteen sevens.
const RESPONSE: [&str; 4] = [
    "HTTP/1.1 101 Switching Protocols",
    "Upgrade: websocket",
    "Connection: Upgrade",
    "Sec-WebSocket-Accept: CdXSYUsvsaMthlEXWDNURGWA/1o=",
];

const RESPONSE_LINES: [&str; 24] = [
    "Sec-WebSocket-Protocol: chat",
    "Sec-WebSocket-Protocol: v2.chat",
    "Sec-WebSocket-Protocol: other",
    "Sec-WebSocket-Extensions: permessage-deflate",
    "Sec-WebSocket-Extensions: permessage-deflate; server_no_context_takeover",
    "Sec-WebSocket-Extensions: permessage-deflate; client_no_context_takeover; server_no_context_takeover",
    "Sec-WebSocket-Extensions: permessage-deflate; server_max_window_bits=20",
    "Sec-WebSocket-Extensions: foo",
    "Sec-WebSocket-Accept: AAAAAAAAAAAAAAAAAAAAAAAAAAA=",
    "Upgrade: WebSocket",
    "Upgrade: websocket, h2c",
    "Connection: close",
    "Connection: keep-alive,UPGRADE",
    "HTTP/1.1 200 OK",
    "HTTP/1.1 100 Continue\r\n",
    "HTTP/1.1 103 Early Hints\r\nLink: x\r\n",
    "HTTP/1.1 302 Found\r\nLocation: /",
    "HTTP/1.0 101 Old",
    "HTTP/1.1 101",
    "HTTP/1.1 99 Odd",
    "Set-Cookie: a=b",
    " folded",
    "Name : value",
    "X: 1\n",
];
