//! The side of the client: with the machine of the server, and against frames written by hand.

use std::time::Duration;

use sinews_http::h2::{
    Config, ErrorCode, Event, FieldBuffer, H2Connection, PREFACE, RequestTarget, SendMisuse, StreamId,
};
use sinews_testkit::Rng;

use super::support::*;

/// An event of the client, copied.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Answer {
    /// Stream, status, end.
    Response(u32, u16, bool),
    Data(u32, Vec<u8>, bool),
    Trailers(u32),
    Reset(u32, ErrorCode, bool),
    Opened,
    GoAway,
}

struct Client {
    connection: H2Connection,
    fields: FieldBuffer,
    out: Vec<u8>,
}

impl Client {
    fn fresh() -> Self {
        let connection = H2Connection::client(Config::new().with_extended_connect(true));
        Self { connection, fields: FieldBuffer::new(), out: Vec::new() }
    }

    /// A client that has received these settings, and has sent its preface.
    fn with(settings: &[u8]) -> Self {
        let mut client = Self::fresh();
        assert_eq!(client.connection.server_settings(), None);
        client.silent(&[frame(SETTINGS, 0, 0, settings), frame(SETTINGS, ACK, 0, &[])].concat());
        client.connection.write_control(&mut client.out);
        let sent = std::mem::take(&mut client.out);
        let sent = parse(sent.strip_prefix(&PREFACE[..]).expect("the preface"));
        // Pushed responses are disabled, and no setting of a server is sent.
        let ids: Vec<&[u8]> = sent[0].payload.chunks(6).map(|setting| &setting[..2]).collect();
        assert!(sent[0].payload.starts_with(&setting(2, 0)) && !ids.contains(&&[0, 3][..]), "{ids:?}");
        assert!(!ids.contains(&&[0, 8][..]), "{ids:?}");
        assert_eq!(sent.last().map(|frame| (frame.frame_type, frame.flags)), Some((SETTINGS, ACK)));
        client
    }

    fn new() -> Self {
        Self::with(&[setting(8, 1)].concat())
    }

    fn receive(&mut self, mut input: &[u8]) -> Result<Vec<Answer>, ErrorCode> {
        let mut seen = Vec::new();
        loop {
            let event = self.connection.receive(&mut input, &mut self.fields, Duration::ZERO);
            match event.map_err(|error| error.code())? {
                None => return Ok(seen),
                Some(Event::Response { stream, head, ends }) => {
                    seen.push(Answer::Response(stream.get(), head.status(), ends));
                }
                Some(Event::Data { stream, data, ends }) => {
                    seen.push(Answer::Data(stream.get(), data.to_vec(), ends));
                }
                Some(Event::Trailers { stream, .. }) => seen.push(Answer::Trailers(stream.get())),
                Some(Event::Reset { stream, code, violation }) => {
                    seen.push(Answer::Reset(stream.get(), code, violation.is_some()));
                }
                Some(Event::WindowOpened { .. }) => seen.push(Answer::Opened),
                Some(Event::GoAway { .. }) => seen.push(Answer::GoAway),
                Some(other) => unreachable!("{other:?}"),
            }
        }
    }

    fn silent(&mut self, input: &[u8]) {
        assert_eq!(self.receive(input), Ok(Vec::new()));
    }

    /// Passes bytes that end the connection; GOAWAY names no stream of the server.
    fn fails(&mut self, input: &[u8], code: ErrorCode) {
        assert_eq!(self.receive(input), Err(code));
        self.connection.write_control(&mut self.out);
        let sent = parse(&std::mem::take(&mut self.out));
        let last = sent.last().expect("GOAWAY");
        assert_eq!((last.frame_type, &last.payload[..4], last.code()), (GOAWAY, &[0; 4][..], code.get()));
    }

    fn request(&mut self, method: &str) -> Result<StreamId, SendMisuse> {
        let target = RequestTarget::new(method, "https", "example.com", "/");
        self.connection.send_request(&target, [], method != "POST", &mut self.out)
    }

    fn tunnel(&mut self) -> Result<StreamId, SendMisuse> {
        let target = RequestTarget::connect("websocket", "example.com", "/").with_scheme("http");
        self.connection.send_request(&target, [("Sec-WebSocket-Version", "13")], false, &mut self.out)
    }
}

fn response(stream: u32, flags: u8, fields: &[(&str, &str)]) -> Vec<u8> {
    headers(stream, flags, fields)
}

const OK: [(&str, &str); 1] = [(":status", "200")];

#[test]
fn random_exchanges_of_both_sides_are_complete() {
    let mut random = Rng::new(7);
    let mut below = |max: u64| random.next_u64() % max;
    let config = Config::new().with_extended_connect(true).with_stream_window(9000);
    let mut server = Server::fresh(config);
    let mut client = Client::fresh();
    let mut seen = server.receive(&std::mem::take(&mut client.out)).unwrap();
    client.connection.write_control(&mut client.out);
    seen.extend(server.receive(&std::mem::take(&mut client.out)).unwrap());
    server.connection.write_control(&mut server.out);
    client.silent(&std::mem::take(&mut server.out));
    assert_eq!(
        client.connection.server_settings().map(|it| (it.max_streams, it.extended_connect)),
        Some((128, true))
    );
    for number in 0..200_u32 {
        let stream = 2 * number + 1;
        let len = below(20_000) as usize;
        let body: Vec<u8> = (0..len).map(|_| below(256) as u8).collect();
        let is_tunnel = below(3) == 0;
        let id = if is_tunnel { client.tunnel() } else { client.request("POST") }.unwrap();
        assert_eq!(id.get(), stream);
        let method = if is_tunnel { "CONNECT" } else { "POST" };
        let (mut sent, mut got, mut echoed) = (0, Vec::new(), Vec::new());
        let (mut is_headed, mut ended) = (false, false);
        while !ended {
            sent += client.connection.send_data(id, &body[sent..], true, &mut client.out).unwrap_or(0);
            client.connection.write_control(&mut client.out);
            for event in server.receive(&std::mem::take(&mut client.out)).unwrap() {
                match event {
                    Seen::Request(of, is, _, false) => assert_eq!((of, &*is), (stream, method)),
                    Seen::Data(of, data, _) => {
                        assert_eq!(of, stream);
                        server.connection.release(server.id(of), data.len());
                        got.extend_from_slice(&data);
                    }
                    Seen::Opened(_) => {}
                    other => panic!("{other:?}"),
                }
            }
            if !is_headed {
                is_headed = true;
                let head = server.id(stream);
                server.connection.send_head(head, 103, [], false, &mut server.out).unwrap();
                server.head(head, false);
            }
            if got.len() == body.len() {
                let of = server.id(stream);
                let _ = server.connection.send_data(of, &got, true, &mut server.out);
            }
            server.connection.write_control(&mut server.out);
            for event in client.receive(&std::mem::take(&mut server.out)).unwrap() {
                match event {
                    Answer::Response(of, 103 | 200, false) => assert_eq!(of, stream),
                    Answer::Data(of, data, ends) => {
                        assert_eq!(of, stream);
                        client.connection.release(id, data.len());
                        echoed.extend_from_slice(&data);
                        ended |= ends;
                    }
                    Answer::Opened => {}
                    other => panic!("{other:?}"),
                }
            }
        }
        assert!(got == body && echoed == body, "exchange {number}");
        assert_eq!((client.connection.streams(), server.connection.streams()), (0, 0));
    }
}

#[test]
fn requests_follow_the_settings_of_the_server() {
    let mut client = Client::with(&setting(3, 2));
    assert_eq!(client.tunnel(), Err(SendMisuse::NotPermitted), "no extended CONNECT");
    assert_eq!(client.request("GET").map(StreamId::get), Ok(1));
    assert_eq!(client.request("GET").map(StreamId::get), Ok(3));
    assert_eq!(client.request("GET"), Err(SendMisuse::NotPermitted), "two streams are open");
    let seen = client.receive(&response(1, END_STREAM, &OK));
    assert_eq!(seen, Ok(vec![Answer::Response(1, 200, true)]));
    assert_eq!(client.request("GET").map(StreamId::get), Ok(5));
    assert_eq!(Client::new().tunnel().map(StreamId::get), Ok(1));
    let mut server = H2Connection::server(Config::new());
    let target = RequestTarget::new("GET", "https", "example.com", "/");
    let sent = server.send_request(&target, [], true, &mut Vec::new());
    assert_eq!(sent, Err(SendMisuse::NotPermitted), "a server sends no request");
}

#[test]
fn streams_beyond_goaway_are_refused() {
    let mut client = Client::new();
    for _ in 0..3 {
        client.request("POST").unwrap();
    }
    let seen = client.receive(&frame(GOAWAY, 0, 0, &[0, 0, 0, 1, 0, 0, 0, 0]));
    let refused = |stream| Answer::Reset(stream, ErrorCode::REFUSED_STREAM, false);
    assert_eq!(seen, Ok(vec![Answer::GoAway, refused(5), refused(3)]));
    assert_eq!(client.request("GET"), Err(SendMisuse::NotPermitted), "the server takes no more");
    let seen = client.receive(&response(1, END_STREAM, &OK));
    assert_eq!(seen, Ok(vec![Answer::Response(1, 200, true)]), "the first stream continues");
}

#[test]
fn announced_shutdown_ends_requests_and_no_stream() {
    let mut client = Client::new();
    client.request("POST").unwrap();
    let go_away = frame(GOAWAY, 0, 0, &[0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
    assert_eq!(client.receive(&go_away), Ok(vec![Answer::GoAway]));
    assert_eq!(client.request("GET"), Err(SendMisuse::NotPermitted), "the server drains");
    assert_eq!(client.tunnel(), Err(SendMisuse::NotPermitted), "the server drains");
    assert_eq!(client.receive(&go_away), Ok(vec![Answer::GoAway]), "the limit may stay");
    let seen = client.receive(&response(1, END_STREAM, &OK));
    assert_eq!(seen, Ok(vec![Answer::Response(1, 200, true)]), "the open stream continues");
    client.receive(&frame(GOAWAY, 0, 0, &[0, 0, 0, 1, 0, 0, 0, 0])).unwrap();
    client.fails(&go_away, ErrorCode::PROTOCOL_ERROR);
}

#[test]
fn responses_to_cancelled_requests_beyond_the_remembered_ones_are_ignored() {
    let mut client = Client::with(&setting(3, 1000));
    let cancelled = 3 * Config::CLOSED_STREAMS_MAX;
    for _ in 0..cancelled {
        let stream = client.request("GET").unwrap();
        client.connection.reset(stream, ErrorCode::CANCEL);
        client.connection.write_control(&mut client.out);
    }
    // The first one is forgotten, the last one is remembered. Each head changes the table of the decoder.
    for stream in [1, 2 * u32::try_from(cancelled).unwrap() - 1] {
        client.silent(&response(stream, 0, &OK));
        client.silent(&frame(DATA, 0, stream, b"late"));
        client.silent(&frame(DATA, END_STREAM, stream, b"late"));
    }
    let next = client.request("GET").unwrap().get();
    let seen = client.receive(&response(next, END_STREAM, &OK));
    assert_eq!(seen, Ok(vec![Answer::Response(next, 200, true)]));
}

#[test]
fn content_length_of_an_accepted_tunnel_is_ignored() {
    let mut client = Client::new();
    client.tunnel().unwrap();
    client.receive(&response(1, 0, &[(":status", "200"), ("content-length", "2")])).unwrap();
    let seen = client.receive(&frame(DATA, 0, 1, b"longer"));
    assert_eq!(seen, Ok(vec![Answer::Data(1, b"longer".to_vec(), false)]));
    client.tunnel().unwrap();
    let seen = client.receive(&response(3, END_STREAM, &[(":status", "200"), ("content-length", "2")]));
    assert_eq!(seen, Ok(vec![Answer::Response(3, 200, true)]));
    // Of a rejected one, it counts.
    client.tunnel().unwrap();
    client.receive(&response(5, 0, &[(":status", "403"), ("content-length", "2")])).unwrap();
    let seen = client.receive(&frame(DATA, 0, 5, b"longer"));
    assert_eq!(seen, Ok(vec![Answer::Reset(5, ErrorCode::PROTOCOL_ERROR, true)]));
}

#[test]
fn violations_of_a_server_end_the_connection() {
    let violations: [(Vec<u8>, ErrorCode); 7] = [
        (frame(PUSH_PROMISE, END_HEADERS, 1, &[0, 0, 0, 2]), ErrorCode::PROTOCOL_ERROR),
        (response(3, 0, &OK), ErrorCode::PROTOCOL_ERROR),
        (response(2, 0, &OK), ErrorCode::PROTOCOL_ERROR),
        (frame(DATA, 0, 3, b"a"), ErrorCode::PROTOCOL_ERROR),
        (frame(RST_STREAM, 0, 3, &[0; 4]), ErrorCode::PROTOCOL_ERROR),
        (frame(SETTINGS, 0, 0, &setting(2, 1)), ErrorCode::PROTOCOL_ERROR),
        (frame(HEADERS, END_HEADERS, 1, &[0x80]), ErrorCode::COMPRESSION_ERROR),
    ];
    for (input, code) in violations {
        let mut client = Client::new();
        client.request("GET").unwrap();
        client.out.clear();
        client.fails(&input, code);
    }
    let mut client = Client::new();
    client.request("GET").unwrap();
    client.receive(&response(1, END_STREAM, &OK)).unwrap();
    client.fails(&response(1, 0, &OK), ErrorCode::STREAM_CLOSED);
}

#[test]
fn malformed_responses_reset_their_stream() {
    let malformed: [(&[(&str, &str)], u8); 6] = [
        (&[("a", "b")], 0),
        (&[(":status", "101")], 0),
        (&[(":status", "20")], 0),
        (&[(":status", "200"), ("connection", "close")], 0),
        (&[(":status", "103")], END_STREAM),
        (&[(":status", "200"), ("content-length", "5")], END_STREAM),
    ];
    for (fields, flags) in malformed {
        let mut client = Client::new();
        client.request("POST").unwrap();
        let seen = client.receive(&response(1, flags, fields));
        assert_eq!(seen, Ok(vec![Answer::Reset(1, ErrorCode::PROTOCOL_ERROR, true)]), "{fields:?}");
    }
    let mut client = Client::new();
    client.request("POST").unwrap();
    let seen = client.receive(&frame(DATA, 0, 1, b"a"));
    assert_eq!(seen, Ok(vec![Answer::Reset(1, ErrorCode::PROTOCOL_ERROR, true)]), "content before the head");
    let large = "a".repeat(60_000);
    client.request("POST").unwrap();
    let head = block(&[(":status", "200"), ("x", &large)]);
    let pieces: Vec<&[u8]> = head.chunks(16_000).collect();
    let input: Vec<u8> = pieces
        .iter()
        .enumerate()
        .flat_map(|(at, piece)| {
            let kind = if at == 0 { HEADERS } else { CONTINUATION };
            frame(kind, if at + 1 == pieces.len() { END_HEADERS } else { 0 }, 3, piece)
        })
        .collect();
    assert_eq!(client.receive(&input), Ok(vec![Answer::Reset(3, ErrorCode::ENHANCE_YOUR_CALM, true)]));
}

#[test]
fn responses_without_content_may_declare_its_length() {
    for (method, status) in [("HEAD", "200"), ("GET", "304")] {
        let mut client = Client::new();
        client.request(method).unwrap();
        let input = response(1, END_STREAM, &[(":status", status), ("content-length", "5")]);
        assert_eq!(client.receive(&input), Ok(vec![Answer::Response(1, status.parse().unwrap(), true)]));
    }
    let mut client = Client::new();
    client.request("GET").unwrap();
    client.receive(&response(1, 0, &[(":status", "200"), ("content-length", "5")])).unwrap();
    let seen = client.receive(&frame(DATA, END_STREAM, 1, b"four"));
    assert_eq!(seen, Ok(vec![Answer::Reset(1, ErrorCode::PROTOCOL_ERROR, true)]), "content is shorter");
}

#[test]
fn rejected_tunnel_may_have_trailers() {
    let mut client = Client::new();
    client.tunnel().unwrap();
    client.receive(&response(1, 0, &[(":status", "403")])).unwrap();
    assert_eq!(client.receive(&response(1, END_STREAM, &[("a", "b")])), Ok(vec![Answer::Trailers(1)]));
    client.tunnel().unwrap();
    client.receive(&response(3, 0, &OK)).unwrap();
    let seen = client.receive(&response(3, END_STREAM, &[("a", "b")]));
    assert_eq!(
        seen,
        Ok(vec![Answer::Reset(3, ErrorCode::PROTOCOL_ERROR, true)]),
        "an accepted one carries DATA only"
    );
}
