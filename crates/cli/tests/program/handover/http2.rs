//! HTTP/2 over a handover: WebSockets, a streaming response and a request on one connection.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use sinews_http::h2::{Config, Event, FieldBuffer, H2Connection, RequestTarget, StreamId};
use sinews_proto::Role;
use sinews_testkit::{Frame, Reader};

use super::{Service, connect};

/// What a stream has received.
#[derive(Default)]
struct Answer {
    status: Option<u16>,
    body: Vec<u8>,
    has_ended: bool,
}

/// A client of HTTP/2.
struct Http2Client {
    stream: TcpStream,
    machine: H2Connection,
    fields: FieldBuffer,
    answers: BTreeMap<StreamId, Answer>,
    /// GOAWAY has arrived.
    is_going_away: bool,
}

impl Http2Client {
    fn connect(service: &Service) -> Self {
        let mut client = Self {
            stream: connect(service.address),
            machine: H2Connection::client(Config::new()),
            fields: FieldBuffer::new(),
            answers: BTreeMap::new(),
            is_going_away: false,
        };
        client.until(|client| client.machine.server_settings().is_some());
        client
    }

    fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the server reads");
    }

    fn request(&mut self, target: &RequestTarget<'_>, fields: &[(&str, &str)], ends: bool) -> StreamId {
        let mut out = Vec::new();
        let fields = fields.iter().copied();
        let stream = self.machine.send_request(target, fields, ends, &mut out).expect("a stream is free");
        self.send(&out);
        self.answers.insert(stream, Answer::default());
        stream
    }

    fn websocket(&mut self, path: &str) -> StreamId {
        let target = RequestTarget::connect("websocket", "localhost", path).with_scheme("http");
        let stream = self.request(&target, &[("sec-websocket-version", "13")], false);
        self.until(|client| client.answers[&stream].status.is_some());
        assert_eq!(self.answers[&stream].status, Some(200));
        stream
    }

    fn data(&mut self, stream: StreamId, data: &[u8], ends: bool) {
        let mut out = Vec::new();
        assert_eq!(self.machine.send_data(stream, data, ends, &mut out), Ok(data.len()));
        self.send(&out);
    }

    /// Receives until this holds.
    fn until(&mut self, holds: impl Fn(&Self) -> bool) {
        while !holds(self) {
            assert!(self.receive(), "the connection ended early");
        }
    }

    /// Receives bytes. Returns `false` at the end of the connection.
    fn receive(&mut self) -> bool {
        let mut out = Vec::new();
        self.machine.write_control(&mut out);
        // A server that has closed reads no more.
        let _ = self.stream.write_all(&out);
        let mut chunk = [0; 4096];
        let count = self.stream.read(&mut chunk).expect("the connection is not reset");
        let mut input = &chunk[..count];
        while let Some(event) =
            self.machine.receive(&mut input, &mut self.fields, Duration::ZERO).expect("the server is valid")
        {
            match event {
                Event::Response { stream, head, ends } => {
                    let answer = self.answers.get_mut(&stream).expect("a request");
                    (answer.status, answer.has_ended) = (Some(head.status()), ends);
                }
                Event::Data { stream, data, ends } => {
                    let answer = self.answers.get_mut(&stream).expect("a request");
                    answer.body.extend_from_slice(data);
                    answer.has_ended |= ends;
                    let len = data.len();
                    self.machine.release(stream, len);
                }
                Event::Reset { stream, code, .. } => panic!("stream {} is reset: {code}", stream.get()),
                Event::GoAway { .. } => self.is_going_away = true,
                _ => {}
            }
        }
        count > 0
    }

    /// The code of the Close frame on a stream, if it has arrived.
    fn close_code(&self, stream: StreamId) -> Option<u16> {
        let replies =
            Reader::new(Role::Server, None).read(&self.answers[&stream].body).expect("valid frames");
        replies.iter().find_map(sinews_testkit::Reply::close_code)
    }

    fn body(&self, stream: StreamId) -> String {
        String::from_utf8_lossy(&self.answers[&stream].body).into_owned()
    }
}

#[test]
fn streams_of_a_connection_end_in_order_and_the_successor_serves_the_next() {
    let app = "[[pusher.app]]\nid = \"1\"\nkey = \"a\"\nsecret = \"s\"\n";
    let mut service = Service::start(
        "http2",
        &format!("threads = 2\n[http]\nhttp2_clear_text = true\nmin_upload_rate = 0\n{app}"),
    );
    let mut client = Http2Client::connect(&service);
    let echo = client.websocket("/echo");
    let pusher = client.websocket("/app/a?protocol=7");
    let events = RequestTarget::new("GET", "http", "localhost", "/topics/kept.h2");
    let events = client.request(&events, &[("accept", "text/event-stream")], true);
    client.until(|client| client.body(events).contains("subscribed"));
    // A request whose body is incomplete.
    let publish = RequestTarget::new("POST", "http", "localhost", "/topics/kept.h2");
    let publish = client.request(&publish, &[("content-length", "10")], false);
    client.data(publish, b"first", false);
    client.data(echo, &Frame::text("hello").encode(Role::Client), false);
    client.until(|client| client.body(echo).ends_with("hello"));

    service.restart();
    client.until(|client| client.close_code(echo).is_some() && client.close_code(pusher).is_some());
    assert_eq!((client.close_code(echo), client.close_code(pusher)), (Some(1001), Some(4200)));
    for (socket, code) in [(echo, 1001), (pusher, 4200)] {
        client.data(socket, &Frame::close(code, "").encode(Role::Client), true);
    }
    client.until(|client| client.is_going_away);
    // The request finishes, and so does the streaming response.
    client.data(publish, b"-last", true);
    client.until(|client| client.answers.values().all(|answer| answer.has_ended));
    assert_eq!(client.answers[&publish].status, Some(200), "{}", client.body(publish));
    assert!(client.body(events).contains("event: close"), "{}", client.body(events));
    // All streams have ended, so the connection does.
    while client.receive() {}
    // The server waits for the end of its side.
    drop(client);
    // Its other thread accepts connections until it also stops, and each gets GOAWAY.
    service.old_one_ends();

    let mut next = Http2Client::connect(&service);
    let echo = next.websocket("/echo");
    next.data(echo, &Frame::text("again").encode(Role::Client), false);
    next.until(|next| next.body(echo).ends_with("again"));
}
