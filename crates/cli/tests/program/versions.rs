//! What the program promises over HTTP/1.1 holds over HTTP/2 and HTTP/3.

#[expect(dead_code, reason = "other tests use the rest of the client")]
#[path = "../../../quic/tests/endpoints/http3_client.rs"]
pub(crate) mod http3_client;
#[expect(dead_code, reason = "other tests use the rest of the client")]
#[path = "../../../quic/tests/endpoints/quic_client.rs"]
mod quic_client;

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use quinn_proto::StreamId;
use sinews_http::h2::{Config, Event, FieldBuffer, H2Connection, RequestTarget};
use sinews_proto::Role;
use sinews_testkit::{Frame, Reader, Reply, TestCertificate, until_some};

use self::http3_client::Http3Client;
use crate::auth::{keys, token};
use crate::config::Directory;
use crate::support::{Running, TIMEOUT};

const VERSIONS: [&str; 3] = ["HTTP/1.1", "HTTP/2", "HTTP/3"];

/// A server with HTTP/1.1 and HTTP/2 on a Unix socket, which has no TLS, and HTTP/3 on its port.
struct Versions {
    server: Running,
    directory: Directory,
    certificate: TestCertificate,
}

/// Status and content of an answer.
#[derive(Clone, Debug, Default)]
struct Answer {
    status: u16,
    content: Vec<u8>,
    has_ended: bool,
}

impl Answer {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.content).into_owned()
    }

    fn replies(&self) -> Vec<Reply> {
        Reader::new(Role::Server, None).read(&self.content).expect("valid frames")
    }
}

/// A request, which opens a WebSocket if it has no method.
struct Call<'a> {
    method: Option<&'a str>,
    path: &'a str,
    fields: Vec<(&'a str, &'a str)>,
    content: Vec<u8>,
}

impl<'a> Call<'a> {
    fn get(path: &'a str) -> Self {
        Self { method: Some("GET"), path, fields: Vec::new(), content: Vec::new() }
    }

    fn post(path: &'a str, content: &[u8]) -> Self {
        Self { method: Some("POST"), path, fields: Vec::new(), content: content.to_vec() }
    }

    /// A WebSocket that sends these bytes.
    fn socket(path: &'a str, content: Vec<u8>) -> Self {
        Self { method: None, path, fields: Vec::new(), content }
    }

    fn with(mut self, name: &'a str, value: &'a str) -> Self {
        self.fields.push((name, value));
        self
    }
}

/// Whether an answer is complete for a test.
type IsDone<'a> = &'a dyn Fn(&Answer) -> bool;

impl Versions {
    fn serve(arguments: &[&str]) -> Self {
        let (made, directory) = (TestCertificate::new(), Directory::new());
        let (certificate, key) = directory.write_tls(&made);
        let listen = format!("unix:{}", directory.path("socket"));
        let listen = ["--tls-certificate", &certificate, "--tls-key", &key, "--listen", &listen];
        let versions = ["--http-http2-clear-text", "--http-http3", "--access-log"];
        let server = Running::serve(&[&listen[..], &versions, arguments].concat());
        Self { server, directory, certificate: made }
    }

    /// Sends a request over a version, and receives until the end or until the answer is complete for the test.
    fn call(&self, version: &str, call: &Call<'_>, is_done: IsDone<'_>) -> Answer {
        match version {
            "HTTP/1.1" => self.call_http1(call, is_done),
            "HTTP/2" => self.call_http2(call, is_done),
            _ => self.call_http3(call, is_done),
        }
    }

    fn status(&self, version: &str, call: &Call<'_>) -> u16 {
        // An accepted WebSocket does not end.
        self.call(version, call, &|answer| answer.status == 200 && call.method.is_none()).status
    }

    fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.directory.path("socket")).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream
    }

    fn call_http1(&self, call: &Call<'_>, is_done: IsDone<'_>) -> Answer {
        let mut stream = self.connect();
        let method = call.method.unwrap_or("GET");
        let mut head = format!("{method} {} HTTP/1.1\r\nHost: localhost\r\n", call.path);
        head += &match call.method {
            Some(_) => format!("Connection: close\r\nContent-Length: {}\r\n", call.content.len()),
            None => "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
                     Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
                .to_owned(),
        };
        for (name, value) in &call.fields {
            head += &format!("{name}: {value}\r\n");
        }
        stream.write_all(format!("{head}\r\n").as_bytes()).unwrap();
        // A server that ends the connection reads no more.
        let _ = stream.write_all(&call.content);
        let (mut received, mut answer) = (Vec::new(), Answer::default());
        while !(answer.has_ended || answer.status > 0 && is_done(&answer)) {
            let mut chunk = [0; 4096];
            let count = match stream.read(&mut chunk) {
                Err(error) if error.kind() == ErrorKind::ConnectionReset => 0,
                read => read.unwrap(),
            };
            answer.has_ended = count == 0;
            received.extend_from_slice(&chunk[..count]);
            if let Some(end) = received.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                let status: u16 = std::str::from_utf8(&received[9..12]).unwrap().parse().unwrap();
                // The status of an extended CONNECT.
                answer.status = if status == 101 { 200 } else { status };
                answer.content = received[end + 4..].to_vec();
            }
        }
        answer
    }

    fn call_http2(&self, call: &Call<'_>, is_done: IsDone<'_>) -> Answer {
        let (mut stream, mut machine) = (self.connect(), H2Connection::client(Config::new()));
        let (mut fields, mut out) = (FieldBuffer::new(), Vec::new());
        let (mut request, mut sent, mut answer) = (None, 0, Answer::default());
        while !(answer.has_ended || answer.status > 0 && is_done(&answer)) {
            machine.write_control(&mut out);
            if machine.server_settings().is_some() && request.is_none() {
                let ends = call.method.is_some() && call.content.is_empty();
                request = machine.send_request(&target(call, "http"), added(call), ends, &mut out).ok();
            }
            if let Some(id) = request.filter(|id| machine.is_open(*id)) {
                let ends = call.method.is_some();
                if sent < call.content.len() {
                    sent += machine.send_data(id, &call.content[sent..], ends, &mut out).unwrap();
                }
            }
            // A server that ends the connection reads no more.
            let _ = stream.write_all(&std::mem::take(&mut out));
            let mut chunk = [0; 4096];
            let count = stream.read(&mut chunk).unwrap_or(0);
            answer.has_ended = count == 0;
            let mut input = &chunk[..count];
            while let Some(event) = machine.receive(&mut input, &mut fields, Duration::ZERO).unwrap() {
                match event {
                    Event::Response { head, ends, .. } => {
                        (answer.status, answer.has_ended) = (head.status(), ends);
                    }
                    Event::Data { stream, data, ends } => {
                        answer.content.extend_from_slice(data);
                        answer.has_ended |= ends;
                        let len = data.len();
                        machine.release(stream, len);
                    }
                    Event::Reset { .. } => answer.has_ended = true,
                    _ => {}
                }
            }
        }
        answer
    }

    fn call_http3(&self, call: &Call<'_>, is_done: IsDone<'_>) -> Answer {
        let mut client = Http3Client::connect(self.server.address, self.certificate.roots());
        let target = target(call, "https");
        let id = client.quic.ask_with(&target, added(call), &call.content, call.method.is_some());
        let mut answer = Answer::default();
        client.run(call.path, |quic| {
            if let Some((status, content, has_ended)) = quic.responses.get(&id).cloned() {
                answer = Answer { status, content, has_ended };
            }
            answer.has_ended |= quic.lost.is_some() || quic.resets.contains_key(&id);
            answer.has_ended || answer.status > 0 && is_done(&answer)
        });
        let stream: StreamId = quinn_proto::VarInt::from_u64(id).unwrap().into();
        let _ = client.quic.quic.recv_stream(stream).stop(0x10c_u32.into());
        client.quic.quic.close(Instant::now(), 0x100_u32.into(), bytes::Bytes::new());
        client.flush();
        answer
    }
}

fn target<'a>(call: &Call<'a>, scheme: &'a str) -> RequestTarget<'a> {
    match call.method {
        Some(method) => RequestTarget::new(method, scheme, "localhost", call.path),
        None => RequestTarget::connect("websocket", "localhost", call.path).with_scheme(scheme),
    }
}

fn added<'a>(call: &Call<'a>) -> Vec<(&'a str, &'a str)> {
    let version = call.method.is_none().then_some(("sec-websocket-version", "13"));
    call.fields.iter().copied().chain(version).collect()
}

#[test]
fn access_log_tokens_readiness_and_dashboard_hold_over_each_version() {
    let secret = keys("secret");
    let versions = Versions::serve(&["--auth-secret-file", &secret]);
    let rights = ["--subject", "anna", "--subscribe", ">", "--publish", "room"];
    let bearer = format!("Bearer {}", token(&secret, &rights));
    for version in VERSIONS {
        let call = |call: &Call<'_>| versions.status(version, call);
        let ready = versions.call(version, &Call::get("/readyz"), &|_| false);
        assert_eq!((ready.status, &*ready.text()), (200, "ready\n"), "{version}");
        let page = versions.call(version, &Call::get("/dashboard"), &|_| false);
        assert!(page.status == 200 && page.text().contains("<html"), "{version}: {page:?}");
        // Tokens of requests.
        assert_eq!(call(&Call::post("/topics/room", b"a")), 401, "{version}");
        assert_eq!(call(&Call::post("/topics/hall", b"a").with("authorization", &bearer)), 403, "{version}");
        assert_eq!(call(&Call::post("/topics/room", b"a").with("authorization", &bearer)), 200, "{version}");
        // And of WebSockets.
        assert_eq!(call(&Call::socket("/topics/room", Vec::new())), 401, "{version}");
        let feed = Call::socket("/dashboard/feed", Vec::new());
        assert_eq!(call(&feed), 401, "{version}");
        let feed = feed.with("authorization", &bearer);
        let report = versions.call(version, &feed, &|answer| !answer.replies().is_empty());
        let first = &report.replies()[0];
        assert!(matches!(first, Reply::Message(_, text) if text.starts_with(b"{")), "{version}: {first:?}");
        let path = format!("/missing/{}", version.replace('/', "-"));
        assert_eq!(call(&Call::get(&path).with("authorization", &bearer)), 404, "{version}");
    }
    versions.server.signal("TERM");
    let (status, log) = versions.server.wait();
    assert!(status.success());
    for version in VERSIONS {
        let path = format!("/missing/{}", version.replace('/', "-"));
        let line =
            log.lines().find(|line| line.contains(&path)).unwrap_or_else(|| panic!("{version}: {log}"));
        assert!(line.contains("404") && line.contains("GET"), "{line}");
    }
    // A WebSocket is a GET over HTTP/1.1 only.
    for (version, method, protocol) in
        [("HTTP/1.1", "GET", ""), ("HTTP/2", "CONNECT", "websocket"), ("HTTP/3", "CONNECT", "websocket")]
    {
        let is_feed = |line: &&str| {
            line.contains("/dashboard/feed") && line.contains(&format!("version=\"{version}\""))
        };
        let lines: Vec<&str> = log.lines().filter(is_feed).collect();
        assert_eq!(lines.len(), 2, "rejected and accepted over {version}: {log}");
        for line in lines {
            let found =
                line.split_once(" protocol=\"").map_or("", |(_, rest)| rest.split('"').next().unwrap());
            assert!(line.contains(&format!("method=\"{method}\"")) && found == protocol, "{line}");
        }
    }
    for path in ["/readyz", "/dashboard/feed", "/topics/room"] {
        let lines = log.lines().filter(|line| line.contains(path)).count();
        assert!(lines >= VERSIONS.len(), "{path}: {log}");
    }
    assert!(!log.contains(&bearer["Bearer ".len()..]), "no token in the log");
}

#[test]
fn rates_of_messages_and_memory_are_limited_over_each_version() {
    let versions = Versions::serve(&["--limits-messages-per-second", "2"]);
    for version in VERSIONS {
        let burst: Vec<u8> = (0..50).flat_map(|_| Frame::text("{}").encode(Role::Client)).collect();
        for path in ["/echo", "/topics/a", "/ws"] {
            let closed = |answer: &Answer| answer.replies().iter().find_map(Reply::close_code);
            let answer = versions
                .call(version, &Call::socket(path, burst.clone()), &|answer| closed(answer).is_some());
            assert_eq!(closed(&answer), Some(1008), "{version} {path}");
        }
    }
    let limits = ["--limits-max-memory", "64k", "--limits-when-full", "close"];
    let versions = Versions::serve(&limits);
    let message = Frame::binary(vec![0; 4 << 20]).encode(Role::Client);
    // A connection of HTTP/3 ends a moment after its client. A request in between is rejected, and counted, too.
    let mut rejected = 0;
    for (version, count) in VERSIONS.into_iter().zip(1..) {
        let part = Call::socket("/echo", message[..2 << 20].to_vec());
        let answer = versions.call(version, &part, &|_| false);
        assert!(answer.has_ended && answer.content.is_empty(), "{version}: {answer:?}");
        let metrics = until_some("memory is free", || {
            let text = versions.call("HTTP/1.1", &Call::get("/metrics"), &|_| false).text();
            let is_rejected = text.contains("the server is at its limit");
            rejected += u32::from(is_rejected);
            Some(text).filter(|_| !is_rejected)
        });
        let limited = format!("sinews_limited_total{{limit=\"memory\"}} {}\n", count + rejected);
        assert!(metrics.contains(&limited), "{version}: {metrics}");
    }
}
