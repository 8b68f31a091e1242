//! A connection in steady state allocates nothing: for requests, for their answers, for bytes of tunnels and of sessions.

use std::time::Duration;

use sinews_http::h3::{Config, Event, FieldBuffer, H3Connection, QuicStreamId};
use sinews_testkit::measure;

/// Handles input of a stream and answers each event. Returns the number of events.
fn exchange(
    connection: &mut H3Connection,
    stream: u64,
    fields: &mut FieldBuffer,
    mut input: &[u8],
    ends: bool,
    out: &mut Vec<u8>,
) -> usize {
    let (stream, mut events) = (QuicStreamId::new(stream), 0);
    while let Some(event) =
        connection.receive(stream, &mut input, ends, fields, Duration::ZERO).expect("valid input")
    {
        events += 1;
        match event {
            Event::Request { stream, .. } => {
                let fields = [("Content-Type", "text/plain"), ("date", "Mon, 23 Nov 2026 12:00:00 GMT")];
                connection.send_head(stream, 200, fields, false, out).expect("an open stream");
            }
            Event::Data { stream, data } if stream.is_request() => {
                connection.send_data(stream, data, false, out).expect("an open stream");
            }
            Event::End { stream } if stream.is_request() => {
                connection.send_data(stream, b"hello", true, out).expect("an open stream");
            }
            _ => {}
        }
    }
    events
}

#[test]
fn requests_tunnels_and_sessions_allocate_nothing_in_steady_state() {
    let mut connection = H3Connection::server(Config::new().with_max_sessions(1));
    let (mut fields, mut out) = (FieldBuffer::new(), Vec::with_capacity(1 << 20));
    let open = |connection: &mut H3Connection, stream| {
        connection.open(QuicStreamId::new(stream), Duration::ZERO).expect("a new stream");
    };
    let connect = |protocol: &str| {
        let mut section = b"\0\0\xcf\x27\x02:protocol".to_vec();
        section.push(protocol.len() as u8);
        section.extend_from_slice(protocol.as_bytes());
        section.extend_from_slice(b"\xd7\xc1\x50\x01a");
        [&[1, section.len() as u8][..], &section].concat()
    };
    for (stream, bytes) in [
        (2, vec![0, 4, 2, 0x33, 1]),
        (0, connect("websocket")),
        (4, connect("webtransport")),
        (6, vec![0x40, 0x54, 4]),
    ] {
        open(&mut connection, stream);
        assert_eq!(exchange(&mut connection, stream, &mut fields, &bytes, false, &mut out), 1, "{stream}");
    }
    for number in 2..1_000 {
        let stream = 4 * number;
        out.clear();
        let (events, counts) = measure(|| {
            open(&mut connection, stream);
            let head = b"\x01\x09\0\0\xd1\xd7\xc1\x50\x02ab";
            let mut events = exchange(&mut connection, stream, &mut fields, head, true, &mut out);
            events += exchange(&mut connection, 0, &mut fields, b"\0\x0a0123456789", false, &mut out);
            events += exchange(&mut connection, 6, &mut fields, b"bytes of a session", false, &mut out);
            let datagram = connection.receive_datagram(b"\x01datagram").expect("a valid datagram");
            events + usize::from(datagram.is_some())
        });
        assert_eq!(events, 5);
        assert!(number < 10 || counts.allocations == 0, "request {number}: {counts:?}");
    }
    assert_eq!(connection.requests(), 2);
    assert!(connection.memory() < 2 << 10, "{}", connection.memory());
}
